"""Give every shared tile its place in dynamic shared memory, and the mbarriers of the rings theirs."""

from __future__ import annotations

from dataclasses import replace

from tilec.diag import Label, fail
from tilec.ir.multicast import SWIZZLE_BYTES
from tilec.ir.warp import MBARRIER_BYTES, Program, SharedTile
from tilec.target import Target


def place(program: Program, target: Target, *, unlimited: bool = False) -> Program:
    """Tiles one after another in program order, barriers behind them. `unlimited` accepts what no block could hold."""
    placed: list[SharedTile] = []
    offset = 0
    for tile in program.shared:
        offset = -(-offset // SWIZZLE_BYTES) * SWIZZLE_BYTES
        placed.append(replace(tile, offset=offset))
        offset += tile.bytes
    barriers_at = -(-offset // MBARRIER_BYTES) * MBARRIER_BYTES
    total = barriers_at + program.barrier_bytes + (MBARRIER_BYTES if program.tensor else 0)
    limit = target.limit("smem_bytes_per_cta")
    if total > limit and not unlimited:
        largest = sorted(placed, key=lambda t: -t.bytes)
        fail(
            "shared-memory-overflow",
            f"the tiles take {total:,} bytes of shared memory, {target.name} has {limit:,} for a block",
            largest[0].buffer.span,
            f"{largest[0].buffer.name} alone takes {largest[0].bytes:,} bytes",
            secondary=tuple(Label(t.buffer.span, f"{t.bytes:,} bytes") for t in largest[1:3]),
            help="use smaller tiles or fewer stages",
        )
    return replace(program, shared=tuple(placed), smem_bytes=total, barriers_at=barriers_at)
