"""Folders as runs leave them, without running anything."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml


def write_run(
    folder: Path,
    *,
    agent: str = "ppo",
    runner: str = "anakin",
    env: str = "CartPole-v1",
    seed: int = 0,
    points: Sequence[tuple[int, float]] = ((100, 1.0), (200, 2.0)),
    learning_rate: float = 1e-3,
    train_rows: int = 0,
) -> Path:
    """Writes config, metrics and result; evaluation rows at `(env_steps, return)`, a second for every 100 steps."""
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "agent": {"name": agent, "learning_rate": learning_rate},
        "runner": {"name": runner},
        "env": {"suite": "gymnax", "id": env, "make": None},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rows = [
        {"kind": "evaluation", "env_steps": x, "updates": x // 10, "wall_seconds": x / 100, "episode_return": y}
        for x, y in points
    ]
    rows += [
        {"kind": "train", "env_steps": k, "updates": k, "wall_seconds": k / 10, "agent_updates": 2, "episode_return": k}
        for k in range(1, train_rows + 1)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    result = {"status": "completed", "env_steps": points[-1][0], "final_return": points[-1][1], "best_return": None}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder
