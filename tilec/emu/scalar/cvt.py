"""`cvt`: conversions between integers, floats and small floats, with every rounding, `.sat`, `.relu` and
`.satfinite`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.emu import numbers
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import Array, PtxType
from tilec.emu.scalar.rounding import round_to_bf16
from tilec.emu.scalar.semantics import build_elementwise_step, decode_elementwise

_FLOAT_ROUNDINGS = ("rn", "rz", "rm", "rp")
_SMALL_PAIRS = {f"{name}x2": name for name in numbers.SMALL_FLOATS}
_LARGEST_FINITE = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "tf32": 3.4011621342146535e38}


@register_decoder("cvt", accepts="rn rna sat relu satfinite ftz")
def _decode_cvt(form: Form) -> None:
    """Decode `cvt` of one number or a pair into an elementwise step, by its two types; other packed forms are
    unsupported."""
    kinds = form.find_modifiers(*numbers.TYPES, *_SMALL_PAIRS)
    if len(kinds) != 2 or form.has("rs"):
        raise form.unsupported("these types")
    result, source = kinds
    if result in _SMALL_PAIRS:
        _decode_to_small(form, _SMALL_PAIRS[result], source)
    elif source in _SMALL_PAIRS:
        _decode_from_small(form, result, _SMALL_PAIRS[source])
    elif numbers.TYPES[result].lanes == 2 and len(form.operands) == 3:
        _decode_float_pack(form, numbers.TYPES[result])
    elif numbers.TYPES[result].lanes > 1 or numbers.TYPES[source].lanes > 1:
        raise form.unsupported("packed operands")
    else:
        decode_elementwise(form, build_conversion(form, numbers.TYPES[result], numbers.TYPES[source]), result, source)


def build_conversion(form: Form, target: PtxType, source: PtxType) -> Callable[[Array], Array]:
    """Return a function from numbers of one type to numbers of another, with the form's rounding and saturation."""
    from_float, to_float = source.kind in ("f", "bf16"), target.kind in ("f", "bf16") or target.name == "tf32"
    if not from_float and to_float:
        return _build_integer_to_float(form, target)
    if not from_float:
        return (
            (lambda a: numbers.clamp_integer(a, target.dtype))
            if form.has("sat")
            else (lambda a: a.astype(target.dtype))
        )
    widen = _build_widening(form, source)
    if not to_float:
        to_int = form.find_modifier(*numbers.INTEGER_ROUNDINGS, default="rzi")
        return lambda a: numbers.convert_to_integer(widen(a), target.dtype, to_int)
    return _build_float_to_float(form, target, source, widen)


def _build_integer_to_float(form: Form, target: PtxType) -> Callable[[Array], Array]:
    """Return a function from integers to floats, with one rounding and `.sat`."""
    rounding = form.find_modifier(*_FLOAT_ROUNDINGS, default="rn")

    def convert_values(values: Array) -> Array:
        """Convert integers to the target float type, rounded once in the opcode's way."""
        if target.kind == "bf16" or (rounding == "rn" and target.dtype != np.float16):
            direct = values.astype(np.float32 if target.kind == "bf16" else target.dtype)
            if target.kind == "f":
                return direct
        wide = values.astype(np.float64)
        # 64-bit integers may not fit float64: rounding to odd leaves the decision to the last rounding.
        if values.dtype.itemsize == 8:
            wide = np.where(wide.astype(object) != values.astype(object), _round_to_odd(values), wide)
        if target.kind == "bf16":
            return round_to_bf16(wide, rounding)
        if target.name == "f64":
            return _round_integers_to_f64(values, rounding)
        return numbers.narrow_float(wide, target.dtype, rounding)

    def convert_and_saturate(values: Array) -> Array:
        """Convert integers to the float type, and clamp to 0 to 1 for `.sat`."""
        result = convert_values(values)
        return np.clip(result, 0, 1).astype(result.dtype) if form.has("sat") and target.kind == "f" else result

    return convert_and_saturate


def _round_to_odd(values: Array) -> Array:
    """Convert 64-bit integers to float64, rounded to odd: any lost bit sets the last bit of the mantissa."""
    result = []
    for value in values.tolist():
        magnitude, drop = abs(value), max(abs(value).bit_length() - 53, 0)
        kept = magnitude >> drop
        kept |= (kept << drop) != magnitude
        result.append(float(kept << drop) * (1 if value >= 0 else -1))
    return np.array(result)


def _round_integers_to_f64(values: Array, rounding: str) -> Array:
    """Convert 64-bit integers to float64, rounded as "rn", "rz", "rm" or "rp" says."""
    nearest = values.astype(np.float64)
    result = []
    for exact, near in zip(values.tolist(), nearest.tolist(), strict=True):
        too_small, too_large = int(near) < exact, int(near) > exact
        if too_large and (rounding == "rm" or (rounding == "rz" and exact > 0)):
            near = float(np.nextafter(near, -np.inf))
        elif too_small and (rounding == "rp" or (rounding == "rz" and exact < 0)):
            near = float(np.nextafter(near, np.inf))
        result.append(near)
    return np.array(result)


def _build_widening(form: Form, source: PtxType) -> Callable[[Array], Array]:
    """Return a function from a source type to floats that numpy computes in; with `.ftz` subnormal f32 become zero."""
    if source.kind == "bf16":
        return numbers.bf16_to_f32
    if form.has("ftz") and source.name == "f32":
        return numbers.flush_subnormals
    return lambda a: a


def _build_float_to_float(
    form: Form, target: PtxType, source: PtxType, widen: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    """Return a conversion between float types: `.sat`, `.relu` and `.satfinite` first, then one rounding."""
    rounding = form.find_modifier(*_FLOAT_ROUNDINGS, default="rn")
    integral = form.find_modifier(*numbers.INTEGER_ROUNDINGS)

    def convert_values(values: Array) -> Array:
        """Convert floats to the target type: integral rounding, limits, and then one rounding to its precision."""
        wide = widen(values)
        if integral:
            wide = numbers.INTEGER_ROUNDINGS[integral](wide)
        if form.has("sat"):
            wide = np.where(np.isnan(wide), 0, np.clip(wide, 0, 1) + 0.0).astype(wide.dtype)
        wide = _apply_limits(form, target.name, wide)
        if target.kind == "bf16":
            return round_to_bf16(wide.astype(np.float64), rounding)
        if target.name == "tf32":
            return _round_to_tf32(wide, rounding if form.has(*_FLOAT_ROUNDINGS) else "rna")
        if target.bits >= source.bits and source.kind == "f":
            return wide.astype(target.dtype)
        result = numbers.narrow_float(wide, target.dtype, rounding)
        return numbers.flush_subnormals(result) if form.has("ftz") and target.name == "f32" else result

    return convert_values


def _apply_limits(form: Form, name: str, values: Array) -> Array:
    """Return floats with negative ones replaced by zero for `.relu`, and clamped to the format's finite range for
    `.satfinite`."""
    if form.has("relu"):
        values = np.where(values < 0, np.zeros_like(values), values)
    if form.has("satfinite"):
        largest = values.dtype.type(_LARGEST_FINITE[name])
        values = np.clip(values, -largest, largest)
    return values


def _round_to_tf32(values: Array, rounding: str) -> Array:
    """Round f32 to bits of tf32: "rna" ties away from zero, "rn" to even, "rz" towards zero; infinities and NaNs
    stay."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    even = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    half: Array = {"rna": np.array(0x1000, np.uint32), "rn": even, "rz": np.array(0, np.uint32)}[rounding]
    rounded: Array = np.add(bits, half) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded, bits)


# -- two at a time -----------------------------------------------------------------------------------------------------


def _decode_float_pack(form: Form, target: PtxType) -> None:
    """Decode `cvt` of two f32 to a packed pair, as `cvt.rn.f16x2.f32 d, high, low`, into an elementwise step."""
    slot = form.write(form.operands[0], f"b{target.bits}")
    high, low = form.read(form.operands[1], "f32"), form.read(form.operands[2], "f32")
    rounding = form.find_modifier(*_FLOAT_ROUNDINGS, default="rn")
    name = target.name.removesuffix("x2")

    def convert_half(values: Array) -> Array:
        """Return the bits of f32 numbers as f16 or bf16, after `.relu` and `.satfinite`."""
        values = _apply_limits(form, name, values)
        if name == "bf16":
            return round_to_bf16(values.astype(np.float64), rounding)
        return numbers.narrow_float(values, np.dtype(np.float16), rounding).view(np.uint16)

    pack_pair = lambda a, b: _pack_halves(convert_half(a), convert_half(b))  # noqa: E731
    form.step.run = build_elementwise_step(pack_pair, slot, [high, low])


def _pack_halves(high: Array, low: Array) -> Array:
    """Return words of 32 bits with `high` in the upper 16 and `low` in the lower."""
    packed: Array = (high.astype(np.uint32) << np.uint32(16)) | low
    return packed


def _decode_pair_source(form: Form, source: str) -> tuple[list[int], Callable[..., tuple[Array, Array]]]:
    """Return the slots of a pair of floats and a function from them to two f32, high one first; fault on other
    sources."""
    if source == "f32" and len(form.operands) == 3:
        slots = [form.read(operand, "f32") for operand in form.operands[1:]]
        return slots, lambda high, low: (high, low)
    if source in ("f16x2", "bf16x2"):
        slots = [form.read(form.operands[1], source)]
        widen = numbers.bf16_to_f32 if source == "bf16x2" else lambda a: a.astype(np.float32)
        return slots, lambda both: (widen(both[:, 1]), widen(both[:, 0]))
    raise form.unsupported("this source")


def _decode_to_small(form: Form, name: str, source: str) -> None:
    """Decode `cvt` of two floats to two packed codes of a small float into an elementwise step."""
    small = numbers.SMALL_FLOATS[name]
    slots, halves = _decode_pair_source(form, source)
    # Four bits each fill a byte; six take the low bits of one.
    target = form.write(form.operands[0], "b8" if small.bits == 4 else "b16")
    shift = np.uint16(4 if small.bits == 4 else 8)
    rounding = form.find_modifier("rn", "rz", "rp", default="rn")

    def pack_codes(*values: Array) -> Array:
        """Round two floats to codes of the small float, after `.relu`, and pack them."""
        parts = []
        for part in halves(*values):
            part = np.where(part < 0, np.float32(0), part) if form.has("relu") else part
            parts.append(numbers.small_from_f32(part, name, rounding).astype(np.uint16))
        packed: Array = (parts[0] << shift) | parts[1]
        return packed

    form.step.run = build_elementwise_step(pack_codes, target, slots)


def _decode_from_small(form: Form, result: str, name: str) -> None:
    """Decode `cvt` of two packed small codes to f16x2 or bf16x2 into an elementwise step; other targets are
    unsupported."""
    small = numbers.SMALL_FLOATS[name]
    target = form.write(form.operands[0], "b32")
    source = form.read(form.operands[1], "b16")
    shift = np.uint16(4 if small.bits == 4 else 8)
    mask = np.uint16((1 << small.bits) - 1)
    if result not in ("f16x2", "bf16x2"):
        raise form.unsupported("this target")

    def convert_code(bits: Array) -> Array:
        """Return the bits of the low code as f16 or bf16, after `.relu`."""
        values = numbers.small_to_f32((bits & mask).astype(np.uint8), name)
        if form.has("relu"):
            values = np.where(values < 0, np.float32(0), values)
        if result == "bf16x2":
            return round_to_bf16(values.astype(np.float64), "rn")
        return values.astype(np.float16).view(np.uint16)

    convert_pair = lambda bits: _pack_halves(convert_code(bits >> shift), convert_code(bits))  # noqa: E731
    form.step.run = build_elementwise_step(convert_pair, target, [source])


@register_decoder("cvt.pack")
def _decode_cvt_pack(form: Form) -> None:
    """Decode `cvt.pack.sat` into a step that packs two integers, below a third if under 16 bits; other forms are
    refused."""
    small, source_type = [part for part in form.modifiers if part[1:].isdigit()][:2]
    width = int(small[1:])
    if width in (2, 4):
        form.understood.add(small)
    target = form.write(form.operands[0], "b32")
    slots = [form.read(operand, source_type) for operand in form.operands[1:3]]
    has_third = len(form.operands) == 4
    if (width < 16) != has_third or not form.has("sat"):
        raise form.unsupported("these operands")
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if small[0] == "s" else (0, (1 << width) - 1)
    if has_third:
        slots.append(form.read(form.operands[3], "b32"))
    mask = np.uint64((1 << width) - 1)

    def saturate_values(values: Array) -> Array:
        """Clamp integers to the small type and return their bits."""
        clipped: Array = np.clip(values.astype(np.int64), low, high)
        return clipped.astype(np.uint64) & mask

    def pack_integers(a: Array, b: Array, *third: Array) -> Array:
        """Return words with `a` above `b`, both saturated, and a third operand above those."""
        both = (saturate_values(a) << np.uint64(width)) | saturate_values(b)
        if third:
            both |= third[0].astype(np.uint64) << np.uint64(2 * width)
        return (both & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    form.step.run = build_elementwise_step(pack_integers, target, slots)
