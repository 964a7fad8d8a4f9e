"""Names in tile IR: each stands for one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilec.ir import tile
from tilec.passes.analysis.substitution import substitute_stmt


@dataclass(slots=True)
class UniqueNames:
    """Hands out each name once: `i`, then `i_1`, `i_2`."""

    taken: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    """The last number behind each name that was handed out: those below stay taken."""

    def take(self, name: str) -> str:
        candidate, count = name, self.counts.get(name, 0)
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        self.counts[name] = count
        return candidate


def with_unique_names(kernel: tile.Kernel) -> tile.Kernel:
    """The kernel, each of whose variables has a name of its own, so that a pass may write a statement in two places
    and need not look for names: in the order of the text, what comes first keeps its name. The kernel itself where
    nothing is declared twice."""
    names = UniqueNames({d.name for d in (*kernel.params, *kernel.buffers, *kernel.block_vars)})
    body = _body(kernel.body, names, {})
    return kernel if body is kernel.body else replace(kernel, body=body)


def _body(body: tuple[tile.Stmt, ...], names: UniqueNames, renamed: dict[str, str]) -> tuple[tile.Stmt, ...]:
    """A list of statements, itself where nothing in it is renamed. What is goes into `renamed`."""
    made = list(body)
    for at in range(len(made)):
        stmt = made[at] = _stmt(made[at], names, renamed)
        match stmt:  # what stands behind it sees the variable; its own value does not
            case tile.Bind(var=declared) if (own := _own(declared, names, renamed)) != declared:
                made[at] = replace(stmt, var=own)
            case tile.Store(previous=tile.Var() as declared) if (own := _own(declared, names, renamed)) != declared:
                made[at] = replace(stmt, previous=own)
            case _:
                continue
        made[at + 1 :] = (substitute_stmt(s, {declared: own}) for s in made[at + 1 :])
    return body if all(new is old for new, old in zip(made, body, strict=True)) else tuple(made)


def _stmt(stmt: tile.Stmt, names: UniqueNames, renamed: dict[str, str]) -> tile.Stmt:
    """A statement, with what is declared in it."""
    match stmt:
        case tile.Parallel():
            own = {var: var if var == tile.THREAD else _own(var, names, renamed) for var in stmt.vars}
            body = _body(_within(stmt.body, own), names, renamed)
            new = tuple(own.values())
            return stmt if body is stmt.body and new == stmt.vars else replace(stmt, vars=new, body=body)
        case tile.For():
            own = {stmt.var: _own(stmt.var, names, renamed)}
            inside: dict[str, str] = {}
            body = _body(_within(stmt.body, own), names, inside)
            renamed |= inside
            distinct_by = stmt.distinct_by and tuple(inside.get(name, name) for name in stmt.distinct_by)
            is_same = body is stmt.body and own[stmt.var] == stmt.var
            return stmt if is_same else replace(stmt, var=own[stmt.var], body=body, distinct_by=distinct_by)
        case tile.While():
            body = _body(stmt.body, names, renamed)
            return stmt if body is stmt.body else replace(stmt, body=body)
        case tile.If():
            then, orelse = _body(stmt.then, names, renamed), _body(stmt.orelse, names, renamed)
            return stmt if then is stmt.then and orelse is stmt.orelse else replace(stmt, then=then, orelse=orelse)
        case _:
            return stmt


def _own(var: tile.Var, names: UniqueNames, renamed: dict[str, str]) -> tile.Var:
    """What a variable that is declared here is called."""
    name = names.take(var.name)
    if name == var.name:
        return var
    renamed[var.name] = name
    return replace(var, name=name)


def _within(body: tuple[tile.Stmt, ...], own: Mapping[tile.Var, tile.Var]) -> tuple[tile.Stmt, ...]:
    """What variables of these names are visible in; another body wherever one has a new name."""
    moved = {old: new for old, new in own.items() if old != new}
    return tuple(substitute_stmt(s, dict(moved)) for s in body) if moved else body
