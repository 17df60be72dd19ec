"""`podracer plan --calibrate`: measures, and shows what would be fastest."""

import json
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from podracer.calibration import report
from podracer.calibration.calibrate import calibrate
from podracer.config import Config


def run(config: Config, overrides: Sequence[str], seconds: float, as_json: bool) -> int:
    """Runs the command on the devices that are there; returns the exit status."""
    console, started = Console(stderr=True), time.monotonic()
    with console.status("calibrating") as status:

        def tell(what: str) -> None:
            text = f"{time.monotonic() - started:3.0f} s  measuring {what}"
            if console.is_terminal:
                status.update(text)
            else:
                print(text, file=sys.stderr, flush=True)

        calibration = calibrate(config, seconds, tell)
    if as_json:
        print(json.dumps(report.to_json(calibration, overrides), indent=2))
        return 0
    # Into a file or a pipe whole: there is no width to fit in.
    Console(width=None if sys.stdout.isatty() else 200).print(report.to_table(calibration))
    print(report.to_text(calibration, overrides))
    return 0
