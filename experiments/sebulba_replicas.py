"""Sebulba over replicas of actor and learner: figure 4c of Hessel et al., arXiv 2104.06272.

The paper replicates hosts, for MuZero. Here the replicas are pairs of emulated devices of one process, an actor's and a
learner's, for IMPALA: actors send to their own learner device, and gradients are averaged over all of them. Beside
every number of replicas stands one pair with all of their environments.

python experiments/sebulba_replicas.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_ENVS_PER_REPLICA = 64
_RUN = ("experiment=impala", "runner=sebulba", "runner.threads_per_device=1", "env=envpool/cartpole")
_SHORT = ("total_env_steps=6e5", "evaluation.num_episodes=0")


def _variant(series: str, replicas: int, num_envs: int) -> Variant:
    devices = (f"mesh.emulated_devices={2 * replicas}", f"mesh.actor={replicas}", f"mesh.learner={replicas}")
    label = f"{replicas} replica{'s' if replicas > 1 else ''}, {num_envs} environments"
    overrides = (*_RUN, *_SHORT, *devices, f"env.num_envs={num_envs}")
    return Variant(label=label, overrides=overrides, at=num_envs // _ENVS_PER_REPLICA, series=series)


STUDY = Study(
    title="IMPALA on CartPole, Sebulba over pairs of emulated devices of two cores",
    variants=(
        *(_variant("64 environments a replica", n, n * _ENVS_PER_REPLICA) for n in (1, 2, 4)),
        *(_variant("one replica with all of them", 1, n * _ENVS_PER_REPLICA) for n in (2, 4)),
    ),
    threshold=195.0,
    measure="last_tenth",
    num_seeds=3,
    varied="replicas, or as many times 64 environments",
)

if __name__ == "__main__":
    main({"sebulba_replicas": STUDY})
