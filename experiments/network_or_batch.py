"""A larger network or a larger batch: what each costs in speed, and what it gives for as many steps.

python experiments/network_or_batch.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_RUN = ("experiment=impala", "runner=anakin", "env=gymnax/cartpole", "mesh.emulated_devices=1")
_SHORT = ("total_env_steps=5e5", "evaluation.num_episodes=0")


def _variant(width: int, num_envs: int) -> Variant:
    series = f"two layers of {width}"
    sizes = (f"network.hidden_sizes=[{width},{width}]", f"env.num_envs={num_envs}")
    label = f"{series}, {num_envs} environments"
    return Variant(label=label, overrides=(*_RUN, *_SHORT, *sizes), at=num_envs, series=series)


STUDY = Study(
    title="IMPALA on CartPole, Anakin on one device of two cores",
    variants=tuple(_variant(width, num_envs) for width in (64, 256) for num_envs in (16, 64, 256)),
    threshold=195.0,
    measure="last_tenth",
    num_seeds=3,
    varied="environments",
)

if __name__ == "__main__":
    main({"network_or_batch": STUDY})
