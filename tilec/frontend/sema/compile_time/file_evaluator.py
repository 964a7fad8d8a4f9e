"""Evaluation of the top of a file: imports, constants (which -D replaces), functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import NoReturn

from tilec.frontend.sema.compile_time import mutation
from tilec.frontend.sema.compile_time.functions import check_assert, find_function_kind, pair_targets, run_statement
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.dispatch import COMPILE_TIME_DISPATCH
from tilec.frontend.sema.expressions import evaluate, host_names
from tilec.frontend.sema.recover import find_bound_names, poison_names
from tilec.frontend.sema.scope import BindingListener, Scope, make_language_scope
from tilec.frontend.syntax import ast
from tilec.frontend.syntax.imports import is_relative_import, list_candidate_files, list_import_paths
from tilec.frontend.syntax.parse import diagnose_foreign, parse_file
from tilec.ir.types import DType
from tilec.ops.language.signature import Argument, as_dtype, find_nearest_name
from tilec.ops.language.values import Dictionary, ForeignValue, Function, Member, Namespace, Value, describe_value
from tilec.support.diagnostics import CompileError, Diagnostic, ErrorCollector, InternalError, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import SourceFile, Span

Define = int | float | bool | str

_LANGUAGE_MODULES = ("tilelang.language", "tvm.tl.language")
"""The names of the module with the language; the second is that of TileLang's first releases, in TVM."""
_PYTHON_TEXT = re.compile(r"\s*(None|lambda\b.*|T(\.[A-Za-z_]\w*)+(\(.*\))?|\[[\w\s,.+-]*\]|\([\w\s,.+-]*\))\s*")
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

    def replace_value(self, name: str, file_value: Value, span: Span) -> Value:
        """Return the -D value of a name, as a dtype where the file has one; refuse a type unlike the file's value.
        Errors: `bad-define`.
        """
        value: Value = self.given[name]
        if isinstance(file_value, DType):
            return as_dtype(Argument(value, span))
        number_for_text = isinstance(file_value, str) and not isinstance(value, str)
        text_for_number = isinstance(file_value, int | float) and isinstance(value, str)
        fraction = isinstance(file_value, int) and isinstance(value, float)
        if number_for_text or text_for_number or fraction:
            title = f"-D {name}={value} has the wrong type"
            way_out = f"write {name} = {file_value}.0 in the file to allow a fraction" if fraction else None
            raise_error("bad-define", title, span, f"the file has {describe_value(file_value)} here", help=way_out)
        return value

    def argument(self, context: Context, function: str, node: ast.Parameter) -> Value:
        """Return the -D value of a compile-time parameter, or else its default, and record its name; refuse one with
        neither. `*args` and `**options` are empty and not recorded, since -D gives a value to one name.
        """
        if node.kind:
            return Dictionary(()) if node.kind == "**" else ()
        self.known[node.name] = None
        if node.default is not None:
            value = context.value(node.default)
            if node.name in self and (parsed := self._parse_text_value(context, node.name)) is not None:
                return parsed.value
            return self.replace_value(node.name, value, node.span) if node.name in self else value
        if node.name not in self:
            title = f"{function} needs a value for `{node.name}`"
            raise_error("missing-define", title, node.span, help=f"compile with -D {node.name}=…, or give it a default")
        parsed = self._parse_text_value(context, node.name)
        return self.given[node.name] if parsed is None else parsed.value

    def _parse_text_value(self, context: Context, name: str) -> Argument | None:
        """Evaluate a -D text that is a list, tuple, lambda, None, or name or call of `T.`; refuse several values; None
        for any other value. Examples: `-D sizes=[64, 128]` and `-D policy=T.GemmWarpPolicy.FullRow`. Errors:
        `bad-define`.
        """
        text = self.given[name]
        if not isinstance(text, str) or not _PYTHON_TEXT.fullmatch(text):
            return None
        match parse_file(SourceFile("-D", f"{name} = {text}")).body:
            case (ast.Assign(targets=(_,), value=value),):
                return evaluate.evaluate_argument(context, value)
            case _:
                title = f"-D {name}={text} is not one value"
                return raise_error("bad-define", title, help="write one list, name or lambda")

    def check_all_used(self) -> None:
        """Raise `unknown-define`, with the nearest name, for a -D that names no constant or parameter evaluated so
        far.
        """
        for name in self.given:
            if name in self.known:
                continue
            near = find_nearest_name(name, list(self.known))
            listed = ", ".join(self.known)
            way_out = f"did you mean {near}?" if near else f"the constants are {listed}" if listed else None
            raise_error("unknown-define", f"-D {name} is not a constant of the file", help=way_out)


def _is_script_block(node: ast.Stmt) -> bool:
    """Return whether a statement is an `if` on `__name__`, which runs only when Python runs the file."""
    match node:
        case ast.If(condition=ast.Compare(first=ast.Name(id="__name__"))):
            return True
        case _:
            return False


def _diagnose_script_name(name: str, span: Span) -> Diagnostic:
    """Make the `missing-define` diagnostic for a name that has a value only when the file runs as a script."""
    title = f"`{name}` has a value only when the file runs as a script"
    way_out = f"compile with -D {name}=…, or define it above the kernel"
    return Diagnostic("missing-define", title, Label(span, "given a value here"), help=way_out)


class FileEvaluator:
    """Runs the statements of a file. `files` are those that it may import, `ran` the scopes of those that have run."""

    def __init__(
        self,
        defines: Defines,
        files: Mapping[str, ast.Module] = _NO_FILES,
        path: str = "",
        mistakes: ErrorCollector | None = None,
        ran: dict[str, Scope] | None = None,
        bound: BindingListener | None = None,
        is_kernel_file: bool = True,
    ) -> None:
        """Set up the evaluation of one file; None makes new `mistakes`, and a new table `ran` of the scopes of imported
        files. Of a file that `is_kernel_file` every mistake counts; of others, those that a kernel meets.
        """
        self.defines, self.files, self.path, self.is_kernel_file = defines, files, path, is_kernel_file
        self.ran: dict[str, Scope] = {} if ran is None else ran
        self.scope = Scope(make_language_scope(), bound=bound)
        self.context = Context(
            self.scope, COMPILE_TIME_DISPATCH, mistakes=mistakes or ErrorCollector(), imports=self.bind_import
        )
        self.defined: dict[str, Span] = {}

    def run(self, module: ast.Module) -> None:
        """Run the statements of the file, so that `scope` has its names; a kernel file also gets names of script
        blocks.
        """
        self._run_statements(module.body)
        if self.is_kernel_file:
            self._bind_script_names(module.body)

    def _bind_script_names(self, statements: tuple[ast.Stmt, ...]) -> None:
        """Bind names that only `if __name__ == "__main__":` defines, to their -D values or to an error reported at
        their use. A kernel finds them when Python runs the file as a script.
        """
        blocks = [s for s in statements if _is_script_block(s)]
        names = [found for block in blocks for found in find_bound_names(block)]
        for name, span in names:
            if self.scope.find(name) is None:
                self._bind_foreign(name, span, partial(_diagnose_script_name, name, span))

    def _run_statements(self, statements: tuple[ast.Stmt, ...]) -> None:
        """Run statements at the top of the file in order; record a mistake, poison its names and go on."""
        for statement in statements:
            try:
                self._statement(statement)
            except CompileError as error:
                if not self._defer_foreign_statement(statement, error):
                    self.context.mistakes.add(error)
                    poison_names(self.scope, statement)

    def _defer_foreign_statement(self, node: ast.Stmt, error: CompileError) -> bool:
        """Turn a failed host-program statement into errors at the use of its names; return False if it is another
        mistake. Example: a call of torch. The names that it defines are mistakes only where a kernel uses them.
        """
        is_foreign = [d.code in ("foreign-call", "foreign-definition") for d in error.diagnostics]
        if not is_foreign or not (all(is_foreign) or not self.is_kernel_file):
            return False
        for name, span in find_bound_names(node):
            self._bind_foreign(name, span, lambda: error.diagnostics[0])
        return True

    def _bind_foreign(self, name: str, span: Span, mistake: Callable[[], Diagnostic]) -> None:
        """Bind a host program's name to its -D value (in the compiled file only), or else to an error reported at its
        use.
        """
        if name in self.defines and self.is_kernel_file and not self.path:
            self.defines.known[name] = None
            self.scope.bind(name, self.defines.given[name], span)
        else:
            self.scope.bind(name, ForeignValue(mistake), span)

    def _statement(self, node: ast.Stmt) -> None:
        """Run one statement at the top of the file: bind its names, skip host-only ones, refuse those not allowed
        there.
        """
        match node:
            case ast.Import():
                self.bind_import(self.context, node)
            case ast.Assign(value=value) if (used := self._find_foreign_root(value)) is not None:
                # Why the name is foreign takes long to say, and is said only where a kernel needs what is bound here.
                alone = Scope()
                alone.bind(used.id, self.scope.names[used.id].value, used.span)
                for name, span in find_bound_names(node):
                    self._bind_foreign(name, span, partial(_diagnose_foreign_use, alone, used))
            case ast.Assign(targets=targets, value=value):
                argument = evaluate.evaluate_argument(self.context, value)
                for target in targets:
                    self._define(target, argument)
            case ast.AnnotatedAssign(target=target, value=value):
                if value is not None:
                    self._define(target, evaluate.evaluate_argument(self.context, value))
            case ast.Function():
                self._claim_name(node.name, node.name_span)
                self.scope.bind(node.name, Function(node, self.scope, find_function_kind(node)), node.name_span)
            case ast.Foreign(names=names):
                for name in names:
                    self._bind_foreign(name, node.span, partial(diagnose_foreign, node))
            case ast.Evaluate(value=ast.String()) | ast.Pass():
                return
            case ast.Evaluate(value=ast.Call() as call):
                self._run_call(call)
            case ast.With(context=entered):
                self.context.value(entered)
                _refuse_statement(node)
            case ast.Assert():
                check_assert(self.context, node)
            case ast.If() if _is_script_block(node):
                return
            case ast.If(condition=condition, then=then, orelse=orelse):
                self._run_statements(then if evaluate.decide_condition(self.context, condition) else orelse)
            case ast.For() | ast.While() | ast.AugmentedAssign() | ast.Raise():
                run_statement(self.context, node)
            case _:
                _refuse_statement(node)

    def _find_foreign_root(self, node: ast.Expr) -> ast.Name | None:
        """Return the name at the root of `name.attribute…` if a foreign statement defines it, or None."""
        while isinstance(node, ast.Attribute):
            node = node.value
        binding = self.scope.names.get(node.id) if isinstance(node, ast.Name) else None
        is_foreign = binding is not None and isinstance(binding.value, ForeignValue)
        return node if is_foreign and isinstance(node, ast.Name) else None

    def _run_call(self, call: ast.Call) -> None:
        """Run a call that stands alone: a file's function or a list's mutating method; refuse `T.` calls, skip others.
        Calls of host programs, as `tilelang.disable_cache()`, are skipped.
        """
        if mutation.try_mutating_call(self.context, call):
            return
        callee = self.context.value(call.function)
        if isinstance(callee, Member) and callee.path.startswith("T."):
            _refuse_statement(call)
        if isinstance(callee, Function):
            self.context.value(call)

    def _claim_name(self, name: str, span: Span) -> None:
        """Record where a name is defined, and raise `duplicate-definition` if it was defined before."""
        if name in self.defined:
            first = Label(self.defined[name], "first here")
            raise_error("duplicate-definition", f"`{name}` is defined twice", span, secondary=(first,))
        self.defined[name] = span

    def _define(self, target: ast.Expr, argument: Argument) -> None:
        """Bind the targets of `target = value` at the top of the file, names to the -D value where there is one."""
        match target:
            case ast.Name(id=name):
                self._claim_name(name, target.span)
                self.scope.bind(
                    name, self._replace_constant(name, argument.value, target.span), target.span, argument.span
                )
            case ast.Tuple(items=items) | ast.List(items=items):
                for item, value in pair_targets(items, argument, target.span):
                    self._define(item, value)
            case _:
                mutation.assign_item(self.context, target, argument)

    def _replace_constant(self, name: str, file_value: Value, span: Span) -> Value:
        """Return a constant's -D value if the compiled file defines it and no factory's parameter has its name, else
        the file's. Its name is recorded as one that -D could replace.
        """
        if self.path:
            return file_value
        self.defines.known[name] = None
        if name in self.defines and name not in self.defines.parameters:
            return self.defines.replace_value(name, file_value, span)
        return file_value

    # ---- imports -----------------------------------------------------------------------------------------------------

    def bind_import(self, context: Context, node: ast.Import) -> None:
        """Bind the names of an import to imported files' names where these exist, else to members of host modules."""
        if is_relative_import(node):
            self._import_files(context, node)
            return
        for name, file, submodule in list_import_paths(node, ""):
            if self._import_beside(context, name, file, submodule):
                continue
            full_name = f"{node.module}.{name.name}" if node.module else name.name
            alias = name.alias or (name.name if node.module else name.name.split(".")[0])
            meaning = "T" if full_name in _LANGUAGE_MODULES else full_name
            if not name.alias and not node.module:
                meaning = alias
            if full_name.startswith("tilelang.language."):
                meaning = f"T.{full_name.removeprefix('tilelang.language.')}"
            context.scope.bind(alias, host_names.resolve_host_name(meaning), name.span)

    def _import_files(self, context: Context, node: ast.Import) -> None:
        """Run the files of a relative import and bind its names or whole files; raise an error without text for a
        missing file.
        """
        for name, file, submodule in list_import_paths(node, self.path):
            alias = name.alias or name.name
            if (path := self._read(file)) is not None:
                imported = self._run_file(path, self.is_kernel_file)
                if name.name == "*":
                    _bind_public_names(context.scope, imported, name.span)
                elif name.name not in imported.names and (inner := self._read(submodule)) is not None:
                    context.scope.bind(alias, Namespace(inner, self._run_file(inner, self.is_kernel_file)), name.span)
                elif name.name in imported.names and isinstance(imported.names[name.name].value, ForeignValue):
                    # One that only Python can evaluate is a mistake where a kernel uses it.
                    context.scope.bind(alias, imported.names[name.name].value, name.span)
                else:
                    context.scope.bind(alias, imported.read_attribute(path, name.name, name.span), name.span)
            elif (path := self._read(submodule)) is not None:
                context.scope.bind(alias, Namespace(path, self._run_file(path, self.is_kernel_file)), name.span)
            else:
                raise CompileError  # the reader of the files has reported it

    def _import_beside(self, context: Context, name: ast.Alias, file: str | None, submodule: str | None) -> bool:
        """Bind an absolute import to a file beside the kernel, which runs; return False if there is none."""
        alias = name.alias or name.name
        if (path := self._read(file)) is not None:
            imported = self._run_file(path, is_kernel_file=False)
            if name.name == "*":
                _bind_public_names(context.scope, imported, name.span)
            elif name.name in imported.names:
                context.scope.bind(alias, imported.names[name.name].value, name.span)
            else:
                context.scope.bind(alias, Member(f"{path.rpartition('.')[0]}.{name.name}"), name.span)
            return True
        if (path := self._read(submodule)) is None or (file is None and "." in alias):
            return False
        context.scope.bind(alias, Namespace(path, self._run_file(path, is_kernel_file=False)), name.span)
        return True

    def _read(self, path: str | None) -> str | None:
        """Return the first spelling of a path that is among the files read, or None."""
        return None if path is None else next((p for p in list_candidate_files(path) if p in self.files), None)

    def _run_file(self, path: str, is_kernel_file: bool) -> Scope:
        """Return the scope of an imported file, which is run at the first import only."""
        if path not in self.ran:
            mistakes, bound = self.context.mistakes, self.scope.bound
            file = FileEvaluator(self.defines, self.files, path, mistakes, self.ran, bound, is_kernel_file)
            file.context.budget = self.context.budget
            self.ran[path] = file.scope
            file.run(self.files[path])
        return self.ran[path]


def _refuse_statement(node: ast.Stmt | ast.Expr) -> NoReturn:
    """Raise `misplaced-statement`: only constants and functions may stand at the top of a file."""
    title = "only constants and functions are allowed at the top level of a file"
    raise_error("misplaced-statement", title, node.span.first_line())


def _bind_public_names(scope: Scope, imported: Scope, span: Span) -> None:
    """Bind in `scope` every name of the imported scope that does not begin with `_`, for `from file import *`."""
    for public in [name for name in imported.names if not name.startswith("_")]:
        scope.bind(public, imported.names[public].value, span)


def _diagnose_foreign_use(scope: Scope, used: ast.Name) -> Diagnostic:
    """Return the mistake that reading a name is in a scope where it is foreign."""
    try:
        scope.read(used.id, used.span)
    except CompileError as error:
        return error.diagnostics[0]
    raise InternalError(f"{used.id} can be read")
