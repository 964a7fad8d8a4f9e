"""Finds the other compilers, and has them compile our kernels once per session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kernel:
    """One compiled Triton kernel and how it wants to be launched."""

    ptx: str
    entry: str
    threads: int
    shared: int
    scratch: int


@lru_cache(maxsize=1)
def triton_python() -> str | None:
    """An interpreter that can import Triton: this one, or the one that TILEC_TRITON_PYTHON names."""
    for python in (os.environ.get("TILEC_TRITON_PYTHON"), sys.executable):
        if python and subprocess.run([python, "-c", "import triton"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def compile_triton(folder: Path) -> dict[str, Kernel]:
    """Every kernel of triton_kernels.py by name."""
    python = triton_python()
    assert python is not None
    subprocess.run([python, HERE / "triton_kernels.py", folder], check=True, capture_output=True, text=True)
    made = {}
    for about in folder.glob("*.json"):
        fields = json.loads(about.read_text())
        made[about.stem] = Kernel(about.with_suffix(".ptx").read_text(), **fields)
    return made


@lru_cache(maxsize=1)
def nvcc() -> str | None:
    return shutil.which("nvcc")


@lru_cache(maxsize=8)
def compile_cuda(architecture: str, source: str = "kernels.cu") -> str:
    """The PTX of one of our CUDA files."""
    compiler = nvcc()
    assert compiler is not None
    command = [compiler, "-ptx", f"-arch={architecture}", "-std=c++17", "-o", "-", HERE / source]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
