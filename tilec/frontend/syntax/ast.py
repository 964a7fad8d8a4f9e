"""The syntax tree of a kernel file, before name resolution.

Equality ignores spans, so that a tree that is printed and parsed again equals itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, fields, replace
from typing import Any, Literal, TypeVar

from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Node:
    """A part of the tree, which the file has at `span`."""

    span: Span = field(default=NOWHERE, compare=False, kw_only=True)


# ---- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number(Node):
    value: int | float


@dataclass(frozen=True, slots=True)
class String(Node):
    value: str


@dataclass(frozen=True, slots=True)
class Formatted(Node):
    """`{value!conversion:spec}` in an f-string."""

    value: Expr
    conversion: Literal["", "r", "s", "a"] = ""
    spec: str = ""


@dataclass(frozen=True, slots=True)
class JoinedString(Node):
    """An f-string: text and formatted values, no two texts in a row."""

    parts: tuple[String | Formatted, ...]


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """`True`, `False`, `None` or `...`, by its spelling."""

    name: Literal["True", "False", "None", "..."]


@dataclass(frozen=True, slots=True)
class Name(Node):
    id: str


@dataclass(frozen=True, slots=True)
class Attribute(Node):
    value: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Starred(Node):
    """`*value` in a call, a tuple or a list."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Keyword(Node):
    """`name=value` in a call; `**value` has the name `**`."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Call(Node):
    function: Expr
    args: tuple[Expr | Starred, ...] = ()
    keywords: tuple[Keyword, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice(Node):
    """`lower:upper:step` inside a subscript."""

    lower: Expr | None = None
    upper: Expr | None = None
    step: Expr | None = None


@dataclass(frozen=True, slots=True)
class Subscript(Node):
    value: Expr
    indices: tuple[Expr | Slice, ...]


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    items: tuple[Expr | Starred, ...]


@dataclass(frozen=True, slots=True)
class List(Node):
    items: tuple[Expr | Starred, ...]


@dataclass(frozen=True, slots=True)
class Dict(Node):
    items: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True)
class Clause(Node):
    """`for target in iterable if condition …` of a comprehension."""

    target: Expr
    iterable: Expr
    conditions: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Comprehension(Node):
    """`[element for …]`, a generator, or `{element: value for …}`."""

    kind: Literal["list", "generator", "dict"]
    element: Expr
    value: Expr | None
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True)
class Lambda(Node):
    """`lambda params: body`. Its parameters have names and defaults, or one star; no annotations."""

    params: tuple[Parameter, ...]
    body: Expr


UnaryOp = Literal["-", "+", "~", "not"]
BinaryOp = Literal["+", "-", "*", "/", "//", "%", "@", "**", "&", "|", "^", "<<", ">>"]
CompareOp = Literal["<", "<=", ">", ">=", "==", "!=", "in", "not in", "is", "is not"]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    op: UnaryOp
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: BinaryOp
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Compare(Node):
    """A chain, as in `0 <= i < n`: one operator for each operand after the first."""

    first: Expr
    ops: tuple[CompareOp, ...]
    rest: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Boolean(Node):
    op: Literal["and", "or"]
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Conditional(Node):
    """`then if condition else orelse`."""

    condition: Expr
    then: Expr
    orelse: Expr


Expr = (
    Number | String | JoinedString | Constant | Name | Attribute | Call | Subscript | Tuple | List | Dict
    | Unary | Binary | Compare | Boolean | Conditional | Lambda | Comprehension
)  # fmt: skip


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alias(Node):
    """`name` or `name as alias` in an import."""

    name: str
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Import(Node):
    """`import names`, or `from module import names`; `*` is a name here, and a relative module has its dots."""

    names: tuple[Alias, ...]
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`target = value`, or `a = b = value` with several targets."""

    targets: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class AnnotatedAssign(Node):
    target: Expr
    annotation: Expr
    value: Expr | None


@dataclass(frozen=True, slots=True)
class AugmentedAssign(Node):
    target: Expr
    op: BinaryOp
    value: Expr


@dataclass(frozen=True, slots=True)
class Evaluate(Node):
    """An expression as a statement."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Pass(Node):
    """`pass`."""


@dataclass(frozen=True, slots=True)
class Break(Node):
    """`break`."""


@dataclass(frozen=True, slots=True)
class Continue(Node):
    """`continue`."""


@dataclass(frozen=True, slots=True)
class Return(Node):
    value: Expr | None = None


@dataclass(frozen=True, slots=True)
class Raise(Node):
    """`raise error from cause`, without the cause."""

    error: Expr | None = None


@dataclass(frozen=True, slots=True)
class Assert(Node):
    condition: Expr
    message: Expr | None = None


@dataclass(frozen=True, slots=True)
class If(Node):
    """`if`, `elif`, `else`. An `elif` is a single If in `orelse`."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class For(Node):
    target: Expr
    iterable: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class While(Node):
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class With(Node):
    context: Expr
    target: Expr | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Parameter(Node):
    """A parameter of a function. `kind` is the star or stars before the name. A lone `*` has an empty name."""

    name: str
    annotation: Expr | None = None
    default: Expr | None = None
    kind: Literal["", "*", "**"] = ""


@dataclass(frozen=True, slots=True)
class Function(Node):
    """A `def`. `name_span` is the span of the name alone, for messages about the whole function."""

    name: str
    params: tuple[Parameter, ...]
    body: tuple[Stmt, ...]
    decorators: tuple[Expr, ...] = ()
    returns: Expr | None = None
    name_span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Foreign(Node):
    """A Python statement at the top of the file that is not in the kernel language, such as a test or a reference.

    A use of one of `names`, which it would define, is a mistake, explained by `parse.diagnose_foreign`. `text` has its
    lines."""

    names: tuple[str, ...]
    text: str


Stmt = (
    Import | Assign | AnnotatedAssign | AugmentedAssign | Evaluate | Pass | Break | Continue | Return | Raise | Assert
    | If | For | While | With | Function | Foreign
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Module(Node):
    body: tuple[Stmt, ...]


N = TypeVar("N", bound=Node)


def walk_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants, each before its children, in the order of the fields."""
    yield node
    for child in list_children(node):
        yield from walk_nodes(child)


def list_children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly inside a node, in the order of the fields."""
    for f in fields(node):
        yield from _find_nodes(getattr(node, f.name))


def _find_nodes(value: object) -> Iterator[Node]:
    """Yield the nodes in a field's value: a node, or tuples of nodes at any depth."""
    if isinstance(value, tuple):
        for item in value:
            yield from _find_nodes(item)
    elif isinstance(value, Node):
        yield value


def replace_spans(node: N, place: Callable[[Node], Span]) -> N:
    """Return a copy of a tree in which each node has the span that `place` returns for it."""
    changed = {f.name: _replace_spans_in(getattr(node, f.name), place) for f in fields(node)}
    changed |= {name: place(node) for name in ("span", "name_span") if name in changed}
    return replace(node, **changed)


def _replace_spans_in(value: Any, place: Callable[[Node], Span]) -> Any:
    """Return a field's value with the spans of the nodes in it, at any depth, computed by `place`."""
    if isinstance(value, tuple):
        return tuple(_replace_spans_in(item, place) for item in value)
    return replace_spans(value, place) if isinstance(value, Node) else value


def set_spans(node: Node, change: Callable[[Span], Span]) -> None:
    """Replace each span in a tree, in place, by what `change` returns for it. The tree must not be shared yet."""
    for part in walk_nodes(node):
        object.__setattr__(part, "span", change(part.span))
        if isinstance(part, Function):
            object.__setattr__(part, "name_span", change(part.name_span))
