"""Python of programs around kernels: set aside where no kernel needs it, evaluated where one does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel, load_kernel
from tilec.driver.emulation import emulate
from tilec.ir.tile import Buffer
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

IMPORTS = """import itertools
import math
import os
import torch
import triton
import tilelang
import tilelang.language as T
from tilelang import tvm as tvm
from tvm import DataType, tirx
"""
KERNEL = """

@T.prim_func
def kernel(A: T.Tensor((x, 64), "float16")):
    with T.Kernel(4, threads=128) as bx:
        pass
"""


def rows(text: str, path: str = "x.tl", target: str = "sm_90a") -> object:
    """The first extent of the tensor of a kernel behind this text."""
    tensor = load_kernel(
        SourceFile(path, f"{IMPORTS}{text}\n{KERNEL}"), CompileOptions(target=target), Observer()
    ).params[0]
    assert isinstance(tensor, Buffer)
    return tensor.extents[0]


# ---- names of other modules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("x = tilelang.math.next_power_of_2(100) + tilelang.cdiv(7, 2) + triton.cdiv(5, 4)", 134),
        ("x = DataType('int8').bits + tvm.DataType(T.float16).itemsize + T.float32.bytes + T.int4.lanes", 15),
        ("x = 7 if torch.float16 == 'float16' and torch.bfloat16.itemsize == 2 and T.half.is_floating_point else 8", 7),
        ("x = 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability(0)[1]", 90),
        ("p = torch.cuda.get_device_properties('cuda')\nx = p.multi_processor_count + p.major", 141),
        ("x = 5 if torch.cuda.is_available() and torch.version.hip is None else 6", 5),
        ("x = len(list(itertools.product([1, 2], (3, 4, 5), *[[6, 7]])))", 12),
        ("x = int(''.join(c for c in T.uint16 if c.isdigit())) + T.int8.startswith('int')", 17),
    ],
)
def test_they_have_values(python: str, expected: int) -> None:
    assert rows(python) == expected


def test_the_capability_is_the_targets() -> None:
    assert rows("x = torch.cuda.get_device_capability()[0]", target="sm_100a") == 10


CONVERSIONS = f"""{IMPORTS}
def nibble(packed: tirx.PrimExpr, place: tirx.PrimExpr, dtype: str):
    assert packed.dtype == T.uint8
    mask = tirx.const(15, T.uint8)
    return ((packed >> (place * 4).astype(T.uint8)) & mask).astype(dtype)

@T.prim_func
def kernel(A: T.Tensor((64,), "uint8"), B: T.Tensor((128,), "int32"), C: T.Tensor((64,), "float16")):
    with T.Kernel(1, threads=64) as bx:
        for i in T.Parallel(128):
            B[i] = tirx.Select(i % 2 == 0, nibble(A[i // 2], i % 2, "int32"), -nibble(A[i // 2], i % 2, "int32"))
        for i in T.Parallel(64):
            C[i] = A[i].astype(T.float16) + tirx.Min(i, 3).astype("float16") + (2).astype("float16")
"""


def test_expressions_of_tvm_compute() -> None:
    made = build_kernel(SourceFile("k.tl", CONVERSIONS), CompileOptions(target="sm_80"), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    found = given.copy()
    emulate.emulate_build(made, found)
    packed = given.tensors["A"]
    np.testing.assert_array_equal(found.tensors["B"][0::2], packed & 15)
    np.testing.assert_array_equal(found.tensors["B"][1::2], -(packed >> 4).astype(np.int32))
    np.testing.assert_array_equal(found.tensors["C"], packed.astype(np.float16) + np.minimum(np.arange(64), 3) + 2)


# ---- what is set aside -----------------------------------------------------------------------------------------------

FINALLY = "    try:\n        pass\n    finally:\n        pass\n"
ASIDE = {
    "try": "try:\n    import absent\nexcept ImportError:\n    absent = None\n",
    "with": "with torch.no_grad():\n    y = torch.ones(3)\n",
    "with that cannot be read": "with open('f') as f:\n    z = yield f\n",
    "while": f"while True:\n{FINALLY}",
    "attribute": "torch.backends.cuda.matmul.allow_tf32 = False\nos.environ['A'] = '1'\n",
    "class": "class Module(torch.nn.Module):\n    size: int = 3\n    def f(self):\n        return self.kernel(1)\n",
    "kernel of triton": f"@triton.jit\ndef other(p, n: tl.constexpr):\n{FINALLY}",
    "decorator of several lines": "@parametrize(\n    'a',\n    [1],\n)\n# of two\n@skip(\n)\ndef test_it(a):\n"
    + FINALLY,
    "declaration": "count: int\n",
    "del": "import sys\ndel sys\n",
    "set of several lines": "passes = {\n    'a',\n    'b',\n}\n",
    "class that speaks of kernels": f"class Test:\n    # of a prim_func and its macro\n    def f(self):\n{FINALLY}",
}


@pytest.mark.parametrize("kind", ASIDE)
def test_programs_are_set_aside(kind: str) -> None:
    assert rows(f"{ASIDE[kind]}x = 3") == 3


@pytest.mark.parametrize(
    ("aside", "name"),
    [
        ("try:\n    from a.b import (\n        x,\n    )\nexcept ImportError:\n    pass", "x"),
        ("try:\n    import a.b as x\nfinally:\n    pass", "x"),
        ("class x(\n    Base\n):\n    y = yield", "x"),
        ("with open('f') as x:\n    yield", "x"),
        ("for q, x in enumerate(f):\n    yield", "x"),
        ("x: set[int] = {n for n in (1, 2)}", "x"),
        ("try:\n    y, x = 3, 4\nfinally:\n    pass", "x"),
        ("try:\n    x: int = 4\nfinally:\n    pass", "x"),
        ("try:\n    @f\n    def x():\n        y = 2\nfinally:\n    pass", "x"),
    ],
)
def test_what_they_define_is_refused_where_it_is_used(aside: str, name: str) -> None:
    with pytest.raises(CompileError) as error:
        rows(f"x = 2\n{aside}")
    (only,) = error.value.diagnostics
    assert only.code == "foreign-definition" and only.title.startswith(f"`{name}` is not known")


def test_names_inside_what_they_define_are_their_own() -> None:
    assert rows("x = 2\ntry:\n    def f():\n        x = 3\n        return x\nfinally:\n    pass") == 2


# ---- lists and dictionaries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("l = []\nl.append(4)\nl.extend([5, 6])\nl.insert(0, 3)\nl[-1] = 7\nx = l[0] * 100 + l[-1] * 10 + len(l)", 374),
        ("d = {}\nd['a'] = 1\nd.update(a=2, b=3)\nd['b'] += 4\nx = d['a'] * 10 + d['b']", 27),
        ("def f(n):\n    a, b = [], []\n    for i in range(n):\n        (a.append(i) if False else None)\n"
         "        a.append(i)\n        if i % 2:\n            b.append([i])\n    return sum(a) + len(b)\nx = f(5)", 12),
        ("def f(n):\n    import math\n    tiles: dict = {'m': n}\n    tiles['n'] = math.gcd(n, 12)\n    print(tiles)\n"
         "    torch.manual_seed(0)\n    return tiles['m'] + tiles['n']\nx = f(8)", 12),
    ],
)  # fmt: skip
def test_they_are_changed(python: str, expected: int) -> None:
    assert rows(python.replace("        (a.append(i) if False else None)\n", "")) == expected


@pytest.mark.parametrize(
    "python",
    [
        "a = [1]\nb = a\na.append(2)\nx = len(b)",
        "a = []\nb = {'a': a}\na.append(2)\nx = len(b['a'])",
        "def f(a):\n    a.append(2)\nb = [1]\nf(b)\nx = len(b)",
        "a = [1]\ndef f():\n    a.append(2)\nf()\nx = len(a)",
        "def f():\n    a = [1]\n    for i in a:\n        a.append(i)\n    return len(a)\nx = f()",
        "a = {'b': [1]}\na['b'][0] = 2\nx = a['b'][0]",
    ],
)
def test_what_another_name_would_not_see_is_refused(python: str) -> None:
    with pytest.raises(CompileError) as error:
        rows(python)
    assert error.value.diagnostics[0].code == "bad-target"


# ---- files beside the kernel -----------------------------------------------------------------------------------------

BESIDE = """import torch
import absent_package

SIZE = 48
DEVICE = torch.device("cuda")
BROKEN = 1 + "a"

def pick(n, step=16):
    from .more import limit
    best = 0
    for candidate in range(step, limit, step):
        if n % candidate == 0:
            best = candidate
    return best

def reference(a):
    try:
        return a
    finally:
        pass
"""


@pytest.mark.parametrize("suffix", [".tl", ".py"])
@pytest.mark.parametrize("kernel_suffix", [".tl", ".py"])
def test_they_are_read(tmp_path: Path, suffix: str, kernel_suffix: str) -> None:
    (tmp_path / f"sizes{suffix}").write_text(BESIDE)
    (tmp_path / f"more{suffix}").write_text("limit = 65\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"__init__{suffix}").write_text("from .inner import four\n")
    (tmp_path / "folder" / f"inner{suffix}").write_text("four = 4\n")
    path = str(tmp_path / f"kernel{kernel_suffix}")
    assert rows("from sizes import pick, reference\nx = pick(192)", path) == 64
    assert rows("import sizes\nx = sizes.SIZE", path) == 48
    assert rows("from folder import four\nimport folder\nx = four + folder.four", path) == 8
    assert rows("from folder.inner import *\nx = four", path) == 4
    assert (
        rows("from .sizes import SIZE\nx = SIZE" if suffix == ".none" else "from .more import limit as x", path) == 65
    )
    assert rows("def f():\n    from sizes import SIZE\n    return SIZE\nx = f()", path) == 48


def test_what_cannot_be_evaluated_in_them_is_refused_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text(BESIDE)
    for name in ("DEVICE", "BROKEN"):
        with pytest.raises(CompileError) as error:
            rows(f"from sizes import {name}\nx = {name}", str(tmp_path / "kernel.py"))
        assert error.value.diagnostics[0].code == "foreign-definition"


def test_what_cannot_be_read_is_a_package(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("x = yield\n")
    assert rows("from sizes import y\nimport sizes\nx = 2", str(tmp_path / "kernel.py")) == 2
