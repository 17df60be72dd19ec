"""TensorBoard: event files in the run's folder."""

import time
from pathlib import Path

from podracer.logging import Row, stamped_numbers


class TensorBoard:
    """One event a row, tags `train/...` and `evaluation/...`, over `env_steps`.

    The event file is opened by the first row, since importing TensorBoard takes half a second. It is
    a plain file rather than TensorBoard's own `EventFileWriter`, which imports TensorFlow where that
    is installed.
    """

    def __init__(self, folder: Path, resume_env_steps: int | None = None):
        """Args: folder: of the run; resume_env_steps: rows behind it are purged; None keeps all."""
        self._folder = folder
        self._resume_env_steps = resume_env_steps
        self._writer = None

    def write(self, row: Row) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._writer = _open_events(self._folder, self._resume_env_steps)
        values = {key: value for key, value in stamped_numbers(row).items() if key != "env_steps"}
        summary = Summary(
            value=[Summary.Value(tag=f"{row.kind}/{key}", simple_value=value) for key, value in values.items()]
        )
        event = Event(wall_time=time.time(), step=row.env_steps, summary=summary)
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self, status: str) -> None:
        del status
        if self._writer is not None:
            self._writer.close()


def _open_events(folder: Path, resume_env_steps: int | None):
    """Begins a file of events, behind those that are there."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    # TensorBoard reads the files of a folder in the order of their names. The clock of the machine that a
    # run goes on on may be behind that of the one before.
    earlier = [path.name.split(".")[3:5] for path in folder.glob("events.out.tfevents.*")]
    seconds = max([int(time.time()), *(int(stamp) for stamp, _ in earlier)])
    writer = RecordWriter(open(folder / f"events.out.tfevents.{seconds:010d}.{len(earlier):04d}", "xb"))  # noqa: SIM115
    # With this version TensorBoard keeps events whose step is below the one before, and purges by START.
    writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    if resume_env_steps is not None:
        start = Event(wall_time=time.time(), step=resume_env_steps + 1, session_log=SessionLog(status=SessionLog.START))
        writer.write(start.SerializeToString())
    return writer
