"""A headless Chromium, driven by its DevTools protocol: what a page asks for, complains of and looks like."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import websocket

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_SECONDS = 60


def find_browser() -> str:
    """The browser's path; skips the test without one, but fails it under continuous integration."""
    for name in _NAMES:
        if path := shutil.which(name):
            return path
    reason = f"none of {', '.join(_NAMES)} is installed; on Debian: apt-get install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Browser:
    """One page at a time, from a new profile in `folder`."""

    def __init__(self, path: str, folder: Path):
        self.requests: list[str] = []  # addresses that the page asked for, but itself and what it carries along
        self.complaints: list[str] = []  # errors and warnings in its console
        self._numbers = itertools.count(1)
        command = [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        command += ["--remote-allow-origins=*", "--no-first-run", "--disable-dev-shm-usage"]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={folder}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._socket = websocket.create_connection(self._debugger(folder), timeout=_TIMEOUT_SECONDS)
        except BaseException:
            self._process.kill()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(_TIMEOUT_SECONDS)

    def open(self, page: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Loads a page as a screen of so many CSS pixels shows it, and forgets the one before."""
        self.requests, self.complaints = [], []
        # As a phone does: a page that is wider than its screen is not made to fit.
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._send("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._address = page.resolve().as_uri()
        self._loaded = False
        self._send("Page.navigate", url=self._address)
        while not self._loaded:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self._send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, out: Path) -> None:
        """The whole page as PNG."""
        answer = self._send("Page.captureScreenshot", captureBeyondViewport=True)
        out.write_bytes(base64.b64decode(answer["data"]))

    def _debugger(self, folder: Path) -> str:
        ends = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                port = (folder / "DevToolsActivePort").read_text(encoding="utf-8").split()[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                    pages: Sequence[dict[str, Any]] = json.load(answer)
                return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            except (OSError, IndexError, StopIteration):
                if time.monotonic() > ends or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := self._receive()).get("id") != number:
            pass
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv())
        what = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                url = what["request"]["url"]
                if url != self._address and not url.startswith(("data:", "blob:")):
                    self.requests.append(url)
            case "Runtime.consoleAPICalled" if what["type"] in ("error", "warning", "assert"):
                self.complaints.append(" ".join(str(part.get("value", part)) for part in what["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(what["exceptionDetails"]["text"])
            case "Log.entryAdded" if what["entry"]["level"] in ("error", "warning"):
                self.complaints.append(what["entry"]["text"])
        return message
