"""mma.sync: products of small matrices in the registers of a warp.

Fragments are numpy reshapes: a lane of a warp is (g, t) = (lane / 4, lane % 4), and each layout of the PTX manual is
one permutation of these axes with the register number. Below, w counts warps and e the elements of one register.

Block scaling of `mma.sync`: a factor for each row of A, each column of B and each block along k.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import FORMAT_DECODERS, Array
from tilec.emu.warp.matrix import list_registers
from tilec.emu.warp.sparse import SparseSelection, decode_selection, expand_sparse
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


ScaleFunction = Callable[["Cta", "Threads", Array, Array], tuple[Array, Array]]
_LEGAL = {"kind::mxf8f6f4": {("1X", "ue8m0")}, "kind::mxf4": {("2X", "ue8m0")}}
_LEGAL |= {"kind::mxf4nvf4": {("2X", "ue8m0"), ("4X", "ue8m0"), ("4X", "ue4m3")}}
_DEFAULTS = {"kind::mxf8f6f4": "1X", "kind::mxf4": "2X"}


def build_scaling(form: Form, kind: str, operands: tuple[Operand, ...]) -> ScaleFunction | None:
    """Return a function that multiplies A [w, row, k] and B [w, k, n] by scales; None without any; refuse wrong scales.

    The operands are, for A and B, a register and a pair {byte, thread}. A quad holds two rows of A in two of its lanes,
    a column of B in one; the blocks along k take neighbouring bytes.
    """
    if not form.has("block_scale"):
        if kind not in ("", "kind::f8f6f4") or operands:
            raise form.unsupported("no .block_scale")
        return None
    size = form.match(r"scale_vec::([124]X)")
    vector = size[1] if size is not None else _DEFAULTS.get(kind, "")
    element = form.find_modifier("ue8m0", "ue4m3")
    if (vector, element) not in _LEGAL.get(kind, set()):
        raise form.unsupported("this kind of scales")
    blocks = int(vector[0])
    if len(operands) != 4:
        raise form.unsupported(f"{len(operands)} operands for scales")
    a_slot, b_slot = form.read(operands[0], "b32"), form.read(operands[2], "b32")
    a_byte, a_lane = _parse_selectors(form, operands[1], blocks, 2)
    b_byte, b_lane = _parse_selectors(form, operands[3], blocks, 4)
    lanes_of_a = np.array([2 * a_lane, 2 * a_lane + 1])

    def decode_factors(words: Array, first: int) -> Array:
        """Return the scales in a quad's words, as numbers, [.., block of k]."""
        codes = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
        return FORMAT_DECODERS[element](codes)[..., first : first + blocks]

    def scale_operands(cta: Cta, threads: Threads, a: Array, b: Array) -> tuple[Array, Array]:
        """Return A and B times the scales that the chosen lanes of each quad hold."""
        length = a.shape[2] // blocks
        a_words = cta.views[a_slot][threads].reshape(-1, 8, 4)[:, :, lanes_of_a].transpose(0, 2, 1).reshape(-1, 16)
        b_words = cta.views[b_slot][threads].reshape(-1, 8, 4)[:, :, b_lane]
        of_a = decode_factors(a_words, a_byte).repeat(length, axis=2).astype(np.float64)
        of_b = decode_factors(b_words, b_byte).repeat(length, axis=2).transpose(0, 2, 1).astype(np.float64)
        return a * of_a, b * of_b

    return scale_operands


def _parse_selectors(form: Form, operand: Operand, blocks: int, lanes: int) -> tuple[int, int]:
    """Return the byte and the thread of a quad that hold scales; fault if they do not fit the blocks."""
    if not isinstance(operand, Vector) or len(operand.items) != 2:
        raise form.unsupported(f"{operand} where {{byte, thread}} belongs")
    byte, lane = (form.parse_constant(item) for item in operand.items)
    if byte not in range(0, 4, blocks) or not 0 <= lane < lanes:
        raise form.unsupported(f"byte {byte} and thread {lane} of the scales")
    return byte, lane


ELEMENT_BITS = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
ELEMENT_BITS |= {"e3m2": 8, "e2m3": 8, "e2m1": 8, "b1": 1}
"""Bits per element; floats of 4 and 6 bits lie in bytes, unless a kind of fp4 alone packs them."""
PACKED_FP4 = "packed e2m1"
_WORDS: dict[int, np.dtype[Any]] = {bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}
_RESULT_TYPES = ("f32", "f16", "s32", "f64")
_SMALL_FLOATS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_KINDS = ("kind::f8f6f4", "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4")
_SHAPES = {
    "f64": "m8n8k4 m16n8k4 m16n8k8 m16n8k16",
    "tf32": "m16n8k4 m16n8k8",
    "b1": "m8n8k128 m16n8k128 m16n8k256",
    **dict.fromkeys(("f16", "bf16"), "m16n8k8 m16n8k16"),
    **dict.fromkeys(("s8", "u8"), "m8n8k16 m16n8k16 m16n8k32"),
    **dict.fromkeys(("s4", "u4"), "m8n8k32 m16n8k32 m16n8k64"),
    **dict.fromkeys(("e4m3", "e5m2"), "m16n8k16 m16n8k32"),
    **dict.fromkeys(("e3m2", "e2m3", "e2m1"), "m16n8k32"),
    PACKED_FP4: "m16n8k64",
}
_SPARSE_SHAPES = {
    "tf32": "m16n8k8 m16n8k16",
    PACKED_FP4: "m16n8k128",
    **dict.fromkeys(("f16", "bf16"), "m16n8k16 m16n8k32"),
    **dict.fromkeys(("s8", "u8"), "m16n8k32 m16n8k64"),
    **dict.fromkeys(("s4", "u4"), "m16n8k64 m16n8k128"),
    **dict.fromkeys(_SMALL_FLOATS, "m16n8k64"),
}


def element_bits(kind: str) -> int:
    """Return the bits from one element of a register to the next; packed fp4 has 4."""
    return 4 if kind == PACKED_FP4 else ELEMENT_BITS[kind]


def unpack_elements(bits: Array, kind: str) -> Array:
    """Return the elements of register words as numbers, on a new last axis."""
    size = element_bits(kind)
    if size >= 8:
        words = np.ascontiguousarray(bits).view(_WORDS[size]).reshape(*bits.shape, -1)
        if kind == "e2m1":
            # The four bits lie in bits 5:2 of a byte.
            words = words >> np.uint8(2)
        decoded: Array = words.view(np.float64) if kind == "f64" else FORMAT_DECODERS[kind](words)
        return decoded
    shifts = np.arange(0, 32, size, dtype=np.uint32)
    shifted: Array = bits[..., None] >> shifts
    codes: Array = shifted & np.uint32((1 << size) - 1)
    if kind == PACKED_FP4:
        return FORMAT_DECODERS["e2m1"](codes.astype(np.uint8))
    fields = codes.astype(np.float64)
    return np.where(fields >= 8, fields - 16, fields) if kind == "s4" else fields


def multiply_matrices(a: Array, b: Array, kinds: tuple[str, str], bit_operation: str) -> Array:
    """Return the matrix product of [.., m, k] and [.., k, n]; for bits, the number of ones after `and` or `xor`."""
    both: Array = np.matmul(a, b)
    if kinds[0] != "b1" or bit_operation == "and":
        return both
    ones: Array = a.sum(axis=-1)[..., :, None] + b.sum(axis=-2)[..., None, :]
    differing: Array = ones - 2 * both
    return differing


def to_s32(values: Array, saturates: bool) -> Array:
    """Convert exact sums in float64 to 32-bit integers, clamped if `saturates`, wrapped otherwise."""
    exact = values.astype(np.int64)
    return (np.clip(exact, -(2**31), 2**31 - 1) if saturates else exact).astype(np.int32)


def _parse_operand_kinds(form: Form) -> tuple[str, str, str]:
    """Return the element types of D, A and B; fault on a combination that mma does not have."""
    kinds = form.find_modifiers(*ELEMENT_BITS, *_RESULT_TYPES)
    if len(kinds) != 4:
        raise form.unsupported("these types")
    result, a_kind, b_kind, c_kind = kinds
    is_small = a_kind in _SMALL_FLOATS and b_kind in _SMALL_FLOATS
    may_mix = is_small or {a_kind, b_kind} in ({"s8", "u8"}, {"s4", "u4"})
    wanted = {"f64": ("f64",), "tf32": ("f32",), "bf16": ("f32",), "f16": ("f16", "f32")}
    results = ("f16", "f32") if is_small else wanted.get(a_kind, ("s32",))
    are_elements = a_kind in ELEMENT_BITS and b_kind in ELEMENT_BITS
    if not are_elements or result != c_kind or result not in results or (a_kind != b_kind and not may_mix):
        raise form.unsupported("this combination of types")
    return result, a_kind, b_kind


def _parse_shape(form: Form, kinds: tuple[str, str], is_sparse: bool) -> tuple[int, int]:
    """Return the number of groups of eight rows, and k; fault on a shape that these types do not have."""
    shape = form.match(r"m(8|16)n8k(\d+)")
    table = _SPARSE_SHAPES if is_sparse else _SHAPES
    if shape is None or any(shape[0] not in table.get(kind, "").split() for kind in kinds):
        raise form.unsupported("this shape of these types")
    return int(shape[1]) // 8, int(shape[2])


@register_decoder("mma.sync", "mma.sp.sync", "mma.sp::ordered_metadata.sync", accepts="row popc")
def _decode_mma(form: Form) -> None:
    """Decode `mma.sync`, dense or sparse, scaled or not, into a step that multiplies and adds for each warp; refuse bad
    types."""
    form.step.gather = 32
    is_sparse = form.stem != "mma.sync"
    result, a_kind, b_kind = _parse_operand_kinds(form)
    if a_kind == "f16" and form.has("m8n8k4"):
        _decode_quad_pairs(form, result)
        return
    if not form.has("col") or "row" not in form.modifiers:
        raise form.unsupported("a layout other than .row.col")
    kind = form.find_modifier(*_KINDS)
    if kind in ("kind::mxf4", "kind::mxf4nvf4"):
        a_kind, b_kind = (PACKED_FP4 if name == "e2m1" else "" for name in (a_kind, b_kind))
    elif not kind and {a_kind, b_kind} & {"e3m2", "e2m3", "e2m1"}:
        raise form.unsupported("no .kind")
    halves, k = _parse_shape(form, (a_kind, b_kind), is_sparse)
    stored = k // 2 if is_sparse else k
    per_register = max(32 // element_bits(a_kind), 1)
    a_columns, columns = stored // (4 * per_register), k // (4 * per_register)
    source = "b64" if a_kind == "f64" else "b32"
    a_slots = [form.read(item, source) for item in list_registers(form, form.operands[1], halves * a_columns)]
    b_slots = [form.read(item, source) for item in list_registers(form, form.operands[2], columns)]
    finish = build_accumulation(form, result, halves)
    operation = form.find_modifier("and", "xor", default="xor")
    rest = form.operands[4:]
    chosen: SparseSelection | None = None
    if is_sparse:
        chosen = decode_selection(form, rest[0], form.parse_constant(rest[1]), a_kind, k)
        rest = rest[2:]
    scale = build_scaling(form, kind, rest)

    @form.set_run
    def run_mma(cta: Cta, threads: Threads) -> None:
        """Build A and B from the lanes' registers, multiply them for each warp, and add the product to C."""
        views = cta.views
        a_bits = np.array([views[slot][threads] for slot in a_slots])
        b_bits = np.array([views[slot][threads] for slot in b_slots])
        # a: registers (columns, row half), lanes (w, g, t), e  →  [w, row, k]
        a = unpack_elements(a_bits, a_kind).reshape(a_columns, halves, -1, 8, 4, per_register)
        a = a.transpose(2, 1, 3, 0, 4, 5).reshape(-1, 8 * halves, stored)
        if chosen is not None:
            a = expand_sparse(a, views[chosen.slot][threads].reshape(-1, 8, 4), chosen)
        # b: registers over k, lanes (w, n, t), e  →  [w, k, n]
        b = unpack_elements(b_bits, b_kind).reshape(columns, -1, 8, 4, per_register)
        b = b.transpose(1, 0, 3, 4, 2).reshape(-1, k, 8)
        if scale is not None:
            a, b = scale(cta, threads, a, b)
        finish(cta, threads, multiply_matrices(a, b, (a_kind, b_kind), operation))


def build_accumulation(form: Form, result: str, halves: int) -> Callable[[Cta, Threads, Array], None]:
    """Return a function that adds C to a product [w, row, n] and writes D to the lanes' registers."""
    count = halves * (1 if result == "f16" else 2)
    view = "b32" if result == "f16" else result  # halves lie two to a register
    targets = [form.write(item, view) for item in list_registers(form, form.operands[0], count)]
    c_slots = [form.read(item, view) for item in list_registers(form, form.operands[3], count)]
    saturates = form.has("satfinite")

    def accumulate_product(cta: Cta, threads: Threads, product: Array) -> None:
        """Write the sum of the product and C to the registers of D, in its type."""
        views = cta.views
        # [w, (row half, g), (t, e)]  →  registers (row half, e), lanes (w, g, t)
        lanes = product.reshape(-1, halves, 8, 4, 2).transpose(1, 4, 0, 2, 3)
        addend = np.array([views[slot][threads] for slot in c_slots])
        if result == "f16":
            packed = addend.view(np.float16).reshape(halves, -1, 8, 4, 2)
            total = (lanes.transpose(0, 2, 3, 4, 1) + packed).astype(np.float16)
            values = np.ascontiguousarray(total).view(np.uint32).reshape(halves, -1)
        else:
            values = lanes.reshape(2 * halves, -1) + addend
            if result == "s32":
                values = to_s32(values, saturates)
        for target, value in zip(targets, values, strict=True):
            views[target][threads] = value

    return accumulate_product


def _decode_quad_pairs(form: Form, result: str) -> None:
    """Decode `mma.m8n8k4` of f16, in the layout of sm_70, into a step with four products to a warp; refuse other types.
    Each is of two quads whose lanes differ by 16. Lane (high, pair, low) of 2 x 4 x 4 is thread 4·high + low of product
    `pair`."""
    layouts = form.find_modifiers("row", "col")
    if len(layouts) != 2 or result not in ("f16", "f32"):
        raise form.unsupported("this layout or type")
    a_slots = [form.read(item, "b32") for item in list_registers(form, form.operands[1], 2)]
    b_slots = [form.read(item, "b32") for item in list_registers(form, form.operands[2], 2)]
    view, count = ("b32", 4) if result == "f16" else ("f32", 8)
    targets = [form.write(item, view) for item in list_registers(form, form.operands[0], count)]
    c_slots = [form.read(item, view) for item in list_registers(form, form.operands[3], count)]

    def gather_operand(cta: Cta, threads: Threads, slots: list[int], is_own_row: bool) -> Array:
        """Return an operand as f32 [w, pair, row of eight, k]: a thread holds a row, or four of them at one k."""
        words = np.stack([cta.views[slot][threads] for slot in slots], axis=1)
        halves = np.ascontiguousarray(words).view(np.float16).astype(np.float32).reshape(-1, 2, 4, 4, 4)
        axes = (0, 2, 1, 3, 4) if is_own_row else (0, 2, 1, 4, 3)
        return halves.transpose(axes).reshape(-1, 4, 8, 4)

    @form.set_run
    def run_quad_pairs(cta: Cta, threads: Threads) -> None:
        """Multiply and add for each pair of quads, and write the sums to the lanes' registers."""
        a = gather_operand(cta, threads, a_slots, layouts[0] == "row")
        b = gather_operand(cta, threads, b_slots, layouts[1] == "col")
        product = np.matmul(a, b.transpose(0, 1, 3, 2))
        words = np.stack([cta.views[slot][threads] for slot in c_slots], axis=1)
        if result == "f16":
            # Thread i holds row i.
            lanes = product.reshape(-1, 4, 2, 4, 8).transpose(0, 2, 1, 3, 4).reshape(-1, 8)
            total = (lanes + np.ascontiguousarray(words).view(np.float16)).astype(np.float16).view(np.uint32)
        else:
            # Row bits: low bit of the thread, register bit 1, high. Column bits: register bit 0, middle bit, bit 2.
            parts = product.reshape(-1, 4, 2, 2, 2, 2, 2, 2)  # w, pair, high, r1, t0, v2, t1, v0
            lanes = parts.transpose(0, 2, 1, 6, 4, 5, 3, 7).reshape(-1, 8)
            total = (lanes + words).astype(np.float32)
        for position, target in enumerate(targets):
            cta.views[target][threads] = total[:, position]
