"""How the statements are done that only a kernel with roles of its own has: each by the one mechanism that there is for
it, or not at all. What else its roles do gets its mechanism as in any other kernel (`layout.select_mechanisms`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import rewrite_statements
from tilec.ops.barriers import ExpectTx
from tilec.ops.block_scaled import ScaleCopy, ScaledGemm
from tilec.ops.cluster_launch import TryCancel
from tilec.ops.copy import Copy
from tilec.ops.four_rows import Gather4
from tilec.ops.gemm import Gemm
from tilec.ops.warpgroups import SetRegisters, WaitWgmma
from tilec.passes.analysis.box_starts import Coordinates, collect_coordinates
from tilec.passes.analysis.named_versions import find_versioned_tiles, rewrite_to_versions
from tilec.passes.analysis.unique_names import make_names_unique
from tilec.passes.explicit_roles.role_pairs import counted_elsewhere
from tilec.passes.layout.block_scales import why_not_scaled
from tilec.passes.layout.legalise import refuse_missing_barrier
from tilec.passes.layout.tensor_maps import why_not_tma
from tilec.passes.layout.tensor_memory import find_factors, why_no_tensor_product
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.target.table import Target


@dataclass(frozen=True, slots=True)
class _Means:
    """What decides in a kernel: by name, the barriers to which it announces bytes itself, and those that count them in
    another block; the tiles in tensor memory that are multiplied; and what is known of coordinates."""

    announced: frozenset[str]
    elsewhere: Mapping[str, tile.Expr]
    multiplied: frozenset[tile.Buffer]
    coordinates: Coordinates

    @classmethod
    def of(cls, kernel: tile.Kernel) -> _Means:
        return cls(_announced(kernel), counted_elsewhere(kernel), find_factors(kernel), collect_coordinates(kernel))


def with_means(kernel: tile.Kernel, target: Target) -> tuple[tile.Kernel, tuple[tuple[str, int], ...]]:
    """The kernel with these mechanisms, on one version of each tile of which it names versions, and how many there are
    of these. Errors: `unsupported-operand`."""
    versions, means = find_versioned_tiles(kernel), _Means.of(kernel)
    on_one = tuple(rewrite_to_versions(stmt, versions) for stmt in kernel.body)
    body = rewrite_statements(on_one, lambda stmt: _by_own_means(stmt, means, target))
    buffers = tuple(versions.get(buffer, buffer) for buffer in kernel.buffers)
    layouts = tuple(pinned for pinned in kernel.layouts if pinned.buffer not in versions)
    made = make_names_unique(replace(kernel, body=body, buffers=buffers, layouts=layouts))
    return made, tuple((buffer.name, buffer.shape[0]) for buffer in versions)


def _by_own_means(stmt: tile.Stmt, means: _Means, target: Target) -> tile.Stmt:
    match stmt:
        case Copy() if not means.multiplied.isdisjoint(r.buffer for r in stmt.regions):
            return replace(stmt, factor=True)
        case tile.TileOp():
            return _by_its_means(stmt, means, target)
        case _:
            return stmt


def _by_its_means(op: tile.TileOp, means: _Means, target: Target) -> tile.TileOp:
    """What only a kernel divided by hand has: it goes by the one mechanism that does it, or not at all."""
    if isinstance(op, Copy) and op.signals is not None:
        return _offered(op, means, target)
    if op.signals_barrier:
        reason = _why_not_signalling(op, means, target)
        assert op.barrier is not None and isinstance(op, Copy | Gather4 | TryCancel)
        name = op.barrier.buffer.name
        op = replace(op, announces=name not in means.announced, via="tma")
        if name in means.elsewhere:
            op = replace(op, block=means.elsewhere[name])
        if reason is not None:
            raise_error(
                "unsupported-operand",
                "this T.tma_copy cannot go by TMA",
                op.span,
                reason,
                help="write T.copy, and T.barrier_arrive behind it",
            )
    elif isinstance(op, ScaledGemm | ScaleCopy):
        op = replace(op, via="tcgen05")
        if reason := why_not_scaled(op, target):
            what = "T.tcgen05_gemm_blockscaled" if isinstance(op, ScaledGemm) else "T.tcgen05_cp_warpx4"
            raise_error("unsupported-operand", f"{target.name} cannot do this {what}", op.span, reason)
    elif isinstance(op, Gemm) and op.is_in_tensor_memory:
        if op.held is not None:
            refuse_missing_barrier(op)
        reason = why_no_tensor_product(op, target) if target.has("tcgen05") else f"{target.name} has no tensor memory"
        op = replace(op, via="tcgen05")
        if reason is not None:
            raise_error(
                "unsupported-operand",
                "this T.tcgen05_gemm cannot go by tcgen05.mma",
                op.span,
                reason,
                secondary=(Label(op.regions[2].buffer.span, "C is allocated here"),),
                help="write T.gemm into a fragment, which takes the instruction that there is",
            )
    elif isinstance(op, WaitWgmma):
        op = replace(op, via="wgmma" if target.has("wgmma") else "nothing")
    elif isinstance(op, SetRegisters):
        op = replace(op, via="setmaxnreg")
        if not target.has("setmaxnreg"):
            raise_error(
                "unsupported-operand",
                f"{target.name} cannot move registers from one warp to another",
                op.span,
                help="leave it out, or compile for a target that can, as sm_90a",
            )
    return op


def _why_not_signalling(op: tile.TileOp, means: _Means, target: Target) -> str | None:
    if isinstance(op, Gather4 | TryCancel):
        return None  # `layout.select_mechanisms` has asked
    return why_not_tma(op, frozenset(), means.coordinates) if target.has("tma") else f"{target.name} has no TMA"


def _offered(op: Copy, means: _Means, target: Target) -> tile.TileOp:
    """A copy into a stage of a pipeline: by TMA, which signals the stage's barrier, or as any other, which is complete
    when the stage is released."""
    plain = replace(op, signals=None, leader=None)
    if not target.has("tma") or why_not_tma(plain, frozenset(), means.coordinates) is not None:
        return plain
    return _by_its_means(replace(plain, barrier=op.signals, leader=op.leader), means, target)


def _announced(kernel: tile.Kernel) -> frozenset[str]:
    """The barriers to which the kernel itself announces bytes."""
    found = set()
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, ExpectTx):
            found.add(stmt.barrier.buffer.name)
    return frozenset(found)
