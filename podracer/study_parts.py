"""What a study is made of: its settings, and the parts of Optuna's that they name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override

from podracer.conversion import ConfigError
from podracer.suggest import did_you_mean

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`hydra.sweeper` under `hydra/sweeper=optuna`."""

    n_trials: int = 20
    """Trials of the study, together with those of earlier commands."""
    batch_size: int = 1
    """Trials that are proposed at once, and so may run at once."""
    direction: str = "maximize"
    """maximize or minimize."""
    sampler: str = "TPESampler"
    """A class of `optuna.samplers`."""
    sampler_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments."""
    pruner: str | None = None
    """A class of `optuna.pruners`, which ends hopeless trials at their evaluations; None ends none."""
    pruner_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments; steps are numbers of evaluations."""
    seed: int | None = None
    """Of the sampler."""
    storage: str | None = None
    """URL of a database, as of `optuna.create_study`; None is `study.db` in the sweep's folder."""
    study_name: str = "podracer"
    """In the database."""

    def url(self, folder: Path) -> str:
        """Where the study of the sweep in a folder is."""
        return self.storage or f"sqlite:///{folder / 'study.db'}"

    def __post_init__(self):
        if self.n_trials < 1 or self.batch_size < 1:
            raise ConfigError(
                f"hydra.sweeper.n_trials={self.n_trials} and batch_size={self.batch_size}: use at least 1 of each"
            )
        if self.direction not in ("maximize", "minimize"):
            raise ConfigError(f"hydra.sweeper.direction={self.direction} is neither maximize nor minimize")


def load_optuna() -> Any:
    """Imports Optuna.

    Raises:
      ConfigError: it is missing.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError('hydra/sweeper=optuna needs Optuna: pip install "podracer[optuna]"') from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # what it says is said here
    return optuna


def open_storage(url: str) -> Any:
    """Opens a database, or makes it."""
    optuna = load_optuna()
    # Several processes write to one file, for moments only.
    waits = {"connect_args": {"timeout": 60}} if url.startswith("sqlite:") else {}
    return optuna.storages.RDBStorage(url, engine_kwargs=waits)


def make(key: str, name: str | None, kwargs: Mapping[str, Any], seed: int | None = None) -> Any:
    """Makes a sampler or a pruner of Optuna's.

    Args:
      key: sampler or pruner.
      name: of the class; None makes None.
      kwargs: of the class.
      seed: one more of them; None leaves it out.

    Raises:
      ConfigError: there is no such class, or it takes other arguments.
    """
    if name is None:
        return None
    module = getattr(load_optuna(), f"{key}s")
    known = [known for known in module.__all__ if known.endswith(key.capitalize()) and not known.startswith("Base")]
    if name not in known:
        raise ConfigError(f"hydra.sweeper.{key}={name} is none of Optuna's; {did_you_mean(name, known)}")
    given = dict(kwargs) if seed is None else {"seed": seed, **kwargs}
    try:
        return getattr(module, name)(**given)
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"hydra.sweeper.{key}={name} with {given}: {error}") from error


def distribution_of(override: Override) -> "BaseDistribution":
    """Says what values a key may have; choices are told apart by their text, as they are written.

    Raises:
      ConfigError: there are none.
    """
    distributions = load_optuna().distributions
    value = override.value()
    if override.is_interval_sweep():
        is_int = isinstance(value.start, int) and isinstance(value.end, int)
        kind = distributions.IntDistribution if is_int else distributions.FloatDistribution
        try:
            return kind(value.start, value.end, log="log" in value.tags)
        except ValueError as error:
            raise ConfigError(f"{override.input_line}: {error}") from error
    texts = list(override.sweep_string_iterator())
    if not texts:
        raise ConfigError(f"{override.input_line} has no value")
    if override.is_range_sweep() and not value.shuffle and len(texts) > 1:
        numbers = sorted(value.range())
        step = numbers[1] - numbers[0]
        is_int = all(isinstance(number, int) for number in numbers)
        kind = distributions.IntDistribution if is_int else distributions.FloatDistribution
        return kind(numbers[0], numbers[-1], step=step)
    return distributions.CategoricalDistribution(texts)
