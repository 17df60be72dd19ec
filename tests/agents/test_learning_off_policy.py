"""Each agent that learns from replay learns on probe environments, whose right values are known."""

from typing import NamedTuple

import numpy as np
import pytest

from podracer import build
from podracer.agents import parts
from podracer.config import load_config
from podracer.runner import Due

pytestmark = pytest.mark.slow

GAMMA = 0.8
COMMON = (
    "env=probe",
    f"agent.discount_factor={GAMMA}",
    "agent.learning_rate=1e-2",
    "agent.unroll_length=8",
    "agent.batch_size=64",
    "env.num_envs=8",
    "network.hidden_sizes=[16]",
    "replay.capacity=4096",
    "replay.learning_starts=256",
    "replay.samples_per_insert=8",
    "evaluation.num_episodes=64",
    "mesh.learner_ids=[0]",
)
_MPO = (
    "agent=mpo",
    "agent.n_step=2",
    "agent.critic_learning_rate=1e-2",
    "agent.target_period=20",
    "agent.epsilon_mean=0.05",
    "agent.epsilon_policy=0.05",
    "agent.initial_temperature=0.1",
    "agent.initial_multiplier=1",
)
_VALUES = ("agent.target_period=20", "agent.max_gradient_norm=10")
_R2D2 = (
    "agent=r2d2",
    *_VALUES,
    "agent.batch_size=16",
    "agent.burn_in_length=3",
    "agent.learning_length=8",
    "agent.sequence_period=8",
    "agent.n_step=3",
    "agent.epsilon_exponent=3",
    "agent.optimiser_epsilon=1e-5",
)
_CRITICS = ("agent.critic_learning_rate=1e-2", "agent.target_tau=0.05", "network.activation=relu")
_SLOW_POLICY = ("agent.learning_rate=3e-3", "replay.samples_per_insert=32", "network.hidden_sizes=[32]")
_RAINBOW = (
    "replay=prioritised",
    "agent.n_step=3",
    "agent.distribution=categorical",
    "agent.value_min=-2",
    "agent.value_max=8",
    "agent.epsilon_start=0",
    "agent.epsilon_end=0",
    "network.duelling=true",
    "network.noisy=true",
)
DISCRETE = {
    "dqn": ("agent=dqn", *_VALUES, "agent.exploration_fraction=0.3"),
    "r2d2": _R2D2,
    "mpo": _MPO,
    # The entropy of soft values must not hide what rewards are worth.
    "sac": ("agent=sac", *_CRITICS, "agent.learn_temperature=false", "agent.initial_temperature=0.02"),
}
CONTINUOUS = {
    # The policy is slower than its critic, or it leaves for the bounds before they are told from what is inside.
    "mpo": (
        *_MPO,
        "agent.learning_rate=1e-3",
        "agent.epsilon_std=0.05",
        "agent.initial_std_multiplier=1",
        "replay.samples_per_insert=32",
    ),
    "sac": ("agent=sac", *_CRITICS, *_SLOW_POLICY),
    "td3": ("agent=td3", *_CRITICS, *_SLOW_POLICY, "agent.exploration_noise=0.3"),
    "d4pg": (
        "agent=td3",
        *_CRITICS,
        *_SLOW_POLICY,
        "replay=prioritised",
        "agent.exploration_noise=0.3",
        "agent.n_step=3",
        "agent.num_critics=1",
        "agent.policy_period=1",
        "agent.distribution=categorical",
        "agent.value_min=-10",
        "agent.value_max=0",
    ),
}


class Learnt(NamedTuple):
    q_value: float  # mean of the actions taken, at the end
    mean_return: float  # of 64 greedy episodes


def learn(agent: tuple[str, ...], env: str, *overrides: str, unrolls: int = 60) -> Learnt:
    budget = f"total_env_steps={unrolls * 8 * 8}"
    run = build.build(load_config([*COMMON, *agent, f"env.id={env}", budget, *overrides]))
    # The last report is of ten unrolls: means over more would depend on how fast the machine is.
    ends = (run.plan.updates - 10, run.plan.updates)
    *_, last = run.runner.run(run.runner.init(), lambda done: Due(ends[done >= ends[0]], snapshot=True))
    returns = run.evaluate(last.snapshot, lambda: False).returns
    return Learnt(last.metrics["q_value"], float(np.mean(returns)))


@pytest.fixture(params=DISCRETE)
def discrete(request) -> tuple[str, ...]:
    return DISCRETE[request.param]


@pytest.fixture(params=CONTINUOUS)
def continuous(request) -> tuple[str, ...]:
    return CONTINUOUS[request.param]


def test_a_constant_reward(discrete):
    assert learn(discrete, "constant_reward").q_value == pytest.approx(1.0, abs=0.1)


def test_A01_A03_A08_a_truncated_episode_bootstraps(discrete):
    # As true ends the cuts after five steps would give at most (1 - .8⁵) / (1 - .8) = 3.36.
    assert learn(discrete, "truncated", unrolls=120).q_value == pytest.approx(1 / (1 - GAMMA), abs=0.4)


def test_A01_an_agent_that_takes_a_truncation_for_a_true_end_is_found_out(discrete, monkeypatch):
    transitions = parts.transitions

    def wrong(steps, statistics):
        reward, discount, valid = transitions(steps, statistics)
        return parts.Transitions(reward, discount * ~steps.timestep.is_last[1:], valid)

    monkeypatch.setattr(parts, "transitions", wrong)
    assert learn(discrete, "truncated", unrolls=120).q_value < 3.4


def test_a_reward_later_on_is_discounted(discrete):
    # γ on the first step, 1 on the second.
    assert learn(discrete, "discounting").q_value == pytest.approx((GAMMA + 1) / 2, abs=0.1)


def test_the_better_action_is_chosen_by_what_is_seen(discrete):
    assert learn(discrete, "matched_reward").mean_return == 1.0


def test_the_better_action_is_chosen_on_sebulba(discrete):
    sebulba = ("runner=sebulba", "runner.mode=fixed_lag", "runner.threads_per_device=2", "mesh.actor_ids=[0]")
    assert learn(discrete, "chosen_reward", *sebulba).mean_return == 1.0


OPTIONS = {
    "quantiles": ("agent.distribution=quantile",),
    "munchausen": ("agent.munchausen=true",),
    "rmsprop": ("agent.optimiser_name=rmsprop",),
    "rainbow": _RAINBOW,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_better_action_is_chosen_with_every_option(option):
    assert learn((*DISCRETE["dqn"], *OPTIONS[option]), "matched_reward").mean_return == 1.0


def test_F05_what_was_seen_before_is_remembered_by_a_recurrent_network_only():
    memory = ("env.kwargs.length=3", "network.core_size=16", "network.hidden_sizes=[16]")
    assert learn(_R2D2, "memory", *memory, "network=gru", unrolls=400).mean_return == 1.0
    assert abs(learn(_R2D2, "memory", *memory).mean_return) < 0.5


def test_the_best_of_continuous_actions(continuous):
    # The best action is half of the range away from where the policy begins; 0 is the return of that one.
    assert learn(continuous, "continuous_action", unrolls=120).mean_return > -0.05
