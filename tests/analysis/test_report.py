import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from podracer.analysis import report
from podracer.analysis.command import compare
from podracer.analysis.comparison import duels, standings
from podracer.analysis.curves import group, read_runs
from podracer.analysis.plotting import Style
from podracer.conversion import ConfigError
from tests.analysis.folders import write_run


@pytest.fixture
def folder(tmp_path):
    for seed in range(4):
        write_run(tmp_path / f"ppo{seed}", seed=seed, points=[(100, 0.0), (200, 10.0 + seed)])
        write_run(tmp_path / f"dqn{seed}", agent="dqn", seed=seed, points=[(100, 0.0), (200, 20.0 + seed)])
    return tmp_path


def test_standings_are_by_return_and_say_when_a_threshold_was_reached(folder):
    groups = group(read_runs([folder]), ["agent.name"])
    best, other = standings(groups, "mean", threshold=13.0)["gymnax/CartPole-v1"]
    assert (best.group, other.group) == ("dqn", "ppo")
    assert best.final_return.value == 21.5 and other.final_return.value == 11.5
    # dqn with seed 0 rises from 0 at 100 to 20 at 200: 13 at 165 steps, 1.65 s. ppo reaches it with seed 3 alone.
    assert best.env_steps_to_threshold[0] == 165 and best.seconds_to_threshold[0] == 1.65
    assert other.env_steps_to_threshold == [None, None, None, 200]


def test_the_best_is_set_against_the_others(folder):
    (duel,) = duels(group(read_runs([folder]), ["agent.name"]), "mean")["gymnax/CartPole-v1"]
    assert (duel.better, duel.worse, duel.probability) == ("dqn", "ppo", 1.0)
    assert duel.difference.value == 10 and 0 < duel.difference.low < 10 < duel.difference.high


def test_shares_and_speed_are_of_training(tmp_path):
    run = write_run(tmp_path / "r")
    rows = [
        {
            "kind": "train",
            "env_steps": 100 * k,
            "updates": k,
            "wall_seconds": k,
            "train_seconds": 2.0,
            "act_seconds": 0.5,
        }
        for k in (1, 2, 3)
    ]
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    ((standing,),) = standings(group(read_runs([tmp_path]), [])).values()
    assert standing.shares == {"acting": 0.25}
    assert standing.steps_per_second == 50  # 200 steps in the 4 s after the first row
    assert standing.policy_lag_mean is None


def test_one_run_each_says_nothing(tmp_path):
    write_run(tmp_path / "a", points=[(100, 1.0), (200, 2.0)])
    write_run(tmp_path / "b", agent="dqn", points=[(100, 1.0), (200, 3.0)])
    tables = report.make_tables(group(read_runs([tmp_path]), ["agent.name"]), Style(), None)
    assert tables[1].rows == [["dqn", "ppo", "1", "-", "100%", "one run says nothing"]]


class Page(HTMLParser):
    """Checks that every element is closed, and collects what a page refers to."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.references = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else(folder):
    out = folder / "out"
    written = report.write(group(read_runs([folder]), ["agent.name"]), out, Style(usd_per_hour=3.6), threshold=15.0)
    assert {path.name for path in written} == {
        "report.md", "report.html", "return_env_steps.png", "return_seconds.png", "return_usd.png",
    }  # fmt: skip
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == [] and page.tags.count("svg") == 3 and page.tags.count("table") == 2
    assert all(reference.startswith("#") for reference in page.references)  # within the page
    assert not re.search(r"url\((?!#)", text) and "<script" not in text
    assert 'name="viewport"' in text
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert "| dqn | 4 | 21.5 |" in markdown and "![Return against cost](return_usd.png)" in markdown


def test_compare_reads_folders_and_makes_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    made = []

    def train(arguments):
        made.append(arguments)
        write_run(folder / "out/runs/0", agent="pqn")
        return 0

    assert compare(["agent=pqn", "seed=0,1", str(folder), "--out", "out", "--group-by", "agent.name"], train) == 0
    assert made == [["-m", "agent=pqn", "seed=0,1", "hydra.sweep.dir=out/runs", "resume=auto"]]
    assert "out/report.html" in capsys.readouterr().out
    assert "| pqn | 1 |" in (folder / "out/report.md").read_text()
    with pytest.raises(ConfigError, match="no run in or below"):
        (folder / "nothing").mkdir()
        compare(["nothing"], train)


def test_means_of_resamples_are_of_their_own_group():
    """The interval of a difference of constants is the difference."""
    from podracer.analysis.comparison import _difference

    result = _difference(np.full(3, 5.0), np.full(4, 2.0), "iqm", 100)
    assert result.value == result.low == result.high == 3.0
