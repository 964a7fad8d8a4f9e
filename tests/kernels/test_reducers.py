"""Reducers: each addition counts once, however the nest is spread over the threads; against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = HERE / "reducers.tl"
TARGETS = ("sm_80", "sm_90a")
EXTRA = {"threads": 96}


def run(entry: str, target: str, **defines: int | str) -> tuple[Build, KernelArguments, KernelArguments]:
    """The build, its inputs and what the emulated PTX makes of them."""
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(target=target, entry=entry, defines=tuple(defines.items())), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 5)
    found = given.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=1))
    return made, given, found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [32, 96, 128])
def test_each_element_counts_once(target: str, threads: int) -> None:
    _, given, found = run("scalars", target, threads=threads)
    a, b = (given.tensors[n].astype(np.float64) for n in "AB")
    least = 2 * min(3, b.min())
    expected = [100 + a.sum() + b[:20].sum(), least, min(-7, (a * a).min()), least]
    np.testing.assert_allclose(found.tensors["C"], expected, rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [64, 128])
def test_rows(target: str, threads: int) -> None:
    _, given, found = run("rows", target, threads=threads)
    a = given.tensors["A"].astype(np.float64)
    tiles = a.reshape(16, 3, 96)
    np.testing.assert_allclose(found.tensors["S"], a.sum(1) + 3, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.tensors["L"], np.maximum(0, 2 * tiles[:, :, 4:].max((1, 2))), rtol=1e-6)
    np.testing.assert_allclose(found.tensors["P"], tiles.sum(1).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_computed_places(target: str) -> None:
    _, given, found = run("scattered", target)
    a, w = (given.tensors[n].astype(np.float64) for n in "AW")
    np.testing.assert_allclose(found.tensors["C"], [a[:20].sum(), a[20:40].sum(), a[40:].sum()], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.tensors["D"], w @ a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_accumulators(target: str) -> None:
    made, given, found = run("products", target)
    a, b = (given.tensors[n].astype(np.float64) for n in "AB")
    c = np.stack([a @ b[k : k + 64].T for k in range(0, 192, 64)])
    np.testing.assert_allclose(found.tensors["S"], c.sum((0, 2)), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(found.tensors["X"], c.max((0, 1)), rtol=1e-3, atol=1e-2)
    assert not [w for w in made.warnings if w.code == "layout-conversion"]


@pytest.mark.parametrize("target", TARGETS)
def test_bits(target: str) -> None:
    _, given, found = run("bits", target)
    a = given.tensors["A"]
    expected = [np.bitwise_and.reduce(a, 1), np.bitwise_or.reduce(a, 1), np.bitwise_xor.reduce(a, 1) ^ 1]
    np.testing.assert_array_equal(found.tensors["C"], expected)


def test_only_one_combination_of_all_threads() -> None:
    """Additions stay in the thread; what crosses threads happens once, at the end."""
    made, _, _ = run("products", "sm_90a")
    loop = made.ptx[made.ptx.index("wgmma.mma_async") : made.ptx.rindex("wgmma.mma_async")]
    assert "shfl.sync" not in loop and "shfl.sync" in made.ptx
