"""A store of stores: what is added goes to each of them, and each fills its share of every batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podracer.replay import ratio
from podracer.replay.base import Replay
from podracer.replay.ratio import Credit
from podracer.replay.settings import RatioSettings
from podracer.types import Array, ArrayTree, Batch, Key, Trajectory


class MixtureState(NamedTuple):
    parts: tuple[ArrayTree, ...]
    credit: Credit


def shares(proportions: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Cuts a batch into whole shares as near to the proportions as can be (the largest remainders are rounded up).

    Args:
      proportions: of each store, relative to their sum.
      batch_size: sequences a device.

    Raises:
      ValueError: a proportion is not positive, or so small that a store would have no share.
    """
    for name, value in proportions.items():
        if not 0 < value < math.inf:
            raise ValueError(f"replay.stores.{name}.proportion={value} is not positive; use 0.5")
    total = sum(proportions.values())
    exact = {name: batch_size * value / total for name, value in proportions.items()}
    result = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: result[name] - exact[name])
    for name in by_remainder[: batch_size - sum(result.values())]:
        result[name] += 1
    for name, share in result.items():
        if not share:
            raise ValueError(
                f"replay.stores.{name}.proportion={proportions[name]} of {total:g} is no whole sequence of the "
                f"{batch_size} a device; use at least {total / batch_size:.3g}, or a larger agent.batch_size"
            )
    return result


@dataclass(frozen=True, kw_only=True)
class Mixture(RatioSettings):
    """Samples several stores by proportion. See `podracer.replay.base.Replay`.

    In a batch lie the shares of the stores one after the other, so an index needs not say which store it is of.
    Its probabilities are those within each store, scaled so that importance weights undo what a store prefers, and
    not the proportions.
    """

    parts: tuple[Replay, ...]
    """The stores; the batch size in the `spec` of each is its share."""

    stores: Mapping[str, Any] = field(default_factory=dict)
    """The stores by names of your own: each the settings of a `replay`, and `proportion`, its share of a batch
    relative to the others: replay.stores.recent.name=uniform replay.stores.recent.proportion=0.5"""

    def summary(self) -> dict[str, float]:
        sequences = {f"{name}_sequences_per_batch": part.spec.batch_size for name, part in zip(self.stores, self.parts)}
        return {**super().summary(), **sequences}

    def init(self, example: Trajectory) -> MixtureState:
        return MixtureState(tuple(part.init(example) for part in self.parts), ratio.no_credit())

    def add(self, state: MixtureState, trajectory: Trajectory) -> MixtureState:
        credit = ratio.insert(state.credit, trajectory, self.updates_per_insert, self.learning_starts, self.axis_name)
        return MixtureState(tuple(part.add(own, trajectory) for part, own in zip(self.parts, state.parts)), credit)

    def take_updates(self, state: MixtureState) -> tuple[MixtureState, Array]:
        credit, updates = ratio.take(state.credit, self.can_sample(state), self.axis_name)
        return state._replace(credit=credit), updates

    def can_sample(self, state: MixtureState) -> Array:
        return jnp.all(jnp.stack([part.can_sample(own) for part, own in zip(self.parts, state.parts)]))

    def sample(self, state: MixtureState, key: Key) -> tuple[MixtureState, Batch]:
        keys = jax.random.split(key, len(self.parts))
        own_states, batches = zip(
            *[part.sample(own, key) for part, own, key in zip(self.parts, state.parts, keys)], strict=True
        )
        steps, memory = zip(*[batch.trajectory for batch in batches], strict=True)
        trajectory = Trajectory(_join(steps, axis=1), _join(memory, axis=0))
        indices = jnp.concatenate([batch.indices for batch in batches])
        return state._replace(parts=own_states), Batch(
            trajectory, indices, _probabilities([batch.probabilities for batch in batches])
        )

    def set_priorities(self, state: MixtureState, indices: ArrayTree, priorities: Array) -> MixtureState:
        own_states, start = [], 0
        for part, own in zip(self.parts, state.parts):
            share = slice(start, start + part.spec.batch_size_per_device)
            own_states.append(part.set_priorities(own, indices[share], priorities[share]))
            start = share.stop
        return state._replace(parts=tuple(own_states))

    def retain(self, state: MixtureState) -> MixtureState:
        return state._replace(parts=tuple(part.retain(own) for part, own in zip(self.parts, state.parts)))

    def reshard(self, state: MixtureState, num_devices: int) -> MixtureState:
        parts = tuple(part.reshard(own, num_devices) for part, own in zip(self.parts, state.parts))
        return MixtureState(parts, jax.tree.map(lambda leaf: leaf[:1].repeat(num_devices), state.credit))

    def size(self, state: MixtureState) -> Array:
        """A transition counts for every store that holds it."""
        return sum(part.size(own) for part, own in zip(self.parts, state.parts))


def _join(trees: tuple[ArrayTree, ...], axis: int) -> ArrayTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *trees)


def _probabilities(within: list[Array]) -> Array:
    """P(i) = Pⱼ(i) nⱼ / Σₖ nₖ of sequence i in store j, where nⱼ = E[1 / Pⱼ] is the number of sequences in it.

    The mean of 1 / P is then that of any store: at β = 1, importance weights leave the shares as they are.
    """
    counts = [jnp.mean(1.0 / probabilities) for probabilities in within]
    return jnp.concatenate([probabilities * count for probabilities, count in zip(within, counts)]) / sum(counts)
