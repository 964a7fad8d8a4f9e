"""Types without instructions: elements are stored as bytes, and computed as int32 or float32.

A tensor or shared tile of int4, uint4 or float4_e2m1fn becomes one of uint8 with half as many columns, the first of two
neighbours in the lower half of a byte. A fragment has one element in each byte, as does every tile of float8_e8m0fnu.
Copies that convert, and copies between packed and unpacked tiles, become elementwise nests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from tilec.ir import tile
from tilec.ir.affine import affine
from tilec.ir.expr import integer_range
from tilec.ir.rewrite import map_declared, map_expressions, with_bodies
from tilec.ir.types import BOOL, FLOAT4_E2M1, FLOAT8_E8M0, FLOAT32, INT4, INT32, NARROW, UINT8, DType
from tilec.ops.block_scaled import ScaledGemm
from tilec.ops.copy import Copy
from tilec.ops.fill import Fill
from tilec.ops.gemm import Gemm
from tilec.ops.lowering import element
from tilec.ops.refused import is_refused, refused
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.analysis.substitution import substitute_stmt
from tilec.passes.analysis.usage import expressions, reads, writes
from tilec.passes.layout.tensor_memory import refuse_tensor_copy
from tilec.support.diagnostics import AT_ONCE, CompileError, InternalError, Label, Mistakes, fail
from tilec.support.records import dataclass
from tilec.support.source import Span


def legalised(kernel: tile.Kernel, mistakes: Mistakes = AT_ONCE) -> tile.Kernel:
    """Replace these types in a kernel; return the kernel itself where it has none."""
    buffers = [p for p in (*kernel.params, *kernel.buffers) if isinstance(p, tile.Buffer)]
    named = {e.dtype for s in tile.walk(kernel.body) for x in expressions(s) for e in tile.walk_expr(x)}
    if not any(dtype in NARROW for dtype in (*named, *(b.dtype for b in buffers))):
        return kernel
    for buffer in buffers:
        with mistakes.caught():
            _check_rows(buffer)
    return replace(
        kernel,
        params=tuple(_stored(p) if isinstance(p, tile.Buffer) else p for p in kernel.params),
        buffers=tuple(_stored(b) for b in kernel.buffers),
        body=_body(kernel.body, mistakes),
        layouts=tuple(tile.Pinned(_stored(p.buffer), p.layout, p.span) for p in kernel.layouts),
    )


def _is_packed(buffer: tile.Buffer) -> bool:
    """Return True if two elements of the buffer share a byte."""
    return buffer.dtype.per_byte == 2 and buffer.scope != "fragment"


def _stored(buffer: tile.Buffer) -> tile.Buffer:
    """Return the buffer of bytes that holds this one."""
    if buffer.dtype not in NARROW:
        return buffer
    if not _is_packed(buffer):
        return replace(buffer, dtype=UINT8)
    last = buffer.extents[-1]
    return replace(buffer, extents=(*buffer.extents[:-1], last // 2 if isinstance(last, int) else last), dtype=UINT8)


def _check_rows(buffer: tile.Buffer) -> None:
    last = buffer.extents[-1]
    if _is_packed(buffer) and (not isinstance(last, int) or last % 2):
        fail(
            "packed-row",
            f"the rows of {buffer.name} do not end with a byte",
            buffer.span,
            f"two {buffer.dtype} share one, and a row has {last} of them"
            if isinstance(last, int)
            else f"two {buffer.dtype} share one, and how many a row has is known only at launch",
            help="give the last dimension an even size" if isinstance(last, int) else "give it a size that is a number",
        )


# ---- values ----------------------------------------------------------------------------------------------------------


def _computed(dtype: DType) -> DType:
    """Return the type in which values of this one are computed."""
    if dtype not in NARROW:
        return dtype
    return FLOAT32 if dtype.is_float else INT32


def _int(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr | int) -> tile.Expr:
    return tile.Binary(op, a, tile.integer(b) if isinstance(b, int) else b, INT32)


def _bits(value: tile.Expr) -> tile.Expr:
    """Reinterpret a float32 as int32."""
    return tile.Call("reinterpret", (value,), INT32)


def _float(bits: tile.Expr) -> tile.Expr:
    return tile.Call("reinterpret", (bits,), FLOAT32)


def _decoded(code: tile.Expr, dtype: DType) -> tile.Expr:
    """Return the value of a bit pattern, an int32 below 16 or 256."""
    if dtype == INT4:
        return _int("shr", _int("shl", code, 28), 28)
    if dtype == FLOAT4_E2M1:
        # Exponent and fraction where float32 has them make a number 2¹²⁶ times as small, subnormal or not.
        sign, rest = _int("shl", _int("bitand", code, 8), 28), _int("shl", _int("bitand", code, 7), 22)
        return tile.Binary("mul", _float(_int("bitor", sign, rest)), tile.Const(2.0**126, FLOAT32), FLOAT32)
    if dtype == FLOAT8_E8M0:
        power = _int("max", _int("shl", code, 23), 0x400000)  # 2⁻¹²⁷ is subnormal
        return _float(
            tile.Select(tile.Binary("eq", code, tile.integer(255), BOOL), tile.integer(0x7FC00000), power, INT32)
        )
    return code


@dataclass(slots=True)
class _Values:
    """Rewrites expressions. In a nest, `before` collects the binds to put before a statement."""

    before: list[tile.Stmt] | None = None
    named: int = 0

    def once(self, value: tile.Expr) -> tile.Expr:
        if self.before is None:
            return value
        var = tile.Var(f"{tile.ONCE}{self.named}", value.dtype)
        self.named += 1
        self.before.append(tile.Bind(var, value))
        return var

    def encoded(self, value: tile.Expr, dtype: DType) -> tile.Expr:
        """Round a value to the type, and return its bits as an int32."""
        if not dtype.is_float:
            return _int("bitand", value, 15)
        signed = self.once(_bits(value))
        bits = _int("bitand", signed, 0x7FFFFFFF)
        if dtype == FLOAT8_E8M0:
            up = _int("min", _int("shr", _int("add", bits, 0x7FFFFF), 23), 254)
            power = tile.Select(tile.Binary("le", bits, tile.integer(0x400000), BOOL), tile.integer(0), up, INT32)
            return tile.Select(tile.Binary("gt", bits, tile.integer(0x7F800000), BOOL), tile.integer(255), power, INT32)
        size = _int("min", bits, 0x40C00000)  # 6, the largest number
        # Below 1 in steps of a half, which float32 rounds to when 2²² is added; above with one bit of fraction.
        halves = _int("bitand", _bits(tile.Binary("add", _float(size), tile.Const(2.0**22, FLOAT32), FLOAT32)), 7)
        even = _int("add", _int("bitand", _int("shr", size, 22), 1), 0x1FFFFF)
        steps = _int("sub", _int("shr", _int("add", size, even), 22), 252)
        code = tile.Select(tile.Binary("lt", size, tile.integer(0x3F800000), BOOL), halves, steps, INT32)
        sign = _int("bitand", _int("shr", signed, 28), 8)
        number = tile.Binary("le", bits, tile.integer(0x7F800000), BOOL)
        return tile.Select(number, _int("bitor", code, sign), tile.integer(7), INT32)

    def rounded(self, value: tile.Expr, dtype: DType) -> tile.Expr:
        """Round a value to the type."""
        return _decoded(self.encoded(value, dtype), dtype)

    def expr(self, expr: tile.Expr) -> tile.Expr:
        match expr:
            case tile.Load(buffer=buffer, indices=indices) if buffer.dtype in NARROW:
                return _decoded(_code(buffer, tuple(self.expr(i) for i in indices)), buffer.dtype)
            case tile.Cast(a=a, dtype=dtype) if dtype in NARROW:
                return self.converted(self.expr(a), dtype)
            case tile.Cast(a=a, dtype=dtype) if _computed(a.dtype) == dtype:
                return self.expr(a)
            case tile.Call(fn="reinterpret", args=(a,), dtype=dtype) if {a.dtype, dtype} & set(NARROW):
                return self.reinterpreted(a, dtype)
        new = map_expressions(expr, self.expr)
        if expr.dtype not in NARROW:
            return new
        whole = _retyped(new, _computed(expr.dtype))
        return whole if isinstance(expr, tile.Const | tile.Var | tile.Select) else self.rounded(whole, expr.dtype)

    def code(self, expr: tile.Expr) -> tile.Expr:
        """Return the bits of a value of such a type."""
        match expr:
            case tile.Load(buffer=buffer, indices=indices):
                return _code(buffer, tuple(self.expr(i) for i in indices))
            case tile.Cast(a=a, dtype=dtype) if dtype.is_float:
                return self.encoded(_as_float32(self.expr(a)), dtype)
            case _:
                return self.encoded(self.expr(expr), expr.dtype)

    def converted(self, value: tile.Expr, dtype: DType) -> tile.Expr:
        """Convert a value to the type."""
        if dtype.is_float:
            return self.rounded(_as_float32(value), dtype)
        if not value.dtype.is_float:
            return self.rounded(value if value.dtype == INT32 else tile.Cast(value, INT32), dtype)
        low, high = integer_range(dtype)
        return _int("max", _int("min", tile.Cast(value, INT32), high), low)

    def reinterpreted(self, expr: tile.Expr, dtype: DType) -> tile.Expr:
        """Reinterpret the bits as another type."""
        if expr.dtype in NARROW:
            code = self.code(expr)
        else:
            byte = self.expr(expr) if expr.dtype == UINT8 else tile.Call("reinterpret", (self.expr(expr),), UINT8)
            code = tile.Cast(byte, INT32)
        if dtype in NARROW:
            return _decoded(code, dtype)
        return tile.Cast(code, UINT8) if dtype == UINT8 else tile.Call("reinterpret", (tile.Cast(code, UINT8),), dtype)


def _as_float32(value: tile.Expr) -> tile.Expr:
    return value if value.dtype == FLOAT32 else tile.Cast(value, FLOAT32)


def _retyped(expr: Any, dtype: DType) -> tile.Expr:
    made: tile.Expr = replace(expr, dtype=dtype)
    return made


def _code(buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tile.Expr:
    """Load the bits of an element."""
    stored = _stored(buffer)
    if not _is_packed(buffer):
        return tile.Cast(tile.Load(stored, indices), INT32)
    byte = tile.Cast(tile.Load(stored, (*indices[:-1], _half(indices[-1]))), INT32)
    place = fold_expr(_int("mul", _int("floormod", indices[-1], 2), 4))
    return _int("bitand", _int("shr", byte, place), 15)


def _half(index: tile.Expr) -> tile.Expr:
    return fold_expr(_int("floordiv", index, 2))


# ---- statements ------------------------------------------------------------------------------------------------------


def _body(body: tuple[tile.Stmt, ...], mistakes: Mistakes) -> tuple[tile.Stmt, ...]:
    return tuple(_legalised(s, mistakes) for s in body)


def _legalised(stmt: tile.Stmt, mistakes: Mistakes) -> tile.Stmt:
    try:
        return _stmt(stmt, mistakes)
    except CompileError as error:
        mistakes.add(error)
        read, written = (tuple(_stored(b) for b in touched(stmt)) for touched in (reads, writes))
        return refused(read, written, stmt.span)


def _stmt(stmt: tile.Stmt, mistakes: Mistakes) -> tile.Stmt:
    match stmt:
        case tile.TileOp():
            return _tile_op(stmt)
        case tile.Parallel():
            return _nest(stmt)
        case tile.Store() | tile.Print():
            raise InternalError(f"a {type(stmt).__name__} outside T.Parallel")
        case _:
            return with_bodies(_on_values(stmt, _Values()), lambda body: _body(body, mistakes))


def _on_values(stmt: tile.Stmt, values: _Values) -> tile.Stmt:
    """Rewrite the expressions of a statement, without those of statements inside it."""
    return map_expressions(map_declared(stmt, _variable), values.expr)


def _variable(var: tile.Var) -> tile.Var:
    return tile.Var(var.name, _computed(var.dtype))


def _nest(nest: tile.Parallel) -> tile.Parallel:
    """Rewrite a nest. Where it stores elements that share bytes, each iteration of the new nest is two of the old
    one."""
    pairs = [s for s in tile.walk(nest.body) if isinstance(s, tile.Store) and _is_packed(s.buffer)]
    if not pairs:
        return replace(nest, body=tuple(_inside(nest.body, _Values())))
    var = next((v for v in nest.vars if all(_advances(s, v) for s in pairs)), None)
    if (
        var is None
        or nest.extents[nest.vars.index(var)] % 2
        or any(isinstance(s, tile.If) for s in nest.body)
        or nest.layout
    ):
        fail(
            "packed-store",
            f"{pairs[0].buffer.name} is not set byte by byte",
            pairs[0].span,
            f"two {pairs[0].buffer.dtype} share a byte",
            secondary=(Label(pairs[0].buffer.span, "from here"),),
            help="let a variable of T.Parallel with an even extent be its last index, and choose values by "
            "T.if_then_else instead of `if`; or keep the values in an int8 tile",
        )
    place = nest.vars.index(var)
    extents = (*nest.extents[:place], nest.extents[place] // 2, *nest.extents[place + 1 :])
    return replace(nest, extents=extents, body=tuple(_paired(nest.body, var, _Values())))


def _inside(body: tuple[tile.Stmt, ...], values: _Values) -> Iterator[tile.Stmt]:
    """Yield the rewritten statements of a nest."""
    for stmt in body:
        before: list[tile.Stmt] = []
        values.before = before
        match stmt:
            case tile.Store():
                new: tile.Stmt = _store(stmt, values)
            case tile.Print() | tile.Bind() | tile.If():
                new = with_bodies(_on_values(stmt, values), lambda inner: tuple(_inside(inner, values)))
            case _:
                raise InternalError(f"{type(stmt).__name__} inside T.Parallel")
        yield from before
        yield new


def _store(store: tile.Store, values: _Values) -> tile.Store:
    """Rewrite a store of an element that has a byte of its own."""
    indices = tuple(values.expr(i) for i in store.indices)
    if store.buffer.dtype not in NARROW:
        return replace(store, indices=indices, value=values.expr(store.value))
    if store.atomic is not None:
        _refuse(f"an atomic operation on {store.buffer.dtype}", store.span, store.buffer)
    return replace(
        store, buffer=_stored(store.buffer), indices=indices, value=tile.Cast(values.code(store.value), UINT8)
    )


def _advances(store: tile.Store, var: tile.Var) -> bool:
    """Return True if each even value of `var` and the odd one after it store to the same byte."""
    form = affine(store.indices[-1])
    rest = [coefficient for atom, coefficient in form.terms if atom != var]
    elsewhere = any(e == var for i in store.indices[:-1] for e in tile.walk_expr(i))
    return (var, 1) in form.terms and form.constant % 2 == 0 and all(c % 2 == 0 for c in rest) and not elsewhere


def _paired(body: tuple[tile.Stmt, ...], var: tile.Var, values: _Values) -> Iterator[tile.Stmt]:
    twice = _int("mul", var, 2)
    first: dict[tile.Var, tile.Expr] = {var: twice}
    second: dict[tile.Var, tile.Expr] = {var: _int("add", twice, 1)}
    for stmt in body:
        if isinstance(stmt, tile.Bind):
            first[stmt.var], second[stmt.var] = (tile.Var(f"{stmt.var.name}.{n}", stmt.var.dtype) for n in (0, 1))
        if not isinstance(stmt, tile.Store) or not _is_packed(stmt.buffer):
            yield from _inside(tuple(substitute_stmt(stmt, part) for part in (first, second)), values)
            continue
        before: list[tile.Stmt] = []
        values.before = before
        low, high = (values.code(tile.substitute(stmt.value, part)) for part in (first, second))
        indices = tuple(fold_expr(values.expr(tile.substitute(i, first))) for i in stmt.indices)
        yield from before
        byte = tile.Cast(_int("bitor", low, _int("shl", high, 4)), UINT8)
        yield tile.Store(_stored(stmt.buffer), (*indices[:-1], _halved(indices[-1])), byte, stmt.span)


def _halved(index: tile.Expr) -> tile.Expr:
    """Return half of an even index."""
    form = affine(_int("floordiv", index, 2))
    total = form.symbolic()
    return fold_expr(_int("add", total, form.constant))


# ---- operations on whole tiles ---------------------------------------------------------------------------------------


def _tile_op(op: tile.TileOp) -> tile.Stmt:
    narrow = next((r.buffer for r in op.regions if r.buffer.dtype in NARROW), None)
    if narrow is None or is_refused(op):
        return _rewritten(op, lambda region: region)
    if isinstance(op, Copy):
        return _copy(op)
    if isinstance(op, Gemm):
        return _gemm(op, narrow)
    if isinstance(op, ScaledGemm):
        return _rewritten(op, lambda region: _in_bytes(region) or region)
    if not isinstance(op, Fill):
        _refuse(f"T.{op.name} of {narrow.dtype}", op.span, narrow)
    return _fill(op)


def _gemm(op: Gemm, narrow: tile.Buffer) -> tile.TileOp:
    """Rewrite a product: tensor cores take packed integers of four bits."""
    regions = tuple(_in_bytes(r) for r in op.regions)
    if narrow.dtype.is_float or None in regions:
        _refuse(f"T.gemm of {narrow.dtype}", op.span, narrow)
    packed = op.with_regions(tuple(r for r in regions if r is not None))
    return replace(packed, nibbles="s4" if narrow.dtype == INT4 else "u4")


def _refuse(what: str, span: Span, buffer: tile.Buffer) -> NoReturn:
    fail(
        "unsupported-type",
        f"{what} is not supported",
        span,
        secondary=(Label(buffer.span, f"{buffer.name} is {buffer.dtype}"),),
        help="convert it first: T.copy to a tile of float16 or int8",
    )


def _rewritten(op: tile.TileOp, region_of: Callable[[tile.Region], tile.Region]) -> tile.TileOp:
    return op.map_expressions(
        lambda r: region_of(map_expressions(r, lambda start: _Values().expr(start))),
        lambda value: _Values().expr(value),
    )


def _in_bytes(region: tile.Region) -> tile.Region | None:
    """Return the bytes of a region of packed elements; None where it begins or ends inside a byte."""
    if not _is_packed(region.buffer):
        return replace(region, buffer=_stored(region.buffer))
    start = region.start[-1]
    if affine(start).divisor % 2 or region.extent[-1] % 2:
        return None
    stored = _stored(region.buffer)
    extent = (*region.extent[:-1], region.extent[-1] // 2)
    return replace(region, buffer=stored, start=(*region.start[:-1], _halved(start)), extent=extent)


def _copy(op: Copy) -> tile.Stmt:
    source, destination = op.regions
    is_unconverted = source.buffer.dtype == destination.buffer.dtype and _is_packed(source.buffer) == _is_packed(
        destination.buffer
    )
    if is_unconverted and all(_in_bytes(r) is not None for r in op.regions) and _rows_agree(source, destination):
        return _rewritten(op, lambda region: _in_bytes(region) or region)
    if "tmem" in (source.buffer.scope, destination.buffer.scope):  # whose elements no nest reaches
        refuse_tensor_copy(op)
    extents = destination.shape
    variables = tuple(tile.Var(f"{destination.buffer.name}.{d}") for d in range(len(extents)))
    value: tile.Expr = tile.Load(source.buffer, element(source, variables, extents))
    if source.buffer.dtype != destination.buffer.dtype:
        value = tile.Cast(value, destination.buffer.dtype)
    store = tile.Store(destination.buffer, element(destination, variables, extents), value, op.span)
    return _nest(tile.Parallel(variables, extents, (store,), op.span))


def _rows_agree(source: tile.Region, destination: tile.Region) -> bool:
    """Return True if the two regions halve the same dimension."""
    return not _is_packed(source.buffer) or source.extent[-1] == destination.extent[-1] > 1


def _fill(op: Fill) -> tile.Stmt:
    (part,) = op.regions
    code = _Values().code(op.value)
    bytes_of = _in_bytes(part)
    if bytes_of is None:
        variables = tuple(tile.Var(f"{part.buffer.name}.{d}") for d in range(len(part.shape)))
        indices = element(part, variables, part.shape)
        return _nest(
            tile.Parallel(variables, part.shape, (tile.Store(part.buffer, indices, op.value, op.span),), op.span)
        )
    byte = _int("mul", code, 17) if _is_packed(part.buffer) else code
    return replace(op, tile=bytes_of, value=fold_expr(tile.Cast(byte, UINT8)))
