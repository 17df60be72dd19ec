"""What to say when a number does not divide: the numbers, the keys, and the nearest values that work."""

import itertools
from collections.abc import Mapping, Sequence


class PlanError(ValueError):
    """A configuration that cannot be planned. The message ends with the repairs, if there are any.

    Attributes:
      repairs: settings by key; each of them alone makes the failing check pass.
    """

    def __init__(self, problem: str, repairs: Sequence[Mapping[str, int]] = ()):
        super().__init__(f"{problem}; use {_describe(problem, repairs)}" if repairs else problem)
        self.repairs = tuple(dict(repair) for repair in repairs)


def _describe(problem: str, repairs: Sequence[Mapping[str, int]]) -> str:
    groups = []
    for keys, group in itertools.groupby(repairs, key=tuple):
        if len(keys) == 1:
            groups.append(f"{keys[0]}=" + " or ".join(str(repair[keys[0]]) for repair in group))
        else:
            groups.append(" or ".join(" with ".join(f"{k}={v}" for k, v in repair.items()) for repair in group))
    text = ", or ".join(groups)
    subject = problem.split("=", 1)[0] + "="
    return text.removeprefix(subject) if len(groups) == 1 else text


def nearest_multiples(value: int, unit: int) -> list[int]:
    """The positive multiples of `unit` just below and just above `value`."""
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple > 0]


def nearest_divisors(value: int, near: int) -> list[int]:
    """The divisors of `value` just below and just above `near`."""
    divisors = [n for n in range(1, value + 1) if value % n == 0]
    return [n for n in divisors if n < near][-1:] + [n for n in divisors if n > near][:1]


def check_divides(value: int, by: int, value_key: str, by_key: str, *, things: str = "") -> None:
    """Checks that `value` can be shared out evenly.

    Args:
      value: what is shared out.
      by: among how many.
      value_key: the setting that `value` comes from.
      by_key: the setting that `by` comes from.
      things: what there are `by` of, such as "learner devices".

    Raises:
      PlanError: with both keys, and the nearest values of `value_key` that divide.
    """
    if value % by:
        shares = f"{by} {things} ({by_key}={by})" if things else f"{by_key}={by}"
        repairs = [{value_key: multiple} for multiple in nearest_multiples(value, by)]
        raise PlanError(f"{value_key}={value} does not divide over {shares}", repairs)
