"""Row reductions of fragments: a thread's registers, then lanes by butterfly shuffles, then warps through shared
memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import reduce

from tilec.codegen.builder import get_register_class, make_immediate
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr, value_interval
from tilec.ir.layout import Fragment
from tilec.ir.types import BOOL, FLOAT32, INT32, INT64, UINT32, UINT64, DType
from tilec.ir.warp import Reduce, Scan
from tilec.ops.language.arithmetic import make_identity
from tilec.ops.reductions.reducer import ACROSS_COPIES
from tilec.ptx.module import Address, Imm, Operand, Reg, Symbol, Vector
from tilec.target.table import Target

FULL_MASK = Imm(-1)


def emit_reduce(op: Reduce, state: State) -> None:
    """Emit a reduction along a dimension: in registers, across lanes by shuffles, and across warps that share rows."""
    source, destination = state.layouts[op.source.name], state.layouts[op.destination.name]
    kept = _group_kept_registers(source, destination, op.dim)
    with state.scalars.open_scope():
        partial = {d: _reduce_registers(op, state, source, registers) for d, registers in kept.items()}
        for d in partial:
            partial[d] = _reduce_across_lanes(op, state, source, partial[d])
        if op.scratch is not None:
            partial = _reduce_across_warps(op, state, source, partial)
        for d, value in partial.items():
            _write_result(op, state, d, value)


def _group_kept_registers(source: Fragment, destination: Fragment, dim: int) -> dict[int, list[int]]:
    """Map each register of the result to the registers of the source that are reduced into it."""
    by_offset = {destination.register_offset(r): r for r in reversed(range(destination.register_count))}
    kept: dict[int, list[int]] = {}
    for r in range(source.register_count):
        offset = list(source.register_offset(r))
        if dim == ACROSS_COPIES:
            pass
        elif len(destination.shape) == len(source.shape):
            offset[dim] = 0
        elif len(source.shape) == 1:
            offset = [0]
        else:
            del offset[dim]
        kept.setdefault(by_offset[tuple(offset)], []).append(r)
    return kept


def get_working_type(dtype: DType) -> DType:
    """Return the type in which elements are combined: float32 for small floats, 32 bits for small integers."""
    if dtype.is_float:
        return dtype if dtype.bits == 64 else FLOAT32
    wide = {("int", False): INT32, ("int", True): INT64, ("uint", False): UINT32, ("uint", True): UINT64}
    return wide[dtype.kind, dtype.bits == 64]


def emit_combine(op: Reduce | Scan, state: State, a: Operand, b: Operand) -> Reg:
    """Emit the operation that combines two partial results of a reduction or scan."""
    dtype = get_working_type(op.source.dtype)
    spelled = f"{'f' if dtype.is_float else 's' if dtype.kind == 'int' else 'u'}{dtype.bits}"
    rounded = ".rn" if dtype.is_float else ""
    nan = ".NaN" if isinstance(op, Reduce) and op.propagates_nan else ""
    opcode = {
        "sum": f"add{rounded}.{spelled}", "abssum": f"add{rounded}.{spelled}", "max": f"max{nan}.{spelled}",
        "absmax": f"max{nan}.{spelled}", "min": f"min{nan}.{spelled}", "bitand": f"and.b{dtype.bits}",
        "bitor": f"or.b{dtype.bits}", "bitxor": f"xor.b{dtype.bits}",
    }[op.kind]  # fmt: skip
    return state.builder.create(get_register_class(dtype), opcode, a, b)


def _reduce_registers(op: Reduce, state: State, layout: Fragment, registers: list[int]) -> Reg:
    """Emit the combination of these registers of a thread as a tree, and return the result."""
    values = [load_element(op, state, layout, r) for r in registers]
    width = 3 if _has_three_operands(op, state) else 2
    while len(values) > 1:
        groups = [values[i : i + width] for i in range(0, len(values), width)]
        values = [reduce(lambda a, b: emit_combine(op, state, a, b), group) for group in groups]
    return values[0]


def _has_three_operands(op: Reduce, state: State) -> bool:
    """Return whether the assembler makes one instruction of two combinations, of which the second takes the result of
    the first: sums and logic of 32-bit integers on all machines, their maxima on some, maxima of floats on fewer.

    A tree of threes then has (n - 1) / 2 instructions. In a tree of pairs it finds fewer: of 31 maxima it makes 21.
    """
    dtype = get_working_type(op.source.dtype)
    if dtype.is_float:
        return op.kind in ("max", "absmax", "min") and dtype.bits == 32 and state.target.has("max3.f32")
    return dtype.bits == 32


def load_element(op: Reduce | Scan, state: State, layout: Fragment, register: int) -> Reg:
    """Emit the load of an element and return it in the working type: its absolute value in abs reductions, the identity
    outside the tensor."""
    dtype = get_working_type(op.source.dtype)
    cls = get_register_class(dtype)
    value: Operand = state.fragments[op.source.name][register]
    if op.source.dtype.is_float and op.source.dtype.bits < 32:
        value = state.scalars.widen(value, op.source.dtype)
    if "abs" in op.kind and dtype.kind != "uint":
        value = state.builder.create(cls, f"abs.{'f' if dtype.is_float else 's'}{dtype.bits}", value)
    if op.dim != ACROSS_COPIES and layout.overhangs(op.dim):
        offset = layout.register_offset(register)[op.dim]
        coordinate = add_exprs(layout.thread_coordinates()[op.dim], tile.int32_const(offset))
        extent = layout.shape[op.dim]
        if value_interval(coordinate, state.scalars.ranges)[1] >= extent:
            inside = state.scalars.get_register(tile.Binary("lt", coordinate, tile.int32_const(extent), BOOL))
            nothing = make_immediate(make_identity(op.kind, dtype))
            value = state.builder.create(cls, f"selp.{cls}", value, nothing, inside)
    assert isinstance(value, Reg)
    return value


def _reduce_across_lanes(op: Reduce, state: State, layout: Fragment, value: Reg) -> Reg:
    """Emit shuffles that combine a value with those of the lanes of the same row, and return the result."""
    below = 1
    for axis in layout.threads:
        step = below
        while axis.dim == op.dim and step < min(below * axis.size, 32):
            other = _exchange_with_lane(value, step, get_working_type(op.source.dtype), state)
            value = emit_combine(op, state, value, other)
            step *= 2
        below *= axis.size
    return value


def _exchange_with_lane(value: Reg, step: int, dtype: DType, state: State) -> Reg:
    """Emit a butterfly shuffle, and return the value of the lane whose number differs in the bit `step`."""
    builder, cls = state.builder, get_register_class(dtype)

    def exchange_word(word: Reg) -> Reg:
        return builder.create("b32", "shfl.sync.bfly.b32", word, Imm(step), Imm(31), FULL_MASK)

    if dtype.bits == 64:
        words = builder.new_registers("b32", 2)
        builder.emit("mov.b64", Vector(words), value)
        return builder.create(cls, "mov.b64", Vector(tuple(exchange_word(w) for w in words)))
    if cls == "b32":
        return exchange_word(value)
    return builder.create(cls, "mov.b32", exchange_word(builder.create("b32", "mov.b32", value)))


def _reduce_across_warps(op: Reduce, state: State, layout: Fragment, partial: dict[int, Reg]) -> dict[int, Reg]:
    """Emit the combination of partial results through shared memory, with a barrier, and return the totals.

    Every thread stores its values, then reads those of all warps of its row.
    """
    assert op.scratch is not None
    threads = state.role.threads
    cls = get_register_class(get_working_type(op.source.dtype))
    place = {d: i for i, d in enumerate(partial)}
    for d, value in partial.items():
        state.builder.emit(f"st.shared.{cls}", address_scratch(op, state, tile.THREAD, place[d] * threads), value)
    state.builder.emit("bar.sync", Imm(state.barrier_id), Imm(threads))
    others = list(list_row_mates(layout, op.dim))
    if is_divided_among_warps(len(others), len(place), threads, state.target):
        return _combine_among_warps(op, state, layout, place, others)
    return {d: _combine_partial(op, state, [(mate, i * threads) for mate in others]) for d, i in place.items()}


def is_divided_among_warps(warps: int, values: int, threads: int, target: Target) -> bool:
    """Return True if the warps of a row divide its values among them, rather than all combine all of them.

    That takes a second exchange, and saves reads of shared memory: a warp reads one word of each lane in a cycle.
    """
    if values % warps and warps % values:
        return False
    read = max(values // warps, 1) * warps + values
    store, load = (target.price(kind, bytes=128, threads=32).latency for kind in ("st.shared", "ld.shared"))
    exchange = store + target.price("barrier").latency + load
    return (warps * values - read) * (threads // 32) > exchange


def _combine_partial(op: Reduce, state: State, parts: list[tuple[tile.Expr, int]]) -> Reg:
    """Emit the combination of words of the scratch, each given by its thread and the first word of its value.

    The order is the same in every warp, so that all get the same sum."""
    cls = get_register_class(get_working_type(op.source.dtype))
    total: Reg | None = None
    for mate, first in parts:
        value = state.builder.create(cls, f"ld.shared.{cls}", address_scratch(op, state, mate, first))
        total = value if total is None else emit_combine(op, state, total, value)
    assert total is not None
    return total


def _combine_among_warps(
    op: Reduce, state: State, layout: Fragment, place: dict[int, int], others: list[tile.Expr]
) -> dict[int, Reg]:
    """Emit the combination of partial results, each by one warp of the row, which hands the total to the others.

    A thread combines the values whose numbers are its warp's, modulo the number of warps. The total takes the place of
    the first partial result, which no other thread reads."""
    threads, builder = state.role.threads, state.builder
    cls = get_register_class(get_working_type(op.source.dtype))
    own_warp = _number_own_warp(layout, op.dim)
    own_value = scale_expr(own_warp, threads)
    skip = builder.new_label("combined")
    if len(place) < len(others):
        few = tile.Binary("ge", own_warp, tile.int32_const(len(place)), BOOL)
        builder.emit("bra", Symbol(skip), guard=state.scalars.get_register(few))
        state.addresses.forget_positions()
    with state.scalars.open_scope():
        for first in range(0, len(place), len(others)):
            mates = [add_exprs(mate, own_value) for mate in others]
            total = _combine_partial(op, state, [(mate, first * threads) for mate in mates])
            builder.emit(f"st.shared.{cls}", address_scratch(op, state, mates[0], first * threads), total)
    if len(place) < len(others):
        builder.place_label(skip)
        state.addresses.forget_positions()
    builder.emit("bar.sync", Imm(state.barrier_id), Imm(threads))
    return {d: _combine_partial(op, state, [(others[0], i * threads)]) for d, i in place.items()}


def _number_own_warp(layout: Fragment, dim: int) -> tile.Expr:
    """Return the number of the thread's warp among those of its row, in the order of `list_row_mates`."""
    number: tile.Expr = tile.int32_const(0)
    for _, size, digit in _list_warp_digits(layout, dim):
        number = add_exprs(scale_expr(number, size), digit)
    return number


def address_scratch(op: Reduce | Scan, state: State, thread: tile.Expr, first: int) -> Address:
    """Return the shared-memory address of a thread's word in the scratch, from word `first` on."""
    assert op.scratch is not None
    byte = scale_expr(add_exprs(thread, tile.int32_const(first)), max(op.source.dtype.bytes, 4))
    return state.addresses.address_shared_element(op.scratch, (byte,), ())


def list_row_mates(layout: Fragment, dim: int) -> list[tile.Expr]:
    """Return the indices, one per warp, of the threads that hold parts of this thread's row."""
    digits = list(_list_warp_digits(layout, dim))
    own: tile.Expr = tile.THREAD
    for weight, _, digit in digits:
        own = tile.Binary("sub", own, scale_expr(digit, weight), INT32)
    choices = itertools.product(*(range(size) for _, size, _ in digits))
    return [
        add_exprs(own, tile.int32_const(sum(c * w for c, (w, _, _) in zip(choice, digits, strict=True))))
        for choice in choices
    ]


def _list_warp_digits(layout: Fragment, dim: int) -> Iterator[tuple[int, int, tile.Expr]]:
    """Yield the digits of a thread's index that tell warps of one row apart: weight, size, and value in this thread."""
    below = 1
    for axis in layout.threads:
        if axis.dim == dim and below * axis.size > 32:
            weight = max(below, 32)
            size = below * axis.size // weight
            digit = tile.Binary("floordiv", tile.THREAD, tile.int32_const(weight), INT32)
            if weight * size < layout.thread_count:
                digit = tile.Binary("floormod", digit, tile.int32_const(size), INT32)
            yield weight, size, digit
        below *= axis.size


def _write_result(op: Reduce, state: State, register: int, value: Reg) -> None:
    """Emit the move of a result to its register, combined with the old value unless the reduction clears it."""
    target = state.fragments[op.destination.name][register]
    dtype = op.destination.dtype
    is_small_float = dtype.is_float and dtype.bits < 32
    if not op.clear:
        before: Operand = state.scalars.widen(target, dtype) if is_small_float else target
        if op.kind == "absmax" and dtype.kind != "uint":
            wide = get_working_type(dtype)
            opcode = f"abs.{'f' if wide.is_float else 's'}{wide.bits}"
            before = state.builder.create(get_register_class(wide), opcode, before)
        value = emit_combine(op, state, before, value)
    result = state.scalars.narrow(value, dtype) if is_small_float else value
    if not dtype.is_float and dtype.bits < 32:
        result = state.scalars.wrap_integer(value, dtype)
    state.builder.emit(f"mov.{get_register_class(dtype)}", target, result)
