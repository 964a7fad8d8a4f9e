"""The manifest survives JSON, the PTX module, the assembler and the ELF reader."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tilec.ir import manifest
from tilec.ir.manifest import (
    Im2colMapParam,
    Manifest,
    PointerParam,
    ScalarInfo,
    ScalarParam,
    TensorInfo,
    TensorMapParam,
)
from tilec.ptx.assemble import assemble_module
from tilec.ptx.module import Entry, Instruction, Module
from tilec.ptx.text import print_module
from tilec.support.diagnostics import CompileError
from tilec.support.sizes import SizeError

GEMM = Manifest(
    entry="gemm",
    target="sm_90a",
    grid=(64, 32, 1),
    block=(384, 1, 1),
    cluster=(1, 1, 1),
    dynamic_smem=197_632,
    tensors=(
        TensorInfo("A", "float16", (4096, 4096), "in"),
        TensorInfo("C", "float32", (4096, 4096), "out"),
        TensorInfo("X", "float16", (8, 32, 32, 64), "in"),
    ),
    scalars=(ScalarInfo("alpha", "float32"),),
    params=(
        TensorMapParam("A", "float16", (128, 64), 128),
        Im2colMapParam("X", "float16", (64, 32), 64, -1, -2, 2),
        PointerParam("C"),
        ScalarParam("alpha", "float32"),
    ),
)


def _module(*manifests: Manifest) -> Module:
    entries = tuple(Entry(m.entry, (), (), (Instruction("ret"),)) for m in manifests)
    return Module("8.0", "sm_90a", tuple(manifest.manifest_variable(m) for m in manifests), entries)


def test_json_keeps_everything() -> None:
    assert manifest.from_json(manifest.to_json(GEMM)) == GEMM
    assert manifest.from_json(manifest.to_json(GEMM, indent=2)) == GEMM


def test_json_has_no_spaces_and_a_fixed_order() -> None:
    text = manifest.to_json(GEMM)
    assert text.startswith('{"schema":1,"entry":"gemm","target":"sm_90a","grid":[64,32,1],')
    assert " " not in text


def test_summary() -> None:
    assert manifest.summarise_manifest(GEMM).split("\n") == [
        "gemm for sm_90a",
        "  grid     64 x 32 x 1",
        "  block    384 x 1 x 1",
        "  smem     197632 bytes, dynamic",
        "  parameters",
        "    0: tensor map of A: 4096 x 4096 float16, in: box 128 x 64 of float16, swizzle 128",
        "    1: im2col map of X: 8 x 32 x 32 x 64 float16, in: box 64 x 32 of float16, swizzle 64, from -1 to -2 by 2",
        "    2: pointer to C: 4096 x 4096 float32, out",
        "    3: scalar alpha: float32",
    ]


names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
triples = st.tuples(*[st.integers(1, 1 << 20)] * 3)


@given(entry=names, grid=triples, tensors=st.lists(st.tuples(names, st.lists(st.integers(1, 1 << 20), max_size=4))))
def test_json_round_trip(entry: str, grid: tuple[int, int, int], tensors: list[tuple[str, list[int]]]) -> None:
    described = Manifest(
        entry, "sm_80", grid, (128, 1, 1), (1, 1, 1), 0,
        tuple(TensorInfo(name, "bfloat16", tuple(shape), "inout") for name, shape in tensors),
        (),
        tuple(PointerParam(name) for name, _ in tensors),
    )  # fmt: skip
    assert manifest.from_json(manifest.to_json(described)) == described


def test_a_module_says_what_it_carries() -> None:
    assert manifest.manifests_in_module(_module(GEMM)) == (GEMM,)


def test_the_cubin_carries_it() -> None:
    cubin = assemble_module(print_module(_module(GEMM)), "sm_90a").cubin
    assert manifest.extract_from_cubin(cubin) == [GEMM]


def test_two_entries_come_sorted() -> None:
    other = Manifest("axpy", "sm_90a", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (), (), ())
    cubin = assemble_module(print_module(_module(GEMM, other)), "sm_90a").cubin
    assert [m.entry for m in manifest.extract_from_cubin(cubin)] == ["axpy", "gemm"]


def test_a_cubin_without_one() -> None:
    module = Module("8.0", "sm_90a", (), (Entry("k", (), (), (Instruction("ret"),)),))
    with pytest.raises(CompileError, match="no-manifest"):
        manifest.extract_from_cubin(assemble_module(print_module(module), "sm_90a").cubin)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x7fELF\x01\x01", b"\x7fELF\x02\x01" + b"\0" * 20])
def test_what_is_not_a_cubin(data: bytes) -> None:
    with pytest.raises(CompileError, match="not-a-cubin"):
        manifest.extract_from_cubin(data)


def test_a_truncated_cubin_is_a_diagnostic_never_a_crash() -> None:
    cubin = assemble_module(print_module(_module(GEMM)), "sm_90a").cubin
    with pytest.raises(CompileError, match="not-a-cubin"):
        manifest.extract_from_cubin(cubin[: len(cubin) // 2])
    for length in range(0, len(cubin), 97):
        with suppress(CompileError):
            assert manifest.extract_from_cubin(cubin[:length]) == [GEMM]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"schema":1', '"schema":9', "schema is 9, this version reads 1, 2, 3, 4"),
        ('"swizzle":128', '"swizzle":7', "params[0].swizzle: expected one of 0, 32, 64, 128, found 7"),
        ('"role":"out"', '"role":"sideways"', "tensors[1].role: expected one of 'in', 'out'"),
        ('"kind":"pointer"', '"kind":"pigeon"', "params[2].kind: expected one of 'pointer', 'scalar'"),
        ('"kind":"pointer"', '"kin":"pointer"', "params[2].kind: expected one of 'pointer', 'scalar'"),
        ('"entry":"gemm",', "", "'entry' is missing"),
        ('"entry":"gemm"', '"entry":"ge mm"', "entry: expected a name as in C, found 'ge mm'"),
        ('"grid":[64,', '"grid":[["add","m"],', "grid[0]: expected a number, a name, or [operation, size, size]"),
        ('"grid":[64,', '"grid":["m",', "'m' is neither a declared tensor nor a declared scalar"),
        ('"box":[128,64]', '"box":[128,64,1]', "the box 128 x 64 x 1 does not match A, which has 2 dimensions"),
        ('"shape":[8,32,32,64]', '"shape":[8,64,2,2,2,2]', "the box 64 x 32 does not match X, which has 6 dimensions"),
    ],
)
def test_a_manifest_that_cannot_be_read(old: str, new: str, says: str) -> None:
    assert old in manifest.to_json(GEMM)
    with pytest.raises(CompileError, match=f"bad-manifest.*{re.escape(says)}"):
        manifest.from_json(manifest.to_json(GEMM).replace(old, new))


@pytest.mark.parametrize(
    ("shape", "strides", "given", "said"),
    [
        (("n",), None, 2**31 - 1, None),
        (("n",), None, 2**31, "n, extent 0 of A, is 2147483648, more than 2147483647"),
        ((4, ("mul", "n", 8)), None, 2**28, "n * 8, extent 1 of A, is 2147483648"),
        (
            (("floordiv", ("mul", "n", 8), 8),), None, 2**28,
            "n * 8, from which extent 0 of A is computed, is 2147483648",
        ),
        ((4, 4), ("n", 1), 2**40, "n, stride 0 of A, is 1099511627776"),
    ],
)  # fmt: skip
def test_sizes_that_int32_does_not_hold(shape: Any, strides: Any, given: int, said: str | None) -> None:
    made = replace(
        GEMM, tensors=(TensorInfo("A", "int8", shape, "in", strides),), scalars=(ScalarInfo("n", "int64"),), params=()
    )
    if said is None:
        assert made.sizes({}, {"n": given}) == {"n": given}
        return
    with pytest.raises(SizeError, match=re.escape(said)):
        made.sizes({}, {"n": given})


def test_sizes_of_arrays_that_int32_does_not_hold() -> None:
    made = replace(
        GEMM, tensors=(TensorInfo("A", "int8", ("n",), "in"),), scalars=(ScalarInfo("n", "int32"),), params=()
    )
    with pytest.raises(SizeError, match="more than 2147483647"):
        made.sizes({"A": (3_000_000_000,)}, {})
