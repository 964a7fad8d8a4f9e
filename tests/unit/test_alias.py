"""The alias analysis of -O1: its text is still the kernel, and its tokens order everything that must stay in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tilec.analysis.analyse_aliases import AliasAnalysis, Token, analyse_aliases, print_alias_analysis
from tilec.analysis.usage import find_reads, find_writes
from tilec.driver import build as driver
from tilec.ir.read import read_kernel
from tilec.ir.tile import For, If, Kernel, While
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TESTS = Path(__file__).parents[1]
KERNELS = sorted([*(TESTS.parent / "samples").glob("*.tl"), *(TESTS / "kernels").glob("*.tl")])
every_kernel = pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.stem)


def analysed(path: Path) -> list[AliasAnalysis]:
    source = SourceFile(str(path), path.read_text())
    return [analyse_aliases(kernel) for kernel in driver.load_kernels(source, CompileOptions(), driver.Observer())]


@pytest.mark.some(40)
@every_kernel
def test_the_text_is_the_kernel(path: Path) -> None:
    for aliased in analysed(path):
        assert read_kernel(print_alias_analysis(aliased)) == aliased.kernel


@pytest.mark.some(40)
@every_kernel
def test_what_conflicts_is_ordered(path: Path) -> None:
    """By a chain of tokens, and nothing else is."""
    for aliased in analysed(path):
        check_order(aliased.tokens)


def check_order(tokens: Sequence[Token]) -> None:
    before: list[set[int]] = []
    for j, token in enumerate(tokens):
        before.append(set(token.after).union(*(before[i] for i in token.after)))
        if not isinstance(token.stmt, For | If | While):  # whose statements have tokens of their own
            assert list(token.reads) == sorted(b.name for b in find_reads(token.stmt))
            assert list(token.writes) == sorted(b.name for b in find_writes(token.stmt))
        for i in range(j):
            wrote, read = set(token.writes), set(token.reads)
            if set(tokens[i].writes) & (wrote | read) or set(tokens[i].reads) & wrote:
                assert i in before[j], (i, j)
        for i in token.after:
            names = {*tokens[i].reads, *tokens[i].writes} & {*token.reads, *token.writes}
            assert names & {*tokens[i].writes, *token.writes}


TEXT = """
s = T.alloc_shared((8, 64), "float16")
x = T.alloc_fragment((8, 64), "float16")
y = T.alloc_fragment((8, 64), "float16")
T.clear(y)
for k in T.Pipelined(n):
    T.copy(A[k * 8, 0], s)
    T.copy(s, x)
    for i, j in T.Parallel(8, 64):
        y[i, j] += x[i, j]
T.copy(y, B[0, 0])
"""


def test_what_an_iteration_leaves_to_the_next(body: Callable[..., Kernel]) -> None:
    """A tile with versions carries nothing; a sum, what is added to; a fragment that is filled anew, its place."""
    aliased = analyse_aliases(
        body(TEXT, 'A: T.Tensor((64, 64), "float16"), B: T.Tensor((8, 64), "float16"), n: T.int32')
    )
    assert [(g.buffer.name, g.loop is not None) for g in aliased.groups] == [
        ("A", False), ("B", False), ("s", True), ("x", False), ("y", False),
    ]  # fmt: skip
    assert [token.after for token in aliased.tokens] == [(), (), (1,), (0, 2), (3,)]
    assert [token.carried for token in aliased.tokens] == [(), (), (2, 3), (3,), ()]


def test_a_condition_is_read_in_each_iteration(body: Callable[..., Kernel]) -> None:
    """And what the body changes is there before the next; the bounds of a counted loop are read once."""
    text = "while A[0] < n:\n    for k in T.serial(A[1]):\n        for i in T.Parallel(1):\n            A[i] = A[i] + k"
    aliased = analyse_aliases(body(text, 'A: T.Tensor((2,), "int32"), n: T.int32'))
    assert [(type(t.stmt).__name__, t.reads, t.writes) for t in aliased.tokens] == [
        ("While", ("A",), ()), ("For", ("A",), ()), ("Parallel", ("A",), ("A",)),
    ]  # fmt: skip
    assert [token.after for token in aliased.tokens] == [(), (), (0, 1)]
    assert [token.carried for token in aliased.tokens] == [(2,), (2,), (2,)]
    assert "while A[0] < n:  # %0: reads A after the last iteration's %2\n" in print_alias_analysis(aliased)
