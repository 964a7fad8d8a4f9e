"""Which lines of tilec have run: what tells an input that leads somewhere new from one that does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tilec

_HERE = str(Path(tilec.__file__).parent)


class Lines:
    """A function is watched until each of its lines has run once, so that watching costs less and less."""

    def __init__(self) -> None:
        self.count = 0
        self._left: dict[CodeType, set[int]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            inside = code.co_filename.startswith(_HERE)
            left = self._left[code] = {line for *_, line in code.co_lines() if line is not None} if inside else set()
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.remove(frame.f_lineno)
            self.count += 1
        return self._line
