"""The state of elaboration, and the dispatch from syntax to the functions that elaborate it.

Each of these is a plain function of the `Context` and a node of the syntax tree. They call each other through its
`Dispatch`, never by import: an expression may hold a call of a macro, whose statements hold expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import Any, TypeVar

from tilec.frontend.sema.compile_time.budget import Budget
from tilec.frontend.sema.launch.hints import Hints
from tilec.frontend.sema.loops.schedule_lists import ConvertedIf, ElidedBind
from tilec.frontend.sema.recover import poison_names
from tilec.frontend.sema.roles.linear_resources import Ledger
from tilec.frontend.sema.roles.pipeline_records import PipelineRecords
from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import Interval
from tilec.ir.groups import WARP_THREADS
from tilec.ir.types import BOOL, DType
from tilec.ops.language.values import TableEntry, Value
from tilec.ops.reductions.reducer import Reducer
from tilec.rewriting.make_names_unique import UniqueNames
from tilec.support import records
from tilec.support.diagnostics import CompileError, ErrorCollector, Warn, ignore_warning
from tilec.support.records import dataclass
from tilec.support.source import Span

T = TypeVar("T")

ExpressionEvaluator = Callable[["Context", Any], Value]
StatementElaborator = Callable[["Context", Any], None]
CallEvaluator = Callable[["Context", str, ast.Call], Value]
"""Evaluates a call; takes the dotted name of its function, too."""
CallElaborator = Callable[["Context", str, ast.Call], object]


@records.dataclass(frozen=True, slots=True)
class Dispatch:
    """Tables from syntax to functions: `expressions` and `statements` by the type of the node; `values` and `actions`
    by the dotted name that is called, for its value or as a statement of its own. `default_call` takes calls of other
    names. Without `statements` all is evaluated at compile time. `elaborate_jumping_statement` takes a statement and
    the rest of its body: it elaborates both if the statement may end the iteration, and returns whether it did."""

    expressions: Mapping[type[ast.Expr], ExpressionEvaluator]
    values: Mapping[str, CallEvaluator]
    default_call: CallEvaluator
    statements: Mapping[type[ast.Stmt], StatementElaborator]
    elaborate_jumping_statement: Callable[[Context, ast.Stmt, tuple[ast.Stmt, ...]], bool]
    actions: Mapping[str, CallElaborator]


@records.dataclass(frozen=True, slots=True)
class Generator:
    """The random generator of T.rng_init. `words` are the key, sequence and position of each thread, and whether
    `spare` holds a normal number: they are made in pairs."""

    words: tile.Buffer
    spare: tile.Buffer

    def word(self, number: int) -> tile.Expr:
        """Return a load of one 64-bit word of the state, by its number: key, sequence, position, or whether `spare` is
        filled.
        """
        return tile.Load(self.words, (tile.int32_const(number),))


@records.dataclass(frozen=True, slots=True)
class Mask:
    """A condition on the thread around a statement, and `written`, what it was before its elements were read. `span` is
    that of its `if`; with `is_shared` the whole block runs the collective statements under it, for the threads that
    meet it."""

    condition: tile.Expr
    written: tile.Expr
    span: Span | None = None
    is_shared: bool = False


@records.dataclass(frozen=True, slots=True)
class PartialSynchronisation:
    """A wait or an arrival of those threads of a role for which a condition holds. `role` is empty for the block."""

    role: range
    condition: tile.Expr
    op: tile.TileOp


@dataclass(slots=True)
class Findings:
    """Facts known only once a kernel has been elaborated, as places in its text: the variables of T.alloc_var and
    the arrays of T.alloc_local that threads set differently, the `if`s on the thread that have collective statements in
    them, those that divide warps into roles, the arrays that must have the same values in all threads, the fragments of
    which each thread has its own, and the arrays that methods of T.TensorCoreIntrinEmitter use, with the shape of the
    block's tile."""

    per_thread_variables: set[Span] = field(default_factory=set)
    shared_ifs: set[Span] = field(default_factory=set)
    dividing_ifs: set[Span] = field(default_factory=set)
    uniform_arrays: set[Span] = field(default_factory=set)
    private_fragments: set[Span] = field(default_factory=set)
    emitter_arrays: dict[Span, tuple[int, int]] = field(default_factory=dict)

    def copy_sets(self) -> Findings:
        """Return a copy of the findings whose sets and dictionary are independent of these."""
        variables, arrays, fragments = self.per_thread_variables, self.uniform_arrays, self.private_fragments
        ifs, dividing = set(self.shared_ifs), set(self.dividing_ifs)
        return Findings(set(variables), ifs, dividing, set(arrays), set(fragments), dict(self.emitter_arrays))


@dataclass(slots=True)
class PrivateUses:
    """The threads that set elements of a fragment, and those that read them, in the order of the text: the role and the
    conditions on the thread around each use."""

    written: list[tuple[object, ...]] = field(default_factory=list)
    read: list[tuple[object, ...]] = field(default_factory=list)


@records.dataclass(frozen=True, slots=True)
class Machine:
    """The GPU: functions that return the number of its multiprocessors and its compute capability, and the cluster of
    kernels that name none."""

    multiprocessors: Callable[[], int] = lambda: 1
    default_cluster: tuple[int, int, int] = (1, 1, 1)
    capability: Callable[[], tuple[int, int]] = lambda: (9, 0)


@dataclass(slots=True)
class Context:
    """The state of elaboration: one for the top of a file, one for each kernel. Fields are about the kernel, unless
    they say otherwise."""

    scope: Scope
    """The names that the current statement sees."""
    dispatch: Dispatch
    warn: Warn = ignore_warning
    mistakes: ErrorCollector = field(default_factory=ErrorCollector)
    """The mistakes found so far."""
    schedule_mistakes: ErrorCollector = field(default_factory=ErrorCollector)
    """Mistakes in how loops are to be scheduled. The kernel is whole without these requests."""
    budget: Budget = field(default_factory=Budget)
    imports: Callable[[Context, ast.Import], None] | None = None
    """Binds the names of an import."""
    calls: list[Span] = field(default_factory=list)
    """The calls of the macros being elaborated, the innermost last."""

    machine: Machine = field(default_factory=Machine)

    # ---- the launch --------------------------------------------------------------------------------------------------

    launches: int = 0
    """The number of T.Kernel blocks in the function, as far as it has been read."""
    is_launched: bool = False
    """The current statement is inside `with T.Kernel`."""
    thread_extents: tuple[int, int, int] = (1, 1, 1)
    """The threads of a block along x, y and z, once `has_threads`. They run in whole warps, so that `threads` may be
    more; the threads past the last take no part in what each thread does for itself."""
    has_threads: bool = False
    launched: tuple[ast.Stmt, ...] = ()
    """The statements inside `with T.Kernel`."""
    blocks: tuple[tuple[tile.Var, tile.Extent], ...] = ()
    """The block indices, each with its extent of the grid."""
    cluster: tile.Cluster = tile.NO_CLUSTER

    # ---- what is made ------------------------------------------------------------------------------------------------

    unique: UniqueNames = field(default_factory=UniqueNames)
    buffers: list[tile.Buffer] = field(default_factory=list)
    out: list[tile.Stmt] = field(default_factory=list)
    """The list to which the next statement is appended."""
    names: list[ElidedBind] = field(default_factory=list)
    """Names that got a value without a statement."""
    partial_synchronisations: list[PartialSynchronisation] = field(default_factory=list)
    """The waits and arrivals that only some threads of a role do."""
    thread_whiles: dict[Span, frozenset[tile.Expr]] = field(default_factory=dict)
    """The `while`s that each thread leaves by itself, with the conditions on the threads that run them."""
    converted_ifs: list[ConvertedIf] = field(default_factory=list)
    """The `if`s whose condition differs from thread to thread."""
    hints: Hints = field(default_factory=Hints)
    """The hints that the kernel's annotations gave."""

    # ---- what names stand for ----------------------------------------------------------------------------------------

    limits: dict[tile.Var, Interval] = field(default_factory=dict)
    """Bounds on variables whose values differ from thread to thread."""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and largest values of variables, by name."""
    variable_names: set[str] = field(default_factory=set)
    """The names of the buffers of T.alloc_var: of one element, of which each thread has a copy."""
    nest_variables: set[str] = field(default_factory=set)
    """The names of the variables that T.alloc_var makes in the current nest: one for each iteration."""
    findings: Findings = field(default_factory=Findings)
    """The facts that an earlier elaboration of the kernel has found."""
    variable_masks: dict[str, tuple[Mask, ...]] = field(default_factory=dict)
    """By name of a variable of T.alloc_var or an array of T.alloc_local: the masks around its allocation."""
    private_uses: dict[str, PrivateUses] = field(default_factory=dict)
    """By name of a fragment of which each thread has its own: which threads use it."""
    emitter_tiles: dict[str, tile.Buffer] = field(default_factory=dict)
    """By name of an array that methods of T.TensorCoreIntrinEmitter use: the fragment in its place."""
    varying_variables: set[tile.Var] = field(default_factory=set)
    """The variables whose values differ from thread to thread."""
    definitions: dict[tile.Var, tile.Expr] = field(default_factory=dict)
    """The definitions of variables that read no element, so that nothing changes them."""
    views: dict[str, tile.Buffer] = field(default_factory=dict)
    """By name of a view, as of T.reshape: the buffer that it stands for."""
    vectors: set[str] = field(default_factory=set)
    """The names of the arrays that hold vectors read before."""
    scalars: set[tile.Var] = field(default_factory=set)
    """The scalar parameters of the kernel."""
    pointers: dict[tile.Var, tile.Buffer | None] = field(default_factory=dict)
    """Pointer parameters, each with the tensor at its address."""
    tables: dict[str, tile.Buffer | None] = field(default_factory=dict)
    """By name of a table of addresses: the tensor that the kernel makes at its entries, None before the first."""
    entries: dict[str, TableEntry] = field(default_factory=dict)
    """By name of a tensor that T.make_tensor made at an address in a table: that entry."""
    reducers: dict[str, Reducer] = field(default_factory=dict)
    """The reducers, which combine contributions of the threads, by name."""
    generator: Generator | None = None
    pipelines: PipelineRecords = field(default_factory=PipelineRecords)
    ledger: Ledger = field(init=False)
    """The resources that must be released exactly once: the stages of `pipelines`."""

    # ---- what encloses the current statement -------------------------------------------------------------------------

    loops: list[str] = field(default_factory=list)
    """The kinds of the enclosing loops, the innermost last."""
    iterations: list[Any] = field(default_factory=list)
    """The iterations that `break` and `continue` may end, the innermost last: `jumps.Iteration`."""
    path: list[tile.Var] = field(default_factory=list)
    """The conditions of the enclosing flattened branches, in a nest: each implies the one before it."""
    spread: set[tile.Expr] = field(default_factory=set)
    """Variables bound outside flattened branches, and the conditions of these branches."""
    with_depth: int = 0
    """The number of enclosing `with`s, within the innermost loop."""
    is_parallel: bool = False
    """The current statement is inside T.Parallel or T.vectorized, where fragments may be indexed."""
    guards: int = 0
    """The number of enclosing conditions that need not hold. Under one, an index out of range proves nothing."""
    selection_depth: int = 0
    """The number of enclosing operands that run only where they are selected, and change nothing."""
    regions: list[tuple[list[tile.Stmt], bool]] = field(default_factory=list)
    """The statement lists of the open regions, each with whether it runs more than once."""
    is_held: bool = False
    """Variables are read before the statement, not in it."""
    masks: list[Mask] = field(default_factory=list)
    """The conditions under which a thread runs the statement, outermost first."""
    role: range | None = None
    """The warps that run the statement as a role, or None for the whole block."""
    has_explicit_roles: bool = False
    """The kernel orders its threads by barriers."""

    def __post_init__(self) -> None:
        """Share the table of views with the hints, and make the ledger, which reports to `mistakes`."""
        self.hints.views = self.views
        self.ledger = Ledger(self.mistakes)

    @property
    def threads(self) -> int:
        """Return how many threads run the current statement: its role's, else the block's, in whole warps."""
        if self.role is not None:
            return WARP_THREADS * len(self.role)
        return -(-math.prod(self.thread_extents) // WARP_THREADS) * WARP_THREADS

    @property
    def participation_condition(self) -> tile.Expr | None:
        """Return the condition that the thread's index is below T.Kernel's `threads`; None in a role or with full
        warps.
        """
        requested = math.prod(self.thread_extents)
        if self.role is not None or requested == self.threads:
            return None
        return tile.Binary("lt", tile.THREAD, tile.int32_const(requested), BOOL)

    @property
    def is_divergent(self) -> bool:
        """Return whether a condition on the thread, other than one shared by the block, encloses the statement."""
        return any(not mask.is_shared for mask in self.masks)

    @property
    def nest_name(self) -> str:
        """Return the kind of the innermost loop, for messages inside T.Parallel or T.vectorized."""
        return self.loops[-1]

    # ---- reading -----------------------------------------------------------------------------------------------------

    def value(self, node: ast.Expr) -> Value:
        """Evaluate an expression by its kind: to a Python value if known at compile time, else to a typed
        expression.
        """
        self.budget.expression(node.span)
        return self.dispatch.expressions[type(node)](self, node)

    def block(self, statements: tuple[ast.Stmt, ...]) -> None:
        """Elaborate statements into `out` until the budget is spent, recording mistakes and poisoning their names."""
        for place, statement in enumerate(statements):
            if self.budget.is_spent:
                return
            try:
                self.budget.statement(statement.span)
                if self.dispatch.elaborate_jumping_statement(self, statement, statements[place + 1 :]):
                    return
                self.dispatch.statements[type(statement)](self, statement)
            except CompileError as error:
                for call in reversed(self.calls):
                    error = error.called_from(call)
                self.mistakes.add(error)
                poison_names(self.scope, statement)

    # ---- making ------------------------------------------------------------------------------------------------------

    def bind_value(self, name: str, value: tile.Expr, span: Span) -> tile.Var:
        """Emit a bind of an expression to a new variable, and return the variable."""
        var = tile.Var(self.unique.take(name), value.dtype)
        self.out.append(tile.Bind(var, value, span))
        return var

    def allocate_buffer(
        self, name: str, shape: tuple[tile.Extent, ...], dtype: DType, scope: tile.Scope, span: Span, lanes: int = 1
    ) -> tile.Buffer:
        """Add a new buffer to the kernel, and return it."""
        buffer = tile.Buffer(self.unique.take(name), shape, dtype, scope, span, lanes)
        self.buffers.append(buffer)
        return buffer

    # ---- regions -----------------------------------------------------------------------------------------------------

    @staticmethod
    @contextmanager
    def pushed(stack: list[T], item: T) -> Iterator[None]:
        """Have an item as the last one of a list for the `with`, as the innermost of what encloses a statement."""
        stack.append(item)
        try:
            yield
        finally:
            stack.pop()

    @contextmanager
    def altered(self, **values: Any) -> Iterator[None]:
        """Set fields of the context to other values for the `with`, and restore them after it, also on an error."""
        outer = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in outer.items():
                setattr(self, name, value)

    def held(self) -> AbstractContextManager[None]:
        """Have variables read before their statement inside the `with`, so that later stores do not change the
        value.
        """
        return self.altered(is_held=True)

    def guarded(self) -> AbstractContextManager[None]:
        """Accept an index out of range inside the `with`, as code that may never be executed."""
        return self.altered(guards=self.guards + 1)

    @contextmanager
    def region(self, name: str, is_loop: bool) -> Iterator[list[tile.Stmt]]:
        """Collect the statements of the `with` in a new list, which it yields, and a new scope, whose names end with
        it.
        """
        outer_scope, outer_out = self.scope, self.out
        self.scope, self.out = Scope(outer_scope, name, is_loop), []
        self.regions.append((self.out, is_loop))
        try:
            yield self.out
            self.scope.close()
        finally:
            self.scope, self.out = outer_scope, outer_out
            self.regions.pop()

    def enter_scope(self, scope: Scope) -> AbstractContextManager[None]:
        """Look names up in another scope for the `with`."""
        return self.altered(scope=scope)
