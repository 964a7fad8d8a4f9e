"""Bytes that a kernel announces to its pipeline stages, computed once it is known which copies go by TMA.

`tiles.expect_bytes()` stands for the bytes that TMA brings. Where the kernel says T.copy, the compiler chooses whether
TMA copies a tile of a stage: not if the machine has no TMA, nor if the tile does not suit it. Threads announce nothing,
they arrive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from tilec.ir import tile
from tilec.ir.groups import guarded_warps
from tilec.ir.rewrite import rewrite_statements
from tilec.ops.synchronisation.barriers import ExpectTx
from tilec.support.diagnostics import raise_error
from tilec.target.table import Target

Filled = Mapping[tile.Load, tuple[tile.Buffer, ...]]
"""The tiles that TMA fills, by the barrier that it signals."""


def compute_expected_bytes(kernel: tile.Kernel, target: Target) -> tile.Kernel:
    """Set the bytes that a pipeline stage announces to what TMA brings; drop announcements that TMA does not fulfil.

    Roles are split, and copies have mechanisms. Errors: `unsupported-operand`."""
    parts = [tuple(stmts) for _, stmts in groupby(kernel.body, _find_role_key)]
    filled = [_find_filled_tiles(part) for part in parts]
    made: list[tile.Stmt] = []
    for number, part in enumerate(parts):
        others = filled[:number] + filled[number + 1 :]
        rewrite = partial(_set_announced_bytes, own_tiles=filled[number], other_tiles=others, target=target)
        made += rewrite_statements(part, rewrite)
    return replace(kernel, body=tuple(made))


def _find_role_key(stmt: tile.Stmt) -> tuple[int, int] | None:
    """Return the first and last warp of the role whose block of statements this is; None for a common statement."""
    warps = guarded_warps(stmt)
    return None if warps is None else (warps.start, warps.stop)


def _find_filled_tiles(body: tuple[tile.Stmt, ...]) -> Filled:
    """Return, for each barrier element that operations signal, the destination tiles of these operations."""
    found: dict[tile.Load, tuple[tile.Buffer, ...]] = {}
    for op in tile.walk_statements(body):
        if isinstance(op, tile.TileOp) and op.signals_barrier:
            assert op.barrier is not None
            found[op.barrier] = (*found.get(op.barrier, ()), op.regions[-1].buffer)
    return found


def _set_announced_bytes(
    op: tile.Stmt, own_tiles: Filled, other_tiles: Sequence[Filled], target: Target
) -> tile.Stmt | tuple[tile.Stmt, ...]:
    """Return an announcement with its stage's TMA bytes, () if TMA fills none; refuse fixed bytes on a target
    without TMA. Other statements, and fixed bytes on a target with TMA, stay as they are."""
    if not isinstance(op, ExpectTx):
        return op
    elsewhere = [tiles for f in other_tiles for e, tiles in f.items() if e.buffer == op.barrier.buffer]
    match op.of_stage:
        case None:
            if not target.has("tma"):
                raise_error(
                    "unsupported-operand",
                    f"{target.name} has no TMA, and only TMA copies complete announced bytes",
                    op.span,
                    help="write T.barrier_arrive: copies by threads are complete when the threads arrive"
                    if op.arrives
                    else "remove it: copies by threads are complete when the threads arrive",
                )
            return op
        case "payload":
            tiles = dict.fromkeys(buffer for filled in (own_tiles.get(op.barrier, ()), *elsewhere) for buffer in filled)
            made = replace(op, bytes=sum(math.prod(t.shape) * t.dtype.bits // 8 for t in tiles))
            return made if tiles else ()
        case _:
            return op if own_tiles.get(op.barrier) or elsewhere else ()
