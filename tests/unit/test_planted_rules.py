"""Rules of the compiler taken away, one at a time: whatever it makes or accepts then, some check of ours notices.

Mistakes in PTX are planted in `tests/emu/test_mistakes.py`, those of warp programs in `mutants.py`, of the solver in
`tests/sched/test_anchor.py`; here are refusals, prices and what is kept from code generation.

| rule taken away                                             | what notices                                        |
|-------------------------------------------------------------|-----------------------------------------------------|
| accesses of a tensor depend on one another where they meet  | numbers differ, or the verifier of warp programs    |
| threads own elements only where indices say so              | the verifier of warp programs                       |
| roles of a pipeline acquire equally many stages             | the emulator: no thread can go on                   |
| indices have 32 bits                                        | the verifier of tile IR                             |
| memory is taken over only by what is written before read    | the verifier of warp programs                       |
| a tile operation's attributes are held against their types  | a later pass ends in an error of Python             |
| a made problem is held against its types and ranges         | the solver ends in an error of Python               |
| a load through registers holds its role                     | its price is less than the machine needs            |
| what a loop only reads is waited for in front of it         | waits in each iteration                             |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import test_sync_loops as loops
from test_statement_price import ADD_C, first_op, loading

from tilec.analysis.tensor_regions import RegionAnalysis
from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.frontend.sema.expressions import evaluate
from tilec.ir.tile import Expr, Kernel
from tilec.ops import form
from tilec.passes.loop.price import statement_price
from tilec.passes.lower import insert_sync as sync
from tilec.passes.lower.waits import numbered
from tilec.passes.lower.waits.tensor_areas import Owner
from tilec.passes.memory import shared_reuse
from tilec.sched import check
from tilec.sched.problem import Op, Problem, Slot, Use
from tilec.sched.solve import solve_problem
from tilec.support.diagnostics import CompileError, InternalError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Make = Callable[..., Kernel]
Patch = pytest.MonkeyPatch


def made(params: str, text: str, target: str = "sm_80", threads: int = 128) -> Build:
    head = f"import tilelang.language as T\n@T.prim_func\ndef kernel({params}):\n"
    head += f"    with T.Kernel(1, threads={threads}):\n"
    lines = "".join(f"        {line}\n" for line in text.strip().splitlines())
    return build_kernel(SourceFile("kernel.tl", head + lines), CompileOptions(target=target), Observer())


def is_right(result: Build) -> bool:
    given = emulate.draw_arguments(result.kernel, result.manifest, 0)
    expected = given.copy()
    emulate.emulate_build(result, given, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(result.kernel, expected)
    return all(r.matches for r in emulate.compare_arguments(result.kernel, result.manifest, given, expected))


# ---- dependences -----------------------------------------------------------------------------------------------------


ROWS = """
s = T.alloc_shared((128,), "float32")
for k in T.Pipelined(6, stage=[0, 2], order=[0, 1]):
    T.copy(A[k * 128], s)
    for j in T.Parallel(128):
        A[(k + 1) * 128 + j] = s[127 - j] + 1.0"""


def test_tensors_without_dependences(monkeypatch: Patch) -> None:
    params = 'A: T.Tensor((1024,), "float32")'
    with pytest.raises(CompileError, match="schedule-order"):
        made(params, ROWS)
    monkeypatch.setattr(RegionAnalysis, "find_distance", lambda *_: None)
    assert not is_right(made(params, ROWS))


# ---- code ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["a neighbour's row", "rows that move", "other threads for the second nest"])
def test_threads_that_own_whatever_they_reach(form: str, monkeypatch: Patch) -> None:
    loops.made(loops.NEEDED[form], "sm_80")
    everybody = Owner((), ())
    monkeypatch.setattr(numbered, "find_owners", lambda op, fixed: {("Y", write): everybody for write in (False, True)})
    with pytest.raises(InternalError, match="on Y has no barrier after"):
        loops.made(loops.NEEDED[form], "sm_80")


def test_waits_that_are_not_hoisted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sync._RoleExecution, "wait_before_loop", lambda self, loop: None)
    assert loops.waits_in_loops(loops.made(loops.READS["counted"], "sm_80").program)


def test_indices_of_any_width(monkeypatch: Patch) -> None:
    def as_written(expr: Expr, ranges: object) -> Expr:
        return expr

    params, text = (
        'P: T.Tensor((4,), "int64"), A: T.Tensor((64,), "float32")',
        "for i in T.Parallel(4):\n    A[P[i]] = 1.0",
    )
    made(params, text)
    monkeypatch.setattr(evaluate, "as_index", as_written)
    with pytest.raises(InternalError, match="is int64"):
        made(params, text)


UNSET = """
a = T.alloc_shared((64, 64), "float16")
d = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
T.clear(c)
for k in T.Pipelined(4, num_stages=2):
    T.copy(A[k * 64, 0], a)
    T.gemm(a, a, c)
T.copy(d, A[256, 0])
T.copy(c, d)
T.copy(d, A[320, 0])"""


def test_memory_that_is_taken_over_unwritten(monkeypatch: Patch) -> None:
    params = 'A: T.Tensor((512, 64), "float16")'
    made(params, UNSET, "sm_90a")
    monkeypatch.setattr(shared_reuse, "is_written_first", lambda buffer, body: True)
    with pytest.raises(InternalError, match=r"reuses the memory of|reuses its memory|has no barrier"):
        made(params, UNSET, "sm_90a")


# ---- refusals --------------------------------------------------------------------------------------------------------

COUNTS = """
t = T.alloc_shared((32, 32), "float16")
pipe = T.InputTilePipeline(t, stages=2)
with T.ws(0):
    for i in T.serial(5):
        with pipe.producer().acquire() as tiles:
            T.copy(A, tiles.t)
with T.ws(1):
    for i in T.serial(6):
        with pipe.consumer().acquire() as tiles:
            T.copy(tiles.t, B)"""


def test_roles_that_count_differently(monkeypatch: Patch) -> None:
    params = 'A: T.Tensor((32, 32), "float16"), B: T.Tensor((32, 32), "float16")'
    with pytest.raises(CompileError, match="unbalanced-acquires"):
        made(params, COUNTS, "sm_90a", 256)
    for name in ("check_stage_counts", "check_barriers", "check_role_races"):
        monkeypatch.setattr(f"tilec.passes.explicit_roles.{name}.{name}", lambda: None)
    with pytest.raises(Fault, match="deadlock"):
        is_right(made(params, COUNTS, "sm_90a", 256))


@pytest.mark.parametrize("slot", [7, -9])
def test_problems_that_nobody_checks(slot: int) -> None:
    problem = Problem("one", (Op("a", (Use(0, 1),), 1, 1),), (), (Slot("unit"),))
    wrong = replace(problem, ops=(Op("a", (Use(slot, 1),), 1, 1),))
    assert list(check.find_problem_faults(problem)) == [] and list(check.find_problem_faults(wrong))
    with pytest.raises((IndexError, TypeError, ValueError)):
        solve_problem(wrong)


WRITTEN = """kernel kernel(A, B), blocks bx < 1, 128 threads
  global A: float32[64, 32]
  global B: float32[64]
  fragment f: float32[64, 32]
  fragment r: float32[64]

  copy A[:, :], f[:, :]
  reduce f[:, :], r[:], {attributes}
  copy r[:], B[:]
"""


def test_tile_operations_that_nobody_checks(monkeypatch: Patch) -> None:
    """Fields that are missing, or of another type, are none of an operation's: the reader makes it from its class."""
    text = WRITTEN.format(attributes="clear=True, dim=7, kind='sum'")
    source, options = SourceFile("k.tile", text), CompileOptions(target="sm_80")
    with pytest.raises(CompileError):
        build_kernel(source, options, Observer())
    monkeypatch.setattr(form, "_find_statement_violations", lambda stmt, kernel: ())
    with pytest.raises((KeyError, IndexError, ValueError, AssertionError, InternalError)):
        build_kernel(source, options, Observer())


# ---- prices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_loads_that_hold_nobody(body: Make, target: str, monkeypatch: Patch) -> None:
    text, needed = "T.copy(A[k, 0, 0], c)", loading(target, 64 * 64 * 4)
    assert first_op(body, text, target, ADD_C).issue >= needed
    monkeypatch.setattr(statement_price, "_count_load_cycles", lambda loads, chain: 0)
    assert first_op(body, text, target, ADD_C).issue < needed
