"""Each agent learns on probe environments, whose right values are known."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from podracer import build
from podracer.agents import parts
from podracer.config import load_config
from podracer.runner import Due
from podracer.types import PolicySnapshot

pytestmark = pytest.mark.slow

GAMMA = 0.8
COMMON = (
    "env=probe",
    f"agent.discount_factor={GAMMA}",
    "agent.learning_rate=1e-2",
    "agent.anneal_learning_rate=false",
    "agent.unroll_length=8",
    "agent.max_gradient_norm=10",
    "env.num_envs=16",
    "network.hidden_sizes=[16]",
    "evaluation.num_episodes=64",
    "mesh.learner_ids=[0]",
)
EXACT = {
    "ppo": ("agent=ppo", "agent.clip_value=false", "agent.num_epochs=2", "agent.num_minibatches=2"),
    "impala": ("agent=impala", "agent.optimiser_name=adam"),
    "pqn": ("agent=pqn", "agent.num_epochs=2", "agent.num_minibatches=2", "agent.exploration_fraction=0.3"),
}
AGENTS = list(EXACT)
POLICY_AGENTS = ["ppo", "impala"]


@dataclass(frozen=True)
class Learnt:
    """A policy at the end of its training."""

    run: build.Run
    policy: PolicySnapshot

    def value(self, *observation: float) -> float:
        """V(o), or max Q(o, ·), on the first step of an episode."""
        model = self.run.agent.model
        x, is_first = jnp.array([observation], jnp.float32), jnp.array([True])
        _, output = model.apply(self.policy.params.params, model.initial_memory(1), x, is_first)
        return float(output.value[0] if hasattr(output, "value") else jnp.max(output.q_value[0]))

    @property
    def mean_return(self) -> float:
        """Of 64 greedy episodes."""
        return float(np.mean(self.run.evaluate(self.policy, lambda: False).returns))


def learn(agent: str, env: str, *overrides: str, updates: int = 150) -> Learnt:
    budget = f"total_env_steps={updates * 8 * 16}"
    run = build.build(load_config([*EXACT[agent], *COMMON, f"env.id={env}", budget, *overrides]))
    *_, last = run.runner.run(run.runner.init(), lambda done: Due(run.plan.updates, snapshot=True))
    return Learnt(run, last.snapshot)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_constant_reward(agent):
    assert learn(agent, "constant_reward", updates=80).value(0.0) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("agent", AGENTS)
def test_A01_A03_a_truncated_episode_bootstraps(agent):
    # As true ends the cuts after five steps would give at most (1 - .8⁵) / (1 - .8) = 3.36.
    assert learn(agent, "truncated").value(0.0) == pytest.approx(1 / (1 - GAMMA), abs=0.3)


@pytest.mark.parametrize("agent", AGENTS)
def test_A01_an_agent_that_takes_a_truncation_for_a_true_end_is_found_out(agent, monkeypatch):
    transitions = parts.transitions

    def wrong(steps, statistics):
        reward, discount, valid = transitions(steps, statistics)
        return parts.Transitions(reward, discount * ~steps.timestep.is_last[1:], valid)

    monkeypatch.setattr(parts, "transitions", wrong)
    assert learn(agent, "truncated").value(0.0) < 3.4


@pytest.mark.parametrize("agent", AGENTS)
def test_a_reward_that_is_observed(agent):
    learnt = learn(agent, "observed_reward")
    assert [learnt.value(sign) for sign in (-1.0, 1.0)] == pytest.approx([-1.0, 1.0], abs=0.1)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_reward_later_on_is_discounted(agent):
    learnt = learn(agent, "discounting")
    assert [learnt.value(0.0), learnt.value(1.0)] == pytest.approx([GAMMA, 1.0], abs=0.1)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_better_action_is_chosen_by_what_is_seen(agent):
    learnt = learn(agent, "matched_reward")
    assert learnt.mean_return == 1.0
    assert learnt.value(1.0) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_better_action_is_chosen_on_sebulba(agent):
    sebulba = ("runner=sebulba", "runner.mode=fixed_lag", "runner.threads_per_device=2", "mesh.actor_ids=[0]")
    assert learn(agent, "chosen_reward", *sebulba, updates=60).mean_return == 1.0


@pytest.mark.parametrize("agent", AGENTS)
def test_what_was_seen_before_is_remembered_by_a_recurrent_network_only(agent):
    memory = ("env.kwargs.length=3", "network.core_size=16")
    assert learn(agent, "memory", *memory, "network=gru", updates=250).mean_return == 1.0
    assert abs(learn(agent, "memory", *memory).mean_return) < 0.5


@pytest.mark.parametrize("policy", ["normal", "tanh_normal"])
@pytest.mark.parametrize("agent", POLICY_AGENTS)
def test_the_best_of_continuous_actions(agent, policy):
    # The best action is half of the range away from where the policy begins; 0 is the return of that one.
    overrides = (f"network.policy={policy}", "agent.entropy_cost=0")
    assert learn(agent, "continuous_action", *overrides, updates=250).mean_return > -0.05
