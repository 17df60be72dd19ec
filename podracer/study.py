"""A sweep that looks for the best hyper-parameters: Optuna proposes, a launcher runs, and Optuna is told.

A trial is a job with the same number, and so has a folder of that number. The study is a database in the sweep's
folder: the same command again goes on with it, also with the trials that a killed process has left.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_type_hints

import yaml
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from podracer import jobs
from podracer.composition import check_overrides, parse_overrides
from podracer.config import Settings as RunSettings
from podracer.conversion import ConfigError, convert
from podracer.study_parts import Settings, distribution_of, load_optuna, make, open_storage

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from podracer.loop import Watch

# The environment variable by which jobs learn of the study that prunes them; a launcher's processes inherit it.
_STUDY = "PODRACER_STUDY"
_PRUNED = "pruned"  # an attribute of a trial


class Search(NamedTuple):
    """What Hydra gives a sweeper."""

    launcher: Launcher
    validate: Callable[[Sequence[Sequence[str]]], None]  # composes overrides, to see whether they can be
    config: DictConfig  # the sweep's

    @property
    def folder(self) -> Path:
        return Path(self.config.hydra.sweep.dir).absolute()


def optimise(settings: Settings, search: Search, overrides: Sequence[str]) -> None:
    """Runs the trials that a study lacks, and says which was best.

    Args:
      settings: of the study.
      search: who runs them.
      overrides: of the sweep; those that are intervals, ranges or choices make the space that is searched.

    Raises:
      ConfigError: nothing is to be searched, Optuna is missing or has no such sampler or pruner, or the study that
        is there is another.
    """
    check_overrides(overrides)
    latest = {override.key_or_group: override for override in parse_overrides(overrides)}
    space = {key: distribution_of(override) for key, override in latest.items() if override.is_sweep_override()}
    fixed = [override.input_line for key, override in latest.items() if key not in space]
    if "resume" not in latest:
        fixed.append("resume=auto")  # the jobs of trials that a killed process has left go on where they were
    if not space:
        raise ConfigError(
            "hydra/sweeper=optuna has nothing to search: give a key an interval, a range or choices, such as "
            "'agent.learning_rate=tag(log,interval(1e-4,1e-2))'"
        )
    objective = convert(search.config.objective, get_type_hints(RunSettings)["objective"], "objective")
    if settings.pruner is not None and objective == "steps_per_second":
        raise ConfigError("hydra.sweeper.pruner judges by returns; objective=steps_per_second takes pruner=null")
    study = _open(settings, search.folder, objective)
    has_failed, is_validated = False, False
    with _told_to_jobs(settings, search.folder):
        while trials := _next_trials(study, settings):
            for piece in _consecutive(trials):
                job_overrides = [[*_chosen(trial, space), *fixed] for trial in piece]
                if not is_validated:  # the others have the same keys, and composing takes as long as a short run
                    search.validate(job_overrides)
                    is_validated = True
                has_failed |= _launch(study, piece, job_overrides, search)
            if has_failed and search.config.fail_fast:
                break
    _conclude(study, search.folder, objective)


def watcher(number: int) -> "Watch | None":
    """What a job tells of its evaluations, and by which it may be pruned; None where no study prunes."""
    told = os.environ.get(_STUDY)
    if told is None:
        return None
    import optuna

    settings = Settings(**json.loads(told))
    study = optuna.load_study(
        study_name=settings.study_name,
        storage=open_storage(settings.storage),
        pruner=make("pruner", settings.pruner, settings.pruner_kwargs),
    )
    frozen = study.get_trials()[number]
    trial = optuna.Trial(study, frozen._trial_id)

    def goes_on(evaluation: int, mean: float) -> bool:
        if evaluation not in frozen.intermediate_values:  # of a run that goes on, it was told before
            trial.report(mean, evaluation)
        if not trial.should_prune():
            return True
        trial.set_user_attr(_PRUNED, True)
        return False

    return goes_on


def _open(settings: Settings, folder: Path, objective: str) -> "Study":
    optuna = load_optuna()
    folder.mkdir(parents=True, exist_ok=True)
    url = settings.url(folder)
    study = optuna.create_study(
        storage=open_storage(url), study_name=settings.study_name, direction=settings.direction, load_if_exists=True
    )
    for name, known, now in (
        ("hydra.sweeper.direction", study.direction.name.lower(), settings.direction),
        ("objective", study.user_attrs.get("objective", objective), objective),
    ):
        if known != now:
            raise ConfigError(f"{name}={now}, but the study in {url} has {known}; use that, or another hydra.sweep.dir")
    study.set_user_attr("objective", objective)
    seed = None if settings.seed is None else settings.seed + len(study.trials)  # going on repeats no proposal
    study.sampler = make("sampler", settings.sampler, settings.sampler_kwargs, seed)
    done = len(study.trials) - len(_unfinished(study))
    print(
        f"study: objective={objective} direction={settings.direction} sampler={settings.sampler} "
        f"pruner={settings.pruner}; {done} of {settings.n_trials} trials are done; {url}",
        flush=True,
    )
    return study


@contextlib.contextmanager
def _told_to_jobs(settings: Settings, folder: Path) -> Iterator[None]:
    """Lets jobs report to the study while a block runs, if they are to be pruned."""
    if settings.pruner is None:
        yield
        return
    make("pruner", settings.pruner, settings.pruner_kwargs)
    fields = ("study_name", "pruner", "pruner_kwargs")
    told = {"storage": settings.url(folder), **{name: getattr(settings, name) for name in fields}}
    os.environ[_STUDY] = json.dumps(told)
    try:
        yield
    finally:
        del os.environ[_STUDY]


def _unfinished(study: "Study") -> list["FrozenTrial"]:
    return [trial for trial in study.get_trials(deepcopy=False) if not trial.state.is_finished()]


def _next_trials(study: "Study", settings: Settings) -> list["Trial"]:
    """The trials to run next: first those that an earlier command has left."""
    import optuna

    left = [optuna.Trial(study, trial._trial_id) for trial in _unfinished(study)[: settings.batch_size]]
    if left:
        return left
    count = min(settings.batch_size, settings.n_trials - len(study.trials))
    return [study.ask() for _ in range(count)]


def _consecutive(trials: Sequence["Trial"]) -> Iterator[list["Trial"]]:
    """A launcher numbers its jobs one by one."""
    piece: list = []
    for trial in trials:
        if piece and piece[-1].number + 1 != trial.number:
            yield piece
            piece = []
        piece.append(trial)
    yield piece


def _launch(study: "Study", trials: Sequence["Trial"], job_overrides: Sequence[Sequence[str]], search: Search) -> bool:
    """Runs trials, tells the study of them, and returns whether one failed."""
    from optuna.trial import TrialState

    try:
        returns = search.launcher.launch(job_overrides, initial_job_idx=trials[0].number)
    except ConfigError:
        raise
    except Exception as error:  # of a process that died, and with it what ran beside
        returns = [JobReturn(overrides=overrides) for overrides in job_overrides]
        for trial, overrides in zip(trials, job_overrides):
            jobs.fail(overrides, search.folder / str(trial.number), error)
    has_failed = False
    for trial, returned in zip(trials, returns):
        value = returned._return_value if returned.status == JobStatus.COMPLETED else math.nan
        if value is None and study.get_trials(deepcopy=False)[trial.number].user_attrs.get(_PRUNED):
            study.tell(trial, state=TrialState.PRUNED)
        elif value is None and search.config.fail_fast and jobs.has_failures():
            continue  # it was not started
        elif value is None or not math.isfinite(value):
            if returned.status == JobStatus.COMPLETED:
                _refuse(value, returned, search.config)
            study.tell(trial, state=TrialState.FAIL)
            has_failed = True
        else:
            study.tell(trial, value)
        _show(study, trial, search.config.objective)
    return has_failed


def _chosen(trial: "Trial", space: Mapping[str, "BaseDistribution"]) -> list[str]:
    """What a trial tries, as overrides; a trial that was begun before keeps its values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    chosen = []
    for key, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            value = trial.suggest_categorical(key, distribution.choices)
        else:
            suggest = trial.suggest_float if isinstance(distribution, FloatDistribution) else trial.suggest_int
            value = suggest(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
        chosen.append(f"{key}={value}")
    return chosen


def _refuse(value: float | None, returned: JobReturn, config: DictConfig) -> None:
    """Tells of a run that ended without a number to judge it by."""
    hint = "it made no evaluation; use evaluation.num_episodes=128" if value is None else f"it is {value}"
    error = ValueError(f"objective={config.objective} says nothing of this run: {hint}")
    jobs.fail(returned.overrides, Path(returned.hydra_cfg.hydra.runtime.output_dir), error)


def _show(study: "Study", trial: "Trial", objective: str) -> None:
    told = study.get_trials(deepcopy=False)[trial.number]
    values = " ".join(f"{key}={value}" for key, value in told.params.items())
    state = told.state.name.lower() if told.value is None or told.state.name == "PRUNED" else f"{told.value:.6g}"
    print(f"trial {trial.number}: {objective} {state}, {values}", flush=True)


def _conclude(study: "Study", folder: Path, objective: str) -> None:
    """Says which trial was best, and writes it down."""
    from optuna.trial import TrialState

    completed = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    if not completed:
        print("study: no trial was completed", flush=True)
        return
    best = study.best_trial
    values = " ".join(f"{key}={value}" for key, value in best.params.items())
    print(
        f"study: best of {len(study.trials)} trials is {best.number}: {objective} {best.value:.6g}, {values}",
        flush=True,
    )
    results = {"name": "optuna", "best_trial": best.number, "best_value": best.value, "best_params": dict(best.params)}
    (folder / "optimization_results.yaml").write_text(yaml.safe_dump(results, sort_keys=False), encoding="utf-8")
