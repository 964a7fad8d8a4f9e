"""Assignment of roles (warps) to the statements of a pipelined loop.

The producer copies from global memory by TMA: it runs before all other roles, and waits for free versions where no
other role has to. All other statements are the consumers'. Values in registers cannot pass between roles, and the
layouts say which warps have which rows. Where no statement of the consumers needs rows of another warpgroup, each
warpgroup runs its part independently, and the solver may place the parts at different times: one group computes while
the tensor cores work for another (ping-pong in FlashAttention-3).

Values that pass through shared memory may change roles. One such choice is left to the solver: a copy to global memory
by TMA is issued by one thread of the consumers, behind a barrier of all consumers, or by a store warp that does nothing
else.

Products by tcgen05 have a role of their own: one thread issues them, and the tensor cores signal their completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard, TypeVar

from tilec.analysis.control_slice import is_replicated_setting
from tilec.analysis.fragment_prefetch import is_wgmma_operation
from tilec.analysis.rings import RingPlan, find_accesses, find_pipelined_loops, is_load
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ops.lowering import Demand
from tilec.ops.products.gemm import Gemm
from tilec.ops.reductions.reduce import count_crossing_warps
from tilec.ops.synchronisation.rendezvous import is_for_every_role
from tilec.ops.synchronisation.sync import is_ordering_statement
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.price.compound import is_compound
from tilec.passes.memory.privatise import find_private_tiles
from tilec.sched.problem import Op, Problem, Ring, Slot, Use, Value
from tilec.support.records import dataclass
from tilec.target.table import Target

STORE_ROLE = "store"  # the role of one thread that issues copies to global memory, and waits for them
MMA_ROLE = "mma"  # the role of one thread that issues products by tcgen05
LOADING_THREAD = "loads"  # in place of a role: the thread of the only role that issues TMA copies
EVERY_ROLE = "every"  # of a statement that several roles run a part of
ROLE_BARRIERS = 3  # named barriers in use: the whole block's, and one for each of two roles


def is_bulk_load(stmt: tile.Stmt) -> bool:
    """Return whether a statement is a TMA copy from a tensor to shared memory, which one thread issues."""
    return isinstance(stmt, tile.TileOp) and is_load(stmt) and stmt.via == "tma"


def is_producer(stmt: tile.Stmt, assignment: LayoutAssignment) -> bool:
    """Return whether a warp-specialised kernel's producer role runs the statement: a TMA load."""
    return assignment.form == "warp_specialised" and is_bulk_load(stmt)


def assign_role(stmt: tile.Stmt, assignment: LayoutAssignment) -> str:
    """Return the name of the role that runs a statement; "all" without roles, `EVERY_ROLE` where several run parts."""
    if assignment.form != "warp_specialised":
        return "all"
    if is_for_every_role(stmt) or is_replicated_setting(stmt, assignment.kernel):
        return EVERY_ROLE
    if not is_compound(stmt):
        return "producer" if is_producer(stmt, assignment) else MMA_ROLE if is_tensor_product(stmt) else "consumer"
    inner_roles = {assign_role(s, assignment) for s in _list_inner_statements(stmt)}
    return inner_roles.pop() if len(inner_roles) == 1 else EVERY_ROLE


def _list_inner_statements(stmt: tile.Stmt) -> list[tile.Stmt]:
    """Return the statements directly nested in one, without binds."""
    return [s for body in tile.nested_bodies(stmt) for s in body if not isinstance(s, tile.Bind)]


def find_running_roles(stmt: tile.Stmt, assignment: LayoutAssignment) -> tuple[str, ...]:
    """Return the names of all roles that run a statement or a part of it."""
    if assign_role(stmt, assignment) != EVERY_ROLE:
        return (assign_role(stmt, assignment),)
    if is_for_every_role(stmt):
        return "consumer", "producer"
    inner_roles = {name for s in _list_inner_statements(stmt) for name in find_running_roles(s, assignment)}
    return tuple(name for name in ("consumer", "producer", MMA_ROLE) if name in inner_roles)


def is_tensor_product(stmt: tile.Stmt) -> TypeGuard[Gemm]:
    """Return whether a statement is a tcgen05.mma product, which one thread of the block issues."""
    return isinstance(stmt, Gemm) and stmt.via == "tcgen05"


def count_consumer_groups(assignment: LayoutAssignment, loop: tile.For, target: Target) -> int:
    """Return how many consumer warpgroups can run the loop independently; 1 where they must stay together. A manual
    schedule holds for all warpgroups together."""
    groups = assignment.kernel.threads // WARPGROUP_THREADS
    consumed = [s for s in find_scheduled_statements(loop) if assign_role(s, assignment) == "consumer"]
    products = [s for s in consumed if is_wgmma_operation(s)]
    if assignment.form != "warp_specialised" or groups < 2 or loop.stage is not None or not products:
        return 1
    # Each group needs a barrier for the ping-pong order.
    if ROLE_BARRIERS + groups > target.limit("named_barriers"):
        return 1
    private = find_private_tiles(assignment, loop)
    is_independent = (
        not any(map(_keeps_warps_together, find_scheduled_statements(loop)))
        and len(products) < len(consumed)
        and all(_is_warpgroup_independent(s, assignment, private) for s in consumed)
    )
    return groups if is_independent else 1


def is_bulk_store(stmt: tile.Stmt) -> bool:
    """Return whether a statement is a TMA copy from shared to global memory, which one thread issues."""
    return isinstance(stmt, tile.TileOp) and stmt.via == "tma_store"


@dataclass(frozen=True, slots=True)
class StoreCandidates:
    """The copies to global memory of a loop. `together`: by ring, those that may have the role `STORE_ROLE`, all or
    none of a ring. `kept`: those that stay with the consumers, each with the reason."""

    together: tuple[tuple[int, ...], ...] = ()
    kept: tuple[tuple[int, str], ...] = ()


def find_store_candidates(assignment: LayoutAssignment, loop: tile.For, plans: Sequence[RingPlan]) -> StoreCandidates:
    """Return the loop's TMA stores that a store role may issue, by ring, and those that may not, with reasons. Nested
    pipelined loops have their roles by rule."""
    statements = find_scheduled_statements(loop)
    around = (find_pipelined_loops(other.body) for other in find_pipelined_loops(assignment.kernel.body))
    if (
        assignment.form != "warp_specialised"
        or any(loop is inner for copies in around for inner in copies)
        or any(map(_keeps_warps_together, statements))
    ):
        return StoreCandidates()
    others = (other for other in find_pipelined_loops(assignment.kernel.body) if other is not loop)
    outside = (s for other in others for s in tile.walk_statements(other.body))
    elsewhere = {b.name for s in outside for b in (*find_reads(s), *find_writes(s))}
    together, kept = [], []
    for ring in plans:
        copies = tuple(i for i in ring.consumers if is_bulk_store(statements[i]))
        reason = _why_no_store_role(statements, ring, copies[0], assignment) if copies else None
        if copies and not elsewhere.isdisjoint(b.name for b in ring.buffers):
            reason = "another loop uses the same tiles"
        if copies and reason is None:
            together.append(copies)
        kept += [(i, reason) for i in copies if reason is not None]
    return StoreCandidates(tuple(together), tuple(kept))


def _keeps_warps_together(stmt: tile.Stmt) -> bool:
    """Return whether a statement contains a pipelined loop, or a barrier or wait that orders the warps."""
    return is_compound(stmt) or any(map(is_ordering_statement, tile.walk_statements((stmt,))))


def _why_no_store_role(
    statements: Sequence[tile.Stmt], ring: RingPlan, first: int, assignment: LayoutAssignment
) -> str | None:
    """Return why the consumers must issue the stores of this ring's tiles; None if a store role may. `first` is the
    first of the copies."""
    tiles = {b.name for b in ring.buffers}
    names = ", ".join(sorted(tiles))
    is_loaded = any(is_producer(statements[i], assignment) for i in ring.producers)
    if is_loaded and assignment.kernel.cluster.blocks > 1:
        return f"{names} may be loaded by multicast: the consumers of all blocks release it"
    for i in dict.fromkeys((*ring.producers, *ring.consumers)):
        stmt = statements[i]
        writes = find_accesses(stmt).writes & tiles
        if is_bulk_store(stmt) or is_producer(stmt, assignment):
            continue
        if is_loaded and writes:
            when = "between the load and the store, so that three roles would share it"
            return f"line {stmt.span.line} changes {names} {when}"
        if not is_loaded and not writes:
            return f"line {stmt.span.line} also reads {names}"
        if not is_loaded and i > first:
            return f"line {stmt.span.line} writes {names} again after the store"
    return None


@dataclass(frozen=True, slots=True)
class RingRoles:
    """The role that fills a ring, and the other roles that read it; no readers where one role does both."""

    producer_role: str
    readers: tuple[str, ...]


def find_ring_roles(ring: RingPlan, roles: Sequence[str], statements: Sequence[tile.Stmt]) -> RingRoles:
    """Return the role that fills a ring and the other roles that read it, given the role of each statement. The tiles
    of a statement that every role runs are the consumers'. If several roles would fill the ring, the first one counts:
    `annotate` refuses such a group."""
    filler, *_ = dict.fromkeys(resolve_tile_owner(roles[i]) for i in ring.producers)
    if filler == "all" and all(is_bulk_load(statements[i]) for i in ring.producers):
        return RingRoles(LOADING_THREAD, (filler,))
    return RingRoles(
        filler, tuple(dict.fromkeys(r for i in ring.consumers if (r := resolve_tile_owner(roles[i])) != filler))
    )


def resolve_tile_owner(role: str) -> str:
    """Return the role that accesses a statement's tiles: "consumer" for `EVERY_ROLE`, else the role itself."""
    return "consumer" if role == EVERY_ROLE else role


def find_wgmma_products(body: tuple[tile.Stmt, ...]) -> tuple[tile.TileOp, ...]:
    """Return the wgmma products among these statements and those nested in them."""
    return tuple(s for s in tile.walk_statements(body) if isinstance(s, tile.TileOp) and is_wgmma_operation(s))


def _is_warpgroup_independent(stmt: tile.Stmt, assignment: LayoutAssignment, own: frozenset[str]) -> bool:
    """Return whether each warpgroup can run its part of a statement without values of another warpgroup. The part
    may write registers and the tiles in `own`, of which each warpgroup can have a copy; no reduction may cross
    warps. A bind is not independent."""
    scopes = {b.name: b.scope for b in (*assignment.kernel.params, *assignment.kernel.buffers) if hasattr(b, "scope")}
    written = find_accesses(stmt).writes - own
    if isinstance(stmt, tile.Bind) or any(scopes.get(name) not in tile.IN_REGISTERS for name in written):
        return False
    for inner in (s for s in tile.walk_statements((stmt,)) if isinstance(s, tile.TileOp)):
        if not inner.by_warpgroups:
            return False
        if inner.folded is not None:
            folded = assignment.fragments[inner.regions[0].buffer.name]
            if count_crossing_warps(folded, inner.folded) > 1:
                return False
    return True


_DIVIDED_PARAMETERS = ("elements", "threads", "bytes", "count", "warps")


def divide_demand(demand: Demand, groups: int) -> Demand:
    """Return one warpgroup's share of a demand: counts of elements, threads, bytes and warps divided, rounded up."""
    shares = tuple(
        (name, -(-value // groups) if name in _DIVIDED_PARAMETERS else value) for name, value in demand.parameters
    )
    return replace(demand, parameters=shares)


def repeat_for_warpgroups(problem: Problem, groups: int) -> Problem:
    """Return the problem with the consumers' ops once for each warpgroup, each warpgroup with its own issue slot. The
    first warpgroup keeps the ops that there are; each other one gets copies of them behind all others, with an issue
    slot of its own. All else is shared, and all warpgroups read what the producer loads."""
    consumer_ops = [i for i, op in enumerate(problem.ops) if op.role == "consumer"]
    issue = next(i for i, slot in enumerate(problem.slots) if slot.name == "issue (consumer)")
    slots, ops, edges = list(problem.slots), list(problem.ops), list(problem.edges)
    slots[issue] = Slot("issue (consumer 1)")
    copies: dict[int, list[int]] = {i: [i] for i in consumer_ops}
    for i in consumer_ops:
        ops[i] = replace(ops[i], role="consumer 1")
    for group in range(2, groups + 1):
        slots.append(Slot(f"issue (consumer {group})"))
        copy = {i: len(ops) + k for k, i in enumerate(consumer_ops)}
        for i in consumer_ops:
            copies[i].append(copy[i])
            ops.append(_move_issue_slot(problem.ops[i], issue, len(slots) - 1, f"consumer {group}"))
        edges += (
            replace(e, src=copy.get(e.src, e.src), dst=copy.get(e.dst, e.dst))
            for e in problem.edges
            if e.src in copy or e.dst in copy
        )
    return replace(
        problem,
        ops=tuple(ops),
        edges=tuple(edges),
        slots=tuple(slots),
        rings=tuple(_add_consumer_copies(ring, copies) for ring in problem.rings),
        values=tuple(v if v.producers[0] in copies else _add_consumer_copies(v, copies) for v in problem.values),
        copies=tuple(tuple(numbers) for numbers in copies.values()),
    )


def _move_issue_slot(op: Op, issue: int, new_slot: int, role: str) -> Op:
    """Return the op in this role, issuing in `new_slot` instead of slot `issue`."""
    uses = (Use(new_slot, use.cycles, use.offset) if use.slot == issue else use for use in op.uses)
    return replace(op, uses=tuple(sorted(uses, key=lambda use: use.slot)), role=role)


_RingOrValue = TypeVar("_RingOrValue", Ring, Value)


def _add_consumer_copies(loaded: _RingOrValue, copies: dict[int, list[int]]) -> _RingOrValue:
    """Return the ring or value with each consumer replaced by all its copies."""
    return replace(loaded, consumers=tuple(copy for op in loaded.consumers for copy in copies.get(op, [op])))
