"""A headless Chromium for tests, driven through its DevTools protocol over two pipes: no package is needed for it.

It is looked for in the variable CHROME, then on the path.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell")

_SECONDS = 60


def program() -> str | None:
    """The Chromium that is installed."""
    return os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page that is shown: a file, or what an address serves. `problems` are the errors and warnings of its console,
    and its exceptions."""

    def __init__(
        self, file: Path | str, folder: Path, width: int, scheme: Literal["light", "dark"], chrome: str
    ) -> None:
        self.problems: list[str] = []
        self._next, self._rest, self._is_loaded = 0, b"", False
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()

        def as_three_and_four() -> None:
            # Through numbers that are neither, as one of the pipes may be 3 or 4 already.
            high = [os.dup2(end, 100 + at) for at, end in enumerate((their_in, their_out))]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [chrome, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={folder}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=as_three_and_four, close_fds=False,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.resize(width)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])
        self._is_loaded = False
        self._call("Page.navigate", url=file if isinstance(file, str) else file.resolve().as_uri())
        while not self._is_loaded:
            self._receive()

    def resize(self, width: int, height: int = 900) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is."""
        said = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def picture(self) -> bytes:
        """All of the page as PNG."""
        return b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def move(self, x: int, y: int) -> None:
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        for end in (self._in, self._out):
            with suppress(OSError):
                os.close(end)

    _session: str | None = None

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        self._next += 1
        asked = {"id": self._next, "method": method, "params": given}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            said = self._receive()
            if said.get("id") == self._next:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        """The next message; what it says of loading and of problems is kept."""
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            assert ready, f"Chromium said nothing for {_SECONDS} seconds"
            read = os.read(self._in, 1 << 20)
            assert read, "Chromium has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(message)
        match said.get("method"):
            case "Page.loadEventFired":
                self._is_loaded = True
            case "Runtime.exceptionThrown":
                self.problems.append(str(said["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if said["params"]["type"] in ("error", "warning"):
                self.problems.append(str(said["params"]["args"]))
            case "Log.entryAdded" if said["params"]["entry"]["level"] in ("error", "warning"):
                self.problems.append(str(said["params"]["entry"]["text"]))
        return said
