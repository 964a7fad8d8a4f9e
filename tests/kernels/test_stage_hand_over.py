"""What roles may do with stages of pipelines, and what tilec puts in front of their releases."""

from __future__ import annotations

import re

import pytest
from harness import HERE, agrees, built
from test_pipeline_objects import caught, mutants_of

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.ir.warp import Arrive, WgmmaWait, walk_operations

KERNELS = HERE / "stage_hand_over.tl"
TARGETS = ("sm_80", "sm_90a", "sm_100a")


@pytest.mark.parametrize("name", ["entered", "in_flight", "in_steps", "announced", "said"])
@pytest.mark.parametrize("target", TARGETS)
def test_equals_the_reference_on_a_hostile_machine(target: str, name: str) -> None:
    made = agrees(KERNELS, target, entry=name, strict=False)
    given = emulate.draw_arguments(made.kernel, made.manifest, 5)
    wanted = given.copy()
    emulate.run_reference(made.kernel, wanted)
    for adversary in (1, 2, 3):
        ran = given.copy()
        emulate.emulate_build(made, ran, options=emulate.RunOptions(adversary=adversary))
        assert all(result.matches for result in emulate.compare_arguments(made.kernel, made.manifest, ran, wanted))


def waits_and_releases(made: Build) -> list[str]:
    (role,) = (r for r in made.program.roles if any(isinstance(op, WgmmaWait) for op in walk_operations(r.body)))
    every = [op for op in walk_operations(role.body) if isinstance(op, WgmmaWait | Arrive)]
    return [f"wait {op.pending}" if isinstance(op, WgmmaWait) else "release" for op in every]


def test_a_release_waits_for_the_products_of_its_stage_alone() -> None:
    """The newer ones go on: one behind the first stage's, then one behind the third's, which is released before the
    second."""
    _, made = built(KERNELS, "sm_90a", entry="in_flight")
    assert waits_and_releases(made)[:5] == ["wait 1", "release", "wait 0", "release", "release"]


def test_no_such_wait_can_be_left_out() -> None:
    """Each wait for products, taken out of the PTX by itself: a stage is filled again while it is read."""
    _, made = built(KERNELS, "sm_90a", entry="in_flight")
    for mutant, line in mutants_of(made, r"wgmma\.wait_group"):
        assert caught(made, mutant), line


def test_what_is_announced_is_what_tma_copies() -> None:
    """Of three tiles the second producer fills one by TMA and one by threads, the first producer one by TMA."""
    _, made = built(KERNELS, "sm_90a", entry="announced")
    assert re.findall(r"expect_tx\S* .*, (\d+);", made.ptx) == [str(2 * 8 * 96 * 2)]
    _, made = built(KERNELS, "sm_80", entry="announced")
    assert "expect_tx" not in made.ptx


def test_steps_of_a_producer_are_kept_apart() -> None:
    """The barriers among the threads of the role between its steps, behind that of its acquire, and the arrivals."""
    _, made = built(KERNELS, "sm_90a", entry="in_steps")
    between = mutants_of(made, r"bar\.sync 2")[1:]
    assert len(between) == 2
    for mutant, line in (*between, *mutants_of(made, r"mbarrier\.arrive")):
        assert caught(made, mutant), line
