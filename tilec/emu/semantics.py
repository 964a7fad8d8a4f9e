"""Arithmetic, logic and comparison: what each thread does with its own registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.decode import Form, Run, semantics
from tilec.emu.numbers import (
    TYPES,
    Array,
    Type,
    bf16_to_f32,
    clamp_integer,
    f32_to_bf16,
    flush,
    fma_f32,
    fma_f64,
    high_product,
    narrow,
    truncating_divide,
)
from tilec.ptx.module import NotPred, Operand, Pair, Reg

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

_ROUNDINGS = ("rn", "rz", "rm", "rp")


def elementwise(form: Form, operation: Callable[..., Array], result: str, *sources: str) -> None:
    """The usual step: `result = operation(sources)` over all active threads."""
    target = form.write(form.operands[0], result)
    slots = [form.read(operand, name) for operand, name in zip(form.operands[1:], sources, strict=True)]
    form.step.run = apply(operation, target, slots)


def apply(operation: Callable[..., Array], target: int, slots: list[int]) -> Run:
    """A closure without a loop over operands: this is the hot path."""
    if len(slots) == 1:
        (a,) = slots

        def run_one(cta: Cta, threads: Threads) -> None:
            views = cta.views
            views[target][threads] = operation(views[a][threads])

        return run_one
    if len(slots) == 2:
        a, b = slots

        def run_two(cta: Cta, threads: Threads) -> None:
            views = cta.views
            views[target][threads] = operation(views[a][threads], views[b][threads])

        return run_two

    def run_many(cta: Cta, threads: Threads) -> None:
        views = cta.views
        views[target][threads] = operation(*[views[slot][threads] for slot in slots])

    return run_many


def _float_operation(form: Form, view: Type, operation: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap an operation on floats with what the opcode asks around it: bf16, `.ftz`, `.sat`, `.relu`."""
    wrapped = operation
    if view.kind == "bf16":

        def in_f32(*values: Array) -> Array:
            return f32_to_bf16(operation(*[bf16_to_f32(value) for value in values]))

        wrapped = in_f32
    elif form.has("ftz") and view.name == "f32":

        def flushed(*values: Array) -> Array:
            return flush(operation(*[flush(value) for value in values]))

        wrapped = flushed
    if form.has("sat", "relu") and view.kind != "bf16":
        inner, top = wrapped, 1.0 if form.has("sat") else np.inf

        def saturated(*values: Array) -> Array:
            result = inner(*values)
            return np.where(np.isnan(result) & form.has("sat"), 0, np.clip(result, 0.0, top)).astype(result.dtype)

        return saturated
    if form.has("relu"):
        inner = wrapped
        return lambda *values: np.where((inner(*values) & 0x8000) != 0, np.uint16(0), inner(*values))
    return wrapped


def _rounded(form: Form, view: Type, operation: Callable[..., Array]) -> Callable[..., Array]:
    """`.rz`, `.rm` and `.rp` of f32 arithmetic, through float64."""
    rounding = form.first(*_ROUNDINGS, default="rn")
    if rounding == "rn" or view.name != "f32":
        return operation
    return lambda *values: narrow(operation(*[value.astype(np.float64) for value in values]), view.dtype, rounding)


# -- sums, products, quotients -----------------------------------------------------------------------------------------


@semantics("add", "sub")
def _add(form: Form) -> None:
    view = form.type()
    if form.has("cc"):
        raise form.unsupported("carries")
    operation: Callable[..., Array] = np.add if form.stem == "add" else np.subtract
    if view.kind in ("f", "bf16"):
        operation = _float_operation(form, view, _rounded(form, view, operation))
    elif form.has("sat"):
        exact = operation
        operation = lambda a, b: clamp_integer(exact(a.astype(np.int64), b.astype(np.int64)), view.dtype)  # noqa: E731
    elementwise(form, operation, view.name, view.name, view.name)


@semantics("mul")
def _mul(form: Form) -> None:
    view = form.type()
    if view.kind in ("f", "bf16"):
        operation = _float_operation(form, view, _rounded(form, view, np.multiply))
        elementwise(form, operation, view.name, view.name, view.name)
    elif form.has("wide"):
        wide = _double(view)
        elementwise(form, lambda a, b: a.astype(wide.dtype) * b, wide.name, view.name, view.name)
    else:
        elementwise(form, high_product if form.has("hi") else np.multiply, view.name, view.name, view.name)


@semantics("mad")
def _mad(form: Form) -> None:
    view = form.type()
    if view.kind == "f":
        _fma(form)
    elif form.has("cc"):
        raise form.unsupported("carries")
    elif form.has("wide"):
        wide = _double(view)
        elementwise(form, lambda a, b, c: a.astype(wide.dtype) * b + c, wide.name, view.name, view.name, wide.name)
    elif form.has("hi"):
        elementwise(form, lambda a, b, c: high_product(a, b) + c, view.name, *[view.name] * 3)
    else:
        elementwise(form, lambda a, b, c: a * b + c, view.name, *[view.name] * 3)


def _double(view: Type) -> Type:
    return TYPES[f"{view.kind}{view.bits * 2}"]


@semantics("fma")
def _fma(form: Form) -> None:
    view = form.type()
    rounding = form.first(*_ROUNDINGS, default="rn")

    def half(a: Array, b: Array, c: Array) -> Array:
        return (a.astype(np.float64) * b + c).astype(np.float16)

    def single(a: Array, b: Array, c: Array) -> Array:
        return fma_f32(a, b, c, rounding)

    exact: Callable[..., Array] = half if view.dtype == np.float16 else fma_f64 if view.name == "f64" else single
    elementwise(form, _float_operation(form, view, exact), view.name, *[view.name] * 3)


@semantics("div")
def _div(form: Form) -> None:
    view = form.type()
    if view.kind == "f":
        operation = _float_operation(form, view, _rounded(form, view, np.divide))
        elementwise(form, operation, view.name, view.name, view.name)
    else:
        elementwise(form, lambda a, b: truncating_divide(a, b)[0], view.name, view.name, view.name)


@semantics("rem")
def _rem(form: Form) -> None:
    name = form.type().name
    elementwise(form, lambda a, b: truncating_divide(a, b)[1], name, name, name)


@semantics("sad")
def _sad(form: Form) -> None:
    name = form.type().name
    elementwise(form, lambda a, b, c: np.where(a > b, a - b, b - a) + c, name, name, name, name)


@semantics("dp4a")
def _dp4a(form: Form) -> None:
    left, right = form.types[-2], form.types[-1]

    def dot(a: Array, b: Array, c: Array) -> Array:
        bytes_a = np.ascontiguousarray(a).view(np.int8 if left[0] == "s" else np.uint8).reshape(-1, 4)
        bytes_b = np.ascontiguousarray(b).view(np.int8 if right[0] == "s" else np.uint8).reshape(-1, 4)
        total: Array = (bytes_a.astype(np.int64) * bytes_b).sum(axis=1) + c
        return total.astype(np.uint32)

    elementwise(form, dot, "b32", "b32", "b32", left)


@semantics("min", "max")
def _min_max(form: Form) -> None:
    view = form.type()
    if view.kind in ("f", "bf16"):
        table = {("min", False): np.fmin, ("max", False): np.fmax, ("min", True): np.minimum, ("max", True): np.maximum}
        pick = table[form.stem, form.has("NaN")]
        operation = _float_operation(form, view, lambda a, b: pick(a, b))
    else:
        integer = np.minimum if form.stem == "min" else np.maximum
        operation = integer
    if len(form.operands) == 4:
        two = operation
        elementwise(form, lambda a, b, c: two(two(a, b), c), view.name, *[view.name] * 3)
    else:
        elementwise(form, operation, view.name, view.name, view.name)


@semantics("abs", "neg")
def _abs_neg(form: Form) -> None:
    view = form.type()
    if view.kind == "bf16":
        bits = {"abs": lambda a: a & np.uint16(0x7FFF), "neg": lambda a: a ^ np.uint16(0x8000)}[form.stem]
        elementwise(form, bits, view.name, view.name)
        return
    operation: Callable[..., Array] = np.abs if form.stem == "abs" else np.negative
    if view.kind == "f":
        operation = _float_operation(form, view, operation)
    elementwise(form, operation, view.name, view.name)


@semantics("copysign")
def _copysign(form: Form) -> None:
    name = form.type().name
    elementwise(form, lambda sign, value: np.copysign(value, sign), name, name, name)


# -- transcendental functions ------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@semantics(*_FUNCTIONS)
def _function(form: Form) -> None:
    view = form.type()
    function = _FUNCTIONS[form.stem]
    rounding = form.first(*_ROUNDINGS, default="rn")

    def in_f64(values: Array) -> Array:
        # Computed in float64 and rounded once: as good as the best approximation the hardware may give.
        result_type = np.dtype(np.float32) if view.kind == "bf16" else view.dtype
        return narrow(function(values.astype(np.float64)), result_type, rounding)

    operation = function if view.name == "f64" else in_f64
    elementwise(form, _float_operation(form, view, operation), view.name, view.name)


# -- bits --------------------------------------------------------------------------------------------------------------


@semantics("and", "or", "xor")
def _logic(form: Form) -> None:
    operation = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[form.stem]
    name = form.type().name
    elementwise(form, operation, name, name, name)


@semantics("not")
def _not(form: Form) -> None:
    name = form.type().name
    elementwise(form, np.invert, name, name)


@semantics("cnot")
def _cnot(form: Form) -> None:
    name = form.type().name
    elementwise(form, lambda a: (a == 0).astype(a.dtype), name, name)


@semantics("shl", "shr")
def _shift(form: Form) -> None:
    view = form.type()
    limit = np.uint32(view.bits)
    is_left = form.stem == "shl"

    def shift(a: Array, amount: Array) -> Array:
        # A shift by the width or more gives zero, or copies of the sign.
        clamped = np.minimum(amount, limit - np.uint32(1)).astype(a.dtype)
        shifted: Array = np.left_shift(a, clamped) if is_left else np.right_shift(a, clamped)
        if view.kind == "s" and not is_left:
            return shifted
        return np.where(amount >= limit, np.array(0, a.dtype), shifted)

    elementwise(form, shift, view.name, view.name, "u32")


@semantics("shf")
def _funnel(form: Form) -> None:
    is_left, wraps = form.has("l"), form.has("wrap")

    def shift(low: Array, high: Array, amount: Array) -> Array:
        count = (amount & np.uint32(31) if wraps else np.minimum(amount, np.uint32(32))).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        if is_left:
            return ((both << count) >> np.uint64(32)).astype(np.uint32)
        return (both >> count).astype(np.uint32)

    elementwise(form, shift, "b32", "b32", "b32", "u32")


@semantics("popc", "clz", "brev", "bfind")
def _count(form: Form) -> None:
    view = form.type()
    unsigned = f"b{view.bits}"

    def bits_of(a: Array) -> Array:
        return np.unpackbits(
            np.ascontiguousarray(a).view(np.uint8).reshape(-1, view.bits // 8), axis=1, bitorder="little"
        )

    def popc(a: Array) -> Array:
        count: Array = bits_of(a).sum(axis=1)
        return count.astype(np.uint32)

    def clz(a: Array) -> Array:
        bits = bits_of(a)[:, ::-1]
        return np.where(bits.any(axis=1), bits.argmax(axis=1), view.bits).astype(np.uint32)

    def brev(a: Array) -> Array:
        return np.packbits(bits_of(a)[:, ::-1], axis=1, bitorder="little").view(a.dtype).reshape(-1)

    def bfind(a: Array) -> Array:
        magnitude = np.where(a >> a.dtype.type(view.bits - 1), ~a, a) if view.kind == "s" else a
        zeros = clz(magnitude)
        found = zeros if form.has("shiftamt") else np.uint32(view.bits - 1) - zeros
        return np.where(zeros == view.bits, np.uint32(0xFFFFFFFF), found)

    operation = {"popc": popc, "clz": clz, "brev": brev, "bfind": bfind}[form.stem]
    elementwise(form, operation, unsigned if form.stem == "brev" else "u32", unsigned)


@semantics("bfe")
def _extract(form: Form) -> None:
    view = form.type()
    bits = view.bits

    def extract(a: Array, start: Array, length: Array) -> Array:
        first, count = (start & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
        wide = a.astype(np.uint64)
        mask = np.where(
            count >= 64,
            np.uint64(0xFFFFFFFFFFFFFFFF),
            (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1),
        )
        field = np.where(first < bits, wide >> np.minimum(first, 63).astype(np.uint64), np.uint64(0)) & mask
        if view.kind == "s":
            last = np.minimum(first + count - 1, bits - 1)
            sign = (wide >> np.clip(last, 0, 63).astype(np.uint64)) & np.uint64(1)
            kept = np.where(first < bits, np.clip(np.minimum(count, bits - first), 0, 64), 0)
            above = np.where(
                kept >= 64, np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF) << np.minimum(kept, 63).astype(np.uint64)
            )
            field = np.where((sign == 1) & (count > 0), field & ~above | above, field)
        return field.astype(a.dtype)

    elementwise(form, extract, f"b{bits}", f"b{bits}", "u32", "u32")


@semantics("bfi")
def _insert(form: Form) -> None:
    view = form.type()
    bits = view.bits

    def insert(a: Array, b: Array, start: Array, length: Array) -> Array:
        first, count = (start & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
        position = np.arange(bits)
        chosen = (position >= first[:, None]) & (position < (first + count)[:, None])
        mask = np.where(chosen, np.uint64(1) << position.astype(np.uint64), np.uint64(0)).sum(axis=1, dtype=np.uint64)
        shifted = np.where(first < bits, a.astype(np.uint64) << np.minimum(first, 63).astype(np.uint64), np.uint64(0))
        merged: Array = (shifted & mask) | (b.astype(np.uint64) & ~mask)
        return merged.astype(b.dtype)

    elementwise(form, insert, view.name, view.name, view.name, "u32", "u32")


@semantics("lop3")
def _lop3(form: Form) -> None:
    table = form.integer(form.operands[4])
    target = form.write(form.operands[0], "b32")
    slots = [form.read(operand, "b32") for operand in form.operands[1:4]]

    def combine(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a)
        for row in range(8):
            if table >> row & 1:
                result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    form.step.run = apply(combine, target, slots)


@semantics("prmt")
def _permute(form: Form) -> None:
    if form.has("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        raise form.unsupported("this mode")

    def permute(a: Array, b: Array, selector: Array) -> Array:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros_like(a)
        for index in range(4):
            nibble = (selector >> np.uint32(4 * index)) & np.uint32(15)
            byte = ((both >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)).astype(
                np.uint32
            )
            sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
            result |= np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * index)
        return result

    elementwise(form, permute, "b32", "b32", "b32", "u32")


# -- comparison and choice ---------------------------------------------------------------------------------------------

_INTEGER_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _float_test(name: str) -> Callable[[Any, Any], Any]:
    if name == "num":
        return lambda a, b: ~_unordered(a, b)
    if name == "nan":
        return _unordered
    if name == "ne":
        return lambda a, b: (a != b) & ~_unordered(a, b)
    if name in _INTEGER_TESTS:
        return _INTEGER_TESTS[name]
    ordered = _INTEGER_TESTS[name[:-1]]
    return lambda a, b: ordered(a, b) | _unordered(a, b)


_FLOAT_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _test(form: Form, view: Type) -> Callable[[Any, Any], Any]:
    if view.kind not in ("f", "bf16"):
        name = form.first(*_INTEGER_TESTS)
        if not name:
            raise form.unsupported("no comparison of integers")
        return _INTEGER_TESTS[name]
    name = form.first(*_FLOAT_TESTS)
    if not name:
        raise form.unsupported("no comparison of floats")
    test = _float_test(name)
    if view.kind == "bf16":
        return lambda a, b: test(bf16_to_f32(a), bf16_to_f32(b))
    if form.has("ftz") and view.name == "f32":
        return lambda a, b: test(flush(a), flush(b))
    return test


def predicate_source(form: Form, operand: Operand) -> tuple[int, bool]:
    """The slot of `p` or `!p`, and whether it is negated."""
    if isinstance(operand, NotPred):
        return form.read(operand.reg, "pred"), True
    return form.read(operand, "pred"), False


@semantics("setp")
def _setp(form: Form) -> None:
    view = form.type()
    test = _test(form, view)
    destination = form.operands[0]
    other_slot = -1
    if isinstance(destination, Pair):
        if view.lanes == 2:
            raise form.unsupported("two results of packed halves")
        other_slot = form.write(destination.second, "pred")
        destination = destination.first
    target = form.write(destination, "pred")
    a, b = form.read(form.operands[1], view.name), form.read(form.operands[2], view.name)
    if len(form.operands) == 3 and other_slot < 0:
        form.step.run = apply(test, target, [a, b])
        return
    combine = _COMBINE[form.first(*_COMBINE, default="and")]
    extra, is_negated = predicate_source(form, form.operands[3]) if len(form.operands) == 4 else (-1, False)

    def run(cta: Cta, threads: Threads) -> None:
        views = cta.views
        result = test(views[a][threads], views[b][threads])
        opposite = ~result
        if extra >= 0:
            with_value = views[extra][threads] ^ is_negated
            result, opposite = combine(result, with_value), combine(opposite, with_value)
        views[target][threads] = result
        if other_slot >= 0:
            views[other_slot][threads] = opposite

    form.step.run = run


@semantics("set")
def _set(form: Form) -> None:
    view, result = form.type(), TYPES[form.types[0]]
    test = _test(form, view)
    if len(form.operands) == 4:
        raise form.unsupported("a third source")
    # Integers get all ones, floats 1.0.
    value = np.array(1.0, result.dtype) if result.kind == "f" else np.array(-1).astype(result.dtype)
    zero = np.array(0, result.dtype)
    elementwise(form, lambda a, b: np.where(test(a, b), value, zero), result.name, view.name, view.name)


@semantics("selp")
def _selp(form: Form) -> None:
    name = form.type().name
    target = form.write(form.operands[0], name)
    a, b = form.read(form.operands[1], name), form.read(form.operands[2], name)
    condition, is_negated = predicate_source(form, form.operands[3])
    if is_negated:
        a, b = b, a

    def choose(x: Array, y: Array, chosen: Array) -> Array:
        return np.where(chosen, x, y)

    if isinstance(form.operands[3], (Reg, NotPred)):
        form.step.run = apply(choose, target, [a, b, condition])
    else:
        raise form.unsupported("a constant condition")
