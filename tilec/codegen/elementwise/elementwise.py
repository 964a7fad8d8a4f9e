"""Elementwise nests: each thread computes the elements of its registers, in runs that move as vectors."""

from __future__ import annotations

import math
from dataclasses import field

from tilec.analysis.copy_nests import split_copied_value
from tilec.codegen.barriers.clusters import map_to_block
from tilec.codegen.builder import get_register_class
from tilec.codegen.elementwise.atomic import emit_atomic, select_vector_width
from tilec.codegen.elementwise.gather_bits import Lane
from tilec.codegen.elementwise.local import add_to_indexed_part, add_to_part, read_local, write_local
from tilec.codegen.elementwise.neighbours import group_rows, locate_element, split_row
from tilec.codegen.elementwise.pairs import can_pair, emit_float32_pair, emit_pair
from tilec.codegen.elementwise.read_masks import Path, ranks, read_masks
from tilec.codegen.elementwise.steps import Assignment, Definition, Output, Step, list_steps, stores_next_element
from tilec.codegen.elementwise.unit_factors import PRODUCTS_PER_FACTOR, find_unit_factor, skip_where_ones
from tilec.codegen.elementwise.verify_steps import find_step_violations
from tilec.codegen.memory import (
    WordPart,
    extract_part,
    get_word_format,
    load_vector,
    pack_f32,
    pack_saturated,
    pack_word,
)
from tilec.codegen.printing import emit_guarded, emit_print
from tilec.codegen.scalar.scalar import FLOAT_NAMES, ReadElement
from tilec.codegen.state import State
from tilec.codegen.tensor_cores.words import count_per_word
from tilec.ir import tile
from tilec.ir.affine import add_exprs, affine_form, resolve_quotients, row_divisor
from tilec.ir.layout import Fragment
from tilec.ir.rewrite import map_expressions
from tilec.ir.types import BOOL, FLOAT32, INT32, DType
from tilec.ir.warp import Elementwise
from tilec.ops.lowering import VECTOR_BYTES
from tilec.passes.layout.check_generator_copies import check_generator_nest
from tilec.ptx.module import Address, Imm, Operand, Reg, Vector
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.diagnostics import InternalError
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

BATCH_REGISTERS = 32  # results of loads in flight before the first is used
KEPT_LOADS = 8  # the latest loads, whose results later elements may reuse


def emit_elementwise(op: Elementwise, state: State) -> None:
    """Emit the PTX of an elementwise nest: every step of its body for every element that the thread holds. A nest with
    `copy_bytes` becomes copies by cp.async.
    """
    state.builder.check_room(op.layout.register_count // VECTOR_BYTES)  # elements of a byte or more
    sweep = _Sweep(op, state)
    if op.copy_bytes:
        sweep.emit_copies()
        return
    names = {store.buffer.name for store in sweep.stored if store.buffer.in_registers}
    with state.scalars.assume_changing_only(
        r for name in names for r in (*state.fragments.get(name, ()), *state.words.get(name, ()))
    ):
        sweep.emit_sweep()


class _Sweep:
    """The emission of one nest: its steps, for every register of a thread."""

    def __init__(self, op: Elementwise, state: State) -> None:
        self.op, self.state, self.layout = op, state, op.layout
        self.builder, self.scalars = state.builder, state.scalars
        self.vars = op.nest.vars
        self.coordinates = op.layout.thread_coordinates()
        self.offsets = [op.layout.register_offset(r) for r in range(op.layout.register_count)]
        self.body = list_steps(op.nest)
        if broken := list(find_step_violations(op.nest, self.body)):
            raise InternalError("\n  ".join(["the steps of a nest do not verify:", *broken]))
        self.stored = [a.store for a in self.body if isinstance(a, Assignment)]
        self.stores_to: dict[str, list[tile.Store]] = {}
        for store in self.stored:
            self.stores_to.setdefault(store.buffer.name, []).append(store)
        # Variables with a value of their own in each element.
        self.kept = tuple(a.var for a in self.body if isinstance(a, Definition))
        self.kept += tuple(s.previous for s in self.stored if s.previous is not None)
        replica = op.layout.replica_index(self.count_copies())
        self.first_copy = () if replica is None else (tile.Binary("eq", replica, tile.int32_const(0), BOOL),)
        check_generator_nest(op.nest, op.layout, self.count_copies())
        # One of the threads with a copy of an element stores it: the others must not read the element meanwhile.
        in_memory = all(not s.buffer.in_registers for s in self.stored)
        self.overwritten = {s.buffer.name for s in self.stored} if in_memory else set()
        self.places = {b.name: _index_registers(state.layouts[b.name]) for b in self.list_fragments()}
        self.memory_loads = [ld for a in self.body for ld in self.list_loads(a) if not ld.buffer.in_registers]
        self.shared_conditions = self.find_shared_conditions()
        self.known_masks: dict[tuple[IdentityKey[Step], ...], tuple[dict[tile.Load, Path], dict[Path, int]]] = {}
        self.is_independent = self.leaves_loads_unchanged() and not self.masks_change()
        self.run_length = self.find_run_length()
        self.variables = 0  # made so far, for their names
        self.read_before: dict[tuple[str, Address, int, Reg | None], list[Operand | WordPart]] = {}

    def leaves_loads_unchanged(self) -> bool:
        """Return whether the nest neither changes what it reads from memory, nor indices, nor keeps previous values."""
        written = {store.buffer.name for store in self.stored}
        read = [e for ld in self.memory_loads for e in tile.walk_expr(ld)]
        if any(e in self.kept or (isinstance(e, tile.Load) and e.buffer.name in written) for e in read):
            return False
        return all(store.previous is None for store in self.stored)  # an address may depend on it

    def masks_change(self) -> bool:
        """Return whether the mask of a load depends on a value that the nest computes or stores."""
        asked = [e for mask in self.find_masks(self.body)[0].values() for c in mask for e in tile.walk_expr(c)]
        return any(e in self.kept or (isinstance(e, tile.Load) and e.buffer.name in self.stores_to) for e in asked)

    def count_copies(self) -> int:
        """Return the number of copies of the stored shared tile, one per warpgroup; 1 if it has no copies."""
        tiles = (self.state.addresses.tiles.get(s.buffer.name) for s in self.stored)
        return max((buffer.layout.copies for buffer in tiles if buffer is not None), default=1)

    def list_fragments(self) -> list[tile.Buffer]:
        """Return the buffers in registers that the nest stores or reads, with repeats."""
        read = [load.buffer for a in self.body for load in self.list_loads(a)]
        return [buffer for buffer in (*(store.buffer for store in self.stored), *read) if buffer.in_registers]

    def find_shared_conditions(self) -> tuple[tile.Expr, ...]:
        """Return the conditions of every step of a per-thread nest, constant in a run; none for other nests.

        There are none either if the nest has definitions. Where a condition fails a thread reads nothing.
        """
        if not self.op.nest.is_per_thread or not self.body or any(isinstance(a, Definition) for a in self.body):
            return ()
        first, *others = (a.conditions for a in self.body if not isinstance(a, Definition))
        return tuple(c for c in first if not self.may_vary((c,)) and all(c in other for other in others))

    def list_loads(self, a: Step) -> list[tile.Load]:
        """Return every load in a step's expressions, with repeats."""
        return [e for expr in a.expressions for e in tile.walk_expr(expr) if isinstance(e, tile.Load)]

    def find_run_length(self) -> int:
        """Return how many consecutive registers form a run: neighbours in the last dimension, at most 16.

        It is at least a word's elements where words are filled, and 1 where an element may read what the previous one
        stored.
        """
        least = 1
        if self.stored and self.stored[0].buffer.name in self.state.words:
            least = count_per_word(self.stored[0].buffer)
        if not self.op.nest.is_per_thread and any(s.buffer.scope == "local" for s in self.stored):
            return 1  # an element may read what the previous one has stored there
        first = next((a for a in self.layout.registers if a.size > 1), None)
        last = len(self.layout.shape) - 1
        if first is None or first.dim != last or first.stride != 1:
            return least
        return max(math.gcd(first.size, 16), least)

    # ---- the sweep ----

    def emit_sweep(self) -> None:
        """Emit all runs, in a branch if they only multiply by factors that may all be 1."""
        if factors := self.list_unit_factors():
            with skip_where_ones(self.state, factors):
                self.emit_runs()
        else:
            self.emit_runs()

    def list_unit_factors(self) -> list[Operand]:
        """Return the factors of the thread's elements, each once, if all may be 1 and each has enough products."""
        factor = find_unit_factor(self.body, self.state)
        if factor is None:
            return []
        found: dict[Operand, None] = {}
        for register in range(0, self.layout.register_count, self.run_length):
            run = self.begin_run(register)
            if run.inside:
                return []  # some lanes have no element here
            found |= dict.fromkeys(self.get_operand(factor, run, lane) for lane in range(self.run_length))
        return list(found) if len(found) * PRODUCTS_PER_FACTOR <= self.layout.register_count else []

    def emit_runs(self) -> None:
        """Emit all runs in batches; within a batch all loads come first if the nest does not change what it reads."""
        runs = range(0, self.layout.register_count, self.run_length)
        size = self.count_batch_runs(self.memory_loads) if self.is_independent and self.memory_loads else 1
        groups = self.group_steps()
        for start in range(0, len(runs), size):
            batch = [self.begin_run(r) for r in runs[start : start + size]]
            if self.is_independent:
                for run in batch:
                    self.prefetch_loads(self.body, run)
            for run in batch:
                for group in groups:
                    if not self.is_independent:
                        run.loaded.clear()
                        self.prefetch_loads(group, run)
                    if len(group) > 1:
                        self.assign_neighbours([a for a in group if isinstance(a, Assignment)], run)
                    else:
                        self.emit_step(group[0], run)

    def emit_copies(self) -> None:
        """Emit the cp.async copies of all elements that the thread copies. Elements outside the tensor, and those whose
        condition fails, become 0.
        """
        for register in range(0, self.layout.register_count, self.run_length):
            run = self.begin_run(register)
            for a in self.body:
                assert isinstance(a, Assignment), "a thread copies without computing"
                self.locate(a)
                lanes = self.op.copy_bytes // a.store.buffer.dtype.bytes
                for lane in range(0, self.run_length, lanes):
                    self.emit_copy(a, run, lane)

    def emit_copy(self, a: Assignment, run: _Run, lane: int) -> None:
        """Emit one cp.async of `copy_bytes`, from element `lane` of a run on, or of zeros where nothing is copied."""
        copied = split_copied_value(a.store.value)
        assert copied is not None, "a thread copies elements of a tensor"
        source, into = copied.load.buffer, self.resolve_indices(a.store.indices, run, lane)
        indices = self.scalars.settle_indices(self.resolve_indices(copied.load.indices, run, lane))
        guard = self.add_conditions(self.scalars.test_all(run.inside), a.conditions, run, lane)
        exists = self.emit_guard(source, indices, ())
        if not tile.is_true(copied.condition):
            exists = self.add_conditions(exists, (copied.condition,), run, lane)
        size = Imm(self.op.copy_bytes)
        operands: list[Operand] = [self.get_address(a.store.buffer, into), self.get_address(source, indices), size]
        if exists is not None:
            operands.append(self.builder.create("b32", "selp.b32", size, Imm(0), exists))
        cache = "cg" if self.op.copy_bytes == 16 else "ca"
        self.builder.emit(f"cp.async.{cache}.shared.global", *operands, guard=guard)

    def count_batch_runs(self, loads: list[tile.Load]) -> int:
        """Return the number of runs whose loads, of these elements, fit BATCH_REGISTERS together; at least 1."""
        run, registers = self.begin_run(0), 0
        for load in dict.fromkeys(loads):
            lanes = self.run_length // self.count_lanes_per_element(load, run)
            is_wide = self.find_access_width(load.buffer, load.indices, run) > 1
            registers += -(-lanes * load.buffer.dtype.bytes // 4) if is_wide else lanes
        return max(1, BATCH_REGISTERS // registers)

    def locate(self, a: Step) -> None:
        """Set the line of the next instructions to the step's, or to the nest's if a step comes from elsewhere (a
        macro).
        """
        nest, own = self.op.span, a.span
        is_inside = own.file == nest.file and nest.line <= own.line <= nest.end_line
        self.builder.locate(own if is_inside else nest)

    def emit_step(self, a: Step, run: _Run) -> None:
        """Emit one step (store, definition or print) for all elements of a run."""
        self.locate(a)
        match a:
            case Assignment():
                self.emit_assignment(a, run)
            case Definition():
                self.define_variable(a, run)
            case Output():
                self.emit_output(a, run)

    def group_steps(self) -> list[list[Step]]:
        """Return the steps one by one, but stores to successive elements as one group if the nest is independent."""
        made: list[list[Step]] = []
        for a in self.body:
            if self.is_independent and made and stores_next_element(made[-1][-1], a):
                made[-1].append(a)
            else:
                made.append([a])
        return made

    def begin_run(self, register: int) -> _Run:
        """Return the run of registers from `register` on: each lane's loop variables and conditions to be inside."""
        values = [
            {
                v: add_exprs(c, tile.int32_const(o))
                for v, c, o in zip(self.vars, self.coordinates, self.offsets[r], strict=True)
            }
            for r in range(register, register + self.run_length)
        ]
        # Threads that would only repeat others' work do nothing, since the elements that they read might be overwritten
        # meanwhile. In a nest with fragments they compute their own copies.
        inside: list[tile.Expr] = [] if self.places else list(self.first_copy)
        for dim, extent in enumerate(self.layout.shape):
            if self.layout.overhangs(dim):
                # A run lies wholly inside or outside: its length divides the extent (see `row_major`).
                inside += self.scalars.list_bounds(values[0][self.vars[dim]], extent)
        return _Run(register, values, tuple(inside), {})

    # ---- loads ----

    def prefetch_loads(self, steps: list[Step], run: _Run) -> None:
        """Add to `run.loaded` the memory elements that the steps read and that it lacks; set the run's masks.

        Loads are ordered by their masks. Neighbours are loaded together: those of a run, or else those of one lane.
        """
        needed: dict[tile.Load, Step] = {}
        for a in steps:
            for load in self.list_loads(a):
                if not load.buffer.in_registers and load.buffer.scope != "barrier":
                    needed.setdefault(load, a)
        run.first_users = needed
        run.masks, order = self.find_masks(steps)
        by_mask: dict[Path, list[tile.Load]] = {}
        for load in needed:
            if load not in run.loaded:
                by_mask.setdefault(run.masks[load], []).append(load)
        for mask in sorted(by_mask, key=lambda mask: order[mask]):
            self.prefetch_under_mask(by_mask[mask], run, self.may_vary(mask))

    def prefetch_under_mask(self, needed: list[tile.Load], run: _Run, varies: bool) -> None:
        """Load these elements into `run.loaded` under their common mask, each by itself if it `varies` in a run."""
        nested = [
            load for load in needed if any(isinstance(e, tile.Load) for i in load.indices for e in tile.walk_expr(i))
        ]
        alone: list[tile.Load] = []
        for load in needed:
            if load in nested:
                continue
            together = 1 if varies else self.count_lanes_per_element(load, run)
            width = 1 if varies else self.find_access_width(load.buffer, load.indices, run, together)
            if width == together == 1:
                alone.append(load)
            else:
                self.locate(run.first_users[load])
                run.loaded[load] = self.load_lanes(load, run, width, together)
        self.prefetch_neighbours(alone, run)
        for load in nested:  # their indices have been loaded by now
            width = 1 if varies else self.find_access_width(load.buffer, load.indices, run)
            self.locate(run.first_users[load])
            run.loaded[load] = self.load_lanes(load, run, width)

    def find_masks(self, steps: list[Step]) -> tuple[dict[tile.Load, Path], dict[Path, int]]:
        """Return the conditions under which each element is read, and the order in which to evaluate the masks.

        Conditions without which no thread goes on are left out.
        """
        key = tuple(map(IdentityKey, steps))
        if key not in self.known_masks:
            found = read_masks(steps, self.needs_conditions)
            masks = {load: tuple(c for c in m if c not in self.shared_conditions) for load, m in found.items()}
            self.known_masks[key] = masks, ranks(masks)
        return self.known_masks[key]

    def needs_conditions(self, load: tile.Load) -> bool:
        """Return whether an element may be read only where it is used: others may store it, or nobody has."""
        return self.may_race(load) or load.buffer.name in self.state.partly_written

    def may_race(self, load: tile.Load) -> bool:
        """Return whether another element of the nest, or another block, may store the element that this load reads.

        Nothing orders this store and a read whose value is not used.
        """
        name = load.buffer.name
        if load.buffer.scope == "global":
            return name in self.state.written
        stores = self.stores_to.get(name, [])
        own = all(v in load.indices for v, extent in zip(self.vars, self.op.nest.extents, strict=True) if extent > 1)
        return not load.buffer.in_registers and any(not own or s.indices != load.indices for s in stores)

    def prefetch_neighbours(self, loads: list[tile.Load], run: _Run) -> None:
        """Load these elements of every lane into `run.loaded`, those adjacent within a lane by one access."""
        if len(loads) == 1:
            self.locate(run.first_users[loads[0]])
            run.loaded[loads[0]] = self.load_lanes(loads[0], run, 1)
            return
        for load in loads:
            run.loaded[load] = []
        for lane in range(self.run_length):
            found: dict[object, Operand | WordPart] = {}
            places = [(locate_element(ld.buffer, self.resolve_indices(ld.indices, run, lane)), ld) for ld in loads]
            for row in group_rows(places):
                for chunk in split_row(row, VECTOR_BYTES, self.get_contiguous_elements(row[0][1].buffer)):
                    place, first = chunk[0]
                    self.locate(run.first_users[first])
                    values = self.read_elements(first, place.indices, run, lane, len(chunk))
                    found |= {of.key: value for (of, _), value in zip(chunk, values, strict=True)}
            for place, load in places:
                run.loaded[load].append(found[place.key])

    def get_contiguous_elements(self, buffer: tile.Buffer) -> int | None:
        """Return the number of elements of a shared tile's row that are contiguous; None if it is not a shared tile."""
        return self.state.addresses.tiles[buffer.name].layout.run if buffer.scope == "shared" else None

    def count_lanes_per_element(self, load: tile.Load, run: _Run) -> int:
        """Return how many adjacent lanes read one element: two for `b[i, j // 2]`, all for `b[i]`, else 1."""
        last = self.vars[-1]
        if self.run_length == 1 or load.indices[-1] == last:
            return 1
        if not any(last in tile.walk_expr(i) for i in load.indices):
            return self.run_length
        if any(last in set(tile.walk_expr(i)) for i in load.indices[:-1]):
            return 1
        forms = [affine_form(tile.substitute_variables(load.indices[-1], values)) for values in run.values]
        if any(form.terms != forms[0].terms for form in forms):
            return 1
        moved = [form.constant - forms[0].constant for form in forms]
        together = moved.count(0)
        return together if moved == [lane // together for lane in range(self.run_length)] else 1

    def find_access_width(
        self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], run: _Run, together: int = 1
    ) -> int:
        """Return how many adjacent elements of a run one aligned access can move, all inside the tensor or all outside.

        `together` lanes use each of them.
        """
        count = self.run_length // together
        if count == 1 or buffer.dtype.kind == "bool":
            return 1
        last = self.vars[-1]
        if any(last in set(tile.walk_expr(i)) for i in indices[:-1]):
            return 1
        first = affine_form(tile.substitute_variables(indices[-1], run.values[0]))
        second = affine_form(tile.substitute_variables(indices[-1], run.values[together]))
        if first.terms != second.terms or second.constant != first.constant + 1:
            return 1
        if together == 1 and not any(atom == last and c == 1 for atom, c in affine_form(indices[-1]).terms):
            return 1
        row = row_divisor(buffer)
        aligned = math.gcd(first.divisor, row) if len(buffer.extents) > 1 else first.divisor
        if self.scalars.list_bounds(tile.substitute_variables(indices[-1], run.values[-1]), buffer.extents[-1]):
            aligned = math.gcd(aligned, row)
        if buffer.scope == "shared":
            aligned = math.gcd(aligned, self.state.addresses.tiles[buffer.name].layout.run)
        most = math.gcd(count, VECTOR_BYTES // buffer.dtype.bytes)
        return math.gcd(aligned, most) if aligned else most

    def load_lanes(
        self, load: tile.Load, run: _Run, width: int, together: int = 1, lanes: range | None = None
    ) -> list[Operand | WordPart]:
        """Load an element in all lanes, or by accesses that begin at `lanes`, of `width` each; return the values.

        `together` lanes share each element.
        """
        values: list[Operand | WordPart] = []
        for lane in lanes or range(0, self.run_length, width * together):
            indices = self.resolve_indices(load.indices, run, lane)
            elements = self.read_elements(load, indices, run, lane, width)
            values += [element for element in elements for _ in range(together)]
        return values

    def read_elements(
        self, load: tile.Load, indices: tuple[tile.Expr, ...], run: _Run, lane: int, width: int
    ) -> list[Operand | WordPart]:
        """Emit a guarded load of `width` neighbours and return their values; independent nests reuse recent loads."""
        first_copy = self.first_copy if load.buffer.name in self.overwritten else ()
        indices = self.scalars.settle_indices(indices)
        guard = self.emit_guard(load.buffer, indices, (*run.inside, *first_copy), reads=True)
        guard = self.add_conditions(guard, (*self.shared_conditions, *run.masks.get(load, ())), run, lane)
        address = self.get_address(load.buffer, indices)
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

    def resolve_indices(self, indices: tuple[tile.Expr, ...], run: _Run, lane: int) -> tuple[tile.Expr, ...]:
        """Return the indices in this lane; an element that an index reads is loaded, and replaced by a new variable."""
        resolved = (self.resolve_index(index, run, lane) for index in indices)
        return tuple(resolve_quotients(index, self.scalars.ranges) for index in resolved)

    def resolve_index(self, index: tile.Expr, run: _Run, lane: int) -> tile.Expr:
        """Return the index in this lane; an element that it reads is loaded, and replaced by a new variable."""
        if isinstance(index, tile.Var):
            return run.values[lane].get(index, index)
        if isinstance(index, tile.Load):
            self.variables += 1
            var = tile.Var(f"%gathered{self.state.builder.labels}.{self.variables}", index.dtype)
            self.scalars.define_variable(var, self.read_index(index, run, lane), (-math.inf, math.inf))
            return var
        return map_expressions(index, lambda operand: self.resolve_index(operand, run, lane))

    def read_index(self, load: tile.Load, run: _Run, lane: int) -> Operand:
        """Return the value in this lane of an element that an index reads, loading it if necessary."""
        if load.buffer.in_registers or load in run.loaded:
            return self.make_reader(run, lane)(load)
        (value,) = self.load_lanes(load, run, 1, lanes=range(lane, lane + 1))
        return extract_part(value, self.scalars)

    def get_address(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> Address:
        """Return the address of an element in global or shared memory."""
        if buffer.scope == "global":
            return self.state.addresses.address_global_element(buffer, indices)
        return self.state.addresses.address_shared_element(buffer, indices, self.op.cursors)

    def emit_guard(
        self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], more: tuple[tile.Expr, ...], reads: bool = False
    ) -> Reg | None:
        """Return a predicate that `more` holds and indices are inside, if global or read; None if it always holds.

        Reads of shared tiles are checked too, since an unused element is read as well, as in `s[i - 1] if i > 0 else
        0`.
        """
        conditions = list(more)
        if buffer.scope == "global" or reads:
            for index, extent in zip(indices, buffer.extents, strict=True):
                conditions += self.scalars.list_bounds(index, extent)
        return self.scalars.test_all(conditions)

    # ---- stores ----

    def define_variable(self, a: Definition, run: _Run) -> None:
        """Compute a defined variable in every lane, and bind it in `run.values` to a new variable with its register."""
        for lane in range(self.run_length):
            value = self.scalars.get_register(substitute_vars(a.value, run.values[lane]), self.make_reader(run, lane))
            if isinstance(a.value, tile.Load) and a.value.buffer.in_registers:
                cls = get_register_class(a.var.dtype)
                value = self.builder.create(cls, f"mov.{cls}", value)
            self.variables += 1
            var = tile.Var(f"%kept{self.state.builder.labels}.{self.variables}", a.var.dtype)
            self.scalars.define_variable(var, value, (-math.inf, math.inf))
            run.values[lane][a.var] = var

    def emit_output(self, a: Output, run: _Run) -> None:
        """Emit a print for each lane, executed by one of the threads that hold the element, where conditions hold."""
        for lane in range(self.run_length):
            guard = self.add_conditions(self.scalars.test_all((*run.inside, *self.first_copy)), a.conditions, run, lane)
            if a.stops:
                self.builder.emit("trap", guard=guard)
                continue
            with emit_guarded(self.state, guard), self.scalars.open_scope():
                values = [substitute_vars(v, run.values[lane]) for v in a.values]
                held = [self.scalars.get_register(v, self.make_reader(run, lane)) for v in values]
                emit_print(a.text, [(register, v.dtype) for register, v in zip(held, values, strict=True)], self.state)

    def emit_assignment(self, a: Assignment, run: _Run) -> None:
        """Emit a store for all lanes of a run: to a reducer, registers or memory, plain or atomic."""
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
        width = 1 if self.may_vary(a.conditions) else self.find_access_width(store.buffer, store.indices, run)
        for lane in range(0, self.run_length, width):
            values = [(store.value, i) for i in range(lane, lane + width)]
            indices = self.resolve_indices(store.indices, run, lane)
            self.write_values(a, indices, values, run, lane)

    def assign_neighbours(self, group: list[Assignment], run: _Run) -> None:
        """Emit a group of stores to neighbouring elements: each along its run if that is adjacent, else by lanes."""
        first = group[0].store
        self.locate(group[0])
        if self.find_access_width(first.buffer, first.indices, run) > 1 and not self.may_vary(group[0].conditions):
            for a in group:
                self.locate(a)
                self.emit_assignment(a, run)
            return
        for lane in range(self.run_length):
            places = [
                (locate_element(first.buffer, self.resolve_indices(a.store.indices, run, lane)), a) for a in group
            ]
            for chunk in split_row(places, VECTOR_BYTES, self.get_contiguous_elements(first.buffer)):
                place, a = chunk[0]
                self.locate(a)
                self.write_values(a, place.indices, [(other.store.value, lane) for _, other in chunk], run, lane)

    def write_values(
        self, a: Assignment, indices: tuple[tile.Expr, ...], values: list[tuple[tile.Expr, int]], run: _Run, lane: int
    ) -> None:
        """Emit one store of values to adjacent memory elements from `indices` on, where the conditions hold.

        Each value comes with its lane.
        """
        buffer = a.store.buffer
        if buffer.scope == "global":
            indices = self.scalars.settle_indices(indices)
        words = self.pack_values(buffer.dtype, values, run)
        guard = self.emit_guard(buffer, indices, (*run.inside, *self.first_copy))
        guard = self.add_conditions(guard, a.conditions, run, lane)
        vector = f".v{len(words)}" if len(words) > 1 else ""
        _, spelled, _, _ = get_word_format(buffer.dtype, len(values))
        value = words[0] if len(words) == 1 else Vector(tuple(words))
        address, space = self.get_address(buffer, indices), str(buffer.scope)
        if self.op.block is not None:
            address, space = map_to_block(address, self.op.block, self.state), "shared::cluster"
        self.builder.emit(f"st.{space}{vector}.{spelled.replace('s8', 'u8')}", address, value, guard=guard)

    def contribute(self, a: Assignment, run: _Run, lane: int) -> None:
        """Add one lane's value to the thread's partial result of a reducer; of threads with a copy only one adds."""
        store = a.store
        value = self.scalars.ensure_register(self.get_operand(store.value, run, lane), store.buffer.dtype)
        guard = self.add_conditions(self.scalars.test_all([*run.inside, *self.first_copy]), a.conditions, run, lane)
        layout = self.state.layouts[store.buffer.name]
        if all(axis.dim < 0 for axis in layout.threads):
            indices = self.resolve_indices(store.indices, run, lane)
            add_to_indexed_part(store, indices, value, guard, self.state)
            return
        place = self.find_fragment_register(store.buffer, store.indices, run, lane)
        add_to_part(store, self.state.fragments[store.buffer.name][place], value, guard, self.state)

    def combine(self, a: Assignment, run: _Run) -> None:
        """Emit a store's atomic operation for all lanes, vectors if possible; bind previous values in `run.values`."""
        store = a.store
        width = 1
        if not self.may_vary(a.conditions) and store.previous is None:
            most = select_vector_width(store, self.state.target)
            width = math.gcd(self.find_access_width(store.buffer, store.indices, run), most)
        for lane in range(0, self.run_length, width):
            values = [self.scalars.ensure_register(self.get_operand(store.value, run, i), store.buffer.dtype)
                      for i in range(lane, lane + width)]  # fmt: skip
            indices = self.resolve_indices(store.indices, run, lane)
            if store.buffer.scope == "global":
                indices = self.scalars.settle_indices(indices)
            guard = self.emit_guard(store.buffer, indices, (*run.inside, *self.first_copy))
            guard = self.add_conditions(guard, a.conditions, run, lane)
            previous = emit_atomic(store, self.get_address(store.buffer, indices), values, guard, self.state)
            if store.previous is not None and previous is not None:
                self.variables += 1
                var = tile.Var(f"%held{self.builder.labels}.{self.variables}", store.buffer.dtype)
                self.scalars.define_variable(var, previous, (-math.inf, math.inf))
                run.values[lane][store.previous] = var

    def add_conditions(self, guard: Reg | None, conditions: tuple[tile.Expr, ...], run: _Run, lane: int) -> Reg | None:
        """Emit a predicate that holds where the guard and these conditions do in a lane, and return it; None if
        always."""
        for condition in conditions:
            holds = self.scalars.get_register(substitute_vars(condition, run.values[lane]), self.make_reader(run, lane))
            guard = holds if guard is None else self.builder.create("pred", "and.pred", guard, holds)
        return guard

    def may_vary(self, conditions: tuple[tile.Expr, ...]) -> bool:
        """Return whether the conditions may hold for some elements of a run and fail for others."""
        met = [e for c in conditions for e in tile.walk_expr(c)]
        if self.op.nest.is_per_thread:
            return any(isinstance(e, tile.Load) or e in self.vars[1:] for e in met)
        return any(
            e == self.vars[-1] or e in self.kept or (isinstance(e, tile.Load) and e.buffer.name in self.stores_to)
            for e in met
        )

    def assign_register(self, a: Assignment, run: _Run, lane: int) -> None:
        """Emit the move of one lane's value to its register of a fragment or local array, where the conditions hold."""
        name = a.store.buffer.name
        if a.store.buffer.scope == "local":
            value = self.get_operand(a.store.value, run, lane)
            guard = self.add_conditions(self.scalars.test_all(run.inside), a.conditions, run, lane)
            indices = self.resolve_indices(a.store.indices, run, lane)
            write_local(a.store.buffer, indices, value, guard, self.state)
            return
        target = self.state.fragments[name][self.find_fragment_register(a.store.buffer, a.store.indices, run, lane)]
        value = self.get_operand(a.store.value, run, lane)
        guard = self.add_conditions(None, a.conditions, run, lane)
        cls = get_register_class(a.store.buffer.dtype)
        if cls == "pred":
            value = self.scalars.ensure_register(value, a.store.buffer.dtype)
        self.builder.emit(f"mov.{cls}", target, value, guard=guard)

    def assign_words(self, store: tile.Store, run: _Run) -> None:
        """Emit the moves, without a guard, of the run's packed elements to a fragment that is held as words."""
        values = self.pack_values(store.buffer.dtype, [(store.value, lane) for lane in range(self.run_length)], run)
        first = self.find_fragment_register(store.buffer, store.indices, run, 0) // count_per_word(store.buffer)
        for target, value in zip(self.state.words[store.buffer.name][first:], values, strict=False):
            self.builder.emit("mov.b32", target, value)

    def pack_values(self, dtype: DType, items: list[tuple[tile.Expr, int]], run: _Run) -> list[Reg]:
        """Emit the values, each of its lane, packed by `dtype` into 32-bit words where narrower, and return the
        registers."""
        _, _, _, per_word = get_word_format(dtype, len(items))
        if per_word == 1:
            operands = [self.get_operand(e, run, i) for e, i in items]
            if dtype.kind == "bool":
                emit, ensure = self.builder.create, self.scalars.ensure_register
                return [emit("b32", "selp.b32", Imm(1), Imm(0), ensure(v, dtype)) for v in operands]
            return [self.scalars.ensure_register(v, dtype) for v in operands]
        words = []
        for at in range(0, len(items), per_word):
            word = items[at : at + per_word]
            wide = [
                (e.a, i) for e, i in word if isinstance(e, tile.Cast) and e.a.dtype == FLOAT32 and dtype in FLOAT_NAMES
            ]
            if per_word == 2 and all(can_pair(e) for e, _ in word):
                first, second = (self.make_lane(e, run, i) for e, i in word)
                words.append(emit_pair(first, second, dtype, self.scalars))
            elif len(wide) == per_word == 2:
                first, second = (self.make_lane(e, run, i) for e, i in wide)
                words.append(pack_f32(self.scalars, dtype, *emit_float32_pair(first, second, self.scalars)))
            elif dtype.kind in ("int", "uint") and all(
                isinstance(e, tile.Cast) and e.a.dtype == FLOAT32 for e, _ in word
            ):
                whole = [self.get_operand(tile.Cast(e.a, INT32), run, i) for e, i in word if isinstance(e, tile.Cast)]
                words.append(pack_saturated(self.builder, dtype, whole))
            elif len(wide) == per_word:
                words.append(pack_f32(self.state.scalars, dtype, *(self.get_operand(e, run, i) for e, i in wide)))
            else:
                held = [self.scalars.ensure_register(self.get_operand(e, run, i), dtype) for e, i in word]
                words.append(pack_word(self.builder, held, dtype))
        return words

    # ---- values ----

    def get_operand(self, expr: tile.Expr, run: _Run, lane: int) -> Operand:
        """Return the operand of an expression in this lane, with its elements read by the lane's reader."""
        return self.scalars.get_operand(substitute_vars(expr, run.values[lane]), self.make_reader(run, lane))

    def make_reader(self, run: _Run, lane: int) -> ReadElement:
        """Return the function that gives the operand of a load in this lane: from registers, or as prefetched."""

        def read_element(load: tile.Load) -> Operand:
            """Return the operand of a load: a local array's or fragment's register, or the prefetched value."""
            if load.buffer.scope == "local":
                return read_local(load.buffer, self.resolve_indices(load.indices, run, lane), self.state)
            if load.buffer.in_registers:
                place = self.find_fragment_register(load.buffer, load.indices, run, lane)
                return self.state.fragments[load.buffer.name][place]
            if load not in run.loaded:  # a condition on what an index reads, of a load that comes before this one
                return self.read_index(load, run, lane)
            return extract_part(run.loaded[load][lane], self.scalars)

        return read_element

    def make_lane(self, expr: tile.Expr, run: _Run, lane: int) -> Lane:
        """Return an expression in this lane, with the functions that read its elements, whole or as parts of words."""

        def find_part(load: tile.Load) -> WordPart | None:
            """Return the part of a loaded word that an element is, if it is one."""
            value = None if load.buffer.in_registers else run.loaded[load][lane]
            return value if isinstance(value, WordPart) else None

        return Lane(substitute_vars(expr, run.values[lane]), self.make_reader(run, lane), find_part)

    def find_fragment_register(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], run: _Run, lane: int) -> int:
        """Return the number of the fragment's register that holds this lane's element at these indices."""
        offset = self.offsets[run.register + lane]
        place = dict(zip(self.vars, offset, strict=True))
        return self.places[buffer.name][tuple(_evaluate_offset(i, place) for i in indices)]


@dataclass(slots=True)
class _Run:
    """Consecutive registers from `register` on: the loop variables' values in each, the conditions under which they
    hold elements at all, what has been loaded for them, under which conditions elements are loaded, and which of the
    steps that elements are loaded for needs each first."""

    register: int
    values: list[dict[tile.Var, tile.Expr]]
    inside: tuple[tile.Expr, ...]
    loaded: dict[tile.Load, list[Operand | WordPart]]
    masks: dict[tile.Load, Path] = field(default_factory=dict)
    first_users: dict[tile.Load, Step] = field(default_factory=dict)


def substitute_vars(expr: tile.Expr, values: dict[tile.Var, tile.Expr]) -> tile.Expr:
    """Return the expression with loop variables replaced, except inside loads, which are looked up as they are."""
    if isinstance(expr, tile.Load):
        return expr
    if isinstance(expr, tile.Var):
        return values.get(expr, expr)
    return map_expressions(expr, lambda operand: substitute_vars(operand, values))


def _evaluate_offset(index: tile.Expr, offsets: dict[tile.Var, int]) -> int:
    """Return a fragment index's value at a register's offsets of the loop variables; 0 if it is no constant there."""
    return offsets[index] if isinstance(index, tile.Var) else int(compute_expr(index, offsets) or 0)


def _index_registers(layout: Fragment) -> dict[tuple[int, ...], int]:
    """Map each offset from the thread's coordinates to the first register of the layout that has it."""
    return {layout.register_offset(r): r for r in reversed(range(layout.register_count))}
