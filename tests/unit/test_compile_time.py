"""The Python around a kernel: what it evaluates to, and that it is read back as it is written."""

from __future__ import annotations

import pytest

from tilec.driver.build import Observer, load_kernel
from tilec.frontend.syntax.parse import parse_file
from tilec.frontend.syntax.unparse import unparse_module
from tilec.ir.tile import Buffer
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """

@T.prim_func
def kernel(A: T.Tensor((x, 64), "float16")):
    with T.Kernel(4, threads=128) as bx:
        pass
"""


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("x = sum([i * i for i in range(6) if i % 2])", 35),
        ("x = len(f'{3:03d}-{T.float16}')", 11),
        ("x = {'a': 1, 'b': 2}.get('c', 7)", 7),
        ("x = {k: v for v, k in enumerate('abc')}['c']", 2),
        ("x = max(*(3, 9), 4)", 9),
        ("x = 5 if 3 not in (1, 2) and None is None else 6", 5),
        ("x = (lambda a, b: a * b)(6, 7)", 42),
        ("x = (lambda a, *rest, by=2: a * len(rest) * by)(6, 7, 8, by=3)", 36),
        ("def f(n, *rest, k=2):\n    return n * k + len(rest)\nx = f(4, 1, 1, k=3)", 14),
        ("def f(n):\n    return 1 if n == 0 else n * f(n - 1)\nx = f(5)", 120),
        ("def f():\n    s = 0\n    for i in range(9):\n        if i == 2:\n            continue\n"
         "        if i == 5:\n            break\n        s += i\n    return s\nx = f()", 8),
        ("def f(n):\n    def g(k):\n        return n + k\n    return g\nx = f(10)(5)", 15),
        ("def f(n):\n    while n > 7:\n        n = n // 2\n    return n\nx = f(100)", 6),
        ("x = (1, 2, 3, 4)[1:3][0] + (0,) .count(0)", 3),
        ("if 2 > 1:\n    x = 3\nelse:\n    x = 4", 3),
    ],
)  # fmt: skip
def test_value(python: str, expected: int) -> None:
    text = f"import tilelang.language as T\n{python}\n{KERNEL}"
    source = SourceFile("x.tl", text)
    module = parse_file(source, None)
    tensor = load_kernel(source, CompileOptions(), Observer()).params[0]
    assert isinstance(tensor, Buffer) and tensor.shape == (expected, 64)
    assert parse_file(SourceFile("y.tl", unparse_module(module)), None) == module
