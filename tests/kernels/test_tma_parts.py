"""T.tma_copy to some columns of a tile, with a barrier of the kernel's own."""

from __future__ import annotations

import pytest
from harness import HERE, built

from tilec.driver.emulation import emulate

KERNELS = HERE / "tma_parts.tl"


@pytest.mark.parametrize("entry", ["columns", "versions", "read_by_threads"])
def test_results(entry: str) -> None:
    """Compare each kernel, emulated on an unfriendly but legal machine, with its tile IR run by numpy."""
    _, made = built(KERNELS, "sm_90a", entry=entry)
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(made.kernel, expected)
    for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
