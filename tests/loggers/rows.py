"""Rows for every logger: interleaved counters, an interruption, and values that are hard to keep."""

from pathlib import Path

from podracer.logging import Logger, Row

INTERLEAVED = [
    Row("train", 100, 2, 1.0, {"episode_return": 5.0}),
    Row("train", 120, 3, 1.5, {"policy_loss": 0.25}),
    Row("evaluation", 90, 1, 1.75, {"episode_return": 7.0}),
    Row("train", 140, 4, 2.0, {"episode_return": 6.0}),
]

# A run of eight updates. The first process is killed behind update 5, after a checkpoint of update 3.
RUN = [
    row
    for n in range(1, 9)
    for row in (
        Row("train", 10 * n, n, float(n), {"policy_loss": 0.5 * n}),
        *([Row("evaluation", 10 * n, n, n + 0.5, {"episode_return": float(n)})] if n % 2 == 1 else []),
    )
]
RESUME_UPDATES = 3
BEFORE_THE_KILL = [row for row in RUN if row.updates <= 5]
AFTER_THE_RESUME = [row for row in RUN if row.updates > RESUME_UPDATES]
TRAIN_STEPS = [10, 20, 30, 40, 50, 60, 70, 80]
EVALUATION_STEPS = [10, 30, 50, 70]

# 2^31 is 2,147,483,648 and 2^53 + 1 the first integer that no double holds.
LARGE = [Row("train", 2**31 - 64 + 64 * n, 2**31 + n, float(n), {"frames": 2**53 + n}) for n in range(1, 4)]

HARD = Row("train", 8, 1, 0.5, {"policy_loss": float("nan"), "kl": float("inf"), "value_loss": None})


def write_all(logger: Logger, rows: list[Row], status: str | None = "completed") -> None:
    """Writes rows; without a status the logger is left open, as by a process that was killed."""
    for row in rows:
        logger.write(row)
    if status is not None:
        logger.close(status)


def write_config(folder: Path, text: str = "seed: 3\nagent:\n  name: ppo\n  learning_rate: 0.0003\n") -> None:
    (folder / "config.yaml").write_text(text)
