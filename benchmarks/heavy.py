"""What compiling heavy kernels takes: CPU seconds and peak memory of kernels of fewer than 500 lines.

    python benchmarks/heavy.py [--target sm_90a ...] [--kernel NAME ...] [--opt-level 3] [--json FILE]

Each is compiled once, without a cache, in a process of its own. One that is refused with a diagnostic counts too. None
may take more than 30 seconds of the processor or 2 GiB; the exit code says whether any did, or ended in another way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

SECONDS = 30.0
MIB = 2048.0
LINES = 500
KILLED_AFTER = 300
"""Seconds of the processor."""

HEAD = "import tilelang.language as T\n\n\n"
COPIES = "T.copy(A[bx * 64, {a} * 64], a)", "T.copy(A[{b} * 64, {a} * 64], b)"


def _kernel(tiles: dict[str, tuple[str, str]], body: list[str], threads: int = 128, before: str = "") -> str:
    """A kernel over A (1024 × 4096 halves) and C (1024 × 64 floats); `tiles` are (scope, type) of 64 × 64 each."""
    made = [f'{name} = T.alloc_{scope}((64, 64), "{dtype}")' for name, (scope, dtype) in tiles.items()]
    return (
        f'{HEAD}{before}@T.prim_func\ndef kernel(A: T.Tensor((1024, 4096), "float16"), '
        f'C: T.Tensor((1024, 64), "float32")):\n    with T.Kernel(16, threads={threads}) as bx:\n'
        + "".join(f"        {line}\n" for line in (*made, *body, "T.copy(c, C[bx * 64, 0])"))
    )


PRODUCT = {"a": ("shared", "float16"), "b": ("shared", "float16"), "c": ("fragment", "float32")}
SUMS = {"s": ("shared", "float32"), "c": ("fragment", "float32")}


def pipelined_products(loops: int, count: int) -> str:
    body = ["T.clear(c)"]
    for at in range(loops):
        body.append(f"for k{at} in T.Pipelined(16, num_stages=2):")
        for product in range(count):
            body += [f"    {line.format(a=product, b=f'k{at}')}" for line in COPIES] + ["    T.gemm(a, b, c)"]
    return _kernel(PRODUCT, body)


def straight_products(count: int) -> str:
    body = ["T.clear(c)"]
    for at in range(count):
        body += [line.format(a=at % 64, b=at % 16) for line in COPIES] + ["T.gemm(a, b, c)"]
    return _kernel(PRODUCT, body)


def _one_tile_products(count: int) -> str:
    return _kernel(PRODUCT, ["T.clear(c)", *(line.format(a=0, b=0) for line in COPIES), *["T.gemm(a, b, c)"] * count])


def _unrolled_products(count: int) -> str:
    body = ["T.clear(c)", f"for k in T.unroll({count}):"]
    return _kernel(PRODUCT, [*body, *(f"    {line.format(a='k', b=0)}" for line in COPIES), "    T.gemm(a, b, c)"])


def _macro_products(count: int) -> str:
    macro = (
        "@T.macro\ndef step(A, a, b, c, bx, k):\n    T.copy(A[bx * 64, k * 64], a)\n"
        "    T.copy(A[k * 64, 0], b)\n    T.gemm(a, b, c)\n\n\n"
    )
    return _kernel(PRODUCT, ["T.clear(c)", *(f"step(A, a, b, c, bx, {at % 16})" for at in range(count))], before=macro)


def _running_sums(count: int, tile: str) -> str:
    return _kernel(SUMS, ["T.clear(c)", "T.copy(c, s)", *[f"T.cumsum({tile}, dim=1)"] * count, "T.copy(s, c)"])


def reductions(count: int) -> str:
    body = ['m = T.alloc_fragment((64,), "float32")', "T.copy(A[bx * 64, 0], c)"]
    for at in range(count):
        body += [f"T.reduce_{('sum', 'max')[at % 2]}(c, m, dim=1)", "for i, j in T.Parallel(64, 64):"]
        body.append(f"    c[i, j] = c[i, j] * {at + 1}.0 + m[i]")
    return _kernel({"c": ("fragment", "float32")}, body)


def elementwise(count: int) -> str:
    body = ["T.copy(A[bx * 64, 0], c)"]
    for at in range(count):
        body += ["for i, j in T.Parallel(64, 64):", f"    c[i, j] = T.exp2(c[i, j]) * {at + 1}.0 + i"]
    return _kernel({"c": ("fragment", "float32")}, body)


def shared_elementwise(count: int) -> str:
    body = ["T.copy(A[bx * 64, 0], c)", "T.copy(c, s)"]
    for at in range(count):
        body += ["for i, j in T.Parallel(64, 64):", f"    s[i, j] = s[i, j] * {at + 1}.0 + s[j, i]"]
    return _kernel(SUMS, [*body, "T.copy(s, c)"])


def _converted_copies(count: int) -> str:
    body = ["T.copy(A[bx * 64, 0], c)"] + ["T.copy(c, s)", "T.copy(s, c)"] * count
    return _kernel(SUMS, body)


def _unrolled_elements(count: int) -> str:
    body = ["T.copy(A[bx * 64, 0], c)", f"for k in T.unroll({count}):", "    for i, j in T.Parallel(64, 64):"]
    return _kernel(
        {"c": ("fragment", "float32")}, [*body, "        c[i, j] = c[i, j] * c[i, j] + A[bx * 64 + i, k + j]"]
    )


def attention(products: int) -> str:
    """Three products, or more, in one pipelined loop, each with a tile of its own: candidates for sub-tiling."""
    tiles = {"q": ("shared", "float16"), "c": ("fragment", "float32")}
    body = ["T.copy(A[bx * 64, 0], q)", "T.clear(c)", "for k in T.Pipelined(16, num_stages=2):"]
    for at in range(products):
        tiles |= {f"k{at}": ("shared", "float16"), f"s{at}": ("fragment", "float32"), f"p{at}": ("fragment", "float16")}
        body += [
            f"    T.copy(A[k * 64, {at} * 64], k{at})",
            f"    T.clear(s{at})",
            f"    T.gemm({'q' if at == 0 else f'p{at - 1}'}, k{at}, s{at}, transpose_B=True)",
            "    for i, j in T.Parallel(64, 64):",
            f"        s{at}[i, j] = T.exp2(s{at}[i, j])",
            f"    T.copy(s{at}, p{at})",
        ]
    last = products - 1
    return _kernel(tiles, [*body, f"    T.gemm(p{last}, k{last}, c)"])


def pipelined_statements(count: int) -> str:
    body = ["T.clear(c)", "for k in T.Pipelined(16, num_stages=2):", "    T.copy(A[bx * 64, k * 64], a)"]
    for at in range(count):
        body += ["    for i, j in T.Parallel(64, 64):", f"        c[i, j] = c[i, j] * {at + 1}.0 + a[i, j]"]
    return _kernel({"a": ("shared", "float16"), "c": ("fragment", "float32")}, body)


def _pipelined_sums(count: int) -> str:
    body = ["T.clear(c)", "for k in T.Pipelined(16, num_stages=2):", "    T.copy(A[bx * 64, k * 64], a)"]
    body += ["    T.cumsum(a, dim=1)"] * count + ["    for i, j in T.Parallel(64, 64):", "        c[i, j] += a[i, j]"]
    return _kernel({"a": ("shared", "float16"), "c": ("fragment", "float32")}, body)


def scalars(count: int) -> str:
    body = ["T.copy(A[bx * 64, 0], c)", 'n = T.alloc_var("int32")', "n = bx"]
    for at in range(count):
        body += [f"if n % {at + 2} == 0:", f"    n = n * 3 + {at}"]
    body += ["for i, j in T.Parallel(64, 64):", "    c[i, j] = c[i, j] + n"]
    return _kernel({"c": ("fragment", "float32")}, body)


HEAVY: dict[str, Callable[[], str]] = {
    "pipelined-10x10": lambda: pipelined_products(10, 10),
    "pipelined-1x40": lambda: pipelined_products(1, 40),
    "pipelined-48x1": lambda: pipelined_products(48, 1),
    "products-100": lambda: straight_products(100),
    "products-150": lambda: straight_products(150),
    "products-one-tile-200": lambda: _one_tile_products(200),
    "products-unrolled-64": lambda: _unrolled_products(64),
    "macros-200": lambda: _macro_products(200),
    "cumsum-shared-200": lambda: _running_sums(200, "s"),
    "cumsum-fragment-200": lambda: _running_sums(200, "c"),
    "reductions-50": lambda: reductions(50),
    "reductions-150": lambda: reductions(150),
    "elementwise-200": lambda: elementwise(200),
    "elementwise-shared-200": lambda: shared_elementwise(200),
    "copies-200": lambda: _converted_copies(200),
    "unrolled-elements-64": lambda: _unrolled_elements(64),
    "attention-3": lambda: attention(3),
    "attention-6": lambda: attention(6),
    "pipelined-statements-100": lambda: pipelined_statements(100),
    "pipelined-cumsum-50": lambda: _pipelined_sums(50),
    "scalars-200": lambda: scalars(200),
}


@dataclass(frozen=True)
class Row:
    """Seconds of the processor and MiB of one process that compiled; `code` is how it ended."""

    kernel: str
    target: str
    lines: int
    cpu: float
    peak_mib: float
    code: int

    @property
    def is_fine(self) -> bool:
        return self.code in (0, 1) and self.cpu <= SECONDS and self.peak_mib <= MIB


def measure(name: str, target: str, opt_level: int) -> Row:
    text = HEAVY[name]()
    assert text.count("\n") < LINES, f"{name} has {text.count(chr(10))} lines"
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "heavy.tl").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "tilec", "heavy.tl", "--no-cache", "-Wno-all", "--target", target]
        command += [f"--opt-level={opt_level}", "-o", "heavy.cubin"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        limited = ["bash", "-c", f'ulimit -t {KILLED_AFTER}; exec "$@"', "bash", *command]
        process = subprocess.Popen(
            limited, cwd=scratch, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        said = process.stdout.read().decode(errors="replace")
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if code != 0:
        print(f"{name}, {target}: {code}\n{said[-800:]}", file=sys.stderr)
    return Row(
        name, target, text.count("\n"), round(used.ru_utime + used.ru_stime, 1), round(used.ru_maxrss / 1024), code
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=["sm_80", "sm_90a", "sm_100a"])
    parser.add_argument("--kernel", nargs="+", choices=tuple(HEAVY), default=list(HEAVY))
    parser.add_argument("--opt-level", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    parser.add_argument("--write", metavar="FOLDER", type=Path, help="only write the kernels there")
    asked = parser.parse_args()
    if asked.write is not None:
        asked.write.mkdir(parents=True, exist_ok=True)
        for name in asked.kernel:
            (asked.write / f"{name}.tl").write_text(HEAVY[name](), encoding="utf-8")
        return 0
    rows = []
    print(f"{'kernel':26}{'target':9}{'lines':>6}{'CPU s':>8}{'MiB':>7}{'ended':>7}")
    for name in asked.kernel:
        for target in asked.target:
            row = measure(name, target, asked.opt_level)
            rows.append(row)
            note = "" if row.is_fine else "  too much"
            print(f"{name:26}{target:9}{row.lines:6}{row.cpu:8.1f}{row.peak_mib:7.0f}{row.code:7}{note}", flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.is_fine for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
