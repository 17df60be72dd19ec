"""What a saved run's device state is built from, on whatever devices this run has."""

from typing import TypeVar

from podracer.replay import shards
from podracer.replay.base import Replay
from podracer.trees import Arrays, from_arrays, subtree

State = TypeVar("State")


def restore_device(arrays: Arrays, example: State, replay: Replay, num_devices: int) -> State:
    """Builds the state that a runner's program carries; the store is spread over the devices anew.

    Args:
      arrays: of a state that was saved.
      example: the state of this run, shapes only; a named tuple with a field `replay`.
      replay: the store of this run.
      num_devices: learner devices of this run.

    Raises:
      ValueError: the saved state is of another structure.
    """
    rest = {name: array for name, array in arrays.items() if not name.startswith("replay/")}
    state = from_arrays(rest, example._replace(replay=()))
    return state._replace(replay=shards.restore(subtree(arrays, "replay"), replay, example.replay, num_devices))
