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
        """Add to the context's dispatch the eager style's meanings of assignments, `return`, T.const and T.empty."""
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
        """Return the kernel's parameters: those of the header that have a type so far, in order, then the tensors of
        T.empty.
        """
        return (*(p for p in self.inputs.values() if p is not None), *self.results)

    # ---- the header --------------------------------------------------------------------------------------------------

    def read_header(self, function: ast.Function) -> None:
        """Bind the header's parameters: as tensors or scalars if typed, there or in the body, else to values; record
        mistakes.
        """
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
        """Bind undefined names in parameter types to their -D values; report `missing-define` for those without. Such a
        name is poisoned.
        """
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
        """Bind a header parameter by its type or to its value, or note one that the body declares; refuse repeated and
        unknown ones. A value is given by -D or is the default. Errors: `duplicate-definition`, `missing-define`.
        """
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
        """Return whether a header annotation is a `T.` type of a tensor or scalar, without evaluating other
        annotations.
        """
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
        """Return whether a name is bound to the language module, `T`."""
        binding = self.context.scope.find(owner.id)
        return binding is not None and binding.value == Member("T")

    # ---- declarations in the body ------------------------------------------------------------------------------------

    def _elaborate_annotated_assign(self, context: Context, node: ast.AnnotatedAssign) -> None:
        """Declare a parameter for `A: T.Tensor(…)` without a value; elaborate any other annotated assignment as
        usual.
        """
        match node:
            case ast.AnnotatedAssign(target=ast.Name(id=name), value=None) if name in self.inputs:
                self._declare(name, node)
            case _:
                assignments.elaborate_annotated_assign(context, node)

    def _declare(self, name: str, node: ast.AnnotatedAssign) -> None:
        """Bind a header parameter with the type that the body declares; raise `duplicate-definition` the second
        time.
        """
        if self.inputs[name] is not None:
            first = Label(self.spans[name], "first here")
            raise_error("duplicate-definition", f"`{name}` is declared twice", node.span, secondary=(first,))
        self.spans[name] = node.span
        self.inputs[name] = bind_parameter(self.context, name, node.annotation, node.span)

    def _elaborate_assign(self, context: Context, node: ast.Assign) -> None:
        """Declare and bind a result tensor for `C = T.empty(…)`; elaborate any other assignment as usual."""
        match node:
            case ast.Assign(targets=(ast.Name(id=name) as target,), value=ast.Call() as call) if (
                evaluate.find_callee(context, call) == EMPTY_SIGNATURE.name
            ):
                context.scope.bind(name, self._declare_empty(name, call), target.span)
            case _:
                assignments.elaborate_assign(context, node)

    def _declare_empty(self, name: str, node: ast.Call) -> Buffer:
        """Make the global tensor of a `T.empty` call and append it to the kernel's results."""
        call = evaluate.bind_call(self.context, EMPTY_SIGNATURE, node)
        shape = tuple(map(fold_extent, as_extents(call["shape"], f"the shape of {name}")))
        dtype, lanes = as_element_type(call["dtype"])
        extents = (*shape, lanes) if lanes > 1 else shape
        result = Buffer(self.context.unique.take(name), extents, dtype, "global", node.span, lanes)
        self.results.append(result)
        return result

    def _refuse_unnamed_empty(self, context: Context, path: str, node: ast.Call) -> NoReturn:
        """Raise `not-a-value`: T.empty is only for `C = T.empty(…)`."""
        raise_error("not-a-value", f"{path} needs a name", node.span, help="write `C = T.empty(shape, dtype)`")

    def _evaluate_const(self, context: Context, path: str, node: ast.Call) -> Value:
        """Return the integers that -D gives the names in `T.const("M, N")`, one or a tuple; refuse missing values."""
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
        """Record the names of the T.empty tensors that the kernel returns; refuse other values and early returns."""
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
        """Raise an error for a T.empty tensor that is not returned, or a parameter that got no type."""
        for result in self.results:
            if result.name not in (self.returned_names or ()):
                names = ", ".join(r.name for r in self.results)
                way_out = f"end the function with `return {names}`"
                raise_error("bad-return", f"{result.name} is not returned", result.span, "made here", help=way_out)
        undeclared = next((n for n, p in self.inputs.items() if p is None), None)
        if undeclared is not None:
            raise_error("missing-type", f"parameter `{undeclared}` has no type", self.spans[undeclared])


def _find_last_returns(body: Sequence[ast.Stmt]) -> Iterator[Span]:
    """Yield the spans of the `return`s that end a statement list, also inside a last `with` or `if`."""
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
