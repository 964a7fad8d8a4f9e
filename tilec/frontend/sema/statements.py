"""Statements of a kernel body to tile IR: names resolved, static conditions decided, operations checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn, assert_never

from tilec.frontend.sema import explicit_roles as teams, macros, pipelines
from tilec.frontend.sema.assignments import Assignments
from tilec.frontend.sema.bounds import check_box
from tilec.frontend.sema.calls import ACTIONS, VALUES, carried_out
from tilec.frontend.sema.evaluate import Evaluator
from tilec.frontend.sema.functions import check_assert, kind, refuse_raise
from tilec.frontend.sema.hints import HINTS, PIPELINE, staged
from tilec.frontend.sema.loops import LOOP_BREAK
from tilec.frontend.sema.recover import poison
from tilec.frontend.sema.references import references
from tilec.frontend.sema.views import asked_view, view
from tilec.frontend.sema.vocabulary import refuse_name, supported_names
from tilec.frontend.syntax import ast
from tilec.ir.affine import add
from tilec.ir.tile import (
    Buffer,
    Expr,
    If,
    Load,
    Parallel,
    Region,
    Store,
    TileOp,
    Unary,
    Var,
    integer,
    walk_expr,
)
from tilec.ir.types import BOOL
from tilec.ops import arithmetic, registry
from tilec.ops.barriers import TAKING_BARRIERS
from tilec.ops.device_assert import DEVICE_ASSERT, DeviceAssert
from tilec.ops.dp4a import DP4A, dp4a
from tilec.ops.reducer import UPDATE, contribution, update
from tilec.ops.signature import (
    Argument,
    Call,
    Parameter,
    Signature,
    as_expr,
    bind,
    ignored,
)
from tilec.ops.threads import PLACES
from tilec.ops.values import (
    EXPR_TYPES,
    Access,
    Function,
    Member,
    Method,
    TileScheduler,
    Value,
    describe,
)
from tilec.ops.views import AT_DATA, VIEWS
from tilec.ops.warp_functions import WARP_FUNCTIONS
from tilec.passes.analysis.usage import expressions
from tilec.support.diagnostics import CompileError, Fix, Label, fail
from tilec.support.source import Span

EVALUATE = Signature("T.evaluate", (Parameter("value"),))
_OWN = ("T.fill", "T.clear", "T.copy")
"""The operations on tiles that a thread can do on an array of its own."""
_ON_TENSOR_MEMORY = (
    "T.tcgen05_gemm", "T.copy", "T.tcgen05_gemm_blockscaled", "T.tcgen05_cp_warpx4", "T.gemm", "T.clear", "T.fill",
)  # fmt: skip
"""Those that tiles in tensor memory can be given to."""


def _element(region: Region, variables: tuple[Var, ...]) -> tuple[Expr, ...]:
    """The element of a box at these places along its dimensions, those of extent 1 skipped."""
    if all(extent == 1 for extent in region.extent):
        return region.start
    walked = iter(variables)
    moving = (
        add(start, next(walked)) if extent != 1 else start
        for start, extent in zip(region.start, region.extent, strict=True)
    )
    return tuple(moving)


@dataclass(slots=True)
class Body(Assignments):
    """Elaborates the statements under T.Kernel into `out`. `calls` are those of the macros that are being run, the
    innermost last."""

    calls: list[Span] = field(default_factory=list)

    def block(self, statements: tuple[ast.Stmt, ...]) -> None:
        for statement in statements:
            if self.budget.is_spent:
                return
            try:
                self.budget.statement(statement.span)
                self.statement(statement)
            except CompileError as error:
                for call in reversed(self.calls):
                    error = error.called_from(call)
                self.mistakes.add(error)
                poison(self.scope, statement)

    def statement(self, node: ast.Stmt) -> None:
        match node:
            case ast.Evaluate(value=value):
                self._evaluate(value)
            case ast.Assign(targets=targets, value=value):
                self.assign(targets, value, node.span)
            case ast.AnnotatedAssign():
                self.annotated(node)
            case ast.AugmentedAssign(target=target, op=op, value=value):
                operands = self.augmented(target), self.operand(value)
                self.store(target, Argument(arithmetic.binary(op, *operands, node.span), node.span), node.span)
            case ast.If():
                self._if(node)
            case ast.For():
                self.for_(node)
            case ast.While():
                self.while_(node)
            case ast.Break() | ast.Continue():
                self.leave(node)
            case ast.Pass():
                return
            case ast.Assert():
                self._assert(node)
            case ast.Function() if kind(node) != "kernel":
                self.scope.bind(node.name, Function(node, self.scope, kind(node)), node.name_span)
            case ast.Raise():
                refuse_raise(self, node)
            case ast.With(context=ast.Call() as call) if (enter := self._entered(call)) is not None:
                self.withs += 1
                try:
                    enter(self, node, call)
                finally:
                    self.withs -= 1
            case ast.With() | ast.Function() | ast.Import() | ast.Return() | ast.Foreign():
                self._misplaced(node)
            case _:
                assert_never(node)

    def _entered(self, call: ast.Call) -> Callable[[Body, ast.With, ast.Call], None] | None:
        """What enters the block of a `with`."""
        if pipelines.is_entered(self, call):
            return pipelines.entered
        return teams.section if self.callee(call) in teams.SECTIONS else None

    def _misplaced(self, node: ast.With | ast.Function | ast.Import | ast.Return | ast.Foreign) -> NoReturn:
        match node:
            case ast.With(context=ast.Call() as call):
                path = self.callee(call)
                if path is not None and path.startswith("T.") and path not in ("T.Kernel", "T.ClusterKernel"):
                    refuse_name(path, call.function.span)
                fail("misplaced-statement", "T.Kernel stands once, directly in the function", node.context.span)
            case ast.With():
                fail("misplaced-statement", "this cannot be entered", node.context.span)
            case ast.Function():
                fail("misplaced-statement", "a kernel cannot stand in a kernel", node.name_span)
            case ast.Import() | ast.Foreign():
                fail("misplaced-statement", "imports stand at the top of the file", node.span)
            case ast.Return():
                fail(
                    "misplaced-statement",
                    "a kernel returns nothing",
                    node.span,
                    help="its results are the tensors it writes",
                )
            case _:
                assert_never(node)

    # ---- operations --------------------------------------------------------------------------------------------------

    def _evaluate(self, node: ast.Expr) -> None:
        if isinstance(node, ast.String) or (isinstance(node, ast.Constant) and node.name == "..."):
            return
        if not isinstance(node, ast.Call):
            value = self.value(node)
            called = f"write `{value.path}(…)`" if isinstance(value, Member) else None
            fail("no-effect", "this statement does nothing", node.span, f"this is {describe(value)}", help=called)
        if isinstance(function := self.value(node.function), Function):
            self.called(function, *self.arguments(node), node.span)
            return
        if isinstance(function, Method) and isinstance(function.owner, TileScheduler) and function.name == "init":
            self.value(node)
            return
        if isinstance(function, Method) and isinstance(function.owner, Buffer):
            staged(self.hints, function.owner, bind(PIPELINE, *self.arguments(node), node.span))
            return
        if isinstance(function, Method) and function.name in pipelines.STATEMENTS and pipelines.is_entered(self, node):
            self.value(node)
            return
        path = function.path if isinstance(function, Member) else None
        if path == EVALUATE.name:
            (inner,) = node.args if len(node.args) == 1 and not node.keywords else (None,)
            if not isinstance(inner, ast.Call):
                fail("wrong-argument", "T.evaluate takes a call", node.span, help="write the call as a statement")
            self._evaluate(inner)
            return
        if path in HINTS:
            hint = HINTS[path]
            hint.keep(self.hints, bind(hint.signature, *self.arguments(node), node.span), self.warn)
            return
        if path == LOOP_BREAK.name:
            bind(LOOP_BREAK, *self.arguments(node), node.span)
            self.leave(ast.Break(node.span))
            return
        if path in ACTIONS:
            carried_out(ACTIONS[path], self, node)
            return
        if path == DP4A.name:
            self._dot(bind(DP4A, *self.arguments(node), node.span))
            return
        if path == UPDATE.name:
            self._contribute(bind(UPDATE, *self.arguments(node), node.span))
            return
        spelling = registry.spelling(path.removeprefix("T.")) if path and path.startswith("T.") else None
        if spelling is None:
            name = node.function.id if isinstance(node.function, ast.Name) else ""
            if f"T.{name}" in supported_names():
                title = f"`{name}` does nothing in a kernel"
                fail("no-effect", title, node.span, help=f"did you mean T.{name}?", fix=Fix(name, f"T.{name}"))
            self.value(node)
            fail("no-effect", "the value of this call is not used", node.span)
        if self.is_parallel and spelling.element is not None:
            self._elements(spelling, node)
            return
        arguments = self.arguments(node)
        if path == "T.copy" and self._copy_element(arguments, node.span):
            return
        if spelling.element is not None and self._elements_of_threads(spelling, arguments, node.span):
            return
        if self.is_parallel:
            fail(
                "tile-op-in-parallel",
                f"{path} works on whole tiles and cannot stand inside {self.nest_name}",
                node.span,
                help="move it out of the loop, or write the elements out",
            )
        pipelines.with_barrier(path or "", arguments)
        call = bind(spelling.signature, *arguments, node.span)
        self._check_tile(spelling.signature.name, arguments, node.span)
        op = spelling.check(call)
        for region in op.regions if not self.guards else ():
            if region.buffer.scope != "global":
                check_box(region, self.ranges)
        for found in ignored(call, spelling.signature):
            self.warn(found)
        if any(region.buffer.scope == "local" for region in op.regions):
            self._own_tile(op)
            return
        if isinstance(op, DeviceAssert):
            self.out.append(self.asserted(op))
            return
        op = teams.met(self, pipelines.on_stages(self, op, arguments))
        own = teams.by_threads(self, op)
        if own is None:
            self.together(node.span, f"{path}")
        for expr in expressions(op):
            self.alike(expr, node.span, f"where {path} is done")
            for part in walk_expr(expr):
                if isinstance(part, Load):
                    self.element(Access(part.buffer, part.indices), node.span, "read")
        self.out.append(own or op)

    def _assert(self, node: ast.Assert) -> None:
        """Decided here where it can be, else a T.device_assert."""
        condition = self.operand(node.condition)
        if isinstance(arithmetic.condition(condition), bool):
            check_assert(self, node)
            return
        if self.is_parallel:
            fail(
                "tile-op-in-parallel",
                f"an assertion about run-time values cannot stand inside {self.nest_name}",
                node.span,
                help="move it out of the loop",
            )
        message = () if node.message is None else (Argument(self.value(node.message), node.message.span),)
        given = DEVICE_ASSERT.spellings[0]
        op = given.check(bind(given.signature, [condition, *message], {}, node.span))
        assert isinstance(op, DeviceAssert)
        self.out.append(self.asserted(op))

    def _dot(self, call: Call) -> None:
        """T.dp4a, as the store that it makes."""
        store = dp4a(call)
        self.element(Access(store.buffer, store.indices), call.span, "written")
        for part in walk_expr(store.value):
            if isinstance(part, Load):
                self.element(Access(part.buffer, part.indices), call.span, "read")
        if self.is_parallel:
            self.out.append(store)
        elif self.is_own(store):
            self.each_thread((store,), call.span)
        else:
            self.out.append(Parallel((Var(self.unique.take("once")),), (1,), (store,), call.span))

    def _contribute(self, call: Call) -> None:
        """T.reducer_update, as an atomic store to the parts."""
        access, value = update(call)
        reducer = self.reducers.get(access.buffer.name)
        if reducer is None:
            call.refuse("target", "an element of what T.alloc_reducer made")
            return
        if not self.is_parallel:
            fail(
                "fragment-index",
                f"{call.name} stands outside T.Parallel",
                call.span,
                "its threads share the additions out",
                help="write `for i in T.Parallel(n):` around it",
            )
        self.element(access, call.span, "written")
        store = contribution(reducer, access, value, call)
        for part in walk_expr(store.value):
            if isinstance(part, Load):
                self.element(Access(part.buffer, part.indices), call.span, "read")
        self.out.append(store)

    def _copy_element(self, arguments: tuple[list[Argument], dict[str, Argument]], span: Span) -> bool:
        """`T.copy(A[i], B[j])` with neither side a box is a store of one element."""
        values = [a.value for a in arguments[0]]
        if arguments[1] or len(values) != 2:
            return False
        source, destination = values
        if not isinstance(source, Access) or not isinstance(destination, Access):
            return False
        if source.has_extent or destination.has_extent:
            return False
        self.element(source, arguments[0][0].span, "read")
        self.element(destination, arguments[0][1].span, "written")
        self.put(destination, Argument(as_expr(arguments[0][0]), span), span)
        return True

    def _elements(self, spelling: registry.Spelling, node: ast.Call) -> Value:
        """An operation on single elements; its value where it gives one."""
        stores, given = self._checked(spelling, self.arguments(node), node.span)
        self.out += stores
        return given

    def _checked(
        self, spelling: registry.Spelling, arguments: tuple[list[Argument], dict[str, Argument]], span: Span
    ) -> tuple[list[Store], Var | None]:
        given: Var | None = None
        stores: list[Store] = []
        for store in spelling.element(bind(spelling.signature, *arguments, span)):  # type: ignore[misc]
            if store.previous is not None:
                given = Var(self.unique.take("previous"), store.previous.dtype)
                store = replace(store, previous=given)
            self.element(Access(store.buffer, store.indices), span, "written")
            for part in (p for expr in (*store.indices, store.value) for p in walk_expr(expr)):
                if isinstance(part, Load):
                    self.element(Access(part.buffer, part.indices), span, "read")
            stores.append(store)
        return stores, given

    def _elements_of_threads(
        self, spelling: registry.Spelling, arguments: tuple[list[Argument], dict[str, Argument]], span: Span
    ) -> bool:
        """An operation on elements outside T.Parallel, where each thread has one of its own."""
        parts = [a.value for a in (*arguments[0], *arguments[1].values())]
        if not parts or not isinstance(parts[0], Access):
            return False
        if any(isinstance(v, Buffer) or (isinstance(v, Access) and v.has_extent) for v in parts):
            return False
        stores, given = self._checked(spelling, arguments, span)
        if not any(self.is_own(store) for store in stores):
            return False
        self._previous(stores, given, span)
        return True

    def _previous(self, stores: list[Store], given: Var | None, span: Span) -> Value:
        """What the threads get back, kept where the statements after this one find it."""
        if given is None:
            self.each_thread(tuple(stores), span)
            return None
        held = self.local("previous", (1,), given.dtype, span)
        self.each_thread((*stores, Store(held, (integer(0),), given, span)), span)
        return Load(held, (integer(0),))

    def _check_tile(self, name: str, arguments: tuple[list[Argument], dict[str, Argument]], span: Span) -> None:
        """Of an array of which every thread has its own only some operations make sense; of barriers, those of theirs
        do, which look for themselves."""
        for argument in (*arguments[0], *arguments[1].values()):
            value = argument.value.buffer if isinstance(argument.value, Access) else argument.value
            if isinstance(value, Buffer) and value.scope == "barrier" and name not in TAKING_BARRIERS:
                fail(
                    "wrong-scope",
                    f"{name} of a barrier",
                    argument.span,
                    f"{value.name} holds no values",
                    secondary=(Label(value.span, "from here"),),
                    help="write T.barrier_arrive or T.barrier_wait",
                )
            if isinstance(value, Buffer) and value.scope == "tmem" and name not in _ON_TENSOR_MEMORY:
                fail(
                    "wrong-scope",
                    f"{name} of a tile in tensor memory",
                    argument.span,
                    f"{value.name} is written by T.gemm or T.tcgen05_gemm, and read by T.copy to a fragment",
                    secondary=(Label(value.span, "from here"),),
                    help="T.copy it to a fragment first",
                )
            if isinstance(value, Buffer) and value.scope == "local" and name not in _OWN:
                fail(
                    "thread-dependent",
                    f"{name} works on tiles of the whole block",
                    argument.span,
                    f"{value.name} is an array of each thread",
                    secondary=(Label(value.span, "from here"),),
                    help="allocate it with T.alloc_fragment",
                )

    def _own_tile(self, op: TileOp) -> None:
        """T.fill or T.copy of an array of which every thread has its own: element by element."""
        *sources, destination = op.regions
        variables = tuple(Var(self.unique.take("element")) for _ in destination.shape)
        loads = tuple(Load(source.buffer, _element(source, variables)) for source in sources)
        store = op.element(_element(destination, variables), loads)
        self.each_thread((store,), op.span, variables, destination.shape)

    def effectful(self, path: str, node: ast.Call) -> Value:
        spelling = registry.spelling(path.removeprefix("T.")) if path.startswith("T.") else None
        if path in WARP_FUNCTIONS:
            return self.with_others(bind(WARP_FUNCTIONS[path].signature, *self.operands(node), node.span))
        if path in VALUES:
            return carried_out(VALUES[path], self, node)
        if path in VIEWS or path in AT_DATA:
            made, source = view(asked_view(path, *self.arguments(node), node.span), self.unique)
            self.views[made.name] = self.views.get(source.name, source)
            return made
        if path in PLACES:
            return self.place(bind(PLACES[path].signature, *self.operands(node), node.span))
        if spelling is not None and spelling.element is not None and not self.is_parallel:
            stores, given = self._checked(spelling, self.arguments(node), node.span)
            if given is not None and any(self.is_own(store) for store in stores):
                return self._previous(stores, given, node.span)
        if spelling is not None and spelling.element is not None and self.is_parallel:
            value = self._elements(spelling, node)
            if value is not None:
                return value
            if "return_prev" in (p.name for p in spelling.signature.parameters):
                fail("not-a-value", f"{path} gives no value", node.span, help="pass return_prev=True")
        return Evaluator.effectful(self, path, node)

    def called(
        self, function: Function, positional: list[Argument], keywords: dict[str, Argument], span: Span
    ) -> Value:
        """A macro's statements become the kernel's, where it is called."""
        if function.kind != "macro" or isinstance(function.node, ast.Lambda):
            return Evaluator.called(self, function, positional, keywords, span)
        positional, keywords = references(self, function.node, positional, keywords)
        with self.inside(function, positional, keywords, span):
            self.calls.append(span)
            try:
                return macros.returned(self, function.node.body)
            except CompileError as error:
                raise error.called_from(span) from None
            finally:
                self.calls.pop()

    # ---- control -----------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> None:
        condition = arithmetic.condition(self.operand(node.condition))
        if isinstance(condition, bool):
            self.block(node.then if condition else node.orelse)
            return
        assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
        self.branch(node, condition)

    def branch(self, node: ast.If, condition: Expr) -> None:
        """The `if`, where this is what its condition comes to."""
        if not self.is_parallel and self.is_varying(condition):
            if teams.divided(self, node, condition):
                return
            begin = len(self.out)
            holds = self.frozen(condition, node.condition.span)
            for mask, body in ((holds, node.then), (Unary("not", holds, BOOL), node.orelse)):
                with self.region("the branch", is_loop=False) as out, self.masked(mask):
                    self.block(body)
                self.out += out
            self.wholes.append((node.span, tuple(self.out[begin:])))
            return
        where = node.condition.span
        with self.guarded(), self.ledger.parting(where) as paths:
            with paths.path("holds", where), self.region("the branch", is_loop=False) as then:
                self.block(node.then)
            with paths.path("does not hold", where), self.region("the branch", is_loop=False) as orelse:
                self.block(node.orelse)
        if then or orelse:
            self.out.append(If(condition, tuple(then), tuple(orelse), node.span))
