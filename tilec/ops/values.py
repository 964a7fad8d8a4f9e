"""What an expression of a kernel evaluates to at compile time, before an operation has looked at it."""

from __future__ import annotations

from dataclasses import dataclass as standard
from dataclasses import field
from typing import Any, Literal, NoReturn, Union

from tilec.diag import CompileError, Diagnostic, Label, fail
from tilec.ir.tile import Binary, Buffer, Call, Cast, Const, Expr, Load, LoopLayout, Select, Unary, Var
from tilec.ir.types import DType
from tilec.records import dataclass
from tilec.source import Span
from tilec.syntax.ast import Function as FunctionNode
from tilec.syntax.ast import Lambda

Policy = {"Square": "square", "FullRow": "full_row", "FullCol": "full_col"}
"""The members of `T.GemmWarpPolicy`, and what the IR calls them."""


@dataclass(frozen=True, slots=True)
class Range:
    """`start:stop` of one dimension; the extent is known at compile time, the start may not be."""

    start: Expr
    extent: int


@dataclass(frozen=True, slots=True)
class Access:
    """`buffer[...]` as written: an element, a box, or a corner whose extents come from the other side of a copy."""

    buffer: Buffer
    indices: tuple[Expr | Range, ...]

    @property
    def has_extent(self) -> bool:
        return any(isinstance(i, Range) for i in self.indices)


@dataclass(frozen=True, slots=True)
class Member:
    """A name that means something only when called or looked into: `T.copy`, `T.GemmWarpPolicy`, `math`, `T` itself."""

    path: str


@dataclass(frozen=True, slots=True)
class WarpPolicy:
    """A member of `T.GemmWarpPolicy`."""

    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a dictionary, and where both its sides stand."""

    key: Value
    value: Value
    span: Span = field(compare=False)


@standard(slots=True)
class Dictionary:
    """Of compile time. Its entries are replaced as a whole, so that who holds them sees no change. `home` is the body
    of statements that it was made in."""

    entries: tuple[Entry, ...]
    home: Any = field(default=None, compare=False, repr=False)

    def find(self, key: Value) -> Entry | None:
        return next((e for e in self.entries if e.key == key), None)

    def put(self, key: Value, value: Value, span: Span) -> None:
        """As Python does it: a key that is there keeps its place."""
        old = self.find(key)
        if old is None:
            self.entries += (Entry(key, value, span),)
        else:
            self.entries = tuple(Entry(key, value, span) if e is old else e for e in self.entries)


@standard(slots=True)
class List:
    """Of compile time. Operations are shown it as a tuple. `home` is the body of statements that it was made in."""

    items: list[Value]
    home: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Function:
    """What `def` or `lambda` makes: evaluated where it is called, with the names of where it stands in `scope`.

    A kernel is elaborated rather than called; a macro's loops and branches are the kernel's."""

    node: Lambda | FunctionNode
    scope: Any = field(default=None, compare=False)
    kind: Literal["function", "macro", "kernel"] = "function"

    @property
    def name(self) -> str:
        return "the lambda" if isinstance(self.node, Lambda) else self.node.name


@dataclass(frozen=True, slots=True)
class Method:
    """`owner.name`, of a value known at compile time."""

    owner: Value
    name: str


@dataclass(frozen=True, slots=True)
class File:
    """An imported kernel file: `scope` has its names."""

    name: str
    scope: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class Reference:
    """A parameter that is T.Ref: the element that the caller has named."""

    access: Access


@dataclass(frozen=True, slots=True)
class Unusable:
    """What a name stands for that a kernel must not use, and why: nothing where it has been said already."""

    mistake: Diagnostic | None

    def refuse(self, name: str, span: Span) -> NoReturn:
        if self.mistake is None:
            raise CompileError()
        at = () if self.mistake.primary is None else (Label(self.mistake.primary.span, self.mistake.title),)
        fail(
            "foreign-code",
            f"`{name}` is not known at compile time",
            span,
            "needed here",
            secondary=at,
            help="what belongs to a kernel is written in the kernel language; other Python is never executed",
        )


Static = Union[
    int, float, bool, str, None, DType, WarpPolicy, Dictionary, List, Function, Method, File, Reference, Unusable, range,
    LoopLayout, "tuple[Value, ...]",
]  # fmt: skip
Value = Static | Buffer | Access | Member | Expr
"""Python values stay Python values until they meet a typed operand; `Expr` is what is known at run time only."""

EXPR_TYPES = (Const, Var, Unary, Binary, Call, Cast, Select, Load)


def describe(value: Value) -> str:
    """What a value is, in the words of a message."""
    match value:
        case bool() | None:
            return f"{value}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {value!r}"
        case DType(name=name):
            return f"the dtype {name}"
        case WarpPolicy():
            return "a warp policy"
        case Dictionary():
            return "a dictionary"
        case List(items=items):
            return f"a list of {len(items)}"
        case Function(node=Lambda()):
            return "a lambda"
        case Function(kind=kind, name=name):
            return f"the {kind} {name}"
        case Method(name=name):
            return f"the method {name}"
        case File(name=name):
            return f"the file {name}"
        case Reference(access=access):
            return f"an element of {access.buffer.name}"
        case Unusable():
            return "a value of Python's"
        case range():
            return "a range"
        case LoopLayout():
            return "a layout"
        case tuple():
            return f"a tuple of {len(value)}"
        case Buffer(name=name, shape=shape, dtype=dtype, scope=scope):
            kind = {"global": "tensor", "shared": "shared tile", "fragment": "fragment"}[scope]
            return f"{name}, {_a(dtype)} {kind} of shape {show_shape(shape)}"
        case Access(buffer=buffer):
            return f"a part of {buffer.name}"
        case Member(path=path):
            return f"{path} itself"
        case _:
            return f"{_a(value.dtype)} known only at run time"


def _a(dtype: DType) -> str:
    return f"an {dtype}" if dtype.name.startswith("i") else f"a {dtype}"


def show_shape(shape: tuple[int, ...]) -> str:
    """`[128, 64]`."""
    return f"[{', '.join(map(str, shape))}]"
