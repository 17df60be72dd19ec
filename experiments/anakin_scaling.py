"""Anakin over devices, every one with environments of its own: figure 4a of Hessel et al., arXiv 2104.06272.

The paper's machine has a core a device, and the speed grows with their number. Emulated devices share the cores that
are there, so what there is to see is the cost of being many: beside every number of devices stands one device with all
of their environments.

python experiments/anakin_scaling.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_ENVS_PER_DEVICE = 32
_RUN = ("experiment=impala", "runner=anakin", "env=catch", "total_env_steps=3e6", "evaluation.num_episodes=0")


def _variant(series: str, devices: int, num_envs: int) -> Variant:
    overrides = (*_RUN, f"mesh.emulated_devices={devices}", f"env.num_envs={num_envs}")
    label = f"{devices} device{'s' if devices > 1 else ''}, {num_envs} environments"
    return Variant(label=label, overrides=overrides, at=num_envs // _ENVS_PER_DEVICE, series=series)


STUDY = Study(
    title="IMPALA on Catch, Anakin over emulated devices of two cores",
    variants=(
        *(_variant("32 environments a device", n, n * _ENVS_PER_DEVICE) for n in (1, 2, 4, 8)),
        *(_variant("one device with all of them", 1, n * _ENVS_PER_DEVICE) for n in (2, 4, 8)),
    ),
    threshold=0.9,
    measure="last_tenth",
    num_seeds=3,
    varied="devices, or as many times 32 environments",
)

if __name__ == "__main__":
    main({"anakin_scaling": STUDY})
