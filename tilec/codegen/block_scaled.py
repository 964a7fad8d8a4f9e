"""tcgen05.mma with block scales, and tcgen05.cp of the scales (PTX ISA: tcgen05 "Block scaling", "Instruction
descriptor" for .kind::mxf8f6f4, .kind::mxf4 and .kind::mxf4nvf4, "Shared memory descriptor")."""

from __future__ import annotations

from tilec.codegen.builder import Builder
from tilec.codegen.matrix import K_BYTES
from tilec.codegen.state import State
from tilec.ir.groups import TENSOR_LANES
from tilec.ir.tile import Binary, int32_const
from tilec.ir.types import INT32
from tilec.ir.warp import Scales, TensorCopy, TensorMma
from tilec.ptx.module import Address, Imm, Reg

_TYPES = {"mxf8f6f4": {"e4m3": 0, "e5m2": 1}, "mxf4": {"e2m1": 1}, "mxf4nvf4": {"e2m1": 1}}
SCALES_PER_INSTRUCTION = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}
"""The scales along K that one instruction takes, for each kind."""
_ELEMENTS = {"mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}  # along K, of one instruction
_CHUNK_BYTES = 512  # of scales: 32 lines of 16 bytes
_CHUNK_COLUMNS = 4
_DESCRIPTOR_VERSION = 1 << 46  # of the shared memory descriptor
_DESCRIPTOR_STRIDE = 8 << 32  # eight lines of 16 bytes are 128 bytes


def build_scaled_descriptor(op: TensorMma, scales: Scales, rows: int, columns: int) -> int:
    """Return the instruction descriptor without the positions of the scales in their words."""
    a, b = (_TYPES[scales.kind][name] for name in scales.types)
    transposed = int(op.transpose_a) << 15 | int(not op.transpose_b) << 16
    powers = int(scales.kind != "mxf4nvf4") << 23  # ue8m0, else ue4m3
    return a << 7 | b << 10 | transposed | columns >> 3 << 17 | powers | rows >> 7 << 27


class ScaleDescriptors:
    """Instruction descriptors with the first scale of each word, which may depend on the run-time start along K."""

    def __init__(self, scales: Scales, form: int, state: State) -> None:
        self.scales, self.state = scales, state
        self.form, self.moving = form, None
        parts = []
        for step, shift in ((scales.a_step, 29), (scales.b_step, 4)):
            first = Binary(
                "floormod", Binary("floordiv", scales.start, int32_const(step), INT32), int32_const(4), INT32
            )
            value = state.scalars.get_operand(first)
            if isinstance(value, Reg):
                parts.append(state.builder.create("b32", "shl.b32", value, Imm(shift)))
            else:
                assert isinstance(value, Imm)
                self.form += int(value.value) << shift
        if parts:
            self.moving = parts[0] if len(parts) == 1 else state.builder.create("b32", "or.b32", *parts)

    def build_descriptor(self, k: int, builder: Builder) -> Reg:
        """Return the descriptor of the instruction that starts `k` bytes along K."""
        number = k // K_BYTES * _ELEMENTS[self.scales.kind]
        form = self.form + (number // self.scales.a_step << 29) + (number // self.scales.b_step << 4)
        fixed = builder.create("b32", "mov.b32", Imm(form))
        return fixed if self.moving is None else builder.create("b32", "add.u32", fixed, self.moving)


def format_scaled_opcode(scales: Scales, group: str) -> str:
    return f"tcgen05.mma.{group}.kind::{scales.kind}.block_scale.scale_vec::{SCALES_PER_INSTRUCTION[scales.kind]}X"


def locate_scale_columns(base: Reg, rows: int, builder: Builder) -> Address:
    """Return the address of the scales of a tile's rows from `rows` on: 32 rows share a column."""
    beyond = rows // TENSOR_LANES * _CHUNK_COLUMNS
    return Address(builder.create("b32", "add.u32", base, Imm(beyond)) if beyond else base)


def emit_scale_copies(op: TensorCopy, source: Reg, first: int, into: Reg, group: str, state: State) -> None:
    """Emit the copies from `source` + `first` bytes to the columns from `into` on."""
    builder = state.builder
    address = builder.create("b32", "add.u32", source, Imm(first)) if first else source
    encoded = builder.create("b64", "cvt.u64.u32", builder.create("b32", "bfe.u32", address, Imm(4), Imm(14)))
    mask = builder.create("b64", "mov.b64", Imm(_DESCRIPTOR_VERSION | _DESCRIPTOR_STRIDE))
    descriptor = builder.create("b64", "or.b64", encoded, mask)
    for chunk in range(op.source.shape[-1] * 4 // _CHUNK_BYTES):
        column = builder.create("b32", "add.u32", into, Imm(chunk * _CHUNK_COLUMNS)) if chunk else into
        place = builder.create("b64", "add.s64", descriptor, Imm(chunk * _CHUNK_BYTES >> 4)) if chunk else descriptor
        builder.emit(f"tcgen05.cp.{group}.32x128b.warpx4", Address(column), place)
