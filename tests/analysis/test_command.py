import json

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from podracer.analysis import export, plotting
from podracer.analysis.curves import group, read_runs
from podracer.analysis.plotting import Style
from podracer.cli import main
from podracer.conversion import ConfigError
from tests.analysis.folders import write_run


@pytest.fixture
def folder(tmp_path):
    for seed in range(5):
        for agent, gain in (("ppo", 1.0), ("dqn", 2.0)):
            points = [(100, 0.0), (200 + seed, gain * 25 * seed)]
            write_run(tmp_path / "runs" / f"{agent}{seed}", agent=agent, seed=seed, points=points)
    return tmp_path


def test_F08_a_figure_and_scores_of_a_folder(folder, capsys):
    out = folder / "curves.png"
    assert main(["plot", str(folder / "runs"), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert image.imread(out).std() > 0.05  # not blank
    rows = {line.split()[1]: line.split()[3:5] for line in text.splitlines() if line.startswith("gymnax")}
    assert rows == {"ppo,": ["5", "50"], "dqn,": ["5", "100"]}  # of 0, 25, 50, 75, 100, and of twice that
    assert "interquartile mean over runs (evaluation), 95% bootstrap intervals, not smoothed" in text
    assert "mixes" not in text


@pytest.mark.parametrize("smoothing", ["1", "1000"])
@pytest.mark.parametrize("statistic", ["iqm", "median"])
def test_the_title_lies_within_a_figure_of_one_panel(folder, monkeypatch, statistic, smoothing):
    extents = []

    def keep(figure, *args, **kwargs):
        figure.canvas.draw()
        extents.append((figure.get_tightbbox(), figure.bbox_inches))

    monkeypatch.setattr(Figure, "savefig", keep)
    options = ["--statistic", statistic, "--smooth", smoothing, "--out", str(folder / "out.png")]
    assert main(["plot", str(folder / "runs"), *options]) == 0
    ((needed, there),) = extents
    assert there.x0 <= needed.x0 and needed.x1 <= there.x1 and there.y0 <= needed.y0 and needed.y1 <= there.y1


def test_D08_D09_lines_are_of_what_all_runs_cover(folder):
    groups = group(read_runs([folder]), ["agent.name"])
    line = plotting.lines(groups, Style())["gymnax/CartPole-v1"]["ppo"]
    assert (line.x[0], line.x[-1], line.num_runs) == (100, 200, 5)  # the shortest run ends at 200
    assert line.estimate.low[-1] < line.estimate.value[-1] < line.estimate.high[-1]
    # At 200 the runs of 200 + s steps are at 25 s · 100 / (100 + s): 0, 24.75, 49.02, 72.8, 96.2.
    np.testing.assert_allclose(line.estimate.value[-1], (2500 / 101 + 5000 / 102 + 7500 / 103) / 3)


def test_one_run_has_no_interval(tmp_path):
    write_run(tmp_path / "r")
    line = plotting.lines(group(read_runs([tmp_path]), []), Style())["gymnax/CartPole-v1"]["all runs"]
    assert line.estimate.low is None
    np.testing.assert_allclose(line.estimate.value[[0, -1]], [1, 2])


def test_runs_that_differ_in_more_than_the_seed_are_told_of(tmp_path, capsys):
    write_run(tmp_path / "a", learning_rate=1e-3)
    write_run(tmp_path / "b", learning_rate=1e-2)
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "p.png")]) == 0
    assert "mixes runs that differ in agent.learning_rate: --group-by" in capsys.readouterr().out


def test_F08_exports(folder):
    groups = group(read_runs([folder]), ["agent.name"])
    export.write_rliable(groups, folder / "scores.npz")
    scores = np.load(folder / "scores.npz")
    np.testing.assert_array_equal(scores["ppo"], [[0], [25], [50], [75], [100]])  # [runs, tasks]
    assert scores["tasks"].tolist() == ["gymnax/CartPole-v1"]
    export.write_marl_eval(groups, folder / "marl.json")
    run = json.loads((folder / "marl.json").read_text())["gymnax"]["CartPole-v1"]["dqn"]["seed_1"]
    assert run["step_1"] == {"step_count": 201, "elapsed_time": 2.01, "episode_return": [50]}
    assert run["absolute_metrics"] == {"episode_return": [50]}


def test_rliable_has_no_place_for_a_run_that_is_missing(folder):
    write_run(folder / "more", agent="ppo", env="Acrobot-v1")
    with pytest.raises(ConfigError, match="'dqn' in every environment, but there are 0 in gymnax/Acrobot-v1, 5 in"):
        export.write_rliable(group(read_runs([folder]), ["agent.name"]), folder / "scores.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is no folder"),
        (["runs", "--y", "q_loss"], "none of 10 runs has 'q_loss' in its evaluation rows; there are env_steps"),
        (["runs", "--x", "time"], "--x time is none of env_steps"),
        (["runs", "--group-by", "agent.nmae"], "agent.name"),
    ],
)
def test_what_cannot_be_plotted_is_refused(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    assert main(["plot", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "plot.png").exists()
