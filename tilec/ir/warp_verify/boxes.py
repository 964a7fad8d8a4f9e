"""Boxes of TMA: their alignment in their tensors (rule 17 of `warp_verify.verify`), and that those which are stored or
reduced do not begin below 0 (rule 18).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from itertools import product
from math import gcd

from tilec.ir import tile, warp
from tilec.ir.expr import integer_range
from tilec.ir.types import INT32, DType
from tilec.ir.warp import Operation, Program
from tilec.ir.warp_nodes.walk import nested_bodies
from tilec.ir.warp_verify.effects import op_name
from tilec.support.records import dataclass

ROW_BYTES = 16
"""The alignment of a box's address in bytes (PTX ISA, "Bounding Box")."""
MAX_MODULUS = 4096
"""The largest modulus."""

Residues = frozenset[int]


def check_tma_boxes(program: Program) -> Iterator[str]:
    """Yield a message for each TMA copy whose box may begin off a multiple of 16 bytes of a row of its tensor (rule
    17)."""
    operations = list(program.operations())
    layouts = {shared.buffer.name: shared.layout for shared in program.shared}
    values = _ResidueAnalysis(find_definitions(operations))
    for op in operations:
        match op:
            case (
                warp.TmaLoad(map=tensor_map, start=start, destination=buffer)
                | warp.TmaStore(map=tensor_map, start=start, source=buffer)
            ):
                pass
            case _:
                continue
        size, layout = tensor_map.tensor.dtype.bytes, layouts[buffer.name]
        units = max(ROW_BYTES // size, 1)
        begin = values.possible_remainders(start[-1], units)
        if layout.shape[-1] > layout.panel:  # each panel is a box of its own
            begin = _add_residues(begin, _list_residues_of_multiples(layout.panel, units), units)
        if begin != {0}:
            behind, row = min(begin - {0}) * size, f"a row of {tensor_map.tensor.name}"
            yield (
                f"line {op.span.line}: {op_name(op)} of {buffer.name} may begin {behind} bytes behind a multiple "
                f"of {ROW_BYTES} in {row}"
            )


def _list_residues_of_multiples(of: int, modulus: int) -> Residues:
    """Return the remainders modulo `modulus` that multiples of `of` have."""
    return frozenset(range(0, modulus, gcd(of, modulus)))


def _add_residues(a: Residues, b: Residues, modulus: int) -> Residues:
    """Return the possible remainders of a sum modulo `modulus` from those of its two terms."""
    if len(a) == modulus or len(b) == modulus:
        return _list_residues_of_multiples(1, modulus)
    return frozenset((x + y) % modulus for x in a for y in b)


@dataclass(slots=True)
class _ResidueAnalysis:
    definitions: Definitions
    known: dict[tuple[tile.Expr, int], Residues] = field(default_factory=dict)

    def possible_remainders(self, expr: tile.Expr, modulus: int) -> Residues:
        """Return a superset of an expression's remainders modulo `modulus`, cached; all of them where `modulus` is over
        4096."""
        if modulus == 1:
            return frozenset({0})
        key = (expr, modulus)
        if key not in self.known:
            # While it is computed, for a variable that depends on itself.
            self.known[key] = _list_residues_of_multiples(1, modulus)
            if modulus <= MAX_MODULUS:
                self.known[key] = self._remainders_of_sum(expr, modulus)
        return self.known[key]

    def _remainders_of_sum(self, expr: tile.Expr, modulus: int) -> Residues:
        """Return the possible remainders of an expression modulo `modulus`, written as a sum and added term by term."""
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
        """Return the possible remainders of a term that is no sum, by its operator or definitions; all of them if
        unknown."""
        anything = _list_residues_of_multiples(1, modulus)
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
                whole = by <= MAX_MODULUS
                return frozenset(r % modulus for r in self.possible_remainders(a, by)) if whole else anything
            case (
                tile.Binary(op="bitand", a=a, b=tile.Const(value=int(mask)))
                | tile.Binary(op="bitand", a=tile.Const(value=int(mask)), b=a)
            ) if modulus & modulus - 1 == 0:
                return frozenset(r & mask % modulus for r in self.possible_remainders(a, modulus))
            case tile.Cast(a=a, dtype=dtype) if not dtype.is_float and not a.dtype.is_float:
                keeps = dtype.bits >= 32 and modulus & modulus - 1 == 0  # values wrap around at powers of two
                return self.possible_remainders(a, modulus) if keeps else anything
            case _:
                return anything

    def _remainders_of_quotient(self, expr: tile.Expr, by: int, modulus: int) -> Residues:
        """Return the possible remainders of ⌊expr / by⌋ modulo `modulus`; all of them where by · modulus is over
        4096."""
        if by * modulus > MAX_MODULUS:
            return _list_residues_of_multiples(1, modulus)
        return frozenset(r // by for r in self.possible_remainders(expr, by * modulus))

    def _remainders_of_definition(self, one: tile.Expr | Steps, modulus: int) -> Residues:
        """Return the possible remainders of one definition of a variable: an expression, or a loop's start plus
        steps."""
        if not isinstance(one, Steps):
            return self.possible_remainders(one, modulus)
        start = self.possible_remainders(one.start, modulus)
        return _add_residues(start, _list_residues_of_multiples(one.step, modulus), modulus)


@dataclass(frozen=True, slots=True)
class Steps:
    """The values of a loop's variable: `start`, then every `step`, below `stop`; with `following`, also that value."""

    start: tile.Expr
    stop: tile.Expr
    step: int
    following: tile.Expr | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """All definitions of each variable; several roles and copies of a loop's body may define the same one."""

    values: dict[tile.Var, list[tile.Expr | Steps]]

    def sum(self, expr: tile.Expr) -> tuple[dict[tile.Expr, int], int]:
        """Return an integer expression as a sum: factors by term, and a constant; variables with an `_only_value` are
        replaced.
        """
        terms: dict[tile.Expr, int] = {}
        constant = self._collect_terms(expr, 1, terms)
        return {atom: factor for atom, factor in terms.items() if factor}, constant

    def _collect_terms(self, expr: tile.Expr, factor: int, terms: dict[tile.Expr, int]) -> int:
        """Add `factor` times the non-constant terms of an expression to `terms`, and return `factor` times its
        constant."""
        match expr:
            case tile.Const(value=value) if isinstance(value, int):
                return factor * value
            case tile.Binary(op="add", a=a, b=b):
                return self._collect_terms(a, factor, terms) + self._collect_terms(b, factor, terms)
            case tile.Binary(op="sub", a=a, b=b):
                return self._collect_terms(a, factor, terms) + self._collect_terms(b, -factor, terms)
            case tile.Unary(op="neg", a=a):
                return self._collect_terms(a, -factor, terms)
            case (
                tile.Binary(op="mul", a=a, b=tile.Const(value=int(by)))
                | tile.Binary(op="mul", a=tile.Const(value=int(by)), b=a)
            ):
                return self._collect_terms(a, factor * by, terms)
            case tile.Binary(op="shl", a=a, b=tile.Const(value=int(by))) if 0 <= by < 32:
                return self._collect_terms(a, factor << by, terms)
            case tile.Var() if (only := self._only_value(expr)) is not None:
                return self._collect_terms(only, factor, terms)
            case _:
                terms[expr] = terms.get(expr, 0) + factor
                return 0

    def _only_value(self, var: tile.Var) -> tile.Expr | None:
        """Return the value of a variable with a single definition, not a loop, that reads no memory nor the variable;
        else None."""
        found = self.values.get(var, [])
        if len(found) != 1 or isinstance(found[0], Steps):
            return None
        parts = tuple(tile.walk_expr(found[0]))
        return None if var in parts or any(isinstance(part, tile.Load) for part in parts) else found[0]


def find_definitions(operations: Iterable[warp.Operation]) -> Definitions:
    """Return every value that some `Let` or loop among these operations gives each variable."""
    found: dict[tile.Var, list[tile.Expr | Steps]] = {}
    for op in operations:
        match op:
            case warp.Let(var=var, value=value):
                found.setdefault(var, []).append(value)
            case warp.Loop(var=var, start=start, stop=stop, step=step, following=None):
                found.setdefault(var, []).append(Steps(start, stop, step))
            case warp.Loop(var=var, start=start, stop=stop, following=warp.NextIteration(value=following)):
                found.setdefault(var, []).append(Steps(start, stop, 1, following))
            case _:
                pass
    return Definitions(found)


Bounds = tuple[float, float]
"""The least and the largest value, both inclusive."""
UNBOUNDED: Bounds = (-math.inf, math.inf)


def check_box_starts(program: Program) -> Iterator[str]:
    """Yield a message for each TMA store whose box is not proven to begin at 0 or above in each dimension (rule 18).
    Elements above a tensor are not written; a box that begins below it makes the whole store undefined (PTX ISA,
    cp.async.bulk.tensor). The four rows of a scatter are not checked.
    """
    found = _StoreCollector()
    for role in program.all_roles:
        found.collect(role.body, {}, ())
    values = _BoundsAnalysis(Definitions(found.definitions), _find_known_bounds(program))
    for op, starts, conditions in found.stores:
        tensor = op.map.tensor.name
        for dimension, start in enumerate(starts):
            if op.four is not None and dimension < len(starts) - 1:
                continue  # code generation moves each of the four rows that is negative out of the tensor
            if not values.is_never_negative(start, conditions):
                where = f"below 0 in dimension {dimension} of {tensor}"
                yield f"line {op.span.line}: {op_name(op)} of {op.source.name} may begin {where}"


@dataclass(slots=True)
class _StoreCollector:
    """The TMA stores, with their first indices and the conditions that hold there. Each definition of a variable gets a
    name of its own, because copies of a loop's body define it again."""

    stores: list[tuple[warp.TmaStore, tuple[tile.Expr, ...], tuple[tile.Expr, ...]]] = field(default_factory=list)
    definitions: dict[tile.Var, list[tile.Expr | Steps]] = field(default_factory=dict)

    def collect(
        self, body: tuple[Operation, ...], names: dict[tile.Var, tile.Expr], conditions: tuple[tile.Expr, ...]
    ) -> dict[tile.Var, tile.Expr]:
        """Record the TMA stores and definitions in a body, whose variables have the names `names`; return the names at
        its end. `conditions` are those that hold there."""
        for op in body:
            match op:
                case warp.TmaStore(start=starts):
                    starts = tuple(tile.substitute_variables(start, names) for start in starts)
                    self.stores.append((op, starts, conditions))
                case warp.Let(var=var, value=value):
                    value = tile.substitute_variables(value, names)
                    names = self._named(var, names)
                    self._define(var, names, value)
                case warp.Loop(var=var, start=start, stop=stop, step=step, following=following):
                    start, stop = tile.substitute_variables(start, names), tile.substitute_variables(stop, names)
                    inside = self._named(var, names)
                    for inner in op.bodies:
                        end = self.collect(inner, inside, conditions)
                    goes_on = None if following is None else end.get(following.value, following.value)
                    self._define(var, inside, Steps(start, stop, step, goes_on))
                case warp.Branch(condition=condition, then=then, orelse=orelse):
                    self.collect(then, names, (*conditions, tile.substitute_variables(condition, names)))
                    self.collect(orelse, names, conditions)
                case _:
                    for inner in nested_bodies(op):
                        self.collect(inner, names, conditions)
        return names

    def _named(self, var: tile.Var, names: dict[tile.Var, tile.Expr]) -> dict[tile.Var, tile.Expr]:
        """Return the names with `var` mapped to a new, unique variable for this definition."""
        new = replace(var, name=f"{var.name}@{len(self.definitions)}")
        self.definitions[new] = []
        return {**names, var: new}

    def _define(self, var: tile.Var, names: dict[tile.Var, tile.Expr], value: tile.Expr | Steps) -> None:
        """Record a value as the only definition of a variable's current name."""
        new = names[var]
        assert isinstance(new, tile.Var)
        self.definitions[new] = [value]


def _find_known_bounds(program: Program) -> dict[tile.Var, Bounds]:
    """Return the bounds of variables with values from the launch: block and thread indices, sizes of tensors and
    grid."""
    extents = [extent for p in program.params if isinstance(p, tile.Buffer) for extent in p.extents]
    known = {extent: (0.0, math.inf) for extent in (*extents, *program.grid) if isinstance(extent, tile.Var)}
    known |= dict.fromkeys((tile.CLUSTER_RANK, tile.WARPGROUP, tile.BLOCK_WARP), (0.0, math.inf))
    known[tile.THREAD] = (0, program.threads - 1)
    for var, blocks in zip(program.block_vars, program.grid, strict=False):
        known[var] = (0, blocks - 1 if isinstance(blocks, int) else math.inf)
    return known


@dataclass(slots=True)
class _BoundsAnalysis:
    definitions: Definitions
    known: dict[tile.Var, Bounds]
    found: dict[tile.Expr, Bounds] = field(default_factory=dict)

    def is_never_negative(self, expr: tile.Expr, conditions: tuple[tile.Expr, ...]) -> bool:
        """Return whether an expression's lower bound is proven to be 0 or more, possibly with the help of a condition.
        A multiple of a sum that the condition keeps from being negative is subtracted first."""
        if self.find_bounds(expr)[0] >= 0:
            return True
        terms, constant = self.definitions.sum(expr)
        for condition in conditions:
            positive, positive_constant = self._never_negative_sum(condition)
            for atom, factor in positive.items():
                times, rest = divmod(terms.get(atom, 0), factor)
                if times > 0 and not rest:
                    left = {a: terms.get(a, 0) - times * positive.get(a, 0) for a in {**terms, **positive}}
                    if self._bound_sum(left, constant - times * positive_constant, INT32)[0] >= 0:
                        return True
        return False

    def _never_negative_sum(self, condition: tile.Expr) -> tuple[dict[tile.Expr, int], int]:
        """Return terms and constant of a sum that is 0 or more where an int32 ordering holds; for other conditions the
        sum 0. So it does for a condition that reads memory.
        """
        if _reads_memory(condition):
            return {}, 0
        match condition:
            case tile.Binary(op="le", a=a, b=b) | tile.Binary(op="ge", a=b, b=a) if a.dtype == INT32:
                return self.definitions.sum(tile.Binary("sub", b, a, INT32))
            case tile.Binary(op="lt", a=a, b=b) | tile.Binary(op="gt", a=b, b=a) if a.dtype == INT32:
                terms, constant = self.definitions.sum(tile.Binary("sub", b, a, INT32))
                return terms, constant - 1
            case _:
                return {}, 0

    def find_bounds(self, expr: tile.Expr) -> Bounds:
        """Return inclusive bounds on the values of an expression, from a cache; unbounded for one that depends on
        itself."""
        if expr not in self.found:
            self.found[expr] = UNBOUNDED  # of a variable that is made of itself
            terms, constant = self.definitions.sum(expr)
            self.found[expr] = (
                self._bound_atom(expr) if terms == {expr: 1} else self._bound_sum(terms, constant, expr.dtype)
            )
        return self.found[expr]

    def _bound_sum(self, terms: dict[tile.Expr, int], constant: int, dtype: DType) -> Bounds:
        """Return the bounds of a sum: each term's bounds times its factor, plus the constant, taken as those of a
        `dtype` result. So they are wrapped into the type, unless it is int32 index arithmetic.
        """
        low: float = constant
        high: float = constant
        for atom, factor in terms.items():
            if factor:
                ends = [factor * end for end in self.find_bounds(atom)]
                low, high = low + min(ends), high + max(ends)
        return _bound_result((low, high), dtype, any(map(_reads_memory, terms)))

    def _bound_atom(self, expr: tile.Expr) -> Bounds:
        """Return the bounds of a term that is no sum, by its operator; those of its type where the operator is
        unknown."""
        match expr:
            case tile.Var():
                return self._bound_variable(expr)
            case tile.Binary(op="min" | "max" as op, a=a, b=b):
                least, largest = zip(self.find_bounds(a), self.find_bounds(b), strict=True)
                return (min(least), min(largest)) if op == "min" else (max(least), max(largest))
            case tile.Select(then=a, orelse=b):
                return _unite_bounds(self.find_bounds(a), self.find_bounds(b))
            case tile.Binary(op="mul", a=a, b=b):
                corners = [x * y if x and y else 0 for x, y in product(self.find_bounds(a), self.find_bounds(b))]
                return _bound_result((min(corners), max(corners)), expr.dtype, _reads_memory(expr))
            case tile.Binary(op="shr", a=a, b=tile.Const(value=int(by))) if by > 0:
                return _bound_quotient(self.find_bounds(a), (1 << by, 1 << by))
            case tile.Binary(op="floordiv", a=a, b=b) if self.find_bounds(b)[0] > 0:
                return _bound_quotient(self.find_bounds(a), self.find_bounds(b))
            case tile.Binary(op="floormod", a=a, b=b) if self.find_bounds(b)[0] > 0:
                return _bound_remainder(self.find_bounds(a), self.find_bounds(b))
            case tile.Binary(op="bitand", a=a, b=b):
                most = [high for low, high in (self.find_bounds(a), self.find_bounds(b)) if low >= 0]
                return (0, min(most)) if most else _bound_type(expr)
            case tile.Cast(a=a, dtype=dtype) if not a.dtype.is_float and not dtype.is_float:
                return _wrap_bounds(self.find_bounds(a), dtype)
            case tile.Call(fn=function) if function.startswith("clc_get_first_ctaid"):
                return (0, math.inf)  # a block's index
            case _:
                return _bound_type(expr)

    def _bound_variable(self, var: tile.Var) -> Bounds:
        """Return the bounds of a variable over all its definitions; without any, the launch's or its type's."""
        found = [self._bound_definition(one) for one in self.definitions.values.get(var, ())]
        return _unite_bounds(*found) if found else self.known.get(var, _bound_type(var))

    def _bound_definition(self, one: tile.Expr | Steps) -> Bounds:
        """Return the bounds of one definition of a variable: an expression's, or a loop's from its start to below its
        stop."""
        if not isinstance(one, Steps):
            return self.find_bounds(one)
        (least, largest), (lowest, highest) = self.find_bounds(one.start), self.find_bounds(one.stop)
        if one.step < 0:
            return lowest + 1, largest
        if one.following is not None:
            least = min(least, self.find_bounds(one.following)[0])
        return least, highest - 1


def _reads_memory(expr: tile.Expr) -> bool:
    """Return whether an expression loads an element of memory."""
    return any(isinstance(part, tile.Load) for part in tile.walk_expr(expr))


def _unite_bounds(*all_bounds: Bounds) -> Bounds:
    """Return the smallest bounds that contain all of these."""
    return min(low for low, _ in all_bounds), max(high for _, high in all_bounds)


def _bound_quotient(dividend: Bounds, divisor: Bounds) -> Bounds:
    """Return the bounds of a quotient rounded down, for a positive divisor. The least dividend is divided by the
    largest divisor, unless it is negative; the largest dividend the other way round."""
    (low, high), (least, largest) = dividend, divisor
    by_low, by_high = (largest if low >= 0 else least), (least if high >= 0 else largest)
    return _divide_down(low, by_low), _divide_down(high, by_high)


def _bound_remainder(dividend: Bounds, divisor: Bounds) -> Bounds:
    """Return the bounds of `dividend % divisor` for a positive divisor: the dividend's, if they are always below it."""
    return dividend if dividend[0] >= 0 and dividend[1] < divisor[0] else (0, divisor[1] - 1)


def _divide_down(number: float, by: float) -> float:
    """Return the quotient rounded down, of numbers that may be infinite; −1 or 0 for a finite one by infinity."""
    if math.isinf(number):
        return number
    if math.isinf(by):
        return 0 if number >= 0 else -1
    return number // by


def _bound_result(bounds: Bounds, dtype: DType, of_memory: bool) -> Bounds:
    """Return the bounds as they are for int32 index arithmetic, which does not overflow; else wrapped into the type.
    What is made of elements of memory may overflow."""
    return bounds if dtype == INT32 and not of_memory else _wrap_bounds(bounds, dtype)


def _wrap_bounds(bounds: Bounds, dtype: DType) -> Bounds:
    """Return the bounds if an integer type holds both, else the type's whole range; unchanged for other types."""
    if dtype.kind not in ("int", "uint"):
        return bounds
    low, high = integer_range(dtype)
    return bounds if low <= bounds[0] and bounds[1] <= high else (low, high)


def _bound_type(expr: tile.Expr) -> Bounds:
    """Return the bounds of all values of an expression's type; unbounded for floats."""
    if expr.dtype.kind == "bool":
        return (0, 1)
    return integer_range(expr.dtype) if expr.dtype.kind in ("int", "uint") else UNBOUNDED
