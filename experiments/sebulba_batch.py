"""Sebulba against the batch of an actor, unrolls of 60 and of 20: figure 4b of Hessel et al., arXiv 2104.06272.

Larger batches give an accelerator more to do in one call; on a CPU they spread the cost of a call over more steps.
Longer unrolls make fewer trajectories to hand over. Both leave fewer updates for as many steps.

python experiments/sebulba_batch.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_THREADS = 2
_RUN = ("experiment=impala", "runner=sebulba", f"runner.threads_per_device={_THREADS}", "env=envpool/cartpole")
_SHORT = ("total_env_steps=6e5", "evaluation.num_episodes=0")


def _variant(unroll_length: int, batch: int) -> Variant:
    sizes = (f"agent.unroll_length={unroll_length}", f"env.num_envs={batch * _THREADS}")
    series = f"unrolls of {unroll_length}"
    return Variant(label=f"{series}, batch {batch}", overrides=(*_RUN, *_SHORT, *sizes), at=batch, series=series)


STUDY = Study(
    title="IMPALA on CartPole, Sebulba, two actor threads on two cores",
    variants=tuple(_variant(unroll_length, batch) for unroll_length in (60, 20) for batch in (32, 64, 128)),
    threshold=195.0,
    measure="last_tenth",
    num_seeds=3,
    varied="environments of an actor thread",
)

if __name__ == "__main__":
    main({"sebulba_batch": STUDY})
