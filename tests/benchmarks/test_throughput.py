"""The throughput benchmark from its command line to its JSON, as short as it can be."""

import json
from pathlib import Path

import pytest

from benchmarks import throughput
from benchmarks.cases import CASES, LEARNER_CASES
from podracer.calibration.steady import Piece
from podracer.config import load_config


def test_a_case_is_measured_beside_its_floors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = ("agent.unroll_length=4", "env.num_envs=8", "network.hidden_sizes=[8]", "mesh.learner=1")
    small += ("agent.num_epochs=1", "agent.num_minibatches=2")
    case = CASES["ppo-anakin-catch"]
    monkeypatch.setitem(CASES, "tiny", throughput.Case((*case.overrides, *small)))
    monkeypatch.setitem(LEARNER_CASES, "tiny-learner", CASES["tiny"])
    out = tmp_path / "results" / "throughput.json"
    throughput.main(["--cases", "tiny,tiny-learner", "--repeats", "2", "--seconds", "0.05", "--out", str(out)])
    result = json.loads(out.read_text())["cases"]["tiny"]
    assert 0 < result["steps_per_second_min"] <= result["steps_per_second"] <= result["steps_per_second_max"]
    floors = result["floors"]
    assert 0 < floors["combined"] < min(floors["environment"], floors["acting"], floors["gradient"])
    assert result["fraction_of_combined_floor"] == pytest.approx(result["steps_per_second"] / floors["combined"])
    learner = json.loads(out.read_text())["cases"]["tiny-learner"]
    assert learner["ratio"] == pytest.approx(learner["inside_us"] / learner["outside_us"])


def test_an_unknown_case_is_refused_by_name(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        throughput.main(["--cases", "ppo-anakin-cartpol"])
    assert "there is no case ppo-anakin-cartpol" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*CASES, *LEARNER_CASES])
def test_every_case_is_a_valid_configuration(name: str):
    load_config({**CASES, **LEARNER_CASES}[name].overrides)


def test_rates_are_summarised_by_their_median():
    pieces = [Piece(100, 1.0, 2.0), Piece(300, 1.0, 2.0), Piece(800, 1.0, 2.0)]
    assert throughput.summarise(pieces) == {
        "steps_per_second": 300,
        "steps_per_second_min": 100,
        "steps_per_second_max": 800,
        "steps_per_cpu_second": 150,
    }
