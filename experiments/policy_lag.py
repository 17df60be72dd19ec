"""What acting with older parameters costs: IMPALA under the modes of Sebulba, and with larger lags.

In `lockstep` actors wait for every update, with a fixed lag they run ahead of it, in `free` they take what there is.
V-trace corrects for what lies between: Espeholt et al., arXiv 1802.01561.

python experiments/policy_lag.py
"""

from experiments.learning import main
from experiments.studies import Study, Variant

_RUN = (
    "experiment=impala",
    "runner=sebulba",
    "env=envpool/cartpole",
    "env.num_envs=64",
    "agent.unroll_length=20",
    "total_env_steps=8e5",
    "evaluation.num_evaluations=0",
    "mesh.emulated_devices=2",
    "mesh.actor=1",
    "mesh.learner=1",
)
_MODES = {
    "lockstep": ("runner.mode=lockstep",),
    **{f"lag {lag}": ("runner.mode=fixed_lag", f"runner.lag={lag}") for lag in (1, 4, 16, 64)},
    "free": ("runner.mode=free",),
}

STUDY = Study(
    title="IMPALA on CartPole, Sebulba, one actor device and one learner device, emulated on two cores",
    variants=tuple(Variant(label=label, overrides=(*_RUN, *mode)) for label, mode in _MODES.items()),
    threshold=400.0,
    measure="last_tenth",
    num_seeds=3,
    varied="mode",
)

if __name__ == "__main__":
    main({"policy_lag": STUDY})
