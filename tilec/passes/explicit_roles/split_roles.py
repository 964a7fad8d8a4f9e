"""A kernel that has explicit roles, with each of its roles in a block of its own.

A role is the neighbouring warpgroups that no `If` on the warpgroup tells apart. What it runs, loops and conditions
around included, is one block of the kernel, under one such `If`. Seen by itself it is a kernel of that many threads, to
which layouts and mechanisms are given as to any other; the roles meet in shared memory, in the order that the barriers
of the kernel make.

What all warpgroups do together may stand before they divide the work: a role of the whole block, which ends with a
barrier. Afterwards only what each thread does for itself can be done by all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS, guarded_warpgroups, warpgroup_condition
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import INT32
from tilec.ops.barriers import BARRIER_OPERATIONS, AllocBarrier
from tilec.ops.refused import is_refused
from tilec.ops.warpgroups import NamedArrive
from tilec.passes.analysis.control_slice import is_variable
from tilec.passes.analysis.substitution import substitute_stmt
from tilec.passes.analysis.unique_names import make_names_unique
from tilec.passes.analysis.usage import find_reads, find_writes
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class ExplicitRole:
    """A role and its work, as a kernel of `kernel.threads` threads. `groups` are its warpgroups, none where it is
    the only one; `is_common`: they are all there are, before they divide the work."""

    name: str
    groups: range
    kernel: tile.Kernel
    is_common: bool = False

    @property
    def first_thread(self) -> int:
        return WARPGROUP_THREADS * self.groups.start


def has_explicit_roles(kernel: tile.Kernel) -> bool:
    """Whether the kernel itself orders its threads, so that nothing of it is pipelined for it."""
    return any(
        guarded_warpgroups(s) is not None or isinstance(s, (*BARRIER_OPERATIONS, NamedArrive))
        for s in tile.walk_statements(kernel.body)
    )


def split(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel with its roles apart: behind the barriers that it makes, and what all warpgroups do in common, each
    role's statements in a block of their own, under the condition that its warpgroups are the ones. The kernel itself
    where there is one role alone. Errors: `cross-role-fragment`, `cross-role-operation`."""
    first = next(
        (i for i, stmt in enumerate(kernel.body) if any(guarded_warpgroups(s) for s in tile.walk_statements((stmt,)))),
        None,
    )
    if first is None:
        return kernel
    every = range(kernel.threads // WARPGROUP_THREADS)
    before, after = kernel.body[:first], kernel.body[first:]
    begins = any(_is_collective(s) for stmt in before for s in tile.walk_statements((stmt,)))
    kept = tuple(s for s in before if not begins or _is_private(s))
    blocks = tuple(
        tile.If(warpgroup_condition(groups), _of_role(_working((*kept, *after)), groups, every), (), after[0].span)
        for groups in _roles(kernel, every)
    )
    barriers = tuple(s for s in tile.walk_statements(kernel.body) if isinstance(s, AllocBarrier))
    common = _working(before) if begins else ()
    made = make_names_unique(replace(kernel, body=(*barriers, *common, *blocks)))
    _check_fragments(split_roles_of(made))
    return made


def split_roles_of(kernel: tile.Kernel) -> tuple[ExplicitRole, ...]:
    """The roles of a kernel that has been split, in the order of their warps, behind what they do in common, each as a
    kernel whose threads are counted from its first one; none where nothing is shared out by hand."""
    if not has_explicit_roles(kernel):
        return ()
    blocks = [(groups, stmt) for stmt in kernel.body if (groups := guarded_warpgroups(stmt)) is not None]
    if not blocks:
        return (_role("all", range(0), kernel, kernel.body),)
    found = [
        _role(f"warpgroup_{groups.start}", groups, kernel, _numbered(body, WARPGROUP_THREADS * groups.start))
        for groups, stmt in blocks
        for body in tile.nested_bodies(stmt)[:1]
    ]
    common = _working(tuple(stmt for stmt in kernel.body if guarded_warpgroups(stmt) is None))
    if common:
        every = range(kernel.threads // WARPGROUP_THREADS)
        found.insert(0, replace(_role(TOGETHER, every, kernel, common), is_common=True))
    return tuple(found)


def roles_of(kernel: tile.Kernel) -> tuple[ExplicitRole, ...]:
    """The roles of a kernel as it is written. Errors: as for `split`."""
    return split_roles_of(split(kernel))


def _working(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Without the barriers that the kernel makes, which are nobody's work."""
    return tuple(stmt for stmt in body if not isinstance(stmt, AllocBarrier))


def _role(name: str, groups: range, kernel: tile.Kernel, body: tuple[tile.Stmt, ...]) -> ExplicitRole:
    """The role's kernel: its statements, with what they use."""
    body = _working(body)
    used = {b for s in body for b in (*find_reads(s), *find_writes(s))}
    pinned = tuple(p for p in kernel.layouts if p.buffer in used)
    threads = WARPGROUP_THREADS * len(groups) or kernel.threads
    buffers = tuple(b for b in kernel.buffers if b in used or b.scope == "global")
    return ExplicitRole(name, groups, replace(kernel, threads=threads, body=body, buffers=buffers, layouts=pinned))


def _numbered(body: tuple[tile.Stmt, ...], first: int) -> tuple[tile.Stmt, ...]:
    """The statements of threads that are counted from `first` on."""
    if not first:
        return body
    shifted = tile.Binary("add", tile.THREAD, tile.int32_const(first), INT32)
    made: list[tile.Stmt] = []
    for stmt in body:
        if isinstance(stmt, tile.If | tile.For | tile.While):
            made.append(map_nested_bodies(stmt, lambda inner: _numbered(inner, first)))
            continue
        if isinstance(stmt, tile.TileOp) and stmt.leader is not None:
            stmt = stmt.with_leader(stmt.leader - first)
        made.append(substitute_stmt(stmt, {tile.THREAD: shifted}))
    return tuple(made)


def _roles(kernel: tile.Kernel, every: range) -> Iterator[range]:
    """Neighbouring warpgroups that run the same statements."""
    conditions = dict.fromkeys(
        groups for s in tile.walk_statements(kernel.body) if (groups := guarded_warpgroups(s)) is not None
    )
    for _, members in groupby(every, lambda group: tuple(group in groups for groups in conditions)):
        found = list(members)
        yield range(found[0], found[-1] + 1)


def _of_role(body: tuple[tile.Stmt, ...], role: range, runners: range) -> tuple[tile.Stmt, ...]:
    """What the role runs of statements that these warpgroups run."""

    def one(stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        groups = guarded_warpgroups(stmt)
        if isinstance(stmt, tile.If) and groups is not None:
            return _of_role(stmt.then, role, groups) if role.start in groups else ()
        if not isinstance(stmt, tile.If | tile.For | tile.While):
            return tuple(_own(stmt, role, runners))
        made = map_nested_bodies(stmt, lambda inside: _of_role(inside, role, runners))
        kept = (s for inside in tile.nested_bodies(made) for s in inside)
        is_done = any(isinstance(made, tile.If) or not isinstance(s, tile.Bind) for s in kept)
        return (made,) if is_done else ()

    return map_statements(body, one)


def _own(stmt: tile.Stmt, role: range, runners: range) -> Iterator[tile.Stmt]:
    """The role's share of a statement that these warpgroups run."""
    if _is_collective(stmt) and role != runners:
        raise_error(
            "cross-role-operation",
            "warpgroups that divide the work do this together",
            stmt.span,
            f"warpgroups {runners.start} to {runners.stop - 1} come here, of which some run other statements alone",
            help="put it under `with T.ws(…):` of one of them, or before the first of these blocks",
        )
    mine = range(WARPGROUP_THREADS * role.start, WARPGROUP_THREADS * role.stop)
    if isinstance(stmt, tile.TileOp) and stmt.leader is not None and stmt.leader not in mine:
        return
    if isinstance(stmt, tile.Parallel) and stmt.is_per_thread:
        stmt = replace(stmt, extents=(len(mine), *stmt.extents[1:]))
    yield stmt


def _is_collective(stmt: tile.Stmt) -> bool:
    """Whether threads do it together, so that who they are matters."""
    match stmt:
        case tile.TileOp():
            return stmt.is_collective and stmt.done_by != "one thread"
        case tile.Parallel():
            return not stmt.is_per_thread and not _is_private(stmt)
        case _:
            return False


def _is_private(stmt: tile.Stmt) -> bool:
    """Whether each thread only computes something of its own, so that every role can do it again."""
    if isinstance(stmt, tile.Bind):
        return True
    if isinstance(stmt, tile.For | tile.If | tile.While):
        return all(_is_private(inner) for body in tile.nested_bodies(stmt) for inner in body)
    stores = [s for s in tile.walk_statements((stmt,)) if isinstance(s, tile.Store)]
    return isinstance(stmt, tile.Parallel) and all(is_variable(s.buffer) or s.buffer.scope == "local" for s in stores)


def _check_fragments(found: tuple[ExplicitRole, ...]) -> None:
    """A fragment lies in the registers of one role."""
    owner: dict[tile.Buffer, tuple[ExplicitRole, Span]] = {}
    for part in found:
        for stmt in tile.walk_statements(part.kernel.body):
            if isinstance(stmt, tile.For | tile.If | tile.While) or is_refused(stmt):
                continue
            for buffer in (*find_reads(stmt), *find_writes(stmt)):
                if buffer.scope != "fragment" or is_variable(buffer):
                    continue
                other, where = owner.setdefault(buffer, (part, stmt.span))
                if other is not part:
                    raise_error(
                        "cross-role-fragment",
                        f"{buffer.name} lies in the registers of {_spoken(other)}, which {_spoken(part)} cannot reach",
                        stmt.span,
                        f"used here by {_spoken(part)}",
                        secondary=(
                            Label(where, f"used here by {_spoken(other)}"),
                            Label(buffer.span, "allocated here"),
                        ),
                        help="hand it over through a tile made by T.alloc_shared, or give each its own fragment",
                    )


def _spoken(part: ExplicitRole) -> str:
    if part.is_common:
        return "all warpgroups together"
    first, last = part.groups.start, part.groups.stop - 1
    return f"warpgroup {first}" if first == last else f"warpgroups {first} to {last}"
