"""What each parameter of each loop does, seen in what is emitted for it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir import warp
from tilec.ir.layout import Fragment
from tilec.ir.tile import For, Kernel, TileOp, int32_const, walk_statements
from tilec.support.diagnostics import Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

HEAD = """\
import tilelang.language as T
N = 64
@T.prim_func
def kernel(A: T.Tensor((N, N), "float32"), B: T.Tensor((N, N), "float32"), S: T.Tensor((N,), "int32"), n: T.int32):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((N, N), "float32")
        s = T.alloc_shared((16, N), "float32")
"""
END = -99
COPY = "    T.copy(A[i * 16, 0], s)\n    T.copy(s, B[i * 16, 0])\n"


def made(body: str, target: str = "sm_80", **defines: int) -> Build:
    text = HEAD + "".join(f"        {line}\n" for line in body.splitlines())
    options = CompileOptions(target=target, defines=tuple(defines.items()))
    return build_kernel(SourceFile("kernel.tl", text), options, Observer())


def header(loop: str) -> For:
    """The loop in tile IR, around two copies."""
    kernel = made(f"for i in {loop}:\n{COPY}").kernel
    return next(s for s in walk_statements(kernel.body) if isinstance(s, For))


def stored(loop: str, n: int = 0) -> list[int]:
    """The values of the loop variable, in their order."""
    return noted(f"{loop}:\n    S[t] = i\n    t = t + 1", n)


def noted(body: str, n: int = 0) -> list[int]:
    """What the body puts into S, `t` of them."""
    result = made(f't = T.alloc_var("int32", init=0)\n{body}\nfor i in T.serial(t, N):\n    S[i] = {END}')
    found = emulate.draw_arguments(result.kernel, result.manifest, 0)
    found.scalars["n"] = n
    emulate.emulate_build(result, found)
    values: list[int] = found.tensors["S"].tolist()
    return values[: values.index(END)]


# ---- loops in order --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["T.serial", "T.Serial", "range", "T.unroll", "T.Unroll"])
def test_start_stop_and_step_are_those_of_a_range(name: str) -> None:
    assert stored(f"for i in {name}(3)") == [0, 1, 2]
    assert stored(f"for i in {name}(3, n)", n=6) == [3, 4, 5]
    assert stored(f"for i in {name}(1, n, 3)", n=9) == [1, 4, 7]
    assert stored(f"for i in {name}(n, -2, -4)", n=7) == [7, 3, -1]
    assert stored(f"for i in {name}(n, n)", n=5) == []


def test_the_keywords_of_a_serial_loop() -> None:
    assert stored("for i in T.serial(start=1, stop=8, step=3)") == [1, 4, 7]


def test_annotations_make_a_serial_loop_a_pipeline() -> None:
    assert header("T.serial(4)").kind == "serial"
    assert header('T.serial(4, annotations={"num_stages": 2})').num_stages == 2
    manual = header(
        'T.serial(4, annotations={"software_pipeline_stage": [0, 1], "software_pipeline_order": [1, 0],'
        ' "software_pipeline_async_stages": [0]})'
    )
    assert (manual.kind, manual.stage, manual.order) == ("pipelined", (0, 1), (1, 0))
    assert manual.scheduling_hints is not None and manual.scheduling_hints.asynchronous == (True, False)


def unrolled(loop: str) -> tuple[int, int]:
    """How many loops are left, and how often the body is written out."""
    result = made(f"for i in {loop}:\n    for j in T.Parallel(N):\n        B[i, j] = A[i, j]")
    body = [op for role in result.program.roles for op in warp.walk_operations(role.body)]
    return sum(isinstance(op, warp.Loop) for op in body), sum(isinstance(op, warp.Elementwise) for op in body)


def test_the_rest_of_an_unrolled_loop_is_a_loop_of_its_own() -> None:
    assert unrolled("T.unroll(7, unroll_factor=3)") == (2, 3 + 1)
    assert unrolled("T.unroll(n, unroll_factor=3)") == (2, 3 + 1)


@pytest.mark.weekly
def test_unrolling() -> None:
    assert unrolled("T.serial(5)") == (1, 1)
    assert unrolled("T.unroll(5)") == (0, 5)
    assert unrolled("T.unroll(n)") == (1, 1)  # nobody knows how often
    assert unrolled("T.unroll(100 - 1)") == (1, 1)  # too long to pay
    assert unrolled("T.unroll(99, explicit=True)") == (0, 99)
    assert unrolled("T.unroll(6, unroll_factor=3)") == (1, 3)
    assert unrolled("T.unroll(7, unroll_factor=1)") == (1, 1)
    assert unrolled('T.unroll(7, annotations={"pragma_unroll_factor": 3})') == (2, 4)
    assert unrolled('T.unroll(99, annotations={"pragma_unroll_explicit": True})') == (0, 99)


# ---- loops all at once -----------------------------------------------------------------------------------------------


def widths(loop: str, body: str = "B[i, j] = A[i, j]") -> set[str]:
    """How many elements the kernel's loads take at once."""
    ptx = made(f"{loop}:\n    {body}").ptx
    return {found or "1" for found in re.findall(r"ld\.global\.nc(?:\.v(\d))?", ptx)}


def test_neighbours_of_a_thread() -> None:
    assert widths("for i, j in T.Parallel(N, N)") == {"4"}
    assert widths("for i, j in T.Parallel(N, N, coalesced_width=2)") == {"2"}
    assert widths("for i, j in T.Parallel(N, N, coalesced_width=1)") == {"1"}
    assert widths('for i, j in T.Parallel(N, N, annotations={"coalesced_width": 2})') == {"2"}


LAYOUT = "T.Fragment((N, N), forward_fn=lambda i, j: (i * 2 + j // 32, j % 32))"


@pytest.mark.parametrize("given", [f"loop_layout={LAYOUT}", f'annotations={{"parallel_loop_layout": {LAYOUT}}}'])
def test_who_takes_what(given: str) -> None:
    result = made(f"for i, j in T.Parallel(N, N, {given}):\n    B[i, j] = A[i, j]")
    (nest,) = (op for op in warp.walk_operations(result.program.roles[0].body) if isinstance(op, warp.Elementwise))
    for thread, register in ((0, 0), (1, 5), (77, 31)):
        first = Fragment(nest.layout.shape, (), nest.layout.threads).register_offset(thread)
        row, column = (a + b for a, b in zip(first, nest.layout.register_offset(register), strict=True))
        assert (row, column) == (thread // 2, thread % 2 * 32 + register)


@pytest.mark.parametrize(
    ("given", "is_asynchronous"),
    [
        ("", False),
        (", prefer_async=False", False),
        (", prefer_async=True", True),
        (', annotations={"parallel_prefer_async": True}', True),
        (', annotations={"parallel_async_without_async_commit_wait": True}', True),
        (', annotations={"parallel_async_without_async_commit_wait": True, "parallel_prefer_async": True}', True),
    ],
)
def test_a_nest_that_fills_a_tile_may_be_an_asynchronous_copy(given: str, is_asynchronous: bool) -> None:
    """Outside of pipelines too; and what reads the tile waits for it, whoever asked for what."""
    fill = f"for i, j in T.Parallel(N, N{given}):\n    a[i, j] = A[i, j]\nT.copy(a, B)"
    result = made(fill)
    assert ("cp.async" in result.ptx) == is_asynchronous
    assert emulate_agrees(result)


def test_vectors() -> None:
    """Of what one thread does, the vector loop's elements are one access."""
    nest = "for i, j in T.Parallel(N, N // 4):\n    for v in {}(4):\n        B[i, j * 4 + v] = A[i, j * 4 + v]"
    for name in ("T.vectorized", "T.Vectorized"):
        ptx = made(nest.format(name)).ptx
        assert set(re.findall(r"ld\.global\.nc(\.v\d)?", ptx)) == {".v4"}
    assert stored_at("for i in T.vectorized(2, 6):\n    S[i] = 7") == [2, 3, 4, 5]


def stored_at(body: str, n: int = 0) -> list[int]:
    """Where S is set to 7."""
    result = made(body)
    found = emulate.draw_arguments(result.kernel, result.manifest, 0)
    found.scalars["n"] = n
    found.tensors["S"][:] = 0
    emulate.emulate_build(result, found)
    return [int(at) for at in np.flatnonzero(found.tensors["S"] == 7)]


@pytest.mark.parametrize("n", [0, 1, 7, 8])
def test_extents_known_at_run_time_only(n: int) -> None:
    """Steps of a fixed number of iterations, of which those too many are skipped."""
    assert stored_at("for i in T.Parallel(n):\n    S[i] = 7", n) == [*range(n)]
    square = "for i, j in T.Parallel(n, n):\n    S[i * n + j] = 7"
    assert stored_at(square, n) == [*range(n * n)]
    assert stored_at("for i, j in T.Parallel(n, 8):\n    S[i * 8 + j] = 7", n) == [*range(8 * n)]


def emulate_agrees(result: Build) -> bool:
    found = emulate.draw_arguments(result.kernel, result.manifest, 0)
    expected = found.copy()
    emulate.emulate_build(result, found)
    emulate.run_reference(result.kernel, expected)
    return all(r.matches for r in emulate.compare_arguments(result.kernel, result.manifest, found, expected))


# ---- persistent loops ------------------------------------------------------------------------------------------------


def walked(domain: str, wave_size: int, index: str, *more: str) -> list[int]:
    """The tiles i·8 + j that a block visits, in their order."""
    loop = f"for x, y in T.Persistent({', '.join((domain, str(wave_size), index, *more))})"
    return noted(loop + ":\n    S[t] = x * 8 + y\n    t = t + 1")


def test_a_persistent_walk() -> None:
    assert walked("[2, 3]", 1, "0") == [0, 1, 2, 8, 9, 10]
    assert walked("[2, 3]", 4, "0") == [0, 9]  # every fourth
    assert walked("[2, 3]", 4, "1") == [1, 10]
    assert walked("[2, 3]", 4, "3") == [8]
    # Two columns of all rows, then the next two.
    assert walked("[2, 4]", 1, "0", "2") == [0, 1, 8, 9, 2, 3, 10, 11]
    assert walked("[2, 4]", 1, "0", "group_size=1") == [0, 8, 1, 9, 2, 10, 3, 11]
    assert walked("[2, 3]", 1, "0", "2") == [0, 1, 8, 9, 2, 10]  # the last group has a column less
    assert walked("(2, 3)", 1, "0", "100") == walked("[2, 3]", 1, "0")


# ---- pipelines -------------------------------------------------------------------------------------------------------


def pipeline(arguments: str) -> Build:
    return made(f"for i in T.Pipelined({arguments}):\n{COPY}")


def depth(arguments: str) -> int:
    return next(iter(pipeline(arguments).schedules[0].depth), 0)


def test_num_stages_is_the_most_versions() -> None:
    assert [depth(f"4, num_stages={n}") for n in (1, 2, 3)] == [1, 2, 3]
    assert depth("4") > 3  # as many as pay
    assert pipeline("4, num_stages=0").schedules == ()
    assert depth('4, annotations={"num_stages": 2}') == 2


def test_start_and_stop_of_a_pipeline() -> None:
    for arguments in ("4", "0, 4", "start=0, stop=4", "2, 4", "n, 4", "4, 2"):
        assert emulate_agrees(pipeline(f"{arguments}, num_stages=2")), arguments


def test_stage_and_order_are_the_schedule() -> None:
    schedule = pipeline("4, stage=[0, 2], order=[1, 0]").schedules[0]
    assert (schedule.stage, schedule.order, schedule.depth, schedule.status) == ((0, 2), (1, 0), (3,), "given")


def warnings(arguments: str) -> list[Diagnostic]:
    return [w for w in pipeline(arguments).warnings if w.code == "depth-override"]


def test_num_stages_beside_them_is_the_number_of_versions() -> None:
    assert depth("4, stage=[0, 1], order=[0, 1], num_stages=4") == 4
    (said,) = warnings("4, stage=[0, 1], order=[0, 1], num_stages=4")
    assert said.primary is not None and said.primary.text == "each tile has 4 versions, not the 2 that `stage` means"


def copies(kernel: Kernel) -> list[TileOp]:
    return [s for s in walk_statements(kernel.body) if isinstance(s, TileOp) and s.name == "copy"]


def test_the_loop_variable_of_a_pipeline_starts_where_it_says() -> None:
    first, _ = copies(pipeline("2, 4").kernel)
    loop = next(s for s in walk_statements(pipeline("2, 4").kernel.body) if isinstance(s, For))
    assert (loop.start, loop.stop) == (int32_const(2), int32_const(4)) and first.regions[0].start[0] != int32_const(0)
