"""Resources that a pipelined loop holds besides shared memory: registers for fragments, named barriers, mbarriers.

Registers are counted per thread, up to what the owning role may have. The pool has no limit for a loop that needs more
in program order, since it spills whatever its schedule (the assembler reports it), nor for a manual schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilec.analysis.rings import Accesses, RingPlan
from tilec.analysis.usage import find_reads
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.layout import Fragment
from tilec.ir.tile import Buffer, Parallel, walk_statements
from tilec.ir.warp import TensorTile
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.loop.assign_roles import ROLE_BARRIERS
from tilec.sched.problem import UNLIMITED, Pool, Value
from tilec.support.records import dataclass
from tilec.target.table import Target

# Addresses, counters and pointers of each thread: a guess, as in `sched.problem.Role`.
_OTHER_REGISTERS = 24

REGISTER_STEP = 8
"""setmaxnreg gives and takes registers in these steps."""

PRODUCER_REGISTERS = (24, 40)
"""What a thread of the producer has, at least and at most. 24, the least that setmaxnreg takes, suffices mostly: each
role in the producer's warpgroup is one thread, which only starts copies and waits. Its machine code names 22 in grouped
products, 10 at most in all other samples; where it spills, `widen-producers` gives it the most. Consumers need the
rest: with 8 fewer, products of attention backward are serialised."""

WGMMA_EXTRA_REGISTERS = 26
"""Registers that the assembler wants for wgmma beside its accumulators: with 128 of these it asks for 154."""


@dataclass(frozen=True, slots=True)
class PoolValues:
    """Pools of a problem, from its second on, and the values in them."""

    pools: tuple[Pool, ...]
    values: tuple[Value, ...]


def build_pools(
    assignment: LayoutAssignment,
    target: Target,
    accesses: Sequence[Accesses],
    outside: frozenset[str],
    fed: Sequence[RingPlan],
    is_given: bool,
    groups: int = 1,
) -> PoolValues:
    """Return a loop's pools of registers, named barriers and, with rings, mbarriers, and the values that take them.
    `accesses` are those of the loop's statements in their order; `outside`: buffers that other statements use too;
    `fed`: rings that may pass between roles; `is_given`: the schedule is manual; `groups` consumer warpgroups run
    independently."""
    temporaries = tuple(_find_temporary_fragments(assignment, accesses, outside))
    names = {value.name for value in temporaries}
    reserved_fragments = [b for b in _find_used_fragments(assignment, accesses) if b.name not in names]
    reserved = _OTHER_REGISTERS + sum(_count_registers(assignment, b) for b in reserved_fragments)
    registers = Pool("registers", count_available_registers(assignment, target), reserved)
    if is_given or registers.reserved + _peak_in_program_order(temporaries, len(accesses)) > registers.capacity:
        registers = replace(registers, capacity=UNLIMITED)
    # Barrier 0 is the block's; independent groups wait at one of their own each. They are held while the loop runs,
    # whatever the schedule, so no limit on carried values applies (the lint `barriers-exhausted` counts their uses).
    in_use = (ROLE_BARRIERS if assignment.form == "warp_specialised" else 1) + (groups if groups > 1 else 0)
    barriers = replace(target.pool("named_barriers"), reserved=in_use, spare=False)
    if not fed:
        return PoolValues((registers, barriers), temporaries)
    mbarriers = replace(target.pool("mbarriers"), spare=False)
    return PoolValues((registers, barriers, mbarriers), (*temporaries, *(_build_barrier_value(ring) for ring in fed)))


def add_tensor_memory_pools(
    held: PoolValues, tiles: Sequence[TensorTile], target: Target, accesses: Sequence[Accesses]
) -> PoolValues:
    """Return the pools with those of tensor memory's columns and banks added; as they are without tensor tiles. A sum
    that the loop computes and reads holds its columns from its first product to its last read. Sums that live longer
    are reserved."""
    if not tiles:
        return held
    columns, banks = 1 + len(held.pools), 2 + len(held.pools)
    values: list[Value] = []
    reserved_columns = 0
    for tile in tiles:
        name = tile.buffer.name
        makers = tuple(i for i, access in enumerate(accesses) if name in access.writes)
        readers = tuple(i for i, access in enumerate(accesses) if name in access.reads - access.writes)
        if makers and readers:
            values.append(Value(name, makers, readers, tile.columns, columns))
            values.append(Value(f"bank of {name}", makers, readers, 1, banks))
        else:
            reserved_columns += tile.columns * tile.depth
    pools = (
        replace(target.pool("tmem"), reserved=reserved_columns, spare=False),
        replace(target.pool("tmem_banks"), reserved=int(reserved_columns > 0), spare=False),
    )
    return PoolValues((*held.pools, *pools), (*held.values, *values))


def count_available_registers(assignment: LayoutAssignment, target: Target) -> int:
    """Return the most registers that a consumer thread can have, by the kernel's roles and threads."""
    if assignment.form == "warp_specialised":
        return compute_register_split(assignment.kernel.threads // WARPGROUP_THREADS, target)[1]
    share = target.limit("registers_per_sm") // assignment.kernel.threads // 8 * 8
    return min(share, target.limit("registers_per_thread"))


def choose_register_split(assignment: LayoutAssignment, target: Target) -> tuple[int, int] | tuple[None, None]:
    """Return registers per thread of producer and consumers for setmaxnreg, or None twice if an equal share suffices.
    With an equal share the assembler takes no more than is needed, and more blocks fit."""
    threads = assignment.kernel.threads + WARPGROUP_THREADS
    alike = min(target.limit("registers_per_sm") // threads // 8 * 8, target.limit("registers_per_thread"))
    if _count_needed_registers(assignment) <= alike:
        return None, None
    return compute_register_split(assignment.kernel.threads // WARPGROUP_THREADS, target)


def _count_needed_registers(assignment: LayoutAssignment) -> int:
    """Return an upper bound of a thread's registers: all fragments at once, and some for other values."""
    kernel = assignment.kernel
    fragments = [(assignment.fragments[b.name].register_count, b.dtype.bytes) for b in kernel.buffers if b.in_registers]
    nests = (s for s in walk_statements(kernel.body) if isinstance(s, Parallel))
    computes = any(b.in_registers for nest in nests for b in find_reads(nest))
    held = sum(elements * max(1, size // 4) for elements, size in fragments)
    return held + WGMMA_EXTRA_REGISTERS + (_OTHER_REGISTERS if computes else 0)


def compute_register_split(consumer_groups: int, target: Target, least: int = PRODUCER_REGISTERS[0]) -> tuple[int, int]:
    """Return registers per thread of the producer warpgroup, few, and of each consumer warpgroup, which share the rest.
    They divide, in setmaxnreg's steps, what the block starts with: an equal share, rounded down, for each warpgroup. A
    consumer has at most 240, as an instruction can name no more than 255. The producer has at least `least`."""
    most = PRODUCER_REGISTERS[1]
    share = target.limit("registers_per_sm") // ((consumer_groups + 1) * WARPGROUP_THREADS)
    held = share // REGISTER_STEP * REGISTER_STEP * (consumer_groups + 1)
    many = min(240, (held - least) // consumer_groups // REGISTER_STEP * REGISTER_STEP)
    return min(most, held - consumer_groups * many), many


def count_product_pieces(sums: Buffer, layout: Fragment, threads: int, target: Target) -> tuple[int, int]:
    """Return a warpgroup's columns of a wgmma product, and into how many instructions registers make it split them.
    It is 1 also where no split helps. The assembler refuses an instruction that does not fit the registers with
    which each of the block's `threads` starts, even if setmaxnreg adds more later (its error C7602, which .maxnreg
    and .minnctapersm do not change)."""
    columns, blocks = layout.registers[2].size * 8, layout.registers[3].size
    accumulators = layout.register_count * sums.dtype.bytes // 4 // blocks
    entry = target.limit("registers_per_sm") // threads
    pieces = (p for p in (1, 2, 4) if columns % (16 * p) == 0 and accumulators // p + WGMMA_EXTRA_REGISTERS <= entry)
    return columns, next(pieces, 1)


def _find_used_fragments(assignment: LayoutAssignment, accesses: Sequence[Accesses]) -> list[Buffer]:
    """Return the buffers in registers that the loop's statements access."""
    used = {name for access in accesses for name in access.all_names}
    return [b for b in assignment.kernel.buffers if b.in_registers and b.name in used]


def _count_registers(assignment: LayoutAssignment, buffer: Buffer) -> int:
    """Return how many 32-bit registers of a thread the buffer takes."""
    return -(-assignment.fragments[buffer.name].register_count * buffer.dtype.bytes // 4)


def _find_temporary_fragments(
    assignment: LayoutAssignment, accesses: Sequence[Accesses], outside: frozenset[str]
) -> Iterator[Value]:
    """Yield, as values, the fragments that each iteration writes before it reads them and that nothing outside uses."""
    for buffer in _find_used_fragments(assignment, accesses):
        first, *others = (i for i, access in enumerate(accesses) if buffer.name in access.all_names)
        if buffer.name not in outside and buffer.name not in accesses[first].reads:
            yield Value(buffer.name, (first,), tuple(others) or (first,), _count_registers(assignment, buffer), 1)


def _peak_in_program_order(values: Sequence[Value], statements: int) -> int:
    """Return the most registers that the values take at once if the statements run in program order."""
    alive = ([v for v in values if v.producers[0] <= at <= v.consumers[-1]] for at in range(statements))
    return max((sum(value.amount for value in now) for now in alive), default=0)


def _build_barrier_value(ring: RingPlan) -> Value:
    """Return the value that stands for a ring's two mbarriers, held from filling to release of a version."""
    name = "+".join(buffer.name for buffer in ring.buffers)
    return Value(f"barriers of {name}", ring.producers, ring.consumers, 2, 3)
