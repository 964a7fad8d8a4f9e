"""Scans of fragments: a thread's registers one after the other, then lanes by shuffles, then warps through shared
memory.

The digits of the scanned dimension are combined from the least significant on. Each thread keeps the prefixes of its
elements, and the total of all elements that were combined so far. A further digit gives the prefixes a carry. It is
combined with each element once, at the end.
"""

from __future__ import annotations

from tilec.codegen.builder import get_register_class, make_immediate
from tilec.codegen.elementwise.reduce import (
    FULL_MASK,
    address_scratch,
    emit_combine,
    get_working_type,
    list_row_mates,
    load_element,
)
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, INT32
from tilec.ir.warp import Scan
from tilec.ops.language.arithmetic import make_identity
from tilec.ops.reductions.scan import ScanDigit, list_scan_digits
from tilec.ptx.module import Imm, Operand, Pair, Reg, Vector
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring elements of a thread: the prefix of each by its register, and the carry that they all lack."""

    prefixes: tuple[tuple[int, Reg], ...]
    carry: Reg | None


@dataclass(frozen=True, slots=True)
class _Span:
    """Neighbouring elements of a row: this thread's pieces of them, and the total of all threads'."""

    pieces: tuple[_Piece, ...]
    total: Reg


def emit_scan(op: Scan, state: State) -> None:
    """Emit an inclusive scan along a dimension; a reversed one begins at the end."""
    layout = state.layouts[op.source.name]
    digits = list_scan_digits(layout, op.dim)
    assert digits is not None, "assign_layouts gives scans a layout whose digits follow one another"
    with state.scalars.open_scope():
        spans = {}
        for register in range(layout.register_count):
            value = load_element(op, state, layout, register)
            spans[layout.register_offset(register)] = _Span((_Piece(((register, value),), None),), value)
        for at, digit in enumerate(digits):
            is_last = at + 1 == len(digits)
            if digit.below is None:
                spans = _scan_registers(op, state, spans, digit)
            elif digit.below < WARP_THREADS:
                spans = {place: _scan_lanes(op, state, span, digit) for place, span in spans.items()}
                if not is_last:
                    spans = {place: _share_total(op, state, span, digit) for place, span in spans.items()}
            else:
                spans = _scan_warps(op, state, spans, digit)
        targets = _map_destination_registers(op, state)
        for span in spans.values():
            for piece in span.pieces:
                for register, prefix in piece.prefixes:
                    value = prefix if piece.carry is None else emit_combine(op, state, piece.carry, prefix)
                    _write_element(op, state, targets[register], value)


def _map_destination_registers(op: Scan, state: State) -> list[int]:
    """Return, for each register of the source, that of the destination with the element of the same place."""
    source, destination = state.layouts[op.source.name], state.layouts[op.destination.name]
    by_offset = {destination.register_offset(r): r for r in reversed(range(destination.register_count))}
    return [by_offset[source.register_offset(r)] for r in range(source.register_count)]


def _add_carry(op: Scan, state: State, span: _Span, carry: Reg) -> tuple[_Piece, ...]:
    """Return a span's pieces with another carry from before the span; a lone element is combined at once."""
    pieces = []
    for piece in span.pieces:
        if piece.carry is not None:
            pieces.append(_Piece(piece.prefixes, emit_combine(op, state, carry, piece.carry)))
        elif len(piece.prefixes) == 1:
            ((register, prefix),) = piece.prefixes
            pieces.append(_Piece(((register, emit_combine(op, state, carry, prefix)),), None))
        else:
            pieces.append(_Piece(piece.prefixes, carry))
    return tuple(pieces)


def _scan_registers(
    op: Scan, state: State, spans: dict[tuple[int, ...], _Span], digit: ScanDigit
) -> dict[tuple[int, ...], _Span]:
    """Emit the scan over a digit of a thread's registers, and return the longer spans by the place of their first
    element."""
    groups: dict[tuple[int, ...], list[_Span]] = {}
    for place, span in sorted(spans.items(), reverse=op.reverse):
        step = place[op.dim] // digit.stride % digit.size
        first = (*place[: op.dim], place[op.dim] - step * digit.stride, *place[op.dim + 1 :])
        groups.setdefault(first, []).append(span)
    merged = {}
    for first, group in groups.items():
        pieces, total = group[0].pieces, group[0].total
        for span in group[1:]:
            pieces += _add_carry(op, state, span, total)
            total = emit_combine(op, state, total, span.total)
        # Without carries the pieces are one: what comes before it comes before each of its elements.
        if all(piece.carry is None for piece in pieces):
            pieces = (_Piece(tuple(prefix for piece in pieces for prefix in piece.prefixes), None),)
        merged[first] = _Span(pieces, total)
    return merged


def _scan_lanes(op: Scan, state: State, span: _Span, digit: ScanDigit) -> _Span:
    """Emit the scan over a digit of the lanes of a warp; the total of the row is in the last lane."""
    assert digit.below is not None
    total, step = span.total, 1
    while step < digit.size:
        other, exists = _emit_shuffle(op, state, total, digit, step * digit.below)
        total = _emit_choice(op, state, emit_combine(op, state, other, total), total, exists)
        step *= 2
    ((lone, *others), *further) = (piece.prefixes for piece in span.pieces)
    if not others and not further and span.pieces[0].carry is None:
        pieces: tuple[_Piece, ...] = (_Piece(((lone[0], total),), None),)
    else:
        before, exists = _emit_shuffle(op, state, total, digit, digit.below)
        nothing = make_immediate(make_identity(op.kind, get_working_type(op.source.dtype)))
        pieces = _add_carry(op, state, span, _emit_choice(op, state, before, nothing, exists))
    return _Span(pieces, total)


def _share_total(op: Scan, state: State, span: _Span, digit: ScanDigit) -> _Span:
    """Emit the move of a row's total from its last lane to all its lanes."""
    total, _ = _emit_shuffle(op, state, span.total, digit, None)
    return _Span(span.pieces, total)


def _emit_shuffle(op: Scan, state: State, value: Reg, digit: ScanDigit, by: int | None) -> tuple[Reg, Reg]:
    """Emit a shuffle from the lane `by` lanes before in the scan's direction, or from the last lane of the row for
    None.

    Return the value, and whether there is such a lane in the row.
    """
    assert digit.below is not None
    builder, exists = state.builder, state.builder.new_register("pred")
    # The mask of a segment's lanes, and the last lane that a source may have (PTX ISA, shfl.sync).
    segment = WARP_THREADS - digit.size * digit.below
    lane: Operand
    if by is None:
        last = 0 if op.reverse else (digit.size - 1) * digit.below
        mode, lane, clamp = "idx", Imm(last), 31
        if digit.below > 1:
            mine = tile.Binary("floormod", tile.THREAD, tile.int32_const(digit.below), INT32)
            lane = state.scalars.get_register(tile.Binary("add", mine, tile.int32_const(last), INT32))
    else:
        mode, lane, clamp = ("down", Imm(by), 31) if op.reverse else ("up", Imm(by), 0)

    def move_word(word: Reg, valid: Reg) -> Reg:
        moved = builder.new_register("b32")
        builder.emit(f"shfl.sync.{mode}.b32", Pair(moved, valid), word, lane, Imm(segment << 8 | clamp), FULL_MASK)
        return moved

    cls = get_register_class(get_working_type(op.source.dtype))
    if cls in ("b64", "f64"):
        words = builder.new_registers("b32", 2)
        builder.emit("mov.b64", Vector(words), value)
        moved = tuple(move_word(word, valid) for word, valid in zip(words, (exists, Reg("_")), strict=True))
        return builder.create(cls, "mov.b64", Vector(moved)), exists
    if cls == "b32":
        return move_word(value, exists), exists
    return builder.create(cls, "mov.b32", move_word(builder.create("b32", "mov.b32", value), exists)), exists


def _emit_choice(op: Scan, state: State, value: Reg, otherwise: Operand, condition: Reg) -> Reg:
    """Emit the choice of `value` where the condition holds."""
    cls = get_register_class(get_working_type(op.source.dtype))
    return state.builder.create(cls, f"selp.{cls}", value, otherwise, condition)


def _scan_warps(
    op: Scan, state: State, spans: dict[tuple[int, ...], _Span], digit: ScanDigit
) -> dict[tuple[int, ...], _Span]:
    """Emit the scan over a digit of warps, through shared memory with a barrier.

    Every thread stores its totals, then reads those of all warps of its row.
    """
    assert op.scratch is not None and digit.below is not None
    threads, builder = state.role.threads, state.builder
    cls = get_register_class(get_working_type(op.source.dtype))
    for at, span in enumerate(spans.values()):
        builder.emit(f"st.shared.{cls}", address_scratch(op, state, tile.THREAD, at * threads), span.total)
    builder.emit("bar.sync", Imm(state.barrier_id), Imm(threads))
    warp: tile.Expr = tile.Binary("floordiv", tile.THREAD, tile.int32_const(digit.below), INT32)
    warp = tile.Binary("floormod", warp, tile.int32_const(digit.size), INT32)
    mates = list(enumerate(list_row_mates(state.layouts[op.source.name], op.dim)))
    scanned = {}
    for at, (place, span) in enumerate(spans.items()):
        total: Reg | None = None
        carry: Operand = make_immediate(make_identity(op.kind, get_working_type(op.source.dtype)))
        for number, mate in reversed(mates) if op.reverse else mates:
            value = builder.create(cls, f"ld.shared.{cls}", address_scratch(op, state, mate, at * threads))
            if total is None:
                total = value  # the carry of the first warp is the identity
            else:
                is_mine = tile.Binary("eq", warp, tile.int32_const(number), BOOL)
                carry = _emit_choice(op, state, total, carry, state.scalars.get_register(is_mine))
                total = emit_combine(op, state, total, value)
        assert total is not None and isinstance(carry, Reg)
        scanned[place] = _Span(_add_carry(op, state, span, carry), total)
    return scanned


def _write_element(op: Scan, state: State, register: int, value: Reg) -> None:
    """Emit the move of a scanned element to its register, in its own type."""
    dtype = op.destination.dtype
    result: Operand = value
    if dtype.bits < 32:
        result = state.scalars.narrow(value, dtype) if dtype.is_float else state.scalars.wrap_integer(value, dtype)
    target = state.fragments[op.destination.name][register]
    state.builder.emit(f"mov.{get_register_class(dtype)}", target, result)
