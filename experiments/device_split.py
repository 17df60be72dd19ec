"""How many of eight devices act and how many learn, under Sebulba: section 3 of Hessel et al., arXiv 2104.06272.

python experiments/device_split.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_DEVICES = 8
_RUN = (
    "experiment=impala",
    "runner=sebulba",
    "runner.threads_per_device=1",
    "env=envpool/cartpole",
    "env.num_envs=168",  # divides over every split
    "total_env_steps=6e5",
    "evaluation.num_episodes=0",
    f"mesh.emulated_devices={_DEVICES}",
)


def _variant(actor: int) -> Variant:
    learner = _DEVICES - actor
    overrides = (*_RUN, f"mesh.actor={actor}", f"mesh.learner={learner}")
    return Variant(label=f"{actor} act, {learner} learn", overrides=overrides, at=actor, series="168 environments")


STUDY = Study(
    title="IMPALA on CartPole, Sebulba on eight emulated devices of two cores",
    variants=tuple(_variant(actor) for actor in (1, 2, 4, 6, 7)),
    threshold=195.0,
    measure="last_tenth",
    num_seeds=3,
    varied="actor devices of eight",
)

if __name__ == "__main__":
    main({"device_split": STUDY})
