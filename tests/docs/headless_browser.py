"""A headless Chromium, driven through its debugging pipe: it opens pages and says what it has laid out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = ("chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
# All in one process, without a GPU: so it runs in containers too.
OPTIONS = (
    "--headless=shell", "--no-sandbox", "--no-zygote", "--single-process", "--in-process-gpu", "--use-gl=angle",
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip

# A browser reads commands from descriptor 3 and writes to 4; each message ends with a zero byte.
LAUNCH = """import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])"""


def find_browser() -> str | None:
    """Return the program that $TILEC_BROWSER names, or one of the usual names on the path."""
    return os.environ.get("TILEC_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser, as wide as a screen."""

    def __init__(self, program: str, folder: Path, width: int) -> None:
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(answers), program, *OPTIONS, f"--user-data-dir={folder}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[str] = []
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.ask("Page.enable")
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        self.ask("Emulation.setDeviceMetricsOverride", **screen)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return what the browser answers to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        session = {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message | session).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer.get("method", ""))
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            got = os.read(self._in, 1 << 20)
            assert got, "the browser has ended"
            self._buffer += got
        message, _, self._buffer = self._buffer.partition(b"\0")
        value: dict[str, Any] = json.loads(message)
        return value

    def open(self, address: str) -> None:
        """Open a page, and wait until it is there."""
        self.events.clear()
        self.ask("Page.navigate", url=address)
        while "Page.loadEventFired" not in self.events:
            self.events.append(self._read().get("method", ""))

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or what its promise comes to."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
