"""Alias analysis: tile IR with its memory effects and the order that they impose, as `-O1` prints it.

Tensors are taken to be disjoint, as are tiles. So an alias group is one of them, with all its versions where a
pipelined loop gives it several. Two statements that touch one group, at least one of them writing, keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tilec.analysis.rings import is_pipelined, plan_rings
from tilec.analysis.tensor_order import find_ordered_tensors
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.text import print_kernel
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class AliasGroup:
    """A tensor or tile, and the pipelined loop that may give it a version for each iteration in flight."""

    buffer: tile.Buffer
    loop: tile.For | None


@dataclass(frozen=True, slots=True)
class Token:
    """The memory effects of a statement. It follows the statements `after` in its iteration, and `carried` of the
    iteration before, by index in `AliasAnalysis.tokens`."""

    stmt: tile.Stmt
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    after: tuple[int, ...]
    carried: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AliasAnalysis:
    """`tokens` has, in program order, the statements without a body, and the loops and ifs whose bounds or condition
    read a tensor or tile."""

    kernel: tile.Kernel
    groups: tuple[AliasGroup, ...]
    tokens: tuple[Token, ...]


def analyse_aliases(kernel: tile.Kernel) -> AliasAnalysis:
    """List each buffer as an alias group, and for each statement its reads, writes and the statements it must follow.
    Nothing uses it but the dump of -O1."""
    loops = [s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.For) and is_pipelined(s)]
    versioned = {b.name: loop for loop in loops for ring in plan_rings(kernel, loop) for b in ring.buffers}
    buffers = [*(p for p in kernel.params if isinstance(p, tile.Buffer)), *kernel.buffers]
    groups = tuple(AliasGroup(b, versioned.get(b.name)) for b in buffers)
    return AliasAnalysis(kernel, groups, tuple(_build_tokens(kernel, frozenset(versioned))))


EnclosingLoops = tuple[tile.For | tile.While, ...]
TouchedNames = tuple[set[str], set[str]]
"""The names of the buffers read, and of those written."""


def _list_steps(
    body: tuple[tile.Stmt, ...], loops: EnclosingLoops = ()
) -> Iterator[tuple[tile.Stmt, EnclosingLoops, TouchedNames]]:
    """Yield each statement without a body, and each loop or if that loads itself, with enclosing loops and names
    touched."""
    for stmt in body:
        if not isinstance(stmt, tile.For | tile.If | tile.While):
            yield stmt, loops, ({b.name for b in find_reads(stmt)}, {b.name for b in find_writes(stmt)})
            continue
        # A while evaluates its condition in each iteration, a for its bounds only once.
        within = (*loops, stmt) if isinstance(stmt, tile.While) else loops
        if own := {load.buffer.name for load in tile.walk_loads(stmt)}:
            yield stmt, within, (own, set())
        for nested in tile.nested_bodies(stmt):
            yield from _list_steps(nested, (*loops, stmt) if isinstance(stmt, tile.For) else within)


def _build_tokens(kernel: tile.Kernel, versioned: frozenset[str]) -> Iterator[Token]:
    """Yield each statement's `Token`: reads, writes, and indices of those it follows, in its iteration and the one
    before."""
    steps = list(_list_steps(kernel.body))
    touched = [own for _, _, own in steps]
    for j, (stmt, loops, _) in enumerate(steps):
        after = [i for i in range(j) if _find_conflicts(touched[i], touched[j])]
        shared = (i for i in range(j, len(steps)) if any(a is b for a in loops for b in steps[i][1]))
        # The iteration before filled another version.
        carried = [i for i in shared if _find_conflicts(touched[i], touched[j], without=versioned)]
        yield Token(
            stmt,
            tuple(sorted(touched[j][0])),
            tuple(sorted(touched[j][1])),
            _drop_implied(after, touched),
            tuple(carried),
        )


def _find_conflicts(a: TouchedNames, b: TouchedNames, without: frozenset[str] = frozenset()) -> set[str]:
    """Return the buffers that both statements touch and at least one writes, except those named in `without`."""
    return ((a[1] & (b[0] | b[1])) | (a[0] & b[1])) - without


def _drop_implied(after: list[int], touched: list[TouchedNames]) -> tuple[int, ...]:
    """Drop from `after` the statements that conflict with a later one in it, which already comes behind them."""
    return tuple(i for i in after if not any(k > i and _find_conflicts(touched[i], touched[k]) for k in after))


def print_alias_analysis(aliased: AliasAnalysis) -> str:
    """Return the kernel's text with alias groups and each statement's effects in comments, which `ir.read` skips."""
    place = {IdentityKey(token.stmt): (index, token) for index, token in enumerate(aliased.tokens)}
    ordered = find_ordered_tensors(aliased.kernel)

    def format_note(stmt: tile.Stmt) -> str:
        """Return a statement's comment: its number, reads, writes and predecessors; "" if it has no token."""
        if IdentityKey(stmt) not in place:
            return ""
        index, token = place[IdentityKey(stmt)]
        parts = [f"%{index}:"]
        for verb, names in (("reads", token.reads), ("writes", token.writes)):
            if names:
                parts.append(f"{verb} {', '.join(names)}")
        for verb, places in (("after", token.after), ("after the last iteration's", token.carried)):
            if places:
                parts.append(f"{verb} {', '.join(f'%{i}' for i in places)}")
        return " ".join(parts)

    lines = []
    for group in aliased.groups:
        what: Literal["tensor", "tile"] = "tensor" if group.buffer.scope == "global" else "tile"
        versions = f", a version for each iteration of {group.loop.var.name} in flight" if group.loop else ""
        order = ", accesses stay in order" if group.buffer.name in ordered else ""
        lines.append(f"# alias group {group.buffer.name}: a {what}{versions}{order}")
    return "\n".join(lines) + "\n" + print_kernel(aliased.kernel, note=format_note)
