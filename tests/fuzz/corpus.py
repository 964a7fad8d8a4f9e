"""A folder of inputs that each lead to lines of tilec which no other of them leads to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST = 100_000
"""Bytes of an input that is kept: a larger one costs more than it shows."""


class Corpus:
    """One subject's. Texts are kept as UTF-8, bytes as they are."""

    def __init__(self, folder: Path, is_text: bool) -> None:
        self.folder = folder
        self.is_text = is_text
        folder.mkdir(parents=True, exist_ok=True)

    def __iter__(self) -> Iterator[tuple[Path, Any]]:
        """From the smallest on, so that large ones are there only for what no small one shows."""
        for path in sorted(self.folder.iterdir(), key=lambda p: (p.stat().st_size, p.name)):
            data = path.read_bytes()
            yield path, data.decode() if self.is_text else data

    def keep(self, value: Any) -> None:
        data = value.encode() if self.is_text else value
        if len(data) <= LARGEST:
            (self.folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
