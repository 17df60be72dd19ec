import json
import os
import subprocess
import sys
import time

import pytest
import yaml

from podracer import cli
from podracer.runs import age, find_runs

RESULT = {"status": "completed", "env_steps": 2**31 + 5, "final_return": 195.5, "best_return": 200.0}


@pytest.fixture
def make_run(tmp_path):
    def make(name, *, rows=(), result=None, idle_seconds=0, started="2026-01-02T03:04:05+00:00", **changes):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = {
            "seed": 3,
            "agent": {"name": "ppo"},
            "runner": {"name": "anakin"},
            "env": {"suite": "gymnax", "id": "CartPole-v1", "make": None},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config | changes))
        (folder / "provenance.json").write_text(json.dumps({"started": started}))
        if rows:
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        then = time.time() - idle_seconds
        for path in folder.iterdir():
            os.utime(path, (then, then))
        if result is not None:
            (folder / "result.json").write_text(json.dumps(result))
            os.utime(folder / "result.json", (then, then))
        return folder

    return make


def row(kind, env_steps, **values):
    return {"kind": kind, "env_steps": env_steps, "updates": env_steps, "wall_seconds": 1.0, **values}


ROWS = [
    row("train", 100, episode_return=20.0),
    row("evaluation", 100, episode_return=150.0),
    row("evaluation", 200, episode_return=120.0),
    row("train", 300, episode_return=30.0),
    row("train", 400),
]


def test_a_run_that_has_ended_is_told_of_by_its_result(make_run, tmp_path):
    folder = make_run("runs/first", rows=ROWS, result=RESULT)
    (run,) = find_runs(tmp_path)
    assert run.folder == folder
    assert (run.agent, run.env, run.runner, run.seed) == ("ppo", "gymnax/CartPole-v1", "anakin", 3)
    assert (run.status, run.env_steps) == ("completed", 2_147_483_653)
    assert (run.final_return, run.latest_return, run.best_return) == (195.5, 195.5, 200.0)
    assert run.started == 1767323045  # 2026-01-02 03:04:05 UTC


@pytest.mark.parametrize(("idle_seconds", "status"), [(0, "running"), (200, "running"), (400, "died")])
def test_a_run_without_a_result_runs_or_has_died(make_run, tmp_path, idle_seconds, status):
    make_run("first", rows=ROWS, idle_seconds=idle_seconds)
    (run,) = find_runs(tmp_path)
    assert (run.status, run.env_steps) == (status, 400)
    assert (run.final_return, run.latest_return, run.best_return) == (None, 120.0, 150.0)


def test_a_run_that_compiles_has_nothing_to_tell_yet(make_run, tmp_path):
    make_run("first")
    (run,) = find_runs(tmp_path)
    assert run.status == "running"
    assert (run.env_steps, run.final_return, run.latest_return, run.best_return) == (None,) * 4


def test_D07_a_run_that_goes_on_is_not_told_of_by_its_old_result(make_run, tmp_path):
    folder = make_run("first", rows=ROWS, result=RESULT | {"status": "interrupted"}, idle_seconds=400)
    assert find_runs(tmp_path)[0].status == "interrupted"
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(row("train", 500)) + "\n")
    (run,) = find_runs(tmp_path)
    assert (run.status, run.env_steps, run.final_return) == ("running", 500, None)


def test_without_an_evaluation_the_return_is_that_of_training(make_run, tmp_path):
    make_run("first", rows=[row("train", 100, episode_return=20.0), row("train", 200)])
    (run,) = find_runs(tmp_path)
    assert (run.latest_return, run.best_return) == (20.0, None)


def test_of_a_long_metrics_file_only_the_end_is_read(make_run, tmp_path):
    rows = [row("evaluation", n, episode_return=1000.0 - n) for n in range(2000)]
    folder = make_run("first", rows=rows)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "env_st')  # a row in the making
    (run,) = find_runs(tmp_path)
    assert (run.env_steps, run.latest_return) == (1999, -999.0)
    assert run.best_return is None  # it may lie before what was read


def test_damaged_and_foreign_files_cost_no_other_run(make_run, tmp_path):
    make_run("whole", rows=ROWS, result=RESULT)
    damaged = make_run("damaged", rows=ROWS)
    for name, text in {
        "result.json": '{"status": "com',
        "metrics.jsonl": "\0\0\0\n[1]\n",
        "provenance.json": "",
    }.items():
        (damaged / name).write_text(text)
    for name, text in {"other": "defaults: [agent]", "empty": "", "broken": "a: [", "list": "- 1"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    assert {run.folder.name: run.status for run in find_runs(tmp_path)} == {"whole": "completed", "damaged": "running"}


def test_the_parts_of_sweeps_and_the_users_own_parts_are_found_oldest_first(make_run, tmp_path):
    make_run("multirun/b/1", started="2026-01-03T00:00:00+00:00", agent={"name": "custom", "make": "mine:Agent"})
    make_run("multirun/b/0", started="2026-01-02T00:00:00+00:00", env={"suite": "x", "id": None, "make": "mine:env"})
    make_run("a", started="2026-01-04T00:00:00+00:00", env={"suite": "catch", "id": None, "make": None})
    make_run(".hidden/a")
    make_run("a/checkpoints/a")  # within a run
    runs = find_runs(tmp_path)
    assert [run.folder.relative_to(tmp_path).as_posix() for run in runs] == ["multirun/b/0", "multirun/b/1", "a"]
    assert [(run.agent, run.env) for run in runs] == [
        ("ppo", "mine:env"),
        ("mine:Agent", "gymnax/CartPole-v1"),
        ("ppo", "catch"),
    ]


def test_the_command_prints_a_table_or_json(make_run, tmp_path, capsys):
    make_run("runs/[first]", rows=ROWS, result=RESULT)
    assert cli.main(["runs", str(tmp_path)]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["run", "agent", "env", "runner"]
    assert line.split()[:8] == [
        "runs/[first]",
        "ppo",
        "gymnax/CartPole-v1",
        "anakin",
        "3",
        "completed",
        "2.15B",
        "195.5",
    ]

    assert cli.main(["runs", str(tmp_path), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["folder"] == str(tmp_path / "runs/[first]")
    assert (run["status"], run["env_steps"], run["best_return"]) == ("completed", 2_147_483_653, 200.0)
    assert run["age_seconds"] == pytest.approx(time.time() - run["started"], abs=60)


def test_a_folder_without_runs_is_no_error_but_a_missing_one_is(tmp_path, capsys):
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert "no runs below" in capsys.readouterr().out
    assert cli.main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert cli.main(["runs", str(tmp_path / "missing")]) == 2
    assert "missing is no folder" in capsys.readouterr().err


def test_listing_runs_imports_neither_jax_nor_hydra(make_run, tmp_path):
    make_run("first", rows=ROWS)
    program = """
import sys
from podracer import cli
assert cli.main(["runs", sys.argv[1]]) == 0
print([name for name in ("jax", "hydra", "omegaconf", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_ages_have_one_unit():
    assert [age(seconds) for seconds in (-1, 42, 1020, 18720, 267840)] == ["0 s", "42 s", "17 min", "5.2 h", "3.1 d"]
