"""Choose the form of a kernel: serial, pipelined loops run by all warps, or divided among warp roles."""

from __future__ import annotations

from typing import Literal

from tilec.analysis.box_starts import collect_coordinates
from tilec.analysis.control_slice import find_replicated_variables, find_scalar_reads, is_per_thread
from tilec.analysis.rings import find_pipelined_loops, is_load, why_not_fed
from tilec.analysis.scheduling_hints import build_explicit_waits, list_asynchronous_hints
from tilec.analysis.tensor_order import find_ordered_tensors
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ops.atomic import AtomicTile
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.rendezvous import is_for_every_role
from tilec.ops.synchronisation.sync import get_spelling
from tilec.passes.layout.mechanisms.tensor_maps import why_not_tma
from tilec.passes.layout.shared.atoms import find_swizzled_layout, is_legal
from tilec.support.diagnostics import raise_error
from tilec.support.options import Strategy
from tilec.support.records import dataclass
from tilec.target.table import Target

KernelForm = Literal["serial", "unspecialised", "warp_specialised"]

NO_ROLE_WARPS = "--pipeline-strategy leaves no producer warp"
"""The reason why no role loads for a loop where roles were not asked for."""


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The form, and the reason why no warps have roles: None where some have, or where the strategy leaves none."""

    form: KernelForm
    why_alike: str | None = None


def choose_kernel_form(kernel: tile.Kernel, target: Target, strategy: Strategy) -> FormChoice:
    """Return the kernel's form by strategy and loops, and why no warps have roles; refuse roles that are asked for in
    vain. Errors: `strategy-impossible`."""
    loops = find_pipelined_loops(kernel.body)
    if not loops:
        return FormChoice("serial", "there is no T.Pipelined loop")
    if strategy == "none":
        return FormChoice("serial")
    if strategy == "unspecialize":
        return FormChoice("unspecialised")
    refusal = None if target.has("tma") and target.has("setmaxnreg") else f"{target.name} has no TMA"
    refusal = refusal or why_not_specialised(kernel, loops)
    if strategy == "auto":
        if not refusal and not _can_fill_multiprocessor(loops):
            refusal = "other blocks of the multiprocessor hide the latencies of its loops"
        return FormChoice("unspecialised", refusal) if refusal else FormChoice("warp_specialised")
    if refusal:
        raise_error(
            "strategy-impossible",
            f"this kernel cannot be warp-specialised: {refusal}",
            loops[0].span,
            "the pipelined loop",
            help="leave --pipeline-strategy at auto",
        )
    return FormChoice("warp_specialised")


def _can_fill_multiprocessor(loops: tuple[tile.For, ...]) -> bool:
    """Return True if a loop has a product, or a store of a shared tile to a tensor: one block then fills a
    multiprocessor. Roles take all registers, which products need, and stores that a role of their own may issue. Other
    kernels hide their latencies behind other blocks."""
    return any(
        isinstance(s, Gemm)
        or (isinstance(s, Copy | AtomicTile) and [r.buffer.scope for r in s.regions] == ["shared", "global"])
        for loop in loops
        for s in tile.walk_statements(loop.body)
    )


def why_not_specialised(kernel: tile.Kernel, loops: tuple[tile.For, ...]) -> str | None:
    """Return why no producer warp can load the tiles of the pipelined loops by TMA; None if one can. Tiles that it
    cannot load in a loop around a pipelined one, the consumers load themselves: little time is spent there."""
    if kernel.threads % WARPGROUP_THREADS or kernel.threads > 3 * WARPGROUP_THREADS:
        return f"{kernel.threads} threads are not one to three warpgroups of {WARPGROUP_THREADS}"
    load_count = 0
    ordered, placed, coordinates = find_ordered_tensors(kernel), find_placed_tiles(kernel), collect_coordinates(kernel)
    tiles = {b.name for b in kernel.buffers} - find_replicated_variables(kernel)
    if control_reads := find_scalar_reads(kernel.body) & (ordered | tiles):
        return f"the copies depend on {min(control_reads)}, which the kernel computes"
    if own := next(
        (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.Bind) and is_per_thread(s.value)), None
    ):
        return f"{own.span.place} defines a value per thread, which a producer warp cannot compute"
    for loop in loops:
        if barrier := next((s for s in tile.walk_statements(loop.body) if is_for_every_role(s)), None):
            return f"the loop has {get_spelling(barrier)} (line {barrier.span.line}), which every role must run"
        if find_pipelined_loops(loop.body):
            continue
        for stmt, hint, waits in zip(
            loop.body, list_asynchronous_hints(loop), build_explicit_waits(kernel, loop), strict=True
        ):
            if hint is False and isinstance(stmt, tile.TileOp) and is_load(stmt):
                return f"a scheduling hint makes the copy in {stmt.span.place} synchronous"
            if waits and isinstance(stmt, tile.TileOp) and is_load(stmt):
                return f"`sync` makes the copy in {stmt.span.place} wait for other statements"
            inner = [s for s in tile.walk_statements((stmt,)) if isinstance(s, tile.TileOp) and is_load(s)]
            for copy in inner:
                if copy is not stmt:
                    return f"the copy in {copy.span.place} is under a condition or in an inner loop"
                reason = why_not_tma(copy, placed, coordinates)
                if copy.regions[0].buffer.name in ordered:
                    reason = f"the kernel also writes {copy.regions[0].buffer.name}"
                if reason:
                    return f"the copy in {copy.span.place} cannot use TMA, {reason}"
                load_count += 1
        reason = why_not_fed(kernel, loop)
        if reason:
            return reason
    return None if load_count else "no copy from global to shared memory in a pipelined loop"


def find_placed_tiles(kernel: tile.Kernel) -> frozenset[tile.Buffer]:
    """Return the shared tiles whose given layout TMA cannot fill: no hardware swizzle, or panels that are no box."""
    return frozenset(
        p.buffer
        for p in kernel.layouts
        if isinstance(p.layout, tile.Placement)
        or (isinstance(p.layout, int) and not is_legal(find_swizzled_layout(p.buffer, p.layout), ("tma",)))
    )
