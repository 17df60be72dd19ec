import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.agents.parts import LearnerState
from podracer.agents.ppo import PPO, Rows
from tests.agents.linear import NETWORK, NOT_NORMALISED, SPEC, F, L, M, actor_critic_params, make_batch

AGENT = PPO(
    spec=SPEC,
    network=NETWORK,
    unroll_length=5,
    discount_factor=0.9,
    gae_lambda=0.8,
    clip_epsilon=0.2,
    value_cost=0.5,
    entropy_cost=0.01,
    normalise_advantages=False,
)

# π = (1/4, 3/4). Probability ratios 1.5, 0.5, and a row that does not count.
ROWS = Rows(
    observation=jnp.array([[1.0], [0.0], [7.0]]),
    is_first=jnp.array([True, False, False]),
    action=jnp.array([1, 0, 1]),
    log_prob=jnp.log(jnp.array([0.5, 0.5, 0.001])),
    value=jnp.array([0.5, 0.0, -9.0]),
    advantage=jnp.array([2.0, -1.0, 100.0]),
    target=jnp.array([2.0, 1.0, 50.0]),
    valid=jnp.array([True, True, False]),
)


def loss(agent=AGENT, rows=ROWS):
    return agent.loss(actor_critic_params([0.25, 0.75]), rows, (), jnp.float32(2.0))


def test_golden_loss():
    total, metrics = loss()
    # -min(1.5 · 2, 1.2 · 2) = -2.4 and -min(.5 · -1, .8 · -1) = .8: mean -.8
    np.testing.assert_allclose(metrics["policy_loss"], -0.8, rtol=1e-5)
    # V = 1, 0. ½ max((1 - 2)², (.5 + .2 - 2)²) = .845 and ½ (0 - 1)² = .5: mean .6725
    np.testing.assert_allclose(metrics["value_loss"], 0.6725, rtol=1e-5)
    # -¼ ln ¼ - ¾ ln ¾
    np.testing.assert_allclose(metrics["entropy"], 0.562335, rtol=1e-5)
    # (.5 - ln 1.5 + -.5 - ln .5) / 2 = (.094535 + .193147) / 2
    np.testing.assert_allclose(metrics["approximate_kl"], 0.143841, rtol=1e-5)
    assert metrics["clip_fraction"] == 1.0
    # -.8 + .5 · .6725 - .01 · .562335
    np.testing.assert_allclose(total, -0.469373, rtol=1e-5)


def test_golden_loss_without_clipped_value():
    _, metrics = loss(dataclasses.replace(AGENT, clip_value=False))
    np.testing.assert_allclose(metrics["value_loss"], (0.5 + 0.5) / 2, rtol=1e-6)


def test_the_gradient_is_cut_where_the_ratio_is_clipped():
    agent = dataclasses.replace(AGENT, value_cost=0.0, entropy_cost=0.0)
    gradient = jax.grad(lambda params: agent.loss(params, ROWS, (), jnp.float32(2.0))[0])
    policy = gradient(actor_critic_params([0.25, 0.75]))["params"]["policy_head"]["Dense_0"]["bias"]
    # Both rows are clipped to their disadvantage: 1.5 > 1.2 with a gain, .5 < .8 with a loss.
    np.testing.assert_allclose(policy, 0.0, atol=1e-7)


@pytest.mark.parametrize(
    ("discount_at_end", "advantage"),
    [
        # 1 + .9 · 2 - .6 = 2.2; 1 + .9 · .6 - .5 + .72 · 2.2 = 2.624
        (1.0, [2.624, 2.2, 0.0, 1.7472, 1.01]),
        # 1 - .6 = .4; 1.04 + .72 · .4 = 1.328
        (0.0, [1.328, 0.4, 0.0, 1.7472, 1.01]),
    ],
)
def test_A01_A02_A03_A05_advantages_over_an_episode_end(discount_at_end, advantage):
    batch = make_batch(
        step_type=[F, M, L, F, M, M],
        reward=[0, 1, 1, 0, 1, 1],
        discount=[1, 1, discount_at_end, 1, 1, 1],
        observation=[0, 0, 0, 0, 0, 0],
        action=[0] * 6,
        extras={"value": [0.5, 0.6, 2.0, 0.7, 0.8, 0.9], "log_prob": [-1.0] * 6},
    )
    rows = AGENT.rows(LearnerState((), NOT_NORMALISED), batch)
    np.testing.assert_allclose(rows.advantage, advantage, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows.target, np.add(advantage, [0.5, 0.6, 2.0, 0.7, 0.8]), rtol=1e-5)
    assert rows.valid.tolist() == [True, True, False, True, True]
    assert rows.is_first.tolist() == [True, False, False, True, False]

    normalised = dataclasses.replace(AGENT, normalise_advantages=True).rows(LearnerState((), NOT_NORMALISED), batch)
    counted = np.asarray(normalised.advantage)[[0, 1, 3, 4]]
    np.testing.assert_allclose([counted.mean(), counted.std()], [0.0, 1.0], atol=1e-5)
    assert normalised.advantage[2] == 0.0
