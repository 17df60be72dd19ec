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
DISCRETE = {"mpo": _MPO}
CONTINUOUS = {
    # The policy is slower than its critic, or it leaves for the bounds before they are told from what is inside.
    "mpo": (
        *_MPO,
        "agent.learning_rate=1e-3",
        "agent.epsilon_std=0.05",
        "agent.initial_std_multiplier=1",
        "replay.samples_per_insert=32",
    ),
}


class Learnt(NamedTuple):
    q_value: float  # mean of the actions taken, at the end
    mean_return: float  # of 64 greedy episodes


def learn(agent: tuple[str, ...], env: str, *overrides: str, unrolls: int = 60) -> Learnt:
    budget = f"total_env_steps={unrolls * 8 * 8}"
    run = build.build(load_config([*COMMON, *agent, f"env.id={env}", budget, *overrides]))
    *_, last = run.runner.run(run.runner.init(), lambda done: Due(run.plan.updates, snapshot=True))
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


def test_the_best_of_continuous_actions(continuous):
    # The best action is half of the range away from where the policy begins; 0 is the return of that one.
    assert learn(continuous, "continuous_action", unrolls=120).mean_return > -0.05
