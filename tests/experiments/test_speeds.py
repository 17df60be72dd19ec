"""Studies of speed: they compose and divide, their figures count right, and one runs from start to end."""

import dataclasses
import importlib
import json

import numpy as np
import pytest

from experiments import speeds
from experiments.learning import main
from experiments.plot import draw
from podracer import api, load_config

STUDIES = {
    name: importlib.import_module(f"experiments.{name}").STUDY
    for name in (
        "anakin_scaling",
        "sebulba_batch",
        "sebulba_replicas",
        "device_split",
        "actor_threads",
        "policy_lag",
        "network_or_batch",
    )
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_divides_over_its_devices(name):
    for variant in STUDIES[name].variants:
        config = load_config(variant.overrides)
        devices = config.mesh.emulated_devices or 1
        there = ["topology.hosts=1", f"topology.devices_per_host={devices}"]
        plan = api.make_plan(load_config([*variant.overrides, *there]))
        assert plan.updates > 10
        assert set(plan.actor_ids) | set(plan.learner_ids) == set(range(devices))  # none is idle


@pytest.mark.parametrize("name", STUDIES)
def test_variants_are_told_apart(name):
    variants = STUDIES[name].variants
    assert len({variant.label for variant in variants}) == len({variant.overrides for variant in variants})
    assert len({variant.label for variant in variants}) == len(variants)
    if variants[0].at is not None:
        assert len({(variant.series, variant.at) for variant in variants}) == len(variants)


def _run(rate, *, returns=(0.0, 10.0), lag=1.0):
    return {
        "speed": {"steps_per_second": rate, "steps_per_cpu_second": rate / 4},
        "training": {"env_steps": [100, 200], "episode_return": list(returns), "episodes": [100, 100]},
        "last_tenth_return": returns[-1],
        "policy_lag_mean": lag,
        "shares_of_time": {"learner waiting": 0.25},
        "load_average": [1.0, 2.5],
    }


def _result(at=(1, 2), threshold=5.0):
    first = [_run(100.0), _run(300.0), _run(200.0, returns=(0.0, 4.0))]
    variants = [
        {"label": label, "series": "s", "at": place, "runs": runs}
        for label, place, runs in zip("ab", at, (first, [_run(400.0)]))
    ]
    return {"title": "A study", "varied": "devices", "threshold": threshold, "variants": variants}


def test_a_table_gives_medians_over_runs():
    result = _result()
    assert speeds.rates(result["variants"][0], "cpu_second") == [25.0, 75.0, 50.0]
    result["variants"].append({"label": "nothing yet", "series": "s", "at": 3, "runs": []})
    header, rule, a, b = speeds.table(result)
    assert header.startswith("| variant | steps/s") and "steps to 5 " in header and rule.count("---") == 10
    assert a == "| a | 200 (100 to 300) | 1.00 | 50 | 1.00 | 10.0 | 150 (2 of 3) | 1.00 | 25% | 1.0 to 2.5 |"
    assert b == "| b | 400 (400 to 400) | 2.00 | 100 | 2.00 | 10.0 | 150 (1 of 1) | 1.00 | 25% | 1.0 to 2.5 |"


def test_a_few_episodes_reach_no_threshold():
    training = {
        "env_steps": [100, 200, 300, 400, 500],
        "episode_return": [9.0, 0.0, 9.0, 1.0, 3.0],
        "episodes": [2, 98, 10, 90, 100],
    }
    # Over the last hundred episodes and more: 18 / 100 at 200, 90 / 108 at 300, 180 / 100 at 400, 300 / 100 at 500.
    assert speeds.steps_to(training, 2.4) == pytest.approx(450)
    assert speeds.steps_to(training, 0.18) == 200
    assert speeds.steps_to(training, 4.0) is None
    assert speeds.steps_to({name: [] for name in training}, 1.0) is None


@pytest.mark.parametrize("at", [(1, 2), (None, None)], ids=["numbers", "names"])
def test_a_figure_of_speeds_and_returns(tmp_path, at):
    from matplotlib import pyplot as plt

    draw(_result(at), tmp_path / "study.png")
    panels = np.array_split(plt.imread(tmp_path / "study.png")[..., :3], 3, axis=1)
    # All panels have colour in them, not only black and grey.
    assert all(np.ptp(panel, axis=-1).max() > 0.3 for panel in panels)
    assert not plt.get_fignums()


def test_a_study_of_speed_from_start_to_end(tmp_path, monkeypatch, capsys):
    study = STUDIES["device_split"]
    variants = tuple(
        dataclasses.replace(variant, overrides=(*variant.overrides, "total_env_steps=40_000"))
        for variant in study.variants[:2]
    )
    arguments = ["device_split", "--seeds", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    main({"tiny": dataclasses.replace(study, variants=variants)})
    result = json.loads((tmp_path / "tiny.json").read_text())
    for variant in result["variants"]:
        (run,) = variant["runs"]
        assert run["status"] == "completed" and len(run["devices"]) == 8
        assert speeds.rates(variant)[0] > 0 and speeds.rates(variant, "cpu_second")[0] > 0
        assert len(run["load_average"]) == 2
        assert run["shares_of_time"]["learner waiting"] > 0
    assert (tmp_path / "tiny.png").exists()
    assert "| 1 act, 7 learn |" in capsys.readouterr().out
