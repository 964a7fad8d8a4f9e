"""tcgen05: products of whole tiles into tensor memory, issued by one thread; copies of tiles between tensor memory and
registers; and its allocation, before the roles begin, and deallocation, at the end of the first role.

Descriptors are those of the PTX ISA: tcgen05 "Instruction descriptor" and "Shared memory descriptor". The arrival of
the tensor cores at an mbarrier (tcgen05.commit) needs no fence; the threads that wait for it fence (tcgen05.fence).

tcgen05.mma with block scales, and tcgen05.cp of the scales (PTX ISA: tcgen05 "Block scaling", "Instruction
descriptor" for .kind::mxf8f6f4, .kind::mxf4 and .kind::mxf4nvf4, "Shared memory descriptor").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.codegen.address import SHARED_BASE
from tilec.codegen.barriers.barriers import address_own_barrier, emit_thread_test
from tilec.codegen.barriers.clusters import compute_mates_mask, emit_peer_wait
from tilec.codegen.barriers.transfer import address_ring_barrier
from tilec.codegen.builder import Builder, get_register_class
from tilec.codegen.scalar.scalar import Scalars
from tilec.codegen.state import State
from tilec.codegen.tensor_cores.matrix import K_BYTES, WARP, pack_operand
from tilec.codegen.tensor_cores.wgmma import compute_tile_byte
from tilec.ir import tile, warp
from tilec.ir.groups import TENSOR_LANES
from tilec.ir.tile import Binary, int32_const
from tilec.ir.types import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, FLOAT32, INT8, INT32, UINT8, DType
from tilec.ptx.module import Address, Guard, Imm, Operand, Reg, Symbol, Vector

PAIR_MASK = 0b11  # the blocks of a cluster that is one pair
MAX_COLUMNS = 256  # of one instruction
BEFORE_SYNC, AFTER_SYNC = "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync"

_OPERAND_CODES: dict[DType, tuple[str, int]] = {
    FLOAT16: ("f16", 0), BFLOAT16: ("f16", 1), FLOAT32: ("tf32", 2),
    FLOAT8_E4M3: ("f8f6f4", 0), FLOAT8_E5M2: ("f8f6f4", 1), UINT8: ("i8", 0), INT8: ("i8", 1),
}  # fmt: skip
"""The .kind of products of a type, and the type's number in the instruction descriptor."""
_ACCUMULATOR_CODES: dict[DType, int] = {FLOAT16: 0, FLOAT32: 1, INT32: 2}
_SWIZZLE_CODES = {128: 2, 64: 4, 32: 6}
_DESCRIPTOR_VERSION = 1 << 46  # of the shared memory descriptor
_LANE_STRIDE = 1 << 16  # in an address of tensor memory, whose low half is the column


# ---- allocation ------------------------------------------------------------------------------------------------------


def get_cta_group(program: warp.Program) -> str:
    """Return `cta_group::2` for a kernel of block pairs, else `cta_group::1`.

    All tcgen05 instructions of a kernel must share it (PTX ISA, tcgen05.alloc).
    """
    return f"cta_group::{2 if program.paired else 1}"


def emit_allocation(program: warp.Program, builder: Builder, scalars: Scalars) -> None:
    """Emit tensor memory's allocation by warp 0, which writes its address to shared memory and gives up the permit.

    The block allocates no more.
    """
    group = get_cta_group(program)
    past = builder.new_label("allocated")
    builder.emit("bra", Symbol(past), guard=builder.create("pred", "setp.ne.u32", scalars.get_register(WARP), Imm(0)))
    place = Address(scalars.get_register(SHARED_BASE), program.tensor_address_at)
    builder.emit(f"tcgen05.alloc.{group}.sync.aligned.shared::cta.b32", place, Imm(program.tensor_columns))
    builder.emit(f"tcgen05.relinquish_alloc_permit.{group}.sync.aligned")
    builder.place_label(past)
    builder.emit(BEFORE_SYNC)


def emit_address_load(program: warp.Program, builder: Builder, scalars: Scalars) -> Reg:
    """Emit the load, by every thread, of the tensor memory's address from shared memory, and return its register.

    It comes after a barrier with the first warp.
    """
    builder.emit(AFTER_SYNC)
    place = Address(scalars.get_register(SHARED_BASE), program.tensor_address_at)
    return builder.create("b32", "ld.shared.b32", place)


def emit_deallocation(state: State, barrier: Imm, threads: Imm, warp_index: Reg) -> None:
    """Emit the freeing of tensor memory by warp 0, after a barrier of `threads` and, in a pair, the other block."""
    builder = state.builder
    assert state.tensor is not None
    past = builder.new_label("deallocated")
    builder.emit(BEFORE_SYNC)
    builder.emit("bar.sync", barrier, threads)
    builder.emit("bra", Symbol(past), guard=builder.create("pred", "setp.ne.u32", warp_index, Imm(0)))
    if state.program.tells_peer:
        emit_peer_wait(state)
    builder.emit(AFTER_SYNC)
    columns = Imm(state.program.tensor_columns)
    builder.emit(f"tcgen05.dealloc.{get_cta_group(state.program)}.sync.aligned.b32", state.tensor, columns)
    builder.place_label(past)


def _address_version(buffer: tile.Buffer, cursors: tuple[warp.Cursor, ...], state: State) -> Reg:
    """Emit and return the tensor-memory address of the tile's version that the cursors point at."""
    assert state.tensor is not None
    held = next(t for t in state.program.tensor if t.buffer == buffer)
    builder, scalars, base = state.builder, state.scalars, state.tensor
    if held.offset:
        base = scalars.create_hoisted(("tmem", buffer.name), "add.u32", base, Imm(held.offset))
    if held.depth == 1:
        return base
    cursor = next(c for c in cursors if c.ring == buffer.name)
    if cursor.index is not None:
        moving = scalars.get_register(cursor.index)
        return builder.create("b32", "mad.lo.u32", moving, Imm(held.columns), base)
    position = state.addresses.positions[cursor.name]
    ring = next(ring for ring in state.program.rings if ring.name == buffer.name)
    first, step = state.addresses.get_first_place(ring)
    each = held.columns // step
    if first is not None:
        base = scalars.create_hoisted(("tmem versions", buffer.name), "mad.lo.u32", first, Imm(-each), base)
    key = ("tmem", buffer.name, cursor.name, position.moves)
    return scalars.create_once(key, "mad.lo.u32", position.place, Imm(each), base)


# ---- products --------------------------------------------------------------------------------------------------------


def build_instruction_descriptor(op: warp.TensorMma, rows: int, columns: int) -> int:
    """Return tcgen05's instruction descriptor for a product's shape, types and transpositions.

    It is 0x08400490 for bfloat16 of 128 × 256: see PTX ISA, tcgen05 "Instruction descriptor".
    """
    transposed = int(op.transpose_a) << 15 | int(not op.transpose_b) << 16
    a, b = (_OPERAND_CODES[factor.dtype][1] for factor in (op.a, op.b))
    return _ACCUMULATOR_CODES[op.c.dtype] << 4 | a << 7 | b << 10 | transposed | columns >> 3 << 17 | rows >> 4 << 24


def emit_tensor_mma(op: warp.TensorMma, state: State) -> None:
    """Emit, by one thread, all tcgen05 products of a tile: up to 128 × 256 at once, 32 bytes of K at a time.

    With scales, they are products with block scales.
    """
    builder = state.builder
    m, n = op.c.shape
    rows, columns = min(m, TENSOR_LANES), min(n, MAX_COLUMNS)
    step = K_BYTES // op.a.dtype.bytes
    depth = op.a.shape[0] if op.transpose_a else op.a.shape[1]
    if op.scales is not None:
        _emit_scaled_mma(op, op.scales, rows, columns, depth, state)
        return
    instruction = f"tcgen05.mma.{get_cta_group(state.program)}.kind::{_OPERAND_CODES[op.a.dtype][0]}"
    with state.scalars.open_scope(), _emit_on_leader(op.leader, state):
        pair_rows = 2 * rows if op.paired else rows
        form = builder.create("b32", "mov.b32", Imm(build_instruction_descriptor(op, pair_rows, columns)))
        always = builder.create("pred", "setp.eq.u32", Imm(1), Imm(1))
        first = _emit_accumulate_test(op, state, always)
        sums = _address_version(op.c, op.cursors, state)
        in_tensor_memory = op.a.scope == "tmem"
        locate_a = _address_version if in_tensor_memory else _build_descriptor
        a = locate_a(op.a, op.cursors, state)
        b = _build_descriptor(op.b, op.cursors, state)
        for i in range(m // rows):
            for j in range(n // columns):
                beyond = i * n + j * columns
                into = builder.create("b32", "add.u32", sums, Imm(beyond)) if beyond else sums
                for k in range(0, depth, step):
                    left: Operand
                    if in_tensor_memory:
                        left = Address(a, (i * depth + k) * op.a.dtype.bytes // 4)
                    else:
                        left = _advance_descriptor(
                            a, _compute_offset(op.a, not op.transpose_a, i * rows, k, state), state
                        )
                    right = _advance_descriptor(b, _compute_offset(op.b, op.transpose_b, j * columns, k, state), state)
                    builder.emit(instruction, Address(into), left, right, form, always if k else first)


def _emit_scaled_mma(
    op: warp.TensorMma, scales: warp.Scales, rows: int, columns: int, depth: int, state: State
) -> None:
    """Emit all products of a tile with block scales; each instruction's descriptor selects its scales along K."""
    builder, vector = state.builder, f"scale_vec::{SCALES_PER_INSTRUCTION[scales.kind]}X"
    opcode = f"tcgen05.mma.{get_cta_group(state.program)}.kind::{scales.kind}.block_scale.{vector}"
    m, n = op.c.shape
    with state.scalars.open_scope(), _emit_on_leader(op.leader, state):
        pair_rows = 2 * rows if op.paired else rows
        places = ScaleDescriptors(scales, build_scaled_descriptor(op, scales, pair_rows, columns), state)
        always = builder.create("pred", "setp.eq.u32", Imm(1), Imm(1))
        first = _emit_accumulate_test(op, state, always)
        sums, of_a, of_b = (_address_version(buffer, op.cursors, state) for buffer in (op.c, scales.a, scales.b))
        a, b = (_build_descriptor(buffer, op.cursors, state) for buffer in (op.a, op.b))
        for k in range(0, depth, K_BYTES):
            form = places.build_descriptor(k, builder)
            for i in range(m // rows):
                for j in range(n // columns):
                    beyond = i * n + j * columns
                    into = builder.create("b32", "add.u32", sums, Imm(beyond)) if beyond else sums
                    left = _advance_descriptor(a, _compute_offset(op.a, not op.transpose_a, i * rows, k, state), state)
                    right = _advance_descriptor(b, _compute_offset(op.b, op.transpose_b, j * columns, k, state), state)
                    a_scales = locate_scale_columns(of_a, i * rows, builder)
                    b_scales = locate_scale_columns(of_b, j * columns, builder)
                    adds = always if k else first
                    builder.emit(opcode, Address(into), left, right, form, a_scales, b_scales, adds)


def emit_tensor_copy(op: warp.TensorCopy, state: State) -> None:
    """Emit, by one thread, the copy of block scales from shared to tensor memory, 128 words at a time."""
    builder, opcode = state.builder, f"tcgen05.cp.{get_cta_group(state.program)}.32x128b.warpx4"
    with state.scalars.open_scope(), _emit_on_leader(op.leader, state):
        base, offset = state.addresses.get_tile_base(op.source, op.cursors)
        into = _address_version(op.destination, op.cursors, state)
        descriptor = _combine_descriptor(base, offset, _DESCRIPTOR_VERSION | _DESCRIPTOR_STRIDE, builder)
        for chunk in range(op.source.shape[-1] * 4 // _CHUNK_BYTES):
            column = builder.create("b32", "add.u32", into, Imm(chunk * _CHUNK_COLUMNS)) if chunk else into
            builder.emit(opcode, Address(column), _advance_descriptor(descriptor, chunk * _CHUNK_BYTES, state))


@contextmanager
def _emit_on_leader(leader: int | None, state: State) -> Iterator[None]:
    """Emit a branch by which only thread `leader` runs the code emitted inside; none if it is None."""
    past = state.builder.new_label("asked")
    if leader is not None:
        state.builder.emit("bra", Symbol(past), guard=Guard(emit_thread_test(state, leader), True))
    yield
    if leader is not None:
        state.builder.place_label(past)


def emit_tensor_arrive(op: warp.TensorArrive, state: State) -> None:
    """Emit the tensor cores' arrival at a kernel's barrier once the leader's earlier products are done."""
    opcode, mask = _build_commit(Imm(PAIR_MASK) if op.paired else None, state)
    barrier = address_own_barrier(op.barrier, state)
    state.builder.emit(opcode, barrier, *mask, guard=emit_thread_test(state, op.leader))


def _build_commit(blocks: Operand | None, state: State) -> tuple[str, tuple[Operand, ...]]:
    """Return the opcode and mask operand of tcgen05.commit, for `blocks` of the cluster or this block alone."""
    opcode = f"tcgen05.commit.{get_cta_group(state.program)}.mbarrier::arrive::one.shared::cluster"
    if blocks is None:
        return f"{opcode}.b64", ()
    return f"{opcode}.multicast::cluster.b64", (state.builder.create("b16", "cvt.u16.u32", blocks),)


def _emit_accumulate_test(op: warp.TensorMma, state: State, always: Reg) -> Reg:
    """Emit and return a predicate that holds if the first products add to the tile's content instead of clearing it."""
    builder = state.builder
    if tile.is_true(op.clear):
        return builder.create("pred", "setp.ne.u32", Imm(1), Imm(1))
    clear = state.scalars.get_operand(op.clear)
    return builder.create("pred", "not.pred", clear) if isinstance(clear, Reg) else always


def _compute_offset(buffer: tile.Buffer, k_major: bool, mn: int, k: int, state: State) -> int:
    """Return the byte offset of an operand's element (mn, k) in its shared tile, before the swizzle.

    `k_major`: rows of the tile run along K.
    """
    return compute_tile_byte(state.addresses.tiles[buffer.name].layout, k_major, mn, k)


def _build_descriptor(buffer: tile.Buffer, cursors: tuple[warp.Cursor, ...], state: State) -> Reg:
    """Return the shared memory descriptor of the first block of the operand's version at the cursors.

    Eight rows of a panel are contiguous. If the rows are not along K, further panels follow the first.
    """
    layout = state.addresses.tiles[buffer.name].layout
    base, offset = state.addresses.get_tile_base(buffer, cursors)
    stride = 8 * layout.panel * layout.element_bytes
    leading = layout.panel_bytes  # of panels along M or N; swizzled rows along K do not use it
    fixed = (leading >> 4) << 16 | (stride >> 4) << 32 | _DESCRIPTOR_VERSION | _SWIZZLE_CODES[layout.swizzle] << 61
    return _combine_descriptor(base, offset, fixed, state.builder)


def _combine_descriptor(base: Reg, offset: int, fixed: int, builder: Builder) -> Reg:
    """Emit and return a shared memory descriptor: the fixed fields, and address `base` + `offset` in units of 16 bytes.

    It has 18 bits of the address; the bits above are the block's number in its cluster.
    """
    address = builder.create("b32", "add.u32", base, Imm(offset)) if offset else base
    encoded = builder.create("b64", "cvt.u64.u32", builder.create("b32", "bfe.u32", address, Imm(4), Imm(14)))
    mask = builder.create("b64", "mov.b64", Imm(fixed - (1 << 64) if fixed >> 63 else fixed))
    return builder.create("b64", "or.b64", encoded, mask)


def _advance_descriptor(descriptor: Reg, offset: int, state: State) -> Reg:
    """Emit and return the descriptor with its address `offset` bytes on; itself for 0.

    Addresses stay below 2^18, so the field cannot overflow.
    """
    return descriptor if not offset else state.builder.create("b64", "add.s64", descriptor, Imm(offset >> 4))


def emit_commit(ring: warp.Ring, cursor: warp.Cursor, state: State, *, empty: bool) -> None:
    """Emit the tensor cores' arrival at a slot's full or empty barrier, in a pair's blocks or in those that share it.

    Blocks that are no pair share only empty slots. It happens once the thread's earlier products are done.
    """
    barrier, blocks = address_ring_barrier(state, cursor.name, ring.name, empty=empty), None
    if ring.paired or (empty and ring.shared):
        blocks = Imm(PAIR_MASK) if ring.paired else compute_mates_mask(ring.shared, state)
    opcode, mask = _build_commit(blocks, state)
    state.builder.emit(opcode, barrier, *mask)


# ---- to and from registers -------------------------------------------------------------------------------------------


def emit_tensor_move(op: warp.TensorLoad | warp.TensorStore, state: State) -> None:
    """Emit tcgen05.ld or st between a fragment and columns of a tile; keep loaded words in `state.loaded` for the wait.

    Each warp accesses the quarter of the lanes with its rows, 16 lanes at a time: 256 bits of each for accumulators,
    128 for operands.
    """
    buffer, fragment = (op.source, op.destination) if isinstance(op, warp.TensorLoad) else (op.destination, op.source)
    builder, layout = state.builder, state.layouts[fragment.name]
    blocks, halves = layout.registers[2].size, layout.registers[3].size
    held = next(t for t in state.program.tensor if t.buffer == buffer)
    shape, words = ("16x256b", 4) if held.per_column == 1 else ("16x128b", 2)
    with state.scalars.open_scope():
        quarter = builder.create("b32", "and.b32", state.warp, Imm(3))
        group = builder.create("b32", "shr.u32", state.warp, Imm(2))
        lanes = builder.create(
            "b32", "mad.lo.u32", quarter, Imm(32 * _LANE_STRIDE), _address_version(buffer, op.cursors, state)
        )
        half_stride = held.columns // (fragment.shape[0] // TENSOR_LANES) if fragment.shape[0] > TENSOR_LANES else 0
        start = builder.create("b32", "mad.lo.u32", group, Imm(half_stride or 2 * words * blocks), lanes)
        column = state.scalars.get_operand(tile.Binary("floordiv", op.column, tile.int32_const(held.per_column), INT32))
        start = builder.create("b32", "add.u32", start, column) if column != Imm(0) else start
        is_load = isinstance(op, warp.TensorLoad)
        registers = _allocate_words(fragment, held, state) if is_load else _pack_words(fragment, held, state)
        for half in range(halves):
            for done, count in _split_into_powers(blocks, 128 // words):
                first = words * (half * blocks + done)
                values = Vector(registers[first : first + words * count])
                place = Address(start, 16 * half * _LANE_STRIDE + 2 * words * done)
                if is_load:
                    builder.emit(f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32", values, place)
                else:
                    builder.emit(f"tcgen05.st.sync.aligned.{shape}.x{count}.b32", place, values)
        if is_load:
            state.loaded[fragment.name] = held, registers


def emit_tensor_wait(op: warp.TensorWait, state: State) -> None:
    """Emit the wait for tensor memory's loads or stores; after loads, unpack the words into the fragment."""
    state.builder.emit(f"tcgen05.wait::{'ld' if op.what == 'load' else 'st'}.sync.aligned")
    if op.what == "load":
        held, registers = state.loaded.pop(op.fragment.name)
        _unpack_words(op.fragment, held, registers, state)


def _split_into_powers(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Split `count` into powers of two up to `most`; yield each with the sum of those before."""
    done = 0
    while done < count:
        part = 1 << (min(count - done, most).bit_length() - 1)
        yield done, part
        done += part


def _allocate_words(fragment: tile.Buffer, held: warp.TensorTile, state: State) -> tuple[Reg, ...]:
    """Return registers to load a fragment's words into: its own if an element fills a word, else new ones."""
    registers = state.fragments[fragment.name]
    if held.per_column == 1 and get_register_class(fragment.dtype) != "b16":
        return registers
    return state.builder.new_registers("b32", len(registers) // held.per_column)


def _unpack_words(fragment: tile.Buffer, held: warp.TensorTile, words: tuple[Reg, ...], state: State) -> None:
    """Emit the moves of words loaded from tensor memory to the fragment's registers, one for each element."""
    registers, builder = state.fragments[fragment.name], state.builder
    if words == registers:
        return
    if held.per_column == 1:
        for register, word in zip(registers, words, strict=True):
            builder.emit("cvt.u16.u32", register, word)
        return
    for number, word in enumerate(words):
        parts = registers[number * held.per_column : (number + 1) * held.per_column]
        if get_register_class(fragment.dtype) == "b16":
            builder.emit("mov.b32", Vector(parts), word)
            continue
        signed = fragment.dtype.kind == "int"
        for place, part in enumerate(parts):
            builder.emit(f"bfe.{'s' if signed else 'u'}32", part, word, Imm(8 * place), Imm(8))


def _pack_words(fragment: tile.Buffer, held: warp.TensorTile, state: State) -> tuple[Reg, ...]:
    """Emit and return a fragment's elements as the 32-bit words to store in tensor memory."""
    if held.per_column > 1:
        return pack_operand(fragment, state)
    registers, builder = state.fragments[fragment.name], state.builder
    if get_register_class(fragment.dtype) == "b16":
        return tuple(builder.create("b32", "cvt.u32.u16", register) for register in registers)
    return registers


_TYPES = {"mxf8f6f4": {"e4m3": 0, "e5m2": 1}, "mxf4": {"e2m1": 1}, "mxf4nvf4": {"e2m1": 1}}
SCALES_PER_INSTRUCTION = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}
"""The scales along K that one instruction takes, for each kind."""
_ELEMENTS = {"mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}  # along K, of one instruction
_CHUNK_BYTES = 512  # of scales: 32 lines of 16 bytes
_CHUNK_COLUMNS = 4
_DESCRIPTOR_STRIDE = 8 << 32  # eight lines of 16 bytes are 128 bytes


def build_scaled_descriptor(op: warp.TensorMma, scales: warp.Scales, rows: int, columns: int) -> int:
    """Return the instruction descriptor of a product with block scales, without the scales' places in their words."""
    a, b = (_TYPES[scales.kind][name] for name in scales.types)
    transposed = int(op.transpose_a) << 15 | int(not op.transpose_b) << 16
    powers = int(scales.kind != "mxf4nvf4") << 23  # ue8m0, else ue4m3
    return a << 7 | b << 10 | transposed | columns >> 3 << 17 | powers | rows >> 7 << 27


class ScaleDescriptors:
    """Instruction descriptors with the first scale of each word, which may depend on the run-time start along K."""

    def __init__(self, scales: warp.Scales, form: int, state: State) -> None:
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
        """Emit and return a register with the descriptor of the instruction `k` bytes along K, with its scales'
        positions."""
        number = k // K_BYTES * _ELEMENTS[self.scales.kind]
        form = self.form + (number // self.scales.a_step << 29) + (number // self.scales.b_step << 4)
        fixed = builder.create("b32", "mov.b32", Imm(form))
        return fixed if self.moving is None else builder.create("b32", "add.u32", fixed, self.moving)


def locate_scale_columns(base: Reg, rows: int, builder: Builder) -> Address:
    """Emit and return the tensor-memory address of the scales of a tile's rows (or columns) from number `rows` on.

    32 rows share a column.
    """
    beyond = rows // TENSOR_LANES * _CHUNK_COLUMNS
    return Address(builder.create("b32", "add.u32", base, Imm(beyond)) if beyond else base)
