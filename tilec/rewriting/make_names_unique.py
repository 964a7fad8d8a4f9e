"""Unique names in tile IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from tilec.ir import tile
from tilec.ir.rewrite import map_declared_variables, map_nested_bodies
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.records import dataclass


@dataclass(slots=True)
class UniqueNames:
    """Gives out each name once: `i`, then `i_1`, `i_2`."""

    taken: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    """The last number given out behind each name: those below stay taken."""

    def take(self, name: str) -> str:
        """Return the name if it is free, else with the next number behind it; it is taken from then on."""
        candidate, count = name, self.counts.get(name, 0)
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        self.counts[name] = count
        return candidate


def make_names_unique(kernel: tile.Kernel) -> tile.Kernel:
    """Rename variables that are declared again, so that each has a name of its own; the first one keeps its name.

    A pass may then write a statement in two places. Return the kernel itself where nothing is declared twice."""
    names = UniqueNames({d.name for d in (*kernel.params, *kernel.buffers, *kernel.block_vars)})
    body = _rename_body(kernel.body, names, {})
    return kernel if body is kernel.body else replace(kernel, body=body)


def _rename_body(body: tuple[tile.Stmt, ...], names: UniqueNames, renamed: dict[str, str]) -> tuple[tile.Stmt, ...]:
    """Return statements with repeated declarations renamed, recording new names; the same list if none is."""
    made = list(body)
    for at in range(len(made)):
        stmt = made[at] = _rename_statement(made[at], names, renamed)
        if tile.nested_bodies(stmt):
            continue
        for declared in tile.declared_variables(stmt):  # visible in later statements, not in its own value
            if (own := _rename_variable(declared, names, renamed)) != declared:
                made[at] = map_declared_variables(stmt, {declared: own}.__getitem__)
                made[at + 1 :] = (substitute_stmt(s, {declared: own}) for s in made[at + 1 :])
    return body if all(new is old for new, old in zip(made, body, strict=True)) else tuple(made)


def _rename_statement(stmt: tile.Stmt, names: UniqueNames, renamed: dict[str, str]) -> tile.Stmt:
    """Return a statement with repeated declarations in its nested bodies renamed, recording new names."""
    if not tile.nested_bodies(stmt):
        return stmt
    own = {
        var: var if var == tile.THREAD else _rename_variable(var, names, renamed)
        for var in tile.declared_variables(stmt)
    }
    inside: dict[str, str] = {}
    made = map_nested_bodies(
        map_declared_variables(stmt, own.__getitem__),
        lambda body: _rename_body(_substitute_renamed(body, own), names, inside),
    )
    renamed |= inside
    if isinstance(made, tile.For) and made.distinct_by and made is not stmt:
        return replace(made, distinct_by=tuple(inside.get(name, name) for name in made.distinct_by))
    return made


def _rename_variable(var: tile.Var, names: UniqueNames, renamed: dict[str, str]) -> tile.Var:
    """Return the variable under a name that is free; record in `renamed` a name that changes."""
    name = names.take(var.name)
    if name == var.name:
        return var
    renamed[var.name] = name
    return replace(var, name=name)


def _substitute_renamed(body: tuple[tile.Stmt, ...], own: Mapping[tile.Var, tile.Var]) -> tuple[tile.Stmt, ...]:
    """Return a body with the variables that have new names in `own` replaced by these."""
    renamed_variables = {old: new for old, new in own.items() if old != new}
    return tuple(substitute_stmt(s, dict(renamed_variables)) for s in body) if renamed_variables else body
