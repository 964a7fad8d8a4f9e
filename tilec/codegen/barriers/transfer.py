"""Asynchronous copies: cp.async, TMA loads and TMA stores; and cluster launch control, requests for the work of blocks
that have not begun, whose answers `integers` decodes."""

from __future__ import annotations

from dataclasses import replace

from tilec.codegen.barriers.barriers import address_own_barrier, emit_thread_test, get_warpgroup_index
from tilec.codegen.barriers.clusters import address_in_leader, map_to_block
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, affine_form, scale_expr
from tilec.ir.layout import SharedLayout
from tilec.ir.multicast import count_multicast_blocks
from tilec.ir.types import BOOL, INT32
from tilec.ir.warp import MBARRIER_BYTES, PART_ROWS, CpAsync, FourRows, Gather, TensorMap, TmaLoad, TmaStore, TryCancel
from tilec.ops.lowering import index_element
from tilec.ptx.module import Address, Imm, Operand, Reg, TensorAddress, Vector

PART_INDEX = tile.Var("%part")
"""The number of the tile's part that this warpgroup stores."""
LAST_ROW = (1 << 31) - 1
"""A row number beyond every tensor."""
_TRY_CANCEL = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"


def emit_cp_async(op: CpAsync, state: State) -> None:
    """Emit cp.async for each thread's runs of `width` bytes; a run outside the tensor is filled with zeros.

    If several threads have a run, one copies it: a second copy might land after another thread has waited for the
    first.
    """
    builder, scalars = state.builder, state.scalars
    layout, source = op.layout, _make_gather(op)
    coordinates = layout.thread_coordinates()
    run = op.width // source.buffer.dtype.bytes
    replica = layout.replica_index()
    once = [] if replica is None else [tile.Binary("eq", replica, tile.int32_const(0), BOOL)]
    with scalars.open_scope():
        for register in range(0, layout.register_count, run):
            offset = layout.register_offset(register)
            here = tuple(add_exprs(c, tile.int32_const(o)) for c, o in zip(coordinates, offset, strict=True))
            values = dict(zip(source.variables, here, strict=True))
            indices = scalars.settle_indices(tuple(tile.substitute_variables(i, values) for i in source.indices))
            inside = [c for i, e in zip(indices, source.buffer.extents, strict=True) for c in scalars.list_bounds(i, e)]
            # Most conditions say themselves that an index is inside; it is tested once.
            inside += scalars.list_conditions(tile.substitute_variables(source.condition, values))
            within = [
                c for d, e in enumerate(layout.shape) if layout.overhangs(d) for c in scalars.list_bounds(here[d], e)
            ]
            guard = scalars.test_all([*once, *within])
            into = index_element(op.destination, source.variables, layout.shape)
            into = tuple(tile.substitute_variables(i, values) for i in into)
            operands: list[Operand] = [
                state.addresses.address_shared_element(op.destination.buffer, into, op.cursors),
                state.addresses.address_global_element(source.buffer, indices),
                Imm(op.width),
            ]
            exists = scalars.test_all(inside)
            if exists is not None:
                operands.append(builder.create("b32", "selp.b32", Imm(op.width), Imm(0), exists))
            cache = "cg" if op.width == 16 else "ca"
            builder.emit(f"cp.async.{cache}.shared.global", *operands, guard=guard)


def _make_gather(op: CpAsync) -> Gather:
    """Return the copy's source as a gather: for each element of the layout its indices in the tensor."""
    if isinstance(op.source, Gather):
        return op.source
    variables = tuple(tile.Var(f"%c{d}") for d in range(len(op.layout.shape)))
    indices = index_element(op.source, variables, op.layout.shape)
    return Gather(op.source.buffer, variables, indices, tile.Const(True, BOOL))


def emit_tma_load(op: TmaLoad, state: State) -> None:
    """Emit a TMA load of a box per panel of a tile, or of this block's slice of a multicast tile; announce it if asked.

    The bytes complete on the full barrier of the ring's version, or on the kernel's own barrier.
    """
    leader, group = None, ""
    layout = state.addresses.tiles[op.destination.name].layout
    if op.barrier is not None:
        leader = emit_thread_test(state, op.leader)
        barrier = address_own_barrier(op.barrier, state)
        count = layout.bytes if op.four is None else len(op.four.rows) * layout.panels * layout.row_bytes
        announced = Imm(op.panels * layout.panel_bytes if op.panels else count)
        space = "cta.shared::cta"
        if op.block is not None:
            barrier, space, group = map_to_block(barrier, op.block, state), "cluster.shared::cluster", ".cta_group::2"
        if op.announces:
            state.builder.emit(f"mbarrier.expect_tx.relaxed.{space}.b64", barrier, announced, guard=leader)
    else:
        ring = state.addresses.ring_of[op.destination.name]
        cursor = next(c for c in op.cursors if c.ring == ring.name)
        leader = state.leader
        barrier = address_ring_barrier(state, cursor.name, ring.name, empty=False)
        if ring.paired:
            assert state.pair is not None
            barrier, group = address_in_leader(barrier, cursor, state.pair, state), ".cta_group::2"
    base, offset = _address_first_row(op.destination, op, layout, state)
    mode = ".im2col" if op.map.corners else ".tile::gather4" if op.four else ""
    # Without clusters the assembler makes a call of a copy that might go to another block; but PTX has the form for
    # this block only from 8.6 on (PTX ISA, cp.async.bulk.tensor).
    alone = not state.target.has("cluster") and state.target.ptx_release >= (8, 6)
    into = "shared::cta" if alone else "shared::cluster"
    opcode = f"cp.async.bulk.tensor.{len(op.start)}d.{into}.global{mode}.mbarrier::complete_tx::bytes"
    tap = [state.builder.create("b16", "cvt.u16.u32", state.scalars.get_register(e)) for e in reversed(op.tap)]
    start, panels, to_whom = op.start, layout.panels, []
    if op.shared:
        share, slices = state.shares[op.shared], count_multicast_blocks(state.program.cluster, op.shared)
        which = state.scalars.get_register(share.slice)
        length, size = op.map.box[op.sliced], layout.panel_bytes // slices
        if op.sliced == len(start) - 1:  # a slice is some of the panels
            panels //= slices
            length, size = panels * layout.panel, panels * layout.panel_bytes
        base = state.builder.create("b32", "mad.lo.u32", which, Imm(size), base)
        start = _shift_start(start, op.sliced, scale_expr(share.slice, length))
        opcode, to_whom = f"{opcode}.multicast::cluster", [share.mask]
    opcode += group
    for panel in range(op.panels or panels):
        destination = Address(base, offset + panel * layout.panel_bytes)
        box = _address_box(state, op.map, start, panel, layout, op.four)
        taps = [Vector(tuple(tap))] if tap else []
        state.builder.emit(opcode, destination, box, barrier, *taps, *to_whom, guard=leader)


def emit_tma_store(op: TmaStore, state: State) -> None:
    """Emit a TMA store or reduction of a tile as one bulk group, by the role's first thread or one in each warpgroup.

    All threads that ever store commit a group each time, so that their groups have equal numbers.
    """
    builder = state.builder
    layout = state.addresses.tiles[op.source.name].layout
    base, offset = _address_first_row(op.source, op, layout, state)
    four = op.four and replace(op.four, rows=tuple(_replace_negative_row(row, state) for row in op.four.rows))
    rank = f"{len(op.start)}d.global.shared::cta"
    opcode = f"cp.async.bulk.tensor.{rank}.tile{'::scatter4' if op.four else ''}.bulk_group"
    if op.atomic:
        opcode = f"cp.reduce.async.bulk.tensor.{rank}.{op.atomic}.tile.bulk_group"
    rows = layout.rows if op.four is None else len(op.four.rows)
    height, first, storing = rows, op.start, state.leader
    if op.parts > 1:
        height, storing = PART_ROWS, state.first_lanes
        group = get_warpgroup_index(state)
        whole, size = base, PART_ROWS * layout.row_bytes
        base = state.scalars.create_once(("part", whole, size), "mad.lo.u32", group, Imm(size), whole)
        state.scalars.define_variable(PART_INDEX, group, (0, op.parts - 1))
        first = _shift_start(op.start, op.rows, scale_expr(PART_INDEX, PART_ROWS))
    for panel in range(layout.panels):
        for row in range(0, rows, height * op.parts):
            source = Address(base, offset + panel * layout.panel_bytes + row * layout.row_bytes)
            box = _address_box(state, op.map, _shift_start(first, op.rows, tile.int32_const(row)), panel, layout, four)
            builder.emit(opcode, box, source, guard=storing)
    builder.emit("cp.async.bulk.commit_group", guard=state.first_lanes or state.leader)


def _replace_negative_row(row: tile.Expr, state: State) -> tile.Expr:
    """Return a row's index with a negative one replaced by a row beyond every tensor, which TMA drops.

    TMA takes no negative ones (PTX ISA, "Restriction on Tensor Copy instructions").
    """
    if state.scalars.find_interval(row)[0] >= 0:
        return row
    return tile.Select(tile.Binary("lt", row, tile.int32_const(0), BOOL), tile.int32_const(LAST_ROW), row, INT32)


def _shift_start(start: tuple[tile.Expr, ...], dim: int, by: tile.Expr) -> tuple[tile.Expr, ...]:
    """Return the coordinates with `by` added to that of dimension `dim`."""
    return (*start[:dim], add_exprs(start[dim], by), *start[dim + 1 :])


def _address_first_row(
    buffer: tile.Buffer, op: TmaLoad | TmaStore, layout: SharedLayout, state: State
) -> tuple[Reg, int]:
    """Emit the shared address of the first copied row or column in the cursors' version; return register and
    constant."""
    base, offset = state.addresses.get_tile_base(buffer, op.cursors)
    at, step = (None, 0) if op.four is None else (op.four.at, layout.row_bytes)
    if isinstance(op, TmaLoad) and op.column is not None:
        at, step = op.column, layout.panel_bytes // layout.panel
    if at is None:
        return base, offset
    form = affine_form(at)
    if form.terms:
        moving = state.scalars.get_register(form.without_constant())
        base = state.builder.create("b32", "mad.lo.u32", moving, Imm(step), base)
    return base, offset + form.constant * step


def _address_box(
    state: State,
    tensor_map: TensorMap,
    start: tuple[tile.Expr, ...],
    panel: int,
    layout: SharedLayout,
    four: FourRows | None = None,
) -> TensorAddress:
    """Return the tensor address of a panel's box, fastest coordinate first; for four rows, with each one's index."""
    last = add_exprs(start[-1], tile.int32_const(panel * layout.panel))
    others = reversed(start[:-1]) if four is None else four.rows
    coordinates = tuple(state.scalars.get_register(e) for e in (last, *others))
    return TensorAddress(state.pointers[tensor_map.name], coordinates)


def address_ring_barrier(state: State, cursor: str, ring: str, *, empty: bool) -> Address:
    """Return the shared address of the full or empty mbarrier of the version that a cursor points at."""
    made = next(r for r in state.program.rings if r.name == ring)
    position = state.addresses.positions[cursor]
    return Address(position.place, state.barriers[ring] + (MBARRIER_BYTES * made.depth if empty else 0))


def emit_try_cancel(op: TryCancel, state: State) -> None:
    """Emit the request to take over a block that has not begun, answered on the op's barrier, or else on the ring's."""
    builder = state.builder
    answer = state.addresses.address_shared_element(op.answer, (tile.int32_const(0),), op.cursors)
    if op.barrier is None:
        _emit_multicast_cancel(op, answer, state)
        return
    asks, barrier = emit_thread_test(state, op.leader), address_own_barrier(op.barrier, state)
    if op.announces:
        builder.emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", barrier, Imm(op.answer.bytes), guard=asks)
    builder.emit(f"{_TRY_CANCEL}.b128", answer, barrier, guard=asks)


def _emit_multicast_cancel(op: TryCancel, answer: Address, state: State) -> None:
    """Emit the cancel request of a one-thread role: the first block of a cluster asks for all, else each for itself.

    The answer completes on the full barrier of the cursor's version, in each block that gets it.
    """
    assert state.role.single_thread
    (cursor,) = op.cursors
    full = address_ring_barrier(state, cursor.name, cursor.ring, empty=False)
    is_first: Reg | None = None if state.head is None else state.head.is_first
    multicast = "" if state.head is None else ".multicast::cluster::all"
    state.builder.emit(f"{_TRY_CANCEL}{multicast}.b128", answer, full, guard=is_first)
