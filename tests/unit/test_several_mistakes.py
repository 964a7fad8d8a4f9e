"""One mistake, one diagnostic; several mistakes, all of them in one run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError, Diagnostic, ErrorCollector, Label, raise_error
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile, Span

SAMPLES = sorted((Path(__file__).parents[2] / "samples").rglob("*.tl"))
DEFINITION = re.compile(r"^(\s*)(\w+(?:, \w+)*) = ")
STATEMENT = re.compile(r"^\s+T\.(copy|gemm|clear|fill|reduce_\w+)\(")


def tile_statements(text: str) -> list[int]:
    """The lines, from 0, that are calls of tile operations."""
    lines = enumerate(text.split("\n"))
    return [n for n, line in lines if STATEMENT.match(line) and line.count("(") == line.count(")")]


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    try:
        target = "sm_100a" if "T.tcgen05_" in text else "sm_90a"
        driver.check_file(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())
    except CompileError as error:
        assert error.diagnostics
        return error.diagnostics
    return ()


def broken(text: str) -> Iterator[tuple[int, str]]:
    """Each line that defines or does something, and the text with a mistake there."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        # A line of its own: what goes on in the next one is left alone.
        if lines[number - 1].count("(") != lines[number - 1].count(")"):
            continue
        if found := DEFINITION.match(line):
            changed = f"{found[1]}{found[2]} = no_such_thing"
        elif STATEMENT.match(line):
            changed = re.sub(r"\(.*\)", "(no_such_thing)", line, count=1)
        else:
            continue
        yield number, "\n".join([*lines[: number - 1], changed, *lines[number:]])


@pytest.mark.some(5)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_what_follows_from_a_mistake_is_not_reported(path: Path) -> None:
    reported = 0
    tried = list(broken(path.read_text(encoding="utf-8")))
    for line, text in tried[:: len(tried) // 6 or 1]:
        found = mistakes(text)
        shown = [(d.primary.span.line if d.primary else 0, d.code, d.title) for d in found]
        # Nothing, where a decision at compile time leaves the line out.
        assert [s[:2] for s in shown] in ([(line, "unknown-name")], []), shown
        reported += len(shown)
    assert reported


@pytest.mark.parametrize(
    "path",
    [p for p in SAMPLES if len(tile_statements(p.read_text(encoding="utf-8"))) > 2][:12],
    ids=lambda path: path.stem,
)
def test_all_mistakes_are_found(path: Path) -> None:
    """But those in what a decision at compile time leaves out."""
    text = path.read_text(encoding="utf-8")
    does, lines = tile_statements(text), text.split("\n")
    for number in does:
        lines[number] = re.sub(r"\(.*\)", f"(missing_{number})", lines[number], count=1)
    found = mistakes("\n".join(lines))
    reached = {d.primary.span.line - 1 for d in found if d.primary}
    assert reached <= set(does) and len(found) == len(reached)
    assert len(reached) > len(does) / 2


# ---- behind the front end --------------------------------------------------------------------------------------------

SIGNATURE = 'A: T.Tensor((512, 64), "float16"), C: T.Tensor((512, 64), "float32"), D: T.Tensor((64,), "float64")'
TILES = """\
a{n} = T.alloc_shared((32, 32), "float16")
b{n} = T.alloc_shared((32, 32), "float16")
c{n} = T.alloc_fragment((32, 32), "float32")
T.clear(c{n})
"""
LOOP = """
for k{n} in T.Pipelined(8, {lists}):
    T.copy(A[k{n} * 32, 0], a{n})
    T.copy(A[k{n} * 32, 0], b{n})
    T.gemm(a{n}, b{n}, c{n})
T.copy(c{n}, C[0, 0])
"""


def loop(lists: str) -> str:
    return TILES + LOOP.replace("{lists}", lists)


# Each is wrong in one way, in one statement or loop, and has tiles of its own.
INDEPENDENT = {
    "gemm shape": """
p{n} = T.alloc_shared((24, 32), "float16")
q{n} = T.alloc_shared((32, 32), "float16")
r{n} = T.alloc_fragment((24, 32), "float32")
T.copy(A[0:24, 0:32], p{n})
T.copy(A[0:32, 0:32], q{n})
T.clear(r{n})
T.gemm(p{n}, q{n}, r{n})
T.copy(r{n}, C[0, 0])
""",
    "gemm of a part": TILES
    + """
T.copy(A[0:32, 0:32], a{n})
T.gemm(a{n}[0:16, :], b{n}, c{n}[0:16, :])
""",
    "gemm in a pipeline": loop("num_stages=2")
    .replace("a{n} = T.alloc_shared((32", "a{n} = T.alloc_shared((24")
    .replace("fragment((32", "fragment((24"),
    "sum of a part": TILES
    + """
s{n} = T.alloc_fragment((16,), "float32")
T.reduce_sum(c{n}[0:16, :], s{n}, dim=1)
""",
    "function of float64": """
for i in T.Parallel(64):
    D[i] = T.exp(D[i])
""",
    "elements of other threads": TILES
    + """
for i, j in T.Parallel(32, 32):
    c{n}[i, j] = c{n}[i, j] + 1
    c{n}[i, j] = c{n}[j, i] + c{n}[i, j]
""",
    "layout of a nest": """
for i, j in T.Parallel(32, 32, loop_layout=T.Fragment((32, 32), forward_fn=lambda i, j: (i, 0))):
    C[i, j] = 1
""",
    "layout of a tile, for wgmma": """
e{n} = T.alloc_shared((64, 64), "float16")
f{n} = T.alloc_fragment((64, 64), "float32")
T.annotate_layout({{e{n}: tilelang.layout.make_linear_layout(e{n})}})
T.copy(A[0:64, :], e{n})
T.gemm(e{n}, e{n}, f{n}, clear_accum=True)
T.copy(f{n}, C[0, 0])
""",
    "atomic by TMA": TILES
    + """
T.copy(A[0:32, 0:32], a{n})
T.atomic_add(C[0, 0], a{n}, use_tma=True)
""",
    "asynchronous conversion": """
g{n} = T.alloc_shared((32, 32), "float16")
h{n} = T.alloc_fragment((32, 32), "float32")
for k{n} in T.serial(8, annotations={{"software_pipeline_stage": [0, 1], "software_pipeline_order": [0, 1],
                                      "software_pipeline_async_stages": [0]}}):
    T.copy(C[k{n} * 32, 0], g{n})
    T.gemm(g{n}, g{n}, h{n})
T.copy(h{n}, C[0, 0])
""",
    "barrier of some": "T.sync_threads(1, 64)\n",
    "stages the wrong way": loop("order=[0, 1, 2], stage=[1, 1, 0]"),
    "one producer too late": loop("order=[0, 2, 1], stage=[0, 1, 0]"),
    "order twice": loop("order=[0, 1, 1], stage=[0, 0, 1]"),
    "negative stage": loop("order=[0, 1, 2], stage=[0, -1, 1]"),
    "lists too short": loop("order=[0, 1], stage=[0, 1]"),
    "wait for a later one": loop("order=[0, 1, 2], stage=[0, 0, 1], sync=[[], [2], [0, 1]]"),
    "two groups": loop("order=[0, 1, 2], stage=[0, 0, 1], group=[[0, 1], [1]]"),
    "group of two stages": loop("order=[0, 1, 2], stage=[0, 1, 2], group=[[0, 1]]"),
}


def kernel_of(body: str, name: str = "kernel") -> str:
    lines = "\n        ".join(body.split("\n"))
    return f"@T.prim_func\ndef {name}({SIGNATURE}):\n    with T.Kernel(1, threads=128) as bx:\n        {lines}\n"


def file_of(*kernels: str) -> str:
    return "import tilelang\nimport tilelang.language as T\n\n" + "\n".join(kernels)


def said(text: str, target: str = "sm_90a") -> list[tuple[str, str]]:
    """Code and title of what `tilec check` says, in the order of the text."""
    try:
        driver.check_file(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())
    except CompileError as error:
        return [(d.code, d.title) for d in error.diagnostics]
    return []


@pytest.mark.parametrize(("target", "unharmed"), [("sm_80", ["layout of a tile, for wgmma"]), ("sm_90a", [])])
def test_every_mistake_behind_the_front_end_is_found_in_one_run(target: str, unharmed: list[str]) -> None:
    bodies = [body.format(n=f"_{n}") for n, body in enumerate(INDEPENDENT.values())]
    alone = [said(file_of(kernel_of(body)), target) for body in bodies]
    assert all(len(found) <= 1 for found in alone), alone
    assert [n for n, found in zip(INDEPENDENT, alone, strict=True) if not found] == unharmed
    expected = [found[0] for found in alone if found]
    assert said(file_of(kernel_of("\n".join(bodies))), target) == expected
    several = [kernel_of(body, f"kernel_{n}") for n, body in enumerate(bodies)]
    assert said(file_of(*several), target) == expected


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_build_finds_what_a_check_does(name: str) -> None:
    bodies = [INDEPENDENT[name].format(n="_0"), INDEPENDENT["gemm shape"].format(n="_1")]
    text = file_of(kernel_of("\n".join(bodies)))
    with pytest.raises(CompileError) as raised:
        driver.build_kernel(SourceFile("k.tl", text), CompileOptions(), driver.Observer())
    assert [(d.code, d.title) for d in raised.value.diagnostics] == said(text)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_typing_error_does_not_hide_what_else_is_wrong(name: str) -> None:
    body = INDEPENDENT[name].format(n="_0")
    alone = said(file_of(kernel_of(body)))
    assert said(file_of(kernel_of("T.cler(C)", "first"), kernel_of(body, "second")))[1:] == alone
    if name == "elements of other threads":
        alone = []  # what is missing could be what says which threads have them
    assert said(file_of(kernel_of("T.cler(C)\n" + body)))[1:] == alone


def test_several_mistakes_in_the_lists_of_one_loop() -> None:
    lists = "num_stages=-1, order=[0, 1, 1], stage=[0, -1, 1], group=[[0, 1], [1]], sync=[[], [2], [1, 2]]"
    found = [title for _, title in said(file_of(kernel_of(loop(lists).format(n="_0"))))]
    assert found == [
        "T.Pipelined: num_stages must not be negative",
        "two statements have the same number in `order`",
        "`stage` must not hold negative numbers",
        "a statement is in two groups",
        "statement 1 cannot wait for statement 2",
    ]


def test_two_misplaced_statements_of_a_loop() -> None:
    """Each is told with the first dependence that it breaks, not with all of them."""
    body = """
x = T.alloc_shared((64, 64), "float16")
y = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
d = T.alloc_fragment((64, 64), "float32")
for k in T.Pipelined(8, order=[0, 1, 2, 3, 4, 5], stage=[1, 0, 0, 1, 0, 0]):
    T.copy(A[k * 64, 0], x)
    T.gemm(x, x, c)
    T.gemm(x, x, c)
    T.copy(A[k * 64, 0], y)
    T.gemm(y, y, d)
    T.gemm(y, y, d)
T.copy(c, C[0, 0])
T.copy(d, C[64, 0])
"""
    assert [code for code, _ in said(file_of(kernel_of(body)))] == ["schedule-order", "schedule-order"]


def test_an_outer_pipeline_is_judged_too() -> None:
    body = """
a = T.alloc_shared((64, 64), "float16")
b = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
for o in T.Pipelined(4, order=[0, 1, 2], stage=[0, 1, 0]):
    T.clear(c)
    for k in T.Pipelined(8, num_stages=2):
        T.copy(A[k * 64, 0], a)
        T.copy(A[k * 64, 0], b)
        T.gemm(a, b, c)
    T.copy(c, C[o * 64, 0])
"""
    ((code, title),) = said(file_of(kernel_of(body)))
    assert code == "schedule-order" and "a dependence through c" in title


def test_no_more_than_twenty() -> None:
    collected = ErrorCollector()
    for line in range(30, 0, -1):
        with collected.caught():
            raise_error("unknown-name", "nothing", Span(line, 1, line, 2), "here")
        with collected.caught():
            raise_error("unknown-name", "again", Span(line, 1, line, 2), "here")
    with pytest.raises(CompileError) as raised:
        collected.end()
    found = raised.value.diagnostics
    assert [d.primary for d in found] == [Label(Span(n, 1, n, 2), "here") for n in range(1, 21)]
    assert found[-1].notes == ("10 more errors are not shown",)
    assert {d.title for d in found} == {"nothing"}


def test_without_mistakes_nothing_happens() -> None:
    collected = ErrorCollector()
    with collected.caught():
        pass
    collected.end()
