"""What a few lines could make without an end is refused at once, with the limit that it meets."""

from __future__ import annotations

import time

import pytest

from tilec.diag import CompileError
from tilec.driver import check_all
from tilec.observer import Observer
from tilec.options import CompileOptions
from tilec.source import SourceFile

SECONDS = 3
"""Of the processor's."""

DOUBLED = "".join(f"x{i + 1} = (x{i}, x{i})\n" for i in range(60))


def _check(top: str, inside: str = "A[0] = 1.0") -> str | None:
    """The code of what is said first."""
    text = f"""import tilelang.language as T
{top}
@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64) as bx:
        {inside}
"""
    began = time.process_time()
    try:
        check_all(SourceFile("k.tl", text), CompileOptions(target="sm_80"), Observer())
    except CompileError as error:
        return error.diagnostics[0].code
    finally:
        assert time.process_time() - began < SECONDS
    return None


@pytest.mark.parametrize(
    ("top", "inside", "code"),
    [
        ("x = [i for i in range(10**9)]\n", "pass", "evaluation-too-long"),
        ("x = 2**10**9\n", "pass", "static-arithmetic"),
        ("x = 1 << 10**9\n", "pass", "static-arithmetic"),
        ("x = 'a' * 10**9\n", "pass", "evaluation-too-long"),
        ("x0 = 'a'\n" + "".join(f"x{i + 1} = f'{{x{i}}}{{x{i}}}'\n" for i in range(60)), "pass", "evaluation-too-long"),
        ("x0 = (0,)\n" + DOUBLED + "y = f'{x60}'\n", "pass", "evaluation-too-long"),
        ("f = lambda n: f(n + 1)\nx = f(0)\n", "pass", "evaluation-too-long"),
        ("@T.macro\ndef m(A):\n    m(A)\n", "m(A)", "evaluation-too-long"),
        ("@T.macro\ndef m(A):\n    m(A)\n    m(A)\n", "m(A)", "evaluation-too-long"),
    ],
)
def test_it_is_refused(top: str, inside: str, code: str) -> None:
    assert _check(top, inside) == code


def test_what_is_there_many_times_is_looked_at_once() -> None:
    assert _check("x0 = (0,)\n" + DOUBLED) is None
