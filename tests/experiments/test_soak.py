"""A short soak: the long one is `python experiments/soak.py`."""

import pytest

from experiments.soak import soak


@pytest.mark.parametrize("runner", ["anakin", "sebulba"])
def test_D01_a_killed_run_ends_like_an_undisturbed_one(tmp_path, runner):
    result = soak(runner, 1, 60_000, tmp_path)
    assert result.pop("kills") == 1 and result.pop("exit_status") == 0
    assert result.pop("updates") == [234, 234]
    assert result.pop("missing_or_differing_rows") == result.pop("more_rows") == 0
    assert result.pop("differing_arrays") == result.pop("differing_results") == []
