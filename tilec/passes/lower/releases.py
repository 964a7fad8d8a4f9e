"""The cycle in which a role releases a version of a ring: when its schedule is done with it, or right behind the next
product.

A product of wgmma completes some cycles after the tensor cores are free again. A warpgroup that waits for it before it
issues the next leaves them idle for that long in every iteration, also where memory is faster than the schedule assumes
and the next tiles are there. Where the next product is due in less than that, it goes first: one is always in flight.

Where threads compute between products, as for packed weights, the next product goes first wherever no load has to wait
for it. The time of such work is what a schedule knows least, and a wait in it that turns out too early stops threads
and tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.analysis.rings import RingPlan
from tilec.ir.tile import Stmt
from tilec.passes.loop.rotate_loop import find_contended_registers, find_wgmma_accumulator
from tilec.sched.problem import Op, Problem
from tilec.sched.schedule import Schedule


def find_independent_products(statements: Sequence[Stmt], candidates: Sequence[int]) -> frozenset[int]:
    """Return the wgmma `candidates` whose registers only products into the same accumulator access. Prefetched
    fragments do not count."""
    products = [i for i in candidates if find_wgmma_accumulator(statements[i]) is not None]
    return frozenset(i for i in products if not find_contended_registers(statements[i], statements))


def choose_release_cycle(
    problem: Problem,
    schedule: Schedule,
    ring: RingPlan,
    readers: Sequence[int],
    independent: frozenset[int],
    depth: int,
    computes: bool = False,
) -> int:
    """Return the cycle at which a role releases a ring's version: when its readers are done, or behind the next
    product. The latter if independent products are the last readers, the next one is due soon, and the ring has
    versions for it. `computes`: the role has other work than products."""
    ii, start, ops = schedule.ii, schedule.start, problem.ops
    done = max(start[reader] + ops[reader].latency for reader in readers)
    last = [reader for reader in readers if start[reader] + ops[reader].latency == done]
    if not independent.issuperset(last):
        return done
    following = min(start[product] + -(-(done - start[product]) // ii) * ii for product in independent)
    versions = following // ii - min(start[reader] for reader in readers) // ii + 1
    is_soon = following - done <= min(_count_drain_cycles(ops[reader]) for reader in last)
    filled_again = min(start[fills] for fills in ring.producers) + depth * ii
    goes_first = is_soon or (computes and following <= filled_again)
    return following if goes_first and versions <= depth else done


def _count_drain_cycles(op: Op) -> int:
    """Return the cycles from when the op's units are free until its result is complete."""
    return op.latency - max((use.offset + use.cycles for use in op.uses), default=0)
