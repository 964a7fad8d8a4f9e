"""Kernels whose sizes are known only at launch: built once, run with many, against numpy."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from harness import HERE, built

from tilec.cli.main import main
from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import Array, KernelArguments
from tilec.ir import manifest
from tilec.support.diagnostics import CompileError

TARGETS = ("sm_80", "sm_90a")
EDGES = (0, 1, 63, 64, 65)


@cache
def made(entry: str, target: str) -> Build:
    return built(HERE / f"dynamic_{entry}.tl", target)[1]


def run(entry: str, target: str, **tensors: Array) -> dict[str, Array]:
    """The tensors after the run, and after the interpreter's, which must agree. No size is given: shapes say them."""
    kernel = made(entry, target)
    arguments, expected = (KernelArguments({n: a.copy() for n, a in tensors.items()}, {}) for _ in range(2))
    emulate.emulate_build(kernel, arguments)
    emulate.run_reference(kernel.kernel, expected)
    for name, array in expected.tensors.items():
        np.testing.assert_allclose(arguments.tensors[name], array, rtol=1e-2, atol=1e-2)
    return arguments.tensors


def random(*shape: int, dtype: type = np.float16) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: type = np.float32) -> Array:
    return np.full(shape, np.nan, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", range(3), ids="mnk")
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65])
def test_gemm(target: str, axis: int, size: int) -> None:
    m, n, k = (size if a == axis else 40 for a in range(3))
    a, b = random(m, k), random(k, n)
    found = run("gemm", target, A=a, B=b, C=empty(m, n))["C"]
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", EDGES)
def test_rows(target: str, size: int) -> None:
    """Only the number of rows is not known: everything moves as wide as if it were."""
    a, b = random(size, 96), random(96, 128)
    found = run("gemm_rows", target, A=a, B=b, C=empty(size, 128, dtype=np.float16))["C"]
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 100])
def test_depth(target: str, size: int) -> None:
    """As many iterations as the launch says, none of them too."""
    a, b = random(size, 64), random(size, 64) + np.float16(1)
    found = run("gemm_depth", target, A=a, B=b, C=empty(64, 64))["C"]
    np.testing.assert_allclose(found, a.astype(np.float32).T @ b.astype(np.float32), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n"), [(0, 5), (1, 1), (3, 63), (3, 64), (2, 33)])
def test_softmax(target: str, m: int, n: int) -> None:
    x = random(m, n, dtype=np.float32)
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    found = run("softmax", target, X=x, Y=empty(m, n))["Y"]
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 1000])
def test_add(target: str, n: int) -> None:
    a, b = random(n, dtype=np.float32), random(n + 1, dtype=np.float32)
    np.testing.assert_array_equal(run("add", target, A=a, B=b, C=empty(n))["C"], a + b[1:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [0, 1, 9])
def test_sum_rows(target: str, m: int) -> None:
    a = random(m, 7, dtype=np.float32)
    np.testing.assert_allclose(run("sum_rows", target, A=a, S=empty(1))["S"][0], a[:, 6].sum() * m, rtol=1e-5)


def test_wide_copies_where_rows_are_known_to_be_aligned() -> None:
    assert "cp.async.bulk.tensor" in made("gemm_rows", "sm_90a").ptx
    assert "cp.async.cg" in made("gemm_rows", "sm_80").ptx
    for target in TARGETS:
        assert "cp.async" not in made("gemm", target).ptx, "a row of any length may start at any element"


@pytest.mark.parametrize("target", TARGETS)
def test_the_manifest_says_how_to_launch(target: str) -> None:
    kernel = made("gemm", target)
    (carried,) = manifest.extract_from_cubin(kernel.cubin)
    assert carried == kernel.manifest
    assert carried.size_scalars() == ("m", "k", "n")
    sizes = carried.sizes({"A": (100, 33), "B": (33, 70), "C": (100, 70)}, {})
    assert sizes == {"m": 100, "n": 70, "k": 33}
    assert carried.blocks(sizes) == (2, 2, 1)
    assert "((n + 63) // 64) x ((m + 63) // 64) x 1" in manifest.summarise_manifest(carried)
    assert '"schema":2' in manifest.to_json(carried)


def wrong(**shapes: tuple[int, ...]) -> str:
    arguments = KernelArguments({n: np.zeros(s, np.float32 if n == "C" else np.float16) for n, s in shapes.items()}, {})
    with pytest.raises(CompileError) as caught:
        emulate.emulate_build(made("gemm", "sm_80"), arguments)
    (found,) = caught.value.diagnostics
    return f"{found.code}: {found.title}"


def test_tensors_that_disagree_are_named() -> None:
    text = wrong(A=(4, 5), B=(6, 7), C=(4, 7))
    assert text == "wrong-input: k is 5 by A.shape[1] = 5, but 6 by B.shape[0] = 6"


def test_a_size_that_nothing_says() -> None:
    kernel = made("gemm", "sm_80")
    with pytest.raises(CompileError) as caught:
        emulate.draw_arguments(kernel.kernel, kernel.manifest, 0, {"m": 4, "n": 4})
    (found,) = caught.value.diagnostics
    assert (found.code, found.title) == ("missing-input", "no argument determines the size k")
    assert found.help == "give --size k=…"


def test_sizes_that_nothing_says() -> None:
    kernel = made("gemm", "sm_80")
    with pytest.raises(CompileError) as caught:
        emulate.draw_arguments(kernel.kernel, kernel.manifest, 0, {})
    (found,) = caught.value.diagnostics
    assert found.title == "no argument determines the sizes m, k and n"
    assert found.help == "give --size m=… --size k=… --size n=…"


def test_a_size_that_the_kernel_has_not() -> None:
    kernel = made("gemm", "sm_80")
    with pytest.raises(CompileError, match="bad-inputs"):
        emulate.draw_arguments(kernel.kernel, kernel.manifest, 0, {"m": 4, "n": 4, "k": 4, "x": 4})


@pytest.mark.parametrize("target", TARGETS)
def test_random_arguments_have_the_sizes(target: str) -> None:
    for m, n, k in itertools.product((5, 64), repeat=3):
        kernel = made("gemm", target)
        arguments = emulate.draw_arguments(kernel.kernel, kernel.manifest, 0, {"m": m, "n": n, "k": k})
        assert {name: a.shape for name, a in arguments.tensors.items()} == {"A": (m, k), "B": (k, n), "C": (m, n)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (1, 1), (63, 8), (65, 9)])
def test_a_multiple_of_a_size(target: str, m: int, n: int) -> None:
    """The shape promises aligned rows, and so they move as wide as rows of a known length."""
    a = random(m, 8 * n)
    np.testing.assert_array_equal(run("aligned", target, A=a, C=empty(m, 8 * n, dtype=np.float16))["C"], a)
    wide = "cp.async.bulk.tensor" if target == "sm_90a" else "cp.async.cg"
    assert wide in made("aligned", target).ptx


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["emulate", str(HERE / "dynamic_add.tl"), "--target", "sm_80"]
    assert main([*command, "--size", "n=200"]) == 0
    assert capsys.readouterr().out.startswith("C: 200 elements of the emulated PTX, worst error")
    assert main([*command, "--size", "n"]) == 2
    assert "as in --size n=1024" in capsys.readouterr().err
    assert main(command) == 1
    assert "give --size n=…" in capsys.readouterr().err
