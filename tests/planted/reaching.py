"""A plugin of pytest: which functions of tilec each test calls, and how long it takes, in the folder $PLANTED_REACH."""

from __future__ import annotations

import json
import os
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
