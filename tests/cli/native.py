"""The compilers, builders and CUDA headers of this machine, for tests of what tilec writes for C++ programs."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = {name: shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
         for name in ("cmake", "ninja", "make", "g++")}  # fmt: skip


def cuda_headers() -> Path | None:
    """The folder with cuda.h: of the package that the tests ask for, or of a toolkit."""
    nvcc = shutil.which("nvcc")
    toolkits = [Path(nvcc).resolve().parents[1]] if nvcc else []
    packages = [Path(folder) / "nvidia" / "cu13" for folder in site.getsitepackages()]
    places = [*packages, *toolkits, *sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
    return next((place / "include" for place in places if (place / "include" / "cuda.h").is_file()), None)


CUDA = cuda_headers()
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-isystem", str(CUDA), "-I."]
needs_cmake = pytest.mark.skipif(
    CUDA is None or not all(TOOLS[name] for name in ("cmake", "ninja", "g++")), reason="no CMake, Ninja or compiler"
)


def done(*command: str, **environment: str) -> str:
    finished = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def ran(command: Sequence[str | None], folder: Path, code: int = 0) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == (code == 0), done.stdout
    return done.stdout
