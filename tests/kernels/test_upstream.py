"""What other compilers of the language got wrong in pipelined loops stays right here, with every small trip count:
upstream's issues 2668, 2595, 2613, 2566, 2876, 2720, 1792, 3039, 3031, 2309 and 2548, its pull request 2674, and a wait
of the drain under a condition that is never met.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import FORMS, HERE, built

from tilec.driver.emulation import emulate
from tilec.ir import warp
from tilec.ir.tile import Store
from tilec.support.options import Strategy

CASES = (
    "overwrite", "twice", "single", "guarded", "condition", "chain", "after", "scratch", "depths", "again", "while",
    "never", "manual", "atomics", "combined",
)  # fmt: skip


def test_every_case_of_the_kernel_is_here() -> None:
    text = (HERE / "upstream.tl").read_text(encoding="utf-8")
    assert [line.split('"')[1] for line in text.split("\n") if "if case == " in line] == list(CASES)


@pytest.mark.parametrize(("target", "strategy"), FORMS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_right_where_others_were_not(case: str, target: str, strategy: Strategy) -> None:
    _, made = built(HERE / "upstream.tl", target, strategy, case=case)
    for trips in range(5):
        found = emulate.draw_arguments(made.kernel, made.manifest, trips)
        found.scalars["n"] = trips
        found.tensors["Ids"][:] = np.array([0, 2, 1, 0, 3, 1])
        expected = found.copy()
        emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=trips))
        emulate.run_reference(made.kernel, expected)
        for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
            assert r.matches, f"{trips} trips: {r.name}{list(r.worst)} is {r.found}, expected {r.expected}"


def test_a_manual_schedule_keeps_tma_and_the_producer() -> None:
    """A schedule by hand says when, not by what: on sm_90a the copies still are the producer's, by TMA."""
    _, made = built(HERE / "upstream.tl", "sm_90a", case="manual")
    assert [s.stage for s in made.schedules] == [(0, 0, 2)]
    consumer, producer = made.program.roles
    assert sum(isinstance(op, warp.TmaLoad) for op in warp.walk_operations(producer.body)) == 2
    assert not any(
        isinstance(op, warp.CpAsync) for role in made.program.roles for op in warp.walk_operations(role.body)
    )
    assert any(isinstance(op, warp.Wgmma) for op in warp.walk_operations(consumer.body))


def test_an_addition_and_a_maximum_keep_their_order() -> None:
    """Atomics of one kind commute; of two kinds the threads must meet in between, whoever makes them."""
    _, made = built(HERE / "upstream.tl", "sm_80", case="combined")
    (role,) = made.program.roles
    steady = next(op for op in warp.walk_operations(role.body) if isinstance(op, warp.Loop) and op.part == "steady")
    kinds = []
    for op in steady.body:
        if isinstance(op, warp.BarSync):
            kinds.append("barrier")
        elif isinstance(op, warp.Elementwise):
            kinds += [s.atomic for s in op.nest.body if isinstance(s, Store) and s.atomic]
    assert {"add", "max"} <= set(kinds)
    trip = kinds[kinds.index("add") :] + kinds[: kinds.index("add")]
    maximum = trip.index("max")
    assert "barrier" in trip[:maximum] and "barrier" in trip[maximum:], kinds


def test_a_bound_is_read_once() -> None:
    """What the loop's end was read from changes in the loop; the number of iterations does not."""
    _, made = built(HERE / "bounds.tl", "sm_80")
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    found.tensors["End"][:] = 3
    expected = found.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    assert found.tensors["End"].tolist() == expected.tensors["End"].tolist() == [6]
    assert np.array_equal(found.tensors["Y"], expected.tensors["Y"], equal_nan=True)
