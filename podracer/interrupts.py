"""The end of a run that is asked for: by Ctrl-C, or by SIGTERM from who takes the machine away."""

import _thread
import signal
import threading
from types import FrameType
from typing import Any

# From the request to the end of the update in hand; saving and stopping the threads come on top.
_GRACE_SECONDS = 5.0


class Interrupts:
    """Within its `with` block, a first signal asks the run to stop, and a second one ends it at once.

    Ending is a `KeyboardInterrupt` in the main thread. It also comes if the update in hand does not end in
    time, or at the first signal while there is nothing in hand. Outside of the main thread nothing is changed.
    """

    def __init__(self):
        self.requested = False
        self.has_work = False
        """Whether there is something worth finishing; set by the run loop."""
        self._timer: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            # What is ignored stays so: a shell's job in the background is not to end with the one in front.
            heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(self, *error) -> None:
        self.arrived()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def arrived(self) -> None:
        """Says that what was in hand has ended: there is time to save it."""
        if self._timer is not None:
            self._timer.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.has_work:
            self.requested = True
            raise KeyboardInterrupt
        self.requested = True
        self._timer = threading.Timer(_GRACE_SECONDS, _thread.interrupt_main)
        self._timer.daemon = True
        self._timer.start()
