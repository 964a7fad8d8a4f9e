"""What a few lines could make without an end is refused at once, with the limit that it meets."""

from __future__ import annotations

import time

import pytest

from tilec.driver.build import load_kernels
from tilec.driver.observer import Observer
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SECONDS = 60
"""Of the processor's: what ends at a limit takes two at most, what does not end takes more than any number."""

MACROS = "@T.macro\ndef m0(A):\n    A[0] = 1.0\n" + "".join(
    f"@T.macro\ndef m{i + 1}(A):\n" + f"    m{i}(A)\n" * 8 for i in range(9)
)

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
        load_kernels(SourceFile("k.tl", text), CompileOptions(target="sm_80"), Observer())
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
        (f"x = 0x{'f' * 4000}\n", "A[0] = x", "static-arithmetic"),
        (f"x = {'9' * 4000}\n", "A[0] = x", "static-arithmetic"),
        (f"x = 0x{'f' * 990}\n", "A[0] = x", "literal-range"),
        ("x = 'a' * 10**9\n", "pass", "evaluation-too-long"),
        ("x0 = 'a'\n" + "".join(f"x{i + 1} = f'{{x{i}}}{{x{i}}}'\n" for i in range(60)), "pass", "evaluation-too-long"),
        ("x0 = (0,)\n" + DOUBLED + "y = f'{x60}'\n", "pass", "evaluation-too-long"),
        ("f = lambda n: f(n + 1)\nx = f(0)\n", "pass", "evaluation-too-long"),
        ("@T.macro\ndef m(A):\n    m(A)\n", "m(A)", "evaluation-too-long"),
        ("@T.macro\ndef m(A):\n    m(A)\n    m(A)\n", "m(A)", "evaluation-too-long"),
        (MACROS, "m9(A)", "evaluation-too-long"),
        (
            "",
            "for i in tuple(range(1000)):\n            for j in tuple(range(1000)):\n                A[0] = 1.0",
            "evaluation-too-long",
        ),
        (
            "",
            "for i in T.unroll(1024, explicit=True):\n            for j in T.unroll(1024, explicit=True):\n"
            "                A[0] = 1.0",
            "wrong-argument",
        ),
        (
            "x = " + "[" * 30 + "0" + "".join(f" for i{n} in range(2)]" for n in range(30)),
            "pass",
            "evaluation-too-long",
        ),
        pytest.param(
            "f = lambda x: max(" + ", ".join(["x"] * 9000) + ")\ny = [f(i) for i in range(20_000)]",
            "pass",
            "evaluation-too-long",
            marks=pytest.mark.weekly,
        ),
        ("x0 = (0,)\n" + DOUBLED, "pass", "evaluation-too-long"),
        ("x = 1.5 in range(10**40)", "pass", "evaluation-too-long"),
        ("x = sum(range(10**12))", "pass", "evaluation-too-long"),
        ("x = range(10**40)[3]", "pass", "evaluation-too-long"),
        ("x = [sorted(range(100_000)) for i in range(1000)]", "pass", "evaluation-too-long"),
        ("x = [zip(range(100_000)) for i in range(1000)]", "pass", "evaluation-too-long"),
        (
            "def f():\n    x = ()\n    for i in range(1000):\n        x = (x,)\n    return x\nx = f()",
            "pass",
            "evaluation-too-long",
        ),
        ("def f(*a):\n    return 1\nx = tuple(range(90_000))\ny = f(*x, *x)", "pass", "evaluation-too-long"),
        ("import math\nx = math.prod([10**300] * 10_000)", "pass", "static-arithmetic"),
        ("x = round(10**400, -(10**400))", "pass", "static-arithmetic"),
        ("f = lambda a: a * a + 1", "A[0] = " + "f(" * 40 + "bx" + ")" * 40, "evaluation-too-long"),
        (
            "def f(a):\n    s = a\n    for i in range(5000):\n        s = s * a + i\n    return s",
            "A[0] = f(bx)",
            "evaluation-too-long",
        ),
        ("x = f'{10**400:.2f}'", "pass", "static-arithmetic"),
        ("x = 'a b'.split(None, 10**40)", "pass", "static-arithmetic"),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_it_is_refused(top: str, inside: str, code: str) -> None:
    assert _check(top, inside) == code


@pytest.mark.parametrize(
    "top",
    [
        "x = {i: i for i in range(30_000)}",  # each key is looked up once
        "x = sum([(i, i) for i in range(10_000)], ())",
        "x = [i for i in range(1000)]\ny = [x[i] + len(x) for i in range(1000)]",
        "x = 5 in range(10**40)",
    ],
)
def test_what_is_large_but_not_too_large_is_quick(top: str) -> None:
    assert _check(top) is None
