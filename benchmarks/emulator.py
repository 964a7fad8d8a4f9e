"""How fast the emulator is: instructions per second on the kernels that its users wait for.

    python benchmarks/emulator.py [--jobs N] [--no-races] [--target sm_90a] [--json FILE]

An instruction is one PTX instruction of one warp. Time is that of the launch alone, without the compiler and without
the reference; the first launch of each kernel is not counted, because it parses the PTX.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.emu import launch
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Case:
    """A kernel, and the seconds that it may take on two cores."""

    name: str
    path: Path
    defines: dict[str, Value]
    limit: float


CASES = (
    Case("GEMM 512³, bf16", ROOT / "samples" / "gemm.tl", {"M": 512, "N": 512, "K": 512, "dtype": "bfloat16"}, 10),
    Case("attention 512×64", ROOT / "tests" / "kernels" / "attention.tl", {"S": 512}, 15),
    Case("vector add, 2²⁰", ROOT / "samples" / "vector_add.tl", {"N": 1 << 20}, 2),
)


@dataclass(frozen=True)
class Result:
    """What one kernel took: the best of several launches."""

    name: str
    target: str
    jobs: int
    races: bool
    instructions: int
    seconds: float
    limit: float


def measure(case: Case, target: str, jobs: int, races: bool, repeat: int) -> Result:
    """Compile, launch, and time."""
    source = SourceFile(case.path.name, case.path.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, defines=tuple(case.defines.items()))
    build = driver.build_kernel(source, options, driver.Observer())
    manifest = build.manifest
    seconds, instructions = [], 0
    for _ in range(repeat + 1):
        arguments = emulate.draw_arguments(build.kernel, manifest, 0)
        start = time.perf_counter()
        report = launch(
            build.ptx,
            manifest.entry,
            manifest.grid,
            manifest.block,
            emulate.build_launch_arguments(manifest, arguments),
            cluster=manifest.cluster,
            dynamic_smem=manifest.dynamic_smem,
            races=races,
            jobs=jobs,
        )
        seconds.append(time.perf_counter() - start)
        instructions = report.instructions
    return Result(case.name, target, jobs, races, instructions, min(seconds[1:]), case.limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--target", action="append", choices=["sm_80", "sm_90a"])
    parser.add_argument("--no-races", action="store_true", help="without the watch on data races")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    print(f"{'kernel':18} {'target':7} {'instructions':>12} {'seconds':>8} {'per second':>11} {'limit':>6}")
    results = []
    for case in CASES:
        for target in given.target or ["sm_80", "sm_90a"]:
            result = measure(case, target, given.jobs, not given.no_races, given.repeat)
            results.append(result)
            rate = result.instructions / result.seconds
            verdict = "" if result.seconds <= result.limit else "  TOO SLOW"
            print(
                f"{result.name:18} {target:7} {result.instructions:12,} {result.seconds:8.2f} {rate:11,.0f}"
                f" {result.limit:6.0f}{verdict}",
                flush=True,
            )
    if given.json is not None:
        record = {"python": platform.python_version(), "results": [asdict(result) for result in results]}
        Path(given.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 1 if any(result.seconds > result.limit for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
