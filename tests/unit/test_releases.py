"""When a version of a ring is given back, read off a schedule."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.rings import RingPlan
from tilec.passes.lower.releases import choose_release_cycle
from tilec.sched.problem import Op, Problem, Use
from tilec.sched.schedule import Schedule

# A load, and a product that holds the tensor cores for 512 cycles and completes 72 cycles later.
LOAD, PRODUCT = 0, 1
PROBLEM = Problem("gemm", (Op("load", (), 20, 1000), Op("product", (Use(0, 512),), 48, 584)), (), ())
ADDING = frozenset({PRODUCT})
TILES = RingPlan((), (LOAD,), (PRODUCT,))


def released(ii: int, start: int, depth: int, adding: frozenset[int] = ADDING, *, computes: bool = False) -> int:
    """Cycles after the product of the iteration began."""
    schedule = Schedule(ii, (0, start), (0, 1), (depth,), "given")
    return choose_release_cycle(PROBLEM, schedule, TILES, [PRODUCT], adding, depth, computes) - start


def test_the_next_product_goes_first_where_it_is_due_before_this_one_could_be_seen_to_be_complete() -> None:
    for start in (1000, 1264, 1312, 1800):  # wherever in its interval the product stands
        assert released(632, start, 3) == 632
        assert released(584 + 72, start, 3) == 584 + 72
    assert released(584, 1168, 2) == 584  # at the very moment


def test_a_product_that_is_due_later_is_not_waited_for() -> None:
    assert released(584 + 73, 1312, 3) == 584
    assert released(900, 1800, 3) == 584
    assert released(512, 1024, 4) == 584  # the next is under way, the one after it is far


def test_a_version_that_the_next_product_needs_goes_back_at_once() -> None:
    assert released(632, 1264, 1) == 584
    assert released(632, 1264, 2) == 632


def test_who_waits_for_the_product_itself_loses_nothing() -> None:
    assert released(632, 1312, 3, frozenset()) == 584


def test_what_reads_last_decides() -> None:
    ops = (*PROBLEM.ops, Op("sum", (), 10, 700))
    schedule = Schedule(632, (0, 1312, 1312), (0, 1, 2), (3,), "given")
    problem = replace(PROBLEM, ops=ops)
    assert choose_release_cycle(problem, schedule, TILES, [PRODUCT, 2], ADDING, 3) == 1312 + 700


def test_who_computes_between_products_issues_the_next_first_where_no_load_waits_for_it() -> None:
    assert released(900, 1800, 3, computes=True) == 900  # at the very moment at which the load is due again
    assert released(900, 1801, 3, computes=True) == 584
    assert released(900, 1700, 2, computes=True) == 584
