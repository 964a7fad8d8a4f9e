"""T.async_copy of a part of a tile is one: by cp.async, in chunks that both sides allow."""

from __future__ import annotations

import re

import pytest
from harness import HERE, built

from tilec.driver.emulation import emulate

KERNEL = HERE / "async_parts.tl"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [0, 1])
def test_results(target: str, n: int) -> None:
    _, made = built(KERNEL, target)
    assert not [w for w in made.warnings if w.code == "copy-not-asynchronous"]
    given = emulate.draw_arguments(made.kernel, made.manifest, 4)
    given.scalars["n"] = n
    found, expected = given.copy(), given.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(made.kernel, expected)
    for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"


def test_all_are_asynchronous_and_chunks_fit() -> None:
    _, made = built(KERNEL, "sm_80")
    widths = re.findall(r"cp\.async\.c[ag]\.\S+ \S+, \S+, (\d+)", made.ptx)
    assert set(widths) == {"16"} and "ld.global" not in made.ptx
