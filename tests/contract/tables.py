"""The tables that the contracts run over. A new agent, runner, replay or environment is one row.

A row is a list of overrides, as on the command line, on top of `SMALL`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from podracer.agents import parts
from podracer.types import Array, Trajectory

# Short unrolls hold several episode ends, and small networks compile fast.
SMALL = (
    "env.num_envs=8",
    "agent.unroll_length=6",
    "agent.learning_rate=1e-2",
    "network.hidden_sizes=[8]",
    "network.core_size=8",
    "evaluation.num_episodes=0",
)

ENVS = {
    "catch": ("env=catch", "env.kwargs.rows=5", "env.kwargs.columns=3"),
    "counter": ("env=probe", "env.id=counter"),
    "truncated": ("env=probe", "env.id=truncated"),
    "continuous": ("env=probe", "env.id=continuous_action"),
    "action_mask": ("env=probe", "env.id=action_mask"),
    "tree": ("env=probe", "env.id=tree"),
    "same_step": ("env=probe", "env.id=counter", "env.autoreset=same_step"),
    "few_resets": ("env=probe", "env.id=counter", "env.resets_per_step=2"),
    "cartpole": ("env=gymnax/cartpole", "env.time_limit=12"),
}

_OBSERVATIONS = ("agent.normalise_observations=true",)

# What every agent has to be able to do, and what only those with a memory, fresh unrolls or a policy can.
_DISCRETE = {
    "feedforward": ENVS["catch"],
    "masked": ENVS["action_mask"],
    "tree": ENVS["tree"],
}
_RECURRENT = {
    "gru": ("network=gru", *ENVS["catch"]),
    "lstm": ("network=lstm", *ENVS["counter"]),
}
_ON_POLICY = {"normalised": (*_OBSERVATIONS, "agent.normalise_rewards=true", *ENVS["counter"])}
_OFF_POLICY = {"normalised": (*_OBSERVATIONS, *ENVS["counter"])}
_CONTINUOUS = {
    "normal": ("network.policy=normal", *ENVS["continuous"]),
    "tanh_normal": ("network.policy=tanh_normal", *ENVS["continuous"]),
}


_VALUES = {
    "rainbow": (
        "replay=prioritised",
        "agent.distribution=categorical",
        "network.duelling=true",
        "network.noisy=true",
        *ENVS["catch"],
    ),
    "quantile": ("agent.distribution=quantile", "agent.optimiser_name=rmsprop", *ENVS["counter"]),
    "munchausen": ("agent.munchausen=true", *ENVS["action_mask"]),
}

_PENDULUM = ("env=gymnax/pendulum", "env.time_limit=4")
_TD3 = {
    "pendulum": _PENDULUM,
    "normalised": (*_OBSERVATIONS, *_PENDULUM),
    "d4pg": (
        "replay=prioritised",
        "agent.n_step=3",
        "agent.distribution=categorical",
        "agent.num_critics=1",
        *ENVS["continuous"],
    ),
}

# What an unroll of `SMALL` holds: some starts of sequences, and updates after each.
_REPLAY = ("agent.batch_size=16", "replay.replay_ratio=0.0625", "replay.learning_starts=0", "replay.capacity=480")
_SETTINGS = {
    "dqn": (*_REPLAY, "agent.n_step=3"),
    "r2d2": (
        *_REPLAY,
        "agent.burn_in_length=2",
        "agent.learning_length=3",
        "agent.n_step=2",
        "agent.sequence_period=6",
        "agent.episode_ends=reset",
    ),
    "sac": _REPLAY,
    "mpo": (*_REPLAY, "agent.n_step=3", "agent.num_samples=4"),
    # Noise in targets is another on every device.
    "td3": (*_REPLAY, "agent.target_noise=0"),
}


def _rows(agent: str, *groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    settings = (f"agent={agent}", *_SETTINGS.get(agent, ()))
    return {f"{agent}-{name}": (*settings, *overrides) for group in groups for name, overrides in group.items()}


AGENTS = {
    **_rows("ppo", _DISCRETE, _RECURRENT, _ON_POLICY, _CONTINUOUS),
    **_rows("impala", _DISCRETE, _RECURRENT, _ON_POLICY, _CONTINUOUS),
    **_rows("pqn", _DISCRETE, _RECURRENT, _ON_POLICY),
    **_rows("dqn", _DISCRETE, _OFF_POLICY, _VALUES),
    **_rows("r2d2", _DISCRETE, _RECURRENT, _OFF_POLICY),
    **_rows("sac", _DISCRETE, _OFF_POLICY, {"pendulum": _PENDULUM}),
    **_rows("td3", _TD3),
    **_rows("mpo", _DISCRETE, _OFF_POLICY, {"continuous": (*_OBSERVATIONS, *ENVS["continuous"])}),
}

# The rows for contracts that compile much for a row.
ONE_EACH = [name for name in AGENTS if name.endswith(("-feedforward", "-pendulum"))]
FEEDFORWARD_AND_RECURRENT = [name for name in AGENTS if name.endswith(("-feedforward", "-gru"))]
NORMALISED_AND_RECURRENT = [name for name in AGENTS if name.endswith(("-normalised", "-gru"))]

_SEBULBA = ("runner=sebulba", "runner.updates_per_report=1")
_FOUR_ACTORS = ("runner.threads_per_device=2", "mesh.actor_ids=[0,1]", "mesh.learner_ids=[2,3]")
_ONE_ACTOR = ("runner.threads_per_device=1", "mesh.actor_ids=[0]", "mesh.learner_ids=[1,2]")

# All with two learner devices.
RUNNERS = {
    "anakin": ("runner=anakin", "runner.updates_per_call=1", "mesh.learner=2"),
    "lockstep": (*_SEBULBA, "runner.mode=lockstep", *_FOUR_ACTORS),
    "fixed_lag": (*_SEBULBA, "runner.mode=fixed_lag", *_FOUR_ACTORS),
    "fixed_lag_one_actor": (*_SEBULBA, "runner.mode=fixed_lag", *_ONE_ACTOR),
    "free": (*_SEBULBA, "runner.mode=free", *_FOUR_ACTORS),
    "free_each_step": (*_SEBULBA, "runner.mode=free", "runner.refresh=step", *_FOUR_ACTORS),
}

_SMALL_STORE = ("replay.capacity=36", "replay.learning_starts=0")
_MIXED = "{new:{name:uniform,proportion:0.4,capacity:24},all:{name:prioritised,proportion:0.6,capacity:48}}"
REPLAYS = {
    "on_policy": ("replay=on_policy",),
    "queue": ("replay=queue",),
    "queue_of_two": ("replay=queue", "replay.capacity_unrolls=2"),
    "uniform": ("replay=uniform", *_SMALL_STORE),
    "prioritised": ("replay=prioritised", *_SMALL_STORE),
    "host": ("replay=host", *_SMALL_STORE),
    "mixture": ("replay=mixture", "replay.learning_starts=0", f"replay.stores={_MIXED}"),
}


def _actor_critic(agent: Any, params: Any, statistics: Any, trajectory: Trajectory) -> dict[str, Array]:
    steps = trajectory.steps
    observation = parts.normalise_observation(statistics, steps.timestep.observation)
    memory, is_first = trajectory.actor_state.core, steps.timestep.is_first
    _, output = agent.model.apply(params, memory, observation, is_first, method="unroll")
    return {"log_prob": output.policy.log_prob(steps.action), "value": output.value}


def _action_values(agent: Any, params: Any, statistics: Any, trajectory: Trajectory) -> dict[str, Array]:
    steps = trajectory.steps
    observation = parts.normalise_observation(statistics, steps.timestep.observation)
    memory, is_first = trajectory.actor_state.core, steps.timestep.is_first
    _, values = agent.model.apply(params, memory, observation, is_first, method="unroll")
    return {"max_q_value": jnp.max(values.q_value, -1)}


# How the loss of each algorithm that records something finds it again, `[T+1, B]`.
REDERIVE: dict[str, Callable[..., dict[str, Array]]] = {
    "ppo": _actor_critic,
    "impala": _actor_critic,
    "pqn": _action_values,
}

# Metrics, their values and tolerances where the policy that learns is the one that acted.
ON_POLICY: dict[str, dict[str, tuple[float, float]]] = {
    "ppo": {"approximate_kl": (0.0, 1e-8), "clip_fraction": (0.0, 0.0)},
    "impala": {"rho": (1.0, 1e-5)},
}
