"""Split a kernel with explicit roles into sections, and each section into one block of statements for each role.

A role is a range of warps that no `If` on the warp separates. Its statements, with the loops and conditions around
them, become one block of the kernel, under one such `If`. That block is also a kernel of that many threads, which gets
layouts and mechanisms like any other. The roles communicate through shared memory, in the order of the kernel's
barriers.

Sections follow one another at the kernel's top level, and a barrier of the block ends each but the last. In some of
them all warps run each statement together, as one role of the whole block; in the others they have divided their work.
There they share only statements that each thread runs for itself: the first statement that all of them run together
begins a section. What a thread sets for itself outside of roles is computed again in each section that reads
it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NoReturn

from tilec.analysis.control_slice import is_variable
from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, WARPGROUP_WARPS, describe_warps, guarded_warps, warps_condition
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import INT32
from tilec.ops.placeholder import is_refused
from tilec.ops.synchronisation.barriers import BARRIER_OPERATIONS, AllocBarrier
from tilec.ops.synchronisation.sync import BlockBarrier
from tilec.ops.synchronisation.warpgroups import NamedArrive
from tilec.rewriting.make_names_unique import make_names_unique
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.diagnostics import Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

COMMON_ROLE = "together"
NAMED_BARRIERS = 16
"""The named barriers of a block (PTX ISA, bar.sync)."""


@dataclass(frozen=True, slots=True)
class ExplicitRole:
    """A role and its work in a section, as a kernel of `kernel.threads` threads. `warps` are its warps, none where it
    is the only role. `is_common`: all warps run the section together."""

    name: str
    warps: range
    kernel: tile.Kernel
    section: int = 0
    is_common: bool = False


def has_explicit_roles(kernel: tile.Kernel) -> bool:
    """Return whether the kernel has branches on the warp or barrier operations of its own."""
    return any(
        guarded_warps(s) is not None or isinstance(s, (*BARRIER_OPERATIONS, NamedArrive))
        for s in tile.walk_statements(kernel.body)
    )


def split_roles(kernel: tile.Kernel) -> tile.Kernel:
    """Split the kernel into its barriers and its sections: common statements, or a block of statements under a
    condition for each role.

    A kernel with one role stays as it is. Errors: `cross-role-fragment`, `cross-role-operation`."""
    if not any(map(_is_divided, kernel.body)):
        return kernel
    every = range(kernel.threads // WARP_THREADS)
    sections = _find_sections(_drop_allocations(kernel.body))
    made: list[tile.Stmt] = [s for s in tile.walk_statements(kernel.body) if isinstance(s, AllocBarrier)]
    for number, section in enumerate(sections):
        body = (*_find_repeated_statements(sections[: number + 1]), *section)
        divided = next(filter(_is_divided, section), None)
        if divided is None:
            made += body
            continue
        ranges = tuple(_find_role_ranges(section, every))
        _check_barrier_count(section, len(ranges), divided.span)
        for warps in ranges:
            made.append(tile.If(warps_condition(warps), _select_for_role(body, warps, every), (), divided.span))
    split = make_names_unique(replace(kernel, body=tuple(made)))
    _check_fragments(find_split_roles(split))
    return split


def _check_barrier_count(section: tuple[tile.Stmt, ...], roles: int, span: Span) -> None:
    """Refuse a section of more roles than there are named barriers for. Each role has one, and so have the block and
    the kernel's own T.sync_threads(id, count)."""
    statements = tile.walk_statements(section)
    own = {s.id for s in statements if isinstance(s, BlockBarrier | NamedArrive) and s.id is not None}
    left = NAMED_BARRIERS - len(own | {0})
    if roles > left:
        raise_error(
            "cross-role-operation",
            f"the warps divide into {roles} roles, and a block has {left} barriers for them",
            span,
            help="let several warps share a role",
        )


def _find_sections(body: tuple[tile.Stmt, ...]) -> list[tuple[tile.Stmt, ...]]:
    """Return the top-level statements by section. A divided statement ends a section in which all warps have run
    something together, and a statement that they run together ends one in which they have divided their work."""
    sections: list[list[tile.Stmt]] = [[]]
    for stmt in body:
        current = sections[-1]
        if any(map(_is_divided, current)):
            is_first = not _is_divided(stmt) and _has_collective(stmt)
        else:
            is_first = _is_divided(stmt) and any(map(_has_collective, current))
        if is_first:
            sections.append([])
        sections[-1].append(stmt)
    return [tuple(section) for section in sections]


def _is_divided(stmt: tile.Stmt) -> bool:
    """Return whether the statement, or one inside it, is for some warps only."""
    return any(guarded_warps(inner) is not None for inner in tile.walk_statements((stmt,)))


def _has_collective(stmt: tile.Stmt) -> bool:
    """Return whether threads run the statement, or one inside it, together."""
    return any(map(_is_collective, tile.walk_statements((stmt,))))


def find_split_roles(kernel: tile.Kernel) -> tuple[ExplicitRole, ...]:
    """Return the roles of a split kernel, each as a kernel with threads from 0; () without roles. They come in the
    order of their sections, and in each in the order of their warps. A kernel without branches on the warp is one
    role, "all"."""
    if not has_explicit_roles(kernel):
        return ()
    if not any(guarded_warps(stmt) is not None for stmt in kernel.body):
        return (_build_role("all", range(0), kernel, kernel.body),)
    found: list[ExplicitRole] = []
    for section, roles in enumerate(_list_section_roles(kernel)):
        for warps, body in roles:
            name = COMMON_ROLE if warps is None else _name_role(warps)
            if any(part.name == name for part in found):
                name = f"{name}_section_{section}"
            made = _build_role(name, warps or range(kernel.threads // WARP_THREADS), kernel, body)
            found.append(replace(made, section=section, is_common=warps is None))
    return tuple(found)


def _list_section_roles(kernel: tile.Kernel) -> list[list[tuple[range | None, tuple[tile.Stmt, ...]]]]:
    """Return the roles of each section of a split kernel, by their warps, with their statements. Their threads count
    from 0. The warps are None for a section that all run together."""
    sections: list[list[tuple[range | None, tuple[tile.Stmt, ...]]]] = []
    for stmt in _drop_allocations(kernel.body):
        warps, last = guarded_warps(stmt), sections[-1][-1] if sections else None
        if warps is None:
            if last is not None and last[0] is None:
                sections[-1][-1] = None, (*last[1], stmt)
            else:
                sections.append([(None, (stmt,))])
            continue
        if last is None or last[0] is None or warps.start < last[0].stop:
            sections.append([])
        body = _renumber_threads(tile.nested_bodies(stmt)[0], WARP_THREADS * warps.start)
        sections[-1].append((warps, body))
    return sections


def find_roles(kernel: tile.Kernel) -> tuple[ExplicitRole, ...]:
    """Split a kernel as written and return its roles, each as a kernel; () without explicit roles. Errors: as for
    `split_roles`."""
    return find_split_roles(split_roles(kernel))


def _drop_allocations(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Return the statements without allocations of barriers, which belong to no role."""
    return tuple(stmt for stmt in body if not isinstance(stmt, AllocBarrier))


def _name_role(warps: range) -> str:
    """Return the name of a role by its first warp, or warpgroup where it has whole ones."""
    is_whole = warps.start % WARPGROUP_WARPS == warps.stop % WARPGROUP_WARPS == 0
    return f"warpgroup_{warps.start // WARPGROUP_WARPS}" if is_whole else f"warp_{warps.start}"


def _build_role(name: str, warps: range, kernel: tile.Kernel, body: tuple[tile.Stmt, ...]) -> ExplicitRole:
    """Return the role of these warps (none: of all threads): a kernel of its statements, with the tiles they use."""
    body = _drop_allocations(body)
    used = {b for s in body for b in (*find_reads(s), *find_writes(s))}
    pinned = tuple(p for p in kernel.layouts if p.buffer in used)
    threads = WARP_THREADS * len(warps) or kernel.threads
    buffers = tuple(b for b in kernel.buffers if b in used or b.scope == "global")
    return ExplicitRole(name, warps, replace(kernel, threads=threads, body=body, buffers=buffers, layouts=pinned))


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


def _find_role_ranges(section: tuple[tile.Stmt, ...], every: range) -> Iterator[range]:
    """Yield the longest ranges of warps that no condition in the section separates."""
    conditions = dict.fromkeys(warps for s in tile.walk_statements(section) if (warps := guarded_warps(s)) is not None)
    for _, members in groupby(every, lambda warp: tuple(warp in warps for warps in conditions)):
        found = list(members)
        yield range(found[0], found[-1] + 1)


def _select_for_role(body: tuple[tile.Stmt, ...], role: range, runners: range) -> tuple[tile.Stmt, ...]:
    """Return the part of these statements, reached by `runners`, that one role runs; refuse shared collectives."""

    def select_statement(stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return the role's part of a statement as a list; () where it runs nothing of the statement."""
        warps = guarded_warps(stmt)
        if isinstance(stmt, tile.If) and warps is not None:
            return _select_for_role(stmt.then, role, warps) if role.start in warps else ()
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
            "all warps that reach this would have to run it together",
            stmt.span,
            f"{describe_warps(runners)} reach this, but they have divided their work",
            help="put it under the `if` or `with T.ws(…):` of one of them, or move it out of the loop or branch",
        )
    mine = range(WARP_THREADS * role.start, WARP_THREADS * role.stop)
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


# ---- values that threads keep ----------------------------------------------------------------------------------------


def _find_repeated_statements(sections: Sequence[tuple[tile.Stmt, ...]]) -> tuple[tile.Stmt, ...]:
    """Return the statements of earlier sections that the last one repeats: those that set what its threads read.

    Refuses a value that the repetition could not give: one that roles have set, or that is read from memory which
    changes. Errors: `cross-role-fragment`, `cross-role-operation`."""
    *earlier, last = sections
    before = [stmt for section in earlier for stmt in section]
    needed, needing = _find_values(last), last[0].span
    repeated: list[tile.Stmt] = []
    later: list[tile.Stmt] = list(last)
    for stmt in reversed(before):
        if needed.isdisjoint(_find_settings(stmt)):
            pass
        elif not _is_private(stmt):
            _refuse_divided_value(stmt, needed, needing)
        else:
            _check_repeatable(stmt, later)
            repeated.insert(0, stmt)
            needed |= _find_values((stmt,))
        later.append(stmt)
    return tuple(repeated)


def _find_values(body: tuple[tile.Stmt, ...]) -> set[tile.Var | tile.Buffer]:
    """Return the variables and the buffers of single threads that the statements read."""
    exprs = (e for s in tile.walk_statements(body) for expr in list_expressions(s) for e in tile.walk_expr(expr))
    variables = {e for e in exprs if isinstance(e, tile.Var)}
    return {*variables, *(b for stmt in body for b in find_reads(stmt) if _is_own(b))}


def _find_settings(stmt: tile.Stmt) -> set[tile.Var | tile.Buffer]:
    """Return the variables and the buffers of single threads that the statement sets."""
    variables = {s.var for s in tile.walk_statements((stmt,)) if isinstance(s, tile.Bind)}
    return {*variables, *filter(_is_own, find_writes(stmt))}


def _is_own(buffer: tile.Buffer) -> bool:
    """Return whether each thread has the buffer for itself: a variable, or an array of T.alloc_local."""
    return is_variable(buffer) or buffer.scope == "local"


def _check_repeatable(stmt: tile.Stmt, later: Sequence[tile.Stmt]) -> None:
    """Refuse a statement that the threads of a section repeat, if it reads memory that later statements change."""
    changed = {buffer for other in later for buffer in find_writes(other)}
    read = [b for b in find_reads(stmt) if not _is_own(b) and (b in changed or b.scope == "barrier")]
    if read:
        raise_error(
            "cross-role-operation",
            f"this value of {read[0].name} is used where warps divide their work or join again",
            stmt.span,
            f"they would read {read[0].name} again there, and it may have changed",
            help="read it where it is used: in each role, or again behind the roles",
        )


def _refuse_divided_value(stmt: tile.Stmt, needed: set[tile.Var | tile.Buffer], needing: Span) -> NoReturn:
    """Raise an error for a value that roles, or all warps with a statement that they run together, set earlier."""
    inner = (s for s in tile.walk_statements((stmt,)) if not isinstance(s, tile.For | tile.If | tile.While))
    setting = next((s for s in inner if not needed.isdisjoint(_find_settings(s))), stmt)
    name = next(value.name for value in _find_settings(setting) if value in needed)
    raise_error(
        "cross-role-fragment",
        f"{name} does not keep its value where warps divide their work or join again",
        setting.span,
        "set here by some of the warps, or in a statement that all run together",
        secondary=(Label(needing, "needed from here on"),),
        help="pass it through a shared tile, or use another variable behind it",
    )


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
                    if other.warps == part.warps:
                        _refuse_kept_fragment(buffer, stmt.span, where)
                    raise_error(
                        "cross-role-fragment",
                        f"{buffer.name} is in the registers of {owning}, which {using} cannot access",
                        stmt.span,
                        f"used here by {using}",
                        secondary=(Label(where, f"used here by {owning}"), Label(buffer.span, "allocated here")),
                        help="pass it through a shared tile, or give each role its own fragment",
                    )


def _refuse_kept_fragment(buffer: tile.Buffer, used: Span, before: Span) -> NoReturn:
    """Raise an error for a fragment that the same warps use in two sections."""
    raise_error(
        "cross-role-fragment",
        f"{buffer.name} does not keep its values where warps divide their work or join again",
        used,
        "used again here",
        secondary=(Label(before, "used here before"), Label(buffer.span, "allocated here")),
        help="pass them through a shared tile, or use another fragment",
    )


def _describe_role(part: ExplicitRole) -> str:
    """Return a role's name for an error: "warpgroup 0", "warpgroups 1 to 2" or "all warpgroups together"."""
    return "all warpgroups together" if part.is_common else describe_warps(part.warps)
