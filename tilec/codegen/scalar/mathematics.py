"""Mathematical functions of float32: within a few units in the last place by default, the hardware's approximations
with fast math.

Polynomials are minimax approximations: logarithm, tanh and erf as published by N. Juffa (NVIDIA developer forums), sine
and cosine those of Cephes' sinf and cosf.

Largest errors found on 16384 random arguments, in units of the last place against float64, with the instructions
ex2.approx, rcp.approx and rsqrt.approx taken as exact: exp, exp10, log, atan 0.8; sinh and cosh 1.1; erf 1.2; sin and
cos 1.5 up to |x| = 1e5; log2 1.6; tanh 1.8; log10 2.0; sigmoid 2.1; tan 2.7. If each ex2.approx errs by the 2^-22.5 and
each rcp.approx by the 2^-23 that the PTX ISA allows: erf 1.6, exp 3.3, tanh 3.6, sigmoid 6.7. pow loses as many digits
as its logarithm has before the point: 1e-4 in tests. The polynomials of sinh and atan are fits of our own (Lawson's
iteration, relative error). fmod is exact. tests/unit/test_codegen_scalar.py allows 2 to 8.

Functions of float32 that name their instruction: approximations, and IEEE operations with a rounding mode.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from tilec.codegen.builder import Builder, make_f32
from tilec.ptx.module import Imm, Operand, Reg, Symbol

LN2_HIGH = 0.693147182464599609375  # ln 2 rounded to float32
LOG2_E = math.log2(math.e)
ROUNDING = 1.5 * 2**23
"""Added to a float32 number of less than 2^22, it leaves the nearest whole number in the sum's lowest bits."""
HALF_PI = (1.57079601287841796875, 3.139164786504813e-7, 5.390302529957765e-15)  # π/2 in three parts
FAST_ERF = (-2.9441037e-3, 2.95898632e-2, -1.48665436e-1, -9.18509442e-1, -1.627888997)
"""The coefficients of log2(1 - erf x) / x, the highest power first: a fit of our own for x from 0 to 4 (Lawson's
iteration), beyond which 2^p is nothing beside 1. With all roundings, erf is 2^-20 off at most."""
_SINGLE_INSTRUCTIONS = {
    "rsqrt": "rsqrt.approx", "abs": "abs", "floor": "cvt.rmi.f32", "ceil": "cvt.rpi.f32", "trunc": "cvt.rzi.f32",
    "nearbyint": "cvt.rni.f32",
}  # fmt: skip


class MathFunctions:
    """Emits functions of float32. `may_call` is False where division must not be a subroutine (see `Scalars`)."""

    def __init__(self, builder: Builder, may_call: bool, fast: bool) -> None:
        self.builder, self.may_call, self.fast = builder, may_call, fast

    def __call__(self, name: str, arguments: Sequence[Reg]) -> Reg:
        """Emit the float32 function of this name, by one instruction or the method so named, and return its result."""
        if name in _SINGLE_INSTRUCTIONS:
            return self.emit_op(_SINGLE_INSTRUCTIONS[name], *arguments)
        function: Callable[..., Reg] = getattr(self, name)
        return function(*arguments)

    # ---- instructions ----

    def emit_op(self, opcode: str, *operands: Operand) -> Reg:
        """Emit an instruction with the type .f32, and return its float32 result."""
        return self.builder.create("f32", f"{opcode}.f32", *operands)

    def add(self, a: Operand, b: Operand) -> Reg:
        return self.emit_op("add.rn", a, b)

    def mul(self, a: Operand, b: Operand) -> Reg:
        return self.emit_op("mul.rn", a, b)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Reg:
        return self.emit_op("fma.rn", a, b, c)

    def divide(self, a: Operand, b: Operand) -> Reg:
        """Emit a / b: rounded once, or approximate where a subroutine is not allowed."""
        return self.emit_op("div.rn" if self.may_call else "div.full", a, b)

    def select(self, condition: Reg, a: Operand, b: Operand) -> Reg:
        return self.emit_op("selp", a, b, condition)

    def compare(self, op: str, a: Operand, b: Operand) -> Reg:
        return self.builder.create("pred", f"setp.{op}.f32", a, b)

    def emit_word(self, opcode: str, *operands: Operand) -> Reg:
        return self.builder.create("b32", opcode, *operands)

    def move_from_bits(self, word: Reg) -> Reg:
        return self.builder.create("f32", "mov.b32", word)

    def copy_sign(self, magnitude: Reg, sign: Reg) -> Reg:
        """Emit a number of at least 0 with the sign of another."""
        own = self.emit_word("mov.b32", magnitude)
        other = self.emit_word("and.b32", self.emit_word("mov.b32", sign), Imm(-0x80000000))
        return self.move_from_bits(self.emit_word("or.b32", own, other))

    def emit_polynomial(self, x: Reg, coefficients: Sequence[float]) -> Reg:
        """Evaluate the polynomial with these coefficients, the highest power first, by Horner's rule."""
        result = self.emit_op("mov", make_f32(coefficients[0]))
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, make_f32(coefficient))
        return result

    # ---- exponentials ----

    def exp2(self, x: Reg) -> Reg:
        """Emit 2 to the power x by the hardware's approximation; subnormal numbers are zero with fast math."""
        return self.emit_op("ex2.approx.ftz" if self.fast else "ex2.approx", x)

    def exp(self, x: Reg) -> Reg:
        """Emit e to the power x: by one hardware approximation with fast math, else split for accuracy."""
        if self.fast:
            return self.exp2(self.mul(x, make_f32(LOG2_E)))
        return self._emit_scaled_exp(x, LOG2_E)

    def exp10(self, x: Reg) -> Reg:
        """Emit 10 to the power x: by one hardware approximation with fast math, else split for accuracy."""
        if self.fast:
            return self.exp2(self.mul(x, make_f32(math.log2(10))))
        return self._emit_scaled_exp(x, math.log2(10))

    def _emit_scaled_exp(self, x: Reg, per_unit: float, bias: int = 127) -> Reg:
        """Emit 2 to the power x · per_unit as an exact power of two times an approximation of the fraction.

        A `bias` of 126 gives half the result, which may be finite where the result is not.
        """
        high = struct.unpack("<f", struct.pack("<f", per_unit))[0]
        # In float32 the sum has no fraction, and the whole number in its lowest bits. It is kept a normal number's
        # exponent; the excess stays in the fraction.
        whole = self.fma(x, make_f32(high), make_f32(ROUNDING))
        whole = self.emit_op("max", whole, make_f32(ROUNDING - 126))
        whole = self.emit_op("min", whole, make_f32(ROUNDING + 127))
        rest = self.fma(x, make_f32(high), self.add(make_f32(ROUNDING), self.emit_op("neg", whole)))
        rest = self.fma(x, make_f32(per_unit - high), rest)
        bits = self.emit_word("shl.b32", self.emit_word("mov.b32", whole), Imm(23))
        scale = self.move_from_bits(self.emit_word("add.s32", bits, Imm(bias << 23)))
        return self.mul(self.emit_op("ex2.approx.ftz", rest), scale)

    def _reciprocate_from_one(self, x: Reg) -> Reg:
        """Emit 1 / x for x of at least 1, to one unit in the last place: 0 where that is a subnormal number."""
        return self.emit_op("rcp.approx.ftz", x)

    def sigmoid(self, x: Reg) -> Reg:
        """Emit 1 / (1 + e^-x)."""
        return self._reciprocate_from_one(self.add(self.exp(self.emit_op("neg", x)), make_f32(1.0)))

    def _emit_half_exp(self, x: Reg) -> tuple[Reg, Reg]:
        """Emit and return e^|x| / 2 and e^-|x| / 2."""
        size = self.emit_op("abs", x)
        if self.fast:
            half = self.mul(self.exp(size), make_f32(0.5))
            return half, self.mul(self.emit_op("rcp.approx", half), make_f32(0.25))
        half = self._emit_scaled_exp(size, LOG2_E, bias=126)
        return half, self.divide(make_f32(0.25), half)

    def sinh(self, x: Reg) -> Reg:
        """Emit sinh: a polynomial for |x| below 1, else the difference of two powers."""
        half, other = self._emit_half_exp(x)
        far = self.copy_sign(self.add(half, self.emit_op("neg", other)), x)
        square = self.mul(x, x)
        series = self.emit_polynomial(square, (2.8169515644549392e-6, 1.983615948e-4, 8.3333496004e-3, 0.16666667163))
        near = self.fma(self.mul(series, square), x, x)
        return self.select(self.compare("lt", self.emit_op("abs", x), make_f32(1.0)), near, far)

    def cosh(self, x: Reg) -> Reg:
        """Emit cosh as the sum of half of e^|x| and half of e^-|x|."""
        return self.add(*self._emit_half_exp(x))

    def tanh(self, x: Reg) -> Reg:
        """Emit tanh: the hardware's with fast math, else a polynomial for |x| below 0.55 and a power of e beyond."""
        if self.fast:
            return self.emit_op("tanh.approx", x)
        square, size = self.mul(x, x), self.emit_op("abs", x)
        series = self.emit_polynomial(square, (1.57394409e-2, -5.23025990e-2, 1.33152470e-1, -3.33327681e-1))
        near = self.fma(self.mul(series, square), x, x)
        power = self.emit_op("ex2.approx.ftz", self.mul(size, make_f32(2 * LOG2_E)))
        far = self.fma(self._reciprocate_from_one(self.add(power, make_f32(1.0))), make_f32(-2.0), make_f32(1.0))
        return self.select(self.compare("lt", size, make_f32(0.55)), near, self.copy_sign(far, x))

    # ---- logarithms ----

    def log2(self, x: Reg) -> Reg:
        """Emit the binary logarithm, the hardware's approximation with fast math."""
        if self.fast:
            return self.emit_op("lg2.approx", x)
        return self._emit_logarithm(x, math.log2(math.e), 1.0)

    def log(self, x: Reg) -> Reg:
        """Emit the natural logarithm, from the hardware's binary one with fast math."""
        if self.fast:
            return self.mul(self.emit_op("lg2.approx", x), make_f32(math.log(2)))
        return self._emit_logarithm(x, 1.0, LN2_HIGH)

    def log10(self, x: Reg) -> Reg:
        """Emit the decimal logarithm, from the hardware's binary one with fast math."""
        if self.fast:
            return self.mul(self.emit_op("lg2.approx", x), make_f32(math.log10(2)))
        return self._emit_logarithm(x, math.log10(math.e), math.log10(2))

    def _emit_logarithm(self, x: Reg, of_mantissa: float, of_exponent: float) -> Reg:
        """Emit e · of_exponent + ln m · of_mantissa, where x = 2^e · m with m in [2/3, 4/3)."""
        is_small = self.compare("lt", x, make_f32(2.0**-126))
        normal = self.select(is_small, self.mul(x, make_f32(2.0**23)), x)
        word = self.emit_word("mov.b32", normal)
        shifted = self.emit_word("and.b32", self.emit_word("sub.s32", word, Imm(0x3F2AAAAB)), Imm(-0x800000))
        fraction = self.add(self.move_from_bits(self.emit_word("sub.s32", word, shifted)), make_f32(-1.0))
        exponent = self.fma(
            self.builder.create("f32", "cvt.rn.f32.s32", shifted),
            make_f32(2.0**-23),
            self.select(is_small, make_f32(-23.0), make_f32(0.0)),
        )
        square = self.mul(fraction, fraction)
        even = self.emit_polynomial(square, (-0.130310059, -0.121483512, -0.166846126, -0.249996200))
        odd = self.emit_polynomial(square, (0.140869141, 0.139814854, 0.200120345))
        series = self.fma(odd, fraction, even)
        series = self.fma(self.fma(series, fraction, make_f32(0.333331972)), fraction, make_f32(-0.5))
        natural = self.fma(series, square, fraction)
        part = natural if of_mantissa == 1.0 else self.mul(natural, make_f32(of_mantissa))
        result = self.fma(exponent, make_f32(of_exponent), part)
        # 0, negative numbers, infinity and NaN.
        result = self.select(self.compare("lt", x, make_f32(math.inf)), result, self.add(x, x))
        result = self.select(self.compare("lt", x, make_f32(0.0)), make_f32(math.nan), result)
        return self.select(self.compare("eq", x, make_f32(0.0)), make_f32(-math.inf), result)

    def pow(self, x: Reg, y: Reg) -> Reg:
        """Emit x to the power y, by the logarithm of |x|: 1 if y is 0, NaN for a negative x unless y is whole."""
        size = self.emit_op("abs", x)
        logarithm = self.emit_op("lg2.approx", size) if self.fast else self.log2(size)
        result = self.emit_op("ex2.approx", self.mul(y, logarithm))
        half = self.mul(y, make_f32(0.5))
        is_whole = self.compare("eq", self.emit_op("cvt.rmi.f32", y), y)
        is_odd = self.compare("neu", self.emit_op("cvt.rmi.f32", half), half)
        signed = self.select(is_odd, self.emit_op("neg", result), result)
        of_negative = self.select(is_whole, signed, make_f32(math.nan))
        result = self.select(self.compare("lt", x, make_f32(0.0)), of_negative, result)
        return self.select(self.compare("eq", y, make_f32(0.0)), make_f32(1.0), result)

    # ---- angles ----

    def sin(self, x: Reg) -> Reg:
        """Emit sin: the hardware's approximation with fast math, else a polynomial."""
        return self.emit_op("sin.approx", x) if self.fast else self._emit_wave(x, 0)

    def cos(self, x: Reg) -> Reg:
        """Emit cos: the hardware's approximation with fast math, else a polynomial."""
        return self.emit_op("cos.approx", x) if self.fast else self._emit_wave(x, 1)

    def tan(self, x: Reg) -> Reg:
        return self.divide(self.sin(x), self.cos(x))

    def _emit_wave(self, x: Reg, quarter: int) -> Reg:
        """Emit sin(x + quarter · π/2), from the nearest multiple of π/2."""
        quadrants = self.emit_op("cvt.rni.f32", self.mul(x, make_f32(2 / math.pi)))
        rest = x
        for part in HALF_PI:
            rest = self.fma(quadrants, make_f32(-part), rest)
        number = self.emit_word("add.s32", self.emit_word("cvt.rzi.s32.f32", quadrants), Imm(quarter))
        square = self.mul(rest, rest)
        series = self.emit_polynomial(square, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
        sine = self.fma(self.mul(series, square), rest, rest)
        series = self.emit_polynomial(square, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5))
        cosine = self.fma(series, square, make_f32(1.0))
        is_odd = self.builder.create("pred", "setp.ne.b32", self.emit_word("and.b32", number, Imm(1)), Imm(0))
        sign = self.emit_word("shl.b32", self.emit_word("and.b32", number, Imm(2)), Imm(30))
        wave = self.emit_word("mov.b32", self.select(is_odd, cosine, sine))
        return self.move_from_bits(self.emit_word("xor.b32", wave, sign))

    def atan(self, x: Reg) -> Reg:
        """Emit atan: a polynomial for |x| up to 1, beyond π/2 less the polynomial of the reciprocal."""
        size = self.emit_op("abs", x)
        is_steep = self.compare("gt", size, make_f32(1.0))
        slope = self.select(is_steep, self.divide(make_f32(1.0), size), size)
        square = self.mul(slope, slope)
        series = self.emit_polynomial(
            square,
            (-1.793589093722e-3, 1.0914460755885e-2, -3.1177578493953e-2, 5.7957325130701e-2, -8.4034346044064e-2,
             0.10952180624008, -0.14264240860939, 0.19998548924923, -0.33333298563957),
        )  # fmt: skip
        angle = self.fma(self.mul(series, square), slope, slope)
        # π/2 in two parts: rounded it would lack a third of a unit in the last place.
        rest = self.add(make_f32(math.pi / 2), self.emit_op("neg", self.add(angle, make_f32(4.371139000186e-8))))
        return self.copy_sign(self.select(is_steep, rest, angle), x)

    # ---- the rest ----

    def fmod(self, x: Reg, y: Reg) -> Reg:
        """Emit fmod, exact: a long division of the significands in integers, eight bits at a time."""
        bits, divisor = (self.emit_word("and.b32", self.emit_word("mov.b32", v), Imm(0x7FFFFFFF)) for v in (x, y))
        (rest, high), (unit, low) = self._split_float(bits), self._split_float(divisor)
        left = self.emit_word("sub.s32", high, low)
        unit = self.emit_word("max.u32", unit, Imm(1))  # a divisor of 0 gives NaN below
        self.builder.emit("rem.u32", rest, rest, unit)
        again, done = self.builder.new_label("digits"), self.builder.new_label("divided")
        self.builder.place_label(again)
        finished = self.builder.create("pred", "setp.le.s32", left, Imm(0))
        self.builder.emit("bra", Symbol(done), guard=finished)
        count = self.emit_word("min.s32", left, Imm(8))
        self.builder.emit("shl.b32", rest, rest, count)
        self.builder.emit("rem.u32", rest, rest, unit)
        self.builder.emit("sub.s32", left, left, count)
        self.builder.emit("bra", Symbol(again))
        self.builder.place_label(done)
        # In two steps, so that only the last one may give a subnormal number.
        scaled = self.mul(self.builder.create("f32", "cvt.rn.f32.u32", rest), make_f32(2.0**-23))
        result = self.copy_sign(self.mul(scaled, self.move_from_bits(self.emit_word("shl.b32", low, Imm(23)))), x)
        result = self.select(self.builder.create("pred", "setp.lt.u32", bits, divisor), x, result)
        is_number = self.compare("num", x, y)
        exists = self.builder.create("pred", "setp.lt.and.u32", bits, Imm(0x7F800000), is_number)
        exists = self.builder.create("pred", "setp.ne.and.u32", divisor, Imm(0), exists)
        return self.select(exists, result, make_f32(math.nan))

    def _split_float(self, bits: Reg) -> tuple[Reg, Reg]:
        """Emit a non-negative float's significand, as an integer, and biased exponent, 1 for a subnormal."""
        exponent = self.emit_word("shr.u32", bits, Imm(23))
        significand = self.emit_word("and.b32", bits, Imm(0x7FFFFF))
        is_normal = self.builder.create("pred", "setp.ne.u32", exponent, Imm(0))
        whole = self.emit_word("or.b32", significand, Imm(0x800000))
        return self.emit_word("selp.b32", whole, significand, is_normal), self.emit_word("max.u32", exponent, Imm(1))

    def erf(self, x: Reg) -> Reg:
        """Emit the error function: a polynomial near 0, else 1 - e^p with another polynomial p. With fast math it is
        1 - 2^p everywhere, of which small arguments keep only the absolute error."""
        if self.fast:
            size = self.emit_op("abs", x)
            power = self.mul(self.emit_polynomial(size, FAST_ERF), size)
            return self.copy_sign(self.fma(self.exp2(power), make_f32(-1.0), make_f32(1.0)), x)
        size, square = self.emit_op("abs", x), self.mul(x, x)
        # 1 - 2 to the power of a polynomial far from 0: the published one is of e.
        far = self.emit_polynomial(size, [LOG2_E * c for c in (-1.72853470e-5, 3.83197126e-4)])
        middle = self.emit_polynomial(size, [LOG2_E * c for c in (-3.88396438e-3, 2.42546219e-2)])
        far = self.fma(far, square, middle)
        for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
            far = self.fma(far, size, make_f32(LOG2_E * coefficient))
        far = self.fma(far, size, self.mul(size, make_f32(-LOG2_E)))
        far = self.copy_sign(self.fma(self.emit_op("ex2.approx.ftz", far), make_f32(-1.0), make_f32(1.0)), x)
        series = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
        near = self.fma(self.emit_polynomial(square, series), x, x)
        return self.select(self.compare("gt", size, make_f32(0.927734375)), far, near)

    def sqrt(self, x: Reg) -> Reg:
        """Emit the square root: rounded once, or approximate with fast math or where no subroutine is allowed."""
        return self.emit_op("sqrt.rn" if self.may_call and not self.fast else "sqrt.approx", x)

    def reciprocal(self, x: Reg) -> Reg:
        """Emit 1 / x: rounded once, or approximate with fast math or where no subroutine is allowed."""
        if self.fast:
            return self.emit_op("rcp.approx.ftz", x)
        return self.emit_op("rcp.rn" if self.may_call else "rcp.approx", x)

    def round(self, x: Reg) -> Reg:
        """Emit rounding half away from zero. It adds the largest number below 1/2, so that less is not rounded up."""
        half = self.copy_sign(self.emit_op("mov", make_f32(0.49999997)), x)
        return self.emit_op("cvt.rzi.f32", self.add(x, half))


_OPCODES = {"add": "add", "sub": "sub", "mul": "mul", "fmaf": "fma", "frcp": "rcp", "fsqrt": "sqrt", "fdiv": "div"}
_ROUNDING_MODES = {"rn": "rn", "rz": "rz", "ru": "rp", "rd": "rm"}
_ROUND_TO_FLOAT32 = "cvt.rn.f32.f64"


def is_intrinsic(fn: str) -> bool:
    return fn.startswith(("fast_", "ieee_"))


def emit_intrinsic(fn: str, args: Sequence[Reg], builder: Builder) -> Reg:
    """Emit a `fast_` function by the hardware's approximation, or an `ieee_` one with its rounding mode."""
    if fn == "fast_rcp":
        return builder.create("f32", "rcp.approx.ftz.f32", *args)
    if fn.startswith("fast_"):
        return MathFunctions(builder, False, True)(fn.removeprefix("fast_"), args)
    _, name, mode = fn.split("_")
    if name == "frsqrt":
        return _emit_rsqrt(args[0], builder)
    operands: tuple[Operand, ...] = tuple(args)
    return builder.create("f32", f"{_OPCODES[name]}.{_ROUNDING_MODES[mode]}.f32", *operands)


def _emit_rsqrt(x: Reg, builder: Builder) -> Reg:
    """Emit a correctly rounded 1 / sqrt(x), in float64: there is no such instruction of float32."""
    wide = builder.create("f64", "cvt.f64.f32", x)
    root = builder.create("f64", "sqrt.rn.f64", wide)
    return builder.create("f32", _ROUND_TO_FLOAT32, builder.create("f64", "rcp.rn.f64", root))
