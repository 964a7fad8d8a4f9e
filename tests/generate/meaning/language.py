"""`T`, and how a kernel's text is run with it: block after block, each statement for all elements at once."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meaning import functions
from meaning.functions import FUNCTIONS, cast
from meaning.numbers import BOOL, FORMATS, INT32, Array, Format
from meaning.operations import OPERATIONS, Reducer
from meaning.quantity import NoMeaning, Operand, Q, convert, named, quantity
from meaning.tiles import Place, Tile, forget


@dataclass(frozen=True)
class Type:
    """`T.float16`: a type, and the conversion to it."""

    format: Format

    def __call__(self, value: Any) -> Q:
        return cast(value, self)


@dataclass(frozen=True)
class Parameter:
    """A tensor of a shape."""

    shape: tuple[int, ...]
    format: Format


@dataclass
class Run:
    """The block that runs, and where in loops it is. `sizes` are numbers that are known at launch only."""

    sizes: dict[str, int]
    kernels: list[Callable[..., None]] = field(default_factory=list)
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    threads: int = 128
    cluster: int = 1
    masks: list[Array] = field(default_factory=list)

    def masked(self) -> Array | None:
        return self.masks[-1] if self.masks else None


class Language:
    """What kernels import as `T`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        for name, form in FORMATS.items():
            setattr(self, name, Type(form))
        for name, function in (FUNCTIONS | OPERATIONS).items():
            setattr(self, name, function)
        for name in _NOTHING:
            setattr(self, name, lambda *_, **__: None)
        self.Serial = self.serial
        self.Unroll = self.unroll = self.serial
        self.Vectorized = self.vectorized = self.serial
        self.symbolic = self.dynamic
        self.Buffer = self.Tensor
        self.annotate_padding = self.annotate_safe_value
        self.WarpSpecialize = self.ws
        self.OutputTilePipeline = self.InputTilePipeline = Pipeline
        self.GemmWarpPolicy = Policies()

    # -- kernels

    def prim_func(self, function: Callable[..., None]) -> Callable[..., None]:
        self._run.kernels.append(function)
        return function

    def macro(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def Tensor(self, shape: Any, dtype: Any = "float32") -> Parameter:
        return Parameter(_shape(shape), named(dtype))

    def StridedTensor(self, shape: Any, strides: Any, dtype: Any) -> Parameter:
        return self.Tensor(shape, dtype)

    def dynamic(self, name: str, dtype: str = "int32") -> int:
        return self._run.sizes[name]

    @contextmanager
    def Kernel(self, *grid: Any, threads: int = 128, cluster_dims: int = 1) -> Iterator[Any]:
        run = self._run
        run.grid, run.threads, run.cluster = tuple(int(e) for e in grid), threads, cluster_dims
        if not run.block:
            raise _Grid
        functions.SHAPE.append((threads,))
        try:
            places = tuple(Q(b, INT32) for b in run.block[: len(grid)])
            yield places[0] if len(places) == 1 else places
        finally:
            functions.SHAPE.pop()

    ClusterKernel = Kernel

    def Persistent(self, domain: Any, wave_size: Any, index: Any, group_size: int = 8) -> Iterator[tuple[Q, ...]]:
        """Groups of neighbours along the last dimension come one after the other, all other dimensions within each;
        what the last group lacks is passed over."""
        *others, last = (int(extent) for extent in domain)
        group = min(group_size, last)
        rest = list(itertools.product(*(range(extent) for extent in others)))
        places = [(*p, g + n) for g in range(0, last, group) for p in rest for n in range(group)]
        for place in places[int(index) :: int(wave_size)]:
            if place[-1] < last:
                yield tuple(Q(p, INT32) for p in place)

    def PersistentTileScheduler(
        self, rows: Any, columns: Any, num_workers: int, swizzle_size: int = 1, column_major: bool = True
    ) -> Scheduler:
        if column_major:
            return Scheduler(walked(int(rows), int(columns), swizzle_size), num_workers)
        return Scheduler([(m, n) for n, m in walked(int(columns), int(rows), swizzle_size)], num_workers)

    @contextmanager
    def ws(self, *_: Any) -> Iterator[None]:
        yield

    # -- tiles

    def _tile(self, shape: Any, dtype: Any, **_: Any) -> Tile:
        return Tile(_shape(shape), named(dtype), False, self._run.masked)

    alloc_shared = alloc_fragment = alloc_tmem = _tile

    def alloc_local(self, shape: Any, dtype: Any) -> Local:
        threads = self._run.threads
        return Local(self._tile((threads, *_shape(shape)), dtype))

    def alloc_barrier(self, _: Any) -> Barriers:
        return Barriers()

    def alloc_var(self, dtype: Any, init: Any = 0) -> Q:
        return cast(init, dtype)

    def alloc_reducer(self, shape: Any, dtype: Any, op: str = "sum", **_: Any) -> Reducer:
        return Reducer(self._tile(shape, dtype), op)

    def reshape(self, tile: Tile, shape: Any) -> Tile:
        return tile.like(_shape(shape))

    def view(self, tile: Tile, shape: Any) -> Tile:
        return tile.like(_shape(shape))

    def annotate_safe_value(self, values: dict[Tile, float]) -> None:
        for tile, value in values.items():
            tile.outside = value

    # -- loops

    def serial(self, start: Any, stop: Any = None, step: Any = 1, *_: Any, **__: Any) -> Iterator[Q]:
        first, last = (0, int(start)) if stop is None else (int(start), int(stop))
        for i in range(first, last, step or 1):
            yield Q(i, INT32)

    def Pipelined(self, start: Any, stop: Any = None, *_: Any, **__: Any) -> Iterator[Q]:
        return self.serial(start, stop)

    def Parallel(self, *extents: Any, **_: Any) -> Iterator[Any]:
        shape = tuple(int(e) for e in extents)
        around = functions.SHAPE[-1]
        if len(functions.SHAPE) > 1:
            raise NoMeaning("one nest in another")
        functions.SHAPE.append(shape)
        forget()
        try:
            made = [
                Q(np.arange(e, dtype=np.int32).reshape([-1 if a == b else 1 for b in range(len(shape))]), INT32)
                for a, e in enumerate(shape)
            ]
            if 0 not in shape:
                yield made[0] if len(made) == 1 else tuple(made)
        finally:
            functions.SHAPE.pop()
            assert functions.SHAPE[-1] == around

    parallel = Parallel

    # -- threads

    def get_thread_binding(self, dim: int = 0) -> Q:
        return Q(np.arange(self._run.threads, dtype=np.int32), INT32)

    def block_rank_in_cluster(self) -> Q:
        return Q(self._run.block[0] % self._run.cluster, INT32)

    def get_cluster_block_nums(self) -> Q:
        return Q(self._run.cluster, INT32)

    def get_thread_bindings(self) -> tuple[Q, ...]:
        return self.get_thread_binding(), Q(0, INT32), Q(0, INT32)

    def get_thread_extents(self) -> tuple[Q, ...]:
        return self.get_thread_extent(), Q(1, INT32), Q(1, INT32)

    def get_block_bindings(self) -> tuple[Q, ...]:
        return tuple(Q(place, INT32) for place in self._run.block)

    def get_block_extents(self) -> tuple[Q, ...]:
        return tuple(Q(extent, INT32) for extent in self._run.grid)

    def get_warp_idx_sync(self) -> Q:
        return self.get_warp_idx()

    def get_warp_group_idx(self) -> Q:
        return self.get_thread_binding() // 128

    def get_lane_idx(self) -> Q:
        return self.get_thread_binding() % 32

    def get_warp_idx(self) -> Q:
        return self.get_thread_binding() // 32

    def get_thread_extent(self, dim: int = 0) -> Q:
        return Q(self._run.threads, INT32)

    def get_block_binding(self, dim: int = 0) -> Q:
        return Q(self._run.block[dim], INT32)

    def get_block_extent(self, dim: int = 0) -> Q:
        return Q(self._run.grid[dim], INT32)

    def syncthreads_count(self, predicate: Any) -> Q:
        return Q(int(self._each_thread(predicate).sum()), INT32)

    def syncthreads_and(self, predicate: Any) -> Q:
        return Q(int(self._each_thread(predicate).all()), INT32)

    def syncthreads_or(self, predicate: Any) -> Q:
        return Q(int(self._each_thread(predicate).any()), INT32)

    def _each_thread(self, predicate: Any) -> Array:
        return np.broadcast_to(quantity(predicate).certain() != 0, (self._run.threads,))

    def any_of(self, x: Any) -> Q:
        return Q(bool(np.any(_elements(x))), BOOL)

    def all_of(self, x: Any) -> Q:
        return Q(bool(np.all(_elements(x))), BOOL)

    # -- what the statements of Python become

    def _bind(self, name: str, value: Any) -> Any:
        if isinstance(value, Place):
            return value.q()
        if isinstance(value, Tile) and not value.name:
            value.name = name
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        return value

    def _set(self, variable: Q, value: Any) -> Q:
        return convert(quantity(value, variable.format), variable.format)

    def _some(self, condition: Any) -> bool:
        if not isinstance(condition, Operand):
            return bool(condition)
        sure = condition.certain() != 0
        mask = self._run.masked()
        return bool(np.any(sure if mask is None else sure & mask))

    @contextmanager
    def _where(self, condition: Any) -> Iterator[None]:
        if not isinstance(condition, Operand) or condition.q().v.ndim == 0:
            yield
            return
        sure, mask = condition.certain() != 0, self._run.masked()
        self._run.masks.append(sure if mask is None else np.logical_and(sure, mask))
        try:
            yield
        finally:
            self._run.masks.pop()


_NOTHING = (
    "sync_threads", "barrier_arrive", "mbarrier_arrive", "barrier_wait", "mbarrier_wait_parity", "fence_proxy_async",
    "ptx_wait_group", "ptx_commit_group", "wait_wgmma", "mbarrier_expect_tx", "mbarrier_arrive_expect_tx",
    "set_max_nreg", "inc_max_nreg", "dec_max_nreg", "use_swizzle", "annotate_layout", "annotate_pipeline",
    "annotate_subtile", "assume", "device_assert", "pdl_sync", "pdl_trigger", "sync_warp", "tma_store_arrive",
    "tma_store_wait", "no_set_max_nreg", "disable_warp_group_reg_alloc", "annotate_l2_hit_ratio", "sync_grid",
    "annotate_min_blocks_per_sm", "tcgen05_mma_arrive", "cluster_sync", "Layout", "Fragment", "evaluate", "print",
    "func_attr", "annotate_compile_flags", "annotate_producer_reg_dealloc", "annotate_consumer_reg_alloc",
    "cluster_arrive", "cluster_wait", "cluster_arrive_relaxed",
)  # fmt: skip
"""What orders threads, or says how: block after block and statement after statement there is nothing to do."""


class _Grid(Exception):
    """The grid is known, and there is no block yet."""


class Policies:
    Square = FullRow = FullCol = None


class Local:
    """An array of which each thread has its own."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.thread = tile, Q(np.arange(tile.shape[0], dtype=np.int32), INT32)

    def __getitem__(self, index: Any) -> Place:
        return self.tile[(self.thread, *(index if isinstance(index, tuple) else (index,)))]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tile[(self.thread, *(index if isinstance(index, tuple) else (index,)))] = value


def walked(fast: int, slow: int, width: int) -> list[tuple[int, int]]:
    """Panels of so many neighbours along the second dimension, one behind the other, each walked along the first."""
    panels = [range(first, min(first + width, slow)) for first in range(0, slow, width)]
    return [(at, other) for panel in panels for at in range(fast) for other in panel]


class Scheduler:
    """The tiles of a matrix that a block has: every so-manieth of these places."""

    def __init__(self, places: list[tuple[int, int]], workers: int) -> None:
        self.places, self.workers = places, workers

    def init(self, block: Any) -> None:
        self.at = int(block)

    def valid(self) -> bool:
        return self.at < len(self.places)

    def next_tile(self) -> None:
        self.at += self.workers

    @property
    def m_idx(self) -> Q:
        return Q(self.places[self.at][0], INT32)

    @property
    def n_idx(self) -> Q:
        return Q(self.places[self.at][1], INT32)


class Named:
    """A module of which nothing matters here."""

    def __getattr__(self, _: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class Barriers:
    def __getitem__(self, _: Any) -> Barriers:
        return self


class Stage:
    """One version of a pipeline's tiles."""

    def __init__(self, tiles: dict[str, Tile]) -> None:
        self._tiles = tuple(tiles.values())
        self.__dict__ |= tiles

    def __getitem__(self, number: int) -> Tile:
        return self._tiles[number]

    def __iter__(self) -> Iterator[Tile]:
        return iter(self._tiles)

    def release(self) -> None:
        pass


class Pipeline:
    """Stages without end: whoever fills one runs before whoever takes it."""

    def __init__(self, payload: Any, stages: int = 1) -> None:
        given = payload if isinstance(payload, tuple | list) else (payload,)
        self._payload = payload if isinstance(payload, dict) else {tile.name: tile for tile in given}
        self._filled: list[Stage] = []

    def producer(self) -> Side:
        return Side(self.acquire_producer)

    def consumer(self) -> Side:
        return Side(self.acquire_consumer)

    def acquire_producer(self) -> Stage:
        self._filled.append(Stage({name: tile.apart() for name, tile in self._payload.items()}))
        return self._filled[-1]

    def acquire_consumer(self) -> Stage:
        if not self._filled:
            raise NoMeaning("a stage that nobody has filled")
        return self._filled.pop(0)


class Side:
    def __init__(self, take: Callable[[], Stage]) -> None:
        self.acquire_stage = take

    @contextmanager
    def acquire(self) -> Iterator[Stage]:
        yield self.acquire_stage()

    def drain(self) -> None:
        pass


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(int(e) for e in (shape if isinstance(shape, tuple | list) else (shape,)))


def _elements(x: Any) -> Array:
    from meaning.tiles import box

    return box(x).read().certain() != 0


# ---- running ---------------------------------------------------------------------------------------------------------


class _Lowered(ast.NodeTransformer):
    """Python's statements and words that ask for one truth value, for many elements at once."""

    def __init__(self, tree: ast.AST) -> None:
        self.conditions = itertools.count()
        # Names that T.alloc_var made keep their type.
        self.variables = {
            a.targets[0].id
            for a in ast.walk(tree)
            if isinstance(a, ast.Assign) and isinstance(a.targets[0], ast.Name) and _allocates(a.value)
        }

    def _call(self, name: str, *given: ast.expr) -> ast.Call:
        return ast.Call(ast.Attribute(ast.Name("T", ast.Load()), name, ast.Load()), list(given), [])

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if ast.unparse(node.value) == "T.loop_break()":
            return ast.Break()
        self.generic_visit(node)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(target := node.targets[0], ast.Name):
            node.value = self._kept(target.id, node.value)
        return node

    def _kept(self, name: str, value: ast.expr) -> ast.expr:
        if name in self.variables and not _allocates(value):
            return self._call("_set", ast.Name(name, ast.Load()), value)
        return self._call("_bind", ast.Constant(name), value)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            made = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
            return ast.Assign([ast.Name(node.target.id, ast.Store())], self._kept(node.target.id, made))
        return node

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        self.generic_visit(node)
        name = f"_condition{next(self.conditions)}"
        known = ast.Name(name, ast.Load())
        test = self._call("_bind", ast.Constant(""), node.test)  # read here, not where a branch asks
        made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], test)]
        for condition, body in ((known, node.body), (self._call("_not", known), node.orelse)):
            if body:
                inside = ast.With([ast.withitem(self._call("_where", condition))], body)
                made.append(ast.If(self._call("_some", condition), [inside], []))
        return made

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "_and" if isinstance(node.op, ast.And) else "_or"
        made, *others = node.values
        for other in others:
            made = self._call(name, made, other)
        return made

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """A chain `a < b < c` is `a < b and b < c`."""
        self.generic_visit(node)
        operands = [node.left, *node.comparators]
        made, *others = (ast.Compare(a, [op], [b]) for a, op, b in zip(operands, node.ops, operands[1:], strict=False))
        found: ast.expr = made
        for other in others:
            found = self._call("_and", found, other)
        return found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return self._call("if_then_else", node.test, node.body, node.orelse)


def _allocates(value: ast.expr) -> bool:
    return ast.unparse(value).startswith("T.alloc_var(")


@dataclass(frozen=True)
class Meaning:
    """A kernel as a function of numpy arrays."""

    name: str
    parameters: dict[str, Parameter | Type]
    run: Callable[[dict[str, Any]], None]


def meanings(text: str, sizes: dict[str, int]) -> list[Meaning]:
    """Of each kernel of the text."""
    run = Run(sizes)
    tree = ast.parse(text)
    tree = ast.fix_missing_locations(_Lowered(tree).visit(tree))
    tree.body = [s for s in tree.body if not isinstance(s, ast.Import | ast.ImportFrom)]
    names: dict[str, Any] = {"T": Language(run), "tilelang": Named(), "range": run_range}
    exec(compile(tree, "kernel.tl", "exec", dont_inherit=True), names)
    return [_meaning(run, function) for function in run.kernels]


def run_range(*given: Any) -> Iterator[Q]:
    for i in range(*(int(g) for g in given)):
        yield Q(i, INT32)


def _meaning(run: Run, function: Callable[..., None]) -> Meaning:
    parameters = {name: p for name, p in function.__annotations__.items() if name != "return"}

    def call(arguments: dict[str, Any]) -> None:
        """Tensors are `Tile`s, which are written in place."""
        given = [arguments[name] for name in parameters]
        run.block, run.masks[:] = (), []
        functions.SHAPE.clear()
        with suppress(_Grid):
            function(*given)
        for number, place in enumerate(itertools.product(*(range(e) for e in reversed(run.grid)))):
            run.block = tuple(reversed(place))
            for tensor in given:
                if isinstance(tensor, Tile):
                    tensor.block, tensor.masked = number, run.masked
            function(*given)

    return Meaning(function.__name__, parameters, call)
