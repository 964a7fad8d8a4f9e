"""Atomic combinations of elements in memory: one instruction if the target has it, else a compare-and-swap loop."""

from __future__ import annotations

from tilec.codegen.builder import RegisterClass, get_register_class
from tilec.codegen.memory import ZERO
from tilec.codegen.state import State
from tilec.ir.tile import Binary, Store, Var
from tilec.ir.types import BFLOAT16, FLOAT32, DType
from tilec.ptx.module import Address, Imm, Reg, Symbol, Vector
from tilec.support.diagnostics import InternalError
from tilec.target.table import Target

_WORDS: dict[int, RegisterClass] = {16: "b16", 32: "b32", 64: "b64"}


def select_vector_width(store: Store, target: Target) -> int:
    """Return the most elements that one red instruction adds for this store: 1, 4 float32, or 2 or 8 16-bit floats.

    More than 1 only in sums: of global elements on targets with a vector form, or of pairs of 16-bit floats.
    """
    dtype = store.buffer.dtype
    if store.atomic != "add" or not _has_instruction(store, target):
        return 1
    vectors = store.buffer.scope == "global" and target.has("red.vector")
    if dtype == FLOAT32:
        return 4 if vectors else 1
    if dtype.is_float and dtype.bits == 16:
        return 8 if vectors else 2
    return 1


def _has_instruction(store: Store, target: Target) -> bool:
    """Return whether the target has an atomic instruction for the store's operation and type."""
    if not store.buffer.dtype.is_float:
        return True
    return store.atomic == "add" and (store.buffer.dtype != BFLOAT16 or target.has("atom.bf16"))


def emit_atomic(store: Store, address: Address, values: list[Reg], guard: Reg | None, state: State) -> Reg | None:
    """Emit the store's atomic operation on elements from `address` on; return the previous value, or None if unwanted.

    It acts where the guard holds. The previous value is wanted if the store has a variable for it (0 where the guard
    does not hold).
    """
    builder = state.builder
    order: str = store.order
    if order == "seq_cst":
        builder.emit("fence.sc.gpu")
        order = {"load": "acquire", "store": "release"}.get(str(store.atomic), "acq_rel")
    where = f"{order}.gpu.{store.buffer.scope}"
    dtype = store.buffer.dtype
    cls = get_register_class(dtype)
    bits = f"b{dtype.bits}"
    previous = builder.new_register(cls) if store.previous is not None else None
    if previous is not None and guard is not None:
        builder.emit(f"mov.{cls}", previous, ZERO.get(cls, Imm(0)))
    if store.atomic == "load":
        assert previous is not None
        builder.emit(f"ld.{where}.{bits}", previous, address, guard=guard)
    elif store.atomic == "store" and previous is None:
        builder.emit(f"st.{where}.{bits}", address, values[0], guard=guard)
    elif _has_instruction(store, state.target):
        operation = _select_operation(store, dtype)
        returns = previous is not None or order in ("acquire", "acq_rel")
        if returns:
            target = previous or builder.new_register(cls)
            builder.emit(f"atom.{where}.{operation}", target, address, values[0], guard=guard)
        else:
            operation, value = _pack_values(operation, values, state)
            builder.emit(f"red.{where}.{operation}", address, value, guard=guard)
    else:
        held = _emit_compare_and_swap(store, address, values[0], guard, order, state)
        if previous is not None:
            builder.emit(f"mov.{cls}", previous, held, guard=guard)
    return previous


def _select_operation(store: Store, dtype: DType) -> str:
    """Return the operation and type of a store's atom or red instruction, as `add.u64`; InternalError if none."""
    match store.atomic:
        case "add" if dtype.is_float:
            name = {"float16": "noftz.f16", "bfloat16": "noftz.bf16"}.get(dtype.name, f"f{dtype.bits}")
            return f"add.{name}"
        case "add":  # signed and unsigned sums are the same bits; for 64 bits PTX has only .u64
            return "add.u64" if dtype.bits == 64 else f"add.{'s' if dtype.kind == 'int' else 'u'}32"
        case "min" | "max":
            return f"{store.atomic}.{'s' if dtype.kind == 'int' else 'u'}{dtype.bits}"
        case "bitor":
            return f"or.b{dtype.bits}"
        case "store":
            return f"exch.b{dtype.bits}"
        case other:
            raise InternalError(f"no atomic {other}")


def _pack_values(operation: str, values: list[Reg], state: State) -> tuple[str, Reg | Vector]:
    """Emit the packing of several values; return the operation on them, made from one such as `add.f32`, and their
    operand.

    16-bit floats are pairs, several words a vector.
    """
    name, dtype = operation.rsplit(".", 1)
    words = values
    if dtype in ("f16", "bf16") and len(values) > 1:
        dtype += "x2"
        pairs = zip(values[::2], values[1::2], strict=True)
        words = [state.builder.create("b32", "mov.b32", Vector(pair)) for pair in pairs]
    vector = f".v{len(words)}" if len(words) > 1 else ""
    return f"{name}{vector}.{dtype}", words[0] if len(words) == 1 else Vector(tuple(words))


def _emit_compare_and_swap(
    store: Store, address: Address, value: Reg, guard: Reg | None, order: str, state: State
) -> Reg:
    """Emit a loop that stores the combined value; return the element's previous value, 0 where the guard fails."""
    builder, dtype, scope = state.builder, store.buffer.dtype, store.buffer.scope
    cls, bits = get_register_class(dtype), f"b{dtype.bits}"
    held = builder.create(cls, f"mov.{cls}", ZERO.get(cls, Imm(0)))
    again, done = builder.new_label("swap"), builder.new_label("swapped")
    if guard is not None:
        skip = builder.create("pred", "not.pred", guard)
        builder.emit("bra", Symbol(done), guard=skip)
    builder.emit(f"ld.relaxed.gpu.{scope}.{bits}", held, address)
    builder.place_label(again)
    if store.atomic == "store":
        new = value
    else:
        assert store.atomic is not None and store.atomic != "load"
        left, right = Var("%seen", dtype), Var("%value", dtype)
        with state.scalars.open_scope():
            for var, register in ((left, held), (right, value)):
                state.scalars.scopes[-1][var] = register
            new = state.scalars.get_register(Binary(store.atomic, left, right, dtype))
    before, after = (_move_to_bits(r, dtype, state) for r in (held, new))
    seen = builder.create(_WORDS[dtype.bits], f"atom.{order}.gpu.{scope}.cas.{bits}", address, before, after)
    other = builder.create("pred", f"setp.ne.{'s16' if dtype.bits == 16 else bits}", seen, before)
    builder.emit(f"mov.{bits}", held, seen)
    builder.emit("bra", Symbol(again), guard=other)
    builder.place_label(done)
    return held


def _move_to_bits(register: Reg, dtype: DType, state: State) -> Reg:
    """Emit the value's bits to a register of the class that a compare-and-swap takes, and return it."""
    if dtype.bits == 16:
        return register
    return state.builder.create("b32" if dtype.bits == 32 else "b64", f"mov.b{dtype.bits}", register)
