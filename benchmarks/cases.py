"""What is measured: named cases, each a list of overrides as on the command line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A run whose steps per second are measured."""

    overrides: tuple[str, ...]
    peer: bool = False  # whether rejax runs the same


# No evaluation, and a budget that no measurement comes to the end of.
_ALWAYS = ("evaluation.num_episodes=0", "logger=quiet", "total_env_steps=100000000000")
_PPO = (
    "agent=ppo",
    "agent.unroll_length=128",
    "agent.num_epochs=4",
    "agent.num_minibatches=4",
    "network=mlp",
    "network.hidden_sizes=[64,64]",
    "network.activation=tanh",
    *_ALWAYS,
)
_ANAKIN_CARTPOLE = ("runner=anakin", "env=gymnax/cartpole", *_PPO)
_SEBULBA_CARTPOLE = ("runner=sebulba", "runner.threads_per_device=2", "env=envpool/cartpole", *_PPO)
_BREAKOUT = ("runner=anakin", "env=gymnax/breakout", "env.num_envs=64")
_BREAKOUT_CNN = (*_BREAKOUT, *_PPO, "network=minatar_cnn", "network.hidden_sizes=null", "network.activation=auto")
_PONG = ("runner=sebulba", "env=envpool/pong", "env.num_envs=16", "agent=impala", "network=nature_cnn", *_ALWAYS)

CASES = {
    **{f"ppo-anakin-cartpole-{n}": Case((*_ANAKIN_CARTPOLE, f"env.num_envs={n}"), peer=True) for n in (4, 64, 1024)},
    **{f"ppo-sebulba-envpool-cartpole-{n}": Case((*_SEBULBA_CARTPOLE, f"env.num_envs={n}")) for n in (128, 1024)},
    # The agent of the paper's Anakin notebook: greedy Q, temporal differences with lambda 0.99, no epochs.
    "catch-notebook": Case(
        (
            "runner=anakin",
            "env=catch",
            "env.num_envs=128",
            "agent=pqn",
            "agent.unroll_length=16",
            "agent.epsilon_start=0",
            "agent.epsilon_end=0",
            "agent.num_epochs=1",
            "agent.num_minibatches=1",
            "agent.optimiser_name=adam",
            "agent.q_lambda=0.99",
            "agent.learning_rate=1e-4",
            "network=mlp",
            "network.hidden_sizes=[256]",
            "network.activation=relu",
            *_ALWAYS,
        )
    ),
    "ppo-anakin-catch": Case(("runner=anakin", "env=catch", "env.num_envs=64", *_PPO)),
    "ppo-anakin-breakout-mlp": Case((*_BREAKOUT, *_PPO)),
    "ppo-anakin-breakout-cnn": Case(_BREAKOUT_CNN),
    "impala-sebulba-pong": Case(_PONG),
    # The environment of `ppo-anakin-cartpole-64` behind the interface of host environments.
    "host-from-jax": Case(("runner=sebulba", "env=gymnax/cartpole", "env.num_envs=64", *_PPO)),
}

# Runs whose learner is compared, inside of a loop, with its gradient outside of one.
LEARNER_CASES = {
    "learner-cost-ppo-minatar-cnn": Case(_BREAKOUT_CNN),
    "learner-cost-impala-nature-cnn": Case(_PONG),
}

# The presets whose speed `podracer plan --calibrate` predicts, on both runners.
_ANAKIN, _SEBULBA = (
    {"cartpole": "gymnax/cartpole", "catch": "catch"},
    {"cartpole": "envpool/cartpole", "catch": "catch"},
)
_PENDULUMS = {"anakin": "gymnax/pendulum", "sebulba": "envpool/pendulum"}
CALIBRATION_CASES = {
    f"{preset}-{runner}-{env}": Case((f"experiment={preset}", f"runner={runner}", f"env={suite_env}", *_ALWAYS))
    for runner, envs in {"anakin": _ANAKIN, "sebulba": _SEBULBA}.items()
    for preset in ("ppo", "impala", "pqn", "dqn")
    for env, suite_env in envs.items()
} | {
    f"sac-{runner}-pendulum": Case(("experiment=sac", f"runner={runner}", f"env={env}", *_ALWAYS))
    for runner, env in _PENDULUMS.items()
}
