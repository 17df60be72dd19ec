"""The studies compose, the script runs one from start to end, and knows what it has run."""

import json
import time

import pytest

from experiments import learning
from experiments.studies import STUDIES, Study, Variant
from podracer.config import load_config

_TINY = Study(
    title="A tiny study",
    variants=(
        Variant(
            label="ppo",
            overrides=(
                "env=probe",
                "env.num_envs=8",
                "agent.unroll_length=4",
                "agent.num_epochs=1",
                "agent.num_minibatches=1",
                "total_env_steps=64",
                "evaluation.num_evaluations=2",
                "evaluation.num_episodes=4",
            ),
        ),
    ),
    threshold=1.0,
)


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_of_a_study_composes(name):
    for variant in STUDIES[name].variants:
        load_config(variant.overrides)


def test_one_preset_of_an_agent_serves_both_runners():
    for name in ("cartpole", "catch"):
        presets = [variant.overrides[0] for variant in STUDIES[name].variants]
        assert presets[::2] == presets[1::2] == ["experiment=ppo", "experiment=impala", "experiment=pqn"]


def test_a_study_keeps_every_seed_and_runs_none_twice(tmp_path):
    learning.run_study("tiny", _TINY, tmp_path, num_seeds=1)
    first = json.loads((tmp_path / "tiny.json").read_text())["variants"][0]["runs"]
    learning.run_study("tiny", _TINY, tmp_path, num_seeds=9, only="another variant")
    learning.run_study("tiny", _TINY, tmp_path, num_seeds=2)
    result = json.loads((tmp_path / "tiny.json").read_text())
    runs = result["variants"][0]["runs"]
    assert runs[0] == first[0]
    assert [run["seed"] for run in runs] == [0, 1]
    assert (tmp_path / "tiny.png").exists()
    for run in runs:
        # The probe gives 1 an episode, whatever is done: the threshold itself.
        assert run["value"] == run["final_return"] == 1.0
        assert run["reached"] is True
        assert run["evaluation"]["episode_return"] == [1.0, 1.0]
        assert run["training"]["env_steps"][-1] == run["env_steps"]
        assert f"seed={run['seed']}" in run["command"]


def test_runs_are_known_by_their_overrides():
    run = {"seed": 0, "value": 1.0}
    known = learning.known_runs({"variants": [{"overrides": "a=1", "runs": [run]}]})
    variants = tuple(Variant(label=text, overrides=(text,)) for text in ("a=1", "a=2"))
    described = learning.describe("study", Study(title="", variants=variants), known)
    assert [variant["runs"] for variant in described["variants"]] == [[run], []]


def _rows(*rows):
    return [dict(zip(("env_steps", "episodes", "episode_return"), row)) for row in rows]


def test_mean_returns_count_every_episode_once():
    training = _rows((10, 100, 0.0), (90, 50, 7.0), (95, 1, 10.0), (100, 3, 20.0), (101, 0, None))
    # (1·10 + 3·20) / 4
    assert learning.mean_return(training, 90) == 17.5
    assert learning.mean_return(training, 101) is None


def test_thinned_curves_join_neighbouring_chunks():
    training = _rows((10, 1, 10.0), (20, 3, 20.0), (30, 0, None), (40, 1, 5.0), (50, 1, 7.0))
    curve = learning.thinned(training, max_points=2)
    assert curve == {"env_steps": [20, 50], "episode_return": [17.5, 6.0], "episodes": [4, 2]}
    empty = {"env_steps": [], "episode_return": [], "episodes": []}
    assert learning.thinned(_rows((10, 0, None)), max_points=2) == empty


def test_a_time_limit_interrupts_and_is_lifted():
    with pytest.raises(KeyboardInterrupt), learning.time_limit(1):
        time.sleep(30)
    with learning.time_limit(None):
        pass


@pytest.mark.parametrize(
    ("status", "out_of_time", "accepted"),
    [
        ("completed", False, True),
        ("interrupted", True, True),
        ("interrupted", False, False),
        ("failed", False, False),
        ("failed", True, False),
    ],
)
def test_only_whole_runs_are_results(tmp_path, status, out_of_time, accepted):
    result = {"status": status, "wall_seconds": 5.0, "env_steps": 10, "final_return": None}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "provenance.json").write_text(json.dumps({"command": "podracer train", "folder": "here"}))
    (tmp_path / "metrics.jsonl").write_text("")
    study = Study(title="", variants=())
    if accepted:
        assert learning.summarise(tmp_path, study, 3, out_of_time=out_of_time)["seed"] == 3
    else:
        with pytest.raises(RuntimeError, match="seed 3"):
            learning.summarise(tmp_path, study, 3, out_of_time=out_of_time)


def test_a_study_ends_its_runs_when_their_time_is_up():
    endless = (*_TINY.variants[0].overrides, "total_env_steps=1_000_000_000", "evaluation.num_evaluations=0")
    study = Study(title="", variants=(), measure="last_tenth", max_seconds=5)
    run = learning.run_seed(study, Variant(label="ppo", overrides=endless), 0)
    assert run["status"] == "interrupted"
    assert run["reached"] is None
