"""Statements of a kernel body to tile IR: names resolved, static conditions decided, operations checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn, assert_never

from tilec.diag import Label, fail
from tilec.ir.tile import Bind, Buffer, Const, For, If, Load, Parallel, Stmt, Store, Var, integer, walk_expr
from tilec.ir.tile import Scope as MemoryScope
from tilec.ir.types import DType
from tilec.ops import arithmetic, registry
from tilec.ops.atomic import merged
from tilec.ops.signature import Argument, Parameter, Signature, as_dtype, as_expr, as_shape, bind
from tilec.ops.values import EXPR_TYPES, Access, Member, Value, describe
from tilec.passes.evaluate import ALLOCATIONS, Evaluator
from tilec.passes.loops import PARALLEL, SEQUENTIAL, header, manual_schedule, parallel_extents
from tilec.passes.scope import Scope, UniqueNames
from tilec.passes.usage import expressions
from tilec.source import Span
from tilec.syntax import ast

_ALLOCATIONS: dict[str, tuple[MemoryScope, Signature]] = {
    "T.alloc_shared": (
        "shared",
        Signature("T.alloc_shared", (Parameter("shape"), Parameter("dtype"), Parameter("scope", "shared.dyn"))),
    ),
    "T.alloc_fragment": (
        "fragment",
        Signature(
            "T.alloc_fragment",
            (Parameter("shape"), Parameter("dtype"), Parameter("scope", "local.fragment", supported=False)),
        ),
    ),
}


_VARIABLE = Signature("T.alloc_var", (Parameter("dtype"), Parameter("init", None), Parameter("scope", "local.var")))


@dataclass(slots=True)
class Body(Evaluator):
    """Elaborates the statements under T.Kernel into `out`. `mutable` are the buffers that T.alloc_var made: fragments
    of one element, of which every thread has a copy."""

    unique: UniqueNames = field(default_factory=UniqueNames)
    buffers: list[Buffer] = field(default_factory=list)
    mutable: set[str] = field(default_factory=set)
    out: list[Stmt] = field(default_factory=list)

    # ---- regions -----------------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, name: str, is_loop: bool) -> Iterator[list[Stmt]]:
        """Statements inside go to a list of their own, and names bound inside end with it."""
        outer_scope, outer_out = self.scope, self.out
        self.scope, self.out = Scope(outer_scope, name, is_loop), []
        try:
            yield self.out
            self.scope.close()
        finally:
            self.scope, self.out = outer_scope, outer_out

    def block(self, statements: tuple[ast.Stmt, ...]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.Stmt) -> None:
        match node:
            case ast.Evaluate(value=value):
                self._evaluate(value)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, node.span)
            case ast.AnnotatedAssign():
                self._annotated(node)
            case ast.AugmentedAssign(target=target, op=op, value=value):
                operands = self._place(target), self.operand(value)
                self._store(target, Argument(arithmetic.binary(op, *operands, node.span), node.span), node.span)
            case ast.If():
                self._if(node)
            case ast.For():
                self._for(node)
            case ast.Pass():
                return
            case ast.Assert():
                check_assert(self, node)
            case ast.With() | ast.Function() | ast.Import() | ast.Return():
                self._misplaced(node)
            case _:
                assert_never(node)

    def _misplaced(self, node: ast.With | ast.Function | ast.Import | ast.Return) -> NoReturn:
        match node:
            case ast.With(context=ast.Call() as call):
                path = self.callee(call)
                if path is not None and path.startswith("T.") and path != "T.Kernel":
                    self.refuse_name(path, call.function.span)
                fail("misplaced-statement", "T.Kernel stands once, directly in the function", node.context.span)
            case ast.With():
                fail("misplaced-statement", "this cannot be entered", node.context.span)
            case ast.Function():
                fail("misplaced-statement", "functions stand at the top of the file", node.name_span)
            case ast.Import():
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
        path = self.callee(node)
        spelling = registry.spelling(path.removeprefix("T.")) if path and path.startswith("T.") else None
        if spelling is None:
            self.value(node)
            fail("no-effect", "the value of this call is not used", node.span)
        if self.is_parallel and spelling.element is not None:
            self._elements(spelling, node)
            return
        if self.is_parallel:
            fail(
                "tile-op-in-parallel",
                f"{path} works on whole tiles and cannot stand inside T.Parallel",
                node.span,
                help="move it out of the loop, or write the elements out",
            )
        op = spelling.check(bind(spelling.signature, *self.arguments(node), node.span))
        for part in (p for expr in expressions(op) for p in walk_expr(expr)):
            if isinstance(part, Load):
                self.element(Access(part.buffer, part.indices), node.span, "read")
        self.out.append(op)

    def _elements(self, spelling: registry.Spelling, node: ast.Call) -> Value:
        """An operation on single elements; its value where it gives one."""
        given: Value = None
        for store in spelling.element(bind(spelling.signature, *self.arguments(node), node.span)):  # type: ignore[misc]
            if store.previous is not None:
                given = Var(self.unique.take("previous"), store.previous.dtype)
                store = replace(store, previous=given)
            self.element(Access(store.buffer, store.indices), node.span, "written")
            for part in (p for expr in (*store.indices, store.value) for p in walk_expr(expr)):
                if isinstance(part, Load):
                    self.element(Access(part.buffer, part.indices), node.span, "read")
            self.out.append(store)
        return given

    def effectful(self, path: str, node: ast.Call) -> Value:
        spelling = registry.spelling(path.removeprefix("T.")) if path.startswith("T.") else None
        if spelling is not None and spelling.element is not None and self.is_parallel:
            value = self._elements(spelling, node)
            if value is not None:
                return value
            if "return_prev" in (p.name for p in spelling.signature.parameters):
                fail("not-a-value", f"{path} gives no value", node.span, help="pass return_prev=True")
        return Evaluator.effectful(self, path, node)

    def _allocate(self, name: str, path: str, node: ast.Call) -> Buffer:
        if self.is_parallel:
            fail(
                "tile-op-in-parallel",
                f"{path} cannot stand inside T.Parallel",
                node.span,
                help="allocate before the loop",
            )
        if path == "T.alloc_var":
            return self._allocate_variable(name, node)
        scope, signature = _ALLOCATIONS[path]
        call = bind(signature, *self.arguments(node), node.span)
        if scope == "shared" and call["scope"].value not in ("shared", "shared.dyn"):
            call.refuse("scope", '"shared" or "shared.dyn"')
        shape = as_shape(call["shape"], f"the shape of {name}")
        buffer = Buffer(self.unique.take(name), shape, as_dtype(call["dtype"]), scope, node.span)
        self.buffers.append(buffer)
        return buffer

    # ---- variables: what T.alloc_var makes ----------------------------------------------------------

    def _allocate_variable(self, name: str, node: ast.Call) -> Buffer:
        positional, keywords = self.arguments(node)
        if len(positional) == 2 and isinstance(positional[1].value, str):
            keywords["scope"] = positional.pop()
        call = bind(_VARIABLE, positional, keywords, node.span)
        if call["scope"].value != "local.var":
            call.refuse("scope", '"local.var"')
        buffer = Buffer(self.unique.take(name), (1,), as_dtype(call["dtype"]), "fragment", node.span)
        self.buffers.append(buffer)
        self.mutable.add(buffer.name)
        if call["init"].value is not None:
            self._set(buffer, call["init"], node.span)
        return buffer

    def _set(self, buffer: Buffer, argument: Argument, span: Span) -> None:
        """Every thread sets its copy, all alike."""
        if self.is_parallel:
            fail(
                "wrong-scope",
                f"{buffer.name} is set inside T.Parallel",
                span,
                "each element of the loop would set it",
                secondary=(Label(buffer.span, "one for the whole block"),),
                help="use a fragment, and T.reduce_sum or its like",
            )
        value = as_expr(argument, buffer.dtype)
        each = Var(self.unique.take(f"{buffer.name}_copy"))
        self.out.append(Parallel((each,), (1,), (Store(buffer, (each,), value, span),), span))

    def _mutable(self, name: str) -> Buffer | None:
        binding = self.scope.find(name)
        value = None if binding is None or binding.ended is not None else binding.value
        return value if isinstance(value, Buffer) and value.name in self.mutable else None

    def variable(self, value: Value, span: Span) -> Value:
        """What it holds at this point of the program."""
        if not (isinstance(value, Buffer) and value.name in self.mutable):
            return value
        held = Load(value, (integer(0),))
        if self.is_parallel:
            return held
        now = Var(self.unique.take(f"{value.name}_now"), value.dtype)
        self.out.append(Bind(now, held, span))
        return now

    # ---- assignments -------------------------------------------------------------------------------------------------

    def _assign(self, targets: tuple[ast.Expr, ...], node: ast.Expr, span: Span) -> None:
        if isinstance(node, ast.Call) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            path = self.callee(node)
            if path in ALLOCATIONS:
                name = targets[0]
                self.scope.bind(name.id, self._allocate(name.id, path, node), name.span)
                return
        argument = self.operand(node)
        for target in targets:
            self._store(target, argument, span)

    def _store(self, target: ast.Expr, argument: Argument, span: Span) -> None:
        match target:
            case ast.Name(id=name) if (held := self._mutable(name)) is not None:
                self._set(held, argument, span)
            case ast.Name(id=name):
                self.scope.bind(name, self._bound(name, argument, None, span), target.span)
            case ast.Tuple(items=items) | ast.List(items=items):
                for item, value in zip(items, unpack(items, argument, target.span), strict=True):
                    self._store(item, Argument(value, argument.span), span)
            case ast.Subscript():
                self._store_element(target, argument, span)
            case _:
                fail("bad-target", "this cannot be assigned to", target.span)

    def _bound(self, name: str, argument: Argument, dtype: DType | None, span: Span) -> Value:
        """What a name stands for: Python values, buffers and constants as they are, anything else through a bind."""
        value = argument.value
        if dtype is None and not isinstance(value, (*EXPR_TYPES, Access)):
            return value
        expr = as_expr(argument, dtype)
        if isinstance(expr, Var | Const):
            return expr
        var = Var(self.unique.take(name), expr.dtype)
        self.out.append(Bind(var, expr, span))
        return var

    def _annotated(self, node: ast.AnnotatedAssign) -> None:
        if node.value is None:
            fail("missing-value", "a declaration needs a value", node.span, help="write `name: T.int32 = value`")
        annotation = self.argument(node.annotation)
        if isinstance(annotation.value, Member) and annotation.value.path in ("int", "float", "bool"):
            self._assign((node.target,), node.value, node.span)
            return
        dtype = as_dtype(annotation)
        if not isinstance(node.target, ast.Name):
            fail("bad-target", "only a name can be declared with a type", node.target.span)
        name = node.target.id
        self.scope.bind(name, self._bound(name, self.operand(node.value), dtype, node.span), node.target.span)

    def _place(self, target: ast.Expr) -> Argument:
        """What an augmented assignment reads."""
        if isinstance(target, ast.Subscript):
            self._check_place(target)
        elif not isinstance(target, ast.Name):
            fail("bad-target", "this cannot be assigned to", target.span)
        return self.operand(target)

    def _store_element(self, target: ast.Subscript, argument: Argument, span: Span) -> None:
        access = self._check_place(target)
        self.element(access, target.span, "written")
        indices = tuple(i for i in access.indices if isinstance(i, EXPR_TYPES))
        self.out.append(Store(access.buffer, indices, as_expr(argument, access.buffer.dtype), span))

    def _check_place(self, target: ast.Subscript) -> Access:
        buffer = self.value(target.value)
        if not isinstance(buffer, Buffer):
            fail("bad-target", "this cannot be assigned to", target.span, f"this is {describe(buffer)}")
        access = self.access(buffer, target)
        if access.has_extent:
            fail("bad-target", "a slice cannot be assigned to", target.span, help="use T.copy or T.fill")
        if not self.is_parallel:
            fail(
                "store-outside-parallel",
                f"an element of {buffer.name} is written outside T.Parallel",
                target.span,
                "every thread of the block would write it",
                help="write `for i in T.Parallel(n):` around it, or use T.copy or T.fill",
            )
        return access

    # ---- control -----------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> None:
        condition = arithmetic.condition(self.operand(node.condition))
        if isinstance(condition, bool):
            self.block(node.then if condition else node.orelse)
            return
        assert isinstance(condition, EXPR_TYPES), "a condition is a bool or an expression"
        with self.guarded():
            with self.region("the branch", is_loop=False) as then:
                self.block(node.then)
            with self.region("the branch", is_loop=False) as orelse:
                self.block(node.orelse)
        if then or orelse:
            self.out.append(If(condition, tuple(then), tuple(orelse), node.span))

    def _for(self, node: ast.For) -> None:
        if not isinstance(node.iterable, ast.Call):
            value = self.value(node.iterable)
            fail(
                "not-a-loop",
                "a loop runs over T.serial, T.Parallel, T.Pipelined, T.unroll or range",
                node.iterable.span,
                f"this is {describe(value)}",
            )
        path = self.callee(node.iterable)
        if path == "T.Parallel":
            self._parallel(node, node.iterable)
        elif path in SEQUENTIAL:
            self._sequential(node, node.iterable, path)
        else:
            value = self.value(node.iterable)
            fail(
                "not-a-loop",
                "a loop runs over T.serial, T.Parallel, T.Pipelined, T.unroll or range",
                node.iterable.span,
                f"this is {describe(value)}",
            )

    def _sequential(self, node: ast.For, iterable: ast.Call, path: str) -> None:
        kind, signature = SEQUENTIAL[path]
        if self.is_parallel:
            fail(
                "loop-in-parallel",
                f"{path} cannot stand inside T.Parallel",
                iterable.span,
                help="put the loop outside and T.Parallel inside, or use T.reduce_sum and its like",
            )
        call = bind(signature, *self.arguments(iterable), iterable.span)
        bounds = header(call)
        (name,) = self.target_names(node.target, 1)
        var = Var(self.unique.take(name.id))
        with self.region("the loop", is_loop=True) as out:
            self.scope.bind(name.id, var, name.span)
            if bounds.values is not None:
                self.ranges[var.name] = bounds.values
            self.block(node.body)
        body = tuple(out)
        loop = For(kind, var, bounds.start, bounds.stop, bounds.step, body, span=node.span)
        if kind == "pipelined":
            manual = manual_schedule(call, body)
            loop = For(
                kind, var, bounds.start, bounds.stop, bounds.step, body,
                manual.num_stages, manual.stage, manual.order, node.span,
            )  # fmt: skip
        self.out.append(loop)

    def _parallel(self, node: ast.For, iterable: ast.Call) -> None:
        if self.is_parallel:
            fail(
                "loop-in-parallel",
                "T.Parallel inside T.Parallel",
                iterable.span,
                help="write one loop: `for i, j in T.Parallel(m, n):`",
            )
        names, extents, inner = self._parallel_nest(node, iterable)
        variables = tuple(Var(self.unique.take(name.id)) for name in names)
        with self.region("the loop", is_loop=True) as out:
            for name, var, extent in zip(names, variables, extents, strict=True):
                self.scope.bind(name.id, var, name.span)
                self.ranges[var.name] = (0, extent - 1)
            self.is_parallel = True
            try:
                self.block(inner)
            finally:
                self.is_parallel = False
        if out:
            extent, body = merged(variables, extents, tuple(out))
            self.out.append(Parallel(variables, (*extents[:-1], extent), body, node.span))

    def _parallel_nest(
        self, node: ast.For, iterable: ast.Call
    ) -> tuple[tuple[ast.Name, ...], tuple[int, ...], tuple[ast.Stmt, ...]]:
        """Names, extents and innermost body; loops directly inside each other are one nest."""
        call = bind(PARALLEL, *self.arguments(iterable), iterable.span)
        extents = parallel_extents(call)
        names = self.target_names(node.target, len(extents))
        only = node.body[0]
        if len(node.body) > 1 or not isinstance(only, ast.For) or not isinstance(only.iterable, ast.Call):
            return names, extents, node.body
        if self.callee(only.iterable) != "T.Parallel":
            return names, extents, node.body
        # The inner extents may not depend on the outer variables, so they are evaluated out here.
        more = self._parallel_nest(only, only.iterable)
        return names + more[0], extents + more[1], more[2]

    def target_names(self, target: ast.Expr, count: int) -> tuple[ast.Name, ...]:
        items = target.items if isinstance(target, ast.Tuple | ast.List) else (target,)
        names = tuple(i for i in items if isinstance(i, ast.Name))
        if len(names) < len(items):
            fail("bad-target", "a loop variable is a plain name", target.span)
        if len(names) != count:
            fail(
                "wrong-variable-count",
                f"{len(names)} variable{'s' * (len(names) != 1)} for {count} extent{'s' * (count != 1)}",
                target.span,
            )
        _no_duplicates(names)
        return names


def _no_duplicates(names: tuple[ast.Name, ...]) -> None:
    seen: dict[str, Span] = {}
    for name in names:
        if name.id in seen and name.id != "_":
            first = Label(seen[name.id], "first here")
            fail("duplicate-definition", f"`{name.id}` is bound twice", name.span, secondary=(first,))
        seen[name.id] = name.span


def unpack(items: tuple[ast.Expr, ...], argument: Argument, span: Span) -> tuple[Value, ...]:
    """The values of `a, b = value`."""
    value = argument.value
    if not isinstance(value, tuple):
        fail(
            "bad-target", f"one value for {len(items)} names", span, secondary=(Label(argument.span, describe(value)),)
        )
    if len(value) != len(items):
        fail("bad-target", f"{len(value)} values for {len(items)} names", span)
    return value


def check_assert(evaluator: Evaluator, node: ast.Assert) -> None:
    """`assert condition, message` on values known at compile time."""
    condition = arithmetic.condition(evaluator.argument(node.condition))
    if not isinstance(condition, bool):
        fail("runtime-argument", "an assertion must be decidable at compile time", node.condition.span)
    if not condition:
        message = None if node.message is None else evaluator.value(node.message)
        note = (str(message),) if isinstance(message, str) else ()
        fail("assertion-failed", "the assertion does not hold", node.condition.span, notes=note)
