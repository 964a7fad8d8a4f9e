"""Kernels of a few lines that ask for very much: they are built or refused, within memory that every machine has."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = 3 << 30
"""Bytes of address space: the interpreter's libraries map some that nothing is ever in."""
SECONDS = 90
"""Of the processor's."""

_BEGIN = "import tilelang.language as T\n\n\n@T.prim_func\n"


def _elementwise(rows: int, columns: int, threads: int, value: str) -> str:
    shape = f"({rows}, {columns})"
    return (
        f'{_BEGIN}def kernel(A: T.Tensor({shape}, "float32"), B: T.Tensor({shape}, "float32")):\n'
        f"    with T.Kernel(1, threads={threads}) as bx:\n"
        f"        for i, j in T.Parallel({rows}, {columns}):\n"
        f"            B[i, j] = {value}\n"
    )


def _fragment(rows: int, columns: int, dtype: str = "float32") -> str:
    shape = f"({rows}, {columns})"
    return (
        f'{_BEGIN}def kernel(A: T.Tensor({shape}, "{dtype}"), B: T.Tensor({shape}, "{dtype}")):\n'
        "    with T.Kernel(1, threads=128) as bx:\n"
        f'        tile = T.alloc_fragment({shape}, "{dtype}")\n'
        "        T.copy(A, tile)\n"
        f"        for i, j in T.Parallel({rows}, {columns}):\n"
        "            tile[i, j] = tile[i, j] * tile[i, j] + tile[i, j]\n"
        "        T.copy(tile, B)\n"
    )


def _loops(count: int) -> str:
    loop = (
        "        for k in T.Pipelined(16, num_stages=2):\n"
        "            T.copy(A[bx * 64, k * 64], a)\n"
        "            T.copy(A[k * 64, {at} * 64], b)\n"
        "            T.gemm(a, b, c)\n"
    )
    return (
        f'{_BEGIN}def kernel(A: T.Tensor((1024, 4096), "float16"), C: T.Tensor((1024, 64), "float32")):\n'
        "    with T.Kernel(16, threads=128) as bx:\n"
        '        a = T.alloc_shared((64, 64), "float16")\n'
        '        b = T.alloc_shared((64, 64), "float16")\n'
        '        c = T.alloc_fragment((64, 64), "float32")\n'
        "        T.clear(c)\n"
        f"{''.join(loop.format(at=at) for at in range(count))}"
        "        T.copy(c, C[bx * 64, 0])\n"
    )


def _products(loops: int, count: int) -> str:
    """Loops of several products each, of whose tiles every statement asks again who touches them in which loop."""
    product = (
        "            T.copy(A[bx * 64, {at} * 64], a)\n"
        "            T.copy(A[k * 64, {at} * 64], b)\n"
        "            T.gemm(a, b, c)\n"
    )  # fmt: skip
    loop = "        for k in T.Pipelined(16, num_stages=2):\n" + "".join(product.format(at=at) for at in range(count))
    return _loops(0).replace("        T.copy(c,", f"{loop * loops}        T.copy(c,")


def _statements(count: int) -> str:
    """One pipelined loop, each of whose statements waits for every other one."""
    change = (
        "            for i, j in T.Parallel(64, 64):\n"
        "                sums[i, j] = sums[i, j] * {factor} + tile[i, j]\n"
    )  # fmt: skip
    return (
        f'{_BEGIN}def kernel(A: T.Tensor((64, 1024), "float32"), B: T.Tensor((64, 64), "float32")):\n'
        "    with T.Kernel(1, threads=256) as bx:\n"
        '        tile = T.alloc_shared((64, 64), "float32")\n'
        '        sums = T.alloc_fragment((64, 64), "float32")\n'
        "        T.clear(sums)\n"
        "        for k in T.Pipelined(16, num_stages=2):\n"
        "            T.copy(A[0, k * 64], tile)\n"
        f"{''.join(change.format(factor=1 + at / 64) for at in range(count))}"
        "        T.copy(sums, B[0, 0])\n"
    )


def _nest(depth: int, inside: tuple[str, ...] = ()) -> str:
    """Loops in loops, each of which does something before the one in it: each is entered in ways of its own."""
    begin = (
        f'{_BEGIN}def kernel(A: T.Tensor((1024, 64), "float32"), B: T.Tensor((1024, 64), "float32")):\n'
        "    with T.Kernel(16, threads=128) as bx:\n"
        '        tile = T.alloc_shared((64, 64), "float32")\n'
        '        sums = T.alloc_fragment((64, 64), "float32")\n'
    )
    lines = ["for k{at} in T.serial(4):", "    T.copy(A[bx * 64, 0], tile)", "    T.copy(tile, sums)", *inside]
    loops = (f"{'    ' * (2 + at)}{line.format(at=at)}\n" for at in range(depth) for line in lines)
    return f"{begin}{''.join(loops)}        T.copy(tile, B[bx * 64, 0])\n"


PIPELINE = (
    "    for m{at} in T.Pipelined(bx + 1, num_stages=3):",
    "        T.copy(A[m{at} * 64, 0], tile)",
    "        T.copy(tile, sums)",
)

HEAVY = {
    "elements": (_elementwise(65536, 65536, 128, "A[i, j] + 1.0"), {1}),
    "functions": (_elementwise(1024, 2048, 32, "T.sin(A[i, j]) + T.exp(A[i, j])"), {1}),
    "just_too_many": (_elementwise(256, 512, 32, "T.sin(A[i, j]) + T.exp(A[i, j])"), {1}),
    "huge_fragment": (_fragment(65536, 65536), {1}),
    "fragment": (_fragment(1024, 1024), {1}),
    "largest_fragment": (_fragment(128, 1024), {0}),
    "largest_fragment_of_halves": (_fragment(256, 512, "float16"), {0}),
    "halves": (_fragment(512, 512, "float16"), {0}),
    "loops": (_loops(48), {0}),
    "nest": (_nest(20), {0}),
    "pipelines_in_a_nest": (_nest(7, PIPELINE), {0}),
    "products": (_products(8, 3), {0}),
    "statements": (_statements(24), {0}),
}
"""The text, and how the compiler may end."""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


@pytest.mark.parametrize("name", HEAVY)
def test_it_is_built_or_refused(name: str, tmp_path: Path) -> None:
    text, expected = HEAVY[name]
    path = tmp_path / "heavy.tl"
    path.write_text(text)
    command = [
        sys.executable,
        "-m",
        "tilec",
        str(path),
        "-Wno-all",
        "--no-cache",
        "-o",
        str(tmp_path / "heavy.cubin"),
    ]
    done = subprocess.run(command, preexec_fn=_limit, capture_output=True, text=True, check=False)
    assert done.returncode in expected, done.stderr[-2000:]
