"""What a run leaves on disk to be acted with: the actors' parameters, by Orbax."""

from pathlib import Path

import jax
from jax.sharding import SingleDeviceSharding

from podracer.types import PolicySnapshot

_POLICY = Path("checkpoints") / "policy"


def save_policy(folder: Path, snapshot: PolicySnapshot) -> None:
    """Writes a snapshot into a run's folder, over the one before it."""
    import orbax.checkpoint as ocp  # two seconds, needed only at a run's end

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((folder / _POLICY).resolve(), jax.device_get(snapshot), force=True)


def restore_policy(folder: Path, example: PolicySnapshot) -> PolicySnapshot:
    """Reads a snapshot from a run's folder, onto the first device whatever it was trained on.

    Args:
      folder: of the run.
      example: shapes and dtypes, as `jax.eval_shape` gives them.

    Raises:
      FileNotFoundError: if the run has left none.
      ValueError: if what it left has another structure.
    """
    import orbax.checkpoint as ocp

    path = (folder / _POLICY).resolve()
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no parameters ({_POLICY}); they are written with every evaluation and at the end"
        )
    sharding = SingleDeviceSharding(jax.local_devices()[0])
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), example)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, abstract)
