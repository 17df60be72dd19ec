"""The calibration benchmark from its command line to its JSON, as short as it can be."""

import json
from pathlib import Path

import pytest

from benchmarks import calibration
from benchmarks.cases import CALIBRATION_CASES, Case
from podracer.config import load_config


def test_a_prediction_is_compared_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = ("agent.unroll_length=4", "env.num_envs=8", "network.hidden_sizes=[8]", "agent.num_minibatches=1")
    # All devices in one place: of several, one number has to divide another.
    small += ("mesh.actor_ids=[0]", "mesh.learner_ids=[0]")
    monkeypatch.setitem(CALIBRATION_CASES, "tiny", Case((*CALIBRATION_CASES["pqn-sebulba-catch"].overrides, *small)))
    out = tmp_path / "results" / "calibration.json"
    calibration.main(["--cases", "tiny", "--repeats", "2", "--seconds", "0.1", "--out", str(out)])
    result = json.loads(out.read_text())["cases"]["tiny"]
    assert len(result["pairs"]) == 2
    for pair in result["pairs"]:
        assert pair["error"] == pytest.approx(pair["predicted"] / pair["measured"] - 1)
        seconds = pair["seconds"]
        bound = max(seconds["actors"], seconds["learner"], seconds["processors"])
        assert pair["predicted"] <= 32 / bound


def test_an_error_counts_in_both_directions():
    def pair(predicted: float, measured: float) -> dict[str, float]:
        error = predicted / measured - 1
        return {"predicted": predicted, "measured": measured, "error": error, "processor_error": 0.0}

    summary = calibration.summarise([pair(90, 100), pair(130, 100), pair(60, 100)])
    assert summary["error"] == pytest.approx(-0.1)
    assert summary["worst_error"] == pytest.approx(-0.4)
    assert summary["within"]
    assert not calibration.summarise([pair(70, 100)])["within"]


@pytest.mark.parametrize("name", CALIBRATION_CASES)
def test_every_case_is_a_valid_configuration(name: str):
    load_config(CALIBRATION_CASES[name].overrides)
