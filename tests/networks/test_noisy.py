import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from podracer.networks.noisy import NOISE, NoisyDense

LAYER = NoisyDense(3, kernel_init=nn.initializers.orthogonal())
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)


def test_without_a_key_there_is_no_noise(key):
    params = LAYER.init(key, X)
    mean = params["params"]["mean"]
    np.testing.assert_allclose(LAYER.apply(params, X), X @ mean["kernel"] + mean["bias"][None], rtol=1e-6)


def test_noise_begins_with_the_size_of_the_paper(key):
    # σ₀ / √H = .5 / 2
    deviation = LAYER.init(key, X)["params"]["deviation"]
    np.testing.assert_allclose(deviation["kernel"], 0.25)
    np.testing.assert_allclose(deviation["bias"], 0.25)


def test_noise_has_the_moments_of_the_paper(key):
    params = LAYER.init(key, X)
    params["params"]["deviation"] = {"kernel": jnp.arange(12.0).reshape(4, 3) / 12, "bias": jnp.array([1.0, 0.0, 0.5])}
    keys = jax.random.split(jax.random.key(1), 20_000)
    noise = jax.vmap(lambda key: LAYER.apply(params, X, rngs={NOISE: key}))(keys) - LAYER.apply(params, X)[None]
    np.testing.assert_allclose(jnp.mean(noise, 0), 0.0, atol=0.05)
    # Var f(ε) = E|ε| = √(2/π) = m, so Var y = m (m Σ (σ x)² + σ_b²) as the noises of inputs are independent.
    m = np.sqrt(2 / np.pi)
    kernel, bias = (np.asarray(params["params"]["deviation"][name]) for name in ("kernel", "bias"))
    expected = m * (m * np.square(X) @ np.square(kernel) + np.square(bias))
    np.testing.assert_allclose(jnp.var(noise, 0), expected, rtol=0.06)


def test_rows_have_noise_of_their_own(key):
    params = LAYER.init(key, X)
    same = jnp.broadcast_to(X[:1], X.shape)
    noisy = np.asarray(LAYER.apply(params, same, rngs={NOISE: jax.random.key(1)}))
    assert len(np.unique(noisy[:, 0])) == 5
    other = LAYER.apply(params, same, rngs={NOISE: jax.random.key(2)})
    assert not np.any(noisy == other)
