"""Evaluation of the top of a file: imports, constants (which -D replaces), functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import NoReturn

from tilec.frontend.sema import evaluate, host_names, mutation
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.dispatch import COMPILE_TIME
from tilec.frontend.sema.functions import check_assert, kind, run, unpack
from tilec.frontend.sema.recover import bound_names, poison
from tilec.frontend.sema.scope import Binding, Bound, Scope, language
from tilec.frontend.syntax import ast
from tilec.frontend.syntax.imports import is_relative, places, spellings
from tilec.frontend.syntax.parse import mistake_of, parse
from tilec.ir.types import DType
from tilec.ops.signature import Argument, as_dtype, nearest
from tilec.ops.values import Foreign, Function, Member, Namespace, Value, describe
from tilec.support.diagnostics import CompileError, Label, Mistakes, fail
from tilec.support.records import dataclass
from tilec.support.source import SourceFile, Span

Define = int | float | bool | str

_READ = re.compile(r"\s*(None|T(\.[A-Za-z_]\w*)+|\[[\w\s,.+-]*\]|\([\w\s,.+-]*\))\s*")
"""Values of -D that are parsed as Python."""

_NO_FILES: dict[str, ast.Module] = {}


@dataclass(slots=True)
class Defines:
    """The values of -D. `known` are the names met so far that -D could replace; `parameters` those of the functions
    that make kernels."""

    given: Mapping[str, Define]
    known: dict[str, None] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def replaced(self, name: str, file_value: Value, span: Span) -> Value:
        """Return the value of -D for a name, of the same sort as the value in the file. Errors: `bad-define`."""
        value: Value = self.given[name]
        if isinstance(file_value, DType):
            return as_dtype(Argument(value, span))
        number_for_text = isinstance(file_value, str) and not isinstance(value, str)
        text_for_number = isinstance(file_value, int | float) and isinstance(value, str)
        fraction = isinstance(file_value, int) and isinstance(value, float)
        if number_for_text or text_for_number or fraction:
            fail(
                "bad-define",
                f"-D {name}={value} has the wrong type",
                span,
                f"the file has {describe(file_value)} here",
                help=f"write {name} = {file_value}.0 in the file to allow fractions" if fraction else None,
            )
        return value

    def argument(self, context: Context, function: str, node: ast.Parameter) -> Value:
        """Return the value of a parameter known at compile time: that of -D, or its default."""
        if node.kind:
            fail("unsupported-syntax", "the parameters of a kernel's function have names", node.span)
        self.known[node.name] = None
        if node.default is not None:
            value = context.value(node.default)
            if node.name in self and (parsed := self._meant(context, node.name)) is not None:
                return parsed.value
            return self.replaced(node.name, value, node.span) if node.name in self else value
        if node.name not in self:
            fail(
                "missing-define",
                f"{function} needs a value for `{node.name}`",
                node.span,
                help=f"compile with -D {node.name}=…, or give it a default",
            )
        parsed = self._meant(context, node.name)
        return self.given[node.name] if parsed is None else parsed.value

    def _meant(self, context: Context, name: str) -> Argument | None:
        """Evaluate a text that stands for a list, a tuple or a name of the language, as in `-D sizes=[64, 128]` and `-D
        policy=T.GemmWarpPolicy.FullRow`. Return None for any other text."""
        text = self.given[name]
        if not isinstance(text, str) or not _READ.fullmatch(text):
            return None
        (statement,) = parse(SourceFile("-D", f"{name} = {text}")).body
        assert isinstance(statement, ast.Assign)
        return evaluate.argument(context, statement.value)

    def check_all_used(self) -> None:
        for name in self.given:
            if name in self.known:
                continue
            near = nearest(name, list(self.known))
            listed = ", ".join(self.known)
            fail(
                "unknown-define",
                f"-D {name} names no constant of the file",
                help=f"did you mean {near}?" if near else f"the constants are {listed}" if listed else None,
            )


class Constants:
    """Runs the statements of a file. `files` are those that it may import, `ran` the scopes of those that have run."""

    def __init__(
        self,
        defines: Defines,
        files: Mapping[str, ast.Module] = _NO_FILES,
        path: str = "",
        mistakes: Mistakes | None = None,
        ran: dict[str, Scope] | None = None,
        bound: Bound | None = None,
        is_kernel_file: bool = True,
    ) -> None:
        """Set up the evaluation of one file. Of a file that `is_kernel_file` every mistake counts; of others, those
        that a kernel meets."""
        self.defines, self.files, self.path, self.is_kernel_file = defines, files, path, is_kernel_file
        self.ran: dict[str, Scope] = {} if ran is None else ran
        self.scope = Scope(language(), bound=bound)
        self.context = Context(self.scope, COMPILE_TIME, mistakes=mistakes or Mistakes(), imports=self.imported)
        self.defined: dict[str, Span] = {}

    def run(self, module: ast.Module) -> Scope:
        self._all(module.body)
        return self.scope

    def _all(self, statements: tuple[ast.Stmt, ...]) -> None:
        for statement in statements:
            try:
                self._statement(statement)
            except CompileError as error:
                if not self._set_aside(statement, error):
                    self.context.mistakes.add(error)
                    poison(self.scope, statement)

    def _set_aside(self, node: ast.Stmt, error: CompileError) -> bool:
        """Set aside a statement of a host program, as a call of torch, and return whether it is one. The names that it
        defines are mistakes only where a kernel uses them."""
        is_foreign = [d.code in ("foreign-call", "foreign-definition") for d in error.diagnostics]
        if not is_foreign or not (all(is_foreign) or not self.is_kernel_file):
            return False
        for name, span in bound_names(node):
            self.scope.names[name] = Binding(Foreign(lambda: error.diagnostics[0]), span)
        return True

    def _statement(self, node: ast.Stmt) -> None:
        match node:
            case ast.Import():
                self.imported(self.context, node)
            case ast.Assign(targets=targets, value=value):
                argument = evaluate.argument(self.context, value)
                for target in targets:
                    self._define(target, argument)
            case ast.AnnotatedAssign(target=target, value=value):
                if value is not None:
                    self._define(target, evaluate.argument(self.context, value))
            case ast.Function():
                self._claim(node.name, node.name_span)
                self.scope.bind(node.name, Function(node, self.scope, kind(node)), node.name_span)
            case ast.Foreign(names=names):
                for name in names:
                    self.scope.bind(name, Foreign(partial(mistake_of, node)), node.span)
            case ast.Evaluate(value=ast.String()) | ast.Pass():
                return
            case ast.Evaluate(value=ast.Call() as call):
                self._carry_out(call)
            case ast.With(context=entered):
                self.context.value(entered)
                _refuse(node)
            case ast.Assert():
                check_assert(self.context, node)
            case ast.If(condition=ast.Compare(first=ast.Name(id="__name__"))):
                # Only a run of the file by Python enters this block.
                return
            case ast.If(condition=condition, then=then, orelse=orelse):
                self._all(then if evaluate.decided(self.context, condition) else orelse)
            case ast.For() | ast.While() | ast.AugmentedAssign() | ast.Raise():
                run(self.context, node)
            case _:
                _refuse(node)

    def _carry_out(self, call: ast.Call) -> None:
        """Evaluate a call that stands alone: of a function, which may assert something, or of a method that changes a
        list or a dictionary. Others belong to host programs, as `tilelang.disable_cache()`, and are skipped."""
        if mutation.changes(self.context, call):
            return
        callee = self.context.value(call.function)
        if isinstance(callee, Member) and callee.path.startswith("T."):
            _refuse(call)
        if isinstance(callee, Function):
            self.context.value(call)

    def _claim(self, name: str, span: Span) -> None:
        if name in self.defined:
            first = Label(self.defined[name], "first here")
            fail("duplicate-definition", f"`{name}` is defined twice", span, secondary=(first,))
        self.defined[name] = span

    def _define(self, target: ast.Expr, argument: Argument) -> None:
        match target:
            case ast.Name(id=name):
                self._claim(name, target.span)
                self.scope.bind(name, self._constant(name, argument.value, target.span), target.span, argument.span)
            case ast.Tuple(items=items) | ast.List(items=items):
                for item, value in zip(items, unpack(items, argument, target.span), strict=True):
                    if isinstance(item, ast.Starred):
                        fail("bad-target", "this cannot be assigned to", item.span)
                    self._define(item, Argument(value, argument.span))
            case _:
                mutation.assign(self.context, target, argument)

    def _constant(self, name: str, file_value: Value, span: Span) -> Value:
        """Return the value of a constant, replaced by -D in the file that is compiled."""
        if self.path:
            return file_value
        self.defines.known[name] = None
        if name in self.defines and name not in self.defines.parameters:
            return self.defines.replaced(name, file_value, span)
        return file_value

    # ---- imports -----------------------------------------------------------------------------------------------------

    def imported(self, context: Context, node: ast.Import) -> None:
        """Bind the names of an import."""
        if is_relative(node):
            self._import_files(context, node)
            return
        for name, file, submodule in places(node, ""):
            if self._import_beside(context, name, file, submodule):
                continue
            full_name = f"{node.module}.{name.name}" if node.module else name.name
            alias = name.alias or (name.name if node.module else name.name.split(".")[0])
            meaning = {"tilelang.language": "T", "tilelang": "tilelang", "math": "math"}.get(full_name, full_name)
            if not name.alias and not node.module:
                meaning = alias
            if full_name.startswith("tilelang.language."):
                meaning = f"T.{full_name.removeprefix('tilelang.language.')}"
            context.scope.bind(alias, host_names.meaning(meaning), name.span)

    def _import_files(self, context: Context, node: ast.Import) -> None:
        """Bind the names of `from .file import name`, or `from . import file`."""
        for name, file, submodule in places(node, self.path):
            alias = name.alias or name.name
            if (path := self._read(file)) is not None:
                imported = self._ran(path, self.is_kernel_file)
                if name.name == "*":
                    _bind_public(context.scope, imported, name.span)
                elif name.name not in imported.names and (inner := self._read(submodule)) is not None:
                    context.scope.bind(alias, Namespace(inner, self._ran(inner, self.is_kernel_file)), name.span)
                else:
                    context.scope.bind(alias, imported.attribute(path, name.name, name.span), name.span)
            elif (path := self._read(submodule)) is not None:
                context.scope.bind(alias, Namespace(path, self._ran(path, self.is_kernel_file)), name.span)
            else:
                raise CompileError  # the reader of the files has reported it

    def _import_beside(self, context: Context, name: ast.Alias, file: str | None, submodule: str | None) -> bool:
        """Bind `from file import name`, or `import file`, if there is such a file beside the kernel. Return whether."""
        alias = name.alias or name.name
        if (path := self._read(file)) is not None:
            imported = self._ran(path, is_kernel_file=False)
            if name.name == "*":
                _bind_public(context.scope, imported, name.span)
            elif name.name in imported.names:
                context.scope.bind(alias, imported.names[name.name].value, name.span)
            else:
                context.scope.bind(alias, Member(f"{path.rpartition('.')[0]}.{name.name}"), name.span)
            return True
        if (path := self._read(submodule)) is None or (file is None and "." in alias):
            return False
        context.scope.bind(alias, Namespace(path, self._ran(path, is_kernel_file=False)), name.span)
        return True

    def _read(self, path: str | None) -> str | None:
        """Return the path of a file that has been read, if any of its spellings is."""
        return None if path is None else next((p for p in spellings(path) if p in self.files), None)

    def _ran(self, path: str, is_kernel_file: bool) -> Scope:
        """Return the names of an imported file, which runs once."""
        if path not in self.ran:
            mistakes, bound = self.context.mistakes, self.scope.bound
            file = Constants(self.defines, self.files, path, mistakes, self.ran, bound, is_kernel_file)
            file.context.budget = self.context.budget
            self.ran[path] = file.scope
            file.run(self.files[path])
        return self.ran[path]


def _refuse(node: ast.Stmt | ast.Expr) -> NoReturn:
    title = "only constants and functions stand at the top of the file"
    fail("misplaced-statement", title, node.span.first_line())


def _bind_public(scope: Scope, imported: Scope, span: Span) -> None:
    """Bind the public names of `from file import *`."""
    for public in [name for name in imported.names if not name.startswith("_")]:
        scope.bind(public, imported.names[public].value, span)
