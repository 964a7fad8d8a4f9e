"""The alignment of TMA's boxes in their tensors: rule 17 of `ir.warp_verify`. Coordinates are tracked by residues: the
possible remainders of a value modulo a small number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from math import gcd

from tilec.ir import tile, warp
from tilec.ir.warp import Operation, Program
from tilec.ir.warp.walk import walk
from tilec.ir.warp_effects import name_of
from tilec.support.records import dataclass

ROW_BYTES = 16
"""The alignment of a box's address in bytes (PTX ISA, "Bounding Box")."""
MOST = 4096
"""The largest modulus."""

Remainders = frozenset[int]


def boxes(program: Program) -> Iterator[str]:
    """Yield violations of rule 17."""
    operations = [*program.operations(), *(walk(program.common.body) if program.common is not None else ())]
    layouts = {shared.buffer.name: shared.layout for shared in program.shared}
    values = _Values(_definitions(operations))
    for op in operations:
        match op:
            case warp.TmaLoad(map=tensor_map, start=start, destination=buffer):
                pass
            case warp.TmaStore(map=tensor_map, start=start, source=buffer):
                pass
            case _:
                continue
        size, layout = tensor_map.tensor.dtype.bytes, layouts[buffer.name]
        units = max(ROW_BYTES // size, 1)
        begin = values.remainders(start[-1], units)
        if layout.shape[-1] > layout.panel:  # each panel is a box of its own
            begin = _sums(begin, _multiples(layout.panel, units), units)
        if begin != {0}:
            behind, row = min(begin - {0}) * size, f"a row of {tensor_map.tensor.name}"
            yield (
                f"line {op.span.line}: {name_of(op)} of {buffer.name} may begin {behind} bytes behind a multiple "
                f"of {ROW_BYTES} in {row}"
            )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The values of a loop's variable: `start`, then every `step`."""

    start: tile.Expr
    step: int


def _definitions(operations: list[Operation]) -> dict[tile.Var, list[tile.Expr | _Steps]]:
    """Return everything that defines each variable; several roles and copies of a loop's body may define the same
    one."""
    found: dict[tile.Var, list[tile.Expr | _Steps]] = {}
    for op in operations:
        match op:
            case warp.Let(var=var, value=value):
                found.setdefault(var, []).append(value)
            case warp.Loop(var=var, start=start, step=step, following=following):
                found.setdefault(var, []).append(_Steps(start, 1 if following else step))
            case _:
                pass
    return found


def _multiples(of: int, modulus: int) -> Remainders:
    return frozenset(range(0, modulus, gcd(of, modulus)))


def _sums(a: Remainders, b: Remainders, modulus: int) -> Remainders:
    if len(a) == modulus or len(b) == modulus:
        return _multiples(1, modulus)
    return frozenset((x + y) % modulus for x in a for y in b)


@dataclass(slots=True)
class _Values:
    definitions: dict[tile.Var, list[tile.Expr | _Steps]]
    known: dict[tuple[tile.Expr, int], Remainders] = field(default_factory=dict)

    def remainders(self, expr: tile.Expr, modulus: int) -> Remainders:
        """Return the possible remainders of the expression modulo `modulus`."""
        if modulus == 1:
            return frozenset({0})
        key = (expr, modulus)
        if key not in self.known:
            self.known[key] = _multiples(1, modulus)  # while it is computed: for a variable that depends on itself
            self.known[key] = self._sum(expr, modulus) if modulus <= MOST else _multiples(1, modulus)
        return self.known[key]

    def _sum(self, expr: tile.Expr, modulus: int) -> Remainders:
        terms: dict[tile.Expr, int] = {}
        total = frozenset({self._collect(expr, 1, terms) % modulus})
        for atom, factor in terms.items():
            common = gcd(factor, modulus)
            if common < modulus:
                # Atoms that differ by modulus / common give the same.
                scaled = frozenset(factor * r % modulus for r in self._atom(atom, modulus // common))
                total = _sums(total, scaled, modulus)
        return total

    def _collect(self, expr: tile.Expr, factor: int, terms: dict[tile.Expr, int]) -> int:
        """Add `factor` times the expression's terms to `terms`; return its constant part."""
        match expr:
            case tile.Const(value=value) if isinstance(value, int):
                return factor * value
            case tile.Binary(op="add", a=a, b=b):
                return self._collect(a, factor, terms) + self._collect(b, factor, terms)
            case tile.Binary(op="sub", a=a, b=b):
                return self._collect(a, factor, terms) + self._collect(b, -factor, terms)
            case tile.Unary(op="neg", a=a):
                return self._collect(a, -factor, terms)
            case (
                tile.Binary(op="mul", a=a, b=tile.Const(value=int(by)))
                | tile.Binary(op="mul", a=tile.Const(value=int(by)), b=a)
            ):
                return self._collect(a, factor * by, terms)
            case tile.Binary(op="shl", a=a, b=tile.Const(value=int(by))) if 0 <= by < 32:
                return self._collect(a, factor << by, terms)
            case tile.Var() if (only := self._only_value(expr)) is not None:
                return self._collect(only, factor, terms)
            case _:
                terms[expr] = terms.get(expr, 0) + factor
                return 0

    def _only_value(self, var: tile.Var) -> tile.Expr | None:
        found = self.definitions.get(var, [])
        if len(found) != 1 or isinstance(found[0], _Steps) or var in tile.walk_expr(found[0]):
            return None
        return found[0]

    def _atom(self, expr: tile.Expr, modulus: int) -> Remainders:
        anything = _multiples(1, modulus)
        match expr:
            case tile.Var():
                found = [self._defined(one, modulus) for one in self.definitions.get(expr, ())]
                return frozenset().union(*found) if found else anything
            case tile.Binary(op="min" | "max", a=a, b=b) | tile.Select(then=a, orelse=b):
                return self.remainders(a, modulus) | self.remainders(b, modulus)
            case tile.Binary(op="mul", a=a, b=b):
                left, right = self.remainders(a, modulus), self.remainders(b, modulus)
                return frozenset(x * y % modulus for x in left for y in right)
            case tile.Binary(op="floordiv", a=a, b=tile.Const(value=int(by))) if by > 0:
                return self._quotients(a, by, modulus)
            case tile.Binary(op="shr", a=a, b=tile.Const(value=int(by))) if 0 <= by < 32:
                return self._quotients(a, 1 << by, modulus)
            case tile.Binary(op="floormod", a=a, b=tile.Const(value=int(by))) if by > 0:
                if by % modulus == 0:
                    return self.remainders(a, modulus)
                return frozenset(r % modulus for r in self.remainders(a, by)) if by <= MOST else anything
            case (
                tile.Binary(op="bitand", a=a, b=tile.Const(value=int(mask)))
                | tile.Binary(op="bitand", a=tile.Const(value=int(mask)), b=a)
            ) if modulus & modulus - 1 == 0:
                return frozenset(r & mask % modulus for r in self.remainders(a, modulus))
            case tile.Cast(a=a, dtype=dtype) if not dtype.is_float and not a.dtype.is_float:
                # Values wrap around at powers of two.
                return self.remainders(a, modulus) if dtype.bits >= 32 and modulus & modulus - 1 == 0 else anything
            case _:
                return anything

    def _quotients(self, expr: tile.Expr, by: int, modulus: int) -> Remainders:
        if by * modulus > MOST:
            return _multiples(1, modulus)
        return frozenset(r // by for r in self.remainders(expr, by * modulus))

    def _defined(self, one: tile.Expr | _Steps, modulus: int) -> Remainders:
        if not isinstance(one, _Steps):
            return self.remainders(one, modulus)
        return _sums(self.remainders(one.start, modulus), _multiples(one.step, modulus), modulus)
