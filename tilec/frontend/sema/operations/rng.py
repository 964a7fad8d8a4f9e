"""T.rng_init, T.rng_rand, T.rng_rand_float: random numbers, the same ones that cuRAND's Philox 4x32-10 gives.

Each number is computed from a key, a sequence and a position (Salmon et al., SC11), so that a draw only advances the
position. The state lies in local arrays of each thread.
"""

from __future__ import annotations

import math

from tilec.frontend.sema.context import Context, Generator
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.types import BOOL, FLOAT32, FLOAT64, UINT32, UINT64, DType
from tilec.ops.language.signature import Call as Arguments, Parameter, Signature, as_expr
from tilec.support.diagnostics import raise_error
from tilec.support.source import Span

_PHILOX_GENERATOR = "curandStatePhilox4_32_10_t"
INIT_SIGNATURE = Signature(
    "T.rng_init",
    (Parameter("seed"), Parameter("seq", None), Parameter("off", 0), Parameter("generator", _PHILOX_GENERATOR)),
)
RAND_SIGNATURE = Signature("T.rng_rand", ())
RAND_FLOAT_SIGNATURE = Signature("T.rng_rand_float", (Parameter("bit", 32), Parameter("dist", "uniform")))
DRAW_SIGNATURES = (RAND_SIGNATURE, RAND_FLOAT_SIGNATURE)
_UNIFORM_STEP = 2.0**-32


def initialise_generator(context: Context, call: Arguments) -> None:
    """Emit the stores that seed each thread's random generator, allocated at first; refuse it inside T.Parallel.
    Without `seq` every thread of the grid has a sequence of its own.
    """
    if context.is_parallel:
        title = f"T.rng_init is not allowed inside {context.nest_name}"
        way_out = "each thread has one generator: move this before the loop"
        raise_error("tile-op-in-parallel", title, call.span, help=way_out)
    if call["generator"].value != _PHILOX_GENERATOR:
        call.refuse("generator", f'"{_PHILOX_GENERATOR}", the only generator')
    seed, offset = (_read_integer(call, name) for name in ("seed", "off"))
    sequence = _compute_grid_thread(context) if call["seq"].value is None else _read_integer(call, "seq")
    if context.generator is None:
        words = per_thread.allocate_local_array(context, "generator", (4,), UINT64, call.span)
        spare = per_thread.allocate_local_array(context, "spare", (1,), FLOAT32, call.span)
        context.generator = Generator(words, spare)
    words = context.generator.words
    values = (seed, sequence, offset, make_constant(0, UINT64))
    stores = (tile.Store(words, (tile.int32_const(n),), value, call.span) for n, value in enumerate(values))
    per_thread.emit_for_each_thread(context, tuple(stores), call.span)


def _read_integer(call: Arguments, name: str) -> tile.Expr:
    """Return an integer argument converted to uint64; refuse floats and truth values."""
    value = as_expr(call[name])
    if value.dtype.is_float or value.dtype == BOOL:
        call.refuse(name, "an integer")
    return cast_expr(value, UINT64)


def _compute_grid_thread(context: Context) -> tile.Expr:
    """Return the thread's number among all threads of the grid, as a uint64 expression."""
    block: tile.Expr = make_constant(0, UINT64)
    for var, extent in reversed(context.blocks):
        before = _make_binary("mul", block, cast_expr(tile.extent_expr(extent), UINT64))
        block = _make_binary("add", before, cast_expr(var, UINT64))
    before = _make_binary("mul", block, make_constant(math.prod(context.thread_extents), UINT64))
    return _make_binary("add", before, cast_expr(tile.THREAD, UINT64))


def _make_binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return tile.Binary(op, a, b, UINT64)


def draw_number(context: Context, call: Arguments) -> tile.Expr:
    """Emit the draw of each thread's next random number and return it; refuse it before T.rng_init. Inside T.Parallel
    the thread that has the element draws.
    """
    generator = context.generator
    if generator is None:
        way_out = "write T.rng_init(seed) before it, under no condition"
        raise_error("uninitialised-generator", f"{call.name} before T.rng_init", call.span, help=way_out)
    if call.name == RAND_SIGNATURE.name:
        return _draw_word(context, generator, call.span)
    bit, dist = call["bit"].value, call["dist"].value
    if bit not in (32, 64):
        call.refuse("bit", "32 or 64")
    if dist not in ("uniform", "normal"):
        call.refuse("dist", '"uniform" or "normal"')
    if dist == "normal" and bit == 64:
        call.refuse("bit", "32: normal numbers exist as float32 only")
    if dist == "normal":
        return _draw_normal(context, generator, call.span)
    number = _draw_word(context, generator, call.span)
    if bit == 32:
        return _scale_word(number, FLOAT32, _UNIFORM_STEP, _UNIFORM_STEP / 2)
    return _scale_word(number, FLOAT64, _UNIFORM_STEP, _UNIFORM_STEP)


def _scale_word(number: tile.Expr, dtype: DType, step: float, more: float) -> tile.Expr:
    """Return `number * step + more`: with cuRAND's constants a uniform number above 0, up to 1."""
    product = tile.Binary("mul", cast_expr(number, dtype), make_constant(step, dtype), dtype)
    return tile.Binary("add", product, make_constant(more, dtype), dtype)


def _draw_word(context: Context, generator: Generator, span: Span) -> tile.Expr:
    """Emit the draw of 32 random bits, which advances the generator's position by one, and return them."""
    position = generator.word(2)
    number = _compute_word(generator, position)
    following = _make_binary("add", position, make_constant(1, UINT64))
    advance = tile.Store(generator.words, (tile.int32_const(2),), following, span)
    return _emit_draw(context, "random", number, (advance,), span)


def _compute_word(generator: Generator, position: tile.Expr) -> tile.Expr:
    """Return the Philox expression for the 32 random bits of the generator at this position."""
    return tile.Call("philox", (generator.word(0), generator.word(1), position), UINT32)


def _draw_normal(context: Context, generator: Generator, span: Span) -> tile.Expr:
    """Emit the draw of a normal number by Box-Muller: the sine of a new pair, or the cosine kept from the last one."""
    position, is_spare = generator.word(2), tile.Binary("ne", generator.word(3), make_constant(0, UINT64), BOOL)
    first = _scale_word(_compute_word(generator, position), FLOAT32, _UNIFORM_STEP, _UNIFORM_STEP / 2)
    full_circle = _UNIFORM_STEP * 2 * math.pi
    following = _make_binary("add", position, make_constant(1, UINT64))
    angle = _scale_word(_compute_word(generator, following), FLOAT32, full_circle, full_circle / 2)
    log = tile.Binary("mul", make_constant(-2.0, FLOAT32), tile.Call("log", (first,), FLOAT32), FLOAT32)
    size = tile.Call("sqrt", (log,), FLOAT32)
    sine, cosine = (tile.Binary("mul", tile.Call(fn, (angle,), FLOAT32), size, FLOAT32) for fn in ("sin", "cos"))
    held = tile.Load(generator.spare, (tile.int32_const(0),))
    value = tile.Select(is_spare, held, sine, FLOAT32)
    next_spare = tile.Select(is_spare, held, cosine, FLOAT32)
    next_position = tile.Select(is_spare, position, _make_binary("add", position, make_constant(2, UINT64)), UINT64)
    next_flag = tile.Select(is_spare, make_constant(0, UINT64), make_constant(1, UINT64), UINT64)
    stores = (
        tile.Store(generator.spare, (tile.int32_const(0),), next_spare, span),
        tile.Store(generator.words, (tile.int32_const(2),), next_position, span),
        tile.Store(generator.words, (tile.int32_const(3),), next_flag, span),
    )
    return _emit_draw(context, "normal", value, stores, span)


def _emit_draw(context: Context, name: str, value: tile.Expr, stores: tuple[tile.Stmt, ...], span: Span) -> tile.Expr:
    """Emit a bind or local store of a drawn value, then the stores that advance the state; return the kept value."""
    if context.is_parallel:
        var = context.bind_value(name, value, span)
        context.out += stores
        return var
    held = per_thread.allocate_local_array(context, name, (1,), value.dtype, span)
    per_thread.emit_for_each_thread(context, (tile.Store(held, (tile.int32_const(0),), value, span), *stores), span)
    return tile.Load(held, (tile.int32_const(0),))
