"""Allocate dynamic shared memory: an offset for every shared tile and for the mbarriers of the rings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.multicast import BOX_BYTES, SWIZZLE_BYTES
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.warp import MBARRIER_BYTES, Operation, Program, Reduce, Role, Scan, SharedTile, walk_operations
from tilec.passes.memory.live_ranges import align_bytes, place_tiles
from tilec.passes.memory.shared_limits import format_size_sum
from tilec.support.diagnostics import Label, raise_error
from tilec.support.options import EnvironmentSwitches
from tilec.target.table import Target


def allocate_shared(program: Program, target: Target, switches: EnvironmentSwitches) -> Program:
    """Assign each tile and the barriers an offset in shared memory; refuse a kernel that does not fit.

    Tiles lie one after another in program order, those of rings last; tiles that reuse the rings' memory begin where
    these do, and barriers come last. In a kernel that does not fit otherwise, reductions share their scratch, and tiles
    without a swizzle lie close together behind the rings. Errors: `shared-memory-overflow`."""
    placed, counted = _place_all(program)
    if switches.unlimited_smem:
        return placed
    limit = target.limit("smem_bytes_per_cta")
    if placed.smem_bytes > limit and not program.explicit_roles:
        program = _share_scratch(program)
        placed, counted = _place_all(program)
    if placed.smem_bytes > limit:
        placed, counted = _place_all(program, unswizzled_alignment=BOX_BYTES)
    if placed.smem_bytes > limit:
        largest = sorted(placed.shared, key=lambda t: -t.bytes)
        sizes = {t.buffer.name: t.bytes for t in placed.shared if t.buffer.name in counted}
        raise_error(
            "shared-memory-overflow",
            f"the tiles take {placed.smem_bytes:,} bytes of shared memory, {target.name} has {limit:,} for a block",
            largest[0].buffer.span,
            f"{largest[0].buffer.name} alone takes {largest[0].bytes:,} bytes",
            secondary=tuple(Label(t.buffer.span, f"{t.bytes:,} bytes") for t in largest[1:3]),
            notes=(format_size_sum(placed.smem_bytes, sizes),),
            help="use smaller tiles or fewer stages",
        )
    return placed


def _place_all(program: Program, unswizzled_alignment: int = SWIZZLE_BYTES) -> tuple[Program, frozenset[str]]:
    """Return the program with offsets for its tiles and barriers, and the names of the tiles whose sizes add up."""
    shared = any(t.reuses for t in program.shared)
    offsets, counted = _share_memory(program) if shared else _reuse_rings(program, unswizzled_alignment)
    tiles = tuple(replace(t, offset=offsets[t.buffer.name]) for t in program.shared)
    end = max((t.offset + t.bytes for t in tiles), default=0)
    barriers_at = -(-end // MBARRIER_BYTES) * MBARRIER_BYTES
    total = barriers_at + program.barrier_bytes + program.tensor_bytes
    return replace(program, shared=tiles, smem_bytes=total, barriers_at=barriers_at), counted


def _share_scratch(program: Program) -> Program:
    """Return the program with one scratch tile, the largest, for all reductions and scans of a role.

    `lower.insert_sync` places a barrier between two of them, as between any two uses of a tile."""
    scratch = {
        role.name: [op.scratch for op in walk_operations(role.body) if isinstance(op, Reduce | Scan) and op.scratch]
        for role in program.all_roles
    }
    largest = {name: max(tiles, key=lambda tile: tile.bytes) for name, tiles in scratch.items() if tiles}

    def replace_scratch(role: Role) -> Role:
        """Return the role with its largest scratch tile in each of its reductions and scans."""

        def use_largest(op: Operation) -> Operation:
            """Return a reduction or scan with the largest scratch tile in place of its own, and any other operation
            as it is."""
            if not isinstance(op, Reduce | Scan) or op.scratch is None:
                return op
            return replace(op, scratch=largest[role.name])

        return replace(role, body=rewrite_statements(role.body, use_largest))

    dropped = {tile.name for tiles in scratch.values() for tile in tiles} - {tile.name for tile in largest.values()}
    return replace(
        program.map_roles(replace_scratch),
        shared=tuple(t for t in program.shared if t.buffer.name not in dropped),
    )


def _reuse_rings(program: Program, unswizzled_alignment: int) -> tuple[dict[str, int], frozenset[str]]:
    """Return the tiles' offsets, with only `over_rings` tiles reusing memory, and the names whose sizes add up."""
    in_rings = {name for ring in program.rings for name in ring.buffers}
    kept = [t for t in program.shared if not t.over_rings and t.buffer.name not in in_rings]
    # Without a gap in front of the rings, where every byte counts.
    last = [t for t in kept if unswizzled_alignment < SWIZZLE_BYTES and not t.layout.swizzle]
    placed, begin = _stack_tiles([t for t in kept if t not in last], 0)
    rings, end = _stack_tiles([t for t in program.shared if t.buffer.name in in_rings], begin)
    over, end_over = _stack_tiles([t for t in program.shared if t.over_rings], begin)
    behind, _ = _stack_tiles(last, max(end, end_over), unswizzled_alignment)
    return placed | rings | over | behind, frozenset(placed | behind | (over if end_over > end else rings))


def _share_memory(program: Program) -> tuple[dict[str, int], frozenset[str]]:
    """Return the tiles' offsets, rings first, the others sharing memory as their `reuses` allow, and all names.

    The versions that explicit roles name are tiles like any others: no schedule adds to them."""
    in_rings = {name for ring in program.rings for name in ring.buffers if not program.explicit_roles}
    rings, end = _stack_tiles([t for t in program.shared if t.buffer.name in in_rings], 0)
    sizes = {
        t.buffer.name: align_bytes(t.layout.bytes if t.buffer.name in in_rings else t.bytes) for t in program.shared
    }
    reused = {t.buffer.name: frozenset(t.reuses) for t in program.shared}
    offsets, _ = place_tiles(sizes, in_rings, reused)
    return rings | {name: align_bytes(end) + at for name, at in offsets.items()}, frozenset(sizes)


def _stack_tiles(
    tiles: Sequence[SharedTile], begin: int, unswizzled_alignment: int = SWIZZLE_BYTES
) -> tuple[dict[str, int], int]:
    """Return the offset of each tile by name, one behind the other from `begin` on, and the end of the last."""
    offsets = {}
    for tile in tiles:
        unit = SWIZZLE_BYTES if tile.layout.swizzle else unswizzled_alignment
        offsets[tile.buffer.name] = -(-begin // unit) * unit
        begin = offsets[tile.buffer.name] + tile.bytes
    return offsets, begin
