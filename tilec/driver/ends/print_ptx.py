"""The text of a PTX module."""

from __future__ import annotations

from dataclasses import replace

from tilec.driver.observer import Observer
from tilec.passes.state import FileState
from tilec.ptx.text import print_module


def print_ptx(file: FileState, observer: Observer) -> FileState:
    """Return the file with its PTX module printed as text."""
    return replace(file, ptx=print_module(file.module))
