"""A function with several T.Kernel: as many kernels, which together compute what it says."""

from __future__ import annotations

import numpy as np
from harness import HERE

from tilec.driver.build import Build, Observer, build_kernel, build_library
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = HERE / "several_launches.tl"
SOURCE = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
SIZES = (("rows", 4), ("columns", 256))


def launch(number: int, name: str = "split") -> Build:
    return build_kernel(SOURCE, CompileOptions(target="sm_80", entry=f"{name}_{number}", defines=SIZES), Observer())


def test_one_cubin_has_them_in_order() -> None:
    observer = Observer()
    library = build_library(SOURCE, CompileOptions(target="sm_80", entry="split", defines=SIZES), observer)
    assert [m.entry for m in library.manifests] == ["main_1", "main_2"]
    assert [m.grid for m in library.manifests] == [(4, 2, 1), (2, 1, 1)]
    assert [w.code for w in observer.warnings] == ["several-launches"]
    assert [m.outputs for m in library.manifests] == [(), ("B",)], "what the first leaves is no output of the function"


def test_one_after_the_other_they_compute_it() -> None:
    first, second = launch(1), launch(2)
    found = emulate.draw_arguments(first.kernel, first.manifest, 1)
    a = found.tensors["A"].copy()
    emulate.emulate_build(first, found)
    np.testing.assert_array_equal(found.tensors["P"], 2 * a)
    emulate.emulate_build(second, found)
    np.testing.assert_allclose(found.tensors["B"], 1 + 2 * a.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_memory_between_them_is_a_parameter_behind_the_others() -> None:
    first, second = launch(1, "through"), launch(2, "through")
    assert [t.name for t in first.manifest.tensors] == [t.name for t in second.manifest.tensors] == ["A", "B", "sums"]
    assert (first.manifest.outputs, second.manifest.outputs) == ((), ("B",))
    found = emulate.draw_arguments(first.kernel, first.manifest, 1)
    a = found.tensors["A"].copy()
    emulate.emulate_build(first, found)
    emulate.emulate_build(second, found)
    np.testing.assert_allclose(found.tensors["B"], 2 * (a[0] + a[3]), rtol=1e-6)
