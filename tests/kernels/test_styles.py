"""Kernels made by functions compute what their arguments ask for."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, built

from tilec import emulate
from tilec.options import Value


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
    found = emulate.random_arguments(made.kernel, made.manifest, 0)
    given = np.array(found.tensors["A"])
    emulate.run(made, found)
    np.testing.assert_array_equal(found.tensors["B"], given * factor)
