import numpy as np
import pytest

from podracer.analysis.curves import check_x, differing_keys, group, read_runs, scores
from podracer.conversion import ConfigError
from tests.analysis.folders import write_run


def test_runs_are_found_once_and_below_folders(tmp_path):
    write_run(tmp_path / "a" / "0")
    write_run(tmp_path / "a" / "1", seed=1)
    runs = read_runs([tmp_path, tmp_path / "a" / "1"])
    assert sorted(logged.run.seed for logged in runs) == [0, 1]
    with pytest.raises(FileNotFoundError, match="no run in or below"):
        (tmp_path / "empty").mkdir()
        read_runs([tmp_path / "empty"])


def test_D05_a_curve_has_the_points_of_its_own_kind_only(tmp_path):
    (logged,) = read_runs([write_run(tmp_path / "r", points=[(100, 5.0), (300, 7.0)], train_rows=3)])
    np.testing.assert_array_equal(logged.curve("episode_return").x, [100, 300])
    np.testing.assert_array_equal(logged.curve("episode_return").y, [5, 7])
    np.testing.assert_array_equal(logged.curve("episode_return", x="wall_seconds").x, [1, 3])
    np.testing.assert_allclose(logged.curve("episode_return", x="usd", usd_per_hour=7.2).x, [0.002, 0.006])
    np.testing.assert_array_equal(logged.curve("episode_return", kind="train", x="agent_updates").x, [2, 4, 6])
    assert logged.curve("nothing").x.size == 0


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path):
    folder = write_run(tmp_path / "r")
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind": "evaluation", "env_st')
    (logged,) = read_runs([folder])
    assert len(logged.rows) == 2


def test_groups_are_made_by_settings(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"ppo{seed}", seed=seed)
        write_run(tmp_path / f"dqn{seed}", seed=seed, agent="dqn", learning_rate=0.1)
    runs = read_runs([tmp_path])
    assert {label: len(members) for label, members in group(runs, ["agent.name"]).items()} == {"dqn": 2, "ppo": 2}
    assert list(group(runs, ["agent.name", "agent.learning_rate"])) == [
        "dqn, agent.learning_rate=0.1",
        "ppo, agent.learning_rate=0.001",
    ]
    assert list(group(runs, [])) == ["all runs"]
    assert differing_keys(runs) == ["agent.learning_rate", "agent.name"]
    assert scores(group(runs, ["agent.name"])) == {
        "dqn": {"gymnax/CartPole-v1": [2, 2]},
        "ppo": {"gymnax/CartPole-v1": [2, 2]},
    }
    with pytest.raises(ConfigError, match=r"agent.lerning_rate.*agent.learning_rate"):
        group(runs, ["agent.lerning_rate"])


def test_axes_are_checked():
    with pytest.raises(ConfigError, match="--x steps is none of env_steps"):
        check_x("steps", None)
    with pytest.raises(ConfigError, match="--usd-per-hour"):
        check_x("usd", None)
