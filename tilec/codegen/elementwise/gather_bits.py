"""Gathers the bits of two 16-bit values from registers into one word, by few shifts, masks and permuted bytes.

Packed weights are made of bit fields: two lanes take the same fields of different bytes or half bytes. `list_bits` says
of every bit of an integer expression where it comes from. Both lanes' bits are then moved at once: bytes are brought
to the halves of a word by `prmt`, or by a product with two powers of two, so that the same shifts and masks serve both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from tilec.codegen.memory import WordPart
from tilec.codegen.scalar.scalar import ReadElement, Scalars
from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.types import DType
from tilec.ptx.module import Imm, Operand, Reg
from tilec.support.records import dataclass

WORD_BITS = 32
HALF_BITS = 16
AND_THEN_OR = 0xEA  # the truth table of lop3 for (a & b) | c

Bit = int | tuple[tile.Expr, int]
"""The source of a bit of an integer: the constant 0 or 1, or a bit of an expression's value."""
Place = tuple[int, int]
"""A bit of a register, and the bit of a half of the word that it becomes."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One of two neighbours: its expression, and the functions that read elements, whole or as part of a word."""

    expr: tile.Expr
    read: ReadElement
    find_part: Callable[[tile.Load], WordPart | None]


# ---- where bits come from --------------------------------------------------------------------------------------------


def is_small_integer(dtype: DType) -> bool:
    """Return whether values of the type are integers in registers of 32 bits."""
    return dtype.kind in ("int", "uint") and dtype.bits <= WORD_BITS


def list_bits(expr: tile.Expr, scalars: Scalars) -> tuple[Bit, ...]:
    """Return the source of each of the 32 bits in which an integer expression is held, the lowest first."""
    found = _derive_bits(expr, scalars)
    if found is not None:
        return found
    low, high = scalars.find_interval(expr)
    width = int(high).bit_length() if low >= 0 and high < 1 << WORD_BITS else WORD_BITS
    return tuple((expr, i) if i < width else 0 for i in range(WORD_BITS))


def _derive_bits(expr: tile.Expr, scalars: Scalars) -> tuple[Bit, ...] | None:
    """Return the bits of an expression that only moves and masks bits; None for other operations."""
    dtype = expr.dtype
    match expr:
        case tile.Const(value=value):
            return tuple(int(value) >> i & 1 for i in range(WORD_BITS))
        case tile.Load() if dtype.bits in (8, 16):
            return _extend_bits([(expr, i) for i in range(dtype.bits)], dtype)
        case tile.Cast(a=a) | tile.Call(fn="reinterpret", args=(a,)) if is_small_integer(a.dtype):
            return _extend_bits(list_bits(a, scalars), dtype)
        case tile.Binary(op="bitand" | "bitor" | "xor" | "add" as op, a=a, b=b):
            pairs = zip(list_bits(a, scalars), list_bits(b, scalars), strict=True)
            joined = [_join_bits(op, *pair) for pair in pairs]
            known = [bit for bit in joined if bit is not None]
            return _extend_bits(known, dtype) if len(known) == WORD_BITS else None
        case tile.Binary(op="shl" | "shr" as op, a=a, b=b):
            by = affine_form(b)
            return None if by.terms else _shift_bits(op, list_bits(a, scalars), by.constant, dtype)
        case tile.Binary(op="mul" | "floordiv" as op, a=a, b=tile.Const(value=value)) if _is_power_of_two(value):
            by_bits = int(value).bit_length() - 1
            return _shift_bits("shl" if op == "mul" else "shr", list_bits(a, scalars), by_bits, dtype)
        case tile.Binary(op="floormod", a=a, b=tile.Const(value=value)) if _is_power_of_two(value):
            kept = int(value).bit_length() - 1
            return tuple(bit if i < kept else 0 for i, bit in enumerate(list_bits(a, scalars)))
        case _:
            return None


def _is_power_of_two(value: float) -> bool:
    return value > 0 and int(value) & (int(value) - 1) == 0


def _extend_bits(bits: Sequence[Bit], dtype: DType) -> tuple[Bit, ...]:
    """Return the bits cut to the type's, and extended to 32 as its values are held in registers."""
    kept = tuple(bits[: dtype.bits])
    return kept + (kept[-1] if dtype.kind == "int" else 0,) * (WORD_BITS - len(kept))


def _shift_bits(op: str, bits: tuple[Bit, ...], by: int, dtype: DType) -> tuple[Bit, ...] | None:
    """Return the bits shifted by a constant; None for a shift by more bits than the type has."""
    if not 0 <= by < dtype.bits:
        return None
    if op == "shl":
        return _extend_bits((0,) * by + bits, dtype)
    return bits[by:] + (bits[-1] if dtype.kind == "int" else 0,) * by


def _join_bits(op: str, a: Bit, b: Bit) -> Bit | None:
    """Return the source of `a op b` for two bits; None if it is neither of them nor a constant."""
    if op == "bitand":
        return 0 if 0 in (a, b) else b if a == 1 or a == b else a if b == 1 else None
    if a == 0 or b == 0:
        return b if a == 0 else a
    if op == "bitor":
        return 1 if 1 in (a, b) else a if a == b else None
    return 0 if op == "xor" and a == b else None


# ---- how they get there ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Base:
    """A register from which bits are taken: a lane's own, or one with bytes of both lanes.

    Own: `lane`. By prmt: `selector` of bytes of the lanes' registers, first moved left by `moved` bits. By a product:
    `factor`.
    """

    lane: int = 0
    selector: int | None = None
    moved: tuple[int, int] = (0, 0)
    factor: int | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """Bits that move together: those of `mask` in the word, after `base` is moved left by `by` bits."""

    base: _Base
    by: int
    mask: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """A way to gather bits: its groups, by how much each half's value lies left of where it was wanted, the cost."""

    groups: tuple[_Group, ...]
    lifted: tuple[int, int]
    cost: float


@dataclass(frozen=True, slots=True)
class Gathered:
    """A gathered word, and by how many bits each half's value is left of where it was wanted."""

    word: Reg
    lifted: tuple[int, int]


def emit_gather(
    lanes: tuple[Lane, Lane], bits: tuple[Sequence[Bit], Sequence[Bit]], scalars: Scalars, constant: int = 0,
    room: int = 0,
) -> Gathered:  # fmt: skip
    """Emit a word of both lanes' bits, at most 16 each, merged with the `constant`; each may be up to `room` bits
    further left.
    """
    sources: list[tuple[Reg, int]] = []
    places: list[list[tuple[int, Place]]] = [[], []]
    for half, lane in enumerate(lanes):
        for i, bit in enumerate(bits[half]):
            if not isinstance(bit, int):
                register, first, width = _find_source(bit[0], lane, scalars)
                if (register, width) not in sources:
                    sources.append((register, width))
                places[half].append((sources.index((register, width)), (first + bit[1], i)))
    plan = _plan_gather(tuple(places[0]), tuple(places[1]), tuple(width for _, width in sources), room)
    registers = [register for register, _ in sources]
    for half in (0, 1):
        ones = sum(1 << i for i, bit in enumerate(bits[half]) if bit == 1)
        constant |= ones << HALF_BITS * half + plan.lifted[half]
    word: Operand = Imm(constant)
    for group in plan.groups:
        moved = _emit_shift(_emit_base(group.base, registers, scalars), group.by, scalars)
        operands = (moved, Imm(group.mask), word)
        if word != Imm(0):
            word = scalars.builder.create("b32", "lop3.b32", *operands, Imm(AND_THEN_OR))
        elif group.mask == (1 << WORD_BITS) - 1:
            word = moved
        else:
            word = scalars.builder.create("b32", "and.b32", *operands[:2])
    return Gathered(word if isinstance(word, Reg) else scalars.builder.create("b32", "mov.b32", word), plan.lifted)


def _find_source(expr: tile.Expr, lane: Lane, scalars: Scalars) -> tuple[Reg, int, int]:
    """Return the register that holds an expression, the first of its bits there, and how many bits may be set."""
    part = lane.find_part(expr) if isinstance(expr, tile.Load) else None
    if part is not None:
        return part.word, part.first, WORD_BITS
    low, high = scalars.find_interval(expr)
    width = int(high).bit_length() if low >= 0 and high < 1 << WORD_BITS else WORD_BITS
    return scalars.get_register(expr, lane.read), 0, width


def _emit_base(base: _Base, registers: list[Reg], scalars: Scalars) -> Reg:
    """Emit and return the register from which a group's bits are taken; reuse one of the same bytes."""
    if base.factor is not None:
        return scalars.reuse_instruction("b32", "mul.lo.u32", (registers[base.lane], Imm(base.factor)))
    if base.selector is None:
        return registers[base.lane]
    first, last = registers[0], registers[-1]
    both = (_emit_shift(first, base.moved[0], scalars), _emit_shift(last, base.moved[1], scalars))
    return scalars.reuse_instruction("b32", "prmt.b32", (*both, Imm(base.selector)))


def _emit_shift(register: Reg, by: int, scalars: Scalars) -> Reg:
    """Emit and return a register moved left by `by` bits, right if negative; reuse an earlier one."""
    if not by:
        return register
    return scalars.reuse_instruction("b32", "shl.b32" if by > 0 else "shr.u32", (register, Imm(abs(by))))


# A shift left may become a product, for which other units are free. Four pairs of a word share its shifts.
_LOGIC, _PERMUTE, _LEFT, _RIGHT, _PRODUCT, _SHARED = 1.0, 1.0, 0.9, 1.3, 0.9, 0.25
_LIFTED = 0.5  # the factor that scales a lifted value back is moved to a register again and again
_ENOUGH = 2.0  # no plan for bits of two lanes that have to move takes less
_Places = tuple[tuple[int, Place], ...]


@lru_cache(maxsize=1 << 12)
def _plan_gather(low: _Places, high: _Places, widths: tuple[int, ...], room: int) -> _Plan:
    """Return the cheapest plan found for the bits of both halves, each with the number of its source register."""
    best: _Plan | None = None
    for plan in _list_plans(low, high, widths, room):
        if best is None or plan.cost < best.cost:
            best = plan
        if best.cost <= _ENOUGH:
            break
    assert best is not None, "bits may always be taken one by one"
    return best


def _list_plans(low: _Places, high: _Places, widths: tuple[int, ...], room: int) -> Iterator[_Plan]:
    """Yield plans: from the sources as they are, by a product with two powers of two, and by permuted bytes."""
    halves = (low, high)
    own = [_Base(lane=number) for number in range(len(widths))]
    yield _make_plan(halves, lambda half, source, bit: (own[source], bit), 0.0, room)
    if not low or not high or any(len({source for source, _ in half}) > 1 for half in halves):
        return
    bits = tuple(tuple(bit for _, (bit, _) in half) for half in halves)
    if len(widths) == 1 and widths[0] <= HALF_BITS:
        for a in range(HALF_BITS - max(bits[0])):
            for b in range(max(a + widths[0], HALF_BITS - min(bits[1])), WORD_BITS - max(bits[1])):
                base = _Base(factor=1 << a | 1 << b)
                yield _make_plan(halves, _place_from(base, (a, b - HALF_BITS)), _PRODUCT, room)
    shifts = sorted(range(-7, 8), key=abs)
    for moved in sorted(((r, s) for r in shifts for s in shifts), key=lambda both: (both[0] != 0) + (both[1] != 0)):
        for first in _list_windows(bits[0], moved[0]):
            for second in _list_windows(bits[1], moved[1]):
                # Bytes of the second register are numbered from 4 on; one that does not exist is any.
                chosen = (first, first + 1, second + 4, second + 5)
                selector = sum(max(4 * (i // 2), min(n, 3 + 4 * (i // 2))) << 4 * i for i, n in enumerate(chosen))
                base = _Base(selector=selector, moved=moved)
                cost = _PERMUTE + _SHARED * sum(by != 0 for by in moved)
                at = (moved[0] - 8 * first, moved[1] - 8 * second)
                yield _make_plan(halves, _place_from(base, at), cost, room)


def _list_windows(bits: tuple[int, ...], moved: int) -> Iterable[int]:
    """Return the first bytes of the two that hold all these bits of a register that is moved left."""
    low, high = min(bits) + moved, max(bits) + moved
    if low < 0 or high >= WORD_BITS:
        return ()
    return range(max(high // 8 - 1, -1), min(low // 8, 3) + 1)


def _place_from(base: _Base, offsets: tuple[int, int]) -> Callable[[int, int, int], tuple[_Base, int]]:
    """Return the function that finds a lane's bit in `base`, where its half begins with bit -`offsets` of the lane's
    register.
    """
    return lambda half, source, bit: (base, HALF_BITS * half + bit + offsets[half])


def _make_plan(
    halves: tuple[_Places, _Places], locate: Callable[[int, int, int], tuple[_Base, int]], cost: float, room: int
) -> _Plan:
    """Return the plan that takes bits from where `locate` finds them, given half, source and bit; `cost` is the bases'.

    A half whose bits all move alike is lifted to where they lie, if there is room.
    """
    lifted = [0, 0]
    located: list[tuple[_Base, int, int]] = []
    for half, places in enumerate(halves):
        found = [(*locate(half, source, bit), wanted) for source, (bit, wanted) in places]
        by = {HALF_BITS * half + wanted - at for _, at, wanted in found} if found else {0}
        if len(by) == 1 and 0 <= -min(by) <= room:
            lifted[half] = -min(by)
        located += [(base, at, HALF_BITS * half + wanted + lifted[half]) for base, at, wanted in found]
    masks: dict[tuple[_Base, int], int] = {}
    for base, at, wanted in located:
        masks[base, wanted - at] = masks.get((base, wanted - at), 0) | 1 << wanted
    order = sorted(masks, key=lambda key: abs(key[1]))
    for _, by_bits in order:
        cost += _LOGIC + (_LEFT if by_bits > 0 else _RIGHT if by_bits < 0 else 0)
    cost += _LIFTED if any(lifted) else 0
    if len(order) == 1 and order[0][1] == 0 and masks[order[0]] == (1 << WORD_BITS) - 1:
        cost -= _LOGIC
    return _Plan(tuple(_Group(*key, masks[key]) for key in order), (lifted[0], lifted[1]), cost)
