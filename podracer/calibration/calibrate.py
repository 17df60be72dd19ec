"""Calibrates a plan: measures the parts of the candidates on this machine, and predicts how fast each would be."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from podracer.build import Run, build
from podracer.calibration import sides
from podracer.calibration.candidates import Candidate, base_candidate, candidates, with_candidate
from podracer.calibration.model import Prediction, predict_anakin, predict_sebulba
from podracer.config import Config
from podracer.conversion import ConfigError, settings_of
from podracer.importing import load_object
from podracer.parallel.mesh import Plan

Tell = Callable[[str], None]

# A faster one than the base by less than this is not told apart from it.
_NOTABLE = 1.05
# No measurement comes to the end of this budget.
_ENDLESS = 10**12


class Calibrated(NamedTuple):
    """A candidate with what is predicted of it."""

    candidate: Candidate
    plan: Plan
    prediction: Prediction


@dataclass(frozen=True)
class Calibration:
    """What was measured and predicted."""

    base: Candidate
    calibrated: list[Calibrated]  # the base first, in the order of measurement
    processors: float  # that the process got
    left_out: int  # candidates that there was no time for

    def best(self, *, same_batch: bool = False) -> Calibrated:
        """The fastest, or the base where none is notably faster.

        Args:
          same_batch: of those with as many environments and as long unrolls as the base, so that what is learnt is
            the same.
        """
        allowed = [item for item in self.calibrated if not same_batch or item.candidate.has_batch_of(self.base)]
        fastest = max(allowed, key=lambda item: item.prediction.steps_per_second)
        base = self.calibrated[0]
        is_faster = fastest.prediction.steps_per_second > _NOTABLE * base.prediction.steps_per_second
        return fastest if is_faster else base


def calibrate(config: Config, seconds: float, tell: Tell) -> Calibration:
    """Measures as many candidates as there is time for.

    Args:
      config: what is asked for.
      seconds: after which no measurement begins any more; the base is measured always.
      tell: is told what is measured next.

    Raises:
      ConfigError: the configuration is refused, or is not for this machine.
    """
    _check(config)
    started = time.monotonic()
    measured = measurable(config)
    meter = Meter(seconds / 80, tell)
    run = build(measured)
    base = base_candidate(config, run.plan)
    vary_unroll = "unroll_length" in config.agent.settings
    runs, left_out = {}, 0
    for candidate in candidates(base, run.plan, vary_unroll=vary_unroll):
        if candidate.num_envs * candidate.unroll_length > config.total_env_steps:
            continue
        if runs:
            try:
                run = build(with_candidate(measured, candidate, base))
            except ConfigError:
                continue  # it does not divide
        if runs and time.monotonic() - started + meter.expected_seconds(run) > seconds:
            left_out += 1
            continue
        meter.measure(run)
        runs[candidate] = run
    # All at the end, by as many processors: the candidates are compared with each other.
    calibrated = [Calibrated(candidate, run.plan, meter.predict(run)) for candidate, run in runs.items()]
    return Calibration(base, calibrated, meter.processors, left_out)


class Meter:
    """Measures what runs cost, each of what they have in common once."""

    def __init__(self, piece_seconds: float, tell: Tell = lambda what: None):
        """Measures nothing yet.

        Args:
          piece_seconds: of a measurement, compiling apart.
          tell: is told what is measured next.
        """
        self._piece_seconds, self._tell = piece_seconds, tell
        self._known: dict[tuple, Any] = {}
        self._longest: dict[str, float] = {}  # seconds that a measurement of a kind took, compiling included
        self._bursts: list[float] = []  # processors, beside each measurement
        self._got: list[float] = []  # processors, in each measurement of a side of Sebulba

    @property
    def processors(self) -> float:
        """How many processors this process gets: on average for a moment, or more where a side alone has got more."""
        return max([statistics.mean(self._bursts), *self._got])

    def expected_seconds(self, run: Run) -> float:
        """How long it may take to measure a run, from what was measured before."""
        return sum(self._longest.get(key[0], 0.0) for key in _keys(run.plan) if key not in self._known)

    def measure(self, run: Run) -> None:
        """Measures what is not known yet of a run."""
        plan, seconds = run.plan, self._piece_seconds
        batch = f"{plan.num_envs} environments x {plan.unroll_length} steps"
        if plan.runner == "anakin":
            (key,) = _keys(plan)
            self._measure(run, key, f"the program: {batch}", lambda: sides.time_program(run, seconds))
            return
        acting, learning = _keys(plan)
        text = f"acting: {plan.actors} actors x {plan.envs_per_actor} environments x {plan.unroll_length} steps"
        actors, unrolls = self._measure(run, acting, text, lambda: sides.time_actors(run.runner, seconds))
        text = f"learning: {batch}"
        learner = self._measure(run, learning, text, lambda: sides.time_learner(run.runner, unrolls, seconds))
        self._got += [actors.processors, learner.processors]

    def predict(self, run: Run) -> Prediction:
        """Predicts a run that was measured."""
        costs = [self._known[key] for key in _keys(run.plan)]
        if run.plan.runner == "anakin":
            return predict_anakin(costs[0])
        (acting, _), learning = costs
        return predict_sebulba(acting, learning, self.processors, lockstep=run.runner.lag == 0)

    def _measure(self, run: Run, key: tuple, text: str, measure: Callable[[], Any]) -> Any:
        if key in self._known:
            return self._known[key]
        self._tell(text)
        started = time.monotonic()
        cores = run.plan.topology.cores_per_host
        self._bursts.append(sides.available_processors(cores, self._piece_seconds / 4))
        self._known[key] = measure()
        self._longest[key[0]] = max(self._longest.get(key[0], 0.0), time.monotonic() - started)
        return self._known[key]


def measurable(config: Config) -> Config:
    """The same run without an end, without evaluations, and learning from its first update on."""
    evaluation = dataclasses.replace(config.evaluation, num_episodes=0)
    replay = config.replay
    if "learning_starts" in settings_of(load_object(replay.make, "replay")):
        replay = dataclasses.replace(replay, settings={**replay.settings, "learning_starts": 0})
    return dataclasses.replace(config, total_env_steps=_ENDLESS, evaluation=evaluation, replay=replay)


def _keys(plan: Plan) -> tuple[tuple[Hashable, ...], ...]:
    """What the costs of a run depend on: Anakin's program, or Sebulba's actors and learner."""
    batch = plan.num_envs, plan.unroll_length, plan.learner_ids
    if plan.runner == "anakin":
        return (("program", *batch),)
    acting = plan.envs_per_actor, plan.unroll_length, plan.actor_ids, plan.threads_per_device
    return ("acting", *acting), ("learning", *batch)


def _check(config: Config) -> None:
    if config.topology is not None:
        raise ConfigError(
            f"topology={config.topology.name or 'another'} is not the machine at hand, which --calibrate measures; "
            "leave out topology=..., or --calibrate"
        )
    if jax.process_count() > 1:
        raise ConfigError(f"--calibrate measures one process, and here are {jax.process_count()}; start it alone")
    for key, is_set in {"recording.folder": config.recording.folder is not None, "debug": config.debug}.items():
        if is_set:
            raise ConfigError(
                f"{key} is not for --calibrate, which leaves nothing behind and measures speed; leave it out"
            )
