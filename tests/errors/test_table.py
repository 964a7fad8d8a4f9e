"""The mistakes in pipelined loops that TileLang 0.1.15 was probed with, one row each, and what is said about them here.

There, most end in a failed check of the compiler, some with a page of its IR, many without the line; some are accepted
and mean something else on each GPU, or nothing. Here each is one diagnostic on the text that is wrong, the same for
every target, or it works: `tests/kernels/test_upstream.py` runs those of the table that once gave wrong results.
"""

from __future__ import annotations

import dataclasses

import pytest

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """\
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((512, 64), "float16"), Ids: T.Tensor((512,), "int32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        {loop}
            {body}
        T.copy(c, C)
"""
GEMM = ("T.copy(A[k * 64, 0], a)", "T.copy(A[k * 64, 0], b)", "T.gemm(a, b, c)")
BIND = ("T.copy(A[k * 64, 0], a)", "value = a[0, 0]", "for i, j in T.Parallel(64, 64):\n    c[i, j] += value")
ADDRESS = ("row = k * 64", "T.copy(A[row, 0], a)", "T.copy(A[row, 0], b)", "T.gemm(a, b, c)")


@dataclasses.dataclass(frozen=True)
class Row:
    """`blamed` is the text under the carets, `also` the text under the other marks; `said` stands somewhere."""

    name: str
    lists: str
    code: str
    blamed: str
    said: str
    also: tuple[str, ...] = ()
    body: tuple[str, ...] = GEMM


TABLE = (
    Row("duplicate order", "order=[0, 1, 1], stage=[0, 0, 1]", "manual-schedule", "order=[0, 1, 1]", "1 appears twice"),
    Row("list length wrong", "order=[0, 1], stage=[0, 1]", "manual-schedule", "stage=[0, 1]", "2 entries"),
    Row("stage shorter than order", "order=[0, 1, 2], stage=[0, 1]", "manual-schedule", "stage=[0, 1]", "2 entries"),
    Row("order shorter than stage", "order=[0, 1], stage=[0, 0, 1]", "manual-schedule", "order=[0, 1]", "2 entries"),
    Row(
        "producer stage after consumer", "order=[0, 1, 2], stage=[1, 1, 0]", "schedule-order", "T.gemm(a, b, c)",
        "stage 0", also=("T.copy(A[k * 64, 0], a)",),
    ),
    Row(
        "same stage, order reversed", "order=[1, 2, 0], stage=[0, 0, 0]", "schedule-order", "T.gemm(a, b, c)",
        "must come first", also=("T.copy(A[k * 64, 0], a)",),
    ),
    Row(
        "scheduled bind used from another stage", "order=[0, 1, 2], stage=[0, 0, 1]", "bind-stage",
        "for i, j in T.Parallel(64, 64):", "`value`", also=("value = a[0, 0]",), body=BIND,
    ),
    Row(
        "scheduled bind omitted", "order=[0, 1], stage=[0, 1]", "manual-schedule", "stage=[0, 1]",
        "needs an entry: it reads a", body=BIND,
    ),
    Row("only order", "order=[0, 1, 2]", "manual-schedule", "order=[0, 1, 2]", "`order` without `stage`"),
    Row("only stage", "stage=[0, 0, 1]", "manual-schedule", "stage=[0, 0, 1]", "`stage` without `order`"),
    Row("negative stage", "order=[0, 1, 2], stage=[-1, 0, 1]", "manual-schedule", "stage=[-1, 0, 1]", "negative"),
    Row("negative num_stages", "num_stages=-2", "wrong-argument", "num_stages=-2", "must not be negative"),
)  # fmt: skip


def text_of(lists: str, body: tuple[str, ...] = GEMM, loop: str = "for k in T.Pipelined(8, {lists}):") -> str:
    lines = "\n".join(body).replace("\n", "\n" + " " * 12)
    return KERNEL.format(loop=loop.format(lists=lists), body=lines)


def found(text: str, target: str) -> tuple[Diagnostic, ...]:
    """What `tilec check` says."""
    try:
        driver.check_file(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())
    except CompileError as error:
        return error.diagnostics
    return ()


def marked(text: str, diagnostic: Diagnostic) -> list[str]:
    """The texts that a diagnostic marks, its primary one first; of several lines the first."""
    labels = [label for label in (diagnostic.primary, *diagnostic.secondary) if label]
    lines = text.split("\n")
    return [
        lines[s.line - 1][s.column - 1 : s.end_column - 1 if s.end_line == s.line else None]
        for s in (label.span for label in labels)
    ]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_mistake_is_shown_where_it_is(row: Row, target: str) -> None:
    text = text_of(row.lists, row.body)
    (diagnostic,) = found(text, target)
    assert diagnostic.code == row.code
    first, *others = marked(text, diagnostic)
    assert row.blamed in first or first in row.blamed
    assert set(row.also) <= set(others)
    said = [diagnostic.title, *diagnostic.notes, diagnostic.help or ""]
    said += [label.text for label in (diagnostic.primary, *diagnostic.secondary) if label]
    assert row.said in "\n".join(said)
    assert len("\n".join(said)) < 600, "no pages of IR"


def test_a_legacy_slot_for_an_integer_bind() -> None:
    """There the length message, as the bind is gone by then. Here it works, with a word that it is not needed."""
    observer = driver.Observer()
    text = text_of("order=[0, 1, 2, 3], stage=[0, 0, 0, 1]", ADDRESS)
    driver.check_file(SourceFile("k.tl", text), CompileOptions(silenced=("unused-parameter",)), observer)
    assert [w.code for w in observer.warnings] == ["legacy-schedule"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_order_may_have_gaps(target: str) -> None:
    """There accepted too: only which number is larger counts."""
    assert found(text_of("order=[0, 4, 9], stage=[0, 0, 1]"), target) == ()


def test_pipelined_in_parallel_has_its_line() -> None:
    """There a clear text without a place."""
    text = text_of("", ("for k in T.Pipelined(8):", "    c[i, k] = 0.0"), "for i in T.Parallel(8):")
    (diagnostic,) = found(text, "sm_80")
    assert diagnostic.code == "loop-in-parallel"
    assert marked(text, diagnostic)[0] == "T.Pipelined(8)"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_more_stages_than_shared_memory_holds(target: str) -> None:
    """There accepted, and the launch fails: `num_stages` is the most, and as many are taken as fit."""
    source = SourceFile("k.tl", text_of("num_stages=18"))
    made = driver.build_kernel(source, CompileOptions(target=target), driver.Observer())
    assert made.manifest.dynamic_smem <= {"sm_80": 163 * 1024, "sm_90a": 227 * 1024}[target]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_num_stages_with_a_schedule_means_the_same_everywhere(target: str) -> None:
    """There the schedule is kept on one GPU and dropped on the other."""
    source = SourceFile("k.tl", text_of("num_stages=3, order=[0, 1, 2], stage=[0, 0, 1]"))
    plan = driver.plan_kernel(source, CompileOptions(target=target), driver.Observer())
    (schedule,) = (loop.solution.schedule for loop in plan.loops)
    assert schedule.stage == (0, 0, 1)
    assert set(schedule.depth) == {3}
