"""The machine code of a cubin as text, where a disassembler is installed: `nvdisasm` reads it, nothing here runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "nvidia-cuda-nvdisasm"
"""What brings the disassembler, where there is no CUDA toolkit."""


def disassembler() -> str | None:
    """`nvdisasm`, on the path or from its package."""
    places = (Path(folder) / "nvidia" / "cu13" / "bin" / "nvdisasm" for folder in sys.path)
    return shutil.which("nvdisasm") or next((str(place) for place in places if place.is_file()), None)


def disassembled(cubin: bytes) -> str | None:
    """Every function of a cubin. Of one with line information, `//## File "gemm.tl", line 28` stands before the
    instructions of a line. None without a disassembler, or where it cannot read the cubin."""
    program = disassembler()
    if program is None:
        return None
    # A file in memory, which goes with this process however it ends.
    with os.fdopen(os.memfd_create("kernel.cubin"), "wb") as file:
        file.write(cubin)
        file.flush()
        command = [program, "-c", "-g", f"/proc/self/fd/{file.fileno()}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=[file.fileno()])
    return done.stdout if done.returncode == 0 else None
