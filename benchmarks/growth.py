"""How the cost of compiling grows: CPU seconds of generated kernels against their size, one dimension at a time.

    python benchmarks/growth.py [--target sm_90a] [--only TEXT] [--repeat 3] [--json FILE]

Each is compiled without a cache in a process of its own; the smallest of the repetitions counts. Two exponents are
printed: the slope of the log-log line through all sizes, and that of the last step alone, after what the smallest
kernel takes (start-up, imports) is taken off. Beside them stands the pass that grew most from the size before the
last to the last, with its own exponent. CP-SAT's part of that is the schedule's, whose search has a budget.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import heavy
from compile_time import ROOT, Compiler, caches, machine, tilec

_TAKEN = re.compile(r"^([a-z: -]+?) +([\d,.]+) ms$", re.MULTILINE)
"""A line of --time."""
_LEAST = 0.05
"""Seconds that a cost must exceed the base by to say anything."""


@dataclass(frozen=True)
class Dimension:
    """What grows: sizes, what makes a file of a size, and options of the compiler."""

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int], str]
    options: tuple[str, ...] = ()
    is_mistaken: bool = False
    """Whether what is measured is how long it takes to say what is wrong."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a process, and those of each pass in it, by the clock."""

    cpu: float
    passes: Mapping[str, float]


@dataclass(frozen=True)
class Growth:
    """Of one dimension: seconds by size (None: refused), the exponents, and the pass that grew most at the end."""

    dimension: str
    cpu: Mapping[int, float | None]
    exponent: float | None
    last: float | None
    steepest: str
    steepest_exponent: float | None


def kernels(count: int) -> str:
    """A file of `count` kernels with names of their own."""
    head, kernel = heavy.elementwise(1).split("@T.prim_func\n")
    made = (kernel.replace("def kernel(", f"def kernel{at}(") for at in range(count))
    return head + "\n\n".join(f"@T.prim_func\n{text}" for text in made)


def macros(lines: int) -> str:
    """A kernel behind macros that it does not use: two lines, and three empty ones, each."""
    unused = "".join(f"@T.macro\ndef unused{at}(x):\n    T.clear(x)\n\n\n" for at in range(lines // 5))
    return heavy.elementwise(1).replace("@T.prim_func", f"{unused}@T.prim_func")


def macros_used(count: int) -> str:
    """A kernel that uses each of so many macros once."""
    made = "".join(
        f"@T.macro\ndef add{at}(x):\n    for i in T.Parallel(128):\n        x[i] = x[i] + {at}.0\n\n\n"
        for at in range(count)
    )
    uses = "".join(f"        add{at}(a)\n" for at in range(count))
    return (
        f'{heavy.HEAD}{made}@T.prim_func\ndef kernel(A: T.Tensor((128,), "float32")):\n'
        '    with T.Kernel(1, threads=128):\n        a = T.alloc_fragment((128,), "float32")\n'
        f"        T.copy(A, a)\n{uses}        T.copy(a, A)\n"
    )


def tensors(count: int) -> str:
    """A nest that writes to so many tensors."""
    parameters = ", ".join(f'A{at}: T.Tensor((128,), "float32")' for at in range(count))
    stores = "".join(f"            A{at}[i] = 1.0\n" for at in range(count))
    return (
        f"{heavy.HEAD}@T.prim_func\ndef kernel({parameters}):\n"
        f"    with T.Kernel(1, threads=128):\n        for i in T.Parallel(128):\n{stores}"
    )


def unknown_names(count: int) -> str:
    """A nest with so many names that nothing has."""
    stores = "".join(f"            A[i] = name{at}\n" for at in range(count))
    return (
        f'{heavy.HEAD}@T.prim_func\ndef kernel(A: T.Tensor((128,), "float32")):\n'
        f"    with T.Kernel(1, threads=128):\n        for i in T.Parallel(128):\n{stores}"
    )


def comments(lines: int) -> str:
    return heavy.elementwise(1).replace("@T.prim_func", "# A comment.\n" * lines + "@T.prim_func")


def warpgroups(count: int) -> str:
    """A product whose rows so many warpgroups share, beside the one that copies."""
    rows = 64 * count
    return (
        f'{heavy.HEAD}@T.prim_func\ndef kernel(A: T.Tensor(({rows * 4}, 512), "float16"), '
        f'B: T.Tensor((512, 128), "float16"), C: T.Tensor(({rows * 4}, 128), "float16")):\n'
        f"    with T.Kernel(4, threads={128 * count}) as bx:\n"
        f'        a = T.alloc_shared(({rows}, 64), "float16")\n        b = T.alloc_shared((64, 128), "float16")\n'
        f'        c = T.alloc_fragment(({rows}, 128), "float32")\n        T.clear(c)\n'
        "        for k in T.Pipelined(8, num_stages=2):\n"
        f"            T.copy(A[bx * {rows}, k * 64], a)\n            T.copy(B[k * 64, 0], b)\n"
        f"            T.gemm(a, b, c)\n        T.copy(c, C[bx * {rows}, 0])\n"
    )


DIMENSIONS = (
    Dimension("statements of a pipelined loop", (4, 8, 16, 32, 64), heavy.pipelined_statements),
    Dimension("products of a pipelined loop", (1, 2, 4, 8, 16), lambda n: heavy.pipelined_products(1, n)),
    Dimension("pipelined loops", (1, 2, 4, 8, 16), lambda n: heavy.pipelined_products(n, 1)),
    Dimension("products that may be cut (candidates)", (1, 2, 3, 4), heavy.attention),
    Dimension("products in a straight line", (4, 8, 16, 32, 64), heavy.straight_products),
    Dimension("elementwise nests", (4, 8, 16, 32, 64), heavy.elementwise),
    Dimension("nests on shared tiles", (4, 8, 16, 32), heavy.shared_elementwise),
    Dimension("reductions", (4, 8, 16, 32, 64), heavy.reductions),
    Dimension("scalar statements", (4, 16, 64, 200), heavy.scalars),
    Dimension("warpgroups", (1, 2, 3, 4), warpgroups),
    Dimension("kernels of a file", (1, 2, 4, 8, 16, 32), kernels),
    Dimension("kernels of a file, one built", (1, 2, 4, 8, 16, 32), kernels, ("--entry", "kernel0")),
    Dimension("lines of comments", (100, 1000, 10000), comments),
    Dimension("lines of macros, not used", (100, 1000, 10000), macros),
    Dimension("macros, each used once", (60, 120, 240, 480), macros_used),
    Dimension("tensors", (125, 250, 500, 1000), tensors),
    Dimension("unknown names", (600, 1200, 2400, 4800), unknown_names, is_mistaken=True),
)


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Of the least-squares line through the logarithms; None of fewer than two costs that say anything."""
    points = [(math.log(n), math.log(cost)) for n, cost in zip(sizes, seconds, strict=True) if cost > _LEAST]
    if len(points) < 2:
        return None
    x, y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def grown(dimension: Dimension, costs: Mapping[int, Cost | None], base: Cost) -> Growth:
    """What the costs of its sizes come to."""
    known = {size: cost for size, cost in costs.items() if cost is not None}
    sizes, above = list(known), [cost.cpu - base.cpu for cost in known.values()]
    steepest, most = "", 0.0
    if len(known) > 1:
        before, last = (known[size].passes for size in sizes[-2:])
        for name, seconds in last.items():
            if seconds - before.get(name, 0.0) > most:
                steepest, most = name, seconds - before.get(name, 0.0)
    of_pass = [known[size].passes.get(steepest, 0.0) for size in sizes[-2:]]
    return Growth(
        dimension.name,
        {size: None if cost is None else round(cost.cpu, 3) for size, cost in costs.items()},
        slope(sizes, above),
        slope(sizes[-2:], above[-2:]),
        steepest,
        slope(sizes[-2:], of_pass) if steepest else None,
    )


def taken(said: str) -> dict[str, float]:
    """Seconds of each pass by what --time says; exploring a choice is a part of no pass."""
    return {name: float(ms.replace(",", "")) / 1000 for name, ms in _TAKEN.findall(said) if name != "total"}


class Measuring:
    """Compiles texts in processes of their own."""

    def __init__(self, compiler: Compiler, target: str, repeat: int, scratch: Path) -> None:
        self.compiler, self.target, self.repeat, self.scratch = compiler, target, repeat, scratch
        self.environment = caches(scratch / "kept") | dict(compiler.environment)

    def cost(self, text: str, options: Sequence[str] = (), *, is_mistaken: bool = False) -> Cost | None:
        """None where the kernel is refused, or is not in spite of a mistake."""
        file, out = self.scratch / "kernel.tl", self.scratch / "out"
        file.write_text(text, encoding="utf-8")
        command = (*self.compiler.start[:-1], str(file), "--target", self.target, "-Wno-all", "--no-cache", "--time")
        found = [self._once((*command, "-o", str(out), *options), is_mistaken) for _ in range(self.repeat)]
        made = [cost for cost in found if cost is not None]
        return min(made, key=lambda cost: cost.cpu) if len(made) == len(found) else None

    def _once(self, command: Sequence[str], is_mistaken: bool) -> Cost | None:
        with (self.scratch / "said").open("w+", encoding="utf-8") as said:
            process = os.posix_spawnp(
                command[0], command, {**self.environment, "PWD": str(ROOT)},
                file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)],
            )  # fmt: skip
            _, status, used = os.wait4(process, 0)
            said.seek(0)
            if os.waitstatus_to_exitcode(status) != is_mistaken:
                return None
            return Cost(used.ru_utime + used.ru_stime, taken(said.read()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--only", default="", metavar="TEXT", help="dimensions whose names have this")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    asked = parser.parse_args()
    load, results = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as scratch:
        measuring = Measuring(tilec(sys.executable, asked.target), asked.target, asked.repeat, Path(scratch))
        base = measuring.cost(heavy.elementwise(0))
        if base is None:
            sys.exit("the smallest kernel is not compiled: there is nothing to take off")
        for dimension in DIMENSIONS:
            if asked.only not in dimension.name:
                continue
            costs = {
                size: measuring.cost(dimension.make(size), dimension.options, is_mistaken=dimension.is_mistaken)
                for size in dimension.sizes
            }
            found = grown(dimension, costs, base)
            said = " ".join(f"{size}: {'refused' if cpu is None else f'{cpu:.2f}'}" for size, cpu in found.cpu.items())
            of_pass = f"{found.steepest} {_shown(found.steepest_exponent)}" if found.steepest else ""
            print(
                f"{dimension.name:38}{_shown(found.exponent):>5}{_shown(found.last):>6}  {said}  {of_pass}", flush=True
            )
            results.append(asdict(found))
    if asked.json:
        record = {"machine": machine(load), "target": asked.target, "base": round(base.cpu, 3), "results": results}
        Path(asked.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _shown(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}"


if __name__ == "__main__":
    main()
