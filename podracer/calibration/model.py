"""Predicts how fast a run is from the measured costs of its parts: plain arithmetic.

Sebulba. Actors and the learner work at the same time, so an update takes as long as the slowest of

    actors       the wall seconds of one unroll, stepping and acting, while all actors do so and nobody learns
    learner      the wall seconds of one update, while nobody acts
    processors   the processor seconds of all of that together, over the processors that there are for them

In lockstep (lag 0) actors and learner take turns, and their seconds add up.

Anakin. All is one program: the seconds of its parts add up. Learning is what stepping and acting, timed alone, leave of
the program's seconds.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Part = Literal["environment", "acting", "learning"]


@dataclass(frozen=True)
class ActingCost:
    """What one unroll of all actors costs while nobody learns."""

    env_steps: float  # valid transitions
    seconds: float  # wall time from one unroll to the next
    environment_seconds: float  # of an actor, stepping
    acting_seconds: float  # of an actor, for all else
    processor_seconds: float  # of all threads

    @property
    def processors(self) -> float:
        """How many were at work on average."""
        return self.processor_seconds / self.seconds


@dataclass(frozen=True)
class LearningCost:
    """What one update costs while nobody acts."""

    seconds: float
    processor_seconds: float

    @property
    def processors(self) -> float:
        """How many were at work on average."""
        return self.processor_seconds / self.seconds


@dataclass(frozen=True)
class ProgramCost:
    """What one update of Anakin's program costs."""

    env_steps: float  # valid transitions
    seconds: float
    environment_seconds: float  # of a device, stepping alone
    acting_seconds: float  # of a device, acting alone
    processor_seconds: float  # of all threads


class Prediction(NamedTuple):
    """How fast a run is, and why not faster."""

    steps_per_second: float
    steps_per_processor_second: float  # which other load on the machine changes less
    bottleneck: Part  # of which less would make it faster
    limit: Literal["actors", "learner", "processors", "lockstep", "program"]  # which bound it meets
    seconds: dict[str, float]  # of an update: each part, and each bound of Sebulba


def predict_sebulba(acting: ActingCost, learning: LearningCost, processors: float, *, lockstep: bool) -> Prediction:
    """Predicts a run of actors and a learner.

    Args:
      acting: of all actors.
      learning: of the learner.
      processors: that the run gets, on average; other load on the machine takes away from them.
      lockstep: whether actors wait for the update that follows from their last unroll.
    """
    processor_seconds = acting.processor_seconds + learning.processor_seconds
    bounds = {
        "actors": acting.seconds,
        "learner": learning.seconds,
        "processors": processor_seconds / processors,
    }
    if lockstep:
        bounds["lockstep"] = acting.seconds + learning.seconds
    limit = max(bounds, key=bounds.__getitem__)
    parts = {
        "environment": acting.environment_seconds,
        "acting": acting.acting_seconds,
        "learning": learning.seconds,
    }
    # Each part's share of what the bound counts: an actor's time, the learner's, both, or that of processors.
    env_share = acting.environment_seconds / (acting.environment_seconds + acting.acting_seconds)
    actors, learner = {
        "actors": (acting.seconds, 0.0),
        "learner": (0.0, learning.seconds),
        "lockstep": (acting.seconds, learning.seconds),
        "processors": (acting.processor_seconds, learning.processor_seconds),
    }[limit]
    weights = {"environment": actors * env_share, "acting": actors * (1 - env_share), "learning": learner}
    bottleneck = max(weights, key=weights.__getitem__)
    return Prediction(
        steps_per_second=acting.env_steps / bounds[limit],
        steps_per_processor_second=acting.env_steps / processor_seconds,
        bottleneck=bottleneck,
        limit=limit,
        seconds={**parts, **bounds},
    )


def predict_anakin(cost: ProgramCost) -> Prediction:
    """Predicts a run of one program."""
    unroll = cost.environment_seconds + cost.acting_seconds
    # Parts alone can take longer than the program that contains them.
    scale = min(1.0, cost.seconds / unroll)
    parts = {
        "environment": scale * cost.environment_seconds,
        "acting": scale * cost.acting_seconds,
        "learning": cost.seconds - scale * unroll,
    }
    bottleneck = max(parts, key=parts.__getitem__)
    return Prediction(
        steps_per_second=cost.env_steps / cost.seconds,
        steps_per_processor_second=cost.env_steps / cost.processor_seconds,
        bottleneck=bottleneck,
        limit="program",
        seconds=parts,
    )
