"""How the cost of compiling grows: CPU seconds of generated kernels against their size, one dimension at a time.

    python benchmarks/growth.py [--target sm_90a] [--only TEXT] [--repeat 3] [--json FILE]

Each is compiled without a cache in a process of its own; the smallest of the repetitions counts. The exponent is the
slope of the log-log line through them, after what a kernel of the smallest file takes (start-up, imports) is taken off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import heavy
from compile_time import ROOT, caches, machine, run, tilec


def _kernels(count: int) -> str:
    """A file of `count` kernels with names of their own."""
    head, kernel = heavy._elementwise(1).split("@T.prim_func\n")
    made = (kernel.replace("def kernel(", f"def kernel{at}(") for at in range(count))
    return head + "\n\n".join(f"@T.prim_func\n{text}" for text in made)


def _macros(lines: int) -> str:
    """A kernel behind macros that it does not use: two lines, and two empty ones, each."""
    unused = "".join(f"@T.macro\ndef unused{at}(x):\n    T.clear(x)\n\n\n" for at in range(lines // 5))
    return heavy._elementwise(1).replace("@T.prim_func", f"{unused}@T.prim_func")


def _comments(lines: int) -> str:
    return heavy._elementwise(1).replace("@T.prim_func", "# A comment.\n" * lines + "@T.prim_func")


DIMENSIONS: dict[str, tuple[tuple[int, ...], Callable[[int], str], tuple[str, ...]]] = {
    "statements of a pipelined loop": ((4, 8, 16, 32, 64), heavy._pipelined_statements, ()),
    "statements outside of loops": ((4, 8, 16, 32, 64), heavy._elementwise, ()),
    "kernels of a file": ((1, 2, 4, 8, 16, 32), _kernels, ()),
    "kernels of a file, one built": ((1, 2, 4, 8, 16, 32), _kernels, ("--entry", "kernel0")),
    "lines of comments": ((100, 1000, 10000), _comments, ()),
    "lines of unused macros": ((100, 1000, 10000), _macros, ()),
}
"""Sizes, what makes a file of a size, and options."""


def exponent(sizes: list[int], seconds: list[float]) -> float | None:
    """The slope of the least-squares line through the logarithms; None of fewer than two positive costs."""
    points = [(math.log(n), math.log(cost)) for n, cost in zip(sizes, seconds, strict=True) if cost > 0]
    if len(points) < 2:
        return None
    x, y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--only", default="", metavar="TEXT", help="dimensions whose names have this")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    asked = parser.parse_args()
    load, results = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as scratch:
        compiler = tilec(sys.executable, asked.target)
        environment = caches(Path(scratch) / "kept") | dict(compiler.environment)
        out, file = Path(scratch) / "out", Path(scratch) / "kernel.tl"

        def cost(text: str, options: tuple[str, ...]) -> float | None:
            file.write_text(text)
            command = (*compiler.start[:-1], str(file), "--target", asked.target, "-Wno-all", "-o", str(out), *options)
            command = (*command, "--no-cache")
            if subprocess.run(command, env=environment, capture_output=True, check=False, cwd=ROOT).returncode:
                return None
            return min(run(command, environment, out)[1] for _ in range(asked.repeat))

        base = cost(heavy._elementwise(0), ())
        if base is None:
            sys.exit("the smallest kernel is not compiled: there is nothing to take off")
        for name, (sizes, make, options) in DIMENSIONS.items():
            if asked.only not in name:
                continue
            costs = {size: cost(make(size), options) for size in sizes}
            known = {size: cpu for size, cpu in costs.items() if cpu is not None}
            slope = exponent(list(known), [cpu - base for cpu in known.values()])
            said = " ".join(f"{size}: {'refused' if cpu is None else f'{cpu:.2f}'}" for size, cpu in costs.items())
            print(f"{name:32} {'–' if slope is None else f'{slope:.2f}':>5}  {said}", flush=True)
            results.append({"dimension": name, "exponent": slope, "cpu": costs})
    if asked.json:
        record = {"machine": machine(load), "target": asked.target, "base": base, "results": results}
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
