"""Evaluates expressions of the syntax tree: to Python values where all is known, to typed expressions elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, assert_never

from tilec.frontend.sema import layout_maps, pipelines, tile_scheduler
from tilec.frontend.sema.bounds import check_element
from tilec.frontend.sema.budget import Budget
from tilec.frontend.sema.functions import bind_target, bound, is_eager, run_function
from tilec.frontend.sema.indices import as_index
from tilec.frontend.sema.layout_maps import FRAGMENT, LAYOUT, fragment_layout, index_map
from tilec.frontend.sema.scope import Scope
from tilec.frontend.sema.vocabulary import (
    DIALECT,
    refuse_call,
)
from tilec.frontend.syntax import ast
from tilec.ir.affine import affine
from tilec.ir.tile import Binary, Buffer, Expr, LoopLayout, extent_expr, integer
from tilec.ir.types import BOOL, BY_NAME, INT32, DType
from tilec.ops import arithmetic, python
from tilec.ops.scalar import FUNCTIONS, convert
from tilec.ops.signature import Argument, Parameter, Signature, as_expr, bind, vector_type
from tilec.ops.values import (
    SWIZZLES,
    Access,
    Dictionary,
    Entry,
    Function,
    Handle,
    Member,
    Method,
    Namespace,
    Pipeline,
    Policy,
    Range,
    Reference,
    Stage,
    StageTile,
    Swizzle,
    TileScheduler,
    Value,
    VectorType,
    WarpPolicy,
    describe,
    show_shape,
)
from tilec.ops.vectors import converted
from tilec.ops.views import DATA
from tilec.support.diagnostics import CompileError, Label, Mistakes, fail
from tilec.support.source import Span

_SWIZZLED = Signature(
    "make_swizzled_layout", (Parameter("buffer"), Parameter("k_major", True), Parameter("allow_pad", True))
)


@dataclass(slots=True)
class Evaluator:
    """Evaluates in a scope. `ranges` are the values of loop variables; inside `Parallel`, fragments may be indexed.
    `mutable` are the buffers that T.alloc_var made: fragments of one element, of which every thread has a copy.
    `is_held`: what variables hold is read before the statement, not in it. `mistakes` are those found on the way;
    `multiprocessors` says how many the GPU has; `usual_cluster` is that of kernels that do not say."""

    scope: Scope
    is_parallel: bool = False
    guards: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    mutable: set[str] = field(default_factory=set)
    is_held: bool = False
    mistakes: Mistakes = field(default_factory=Mistakes)
    multiprocessors: Callable[[], int] = lambda: 1
    usual_cluster: tuple[int, int, int] = (1, 1, 1)

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

    def argument(self, node: ast.Expr) -> Argument:
        """A value as it is: an indexed buffer may still become a box of a copy."""
        return Argument(self.value(node), node.span)

    def operand(self, node: ast.Expr) -> Argument:
        """A value to compute with: an indexed buffer is one of its elements."""
        return self._read(self.argument(node))

    def _read(self, argument: Argument) -> Argument:
        access = argument.value
        if isinstance(access, Access) and access.is_vector:
            return Argument(self.vector(access, argument.span), argument.span)
        if not isinstance(access, Access) or access.has_extent:
            return argument
        self.element(access, argument.span, "read")
        if access.buffer.scope == "barrier":
            fail("not-a-scalar", "a barrier has no value", argument.span, help="write T.barrier_wait(barrier, parity)")
        return Argument(as_expr(argument), argument.span)

    def vector(self, access: Access, span: Span) -> Value:
        """An element of a tensor of vectors; only statements have tensors."""
        return access

    def value(self, node: ast.Expr) -> Value:
        """What an expression means."""
        self.budget.expression(node.span)
        match node:
            case ast.Number(value=number):
                return number
            case ast.String(value=text):
                return text
            case ast.Constant(name=name):
                return self._constant(name, node.span)
            case ast.Name(id=name):
                return self.variable(self.scope.read(name, node.span), node.span)
            case ast.JoinedString(parts=parts):
                return python.joined([self._text(p) for p in parts], node.span)
            case ast.Tuple(items=items) | ast.List(items=items):
                return self._looked_at(tuple(pipelines.kept(a) for a in self._listed(items)), node.span)
            case ast.Comprehension():
                return self._looked_at(self._comprehension(node), node.span)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._grown(self._call(node), node.span)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Unary():
                return self._grown(self._unary(node), node.span)
            case ast.Binary(op=op, left=left, right=right):
                made = arithmetic.binary(op, self.operand(left), self.operand(right), node.span)
                return self._looked_at(self._grown(made, node.span), node.span)
            case ast.Compare():
                return self._grown(self._compare(node), node.span)
            case ast.Boolean():
                return self._grown(self._boolean(node), node.span)
            case ast.Conditional():
                return self._grown(self._conditional(node), node.span)
            case ast.Dict():
                return self._looked_at(self._dict(node), node.span)
            case ast.Lambda():
                return Function(node, self.scope)
            case _:
                assert_never(node)

    def _grown(self, value: Value, span: Span) -> Value:
        """What has just been made of other values."""
        self.budget.grow(value, span)
        return value

    def _looked_at(self, value: Value, span: Span) -> Value:
        """What has just been made, which had a look at all of it."""
        self.budget.look(value, span)
        return value

    def _dict(self, node: ast.Dict) -> Value:
        pairs = ((key, value, key.span.to(value.span)) for key, value in node.items)
        entries = ((self.value(key), pipelines.kept(self.argument(value)), span) for key, value, span in pairs)
        return Dictionary(tuple(Entry(*entry) for entry in entries))

    def _text(self, part: ast.String | ast.Formatted) -> str:
        """One part of an f-string."""
        if isinstance(part, ast.String):
            return part.value
        return python.formatted(self.operand(part.value), part.conversion, part.spec)

    def _listed(self, nodes: tuple[ast.Expr | ast.Starred, ...]) -> list[Argument]:
        """Values in a row; `*value` gives its items."""
        values = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                given = self.argument(node.value)
                self.budget.look(given.value, given.span)
                values += [Argument(v, node.span) for v in python.items(given.value, given.span)]
            else:
                values.append(self.argument(node))
        return values

    def _comprehension(self, node: ast.Comprehension) -> Value:
        self.budget.comprehension(node.span)
        outer = self.scope
        self.scope = Scope(outer, "the comprehension", is_function=True)
        try:
            entries = list(self._runs(node, node.clauses))
        finally:
            self.scope = outer
        return python.dictionary(entries) if node.kind == "dict" else tuple(e.value for e in entries)

    def _runs(self, node: ast.Comprehension, clauses: tuple[ast.Clause, ...]) -> Iterator[Entry]:
        """What the clauses run over, as entries; those of a list have no key."""
        if not clauses:
            key = pipelines.kept(self.argument(node.element))
            yield Entry(None, key, node.span) if node.value is None else Entry(key, self.value(node.value), node.span)
            return
        first, *rest = clauses
        given = self.operand(first.iterable)
        for item in python.items(given.value, given.span):
            self.budget.step(first.span)
            bind_target(self.scope, first.target, Argument(item, given.span))
            if all(self.decided(c) for c in first.conditions):
                yield from self._runs(node, tuple(rest))

    def decided(self, node: ast.Expr) -> bool:
        """A condition that is known at compile time."""
        condition = arithmetic.condition(self.operand(node))
        if not isinstance(condition, bool):
            fail(
                "not-a-constant",
                "this condition must be decidable at compile time",
                node.span,
                "known only at run time",
                help="write T.if_then_else for a value that depends on it",
            )
        return condition

    def _constant(self, name: str, span: Span) -> Value:
        if name == "...":
            fail("unsupported-syntax", "`...` is no value", span)
        return {"True": True, "False": False, "None": None}[name]

    # ---- names with dots ---------------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute) -> Value:
        owner = self.value(node.value)
        if isinstance(owner, Member):
            return self._member(owner.path, node)
        if isinstance(owner, Namespace):
            value: Value = owner.scope.attribute(owner.path, node.name, node.span)
            return value
        if isinstance(owner, TileScheduler):
            return tile_scheduler.attribute(owner, node)
        if isinstance(owner, Pipeline | Handle | Stage | StageTile):
            return pipelines.attribute(self, owner, node)
        if node.name in python.methods(owner):
            return Method(owner, node.name)
        if isinstance(owner, Function):
            fail("foreign-call", f"{describe(owner)} has no `{node.name}`", node.span, "what a program does with it")
        if isinstance(owner, Buffer) and node.name in ("pipeline", DATA):
            return Method(owner, node.name)
        if isinstance(owner, LoopLayout) and node.name in layout_maps.METHODS:
            return Method(owner, node.name)
        if not isinstance(owner, Buffer) or node.name not in ("shape", "dtype"):
            fail(
                "unknown-attribute",
                f"there is no attribute `{node.name}` here",
                node.span,
                f"of {describe(owner)}",
                help=f"write {owner.name}.shape[0] or {owner.name}.dtype" if isinstance(owner, Buffer) else None,
            )
        if owner.lanes > 1:
            return owner.extents[:-1] if node.name == "shape" else VectorType(owner.dtype, owner.lanes)
        return owner.extents if node.name == "shape" else owner.dtype

    def _member(self, owner: str, node: ast.Attribute) -> Value:
        path = f"{owner}.{node.name}"
        if owner == "tilelang" and node.name == "language":
            return Member("T")
        if path in python.MATH_CONSTANTS:
            return float(python.MATH_CONSTANTS[path])
        if owner == "T" and node.name in BY_NAME:
            return BY_NAME[node.name]
        if owner == "T" and (vector := vector_type(node.name)) is not None:
            return vector
        if path == DIALECT:
            return "cuda"
        if owner == "T.GemmWarpPolicy":
            if node.name not in Policy:
                fail(
                    "unknown-attribute",
                    f"there is no warp policy `{node.name}`",
                    node.span,
                    f"known: {', '.join(Policy)}",
                )
            return WarpPolicy(Policy[node.name])
        return Member(path)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def callee(self, node: ast.Call) -> str | None:
        """The dotted name of what is called, where it is a name of the language."""
        function = self.value(node.function)
        return function.path if isinstance(function, Member) else None

    def _call(self, node: ast.Call) -> Value:
        function = self.value(node.function)
        if isinstance(function, DType):
            if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
                fail("wrong-argument", f"T.{function.name}(x) takes one value", node.span)
            return convert(self.operand(node.args[0]), function)
        if isinstance(function, VectorType):
            if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
                fail("wrong-argument", f"T.{function}(x) takes one value", node.span)
            return converted(self.operand(node.args[0]), function)
        if isinstance(function, Method) and isinstance(function.owner, TileScheduler):
            return tile_scheduler.called(self, function, node)
        if isinstance(function, Method) and isinstance(function.owner, Pipeline | Handle | Stage):
            return pipelines.called(self, function, node)
        if isinstance(function, Method) and isinstance(function.owner, LoopLayout):
            return layout_maps.called(self, function, node)
        if isinstance(function, Method) and isinstance(function.owner, Buffer):
            if function.name == DATA:
                fail("not-callable", f"`.{DATA}` is no function", node.function.span)
            fail("not-a-value", f".{function.name}() gives no value", node.span, help="write it as a statement")
        if isinstance(function, Method):
            operands = self._all_looked_at(node)
            self.budget.look(function.owner, node.span)
            return self._looked_at(python.method(function.owner, function.name, *operands, node.span), node.span)
        if isinstance(function, Function):
            return self.called(function, *self.arguments(node), node.span)
        if not isinstance(function, Member):
            fail("not-callable", "this cannot be called", node.function.span, f"this is {describe(function)}")
        path = function.path
        if path == "T.Fragment":
            return fragment_layout(self, bind(FRAGMENT, *self.arguments(node), node.span))
        if path == "T.Layout":
            return index_map(self, bind(LAYOUT, *self.arguments(node), node.span))
        if (made := path.rpartition(".")[2]) in SWIZZLES:
            bind(_SWIZZLED, *self.arguments(node), node.span)
            return Swizzle(SWIZZLES[made])
        if path == tile_scheduler.SCHEDULER.name:
            return tile_scheduler.tile_scheduler(*self.operands(node), node.span, self.multiprocessors())
        if path.endswith(".get_num_sms"):
            return self.multiprocessors()
        if path in FUNCTIONS:
            return self._function(path, node)
        if path in python.NAMES:
            if path in python.IMMEDIATE:
                return python.call(path, *self.operands(node), node.span)
            return self._looked_at(python.call(path, *self._all_looked_at(node), node.span), node.span)
        return self.effectful(path, node)

    def _all_looked_at(self, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
        """The operands of a function that looks at all that is in them."""
        positional, keywords = self.operands(node)
        for argument in (*positional, *keywords.values()):
            self.budget.look(argument.value, argument.span)
        return positional, keywords

    def variable(self, value: Value, span: Span) -> Value:
        """What a name stands for; one made by T.alloc_var, for what it holds now."""
        return value.access if isinstance(value, Reference) else value

    def effectful(self, path: str, node: ast.Call) -> Value:
        """The value of a call that also does something; only statements have a place for it."""
        refuse_call(path, node)
        return None

    def called(
        self, function: Function, positional: list[Argument], keywords: dict[str, Argument], span: Span
    ) -> Value:
        """What a function of the file gives for these arguments."""
        if isinstance(function.node, ast.Function) and is_eager(function.node):
            fail("foreign-call", f"{function.name} is a kernel", span, "a program launches it")
        if function.kind == "kernel":
            fail("not-callable", f"{function.name} is a kernel", span, help="a kernel is launched, not called")
        if function.kind == "macro":
            fail(
                "not-a-value",
                f"{function.name} is a macro",
                span,
                help="a macro stands in a kernel, as a statement of its own or on the right of `=`",
            )
        with self.inside(function, positional, keywords, span):
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body)
            try:
                return run_function(self, function.node)
            except CompileError as error:
                raise error.called_from(span) from None

    @contextmanager
    def inside(
        self, function: Function, positional: list[Argument], keywords: dict[str, Argument], span: Span
    ) -> Iterator[None]:
        """Where the parameters of a function have these values."""
        outer = self.scope
        scope = bound(self, function, positional, keywords, span)
        with self.budget.call(span):
            self.scope = scope
            try:
                yield
            finally:
                self.scope = outer

    def _function(self, path: str, node: ast.Call) -> Value:
        function = FUNCTIONS[path]
        if not function.is_guarded:
            return function.build(bind(function.signature, *self.operands(node), node.span))
        with self.guarded():
            arguments = self.operands(node)
        return function.build(bind(function.signature, *arguments, node.span))

    def arguments(self, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
        """Positional and keyword arguments; a keyword's text counts with its name."""
        return self._listed(node.args), self._keywords(node)

    def _keywords(self, node: ast.Call) -> dict[str, Argument]:
        given: dict[str, Argument] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.name != "**":
                given[keyword.name] = Argument(value, keyword.span)
                continue
            if not isinstance(value, Dictionary):
                fail("wrong-argument", "`**` needs a dictionary", keyword.span, f"this is {describe(value)}")
            given |= {str(e.key): Argument(e.value, keyword.span) for e in value.entries}
        return given

    def operands(self, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
        """Arguments to compute with."""
        keywords = self._keywords(node)
        return [self._read(a) for a in self._listed(node.args)], {k: self._read(a) for k, a in keywords.items()}

    # ---- operators ---------------------------------------------------------------------------------------------------

    def _unary(self, node: ast.Unary) -> Value:
        operand = self.operand(node.operand)
        match node.op:
            case "-":
                return arithmetic.negate(operand)
            case "+":
                return operand.value if isinstance(operand.value, int | float) else as_expr(operand)
            case "~":
                return arithmetic.invert(operand)
            case "not":
                return arithmetic.logical_not(operand)
            case _:
                assert_never(node.op)

    def _compare(self, node: ast.Compare) -> Value:
        result: Value = True
        left = self.operand(node.first)
        for op, right_node in zip(node.ops, node.rest, strict=True):
            right = self.operand(right_node)
            link = self._link(op, left, right)
            result = arithmetic.logical("and", result, link)
            left = right
        return result

    def _link(self, op: ast.CompareOp, left: Argument, right: Argument) -> Value:
        """One comparison of a chain."""
        for side in (left, right):
            if not isinstance(side.value, range):
                self.budget.look(side.value, side.span)
        if op == "in" or op == "not in":
            return python.contains(right, left) == (op == "in")
        if op == "is" or op == "is not":
            same = type(left.value) is type(right.value) and left.value == right.value
            return same == (op == "is")
        return arithmetic.binary(op, left, right, left.span.to(right.span))

    def _boolean(self, node: ast.Boolean) -> Value:
        left = arithmetic.condition(self.operand(node.left))
        if isinstance(left, bool) and left == (node.op == "or"):
            # As in Python, the other side is not even looked at.
            return left
        with self.guarded():
            right = arithmetic.condition(self.operand(node.right))
        return arithmetic.logical(node.op, left, right)

    def _conditional(self, node: ast.Conditional) -> Value:
        test = self.operand(node.condition)
        decided = arithmetic.condition(test)
        if isinstance(decided, bool):
            return self.value(node.then if decided else node.orelse)
        with self.guarded():
            then, orelse = self.operand(node.then), self.operand(node.orelse)
        return arithmetic.select(test, then, orelse, node.span)

    # ---- subscripts --------------------------------------------------------------------------------------------------

    def _subscript(self, node: ast.Subscript) -> Value:
        owner = self.value(node.value)
        if isinstance(owner, StageTile):
            return pipelines.part(self, owner, node)
        if isinstance(owner, Stage):
            owner = pipelines.tiles(self, owner, node.span)
        if isinstance(owner, tuple | str | range | Dictionary):
            return self._item(owner, node)
        if not isinstance(owner, Buffer):
            fail("not-a-buffer", "this cannot be indexed", node.value.span, f"this is {describe(owner)}")
        return self.access(owner, node)

    def _item(self, owner: tuple[Value, ...] | str | range | Dictionary, node: ast.Subscript) -> Value:
        if len(node.indices) != 1:
            fail("wrong-argument", "a tuple is indexed by one number known at compile time", node.span)
        (index,) = node.indices
        if not isinstance(index, ast.Slice):
            return python.subscript(owner, self.value(index), node.span)
        lower, upper, step = (None if b is None else self.value(b) for b in (index.lower, index.upper, index.step))
        return python.part(owner, (lower, upper, step), node.span)

    def access(self, buffer: Buffer, node: ast.Subscript) -> Access:
        """`buffer[...]`, with as many indices as dimensions."""
        indices = node.indices
        if len(indices) == 1 and isinstance(indices[0], ast.Tuple):
            indices = tuple(i for i in indices[0].items if not isinstance(i, ast.Starred))
        rank = len(buffer.extents) - (buffer.lanes > 1)
        if len(indices) != rank:
            wanted = f"{buffer.name} has shape {show_shape(buffer.extents)}"
            count = f"{len(indices)} {'index' if len(indices) == 1 else 'indices'}"
            fail(
                "wrong-rank",
                f"{count} for {rank} dimension{'s' * (rank != 1)}",
                node.span,
                wanted,
                secondary=(Label(buffer.span, "from here"),),
            )
        whole = (Range(integer(0), buffer.lanes),) if buffer.lanes > 1 else ()
        return Access(buffer, (*(self._index(i, buffer, dim) for dim, i in enumerate(indices)), *whole))

    def element(self, access: Access, span: Span, what: Literal["read", "written"]) -> None:
        """Check that one element may be touched here."""
        buffer = access.buffer
        # Every thread has a copy of a single element.
        is_copied = buffer.name in self.mutable or (what == "read" and buffer.extents == (1,))
        if buffer.scope == "fragment" and not self.is_parallel and not is_copied:
            fail(
                "fragment-index",
                f"an element of {buffer.name} is {what} outside T.Parallel",
                span,
                "a fragment is spread over the threads",
                help="write `for i in T.Parallel(n):` around it",
            )
        if buffer.scope == "tmem":
            fail(
                "wrong-scope",
                f"an element of {buffer.name} is {what}, which lies in tensor memory",
                span,
                secondary=(Label(buffer.span, "allocated here"),),
                help="T.copy it to a fragment first",
            )
        if buffer.scope == "global" or self.guards:
            return
        check_element(buffer, access.indices, span, self.ranges)

    def _index(self, node: ast.Expr | ast.Slice, buffer: Buffer, dim: int) -> Expr | Range:
        if not isinstance(node, ast.Slice):
            return self.index(node)
        if node.step is not None and self.value(node.step) not in (None, 1):
            fail("unsupported-syntax", "slices have step 1", node.step.span)
        start = integer(0) if node.lower is None else self.index(node.lower)
        stop = extent_expr(buffer.extents[dim]) if node.upper is None else self.index(node.upper)
        form = affine(Binary("sub", stop, start, INT32))
        if form.terms:
            fail("dynamic-shape", "the extent of a slice must be known at compile time", node.span)
        if form.constant <= 0:
            fail("wrong-shape", "the slice is empty", node.span, f"its extent is {form.constant}")
        return Range(start, form.constant)

    def index(self, node: ast.Expr) -> Expr:
        """An integer that addresses something."""
        expr = as_expr(self.operand(node))
        if expr.dtype.is_float or expr.dtype == BOOL:
            fail("wrong-dtype", "an index must be an integer", node.span, f"this is {expr.dtype}")
        return as_index(expr, self.ranges)
