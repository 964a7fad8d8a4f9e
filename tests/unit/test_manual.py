"""What can be asked of a pipelined loop by hand, beside stage and order: groups, asynchronous copies, depths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stages import assignment, problems

from tilec.driver.build import Observer, load_kernel
from tilec.ir.tile import Bind, For, Kernel, Parallel, TileOp, walk_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.annotate import build_manual_schedule
from tilec.passes.loop.build_problem import LoopProblem
from tilec.sched.verify import find_violations
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Make = Callable[..., Kernel]

PARAMS = 'A: T.Tensor((512, 64), "float16"), B: T.Tensor((512,), "float32"), n: T.int32'
TWO = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined(8, {lists}):
    T.copy(A[k * 64, 0], s)
    T.copy(A[k * 64, 0], t)
    T.gemm(s, t, c)
"""
RAW = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((128,), "float32")
d = T.alloc_fragment((128,), "float32")
c = T.alloc_fragment((64, 64), "float32")
for k in T.serial(0, 4, annotations={{
    "software_pipeline_stage": [0, 0, 1, 1], "software_pipeline_order": [0, 1, 2, 3], {more}}}):
    T.copy(A[k * 64, 0], s)
    for i in T.Parallel(128):
        t[i] = B[k * 128 + i]
    T.copy(t, d)
    T.gemm(s, s, c)
"""


def selected(kernel: Kernel, target: str = "sm_80") -> LayoutAssignment:
    return assignment(kernel, target).assignment


def problem(kernel: Kernel, target: str = "sm_80") -> LoopProblem:
    (found,) = problems(kernel, target).problems
    return found


def mechanisms(kernel: Kernel) -> list[str]:
    """How each statement of the loop that fills a tile works."""
    (loop,) = (s for s in selected(kernel).kernel.body if isinstance(s, For))
    found = []
    for stmt in loop.body[:2]:
        assert isinstance(stmt, TileOp | Parallel)
        found.append(str(stmt.via) if isinstance(stmt, TileOp) else "nest")
    return found


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ["cp_async", "nest"]),
        ('"software_pipeline_async_stages": [0]', ["cp_async", "cp_async"]),
        ('"software_pipeline_async_stages": [1]', ["registers", "nest"]),
        ('"software_pipeline_async_producers": [1, 0, 0, 0]', ["cp_async", "nest"]),
        ('"software_pipeline_async_producers": [0, 1, 0, 0]', ["registers", "cp_async"]),
        ('"software_pipeline_async_producers": [False, False, False, False]', ["registers", "nest"]),
    ],
)
def test_asynchronous_is_what_is_asked_to_be(body: Make, more: str, expected: list[str]) -> None:
    assert mechanisms(body(RAW.format(more=more), PARAMS)) == expected


def test_a_copy_that_must_be_synchronous_needs_no_role_of_its_own(body: Make) -> None:
    asked = '"software_pipeline_stage": [0, 0, 1], "software_pipeline_order": [0, 1, 2]'
    for flags, form in (
        ("", "warp_specialised"),
        (', "software_pipeline_async_producers": [1, 0, 0]', "unspecialised"),
    ):
        text = TWO.format(lists=f"annotations={{{asked}{flags}}}")
        assert selected(body(text, PARAMS), "sm_90a").form == form


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("lists", "rings"),
    [
        ("", ["s+t"]),
        (", group=[[0, 1]]", ["s+t"]),
        (", group=[[0], [1]]", ["s", "t"]),
        (", group=[[0, 1], [2]]", ["s+t"]),
        (", group=[[1]]", ["s", "t"]),
    ],
)
def test_a_group_fills_a_ring(body: Make, lists: str, rings: list[str], target: str) -> None:
    found = problem(body(TWO.format(lists=f"stage=[0, 0, 1], order=[0, 1, 2]{lists}"), PARAMS), target)
    assert [r.name for r in found.problem.rings] == rings
    assert build_manual_schedule(found) is not None


def test_raw_groups_are_groups(body: Make) -> None:
    asked = '"software_pipeline_stage": [0, 0, 1], "software_pipeline_order": [0, 1, 2], '
    producers = '"software_pipeline_async_producers": [1, 1, 0], "software_pipeline_async_producer_groups": [0, 1, -1]'
    found = problem(body(TWO.format(lists=f"annotations={{{asked}{producers}}}"), PARAMS))
    assert [r.name for r in found.problem.rings] == ["s", "t"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("lists", "depth"),
    [
        ("stage=[0, 0, 1], order=[0, 1, 2]", 2),
        ("stage=[0, 1, 3], order=[0, 1, 2]", 4),
        ("stage=[0, 0, 1], order=[0, 1, 2], num_stages=2", 2),
        ("stage=[0, 0, 1], order=[0, 1, 2], num_stages=5", 5),
        ("stage=[0, 0, 2], order=[0, 1, 2], num_stages=3", 3),
        # The readers of an iteration are done before the producers fill their version again.
        ("stage=[0, 0, 1], order=[1, 2, 0], num_stages=1", 1),
        ("stage=[0, 0, 3], order=[1, 2, 0], num_stages=3", 3),
    ],
)
def test_depth(body: Make, lists: str, depth: int, target: str) -> None:
    found = problem(body(TWO.format(lists=lists), PARAMS), target)
    schedule = build_manual_schedule(found)
    assert schedule is not None and schedule.depth == (depth,)
    assert list(find_violations(found.problem, schedule)) == []


@pytest.mark.parametrize(
    "lists",
    [
        "stage=[0, 0, 1], order=[0, 1, 2], num_stages=1",
        "stage=[0, 0, 3], order=[1, 2, 0], num_stages=2",
        "stage=[0, 0, 3], order=[0, 1, 2], num_stages=3",
    ],
)
def test_too_few_versions(body: Make, lists: str) -> None:
    with pytest.raises(CompileError) as raised:
        build_manual_schedule(problem(body(TWO.format(lists=lists), PARAMS)))
    assert [d.code for d in raised.value.diagnostics] == ["schedule-depth"]


def warned(lists: str, statements: str) -> list[Diagnostic]:
    text = f"""import tilelang.language as T
@T.prim_func
def kernel({PARAMS}):
    with T.Kernel(1, threads=128) as bx:
        t = T.alloc_shared((128,), "float32")
        for k in T.Pipelined(4, {lists}):
{statements}"""
    observer = Observer()
    kernel = load_kernel(SourceFile("kernel.tl", text), CompileOptions(), observer)
    assert any(isinstance(s, For) for s in walk_statements(kernel.body))
    return [w for w in observer.warnings if w.code != "unused-parameter"]


COPY = """            T.copy(B[{at}], t)
            for i in T.Parallel(128):
                B[{other} + i] = t[i]
"""


@pytest.mark.parametrize(
    ("lists", "binds", "at", "other", "codes"),
    [
        ("stage=[0, 1], order=[0, 1]", ["row = k * 128"], "row", "row", []),
        ("stage=[5, 0, 1], order=[9, 0, 1]", ["row = k * 128"], "row", "row", ["legacy-schedule"]),
        # Only one statement uses it: nothing is in doubt.
        ("stage=[5, 0, 1], order=[9, 0, 1]", ["row = k * 128"], "row", "0", []),
        # Through another bind, both do.
        (
            "stage=[5, 5, 0, 1], order=[8, 9, 0, 1]",
            ["row = k * 128", "after = row + 3"],
            "row",
            "after",
            ["legacy-schedule"],
        ),
        ("stage=[0, 1], order=[0, 1], num_stages=2", ["row = k * 128"], "row", "row", ["depth-override"]),
        ("stage=[0, 1], order=[0, 1], sync=[[], [0]]", ["row = k * 128"], "row", "row", []),
        ("stage=[0, 1], order=[0, 1], sync=[[], []]", ["row = k * 128"], "row", "row", ["sync-incomplete"]),
        ("num_stages=2", ["row = k * 128"], "row", "row", []),
        ("stage=[0, 1], order=[0, 1], num_stages=0", ["row = k * 128"], "row", "row", []),
        # A name for a name is a bind too.
        ("stage=[5, 0, 1], order=[9, 0, 1]", ["row: T.int32 = k"], "row", "row", ["legacy-schedule"]),
    ],
)
def test_warnings(lists: str, binds: list[str], at: str, other: str, codes: list[str]) -> None:
    text = "".join(f"            {b}\n" for b in binds) + COPY.format(at=at, other=other)
    assert [d.code for d in warned(lists, text)] == codes


def test_the_legacy_warning_shows_what_to_write() -> None:
    (found,) = warned(
        "stage=[3, 0, 1], order=[1, 2, 0]", "            row = k * 128\n" + COPY.format(at="row", other="row")
    )
    assert found.help == "write stage=[0, 1], order=[1, 0]"
    assert [label.span.line for label in found.secondary] == [7, 8, 9]


def test_the_legacy_warning_shows_all_lists_as_they_are_written() -> None:
    lists = {"stage": [3, 0, 1], "order": [1, 2, 0], "async_producers": [0, 1, 0], "async_producer_groups": [-1, 0, -1]}
    raw = ", ".join(f'"software_pipeline_{name}": {entries}' for name, entries in lists.items())
    (found,) = warned(f"annotations={{{raw}}}", "            row = k * 128\n" + COPY.format(at="row", other="row"))
    shorter = {"stage": [0, 1], "order": [1, 0], "async_producers": [1, 0], "async_producer_groups": [0, -1]}
    assert found.help == "write " + ", ".join(f'"software_pipeline_{name}": {e}' for name, e in shorter.items())


@pytest.mark.parametrize("head", ["T.Pipelined(n)", "T.Pipelined(n, stage=[0], order=[0])"])
def test_a_loop_of_binds_only_has_nothing_to_overlap(body: Make, head: str) -> None:
    made = body(f"for k in {head}:\n    base = k * 64", PARAMS)
    (loop,) = (s for s in made.body if isinstance(s, For))
    assert (loop.num_stages, loop.stage) == ((None, None) if "stage" not in head else (0, None))


@pytest.mark.parametrize(
    "lists",
    [
        "stage=[], order=[]",
        "order=[], stage=None, sync=[], group=[]",
        'annotations={"software_pipeline_stage": [], "software_pipeline_order": []}',
    ],
)
def test_an_empty_list_is_none(body: Make, lists: str) -> None:
    text = "t = T.alloc_shared((128,), 'float32')\nfor k in T.Pipelined(4, num_stages=3, {}):\n"
    text += "    T.copy(B[k * 128], t)\n    T.copy(t, B[k * 128])"
    made = body(text.format(lists), PARAMS)
    (loop,) = (s for s in made.body if isinstance(s, For))
    assert (loop.num_stages, loop.stage, loop.order, loop.scheduling_hints) == (3, None, None, None)


def test_no_stages_beside_lists_is_the_default(body: Make) -> None:
    text = "t = T.alloc_shared((128,), 'float32')\nfor k in T.Pipelined(0, 4, 0, [1, 0], [0, 1]):\n"
    made = body(text + "    T.copy(B[k * 128], t)\n    T.copy(t, B[k * 128])", PARAMS)
    (loop,) = (s for s in made.body if isinstance(s, For))
    assert (loop.num_stages, loop.stage, loop.order) == (None, (0, 1), (1, 0))


NAMES = """
tx = T.get_thread_binding(0)
t = T.alloc_shared((128,), "float32")
for k in T.Pipelined(4, stage={stage}, order={order}):
    {names}
    t[tx] = B[place]
    C[place] = t[tx]
"""


@pytest.mark.parametrize(
    ("names", "stage", "order"),
    [
        # What differs from thread to thread is put in where it is used.
        (["place = k * 128 + tx"], [7, 0, 1], [9, 4, 2]),
        (["place: T.int32 = k * 128 + tx"], [7, 0, 1], [9, 4, 2]),
        (["place = k * 128 + tx"], [0, 1], [1, 0]),
        # One bind, and one name: entries for none, for the bind, or for both.
        (["row = k * 128", "place = row + tx"], [0, 1], [1, 0]),
        (["row = k * 128", "place = row + tx"], [7, 0, 1], [3, 2, 1]),
        (["row = k * 128", "place = row + tx"], [7, 7, 0, 1], [3, 2, 1, 0]),
        (["other = k", "place = other * 128 + tx"], [5, 7, 0, 1], [5, 6, 3, 2]),
        (["step: T.int32 = 128", "place = k * step + tx"], [5, 7, 0, 1], [5, 6, 3, 2]),
        (["step, place = k, k * 128 + tx"], [5, 7, 0, 1], [5, 6, 3, 2]),
        # A constant of Python is no statement anywhere.
        (["step = 128", "place = k * step + tx"], [7, 0, 1], [5, 3, 2]),
    ],
)
def test_names_may_have_entries(body: Make, names: list[str], stage: list[int], order: list[int]) -> None:
    text = NAMES.format(names="\n    ".join(names), stage=stage, order=order)
    made = body(text, PARAMS + ', C: T.Tensor((512,), "float32")')
    (loop,) = (s for s in made.body if isinstance(s, For))
    assert (loop.stage, loop.order) == ((0, 1), (1, 0))
    assert [type(s) for s in loop.body if not isinstance(s, Bind)] == [Parallel, Parallel]


def test_names_inside_a_statement_have_no_entries(body: Make) -> None:
    inner = "place = k * 128 + tx\n    if tx < 64:\n        other = place + 64"
    text = NAMES.format(names=inner + "\n        C[other] = 0.0", stage=[7, 0, 0, 1], order=[7, 0, 1, 2])
    made = body(text, PARAMS + ', C: T.Tensor((512,), "float32")')
    (loop,) = (s for s in made.body if isinstance(s, For))
    assert (loop.stage, loop.order) == ((0, 0, 1), (0, 1, 2))


AMONG = """            {}
            T.copy(A[k * 64, 0], s)
            {}
            for i, j in T.Parallel(64, 64):
                B[k * 64 + i] = T.cast(s[i, 0], "float32")
            {}
"""
GIVEN = {"expression": "at = k * 64", "constant": "at: T.int32 = 64", "another name": "at = k", "thread": "at = k + tx"}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("entry", range(3))
def test_the_entry_of_a_name_is_the_one_at_its_place(body: Make, name: str, place: int, entry: int) -> None:
    """Entries are matched to the statements as they are written, names among them: of three entries, the name's own is
    dropped, and no other, whatever they hold. One that puts the load behind what reads it is refused."""
    lists = [[0, 9], [1, 11]]
    lists.insert(entry, [5, 10])
    stage, order = zip(*lists, strict=True)
    written = ["pass"] * 3
    written[place] = GIVEN[name]
    text = 'tx = T.get_thread_binding()\ns = T.alloc_shared((64, 64), "float16")\n'
    text += f"for k in T.Pipelined(8, stage={list(stage)}, order={list(order)}):\n"
    text += "".join(line[8:] + "\n" for line in AMONG.format(*written).splitlines())
    (loop,) = (s for s in walk_statements(body(text, PARAMS).body) if isinstance(s, For) and s.stage is not None)
    kept = [value for at, value in enumerate(stage) if at != place]
    assert loop.stage == tuple(kept)
    found = problem(body(text, PARAMS))
    if kept[0] <= kept[1]:
        schedule = build_manual_schedule(found)
        assert schedule is not None and schedule.stage == tuple(kept)
        return
    with pytest.raises(CompileError) as raised:
        build_manual_schedule(found)
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "schedule-order" and f"stage {kept[1]}" in diagnostic.primary.text
