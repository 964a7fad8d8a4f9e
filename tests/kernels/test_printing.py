"""T.print: what the PTX that ships prints in the emulator, line by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import HERE, built

from tilec.cli.main import main
from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ("sm_80", "sm_90a")


def place(block: int, x: int = 0, y: int = 0) -> str:
    return f"BlockIdx=({block}, 0, 0), ThreadIdx=({x}, {y}, 0)"


def expected(a: np.ndarray, n: int, block: int) -> list[str]:
    """What one block prints, as often as it does."""
    lines = [f"msg='100% here  # \"so\"' {place(block, x, y)}" for y in range(2) for x in range(32)]
    lines += [f"msg='element' {place(block, 7, y)}: dtype=half_t value={a[block, 7]:f}" for y in range(2)]
    for index, held in enumerate((n > 3, False)):
        lines.append(
            f"msg='buffer<L, bool>' {place(block, 7, 1)}: buffer=L, index={index}, dtype=bool value={str(held).lower()}"
        )
    shifted = "expr<uint64(%tid % 32) << uint64(40)>"
    lines.append(f"msg='{shifted}' {place(block, 7, 1)}: dtype=uint64_t value={7 << 40}")
    for index in range(6):
        value = 3 * (index // 3) - index % 3
        lines.append(f"msg='tile' {place(block)}: buffer=S, index={index}, dtype=signed char value={value}")
    for index in range(4):
        lines.append(
            f"msg='buffer<F, float32>' {place(block, 0, 1)}: buffer=F, index={index}, "
            f"dtype=float value={0.5 * index + block:f}"
        )
    if block == 1:
        lines += [
            f"msg='trip' {place(1, x, y)}: dtype=int value={k}" for k in range(2) for y in range(2) for x in range(32)
        ]
    return lines


@pytest.mark.parametrize("target", TARGETS)
def test_every_kind_of_thing_is_printed(target: str) -> None:
    _, made = built(HERE / "prints.tl", target)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    given.scalars["N"] = 4
    report = emulate.emulate_build(made, given)
    a = given.tensors["A"]
    np.testing.assert_array_equal(given.tensors["B"], a.astype(np.float32))
    lines = report.printed.splitlines()
    shared_out = [line for line in lines if "in parallel" in line]
    for block in range(2):
        found = [line for line in lines if f"BlockIdx=({block}," in line and line not in shared_out]
        assert found == expected(a, 4, block)
    values = [line.rpartition("value=")[2] for line in shared_out]
    assert values == [f"{a[block, j] * 2:f}" for block in range(2) for j in (9, 25)]


KERNEL = """import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((n, 4), "bfloat16"), B: T.Tensor((n, 4), "bfloat16")):
    with T.Kernel(1, threads=32) as bx:
        {body}
"""
DYNAMIC = KERNEL.replace("@T.prim_func", 'n = T.dynamic("n")\n\n@T.prim_func')


def run(text: str, target: str, opt_level: int = 3, **sizes: int) -> tuple[dict[str, np.ndarray], list[str]]:
    source = SourceFile("k.tl", text)
    made = build_kernel(source, CompileOptions(target=target, opt_level=opt_level), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 3, sizes)
    before = {name: array.copy() for name, array in given.tensors.items()}
    return before, emulate.emulate_build(made, given).printed.splitlines()


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_is_printed_once_a_block(target: str) -> None:
    before, lines = run(DYNAMIC.format(body="T.print(A)\n        T.copy(A[0:8, :], B[0:8, :])"), target, n=3)
    values = (before["A"].astype(np.uint32) << 16).view(np.float32).ravel()
    assert lines == [
        f"msg='' {place(0)}: buffer=A, index={i}, dtype=bfloat16_t value={v:f}" for i, v in enumerate(values)
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("opt_level", [2, 3])
def test_a_pipelined_loop_prints_in_the_order_of_the_text(target: str, opt_level: int) -> None:
    body = """F = T.alloc_fragment((16, 4), "bfloat16")
        S = T.alloc_shared((16, 4), "bfloat16")
        t = T.get_thread_binding()
        for k in T.Pipelined(4, num_stages=2):
            if t == 3:
                T.print(k, "before")
            T.copy(A[k * 16, 0], S)
            if t == 3:
                T.print(S[0, 1], "after")
            T.copy(S, F)
            T.copy(F, B[k * 16, 0])"""
    before, lines = run(KERNEL.replace("(n, 4)", "(64, 4)").format(body=body), target, opt_level)
    held = (before["A"].astype(np.uint32) << 16).view(np.float32)[::16, 1]
    said = [line.partition("'")[2].partition("'")[0] + line.rpartition("=")[2] for line in lines]
    assert said == [word for k in range(4) for word in (f"before{k}", f"after{held[k]:f}")]


def test_the_command_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.tl"
    file.write_text(KERNEL.replace("(n, 4)", "(8, 4)").format(body='T.copy(A, B)\n        T.print("hello")'))
    assert main(["emulate", str(file), "--target", "sm_90a"]) == 0
    shown = capsys.readouterr().out
    assert (
        shown.count("msg='hello' BlockIdx=(0, 0, 0)") == 32
        and "B: 8 × 4 elements of the emulated PTX, worst error 0" in shown
    )
