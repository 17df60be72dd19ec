"""Golden numbers, distrax as the oracle, and the corners where such code goes wrong."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import spaces
from podracer.networks.distributions import Categorical, DiagonalNormal, MultiCategorical, TanhNormal, mask_illegal


def normals(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LOGITS = normals(0, 5, 4)
MEAN, STD = normals(1, 5, 3), np.exp(normals(2, 5, 3))
ALL = {
    "categorical": Categorical(LOGITS),
    "masked": Categorical(mask_illegal(LOGITS, LOGITS < 0.5)),
    "multi_categorical": MultiCategorical(normals(3, 5, 6), num_values=(2, 3, 1)),
    "diagonal_normal": DiagonalNormal(MEAN, STD),
    "tanh_normal": TanhNormal(MEAN, STD),
}


@pytest.fixture(params=ALL)
def distribution(request):
    return jax.tree.map(jnp.asarray, ALL[request.param])


def test_passes_through_jit_vmap_and_scan_and_rows_stand_alone(distribution, key):
    @jax.jit
    def run(distribution):
        action, mode = distribution.sample(key), distribution.mode()
        rows = jax.vmap(lambda d, a: d.log_prob(a))(distribution, action)
        _, scanned = jax.lax.scan(lambda _, row: (None, row[0].log_prob(row[1])), None, (distribution, action))
        return distribution, action, mode, distribution.entropy(), distribution.log_prob(action), rows, scanned

    _, action, mode, entropy, log_prob, rows, scanned = run(distribution)
    assert log_prob.shape == entropy.shape == (5,)
    assert mode.shape == action.shape and mode.dtype == action.dtype
    np.testing.assert_allclose(rows, log_prob, rtol=1e-5)
    np.testing.assert_allclose(scanned, log_prob, rtol=1e-5)


def test_A32_the_learner_finds_the_recorded_log_prob_to_the_bit(distribution, key):
    @jax.jit
    def act(distribution, key):
        action = distribution.sample(key)
        return action, distribution.log_prob(action)

    action, recorded = act(distribution, key)
    np.testing.assert_array_equal(jax.jit(lambda d, a: d.log_prob(a))(distribution, action), recorded)


def test_one_draw_serves_the_whole_batch(distribution, key):
    jaxpr = jax.make_jaxpr(lambda d: d.sample(key))(distribution)
    assert str(jaxpr).count("random_bits") == 1


def test_categorical_equals_distrax(key):
    ours, theirs = Categorical(LOGITS), distrax.Categorical(LOGITS)
    action = ours.sample(key)
    assert action.dtype == jnp.int32
    np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
    np.testing.assert_array_equal(ours.mode(), theirs.mode())


def test_categorical_draws_each_action_as_often_as_it_is_likely(key):
    # 20,000 draws: three standard errors are at most 3 √(.25 / 20000) = .0106
    draws = Categorical(jnp.broadcast_to(jnp.log(jnp.array([0.1, 0.2, 0.7])), (20_000, 3))).sample(key)
    np.testing.assert_allclose(np.bincount(draws, minlength=3) / 20_000, [0.1, 0.2, 0.7], atol=0.0106)


def test_A18_masked_entropy_and_its_gradient_are_finite():
    # p = softmax([1, ·, 3]) = [.1192, 0, .8808], H = −Σ p log p = .36533
    # ∂H/∂logitᵢ = −pᵢ (log pᵢ + H) = −.1192 (−2.1269 + .36533) = .20999, and its negative
    logits, action_mask = jnp.array([1.0, 2.0, 3.0]), jnp.array([True, False, True])

    def entropy(logits):
        return Categorical(mask_illegal(logits, action_mask)).entropy()

    value, gradient = jax.value_and_grad(entropy)(logits)
    probabilities = jnp.exp(Categorical(mask_illegal(logits, action_mask)).log_probs)
    np.testing.assert_allclose(probabilities, [0.1192, 0, 0.8808], atol=1e-4)
    assert value == pytest.approx(0.36533, abs=1e-5)
    np.testing.assert_allclose(gradient, [0.20999, 0, -0.20999], atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_A18_masked_actions_are_never_chosen(dtype, key):
    rng = np.random.default_rng(4)
    action_mask = rng.random((10_000, 6)) < 0.4
    action_mask[np.arange(10_000), rng.integers(6, size=10_000)] = True
    # The illegal actions are those that would be likely.
    logits = mask_illegal(jnp.where(action_mask, -20.0, 20.0).astype(dtype), action_mask)
    distribution = Categorical(logits)
    for action in (distribution.sample(key), distribution.mode()):
        assert action_mask[np.arange(10_000), action].all()
    gradient = jax.grad(lambda x: jnp.sum(Categorical(x).log_prob(distribution.mode())))(logits)
    assert np.isfinite(gradient).all() and np.isfinite(distribution.entropy()).all()


def test_A18_the_best_value_respects_the_mask_of_its_own_observation():
    q_value = jnp.array([[1.0, 5.0], [-7.0, -9.0]])
    masked = mask_illegal(q_value, jnp.array([[True, False], [False, True]]))
    np.testing.assert_array_equal(jnp.max(masked, axis=-1), [1, -9])


def test_A18_an_empty_mask_is_an_error_that_names_the_environment():
    action_mask = np.ones((4, 3), bool)
    action_mask[[1, 3]] = False
    with pytest.raises(ValueError, match=r"Hex: 'action_mask' allows none of the 3 actions in environments \[1, 3\]"):
        spaces.check_action_mask(action_mask, np.zeros(4, bool), "Hex")
    # After the end of a game nothing has to be legal.
    spaces.check_action_mask(action_mask, np.array([False, True, False, True]), "Hex")


def test_A18_an_empty_mask_in_a_compiled_program_is_no_nan(key):
    distribution = Categorical(mask_illegal(LOGITS, jnp.zeros_like(LOGITS, bool)))
    assert np.isfinite(distribution.log_prob(distribution.sample(key))).all()
    np.testing.assert_allclose(distribution.entropy(), np.log(4), rtol=1e-6)


def test_multi_categorical_is_its_components_side_by_side(key):
    @jax.jit
    def together(logits):
        distribution = MultiCategorical(logits, (2, 3, 1))
        action = distribution.sample(key)
        return action, distribution.log_prob(action), distribution.entropy(), distribution.mode()

    @jax.jit
    def side_by_side(logits, action):
        parts = [Categorical(part) for part in jnp.split(logits, [2, 5], axis=-1)]
        log_prob = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
        return log_prob, sum(part.entropy() for part in parts), jnp.stack([part.mode() for part in parts], axis=-1)

    logits = normals(5, 1000, 6)
    action, *result = together(logits)
    assert action.shape == (1000, 3) and (action < np.array([[2, 3, 1]])).all()
    for got, expected in zip(result, side_by_side(logits, action)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(MultiCategorical(x, (2, 3, 1)).entropy())))(logits)
    assert np.isfinite(gradient).all()


def test_multi_categorical_draws_its_components_independently(key):
    # Two fair coins, 20,000 draws: each of the four pairs .25 ± 3 √(.1875 / 20000) = .0092
    action = MultiCategorical(jnp.zeros((20_000, 4)), (2, 2)).sample(key)
    np.testing.assert_allclose(np.bincount(2 * action[:, 0] + action[:, 1]) / 20_000, [0.25] * 4, atol=0.0092)


def test_diagonal_normal_equals_distrax(key):
    ours, theirs = DiagonalNormal(MEAN, STD), distrax.MultivariateNormalDiag(MEAN, STD)
    action = ours.sample(key)
    np.testing.assert_allclose(ours.log_prob(action), theirs.log_prob(action), rtol=1e-5)
    np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
    np.testing.assert_array_equal(ours.mode(), MEAN)


def test_A33_a_normal_action_is_recorded_as_sampled_and_clipped_by_the_environment():
    distribution, action = DiagonalNormal(jnp.array([0.5]), jnp.array([1.0])), jnp.array([1.7])
    box = spaces.Box((1,), np.float32, -1.0, 1.0)
    assert spaces.to_env_action(box, action, jnp) == 1.0
    # −½ (1.7 − .5)² − ½ log 2π = −.72 − .91894
    assert distribution.log_prob(action) == pytest.approx(-1.63894, abs=1e-5)


def test_tanh_normal_equals_distrax_away_from_the_bounds(key):
    ours = TanhNormal(MEAN, STD)
    theirs = distrax.Transformed(distrax.MultivariateNormalDiag(MEAN, STD), distrax.Block(distrax.Tanh(), 1))
    pre_tanh = jnp.clip(ours.sample_pre_tanh(key), -2, 2)
    expected = theirs.log_prob(jnp.tanh(pre_tanh))
    np.testing.assert_allclose(ours.log_prob_pre_tanh(pre_tanh), expected, rtol=1e-4)
    np.testing.assert_allclose(ours.log_prob(jnp.tanh(pre_tanh)), expected, rtol=1e-4)
    np.testing.assert_array_equal(ours.sample(key), jnp.tanh(ours.sample_pre_tanh(key)))


def test_A14_saturated_log_prob_and_its_gradient_are_exact():
    # log N(10; 0, 1) = −50 − .91894; log(1 − tanh² 10) = 2 (log 2 − 10) = −18.6137; sum −50.9189 + 18.6137
    unit = TanhNormal(jnp.zeros(1), jnp.ones(1))
    value, gradient = jax.value_and_grad(unit.log_prob_pre_tanh)(jnp.array([10.0]))
    assert value == pytest.approx(-32.3052, abs=1e-4)
    # −u from the normal and +2 from the correction
    assert gradient[0] == pytest.approx(-10 + 2.0, abs=1e-5)


@pytest.mark.parametrize("bound", [-1.0, 1.0])
def test_A14_log_prob_of_an_action_at_the_bound_is_finite(bound):
    def log_prob(mean, std, action):
        return TanhNormal(mean, std).log_prob(action)

    value, gradients = jax.value_and_grad(log_prob, argnums=(0, 1, 2))(jnp.zeros(1), jnp.ones(1), jnp.array([bound]))
    assert np.isfinite(value) and np.isfinite(gradients).all()


def test_A16_entropy_is_that_of_the_squashed_action():
    # ∫ over N(0, 1) by the trapezoid rule: 1.41894 + E[log(1 − tanh² u)] = .66980
    u = np.linspace(-12, 12, 100_001)
    density = np.exp(-0.5 * u**2)
    expected = 1.418939 + np.sum(density * -2 * np.log(np.cosh(u))) / np.sum(density)
    assert expected == pytest.approx(0.66980, abs=1e-5)
    assert TanhNormal(jnp.zeros(1), jnp.ones(1)).entropy() == pytest.approx(expected, abs=1e-5)


def test_A16_entropy_agrees_with_samples_and_its_gradient_stops_growth(key):
    @jax.jit
    def estimate():
        distribution = TanhNormal(jnp.full((100_000, 2), 0.3), jnp.full((100_000, 2), 0.8))
        return distribution.entropy()[0], -jnp.mean(distribution.log_prob_pre_tanh(distribution.sample_pre_tanh(key)))

    entropy, sampled = estimate()
    assert entropy == pytest.approx(float(sampled), abs=0.01)
    # A wider normal has more entropy, the squashed action does not once its mass sits at the bounds.
    gradient = jax.jit(jax.grad(lambda std: TanhNormal(jnp.zeros(1), std).entropy()))(jnp.array([2.0]))
    assert gradient[0] < 0
