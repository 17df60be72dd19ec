"""The learning studies as data: what is run, and what counts as learnt."""

from dataclasses import dataclass
from typing import Literal

AGENTS = ("ppo", "impala", "pqn")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A configuration that is run with several seeds."""

    label: str
    overrides: tuple[str, ...]
    at: float | None = None
    """Where its speed is drawn on the axis of what a study varies; None where that is no number."""
    series: str = ""
    """The line of speeds that it belongs to."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Variants that share a question and a threshold."""

    title: str
    variants: tuple[Variant, ...]
    threshold: float | None = None
    """The return that counts as learnt; None where there is none to reach."""
    measure: Literal["final", "last_tenth"] = "final"
    """What the threshold is for: the final greedy evaluation, or the mean return of the training
    episodes that ended in the last tenth of the budget."""
    num_seeds: int = 5
    max_seconds: int | None = None
    """A run is interrupted after this many seconds of wall time."""
    columns: int = 2
    """Of panels in the figure."""
    varied: str = ""
    """What the variants vary, of a study of speed: its figure sets their speeds beside their returns."""


def _both_runners(*env: str, sebulba_env: tuple[str, ...] | None = None) -> tuple[Variant, ...]:
    """The preset of every agent on both runners, with `sebulba_env` on the second where it is another."""
    variants = []
    for agent in AGENTS:
        for runner, chosen in (("anakin", env), ("sebulba", sebulba_env or env)):
            overrides = (f"experiment={agent}", f"runner={runner}", *chosen)
            variants.append(Variant(label=f"{agent}, {runner}", overrides=overrides))
    return tuple(variants)


def _memory() -> tuple[Variant, ...]:
    """Every agent with a memory and without."""
    variants = []
    for agent in AGENTS:
        for core in ("none", "gru", "lstm"):
            overrides = (f"experiment=memory_{agent}", f"network.core={core}")
            variants.append(
                Variant(label=f"{agent}, {'feed-forward' if core == 'none' else core}", overrides=overrides)
            )
    return tuple(variants)


def _presets(*names: str, env: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    """Presets on Anakin, with another environment than their own where one is given."""
    return tuple(Variant(label=f"{name}, anakin", overrides=(f"experiment={name}", *env)) for name in names)


STUDIES = {
    "cartpole": Study(
        title="CartPole-v1, 1M steps",
        variants=_both_runners("env=gymnax/cartpole", sebulba_env=("env=envpool/cartpole",)),
        threshold=475.0,
    ),
    "catch": Study(title="Catch, 1M steps", variants=_both_runners("env=catch"), threshold=0.95),
    "acrobot": Study(
        title="Acrobot-v1, 1M steps",
        variants=(Variant(label="ppo, anakin", overrides=("experiment=acrobot",)),),
        threshold=-90.0,
    ),
    "pendulum": Study(
        title="Pendulum-v1, 1M steps",
        variants=(Variant(label="ppo, anakin", overrides=("experiment=pendulum",)),),
        threshold=-250.0,
    ),
    "memory": Study(
        title="A cue to be remembered (probe/memory)",
        variants=_memory(),
        threshold=0.95,
        columns=3,
    ),
    "replay_cartpole": Study(
        title="CartPole-v1 from replay, 200k steps",
        variants=_presets("dqn", "rainbow", env=("env=gymnax/cartpole",)),
        threshold=475.0,
    ),
    "replay_catch": Study(
        title="Catch from replay, 200k steps",
        variants=_presets("dqn", "rainbow", env=("env=catch",)),
        threshold=0.95,
    ),
    "replay_pendulum": Study(
        title="Pendulum-v1 from replay, 30k steps (MPO: 40k)",
        variants=_presets("sac", "td3", "d4pg", "mpo"),
        threshold=-200.0,
    ),
    "replay_memory": Study(
        title="A cue to be remembered, from sequences of replay",
        variants=tuple(
            Variant(label=f"r2d2, {label}", overrides=("experiment=memory_r2d2", f"network.core={core}"))
            for core, label in (("none", "feed-forward"), ("gru", "gru"))
        ),
        threshold=0.95,
    ),
    "replay_breakout": Study(
        title="Breakout-MinAtar from replay, 500k steps",
        variants=_presets("breakout_dqn", "breakout_rainbow"),
        measure="last_tenth",
    ),
    "halfcheetah": Study(
        title="HalfCheetah-v4 on Sebulba, 20 minutes on two shared cores",
        variants=(Variant(label="sac, sebulba", overrides=("experiment=halfcheetah_sac",)),),
        measure="last_tenth",
        num_seeds=1,
        max_seconds=1200,
    ),
    "breakout": Study(
        title="Breakout-MinAtar, 10M steps",
        variants=(
            Variant(label="ppo, anakin", overrides=("experiment=breakout_ppo",)),
            Variant(label="pqn, anakin", overrides=("experiment=breakout_pqn",)),
        ),
        threshold=60.0,
        measure="last_tenth",
    ),
    "pong": Study(
        title="Pong from pixels, one hour on two shared cores",
        variants=(Variant(label="impala, sebulba", overrides=("experiment=pong",)),),
        measure="last_tenth",
        num_seeds=1,
        max_seconds=3600,
    ),
}
