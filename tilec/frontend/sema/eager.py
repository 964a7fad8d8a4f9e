"""Kernels in the eager style: the function under @tilelang.jit is the kernel.

Its body declares its parameters, `T.const` names sizes that -D gives, `T.empty` declares the tensors it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import NoReturn

from tilec.frontend.sema import assignments, evaluate
from tilec.frontend.sema.constants import Defines
from tilec.frontend.sema.context import Context, ReadsStatement
from tilec.frontend.sema.functions import named
from tilec.frontend.sema.launch import Param, folded, parameter
from tilec.frontend.sema.recover import bound_names
from tilec.frontend.sema.scope import Scope
from tilec.frontend.sema.statements import refuse_early_return
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer
from tilec.ops.signature import Parameter, Signature, as_element, as_extents, bind
from tilec.ops.values import Member, Value, describe
from tilec.support.diagnostics import CompileError, Label, fail
from tilec.support.records import dataclass
from tilec.support.source import Span

CONST = Signature("T.const", (Parameter("name"), Parameter("dtype", "int32")))
EMPTY = Signature("T.empty", (Parameter("shape"), Parameter("dtype", "float32")))

_AT_COMPILE_TIME = ("int", "float", "bool", "str", "tuple", "list", "dict", "T.dtype")


@dataclass(slots=True)
class Eager:
    """The declarations of a kernel in the eager style. `inputs` are its parameters by name, None until declared;
    `results` the tensors of T.empty, `returned_names` those that it returns."""

    context: Context
    defines: Defines
    inputs: dict[str, Param | None] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    results: list[Buffer] = field(default_factory=list)
    returned: tuple[str, ...] | None = None
    last: frozenset[Span] = frozenset()
    """The places of the `return`s that end the function."""
    scope: Scope = field(init=False)

    def __post_init__(self) -> None:
        """Add the statements and names of the eager style to the dispatch."""
        self.scope = self.context.scope
        common = self.context.dispatch
        statements: dict[type[ast.Stmt], ReadsStatement] = {
            ast.AnnotatedAssign: self._annotated,
            ast.Assign: self._assign,
            ast.Return: self._return,
        }
        values = {CONST.name: self._const, EMPTY.name: self._unnamed}
        self.context.dispatch = replace(
            common, statements={**common.statements, **statements}, values={**common.values, **values}
        )

    def params(self) -> tuple[Param, ...]:
        """Return the parameters in the order of the header, then the results in the order of their declaration."""
        return (*(p for p in self.inputs.values() if p is not None), *self.results)

    # ---- the header --------------------------------------------------------------------------------------------------

    def header(self, function: ast.Function) -> None:
        """Bind the parameters: tensors and scalars where the header or the body says so, else values known at compile
        time."""
        self.last = frozenset(_last_returns(function.body))
        declared = {
            s.target.id
            for s in function.body
            if isinstance(s, ast.AnnotatedAssign) and s.value is None and isinstance(s.target, ast.Name)
        }
        self._sizes(function)
        for node in named(function):
            try:
                self._parameter(function, node, node.name in declared)
            except CompileError as error:
                self.context.mistakes.add(error)
                self.context.scope.poison(node.name, node.span)

    def _sizes(self, function: ast.Function) -> None:
        """Bind names in the types of parameters that the file does not define: -D does, as callers would. Errors:
        `missing-define`."""
        types = [p.annotation for p in named(function) if p.annotation is not None]
        types += [s.annotation for s in function.body if isinstance(s, ast.AnnotatedAssign) and s.value is None]
        defined = {p.name for p in named(function)} | {n for s in function.body for n, _ in bound_names(s)}
        for node in (n for annotation in types for n in ast.walk(annotation)):
            if not isinstance(node, ast.Name) or node.id in defined or self.context.scope.find(node.id) is not None:
                continue
            self.defines.known[node.id] = None
            if node.id in self.defines:
                self.context.scope.bind(node.id, self.defines.given[node.id], node.span)
                continue
            defined.add(node.id)
            self.context.scope.poison(node.id, node.span)
            with self.context.mistakes.caught():
                fail(
                    "missing-define",
                    f"nothing gives {node.id} a value",
                    node.span,
                    help=f"compile with -D {node.id}=…, or define it in the file",
                )

    def _parameter(self, function: ast.Function, node: ast.Parameter, is_declared: bool) -> None:
        name = node.name
        if name in self.inputs or name in self.context.scope.names:
            fail("duplicate-definition", f"parameter `{name}` appears twice", node.span)
        if is_declared:
            self.inputs[name] = None
            self.spans[name] = node.span
            return
        if node.annotation is not None and self._is_type(node.annotation):
            self.inputs[name] = parameter(self.context, name, node.annotation, node.span)
            return
        if node.annotation is None and node.default is None and name not in self.defines:
            self.defines.known[name] = None
            fail(
                "missing-define",
                f"{function.name} needs a type or a value for `{name}`",
                node.span,
                help=f"write `{name}: T.Tensor((M, N), dtype)` in the body, or compile with -D {name}=…",
            )
        value = self.defines.argument(self.context, function.name, node)
        self.context.scope.bind(name, value, node.span, node.span)

    def _is_type(self, annotation: ast.Expr) -> bool:
        """Return whether an annotation of the header is the type of a tensor or a scalar, without evaluating others."""
        match annotation:
            case ast.Call(function=inner) | ast.Subscript(value=inner):
                return self._is_type(inner)
            case ast.Attribute(value=ast.Name() as owner, name=name):
                value = self.context.value(annotation) if self._is_language(owner) else None
                return name != "dtype" and value is not None
            case ast.Name(id=name):
                binding = self.context.scope.find(name)
                value = None if binding is None else binding.value
                return isinstance(value, Member) and value.path.startswith("T.") and value.path != "T.dtype"
            case _:
                return False

    def _is_language(self, owner: ast.Name) -> bool:
        binding = self.context.scope.find(owner.id)
        return binding is not None and binding.value == Member("T")

    # ---- declarations in the body ------------------------------------------------------------------------------------

    def _annotated(self, context: Context, node: ast.AnnotatedAssign) -> None:
        match node:
            case ast.AnnotatedAssign(target=ast.Name(id=name), value=None) if name in self.inputs:
                self._declare(name, node)
            case _:
                assignments.annotated(context, node)

    def _declare(self, name: str, node: ast.AnnotatedAssign) -> None:
        if self.inputs[name] is not None:
            first = Label(self.spans[name], "first here")
            fail("duplicate-definition", f"`{name}` is declared twice", node.span, secondary=(first,))
        self.spans[name] = node.span
        self.inputs[name] = parameter(self.context, name, node.annotation, node.span)

    def _assign(self, context: Context, node: ast.Assign) -> None:
        match node:
            case ast.Assign(targets=(ast.Name(id=name) as target,), value=ast.Call() as call) if (
                evaluate.callee(context, call) == EMPTY.name
            ):
                context.scope.bind(name, self._empty(name, call), target.span)
            case _:
                assignments.assign(context, node)

    def _empty(self, name: str, node: ast.Call) -> Buffer:
        call = bind(EMPTY, *evaluate.arguments(self.context, node), node.span)
        shape = tuple(map(folded, as_extents(call["shape"], f"the shape of {name}")))
        dtype, lanes = as_element(call["dtype"])
        extents = (*shape, lanes) if lanes > 1 else shape
        result = Buffer(self.context.unique.take(name), extents, dtype, "global", node.span, lanes)
        self.results.append(result)
        return result

    def _unnamed(self, context: Context, path: str, node: ast.Call) -> NoReturn:
        fail("not-a-value", f"{path} needs a name", node.span, help="write `C = T.empty(shape, dtype)`")

    def _const(self, context: Context, path: str, node: ast.Call) -> Value:
        """Evaluate `T.const("M, N")` to the numbers that -D gives these names. Errors: `missing-define`,
        `bad-define`."""
        call = bind(CONST, *evaluate.arguments(context, node), node.span)
        text = call["name"].value
        names = text.replace(",", " ").split() if isinstance(text, str) else []
        if not names or not all(name.isidentifier() for name in names):
            call.refuse("name", 'a string of names, as in "M" or "M, N"')
        for name in names:
            self.defines.known[name] = None
        values = []
        for name in names:
            value = self.defines.given.get(name)
            if value is None:
                absent = [n for n in names if n not in self.defines]
                fail(
                    "missing-define",
                    f"nothing gives {', '.join(absent)} a value",
                    node.span,
                    "sizes known at compile time",
                    help=f"compile with {' '.join(f'-D {n}=…' for n in absent)}",
                )
            if not isinstance(value, int) or isinstance(value, bool):
                fail("bad-define", f"-D {name}={value} is no size", node.span, "sizes are integers")
            values.append(value)
        return values[0] if len(values) == 1 else tuple(values)

    # ---- what it returns ---------------------------------------------------------------------------------------------

    def _return(self, context: Context, node: ast.Return) -> None:
        # Outside T.Kernel the branch is chosen at compile time, and nothing after the `return` is elaborated.
        if context.is_launched and (node.span not in self.last or context.scope is not self.scope):
            refuse_early_return(node)
        given = () if node.value is None else context.value(node.value)
        listed = given if isinstance(given, tuple) else (given,)
        for result in listed:
            if not isinstance(result, Buffer) or result not in self.results:
                fail(
                    "bad-return",
                    "a kernel returns tensors that T.empty made",
                    node.span,
                    f"this is {describe(result)}",
                    help="what a parameter holds need not be returned: the caller has it",
                )
        self.returned = tuple(r.name for r in listed if isinstance(r, Buffer))

    def check_returned(self, function: ast.Function) -> None:
        """Check that every tensor of T.empty is returned, and every parameter declared."""
        for result in self.results:
            if result.name not in (self.returned or ()):
                names = ", ".join(r.name for r in self.results)
                fail(
                    "bad-return",
                    f"{result.name} is not returned",
                    result.span,
                    "made here",
                    help=f"end the function with `return {names}`",
                )
        undeclared = next((n for n, p in self.inputs.items() if p is None), None)
        if undeclared is not None:
            fail("missing-type", f"parameter `{undeclared}` has no type", self.spans[undeclared])


def _last_returns(body: Sequence[ast.Stmt]) -> Iterator[Span]:
    """Yield the places of the `return`s that end a list of statements, or its last statement."""
    match body[-1] if body else None:
        case ast.Return(span=span):
            yield span
        case ast.With(body=inner):
            yield from _last_returns(inner)
        case ast.If(then=then, orelse=orelse):
            yield from _last_returns(then)
            yield from _last_returns(orelse)
        case _:
            pass
