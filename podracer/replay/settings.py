"""What the stores for off-policy agents have in common: their settings, and what these come to."""

from dataclasses import dataclass

from podracer.replay import ratio, ring
from podracer.replay.base import ReplaySpec


@dataclass(frozen=True, kw_only=True)
class RatioSettings:
    """How often a store is learnt from."""

    spec: ReplaySpec
    axis_name: str | None = None

    learning_starts: int = 1000
    """Transitions that are inserted before learning begins."""
    samples_per_insert: float | None = None
    """Transitions that are sampled for each one that is inserted; None: as many as suit the agent."""
    replay_ratio: float | None = None
    """Updates for each transition that is inserted: the same in another unit, for one of the two."""

    def __post_init__(self):
        spec = self.spec
        if not 0 <= self.learning_starts <= ratio.MOST_COUNTED:
            raise ValueError(
                f"replay.learning_starts={self.learning_starts} is out of range; use 0 to {ratio.MOST_COUNTED}"
            )
        if spec.batch_size % spec.num_devices:
            near = max(1, round(spec.batch_size / spec.num_devices)) * spec.num_devices
            raise ValueError(
                f"agent.batch_size={spec.batch_size} does not divide over {spec.num_devices} learner devices "
                f"(mesh.learner); use {near}"
            )
        assert self.updates_per_insert > 0

    @property
    def updates_per_insert(self) -> float:
        """Updates for each valid transition, resolved."""
        return ratio.updates_per_insert(self.spec, self.samples_per_insert, self.replay_ratio)

    def summary(self) -> dict[str, float]:
        """What the settings come to."""
        samples = self.spec.batch_size * self.spec.transitions_per_sequence
        return {
            "learning_starts": self.learning_starts,
            "samples_per_insert": self.updates_per_insert * samples,
            "replay_ratio": self.updates_per_insert,
            "sequences_per_batch": self.spec.batch_size,
            "timesteps_per_sequence": self.spec.sequence_length,
        }


@dataclass(frozen=True, kw_only=True)
class StoreSettings(RatioSettings):
    """How much is stored, and how often it is learnt from."""

    capacity: int = 100_000
    """Transitions in the store, over all devices; as many whole unrolls of all environments as fit."""

    def __post_init__(self):
        held = self.num_rows * self.spec.num_envs
        if self.learning_starts > held:
            raise ValueError(
                f"replay.learning_starts={self.learning_starts} is out of range for replay.capacity={self.capacity}, "
                f"which is {held} transitions in whole unrolls; use 0 to {held}"
            )
        super().__post_init__()

    @property
    def num_rows(self) -> int:
        """C: timesteps of each environment in the store."""
        return ring.num_rows(self.capacity, self.spec)

    def summary(self) -> dict[str, float]:
        return {"capacity": self.num_rows * self.spec.num_envs, **super().summary()}
