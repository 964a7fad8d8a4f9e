"""How long expansion and synchronisation take: a loop of 12 statements whose rings have four versions.

    python benchmarks/expansion.py [--repeat 9] [--json FILE]

Each number is the median of the repetitions, in milliseconds that this process was running, for one target and
strategy, with a trip count known in advance and one known at run time: from the schedule to the program with its
shared memory, and from there to the one that waits. Both together may take 50 ms; the exit code says whether they all
did.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tilec.driver import engine
from tilec.driver.observer import Observer
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

LIMIT = 50.0  # milliseconds

KERNEL = """\
import tilelang.language as T
@T.prim_func
def loop(
    A: T.Tensor((1024, 64), "float16"), B: T.Tensor((1024, 64), "float16"), D: T.Tensor((1024, 64), "float16"),
    O: T.Tensor((1024, 64), "float32"), n: T.int32,
):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        d = T.alloc_shared((64, 64), "float16")
        p = T.alloc_shared((64, 64), "float16")
        x = T.alloc_fragment((64, 64), "float32")
        y = T.alloc_fragment((64, 64), "float32")
        m = T.alloc_fragment((64,), "float32")
        T.clear(y)
        T.clear(m)
        for k in T.Pipelined(
            {trip_count}, stage=[0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3, 3], order=[9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8]
        ):
            T.copy(A[k * 64, 0], a)
            T.copy(B[k * 64, 0], b)
            T.copy(D[k * 64, 0], d)
            T.clear(x)
            T.gemm(a, b, x, transpose_B=True)
            T.reduce_max(x, m, dim=1, clear=False)
            for i, j in T.Parallel(64, 64):
                x[i, j] = T.exp2(x[i, j] - m[i])
            T.copy(x, p)
            for i, j in T.Parallel(64, 64):
                y[i, j] = y[i, j] * 0.5
            T.gemm(p, d, y)
            T.reduce_sum(y, m, dim=1, clear=False)
            T.copy(y, O[k * 64, 0])
"""


@dataclass(frozen=True)
class Row:
    target: str
    strategy: Strategy
    trip_count: str
    depths: tuple[int, ...]
    expand: float
    synchronise: float

    @property
    def total(self) -> float:
        return self.expand + self.synchronise


def measure(target: str, strategy: Strategy, trip_count: str, repeat: int) -> Row:
    options = CompileOptions(target=target, pipeline_strategy=strategy, opt_level=2)
    file = engine.read_file(
        SourceFile("loop.tl", KERNEL.format(trip_count=trip_count)), options, Observer(), is_single=True
    )
    (planned,) = engine.advance_kernels(file, Observer(), last="lint-schedule").kernels
    (loop,) = planned.loops
    assert loop.solution.schedule.status == "given", "the loop has a schedule of its own"
    times: list[tuple[float, float]] = []
    for _ in range(repeat):
        start = time.process_time()
        placed = engine.advance_kernel(planned, Observer(), behind="lint-schedule", last="allocate-shared")
        between = time.process_time()
        engine.advance_kernel(placed, Observer(), behind="allocate-shared", last="insert-sync")
        times.append((between - start, time.process_time() - between))
    expanding, waiting = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    return Row(target, strategy, trip_count, loop.solution.schedule.depth, expanding, waiting)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    given = parser.parse_args()
    forms: list[tuple[str, Strategy]] = [("sm_80", "auto"), ("sm_90a", "auto"), ("sm_90a", "unspecialize")]
    rows = [measure(*form, trip_count, given.repeat) for form in forms for trip_count in ("16", "n")]
    print(f"{'target':8}{'strategy':14}{'iterations':>11}{'depths':>12}{'expand':>9}{'sync':>9}{'ms':>9}")
    for r in rows:
        depths = " ".join(map(str, r.depths))
        print(
            f"{r.target:8}{r.strategy:14}{r.trip_count:>11}{depths:>12}{r.expand:9.1f}{r.synchronise:9.1f}{r.total:9.1f}"
        )
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")
    return 0 if all(r.total < LIMIT for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
