"""Addresses: of tensor elements in global memory, of tile elements in (swizzled, versioned) shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.codegen.builder import Builder
from tilec.codegen.scalar.scalar import Scalars
from tilec.ir import tile, warp
from tilec.ir.affine import Affine, add_exprs, affine_form, join_quotients, scale_expr
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.layout import SharedLayout
from tilec.ir.types import INT32
from tilec.ir.warp import MBARRIER_BYTES, Cursor, Program, Ring, SharedTile
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.ptx.module import Address, Imm, Reg
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

SHARED_BASE = tile.Var("%smem")
"""The start of dynamic shared memory."""
POINTER_BYTES = 8
SWIZZLE_UNIT = 16  # bytes that stay together
MAX_OFFSET = 1 << 20  # constant offsets stay well inside the 32 bits an address may add


@dataclass(slots=True)
class CursorPosition:
    """The position of a role's cursor. `place` counts versions; in a ring with barriers it is the address of the
    version's full barrier, less the offset of the ring's first one. `parity` is that of the next phase to wait for, if
    the role waits at this cursor."""

    place: Reg
    parity: Reg | None
    moves: int = 0  # grows whenever the registers may have changed, so that nothing computed from them is used again


@dataclass(frozen=True, slots=True)
class VersionPlace:
    """The offset of a tile's version in shared memory: `constant` + `each` · (`register` - `first`) bytes. Without a
    `register` it is `constant`; without `first` it is counted from 0."""

    constant: int
    register: Reg | None = None
    each: int = 0
    first: Reg | None = None
    moves: int = 0


class Addresses:
    """Emits the addresses of elements of tensors and tiles, for one entry."""

    def __init__(self, builder: Builder, scalars: Scalars, program: Program, pointers: dict[str, Reg]) -> None:
        self.builder, self.scalars, self.pointers = builder, scalars, pointers
        self.tiles: dict[str, SharedTile] = {t.buffer.name: t for t in program.shared}
        self.rings = program.rings
        self.ring_of: dict[str, Ring] = {b: r for r in program.rings for b in r.buffers}
        self.positions: dict[str, CursorPosition] = {}
        self.strides: dict[str, tuple[int | Reg, ...]] = {}

    def get_strides(self, tensor: tile.Buffer) -> tuple[int | Reg, ...]:
        """Return a tensor's strides in bytes, numbers or registers; the first call emits those known only at launch.
        For a table of addresses they are those of its entries' tensors.
        """
        if tensor.name in self.strides:
            return self.strides[tensor.name]
        if tensor.strides is not None:
            size = tensor.dtype.bytes
            given = (s * size if isinstance(s, int) else self.multiply_stride(size, s) for s in tensor.strides)
            self.strides[tensor.name] = tuple(given)
            return self.strides[tensor.name]
        stride = tensor.dtype.bytes
        known: list[int | Reg] = []
        wide: Reg | None = None  # the stride, once an extent is a run-time value
        extents = tensor.extents[tensor.table_rank :]
        for extent in reversed(extents):
            known.append(stride if wide is None else wide)
            if wide is None and isinstance(extent, int):
                stride *= extent
            elif len(known) < len(extents):
                wide = self.multiply_stride(stride if wide is None else wide, extent)
        self.strides[tensor.name] = tuple(reversed(known))
        return self.strides[tensor.name]

    def multiply_stride(self, stride: int | Reg, extent: tile.Extent) -> Reg:
        """Emit the 64-bit product of a stride in bytes and an extent, of which at least one is known only at launch."""
        if isinstance(extent, int):
            assert isinstance(stride, Reg)
            return self.builder.create("b64", "mul.lo.s64", stride, Imm(extent))
        size = self.scalars.get_register(extent)
        if isinstance(stride, int):
            return self.builder.create("b64", "mul.wide.s32", size, Imm(stride))
        return self.builder.create("b64", "mul.lo.s64", self.builder.create("b64", "cvt.s64.s32", size), stride)

    def address_global_element(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> Address:
        """Return a global element's address: a 64-bit base register that neighbours share, and a constant offset. In a
        table of addresses it is that of an element of the entry's tensor.
        """
        start = self.pointers[buffer.name]
        if rank := buffer.table_rank:
            start = self.load_entry(buffer, indices[:rank])
            indices = indices[rank:]
        terms: dict[tile.Expr, int] = {}
        constant = 0
        rows: list[tuple[tile.Expr, Reg]] = []
        for index, stride in zip(reversed(indices), reversed(self.get_strides(buffer)), strict=True):
            if isinstance(stride, Reg):
                rows.append((index, stride))
                continue
            form = affine_form(index)
            constant += form.constant * stride
            for atom, coefficient in form.terms:
                terms[atom] = terms.get(atom, 0) + coefficient * stride
        constant += join_quotients(terms)
        beyond = constant // MAX_OFFSET * MAX_OFFSET
        moving = tuple((atom, coefficient) for atom, coefficient in terms.items() if coefficient)
        for index, length in reversed(rows):
            start = self.add_row(start, index, length)
        return Address(self.get_global_base(start, moving, beyond), constant - beyond)

    def load_entry(self, table: tile.Buffer, indices: tuple[tile.Expr, ...]) -> Reg:
        """Return a register with an address of a table, loaded once per scope unless an index reads an element. Outside
        the table it is 0, and nothing is loaded.
        """
        extents = table.extents[: table.table_rank]

        def load_address() -> Reg:
            """Emit the load of the address at these indices, where they are within the table."""
            place = indices[0]
            for index, extent in zip(indices[1:], extents[1:], strict=True):
                place = add_exprs(tile.Binary("mul", place, tile.extent_expr(extent), INT32), index)
            bounds = (c for i, e in zip(indices, extents, strict=True) for c in self.scalars.list_bounds(i, e))
            guard = self.scalars.test_all(bounds)
            moved = self.scalars.get_register(place)
            at = self.builder.create("b64", "mad.wide.s32", moved, Imm(POINTER_BYTES), self.pointers[table.name])
            if guard is None:
                generic = self.builder.create("b64", "ld.global.nc.b64", Address(at))
            else:
                (generic,) = self.builder.new_registers("b64", 1)
                self.builder.emit("mov.b64", generic, Imm(0))
                self.builder.emit("ld.global.nc.b64", generic, Address(at), guard=guard)
            return self.builder.create("b64", "cvta.to.global.u64", generic)

        if any(isinstance(e, tile.Load) for index in indices for e in tile.walk_expr(index)):
            return load_address()  # the loaded value may have changed
        return self.scalars.compute_once(("entry", table.name, indices), load_address)

    def add_row(self, base: Reg, index: tile.Expr, stride: Reg) -> Reg:
        """Return a register with base + index · stride, emitted once per scope unless the index reads an element."""

        def compute_row() -> Reg:
            """Emit base + index · stride in 64 bits."""
            value = self.scalars.get_register(index)
            wide = self.builder.create("b64", "cvt.s64.s32", value)
            return self.builder.create("b64", "mad.lo.s64", wide, stride, base)

        if any(isinstance(e, tile.Load) for e in tile.walk_expr(index)):
            return compute_row()  # the loaded value may have changed
        return self.scalars.compute_once(("row", base, index, stride), compute_row)

    def get_global_base(self, base: Reg, terms: tuple[tuple[tile.Expr, int], ...], constant: int) -> Reg:
        """Return a register with base + terms + constant, emitted once per scope unless a term reads an element."""
        if any(isinstance(e, tile.Load) for atom, _ in terms for e in tile.walk_expr(atom)):
            return self.emit_global_base(base, terms, constant)
        key = ("global", base, terms, constant)
        return self.scalars.compute_once(key, lambda: self.emit_global_base(base, terms, constant))

    def emit_global_base(self, base: Reg, terms: tuple[tuple[tile.Expr, int], ...], constant: int) -> Reg:
        """Emit base + coefficient · index for each term + constant, in 64 bits."""
        for atom, coefficient in terms:
            index = self.scalars.get_register(atom)
            if -(1 << 31) <= coefficient < 1 << 31:
                base = self.builder.create("b64", "mad.wide.s32", index, Imm(coefficient), base)
            else:
                wide = self.builder.create("b64", "cvt.s64.s32", index)
                base = self.builder.create("b64", "mad.lo.s64", wide, Imm(coefficient), base)
        if constant:
            base = self.builder.create("b64", "add.s64", base, Imm(constant))
        return base

    def locate_version(self, buffer: tile.Buffer, cursors: tuple[Cursor, ...]) -> VersionPlace:
        """Return the shared-memory place of a tile's version at its ring's cursor; constant if there is one version.

        Raise InternalError if no cursor is of the tile's ring.
        """
        shared_tile = self.tiles[buffer.name]
        ring = self.ring_of.get(buffer.name)
        if ring is None or ring.depth == 1:
            return VersionPlace(shared_tile.offset)
        cursor = next((c for c in cursors if c.ring == ring.name), None)
        if cursor is None:
            raise InternalError(f"{buffer.name} has {ring.depth} versions, and the access names none")
        if cursor.index is not None:
            form = affine_form(cursor.index)
            moving = self.scalars.get_register(form.without_constant()) if form.terms else None
            return VersionPlace(shared_tile.offset + shared_tile.stride * form.constant, moving, shared_tile.stride)
        return self.locate_in_ring(cursor, shared_tile.offset, shared_tile.stride)

    def locate_in_ring(self, cursor: Cursor, offset: int, stride: int) -> VersionPlace:
        """Return the place of a cursor's version among versions `stride` bytes apart from `offset` on.

        In a ring with barriers `stride` is a multiple of their size.
        """
        position = self.positions[cursor.name]
        first, step = self.get_first_place(next(ring for ring in self.rings if ring.name == cursor.ring))
        return VersionPlace(offset, position.place, stride // step, first, position.moves)

    def get_first_place(self, ring: Ring) -> tuple[Reg | None, int]:
        """Return the value of a ring's cursors at the first version (None for 0) and their step to the next.

        In a ring with barriers cursors are addresses, else version numbers.
        """
        return (self.scalars.get_register(SHARED_BASE), MBARRIER_BYTES) if ring.has_barriers else (None, 1)

    def get_tile_base(self, buffer: tile.Buffer, cursors: tuple[Cursor, ...]) -> tuple[Reg, int]:
        """Return the shared address, register and constant, of a tile's version at the cursors, in the warpgroup's
        copy.
        """
        place = self.locate_version(buffer, cursors)
        base = self.scalars.get_register(SHARED_BASE)
        own = compute_copy_offset(self.tiles[buffer.name].layout)
        if own != tile.int32_const(0):
            base = self.add_registers(base, self.scalars.get_register(own))
        return self.move_base(base, place), place.constant

    def move_base(self, base: Reg, place: VersionPlace) -> Reg:
        """Return the base register moved to a version's place; itself if the place is constant."""
        moving, first, each = place.register, place.first, place.each
        if moving is None:
            return base
        if first is not None:
            base = self.scalars.create_hoisted(("first", base, first, each), "mad.lo.u32", first, Imm(-each), base)
        key = ("version", base, moving, each, place.moves)
        return self.scalars.create_once(key, "mad.lo.u32", moving, Imm(each), base)

    def forget_positions(self) -> None:
        """Invalidate addresses computed from cursors, at the borders of loops and branches."""
        for position in self.positions.values():
            position.moves += 1

    def address_shared_element(
        self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], cursors: tuple[Cursor, ...]
    ) -> Address:
        """Return the shared address of a tile's element, in the version that the cursors point at."""
        offset = self.compute_tile_offset(self.tiles[buffer.name].layout, indices)
        return self.address_tile_offset(buffer, *offset, cursors)

    def address_tile_offset(
        self, buffer: tile.Buffer, inside: Reg | None, constant: int, cursors: tuple[Cursor, ...]
    ) -> Address:
        """Return the shared address at an offset (register or None, and constant) in the version at the cursors."""
        base, offset = self.get_tile_base(buffer, cursors)
        return Address(self.add_registers(base, inside), offset + constant)

    def add_registers(self, base: Reg, inside: Reg | None) -> Reg:
        """Return the sum of two address registers, emitted once per scope; the first alone if the second is None."""
        if inside is None:
            return base
        return self.scalars.create_once(("sum", base, inside), "add.u32", base, inside)

    def compute_tile_offset(self, layout: SharedLayout, indices: tuple[tile.Expr, ...]) -> tuple[Reg | None, int]:
        """Return the swizzled byte offset of an element inside its tile: a register (None for zero) and a constant.

        The swizzle permutes units within `repeat_bytes`, so multiples of that, and what stays in a unit, stay constant.
        """
        linear = self.compute_linear_offset(layout, indices)
        form = affine_form(linear)
        constant = form.constant
        if self.scalars.find_interval(form.without_constant())[0] < 0:
            # The constant keeps the sum from going below the start of shared memory on the way.
            return self.scalars.get_register(apply_swizzle(linear, layout) if layout.swizzle else linear), 0
        if not layout.swizzle:
            symbolic = form.without_constant()
            return (self.scalars.get_register(symbolic) if form.terms else None), constant
        outside = constant // layout.repeat_bytes * layout.repeat_bytes
        if not form.terms:
            value = constant - outside
            return None, outside + (value ^ (value >> 3 & layout.swizzle_mask << 4))
        kept = self.find_unit_offset(form)
        inner = add_exprs(form.without_constant(), tile.int32_const(constant - outside - kept))
        return self.scalars.get_register(apply_swizzle(inner, layout)), outside + kept

    def find_unit_offset(self, form: Affine) -> int:
        """Return the part of a byte offset's constant that stays within the 16-byte units which a swizzle permutes."""
        inside = Affine(tuple((atom, c) for atom, c in form.terms if c % SWIZZLE_UNIT), 0)
        low, high = self.scalars.find_interval(inside.without_constant())
        kept = form.constant % SWIZZLE_UNIT
        return kept if low >= 0 and high + kept < SWIZZLE_UNIT else 0

    def compute_linear_offset(self, layout: SharedLayout, indices: tuple[tile.Expr, ...]) -> tile.Expr:
        """Return the expression of an element's byte offset inside its tile before the swizzle."""
        if layout.placement is not None:
            values = dict(zip(layout.placement.vars, indices, strict=True))
            return scale_expr(tile.substitute_variables(layout.placement.place, values), layout.element_bytes)
        row: tile.Expr = tile.int32_const(0)
        for index, extent in zip(indices[:-1], layout.shape[:-1], strict=True):
            row = add_exprs(scale_expr(row, extent), index)
        rows = scale_expr(row, layout.panel * layout.element_bytes)
        return add_exprs(rows, self.compute_column_offset(layout, indices[-1]))

    def compute_column_offset(self, layout: SharedLayout, column: tile.Expr) -> tile.Expr:
        """Return the expression of a column's byte offset: that of its panel plus that inside the panel."""
        size = layout.element_bytes
        if layout.panels == 1:
            return scale_expr(column, size)
        form = affine_form(column)
        panel, inside = divmod(form.constant, layout.panel)
        low, high = self.scalars.find_interval(form.without_constant())
        if low >= 0 and inside + high < layout.panel:
            of_panel = scale_expr(add_exprs(form.without_constant(), tile.int32_const(inside)), size)
            return add_exprs(tile.int32_const(panel * layout.panel_bytes), of_panel)
        width = tile.int32_const(layout.panel)
        return add_exprs(
            scale_expr(tile.Binary("floordiv", column, width, INT32), layout.panel_bytes),
            scale_expr(tile.Binary("floormod", column, width, INT32), size),
        )


def compute_copy_offset(layout: SharedLayout) -> tile.Expr:
    """Return the expression of the byte offset from a tile's first copy to the warpgroup's own; 0 if there is one."""
    if layout.copies == 1:
        return tile.int32_const(0)
    group = tile.Binary("floordiv", tile.THREAD, tile.int32_const(WARPGROUP_THREADS), INT32)
    return scale_expr(group, layout.copy_bytes)


def apply_swizzle(offset: tile.Expr, layout: SharedLayout) -> tile.Expr:
    """Return the expression of a byte offset with bits 6:4 (5:4, 4) xored with bits 9:7 (8:7, 7).

    Tiles start where the pattern repeats.
    """
    rows = tile.Binary("shr", offset, tile.int32_const(3), INT32)
    moved = tile.Binary("bitand", rows, tile.int32_const(layout.swizzle_mask << 4), INT32)
    return tile.Binary("xor", offset, moved, INT32)


# ---- tables of addresses ---------------------------------------------------------------------------------------------

TableEntry = tuple[tile.Buffer, tuple[tile.Expr, ...]]


def find_table_entries(body: tuple[warp.Operation, ...]) -> Iterator[TableEntry]:
    """Yield a table and the indices of an entry for each access to a tensor of a table, of nested operations too."""
    for op in warp.walk_operations(body):
        for buffer, indices in _find_accesses(op):
            if buffer.table_rank:
                yield buffer, indices[: buffer.table_rank]


def _find_accesses(op: warp.Operation) -> Iterator[TableEntry]:
    """Yield each buffer that an asynchronous copy reads or a nest accesses, with the indices of an element."""
    match op:
        case warp.CpAsync(source=tile.Region(buffer=buffer, start=start)):
            yield buffer, start
        case warp.CpAsync(source=warp.Gather(buffer=buffer, indices=indices)):
            yield buffer, indices
        case warp.Elementwise(nest=nest):
            for _, access in find_element_accesses(nest.body):
                yield access.buffer, access.indices
        case _:
            return
