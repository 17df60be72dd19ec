"""The configuration of networks."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

# The activations of two layers of 64 units and their gradients, in 4 MiB.
_CHUNK_SIZE_ON_CPU = 2048


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Which network an agent builds. By default it follows from the observation."""

    torso: Literal["auto", "mlp", "minatar_cnn", "nature_cnn", "impala_resnet"] = "auto"
    """What turns the observation into features. auto: nature_cnn for images of at least 36x36, minatar_cnn for
    smaller ones, mlp where there is no image. mlp flattens images, too."""
    hidden_sizes: tuple[int, ...] | None = None
    """Widths of the dense layers, which follow the convolutions where there are any. None: those of the torso's
    paper: (64, 64) for mlp, (128,) for minatar_cnn, (512,) for nature_cnn, (256,) for impala_resnet."""
    activation: Literal["auto", "relu", "tanh", "silu", "elu", "gelu"] = "auto"
    """The function after every layer. auto: tanh for mlp, relu for the others."""
    layer_norm: bool = False
    """Normalises the features of every layer before its activation; not those within a residual block."""
    shared_torso: bool = False
    """Policy and value share torso and core, or have one each."""
    core: Literal["none", "gru", "lstm"] = "none"
    """The memory between torso and heads."""
    core_size: int = 128
    """Width of the memory."""
    resnet_channels: tuple[int, ...] = (16, 32, 32)
    """Channels of each section of impala_resnet; a section halves the image."""
    resnet_blocks: int = 2
    """Residual blocks a section of impala_resnet."""
    resnet_width: int = 1
    """Multiplies the channels of impala_resnet: 2 and 4 are the usual larger variants."""
    convolution: Literal["auto", "native", "patches"] = "auto"
    """How convolutions are computed; the parameters are the same. auto: patches on CPUs, native elsewhere."""
    chunk_size: int | None = None
    """Time steps that learning puts through the network at a time, 0 for all; gradients of larger minibatches are
    accumulated, which changes nothing but the order of a sum. None: 2048 on CPUs, where activations then stay in the
    cache; all elsewhere."""
    head_sizes: tuple[int, ...] = ()
    """Widths of dense layers between the torso, or the core, and the values of actions; of both streams if duelling."""
    duelling: bool = False
    """Values actions as the value of the state plus advantages, each with layers of its own."""
    noisy: bool = False
    """Explores by learned noise in the layers that value actions, after torso and core."""
    policy: Literal["auto", "normal", "state_normal", "tanh_normal"] = "auto"
    """Distribution of continuous actions. normal: a standard deviation that does not depend on the observation;
    state_normal: one that does; tanh_normal: that, squashed into (-1, 1). auto: what suits the agent, mostly normal."""


def resolve_platform(config: NetworkConfig, platform: str) -> NetworkConfig:
    """Decides what is left open for the platform that the network runs on, `jax.Device.platform`."""
    is_cpu = platform == "cpu"
    if config.convolution == "auto":
        config = dataclasses.replace(config, convolution="patches" if is_cpu else "native")
    if config.chunk_size is None:
        config = dataclasses.replace(config, chunk_size=_CHUNK_SIZE_ON_CPU if is_cpu else 0)
    return config


def check_feed_forward(config: NetworkConfig) -> None:
    """Checks that a network has no memory, for algorithms that learn from single transitions.

    Raises:
      ValueError: with the repair.
    """
    if config.core != "none":
        raise ValueError(
            f"network.core={config.core} is a memory, but this agent learns from single transitions, which have none; "
            "use network.core=none, or an agent that learns from sequences, such as agent=ppo"
        )
