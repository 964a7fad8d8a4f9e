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
        ("x = getattr(T, 'float' + '16').bits + getattr(torch, 'int8').itemsize + getattr(T, 'float17', 3)", 20),
        ("x = 4 if hasattr(T, 'gemm') and not hasattr(T, 'float4_of_mine') and callable(max) is False else 5", 4),
        (
            "from tilelang.language.fp8 import determine_fp8_type\n"
            "x = 6 if determine_fp8_type() == T.float8_e4m3fn and determine_fp8_type('e5m2') == 'float8_e5m2' else 0",
            6,
        ),
        ("CASES = [(0, ValueError, 'too small'), (1, Exception, 'odd')]\nx = CASES[1][0] + 4", 5),
    ],
)
def test_they_have_values(python: str, expected: int) -> None:
    assert rows(python) == expected


@pytest.mark.parametrize(
    ("python", "code", "title"),
    [
        ("x = getattr(T)", "wrong-argument", "getattr() takes 2 or 3 arguments"),
        ("x = hasattr(T, 3)", "wrong-argument", "hasattr() takes the name of the attribute as a string"),
        ("x = getattr(T, 'float17')", "unsupported-operation", "T.float17 is not supported"),
        ("from tilelang.language.fp8 import determine_fp8_type\nx = determine_fp8_type('e3m4')",
         "wrong-argument", 'determine_fp8_type: `fp8_format` must be "e4m3" or "e5m2"'),
        ("x = ValueError(3)", "foreign-definition", "`x` is not known at compile time"),
    ],
)  # fmt: skip
def test_their_misuse_is_refused(python: str, code: str, title: str) -> None:
    with pytest.raises(CompileError) as error:
        rows(python)
    assert (error.value.diagnostics[0].code, error.value.diagnostics[0].title) == (code, title)


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


FORMS = """import tilelang
import tilelang.language as T


def make(op, combine):
    reduce = getattr(T, f"reduce_{op}")

    @T.prim_func
    def kernel(
        A: T.Tensor((4, 64), "float32"),
        B: T.Tensor((4,), "float32"),
        C: T.Tensor((4, 64), "float32"),
        D: T.Tensor((64,), "int32"),
    ):
        with T.Kernel(1, threads=64) as bx:
            rows = T.alloc_fragment((4, 64), "float32")
            found = T.alloc_fragment((4,), "float32")
            count = T.alloc_fragment((1,), "int32", "local")
            count[0] = 3 * T.get_thread_binding()
            D[T.get_thread_binding()] = count[0]
            T.copy(A, rows)
            reduce(rows, found, dim=1)
            T.copy(found, B)
            for i, j in T.Parallel(4, 64):
                x = combine(A[i, j], 4)
                even = T.clamp(T.round(x), min_val=-2, max_val=T.cast(2, "float32", round="", sat=True))
                C[i, j] = even + T.round(x, "ties-away-from-zero")

    return kernel
"""


def test_forms_of_tilelang_compute() -> None:
    defines = (("op", "absmax"), ("combine", "lambda a, b: a * b"))
    made = build_kernel(SourceFile("k.tl", FORMS), CompileOptions(target="sm_80", defines=defines), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    given.tensors["A"][:] = np.arange(-128, 128, dtype=np.float32).reshape(4, 64) / 8
    found = given.copy()
    emulate.emulate_build(made, found)
    x = given.tensors["A"] * 4
    np.testing.assert_array_equal(found.tensors["B"], np.abs(given.tensors["A"]).max(axis=1))
    np.testing.assert_array_equal(found.tensors["D"], 3 * np.arange(64))
    away = np.copysign(np.floor(np.abs(x) + 0.5), x)
    np.testing.assert_array_equal(found.tensors["C"], np.clip(np.rint(x), -2, 2) + away)


@pytest.mark.parametrize(
    ("written", "code", "title"),
    [
        ('T.round(A[0], "up")', "wrong-argument",
         'T.round: `rounding_mode` must be "ties-to-even" or "ties-away-from-zero"'),
        ('T.cast(A[0], "float16", round="rs", rbits=3)', "unsupported-keyword",
         'T.cast: round="rs" is not available'),
        ('T.cast(A[0], "float16", round="rs")', "missing-argument", 'T.cast with round="rs" needs `rbits`'),
        ('T.cast(A[0], "float16", rbits=3)', "wrong-argument",
         'T.cast: `rbits` must be left out, except with round="rs"'),
        ('T.cast(A[0], "float8_e5m2", sat=False)', "unsupported-keyword", "T.cast: sat=False is not available here"),
        ('T.cast(A[0], "float16", round="up")', "wrong-argument",
         'T.cast: `round` must be "" or "rn" or "rz" or "rp" or "rm" or "rs"'),
    ],
)  # fmt: skip
def test_roundings_that_no_conversion_has_are_refused(written: str, code: str, title: str) -> None:
    text = f"""import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64) as bx:
        x = {written}
"""
    with pytest.raises(CompileError) as error:
        load_kernel(SourceFile("k.tl", text), CompileOptions(target="sm_90a"), Observer())
    assert (error.value.diagnostics[0].code, error.value.diagnostics[0].title) == (code, title)


def test_a_define_is_one_value() -> None:
    options = CompileOptions(target="sm_90a", defines=(("op", "max"), ("combine", "lambda a, b: a; c = 3")))
    with pytest.raises(CompileError) as error:
        load_kernel(SourceFile("k.tl", FORMS), options, Observer())
    assert error.value.diagnostics[0].title == "-D combine=lambda a, b: a; c = 3 is not one value"


EAGER = """import tilelang
import tilelang.language as T


def make(width, keep=True):
    @tilelang.jit(out_idx=None, pass_configs={tilelang.PassConfigKey.TL_DISABLE_TMA_LOWER: keep})
    def kernel(A):
        A: T.Tensor((width,), "float32")
        B = T.empty((width,), "float32")
        with T.Kernel(1, threads=width):
            for i in T.Parallel(width):
                B[i] = A[i] + 1.0
        return B

    return kernel
"""


def test_a_function_may_return_an_eager_kernel() -> None:
    options = CompileOptions(target="sm_90a", defines=(("width", 64),))
    kernel = load_kernel(SourceFile("k.tl", EAGER), options, Observer())
    assert kernel.outputs == ("B",) and [p.name for p in kernel.params] == ["A", "B"]


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


def test_defines_give_what_they_define_a_value() -> None:
    text = "import torch\nh, w = torch.ones(3, 4).shape\ntry:\n    y = open('f')\nexcept OSError:\n    y = 0\nx = w * y"
    source = SourceFile("x.tl", f"{IMPORTS}{text}\n{KERNEL}")
    options = CompileOptions(target="sm_90a", defines=(("w", 4), ("y", 3)))
    tensor = load_kernel(source, options, Observer()).params[0]
    assert isinstance(tensor, Buffer) and tensor.extents[0] == 12
    with pytest.raises(CompileError) as error:
        load_kernel(source, CompileOptions(target="sm_90a"), Observer())
    assert error.value.diagnostics[0].help == (
        "tilec evaluates the kernel language only, and runs no other Python; -D x=… gives it a value"
    )


def test_imports_of_the_language_in_a_try_are_imports() -> None:
    """Check that a `try` gives the name that it imports of tilelang, and not the name of another module."""
    text = """import os
try:
    from tilelang import (
        language as L,
    )
    import tilelang.testing
    import torch.cuda as x
finally:
    os.environ["A"] = "1"
"""
    assert rows(f"{text}x = L.ceildiv(7, 2)") == 4
    with pytest.raises(CompileError) as error:
        rows(text)
    assert error.value.diagnostics[0].title.startswith("`x` is not known")


def test_names_inside_what_they_define_are_their_own() -> None:
    assert rows("x = 2\ntry:\n    def f():\n        x = 3\n        return x\nfinally:\n    pass") == 2


OTHERS = """import tilelang.language as T

SHAPE = 64

@T.prim_func
def kernel(A: T.Tensor((SHAPE, H), "float32")):
    with T.Kernel(1, threads=64) as bx:
        T.clear(A)

class Layer:
    @T.prim_func
    def inner(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64) as bx:
            yield 3

def test_kernel():
    @T.prim_func
    def inner(A: T.Tensor((64,), "float32")):
        pass
    with raises(ValueError), other():
        return {each for each in inner}

if __name__ == "__main__":
    SHAPE, H = 128, 32
"""


def test_a_chosen_kernel_stands_beside_any_python() -> None:
    source = SourceFile("k.tl", OTHERS.replace("T.clear(A)", "pass"))
    kernel = load_kernel(source, CompileOptions(target="sm_90a", entry="kernel", defines=(("H", 16),)), Observer())
    tensor = kernel.params[0]
    assert isinstance(tensor, Buffer) and tensor.extents == (64, 16)
    for entry in (None, "test_kernel"):
        with pytest.raises(CompileError) as error:
            load_kernel(source, CompileOptions(target="sm_90a", entry=entry), Observer())
        assert {each.code for each in error.value.diagnostics} == {"syntax"}


def test_a_name_of_the_script_needs_a_value() -> None:
    with pytest.raises(CompileError) as error:
        load_kernel(SourceFile("k.tl", OTHERS), CompileOptions(target="sm_90a", entry="kernel"), Observer())
    first = error.value.diagnostics[0]
    assert (first.code, first.title) == ("missing-define", "`H` has a value only when the file runs as a script")
    assert first.help == "compile with -D H=…, or define it above the kernel"


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
