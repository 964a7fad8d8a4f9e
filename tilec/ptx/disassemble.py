"""Disassembles a cubin by `nvdisasm`, where that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "nvidia-cuda-nvdisasm"
"""The package with the disassembler, for machines without a CUDA toolkit."""


def find_disassembler() -> str | None:
    """Return the path of `nvdisasm`, on the path or from its package; None if it is not installed."""
    places = (Path(folder) / "nvidia" / "cu13" / "bin" / "nvdisasm" for folder in sys.path)
    return shutil.which("nvdisasm") or next((str(place) for place in places if place.is_file()), None)


def disassemble_cubin(cubin: bytes) -> str | None:
    """Return the disassembly of all functions of a cubin; None without a disassembler, or if it cannot read the cubin.
    With line information, `//## File "gemm.tl", line 28` precedes the instructions of a line."""
    program = find_disassembler()
    if program is None:
        return None
    # A file in memory, which disappears with this process however it ends.
    with os.fdopen(os.memfd_create("kernel.cubin"), "wb") as file:
        file.write(cubin)
        file.flush()
        command = [program, "-c", "-g", f"/proc/self/fd/{file.fileno()}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[file.fileno()])
    return done.stdout if done.returncode == 0 else None
