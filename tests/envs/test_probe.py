import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.envs.base import EnvConfig
from podracer.envs.checks import check_env
from podracer.envs.probe import PROBES, make


def probe(name: str, **kwargs):
    return make(EnvConfig(suite="probe", id=name, kwargs=kwargs))


def play(env, choose, seed: int = 0, max_steps: int = 20):
    """One episode, at most `max_steps`; `choose(observation, t)` gives the canonical action."""
    key = jax.random.key(seed)
    step = jax.jit(env.step)
    state, timestep = jax.jit(env.reset)(key)
    timesteps = [timestep]
    for t in range(max_steps):
        state, timestep = step(jax.random.fold_in(key, t), state, choose(timestep.observation, t))
        timesteps.append(timestep)
        if timestep.is_last:
            break
    return timesteps


def discounted_return(timesteps, discount_factor: float) -> float:
    return sum(discount_factor**t * float(timestep.reward) for t, timestep in enumerate(timesteps[1:]))


def zero(observation, t):
    return jnp.int32(0)


def one(observation, t):
    return jnp.int32(1)


@pytest.mark.parametrize("name", PROBES)
def test_E14_every_probe_keeps_its_spec(name):
    check_env(probe(name), num_steps=100)


def test_values_are_those_of_the_docstrings():
    γ = 0.9
    assert discounted_return(play(probe("constant_reward"), zero), γ) == 1
    for seed in range(4):
        timesteps = play(probe("observed_reward"), zero, seed)
        assert discounted_return(timesteps, γ) == timesteps[0].observation[0]
        assert discounted_return(play(probe("matched_reward"), lambda o, t: (o[0] > 0).astype(int), seed), γ) == 1
        assert discounted_return(play(probe("matched_reward"), lambda o, t: (o[0] < 0).astype(int), seed), γ) == -1
    assert discounted_return(play(probe("chosen_reward"), one), γ) == 1
    assert discounted_return(play(probe("chosen_reward"), zero), γ) == -1
    assert discounted_return(play(probe("discounting"), zero), γ) == pytest.approx(γ)
    assert discounted_return(play(probe("tree"), lambda o, t: o["goal"][1][0]), γ) == pytest.approx(1 + γ + γ**2)


def test_E03_truncated_probe_is_cut_without_a_true_end():
    timesteps = play(probe("truncated", num_steps=5), zero)
    assert len(timesteps) == 6
    assert timesteps[-1].discount == 1
    # With V = 1/(1 − γ) = 10 the cut episode is worth (1 − 0.9⁵)/(1 − 0.9) + 0.9⁵ · 10 = 10.
    assert discounted_return(timesteps, 0.9) + 0.9**5 * 10 == pytest.approx(10)


def test_memory_probe_needs_the_cue_of_the_first_step():
    for seed in range(4):
        env = probe("memory", length=4)
        cue = float(play(env, zero, seed)[0].observation[0])
        answered = play(env, lambda o, t, cue=cue: jnp.int32(cue > 0), seed)
        assert len(answered) == 5
        assert [float(t.reward) for t in answered] == [0, 0, 0, 0, 1]
        assert [float(t.observation[0]) for t in answered[1:]] == [0, 0, 0, 0]
        assert [float(t.observation[1]) for t in answered] == [0, 0, 0, 1, 0]
        assert play(env, lambda o, t, cue=cue: jnp.int32(cue < 0), seed)[-1].reward == -1


def test_E05_continuous_probe_is_best_at_the_scaled_target():
    env = probe("continuous_action", target=1.0)
    # Canonical a is 2a in [−2, 2]: target 1 is at 0.5, and −1 costs (−2 − 1)² = 9.
    for action, reward in [(0.5, 0.0), (-1.0, -9.0), (1.0, -1.0), (7.0, -1.0)]:
        assert play(env, lambda o, t, action=action: jnp.full((1,), action))[-1].reward == pytest.approx(reward)


def test_counter_counts():
    timesteps = play(probe("counter", reward=5.0, truncates=True), zero)
    assert [float(t.observation[0]) for t in timesteps] == [0, 1, 2, 3]
    assert [float(t.reward) for t in timesteps] == [0, 5, 5, 5]
    assert timesteps[-1].discount == 1
    assert play(probe("counter"), zero)[-1].discount == 0


def test_mask_probe_rewards_legal_actions():
    legal = play(probe("action_mask"), lambda o, t: jnp.argmax(o["action_mask"]))
    illegal = play(probe("action_mask", num_actions=8), lambda o, t: jnp.argmin(o["action_mask"]))
    assert [float(t.reward) for t in legal[1:]] == [1] * 5
    assert [float(t.reward) for t in illegal[1:]] == [-1] * 5
    masks = np.stack([t.observation["action_mask"] for t in legal])
    assert masks.any(axis=1).all()
    assert len(np.unique(masks, axis=0)) > 1


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"env\.id='countr'.*'counter'"):
        probe("countr")
    with pytest.raises(ValueError, match=r"env\.kwargs=.*'size'.*num_steps"):
        probe("counter", size=3)
