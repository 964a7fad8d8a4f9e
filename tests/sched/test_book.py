"""The worked examples of the tileiras sources, where they hold, and where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops import has_schedule

from tilec.passes.scheduling.refusals import find_refusals
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.model.stages import Roofline, count_roofline_stages, estimate_roofline
from tilec.sched.objective import make_schedule
from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use, Value
from tilec.sched.schedule import Schedule
from tilec.sched.solve import solve_problem
from tilec.sched.trace import record_pool
from tilec.sched.verify import find_violations
from tilec.target import table as target_file

SLOTS = ("tma", "tp_smem_wr", "tc_and_mma", "tp_mma", "tp_smem_rd", "tp_tmem_wr")


def op(name: str, cycles: int, *slots: str) -> Op:
    return Op(name, tuple(Use(SLOTS.index(slot), cycles) for slot in slots), 1, cycles)


LOAD, MMA = op("tma load", 8, "tma", "tp_smem_wr"), op("mma", 8, "tc_and_mma", "tp_mma")
WRITE, READ, COPY = op("smem write", 7, "tp_smem_wr"), op("smem read", 7, "tp_smem_rd"), op("copy", 7, "tp_tmem_wr")


def body(ops: tuple[Op, ...], edges: tuple[Edge, ...], rings: tuple[Ring, ...] = ()) -> Problem:
    return Problem("book", ops, edges, tuple(Slot(name) for name in SLOTS), (Pool("smem", 232448),), rings)


def test_the_four_ops_take_fifteen_cycles_not_eight() -> None:
    """Load and write share a row for 8 and 7 cycles: no stage makes room for both in an interval of eight."""
    four = body((LOAD, READ, MMA, WRITE), (Edge(0, 1, 8), Edge(1, 2, 7), Edge(2, 3, 16)))
    solution = solve_problem(four)
    assert (solution.schedule.ii, solution.schedule.status) == (15, "optimal")
    assert not has_schedule(four, 8)
    assert [(bound.kind, bound.name) for bound in solution.bounds.binding] == [("slot", "tp_smem_wr")]


def test_the_stages_by_the_roofline() -> None:
    assert count_roofline_stages(8, 8) == 1
    assert count_roofline_stages(8 + 7, 8) == 2
    assert (count_roofline_stages(1, 8), count_roofline_stages(0, 8), count_roofline_stages(17, 8)) == (1, 1, 3)


def test_the_first_example_needs_one_stage_by_the_roofline_and_two_in_practice() -> None:
    hopper = body((LOAD, MMA), (Edge(0, 1, 8),), (Ring("tile", (0,), (1,), 16384, 0),))
    assert estimate_roofline(hopper) == Roofline(8, 8, 1)
    schedule = solve_problem(hopper).schedule
    assert (schedule.ii, schedule.stage) == (8, (0, 1))


def test_the_second_example_needs_two_stages() -> None:
    rings = (Ring("shared", (0,), (1,), 16384, 0), Ring("tensor", (1,), (2,), 4096, 0))
    blackwell = body((LOAD, COPY, MMA), (Edge(0, 1, 8), Edge(1, 2, 7)), rings)
    assert estimate_roofline(blackwell) == Roofline(15, 8, 2)
    assert max(solve_problem(blackwell).schedule.stage) >= 1


def test_the_roofline_counts_loads_and_compute_apart() -> None:
    hopper = body((op("long load", 20, "tma"), MMA), (Edge(0, 1, 20),), (Ring("tile", (0,), (1,), 16384, 0),))
    assert estimate_roofline(hopper) == Roofline(20, 8, 3)


def test_no_roofline_without_loads() -> None:
    assert estimate_roofline(body((READ, MMA), (Edge(0, 1, 7),))) is None
    assert estimate_roofline(Problem("empty", (), (), ())) is None


def priced(machine: str, *kinds: tuple[str, dict[str, int]]) -> Problem:
    """A chain of statements in the book's cycles, as the target's file prices them; all but the last fill rings."""
    target = target_file.load_target(machine, "book")
    prices = [target.price(kind, **sizes) for kind, sizes in kinds]
    slots = tuple(dict.fromkeys(slot for price in prices for slot, _, _ in price.uses))
    ops = tuple(
        Op(kind, tuple(Use(slots.index(slot), *held) for slot, *held in price.uses), price.issue, price.latency)
        for (kind, _), price in zip(kinds, prices, strict=True)
    )
    steps = range(len(ops) - 1)
    edges = tuple(Edge(at, at + 1, ops[at].latency) for at in steps)
    rings = tuple(Ring(ops[at].name, (at,), (at + 1,), 4096, 0) for at in steps)
    return Problem(machine, ops, edges, tuple(Slot(slot) for slot in slots), (Pool("smem", 232448),), rings)


def test_both_examples_in_the_cycles_of_the_target_files() -> None:
    load = ("tma.load", {"bytes": 16384})
    hopper = priced("sm_90a", load, ("wgmma.ss", {"n": 128, "count": 8, "k_bytes": 32}))
    assert estimate_roofline(hopper) == Roofline(8, 8, 1)
    copy, product = ("tcgen05.cp", {"bytes": 4096}), ("tcgen05.mma.ss", {"m": 128, "n": 128, "count": 4})
    assert estimate_roofline(priced("sm_100a", load, copy, product)) == Roofline(15, 8, 2)


def staged(in_flight: int) -> tuple[Problem, Schedule]:
    """The second example with the pools of tensor memory: what an iteration holds of the banks, from the copy until the
    product is done, is two, and its accumulator 128 columns. With a schedule of so many iterations in flight."""
    machine = target_file.load_target("sm_100a", "book")
    plain = body((LOAD, COPY, MMA), (Edge(0, 1, 8), Edge(1, 2, 7)))
    pools = (*plain.pools, machine.pool("tmem_banks"), machine.pool("tmem"))
    values = (Value("banks", (1,), (2,), 2, 1), Value("columns", (2,), (2,), 128, 2))
    problem = replace(plain, pools=pools, values=values)
    return problem, make_schedule(problem, 8, (0, 8, 8 * in_flight), "given")


def test_two_iterations_in_flight_fit_the_banks_of_tensor_memory_and_four_do_not() -> None:
    problem, schedule = staged(2)
    assert not list(find_violations(problem, schedule))
    found = solve_problem(problem)
    assert (found.schedule.ii, found.schedule.status) == (8, "optimal")
    banks, columns = (record_pool(problem, found.schedule, pool) for pool in (1, 2))
    assert (banks["capacity"], banks["peak"], columns["capacity"]) == (4, 4, 512)
    problem, schedule = staged(4)
    (broken,) = find_violations(problem, schedule)
    assert broken == "pool tmem_banks would hold 8 of 4 as banks begins"
    (refusal,) = find_refusals(problem, schedule)
    assert (refusal.constraint, refusal.name, refusal.ops) == ("pool", "tmem_banks", (1, 2))
    assert refusal.text == "pool tmem_banks would hold 8 of 4 at once: 4 × 2 banks"


def test_banks_that_an_iteration_needs_alone_are_refused_at_every_interval() -> None:
    problem, _ = staged(2)
    greedy = replace(problem, values=(replace(problem.values[0], amount=5), problem.values[1]))
    with pytest.raises(
        Unschedulable, match="pool tmem_banks of 4 is too small for the values that live at the same time: 5 banks"
    ):
        solve_problem(greedy)
    wide = replace(problem, values=(problem.values[0], replace(problem.values[1], amount=1024)))
    with pytest.raises(Unschedulable, match="pool tmem of 512"):
        solve_problem(wide)
