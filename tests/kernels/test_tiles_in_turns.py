"""Tiles that are never live together share memory where a kernel does not fit otherwise, and hold what they should."""

from __future__ import annotations

from itertools import combinations

import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions

KERNEL = HERE / "tiles_in_turns.tl"


def sharing(made: Build) -> set[str]:
    """Return the pairs of tiles that have bytes in common."""
    pairs = combinations(made.program.shared, 2)
    return {one.buffer.name + other.buffer.name for one, other in pairs if one.meets(other)}


def check_results(made: Build) -> None:
    found = emulate.draw_arguments(made.kernel, made.manifest, 1, None)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=1))
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_tiles_take_turns_in_a_loop(target: str) -> None:
    _, made = built(KERNEL, target, entry="turns")
    assert {"bc", "ab"} <= sharing(made)
    check_results(made)


def test_they_have_memory_of_their_own_where_that_fits() -> None:
    _, made = built(HERE / "conversions.tl", "sm_90a", entry="moved")
    assert not sharing(made) and not any(tile.reuses for tile in made.program.shared)


def test_tiles_take_turns_around_rings() -> None:
    """Tiles before a pipelined loop and behind it, the last over rings that a role of its own has filled."""
    _, made = built(KERNEL, "sm_90a", entry="around_rings")
    assert [role.name for role in made.program.roles] == ["consumer", "producer"]
    assert {"xq", "ro"} <= sharing(made)
    check_results(made)


def test_rows_of_sums_are_stored_by_the_threads_that_hold_them() -> None:
    """No tile of the sums' size carries them to other threads, and what is stored is right."""
    _, made = built(KERNEL, "sm_90a", entry="halves")
    assert [tile.buffer.name for tile in made.program.shared] == ["a", "b", "half"]
    check_results(made)
