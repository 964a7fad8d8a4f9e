"""Rules of a warp program that need no run: 1, 2, 8, 9, 13, 15 and 19 of `ir.warp_verify.verify`; and the tiles that
share memory, for rule 10."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tilec.ir import tile, warp
from tilec.ir.groups import WARP_THREADS, WARPGROUP_THREADS
from tilec.ir.layout import Fragment
from tilec.ir.warp import Operation, Program, Role
from tilec.ir.warp_verify.effects import effects_without_scalars, op_name
from tilec.support.records import dataclass

MATRIX_ROW_BYTES = 16
"""The bytes of a row that ldmatrix and stmatrix move (PTX ISA, ldmatrix)."""

_BY_WARPGROUPS = (warp.Wgmma, warp.TensorLoad, warp.TensorStore)
"""Operations of whole warpgroups: each of the four warps has a part, by its number in the warpgroup."""


def check_partition(program: Program) -> Iterator[str]:
    """Yield a message where roles skip warps, split a wgmma's warpgroup, or disagree on a warpgroup's registers (rule
    1)."""
    next_warp = 0
    for role in program.roles:
        if role.first_warp != next_warp:
            yield f"role {role.name} starts at warp {role.first_warp}, the one before ends at {next_warp}"
        next_warp = role.first_warp + role.warps
        whole = (op for op in warp.walk_operations(role.body) if isinstance(op, _BY_WARPGROUPS))
        if (role.first_warp % 4 or role.warps % 4) and any(whole):
            yield f"role {role.name} has {role.warps} warps from {role.first_warp} on, not whole warpgroups"
    register_owner: dict[int, Role] = {}  # by warpgroup: the first role that sets its registers
    for role in program.roles:
        for group in range(role.first_warp // 4, -(-(role.first_warp + role.warps) // 4)):
            other = register_owner.setdefault(group, role)
            if other.registers != role.registers:
                yield (
                    f"roles {other.name} and {role.name} share a warpgroup and request {other.registers} and "
                    f"{role.registers} registers"
                )
    last = program.roles[-1]
    if last.registers and (last.first_warp + last.warps) % 4:
        yield f"role {last.name} has {last.warps} warps, not whole warpgroups"


def check_sections(program: Program) -> Iterator[str]:
    """Yield a message where a section but the last does not end with one barrier of all its roles (rule 1)."""
    for section in program.sections[:-1]:
        ends = [_find_last_barrier(role) for role in section]
        ids = {op.id for op in ends if isinstance(op, warp.NamedBarrier) and op.waits and op.threads == program.threads}
        if len(ids) != 1 or not all(isinstance(op, warp.NamedBarrier) for op in ends):
            yield f"role {section[0].name} is of a section that does not end with a barrier of the block"
        taking = (warp.NamedBarrier, warp.BarSync) if len(section) > 1 else (warp.NamedBarrier,)
        for role in section:
            named = [op for op in warp.walk_operations(role.body) if isinstance(op, taking) and op.id in ids]
            for op in named[:-1]:
                yield f"line {op.span.line}: {op_name(op)} has the number of the barrier that ends its section"


def check_tensor_memory_end(program: Program) -> Iterator[str]:
    """Yield a message where threads of a cluster whose tensor memory is freed together do not fence their last access
    (rule 16)."""
    for role in program.sections[-1] if program.tensor and program.signals_blocks else ():
        operations = list(warp.walk_operations(role.body))
        accesses = [at for at, op in enumerate(operations) if isinstance(op, warp.TensorLoad | warp.TensorStore)]
        fences = [at for at, op in enumerate(operations) if isinstance(op, warp.TensorFence) and op.what == "before"]
        if accesses and (not fences or fences[-1] < accesses[-1]):
            op = operations[accesses[-1]]
            yield f"line {op.span.line}: no fence of tensor memory follows {op_name(op)} before the memory is freed"


def _find_last_barrier(role: Role) -> Operation | None:
    """Return the operation after which a role only fences tensor memory, waits for copies, or signals other grids; None
    without any."""
    kept = [op for op in role.body if not isinstance(op, warp.TensorFence | warp.BulkWait | warp.GridControl)]
    return kept[-1] if kept else None


def check_shared_memory(program: Program) -> Iterator[str]:
    """Yield a message where shared tiles share a name, overlap illegally, or pass barriers or the end (rule 2)."""
    names = [t.buffer.name for t in program.shared]
    yield from (f"two shared tiles are called {name}" for name in dict.fromkeys(names) if names.count(name) > 1)
    in_rings = {name for ring in program.rings for name in ring.buffers}
    for first, second in combinations(sorted(program.shared, key=lambda t: (t.offset, t.buffer.name)), 2):
        over = [t for t in (first, second) if t.over_rings and t.buffer.name not in in_rings]
        is_over = len(over) == 1 and not {first.buffer.name, second.buffer.name}.isdisjoint(in_rings)
        takes = [t for t, other in ((first, second), (second, first)) if other.buffer.name in t.reuses]
        if first.meets(second) and not is_over and (not takes or any(t.buffer.name in in_rings for t in takes)):
            yield (
                f"{first.buffer.name} ends at byte {first.offset + first.bytes} of shared memory, "
                f"{second.buffer.name} starts at {second.offset}"
            )
    last = max(program.shared, key=lambda t: t.offset + t.bytes, default=None)
    end = 0 if last is None else last.offset + last.bytes
    barriers_end = program.barriers_at + program.barrier_bytes
    if last is not None and program.barrier_bytes and program.barriers_at < end:
        yield f"{last.buffer.name} ends at byte {end} of shared memory, the barriers start at {program.barriers_at}"
    if max(end, barriers_end) > program.smem_bytes:
        name = "the barriers" if last is None or barriers_end > end else last.buffer.name
        yield f"{name} ends at byte {max(end, barriers_end)} of {program.smem_bytes}"


def check_warpgroup_parts(program: Program) -> Iterator[str]:
    """Yield a message for each access to rows of a tile that another warpgroup, or role, stores by TMA (rule 8)."""
    layouts = {b.name: layout for b, layout in program.fragments}
    for role in program.roles:
        operations = list(warp.walk_operations(role.body))
        parts = {op.source.name: op.parts for op in operations if isinstance(op, warp.TmaStore) and op.parts > 1}
        ours = [(op, name) for op in operations for name in _touched_by_threads(op) if name in parts]
        for op, name in ours:
            where = f"line {op.span.line}: {op_name(op)} on {name}, whose parts {parts[name]} warpgroups store,"
            match op:
                case warp.TmaStore(parts=by):
                    if by != parts[name] or role.threads != by * WARPGROUP_THREADS or role.single_thread:
                        yield f"{where} is by {by}, of {role.threads} threads"
                case warp.StoreMatrix(source=source):
                    if not _holds_own_row_blocks(layouts[source.name], parts[name]):
                        yield f"{where} writes rows of other warpgroups"
                case warp.Elementwise(nest=nest, layout=layout):
                    indices = {
                        s.indices
                        for s in tile.walk_statements(nest.body)
                        if isinstance(s, tile.Store) and s.buffer.name == name
                    }
                    if indices != {nest.vars} or not _holds_own_row_blocks(layout, parts[name]):
                        yield f"{where} accesses rows of other warpgroups"
                case _:
                    yield f"{where} accesses all of it"
        for other in program.roles:
            if other is not role and any(
                name in parts for op in warp.walk_operations(other.body) for name in _touched_by_threads(op)
            ):
                yield f"role {other.name} accesses a tile whose parts the warpgroups of role {role.name} store"


def check_transpositions(program: Program) -> Iterator[str]:
    """Yield a message for each matrix transposition that does not divide into the role's warps (rule 19)."""
    copies = {shared_tile.buffer.name: shared_tile.layout.copies for shared_tile in program.shared}
    for role in program.roles:
        for op in warp.walk_operations(role.body):
            if not isinstance(op, warp.TransposeMatrix):
                continue
            rows, row_bytes = op.source.shape[0], op.source.shape[1] * op.source.dtype.bytes
            blocks, beyond = divmod(rows * row_bytes, op.rows * MATRIX_ROW_BYTES)
            if op.warps * copies[op.destination.name] * WARP_THREADS != role.threads:
                yield f"line {op.span.line}: {op_name(op)} by {op.warps} warps, in a role of {role.threads} threads"
            if beyond or rows % op.rows or blocks % op.warps:
                yield f"line {op.span.line}: {op_name(op)} of {op.source.name} does not divide into {op.warps} warps"


def check_warpgroup_copies(program: Program) -> Iterator[str]:
    """Yield a message where a warpgroup fills only a part of its copy of a tile, or an operation cannot reach it (rule
    8)."""
    copies = {
        shared_tile.buffer.name: shared_tile.layout.copies
        for shared_tile in program.shared
        if shared_tile.layout.copies > 1
    }
    for role in program.roles if copies else ():
        for op in warp.walk_operations(role.body):
            for name in sorted(_touched_by_threads(op) & copies.keys()):
                where = (
                    f"line {op.span.line}: {op_name(op)} on {name}, with a copy for each of {copies[name]} warpgroups,"
                )
                if role.threads != copies[name] * WARPGROUP_THREADS or role.single_thread:
                    yield f"{where} is by {role.threads} threads"
                match op:
                    case warp.Elementwise(layout=layout) if not _is_swept_by_each_warpgroup(layout, copies[name]):
                        yield f"{where} does not do the same in each warpgroup"
                    case warp.Elementwise() | warp.Wgmma() | warp.TransposeMatrix():  # the last: rule 19
                        pass
                    case _:
                        yield f"{where} cannot address a warpgroup's copy"


def check_reductions(program: Program) -> Iterator[str]:
    """Yield a message for each reduction or scan whose rows lie in lanes that do not form a butterfly (rule 13)."""
    layouts = {b.name: layout for b, layout in program.fragments}
    for role in program.roles:
        for op in warp.walk_operations(role.body):
            if not isinstance(op, warp.Reduce | warp.Scan) or op.source.name not in layouts:
                continue
            rows: dict[tuple[int, ...], set[int]] = {}
            for thread in range(role.threads):
                row = _row_digits(layouts[op.source.name], op.dim, thread)
                rows.setdefault((thread // WARP_THREADS, *row), set()).add(thread % WARP_THREADS)
            bits = 0
            for lanes in rows.values():
                bits |= _differing_bits(lanes)
            if any(len(lanes) != 1 << bits.bit_count() for lanes in rows.values()):
                yield (
                    f"line {op.span.line}: {op_name(op)} of {op.source.name} has rows whose lanes do not form a "
                    "butterfly"
                )


def _row_digits(layout: Fragment, dim: int, thread: int) -> tuple[int, ...]:
    """Return the thread's digits along the dimensions other than `dim`, which identify its row."""
    row: list[int] = []
    for axis in layout.threads:
        thread, digit = divmod(thread, axis.size)
        if axis.dim != dim:
            row.append(digit)
    return tuple(row)


def _differing_bits(lanes: set[int]) -> int:
    """Return a mask of the bits in which some of these lane numbers differ."""
    first = min(lanes)
    bits = 0
    for lane in lanes:
        bits |= lane ^ first
    return bits


def _is_swept_by_each_warpgroup(layout: Fragment, groups: int) -> bool:
    """Return whether each of `groups` warpgroups sweeps the same elements, each of them in a different thread."""
    threads = range(WARPGROUP_THREADS)
    offsets = [layout.thread_offset(thread) for thread in range(layout.thread_count)]
    return (
        layout.thread_count == groups * WARPGROUP_THREADS
        and all(offset == offsets[thread % len(threads)] for thread, offset in enumerate(offsets))
        and len({offsets[thread] for thread in threads}) == len(threads)
    )


def check_replicas(program: Program) -> Iterator[str]:
    """Yield a message for each replicated nest that sets registers and reads memory which only one replica stores (rule
    15)."""
    for role in program.roles:
        for op in warp.walk_operations(role.body):
            if isinstance(op, warp.Elementwise) and any(a.dim < 0 and a.size > 1 for a in op.layout.threads):
                inside = list(tile.walk_statements(op.nest.body))
                stored = {s.buffer for s in inside if isinstance(s, tile.Store)}
                read = {load.buffer for s in inside if not isinstance(s, tile.Print) for load in tile.walk_loads(s)}
                read |= {s.buffer for s in inside if isinstance(s, tile.Store) and s.previous is not None}
                memory_read = sorted(b.name for b in stored & read if not b.in_registers)
                if memory_read and any(b.in_registers for b in stored):
                    where = f"line {op.span.line}: {op_name(op)}"
                    yield (
                        f"{where} sets registers in every replica from {memory_read[0]}, which only one replica stores"
                    )


def check_early_start(program: Program) -> Iterator[str]:
    """Yield a message, if the grid begins early, for each tensor access before a wait, or if none waits (rule 9)."""
    if not program.begins_early:
        return
    tensors = {p.name for p in program.params if not isinstance(p, tile.Var)}
    waiting = False
    for role in program.all_roles:
        # Only operations outside loops and branches are sure to run first.
        waits = [at for at, op in enumerate(role.body) if isinstance(op, warp.GridControl) and op.what == "wait"]
        waiting |= bool(waits)
        for op in role.body[: waits[0]] if waits else role.body:
            for inner in warp.walk_operations((op,)):
                is_copy = isinstance(inner, warp.TmaLoad | warp.TmaStore)
                if is_copy or not tensors.isdisjoint(_touched_by_threads(inner) | set(warp.scalar_reads(inner))):
                    yield f"line {inner.span.line}: {op_name(inner)} does not wait for the previous grid"
    if not waiting:
        yield "the grid begins early, and no role waits for the grid before it"


def _touched_by_threads(op: Operation) -> set[str]:
    """Return the buffers that an operation reads or writes; none for TMA loads, `TryCancel`, tcgen05 products and
    copies.
    Barriers of all order those (rule 11)."""
    if isinstance(op, warp.TmaLoad | warp.TryCancel | warp.TensorMma | warp.TensorCopy):
        return set()
    reads, writes, _, _ = effects_without_scalars(op)
    return reads | writes


def _holds_own_row_blocks(layout: Fragment, parts: int) -> bool:
    """Return whether each of `parts` warpgroups holds only blocks of `PART_ROWS` rows with its own number modulo
    `parts`.
    """
    moved = {layout.register_offset(register)[0] for register in range(layout.register_count)}
    return layout.thread_count == parts * WARPGROUP_THREADS and all(
        (layout.thread_offset(thread)[0] + row) // warp.PART_ROWS % parts == thread // WARPGROUP_THREADS
        for thread in range(layout.thread_count)
        for row in moved
    )


@dataclass(frozen=True, slots=True)
class Overlaps:
    """The tiles that reuse the memory of rings. `beneath` has for each of them the ring tiles whose memory it reuses,
    and whether rows at the same place belong to the same warpgroup in both. `by_rows` are the accumulators of which
    each warpgroup holds such rows. `beside` has the tiles in no ring with which a tile in no ring shares memory."""

    beneath: dict[str, tuple[tuple[str, bool], ...]]
    by_rows: frozenset[str]
    beside: dict[str, tuple[str, ...]]

    def own_rows(self, op: Operation) -> tuple[str, ...]:
        """Return the shared tiles of which each warpgroup reads only its own rows for a wgmma; empty for other
        operations."""
        return warp.tiles_read_by_own_rows(op) if isinstance(op, warp.Wgmma) and op.c.name in self.by_rows else ()


def find_overlaps(program: Program) -> Overlaps:
    """Return which shared tiles reuse the memory of ring tiles or of other tiles, and so must not be in use with
    them."""
    in_rings = [t for t in program.shared if any(t.buffer.name in ring.buffers for ring in program.rings)]
    others = [t for t in program.shared if t not in in_rings]
    beside = {
        t.buffer.name: met for t in others if (met := tuple(o.buffer.name for o in others if o is not t and o.meets(t)))
    }
    over = [t for t in others if t.over_rings or any(t.meets(ringed) for ringed in in_rings)]
    if not over:
        return Overlaps({}, frozenset(), beside)
    parts = {op.source.name: op.parts for op in program.operations() if isinstance(op, warp.TmaStore)}
    beneath = {
        shared_tile.buffer.name: tuple(
            (other.buffer.name, _have_same_row_owners(shared_tile, other, parts.get(shared_tile.buffer.name, 1)))
            for other in in_rings
            if other.meets(shared_tile)
        )
        for shared_tile in over
    }
    by_rows = {
        b.name for b, layout in program.fragments if _holds_own_row_blocks(layout, max(parts.values(), default=1))
    }
    return Overlaps(beneath, frozenset(by_rows), beside)


def _have_same_row_owners(shared_tile: warp.SharedTile, other: warp.SharedTile, parts: int) -> bool:
    """Return whether rows of two shared tiles, where these overlap, begin at the same bytes and have equal owners."""
    if shared_tile.layout.row_bytes != other.layout.row_bytes:
        return False
    mine, others = (_row_owners(t, parts) for t in (shared_tile, other))
    within = [at for at in mine if other.offset <= at < other.offset + other.bytes]
    return (
        all(mine[at] == others.get(at) for at in within)
        and (shared_tile.offset - other.offset) % shared_tile.layout.row_bytes == 0
    )


def _row_owners(shared_tile: warp.SharedTile, parts: int) -> dict[int, int]:
    """Return the warpgroup, of `parts`, that owns each row of a shared tile, by the row's offset in shared memory."""
    layout = shared_tile.layout
    begins = (
        shared_tile.offset + v * shared_tile.stride + p * layout.panel_bytes
        for v in range(shared_tile.depth)
        for p in range(layout.panels)
    )
    rows = range(layout.rows)
    return {begin + row * layout.row_bytes: row // warp.PART_ROWS % parts for begin in begins for row in rows}
