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
    found = emulate.random_arguments(made.kernel, made.manifest, 0)
    a, factors = (np.array(found.tensors[name]) for name in ("A", "factors"))
    emulate.run(made, found)
    expected = a * 2 if twice else a * factors[:, None] + 4
    np.testing.assert_allclose(found.tensors["B"], expected, rtol=1e-6)
    np.testing.assert_allclose(found.tensors["largest"], expected.max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_macros_set_what_they_are_given(target: str) -> None:
    _, made = built(HERE / "set_by_macros.tl", target)
    found = emulate.random_arguments(made.kernel, made.manifest, 0)
    found.tensors["Ids"][:] = [0, 0, 4, 6]
    before = np.array(found.tensors["A"])
    emulate.run(made, found)
    expected = before.copy()
    expected[0], expected[3] = 12, 12.5
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
        '.file 1 "imports.tl"', '.file 2 "constants.tl"', '.file 3 "parts/scale.tl"',
    ]  # fmt: skip
    assert ".loc 3 13 " in made.ptx
    found = emulate.random_arguments(made.kernel, made.manifest, 0)
    given = np.array(found.tensors["A"], np.float32)
    emulate.run(made, found)
    np.testing.assert_array_equal(found.tensors["B"], (given * 1.5).astype(np.float16))
