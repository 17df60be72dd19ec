"""Convolutions and pooling that stay fast inside of a compiled loop on a CPU.

There the gradient of XLA's own convolution is 4 to 15 times slower than outside. As patches times a matrix
it costs the same in both places. The parameters are those of `flax.linen.Conv`.
"""

import functools
from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from podracer.types import Array

Padding = Literal["SAME", "VALID"]
Method = Literal["native", "patches"]


class Convolution(nn.Module):
    """A square two-dimensional convolution with a bias, `[N, H, W, C] -> [N, H', W', features]`."""

    features: int
    size: int
    stride: int = 1
    padding: Padding = "VALID"
    method: Method = "native"
    kernel_init: Callable = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", self.kernel_init, (self.size, self.size, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return convolve(x, kernel, self.stride, self.padding, self.method) + bias[None, None, None]


def convolve(x: Array, kernel: Array, stride: int, padding: Padding, method: Method) -> Array:
    """Convolves images with a square kernel.

    Args:
      x: `[N, H, W, C]`.
      kernel: `[K, K, C, F]`.
      stride: of both dimensions.
      padding: SAME adds zeros so that `H' = ⌈H / stride⌉`; VALID adds none.
      method: native is XLA's convolution; patches computes the same numbers up to rounding.

    Returns:
      `[N, H', W', F]`.
    """
    if method == "native":
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    if padding == "SAME":
        x = _pad_same(x, kernel.shape[0], stride, 0.0)
    if stride > 1:
        x, kernel = _space_to_depth(x, kernel, stride)
    return _convolve_patches(x, kernel)


def max_pool(x: Array, size: int, stride: int) -> Array:
    """Takes the maximum over square windows with SAME padding, `[N, H, W, C] -> [N, ⌈H / stride⌉, ⌈W / stride⌉, C]`.

    Maxima of shifted slices, one dimension after the other: `reduce_window` has a slow gradient. Where
    several elements of a window are the largest they share the gradient.
    """
    x = _pad_same(x, size, stride, -jnp.inf)
    for axis in (1, 2):
        last = x.shape[axis] - size
        slices = [jax.lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(size)]
        x = functools.reduce(jnp.maximum, slices)
    return x


def _pad_same(x: Array, size: int, stride: int, value: float) -> Array:
    pads = [(0, 0)]
    for length in x.shape[1:3]:
        total = max((-(-length // stride) - 1) * stride + size - length, 0)
        pads.append((total // 2, total - total // 2))
    return jnp.pad(x, [*pads, (0, 0)], constant_values=value)


def _space_to_depth(x: Array, kernel: Array, stride: int) -> tuple[Array, Array]:
    """Moves blocks of stride x stride pixels into channels, which turns a stride into stride 1."""
    n, height, width, channels = x.shape
    size = kernel.shape[0]
    blocks = -(-size // stride)  # of the kernel
    rows, columns = ((length - size) // stride + blocks for length in (height, width))
    x = jax.lax.pad(
        x,
        jnp.zeros((), x.dtype),
        [(0, 0, 0), (0, rows * stride - height, 0), (0, columns * stride - width, 0), (0, 0, 0)],
    )
    x = x.reshape(n, rows, stride, columns, stride, channels)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows, columns, stride * stride * channels)
    rest = blocks * stride - size
    kernel = jnp.pad(kernel, [(0, rest), (0, rest), (0, 0), (0, 0)])
    kernel = kernel.reshape(blocks, stride, blocks, stride, channels, -1).transpose(0, 2, 1, 3, 4, 5)
    return x, kernel.reshape(blocks, blocks, stride * stride * channels, -1)


@jax.custom_vjp
def _convolve_patches(x: Array, kernel: Array) -> Array:
    """Convolves with stride 1 and no padding.

    Columns are gathered before one matrix product, rows are summed after it, so that K copies are made of
    the input and K of the output in place of K² of the input:

    X[h, w] = (x[h, w], ..., x[h, w+K-1]),   Z[h, w, i] = X[h, w] · kernel[i],   y[h, w] = Σᵢ Z[h+i, w, i]

    Args:
      x: `[N, H, W, C]`.
      kernel: `[K, K, C, F]`.

    Returns:
      `[N, H-K+1, W-K+1, F]`.
    """
    return _forward(x, kernel)[0]


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    size, _, _, features = kernel.shape
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    gathered = jnp.concatenate([x[:, :, j : j + width] for j in range(size)], axis=-1)  # [N, H, W', K C]
    products = gathered @ _as_matrix(kernel)  # [N, H, W', K F]
    y = sum(products[:, i : i + height, :, i * features : (i + 1) * features] for i in range(size))
    return y, (gathered, kernel)


# The derived gradient is the same, but adds K padded copies where one concatenation does.
def _backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    gathered, kernel = residuals
    size, _, channels, features = kernel.shape
    spread = [jnp.pad(gradient, [(0, 0), (i, size - 1 - i), (0, 0), (0, 0)]) for i in range(size)]
    spread = jnp.concatenate(spread, axis=-1)  # [N, H, W', K F]
    matrix_gradient = gathered.reshape(-1, size * channels).T @ spread.reshape(-1, size * features)
    kernel_gradient = matrix_gradient.reshape(size, channels, size, features).transpose(2, 0, 1, 3)
    columns = jnp.split(spread @ _as_matrix(kernel).T, size, axis=-1)  # K x [N, H, W', C]
    x_gradient = sum(jnp.pad(x, [(0, 0), (0, 0), (j, size - 1 - j), (0, 0)]) for j, x in enumerate(columns))
    return x_gradient, kernel_gradient


_convolve_patches.defvjp(_forward, _backward)


def _as_matrix(kernel: Array) -> Array:
    size, _, channels, features = kernel.shape
    return kernel.transpose(1, 2, 0, 3).reshape(size * channels, size * features)
