"""`python -m tilec.tilelang_run FILE.py [arguments]`: run a TileLang script without TileLang, and without a GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tilec.support.resources import target_names
from tilec.tilelang_run.kernels import Machine
from tilec.tilelang_run.script import run_script


def main() -> int:
    """Read the command line and run the script."""
    parser = argparse.ArgumentParser(
        prog="python -m tilec.tilelang_run",
        description="Run a TileLang script: tilec compiles its kernels and runs them.",
    )
    parser.add_argument("--target", default="sm_90a", help="machine to compile for (default: sm_90a)")
    parser.add_argument(
        "--device",
        choices=("emulator", "cuda"),
        default="emulator",
        help="run the kernels on the CPU, or on the GPU here",
    )
    parser.add_argument("script", type=Path, metavar="FILE.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script itself is given")
    given = parser.parse_args()
    if given.target not in target_names() and not given.target.endswith(".toml"):
        parser.error(f"there is no target {given.target}; there are {', '.join(target_names())}")
    if not given.script.is_file():
        parser.error(f"there is no file {given.script}")
    return run_script(given.script, given.arguments, Machine(given.target, given.device))


if __name__ == "__main__":
    sys.exit(main())
