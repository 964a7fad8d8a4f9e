"""Types without instructions: elements are stored as bytes, and computed as int32 or float32.

A tensor or shared tile of int4, uint4 or float4_e2m1fn becomes one of uint8 with half as many columns, the first of two
neighbours in the lower half of a byte. A fragment has one element in each byte, as does every tile of float8_e8m0fnu.
Copies that convert, and copies between packed and unpacked tiles, become elementwise nests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from tilec.analysis.usage import find_reads, find_writes, list_expressions
from tilec.ir import tile
from tilec.ir.affine import affine_form, known_divisor
from tilec.ir.expr import integer_range
from tilec.ir.rewrite import map_declared_variables, map_expressions, map_nested_bodies
from tilec.ir.types import BOOL, FLOAT4_E2M1, FLOAT8_E8M0, FLOAT32, INT4, INT32, NARROW_TYPES, UINT8, DType
from tilec.ops.copies.copy import Copy
from tilec.ops.fill import Fill
from tilec.ops.lowering import index_element
from tilec.ops.placeholder import is_refused, make_refused
from tilec.ops.products.block_scaled import ScaledGemm
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.mechanisms.tensor_memory import refuse_tensor_copy
from tilec.passes.layout.shared.reshape_views import reinterpret_as
from tilec.rewriting.fold_constants import fold_expr
from tilec.rewriting.substitution import substitute_stmt
from tilec.support.diagnostics import RAISE_FIRST, CompileError, ErrorCollector, InternalError, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span


def legalise_types(kernel: tile.Kernel, mistakes: ErrorCollector = RAISE_FIRST) -> tile.Kernel:
    """Store elements of types that the machine lacks as bytes, and compute with them as int32 or float32."""
    buffers = [p for p in (*kernel.params, *kernel.buffers) if isinstance(p, tile.Buffer)]
    named = {e.dtype for s in tile.walk_statements(kernel.body) for x in list_expressions(s) for e in tile.walk_expr(x)}
    if not any(dtype in NARROW_TYPES for dtype in (*named, *(b.dtype for b in buffers))):
        return kernel
    for buffer in buffers:
        with mistakes.caught():
            _check_rows(buffer)
    return replace(
        kernel,
        params=tuple(_build_byte_buffer(p) if isinstance(p, tile.Buffer) else p for p in kernel.params),
        buffers=tuple(_build_byte_buffer(b) for b in kernel.buffers),
        body=_legalise_body(kernel.body, mistakes),
        layouts=tuple(tile.LayoutAnnotation(_build_byte_buffer(p.buffer), p.layout, p.span) for p in kernel.layouts),
    )


def _is_packed(buffer: tile.Buffer) -> bool:
    """Return True if two elements of the buffer share a byte: four-bit types outside of fragments."""
    return buffer.dtype.per_byte == 2 and buffer.scope != "fragment"


def _build_byte_buffer(buffer: tile.Buffer) -> tile.Buffer:
    """Return a buffer of a narrow type as uint8, in half the columns if two elements share a byte; other buffers
    unchanged."""
    if buffer.dtype not in NARROW_TYPES:
        return buffer
    if not _is_packed(buffer):
        return replace(buffer, dtype=UINT8)
    extents = (*buffer.extents[:-1], _halve_size(buffer.extents[-1]))
    steps = None if buffer.strides is None else (*map(_halve_size, buffer.strides[:-1]), 1)
    return replace(buffer, extents=extents, dtype=UINT8, strides=steps)


def _halve_size(size: tile.Extent) -> tile.Extent:
    """Return the bytes of an even number of four-bit elements. That a number known at launch is even is checked there,
    where its expression does not show it."""
    if isinstance(size, int):
        return size // 2
    return _halve_even_index(size) if known_divisor(size) % 2 == 0 else _build_int_op("shr", size, 1)


def _check_rows(buffer: tile.Buffer) -> None:
    """Refuse a packed buffer whose row length is odd. One that is known at launch is read off an array of bytes."""
    last = buffer.extents[-1]
    if _is_packed(buffer) and isinstance(last, int) and last % 2:
        title = f"the rows of {buffer.name} are not a whole number of bytes"
        note = f"two {buffer.dtype} share a byte, and a row has {last}"
        raise_error("packed-row", title, buffer.span, note, help="give the last dimension an even size")


# ---- values ----------------------------------------------------------------------------------------------------------


def _choose_computed_type(dtype: DType) -> DType:
    """Return the type in which values are computed: float32 or int32 for a narrow one, else the type itself."""
    if dtype not in NARROW_TYPES:
        return dtype
    return FLOAT32 if dtype.is_float else INT32


def _build_int_op(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr | int) -> tile.Expr:
    """Return `a op b` as an int32, unfolded."""
    return tile.Binary(op, a, tile.int32_const(b) if isinstance(b, int) else b, INT32)


def _decode_value(code: tile.Expr, dtype: DType) -> tile.Expr:
    """Return an expression for the number that a narrow type's bits stand for, given as an int32."""
    if dtype == INT4:
        return _build_int_op("shr", _build_int_op("shl", code, 28), 28)
    if dtype == FLOAT4_E2M1:
        # Exponent and fraction where float32 has them make a number 2¹²⁶ times as small, subnormal or not.
        sign = _build_int_op("shl", _build_int_op("bitand", code, 8), 28)
        rest = _build_int_op("shl", _build_int_op("bitand", code, 7), 22)
        tiny = reinterpret_as(_build_int_op("bitor", sign, rest), FLOAT32)
        return tile.Binary("mul", tiny, tile.Const(2.0**126, FLOAT32), FLOAT32)
    if dtype == FLOAT8_E8M0:
        power = _build_int_op("max", _build_int_op("shl", code, 23), 0x400000)  # 2⁻¹²⁷ is subnormal
        is_nan = tile.Binary("eq", code, tile.int32_const(255), BOOL)
        return reinterpret_as(tile.Select(is_nan, tile.int32_const(0x7FC00000), power, INT32), FLOAT32)
    return code


@dataclass(slots=True)
class _ValueLegaliser:
    """Rewrites expressions. In a nest, `before` collects the binds to put before a statement."""

    before: list[tile.Stmt] | None = None
    named: int = 0

    def bind_once(self, value: tile.Expr) -> tile.Expr:
        """Return a new variable, with a bind of it to the value added to `before`; outside of nests, the value
        itself."""
        if self.before is None:
            return value
        var = tile.Var(f"{tile.ONCE_PREFIX}{self.named}", value.dtype)
        self.named += 1
        self.before.append(tile.Bind(var, value))
        return var

    def encode_value(self, value: tile.Expr, dtype: DType) -> tile.Expr:
        """Return the bits of a value rounded to the narrow type, as an int32 expression."""
        if not dtype.is_float:
            return _build_int_op("bitand", value, 15)
        signed = self.bind_once(reinterpret_as(value, INT32))
        bits = _build_int_op("bitand", signed, 0x7FFFFFFF)
        if dtype == FLOAT8_E8M0:
            up = _build_int_op("min", _build_int_op("shr", _build_int_op("add", bits, 0x7FFFFF), 23), 254)
            is_tiny = tile.Binary("le", bits, tile.int32_const(0x400000), BOOL)
            power = tile.Select(is_tiny, tile.int32_const(0), up, INT32)
            is_nan = tile.Binary("gt", bits, tile.int32_const(0x7F800000), BOOL)
            return tile.Select(is_nan, tile.int32_const(255), power, INT32)
        size = _build_int_op("min", bits, 0x40C00000)  # 6, the largest number
        # Below 1 in steps of a half, which float32 rounds to when 2²² is added; above with one bit of fraction.
        rounded = tile.Binary("add", reinterpret_as(size, FLOAT32), tile.Const(2.0**22, FLOAT32), FLOAT32)
        halves = _build_int_op("bitand", reinterpret_as(rounded, INT32), 7)
        even = _build_int_op("add", _build_int_op("bitand", _build_int_op("shr", size, 22), 1), 0x1FFFFF)
        steps = _build_int_op("sub", _build_int_op("shr", _build_int_op("add", size, even), 22), 252)
        code = tile.Select(tile.Binary("lt", size, tile.int32_const(0x3F800000), BOOL), halves, steps, INT32)
        sign = _build_int_op("bitand", _build_int_op("shr", signed, 28), 8)
        number = tile.Binary("le", bits, tile.int32_const(0x7F800000), BOOL)
        return tile.Select(number, _build_int_op("bitor", code, sign), tile.int32_const(7), INT32)

    def round_value(self, value: tile.Expr, dtype: DType) -> tile.Expr:
        """Return the value rounded to the narrow type, as an int32 or float32 expression."""
        return _decode_value(self.encode_value(value, dtype), dtype)

    def legalise_expr(self, expr: tile.Expr) -> tile.Expr:
        """Return the expression with narrow loads decoded, and narrow arithmetic done in int32 or float32 and
        rounded."""
        match expr:
            case tile.Load(buffer=buffer, indices=indices) if buffer.dtype in NARROW_TYPES:
                return _decode_value(_load_code(buffer, tuple(self.legalise_expr(i) for i in indices)), buffer.dtype)
            case tile.Cast(a=a, dtype=dtype) if dtype in NARROW_TYPES:
                return self.convert_value(self.legalise_expr(a), dtype)
            case tile.Cast(a=a, dtype=dtype) if _choose_computed_type(a.dtype) == dtype:
                return self.legalise_expr(a)
            case tile.Call(fn="reinterpret", args=(a,), dtype=dtype) if {a.dtype, dtype} & set(NARROW_TYPES):
                return self.reinterpret_value(a, dtype)
        new = map_expressions(expr, self.legalise_expr)
        if expr.dtype not in NARROW_TYPES:
            return new
        whole = _replace_type(new, _choose_computed_type(expr.dtype))
        return whole if isinstance(expr, tile.Const | tile.Var | tile.Select) else self.round_value(whole, expr.dtype)

    def encode_expr(self, expr: tile.Expr) -> tile.Expr:
        """Return the bits of an expression of a narrow type, as an int32; a load gives its stored bits."""
        match expr:
            case tile.Load(buffer=buffer, indices=indices):
                return _load_code(buffer, tuple(self.legalise_expr(i) for i in indices))
            case tile.Cast(a=a, dtype=dtype) if dtype.is_float:
                return self.encode_value(_cast_to_float32(self.legalise_expr(a)), dtype)
            case _:
                return self.encode_value(self.legalise_expr(expr), expr.dtype)

    def convert_value(self, value: tile.Expr, dtype: DType) -> tile.Expr:
        """Return the value converted to the narrow type: rounded, clamped from float to integer, wrapped between
        integers."""
        if dtype.is_float:
            return self.round_value(_cast_to_float32(value), dtype)
        if not value.dtype.is_float:
            return self.round_value(value if value.dtype == INT32 else tile.Cast(value, INT32), dtype)
        low, high = integer_range(dtype)
        return _build_int_op("max", _build_int_op("min", tile.Cast(value, INT32), high), low)

    def reinterpret_value(self, expr: tile.Expr, dtype: DType) -> tile.Expr:
        """Return an expression's bits read as another type, where either type is narrow."""
        if expr.dtype in NARROW_TYPES:
            code = self.encode_expr(expr)
        else:
            code = tile.Cast(reinterpret_as(self.legalise_expr(expr), UINT8), INT32)
        return _decode_value(code, dtype) if dtype in NARROW_TYPES else reinterpret_as(tile.Cast(code, UINT8), dtype)


def _cast_to_float32(value: tile.Expr) -> tile.Expr:
    """Return the value cast to float32, or itself if it is one."""
    return value if value.dtype == FLOAT32 else tile.Cast(value, FLOAT32)


def _replace_type(expr: Any, dtype: DType) -> tile.Expr:
    """Return the expression with another result type, its operands unchanged."""
    made: tile.Expr = replace(expr, dtype=dtype)
    return made


def _load_code(buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr:
    """Return the bits of a narrow element as an int32: its byte, or its half of a shared byte."""
    stored = _build_byte_buffer(buffer)
    if not _is_packed(buffer):
        return tile.Cast(tile.Load(stored, indices), INT32)
    column = fold_expr(_build_int_op("floordiv", indices[-1], 2))
    byte = tile.Cast(tile.Load(stored, (*indices[:-1], column)), INT32)
    place = fold_expr(_build_int_op("mul", _build_int_op("floormod", indices[-1], 2), 4))
    return _build_int_op("bitand", _build_int_op("shr", byte, place), 15)


# ---- statements ------------------------------------------------------------------------------------------------------


def _legalise_body(body: tuple[tile.Stmt, ...], mistakes: ErrorCollector) -> tuple[tile.Stmt, ...]:
    """Return the statements in types that the machine has, with placeholders for refused ones."""
    return tuple(_legalise_or_refuse(s, mistakes) for s in body)


def _legalise_or_refuse(stmt: tile.Stmt, mistakes: ErrorCollector) -> tile.Stmt:
    """Return the rewritten statement; record the error of a refused one, and return a placeholder for it."""
    try:
        return _legalise_statement(stmt, mistakes)
    except CompileError as error:
        mistakes.add(error)
        read, written = (tuple(_build_byte_buffer(b) for b in touched(stmt)) for touched in (find_reads, find_writes))
        return make_refused(read, written, stmt.span)


def _legalise_statement(stmt: tile.Stmt, mistakes: ErrorCollector) -> tile.Stmt:
    """Return a statement outside of nests, with all nested ones, in types that the machine has."""
    match stmt:
        case tile.TileOp():
            return _legalise_tile_op(stmt)
        case tile.Parallel():
            return _legalise_nest(stmt)
        case tile.Store() | tile.Print():
            raise InternalError(f"a {type(stmt).__name__} outside T.Parallel")
        case _:
            return map_nested_bodies(
                _legalise_expressions(stmt, _ValueLegaliser()), lambda body: _legalise_body(body, mistakes)
            )


def _legalise_expressions(stmt: tile.Stmt, values: _ValueLegaliser) -> tile.Stmt:
    """Return the statement with its own expressions and declared variables in types that the machine has."""
    declared = map_declared_variables(stmt, lambda var: tile.Var(var.name, _choose_computed_type(var.dtype)))
    return map_expressions(declared, values.legalise_expr)


def _legalise_nest(nest: tile.Parallel) -> tile.Parallel:
    """Return the nest in types that the machine has, iterations paired where their elements share a byte; refuse
    unpairable ones."""
    pairs = [s for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store) and _is_packed(s.buffer)]
    if not any(_list_half_stores(nest.body)):
        return replace(nest, body=tuple(_legalise_nest_body(nest.body, _ValueLegaliser())))
    var = next((v for v in nest.vars if all(_can_pair_over(s, v) for s in pairs)), None)
    if (
        var is None
        or nest.extents[nest.vars.index(var)] % 2
        or any(isinstance(s, tile.If) for s in nest.body)
        or nest.layout
    ):
        raise_error(
            "packed-store",
            f"{pairs[0].buffer.name} must be stored in pairs of elements that share a byte",
            pairs[0].span,
            f"two {pairs[0].buffer.dtype} share a byte",
            secondary=(Label(pairs[0].buffer.span, "from here"),),
            help="use a T.Parallel variable with an even extent as the last index, and choose values by "
            "T.if_then_else instead of `if`; or use an int8 tile",
        )
    place = nest.vars.index(var)
    extents = (*nest.extents[:place], nest.extents[place] // 2, *nest.extents[place + 1 :])
    return replace(nest, extents=extents, body=tuple(_pair_iterations(nest.body, var, _ValueLegaliser())))


def _legalise_nest_body(body: tuple[tile.Stmt, ...], values: _ValueLegaliser) -> Iterator[tile.Stmt]:
    """Yield the rewritten statements of a nest, each behind the binds that it needs."""
    for stmt, second in _group_halves(body):
        before: list[tile.Stmt] = []
        values.before = before
        match stmt:
            case tile.Store() if second is not None:
                new: tile.Stmt = _join_halves(stmt, second, values)
            case tile.Store():
                new = _legalise_store(stmt, values)
            case tile.Print() | tile.Bind() | tile.If():
                new = map_nested_bodies(
                    _legalise_expressions(stmt, values), lambda inner: tuple(_legalise_nest_body(inner, values))
                )
            case _:
                raise InternalError(f"{type(stmt).__name__} inside T.Parallel")
        yield from before
        yield new


def _legalise_store(store: tile.Store, values: _ValueLegaliser) -> tile.Store:
    """Return the store of an element in a byte of its own; refuse atomic operations on narrow types."""
    indices = tuple(values.legalise_expr(i) for i in store.indices)
    if store.buffer.dtype not in NARROW_TYPES:
        return replace(store, indices=indices, value=values.legalise_expr(store.value))
    if store.atomic is not None:
        _refuse_type(f"an atomic operation on {store.buffer.dtype}", store.span, store.buffer)
    code = tile.Cast(values.encode_expr(store.value), UINT8)
    return replace(store, buffer=_build_byte_buffer(store.buffer), indices=indices, value=code)


def _group_halves(body: tuple[tile.Stmt, ...]) -> Iterator[tuple[tile.Stmt, tile.Store | None]]:
    """Yield each statement of a nest, with the one after it where both store the two halves of one byte."""
    at = 0
    while at < len(body):
        stmt, second = body[at], body[at + 1] if at + 1 < len(body) else None
        is_byte = isinstance(stmt, tile.Store) and isinstance(second, tile.Store) and _are_halves(stmt, second)
        yield stmt, second if is_byte and isinstance(second, tile.Store) else None
        at += 1 + is_byte


def _are_halves(first: tile.Store, second: tile.Store) -> bool:
    """Return whether two stores set the lower and the upper half of one byte."""
    distance = affine_form(_build_int_op("sub", second.indices[-1], first.indices[-1]))
    return (
        _is_packed(first.buffer)
        and (first.buffer, first.indices[:-1]) == (second.buffer, second.indices[:-1])
        and first.atomic is second.atomic is None
        and (distance.terms, distance.constant) == ((), 1)
        and affine_form(first.indices[-1]).divisor % 2 == 0
    )


def _join_halves(first: tile.Store, second: tile.Store, values: _ValueLegaliser) -> tile.Store:
    """Return the store of a byte that two stores set the halves of."""
    low, high = (values.encode_expr(store.value) for store in (first, second))
    *rows, column = (fold_expr(values.legalise_expr(i)) for i in first.indices)
    byte = tile.Cast(_build_int_op("bitor", low, _build_int_op("shl", high, 4)), UINT8)
    return tile.Store(_build_byte_buffer(first.buffer), (*rows, _halve_even_index(column)), byte, first.span)


def _list_half_stores(body: tuple[tile.Stmt, ...]) -> Iterator[tile.Store]:
    """Yield the stores in a nest's statements that set a half of a byte whose other half no statement after it sets."""
    for stmt, second in _group_halves(body):
        if isinstance(stmt, tile.Store):
            if _is_packed(stmt.buffer) and second is None:
                yield stmt
            continue
        for inner in tile.nested_bodies(stmt):
            yield from _list_half_stores(inner)


def _can_pair_over(store: tile.Store, var: tile.Var) -> bool:
    """Return True if each even value of `var` and the odd one after it store to the two halves of one byte."""
    form = affine_form(store.indices[-1])
    rest = [coefficient for atom, coefficient in form.terms if atom != var]
    elsewhere = any(e == var for i in store.indices[:-1] for e in tile.walk_expr(i))
    return (var, 1) in form.terms and form.constant % 2 == 0 and all(c % 2 == 0 for c in rest) and not elsewhere


def _pair_iterations(body: tuple[tile.Stmt, ...], var: tile.Var, values: _ValueLegaliser) -> Iterator[tile.Stmt]:
    """Yield the statements for two neighbouring values of `var`; their packed elements become one stored byte."""
    twice = _build_int_op("mul", var, 2)
    first: dict[tile.Var, tile.Expr] = {var: twice}
    second: dict[tile.Var, tile.Expr] = {var: _build_int_op("add", twice, 1)}
    for stmt in body:
        if isinstance(stmt, tile.Bind):
            first[stmt.var], second[stmt.var] = (tile.Var(f"{stmt.var.name}.{n}", stmt.var.dtype) for n in (0, 1))
        if not isinstance(stmt, tile.Store) or not _is_packed(stmt.buffer):
            yield from _legalise_nest_body(tuple(substitute_stmt(stmt, part) for part in (first, second)), values)
            continue
        before: list[tile.Stmt] = []
        values.before = before
        low, high = (values.encode_expr(tile.substitute_variables(stmt.value, part)) for part in (first, second))
        indices = tuple(fold_expr(values.legalise_expr(tile.substitute_variables(i, first))) for i in stmt.indices)
        yield from before
        byte = tile.Cast(_build_int_op("bitor", low, _build_int_op("shl", high, 4)), UINT8)
        place = (*indices[:-1], _halve_even_index(indices[-1]))
        yield tile.Store(_build_byte_buffer(stmt.buffer), place, byte, stmt.span)


def _halve_even_index(index: tile.Expr) -> tile.Expr:
    """Return half of an index that is known to be even."""
    form = affine_form(_build_int_op("floordiv", index, 2))
    return fold_expr(_build_int_op("add", form.without_constant(), form.constant))


# ---- operations on whole tiles ---------------------------------------------------------------------------------------


def _legalise_tile_op(op: tile.TileOp) -> tile.Stmt:
    """Return an operation on whole tiles with byte buffers, as a nest where it converts; refuse narrow types
    otherwise."""
    narrow = next((r.buffer for r in op.regions if r.buffer.dtype in NARROW_TYPES), None)
    if narrow is None or is_refused(op):
        return _rewrite_regions(op, lambda region: region)
    if isinstance(op, Copy):
        return _legalise_copy(op)
    if isinstance(op, Gemm):
        return _legalise_gemm(op, narrow)
    if isinstance(op, ScaledGemm):
        return _rewrite_regions(op, lambda region: _convert_region(region) or region)
    if not isinstance(op, Fill):
        _refuse_type(f"T.{op.name} of {narrow.dtype}", op.span, narrow)
    return _legalise_fill(op)


def _legalise_gemm(op: Gemm, narrow: tile.Buffer) -> tile.TileOp:
    """Return a product of packed four-bit integers on byte tiles; refuse other narrow types and regions inside a
    byte."""
    regions = tuple(_convert_region(r) for r in op.regions)
    if narrow.dtype.is_float or None in regions:
        _refuse_type(f"T.gemm of {narrow.dtype}", op.span, narrow)
    packed = op.with_regions(tuple(r for r in regions if r is not None))
    return replace(packed, nibbles="s4" if narrow.dtype == INT4 else "u4")


def _refuse_type(what: str, span: Span, buffer: tile.Buffer) -> NoReturn:
    """Raise the error that an operation, described by `what`, does not support the buffer's type."""
    raise_error(
        "unsupported-type",
        f"{what} is not supported",
        span,
        secondary=(Label(buffer.span, f"{buffer.name} is {buffer.dtype}"),),
        help="convert it first: T.copy to a tile of float16 or int8",
    )


def _rewrite_regions(op: tile.TileOp, region_of: Callable[[tile.Region], tile.Region]) -> tile.TileOp:
    """Return the operation with its expressions legalised, and each region then replaced by `region_of`."""
    legalise = _ValueLegaliser().legalise_expr
    return op.map_expressions(lambda region: region_of(map_expressions(region, legalise)), legalise)


def _convert_region(region: tile.Region) -> tile.Region | None:
    """Return the region of the byte buffer that stores this region; None where it begins or ends inside a byte."""
    if not _is_packed(region.buffer):
        return replace(region, buffer=_build_byte_buffer(region.buffer))
    start = region.start[-1]
    if affine_form(start).divisor % 2 or region.extent[-1] % 2:
        return None
    stored = _build_byte_buffer(region.buffer)
    extent = (*region.extent[:-1], region.extent[-1] // 2)
    return replace(region, buffer=stored, start=(*region.start[:-1], _halve_even_index(start)), extent=extent)


def _legalise_copy(op: Copy) -> tile.Stmt:
    """Return a copy of the bytes, or a nest that converts, packs or unpacks them; refuse nests on tensor memory."""
    source, destination = op.regions
    is_packed = _is_packed(source.buffer)
    if (
        source.buffer.dtype == destination.buffer.dtype
        and is_packed == _is_packed(destination.buffer)
        and all(_convert_region(r) is not None for r in op.regions)
        and (not is_packed or source.extent[-1] == destination.extent[-1] > 1)  # both halve the same dimension
    ):
        return _rewrite_regions(op, lambda region: _convert_region(region) or region)
    if "tmem" in (source.buffer.scope, destination.buffer.scope):  # whose elements no nest reaches
        refuse_tensor_copy(op)
    extents = destination.shape
    variables = tuple(tile.Var(f"{destination.buffer.name}.{d}") for d in range(len(extents)))
    value: tile.Expr = tile.Load(source.buffer, index_element(source, variables, extents))
    if source.buffer.dtype != destination.buffer.dtype:
        value = tile.Cast(value, destination.buffer.dtype)
    store = tile.Store(destination.buffer, index_element(destination, variables, extents), value, op.span)
    return _legalise_nest(tile.Parallel(variables, extents, (store,), op.span))


def _legalise_fill(op: Fill) -> tile.Stmt:
    """Return a fill of the bytes, or a nest where the region begins or ends inside a byte."""
    (part,) = op.regions
    code = _ValueLegaliser().encode_expr(op.value)
    bytes_of = _convert_region(part)
    if bytes_of is None:
        variables = tuple(tile.Var(f"{part.buffer.name}.{d}") for d in range(len(part.shape)))
        store = tile.Store(part.buffer, index_element(part, variables, part.shape), op.value, op.span)
        return _legalise_nest(tile.Parallel(variables, part.shape, (store,), op.span))
    byte = _build_int_op("mul", code, 17) if _is_packed(part.buffer) else code
    return replace(op, tile=bytes_of, value=fold_expr(tile.Cast(byte, UINT8)))
