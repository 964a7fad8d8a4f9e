"""Views of tensors, shared tiles and fragments hold what numpy's reshape and view do."""

from __future__ import annotations

import numpy as np
from harness import HERE, agrees

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = HERE / "views.tl"


def test_reshaped_registers_stay_where_they_are() -> None:
    made = agrees(KERNEL, "sm_80", strict=False, entry="fragments")
    assert [w.title for w in made.warnings if w.code == "layout-conversion"] == []


def test_bits_are_those_of_numpy() -> None:
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(target="sm_90a", entry="bits"), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    found = given.copy()
    emulate.emulate_build(made, found)
    a, r = given.tensors["A"], given.tensors["R"]
    np.testing.assert_array_equal(found.tensors["H"], a.view(np.uint16))
    np.testing.assert_array_equal(found.tensors["W"], a.view(np.int64))
    np.testing.assert_array_equal(found.tensors["P"], a.view(np.uint8)[:, 3::4])
    np.testing.assert_array_equal(found.tensors["Q"], (r[:, :32] & 0x3FFF3FFF).view(np.float16))
    np.testing.assert_array_equal(found.tensors["R"], a.view(np.uint16)[:, 1::2])
