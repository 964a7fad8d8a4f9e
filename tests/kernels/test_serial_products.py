"""No product is in flight where an iteration of a loop ends whose threads use its accumulator: the assembler adds no
wait."""

from __future__ import annotations

import pytest
from harness import HERE, built

from tilec.driver.emulation import emulate

KERNEL = HERE / "serial_products.tl"


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("trips", [1, 4])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_results(target: str, trips: int, leaves: bool) -> None:
    _, made = built(KERNEL, target, trips=trips, leaves=leaves)
    if not leaves:  # a loop that is left in the middle waits where its accumulators are used next
        assert [w.code for w in made.warnings] == []
    for n in (0, 1, 3):
        found = emulate.draw_arguments(made.kernel, made.manifest, 2)
        found.scalars["n"] = n
        expected = found.copy()
        emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=1))
        emulate.run_reference(made.kernel, expected)
        for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
            assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
