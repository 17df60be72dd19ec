"""rejax beside us: a process of its own, with its own packages, that trains a piece at a time."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from podracer.calibration.steady import Piece

# rejax 0.1.3 is written for the interface of gymnax 0.0.
_REQUIREMENTS = ("rejax==0.1.3", "gymnax==0.0.9")
_SCRIPT = Path(__file__).with_name("peer_rejax.py")
# So many environment steps a call of its compiled program make the call's own cost negligible.
_STEPS_PER_CALL = 1 << 16
_STEPS_PER_UPDATE_AND_ENV = 128


class PeerError(RuntimeError):
    """The peer cannot be installed or run; the message says what it said."""


def make_environment(folder: Path) -> Path:
    """Makes a virtual environment with rejax, unless the folder holds one, and returns its interpreter.

    Raises:
      PeerError: it cannot be installed.
    """
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    if not installed.exists():
        _call([sys.executable, "-m", "venv", str(folder)])
        _call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_REQUIREMENTS])
        installed.touch()
    return python


class Peer:
    """rejax's PPO on CartPole in a process of its own; compiled and warmed up when it is made."""

    def __init__(self, python: Path, num_envs: int):
        """Starts the process.

        Raises:
          PeerError: it ends before it has compiled.
        """
        updates = max(1, _STEPS_PER_CALL // (_STEPS_PER_UPDATE_AND_ENV * num_envs))
        command = [str(python), str(_SCRIPT), "--num-envs", str(num_envs), "--updates", str(updates)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=_environ()
        )
        first = self._read()
        self.versions: dict[str, str] = first["versions"]
        self.compile_seconds: float = first["compile_seconds"]

    def train(self, seconds: float) -> Piece:
        """Trains for at least so many seconds of wall time.

        Raises:
          PeerError: the process has ended.
        """
        try:
            self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said is read below
        return Piece(**self._read())

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> Any:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._errors.seek(0)
        raise PeerError(_tail(self._errors.read()))


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_environ())
    if done.returncode:
        raise PeerError(_tail(done.stdout + done.stderr))


def _environ() -> dict[str, str]:
    """This process's environment without what would lead another interpreter to this one's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-5:])
