"""Mechanisms of the operations that only kernels with explicit roles have: each has one mechanism, or is refused. All
other operations get theirs as in any kernel (`layout.select_mechanisms`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.analysis.box_starts import Coordinates, collect_coordinates
from tilec.ir import tile
from tilec.ir.rewrite import rewrite_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.four_rows import Gather4
from tilec.ops.products.block_scaled import ScaleCopy, ScaledGemm
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.barriers import ExpectTx
from tilec.ops.synchronisation.cluster_launch import TryCancel
from tilec.ops.synchronisation.warpgroups import SetRegisters, WaitWgmma
from tilec.passes.explicit_roles.check_cta_pairs import find_remote_barriers
from tilec.passes.layout.mechanisms.legalise import refuse_missing_barrier, why_not_block_scaled
from tilec.passes.layout.mechanisms.tensor_maps import why_not_tma
from tilec.passes.layout.mechanisms.tensor_memory import find_factors, why_no_tensor_product
from tilec.passes.layout.shared.named_versions import find_versioned_tiles, rewrite_to_versions
from tilec.rewriting.make_names_unique import make_names_unique
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.target.table import Target


@dataclass(frozen=True, slots=True)
class _KernelFacts:
    """Facts of a kernel that decide mechanisms: barriers, by name, to which it announces bytes itself; barriers that
    count bytes in another block; tiles in tensor memory that are multiplied; known coordinates."""

    announced: frozenset[str]
    remote_barriers: Mapping[str, tile.Expr]
    multiplied: frozenset[tile.Buffer]
    coordinates: Coordinates


def assign_role_mechanisms(kernel: tile.Kernel, target: Target) -> tuple[tile.Kernel, tuple[tuple[str, int], ...]]:
    """Assign mechanisms to operations that only roles have, on tiles of one version, and count the tiles' versions.

    Errors: `unsupported-operand`."""
    announced = (s.barrier.buffer.name for s in tile.walk_statements(kernel.body) if isinstance(s, ExpectTx))
    remote, factors, coordinates = find_remote_barriers(kernel), find_factors(kernel), collect_coordinates(kernel)
    versions, facts = find_versioned_tiles(kernel), _KernelFacts(frozenset(announced), remote, factors, coordinates)
    on_one = tuple(rewrite_to_versions(stmt, versions) for stmt in kernel.body)
    body = rewrite_statements(on_one, lambda stmt: _assign_statement(stmt, facts, target))
    buffers = tuple(versions.get(buffer, buffer) for buffer in kernel.buffers)
    layouts = tuple(pinned for pinned in kernel.layouts if pinned.buffer not in versions)
    made = make_names_unique(replace(kernel, body=body, buffers=buffers, layouts=layouts))
    return made, tuple((buffer.name, buffer.shape[0]) for buffer in versions)


def _assign_statement(stmt: tile.Stmt, facts: _KernelFacts, target: Target) -> tile.Stmt:
    """Assign an operation's mechanism, or mark a copy whose tile is a factor in tensor memory; keep other
    statements."""
    if isinstance(stmt, Copy) and not facts.multiplied.isdisjoint(r.buffer for r in stmt.regions):
        return replace(stmt, factor=True)
    return _assign_operation(stmt, facts, target) if isinstance(stmt, tile.TileOp) else stmt


def _assign_operation(op: tile.TileOp, facts: _KernelFacts, target: Target) -> tile.TileOp:
    """Return an operation of explicit roles with its only mechanism, or refuse it; return any other as it is."""
    if isinstance(op, Copy) and op.signals is not None:
        return _assign_stage_copy(op, facts, target)
    if op.signals_barrier:
        assert op.barrier is not None and isinstance(op, Copy | Gather4 | TryCancel)
        if not isinstance(op, Copy):
            reason = None  # `layout.select_mechanisms` checks these
        elif target.has("tma"):
            reason = why_not_tma(op, frozenset(), facts.coordinates)
        else:
            reason = f"{target.name} has no TMA"
        name = op.barrier.buffer.name
        op = replace(op, announces=name not in facts.announced, via="tma")
        if name in facts.remote_barriers:
            op = replace(op, block=facts.remote_barriers[name])
        if reason is not None:
            raise_error(
                "unsupported-operand",
                "TMA cannot do this T.tma_copy",
                op.span,
                reason,
                help="write T.copy, and T.barrier_arrive after it",
            )
    elif isinstance(op, ScaledGemm | ScaleCopy):
        op = replace(op, via="tcgen05")
        if reason := why_not_block_scaled(op, target):
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
                "tcgen05.mma cannot do this T.tcgen05_gemm",
                op.span,
                reason,
                secondary=(Label(op.regions[2].buffer.span, "C is allocated here"),),
                help="use T.gemm into a fragment: tilec chooses the instruction",
            )
    elif isinstance(op, WaitWgmma):
        op = replace(op, via="wgmma" if target.has("wgmma") else "nothing")
    elif isinstance(op, SetRegisters):
        op = replace(op, via="setmaxnreg")
        if not target.has("setmaxnreg"):
            raise_error(
                "unsupported-operand",
                f"{target.name} has no setmaxnreg, so roles cannot have different numbers of registers",
                op.span,
                help="remove it, or compile for a target that has it, such as sm_90a",
            )
    return op


def _assign_stage_copy(op: Copy, facts: _KernelFacts, target: Target) -> tile.TileOp:
    """Return a copy into a pipeline stage as a TMA copy that signals its barrier, or where TMA cannot, as a plain
    one."""
    plain = replace(op, signals=None, leader=None)
    if not target.has("tma") or why_not_tma(plain, frozenset(), facts.coordinates) is not None:
        return plain
    return _assign_operation(replace(plain, barrier=op.signals, leader=op.leader), facts, target)
