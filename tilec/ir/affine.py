"""Integer expressions as sums: coefficients of atoms plus a constant, and the interval an expression stays in.

Index arithmetic, int32 made of variables, is taken not to overflow: a quotient of such a sum may be one of its terms.
What is made of elements of a tensor wraps around, as the machine does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from tilec.ir import tile
from tilec.ir.expr import integer_range
from tilec.ir.types import INT32, DType
from tilec.support.records import dataclass

Interval = tuple[float, float]
UNKNOWN: Interval = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + Σ coefficient · atom; atoms are variables and what is not affine, in order of appearance."""

    terms: tuple[tuple[tile.Expr, int], ...]
    constant: int

    @property
    def divisor(self) -> int:
        """Return the largest integer known to divide the sum whatever its atoms are; 0 for the constant 0."""
        return math.gcd(self.constant, *(c for _, c in self.terms))

    def without_constant(self) -> tile.Expr:
        """Return the sum of the terms without the constant, as an int32 expression with constants folded."""
        total: tile.Expr = tile.int32_const(0)
        for atom, coefficient in self.terms:
            total = add_exprs(total, scale_expr(atom, coefficient))
        return total


@lru_cache(maxsize=1 << 14)
def affine_form(expr: tile.Expr) -> Affine:
    """Return an integer expression as atoms with coefficients plus a constant; a part that is not affine becomes an
    atom. Cached: dividends stand in many addresses."""
    terms: dict[tile.Expr, int] = {}
    constant = _collect_terms(expr, 1, terms)
    return Affine(tuple((a, c) for a, c in terms.items() if c), constant)


def _collect_terms(expr: tile.Expr, factor: int, terms: dict[tile.Expr, int]) -> int:
    """Add `factor` times the non-constant terms of an expression to `terms`, and return `factor` times its constant."""
    match expr:
        case tile.Const(value=value):
            return factor * int(value)
        case tile.Unary(op="neg", a=a):
            return _collect_terms(a, -factor, terms)
        case tile.Binary(op="add", a=a, b=b):
            return _collect_terms(a, factor, terms) + _collect_terms(b, factor, terms)
        case tile.Binary(op="sub", a=a, b=b):
            return _collect_terms(a, factor, terms) + _collect_terms(b, -factor, terms)
        case (
            tile.Binary(op="mul", a=a, b=tile.Const(value=value))
            | tile.Binary(op="mul", a=tile.Const(value=value), b=a)
        ):
            return _collect_terms(a, factor * int(value), terms)
        case tile.Binary(op="floordiv" | "floormod", a=a, b=tile.Const(value=value), dtype=dtype) if (
            dtype == INT32 and value > 0 and not reads_elements(a)
        ):
            return _collect_quotient(expr, affine_form(a), int(value), factor, terms)
        case _:
            terms[expr] = terms.get(expr, 0) + factor
            return 0


@lru_cache(maxsize=1 << 14)
def reads_elements(expr: tile.Expr) -> bool:
    """Return whether an expression reads an element of a tensor or a tile."""
    return any(isinstance(part, tile.Load) for part in tile.walk_expr(expr))


def _collect_quotient(expr: tile.Binary, form: Affine, by: int, factor: int, terms: dict[tile.Expr, int]) -> int:
    """Add `factor` times the terms of `form // by` or `form % by`, whichever `expr` is, to `terms`; return its constant
    part. Of (Σ cᵢ·xᵢ + c) // d, a term whose cᵢ is a multiple of d comes out of the quotient; of … % d it vanishes. The
    rest is divided by its greatest common divisor with d."""
    is_quotient = expr.op == "floordiv"
    constant = form.constant // by if is_quotient else 0
    if is_quotient:
        for atom, coefficient in form.terms:
            if coefficient % by == 0:
                terms[atom] = terms.get(atom, 0) + factor * (coefficient // by)
    rest = [(atom, coefficient) for atom, coefficient in form.terms if coefficient % by]
    if not rest:
        return factor * (constant if is_quotient else form.constant % by)
    common = math.gcd(by, *(coefficient for _, coefficient in rest))
    inner, left = divmod(form.constant % by, common)
    smaller = Affine(tuple((atom, coefficient // common) for atom, coefficient in rest), inner)
    if smaller != form or not _has_atoms_inside(form, expr.a):
        dividend = add_exprs(smaller.without_constant(), tile.int32_const(inner))
        expr = tile.Binary(expr.op, dividend, tile.int32_const(by // common), INT32)
    terms[expr] = terms.get(expr, 0) + (factor if is_quotient else factor * common)
    return factor * (constant if is_quotient else left)


def _has_atoms_inside(form: Affine, expr: tile.Expr) -> bool:
    """Return whether all atoms of a form are parts of an expression, not simpler quotients than stand in it."""
    inside = set(tile.walk_expr(expr))
    return all(atom in inside for atom, _ in form.terms)


def join_quotients(terms: dict[tile.Expr, int]) -> int:
    """Replace each x % d and x // d in `terms`, whose coefficients are c and c · d, by c times the terms of x, and
    return what this adds to the constant. So indices into which a number has been divided add up to it again."""
    quotients = {_quotient_key(atom): atom for atom in terms if _is_quotient(atom)}
    for rest, coefficient in terms.items():
        if not _is_quotient(rest) or not isinstance(rest, tile.Binary) or not isinstance(rest.b, tile.Const):
            continue
        by = int(rest.b.value)
        if rest.op != "floormod" or by <= 0 or reads_elements(rest.a):
            continue
        wanted = affine_form(_divide_again(rest.a, by))
        atom = quotients.get(_quotient_key(wanted.terms[0][0])) if len(wanted.terms) == 1 else None
        if atom is not None and wanted.terms[0][1] == 1 and terms[atom] == coefficient * by:
            del terms[rest], terms[atom]
            constant = _collect_terms(rest.a, coefficient, terms) - coefficient * by * wanted.constant
            return constant + join_quotients(terms)
    return 0


def _quotient_key(expr: tile.Expr) -> object:
    """Return what equal quotients or remainders have in common, however their dividends are written."""
    if not isinstance(expr, tile.Binary) or not _is_quotient(expr):
        return expr
    form = affine_form(expr.a)
    return expr.op, expr.b, frozenset(form.terms), form.constant


def _divide_again(a: tile.Expr, by: int) -> tile.Expr:
    """Return a // by; as one division of x where a is x // d, with a constant added or not."""
    form = affine_form(a)
    match form.terms:
        case ((tile.Binary(op="floordiv", a=x, b=tile.Const(value=value), dtype=dtype), 1),) if dtype == INT32:
            a, by = add_exprs(x, tile.int32_const(form.constant * int(value))), by * int(value)
    return tile.Binary("floordiv", a, tile.int32_const(by), INT32)


def resolve_quotients(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> tile.Expr:
    """Return an index with those quotients and remainders resolved that its variables' ranges decide; itself if none
    is: of (x + 8) // 16 and (x + 8) % 16 for 0 ≤ x < 8, 0 and x + 8.
    """
    if not any(_is_quotient(part) for part in tile.walk_expr(expr)):
        return expr
    form = affine_form(expr)
    resolved = [(_resolve_quotient(atom, ranges), coefficient) for atom, coefficient in form.terms]
    if all(simple is atom for (simple, _), (atom, _) in zip(resolved, form.terms, strict=True)):
        return expr
    total: tile.Expr = tile.int32_const(0)
    for simple, coefficient in resolved:
        total = add_exprs(total, tile.Binary("mul", simple, tile.int32_const(coefficient), INT32))
    found = affine_form(total)
    return add_exprs(found.without_constant(), tile.int32_const(found.constant + form.constant))


def _is_quotient(expr: tile.Expr) -> bool:
    return isinstance(expr, tile.Binary) and expr.op in ("floordiv", "floormod") and expr.dtype == INT32


def _resolve_quotient(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> tile.Expr:
    """Return the value of a quotient or remainder by a constant whose dividend stays between two multiples of it; the
    expression itself if that is not known.
    """
    match expr:
        case tile.Binary(op="floordiv" | "floormod" as op, a=a, b=tile.Const(value=value), dtype=dtype) if (
            dtype == INT32 and value > 0 and not reads_elements(a)
        ):
            form = affine_form(a)
            low, high = value_interval(form.without_constant(), ranges)
            whole, rest = divmod(form.constant, int(value))
            if low < 0 or rest + high >= value:
                return expr
            return (
                tile.int32_const(whole)
                if op == "floordiv"
                else add_exprs(form.without_constant(), tile.int32_const(rest))
            )
        case _:
            return expr


def known_divisor(extent: tile.Extent) -> int:
    """Return the largest integer known to divide a size: a number itself, or the divisor of an expression's affine
    form."""
    return extent if isinstance(extent, int) else affine_form(extent).divisor


def row_divisor(tensor: tile.Buffer) -> int:
    """Return the largest number of elements known to divide a tensor's last extent and all its row strides, where
    given."""
    row_steps = (known_divisor(stride) for stride in (tensor.strides or ())[:-1])
    return math.gcd(known_divisor(tensor.extents[-1]), *row_steps)


def add_exprs(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    """Return the int32 expression a + b: a zero dropped, two constants folded, a negative constant subtracted."""
    if isinstance(b, tile.Const) and b.value == 0:
        return a
    if isinstance(a, tile.Const):
        if a.value == 0:
            return b
        if isinstance(b, tile.Const):
            return tile.int32_const(int(a.value) + int(b.value))
    if isinstance(b, tile.Const) and b.value < 0:
        return tile.Binary("sub", a, tile.int32_const(-int(b.value)), INT32)
    return tile.Binary("add", a, b, INT32)


def scale_expr(a: tile.Expr, factor: int) -> tile.Expr:
    """Return the int32 expression a · factor: a constant multiplied out, `a` itself for the factor 1."""
    if isinstance(a, tile.Const):
        return tile.int32_const(int(a.value) * factor)
    return a if factor == 1 else tile.Binary("mul", a, tile.int32_const(factor), INT32)


def value_interval(expr: tile.Expr, ranges: Mapping[tile.Var, Interval]) -> Interval:
    """Return inclusive bounds on an integer expression's value from its variables' bounds; `UNKNOWN` where none are
    found."""
    match expr:
        case tile.Const(value=value):
            return (value, value)
        case tile.Var():
            return ranges.get(expr, UNKNOWN)
        case tile.Unary(op="neg", a=a):
            low, high = value_interval(a, ranges)
            return _interval_of_result((-high, -low), expr)
        case tile.Cast(a=a) if a.dtype.kind == "bool":
            return (0, 1)
        case tile.Cast(a=a) if not a.dtype.is_float:
            return _wrap_interval(value_interval(a, ranges), expr.dtype)
        case tile.Select(then=a, orelse=b):
            (la, ha), (lb, hb) = value_interval(a, ranges), value_interval(b, ranges)
            return (min(la, lb), max(ha, hb))
        case tile.Binary(op="min" | "max" as op, a=a, b=b):  # one of the operands, so it does not wrap around
            return _interval_of_binary(op, value_interval(a, ranges), value_interval(b, ranges))
        case tile.Binary(op=op, a=a, b=b):
            bounds = _interval_of_binary(op, value_interval(a, ranges), value_interval(b, ranges))
            return _interval_of_result(bounds, expr)
        case tile.Load(dtype=dtype) if dtype.kind in ("int", "uint") and dtype.bits < 32:
            return integer_range(dtype)
        case _:
            return UNKNOWN


def _interval_of_result(bounds: Interval, expr: tile.Expr) -> Interval:
    """Return `bounds`, wrapped into the expression's type unless it is int32 index arithmetic, taken not to
    overflow."""
    if expr.dtype == INT32 and (bounds == UNKNOWN or not reads_elements(expr)):
        return bounds
    return _wrap_interval(bounds, expr.dtype)


def _wrap_interval(bounds: Interval, dtype: DType) -> Interval:
    """Return the bounds if an integer type holds both, else the type's whole range; unchanged for other types."""
    if dtype.kind not in ("int", "uint"):
        return bounds
    low, high = integer_range(dtype)
    return bounds if low <= bounds[0] and bounds[1] <= high else (low, high)


def _floor_quotient(x: float, y: float) -> float:
    """Return ⌊x / y⌋ for a positive y, where either may be infinite; −1 or 0 for a finite x and an infinite y."""
    if math.isinf(x):
        return x
    return x // y if not math.isinf(y) else 0 if x >= 0 else -1


def _interval_of_binary(op: str, a: Interval, b: Interval) -> Interval:
    """Return the bounds of `a op b` from both operands' bounds, without overflow; `UNKNOWN` where no rule is known."""
    match op:
        case "add":
            return (a[0] + b[0], a[1] + b[1])
        case "sub":
            return (a[0] - b[1], a[1] - b[0])
        case "mul":
            if a == UNKNOWN or b == UNKNOWN:
                return UNKNOWN
            products = [0 if 0 in (x, y) else x * y for x in a for y in b]
            return (min(products), max(products))
        case "floordiv" if b[0] > 0:
            quotients = [_floor_quotient(x, y) for x in a for y in b]
            return (min(quotients), max(quotients))
        case "floormod" if b[0] > 0:
            if a[0] >= 0 and a[1] < b[0]:
                return a
            return (0, b[1] - 1)
        case "bitand" if max(a[0], b[0]) >= 0:  # the result has no bits that a non-negative operand lacks
            return (0, min(most for least, most in (a, b) if least >= 0))
        case "bitor" | "xor" if min(a[0], b[0]) >= 0:  # the result has no bits above the highest of either operand
            most = max(a[1], b[1])
            return (0, most if math.isinf(most) else (1 << int(most).bit_length()) - 1)
        case "shr" if b[0] == b[1] and 0 <= b[0] < 32 and a != UNKNOWN:
            low, high = (x if math.isinf(x) else int(x) >> int(b[0]) for x in a)
            return low, high
        case "min":
            return (min(a[0], b[0]), min(a[1], b[1]))
        case "max":
            return (max(a[0], b[0]), max(a[1], b[1]))
        case _:
            return UNKNOWN
