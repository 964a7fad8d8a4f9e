"""Mechanisms and layouts for a kernel, also for one that has explicit roles.

Each role of such a kernel (`explicit_roles.split_roles`) is treated as a kernel of its own, except that all of them
choose the layouts of shared tiles together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ops.barriers import ExpectTx
from tilec.ops.block_scaled import ScaleCopy, ScaledGemm
from tilec.ops.cluster_launch import TryCancel
from tilec.ops.copy import Copy
from tilec.ops.four_rows import Gather4
from tilec.ops.gemm import Gemm
from tilec.ops.refused import is_refused
from tilec.ops.warpgroups import SetRegisters, WaitWgmma
from tilec.passes.analysis.named_versions import on_versions, versioned
from tilec.passes.analysis.substitution import renamed
from tilec.passes.analysis.unique_names import with_unique_names
from tilec.passes.explicit_roles.expected_bytes import with_announced
from tilec.passes.explicit_roles.pipeline_counts import check_counts
from tilec.passes.explicit_roles.protocol import Role, check_protocol
from tilec.passes.explicit_roles.role_pairs import check_pairs, counted_elsewhere
from tilec.passes.explicit_roles.role_races import check_races
from tilec.passes.explicit_roles.split_roles import ExplicitRole, roles_of
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment, assign, in_registers, shared_layouts
from tilec.passes.layout.block_scales import why_not_scaled
from tilec.passes.layout.legalise import no_barrier
from tilec.passes.layout.select_mechanisms import select
from tilec.passes.layout.tensor_maps import why_not_tma
from tilec.passes.layout.tensor_memory import check_columns, factors, why_no_tensor_product
from tilec.passes.memory.prefetch import prefetched
from tilec.passes.memory.staged_stores import chunked
from tilec.support.diagnostics import AT_ONCE, Label, Mistakes, fail
from tilec.support.options import NO_SWITCHES, Strategy, Switches
from tilec.support.records import dataclass
from tilec.support.source import Span
from tilec.target.table import Target


def with_layouts(
    kernel: tile.Kernel,
    target: Target,
    strategy: Strategy,
    switches: Switches = NO_SWITCHES,
    mistakes: Mistakes = AT_ONCE,
    tma_loads: bool = True,
) -> LayoutAssignment:
    """The kernel with mechanisms and layouts. `tma_loads` as in `layout.select_mechanisms`."""
    found = roles_of(kernel)
    if not found:
        selected = select(kernel, target, strategy, switches, mistakes, tma_loads)
        return chunked(prefetched(assign(selected, mistakes), target), target)
    versions = versioned(kernel)
    barriers, multiplied = _Barriers(_announced(kernel), counted_elsewhere(kernel)), factors(kernel)
    known = mistakes.met
    if not known:  # where something is wrong already, a product may be missing for that
        with mistakes.caught():
            check_pairs(kernel)
    are_pairs_right = mistakes.met == known
    taken: set[str] = {b.name for b in kernel.buffers}
    assignment: list[LayoutAssignment] = []
    bodies = [
        tuple(_by_own_means(on_versions(s, versions), barriers, multiplied, target) for s in part.kernel.body)
        for part in found
    ]
    for part, body in zip(found, with_announced(bodies, target), strict=True):
        buffers = tuple(versions.get(b, b) for b in part.kernel.buffers)
        role_kernel = replace(part.kernel, body=body, buffers=buffers)
        selected = select(role_kernel, target, "none", switches, mistakes, tma_loads=False)
        assignment.append(_with_own_names(in_registers(selected, mistakes), {b.name for b in buffers}, taken, part))
    shared = shared_layouts(assignment, selected, mistakes)
    assignment = [
        replace(one, shared={n: s for n, s in shared.items() if n in _names(one.kernel)}) for one in assignment
    ]
    made = tuple(
        RoleAssignment(part.name, part.first_thread // 32, one, part.is_common)
        for part, one in zip(found, assignment, strict=True)
    )
    if target.has("tcgen05"):
        with mistakes.caught():
            check_columns(kernel, target)
    with mistakes.caught():
        _check_registers(kernel, made, target)
    with mistakes.caught():
        if are_pairs_right and not any(
            map(is_refused, tile.walk(kernel.body))
        ):  # what is missing may have been an arrival
            roles = [Role(part.name, part.assignment.kernel, part.is_common) for part in made]
            check_counts(kernel, roles)
            check_protocol(kernel, roles)
            check_races(kernel, roles)
    body = tuple(on_versions(stmt, versions) for stmt in kernel.body)
    used = dict.fromkeys(b for one in assignment for b in one.kernel.buffers)
    allocated = dict.fromkeys(b for b in kernel.buffers if b.scope == "barrier")  # even if no role has anything to do
    return LayoutAssignment(
        with_unique_names(replace(kernel, body=body, buffers=(*(used | allocated),))),
        "serial",
        {name: layout for one in assignment for name, layout in one.fragments.items()},
        shared,
        tuple(made for one in assignment for made in one.conversions),
        made,
        tuple((buffer.name, buffer.shape[0]) for buffer, each in versions.items() if each in used),
    )


def _names(kernel: tile.Kernel) -> set[str]:
    return {b.name for b in kernel.buffers}


# ---- mechanisms ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Barriers:
    """By name, those to which the kernel itself announces bytes, and those that count them in another block."""

    announced: frozenset[str]
    elsewhere: Mapping[str, tile.Expr]


def _by_own_means(
    stmt: tile.Stmt, barriers: _Barriers, multiplied: frozenset[tile.Buffer], target: Target
) -> tile.Stmt:
    def all_of(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return tuple(_by_own_means(s, barriers, multiplied, target) for s in body)

    match stmt:
        case Copy() if not multiplied.isdisjoint(r.buffer for r in stmt.regions):
            return replace(stmt, factor=True)
        case tile.TileOp():
            return _by_its_means(stmt, barriers, target)
        case tile.For() | tile.While():
            return replace(stmt, body=all_of(stmt.body))
        case tile.If():
            return replace(stmt, then=all_of(stmt.then), orelse=all_of(stmt.orelse))
        case _:
            return stmt


def _by_its_means(op: tile.TileOp, barriers: _Barriers, target: Target) -> tile.TileOp:
    """What only a kernel divided by hand has: it goes by the one mechanism that does it, or not at all."""
    if isinstance(op, Copy) and op.signals is not None:
        return _offered(op, barriers, target)
    if op.signals_barrier:
        reason = _why_not_signalling(op, target)
        assert op.barrier is not None and isinstance(op, Copy | Gather4 | TryCancel)
        name = op.barrier.buffer.name
        op = replace(op, announces=name not in barriers.announced, via="tma")
        if name in barriers.elsewhere:
            op = replace(op, block=barriers.elsewhere[name])
        if reason is not None:
            fail(
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
            fail("unsupported-operand", f"{target.name} cannot do this {what}", op.span, reason)
    elif isinstance(op, Gemm) and op.is_in_tensor_memory:
        if op.held is not None:
            no_barrier(op)
        reason = why_no_tensor_product(op) if target.has("tcgen05") else f"{target.name} has no tensor memory"
        op = replace(op, via="tcgen05")
        if reason is not None:
            fail(
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
            fail(
                "unsupported-operand",
                f"{target.name} cannot move registers from one warp to another",
                op.span,
                help="leave it out, or compile for a target that can, as sm_90a",
            )
    return op


def _why_not_signalling(op: tile.TileOp, target: Target) -> str | None:
    if isinstance(op, Gather4 | TryCancel):
        return None  # `layout.select_mechanisms` has asked
    return why_not_tma(op, frozenset()) if target.has("tma") else f"{target.name} has no TMA"


def _offered(op: Copy, barriers: _Barriers, target: Target) -> tile.TileOp:
    """A copy into a stage of a pipeline: by TMA, which signals the stage's barrier, or as any other, which is complete
    when the stage is released."""
    plain = replace(op, signals=None, leader=None)
    if not target.has("tma") or why_not_tma(plain, frozenset()) is not None:
        return plain
    return _by_its_means(replace(plain, barrier=op.signals, leader=op.leader), barriers, target)


def _announced(kernel: tile.Kernel) -> frozenset[str]:
    """The barriers to which the kernel itself announces bytes."""
    found = set()
    for stmt in tile.walk(kernel.body):
        if isinstance(stmt, ExpectTx):
            found.add(stmt.barrier.buffer.name)
    return frozenset(found)


# ---- names -----------------------------------------------------------------------------------------------------------


def _with_own_names(
    assignment: LayoutAssignment, given: set[str], taken: set[str], part: ExplicitRole
) -> LayoutAssignment:
    """Tiles that the passes have put in are the role's own, even if another role's are called alike."""
    own: dict[str, str] = {}
    for buffer in assignment.kernel.buffers:
        if buffer.name not in given:
            own[buffer.name] = f"{buffer.name}.{part.groups.start}" if buffer.name in taken else buffer.name
            taken.add(own[buffer.name])
    if all(old == new for old, new in own.items()):
        return assignment
    body = tuple(renamed(s, own) for s in assignment.kernel.body)
    buffers = tuple(replace(b, name=own.get(b.name, b.name)) for b in assignment.kernel.buffers)
    fragments = {own.get(name, name): layout for name, layout in assignment.fragments.items()}
    return replace(assignment, kernel=replace(assignment.kernel, body=body, buffers=buffers), fragments=fragments)


# ---- registers -------------------------------------------------------------------------------------------------------


def _check_registers(kernel: tile.Kernel, made: tuple[RoleAssignment, ...], target: Target) -> None:
    """Who asks for more registers waits until others have given up as many: for ever, if all together are too many."""
    at_first = target.limit("registers_per_sm") // kernel.threads // 8 * 8
    asked: dict[str, tuple[int, Span]] = {}
    total = 0
    for part in made:
        counts = [s for s in tile.walk(part.assignment.kernel.body) if isinstance(s, SetRegisters)]
        most = max(counts, key=lambda op: op.count, default=None)
        if not part.is_common:
            total += part.assignment.kernel.threads * (at_first if most is None else most.count)
        if most is not None:
            asked[part.name] = most.count, most.span
    limit = target.limit("registers_per_sm")
    if asked and total > limit:
        name, (count, span) = max(asked.items(), key=lambda item: item[1][0])
        others = tuple(Label(where, f"{n} for {other}") for other, (n, where) in asked.items() if other != name)
        fail(
            "too-many-registers",
            f"the roles ask for {total:,} registers, {target.name} has {limit:,}",
            span,
            f"{count} for each thread of {name}",
            secondary=others,
            notes=(
                f"without T.set_max_nreg a thread of this block has {at_first}; a warpgroup has {WARPGROUP_THREADS}",
            ),
            help="ask for fewer here, or let other roles give up more",
        )
