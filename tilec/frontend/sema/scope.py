"""Scopes: the values of names.

A name bound inside a loop or under a run-time condition ends with it, since it has no single value afterwards.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import takewhile

from tilec.frontend.sema.vocabulary import list_supported_names
from tilec.ops.functions.python import BUILTIN_NAMES
from tilec.ops.language.other_languages import find_equivalent
from tilec.ops.language.signature import find_nearest_name
from tilec.ops.language.values import ForeignValue, Member, PoisonedValue, Value
from tilec.support.diagnostics import CompileError, Label, raise_error, suggest_replacement
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Binding:
    """The value of a name. `ended` is the region, as "the loop", with which the name went out of scope; `written` is
    where the file has the value."""

    value: Value
    span: Span
    ended: str | None = None
    written: Span | None = None


BindingListener = Callable[[Span, Value], None]
"""Called with the span and the value of each binding, as by the language server."""


@dataclass(slots=True)
class Scope:
    """The names bound in a region of the kernel.

    `region` describes the region in messages. In a loop (`is_loop`) the body runs more than once, and a function
    (`is_function`) does not bind names outside it. `is_incomplete`: a statement with a mistake should have bound
    unknown names. `given` are the arguments of a function, `iterated` the values its loops run over. `bound` is called
    for each binding here and in inner scopes. `promises` are values with promises, and what shows these."""

    parent: Scope | None = None
    region: str = "the file"
    is_loop: bool = False
    is_function: bool = False
    is_incomplete: bool = False
    names: dict[str, Binding] = field(default_factory=dict)
    given: dict[str, Value] = field(default_factory=dict)
    iterated: list[Value] = field(default_factory=list)
    read_from_outside: dict[str, Span] = field(default_factory=dict)
    bound: BindingListener | None = None
    promises: list[tuple[Value, Value]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take over the parent's binding listener if the scope has none of its own."""
        if self.bound is None and self.parent is not None:
            self.bound = self.parent.bound

    def walk_outwards(self) -> Iterator[Scope]:
        """Yield this scope and the scopes around it, the innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find(self, name: str) -> Binding | None:
        """Return the innermost binding of a name here or further out, also one that has ended, or None."""
        return next((scope.names[name] for scope in self.walk_outwards() if name in scope.names), None)

    def list_visible_names(self) -> list[str]:
        """Return every name bound here or further out whose binding has not ended."""
        return [n for scope in self.walk_outwards() for n, b in scope.names.items() if b.ended is None]

    def read(self, name: str, span: Span) -> Value:
        """Return the value of a name, with promises applied; raise an error for one unknown, ended, poisoned or
        foreign. The use is recorded in the scopes between it and the binding.
        """
        binding = self.find(name)
        if binding is None:
            if self.has_unknown_names():
                raise CompileError
            if (help_text := find_equivalent(name)) is not None:
                raise_error("unknown-name", f"`{name}` is not defined", span, help=help_text)
            if _is_exception(name):
                return Member(name)
            near = self._suggest_name(name)
            help_text = f"did you mean `{near}`?" if near else None
            title = f"`{name}` is not defined"
            raise_error("unknown-name", title, span, help=help_text, fix=suggest_replacement(name, near))
        if binding.ended is not None:
            title = f"`{name}` is used after {binding.ended} it was bound in"
            way_out = "allocate tiles before it; keep a value in T.alloc_var, or choose it by `T.if_then_else`"
            raise_error("out-of-scope", title, span, secondary=(Label(binding.span, "bound here"),), help=way_out)
        if isinstance(binding.value, PoisonedValue):
            raise CompileError
        if isinstance(binding.value, ForeignValue):
            mistake = binding.value.mistake()
            if mistake.code == "missing-define" and mistake.primary is not None:
                raise_error(mistake.code, mistake.title, span, secondary=(mistake.primary,), help=mistake.help)
            at = () if mistake.primary is None else (Label(mistake.primary.span, mistake.title),)
            title = f"`{name}` is not known at compile time"
            way_out = (
                f"tilec evaluates the kernel language only, and runs no other Python; -D {name}=… gives it a value"
            )
            raise_error("foreign-definition", title, span, "needed here", secondary=at, help=way_out)
        for scope in takewhile(lambda scope: name not in scope.names, self.walk_outwards()):
            scope.read_from_outside.setdefault(name, span)
        return self.apply_promise(binding.value)

    def strip_promise(self, value: Value) -> Value:
        """Return the value that a promise had rewritten to this expression, or the value unchanged if there is none."""
        return next((about for about, written in self._list_promises() if value == written), value)

    def apply_promise(self, value: Value) -> Value:
        """Return the expression to which the innermost promise about a value rewrites it, or the value unchanged."""
        return next((written for about, written in self._list_promises() if value == about), value)

    def _list_promises(self) -> Iterator[tuple[Value, Value]]:
        """Yield the promises that hold here, the innermost and latest first."""
        return (promise for scope in self.walk_outwards() for promise in reversed(scope.promises))

    def _suggest_name(self, name: str) -> str | None:
        """Return `T.name` if the language has that, else the visible name most like it, or None."""
        is_of_language = f"T.{name}" in list_supported_names()
        return f"T.{name}" if is_of_language else find_nearest_name(name, self.list_visible_names())

    def has_unknown_names(self) -> bool:
        """Return whether a failed statement may have bound any name, here or further out."""
        return any(scope.is_incomplete for scope in self.walk_outwards())

    def read_attribute(self, path: str, name: str, span: Span) -> Value:
        """Return the value of a name of an imported file, whose scope this is; raise `unknown-name` if it has none."""
        if name not in self.names:
            near = find_nearest_name(name, list(self.names))
            help_text = f"did you mean `{near}`?" if near else None
            title = f"{path} does not define `{name}`"
            raise_error("unknown-name", title, span, help=help_text, fix=suggest_replacement(name, near))
        return self.read(name, span)

    def bind(self, name: str, value: Value, span: Span, written: Span | None = None) -> None:
        """Bind a name to a value in this scope; raise `rebind-in-loop` if the loop read its outer value before. A name
        that is poisoned further out stays poisoned, since it may have been a variable.
        """
        outer = None if name in self.names else self.find(name)
        if outer is not None and isinstance(outer.value, PoisonedValue):
            self.poison(name, outer.span)
            return
        for scope in self.walk_outwards():
            if name in scope.names:
                break
            if scope.is_loop and name in scope.read_from_outside:
                title = f"`{name}` would have to carry a value from one iteration to the next"
                place = Label(scope.read_from_outside[name], "read here, with its value from outside the loop")
                way_out = f"make it a variable before the loop: {name} = T.alloc_var(dtype, init=0)"
                raise_error("rebind-in-loop", title, span, "rebound here", secondary=(place,), help=way_out)
            if scope.is_function:
                break
        self.names[name] = Binding(value, span, written=written)
        if self.bound is not None:
            self.bound(span, value)

    def poison(self, name: str, span: Span) -> None:
        """Mark a name whose definition has a mistake, so that its uses raise no further diagnostics."""
        self.names[name] = Binding(PoisonedValue(), span)

    def is_given(self, name: str) -> bool:
        """Return whether a name still has the value that it got as an argument of the function."""
        return name in self.given and self.names[name].value is self.given[name]

    def is_visible(self, name: str) -> bool:
        """Return whether a name is bound here or further out and has not ended."""
        binding = self.find(name)
        return binding is not None and binding.ended is None

    def close(self) -> None:
        """End the region: its names become unusable in the parent, with the region's name kept for messages. Poisoned
        names stay poisoned.
        """
        assert self.parent is not None, "the outermost scope is never closed"
        for name, binding in self.names.items():
            if isinstance(binding.value, PoisonedValue):
                self.parent.poison(name, binding.span)
                continue
            ended = binding.ended or self.region
            self.parent.names[name] = Binding(None, binding.span, ended)


def _is_exception(name: str) -> bool:
    """Return whether Python has a built-in exception of this name."""
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


def make_language_scope() -> Scope:
    """Make the outermost scope of a file: the modules of the language, and Python's builtin functions."""
    names = ["T", "tilelang", "math", *(n for n in BUILTIN_NAMES if "." not in n)]
    return Scope(None, "the language", names={name: Binding(Member(name), NOWHERE) for name in names})
