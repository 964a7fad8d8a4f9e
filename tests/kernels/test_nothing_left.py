"""Statements of which nothing is left once constants are computed: loops, nests, branches, roles, whole kernels."""

from __future__ import annotations

import pytest
from snippets import TARGETS, kernel, runs

PARAMS = 'A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32"), n: T.int32'
NEVER = "if bx % 1 == 1:\n    T.copy(A, B)"


def within(head: str, text: str) -> str:
    return f"{head}:\n" + "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))


EMPTY = {
    "branch": NEVER,
    "branches": within("if n > 2", NEVER) + within("else", NEVER),
    "loop": within("for j in T.serial(n)", NEVER),
    "loop of nothing": within("for j in T.serial(n)", "pass"),
    "loops": within("for j in T.serial(n)", within("for k in T.serial(n)", within("if k > j", NEVER))),
    "unrolled": within("for j in T.unroll(3)", NEVER),
    "nest": within("for i in T.Parallel(32)", within("if i % 1 == 1", "B[i] = A[i]")),
    "threads": "t = T.get_thread_binding()\n"
    + within("if t < 7", within("if t % 1 == 0", "pass") + within("else", "B[t] = 1.0")),
    "while": "v = T.alloc_var('int32')\nv = n\n" + within("while v > 3", "v = v - 1\n" + NEVER),
}
AFTER = "T.copy(A, B)"


@pytest.mark.parametrize("what", EMPTY)
def test_alone_and_in_front(what: str) -> None:
    runs(kernel(PARAMS, EMPTY[what], 64), "sm_90a", writes=False)
    runs(kernel(PARAMS, f"{EMPTY[what]}\n{AFTER}", 64), "sm_80")


@pytest.mark.parametrize("what", EMPTY)
@pytest.mark.parametrize("head", ["T.Pipelined(5, num_stages=2)", "T.Pipelined(n)", "T.serial(n)"])
def test_in_loops(head: str, what: str) -> None:
    runs(kernel(PARAMS, within(f"for z in {head}", EMPTY[what]) + AFTER, 64), "sm_90a")


@pytest.mark.parametrize("target", TARGETS)
def test_in_a_role(target: str) -> None:
    text = within("with T.ws(0)", EMPTY["loop"]) + within("with T.ws(1)", AFTER)
    runs(kernel(PARAMS, text, 256), target)


@pytest.mark.parametrize("what", ["nest", "loop", "branches"])
def test_in_a_loop_whose_schedule_is_given(what: str) -> None:
    """Its entries count the statement."""
    loop = f"T.copy(A, s)\n{EMPTY[what]}\n" + within("for i in T.Parallel(32)", "f[i] += s[i]")
    text = (
        's = T.alloc_shared((32,), "float32")\nf = T.alloc_fragment((32,), "float32")\nT.clear(f)\n'
        + within("for k in T.Pipelined(4, num_stages=2, order=[0, 1, 2], stage=[0, 0, 1])", loop)
        + "T.copy(f, B)"
    )
    runs(kernel(PARAMS, text, 64), "sm_90a")
