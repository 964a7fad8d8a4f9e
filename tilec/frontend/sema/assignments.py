"""What a name or an element of a tile gets: assignments, and the variables that T.alloc_var makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.frontend.sema import pipelines
from tilec.frontend.sema.allocations import allocate
from tilec.frontend.sema.evaluate import Evaluator
from tilec.frontend.sema.functions import unpack
from tilec.frontend.sema.hints import Hints
from tilec.frontend.sema.listed_statements import Named
from tilec.frontend.sema.loop_statements import Loops
from tilec.frontend.sema.vectors import kept, loaded, stored
from tilec.frontend.sema.vocabulary import ALLOCATIONS
from tilec.frontend.syntax import ast
from tilec.ir.tile import (
    Bind,
    Buffer,
    Const,
    Load,
    Parallel,
    Store,
    Var,
    integer,
)
from tilec.ir.types import DType
from tilec.ops.reducer import Reducer
from tilec.ops.signature import (
    Argument,
    as_dtype,
    as_expr,
)
from tilec.ops.values import (
    EXPR_TYPES,
    Access,
    Lanes,
    Member,
    Reference,
    Stage,
    StageTile,
    Value,
    describe,
)
from tilec.support.diagnostics import Label, fail, warning
from tilec.support.source import Span


@dataclass(slots=True)
class Assignments(Loops):
    """`hints` is what annotations said of tiles, and `reducers` are those that add up what threads contribute."""

    hints: Hints = field(default_factory=Hints)
    reducers: dict[str, Reducer] = field(default_factory=dict)

    # ---- variables: what T.alloc_var makes ----------------------------------------------------------

    def set_variable(self, buffer: Buffer, argument: Argument, span: Span) -> None:
        """Every thread sets its copy: all alike, or each its own."""
        value = as_expr(argument, buffer.dtype)
        if buffer.scope == "local":
            self.put(Access(buffer, (integer(0),)), Argument(value, argument.span), span)
            return
        if self.masks or self.is_varying(value):
            self.differing.add(buffer.span)
            return
        if self.is_parallel:
            fail(
                "wrong-scope",
                f"{buffer.name} is set inside {self.nest_name}",
                span,
                "each element of the loop would set it",
                secondary=(Label(buffer.span, "one for the whole block"),),
                help="use a fragment, and T.reduce_sum or its like",
            )
        each = Var(self.unique.take(f"{buffer.name}_copy"))
        self.out.append(Parallel((each,), (1,), (Store(buffer, (each,), value, span),), span))

    def _mutable(self, name: str) -> Buffer | None:
        binding = self.scope.find(name)
        value = None if binding is None or binding.ended is not None else binding.value
        return value if isinstance(value, Buffer) and value.name in self.mutable else None

    def _referred(self, name: str) -> Access | None:
        binding = self.scope.find(name)
        value = None if binding is None or binding.ended is not None else binding.value
        return value.access if isinstance(value, Reference) else None

    def variable(self, value: Value, span: Span) -> Value:
        """What it holds at this point of the program: read where the statement runs, or before it, `held`."""
        pipelines.read(self, value, span)
        if not (isinstance(value, Buffer) and value.name in self.mutable):
            return Evaluator.variable(self, value, span)
        held = Load(value, (integer(0),))
        if self.is_parallel or not self.is_held:
            return held
        if value.scope == "local":
            return self.frozen(held, span)
        now = Var(self.unique.take(f"{value.name}_now"), value.dtype)
        self.out.append(Bind(now, held, span))
        return now

    # ---- assignments -------------------------------------------------------------------------------------------------

    def assign(self, targets: tuple[ast.Expr, ...], node: ast.Expr, span: Span) -> None:
        if isinstance(node, ast.Call) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            path = self.callee(node)
            if path in ALLOCATIONS:
                name = targets[0]
                self.scope.bind(name.id, allocate(self, name.id, path, node), name.span)
                return
        # Of `a, b = b, a` and `a = b = a + 1` all is read before anything is stored.
        with self.held(len(targets) > 1 or isinstance(node, ast.Tuple | ast.List)):
            argument = self.operand(node)
        pipelines.named(argument.value, targets, node)
        for target in targets:
            self.store(target, argument, span)

    def store(self, target: ast.Expr, argument: Argument, span: Span) -> None:
        match target:
            case ast.Name(id=name) if (held := self._mutable(name)) is not None:
                self.set_variable(held, argument, span)
            case ast.Name(id=name) if (place := self._referred(name)) is not None:
                self.element(place, target.span, "written")
                self.put(place, argument, span)
            case ast.Name(id=name):
                self._warn_of_name(name, argument, target.span)
                self.scope.bind(name, self._bound(name, argument, None, span), target.span)
            case ast.Tuple(items=items) | ast.List(items=items):
                if isinstance(argument.value, Stage):
                    argument = Argument(pipelines.tiles(self, argument.value, argument.span), argument.span)
                for item, value in zip(items, unpack(items, argument, target.span), strict=True):
                    if isinstance(item, ast.Starred):
                        fail("bad-target", "this cannot be assigned to", item.span)
                    self.store(item, Argument(value, argument.span), span)
            case ast.Subscript():
                self._store_element(target, argument, span)
            case _:
                fail("bad-target", "this cannot be assigned to", target.span)

    def _warn_of_name(self, name: str, argument: Argument, span: Span) -> None:
        """`C = tile`, where C is a tensor: whoever writes that expects a copy."""
        known, given = self.scope.find(name), argument.value
        tensor = known.value if known is not None and known.ended is None else None
        if isinstance(tensor, Buffer) and isinstance(given, Buffer) and tensor.scope == "global" != given.scope:
            self.warn(
                warning(
                    "rebound-tensor",
                    f"`{name}` gets another meaning, and nothing is copied",
                    span,
                    f"from here on this is {describe(given)}",
                    secondary=(Label(tensor.span, "the tensor stays as it is"),),
                    help=f"write T.copy({given.name}, {name})",
                )
            )

    def _bound(self, name: str, argument: Argument, dtype: DType | None, span: Span) -> Value:
        """What a name stands for: Python values, buffers and constants as they are, anything else through a bind."""
        value = argument.value
        if dtype is None and isinstance(value, Lanes):
            return kept(self, name, value, span)
        if dtype is None and isinstance(value, StageTile) and value.has_extent:
            return value
        if dtype is None and not isinstance(value, (*EXPR_TYPES, Access)):
            return value
        expr = as_expr(argument, dtype)
        if isinstance(expr, Const) or (isinstance(expr, Var) and dtype is None):
            self.names.append(Named(self.out, len(self.out), name, span))
            return expr
        if not self.is_parallel and (self.is_varying(expr) or self.masks):
            before = len(self.out)
            named = self.named(name, expr, span)
            if len(self.out) == before:
                self.names.append(Named(self.out, before, name, span))
            return named
        var = Var(self.unique.take(name), expr.dtype)
        if self.is_varying(expr):
            self.varying.add(var)
        self.out.append(Bind(var, expr, span))
        return var

    def vector(self, access: Access, span: Span) -> Value:
        """An element of a tensor or tile of vectors."""
        return loaded(self, access, span)

    def annotated(self, node: ast.AnnotatedAssign) -> None:
        if node.value is None:
            fail("missing-value", "a declaration needs a value", node.span, help="write `name: T.int32 = value`")
        annotation = self.argument(node.annotation)
        if isinstance(annotation.value, Member) and annotation.value.path in ("int", "float", "bool"):
            self.assign((node.target,), node.value, node.span)
            return
        dtype = as_dtype(annotation)
        if not isinstance(node.target, ast.Name):
            fail("bad-target", "only a name can be declared with a type", node.target.span)
        name = node.target.id
        self.scope.bind(name, self._bound(name, self.operand(node.value), dtype, node.span), node.target.span)

    def augmented(self, target: ast.Expr) -> Argument:
        """What an augmented assignment reads."""
        if isinstance(target, ast.Subscript):
            self._check_place(target)
        elif not isinstance(target, ast.Name):
            fail("bad-target", "this cannot be assigned to", target.span)
        return self.operand(target)

    def _store_element(self, target: ast.Subscript, argument: Argument, span: Span) -> None:
        access = self._check_place(target, isinstance(argument.value, Lanes))
        if access.has_extent:
            stored(self, access, argument, span)
            return
        self.element(access, target.span, "written")
        self.put(access, argument, span)

    def put(self, access: Access, argument: Argument, span: Span) -> None:
        """A store. Outside T.Parallel, where all threads would make it, one of them does: in a nest of one element."""
        indices = tuple(i for i in access.indices if isinstance(i, EXPR_TYPES))
        store = Store(access.buffer, indices, as_expr(argument, access.buffer.dtype), span)
        if self.is_parallel:
            self.out.append(store)
        elif self.is_own(store):
            self.each_thread((store,), span)
        else:
            self.out.append(Parallel((Var(self.unique.take("once")),), (1,), (store,), span))

    def _check_place(self, target: ast.Subscript, is_vector: bool = False) -> Access:
        buffer = self.value(target.value)
        if isinstance(buffer, StageTile):
            return pipelines.part(self, buffer, target)
        if not isinstance(buffer, Buffer):
            fail("bad-target", "this cannot be assigned to", target.span, f"this is {describe(buffer)}")
        access = self.access(buffer, target)
        if access.has_extent and not is_vector and not access.is_vector:
            fail("bad-target", "a slice cannot be assigned to", target.span, help="use T.copy or T.fill")
        return access
