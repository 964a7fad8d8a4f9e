"""Kernels in the eager style: the function under @tilelang.jit is the kernel.

Its body declares its parameters, `T.const` names sizes that -D gives, `T.empty` declares the tensors it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import NoReturn

from tilec.frontend.sema.compile_time.file_evaluator import Defines
from tilec.frontend.sema.compile_time.functions import list_parameters
from tilec.frontend.sema.context import Context, StatementElaborator
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.launch.launch import Param, bind_parameter, fold_extent
from tilec.frontend.sema.recover import find_bound_names
from tilec.frontend.sema.scope import Scope
from tilec.frontend.sema.statements import assignments
from tilec.frontend.sema.statements.statements import refuse_early_return
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer
from tilec.ops.language.signature import Parameter, Signature, as_element_type, as_extents
from tilec.ops.language.values import Member, Value, describe_value
from tilec.support.diagnostics import CompileError, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

CONST_SIGNATURE = Signature("T.const", (Parameter("name"), Parameter("dtype", "int32")))
EMPTY_SIGNATURE = Signature("T.empty", (Parameter("shape"), Parameter("dtype", "float32")))


@dataclass(slots=True)
class EagerKernel:
    """The declarations of a kernel in the eager style. `inputs` are its parameters by name, None until declared;
    `results` the tensors of T.empty, `returned_names` those that it returns."""

    context: Context
    defines: Defines
    inputs: dict[str, Param | None] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    results: list[Buffer] = field(default_factory=list)
    returned_names: tuple[str, ...] | None = None
    last: frozenset[Span] = frozenset()
    """The places of the `return`s that end the function."""
    scope: Scope = field(init=False)

    def __post_init__(self) -> None:
        """Add the statements and names of the eager style to the dispatch."""
        self.scope = self.context.scope
        common = self.context.dispatch
        statements: dict[type[ast.Stmt], StatementElaborator] = {
            ast.AnnotatedAssign: self._elaborate_annotated_assign,
            ast.Assign: self._elaborate_assign,
            ast.Return: self._elaborate_return,
        }
        values = {CONST_SIGNATURE.name: self._evaluate_const, EMPTY_SIGNATURE.name: self._refuse_unnamed_empty}
        self.context.dispatch = replace(
            common, statements={**common.statements, **statements}, values={**common.values, **values}
        )

    def params(self) -> tuple[Param, ...]:
        """Return the parameters in the order of the header, then the results in the order of their declaration."""
        return (*(p for p in self.inputs.values() if p is not None), *self.results)

    # ---- the header --------------------------------------------------------------------------------------------------

    def read_header(self, function: ast.Function) -> None:
        """Bind the parameters: tensors and scalars where the header or the body says so, else values known at compile
        time."""
        self.last = frozenset(_find_last_returns(function.body))
        declared = {
            s.target.id
            for s in function.body
            if isinstance(s, ast.AnnotatedAssign) and s.value is None and isinstance(s.target, ast.Name)
        }
        self._bind_sizes(function)
        for node in list_parameters(function):
            try:
                self._bind_parameter(function, node, node.name in declared)
            except CompileError as error:
                self.context.mistakes.add(error)
                self.context.scope.poison(node.name, node.span)

    def _bind_sizes(self, function: ast.Function) -> None:
        """Bind names in the types of parameters that the file does not define: -D does, as callers would. Errors:
        `missing-define`."""
        types = [p.annotation for p in list_parameters(function) if p.annotation is not None]
        types += [s.annotation for s in function.body if isinstance(s, ast.AnnotatedAssign) and s.value is None]
        defined = {p.name for p in list_parameters(function)} | {
            n for s in function.body for n, _ in find_bound_names(s)
        }
        for node in (n for annotation in types for n in ast.walk_nodes(annotation)):
            if not isinstance(node, ast.Name) or node.id in defined or self.context.scope.find(node.id) is not None:
                continue
            self.defines.known[node.id] = None
            if node.id in self.defines:
                self.context.scope.bind(node.id, self.defines.given[node.id], node.span)
                continue
            defined.add(node.id)
            self.context.scope.poison(node.id, node.span)
            with self.context.mistakes.caught():
                way_out = f"compile with -D {node.id}=…, or define it in the file"
                raise_error("missing-define", f"{node.id} has no value", node.span, help=way_out)

    def _bind_parameter(self, function: ast.Function, node: ast.Parameter, is_declared: bool) -> None:
        """Bind a parameter of the header: by its type, or to a value known at compile time."""
        name = node.name
        if name in self.inputs or name in self.context.scope.names:
            raise_error("duplicate-definition", f"parameter `{name}` appears twice", node.span)
        if is_declared:
            self.inputs[name] = None
            self.spans[name] = node.span
            return
        if node.annotation is not None and self._is_type(node.annotation):
            self.inputs[name] = bind_parameter(self.context, name, node.annotation, node.span)
            return
        if not node.kind and node.annotation is None and node.default is None and name not in self.defines:
            self.defines.known[name] = None
            title = f"{function.name} needs a type or a value for `{name}`"
            way_out = f"write `{name}: T.Tensor((M, N), dtype)` in the body, or compile with -D {name}=…"
            raise_error("missing-define", title, node.span, help=way_out)
        value = self.defines.argument(self.context, function.name, node)
        self.context.scope.bind(name, value, node.span, node.span)

    def _is_type(self, annotation: ast.Expr) -> bool:
        """Return whether an annotation of the header is the type of a tensor or a scalar, without evaluating others."""
        match annotation:
            case ast.Call(function=inner) | ast.Subscript(value=inner):
                return self._is_type(inner)
            case ast.Attribute(value=ast.Name() as owner, name=name):
                value = self.context.value(annotation) if self._is_language_name(owner) else None
                return name != "dtype" and value is not None
            case ast.Name(id=name):
                binding = self.context.scope.find(name)
                value = None if binding is None else binding.value
                return isinstance(value, Member) and value.path.startswith("T.") and value.path != "T.dtype"
            case _:
                return False

    def _is_language_name(self, owner: ast.Name) -> bool:
        binding = self.context.scope.find(owner.id)
        return binding is not None and binding.value == Member("T")

    # ---- declarations in the body ------------------------------------------------------------------------------------

    def _elaborate_annotated_assign(self, context: Context, node: ast.AnnotatedAssign) -> None:
        """Elaborate `A: T.Tensor(…)`, which declares a parameter, or `a: dtype = value`."""
        match node:
            case ast.AnnotatedAssign(target=ast.Name(id=name), value=None) if name in self.inputs:
                self._declare(name, node)
            case _:
                assignments.elaborate_annotated_assign(context, node)

    def _declare(self, name: str, node: ast.AnnotatedAssign) -> None:
        """Give a parameter the type that the body declares. Errors: `duplicate-definition`."""
        if self.inputs[name] is not None:
            first = Label(self.spans[name], "first here")
            raise_error("duplicate-definition", f"`{name}` is declared twice", node.span, secondary=(first,))
        self.spans[name] = node.span
        self.inputs[name] = bind_parameter(self.context, name, node.annotation, node.span)

    def _elaborate_assign(self, context: Context, node: ast.Assign) -> None:
        """Elaborate `C = T.empty(…)`, which declares a result, or another assignment."""
        match node:
            case ast.Assign(targets=(ast.Name(id=name) as target,), value=ast.Call() as call) if (
                evaluate.find_callee(context, call) == EMPTY_SIGNATURE.name
            ):
                context.scope.bind(name, self._declare_empty(name, call), target.span)
            case _:
                assignments.elaborate_assign(context, node)

    def _declare_empty(self, name: str, node: ast.Call) -> Buffer:
        """Make the tensor of a `T.empty`, a result of the kernel."""
        call = evaluate.bind_call(self.context, EMPTY_SIGNATURE, node)
        shape = tuple(map(fold_extent, as_extents(call["shape"], f"the shape of {name}")))
        dtype, lanes = as_element_type(call["dtype"])
        extents = (*shape, lanes) if lanes > 1 else shape
        result = Buffer(self.context.unique.take(name), extents, dtype, "global", node.span, lanes)
        self.results.append(result)
        return result

    def _refuse_unnamed_empty(self, context: Context, path: str, node: ast.Call) -> NoReturn:
        raise_error("not-a-value", f"{path} needs a name", node.span, help="write `C = T.empty(shape, dtype)`")

    def _evaluate_const(self, context: Context, path: str, node: ast.Call) -> Value:
        """Evaluate `T.const("M, N")` to the numbers that -D gives these names. Errors: `missing-define`,
        `bad-define`."""
        call = evaluate.bind_call(context, CONST_SIGNATURE, node)
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
                title = f"no value is given for {', '.join(absent)}"
                way_out = f"compile with {' '.join(f'-D {n}=…' for n in absent)}"
                raise_error("missing-define", title, node.span, "sizes known at compile time", help=way_out)
            if not isinstance(value, int) or isinstance(value, bool):
                raise_error("bad-define", f"-D {name}={value} is not a size", node.span, "sizes are integers")
            values.append(value)
        return values[0] if len(values) == 1 else tuple(values)

    # ---- what it returns ---------------------------------------------------------------------------------------------

    def _elaborate_return(self, context: Context, node: ast.Return) -> None:
        """Note the tensors that the kernel returns. Errors: `bad-return`, `misplaced-statement`."""
        # Outside T.Kernel the branch is chosen at compile time, and nothing after the `return` is elaborated.
        if context.is_launched and (node.span not in self.last or context.scope is not self.scope):
            refuse_early_return(node)
        given = () if node.value is None else context.value(node.value)
        listed = given if isinstance(given, tuple) else (given,)
        for result in listed:
            if not isinstance(result, Buffer) or result not in self.results:
                title = "a kernel returns tensors of T.empty only"
                way_out = "parameters need not be returned: the caller has them"
                raise_error("bad-return", title, node.span, f"this is {describe_value(result)}", help=way_out)
        self.returned_names = tuple(r.name for r in listed if isinstance(r, Buffer))

    def check_returned(self) -> None:
        """Check that every tensor of T.empty is returned, and every parameter declared."""
        for result in self.results:
            if result.name not in (self.returned_names or ()):
                names = ", ".join(r.name for r in self.results)
                way_out = f"end the function with `return {names}`"
                raise_error("bad-return", f"{result.name} is not returned", result.span, "made here", help=way_out)
        undeclared = next((n for n, p in self.inputs.items() if p is None), None)
        if undeclared is not None:
            raise_error("missing-type", f"parameter `{undeclared}` has no type", self.spans[undeclared])


def _find_last_returns(body: Sequence[ast.Stmt]) -> Iterator[Span]:
    """Yield the places of the `return`s that end a list of statements, in branches of its last one too."""
    match body[-1] if body else None:
        case ast.Return(span=span):
            yield span
        case ast.With(body=inner):
            yield from _find_last_returns(inner)
        case ast.If(then=then, orelse=orelse):
            yield from _find_last_returns(then)
            yield from _find_last_returns(orelse)
        case _:
            pass
