"""Names of a kernel's author in PTX: whatever kernels and parameters are called, the code is the same and assembles."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel, build_library
from tilec.driver.emulation import emulate
from tilec.ptx.module import Entry, Module, Param, Variable
from tilec.ptx.verify_names import find_name_clashes
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

COPY = """\
import tilelang.language as T


@T.prim_func
def main(FIRST: T.Tensor((64, 64), "float16"), OTHER: T.Tensor((64, 64), "float16"), COUNT: T.int32):
    with T.Kernel(1, threads=128) as bx:
        s = T.alloc_shared((64, 64), "float16")
        T.copy(FIRST, s)
        T.print(COUNT)
        for i, j in T.Parallel(64, 64):
            OTHER[i, j] = s[i, j] + T.Cast("float16", COUNT)
"""

NAMES = (
    ("main", "B", "n"),
    ("A", "B", "main"),
    ("A", "A_map", "A_map1"),
    ("tilec_smem", "vprintf", "printf_arguments"),
    ("WARP_SZ", "_", "__tilec_manifest_main"),
    ("reg", "ld", "entry"),
)


def made(text: str, target: str) -> Build:
    return build_kernel(SourceFile("names.tl", text), CompileOptions(target=target), Observer())


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("names", NAMES, ids="-".join)
def test_any_name_of_a_parameter_assembles_and_computes(names: tuple[str, str, str], target: str) -> None:
    text = COPY
    for old, new in zip(("FIRST", "OTHER", "COUNT"), names, strict=True):
        text = re.sub(rf"\b{old}\b", new, text)
    kernel = made(text, target)
    found = emulate.draw_arguments(kernel.kernel, kernel.manifest, 0)
    given = found.copy()
    emulate.emulate_build(kernel, found)
    count = np.float16(given.scalars[names[2]])
    np.testing.assert_array_equal(found.tensors[names[1]], given.tensors[names[0]] + count)


def test_a_parameter_may_be_called_as_another_kernel_of_the_file() -> None:
    other = COPY.replace("main", "other").replace("FIRST", "main").replace("import tilelang.language as T\n", "")
    text = COPY.replace("FIRST", "other") + other
    file = build_library(SourceFile("names.tl", text), CompileOptions(target="sm_80"), Observer())
    assert ".u64 other$" in file.ptx and ".u64 main$" in file.ptx


def test_names_that_are_free_stay() -> None:
    assert "$" not in re.sub(r"\$L\d", "", made(COPY, "sm_80").ptx)


def test_the_verifier_sees_each_kind_of_clash() -> None:
    entry = Entry("f", (Param("u64", "A"),), (), ())
    module = Module("8.0", "sm_80", (Variable("global", "v", 1, 4),), (entry,))
    assert not list(find_name_clashes(module))
    for params in ("f", "v"), ("A", "A"):
        one = replace(entry, params=tuple(Param("u64", name) for name in params))
        assert list(find_name_clashes(replace(module, entries=(one,)))), params
    assert list(find_name_clashes(replace(module, entries=(entry, entry))))
    assert list(find_name_clashes(replace(module, entries=(replace(entry, name="v"),))))
    local = replace(entry, body=(Variable("local", "A", 8, 8),))
    assert list(find_name_clashes(replace(module, entries=(local,))))
