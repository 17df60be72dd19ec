"""The one trajectory store: on-policy is a store of one unroll, off-policy a larger one."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from podracer.spaces import StackedFrames
from podracer.types import Array, ArrayTree, Batch, Key, Trajectory

State = TypeVar("State")

EpisodeEnds = Literal["mask", "reset", "cut"]


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """What is known of a run before anything is stored: how it inserts, and what its agent asks for."""

    num_envs: int
    """Environments that act, over all devices."""
    unroll_length: int
    """T: timesteps of each that are added at a time."""
    batch_size: int
    """Sequences a batch, over all devices."""
    num_devices: int = 1
    """Learner devices; each holds a shard of the environments, and samples its share of a batch from it."""
    sequence_length: int
    """Timesteps of a sequence, bootstrap included."""
    sequence_period: int = 1
    """A sequence may start every so many timesteps."""
    transitions_per_sequence: int = 1
    """How many transitions a sequence counts for in `samples_per_insert`."""
    episode_ends: EpisodeEnds = "mask"
    """What becomes of a sequence that meets the end of an episode. mask: what follows is padding, no transition by
    `valid_transitions`, that repeats the last observation. reset: it runs on into the next episode. cut: it is not
    sampled."""
    samples_per_insert: float = 8.0
    """The ratio of an agent whose user asks for none."""

    stacked_frames: StackedFrames | None = None
    """Where observations are stacks of frames: each frame is stored once."""

    @property
    def batch_size_per_device(self) -> int:
        return self.batch_size // self.num_devices


class Replay(Protocol[State]):
    """Pure functions over an explicit state, one shard a learner device, sampled locally.

    A replay is a frozen dataclass whose fields are its configuration. Those for agents with a `batch_size`
    have two further fields, filled in by `podracer.build`:

      spec: ReplaySpec         what is added and what is sampled
      axis_name: str | None    the mesh axis of the learner devices
    """

    def summary(self) -> dict[str, float]:
        """Says in figures what the plan shows of the store, by name; {} where there is nothing to say."""
        ...

    def init(self, example: Trajectory) -> State:
        """Makes an empty store for trajectories of this structure, `[T+1, B, ...]`; no leaf is a scalar."""
        ...

    def add(self, state: State, trajectory: Trajectory) -> State:
        """Stores one trajectory."""
        ...

    def take_updates(self, state: State) -> tuple[State, int | Array]:
        """Says how many batches to learn from before the next trajectory, the same on every device."""
        ...

    def can_sample(self, state: State) -> Array:
        """`[]` bool, whether there is anything to sample."""
        ...

    def sample(self, state: State, key: Key) -> tuple[State, Batch]:
        """Draws a batch of sequences, or takes it out; it has no meaning where `can_sample` is False."""
        ...

    def set_priorities(self, state: State, indices: ArrayTree, priorities: Array) -> State:
        """Changes the priorities of sampled sequences, where the store has priorities."""
        ...

    def retain(self, state: State) -> Any:
        """Selects what outlives the learn phase, a state as `init` makes it. An on-policy store keeps nothing."""
        ...

    def reshard(self, state: State, num_devices: int) -> State:
        """Spreads a saved state over another number of devices, on the host.

        Args:
          state: those of all devices, concatenated along their first axes.
          num_devices: D'; `spec` is of this number already.
        """
        ...

    def size(self, state: State) -> Array:
        """`[]` int32, number of stored transitions."""
        ...
