"""Decoders of arithmetic and comparison on each thread's own registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import StepFunction
from tilec.emu.numbers import (
    TYPES,
    Array,
    PtxType,
    bf16_to_f32,
    clamp_integer,
    divide_truncating,
    f32_to_bf16,
    flush_subnormals,
    fma_f64,
    multiply_high,
    narrow_float,
)
from tilec.emu.scalar.rounding import add_to_odd, compute_directed, fma_f32, round_to_odd_f32
from tilec.ptx.module import NotPred, Operand

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads

_ROUNDINGS = ("rn", "rz", "rm", "rp")


def decode_elementwise(form: Form, operation: Callable[..., Array], result: str, *sources: str) -> None:
    """Set the step to `result = operation(sources)` for each thread; `result` and `sources` are the operands' types."""
    target = form.write(form.operands[0], result)
    slots = [form.read(operand, name) for operand, name in zip(form.operands[1:], sources, strict=True)]
    form.step.run = build_elementwise_step(operation, target, slots)


def decode_same_type(form: Form, operation: Callable[..., Array]) -> None:
    """Set the step to an elementwise operation whose result and sources all have the opcode's only type."""
    name = form.parse_type().name
    decode_elementwise(form, operation, name, *[name] * (len(form.operands) - 1))


def compose_conversions(
    operation: Callable[..., Array], before: Callable[[Array], Array], after: Callable[[Array], Array]
) -> Callable[..., Array]:
    """Return an operation that converts its sources by `before` and its result by `after`."""
    return lambda *values: after(operation(*map(before, values)))


def build_elementwise_step(operation: Callable[..., Array], target: int, slots: list[int]) -> StepFunction:
    """Return a step function that applies an operation to the source slots and writes the target slot. It has no loop
    over operands: this is the hot path."""
    if len(slots) == 1:
        (a,) = slots

        def run_one(cta: Cta, threads: Threads) -> None:
            """Write the operation's result on one source slot to the target slot, for these threads."""
            views = cta.views
            views[target][threads] = operation(views[a][threads])

        return run_one
    if len(slots) == 2:
        a, b = slots

        def run_two(cta: Cta, threads: Threads) -> None:
            """Write the operation's result on two source slots to the target slot, for these threads."""
            views = cta.views
            views[target][threads] = operation(views[a][threads], views[b][threads])

        return run_two

    def run_many(cta: Cta, threads: Threads) -> None:
        """Write the operation's result on all source slots to the target slot, for these threads."""
        views = cta.views
        views[target][threads] = operation(*[views[slot][threads] for slot in slots])

    return run_many


def _wrap_float_operation(form: Form, view: PtxType, operation: Callable[..., Array]) -> Callable[..., Array]:
    """Return a float operation with the opcode's bf16 conversion, `.ftz`, `.sat` and `.relu` around it."""
    wrapped = operation
    if view.kind == "bf16":
        wrapped = compose_conversions(operation, bf16_to_f32, f32_to_bf16)
    elif form.has("ftz") and view.name != "f64":
        wrapped = compose_conversions(operation, flush_subnormals, flush_subnormals)
    if form.has("sat", "relu") and view.kind != "bf16":
        inner, top = wrapped, 1.0 if form.has("sat") else np.inf

        def compute_clamped(*values: Array) -> Array:
            """Compute the operation and clamp its result to 0 to 1 for `.sat`, where NaN becomes 0, or to at least 0
            for `.relu`."""
            result = inner(*values)
            # The interval begins at +0 (CUDA's `__saturatef` gives +0 for x ≤ 0), and −0 lies below it.
            clamped = np.clip(result, 0.0, top) + 0.0
            return np.where(np.isnan(result) & form.has("sat"), 0, clamped).astype(result.dtype)

        return compute_clamped
    if form.has("relu"):
        inner = wrapped
        return lambda *values: np.where((inner(*values) & 0x8000) != 0, np.uint16(0), inner(*values))
    return wrapped


def _apply_rounding(form: Form, view: PtxType, operation: Callable[..., Array], name: str) -> Callable[..., Array]:
    """Return the operation with the opcode's rounding `.rz`, `.rm` or `.rp`, or unchanged for nearest and
    non-floats."""
    rounding = form.find_modifier(*_ROUNDINGS, default="rn")
    if rounding == "rn" or view.kind != "f":
        return operation
    return lambda *values: compute_directed(name, view.dtype, rounding, *values)


# -- sums, products, quotients -----------------------------------------------------------------------------------------


@register_decoder("add", "sub", accepts="rn noftz")
def _decode_add(form: Form) -> None:
    """Decode `add` and `sub` into an elementwise step, of integers with or without `.sat`, of floats, or of mixed
    types."""
    if len(form.types) == 2:
        _decode_mixed(form, form.stem)
        return
    view = form.parse_type()
    operation: Callable[..., Array] = np.add if form.stem == "add" else np.subtract
    if view.kind in ("f", "bf16"):
        operation = _wrap_float_operation(form, view, _apply_rounding(form, view, operation, form.stem))
    elif form.has("sat"):
        # `.sat` has at most 32 bits, so int64 holds every sum.
        exact = operation
        operation = lambda a, b: clamp_integer(exact(a.astype(np.int64), b.astype(np.int64)), view.dtype)  # noqa: E731
    decode_same_type(form, operation)


@register_decoder("mul", accepts="rn lo hi wide")
def _decode_mul(form: Form) -> None:
    """Decode `mul` into an elementwise step: a float product, or the low half, high half or all of an integer one."""
    view = form.parse_type()
    if view.kind in ("f", "bf16"):
        decode_same_type(form, _wrap_float_operation(form, view, _apply_rounding(form, view, np.multiply, "mul")))
    elif form.has("wide"):
        wide = _double_width(view)
        decode_elementwise(form, lambda a, b: a.astype(wide.dtype) * b, wide.name, view.name, view.name)
    else:
        decode_same_type(form, multiply_high if form.has("hi") else np.multiply)


@register_decoder("mad", accepts="lo hi")
def _decode_mad(form: Form) -> None:
    """Decode `mad` into an elementwise step: `fma` for floats, or an integer product's low half, high half or all plus
    a sum."""
    view = form.parse_type()
    if view.kind == "f":
        _decode_fma(form)
    elif form.has("sat"):
        decode_same_type(form, lambda a, b, c: clamp_integer(multiply_high(a, b).astype(np.int64) + c, view.dtype))
    elif form.has("wide"):
        wide, name = _double_width(view), view.name
        decode_elementwise(form, lambda a, b, c: a.astype(wide.dtype) * b + c, wide.name, name, name, wide.name)
    elif form.has("hi"):
        decode_same_type(form, lambda a, b, c: multiply_high(a, b) + c)
    else:
        decode_same_type(form, lambda a, b, c: a * b + c)


def _double_width(view: PtxType) -> PtxType:
    """Return the type of the same kind with twice the bits."""
    return TYPES[f"{view.kind}{view.bits * 2}"]


def _decode_mixed(form: Form, name: str) -> None:
    """Decode add, sub or fma of halves with an f32 last operand and result into an elementwise step; refuse other
    types. An example is `add.f32.f16 d, a, c`."""
    result, half = form.types
    if result != "f32" or half not in ("f16", "bf16") or form.has("ftz"):
        raise form.unsupported("this combination of types")
    view = TYPES["f32"]
    rounding = form.find_modifier(*_ROUNDINGS, default="rn")
    widen: Callable[[Array], Array] = bf16_to_f32 if half == "bf16" else lambda a: a.astype(np.float32)

    def compute_exact(*values: Array) -> Array:
        """Compute the operation in f32 with one rounding, from widened halves and the last operand."""
        *halves, last = values
        wide = [widen(value) for value in halves]
        if name == "fma":
            return fma_f32(wide[0], wide[1], last, rounding)
        if rounding != "rn":
            return compute_directed(name, view.dtype, rounding, *wide, last)
        return wide[0] + last if name == "add" else wide[0] - last

    sources = [half] * (len(form.operands) - 2)
    decode_elementwise(form, _wrap_float_operation(form, view, compute_exact), "f32", *sources, "f32")


@register_decoder("fma")
def _decode_fma(form: Form) -> None:
    """Decode `fma` into an elementwise step with one rounding; halves with an f32 sum are decoded as mixed."""
    if len(form.types) == 2:
        _decode_mixed(form, "fma")
        return
    view = form.parse_type()
    rounding = form.find_modifier(*_ROUNDINGS, default="rn")

    def compute_fma(a: Array, b: Array, c: Array) -> Array:
        """Compute `a·b+c` with one rounding; for bf16 as f32 rounded to odd, which the conversion rounds again."""
        if view.name in ("f32", "f32x2"):
            return fma_f32(a, b, c, rounding)
        if view.name == "f64":
            return fma_f64(a, b, c) if rounding == "rn" else compute_directed("fma", view.dtype, rounding, a, b, c)
        total = add_to_odd(a.astype(np.float64) * b, c.astype(np.float64))
        # For bf16 kept odd in f32, so that rounding once more is the only rounding.
        return round_to_odd_f32(total) if view.kind == "bf16" else total.astype(np.float16)

    decode_same_type(form, _wrap_float_operation(form, view, compute_fma))


@register_decoder("div", accepts="approx full")
def _decode_div(form: Form) -> None:
    """Decode `div` into an elementwise step: floats by the opcode's rounding, integers towards zero."""
    view = form.parse_type()
    if view.kind == "f":
        decode_same_type(form, _wrap_float_operation(form, view, _apply_rounding(form, view, np.divide, "div")))
    else:
        decode_same_type(form, lambda a, b: divide_truncating(a, b)[0])


def view_parts(values: Array, type_name: str, count: int) -> Array:
    """Return the `count` parts of each 32-bit value, lowest first, as signed or unsigned by the first letter of a
    type."""
    part = np.dtype(f"{'i' if type_name[0] == 's' else 'u'}{4 // count}")
    return np.ascontiguousarray(values).view(part).reshape(-1, count)


@register_decoder("dp4a")
def _decode_dp4a(form: Form) -> None:
    """Decode `dp4a` into an elementwise step that adds a dot product of four bytes to a sum."""
    left, right = form.types[-2], form.types[-1]

    def dot_bytes(a: Array, b: Array, c: Array) -> Array:
        """Return `c` plus the sum of the products of the bytes of `a` and `b`."""
        total: Array = (view_parts(a, left, 4).astype(np.int64) * view_parts(b, right, 4)).sum(axis=1) + c
        return total.astype(np.uint32)

    decode_elementwise(form, dot_bytes, "b32", "b32", "b32", left)


def select_float_extreme(stem: str, propagates_nan: bool) -> Callable[[Array, Array], Array]:
    """Return a `min` or `max` function of floats, with −0 below +0; a NaN wins only if `propagates_nan`."""
    is_min = stem == "min"
    pick: Callable[[Array, Array], Array] = np.fmin if is_min else np.fmax
    if propagates_nan:
        pick = np.minimum if is_min else np.maximum

    def choose_extreme(a: Array, b: Array) -> Array:
        """Return the smaller or larger of two floats, −0 counting as below +0."""
        picked = pick(a, b)
        if picked.all():
            return picked
        return np.where((a == 0) & (b == 0), np.where(np.signbit(a) == is_min, a, b), picked)

    return choose_extreme


@register_decoder("min", "max")
def _decode_min_max(form: Form) -> None:
    """Decode `min` and `max` into an elementwise step, with `.abs`, `.xorsign`, `.NaN`, `.relu` and three operands."""
    view = form.parse_type()
    operation: Callable[..., Array] = np.minimum if form.stem == "min" else np.maximum
    if view.kind in ("f", "bf16"):
        pick = select_float_extreme(form.stem, form.has("NaN"))

        def choose_with_sign(a: Array, b: Array) -> Array:
            """Return the extreme of two magnitudes, with the product of the operands' signs (`.xorsign.abs`)."""
            sign = np.where(np.signbit(a) ^ np.signbit(b), -1.0, 1.0)
            return np.copysign(pick(np.abs(a), np.abs(b)), sign).astype(a.dtype)

        two: Callable[..., Array] = choose_with_sign if form.has("xorsign") else pick
        if form.has("abs") and not form.has("xorsign"):
            two = lambda a, b: pick(np.abs(a), np.abs(b))  # noqa: E731
        many = two
        if len(form.operands) == 4:
            many = lambda a, b, c: two(two(a, b), c)  # noqa: E731
        operation = _wrap_float_operation(form, view, many)
    elif form.has("relu"):
        integer = operation
        operation = lambda a, b: np.maximum(integer(a, b), 0)  # noqa: E731
    decode_same_type(form, operation)


@register_decoder("abs", "neg", accepts="ftz")
def _decode_abs_neg(form: Form) -> None:
    """Decode `abs` and `neg` into an elementwise step; for bf16 it changes the sign bit only."""
    view = form.parse_type()
    operation: Callable[..., Array] = np.abs if form.stem == "abs" else np.negative
    if view.kind == "bf16":
        sign = np.uint16(0x8000)
        operation = (lambda a: a & ~sign) if form.stem == "abs" else (lambda a: a ^ sign)
    elif view.kind == "f":
        operation = _wrap_float_operation(form, view, operation)
    decode_same_type(form, operation)


# -- transcendental functions ------------------------------------------------------------------------------------------

_TRANSCENDENTALS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@register_decoder(*_TRANSCENDENTALS, accepts="approx ftz")
def _decode_transcendental(form: Form) -> None:
    """Decode rcp, sqrt, rsqrt, ex2, lg2, sin, cos and tanh into an elementwise step computed in float64 and rounded
    once."""
    view = form.parse_type()
    function = _TRANSCENDENTALS[form.stem]
    rounding = form.find_modifier(*_ROUNDINGS, default="rn")

    def compute_in_f64(values: Array) -> Array:
        """Compute the function in float64 and round the result once, to the type or to f32 for bf16."""
        # Computed in float64 and rounded once: as good as the best approximation the hardware may give.
        result_type = np.dtype(np.float32) if view.kind == "bf16" else view.dtype
        return narrow_float(function(values.astype(np.float64)), result_type, rounding)

    def approximate_in_f64(values: Array) -> Array:
        """Compute the function from the upper words of f64 arguments, and keep only the result's upper words."""
        upper = (values.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
        return (function(upper).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)

    operation = function if view.name == "f64" else compute_in_f64
    if view.name == "f64" and form.has("approx") and form.has("ftz"):
        operation = approximate_in_f64
    elif rounding != "rn" and view.kind == "f":
        operation = lambda values: compute_directed(form.stem, view.dtype, rounding, values)  # noqa: E731
    decode_same_type(form, _wrap_float_operation(form, view, operation))


# -- comparison and choice ---------------------------------------------------------------------------------------------

_INTEGER_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    **dict.fromkeys(("lt", "lo"), np.less),
    **dict.fromkeys(("le", "ls"), np.less_equal),
    **dict.fromkeys(("gt", "hi"), np.greater),
    **dict.fromkeys(("ge", "hs"), np.greater_equal),
}
_PREDICATE_OPERATIONS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _is_unordered(a: Array, b: Array) -> Array:
    """Return whether either of two floats is NaN."""
    return np.isnan(a) | np.isnan(b)


def _select_float_test(name: str) -> Callable[[Any, Any], Any]:
    """Return a comparison of floats by name: `lt` is false if either is NaN, `ltu` true; `num` and `nan` test for
    NaN."""
    if name == "num":
        return lambda a, b: ~_is_unordered(a, b)
    if name == "nan":
        return _is_unordered
    if name == "ne":
        return lambda a, b: (a != b) & ~_is_unordered(a, b)
    if name in _INTEGER_TESTS:
        return _INTEGER_TESTS[name]
    ordered = _INTEGER_TESTS[name[:-1]]
    return lambda a, b: ordered(a, b) | _is_unordered(a, b)


_FLOAT_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _select_test(form: Form, view: PtxType) -> Callable[[Any, Any], Any]:
    """Return the opcode's comparison of numbers as registers hold them (bf16 widened, `.ftz` applied); fault if it has
    none."""
    is_float = view.kind in ("f", "bf16")
    name = form.find_modifier(*(_FLOAT_TESTS if is_float else _INTEGER_TESTS))
    if not name:
        raise form.unsupported(f"no comparison operator for {'floats' if is_float else 'integers'}")
    if not is_float:
        return _INTEGER_TESTS[name]
    test = _select_float_test(name)
    if view.kind == "bf16":
        return lambda a, b: test(bf16_to_f32(a), bf16_to_f32(b))
    if form.has("ftz") and view.name == "f32":
        return lambda a, b: test(flush_subnormals(a), flush_subnormals(b))
    return test


def read_predicate(form: Form, operand: Operand) -> tuple[int, bool]:
    """Return the slot of a predicate operand `p` or `!p`, and whether it is negated."""
    if isinstance(operand, NotPred):
        return form.read(operand.reg, "pred"), True
    return form.read(operand, "pred"), False


@register_decoder("setp")
def _decode_setp(form: Form) -> None:
    """Decode `setp` into a step that compares two numbers into one or two predicates, with or without a third
    predicate."""
    view = form.parse_type()
    test = _select_test(form, view)
    target, other_slot = form.write_pair(form.operands[0], "pred")
    a, b = form.read(form.operands[1], view.name), form.read(form.operands[2], view.name)
    if len(form.operands) == 3 and other_slot < 0:
        form.step.run = build_elementwise_step(test, target, [a, b])
        return
    combine = _PREDICATE_OPERATIONS[form.find_modifier(*_PREDICATE_OPERATIONS, default="and")]
    extra, is_negated = read_predicate(form, form.operands[3]) if len(form.operands) == 4 else (-1, False)

    @form.set_run
    def run_setp(cta: Cta, threads: Threads) -> None:
        """Write the comparison, combined with the third predicate, and to the second target its opposite. For packed
        halves the second is the upper half's comparison."""
        views = cta.views
        result = test(views[a][threads], views[b][threads])
        result, second = (result[:, 0], result[:, 1]) if view.lanes == 2 else (result, ~result)
        if extra >= 0:
            with_value = views[extra][threads] ^ is_negated
            result, second = combine(result, with_value), combine(second, with_value)
        views[target][threads] = result
        if other_slot >= 0:
            views[other_slot][threads] = second


@register_decoder("set")
def _decode_set(form: Form) -> None:
    """Decode `set` into a step that compares two numbers and writes all ones or 1.0 where true, zero elsewhere."""
    view, result = form.parse_type(-1), form.parse_type(0)
    test = _select_test(form, view)
    # Integers get all ones, floats 1.0.
    if result.kind == "bf16":
        value = np.array(0x3F80, np.uint16)
    else:
        value = np.array(1.0, result.dtype) if result.kind == "f" else np.array(-1).astype(result.dtype)
    zero = np.array(0, result.dtype)
    if result.lanes < view.lanes:
        # `set.eq.u32.f16x2` gives a mask of 16 bits for each half.
        result, value, zero = TYPES["u16x2"], np.array(0xFFFF, np.uint16), np.array(0, np.uint16)
    target = form.write(form.operands[0], result.name)
    slots = [form.read(operand, view.name) for operand in form.operands[1:3]]
    if len(form.operands) == 3:
        form.step.run = build_elementwise_step(lambda a, b: np.where(test(a, b), value, zero), target, slots)
        return
    combine = _PREDICATE_OPERATIONS[form.find_modifier(*_PREDICATE_OPERATIONS, default="and")]
    extra, is_negated = read_predicate(form, form.operands[3])

    def select_with_predicate(a: Array, b: Array, c: Array) -> Array:
        """Return the true value where the comparison combined with the third predicate holds, zero elsewhere."""
        other = c ^ is_negated
        return np.where(combine(test(a, b), other[:, None] if view.lanes == 2 else other), value, zero)

    form.step.run = build_elementwise_step(select_with_predicate, target, [*slots, extra])


@register_decoder("slct", accepts="ftz")
def _decode_slct(form: Form) -> None:
    """Decode `slct` into an elementwise step that chooses between two values by the sign of a third."""
    name, by = form.types[0], form.types[1]

    def choose_by_sign(a: Array, b: Array, c: Array) -> Array:
        """Return `a` where `c` is at least zero, `b` elsewhere."""
        sign = flush_subnormals(c) if form.has("ftz") and by == "f32" else c
        return np.where(sign >= 0, a, b)

    decode_elementwise(form, choose_by_sign, name, name, name, by)


_FLOAT_CLASS_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (np.abs(a) < np.finfo(a.dtype).tiny) & (a != 0),
}


@register_decoder("testp")
def _decode_testp(form: Form) -> None:
    """Decode `testp` into an elementwise step that tests the class of a float, such as finite; other tests are
    unsupported."""
    name = form.find_modifier(*_FLOAT_CLASS_TESTS)
    if not name:
        raise form.unsupported("an unknown test")
    decode_elementwise(form, _FLOAT_CLASS_TESTS[name], "pred", form.parse_type().name)


@register_decoder("selp")
def _decode_selp(form: Form) -> None:
    """Decode `selp` into an elementwise step that chooses between two values by a predicate or its negation."""
    name = form.parse_type().name
    target = form.write(form.operands[0], name)
    a, b = form.read(form.operands[1], name), form.read(form.operands[2], name)
    condition, is_negated = read_predicate(form, form.operands[3])
    slots = [condition, b, a] if is_negated else [condition, a, b]
    form.step.run = build_elementwise_step(np.where, target, slots)
