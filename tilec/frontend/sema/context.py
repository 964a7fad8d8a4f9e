"""What is known of the file or kernel that is being read, and which function reads what.

Every reader is a plain function that takes the `Context` and a node of the syntax tree. Readers call each other through
its `Dispatch`, never by import: an expression may hold a call of a macro, whose statements hold expressions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from tilec.frontend.sema.budget import Budget
from tilec.frontend.sema.hints import Hints
from tilec.frontend.sema.if_conversion import ConvertedIf
from tilec.frontend.sema.linear_resources import Ledger
from tilec.frontend.sema.listed_statements import Named
from tilec.frontend.sema.pipeline_records import Pipelines
from tilec.frontend.sema.recover import poison
from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import Interval
from tilec.ir.groups import WARP_THREADS, WARPGROUP_THREADS
from tilec.ir.types import BOOL
from tilec.ops.reducer import Reducer
from tilec.ops.values import Value
from tilec.passes.analysis.unique_names import UniqueNames
from tilec.support import records
from tilec.support.diagnostics import CompileError, Mistakes, Warn, unheard
from tilec.support.records import dataclass
from tilec.support.source import Span

ReadsExpression = Callable[["Context", Any], Value]
ReadsStatement = Callable[["Context", Any], None]
ReadsValue = Callable[["Context", str, ast.Call], Value]
"""Given the dotted name that is called, too."""
ReadsAction = Callable[["Context", str, ast.Call], object]


@records.dataclass(frozen=True, slots=True)
class Dispatch:
    """`expressions` and `statements` by the type of the node; `values` and `actions` by the dotted name of the language
    that is called: for its value, or as a statement of its own. `otherwise` reads a call of any other name. Where there
    are no `statements` all is evaluated at compile time. `jumps` carries out a statement that may end the iteration,
    with what follows it, and says whether it is one."""

    expressions: Mapping[type[ast.Expr], ReadsExpression]
    values: Mapping[str, ReadsValue]
    otherwise: ReadsValue
    statements: Mapping[type[ast.Stmt], ReadsStatement]
    jumps: Callable[[Context, ast.Stmt, tuple[ast.Stmt, ...]], bool]
    actions: Mapping[str, ReadsAction]


@records.dataclass(frozen=True, slots=True)
class Generator:
    """What T.rng_init made: `words` are key, sequence and position of each thread, and whether `spare` holds a normal
    number: they are made two at a time."""

    words: tile.Buffer
    spare: tile.Buffer

    def word(self, number: int) -> tile.Expr:
        return tile.Load(self.words, (tile.integer(number),))


@dataclass(slots=True)
class Context:
    """One for the top of a file and one for each kernel. Where a field says nothing else, it is about the kernel."""

    scope: Scope
    """Of the statement that is being read."""
    dispatch: Dispatch
    warn: Warn = unheard
    mistakes: Mistakes = field(default_factory=Mistakes)
    """Those found on the way."""
    schedule_mistakes: Mistakes = field(default_factory=Mistakes)
    """What is wrong with how loops are to be scheduled, without which the kernel is whole."""
    budget: Budget = field(default_factory=Budget)
    imports: Callable[[Context, ast.Import], None] | None = None
    """Binds what an import names."""
    calls: list[Span] = field(default_factory=list)
    """Those of the macros that are being run, the innermost last."""

    # ---- the machine -------------------------------------------------------------------------------------------------

    multiprocessors: Callable[[], int] = lambda: 1
    """How many the GPU has."""
    default_cluster: tuple[int, int, int] = (1, 1, 1)
    """That of kernels that do not say."""
    capability: Callable[[], tuple[int, int]] = lambda: (9, 0)
    """What CUDA calls the machine."""

    # ---- the launch --------------------------------------------------------------------------------------------------

    launches: int = 0
    """How many T.Kernel the function has, as far as it has been read."""
    is_launched: bool = False
    """Whether this is inside `with T.Kernel`."""
    thread_extents: tuple[int, int, int] = (1, 1, 1)
    """The threads of a block along x, y and z, if `has_threads`, or else of no meaning. They run in whole warps: there
    may be more (`threads`), of which those past the last have no part in what each thread does for itself."""
    has_threads: bool = False
    blocks: tuple[tuple[tile.Var, tile.Extent], ...] = ()
    """The block's indices, and the grid."""
    cluster: tile.Cluster = tile.ALONE

    # ---- what is made ------------------------------------------------------------------------------------------------

    unique: UniqueNames = field(default_factory=UniqueNames)
    buffers: list[tile.Buffer] = field(default_factory=list)
    out: list[tile.Stmt] = field(default_factory=list)
    """Where the next statement goes."""
    names: list[Named] = field(default_factory=list)
    """Those that were given a value and made no statement."""
    converted_ifs: list[ConvertedIf] = field(default_factory=list)
    """The `if`s on which threads do not agree."""
    hints: Hints = field(default_factory=Hints)
    """What annotations said of tiles."""

    # ---- what names stand for ----------------------------------------------------------------------------------------

    limits: dict[tile.Var, Interval] = field(default_factory=dict)
    """Bounds on the values of names on which threads do not agree."""
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and largest value of variables, by name."""
    mutable: set[str] = field(default_factory=set)
    """The buffers that T.alloc_var made: of one element, of which every thread has a copy."""
    differing: set[Span] = field(default_factory=set)
    """The places of such variables which threads set differently."""
    varying: set[tile.Var] = field(default_factory=set)
    """The binds on whose value threads do not agree."""
    definitions: dict[tile.Var, tile.Expr] = field(default_factory=dict)
    """What names were given that nothing changes any more: no element was read for it."""
    views: dict[str, tile.Buffer] = field(default_factory=dict)
    """The buffers that stand for others (T.reshape), by name."""
    vectors: set[str] = field(default_factory=set)
    """The arrays that hold vectors which were read."""
    scalars: set[tile.Var] = field(default_factory=set)
    """The kernel's own parameters."""
    pointers: dict[tile.Var, tile.Buffer | None] = field(default_factory=dict)
    """Parameters that are addresses, with the tensors there."""
    reducers: dict[str, Reducer] = field(default_factory=dict)
    """Those that add up what threads contribute."""
    generator: Generator | None = None
    pipelines: Pipelines = field(default_factory=Pipelines)
    ledger: Ledger = field(init=False)
    """What must be given back exactly once, the stages of `pipelines`."""

    # ---- around the statement that is being read ---------------------------------------------------------------------

    loops: list[str] = field(default_factory=list)
    """By what they run over, the innermost last."""
    iterations: list[Any] = field(default_factory=list)
    """Those that `break` and `continue` may end, the innermost last: `jumps.Iteration`."""
    path: list[tile.Var] = field(default_factory=list)
    """Of the branches of a nest in which jumps clear flags: what holds for the elements that come here."""
    spread: set[tile.Expr] = field(default_factory=set)
    """The variables of statements that such branches have left outside themselves, and these conditions."""
    withs: int = 0
    """How many `with`s stand around it in the innermost loop."""
    is_parallel: bool = False
    """Whether this is inside T.Parallel or T.vectorized: there, fragments may be indexed."""
    guards: int = 0
    """Conditions that need not hold: under one, an index out of range proves nothing."""
    selections: int = 0
    """Operands that run only where they are selected, and change nothing."""
    regions: list[tuple[list[tile.Stmt], bool]] = field(default_factory=list)
    """The statements of those that are open, and whether they run more than once."""
    is_held: bool = False
    """Whether what variables hold is read before the statement, not in it."""
    masks: list[tile.Expr] = field(default_factory=list)
    """What holds in those threads that run this."""
    role: range | None = None
    """The warpgroups that run this, if not all of the block do."""
    has_explicit_roles: bool = False
    """Whether the kernel orders threads by barriers of its own."""

    def __post_init__(self) -> None:
        self.hints.views = self.views
        self.ledger = Ledger(self.mistakes)

    @property
    def threads(self) -> int:
        """Of those that run a statement here."""
        if self.role is not None:
            return WARPGROUP_THREADS * len(self.role)
        return -(-math.prod(self.thread_extents) // WARP_THREADS) * WARP_THREADS

    @property
    def is_counted(self) -> tile.Expr | None:
        """The condition that a thread is one of those that the kernel has asked for, where there are others."""
        asked = math.prod(self.thread_extents)
        if self.role is not None or asked == self.threads:
            return None
        return tile.Binary("lt", tile.THREAD, tile.integer(asked), BOOL)

    @property
    def nest_name(self) -> str:
        """What the kernel calls the nest that is being read: T.Parallel or T.vectorized."""
        return self.loops[-1]

    # ---- reading -----------------------------------------------------------------------------------------------------

    def value(self, node: ast.Expr) -> Value:
        """What an expression means: a Python value where all is known, a typed expression elsewhere."""
        self.budget.expression(node.span)
        return self.dispatch.expressions[type(node)](self, node)

    def block(self, statements: tuple[ast.Stmt, ...]) -> None:
        """Statements become those of the kernel. Behind one that is wrong reading goes on."""
        for place, statement in enumerate(statements):
            if self.budget.is_spent:
                return
            try:
                self.budget.statement(statement.span)
                if self.dispatch.jumps(self, statement, statements[place + 1 :]):
                    return
                self.dispatch.statements[type(statement)](self, statement)
            except CompileError as error:
                for call in reversed(self.calls):
                    error = error.called_from(call)
                self.mistakes.add(error)
                poison(self.scope, statement)

    # ---- regions -----------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self, is_held: bool = True) -> Iterator[None]:
        """Inside, variables are read at once: what follows may set them before the value is used."""
        outer, self.is_held = self.is_held, is_held
        try:
            yield
        finally:
            self.is_held = outer

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Inside, an index out of range proves nothing: the code may not run."""
        self.guards += 1
        try:
            yield
        finally:
            self.guards -= 1

    @contextmanager
    def region(self, name: str, is_loop: bool) -> Iterator[list[tile.Stmt]]:
        """Statements inside go to a list of their own, and names bound inside end with it."""
        outer_scope, outer_out = self.scope, self.out
        self.scope, self.out = Scope(outer_scope, name, is_loop), []
        self.regions.append((self.out, is_loop))
        try:
            yield self.out
            self.scope.close()
        finally:
            self.scope, self.out = outer_scope, outer_out
            self.regions.pop()

    @contextmanager
    def reading_in(self, scope: Scope) -> Iterator[None]:
        """Inside, names are those of another scope."""
        outer, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = outer
