"""Golden numbers and identities of MPO; rlax is the oracle, and Acme's formulas written out in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses import mpo
from podracer.networks.distributions import mask_illegal


def float32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def normals(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def of_samples(q_values: np.ndarray) -> np.ndarray:
    """The logarithm of the prior of N samples."""
    return np.full_like(q_values, -np.log(q_values.shape[0]))


def test_e_step_golden():
    # Q = [1, 3], η = 2: weights ∝ [e^.5, e^1.5]: 1 / (1 + e) = .26894, .73106
    # log((e^.5 + e^1.5) / 2) = log(3.065205) = 1.120114;  loss = 2 (.1 + 1.120114) = 2.440229
    # KL = .26894 log(2 · .26894) + .73106 log(2 · .73106) = −.166775 + .277720 = .110945
    q_values = float32(1, 3)[:, None]
    step = mpo.e_step(q_values, of_samples(q_values), jnp.float32(2.0), 0.1)
    np.testing.assert_allclose(step.weights[:, 0], [0.26894, 0.73106], atol=1e-5)
    np.testing.assert_allclose(step.temperature_loss, [2.440229], rtol=1e-6)
    np.testing.assert_allclose(step.kl, [0.110945], atol=1e-6)


def test_e_step_weighs_actions_by_their_prior():
    # π = [.75, .25], Q = [0, log 3], η = 1: .75 · 1 and .25 · 3 are alike. Normaliser 1.5.
    # loss = .1 + log 1.5 = .505465;  KL = .5 log(.5 / .75) + .5 log(.5 / .25) = .143841
    q_values, log_prior = float32(0, np.log(3))[:, None], np.log(float32(0.75, 0.25))[:, None]
    step = mpo.e_step(q_values, log_prior, jnp.float32(1.0), 0.1)
    np.testing.assert_allclose(step.weights[:, 0], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(step.temperature_loss, [0.505465], rtol=1e-6)
    np.testing.assert_allclose(step.kl, [0.143841], atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-6, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_weights_sum_to_one_at_any_scale_and_temperature(temperature, scale):
    q_values = scale * normals(0, 20, 5)
    step = mpo.e_step(q_values, of_samples(q_values), jnp.float32(temperature), 0.1)
    np.testing.assert_allclose(jnp.sum(step.weights, 0), 1.0, rtol=1e-3 if temperature < 1e-3 else 1e-5)
    assert np.all(np.isfinite(step.temperature_loss)) and np.all(np.isfinite(step.kl))


def test_the_temperature_alone_is_learnt_by_its_loss():
    q_values = normals(12, 20, 3)

    def total(q_values, log_prior, temperature):
        weights, temperature_loss, kl = mpo.e_step(q_values, log_prior, temperature, 0.1)
        return jnp.sum(weights) + jnp.sum(kl), jnp.sum(temperature_loss)

    inputs = q_values, of_samples(q_values), jnp.float32(1.0)
    jacobian = jax.jacobian(total, argnums=(0, 1, 2))(*inputs)
    by_others, (by_q_values, by_prior, by_temperature) = jacobian
    assert all(np.all(gradient == 0) for gradient in (*by_others, by_q_values, by_prior))
    assert by_temperature != 0


def test_a_hot_temperature_leaves_the_prior_and_a_cold_one_takes_the_best():
    q_values = normals(1, 20, 3)
    hot, cold = (mpo.e_step(q_values, of_samples(q_values), jnp.float32(t), 0.1) for t in (1e6, 1e-3))
    np.testing.assert_allclose(hot.weights, 1 / 20, rtol=1e-4)
    np.testing.assert_array_equal(np.argmax(cold.weights, 0), np.argmax(q_values, 0))
    np.testing.assert_allclose(np.max(cold.weights, 0), 1.0, atol=1e-3)
    np.testing.assert_allclose(cold.kl, np.log(20), atol=1e-2)


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_the_slope_of_the_temperature_is_the_room_below_the_bound(epsilon):
    q_values = normals(2, 20, 4)

    def loss(temperature):
        step = mpo.e_step(q_values, of_samples(q_values), temperature, epsilon)
        return jnp.mean(step.temperature_loss), jnp.mean(step.kl)

    slope, kl = jax.grad(loss, has_aux=True)(jnp.float32(1.5))
    np.testing.assert_allclose(slope, epsilon - kl, atol=1e-6)


def test_descending_the_temperature_meets_the_bound():
    q_values = normals(3, 200, 4)

    def loss(temperature):
        return jnp.mean(mpo.e_step(q_values, of_samples(q_values), temperature, 0.1).temperature_loss)

    def descend(temperature, _):
        return temperature - jax.grad(loss)(temperature), None

    temperature, _ = jax.jit(lambda start: jax.lax.scan(descend, start, None, 500))(jnp.float32(1.0))
    kl = mpo.e_step(q_values, of_samples(q_values), temperature, 0.1).kl
    np.testing.assert_allclose(jnp.mean(kl), 0.1, atol=1e-4)


def test_A18_illegal_actions_have_no_weight_and_no_gradient_of_nan():
    legal = np.array([True, False, True])
    logits, q_values = mask_illegal(float32(0, 5, 0), legal), mask_illegal(float32(1, 9, 2), legal)
    log_prior = jax.nn.log_softmax(logits)[:, None]

    def losses(temperature, logits):
        step = mpo.e_step(q_values[:, None], log_prior, temperature, 0.1)
        log_probs = jax.nn.log_softmax(mask_illegal(logits, legal))
        policy_loss = mpo.weighted_likelihood_loss(step.weights, log_probs[:, None])
        kl = mpo.categorical_kl(log_prior[:, 0], log_probs)
        return jnp.sum(step.temperature_loss + policy_loss) + kl, step

    (loss, step), gradients = jax.value_and_grad(losses, argnums=(0, 1), has_aux=True)(
        jnp.float32(0.5), float32(0, 5, 0)
    )
    # weights of the legal ones ∝ [e², e⁴]: 1 / (1 + e²) = .119203
    np.testing.assert_allclose(step.weights[:, 0], [0.119203, 0, 0.880797], atol=1e-6)
    assert (
        np.isfinite(loss) and np.isfinite(step.kl[0]) and all(np.all(np.isfinite(gradient)) for gradient in gradients)
    )
    # The slope by the logits: π − weights = [.5 − .1192, 0, .5 − .8808]
    np.testing.assert_allclose(gradients[1], [0.380797, 0, -0.380797], atol=1e-6)


def test_likelihood_loss_golden():
    # −(.25 · −1 + .75 · −2) = 1.75, and its slope by the log-probabilities is −weights
    weights, log_probs = float32(0.25, 0.75)[:, None], float32(-1, -2)[:, None]
    np.testing.assert_allclose(mpo.weighted_likelihood_loss(weights, log_probs), [1.75], rtol=1e-6)
    gradients = jax.grad(lambda *x: jnp.sum(mpo.weighted_likelihood_loss(*x)), argnums=(0, 1))(weights, log_probs)
    np.testing.assert_array_equal(gradients[0], 0)
    np.testing.assert_array_equal(gradients[1], -weights)


def test_kl_losses_golden():
    # Two bounds, KL = [.3, .1], α = [2, 10], ε = .2: penalty .6 + 1 = 1.6; 2 (−.1) + 10 (.1) = .8
    kl, multiplier = float32(0.3, 0.1)[None], float32(2, 10)
    penalty, multiplier_loss = mpo.kl_losses(kl, multiplier, 0.2)
    np.testing.assert_allclose([penalty[0], multiplier_loss[0]], [1.6, 0.8], rtol=1e-5)
    by_kl, by_multiplier = jax.grad(lambda *x: jnp.sum(sum(mpo.kl_losses(*x, 0.2))), argnums=(0, 1))(kl, multiplier)
    np.testing.assert_allclose(by_kl, multiplier[None])
    # ε − KL: the first multiplier rises under descent, the second falls
    np.testing.assert_allclose(by_multiplier, [-0.1, 0.1], rtol=1e-5)


def test_a_multiplier_rises_above_its_bound_only():
    slope = jax.grad(lambda multiplier, kl: jnp.sum(mpo.kl_losses(kl, multiplier, 0.2)[1]))
    assert slope(jnp.float32(1.0), float32(0.21)) < 0 < slope(jnp.float32(1.0), float32(0.19))
    assert slope(jnp.float32(1.0), float32(0.2)) == 0


def test_kl_of_equal_policies_is_zero():
    mean, std = normals(4, 7, 3), np.exp(normals(5, 7, 3))
    for kl in mpo.decoupled_normal_kl(mean, std, mean, std):
        np.testing.assert_array_equal(kl, 0)
    log_probs = jax.nn.log_softmax(normals(6, 7, 5))
    np.testing.assert_array_equal(mpo.categorical_kl(log_probs, log_probs), 0)


def test_categorical_kl_golden():
    # π' = [.5, .5], π = [.25, .75]: .5 log 2 + .5 log(2/3) = .1438
    kl = mpo.categorical_kl(np.log(float32(0.5, 0.5)), np.log(float32(0.25, 0.75)))
    np.testing.assert_allclose(kl, 0.143841, atol=1e-6)


def test_decoupled_kl_golden():
    # μ' = 0, σ' = 2, μ = 1, σ = 1: ½ (1/2)² = .125;  log(1/2) + 4/2 − 1/2 = .806853
    kl = mpo.decoupled_normal_kl(float32(0), float32(2), float32(1), float32(1))
    np.testing.assert_allclose(kl, [[0.125], [0.806853]], rtol=1e-6)


def test_decoupled_kl_is_that_of_the_two_normals():
    p_mean, q_mean = normals(7, 2, 9, 3)
    p_std, q_std = np.exp(normals(8, 2, 9, 3))

    def kl(mean, std):
        return np.log(std / p_std) + (p_std**2 + (p_mean - mean) ** 2) / (2 * std**2) - 0.5

    by_mean, by_std = mpo.decoupled_normal_kl(p_mean, p_std, q_mean, q_std)
    np.testing.assert_allclose(by_mean, kl(q_mean, p_std), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_std, kl(p_mean, q_std), rtol=1e-4, atol=1e-5)


def test_the_divergence_of_deviations_has_digits_at_the_bound():
    # σ' = .7 e^.001: x = .002, ½ (x²/2 + x³/6) = 1.00067e-6. The plain formula in float32 is off by several percent.
    std = float32(0.7)
    _, by_std = mpo.decoupled_normal_kl(float32(0), std * np.exp(np.float32(1e-3)), float32(0), std)
    np.testing.assert_allclose(by_std, [1.00067e-6], rtol=1e-3)


def test_E05_actions_cost_by_their_distance_from_the_bounds():
    # outside by (3, −4): 5
    actions = np.array([[4, -5], [1, -1], [0.2, 0.9], [1.5, 0]], np.float32)
    np.testing.assert_allclose(mpo.out_of_bounds_cost(actions), [5, 0, 0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("dual", [1e-4, 0.1, 3.0, 10.0, 1000.0])
def test_dual_variables_are_positive_and_invertible(dual):
    np.testing.assert_allclose(mpo.positive_dual(mpo.inverse_positive_dual(dual)), dual, rtol=2e-4)
    assert mpo.positive_dual(jnp.float32(-200.0)) > 0


@functools.cache
def problem() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    mean, target_mean = rng.normal(size=(2, 6, 3)).astype(np.float32)
    std, target_std = np.exp(0.3 * rng.normal(size=(2, 6, 3))).astype(np.float32)
    actions = (target_mean + target_std * rng.normal(size=(20, 6, 3))).astype(np.float32)
    return {
        "mean": mean,
        "std": std,
        "target_mean": target_mean,
        "target_std": target_std,
        "actions": actions,
        "q_values": rng.normal(size=(20, 6)).astype(np.float32),
        "temperature": np.float32(0.8),
        "alpha_mean": np.exp(rng.normal(size=3)).astype(np.float32),
        "alpha_std": np.exp(rng.normal(size=3)).astype(np.float32),
    }


def log_normal(x, mean, std):
    return jnp.sum(-0.5 * jnp.square((x - mean) / std) - jnp.log(std) - 0.5 * np.log(2 * np.pi), -1)


def ours(x, mean, std, temperature, alpha_mean, alpha_std):
    step = mpo.e_step(x["q_values"], of_samples(x["q_values"]), temperature, 0.1)
    log_probs = log_normal(x["actions"], mean[None], x["target_std"][None])
    log_probs += log_normal(x["actions"], x["target_mean"][None], std[None])
    kl_mean, kl_std = mpo.decoupled_normal_kl(x["target_mean"], x["target_std"], mean, std)
    losses = [mpo.weighted_likelihood_loss(step.weights, log_probs), step.temperature_loss]
    losses += [*mpo.kl_losses(kl_mean, alpha_mean, 0.05), *mpo.kl_losses(kl_std, alpha_std, 0.01)]
    return jnp.mean(sum(losses))


def rlaxes(x, mean, std, temperature, alpha_mean, alpha_std):
    log_probs = log_normal(x["actions"], mean[None], x["target_std"][None])
    log_probs += log_normal(x["actions"], x["target_mean"][None], std[None])
    kl_mean = 0.5 * jnp.square((mean - x["target_mean"]) / x["target_std"])
    kl_std = jnp.log(std / x["target_std"]) + jnp.square(x["target_std"]) / (2 * jnp.square(std)) - 0.5
    loss, _ = rlax.mpo_loss(
        log_probs,
        x["q_values"],
        rlax.LagrangePenalty(temperature, jnp.float32(0.1)),
        [
            (kl_mean, rlax.LagrangePenalty(alpha_mean, jnp.float32(0.05), per_dimension=True)),
            (kl_std, rlax.LagrangePenalty(alpha_std, jnp.float32(0.01), per_dimension=True)),
        ],
    )
    return jnp.mean(loss)


def test_loss_equals_rlax_with_its_gradients():
    x = problem()
    parameters = [x[name] for name in ("mean", "std", "temperature", "alpha_mean", "alpha_std")]
    results = []
    with jax.numpy_rank_promotion("allow"):  # rlax multiplies [B, K] by [K]
        for loss in (ours, rlaxes):
            value_and_grad = jax.value_and_grad(functools.partial(loss, x), argnums=range(5))
            results.append(jax.jit(value_and_grad)(*parameters))
    for got, expected in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_loss_equals_the_formulas_of_acme():
    x = {name: np.float64(value) for name, value in problem().items()}
    weights = np.exp(x["q_values"] / x["temperature"])
    normaliser = np.sum(weights, 0)
    weights /= normaliser

    def cross_entropy(mean, std):
        log_probs = -0.5 * ((x["actions"] - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return -np.mean(np.sum(np.sum(log_probs, -1) * weights, 0))

    def kl(mean, std):
        ratio, distance = (x["target_std"] / std) ** 2, ((x["target_mean"] - mean) / std) ** 2
        return np.mean(0.5 * (ratio + distance - 1 - np.log(ratio)), 0)

    expected = cross_entropy(x["mean"], x["target_std"]) + cross_entropy(x["target_mean"], x["std"])
    expected += x["temperature"] * (0.1 + np.mean(np.log(normaliser)) - np.log(20))
    for alpha, mean_kl, epsilon in (
        (x["alpha_mean"], kl(x["mean"], x["target_std"]), 0.05),
        (x["alpha_std"], kl(x["target_mean"], x["std"]), 0.01),
    ):
        expected += np.sum(alpha * mean_kl) + np.sum(alpha * (epsilon - mean_kl))
    x = problem()
    loss = ours(x, *[x[name] for name in ("mean", "std", "temperature", "alpha_mean", "alpha_std")])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
