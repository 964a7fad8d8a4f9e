"""Writes down which functions of tilec each test of the default tier calls, and how long it takes.

    python tests/planted/reaching.py FOLDER

This file is also the plugin of pytest that does it; it finds the folder in $PLANTED_REACH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

TILEC = str(Path(__file__).parents[2] / "tilec") + os.sep
_codes: dict[int, CodeType] = {}
_reached: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    called: set[int] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (number := id(frame.f_code)) not in called:
            called.add(number)
            _codes[number] = frame.f_code  # kept, so that no other one gets its number

    began = time.process_time()
    sys.setprofile(note)
    yield
    sys.setprofile(None)
    codes = [code for code in map(_codes.__getitem__, called) if code.co_filename.startswith(TILEC)]
    functions = sorted({f"{code.co_filename.removeprefix(TILEC)}:{code.co_firstlineno}" for code in codes})
    _reached[item.nodeid] = {"seconds": round(time.process_time() - began, 3), "functions": functions}


def pytest_sessionfinish() -> None:
    if _reached:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        Path(os.environ["PLANTED_REACH"], f"{worker}.json").write_text(json.dumps(_reached), encoding="utf-8")


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PLANTED_REACH": str(folder), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-p", "reaching"]
    return subprocess.run(command, cwd=Path(TILEC).parent, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
