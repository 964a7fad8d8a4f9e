"""Long loops, variables and assertions inside T.Parallel."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, agrees, built

from tilec.driver.emulation import emulate
from tilec.emu.fault import Fault

KERNELS = HERE / "nest_loops.tl"


@pytest.mark.parametrize("entry", ["iterated", "rows", "asserted"])
def test_results(entry: str) -> None:
    agrees(KERNELS, "sm_90a", entry=entry, strict=False)


def test_a_condition_is_evaluated_once_around_a_loop() -> None:
    """Run `rows` in the emulator, whose loop changes what its condition reads, and compare with numpy."""
    _, made = built(KERNELS, "sm_80", entry="rows")
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    a, positive = given.tensors["A"].astype(np.float64), np.arange(64) % 3 > 0
    given.tensors["P"][:] = positive
    given.scalars["n"] = 5
    emulate.emulate_build(made, given)
    taken = [a[:, c] + a[:, :5].sum(1) - a[:, c] * len(range(c, 5, 2)) for c in range(2)]
    expected = np.where(positive[:, None], np.stack(taken, 1), a[:, :2] - 1)
    np.testing.assert_allclose(given.tensors["B"], expected, atol=1e-5)
    np.testing.assert_array_equal(given.tensors["P"], np.zeros(64))


def test_an_assertion_of_an_element_stops_the_grid() -> None:
    """Check that `asserted` traps for a large element that it asserts of, and not for one of the first."""
    _, made = built(KERNELS, "sm_90a", entry="asserted")
    given = emulate.draw_arguments(made.kernel, made.manifest, 0)
    given.tensors["A"][2] = 200  # not asserted of the first ones
    emulate.emulate_build(made, given.copy())
    given.tensors["A"][50] = 200
    with pytest.raises(Fault, match="trap"):
        emulate.emulate_build(made, given.copy())
