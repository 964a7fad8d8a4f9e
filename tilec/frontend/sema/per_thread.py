"""What each thread does for itself: statements that name the thread, or an array of which every thread has its own.

Such a statement becomes a nest of its own over all threads (`Parallel` with `THREAD` as its first variable), so that
barriers can be put between any two of them. Control flow stays that of the whole block: under a condition on which
threads do not agree every statement is guarded by it, and a loop whose bounds differ runs as often as any thread needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from tilec.frontend.sema.evaluate import Evaluator
from tilec.frontend.sema.if_conversion import Whole
from tilec.frontend.sema.listed_statements import Named
from tilec.frontend.sema.loops import Header
from tilec.frontend.sema.rng import Generator
from tilec.ir.affine import add, interval
from tilec.ir.groups import WARP_THREADS, WARPGROUP_THREADS, WARPGROUP_WARPS
from tilec.ir.tile import (
    ALONE,
    BLOCK_WIDE,
    ONCE,
    RANK,
    THREAD,
    WARP_WIDE,
    Binary,
    Bind,
    Buffer,
    Call as TileCall,
    Cluster,
    Const,
    Expr,
    Extent,
    For,
    If,
    Load,
    Parallel,
    Print,
    Stmt,
    Store,
    TileOp,
    Unary,
    Var,
    children,
    integer,
    walk,
    walk_expr,
)
from tilec.ir.types import BOOL, INT32, DType
from tilec.ops.device_assert import DeviceAssert
from tilec.ops.signature import Argument, Call
from tilec.ops.values import Value
from tilec.ops.warp_functions import WARP_FUNCTIONS
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.passes.analysis.unique_names import UniqueNames
from tilec.passes.analysis.usage import expressions
from tilec.support.diagnostics import CompileError, Diagnostic, Label, Warn, fail, unheard
from tilec.support.source import Span

T = TypeVar("T")

MOST_SUBSTITUTED = 64  # operators; a longer value that differs from thread to thread is computed once
MOST_WRITTEN_OUT = 64  # trips of a loop over the registers of an array


@dataclass(slots=True)
class PerThread(Evaluator):
    """`loops` are the loops around a statement, the innermost last. `is_launched` inside `with T.Kernel`.
    `thread_extents` are the threads of a block along x, y and z, if `has_threads`, or else of no meaning; `blocks` the
    block's indices and the grid, which runs in clusters as `cluster` says. `varying` are the binds on whose value
    threads do not agree, `masks` the conditions that hold here in those threads that run this. `differing` are the
    places of variables (T.alloc_var) which threads set differently. `views` are the buffers that stand for others
    (T.reshape), by name. `wholes` are the `if`s on which threads do not agree, `names` those that were given a value
    and made no statement. `generator` is what T.rng_init made. `team` are the warpgroups that run a statement here, if
    not all of the block do (`sema.explicit_roles`); `by_hand` says that the kernel orders threads by barriers of its
    own. `vectors` are the arrays that hold vectors which were read. `scalars` are the kernel's own, `pointers` those
    that are addresses, with the tensors there."""

    loops: list[str] = field(default_factory=list)
    unique: UniqueNames = field(default_factory=UniqueNames)
    buffers: list[Buffer] = field(default_factory=list)
    out: list[Stmt] = field(default_factory=list)
    warn: Warn = unheard
    is_launched: bool = False
    thread_extents: tuple[int, int, int] = (1, 1, 1)
    has_threads: bool = False
    blocks: tuple[tuple[Var, Extent], ...] = ()
    cluster: Cluster = ALONE
    varying: set[Var] = field(default_factory=set)
    masks: list[Expr] = field(default_factory=list)
    differing: set[Span] = field(default_factory=set)
    views: dict[str, Buffer] = field(default_factory=dict)
    wholes: list[Whole] = field(default_factory=list)
    names: list[Named] = field(default_factory=list)
    generator: Generator | None = None
    team: range | None = None
    by_hand: bool = False
    vectors: set[str] = field(default_factory=set)
    scalars: set[Var] = field(default_factory=set)
    pointers: dict[Var, Buffer | None] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Of those that run a statement here."""
        return math.prod(self.thread_extents) if self.team is None else WARPGROUP_THREADS * len(self.team)

    @property
    def nest_name(self) -> str:
        """What the kernel calls the nest that is being read: T.Parallel or T.vectorized."""
        return self.loops[-1]

    # ---- who differs -------------------------------------------------------------------------------------------------

    def is_varying(self, expr: Expr) -> bool:
        """Whether threads may have different values of it."""
        if isinstance(expr, TileCall) and expr.fn in BLOCK_WIDE:
            return False
        if expr == THREAD or expr in self.varying or (isinstance(expr, TileCall) and expr.fn in WARP_WIDE):
            return True
        is_local = isinstance(expr, Load) and expr.buffer.scope == "local"
        return is_local or any(self.is_varying(c) for c in children(expr))

    def is_own(self, store: Store) -> bool:
        """Whether each thread stores something of its own, or some threads do not."""
        parts = (store.value, *store.indices)
        return store.buffer.scope == "local" or bool(self.masks) or any(self.is_varying(e) for e in parts)

    def alike(self, expr: Expr, span: Span, what: str) -> None:
        """Refuse a value on which threads do not agree."""
        if self.is_varying(expr):
            self.differs(span, what)

    def differs(self, span: Span, what: str) -> NoReturn:
        fail(
            "thread-dependent",
            f"{what} must be the same for all threads",
            span,
            "depends on the thread",
            help="let it depend on the block and on loops only, and on the thread what is stored",
        )

    def together(self, span: Span, what: str) -> None:
        """Refuse what all threads do together where only some of them are."""
        if self.masks:
            fail(
                "thread-dependent",
                f"{what} stands under a condition on the thread",
                span,
                "all threads of the block do it together",
                help="move it out of the `if`",
            )

    # ---- statements of every thread ----------------------------------------------------------------------------------

    def each_thread(
        self, body: tuple[Stmt, ...], span: Span, variables: tuple[Var, ...] = (), extents: tuple[int, ...] = ()
    ) -> None:
        """Every thread that runs this does the statements, for all values of the variables."""
        for mask in reversed(self.masks):
            body = (If(mask, body, (), span),)
        self.out.append(Parallel((THREAD, *variables), (self.threads, *extents), body, span))

    @contextmanager
    def masked(self, condition: Expr) -> Iterator[None]:
        """Inside, only the threads run for which the condition holds."""
        self.masks.append(condition)
        try:
            with self.guarded():
                yield
        finally:
            self.masks.pop()

    def kept(self, name: str, value: Expr, span: Span) -> Expr:
        """The value as it is now, in a register of each thread that runs this."""
        buffer = self.local(name, (1,), value.dtype, span)
        self.each_thread((Store(buffer, (integer(0),), value, span),), span)
        return Load(buffer, (integer(0),))

    def local(self, name: str, shape: tuple[int, ...], dtype: DType, span: Span) -> Buffer:
        """An array of which every thread has its own."""
        buffer = Buffer(self.unique.take(name), shape, dtype, "local", span)
        self.buffers.append(buffer)
        return buffer

    def named(self, name: str, value: Expr, span: Span) -> Expr:
        """What a name stands for that is given a value on which threads do not agree."""
        loads = [e for e in walk_expr(value) if isinstance(e, Load)]
        if not loads and not _is_common(value) and sum(1 for _ in walk_expr(value)) <= MOST_SUBSTITUTED:
            return value
        if self.masks and any(not e.buffer.in_registers for e in loads):
            return self.kept(name, value, span)  # the other threads need not have such elements
        var = Var(self.unique.take(name), value.dtype)
        if self.is_varying(value):
            self.varying.add(var)
        self.out.append(Bind(var, value, span))
        return var

    def frozen(self, value: Expr, span: Span) -> Expr:
        """The value as it is now, whatever is stored afterwards."""
        return self.named("now", value, span) if any(isinstance(e, Load) for e in walk_expr(value)) else value

    def asserted(self, op: DeviceAssert) -> DeviceAssert:
        """The assertion, of the threads that run this."""
        condition = op.condition
        for mask in self.masks:
            condition = Binary("or", Unary("not", mask, BOOL), condition, BOOL)
        return replace(op, condition=condition)

    # ---- loops -------------------------------------------------------------------------------------------------------

    def nest(self, made: Parallel, path: str) -> None:
        """A nest of T.Parallel, which the threads share out, or of T.vectorized, which may be each thread's own."""
        stores = [s for s in walk(made.body) if isinstance(s, Store) and not self.is_of_generator(s)]
        # Whoever has an element may say who it is, and what it finds out with its neighbours.
        shared = [s for s in walk(made.body) if isinstance(s, Bind) and _is_common(s.value)]
        said = (s for s in walk(made.body) if not isinstance(s, Print) and not self.is_of_generator(s))
        said = (s for s in said if s not in shared)
        mine = [s for s in said if any(self.is_varying(e) for e in expressions(s))]
        is_own = bool(mine) or any(s.buffer.scope == "local" for s in stores) or bool(self.masks)
        if shared:
            made = self.in_warps(made, shared[0].span, is_own or path != "T.Parallel")
        if not is_own:
            self.out.append(made)
            return
        if path == "T.Parallel" and (self.masks or any(s.buffer.scope != "local" for s in stores)):
            self.together(made.span, "T.Parallel")
            fail(
                "thread-dependent",
                "an element of T.Parallel depends on the thread",
                (mine or stores)[0].span,
                "whichever thread has the element",
                secondary=(Label(made.span, "shares its elements among the threads"),),
                help="write T.vectorized or T.serial for what each thread does for itself",
            )
        loaded = {
            e.buffer for s in walk(made.body) for x in expressions(s) for e in walk_expr(x) if isinstance(e, Load)
        }
        fastest = made.vars[-1]
        apart = not any(map(self.is_of_generator, walk(made.body))) and all(
            s.buffer not in loaded and (s.buffer.scope != "local" or _names(s.indices, fastest)) and s.atomic is None
            for s in stores
        )
        if apart:
            self.each_thread(made.body, made.span, made.vars, made.extents)
            return
        outer, self.out = self.out, []
        self.each_thread(made.body, made.span)
        body = tuple(self.out)
        self.out = outer
        for var, extent in reversed(tuple(zip(made.vars, made.extents, strict=True))):
            body = (For("unroll", var, integer(0), integer(extent), 1, body, span=made.span),)
        self.out += body

    def in_warps(self, made: Parallel, span: Span, is_own: bool) -> Parallel:
        """The nest, of which each warp has 32 neighbours of the last dimension at a time: they find something out
        together."""
        loads = (e for s in walk(made.body) for x in expressions(s) for e in walk_expr(x) if isinstance(e, Load))
        stores = (s.buffer for s in walk(made.body) if isinstance(s, Store))
        fragment = next((b for b in (*stores, *(e.buffer for e in loads)) if b.scope == "fragment"), None)
        why = ""
        if is_own:
            why = "but each thread runs this loop for itself"
        elif fragment is not None:
            why = f"but {fragment.name} says which thread has which element"
        elif made.extents[-1] % WARP_THREADS or made.layout is not None:
            why = f"but the last extent is {made.extents[-1]}"
        if why:
            fail(
                "thread-dependent",
                "what the lanes of a warp find out together is not defined in this loop",
                span,
                why,
                secondary=(Label(made.span, "32 neighbours of the last dimension are the lanes of a warp"),),
                help="let it run over tensors and shared tiles, with a multiple of 32 as its last extent",
            )
        return replace(made, width=1)

    def is_of_generator(self, stmt: Stmt) -> bool:
        """Whether it draws a random number, as whoever has an element may do for it, or moves on to the next one."""
        state = () if self.generator is None else (self.generator.words, self.generator.spare)
        if isinstance(stmt, Store):
            return stmt.buffer in state
        parts = (e for x in expressions(stmt) for e in walk_expr(x))
        read = {e.buffer for e in parts if isinstance(e, Load) and e.buffer.scope == "local"}
        return isinstance(stmt, Bind) and bool(read) and read <= set(state)

    def own(self, bounds: Header, span: Span) -> Header:
        """The bounds as they are before the loop, where they differ from thread to thread."""
        if not self.is_varying(bounds.start) and not self.is_varying(bounds.stop):
            return bounds
        return replace(bounds, start=self.frozen(bounds.start, span), stop=self.frozen(bounds.stop, span))

    def common(self, bounds: Header, span: Span) -> Header:
        """The trips that some thread makes, where the bounds differ from thread to thread."""
        ranges = {Var(name): (float(low), float(high)) for name, (low, high) in self.ranges.items()}
        start, stop = bounds.start, bounds.stop
        if self.is_varying(start):
            start = self.end(interval(start, ranges)[0], span)
        if self.is_varying(stop):
            stop = self.end(interval(stop, ranges)[1], span)
        return replace(bounds, start=start, stop=stop)

    def end(self, bound: float, span: Span) -> Expr:
        if math.isinf(bound):
            fail(
                "thread-dependent",
                "how often this loop runs differs from thread to thread",
                span,
                "and has no bound that is known at compile time",
                help="loop as often as any thread needs, and put the body under an `if`",
            )
        return integer(int(bound))

    @contextmanager
    def own_trips(self, bounds: Header, common: Header, var: Var) -> Iterator[Expr]:
        """The body of the common loop: what a thread calls the variable. Only those that have this trip run it."""
        if bounds == common:
            yield common.value(var)
            return
        count: Expr = var
        if bounds.start != common.start:
            count = fold_expr(add(var, Binary("sub", bounds.start, common.start, INT32)))
        with self.masked(Binary("lt", count, bounds.stop, BOOL)):
            yield bounds.value(count)

    def over_registers(self, loop: For) -> For:
        """A loop that walks through the registers of an array has its trips written out: registers have no index."""
        stmts = list(walk(loop.body))
        trips = (
            len(range(int(loop.start.value), int(loop.stop.value), loop.step))
            if isinstance(loop.start, Const) and isinstance(loop.stop, Const)
            else None
        )
        if (
            loop.kind != "serial"
            or trips is None
            or trips > MOST_WRITTEN_OUT
            or any(isinstance(s, TileOp) for s in stmts)
        ):
            return loop
        places = [s.indices for s in stmts if isinstance(s, Store) and s.buffer.scope == "local"]
        for s in stmts:
            loads = (e for x in expressions(s) for e in walk_expr(x) if isinstance(e, Load))
            places += (e.indices for e in loads if e.buffer.scope == "local")
        return replace(loop, kind="unroll") if any(_names(indices, loop.var) for indices in places) else loop

    # ---- what threads find out together ------------------------------------------------------------------------------

    def with_others(self, call: Call) -> Expr:
        """The value of a call of `ops.warp_functions`, computed here and once, by all threads."""
        function = WARP_FUNCTIONS[call.name]
        if self.is_parallel and (function.is_block_wide or self.guards):
            fail(
                "thread-dependent",
                f"{call.name} stands under a condition inside T.Parallel" if self.guards else
                f"{call.name} stands inside T.Parallel or T.vectorized",
                call.span,
                "all threads that have elements do it together",
                help="write it outside, or in T.serial",
            )  # fmt: skip
        if self.is_parallel:
            var = Var(self.unique.take(f"{ONCE}_{call.name.removeprefix('T.')}"), function.build(call, None).dtype)
            self.out.append(Bind(var, function.build(call, None), call.span))
            return var
        if function.is_block_wide:
            self.together(call.span, call.name)
            if self.team is not None:
                fail(
                    "thread-dependent",
                    f"{call.name} stands under T.ws",
                    call.span,
                    "all threads of the block do it together",
                    help="move it out of the block, or use its like for a warp",
                )
        running: Expr | None = None
        for mask in self.masks:
            running = mask if running is None else Binary("and", running, mask, BOOL)
        value = function.build(call, running)
        return self.named(call.name.removeprefix("T."), value, call.span)

    # ---- which thread, which block -----------------------------------------------------------------------------------

    def check_launched(self, span: Span) -> None:
        """Refuse what asks for the threads before there are any."""
        if not self.is_launched:
            fail(
                "misplaced-statement",
                "this belongs inside `with T.Kernel(…):`",
                span,
                "T.Kernel says how many threads and blocks there are",
            )

    def place(self, call: Call) -> Value:
        """The value of a name of `ops.threads`."""
        self.check_launched(call.span)
        name = call.name.removeprefix("T.")
        match name:
            case "get_thread_binding":
                return self.thread_index(self.dimension(call, 3))
            case "get_thread_bindings":
                return tuple(self.thread_index(d) for d in range(3))
            case "get_thread_extent":
                return self.thread_extents[self.dimension(call, 3)]
            case "get_thread_extents":
                return self.thread_extents
            case "get_block_binding":
                return self.blocks[self.dimension(call, len(self.blocks))][0]
            case "get_block_bindings":
                return tuple(var for var, _ in self.blocks)
            case "get_block_extent":
                return self.blocks[self.dimension(call, len(self.blocks))][1]
            case "get_block_extents":
                return tuple(extent for _, extent in self.blocks)
            case "block_rank_in_cluster":
                self.ranges[RANK.name] = (0, self.cluster.blocks - 1)
                return RANK if self.cluster.blocks > 1 else 0
            case "get_cluster_block_nums":
                return self.cluster.blocks
            case "get_lane_idx":
                return _digit(THREAD, self.warp_size(call))
            case "get_warp_idx" | "get_warp_idx_sync":
                return _quotient(THREAD, self.warp_size(call))
            case "get_warp_group_idx":
                warps = call["warps_per_group"].value
                if warps is not None and (not isinstance(warps, int) or warps < 1):
                    call.refuse("warps_per_group", "a number of warps")
                assert warps is None or isinstance(warps, int)
                return _quotient(THREAD, self.warp_size(call) * (warps or WARPGROUP_WARPS))
            case "shuffle_elect":
                extent = call.integer("thread_extent")
                if extent < 0 or extent % WARP_THREADS:
                    call.refuse("thread_extent", "a number of threads in whole warps, or 0")
                return Binary("eq", _digit(THREAD, extent) if extent else THREAD, integer(0), BOOL)
            case _:
                return self.bound_index(call)

    def thread_index(self, dim: int) -> Value:
        """The thread's digit along x, y or z, of which x moves fastest."""
        below, extent = math.prod(self.thread_extents[:dim]), self.thread_extents[dim]
        if extent == 1:
            return 0
        is_last = below * extent == math.prod(self.thread_extents)
        whole = _quotient(THREAD, below) if below > 1 else THREAD
        return whole if is_last else _digit(whole, extent)

    def dimension(self, call: Call, count: int) -> int:
        dim = call.integer("dim")
        if not 0 <= dim < count:
            call.refuse("dim", f"0 to {count - 1}" if count > 1 else "0")
        return dim

    def warp_size(self, call: Call) -> int:
        if call["warp_size"].value not in (None, WARP_THREADS):
            call.refuse("warp_size", f"{WARP_THREADS}")
        return WARP_THREADS

    def bound_index(self, call: Call) -> Value:
        """T.thread_binding(n, thread="threadIdx.x"), or with a start, which is 0."""
        given = [call["start"], call["stop"], call["thread"]]
        if isinstance(given[1].value, str):  # T.thread_binding(n, "threadIdx.x")
            given = [given[0], Argument(None, call.span), given[1]]
        axes = {f"threadIdx.{axis}": d for d, axis in enumerate("xyz")}
        thread = given[2].value
        if not isinstance(thread, str) or thread not in axes:
            call.refuse("thread", '"threadIdx.x", "threadIdx.y" or "threadIdx.z"')
        dim = axes[str(thread)]
        start, stop = (0, given[0]) if given[1].value is None else (given[0].value, given[1])
        if start != 0 or stop.value != self.thread_extents[dim]:
            fail(
                "wrong-argument",
                f"T.thread_binding runs over all threads along {str(thread)[-1]}",
                stop.span,
                f"T.Kernel has {self.thread_extents[dim]}",
                help=f"write T.get_thread_binding({dim})",
            )
        return self.thread_index(dim)


def settled(attempt: Callable[[set[Span], Warn], T], warn: Warn) -> T:
    """What `attempt` makes, once it is known which variables differ from thread to thread: it adds to the set those
    that it finds out about, and is then made again. `warn` hears what the last attempt says."""
    known: set[Span] = set()
    while True:
        found, heard = set(known), list[Diagnostic]()
        try:
            made = attempt(found, heard.append)
        except CompileError:
            if found == known:
                for warning in heard:
                    warn(warning)
                raise
        else:
            if found == known:
                for warning in heard:
                    warn(warning)
                return made
        known = found


def _is_common(value: Expr) -> bool:
    """Whether threads compute it together, so that it is computed once."""
    return any(isinstance(e, TileCall) and (e.fn in WARP_WIDE or e.fn in BLOCK_WIDE) for e in walk_expr(value))


def _names(indices: tuple[Expr, ...], var: Var) -> bool:
    return any(e == var for i in indices for e in walk_expr(i))


def _quotient(value: Expr, divisor: int) -> Expr:
    return Binary("floordiv", value, integer(divisor), INT32)


def _digit(value: Expr, extent: int) -> Expr:
    return Binary("floormod", value, integer(extent), INT32)
