"""The alignment of TMA's boxes in their tensors: rule 17 of `ir.warp_verify`. Coordinates are tracked by residues: the
possible remainders of a value modulo a small number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from math import gcd

from tilec.ir import tile, warp
from tilec.ir.warp import Program
from tilec.ir.warp.walk import walk_operations
from tilec.ir.warp_effects import op_name
from tilec.ir.warp_values import Definitions, Steps, find_definitions
from tilec.support.records import dataclass

ROW_BYTES = 16
"""The alignment of a box's address in bytes (PTX ISA, "Bounding Box")."""
MAX_MODULUS = 4096
"""The largest modulus."""

Residues = frozenset[int]


def check_tma_boxes(program: Program) -> Iterator[str]:
    """Yield violations of rule 17."""
    operations = [*program.operations(), *(walk_operations(program.common.body) if program.common is not None else ())]
    layouts = {shared.buffer.name: shared.layout for shared in program.shared}
    values = _ResidueAnalysis(find_definitions(operations))
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
        begin = values.possible_remainders(start[-1], units)
        if layout.shape[-1] > layout.panel:  # each panel is a box of its own
            begin = _add_residues(begin, _residues_of_multiples(layout.panel, units), units)
        if begin != {0}:
            behind, row = min(begin - {0}) * size, f"a row of {tensor_map.tensor.name}"
            yield (
                f"line {op.span.line}: {op_name(op)} of {buffer.name} may begin {behind} bytes behind a multiple "
                f"of {ROW_BYTES} in {row}"
            )


def _residues_of_multiples(of: int, modulus: int) -> Residues:
    return frozenset(range(0, modulus, gcd(of, modulus)))


def _add_residues(a: Residues, b: Residues, modulus: int) -> Residues:
    if len(a) == modulus or len(b) == modulus:
        return _residues_of_multiples(1, modulus)
    return frozenset((x + y) % modulus for x in a for y in b)


@dataclass(slots=True)
class _ResidueAnalysis:
    definitions: Definitions
    known: dict[tuple[tile.Expr, int], Residues] = field(default_factory=dict)

    def possible_remainders(self, expr: tile.Expr, modulus: int) -> Residues:
        """Return the possible remainders of the expression modulo `modulus`."""
        if modulus == 1:
            return frozenset({0})
        key = (expr, modulus)
        if key not in self.known:
            self.known[key] = _residues_of_multiples(
                1, modulus
            )  # while it is computed: for a variable that depends on itself
            self.known[key] = (
                self._remainders_of_sum(expr, modulus) if modulus <= MAX_MODULUS else _residues_of_multiples(1, modulus)
            )
        return self.known[key]

    def _remainders_of_sum(self, expr: tile.Expr, modulus: int) -> Residues:
        terms, constant = self.definitions.sum(expr)
        total = frozenset({constant % modulus})
        for atom, factor in terms.items():
            common = gcd(factor, modulus)
            if common < modulus:
                # Atoms that differ by modulus / common give the same.
                scaled = frozenset(factor * r % modulus for r in self._remainders_of_atom(atom, modulus // common))
                total = _add_residues(total, scaled, modulus)
        return total

    def _remainders_of_atom(self, expr: tile.Expr, modulus: int) -> Residues:
        anything = _residues_of_multiples(1, modulus)
        match expr:
            case tile.Var():
                found = [self._remainders_of_definition(one, modulus) for one in self.definitions.values.get(expr, ())]
                return frozenset().union(*found) if found else anything
            case tile.Binary(op="min" | "max", a=a, b=b) | tile.Select(then=a, orelse=b):
                return self.possible_remainders(a, modulus) | self.possible_remainders(b, modulus)
            case tile.Binary(op="mul", a=a, b=b):
                left, right = self.possible_remainders(a, modulus), self.possible_remainders(b, modulus)
                return frozenset(x * y % modulus for x in left for y in right)
            case tile.Binary(op="floordiv", a=a, b=tile.Const(value=int(by))) if by > 0:
                return self._remainders_of_quotient(a, by, modulus)
            case tile.Binary(op="shr", a=a, b=tile.Const(value=int(by))) if 0 <= by < 32:
                return self._remainders_of_quotient(a, 1 << by, modulus)
            case tile.Binary(op="floormod", a=a, b=tile.Const(value=int(by))) if by > 0:
                if by % modulus == 0:
                    return self.possible_remainders(a, modulus)
                return (
                    frozenset(r % modulus for r in self.possible_remainders(a, by)) if by <= MAX_MODULUS else anything
                )
            case (
                tile.Binary(op="bitand", a=a, b=tile.Const(value=int(mask)))
                | tile.Binary(op="bitand", a=tile.Const(value=int(mask)), b=a)
            ) if modulus & modulus - 1 == 0:
                return frozenset(r & mask % modulus for r in self.possible_remainders(a, modulus))
            case tile.Cast(a=a, dtype=dtype) if not dtype.is_float and not a.dtype.is_float:
                # Values wrap around at powers of two.
                return (
                    self.possible_remainders(a, modulus)
                    if dtype.bits >= 32 and modulus & modulus - 1 == 0
                    else anything
                )
            case _:
                return anything

    def _remainders_of_quotient(self, expr: tile.Expr, by: int, modulus: int) -> Residues:
        if by * modulus > MAX_MODULUS:
            return _residues_of_multiples(1, modulus)
        return frozenset(r // by for r in self.possible_remainders(expr, by * modulus))

    def _remainders_of_definition(self, one: tile.Expr | Steps, modulus: int) -> Residues:
        if not isinstance(one, Steps):
            return self.possible_remainders(one, modulus)
        return _add_residues(
            self.possible_remainders(one.start, modulus), _residues_of_multiples(one.step, modulus), modulus
        )
