"""Runs tile IR on the CPU, block after block, with the operations' numpy references: the meaning of a kernel.

Arrays are numpy's. bfloat16 and smaller floats, which numpy lacks, are bits outside (see `elements`) and float32
inside, rounded at every step. Tiles are initialised to NaN (integers: the largest value), so that uninitialised reads
show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from itertools import groupby
from typing import Any, NoReturn, assert_never

import numpy as np
from numpy.typing import NDArray

from tilec.interp.barriers import GridBarriers, RoleBarriers
from tilec.ir import elements, tile
from tilec.ir.expr import extent_to_size, integer_range
from tilec.ir.types import BOOL, FLOAT8_E8M0, DType
from tilec.ops import registry
from tilec.ops.functions import bits, philox
from tilec.ops.functions.intrinsics import compute_fma, make_references
from tilec.ops.functions.warp_functions import REFERENCES
from tilec.ops.synchronisation import cluster_launch
from tilec.ops.synchronisation.barriers import AllocBarrier, Arrive, AwaitBarrier, CpAsyncArrive, ExpectTx, get_barrier
from tilec.ops.synchronisation.rendezvous import Rendezvous
from tilec.ops.synchronisation.sync import BlockBarrier
from tilec.ops.synchronisation.warpgroups import NamedArrive
from tilec.passes.explicit_roles.split_roles import ExplicitRole, find_roles
from tilec.support.diagnostics import InternalError, raise_error
from tilec.support.records import dataclass
from tilec.support.sizes import SizeError, solve_scalars
from tilec.support.source import NOWHERE, Span

Array = NDArray[Any]


def run_kernel(
    kernel: tile.Kernel, tensors: Mapping[str, Array], scalars: Mapping[str, int | float] | None = None
) -> None:
    """Run every block of a kernel's grid, and write outputs to the arrays of `tensors` in place; raise an error on
    unfit ones. `tensors` has an array for each tensor parameter. Scalars that are extents of a tensor may be
    omitted."""
    machine = _Machine()
    given = _find_sizes(kernel, tensors) | dict(scalars or {})
    machine.variables[tile.THREAD.name] = np.arange(kernel.threads, dtype=np.int32)
    for param in kernel.params:
        if isinstance(param, tile.Var):
            machine.variables[param.name] = _take_scalar(param, given)
    for param in kernel.params:
        if isinstance(param, tile.Buffer):
            machine.storage[param.name] = _decode_tensor_argument(param, machine.shape(param.extents), tensors)
    for buffer in kernel.workspaces:
        machine.storage[buffer.name] = _make_tile(buffer, kernel.threads)
    roles = find_roles(kernel)
    made = (s for s in kernel.body if isinstance(s, AllocBarrier))
    counts = {get_barrier(s).name: s.counts for s in made}
    blocks = [tuple(reversed(place)) for place in np.ndindex(*reversed(machine.shape(kernel.grid)))]
    for group in _group_blocks(kernel, blocks):
        machines = [_create_block_machine(machine, kernel, block) for block in group]
        if len(group) == 1:
            machines[0].peers, machines[0].role_barriers = machines, RoleBarriers(counts)
            _run_block(kernel, roles, machines[0])
            continue
        grid_barriers = GridBarriers([_find_cluster(kernel, block) for block in group])
        for number, one in enumerate(machines):
            one.number, one.grid_barriers = number, grid_barriers
            one.role_barriers = RoleBarriers(counts, grid_barriers.blocks)
            cluster = _find_cluster(kernel, group[number])
            one.peers = [m for m, block in zip(machines, group, strict=True) if _find_cluster(kernel, block) == cluster]
        grid_barriers.run([partial(_run_block, kernel, roles, one) for one in machines])
    for param in kernel.params:
        if isinstance(param, tile.Buffer) and elements.is_stored_as_bits(param.dtype):
            tensors[param.name][...] = elements.encode_values(machine.storage[param.name], param.dtype)


Block = tuple[int, ...]


def _group_blocks(kernel: tile.Kernel, blocks: list[Block]) -> list[list[Block]]:
    """Return the groups of blocks that may wait for each other: the grid, a cluster in order of ranks, or one block."""
    operations = (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.TileOp))
    reaching = [s for s in operations if isinstance(s, Rendezvous) or s.reaches_blocks]
    if any(isinstance(s, Rendezvous) and s.what == "sync_grid" for s in reaching):
        return [blocks]
    clusters: dict[Block, list[Block]] = {}
    for block in blocks:
        clusters.setdefault(_find_cluster(kernel, block) if reaching else block, []).append(block)
    return list(clusters.values())


def _find_cluster(kernel: tile.Kernel, block: Block) -> Block:
    """Return the position, in units of clusters, of the cluster that a block belongs to."""
    return tuple(index // size for index, size in zip(block, kernel.cluster.extents, strict=False))


def _create_block_machine(machine: _Machine, kernel: tile.Kernel, block: Block) -> _Machine:
    """Return a copy of the machine for one block, with its block indices and new tiles."""
    own = replace(machine, storage=dict(machine.storage), variables=dict(machine.variables))
    for var, index in zip(kernel.block_vars, block, strict=True):
        own.variables[var.name] = np.int32(index)
    for buffer in kernel.buffers:
        if buffer.scope != "global":
            own.storage[buffer.name] = _make_tile(buffer, kernel.threads)
    return own


def _run_block(kernel: tile.Kernel, roles: tuple[ExplicitRole, ...], machine: _Machine) -> None:
    """Run a block's body, or the explicit roles of the kernel if it has some, section by section."""
    if not roles:
        machine.role_barriers = None
        with np.errstate(all="ignore"):
            machine.body(kernel.body)
        return
    assert machine.role_barriers is not None
    for _, section in groupby(roles, lambda role: role.section):
        machine.role_barriers.run([partial(_run_role, role, machine) for role in section])


def _run_role(role: ExplicitRole, block: _Machine) -> None:
    """Run a role's body in its block, with its own variables and register tiles and the block's other tiles."""
    threads = role.kernel.threads
    variables = {**block.variables, tile.THREAD.name: np.arange(threads, dtype=np.int32)}
    machine = replace(block, storage=dict(block.storage), variables=variables, threads=threads)
    for buffer in role.kernel.buffers:
        if buffer.in_registers:
            machine.storage[buffer.name] = _make_tile(buffer, threads)
    with np.errstate(all="ignore"):
        machine.body(role.kernel.body)


def _find_sizes(kernel: tile.Kernel, tensors: Mapping[str, Array]) -> dict[str, int | float]:
    """Return the scalars that the shapes of the arrays determine; raise an error if shapes contradict each other."""
    buffers = [p for p in kernel.params if isinstance(p, tile.Buffer) and p.name in tensors]
    shapes = {p.name: tuple(extent_to_size(e) or 0 for e in p.extents) for p in buffers}
    found = {p.name: elements.element_shape(tensors[p.name].shape, p.dtype) for p in buffers}
    try:
        return dict(solve_scalars(shapes, found))
    except SizeError as error:
        raise_error("wrong-input", str(error))


def _decode_tensor_argument(param: tile.Buffer, shape: tuple[int, ...], tensors: Mapping[str, Array]) -> Array:
    """Return a tensor's array as values to compute with; raise an error if it is missing or of another shape or
    type."""
    if param.name not in tensors:
        raise_error("missing-input", f"there is no array for tensor {param.name}", param.span)
    array = tensors[param.name]
    wanted = elements.numpy_storage_type(param.dtype)
    shape = elements.storage_shape(shape, param.dtype)
    if array.shape != shape or array.dtype != wanted:
        given = f"{array.dtype}{list(array.shape)}"
        raise_error("wrong-input", f"{param.name} must be {wanted}{list(shape)}, not {given}", param.span)
    return elements.decode_values(array, param.dtype)


def _take_scalar(param: tile.Var, scalars: Mapping[str, int | float]) -> Array:
    """Return a scalar argument as a value of the parameter's type; raise an error if it is missing."""
    if param.name not in scalars:
        raise_error("missing-input", f"there is no value for scalar {param.name}")
    return convert_values(np.asarray(scalars[param.name]), param.dtype)


# ---- element types ---------------------------------------------------------------------------------------------------


def convert_values(value: Array, dtype: DType) -> Array:
    """Convert values to a type as a cast does: floats to integers toward zero, saturating; integers modulo; bool by `!=
    0`."""
    if elements.is_stored_as_bits(dtype) and dtype.is_float:
        return elements.round_values(value.astype(np.float32), dtype)
    if elements.is_stored_as_bits(dtype):
        low, high = integer_range(dtype)
        is_float = value.dtype.kind == "f"
        return elements.round_values(np.clip(np.trunc(np.nan_to_num(value)), low, high) if is_float else value, dtype)
    wanted = elements.numpy_compute_type(dtype)
    if value.dtype == wanted:
        return value
    if dtype == BOOL:
        return np.not_equal(value, 0)
    if value.dtype.kind == "f" and not dtype.is_float:
        low, high = integer_range(dtype)
        wide = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
        # The largest int64 is no float64: values that round up to it are set explicitly.
        clipped = np.clip(wide, float(low), np.nextafter(float(high), 0) if dtype.bits == 64 else float(high))
        return np.where(wide >= float(high), high, clipped.astype(wanted)).astype(wanted)
    return value.astype(wanted)


def _make_tile(buffer: tile.Buffer, threads: int) -> Array:
    """Return a new tile filled with NaN, the largest integer or False, with a copy for each thread if it is local."""
    dtype, copies = buffer.dtype, (threads,) if buffer.scope == "local" else ()
    poison = float("nan") if dtype.is_float else 0 if dtype == BOOL else integer_range(dtype)[1]
    return np.full((*copies, *buffer.shape), poison, elements.numpy_compute_type(dtype))


def _get_out_of_bounds_fill(dtype: DType) -> float:
    """Return the value that a read outside a tensor gives: the element whose bits are 0."""
    return 2.0**-127 if dtype == FLOAT8_E8M0 else 0


# ---- the machine -----------------------------------------------------------------------------------------------------

_BINARY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "floordiv": np.floor_divide,
    "floormod": np.mod, "min": np.fmin, "max": np.fmax, "and": np.logical_and, "or": np.logical_or,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift,
    "shr": np.right_shift, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip

_ATOMIC_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "bitand": np.bitwise_and, "bitor": np.bitwise_or,
    "xor": np.bitwise_xor, "store": lambda old, new: new, "load": lambda old, new: old,
}  # fmt: skip

_CALL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "tanh": np.tanh,
    "sinh": np.sinh, "cosh": np.cosh, "atan": np.arctan, "fmod": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": np.reciprocal, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "abs": np.abs, "sin": np.sin, "cos": np.cos, "tan": np.tan, "floor": np.floor, "ceil": np.ceil,
    "pow": np.power, "trunc": np.trunc, "nearbyint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x).astype(np.float64) + 0.5), x),
    "exp10": lambda x: np.power(10.0, x.astype(np.float64)), "log10": np.log10,
    "erf": np.vectorize(math.erf, otypes=[np.float64]), **make_references(),
    **bits.REFERENCES,
    **cluster_launch.REFERENCES,
    "philox": philox.compute_philox,
}  # fmt: skip


def _align_to_threads(value: Any, extents: tuple[int, ...]) -> Any:
    """Return a per-thread value reshaped to run along the first of these dimensions, any other value unchanged."""
    is_per_thread = np.shape(value) == extents[:1]
    return value.reshape(-1, *(1 for _ in extents[1:])) if is_per_thread else value


class _LoopLeft(Exception):
    """Leaves the innermost loop."""


@dataclass(slots=True)
class _Machine:
    """The state of one block. `number` is its index among the blocks that `grid_barriers` runs; `peers` are the
    machines of its cluster. Inside T.Parallel, variables are arrays over `extents`, and `mask` selects the elements for
    which code runs; values that differ between threads are arrays over the threads. In a kernel with explicit roles, a
    role has `threads` and meets the others at the barriers of `role_barriers`."""

    storage: dict[str, Array] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    mask: Any = True
    extents: tuple[int, ...] = ()
    is_in_nest: bool = False
    is_in_parallel: bool = False
    span: Span = NOWHERE
    role_barriers: RoleBarriers | None = None
    threads: int = 0
    number: int = 0
    grid_barriers: GridBarriers | None = None
    peers: list[_Machine] = field(default_factory=list)

    def shape(self, extents: tuple[tile.Extent, ...]) -> tuple[int, ...]:
        """Return the values of extents as sizes, at least 0."""
        return tuple(max(int(self.expr(tile.extent_expr(e))), 0) for e in extents)

    # ---- statements --------------------------------------------------------------------------------------------------

    def body(self, body: tuple[tile.Stmt, ...]) -> None:
        """Run statements one after the other; a break ends the innermost loop, or raises `_LoopLeft` to one around
        them."""
        for stmt in body:
            self.span = stmt.span
            match stmt:
                case tile.TileOp() if self.role_barriers is not None and stmt.synchronises_roles:
                    self._wait_with_roles(stmt, self.role_barriers)
                case tile.TileOp(name=name):
                    registry.get_operation(name).reference(stmt, self)
                    if self.role_barriers is not None and stmt.commits:
                        self._wait_with_roles(stmt, self.role_barriers)
                case tile.Store():
                    self._store(stmt)
                case tile.Print(stops=True):
                    if np.any(self.mask):
                        raise_error("assertion-failed", f"an assertion of the kernel failed: {stmt.text}", stmt.span)
                case tile.Print():
                    pass  # the reference only computes
                case tile.Bind(var=var, value=value):
                    self.variables[var.name] = self.expr(value)
                case tile.Parallel():
                    self._run_parallel(stmt)
                case tile.For(var=var, start=start, stop=stop, step=step, body=inner):
                    with suppress(_LoopLeft):
                        for index in range(int(self.expr(start)), int(self.expr(stop)), step):
                            self.variables[var.name] = np.int32(index)
                            self.body(inner)
                case tile.While(condition=condition, body=inner):
                    with suppress(_LoopLeft):
                        while self.expr(condition):
                            self.body(inner)
                case tile.Break():
                    raise _LoopLeft
                case tile.If():
                    self._run_if(stmt)
                case _:
                    assert_never(stmt)

    def _wait_with_roles(self, op: tile.TileOp, role_barriers: RoleBarriers) -> None:
        """Run an operation by which roles meet: arrive or wait at a named barrier or an mbarrier; `InternalError` on
        others."""
        if isinstance(op, BlockBarrier | NamedArrive):
            assert op.id is not None and op.threads is not None
            role_barriers.named_barrier(op.id, op.threads, self.threads, isinstance(op, BlockBarrier), op.span)
            return
        barrier = get_barrier(op)
        index = int(self.expr(barrier.index))
        match op:
            case AwaitBarrier():
                role_barriers.wait(barrier.name, index, int(self.expr(op.parity)), op.span)
            case tile.TileOp(commits=True):
                for barriers in map(self._get_barriers, (0, 1)) if op.is_paired else (role_barriers,):
                    barriers.arrive(barrier.name, index, 1)
            case ExpectTx():
                role_barriers.arrive(barrier.name, index, int(op.arrives))
            case Arrive(by_warps=True):
                role_barriers.arrive(barrier.name, index, self.threads // 32)
            case Arrive() | CpAsyncArrive():
                arriving = True if op.condition is None else self.expr(op.condition)
                target_barriers = role_barriers if op.block is None else self._get_barriers(int(self.expr(op.block)))
                target_barriers.arrive(barrier.name, index, int(np.broadcast_to(arriving, (self.threads,)).sum()))
            case _:
                raise InternalError(f"the effect of T.{op.name} on a barrier is not defined")

    def _get_barriers(self, block: int) -> RoleBarriers:
        """Return the role barriers of a block of the cluster, by its number there."""
        role_barriers = self._get_cluster_block(block).role_barriers
        assert role_barriers is not None, "all blocks have the same roles"
        return role_barriers

    def _run_parallel(self, nest: tile.Parallel) -> None:
        """Run the body of a T.Parallel once, with loop variables that are arrays over its extents; then restore the
        outer ones."""
        outer = self.variables
        if nest.is_per_thread:  # per-thread values run along the first dimension
            self.variables = {name: _align_to_threads(v, nest.extents) for name, v in outer.items()}
        for axis, (var, extent) in enumerate(zip(nest.vars, nest.extents, strict=True)):
            shape = [1] * len(nest.extents)
            shape[axis] = extent
            self.variables[var.name] = np.arange(extent, dtype=np.int32).reshape(shape)
        self.extents, self.is_in_nest, self.is_in_parallel = nest.extents, True, not nest.is_per_thread
        self.body(nest.body)
        self.is_in_nest = self.is_in_parallel = False
        self.variables = outer

    def _run_if(self, stmt: tile.If) -> None:
        """Run the branch that is taken, or if elements or threads differ both branches, each masked to those that take
        it. All threads of a warp have the result of a vote."""
        condition = np.asarray(self.expr(stmt.condition))
        if condition.ndim == 0 or (condition.size and np.ptp(condition.astype(np.int8)) == 0):
            self.body(stmt.then if condition.flat[0] else stmt.orelse)
            return
        with self.masked(condition):
            self.body(stmt.then)
        with self.masked(~condition):
            self.body(stmt.orelse)

    @contextmanager
    def masked(self, condition: Array) -> Iterator[None]:
        """Limit the active elements to those for which a condition holds, as long as the context lasts."""
        outer = self.mask
        self.mask = np.logical_and(outer, condition)
        try:
            yield
        finally:
            self.mask = outer

    def _store(self, stmt: tile.Store) -> None:
        """Store a value's active elements in the tensor, all at once or atomically one by one; one outside a tile is an
        error."""
        if stmt.buffer.scope == "local" and self.is_in_parallel:
            self._refuse_local(stmt.buffer)
        target = self.storage[stmt.buffer.name]
        value = self.expr(stmt.value)
        indices, in_bounds = self._indices(stmt.buffer, stmt.indices)
        all_elements = np.empty(self.extents if stmt.atomic is not None else ())
        *positions, values, active, _ = np.broadcast_arrays(*indices, value, in_bounds, all_elements)
        if stmt.atomic is not None:
            self._run_atomic(stmt, positions, values, active)
        elif active.all():
            target[tuple(positions)] = values
        else:
            target[tuple(i[active] for i in positions)] = values[active]

    def _run_atomic(self, stmt: tile.Store, positions: list[Array], values: Array, active: Array) -> None:
        """Update element after element in the order of the nest, and keep the previous values if the kernel takes
        them."""
        target, combine = self.storage[stmt.buffer.name], _ATOMIC_FUNCTIONS[stmt.atomic or "store"]
        previous = np.zeros(values.shape, target.dtype)
        for place in np.ndindex(values.shape):
            if active[place]:
                index = tuple(int(i[place]) for i in positions)
                previous[place] = target[index]
                target[index] = _round_result(np.asarray(combine(target[index], values[place])), stmt.buffer.dtype)
        if stmt.previous is not None:
            self.variables[stmt.previous.name] = previous

    def _indices(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tuple[list[Array], Array]:
        """Return clipped index arrays and a mask of accesses active and in range; an active one outside a tile is an
        error."""
        arrays: list[Array] = []
        in_bounds: Any = True
        shape = self.storage[buffer.name].shape
        if buffer.scope == "local":
            arrays.append(self._find_copy(buffer))
            shape = shape[1:]
        for index, size in zip(indices, shape, strict=True):
            array = np.asarray(self.expr(index))
            in_bounds = np.logical_and(in_bounds, (array >= 0) & (array < size))
            arrays.append(np.clip(array, 0, size - 1))
        if buffer.scope != "global" and not np.all(np.logical_or(in_bounds, np.logical_not(self.mask))):
            raise_error("out-of-range", f"an index is out of the bounds of {buffer.name}", self.span)
        return arrays, np.logical_and(in_bounds, self.mask)

    def _find_copy(self, buffer: tile.Buffer) -> Array:
        """Return the threads whose copies of a local array are read: each its own, or one if all are the same; else an
        error. It is one where the threads of the elements are not known, and copies differ."""
        threads = np.asarray(self.variables[tile.THREAD.name])
        if self.is_in_nest and not self.is_in_parallel:
            return threads
        copies = self.storage[buffer.name]
        if np.array_equal(copies, np.broadcast_to(copies[:1], copies.shape), equal_nan=buffer.dtype.is_float):
            return np.asarray(0)
        if self.is_in_parallel:
            self._refuse_local(buffer)
        return threads

    def _refuse_local(self, buffer: tile.Buffer) -> NoReturn:
        """Raise the error that the reference cannot run a local array inside T.Parallel, where threads are not
        known."""
        message = f"the CPU reference cannot run local buffer {buffer.name} inside T.Parallel"
        way_out = "pass --no-compare, or give expected outputs with --expect"
        raise_error("no-reference", message, self.span, help=way_out)

    # ---- what references see -----------------------------------------------------------------------------------------

    def scalar(self, expr: tile.Expr) -> Any:
        """Return the value of an expression, for an operation's reference."""
        return self.expr(expr)

    def rendezvous(self, what: str) -> None:
        """Arrive, wait, or both, at the grid's or the cluster's barrier; do nothing for `pdl…`, or if the block runs
        alone."""
        if self.grid_barriers is None or what.startswith("pdl"):
            return
        barrier = "grid" if what == "sync_grid" else "cluster"
        if what != "cluster_wait":
            self.grid_barriers.arrive(self.number, barrier)
        if what in ("sync_grid", "cluster_sync", "cluster_wait"):
            self.grid_barriers.wait(self.number, barrier)

    def read(self, region: tile.Region) -> Array:
        """Return a region's elements, a view if all are inside; outside a tensor all bits are 0, outside a tile is an
        error."""
        source, inner, outer = self._intersect_region(region)
        if outer is None:
            return source[inner]
        result: Array = np.full(region.extent, _get_out_of_bounds_fill(region.buffer.dtype), source.dtype)
        result[outer] = source[inner]
        return result

    def write(self, region: tile.Region, value: Array) -> None:
        """Set the region's elements, converted to its dtype; those outside a tensor are dropped, outside a tile is an
        error."""
        target, inner, outer = self._intersect_region(region)
        converted = convert_values(value, region.buffer.dtype)
        target[inner] = converted if outer is None else converted[outer]

    def peer(self, block: int) -> _Machine:
        """Return a copy of this machine with the tiles of another block, by its number in the cluster; an error if
        none."""
        return replace(self, storage=self._get_cluster_block(block).storage)

    def _get_cluster_block(self, block: int) -> _Machine:
        """Return the machine of a block of the cluster, by its number there; raise an error if there is none."""
        if not 0 <= block < len(self.peers):
            raise_error("out-of-range", f"the cluster has no block {block}", self.span)
        return self.peers[block]

    def _intersect_region(self, region: tile.Region) -> tuple[Array, tuple[slice, ...], tuple[slice, ...] | None]:
        """Return a buffer, its slices that a region covers, and those of the region inside it (None: all); error beyond
        a tile."""
        inner, outer = [], []
        is_whole = True
        sides = zip(region.start, region.extent, self.storage[region.buffer.name].shape, strict=True)
        for start_expr, extent, size in sides:
            start = int(self.expr(start_expr))
            first, last = min(max(start, 0), size), min(max(start + extent, 0), size)
            is_whole &= last - first == extent
            inner.append(slice(first, last))
            outer.append(slice(first - start, last - start) if first < last else slice(0, 0))
        if not is_whole and region.buffer.scope != "global":
            raise_error("out-of-range", f"a region is out of the bounds of {region.buffer.name}", self.span)
        return self.storage[region.buffer.name], tuple(inner), None if is_whole else tuple(outer)

    # ---- expressions -------------------------------------------------------------------------------------------------

    def expr(self, expr: tile.Expr) -> Any:
        """Return the value of an expression: a numpy scalar, or inside T.Parallel an array that broadcasts over the
        nest."""
        match expr:
            case tile.Const(value=value, dtype=dtype):
                return elements.numpy_compute_type(dtype).type(value)
            case tile.Var(name=name):
                return self.variables[name]
            case tile.Unary(op=op, a=a):
                return np.logical_not(self.expr(a)) if op == "not" else np.negative(self.expr(a))
            case tile.Binary(op=op, a=a, b=b, dtype=dtype):
                return _round_result(_BINARY_FUNCTIONS[op](self.expr(a), self.expr(b)), dtype)
            case tile.Call(fn="reinterpret", args=(a,), dtype=dtype):
                return elements.bits_to_values(elements.values_to_bits(np.asarray(self.expr(a)), a.dtype), dtype)
            case tile.Call(fn=fn, args=args, dtype=dtype) if fn in REFERENCES:
                whole = np.empty(self.extents) if self.is_in_parallel else self.variables[tile.THREAD.name]
                alike = np.broadcast_arrays(whole, *(self.expr(a) for a in args))
                return _round_result(REFERENCES[fn](*alike[1:]), dtype)
            case tile.Call(fn=fn, args=(tile.Load(buffer=barrier, indices=(index,)), parity)) if fn == tile.PHASE_DONE:
                assert self.role_barriers is not None, "only roles have barriers"
                place, wanted = int(self.expr(index)), int(self.expr(parity))
                return np.bool_(self.role_barriers.is_complete(barrier.name, place, wanted, self.span))
            case tile.Call(fn="fma", args=args, dtype=dtype):
                x, y, z = (np.asarray(self.expr(a)) for a in args)
                return convert_values(compute_fma(x, y, z, dtype), dtype)
            case tile.Call(fn=fn, args=args, dtype=dtype):
                return _round_result(_CALL_FUNCTIONS[fn](*(_widen_float16(self.expr(a)) for a in args)), dtype)
            case tile.Ptx(text=text, args=args, dtype=dtype):
                from tilec.interp.inline_ptx import evaluate_ptx

                return evaluate_ptx(text, [np.asarray(self.expr(a)) for a in args], [a.dtype for a in args], dtype)
            case tile.Cast(a=a, dtype=dtype):
                return convert_values(np.asarray(self.expr(a)), dtype)
            case tile.Select():
                return self._select_values(expr)
            case tile.Load(buffer=buffer, indices=indices):
                arrays, in_bounds = self._indices(buffer, indices)
                if self.storage[buffer.name].size == 0:
                    return np.zeros(np.broadcast_shapes(*(a.shape for a in arrays)), self.storage[buffer.name].dtype)
                values = self.storage[buffer.name][tuple(arrays)]
                outside = values.dtype.type(_get_out_of_bounds_fill(buffer.dtype))
                return values if np.all(in_bounds) else np.where(in_bounds, values, outside)
            case _:
                assert_never(expr)

    def _select_values(self, expr: tile.Select) -> Any:
        """Evaluate both sides of a select, each masked to the elements that take it, and return the chosen values."""
        condition = np.asarray(self.expr(expr.condition))
        with self.masked(condition):
            then = self.expr(expr.then)
        with self.masked(~condition):
            orelse = self.expr(expr.orelse)
        return np.where(condition, then, orelse)


def _round_result(value: Any, dtype: DType) -> Any:
    """Convert a computed value to its type: numpy computes bfloat16, and some functions of float16, as float32."""
    if elements.is_stored_as_bits(dtype):
        return convert_values(np.asarray(value), dtype)
    wanted = elements.numpy_compute_type(dtype)
    return value if value.dtype == wanted else value.astype(wanted)


def _widen_float16(value: Any) -> Any:
    """Convert float16 to float32 and leave other types unchanged, so that functions round only once, at their end."""
    return value.astype(np.float32) if value.dtype == np.float16 else value
