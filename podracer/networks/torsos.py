"""Torsos: from features to one vector, convolutions for the images and dense layers for everything."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer.networks.config import NetworkConfig
from podracer.networks.convolution import Convolution, Method, max_pool
from podracer.networks.preprocess import Features, image_sides
from podracer.spaces import EnvSpec
from podracer.types import Array

_ACTIVATIONS = {"relu": nn.relu, "tanh": jnp.tanh, "silu": nn.silu, "elu": nn.elu, "gelu": nn.gelu}
_HIDDEN_SIZES = {"mlp": (64, 64), "minatar_cnn": (128,), "nature_cnn": (512,), "impala_resnet": (256,)}
# (channels, size of the kernel, stride) of the layers of the plain convolutional torsos.
_LAYERS = {"minatar_cnn": ((16, 3, 1),), "nature_cnn": ((32, 8, 4), (64, 4, 2), (64, 3, 1))}
# Below this nothing is left of an image after the layers.
_SMALLEST_SIDE = {"minatar_cnn": 3, "nature_cnn": 36, "impala_resnet": 3}
_orthogonal = nn.initializers.orthogonal(math.sqrt(2))


class Torso(nn.Module):
    """Images through convolutions of their own, then, beside the vector, through the dense layers.

    mlp: two layers of 64 tanh units, as "Proximal Policy Optimization Algorithms", Schulman et al., arXiv
    1707.06347, section 6.1. The CNNs: see `PlainCNN` and `ResNet`. Dense layers and plain convolutions
    begin orthogonal with gain √2, residual networks as Sonnet's do.
    """

    config: NetworkConfig
    kind: str  # one of NetworkConfig.torso but auto

    @nn.compact
    def __call__(self, features: Features) -> Array:
        """Computes `[N, H]`."""
        config = self.config
        activation = resolve_activation(config, self.kind)
        # Left undecided, the way that is right on most platforms.
        method: Method = "patches" if config.convolution == "patches" else "native"
        parts = []
        for image in features.images:
            if self.kind == "impala_resnet":
                channels = tuple(config.resnet_width * channels for channels in config.resnet_channels)
                x = ResNet(channels, config.resnet_blocks, activation, method)(image)
            else:
                x = PlainCNN(_LAYERS[self.kind], activation, config.layer_norm, method)(image)
            parts.append(x.reshape(x.shape[0], -1))
        if features.vector is not None:
            parts.append(features.vector)
        x = jnp.concatenate(parts, axis=-1)
        hidden_sizes = _HIDDEN_SIZES[self.kind] if config.hidden_sizes is None else config.hidden_sizes
        return MLP(hidden_sizes, activation, config.layer_norm)(x)


class MLP(nn.Module):
    """Dense layers, each with an activation."""

    sizes: tuple[int, ...]
    activation: Callable
    layer_norm: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.sizes:
            x = nn.Dense(size, kernel_init=_orthogonal)(x)
            x = self.activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x


class PlainCNN(nn.Module):
    """Convolutions, each with an activation.

    nature_cnn: "Human-level control through deep reinforcement learning", Mnih et al., Nature 518, 2015.
    minatar_cnn: "MinAtar: An Atari-Inspired Testbed", Young & Tian, arXiv 1903.03176, section 3.
    """

    layers: tuple[tuple[int, int, int], ...]  # (channels, size of the kernel, stride)
    activation: Callable
    layer_norm: bool
    method: Method

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for channels, size, stride in self.layers:
            x = Convolution(channels, size, stride, "VALID", self.method, _orthogonal)(x)
            x = self.activation(nn.LayerNorm()(x) if self.layer_norm else x)
        return x


class ResNet(nn.Module):
    """Sections of a convolution, a pooling that halves the image, and residual blocks.

    "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", Espeholt et
    al., arXiv 1802.01561, figure 3 (right): 15 convolutions with the default sections and blocks.
    """

    channels: tuple[int, ...]
    blocks: int
    activation: Callable
    method: Method

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for channels in self.channels:
            x = max_pool(self._convolution(channels)(x), size=3, stride=2)
            for _ in range(self.blocks):
                residual = self._convolution(channels)(self.activation(x))
                x = x + self._convolution(channels)(self.activation(residual))
        return self.activation(x)

    def _convolution(self, channels: int) -> Convolution:
        return Convolution(channels, size=3, padding="SAME", method=self.method)


def resolve_torso(config: NetworkConfig, spec: EnvSpec) -> str:
    """Decides which torso reads the observations of an environment.

    Raises:
      ValueError: the torso asked for cannot read them.
    """
    images = image_sides(spec.observation)
    smallest = min((min(sides) for sides in images), default=0)
    if config.torso == "auto":
        if not images:
            return "mlp"
        return "nature_cnn" if smallest >= _SMALLEST_SIDE["nature_cnn"] else "minatar_cnn"
    if config.torso == "mlp":
        return "mlp"
    if not images:
        shapes = jax.tree.map(lambda space: tuple(space.shape), spec.observation)
        raise ValueError(
            f"network.torso={config.torso} needs an image, a leaf of three dimensions with sides of at least 3, but "
            f"{spec.id} observes shapes {shapes}; use network.torso=mlp or network.torso=auto"
        )
    if smallest < _SMALLEST_SIDE[config.torso]:
        raise ValueError(
            f"network.torso={config.torso} needs images with sides of at least {_SMALLEST_SIDE[config.torso]}, but "
            f"{spec.id} observes one of {min(images, key=min)}; use network.torso=minatar_cnn"
        )
    return config.torso


def resolve_activation(config: NetworkConfig, kind: str) -> Callable:
    """Decides which function follows a layer beside a torso of this kind."""
    if config.activation == "auto":
        return _ACTIVATIONS["tanh" if kind == "mlp" else "relu"]
    return _ACTIVATIONS[config.activation]
