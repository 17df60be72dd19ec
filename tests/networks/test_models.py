"""Networks read every observation, act in every space, and do the same in steps and unrolls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer.networks.config import NetworkConfig, resolve_platform
from podracer.networks.distributions import Categorical, DiagonalNormal, MultiCategorical, TanhNormal
from podracer.networks.models import actor_critic, q_network
from podracer.spaces import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete

VECTOR = Box((3,), np.float32)
SMALL_IMAGE = Box((10, 10, 4), np.float32)
LARGE_IMAGE = Box((4, 42, 42), np.uint8)
T, B = 5, 3


def _spec(observation, action=Discrete(4)):  # noqa: B008 (immutable)
    return EnvSpec("test", observation, action)


def _config(**settings):
    settings = {"hidden_sizes": (8,), "core_size": 6, "resnet_channels": (2, 3), "resnet_blocks": 1} | settings
    return NetworkConfig(**settings)


def _observations(space, batch_shape, seed=0):
    random = np.random.default_rng(seed)

    def draw(leaf):
        if isinstance(leaf, Discrete):
            return random.integers(leaf.num_values, size=batch_shape).astype(leaf.dtype)
        if leaf.dtype == np.float32:
            return random.normal(size=batch_shape + leaf.shape).astype(np.float32)
        return random.integers(256 if leaf.dtype == np.uint8 else 2, size=batch_shape + leaf.shape).astype(leaf.dtype)

    return jax.tree.map(draw, space)


def _init(network, observation, batch_size=B):
    """Parameters drawn anew, so that heads which begin near 0 and biases take part."""
    shapes = jax.eval_shape(
        network.init,
        jax.random.key(0),
        network.initial_memory(batch_size),
        jax.tree.map(lambda x: x[0], observation),
        np.zeros(batch_size, bool),
    )
    random = np.random.default_rng(1)
    return jax.tree.map(lambda x: random.normal(scale=x.shape[0] ** -0.5, size=x.shape).astype(np.float32), shapes)


def _unroll(network, params, memory, observation, is_first):
    return jax.jit(lambda *arguments: network.apply(*arguments, method="unroll"))(params, memory, observation, is_first)


def _assert_close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, expected)


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize(
    ("torso", "space"),
    [("mlp", VECTOR), ("minatar_cnn", SMALL_IMAGE), ("nature_cnn", LARGE_IMAGE), ("impala_resnet", SMALL_IMAGE)],
)
def test_A24_steps_equal_the_unroll_across_episodes(torso, space, core):
    spec, observation = _spec(space), _observations(space, (T, B))
    is_first = np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1], [0, 0, 0]], bool)
    # Separate torsos and action values are the same code again, so one torso is enough to try them.
    networks = [actor_critic(_config(torso=torso, core=core, convolution="patches", shared_torso=True), spec)]
    if torso == "mlp":
        networks += [actor_critic(_config(core=core), spec), q_network(_config(core=core), spec)]
    for network in networks:
        params = _init(network, observation)
        memory = jax.tree.map(jnp.ones_like, network.initial_memory(B))
        last, outputs = _unroll(network, params, memory, observation, is_first)
        step = jax.jit(network.apply)
        for t in range(T):
            memory, output = step(params, memory, observation[t], is_first[t])
            _assert_close(output, jax.tree.map(lambda x, t=t: x[t], outputs))
        _assert_close(memory, last)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("space", [VECTOR, SMALL_IMAGE], ids=["vector", "image"])
def test_rows_of_a_batch_do_not_influence_each_other(space, core):
    network = actor_critic(_config(core=core, layer_norm=True, convolution="patches"), _spec(space))
    observation, is_first = _observations(space, (T, B)), np.zeros((T, B), bool)
    params, memory = _init(network, observation), network.initial_memory(B)
    unroll = jax.jit(lambda observation: network.apply(params, memory, observation, is_first, method="unroll")[1])
    changed = observation.copy()
    changed[:, 1] += 1.0
    before, after = unroll(observation).value, unroll(changed).value
    np.testing.assert_allclose(after[:, [0, 2]], before[:, [0, 2]], rtol=1e-6)
    assert np.max(np.abs(after[:, 1] - before[:, 1])) > 1e-3


@pytest.mark.parametrize(
    ("space", "first_layer"),
    [
        (VECTOR, ("MLP_0", "Dense_0", (3, 8))),
        (Box((), np.int32), ("MLP_0", "Dense_0", (1, 8))),
        (Discrete(16), ("MLP_0", "Dense_0", (16, 8))),
        (Box((10, 5), np.float32), ("MLP_0", "Dense_0", (50, 8))),
        (SMALL_IMAGE, ("PlainCNN_0", "Convolution_0", (3, 3, 4, 16))),
        (Box((35, 84, 3), np.uint8), ("PlainCNN_0", "Convolution_0", (3, 3, 3, 16))),
        (Box((36, 36, 1), np.uint8), ("PlainCNN_0", "Convolution_0", (8, 8, 1, 32))),
        (LARGE_IMAGE, ("PlainCNN_0", "Convolution_0", (8, 8, 4, 32))),
    ],
)
def test_auto_chooses_the_torso_from_the_observation(space, first_layer):
    network = q_network(_config(), _spec(space))
    params = _init(network, _observations(space, (1, B)))
    block, layer, shape = first_layer
    assert params["params"]["trunk"]["torso"][block][layer]["kernel"].shape == shape


def test_each_torso_has_the_dense_layers_and_activation_of_its_paper():
    for torso, shapes in {
        "mlp": [(400, 64), (64, 64)],
        "minatar_cnn": [(8 * 8 * 16, 128)],
        "impala_resnet": [(2 * 2 * 32, 256)],
    }.items():
        network = q_network(NetworkConfig(torso=torso), _spec(SMALL_IMAGE))
        layers = _init(network, _observations(SMALL_IMAGE, (1, B)))["params"]["trunk"]["torso"]["MLP_0"]
        assert [layer["kernel"].shape for layer in layers.values()] == shapes
    network = q_network(NetworkConfig(), _spec(LARGE_IMAGE))
    layers = _init(network, _observations(LARGE_IMAGE, (1, B)))["params"]["trunk"]["torso"]["MLP_0"]
    assert layers["Dense_0"]["kernel"].shape == (64, 512)  # 42 → 9 → 3 → 1


def test_the_impala_resnet_has_15_convolutions_and_grows_by_its_width():
    for width in (1, 4):
        network = q_network(NetworkConfig(torso="impala_resnet", resnet_width=width), _spec(LARGE_IMAGE))
        layers = _init(network, _observations(LARGE_IMAGE, (1, B)))["params"]["trunk"]["torso"]["ResNet_0"]
        channels = [layers[f"Convolution_{i}"]["kernel"].shape[-1] for i in range(len(layers))]
        assert channels == [16 * width] * 5 + [32 * width] * 10


def test_heads_begin_with_the_gains_of_ppo(key):
    network = actor_critic(NetworkConfig(), _spec(VECTOR))
    params = jax.jit(network.init)(key, (), np.zeros((1, 3), np.float32), np.zeros(1, bool))["params"]
    gains = {name: np.linalg.norm(params[name]["Dense_0"]["kernel"], axis=0) for name in ("policy_head", "value_head")}
    np.testing.assert_allclose(gains["policy_head"], np.full(4, 0.01), rtol=1e-4)
    np.testing.assert_allclose(gains["value_head"], np.full(1, 1.0), rtol=1e-4)
    hidden = params["policy_trunk"]["torso"]["MLP_0"]["Dense_1"]["kernel"]
    np.testing.assert_allclose(hidden @ hidden.T, 2.0 * np.eye(64), atol=1e-4)


def test_a_shared_torso_serves_policy_and_value():
    spec, observation = _spec(VECTOR), _observations(VECTOR, (1, B))
    shared = _init(actor_critic(_config(shared_torso=True, core="gru"), spec), observation)
    separate = _init(actor_critic(_config(core="gru"), spec), observation)
    assert set(separate["params"]) - set(shared["params"]) == {"value_trunk"}


@pytest.mark.parametrize(
    ("settings", "action", "kind", "shape"),
    [
        ({}, Discrete(4), Categorical, ()),
        ({}, MultiDiscrete((2, 3)), MultiCategorical, (2,)),
        ({}, Box((2,), np.float32, -1.0, 1.0), DiagonalNormal, (2,)),
        ({"policy": "tanh_normal"}, Box((2,), np.float32, -1.0, 1.0), TanhNormal, (2,)),
    ],
)
def test_the_policy_follows_from_the_actions(key, settings, action, kind, shape):
    network = actor_critic(_config(**settings), _spec(VECTOR, action))
    observation, is_first = _observations(VECTOR, (T, B)), np.zeros((T, B), bool)
    params = _init(network, observation)
    _, (policy, value) = _unroll(network, params, (), observation, is_first)
    assert isinstance(policy, kind)
    action = policy.sample(key)
    assert action.shape == (T, B, *shape)
    assert policy.log_prob(action).shape == policy.entropy().shape == value.shape == (T, B)
    # The deviation of a plain normal policy does not depend on the observation, that of a squashed one does.
    if kind is DiagonalNormal:
        assert np.all(policy.std == policy.std[:1, :1])
    if kind is TanhNormal:
        assert not np.allclose(policy.std[0, 0], policy.std[0, 1])


def test_E07_a_tree_of_leaves_is_read_and_every_leaf_matters():
    space = {"img": Box((10, 10, 3), np.uint8), "vec": VECTOR, "goal": (Discrete(3), Box((2,), np.bool_))}
    network = actor_critic(_config(), _spec(space))
    observation = _observations(space, (T, B))
    params, is_first = _init(network, observation), np.zeros((T, B), bool)
    gradients = jax.grad(
        lambda p: jnp.sum(network.apply(p, (), observation, is_first, method="unroll")[1].value), allow_int=True
    )(params)["params"]["value_trunk"]["torso"]
    kernel = gradients["MLP_0"]["Dense_0"]["kernel"]  # image, goal (3 + 2), vec (3)
    assert kernel.shape == (8 * 8 * 16 + 8, 8)
    assert np.all(np.any(kernel[-8:] != 0.0, axis=1))
    assert np.any(gradients["PlainCNN_0"]["Convolution_0"]["kernel"] != 0.0)


def test_A18_illegal_actions_are_never_chosen_and_never_the_maximum(key):
    space = {"vec": VECTOR, ACTION_MASK: Box((4,), np.bool_)}
    observation = _observations(space, (T, B))
    observation[ACTION_MASK] = np.arange(T * B * 4).reshape(T, B, 4) % 5 < 2  # differs from row to row
    observation[ACTION_MASK][..., 0] |= ~observation[ACTION_MASK].any(-1)
    is_first = np.zeros((T, B), bool)

    network = q_network(_config(), _spec(space))
    params = _init(network, observation)
    # All values far below any "large" negative number that a mask might use.
    params["params"]["head"]["Dense_0"]["bias"] -= 1e12
    _, (q_values, _) = _unroll(network, params, (), observation, is_first)
    assert np.all(np.isfinite(q_values))
    chosen = np.take_along_axis(observation[ACTION_MASK], np.argmax(q_values, -1)[..., None], -1)
    assert np.all(chosen)
    np.testing.assert_allclose(np.max(q_values, -1), np.full((T, B), -1e12), rtol=1e-5)

    network = actor_critic(_config(), _spec(space))
    _, (policy, _) = _unroll(network, _init(network, observation), (), observation, is_first)
    samples = jax.vmap(policy.sample)(jax.random.split(key, 700))  # times T x B: above 10,000
    legal = np.broadcast_to(observation[ACTION_MASK], (700, T, B, 4))
    assert np.all(np.take_along_axis(legal, np.asarray(samples)[..., None], -1))
    assert np.all(np.isfinite(policy.entropy()))


@pytest.mark.parametrize(
    ("make", "settings", "spec", "message"),
    [
        (actor_critic, {"torso": "nature_cnn"}, _spec(VECTOR), r"network.torso=nature_cnn needs an image.*torso=mlp"),
        (q_network, {"torso": "nature_cnn"}, _spec(SMALL_IMAGE), r"at least 36.*\(10, 10\).*minatar_cnn"),
        (q_network, {}, _spec(VECTOR, Box((2,), np.float32)), r"needs Discrete actions.*Box"),
        (q_network, {}, _spec(VECTOR, MultiDiscrete((2, 3))), r"needs Discrete actions.*MultiDiscrete"),
        (actor_critic, {}, _spec(VECTOR, Box((2, 2), np.float32)), r"shape \(2, 2\)"),
        (actor_critic, {}, _spec({"a": VECTOR, ACTION_MASK: Box((3,), np.bool_)}), r"\(3,\).*needs \(4,\)"),
        (
            actor_critic,
            {},
            _spec({"a": VECTOR, ACTION_MASK: Box((3,), np.bool_)}, Box((2,), np.float32)),
            r"actions are continuous",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_repair(make, settings, spec, message):
    with pytest.raises(ValueError, match=message):
        make(_config(**settings), spec)


def test_what_is_left_open_is_decided_by_the_platform():
    config = NetworkConfig()
    on_cpu, on_gpu = resolve_platform(config, "cpu"), resolve_platform(config, "gpu")
    assert (on_cpu.convolution, on_cpu.chunk_size) == ("patches", 2048)
    assert (on_gpu.convolution, on_gpu.chunk_size) == ("native", 0)
    chosen = NetworkConfig(convolution="native", chunk_size=0)
    assert resolve_platform(chosen, "cpu") is chosen
