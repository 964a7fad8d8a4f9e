"""barriers-exhausted: more named barriers, or waits at them carried from one iteration to the next, than allowed.
hint-not-used: blocks are to share a multiprocessor, and each takes it whole.
not-verified: the verifier of warp programs gave up on a role before its end.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import WARP, register_lint, register_warning
from tilec.ir import warp
from tilec.ir.warp_verify.verify import verify_program
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, make_warning


@register_lint(WARP, "barriers-exhausted")
def find_exhausted_barriers(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning if more named barriers are used, carried or waited at in an iteration than the machine allows.

    A barrier in a loop is carried, but for ping-pong barriers, of which each warpgroup has one. All hand-overs of a
    role share its barrier, so a pipelined iteration may wait at it often.
    """
    program, target = work.program, work.target
    found = [(op, inside) for role in program.all_roles for op, inside in _find_barriers(role.body)]
    ping_pong = {number for role in program.roles for number in role.ping_pong_barriers}
    carried = {op.id for op, inside in found if inside}
    for what, ids, limit in (
        ("uses", ping_pong | {op.id for op, _ in found}, target.limit("named_barriers")),
        ("carries across iterations", carried, target.limit("named_barriers_carried")),
    ):
        if len(ids) > limit:
            where = next((op.span for op, _ in found if op.id == max(ids) and op.span.line), work.source_kernel.span)
            title = f"the kernel {what} {len(ids)} named barriers, {target.name} allows {limit}"
            advice = "synchronise several tiles at one barrier, or split the loop"
            yield make_warning("barriers-exhausted", title, where, "the last of them", help=advice)
    limit = target.limit("named_barriers_carried")
    # Only innermost loops: hand-overs of outer loops are rare beside them.
    loops = (op for role in program.all_roles for op, _ in _walk_operations(role.body) if isinstance(op, warp.Loop))
    for loop in loops:
        has_loops = any(isinstance(op, warp.Loop | warp.Pipeline) for op, _ in _walk_operations(loop.body))
        if loop.part != "steady" or has_loops:
            continue
        stops = [op.span for op, _ in _find_barriers(loop.body)]
        if len(stops) > limit >= len({op.id for op, inside in found if inside}):
            lines = sorted({stop.line for stop in stops if stop.line})
            title = f"each iteration stops at a barrier {len(stops)} times, {target.name} carries {limit} to the next"
            label = f"all its warps wait for one another before lines {', '.join(map(str, lines))}"
            advice = "fill all tiles, then read them, so that they share a barrier; or keep values in fragments"
            yield make_warning("barriers-exhausted", title, loop.span, label, help=advice)


@register_warning(WARP)
def find_unused_block_counts(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning if a kernel requests several blocks of a multiprocessor, and its roles move registers."""
    wanted = work.source_kernel.min_blocks
    if wanted is not None and wanted.count > 1 and any(role.registers is not None for role in work.program.roles):
        title = "T.annotate_min_blocks_per_sm has no effect"
        why = "warps of this kernel hand registers to others, and a block has the multiprocessor to itself"
        advice = 'T.annotate_pass_configs({"tl.disable_warp_specialized": True}) keeps all warps alike'
        yield make_warning("hint-not-used", title, wanted.span, why, help=advice)


def _walk_operations(body: tuple[warp.Operation, ...], depth: int = 0) -> Iterator[tuple[warp.Operation, int]]:
    """Yield each operation with the number of loops around it; the operations inside a `Forever` are left out."""
    for op in body:
        yield op, depth
        is_loop = isinstance(op, warp.Loop | warp.Pipeline)
        for inner in warp.nested_bodies(op) if is_loop or isinstance(op, warp.Branch) else ():
            yield from _walk_operations(inner, depth + is_loop)


def _find_barriers(body: tuple[warp.Operation, ...]) -> Iterator[tuple[warp.BarSync, int]]:
    """Yield each wait at a named barrier with the number of loops around it."""
    yield from ((op, depth) for op, depth in _walk_operations(body) if isinstance(op, warp.BarSync))


@register_warning(WARP)
def find_unverified_roles(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning, if verification is asked for, for each role that is verified only for its first operations.

    The program is the same.
    """
    if not work.options.verify:
        return
    for one in verify_program(work.program)[1]:
        title = f"the waits and barriers of role {one.role} are verified for its first {one.steps} operations only"
        where = one.at.span if one.at.span.line else work.source_kernel.span
        advice = "verify a copy of the kernel with fewer iterations: its waits are the same"
        yield make_warning("not-verified", title, where, "verified up to here", help=advice)
