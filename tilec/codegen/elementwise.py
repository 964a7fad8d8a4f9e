"""Elementwise nests: each thread computes the elements of its registers, in runs that move as vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field

from tilec.codegen.atomic import emit_atomic, widest
from tilec.codegen.builder import register_class
from tilec.codegen.clusters import in_block
from tilec.codegen.local import read_local, write_local
from tilec.codegen.memory import load_vector, pack, pack_f32, words_of
from tilec.codegen.neighbours import chunks, place_of, rows
from tilec.codegen.pairs import are_alike, pair
from tilec.codegen.printing import emit_print, printing
from tilec.codegen.read_masks import Path, ranks, read_masks
from tilec.codegen.reducer import add_anywhere, add_to_part
from tilec.codegen.scalar import SHORT, ReadElement
from tilec.codegen.state import State
from tilec.codegen.steps import Assignment, Definition, Output, Step, follows, steps
from tilec.codegen.verify_steps import step_violations
from tilec.codegen.words import per_word
from tilec.ir import tile
from tilec.ir.affine import add, affine, row_divisor
from tilec.ir.layout import Fragment
from tilec.ir.rewrite import map_expressions
from tilec.ir.types import BOOL, FLOAT32, DType
from tilec.ir.warp import Elementwise
from tilec.ops.lowering import VECTOR_BYTES
from tilec.passes.analysis.fold_constants import compute_expr
from tilec.passes.layout.generator_copies import check_nest
from tilec.ptx.module import Address, Guard, Imm, Operand, Reg, Vector
from tilec.support.diagnostics import InternalError
from tilec.support.identity import Same
from tilec.support.records import dataclass

BATCH_REGISTERS = 32  # results of loads in flight before the first is used
KEPT_LOADS = 8  # the latest loads, whose results later elements may reuse


def emit_elementwise(op: Elementwise, state: State) -> None:
    state.builder.expect(op.layout.register_count // VECTOR_BYTES)  # elements of a byte or more
    sweep = _Sweep(op, state)
    names = {store.buffer.name for store in sweep.stored if store.buffer.in_registers}
    with state.scalars.while_changing(
        r for name in names for r in (*state.fragments.get(name, ()), *state.words.get(name, ()))
    ):
        sweep.run()


class _Sweep:
    """The emission of one nest: its steps, for every register of a thread."""

    def __init__(self, op: Elementwise, state: State) -> None:
        self.op, self.state, self.layout = op, state, op.layout
        self.builder, self.scalars = state.builder, state.scalars
        self.vars = op.nest.vars
        self.coordinates = op.layout.thread_coordinates()
        self.offsets = [op.layout.register_offset(r) for r in range(op.layout.register_count)]
        self.body = steps(op.nest)
        if broken := list(step_violations(op.nest, self.body)):
            raise InternalError("\n  ".join(["the steps of a nest do not verify:", *broken]))
        self.stored = [a.store for a in self.body if isinstance(a, Assignment)]
        self.stores_to: dict[str, list[tile.Store]] = {}
        for store in self.stored:
            self.stores_to.setdefault(store.buffer.name, []).append(store)
        # Variables with a value of their own in each element.
        self.kept = tuple(a.var for a in self.body if isinstance(a, Definition))
        self.kept += tuple(s.previous for s in self.stored if s.previous is not None)
        replica = op.layout.replica(self.copies())
        self.first_copy = () if replica is None else (tile.Binary("eq", replica, tile.integer(0), BOOL),)
        check_nest(op.nest, op.layout, self.copies())
        # One of the threads with a copy of an element stores it: the others must not read the element meanwhile.
        in_memory = all(not s.buffer.in_registers for s in self.stored)
        self.overwritten = {s.buffer.name for s in self.stored} if in_memory else set()
        self.places = {b.name: _places(state.layouts[b.name]) for b in self.fragments()}
        self.memory_loads = [ld for a in self.body for ld in self.loads(a) if not ld.buffer.in_registers]
        self.shared_conditions = self.of_all_steps()
        self.known_masks: dict[tuple[Same[Step], ...], tuple[dict[tile.Load, Path], dict[Path, int]]] = {}
        self.is_independent = self.leaves_what_it_reads() and not self.masks_change()
        self.run_length = self.vector()
        self.variables = 0  # made so far, for their names
        self.read_before: dict[tuple[str, Address, int, Reg | None], list[Operand]] = {}

    def leaves_what_it_reads(self) -> bool:
        """Return whether the nest neither changes nor computes what it reads from memory, and the indices."""
        written = {store.buffer.name for store in self.stored}
        read = [e for ld in self.memory_loads for e in tile.walk_expr(ld)]
        if any(e in self.kept or (isinstance(e, tile.Load) and e.buffer.name in written) for e in read):
            return False
        return all(store.previous is None for store in self.stored)  # an address may depend on it

    def masks_change(self) -> bool:
        """Return whether the mask of a load depends on a value that the nest computes or stores."""
        asked = [e for mask in self.masks(self.body)[0].values() for c in mask for e in tile.walk_expr(c)]
        return any(e in self.kept or (isinstance(e, tile.Load) and e.buffer.name in self.stores_to) for e in asked)

    def copies(self) -> int:
        """Return the number of copies of the stored tile, of which each warpgroup sets its own."""
        tiles = (self.state.addresses.tiles.get(s.buffer.name) for s in self.stored)
        return max((buffer.layout.copies for buffer in tiles if buffer is not None), default=1)

    def fragments(self) -> Iterator[tile.Buffer]:
        yield from (store.buffer for store in self.stored if store.buffer.in_registers)
        for a in self.body:
            for load in self.loads(a):
                if load.buffer.in_registers:
                    yield load.buffer

    def of_all_steps(self) -> tuple[tile.Expr, ...]:
        """Return the conditions that all steps of the nest have in common: where they fail a thread reads nothing."""
        if not self.op.nest.is_per_thread or not self.body or any(isinstance(a, Definition) for a in self.body):
            return ()
        first, *others = (a.conditions for a in self.body if not isinstance(a, Definition))
        return tuple(c for c in first if not self.vary((c,)) and all(c in other for other in others))

    def loads(self, a: Step) -> Iterator[tile.Load]:
        for expr in a.expressions:
            for e in tile.walk_expr(expr):
                if isinstance(e, tile.Load):
                    yield e

    def vector(self) -> int:
        """Return the length of a run: consecutive elements of the last dimension that a thread holds. In a nest that
        fills words it is one word."""
        if self.stored and self.stored[0].buffer.name in self.state.words:
            return per_word(self.stored[0].buffer)
        if not self.op.nest.is_per_thread and any(s.buffer.scope == "local" for s in self.stored):
            return 1  # an element may read what the previous one has stored there
        first = next((a for a in self.layout.registers if a.size > 1), None)
        last = len(self.layout.shape) - 1
        if first is None or first.dim != last or first.stride != 1:
            return 1
        return math.gcd(first.size, 16)

    # ---- the sweep ----

    def run(self) -> None:
        runs = range(0, self.layout.register_count, self.run_length)
        size = self.batch(self.memory_loads) if self.is_independent and self.memory_loads else 1
        groups = self.grouped()
        for start in range(0, len(runs), size):
            batch = [self.begin(r) for r in runs[start : start + size]]
            if self.is_independent:
                for run in batch:
                    self.prefetch(self.body, run)
            for run in batch:
                for group in groups:
                    if not self.is_independent:
                        run.loaded.clear()
                        self.prefetch(group, run)
                    if len(group) > 1:
                        self.assign_neighbours([a for a in group if isinstance(a, Assignment)], run)
                    else:
                        self.step(group[0], run)

    def batch(self, loads: list[tile.Load]) -> int:
        """Return the number of runs whose loads are issued together."""
        run, registers = self.begin(0), 0
        for load in dict.fromkeys(loads):
            lanes = self.run_length // self.lanes_per_element(load, run)
            is_wide = self.width(load.buffer, load.indices, run) > 1
            registers += -(-lanes * load.buffer.dtype.bytes // 4) if is_wide else lanes
        return max(1, BATCH_REGISTERS // registers)

    def locate(self, a: Step) -> None:
        """Mark what follows as the step's line of the kernel, or as the nest's if the step stands outside of it, as in
        a macro."""
        nest, own = self.op.span, a.span
        is_inside = own.file == nest.file and nest.line <= own.line <= nest.end_line
        self.builder.locate(own if is_inside else nest)

    def step(self, a: Step, run: _Run) -> None:
        self.locate(a)
        match a:
            case Assignment():
                self.assign(a, run)
            case Definition():
                self.define(a, run)
            case Output():
                self.output(a, run)

    def grouped(self) -> list[list[Step]]:
        """Group the steps: stores to neighbouring elements are one group."""
        made: list[list[Step]] = []
        for a in self.body:
            if self.is_independent and made and follows(made[-1][-1], a):
                made[-1].append(a)
            else:
                made.append([a])
        return made

    def begin(self, register: int) -> _Run:
        values = [
            {v: add(c, tile.integer(o)) for v, c, o in zip(self.vars, self.coordinates, self.offsets[r], strict=True)}
            for r in range(register, register + self.run_length)
        ]
        # Threads that would only repeat others' work do nothing, since the elements that they read might be overwritten
        # meanwhile. In a nest with fragments they compute their own copies.
        inside: list[tile.Expr] = [] if self.places else list(self.first_copy)
        for dim, extent in enumerate(self.layout.shape):
            if self.layout.overhangs(dim):
                # A run lies wholly inside or outside: its length divides the extent (see `row_major`).
                inside += self.scalars.bounds(values[0][self.vars[dim]], extent)
        return _Run(register, values, tuple(inside), {})

    # ---- loads ----

    def prefetch(self, steps: list[Step], run: _Run) -> None:
        """Load the steps' elements from memory: those of a run together where they are neighbours, or else neighbours
        among the elements that the steps name one by one."""
        needed: dict[tile.Load, Step] = {}
        for a in steps:
            for load in self.loads(a):
                if not load.buffer.in_registers and load.buffer.scope != "barrier":
                    needed.setdefault(load, a)
        run.first_users = needed
        run.masks, order = self.masks(steps)
        by_mask: dict[Path, list[tile.Load]] = {}
        for load in needed:
            if load not in run.loaded:
                by_mask.setdefault(run.masks[load], []).append(load)
        for mask in sorted(by_mask, key=lambda mask: order[mask]):
            self.prefetch_alike(by_mask[mask], run, self.vary(mask))

    def prefetch_alike(self, needed: list[tile.Load], run: _Run, varies: bool) -> None:
        """Load these elements under one mask, each by itself if the mask `varies` in a run."""
        nested = [
            load for load in needed if any(isinstance(e, tile.Load) for i in load.indices for e in tile.walk_expr(i))
        ]
        alone: list[tile.Load] = []
        for load in needed:
            if load in nested:
                continue
            together = 1 if varies else self.lanes_per_element(load, run)
            width = 1 if varies else self.width(load.buffer, load.indices, run, together)
            if width == together == 1:
                alone.append(load)
            else:
                self.locate(run.first_users[load])
                run.loaded[load] = self.load(load, run, width, together)
        self.prefetch_neighbours(alone, run)
        for load in nested:  # their indices have been loaded by now
            width = 1 if varies else self.width(load.buffer, load.indices, run)
            self.locate(run.first_users[load])
            run.loaded[load] = self.load(load, run, width)

    def masks(self, steps: list[Step]) -> tuple[dict[tile.Load, Path], dict[Path, int]]:
        """Return the conditions under which each element has to be read, without those that no thread goes on without,
        and the order in which they are evaluated."""
        key = tuple(map(Same, steps))
        if key not in self.known_masks:
            found = read_masks(steps, self.needs_conditions)
            masks = {load: tuple(c for c in m if c not in self.shared_conditions) for load, m in found.items()}
            self.known_masks[key] = masks, ranks(masks)
        return self.known_masks[key]

    def needs_conditions(self, load: tile.Load) -> bool:
        """Return whether an element may be read only where it is used: others may store it, or nobody has."""
        return self.may_race(load) or load.buffer.name in self.state.partly_written

    def may_race(self, load: tile.Load) -> bool:
        """Return whether another element of the nest, or another block, may store what is read here. Nothing orders
        this store and a read whose value is not used."""
        name = load.buffer.name
        if load.buffer.scope == "global":
            return name in self.state.written
        stores = self.stores_to.get(name, [])
        own = all(v in load.indices for v, extent in zip(self.vars, self.op.nest.extents, strict=True) if extent > 1)
        return not load.buffer.in_registers and any(not own or s.indices != load.indices for s in stores)

    def prefetch_neighbours(self, loads: list[tile.Load], run: _Run) -> None:
        """Load these elements of every lane, adjacent ones together."""
        if len(loads) == 1:
            self.locate(run.first_users[loads[0]])
            run.loaded[loads[0]] = self.load(loads[0], run, 1)
            return
        for load in loads:
            run.loaded[load] = []
        for lane in range(self.run_length):
            found: dict[object, Operand] = {}
            places = [(place_of(ld.buffer, tuple(self.resolved(i, run, lane) for i in ld.indices)), ld) for ld in loads]
            for row in rows(places):
                for chunk in chunks(row, VECTOR_BYTES, self.in_one_place(row[0][1].buffer)):
                    place, first = chunk[0]
                    self.locate(run.first_users[first])
                    values = self.read(first, place.indices, run, lane, len(chunk))
                    found |= {of.key: value for (of, _), value in zip(chunk, values, strict=True)}
            for place, load in places:
                run.loaded[load].append(found[place.key])

    def in_one_place(self, buffer: tile.Buffer) -> int | None:
        """Return the number of elements of a shared tile's row that are contiguous; None if it is not a shared tile."""
        return self.state.addresses.tiles[buffer.name].layout.run if buffer.scope == "shared" else None

    def lanes_per_element(self, load: tile.Load, run: _Run) -> int:
        """Return the number of adjacent lanes that read the same element: two for `b[i, j // 2]`, all for `b[i]`, 1 if
        each lane reads its own."""
        last = self.vars[-1]
        if self.run_length == 1 or load.indices[-1] == last:
            return 1
        if not any(last in tile.walk_expr(i) for i in load.indices):
            return self.run_length
        if any(last in set(tile.walk_expr(i)) for i in load.indices[:-1]):
            return 1
        forms = [affine(tile.substitute(load.indices[-1], values)) for values in run.values]
        if any(form.terms != forms[0].terms for form in forms):
            return 1
        moved = [form.constant - forms[0].constant for form in forms]
        together = moved.count(0)
        return together if moved == [lane // together for lane in range(self.run_length)] else 1

    def width(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], run: _Run, together: int = 1) -> int:
        """Return the number of elements that one access can move: adjacent, aligned, and inside or outside the tensor
        together. `together` lanes use each of them."""
        count = self.run_length // together
        if count == 1 or buffer.dtype.kind == "bool":
            return 1
        last = self.vars[-1]
        if any(last in set(tile.walk_expr(i)) for i in indices[:-1]):
            return 1
        first = affine(tile.substitute(indices[-1], run.values[0]))
        second = affine(tile.substitute(indices[-1], run.values[together]))
        if first.terms != second.terms or second.constant != first.constant + 1:
            return 1
        if together == 1 and not any(atom == last and c == 1 for atom, c in affine(indices[-1]).terms):
            return 1
        row = row_divisor(buffer)
        aligned = math.gcd(first.divisor, row) if len(buffer.extents) > 1 else first.divisor
        if self.scalars.bounds(tile.substitute(indices[-1], run.values[-1]), buffer.extents[-1]):
            aligned = math.gcd(aligned, row)
        if buffer.scope == "shared":
            aligned = math.gcd(aligned, self.state.addresses.tiles[buffer.name].layout.run)
        most = math.gcd(count, VECTOR_BYTES // buffer.dtype.bytes)
        return math.gcd(aligned, most) if aligned else most

    def load(
        self, load: tile.Load, run: _Run, width: int, together: int = 1, lanes: range | None = None
    ) -> list[Operand]:
        """Load the elements of the lanes, by default of all, `width` at once; `together` lanes share each."""
        values: list[Operand] = []
        for lane in lanes or range(0, self.run_length, width * together):
            indices = tuple(self.resolved(i, run, lane) for i in load.indices)
            elements = self.read(load, indices, run, lane, width)
            values += [element for element in elements for _ in range(together)]
        return values

    def read(self, load: tile.Load, indices: tuple[tile.Expr, ...], run: _Run, lane: int, width: int) -> list[Operand]:
        """Load `width` neighbours from an element on, or return them if they have just been loaded."""
        first_copy = self.first_copy if load.buffer.name in self.overwritten else ()
        indices = self.scalars.settle_indices(indices)
        guard = self.guard(load.buffer, indices, (*run.inside, *first_copy), reads=True)
        guard = self.with_conditions(guard, (*self.shared_conditions, *run.masks.get(load, ())), run, lane)
        address = self.address(load.buffer, indices)
        place = load.buffer.name, address, width, guard
        values = self.read_before.pop(place, None)
        if values is None:
            read_only = load.buffer.name not in self.state.written
            values = load_vector(self.builder, load.buffer, address, width, guard, read_only)
        if self.is_independent:
            self.read_before[place] = values
        if len(self.read_before) > KEPT_LOADS:
            del self.read_before[next(iter(self.read_before))]
        return values

    def resolved(self, index: tile.Expr, run: _Run, lane: int) -> tile.Expr:
        """Return the index in this lane, with the elements that it reads replaced by variables."""
        if isinstance(index, tile.Var):
            return run.values[lane].get(index, index)
        if isinstance(index, tile.Load):
            self.variables += 1
            var = tile.Var(f"%gathered{self.state.builder.labels}.{self.variables}", index.dtype)
            self.scalars.define(var, self.read_index(index, run, lane), (-math.inf, math.inf))
            return var
        return map_expressions(index, lambda operand: self.resolved(operand, run, lane))

    def read_index(self, load: tile.Load, run: _Run, lane: int) -> Operand:
        """Return the value of an element that is part of an index."""
        if load.buffer.in_registers or load in run.loaded:
            return self.reader(run, lane)(load)
        return self.load(load, run, 1, lanes=range(lane, lane + 1))[0]

    def address(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> Address:
        if buffer.scope == "global":
            return self.state.addresses.global_element(buffer, indices)
        return self.state.addresses.shared_element(buffer, indices, self.op.cursors)

    def guard(
        self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], more: tuple[tile.Expr, ...], reads: bool = False
    ) -> Reg | None:
        """Return a predicate that holds where the access may happen; None: always. Reads of shared tiles are checked
        too, since an unused element is read as well, as in `s[i - 1] if i > 0 else 0`."""
        conditions = list(more)
        if buffer.scope == "global" or reads:
            for index, extent in zip(indices, buffer.extents, strict=True):
                conditions += self.scalars.bounds(index, extent)
        return self.scalars.all_of(conditions)

    # ---- stores ----

    def define(self, a: Definition, run: _Run) -> None:
        """Give the variable its value in every lane, in registers of its own."""
        for lane in range(self.run_length):
            value = self.scalars.register(substitute_vars(a.value, run.values[lane]), self.reader(run, lane))
            if isinstance(a.value, tile.Load) and a.value.buffer.in_registers:
                cls = register_class(a.var.dtype)
                value = self.builder.into(cls, f"mov.{cls}", value)
            self.variables += 1
            var = tile.Var(f"%kept{self.state.builder.labels}.{self.variables}", a.var.dtype)
            self.scalars.define(var, value, (-math.inf, math.inf))
            run.values[lane][a.var] = var

    def output(self, a: Output, run: _Run) -> None:
        """Print in each lane, by one of the threads that hold the element."""
        for lane in range(self.run_length):
            guard = self.with_conditions(self.scalars.all_of((*run.inside, *self.first_copy)), a.conditions, run, lane)
            with printing(self.state, guard), self.scalars.scope():
                values = [substitute_vars(v, run.values[lane]) for v in a.values]
                held = [self.scalars.register(v, self.reader(run, lane)) for v in values]
                emit_print(a.text, [(register, v.dtype) for register, v in zip(held, values, strict=True)], self.state)

    def assign(self, a: Assignment, run: _Run) -> None:
        store = a.store
        if store.buffer.scope == "reducer" and store.atomic is not None:
            for lane in range(self.run_length):
                self.contribute(a, run, lane)
            return
        if store.buffer.name in self.state.words:
            self.assign_words(store, run)
            return
        if store.buffer.in_registers:
            for lane in range(self.run_length):
                self.assign_register(a, run, lane)
            return
        if store.atomic is not None:
            self.combine(a, run)
            return
        width = 1 if self.vary(a.conditions) else self.width(store.buffer, store.indices, run)
        for lane in range(0, self.run_length, width):
            values = [(store.value, i) for i in range(lane, lane + width)]
            indices = tuple(self.resolved(i, run, lane) for i in store.indices)
            self.write(a, indices, values, run, lane)

    def assign_neighbours(self, group: list[Assignment], run: _Run) -> None:
        """Emit stores of one nest element to neighbouring places: together, unless the elements of the run are already
        adjacent in each store."""
        first = group[0].store
        self.locate(group[0])
        if self.width(first.buffer, first.indices, run) > 1 and not self.vary(group[0].conditions):
            for a in group:
                self.locate(a)
                self.assign(a, run)
            return
        for lane in range(self.run_length):
            places = [
                (place_of(first.buffer, tuple(self.resolved(i, run, lane) for i in a.store.indices)), a) for a in group
            ]
            for chunk in chunks(places, VECTOR_BYTES, self.in_one_place(first.buffer)):
                place, a = chunk[0]
                self.locate(a)
                self.write(a, place.indices, [(other.store.value, lane) for _, other in chunk], run, lane)

    def write(
        self, a: Assignment, indices: tuple[tile.Expr, ...], values: list[tuple[tile.Expr, int]], run: _Run, lane: int
    ) -> None:
        """Store values, each with its lane, to adjacent elements from `indices` on."""
        buffer = a.store.buffer
        if buffer.scope == "global":
            indices = self.scalars.settle_indices(indices)
        words = self.packed_values(buffer.dtype, values, run)
        guard = self.guard(buffer, indices, (*run.inside, *self.first_copy))
        guard = self.with_conditions(guard, a.conditions, run, lane)
        vector = f".v{len(words)}" if len(words) > 1 else ""
        _, spelled, _, _ = words_of(buffer.dtype, len(values))
        value = words[0] if len(words) == 1 else Vector(tuple(words))
        address, space = self.address(buffer, indices), str(buffer.scope)
        if self.op.block is not None:
            address, space = in_block(address, self.op.block, self.state), "shared::cluster"
        self.builder.emit(f"st.{space}{vector}.{spelled.replace('s8', 'u8')}", address, value, guard=guard)

    def contribute(self, a: Assignment, run: _Run, lane: int) -> None:
        """Add to the thread's part of an element; of threads with the same value only one adds."""
        store = a.store
        value = self.scalars.in_register(self.value(store.value, run, lane), store.buffer.dtype)
        guard = self.with_conditions(self.scalars.all_of([*run.inside, *self.first_copy]), a.conditions, run, lane)
        layout = self.state.layouts[store.buffer.name]
        if all(axis.dim < 0 for axis in layout.threads):
            indices = tuple(self.resolved(i, run, lane) for i in store.indices)
            add_anywhere(store, indices, value, guard, self.state)
            return
        place = self.fragment_register(store.buffer, store.indices, run, lane)
        add_to_part(store, self.state.fragments[store.buffer.name][place], value, guard, self.state)

    def combine(self, a: Assignment, run: _Run) -> None:
        """Combine the elements of the run atomically, as many at once as the hardware can."""
        store = a.store
        width = 1
        if not self.vary(a.conditions) and store.previous is None:
            width = math.gcd(self.width(store.buffer, store.indices, run), widest(store, self.state.target))
        for lane in range(0, self.run_length, width):
            values = [self.scalars.in_register(self.value(store.value, run, i), store.buffer.dtype)
                      for i in range(lane, lane + width)]  # fmt: skip
            indices = tuple(self.resolved(i, run, lane) for i in store.indices)
            if store.buffer.scope == "global":
                indices = self.scalars.settle_indices(indices)
            guard = self.with_conditions(
                self.guard(store.buffer, indices, (*run.inside, *self.first_copy)), a.conditions, run, lane
            )
            previous = emit_atomic(store, self.address(store.buffer, indices), values, guard, self.state)
            if store.previous is not None and previous is not None:
                self.variables += 1
                var = tile.Var(f"%held{self.builder.labels}.{self.variables}", store.buffer.dtype)
                self.scalars.define(var, previous, (-math.inf, math.inf))
                run.values[lane][store.previous] = var

    def with_conditions(self, guard: Reg | None, conditions: tuple[tile.Expr, ...], run: _Run, lane: int) -> Reg | None:
        for condition in conditions:
            holds = self.scalars.register(substitute_vars(condition, run.values[lane]), self.reader(run, lane))
            guard = holds if guard is None else self.builder.into("pred", "and.pred", guard, holds)
        return guard

    def vary(self, conditions: tuple[tile.Expr, ...]) -> bool:
        """Return whether the conditions may hold for some elements of a run only."""
        met = [e for c in conditions for e in tile.walk_expr(c)]
        if self.op.nest.is_per_thread:
            return any(isinstance(e, tile.Load) or e in self.vars[1:] for e in met)
        return any(
            e == self.vars[-1] or e in self.kept or (isinstance(e, tile.Load) and e.buffer.name in self.stores_to)
            for e in met
        )

    def assign_register(self, a: Assignment, run: _Run, lane: int) -> None:
        name = a.store.buffer.name
        if a.store.buffer.scope == "local":
            value = self.value(a.store.value, run, lane)
            guard = self.with_conditions(self.scalars.all_of(run.inside), a.conditions, run, lane)
            indices = tuple(self.resolved(i, run, lane) for i in a.store.indices)
            write_local(a.store.buffer, indices, value, guard, self.state)
            return
        target = self.state.fragments[name][self.fragment_register(a.store.buffer, a.store.indices, run, lane)]
        value = self.value(a.store.value, run, lane)
        guard = self.with_conditions(None, a.conditions, run, lane)
        cls = register_class(a.store.buffer.dtype)
        if cls == "pred":
            value = self.scalars.in_register(value, a.store.buffer.dtype)
            cls_move = "mov.pred"
        else:
            cls_move = f"mov.{cls}"
        self.builder.emit(cls_move, target, value, guard=None if guard is None else Guard(guard))

    def assign_words(self, store: tile.Store, run: _Run) -> None:
        """Assign the run's elements as whole words, in fragments without single registers (see `codegen.words`)."""
        values = self.packed_values(store.buffer.dtype, [(store.value, lane) for lane in range(self.run_length)], run)
        first = self.fragment_register(store.buffer, store.indices, run, 0) // per_word(store.buffer)
        for target, value in zip(self.state.words[store.buffer.name][first:], values, strict=False):
            self.builder.emit("mov.b32", target, value)

    def packed_values(self, dtype: DType, items: list[tuple[tile.Expr, int]], run: _Run) -> list[Reg]:
        """Return the values, each with its lane, packed into words of neighbours of `dtype`."""
        _, _, _, per_word = words_of(dtype, len(items))
        if per_word == 1:
            values = [self.value(e, run, i) for e, i in items]
            if dtype.kind == "bool":
                return [
                    self.builder.into("b32", "selp.b32", Imm(1), Imm(0), self.scalars.in_register(v, dtype))
                    for v in values
                ]
            return [self.scalars.in_register(v, dtype) for v in values]
        words = []
        for first in range(0, len(items), per_word):
            word = items[first : first + per_word]
            wide = [(e.a, i) for e, i in word if isinstance(e, tile.Cast) and e.a.dtype == FLOAT32 and dtype in SHORT]
            if per_word == 2 and all(are_alike(e) for e, _ in word):
                first_lane, second_lane = ((substitute_vars(e, run.values[i]), self.reader(run, i)) for e, i in word)
                words.append(pair(first_lane, second_lane, dtype, self.scalars))
            elif len(wide) == per_word:
                words.append(pack_f32(self.state.scalars, dtype, *(self.value(e, run, i) for e, i in wide)))
            else:
                held = [self.scalars.in_register(self.value(e, run, i), dtype) for e, i in word]
                words.append(pack(self.builder, held, dtype))
        return words

    # ---- values ----

    def value(self, expr: tile.Expr, run: _Run, lane: int) -> Operand:
        return self.scalars.value(substitute_vars(expr, run.values[lane]), self.reader(run, lane))

    def reader(self, run: _Run, lane: int) -> ReadElement:
        def read(load: tile.Load) -> Operand:
            if load.buffer.scope == "local":
                return read_local(load.buffer, tuple(self.resolved(i, run, lane) for i in load.indices), self.state)
            if load.buffer.in_registers:
                place = self.fragment_register(load.buffer, load.indices, run, lane)
                return self.state.fragments[load.buffer.name][place]
            return run.loaded[load][lane]

        return read

    def fragment_register(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], run: _Run, lane: int) -> int:
        """Return the number of the fragment's register that holds this lane's element."""
        offset = self.offsets[run.register + lane]
        place = dict(zip(self.vars, offset, strict=True))
        return self.places[buffer.name][tuple(_place(i, place) for i in indices)]


@dataclass(slots=True)
class _Run:
    """Consecutive registers from `register` on: the loop variables' values in each, the conditions under which they
    hold elements at all, what has been loaded for them, under which conditions elements are loaded, and which of the
    steps that elements are loaded for needs each first."""

    register: int
    values: list[dict[tile.Var, tile.Expr]]
    inside: tuple[tile.Expr, ...]
    loaded: dict[tile.Load, list[Operand]]
    masks: dict[tile.Load, Path] = field(default_factory=dict)
    first_users: dict[tile.Load, Step] = field(default_factory=dict)


def substitute_vars(expr: tile.Expr, values: dict[tile.Var, tile.Expr]) -> tile.Expr:
    """Replace loop variables outside loads only: loads are looked up as they stand in the nest."""
    if isinstance(expr, tile.Load):
        return expr
    if isinstance(expr, tile.Var):
        return values.get(expr, expr)
    return map_expressions(expr, lambda operand: substitute_vars(operand, values))


def _place(index: tile.Expr, offsets: dict[tile.Var, int]) -> int:
    """Evaluate an index of a fragment at the register's offsets; 0 if it is no constant there."""
    return offsets[index] if isinstance(index, tile.Var) else int(compute_expr(index, offsets) or 0)


def _places(layout: Fragment) -> dict[tuple[int, ...], int]:
    """Index the registers by their offset from the thread's coordinates."""
    return {layout.register_offset(r): r for r in reversed(range(layout.register_count))}
