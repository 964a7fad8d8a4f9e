"""Kernels made by functions compute what their arguments ask for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver import build as driver
from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.files import read_source
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile


@pytest.mark.parametrize(
    ("defines", "factor", "grid"),
    [
        ({"M": 128, "N": 32}, 4.0, (2, 1, 1)),
        ({"M": 96, "N": 32, "kind": "by_4"}, 8.0, (3, 1, 1)),
        ({"M": 128, "N": 32, "kind": "by_1"}, 2.0, (2, 1, 1)),
    ],
)
def test_factory(defines: dict[str, Value], factor: float, grid: tuple[int, int, int]) -> None:
    _, made = built(HERE / "styles.tl", "sm_80", **defines)
    assert made.manifest.grid == grid
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    given = np.array(found.tensors["A"])
    emulate.emulate_build(made, found)
    np.testing.assert_array_equal(found.tensors["B"], given * factor)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("twice", [False, True])
def test_eager(target: str, twice: bool) -> None:
    """Parameters that the body declares, sizes from -D, outputs behind the inputs in the order of their declaration."""
    given: dict[str, Value] = {"M": 96, "N": 64, "bias": 4, "twice": twice}
    _, made = built(HERE / "files" / "eager.tl", target, **given)
    assert [(t.name, t.role) for t in made.manifest.tensors] == [
        ("A", "in"), ("factors", "in"), ("B", "out"), ("largest", "out"),
    ]  # fmt: skip
    assert made.manifest.outputs == ("B", "largest")
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    a, factors = (np.array(found.tensors[name]) for name in ("A", "factors"))
    emulate.emulate_build(made, found)
    exact = a * 2.0 if twice else a.astype(np.float64) * factors[:, None] + 4  # rounded once
    expected = exact.astype(np.float32)
    np.testing.assert_array_equal(found.tensors["B"], expected)
    np.testing.assert_allclose(found.tensors["largest"], expected.max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_macros_set_what_they_are_given(target: str) -> None:
    _, made = built(HERE / "set_by_macros.tl", target)
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    found.tensors["Ids"][:] = [0, 0, 4, 6]
    before, elements = np.array(found.tensors["A"]), np.array(found.tensors["B"])
    emulate.emulate_build(made, found)
    np.testing.assert_array_equal(found.tensors["B"], elements * 2 + (np.arange(64) < 8).astype(np.float32))
    expected = before.copy()
    expected[0], expected[3] = 9, 9.5
    expected[5] += np.float32(0.5)
    expected[6] += 2
    np.testing.assert_array_equal(found.tensors["A"], expected)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_imports(target: str) -> None:
    """Constants, functions and macros of other files; `.loc` lines name the file that a statement stands in."""
    source, made = built(HERE / "files" / "imports.tl", target, M=32)
    assert made.manifest.grid == (2, 1, 1)
    assert list(source.imported) == ["constants.tl", "parts/scale.tl"]
    assert [line for line in made.ptx.split("\n") if line.startswith(".file")] == [
        '.file 1 "imports.tl", 1, 1', '.file 2 "constants.tl", 1, 1', '.file 3 "parts/scale.tl", 1, 1',
    ]  # fmt: skip
    assert ".loc 3 14 " in made.ptx
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    given = np.array(found.tensors["A"], np.float32)
    emulate.emulate_build(made, found)
    np.testing.assert_array_equal(found.tensors["B"], (given * 1.5).astype(np.float16))


@pytest.mark.parametrize(("target", "multiprocessors"), [("sm_80", 108), ("sm_90a", 132)])
def test_what_a_program_does_with_its_kernels_is_left_alone(target: str, multiprocessors: int) -> None:
    _, made = built(HERE / "files" / "program.tl", target, entry="double", M=128, N=64)
    assert made.manifest.grid == (multiprocessors, 1, 1)
    assert made.manifest.outputs == ("B",)
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    given = np.array(found.tensors["A"])
    emulate.emulate_build(made, found)
    np.testing.assert_array_equal(found.tensors["B"], given * 2)


CONFIGURED = """\
import tilelang
import tilelang.language as T

@tilelang.jit(pass_configs={configs})
def gemm(M=128, N=128, K=256):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=128) as (bx, by):
            {inside}
            A_s = T.alloc_shared((128, 64), "float16")
            B_s = T.alloc_shared((64, 128), "float16")
            C_l = T.alloc_fragment((128, 128), "float32")
            T.clear(C_l)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * 128, k * 64], A_s)
                T.copy(B[k * 64, bx * 128], B_s)
                T.gemm(A_s, B_s, C_l)
            for i, j in T.Parallel(128, 128):
                C_l[i, j] = T.exp2(C_l[i, j])
            T.copy(C_l, C[by * 128, bx * 128])
    return main """
SPECIALISED, TMA, APPROXIMATE = "elect.sync", "cp.async.bulk.tensor", "ex2.approx.ftz"
KEY = "tilelang.PassConfigKey."


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ("{}", {SPECIALISED, TMA}),
        ("{" + KEY + "TL_ENABLE_FAST_MATH: True}", {SPECIALISED, TMA, APPROXIMATE}),
        ('{"tl.disable_warp_specialized": True, "tl.enable_fast_math": False}', {TMA}),
        ("{" + KEY + "TL_DISABLE_TMA_LOWER: True}", set()),
    ],
)
def test_pass_configs(configs: str, expected: set[str], inside: bool) -> None:
    """What the file asks for shows in the PTX, whether it stands above the function or in the kernel."""
    hint = f"T.annotate_pass_configs({configs})" if inside else "pass"
    text = CONFIGURED.format(configs="None" if inside else configs, inside=hint)
    made = build_kernel(SourceFile("k.tl", text), CompileOptions(), Observer())
    assert made.warnings == ()
    assert {word for word in (SPECIALISED, TMA, APPROXIMATE) if word in made.ptx} == expected


def test_the_command_line_counts_before_the_file() -> None:
    text = CONFIGURED.format(configs='{"tl.disable_warp_specialized": True}', inside="pass")
    options = CompileOptions(pipeline_strategy="warp-specialize")
    assert SPECIALISED in build_kernel(SourceFile("k.tl", text), options, Observer()).ptx


def test_eager_sizes_learnt_at_launch() -> None:
    _, made = built(HERE / "files" / "eager_sizes.tl", "sm_80", N=32, block=32)
    assert [p.name for p in made.kernel.params] == ["A", "out", "alpha", "flags", "m"]
    assert made.manifest.size_scalars() == ("m",)
    assert made.manifest.outputs == ()
    for flag in (0, 1):
        found = emulate.draw_arguments(made.kernel, made.manifest, 0, {"m": 70})
        found.tensors["flags"][0] = flag
        given = np.array(found.tensors["A"], np.float32)
        emulate.emulate_build(made, found)
        expected = given if flag else given * np.float32(found.scalars["alpha"])
        np.testing.assert_array_equal(found.tensors["out"], expected)


MACROS = """\
import tilelang.language as T


def first(x):
    return x[0]


@T.macro
def load(A, a, k):
    T.copy(A[k * 64, 0], a)
"""
PIPELINED = """\
import tilelang.language as T
from .macros import first, load

@T.prim_func
def kernel(A: T.Tensor((512, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.fill(c, first((0.0, 1.0)))
        for k in T.Pipelined(8, num_stages=2):
            load(A, a, k)
            T.gemm(a, a, c)
        T.copy(c, C)
"""


def written(folder: Path, kernel: str) -> SourceFile:
    (folder / "macros.tl").write_text(MACROS, encoding="utf-8")
    (folder / "kernel.tl").write_text(kernel, encoding="utf-8")
    return read_source(str(folder / "kernel.tl"))


def test_the_schedule_names_the_file_of_an_imported_macro(tmp_path: Path) -> None:
    plan = driver.plan_kernel(written(tmp_path, PIPELINED), CompileOptions(), driver.Observer())
    (loop,) = json.loads(plan.trace)["tilec"]["loops"]
    assert [(op["line"], op.get("file")) for op in loop["ops"]] == [(10, "macros.tl"), (12, None)]


def test_a_mistake_in_an_imported_function_names_its_file_and_the_call(tmp_path: Path) -> None:
    source = written(tmp_path, PIPELINED.replace("first((0.0, 1.0))", "first(1.0)"))
    with pytest.raises(CompileError) as raised:
        driver.load_kernel(source, CompileOptions(), driver.Observer())
    (mistake,) = raised.value.diagnostics
    assert mistake.primary is not None and (mistake.primary.span.file, mistake.primary.span.line) == ("macros.tl", 5)
    assert [(label.text, label.span.file, label.span.line) for label in mistake.secondary] == [("called here", "", 9)]
