"""Writes the text of one kernel from the Python function that a script made it with.

The text has the function, the functions that it calls, and each other value that it names as a constant: what the
script computed stands there as a number. Functions of the kernel's own file keep their lines, so that errors point
into the script.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tilec.support.source import SourceFile
from tilec.tilelang_run.symbols import ElementType, Symbol, make_element_type

_ABSENT = object()
_DECORATORS = ("jit", "lazy_jit", "prim_func", "macro", "inline")
"""The decorators that mean something to the compiler; others are left out of the text."""
_IMPORTS = ("import tilelang", "import tilelang.language as T")


@dataclass(frozen=True)
class PythonFunction:
    """A function of a script, and the frame in which it was defined."""

    function: FunctionType
    frame: FrameType | None

    def find_value(self, name: str) -> object:
        """Return the value that a name has in the function: of a closure, its defining frame or the module; else
        `_ABSENT`.
        """
        code, cells = self.function.__code__, self.function.__closure__ or ()
        if name in code.co_freevars:
            cell = cells[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                return _ABSENT
        if self.frame is not None and name in self.frame.f_locals:
            return self.frame.f_locals[name]
        return self.function.__globals__.get(name, _ABSENT)


@dataclass(frozen=True)
class SourceLines:
    """The text of a function without its indentation, and where it begins."""

    path: str
    first: int
    lines: tuple[str, ...]

    def parse_function(self) -> ast.FunctionDef:
        """Parse the lines to Python's syntax tree of one function; raise `TypeError` if they are no `def`."""
        (node,) = ast.parse("\n".join(self.lines)).body
        if not isinstance(node, ast.FunctionDef):
            raise TypeError(f"{self.path}:{self.first}: a kernel is a function under `def`")
        return node


def read_function(function: FunctionType) -> SourceLines:
    """Return a function's dedented source lines, with its decorators, and its path and first line."""
    lines, first = inspect.getsourcelines(function)
    text = textwrap.dedent("".join(lines))
    return SourceLines(inspect.getsourcefile(function) or "", max(first, 1), tuple(text.rstrip("\n").split("\n")))


def write_value(value: object) -> str | None:
    """Return a Python value as an expression of the kernel language, or None if it cannot be written as one."""
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case Symbol() | ElementType() | bool() | int() | str() | None:
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        case tuple() | list():
            items = [write_value(item) for item in value]
            if None in items:
                return None
            inner = ", ".join(filter(None, items))
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(items) == 1)})"
        case dict():
            pairs = [(write_value(key), write_value(item)) for key, item in value.items()]
            known = [f"{key}: {item}" for key, item in pairs if key is not None and item is not None]
            return f"{{{', '.join(known)}}}" if len(known) == len(pairs) else None
        case _:
            pass
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return repr(make_element_type(value))
    name = getattr(value, "tilelang_name", None)
    return name if isinstance(name, str) else None


# ---- the text --------------------------------------------------------------------------------------------------------


@dataclass
class _KernelText:
    """The text under construction: definitions for its first line, and functions at their lines."""

    path: str
    heads: dict[str, str] = field(default_factory=dict)
    placed: dict[int, str] = field(default_factory=dict)
    appended: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def add_function(self, source: PythonFunction, arguments: Mapping[str, object], decorator: str = "") -> None:
        """Add a function's lines, with these values as parameter defaults, and definitions of all names it uses.
        `decorator` stands above it if none of the compiler's does.
        """
        text = read_function(source.function)
        node = text.parse_function()
        self.names.add(node.name)
        lines = _edit_lines(text.lines, node, arguments)
        first = text.first
        if decorator and not any(_decorator_name(each) in _DECORATORS for each in node.decorator_list):
            lines, first = [decorator, *lines], first - 1
        if text.path == self.path and first > 1:
            self.placed |= dict(enumerate(lines, first))
        else:
            self.appended += ["", *lines]
        own = {argument.arg for argument in _list_parameters(node)}
        for name in dict.fromkeys(_list_names(node)):
            if name not in own and name not in self.names:
                self.add_name(name, source.find_value(name))

    def add_name(self, name: str, value: object) -> None:
        """Add the definition of a name as the value it has in the script: an import, function or constant; skip
        others.
        """
        if isinstance(inner := getattr(value, "source", None), PythonFunction) and hasattr(value, "is_macro"):
            value = inner
        if isinstance(value, FunctionType) and not hasattr(value, "tilelang_name"):
            value = PythonFunction(value, None)
        match value:
            case ModuleType():
                self.names.add(name)
                self.heads[name] = f"import {value.__name__} as {name}"
            case Symbol() if re.fullmatch(r"tvm(\.\w+)+", repr(value)):
                self.names.add(name)
                module, _, last = repr(value).rpartition(".")
                self.heads[name] = f"from {module} import {last} as {name}"
            case PythonFunction(function=function) if function.__name__ == name and _is_of_script(function):
                self.add_function(value, {})
            case PythonFunction(function=function) if function.__name__ == "<lambda>":
                if (text := _find_lambda(function)) is not None:
                    self.names.add(name)
                    self.heads[name] = f"{name} = {text}"
            case PythonFunction(function=function) if not _is_of_script(function):
                self.names.add(name)
                self.heads[name] = f"from {function.__module__} import {function.__name__} as {name}"
            case BuiltinFunctionType(__module__=str(module)) if module != "builtins":
                self.names.add(name)
                self.heads[name] = f"from {module} import {value.__name__} as {name}"
            case _ if value is not _ABSENT and (text := write_value(value)) is not None:
                self.names.add(name)
                self.heads[name] = f"{name} = {text}"
            case _:
                pass

    def join_text(self) -> str:
        """Return the whole text: imports and constants on line 1, the script's functions at their own lines, others
        after.
        """
        head = "; ".join([*_IMPORTS, *self.heads.values()])
        last = max(self.placed, default=1)
        lines = [head, *(self.placed.get(line, "") for line in range(2, last + 1)), *self.appended]
        return "\n".join(lines) + "\n"


def write_kernel(source: PythonFunction, arguments: Mapping[str, object], decorator: str = "") -> SourceFile:
    """Return a kernel file's text for a Python function with these arguments, under the script's path. `arguments` are
    the values of the function's parameters; `decorator` stands above the function if none of the compiler's does.

    Raises `TypeError` for an argument that a kernel cannot be given.
    """
    text = _KernelText(inspect.getsourcefile(source.function) or "")
    text.add_function(source, arguments, decorator)
    return SourceFile(text.path, text.join_text())


def _edit_lines(lines: tuple[str, ...], node: ast.FunctionDef, arguments: Mapping[str, object]) -> list[str]:
    """Return a function's lines with these defaults, and host decorators blanked; raise `TypeError` for unwritable
    values.
    """
    edited = [line.encode() for line in lines]
    for argument, default in reversed(_list_defaults(node)):
        if argument.arg not in arguments:
            continue
        value = write_value(arguments[argument.arg])
        if value is None:
            kind = type(arguments[argument.arg]).__name__
            raise TypeError(f"{node.name}: `{argument.arg}` is a value that a kernel cannot be given ({kind})")
        begin = (argument.end_lineno or 1, argument.end_col_offset or 0)
        end = begin if default is None else (default.end_lineno or 1, default.end_col_offset or 0)
        tail = edited[end[0] - 1][end[1] :]
        edited[begin[0] - 1] = edited[begin[0] - 1][: begin[1]] + f" = {value}".encode() + tail
        for line in range(begin[0], end[0]):
            edited[line] = b""
    for decorator in node.decorator_list:
        if _decorator_name(decorator) not in _DECORATORS:
            for line in range(decorator.lineno - 1, decorator.end_lineno or decorator.lineno):
                edited[line] = b""
    return [line.decode() for line in edited]


def _list_parameters(node: ast.FunctionDef) -> list[ast.arg]:
    """Return the parameters of a function, without `*args` and `**kwargs`."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _list_defaults(node: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """Return each parameter of a function with its default, or None, in the order of the text."""
    listed = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [None] * (len(listed) - len(node.args.defaults))
    defaults += [*node.args.defaults, *node.args.kw_defaults]
    return list(zip([*listed, *node.args.kwonlyargs], defaults, strict=True))


def _decorator_name(decorator: ast.expr) -> str:
    """Return the last name of a decorator, called or not: `jit` for `@tilelang.jit(out_idx=-1)`; else ""."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def has_decorator(node: ast.FunctionDef, name: str) -> bool:
    """Return whether one of a function's decorators has this last name."""
    return any(_decorator_name(decorator) == name for decorator in node.decorator_list)


def _list_names(node: ast.FunctionDef) -> Iterator[str]:
    """Yield every name that a function's text uses, except in decorators that the compiler does not know."""
    kept = [each for each in node.decorator_list if _decorator_name(each) in _DECORATORS]
    for part in (*kept, node.args, *([] if node.returns is None else [node.returns]), *node.body):
        yield from (each.id for each in ast.walk(part) if isinstance(each, ast.Name))


def _is_of_script(function: FunctionType) -> bool:
    """Return whether a function's file is the user's own, and not of Python or an installed package."""
    path = function.__code__.co_filename
    return not path.startswith((sys.prefix, sys.base_prefix, "<")) and "site-packages" not in path


def _find_lambda(function: FunctionType) -> str | None:
    """Return the text of a lambda function, or None if its source lines hold several lambdas or cannot be parsed."""
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return None
    found = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
    return ast.unparse(found[0]) if len(found) == 1 else None
