"""A replay as plain Python lists: what the stores on the device are compared with."""

import itertools
from typing import NamedTuple

import numpy as np

from podracer.replay.base import ReplaySpec
from podracer.types import Step, StepType, TimeStep, Trajectory

FIRST, MID, LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)


class Record(NamedTuple):
    """One step of one environment; `number` is all that is observed."""

    number: int
    step_type: int
    reward: float
    discount: float


def make_streams(rng: np.random.Generator, num_envs: int, length: int) -> list[list[Record]]:
    """Random episodes of every kind of end: true, truncated, within the step, and restarts in their middle."""
    return [_stream(rng, env, length) for env in range(num_envs)]


def _stream(rng: np.random.Generator, env: int, length: int) -> list[Record]:
    records, kind = [], FIRST
    for t in range(length):
        previous = records[-1].step_type if records else LAST
        discount = 1.0
        if previous == LAST:
            kind = FIRST
        else:
            kind = rng.choice([MID, LAST, FIRST], p=[0.7, 0.2, 0.1])
            if kind == LAST or (kind == FIRST and rng.random() < 0.5):
                discount = float(rng.random() < 0.5) if kind == LAST else 0.0
        reward = 0.0 if kind == FIRST and discount else float(rng.integers(1, 9))
        records.append(Record(1000 * env + t, int(kind), reward, discount))
    return records


def to_trajectory(streams: list[list[Record]], start: int, unroll_length: int) -> Trajectory:
    """The unroll `[T+1, B]` from a time on; the actors' memory is the number of its first step."""
    rows = [[stream[t] for stream in streams] for t in range(start, start + unroll_length + 1)]

    def leaf(name: str, dtype: type) -> np.ndarray:
        return np.array([[getattr(record, name) for record in row] for row in rows], dtype)

    number = leaf("number", np.int32)
    timestep = TimeStep(leaf("step_type", np.int8), leaf("reward", np.float32), leaf("discount", np.float32), number)
    return Trajectory(Step(timestep, number + 1, {"extra": number + 2}), {"first": number[0]})


def is_transition(before: Record, after: Record) -> bool:
    joined = after.step_type == FIRST and after.discount != 0
    return before.step_type != LAST and not joined


class Oracle:
    """Keeps the newest `num_rows` steps of each environment."""

    def __init__(self, spec: ReplaySpec, num_rows: int, streams: list[list[Record]]):
        self.spec, self.num_rows, self.streams = spec, num_rows, streams
        self.written = 0

    def add(self) -> Trajectory:
        trajectory = to_trajectory(self.streams, self.written, self.spec.unroll_length)
        self.written += self.spec.unroll_length
        return trajectory

    @property
    def num_transitions(self) -> int:
        """Valid ones that were ever inserted, the last of each unroll among them."""
        return sum(is_transition(stream[t], stream[t + 1]) for stream in self.streams for t in range(self.written))

    def starts(self) -> list[int]:
        """The numbers of the steps that a sequence may start with, oldest first."""
        oldest = max(0, self.written - self.num_rows)
        newest = self.written - self.spec.sequence_length
        return [
            stream[t].number
            for t in range(oldest, newest + 1)
            for stream in self.streams
            if t % self.spec.sequence_period == 0 and self._is_start(stream[t : t + self.spec.sequence_length])
        ]

    def _is_start(self, records: list[Record]) -> bool:
        valid = [is_transition(*pair) for pair in itertools.pairwise(records)]
        return {"mask": valid[0], "reset": any(valid), "cut": all(valid)}[self.spec.episode_ends]

    def sequence(self, number: int) -> list[tuple[int, int, float, float]]:
        """`(number, step_type, reward, discount)` of each step of a sequence as it has to be read."""
        env, t = divmod(number, 1000)
        records = self.streams[env][t : t + self.spec.sequence_length]
        if self.spec.episode_ends != "mask":
            return [tuple(record) for record in records]
        kept = [records[0]]
        for before, after in itertools.pairwise(records):
            if not is_transition(before, after):
                break
            kept.append(after)
            if after.step_type != MID:
                break
        padding = (kept[-1].number, FIRST, 0.0, 1.0)
        return [tuple(record) for record in kept] + [padding] * (len(records) - len(kept))
