"""Split a kernel with explicit roles into one block of statements for each role.

A role is a range of warpgroups that no `If` on the warpgroup separates. Its statements, with the loops and conditions
around them, become one block of the kernel, under one such `If`. That block is also a kernel of that many threads,
which gets layouts and mechanisms like any other. The roles communicate through shared memory, in the order of the
kernel's barriers.

Statements of all warpgroups together may come before the roles divide: they are a role of the whole block, which ends
with a barrier. Later, all warpgroups can share only statements that each thread runs for itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from tilec.analysis.control_slice import is_variable
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS, guarded_warpgroups, warpgroup_condition
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import INT32
from tilec.ops.placeholder import is_refused
from tilec.ops.synchronisation.barriers import BARRIER_OPERATIONS, AllocBarrier
from tilec.ops.synchronisation.warpgroups import NamedArrive
from tilec.rewriting.make_names_unique import make_names_unique
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

COMMON_ROLE = "together"


@dataclass(frozen=True, slots=True)
class ExplicitRole:
    """A role and its work, as a kernel of `kernel.threads` threads. `groups` are its warpgroups, none where it is the
    only role. `is_common`: it has all warpgroups, before they divide the work."""

    name: str
    groups: range
    kernel: tile.Kernel
    is_common: bool = False

    @property
    def first_thread(self) -> int:
        return WARPGROUP_THREADS * self.groups.start


def has_explicit_roles(kernel: tile.Kernel) -> bool:
    """Return whether the kernel has branches on the warpgroup or barrier operations of its own."""
    return any(
        guarded_warpgroups(s) is not None or isinstance(s, (*BARRIER_OPERATIONS, NamedArrive))
        for s in tile.walk_statements(kernel.body)
    )


def split_roles(kernel: tile.Kernel) -> tile.Kernel:
    """Split the kernel into barriers, common statements, and one block of statements under a condition for each role.

    Its barriers come first, then the statements of all warpgroups together, then each role's statements under a
    condition on its warpgroups. A kernel with one role stays as it is. Errors: `cross-role-fragment`,
    `cross-role-operation`."""
    divides = [any(map(guarded_warpgroups, tile.walk_statements((stmt,)))) for stmt in kernel.body]
    if not any(divides):
        return kernel
    first = divides.index(True)
    every = range(kernel.threads // WARPGROUP_THREADS)
    before, after = kernel.body[:first], kernel.body[first:]
    begins = any(_is_collective(s) for stmt in before for s in tile.walk_statements((stmt,)))
    kept = tuple(s for s in before if not begins or _is_private(s))
    blocks = []
    for groups in _find_role_ranges(kernel, every):
        selected = _select_for_role(_drop_allocations((*kept, *after)), groups, every)
        blocks.append(tile.If(warpgroup_condition(groups), selected, (), after[0].span))
    barriers = tuple(s for s in tile.walk_statements(kernel.body) if isinstance(s, AllocBarrier))
    common = _drop_allocations(before) if begins else ()
    made = make_names_unique(replace(kernel, body=(*barriers, *common, *blocks)))
    _check_fragments(find_split_roles(made))
    return made


def find_split_roles(kernel: tile.Kernel) -> tuple[ExplicitRole, ...]:
    """Return the roles of a split kernel, each as a kernel with threads from 0; the common one first, () without
    roles. The others come in the order of their warps. A kernel without branches on the warpgroup is one role,
    "all"."""
    if not has_explicit_roles(kernel):
        return ()
    blocks = [(groups, stmt) for stmt in kernel.body if (groups := guarded_warpgroups(stmt)) is not None]
    if not blocks:
        return (_build_role("all", range(0), kernel, kernel.body),)
    found = []
    for groups, stmt in blocks:
        body = _renumber_threads(tile.nested_bodies(stmt)[0], WARPGROUP_THREADS * groups.start)
        found.append(_build_role(f"warpgroup_{groups.start}", groups, kernel, body))
    common = _drop_allocations(tuple(stmt for stmt in kernel.body if guarded_warpgroups(stmt) is None))
    if common:
        every = range(kernel.threads // WARPGROUP_THREADS)
        found.insert(0, replace(_build_role(COMMON_ROLE, every, kernel, common), is_common=True))
    return tuple(found)


def find_roles(kernel: tile.Kernel) -> tuple[ExplicitRole, ...]:
    """Split a kernel as written and return its roles, each as a kernel; () without explicit roles. Errors: as for
    `split_roles`."""
    return find_split_roles(split_roles(kernel))


def _drop_allocations(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Return the statements without allocations of barriers, which belong to no role."""
    return tuple(stmt for stmt in body if not isinstance(stmt, AllocBarrier))


def _build_role(name: str, groups: range, kernel: tile.Kernel, body: tuple[tile.Stmt, ...]) -> ExplicitRole:
    """Return the role of these warpgroups (none: of all threads): a kernel of its statements, with the tiles they
    use."""
    body = _drop_allocations(body)
    used = {b for s in body for b in (*find_reads(s), *find_writes(s))}
    pinned = tuple(p for p in kernel.layouts if p.buffer in used)
    threads = WARPGROUP_THREADS * len(groups) or kernel.threads
    buffers = tuple(b for b in kernel.buffers if b in used or b.scope == "global")
    return ExplicitRole(name, groups, replace(kernel, threads=threads, body=body, buffers=buffers, layouts=pinned))


def _renumber_threads(body: tuple[tile.Stmt, ...], first: int) -> tuple[tile.Stmt, ...]:
    """Return the statements with the thread number shifted: thread 0 of the role is thread `first` of the block."""
    if not first:
        return body
    shifted = tile.Binary("add", tile.THREAD, tile.int32_const(first), INT32)
    made: list[tile.Stmt] = []
    for stmt in body:
        if isinstance(stmt, tile.If | tile.For | tile.While):
            made.append(map_nested_bodies(stmt, lambda inner: _renumber_threads(inner, first)))
            continue
        if isinstance(stmt, tile.TileOp) and stmt.leader is not None:
            stmt = stmt.with_leader(stmt.leader - first)
        made.append(substitute_stmt(stmt, {tile.THREAD: shifted}))
    return tuple(made)


def _find_role_ranges(kernel: tile.Kernel, every: range) -> Iterator[range]:
    """Yield the longest ranges of warpgroups that no condition in the kernel separates."""
    conditions = dict.fromkeys(
        groups for s in tile.walk_statements(kernel.body) if (groups := guarded_warpgroups(s)) is not None
    )
    for _, members in groupby(every, lambda group: tuple(group in groups for groups in conditions)):
        found = list(members)
        yield range(found[0], found[-1] + 1)


def _select_for_role(body: tuple[tile.Stmt, ...], role: range, runners: range) -> tuple[tile.Stmt, ...]:
    """Return the part of these statements, reached by `runners`, that one role runs; refuse shared collectives."""

    def select_statement(stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return the role's part of a statement as a list; () where it runs nothing of the statement."""
        groups = guarded_warpgroups(stmt)
        if isinstance(stmt, tile.If) and groups is not None:
            return _select_for_role(stmt.then, role, groups) if role.start in groups else ()
        if not isinstance(stmt, tile.If | tile.For | tile.While):
            return tuple(_take_share(stmt, role, runners))
        made = map_nested_bodies(stmt, lambda inside: _select_for_role(inside, role, runners))
        kept = (s for inside in tile.nested_bodies(made) for s in inside)
        is_done = any(isinstance(made, tile.If) or not isinstance(s, tile.Bind) for s in kept)
        return (made,) if is_done else ()

    return map_statements(body, select_statement)


def _take_share(stmt: tile.Stmt, role: range, runners: range) -> Iterator[tile.Stmt]:
    """Yield the statement if the role runs it, cut to its threads; refuse a collective one that other roles reach
    too."""
    if _is_collective(stmt) and role != runners:
        raise_error(
            "cross-role-operation",
            "all warpgroups would have to run this together",
            stmt.span,
            f"warpgroups {runners.start} to {runners.stop - 1} reach this, but they have divided their work",
            help="put it under `with T.ws(…):` of one of them, or move it before the first `with T.ws(…):`",
        )
    mine = range(WARPGROUP_THREADS * role.start, WARPGROUP_THREADS * role.stop)
    if isinstance(stmt, tile.TileOp) and stmt.leader is not None and stmt.leader not in mine:
        return
    if isinstance(stmt, tile.Parallel) and stmt.is_per_thread:
        stmt = replace(stmt, extents=(len(mine), *stmt.extents[1:]))
    yield stmt


def _is_collective(stmt: tile.Stmt) -> bool:
    """Return whether threads run the statement together, so that their number and identity matter."""
    match stmt:
        case tile.TileOp():
            return stmt.is_collective and stmt.done_by != "one thread"
        case tile.Parallel():
            return not stmt.is_per_thread and not _is_private(stmt)
        case _:
            return False


def _is_private(stmt: tile.Stmt) -> bool:
    """Return whether a statement sets only values that each thread has for itself, so that every role can repeat it."""
    if isinstance(stmt, tile.Bind):
        return True
    if isinstance(stmt, tile.For | tile.If | tile.While):
        return all(_is_private(inner) for body in tile.nested_bodies(stmt) for inner in body)
    stores = [s for s in tile.walk_statements((stmt,)) if isinstance(s, tile.Store)]
    return isinstance(stmt, tile.Parallel) and all(is_variable(s.buffer) or s.buffer.scope == "local" for s in stores)


def _check_fragments(found: tuple[ExplicitRole, ...]) -> None:
    """Refuse a fragment that two roles use, as it lies in the registers of one of them."""
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
                    owning, using = _describe_role(other), _describe_role(part)
                    raise_error(
                        "cross-role-fragment",
                        f"{buffer.name} is in the registers of {owning}, which {using} cannot access",
                        stmt.span,
                        f"used here by {using}",
                        secondary=(Label(where, f"used here by {owning}"), Label(buffer.span, "allocated here")),
                        help="pass it through a shared tile, or give each role its own fragment",
                    )


def _describe_role(part: ExplicitRole) -> str:
    """Return a role's name for an error: "warpgroup 0", "warpgroups 1 to 2" or "all warpgroups together"."""
    if part.is_common:
        return "all warpgroups together"
    first, last = part.groups.start, part.groups.stop - 1
    return f"warpgroup {first}" if first == last else f"warpgroups {first} to {last}"
