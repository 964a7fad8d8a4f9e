"""Emits scalar expressions, and the PTX that a kernel's author writes. Pure integer expressions are computed once per
scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from tilec.codegen.builder import (
    Builder,
    RegisterClass,
    encode_half,
    encode_small_float,
    get_register_class,
    invert_power_of_two,
    make_immediate,
)
from tilec.codegen.scalar import integers, small_floats
from tilec.codegen.scalar.mathematics import MathFunctions, emit_intrinsic, is_intrinsic
from tilec.codegen.scalar.warp_functions import emit_warp_function
from tilec.ir import tile
from tilec.ir.affine import UNKNOWN, Affine, Interval, add_exprs, affine_form, value_interval
from tilec.ir.expr import SMALL_FLOATS, cast_expr, integer_range, wrap_integer
from tilec.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT32, DType
from tilec.ptx import snippet
from tilec.ptx.module import Address, FloatImm, Imm, Operand, Reg, Vector
from tilec.support.diagnostics import InternalError

FLOAT_NAMES = {**small_floats.FLOAT8_NAMES, FLOAT16: "f16", BFLOAT16: "bf16"}
"""The PTX names of the floats below 32 bits."""
ReadElement = Callable[[tile.Load], Operand]
"""A function that returns the value of a buffer element which an expression reads."""


def _refuse_barrier(barrier: tile.Load) -> Address:
    raise InternalError(f"{barrier.buffer.name} is asked for before barriers have places")


def _refuse_load(load: tile.Load) -> Operand:
    raise InternalError(f"{load.buffer.name} is read before there are addresses")


OVERFLOWING = frozenset({"add", "sub", "mul", "floordiv", "shl"})
"""Operations on integers whose exact result may lie outside the type."""


class Scalars:
    """Emits the expressions of one entry. `ranges` has the interval of every variable, to simplify divisions and
    bounds. `read_uniform` reads elements outside elementwise nests, where all threads read the same one. `barrier`
    returns the address of a barrier."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.read_uniform: ReadElement = _refuse_load
        self.barrier: Callable[[tile.Load], Address] = _refuse_barrier
        # Correctly rounded division and roots are subroutines, and a call serialises every wgmma of the kernel (C7509).
        # Kernels with wgmma use the forms without a call, exact to two units in the last place.
        self.may_call = True
        self.fast_math = False  # use the hardware's approximations
        self.may_fuse = False  # the assembler may fuse a product and a sum
        self.converts_fp8 = True  # the target has instructions for it
        self.loads = 0
        self.scopes: list[dict[object, Operand]] = [{}]  # keyed by expression, or by the key of `once`
        self.outer = 1  # the number of scopes around hoisted code
        self.ranges: dict[tile.Var, Interval] = {}
        self.changing: frozenset[Reg] | None = None  # the registers that are written meanwhile; None: any may be

    # ---- scopes ----

    @contextmanager
    def open_scope(self) -> Iterator[None]:
        """Forget all values computed inside when the scope ends: the code may not have run."""
        self.scopes.append({})
        yield
        self.scopes.pop()

    def define_variable(self, var: tile.Var, value: Operand, bounds: Interval) -> None:
        """Give a variable its operand in the innermost scope, and its interval."""
        self.scopes[-1][var] = value
        self.ranges[var] = bounds

    def is_known(self, var: tile.Var) -> bool:
        """Return whether a variable has a value at this place of the code."""
        return any(var in scope for scope in self.scopes)

    def find_interval(self, expr: tile.Expr) -> Interval:
        """Return the interval of an expression's values, from the ranges of its variables."""
        return value_interval(expr, self.ranges)

    def compute_once(self, key: object, compute: Callable[[], Reg]) -> Reg:
        """Return the register computed under `key` in this or an enclosing scope; else compute and remember it."""
        for scope in reversed(self.scopes):
            found = scope.get(key)
            if isinstance(found, Reg):
                return found
        result = compute()
        self.scopes[-1][key] = result
        return result

    def create_once(self, key: object, opcode: str, *operands: Operand) -> Reg:
        """Return the 32-bit result of an instruction emitted under `key` in an enclosing scope, or emit it."""
        return self.compute_once(key, lambda: self.builder.create("b32", opcode, *operands))

    @contextmanager
    def assume_changing_only(self, registers: Iterable[Reg]) -> Iterator[None]:
        """Open a scope in which operations are reused unless they use these registers, which alone may change.

        Reused are such operations as the elements of a row have in common.
        """
        before, self.changing = self.changing, frozenset(registers)
        with self.open_scope():
            yield
        self.changing = before

    def reuse_result(self, what: object, operands: Sequence[Operand], compute: Callable[[], Reg]) -> Reg:
        """Return an operation's earlier result if, in `assume_changing_only`, no operand changes; else compute it."""
        if self.changing is None or any(operand in self.changing for operand in operands):
            return compute()
        return self.compute_once((what, *operands), compute)

    def reuse_instruction(self, cls: RegisterClass, opcode: str, operands: Sequence[Operand]) -> Reg:
        """Return an instruction's earlier result if, in `assume_changing_only`, no operand changes; else emit it."""
        return self.reuse_result(opcode, operands, lambda: self.builder.create(cls, opcode, *operands))

    def mark_hoist_place(self) -> None:
        """Mark this point of the code as the place where hoisted code is inserted later."""
        self.builder.mark_hoist_place()
        self.outer = len(self.scopes)

    def compute_hoisted(self, key: object, compute: Callable[[], Reg]) -> Reg:
        """Return the register computed under `key` at the marked hoist place, for all later code; compute it once.

        It may use only values known at that place.
        """
        inner, self.scopes = self.scopes[self.outer :], self.scopes[: self.outer]
        with self.builder.hoist_code():
            result = self.compute_once(key, compute)
        self.scopes += inner
        return result

    def create_hoisted(self, key: object, opcode: str, *operands: Operand) -> Reg:
        """Return the 32-bit result of an instruction emitted once, under `key`, at the marked hoist place."""
        return self.compute_hoisted(key, lambda: self.builder.create("b32", opcode, *operands))

    # ---- indices ----

    def settle_indices(self, indices: tuple[tile.Expr, ...]) -> tuple[tile.Expr, ...]:
        """Return the indices with each whose sum may overflow int32 replaced by one variable plus a constant.

        A bounds test and an address then use the same register. A sum that is tested in 32 bits and added up again in
        64 could pass the test and still reach another element. Sums of loop variables, block indices and sizes are
        assumed not to overflow; sums with elements of tensors or other parameters are not.
        """
        return tuple(self.settle_index(index) for index in indices)

    def settle_index(self, index: tile.Expr) -> tile.Expr:
        """Return the index, or one new variable plus a constant if its sum may overflow int32."""
        parts = list(tile.walk_expr(index))
        if not any(map(self.has_unknown_range, parts)):
            return index
        form = affine_form(index)
        constant = max(form.constant, 0)  # a test against the size less this constant does not overflow
        moving = form.without_constant() if form.constant == constant else index
        if isinstance(moving, tile.Var):
            return index
        if not any(isinstance(e, tile.Load) for e in parts) and self.fits_in_int32(form):
            return index
        register = self.get_register(moving)
        settled = tile.Var(f"%index{register.name}")
        self.define_variable(settled, register, integer_range(INT32))
        return add_exprs(settled, tile.int32_const(constant))

    def fits_in_int32(self, form: Affine) -> bool:
        """Return whether an affine form stays within int32 for all known values of its terms."""
        low: float = form.constant
        high: float = form.constant
        for atom, coefficient in form.terms:
            ends = [coefficient * end for end in self.find_interval(atom)]
            low, high = low + min(ends), high + max(ends)
        return integer_range(INT32)[0] <= low and high <= integer_range(INT32)[1]

    def has_unknown_range(self, expr: tile.Expr) -> bool:
        """Return whether an expression is a buffer's element, or a variable whose range is not known within int32."""
        if isinstance(expr, tile.Load):
            return True
        low, high = self.ranges.get(expr, UNKNOWN) if isinstance(expr, tile.Var) else (0, 0)
        return low <= integer_range(INT32)[0] or high > integer_range(INT32)[1]

    # ---- conditions ----

    def list_bounds(self, index: tile.Expr, extent: tile.Extent) -> list[tile.Expr]:
        """Return the conditions for 0 ≤ index < extent, without those that the known ranges prove.

        The test against an extent that is known only at launch stays.
        """
        form = affine_form(index)
        low, high = self.find_interval(index)
        found: list[tile.Expr] = []
        if not isinstance(extent, int) and form.constant > 0 and self.has_unknown_range(form.without_constant()):
            # The sum may overflow; the size without the constant does not.
            left = tile.Binary("sub", extent, tile.int32_const(form.constant), INT32)
            found.append(tile.Binary("lt", form.without_constant(), left, BOOL))
        elif not isinstance(extent, int):
            found.append(tile.Binary("lt", index, cast_expr(extent, index.dtype), BOOL))
        elif high >= extent:
            found.append(tile.Binary("lt", form.without_constant(), tile.int32_const(extent - form.constant), BOOL))
        if low < 0:
            found.append(tile.Binary("ge", form.without_constant(), tile.int32_const(-form.constant), BOOL))
        return found

    def list_conditions(self, condition: tile.Expr) -> list[tile.Expr]:
        """Return the parts of a conjunction, without those that the known ranges prove. Those that bound an index are
        written as by `list_bounds`, so that they are tested once."""
        match condition:
            case tile.Binary(op="and", a=a, b=b):
                return self.list_conditions(a) + self.list_conditions(b)
            case tile.Binary(op="lt" | "ge" as op, a=a, b=tile.Const(value=value)) if a.dtype == INT32:
                form = affine_form(a)
                low, high = self.find_interval(a)
                if low >= value if op == "ge" else high < value:
                    return []
                return [tile.Binary(op, form.without_constant(), tile.int32_const(int(value) - form.constant), BOOL)]
            case _:
                return [] if tile.is_true(condition) else [condition]

    def test_all(self, conditions: Iterable[tile.Expr]) -> Reg | None:
        """Return a predicate that holds where all conditions do; None if there are none."""
        total: tile.Expr | None = None
        for condition in dict.fromkeys(conditions):
            total = condition if total is None else tile.Binary("and", total, condition, BOOL)
        return None if total is None else self.get_register(total)

    # ---- values ----

    def get_register(self, expr: tile.Expr, read: ReadElement | None = None) -> Reg:
        """Emit an expression and return its value in a register; `read` (None: `read_uniform`) gives its elements."""
        value = self.get_operand(expr, read)
        return value if isinstance(value, Reg) else self.materialise(value, expr.dtype)

    def materialise(self, value: Operand, dtype: DType) -> Reg:
        """Emit the move of an immediate operand to a new register of the type's class, and return it."""
        cls = get_register_class(dtype)
        if cls == "pred":
            assert isinstance(value, Imm)
            return self.builder.create("pred", "setp.ne.b32", Imm(value.value), Imm(0))
        return self.builder.create(cls, f"mov.{cls}", value)

    def get_operand(self, expr: tile.Expr, read: ReadElement | None = None) -> Operand:
        """Return an expression's operand: an immediate constant, one known in a scope, or emitted now.

        A constant 16-bit float is a register. Integers and booleans that read no element are kept in the scope.
        InternalError for a variable without a value.
        """
        if isinstance(expr, tile.Const):
            if expr.dtype.kind == "bool":
                return Imm(int(bool(expr.value)))
            operand = make_immediate(expr)
            return self.materialise(operand, expr.dtype) if expr.dtype.is_float and expr.dtype.bits == 16 else operand
        if isinstance(expr, tile.Load):
            self.loads += 1
            return (read or self.read_uniform)(expr)
        reusable = not expr.dtype.is_float or isinstance(expr, tile.Var)
        if reusable:
            for scope in reversed(self.scopes):
                if expr in scope:
                    return scope[expr]
        if isinstance(expr, tile.Var):
            raise InternalError(f"the variable {expr.name} has no value here")
        loads = self.loads
        result = self.emit_expr(expr, read)
        if reusable and self.loads == loads:  # memory may change
            self.scopes[-1][expr] = result
        return result

    def emit_expr(self, expr: tile.Expr, read: ReadElement | None) -> Operand:
        """Emit an operation, call, cast or choice with its operands, and return the value."""
        match expr:
            case tile.Unary(op=op, a=a):
                return self.emit_unary(op, a, expr.dtype, read)
            case tile.Binary(op=op, a=a, b=b):
                if op in tile.COMPARISONS:
                    return self.emit_comparison(op, a, b, read)
                if expr.dtype.kind == "bool":
                    return self.emit_logic(op, a, b, read)
                if expr.dtype.is_float:
                    return self.emit_float_binary(op, a, b, expr.dtype, read)
                return self.emit_int_binary(op, a, b, expr.dtype, read)
            case tile.Call(fn=fn, args=args):
                return self.emit_call(fn, args, expr.dtype, read)
            case tile.Ptx():
                return emit_ptx(expr, [self.get_register(a, read) for a in expr.args], self.builder)
            case tile.Cast(a=tile.Call(fn=fn, args=(a,), dtype=of), dtype=to) if (
                fn in WHOLE_NUMBERS and of == a.dtype == FLOAT32 and to.kind in ("int", "uint")
            ):
                return self.emit_conversion(self.get_operand(a, read), FLOAT32, to, WHOLE_NUMBERS[fn])
            case tile.Cast(a=a):
                return self.emit_conversion(self.get_operand(a, read), a.dtype, expr.dtype)
            case tile.Select(condition=c, then=a, orelse=b):
                return self.emit_select(c, a, b, expr.dtype, read)
            case _:
                raise InternalError(f"no instruction for {expr}")

    # ---- integers and booleans ----

    def emit_int_binary(
        self, op: tile.BinaryOp, a: tile.Expr, b: tile.Expr, dtype: DType, read: ReadElement | None
    ) -> Reg:
        """Emit an integer operation, and wrap its result to the bits of a small type if it may overflow."""
        result = self.emit_wide_binary(op, a, b, dtype, read)
        return self.wrap_integer(result, dtype) if op in OVERFLOWING else result

    def emit_wide_binary(
        self, op: tile.BinaryOp, a: tile.Expr, b: tile.Expr, dtype: DType, read: ReadElement | None
    ) -> Reg:
        """Emit an integer operation on whole registers, with shifts for powers of two; small types may have excess
        bits.
        """
        wide = get_register_class(dtype)
        signed, bits = ("s" if dtype.kind == "int" else "u"), ("64" if wide == "b64" else "32")
        emit = self.builder.create
        if op in ("floordiv", "floormod"):
            return self.emit_division(op, a, b, dtype, read)
        x, y = self.get_operand(a, read), self.get_operand(b, read)
        simple = {name: f"{name}.{signed}" for name in ("add", "sub", "min", "max")} | {"mul": f"mul.lo.{signed}"}
        if op in simple:
            if op == "mul" and isinstance(b, tile.Const) and _is_power_of_two(int(b.value)):
                return emit(wide, f"shl.b{bits}", self.ensure_register(x, dtype), Imm(int(b.value).bit_length() - 1))
            if isinstance(x, Imm) and op in ("add", "mul", "min", "max"):
                x, y = y, x
            return emit(wide, simple[op] + bits, self.ensure_register(x, dtype), y)
        logical = {"bitand": "and.b", "bitor": "or.b", "xor": "xor.b", "shl": "shl.b", "shr": f"shr.{signed}"}
        if op not in logical:
            raise InternalError(f"no integer instruction for {op}")
        if op in ("shl", "shr") and bits == "64" and isinstance(y, Reg):
            y = emit("b32", "cvt.u32.u64", y)  # shift counts have 32 bits
        return emit(wide, logical[op] + bits, self.ensure_register(x, dtype), y)

    def ensure_register(self, value: Operand, dtype: DType) -> Reg:
        return value if isinstance(value, Reg) else self.materialise(value, dtype)

    def emit_division(
        self, op: tile.BinaryOp, a: tile.Expr, b: tile.Expr, dtype: DType, read: ReadElement | None
    ) -> Reg:
        """Emit Python's floor division or modulo, by shifts, masks or an unsigned division where the ranges allow."""
        itself = tile.Binary(op, a, b, dtype)
        form = affine_form(itself)
        if form.terms != ((itself, 1),) and dtype == INT32:
            return self.get_register(add_exprs(form.without_constant(), tile.int32_const(form.constant)), read)
        wide = get_register_class(dtype)
        bits = "64" if wide == "b64" else "32"
        emit = self.builder.create
        x = self.get_register(a, read)
        divisor = int(b.value) if isinstance(b, tile.Const) else 0
        if _is_power_of_two(divisor):
            if op == "floormod":
                return emit(wide, f"and.b{bits}", x, Imm(divisor - 1))
            shift = "shr.s" if dtype.kind == "int" and self.find_interval(a)[0] < 0 else "shr.u"
            return emit(wide, shift + bits, x, Imm(divisor.bit_length() - 1))
        least, most = self.find_interval(a)
        if divisor > 0 and least >= 0 and dtype.bits == 32:
            reciprocal = integers.find_reciprocal(divisor, int(min(most, integer_range(dtype)[1])))
            if reciprocal is not None and op == "floordiv":
                return integers.emit_division_by_reciprocal(x, *reciprocal, self.builder)
            if reciprocal is not None:
                quotient = self.get_register(tile.Binary("floordiv", a, b, dtype), read)
                return emit("b32", "sub.s32", x, emit("b32", "mul.lo.s32", quotient, Imm(divisor)))
        y = self.get_operand(b, read)
        if dtype.kind == "uint" or (least >= 0 and self.find_interval(b)[0] > 0):
            return emit(wide, ("div.u" if op == "floordiv" else "rem.u") + bits, x, y)
        quotient = emit(wide, f"div.s{bits}", x, y)
        remainder = emit(wide, f"sub.s{bits}", x, emit(wide, f"mul.lo.s{bits}", quotient, y))
        # The machine truncates: 1 too large if the remainder is not zero and its sign differs from the divisor's.
        differs = emit("pred", f"setp.lt.s{bits}", emit(wide, f"xor.b{bits}", remainder, y), Imm(0))
        inexact = emit("pred", f"setp.ne.s{bits}", remainder, Imm(0))
        fix = emit("pred", "and.pred", differs, inexact)
        if op == "floordiv":
            return emit(wide, f"selp.b{bits}", emit(wide, f"sub.s{bits}", quotient, Imm(1)), quotient, fix)
        return emit(wide, f"selp.b{bits}", emit(wide, f"add.s{bits}", remainder, y), remainder, fix)

    def emit_comparison(self, op: str, a: tile.Expr, b: tile.Expr, read: ReadElement | None) -> Reg:
        """Emit a comparison to a predicate; small floats are compared as float32, booleans as integers."""
        dtype = a.dtype
        x, y = self.get_operand(a, read), self.get_operand(b, read)
        if dtype.is_float and dtype.bits < 32:
            x, y, dtype = self.widen(x, dtype), self.widen(y, dtype), FLOAT32
        if dtype.kind == "bool":
            x, y, dtype = self.emit_conversion(x, BOOL, INT32), self.emit_conversion(y, BOOL, INT32), INT32
        name = {"eq": "eq", "ne": "neu" if dtype.is_float else "ne"}.get(op, op)
        suffix = f"f{dtype.bits}" if dtype.is_float else f"{'s' if dtype.kind == 'int' else 'u'}{max(dtype.bits, 32)}"
        return self.builder.create("pred", f"setp.{name}.{suffix}", self.ensure_register(x, dtype), y)

    def emit_logic(self, op: str, a: tile.Expr, b: tile.Expr, read: ReadElement | None) -> Reg:
        """Emit and, or, or xor of two booleans, of which both are computed."""
        names = {"and": "and.pred", "or": "or.pred", "bitand": "and.pred", "bitor": "or.pred", "xor": "xor.pred"}
        return self.builder.create("pred", names[op], self.get_register(a, read), self.get_register(b, read))

    # ---- floats ----

    def widen(self, value: Operand, dtype: DType) -> Reg:
        """Return a 16- or 8-bit float converted to float32, exactly; reuse an earlier conversion if possible."""
        return self.reuse_result(("widen", dtype), (value,), lambda: self._emit_widen(value, dtype))

    def _emit_widen(self, value: Operand, dtype: DType) -> Reg:
        """Emit the exact conversion of a 16- or 8-bit float to float32."""
        if dtype in SMALL_FLOATS:
            return small_floats.emit_widen(self.builder, self.ensure_register(value, dtype), dtype, self.converts_fp8)
        assert isinstance(value, Reg)
        if dtype.name == "float16":
            return self.builder.create("f32", "cvt.f32.f16", value)
        zero = self.builder.create("b16", "mov.b16", Imm(0))
        return self.builder.create("f32", "mov.b32", Vector((zero, value)))

    def narrow(self, value: Operand, dtype: DType) -> Reg:
        """Return a float32 rounded to nearest even as a 16- or 8-bit float; reuse an earlier conversion if possible."""
        return self.reuse_result(("narrow", dtype), (value,), lambda: self._emit_narrow(value, dtype))

    def _emit_narrow(self, value: Operand, dtype: DType) -> Reg:
        """Emit the rounding of a float32 to a 16- or 8-bit float."""
        wide = self.ensure_register(value, FLOAT32)
        if dtype in SMALL_FLOATS:
            return small_floats.emit_narrow(self.builder, wide, dtype, self.converts_fp8)
        return self.builder.create("b16", f"cvt.rn.{FLOAT_NAMES[dtype]}.f32", wide)

    def emit_float_binary(self, op: str, a: tile.Expr, b: tile.Expr, dtype: DType, read: ReadElement | None) -> Reg:
        """Emit an operation on floats: native for 16 bits if there is one, else in float32 or float64."""
        x, y = self.get_operand(a, read), self.get_operand(b, read)
        if dtype in small_floats.HALF_NAMES and op in small_floats.HALF_OPERATIONS:
            operands = [self.ensure_register(x, dtype), self.ensure_register(y, dtype)]
            return self.reuse_result(
                (op, dtype), operands, lambda: small_floats.emit_half(op, operands, dtype, self.builder)
            )
        if dtype.bits < 32:
            # float32 has more than twice the digits of a smaller float, so rounding twice gives the same as once.
            wide = self.emit_float_operation(op, self.widen(x, dtype), self.widen(y, dtype), "f32")
            return self.narrow(wide, dtype)
        return self.emit_float_operation(op, x, y, "f64" if dtype.bits == 64 else "f32")

    def emit_float_operation(self, op: str, x: Operand, y: Operand, cls: str) -> Reg:
        """Emit an operation of class `f32` or `f64`; f32 division is approximate with fast math or where `may_call` is
        False. The exact division is a subroutine."""
        division = "div.rn" if (self.may_call and not self.fast_math) or cls == "f64" else "div.full"
        if op == "div" and isinstance(y, FloatImm) and (inverse := invert_power_of_two(y)) is not None:
            # Exact, and with `.rn` the assembler does not fuse it with a sum.
            y, division = inverse, "mul.rn"
        # Without `.rn` the assembler may fuse a product and a sum.
        rn = "" if self.may_fuse else ".rn"
        names = {"add": f"add{rn}", "sub": f"sub{rn}", "mul": f"mul{rn}", "div": division, "min": "min", "max": "max"}
        if op not in names:
            raise InternalError(f"no floating-point instruction for {op}")
        # Signed zero and NaN as in numpy's maximum would need .NaN forms; the language has C's fmax.
        opcode = f"{names[op]}.{cls}"

        kind: RegisterClass = "f64" if cls == "f64" else "f32"

        def create_result() -> Reg:
            """Emit the instruction, with a constant first operand moved to a register."""
            first = x if isinstance(x, Reg) else self.builder.create(kind, f"mov.{cls}", x)
            return self.builder.create(kind, opcode, first, y)

        return self.reuse_result(opcode, (x, y), create_result)

    def emit_unary(self, op: str, a: tile.Expr, dtype: DType, read: ReadElement | None) -> Reg:
        """Emit `not` of a boolean, or the negation of a float or integer."""
        x = self.get_register(a, read)
        if op == "not":
            return self.builder.create("pred", "not.pred", x)
        if dtype.is_float:
            if dtype.bits < 32:
                cls = get_register_class(dtype)
                return self.builder.create(cls, f"xor.{cls}", x, Imm(1 << dtype.bits - 1))
            return self.reuse_instruction(get_register_class(dtype), f"neg.f{dtype.bits}", (x,))
        wide = get_register_class(dtype)
        return self.wrap_integer(self.builder.create(wide, f"neg.s{64 if wide == 'b64' else 32}", x), dtype)

    def emit_call(self, fn: str, args: tuple[tile.Expr, ...], dtype: DType, read: ReadElement | None) -> Reg:
        """Emit a call of a built-in function by its kind: warp or block, barrier phase, integer, bit count or float."""
        if fn in tile.WARP_WIDE or fn in tile.BLOCK_WIDE:
            first, *others = args
            value, given = self.get_register(first, read), [self.get_operand(a, read) for a in others]
            types = (first.dtype, dtype)
            return emit_warp_function(fn, value, given, types, self.builder, self.emit_float_operation)
        if fn == tile.PHASE_DONE:
            barrier, parity = args[0], self.get_register(args[1], read)
            assert isinstance(barrier, tile.Load)
            opcode = "mbarrier.test_wait.parity.shared::cta.b64"
            return self.builder.create("pred", opcode, self.barrier(barrier), parity)
        values = [self.get_operand(a, read) for a in args]
        if fn == "reinterpret":
            return self.ensure_register(self.emit_reinterpret(values[0], args[0].dtype, dtype), dtype)
        if fn in tile.INTEGER_CALLS:
            operands = [self.ensure_register(v, a.dtype) for v, a in zip(values, args, strict=True)]
            return integers.emit_integer_call(fn, operands, self.builder)
        if fn in tile.BIT_COUNTS:
            opcode = f"{'popc' if fn == 'popcount' else 'clz'}.b{args[0].dtype.bits}"
            return self.builder.create("b32", opcode, self.ensure_register(values[0], args[0].dtype))
        if fn == "fma":
            kind = FLOAT_NAMES.get(dtype, f"f{dtype.bits}")
            operands = [self.ensure_register(v, dtype) for v in values]
            return self.reuse_instruction(get_register_class(dtype), f"fma.rn.{kind}", operands)
        if dtype.is_float and dtype.bits < 32:
            return self.narrow(self.emit_function(fn, [self.widen(v, dtype) for v in values]), dtype)
        if dtype.is_float and dtype.bits == 64:
            spelled = {"abs": "abs.f64", "sqrt": "sqrt.rn.f64", "floor": "cvt.rmi.f64.f64", "ceil": "cvt.rpi.f64.f64",
                       "trunc": "cvt.rzi.f64.f64", "nearbyint": "cvt.rni.f64.f64"}  # fmt: skip
            return self.builder.create("f64", spelled[fn], self.ensure_register(values[0], dtype))
        if not dtype.is_float:
            assert fn == "abs"
            return self.builder.create("b32", "abs.s32", self.ensure_register(values[0], dtype))
        return self.emit_function(fn, [self.ensure_register(v, dtype) for v in values])

    def emit_function(self, fn: str, args: list[Reg]) -> Reg:
        """Emit a float32 function by its name, an intrinsic or a mathematical one; reuse an earlier equal result."""
        if is_intrinsic(fn):
            return self.reuse_result(fn, args, lambda: emit_intrinsic(fn, args, self.builder))
        return self.reuse_result(fn, args, lambda: MathFunctions(self.builder, self.may_call, self.fast_math)(fn, args))

    def emit_reinterpret(self, value: Operand, source: DType, target: DType) -> Operand:
        """Emit and return the same bits as a value of another type of the same size."""
        x = self.ensure_register(value, source)
        here, there = get_register_class(source), get_register_class(target)
        if here == there:
            return x if target.is_float else self.wrap_integer(x, target)
        if source.bits == 16:
            if there == "b16":
                return self.builder.create("b16", "cvt.u16.u32", x)
            return self.wrap_integer(self.builder.create("b32", "cvt.u32.u16", x), target)
        return self.builder.create(there, f"mov.b{target.bits}", x)

    # ---- conversions and choices ----

    def emit_conversion(self, value: Operand, source: DType, target: DType, rounding: str = "rzi") -> Operand:
        """Emit the conversion of a value to another type; a float becomes the integer towards 0, within range, a NaN 0.

        A float32 value may be rounded another way. Integers are cut to the type's bits; equal types give the value
        itself.
        """
        emit = self.builder.create
        if source == target:
            return value
        if source.kind == "bool":
            condition = self.ensure_register(value, source)
            if target.is_float and target.bits == 8:
                return emit("b32", "selp.b32", Imm(encode_small_float(1.0, target)), Imm(0), condition)
            if target.is_float and target.bits == 16:
                one = self.builder.create("b16", "mov.b16", Imm(encode_half(1.0, target)))
                zero = self.builder.create("b16", "mov.b16", Imm(0))
                return emit("b16", "selp.b16", one, zero, condition)
            if target.is_float:
                choices = (make_immediate(tile.Const(number, target)) for number in (1.0, 0.0))
                return emit(get_register_class(target), f"selp.f{target.bits}", *choices, condition)
            return emit(get_register_class(target), f"selp.b{max(target.bits, 32)}", Imm(1), Imm(0), condition)
        if isinstance(value, Imm) and not target.is_float and target.kind != "bool":
            return Imm(wrap_integer(value.value, target))
        x = self.ensure_register(value, source)
        if target.kind == "bool":
            if source.is_float and source.bits < 32:
                x, source = self.widen(x, source), FLOAT32
            opcode = f"setp.neu.f{source.bits}" if source.is_float else f"setp.ne.s{max(source.bits, 32)}"
            return emit("pred", opcode, x, make_immediate(tile.Const(0, source)))
        if source.is_float and source.bits < 32:
            return self.emit_conversion(self.widen(x, source), FLOAT32, target)
        if target.is_float and target.bits < 32:
            return self.narrow(self.emit_conversion(x, source, FLOAT32), target)
        cls = get_register_class(target)
        to, of = _spell_type(target), _spell_type(source)
        if source.is_float and target.is_float:
            return emit(cls, f"cvt{'.rn' if target.bits < source.bits else ''}.{to}.{of}", x)
        if target.is_float:
            return emit(cls, f"cvt.rn.{to}.{of}", x)
        if source.is_float and 64 in (source.bits, target.bits):
            # Conversions of 32 bits make a NaN 0; those with 64 bits set the top bit alone.
            unordered = emit("pred", f"setp.nan.{of}", x, x)
            x = emit(
                get_register_class(source),
                f"selp.{of}",
                make_immediate(tile.Const(0.0, source)),
                x,
                unordered,
            )
        if source.is_float and target.bits >= 32:
            return emit(cls, f"cvt.{rounding}.{to}.{of}", x)
        if source.is_float:
            # The conversion saturates to 32 bits; a smaller type has a smaller range.
            low, high = integer_range(target)
            whole = emit(cls, f"cvt.{rounding}.s32.{of}", x)
            return emit(cls, "min.s32", emit(cls, "max.s32", whole, Imm(low)), Imm(high))
        if cls != get_register_class(source):
            return self.wrap_integer(emit(cls, f"cvt.s64.{of}" if cls == "b64" else "cvt.u32.u64", x), target)
        return self.wrap_integer(x, target) if target.bits < source.bits or target.kind != source.kind else x

    def wrap_integer(self, value: Reg, dtype: DType) -> Reg:
        """Emit and return an integer cut to its type's bits and extended to 32; types of 32 bits and more are
        unchanged."""
        if dtype.bits >= 32:
            return value
        if dtype.kind == "uint":
            return self.builder.create("b32", "and.b32", value, Imm((1 << dtype.bits) - 1))
        return self.builder.create("b32", "bfe.s32", value, Imm(0), Imm(dtype.bits))

    def emit_select(self, c: tile.Expr, a: tile.Expr, b: tile.Expr, dtype: DType, read: ReadElement | None) -> Reg:
        """Emit the choice between two values by a condition; both values are computed."""
        condition = self.get_register(c, read)
        x, y = self.get_operand(a, read), self.get_operand(b, read)
        cls = get_register_class(dtype)
        if cls == "pred":
            left = self.builder.create("pred", "and.pred", condition, self.ensure_register(x, dtype))
            other = self.builder.create("pred", "not.pred", condition)
            right = self.builder.create("pred", "and.pred", other, self.ensure_register(y, dtype))
            return self.builder.create("pred", "or.pred", left, right)
        return self.builder.create(cls, f"selp.{cls}", x, y, condition)


WHOLE_NUMBERS = {"nearbyint": "rni", "floor": "rmi", "ceil": "rpi", "trunc": "rzi"}
"""Functions to whole floats, each with the rounding of a conversion to an integer that gives the same."""


def _is_power_of_two(value: int) -> bool:
    """Return whether the value is a positive power of two."""
    return value > 0 and value & (value - 1) == 0


def _spell_type(dtype: DType) -> str:
    """Return the PTX name of a type, such as `f32` or `u64`; a narrower integer counts as 32 bits."""
    if dtype.is_float:
        return f"f{dtype.bits}"
    return f"{'s' if dtype.kind == 'int' else 'u'}{max(dtype.bits, 32)}"


def emit_ptx(expr: tile.Ptx, args: Sequence[Reg], builder: Builder) -> Reg:
    """Emit the author's PTX instructions with new registers for their names, and return the result's register."""
    written = snippet.parse_snippet(expr.text, len(args))
    result = builder.new_register(get_register_class(expr.dtype))
    names = {snippet.operand_name(number): register for number, register in enumerate((result, *args))}
    names |= {name: builder.new_register(cast(RegisterClass, cls)) for name, cls in written.registers}
    for instruction in written.rename_registers(names):
        builder.emit(instruction.opcode, *instruction.operands, guard=instruction.guard)
    return result
