import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from podracer.losses.distributional import categorical_loss, project_categorical, quantile_loss


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (1.0, 0.0, [0, 1, 0]),  # a true end: all on the reward
        (1.0, 1.0, [0, 0.2, 0.8]),  # (1, 2, 3): the last is clipped to 2
        (0.5, 1.0, [0.1, 0.25, 0.65]),  # (.5, 1.5, 2.5): halves of .2 and .3, and .5 clipped
        (5.0, 1.0, [0, 0, 1]),
        (-5.0, 1.0, [1, 0, 0]),
    ],
)
def test_A13_no_probability_is_lost_on_atoms_and_at_the_bounds(reward, discount, expected):
    atoms, probability = jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.2, 0.3, 0.5]])
    projected = project_categorical(reward + discount * atoms[None], probability, atoms)
    np.testing.assert_allclose(projected, [expected], atol=1e-6)
    np.testing.assert_allclose(jnp.sum(projected), 1.0, rtol=1e-6)


@pytest.mark.parametrize("num_atoms", [2, 51])
def test_projection_equals_rlax(num_atoms):
    atoms = jnp.linspace(-10.0, 10.0, num_atoms)
    value, probability = 8 * random(16, 30), jax.nn.softmax(random(16, 30, seed=1))
    value = jnp.sort(value, axis=-1)  # rlax wants it in order
    expected = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(value, probability, atoms)
    np.testing.assert_allclose(project_categorical(value, probability, atoms), expected, atol=1e-5)


def test_projection_keeps_the_mean_within_the_atoms():
    atoms = jnp.linspace(-10.0, 10.0, 21)
    value, probability = jnp.clip(random(16, 30), -10, 10), jax.nn.softmax(random(16, 30, seed=1))
    projected = project_categorical(value, probability, atoms)
    mean = jnp.sum(value * probability, -1)
    np.testing.assert_allclose(jnp.sum(projected * atoms[None], -1), mean, rtol=1e-4, atol=1e-5)


def test_the_categorical_loss_is_the_divergence():
    # m = (½, ½, 0), p = (¼, ¼, ½): ½ log 2 + ½ log 2
    logits, target = jnp.log(jnp.array([[0.25, 0.25, 0.5]])), jnp.array([[0.5, 0.5, 0.0]])
    np.testing.assert_allclose(categorical_loss(logits, target), [np.log(2.0)], rtol=1e-6)
    np.testing.assert_allclose(categorical_loss(logits, jax.nn.softmax(logits)), [0.0], atol=1e-7)


def test_the_gradient_of_the_categorical_loss_is_that_of_the_cross_entropy():
    logits, target = random(6, 11), jax.nn.softmax(random(6, 11, seed=1))
    gradient = jax.grad(lambda x: jnp.sum(categorical_loss(x, target)))(logits)
    cross_entropy = lambda x: -jnp.sum(target * jax.nn.log_softmax(x))  # noqa: E731
    np.testing.assert_allclose(gradient, jax.grad(cross_entropy)(logits), rtol=1e-4, atol=1e-6)
    at_zero = jax.grad(lambda x: jnp.sum(categorical_loss(x, jnp.eye(11)[:6])))(logits)
    assert jnp.all(jnp.isfinite(at_zero))


@pytest.mark.parametrize("threshold", [None, 1.0, 0.3])
def test_quantile_loss_equals_rlax_with_its_gradient(threshold):
    quantile, target = random(5, 7), random(5, 4, seed=1)
    tau = (jnp.arange(7.0) + 0.5) / 7

    def rlaxes(quantile):
        with jax.numpy_rank_promotion("allow"):
            return jax.vmap(lambda q, t: rlax.quantile_regression_loss(q, tau, t, threshold or 0.0))(quantile, target)

    np.testing.assert_allclose(quantile_loss(quantile, target, threshold), rlaxes(quantile), rtol=1e-5)
    gradients = [
        jax.grad(lambda q, loss=loss: jnp.sum(loss(q)))(quantile)
        for loss in (rlaxes, lambda q: quantile_loss(q, target, threshold))
    ]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)


def test_quantile_golden():
    # θ = (0, 2), t = (1): u = (1, −1), τ = (¼, ¾): ¼ · 1 + |¾ − 1| · 1
    np.testing.assert_allclose(quantile_loss(jnp.array([[0.0, 2.0]]), jnp.array([[1.0]]), None), [0.5])
    # Huber with κ = 1 halves both.
    np.testing.assert_allclose(quantile_loss(jnp.array([[0.0, 2.0]]), jnp.array([[1.0]]), 1.0), [0.25])
