"""tcgen05.mma: products into tensor memory by the matrix unit of a block, or of a pair of blocks.

The layout of D in tensor memory is "Data Path Layout Organization" in the PTX manual: blocks of lanes that hold some
rows of some columns. A lane of the data path multiplies its own lane of A, where A is in tensor memory, and its own
copies of the scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import build_thread_step
from tilec.emu.numbers import FORMAT_DECODERS, Array
from tilec.emu.scalar.semantics import read_predicate
from tilec.emu.tcgen05 import tcgen05, tmem
from tilec.emu.tcgen05.instruction_descriptor import BLOCK_SCALED, TensorProduct, decode_product
from tilec.emu.tcgen05.tmem import TensorOperation
from tilec.emu.tma.asyncops import AsyncEffect
from tilec.emu.warp.matrix import list_registers
from tilec.ptx.module import Address, Operand, Vector
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta

_A_COLUMNS = 8
_VECTOR_SIZES = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, "block16": 4}
_ALLOWED_VECTORS = {"mxf8f6f4": (1,), "mxf4": (2,), "mxf4nvf4": (2, 4)}
_PACKED_BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
_ELEMENT_BYTES = {"f16": 2, "tf32": 4}


@dataclass(frozen=True, slots=True)
class LanePart:
    """Lanes of the data path that hold the same rows of one block's A, from `first_row` on, and some columns of D."""

    lanes: Array
    first_row: int
    first_column: int
    columns: int


def _split_lanes(product: TensorProduct, group: int, is_stationary: bool, base: int) -> list[LanePart]:
    """Return the lanes and columns of a block's share of D, by the manual's layouts A to G; fault unless `base` is
    legal. `base` is the lane of D's address."""
    n, rows = product.n, product.m // group
    if rows == 64 and group == 1 and not is_stationary:
        if base not in (0, 16):
            raise Fault("misaligned", f"D of {product.m} rows in lane {base} of tensor memory, which must be 0 or 16")
        quarter = np.arange(16)
        return [LanePart(np.concatenate([base + 32 * part + quarter for part in range(4)]), 0, 0, n)]
    if base:
        raise Fault("misaligned", f"D of {product.m} rows in lane {base} of tensor memory, which must be 0")
    count = tmem.LANES // rows
    width = n // count
    return [LanePart(np.arange(rows) + rows * part, 0, width * part, width) for part in range(count)]


@dataclass(slots=True, eq=False)
class BlockShare:
    """One block's part of a product: its rows of A and of B, its lanes of D."""

    cta: Cta
    parts: list[LanePart]
    b_rows: Array
    a_rows: Array | None
    enabled: Array
    """Marks the lanes that are written."""


@dataclass(frozen=True, slots=True)
class OperandColumns:
    """The columns of a product's operands in tensor memory."""

    d: int
    a: int
    a_scales: int
    b_scales: int


def _parse_vector_size(form: Form, kind: str) -> int:
    """Return the number of scales along k that the opcode asks for, 0 without scales; fault if the kind forbids it."""
    if kind not in BLOCK_SCALED:
        if form.has("block_scale"):
            raise form.unsupported("scales")
        return 0
    if not form.has("block_scale"):
        raise form.unsupported("no .block_scale")
    word = form.find_modifier(*_VECTOR_SIZES, "block32")
    if not word and kind == "mxf4nvf4":
        raise form.unsupported("no size of the vector of scales")
    vector = _VECTOR_SIZES.get(word, 1 if kind == "mxf8f6f4" else 2)
    if vector not in _ALLOWED_VECTORS[kind]:
        raise form.unsupported(f".{word}")
    return vector


@dataclass(slots=True)
class ExtraOperands:
    """The operands after the instruction descriptor."""

    scales: list[Operand]
    mask: tuple[Operand, ...] = ()
    keeps: Operand | None = None
    shift: int = 0
    zero_mask: Operand | None = None


def _parse_extra_operands(form: Form, kind: str, group: int, is_stationary: bool, vector: int) -> ExtraOperands:
    """Return the operands after the instruction descriptor; refuse others than the kind has. They are scales, a disable
    mask, enable-input-d, and a shift or zero mask."""
    rest = list(form.operands[4:])
    extras = ExtraOperands([])
    if vector:
        extras.scales, rest = rest[:2], rest[2:]
        if len(extras.scales) != 2 or not all(isinstance(scale, Address) for scale in extras.scales):
            raise form.unsupported("no addresses of scales")
    elif not is_stationary and rest and isinstance(rest[0], Vector):
        extras.mask = list_registers(form, rest.pop(0), 4 * group)
    if not rest:
        raise form.unsupported("no enable-input-d")
    extras.keeps = rest.pop(0)
    if rest and is_stationary:
        extras.zero_mask = rest.pop(0)
    elif rest and kind in ("f16", "tf32"):
        extras.shift = form.parse_constant(rest.pop(0))
        if not 0 <= extras.shift <= 15:
            raise form.unsupported(f"a scale of D of 2^-{extras.shift}")
    if rest:
        raise form.unsupported(f"{len(rest)} operands too many")
    return extras


@register_decoder("tcgen05.mma", "tcgen05.mma.ws")
def _decode_mma(form: Form) -> None:
    """Decode `tcgen05.mma` and `.ws` into a step that issues asynchronous products; a sparse or shifted A is
    unsupported."""
    if form.has("sp"):
        raise form.unsupported("a sparse A")
    if form.has("ashift"):
        raise form.unsupported("a shift of A")
    group = tcgen05.read_cta_group(form)
    is_stationary = form.stem.endswith(".ws")
    if is_stationary and group == 2:
        raise form.unsupported(".cta_group::2")
    form.match(r"collector::\w+(::\w+)?")  # a hint about what to keep
    found = form.match(r"kind::(\w+)")
    kind = found[1] if found else ""
    if kind not in ("f16", "tf32", "f8f6f4", "i8", *(() if is_stationary else BLOCK_SCALED)):
        raise form.unsupported("this kind")
    vector = _parse_vector_size(form, kind)
    extras = _parse_extra_operands(form, kind, group, is_stationary, vector)
    d_pointer = form.build_address(form.operands[0])
    a_operand = form.operands[1]
    a_pointer = form.build_address(a_operand) if isinstance(a_operand, Address) else None
    a_slot = -1 if a_pointer is not None else form.read(a_operand, "b64")
    b_slot, idesc_slot = form.read(form.operands[2], "b64"), form.read(form.operands[3], "b32")
    scale_pointers = [form.build_address(scale) for scale in extras.scales]
    mask_slots = [form.read(item, "b32") for item in extras.mask]
    assert extras.keeps is not None
    keeps_slot, keeps_negated = read_predicate(form, extras.keeps)
    zero_slot = form.read(extras.zero_mask, "b64") if extras.zero_mask is not None else -1

    def issue_product(cta: Cta, thread: int, d_place: int, a_operand: int, b_bits: int, *scales: int) -> None:
        """Issue one thread's product: claim operands and queue the computation; fault on misaligned or unready
        operands."""
        views = cta.views
        product = decode_product(int(views[idesc_slot][thread]), kind, group, is_stationary, vector)
        base, d_column = tcgen05.split_address(d_place)
        a_lane, a_column = tcgen05.split_address(a_operand) if a_pointer is not None else (0, 0)
        scale_places = [tcgen05.split_address(place) for place in scales] or [(0, 0), (0, 0)]
        if any(lane for lane, _ in scale_places):
            raise Fault("misaligned", "scales that do not start in lane 0 of tensor memory")
        parts = _split_lanes(product, group, is_stationary, base)
        if a_pointer is not None and a_lane != base:
            message = f"A in lane {a_lane} and D in lane {base} of tensor memory: they must be the same"
            raise Fault("misaligned", message)
        if a_pointer is not None and product.a_is_mn_major:
            raise Fault("bad-descriptor", "A in tensor memory cannot be transposed")
        places = OperandColumns(d_column, a_column, scale_places[0][1], scale_places[1][1])
        keeps = bool(views[keeps_slot][thread]) ^ keeps_negated
        home = tmem.get_tensor_memory(cta)
        signature = (base, d_column, product.m, product.n, kind, is_stationary)
        mma = tmem.start_operation(cta, home, "tcgen05.mma", form.line, cta.actors[thread : thread + 1], signature)
        words = np.array([int(views[slot][thread]) for slot in mask_slots], np.uint32)
        enabled = ~np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_).reshape(-1, tmem.LANES)
        zeros = _decode_zero_columns(int(views[zero_slot][thread]), product) if zero_slot >= 0 else None
        shares = []
        size = _ELEMENT_BYTES.get(kind, 1)
        k = product.k if vector != 2 and vector != 4 else 32
        for position, block in enumerate(tcgen05.require_running_blocks(cta, group, "tcgen05.mma")):
            rows = product.n // group
            b_rows = tcgen05.claim_shared_operand(
                block, mma, b_bits, rows, k, size, product.b_is_mn_major, "B of the tcgen05.mma"
            )
            a_rows = None
            if a_pointer is None:
                rows = product.m // group
                a_rows = tcgen05.claim_shared_operand(
                    block, mma, a_operand, rows, k, size, product.a_is_mn_major, "A of the tcgen05.mma"
                )
            lanes = enabled[position] if len(enabled) else np.ones(tmem.LANES, np.bool_)
            shares.append(BlockShare(block, parts, b_rows, a_rows, lanes))
        for share in shares:
            _claim_tensor_memory(mma, share, product, places, keeps, group)
        scale = 2.0**-extras.shift
        home.issue(mma, AsyncEffect(lambda: _multiply_shares(shares, product, places, scale if keeps else 0.0, zeros)))

    a_column = a_pointer if a_pointer is not None else a_slot
    form.step.run = build_thread_step(issue_product, d_pointer, a_column, b_slot, *scale_pointers)


def _claim_tensor_memory(
    mma: TensorOperation, share: BlockShare, product: TensorProduct, places: OperandColumns, keeps: bool, group: int
) -> None:
    """Record the reads and writes of one block's tensor memory by a product, which fault unless the operands are
    ready."""
    memory = tmem.get_tensor_memory(share.cta)
    for part in share.parts:
        if share.a_rows is None:
            memory.record_read(mma, tmem.make_rectangle(part.lanes, places.a, _A_COLUMNS), "A of the tcgen05.mma")
    if product.vector:
        a_cells = _locate_scales(places.a_scales, product.m // group)
        memory.record_read(mma, a_cells, "the scale of A of the tcgen05.mma")
        memory.record_read(mma, _locate_scales(places.b_scales, product.n), "the scale of B of the tcgen05.mma")
    for part in share.parts:
        lanes = part.lanes[share.enabled[part.lanes]]
        if len(lanes):
            memory.record_write(
                mma, tmem.make_rectangle(lanes, places.d, part.columns), "D of the tcgen05.mma", keeps=keeps
            )


def _locate_scales(first: int, count: int) -> tmem.CellRegion:
    """Return the tensor memory cells of `count` scales, [quarter of the lanes, row], from column `first` on. 32 rows
    lie in one column, and again in every quarter."""
    row = np.arange(count)[None, :]
    return tmem.CellRegion(32 * np.arange(4)[:, None] + row % 32, first + row // 32 + np.zeros((4, 1), np.int64))


def _decode_zero_columns(bits: int, product: TensorProduct) -> Array | None:
    """Return a mask of the columns of B that a zero-column mask zeroes, None if it is off; fault on shifts and reserved
    bits."""
    if not bits >> 39 & 1:
        return None
    if bits >> 56 & 0x3F:
        raise Fault("unsupported", "a zero-column mask that shifts columns")
    if bits >> 36 & 7 or bits >> 62:
        raise Fault("bad-descriptor", f"zero-column mask descriptor {bits:#018x} has bits set that must be zero")
    zero_run, used_run = (bits >> 40 & 0xFF) + 1, (bits >> 48 & 0xFF) + 1
    parts = 128 // product.m
    width = product.n // parts
    masks = []
    for part in range(parts):
        skipped, starts_with_zeros = bits >> 8 * part & 0xFF, bool(bits >> 32 + part & 1)
        place = np.arange(width) + skipped + (used_run if starts_with_zeros else 0)
        masks.append(place % (zero_run + used_run) >= used_run)
    return np.concatenate(masks)


# -- the computation ---------------------------------------------------------------------------------------------------


def _decode_numbers(data: Array, kind: str, product: TensorProduct) -> Array:
    """Return shared memory bytes as the product's numbers, along the last axis, padded 4- and 6-bit codes included."""
    if kind in _PACKED_BITS and product.kind not in ("mxf4", "mxf4nvf4"):
        codes = tcgen05.unpack_codes(data.reshape(*data.shape[:-1], -1, 16), _PACKED_BITS[kind])
        return FORMAT_DECODERS[kind](codes.reshape(*data.shape[:-1], -1))
    return _decode_packed_numbers(data, kind, product)


def _decode_packed_numbers(data: Array, kind: str, product: TensorProduct) -> Array:
    """Return bytes as the product's numbers, along the last axis, where elements lie side by side without padding."""
    if product.kind in ("mxf4", "mxf4nvf4"):
        codes = np.stack([data & np.uint8(0xF), data >> np.uint8(4)], -1)
        return FORMAT_DECODERS[kind](codes.reshape(*data.shape[:-1], -1))
    size = _ELEMENT_BYTES.get(product.kind, 1)
    return FORMAT_DECODERS[kind](np.ascontiguousarray(data).view(np.dtype(f"u{size}")))


def _load_shared_matrix(cta: Cta, rows: Array, kind: str, is_mn_major: bool, product: TensorProduct) -> Array:
    """Return the numbers of an operand in shared memory, [row, k], from its 16-byte rows."""
    matrix = _decode_numbers(cta.shared.rows[rows].reshape(rows.shape[0], -1), kind, product)
    return matrix.T if is_mn_major else matrix


def _load_lanes_matrix(cta: Cta, lanes: Array, column: int, product: TensorProduct) -> Array:
    """Return the numbers of A in tensor memory, [lane, k], from eight columns of these lanes. Elements of 4 and 6 bits
    lie in bytes of their own, except those of mxf4."""
    data = np.ascontiguousarray(tmem.get_tensor_memory(cta).words[lanes, column : column + _A_COLUMNS]).view(np.uint8)
    if product.a_kind == "e2m1" and product.kind not in ("mxf4", "mxf4nvf4"):
        data = data >> np.uint8(2)
    return _decode_packed_numbers(data, product.a_kind, product)


def _load_scales(cta: Cta, first: int, count: int, place: int, product: TensorProduct) -> Array:
    """Return the scale of every element of an operand, [quarter of the lanes, row, k]. `place` is the byte of a word at
    which they begin."""
    cells = _locate_scales(first, count)
    words = np.ascontiguousarray(tmem.get_tensor_memory(cta).words[cells.lanes, cells.columns])
    codes = words.view(np.uint8).reshape(4, count, 4)[:, :, place : place + product.vector]
    factors = FORMAT_DECODERS[product.scale_kind](codes).astype(np.float64)
    return factors.repeat(product.k // product.vector, axis=2)


def _multiply_shares(
    shares: list[BlockShare], product: TensorProduct, places: OperandColumns, kept: float, zeros: Array | None
) -> None:
    """Compute D = ±A·B + D·kept in the tensor memory of all blocks; columns marked in `zeros` count as zero in B."""
    halves = [
        _load_shared_matrix(share.cta, share.b_rows, product.b_kind, product.b_is_mn_major, product) for share in shares
    ]
    b = np.concatenate(halves) if len(halves) > 1 else halves[0]
    if zeros is not None:
        b = np.where(zeros[:, None], b.dtype.type(0), b)
    for share in shares:
        whole = None
        if share.a_rows is not None:
            whole = _load_shared_matrix(share.cta, share.a_rows, product.a_kind, product.a_is_mn_major, product)
        for part in share.parts:
            a = whole if whole is not None else _load_lanes_matrix(share.cta, part.lanes, places.a, product)
            if product.vector:
                result = _multiply_scaled(share, part, a, b, product, places)
            else:
                result = a @ b[part.first_column : part.first_column + part.columns].T
            _accumulate_part(share, part, -result if product.sign < 0 else result, product, places.d, kept)


def _multiply_scaled(
    share: BlockShare, part: LanePart, a: Array, b: Array, product: TensorProduct, places: OperandColumns
) -> Array:
    """Return one part's product of A and B times their scales; each quarter of the lanes uses its own copies."""
    a_scales = _load_scales(share.cta, places.a_scales, len(a), product.a_scale_id, product)
    b_scales = _load_scales(share.cta, places.b_scales, product.n, product.b_scale_id, product)
    result = np.empty((len(a), part.columns))
    columns = slice(part.first_column, part.first_column + part.columns)
    for quarter in range(4):
        in_quarter = part.lanes // 32 == quarter
        if in_quarter.any():
            left, right = a[in_quarter] * a_scales[quarter][in_quarter], b[columns] * b_scales[quarter][columns]
            result[in_quarter] = left @ right.T
    return result


def _accumulate_part(
    share: BlockShare, part: LanePart, result: Array, product: TensorProduct, column: int, kept: float
) -> None:
    """Add `kept` times the old D to one part's product, and write the sum, in D's type, to the enabled lanes."""
    memory = tmem.get_tensor_memory(share.cta)
    chosen = share.enabled[part.lanes]
    lanes = part.lanes[chosen]
    cells = tmem.make_rectangle(lanes, column, part.columns)
    total = result if chosen.all() else result[chosen]
    if kept:
        old = memory.words[cells.lanes, cells.columns]
        if product.result == "f16":
            addend: Array = (old & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float32)
        else:
            addend = old.view(np.float32) if product.result == "f32" else old.view(np.int32).astype(np.float64)
        total = total + (addend if kept == 1 else addend * np.float32(kept))
    if product.result == "f16":
        bits: Array = total.astype(np.float16).view(np.uint16).astype(np.uint32)
    elif product.result == "f32":
        bits = total.astype(np.float32).view(np.uint32)
    else:
        if product.saturates:
            total = np.clip(total, -(2.0**31), 2.0**31 - 1)
        bits = total.astype(np.int64).astype(np.int32).view(np.uint32)
    memory.words[cells.lanes, cells.columns] = bits
