"""Resolution of the names of a kernel file: their definitions and uses, from the text alone.

Names belong to the file, a function, a lambda or a comprehension, as in Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.imports import is_relative_import, list_import_paths
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass
from tilec.support.source import Span

Kind = Literal["constant", "variable", "buffer", "function", "kernel", "macro", "parameter", "module", "imported"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an imported name: the candidate paths, relative to the file's folder, and its name there (None
    where it is the file itself)."""

    files: tuple[str, ...]
    name: str | None


@dataclass(eq=False, slots=True)
class Symbol:
    """One name of one scope. `places` are its definitions, `uses` its reads; `node` is the definition of a function,
    `origin` the origin of an imported name."""

    name: str
    kind: Kind
    scope: Scope = field(repr=False)
    places: list[Span] = field(default_factory=list)
    uses: list[Span] = field(default_factory=list)
    node: ast.Function | None = None
    origin: Origin | None = None

    @property
    def spans(self) -> list[Span]:
        """Return all definitions and uses of the symbol, each once, in the order of the text."""
        return sorted({*self.places, *self.uses}, key=_start_place)

    def definition_of_use(self, line: int, column: int) -> Span:
        """Return the span of the last definition at or before a use, else the first; of a buffer always the first."""
        if self.kind == "buffer":
            return self.places[0]
        before = [span for span in self.places if _start_place(span) <= (line, column)]
        return before[-1] if before else self.places[0]


@dataclass(eq=False, slots=True)
class Scope:
    """The names of a function, or of the file. `span` is all of its text."""

    span: Span
    parent: Scope | None = None
    symbols: dict[str, Symbol] = field(default_factory=dict)

    def find(self, name: str) -> Symbol | None:
        """Return the symbol that a name means in this scope: its own, else an outer scope's, or None."""
        if name in self.symbols:
            return self.symbols[name]
        return None if self.parent is None else self.parent.find(name)


@dataclass(frozen=True, slots=True)
class Member:
    """`base.name`, where the base is a name."""

    base: Symbol
    name: str
    span: Span


@dataclass(slots=True)
class Names:
    """All names of a file; `stars` are the files from which it imports all names. `is_whole`: all of its text could be
    parsed."""

    module: ast.Module
    is_whole: bool = True
    scopes: list[Scope] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    stars: list[Origin] = field(default_factory=list)
    unresolved: dict[Span, str] = field(default_factory=dict)

    @property
    def top(self) -> Scope:
        return self.scopes[0]

    def symbols(self) -> Iterator[Symbol]:
        """Yield the symbols of all scopes of the file."""
        for scope in self.scopes:
            yield from scope.symbols.values()

    def at(self, line: int, column: int) -> tuple[Symbol, Span] | None:
        """Return the symbol that has an occurrence at a place, or ending there, with the span of that; or None."""
        for symbol in self.symbols():
            for span in symbol.spans:
                if is_in_span(span, line, column):
                    return symbol, span
        return None

    def member_at(self, line: int, column: int) -> Member | None:
        """Return the `base.name` whose part `name` is at a place, or None."""
        return next((m for m in self.members if is_in_span(m.span, line, column)), None)

    def unresolved_at(self, line: int, column: int) -> str | None:
        """Return the name at a place that no scope defines, or None."""
        return next((name for span, name in self.unresolved.items() if is_in_span(span, line, column)), None)

    def visible(self, line: int, column: int) -> dict[str, Symbol]:
        """Return the symbols visible at a place, by name; an inner scope hides the names of outer ones."""
        inside = [scope for scope in self.scopes if scope is self.top or is_in_span(scope.span, line, column)]
        found: dict[str, Symbol] = {}
        for scope in reversed(inside):
            for name, symbol in scope.symbols.items():
                found.setdefault(name, symbol)
        return found


def is_in_span(span: Span, line: int, column: int) -> bool:
    """Return whether a place lies in the span or at its end."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def _start_place(span: Span) -> tuple[int, int]:
    """Return the line and column where a span begins."""
    return span.line, span.column


def resolve_names(module: ast.Module, is_whole: bool = True) -> Names:
    """Return the scopes, symbols, uses and members of a parsed file, from its syntax alone."""
    names = Names(module, is_whole)
    reader = _NameResolver(names)
    top = reader.open_scope(module.span, None)
    reader.bind_all(module.body, top)
    for statement in module.body:
        reader.visit_node(statement, top)
    for function, name, span in reader.keywords:
        reader.functions[IdentityKey(function)].symbols[name].uses.append(span)
    return names


class _NameResolver:
    """Binds the names of each scope, then resolves the uses in it."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.functions: dict[IdentityKey[ast.Function], Scope] = {}
        self.keywords: list[tuple[ast.Function, str, Span]] = []
        """`name=` in calls of functions of the file: that function's parameters."""

    def open_scope(self, span: Span, parent: Scope | None) -> Scope:
        """Add a scope with this text and parent to the file's scopes, and return it."""
        scope = Scope(span, parent)
        self.names.scopes.append(scope)
        return scope

    # ---- bindings ----------------------------------------------------------------------------------------------------

    def bind_all(self, body: tuple[ast.Stmt, ...], scope: Scope) -> None:
        """Define in a scope all names that statements bind, also in nested blocks, but not inside functions. A
        statement of other Python counts if it binds a single name.
        """
        for node in body:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._bind_target(target, _kind_of_value(value, scope), scope)
                case ast.AnnotatedAssign(target=target, annotation=annotation):
                    self._bind_target(target, _kind_of_value(annotation, scope), scope)
                case ast.Function():
                    symbol = self._bind_name(node.name, node.name_span, _kind_of_function(node), scope)
                    symbol.node = symbol.node or node
                case ast.Foreign(names=(name,), span=span):
                    self._bind_name(name, _find_word(span, name, node.text), "function", scope)
                case ast.Import():
                    self._bind_import(node, scope)
                case ast.For(target=target, body=inside):
                    self._bind_target(target, "variable", scope)
                    self.bind_all(inside, scope)
                case ast.With(target=target, body=inside):
                    if target is not None:
                        self._bind_target(target, "variable", scope)
                    self.bind_all(inside, scope)
                case ast.While(body=inside):
                    self.bind_all(inside, scope)
                case ast.If(then=then, orelse=orelse):
                    self.bind_all((*then, *orelse), scope)
                case _:
                    pass

    def _bind_name(self, name: str, span: Span, kind: Kind, scope: Scope) -> Symbol:
        """Add a definition of a name to a scope, and return its symbol."""
        symbol = scope.symbols.setdefault(name, Symbol(name, kind, scope))
        symbol.places.append(span)
        return symbol

    def _bind_target(self, target: ast.Expr | ast.Starred, kind: Kind, scope: Scope) -> None:
        """Define the plain names in an assignment's target, also in tuples, as symbols of a kind."""
        match target:
            case ast.Name(id=name, span=span):
                self._bind_name(name, span, kind, scope)
            case ast.Tuple(items=items) | ast.List(items=items):
                for item in items:
                    self._bind_target(item, kind, scope)
            case _:
                pass

    def _bind_import(self, node: ast.Import, scope: Scope) -> None:
        """Define the names that an import binds, with the files they may come from; note star imports."""
        origins: dict[Span, Origin] = {}
        for alias, file, itself in list_import_paths(node, "") if is_relative_import(node) else ():
            if alias.name == "*":
                self.names.stars.append(Origin((file,) if file else (), None))
            elif file is not None:
                origins[alias.span] = Origin((file, *((itself,) if itself else ())), alias.name)
            elif itself is not None:
                origins[alias.span] = Origin((itself,), None)
        for alias in node.names:
            local = alias.alias or alias.name.split(".")[0]
            if local == "*":
                continue
            # The last word where it has another name here, else the first.
            at = alias.span
            line, column = (at.end_line, at.end_column - len(local)) if alias.alias else (at.line, at.column)
            span = Span(line, column, line, column + len(local))
            origin = origins.get(alias.span)
            is_name = origin.name is not None if origin is not None else node.module is not None
            symbol = self._bind_name(local, span, "imported" if is_name else "module", scope)
            symbol.origin = symbol.origin or origin

    # ---- uses --------------------------------------------------------------------------------------------------------

    def visit_node(self, node: ast.Node, scope: Scope) -> None:
        """Record the names that a node uses, opening scopes for functions, lambdas and comprehensions. Unknown names
        are kept as unresolved.
        """
        match node:
            case ast.Name(id=name, span=span):
                symbol = scope.find(name)
                if symbol is None:
                    self.names.unresolved[span] = name
                elif span not in symbol.places:
                    symbol.uses.append(span)
            case ast.Attribute(value=value, name=name, span=span):
                self.visit_node(value, scope)
                if isinstance(value, ast.Name) and (base := scope.find(value.id)) is not None:
                    end = Span(span.end_line, span.end_column - len(name), span.end_line, span.end_column)
                    self.names.members.append(Member(base, name, end))
            case ast.Call(function=function, keywords=keywords):
                self._visit_parts(node, scope)
                called = scope.find(function.id) if isinstance(function, ast.Name) else None
                if called is not None and called.node is not None:
                    self._note_keywords(keywords, called.node)
            case ast.Function():
                self._visit_function(node, scope)
            case ast.Lambda(params=params, body=body, span=span):
                inner = self.open_scope(span, scope)
                self._bind_parameters(params, scope, inner)
                self.visit_node(body, inner)
            case ast.Comprehension(span=span, clauses=clauses):
                inner = self.open_scope(span, scope)
                for clause in clauses:
                    self._bind_target(clause.target, "variable", inner)
                self._visit_parts(node, inner)
            case _:
                self._visit_parts(node, scope)

    def _visit_parts(self, node: Any, scope: Scope) -> None:
        """Visit the nodes in a node's fields, or in a tuple, at any depth of tuples."""
        parts = node if isinstance(node, tuple) else [getattr(node, f.name) for f in dataclasses.fields(node)]
        for part in parts:
            if isinstance(part, tuple):
                self._visit_parts(part, scope)
            elif isinstance(part, ast.Node):
                self.visit_node(part, scope)

    def _visit_function(self, node: ast.Function, scope: Scope) -> None:
        """Open a function's scope, bind its parameters and names, and record the uses in its parts."""
        inner = self.functions[IdentityKey(node)] = self.open_scope(node.span, scope)
        self._bind_parameters(node.params, scope, inner)
        self.bind_all(node.body, inner)
        for part in (*node.decorators, *((node.returns,) if node.returns else ())):
            self.visit_node(part, scope)
        for statement in node.body:
            self.visit_node(statement, inner)

    def _bind_parameters(self, params: tuple[ast.Parameter, ...], scope: Scope, inner: Scope) -> None:
        """Define parameters in the inner scope, and record the uses in annotations and, outside it, in defaults."""
        for p in params:
            if not p.name:
                continue
            start = p.span.column + (0 if p.span.end_column - p.span.column == len(p.name) else len(p.kind))
            self._bind_name(p.name, Span(p.span.line, start, p.span.line, start + len(p.name)), "parameter", inner)
        for p in params:
            for part in (p.annotation, p.default):
                if part is not None:
                    self.visit_node(part, inner if part is p.annotation else scope)

    def _note_keywords(self, keywords: tuple[ast.Keyword, ...], called: ast.Function) -> None:
        """Record `name=` arguments of a call, to become uses of the called function's parameters."""
        names = {p.name for p in called.params}
        for keyword in keywords:
            if keyword.name in names:
                at = keyword.span
                span = Span(at.line, at.column, at.line, at.column + len(keyword.name))
                self.keywords.append((called, keyword.name, span))


def _kind_of_value(value: ast.Expr, scope: Scope) -> Kind:
    """Return "buffer" for a value that allocates or types a tensor, else "constant" in the file's scope or
    "variable".
    """
    function = value.function if isinstance(value, ast.Call) else value
    if isinstance(function, ast.Attribute) and function.name.startswith(("alloc_", "Tensor", "StridedTensor", "empty")):
        return "buffer"
    return "constant" if scope.parent is None else "variable"


def _kind_of_function(node: ast.Function) -> Kind:
    """Return "kernel", "macro" or "function", by the last names of a function's decorators."""
    for decorator in node.decorators:
        function = decorator.function if isinstance(decorator, ast.Call) else decorator
        name = function.name if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in ("prim_func", "jit"):
            return "kernel"
        if name in ("macro", "inline"):
            return "macro"
    return "function"


def _find_word(span: Span, name: str, text: str) -> Span:
    """Return the span of a name's first occurrence in unparsed text, skipping decorators and comments; `span` if
    none.
    """
    for down, line in enumerate(text.split("\n")):
        if not line.startswith(("@", "#")) and name in line:
            column = line.index(name) + 1
            return Span(span.line + down, column, span.line + down, column + len(name))
    return span
