"""Actor threads on a device, with environments that take a time of their own and with ones that do not.

Threads are there to hide the time of environments behind the acting of others: section 3 of Hessel et al., arXiv
2104.06272. A wait takes no core, so two cores can show it.

python experiments/actor_threads.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_ENVS_PER_THREAD = 64
_RUN = ("experiment=impala", "runner=sebulba", "env=custom_host", "env.make=experiments.slow_cartpole:make")
_SHORT = ("total_env_steps=2e5", "evaluation.num_episodes=0")


def _variant(milliseconds: int, threads: int) -> Variant:
    sizes = (f"runner.threads_per_device={threads}", f"env.num_envs={_ENVS_PER_THREAD * threads}")
    series = f"{milliseconds} ms a step"
    return Variant(
        label=f"{series}, {threads} thread{'s' if threads > 1 else ''}",
        overrides=(*_RUN, f"env.kwargs.milliseconds={milliseconds}", *_SHORT, *sizes),
        at=threads,
        series=series,
    )


STUDY = Study(
    title="IMPALA on CartPole, Sebulba, 64 environments a thread that wait at every step, two cores",
    variants=tuple(_variant(milliseconds, threads) for milliseconds in (0, 2) for threads in (1, 2, 4, 8)),
    threshold=195.0,
    measure="last_tenth",
    num_seeds=3,
    varied="actor threads",
)

if __name__ == "__main__":
    main({"actor_threads": STUDY})
