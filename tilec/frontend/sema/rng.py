"""T.rng_init, T.rng_rand, T.rng_rand_float: random numbers, the same ones that cuRAND's Philox 4x32-10 gives.

Each number is computed from a key, a sequence and a position (Salmon et al., SC11), so that a draw only advances the
position. The state lies in local arrays of each thread.
"""

from __future__ import annotations

import math

from tilec.frontend.sema import per_thread
from tilec.frontend.sema.context import Context, Generator
from tilec.ir import tile
from tilec.ir.expr import cast, constant
from tilec.ir.types import BOOL, FLOAT32, FLOAT64, UINT32, UINT64, DType
from tilec.ops.signature import Call as Arguments, Parameter, Signature, as_expr
from tilec.support.diagnostics import fail
from tilec.support.source import Span

_PHILOX = "curandStatePhilox4_32_10_t"
INIT = Signature(
    "T.rng_init", (Parameter("seed"), Parameter("seq", None), Parameter("off", 0), Parameter("generator", _PHILOX))
)
RAND = Signature("T.rng_rand", ())
RAND_FLOAT = Signature("T.rng_rand_float", (Parameter("bit", 32), Parameter("dist", "uniform")))
DRAWS = {signature.name: signature for signature in (RAND, RAND_FLOAT)}

_STEP = 2.0**-32


def initialise(context: Context, call: Arguments) -> None:
    """Give every thread a generator; without `seq` every thread of the grid has a sequence of its own."""
    if context.is_parallel:
        fail(
            "tile-op-in-parallel",
            f"T.rng_init cannot stand inside {context.nest_name}",
            call.span,
            help="a thread has one generator: write it before the loop",
        )
    if call["generator"].value != _PHILOX:
        call.refuse("generator", f'"{_PHILOX}", the only one that tilec has')
    seed, offset = (_integer(call, name) for name in ("seed", "off"))
    sequence = _thread_of_grid(context) if call["seq"].value is None else _integer(call, "seq")
    if context.generator is None:
        words = per_thread.local(context, "generator", (4,), UINT64, call.span)
        context.generator = Generator(words, per_thread.local(context, "spare", (1,), FLOAT32, call.span))
    words = context.generator.words
    values = (seed, sequence, offset, constant(0, UINT64))
    stores = (tile.Store(words, (tile.integer(n),), value, call.span) for n, value in enumerate(values))
    per_thread.each_thread(context, tuple(stores), call.span)


def _integer(call: Arguments, name: str) -> tile.Expr:
    value = as_expr(call[name])
    if value.dtype.is_float or value.dtype == BOOL:
        call.refuse(name, "an integer")
    return cast(value, UINT64)


def _thread_of_grid(context: Context) -> tile.Expr:
    block: tile.Expr = constant(0, UINT64)
    for var, extent in reversed(context.blocks):
        block = _wide("add", _wide("mul", block, cast(tile.extent_expr(extent), UINT64)), cast(var, UINT64))
    return _wide(
        "add", _wide("mul", block, constant(math.prod(context.thread_extents), UINT64)), cast(tile.THREAD, UINT64)
    )


def _wide(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return tile.Binary(op, a, b, UINT64)


def draw(context: Context, call: Arguments) -> tile.Expr:
    """Draw the next number of each running thread; inside T.Parallel, of the thread that has the element."""
    generator = context.generator
    if generator is None:
        fail(
            "uninitialised-generator",
            f"{call.name} before T.rng_init",
            call.span,
            help="write T.rng_init(seed) before it, where every thread runs it",
        )
    if call.name == RAND.name:
        return _next(context, generator, call.span)
    bit, dist = call["bit"].value, call["dist"].value
    if bit not in (32, 64):
        call.refuse("bit", "32 or 64")
    if dist not in ("uniform", "normal"):
        call.refuse("dist", '"uniform" or "normal"')
    if dist == "normal" and bit == 64:
        call.refuse("bit", "32: normal numbers are made with functions that tilec has of float32 only")
    if dist == "normal":
        return _normal(context, generator, call.span)
    number = _next(context, generator, call.span)
    if bit == 32:
        return _scaled(number, FLOAT32, _STEP, _STEP / 2)
    return _scaled(number, FLOAT64, _STEP, _STEP)


def _scaled(number: tile.Expr, dtype: DType, step: float, more: float) -> tile.Expr:
    """Return `number * step + more`: with cuRAND's constants a uniform number above 0, up to 1."""
    product = tile.Binary("mul", cast(number, dtype), constant(step, dtype), dtype)
    return tile.Binary("add", product, constant(more, dtype), dtype)


def _next(context: Context, generator: Generator, span: Span) -> tile.Expr:
    position = generator.word(2)
    number = _at(generator, position)
    advance = tile.Store(generator.words, (tile.integer(2),), _wide("add", position, constant(1, UINT64)), span)
    return _kept(context, "random", number, (advance,), span)


def _at(generator: Generator, position: tile.Expr) -> tile.Expr:
    return tile.Call("philox", (generator.word(0), generator.word(1), position), UINT32)


def _normal(context: Context, generator: Generator, span: Span) -> tile.Expr:
    """Draw a normal number by the Box-Muller method: first the sine of a pair, then its cosine, kept as the spare."""
    position, is_spare = generator.word(2), tile.Binary("ne", generator.word(3), constant(0, UINT64), BOOL)
    first = _scaled(_at(generator, position), FLOAT32, _STEP, _STEP / 2)
    full_circle = _STEP * 2 * math.pi
    following = _wide("add", position, constant(1, UINT64))
    angle = _scaled(_at(generator, following), FLOAT32, full_circle, full_circle / 2)
    log = tile.Binary("mul", constant(-2.0, FLOAT32), tile.Call("log", (first,), FLOAT32), FLOAT32)
    size = tile.Call("sqrt", (log,), FLOAT32)
    sine, cosine = (tile.Binary("mul", tile.Call(fn, (angle,), FLOAT32), size, FLOAT32) for fn in ("sin", "cos"))
    held = tile.Load(generator.spare, (tile.integer(0),))
    value = tile.Select(is_spare, held, sine, FLOAT32)
    next_spare = tile.Select(is_spare, held, cosine, FLOAT32)
    next_position = tile.Select(is_spare, position, _wide("add", position, constant(2, UINT64)), UINT64)
    next_flag = tile.Select(is_spare, constant(0, UINT64), constant(1, UINT64), UINT64)
    stores = (
        tile.Store(generator.spare, (tile.integer(0),), next_spare, span),
        tile.Store(generator.words, (tile.integer(2),), next_position, span),
        tile.Store(generator.words, (tile.integer(3),), next_flag, span),
    )
    return _kept(context, "normal", value, stores, span)


def _kept(context: Context, name: str, value: tile.Expr, stores: tuple[tile.Stmt, ...], span: Span) -> tile.Expr:
    """Emit the bind of a drawn value, and the stores that advance the state after it."""
    if context.is_parallel:
        var = tile.Var(context.unique.take(name), value.dtype)
        context.out += (tile.Bind(var, value, span), *stores)
        return var
    held = per_thread.local(context, name, (1,), value.dtype, span)
    per_thread.each_thread(context, (tile.Store(held, (tile.integer(0),), value, span), *stores), span)
    return tile.Load(held, (tile.integer(0),))
