"""The kinds of values that the text of a TileLang script shows.

Beside Python's own: types of elements, tensors without their elements, records, and Python that -D takes as it is.
"""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass
from typing import Any

DTYPE = re.compile(r"(u?int|float)(\d+)?(_\w+)?|bfloat16|half|long|bool")
"""The names of types, in TileLang and in torch."""
UNKNOWN = object()
"""An item of a tuple whose value is not to be seen in the text."""


class Unknown(Exception):
    """The value of an expression is not to be seen in the text."""


class Text(str):
    """Python that -D takes as it is: a name of the language, or a lambda."""


class Dtype(str):
    """A type of elements, by its name without `T.` or `torch.`."""

    @property
    def bits(self) -> int:
        """Return the number in the type's name, as 16 for float16; 8 for a name without a number."""
        found = re.search(r"\d+", self)
        return int(found[0]) if found else 8


FLOAT32 = Dtype("float32")


@dataclass(frozen=True)
class Tensor:
    """A tensor of torch: its shape, the type of its elements, and its elements where a list gives them."""

    shape: tuple[int, ...]
    dtype: Dtype = FLOAT32
    items: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Return an element, or for slices a tensor; raise Unknown if an element is not known."""
        places = index if isinstance(index, tuple) else (index,)
        if self.items is None and all(isinstance(place, slice) for place in places):
            taken = [len(range(*place.indices(self.shape[axis]))) for axis, place in enumerate(places)]
            return Tensor((*taken, *self.shape[len(places) :]), self.dtype)
        if self.items is None:
            raise Unknown
        taken = self.items[index]
        return Tensor((len(taken),), self.dtype, taken) if isinstance(index, slice) else taken


@dataclass
class Record:
    """An instance of a class of the file: its fields with their defaults."""

    fields: dict[str, Any]


class LambdaFiller(ast.NodeTransformer):
    """Writes the values of names that -D would not know into a lambda: numbers, types and names of the language."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """Return the lambda with its body filled in, but for its own parameters."""
        self.known = {k: v for k, v in self.known.items() if k not in {a.arg for a in node.args.args}}
        node.body = self.visit(node.body)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the number, type or text known for a name as an expression, or the name itself."""
        value = self.known.get(node.id)
        if isinstance(value, Dtype):
            return ast.Attribute(ast.Name("T"), str(value))
        if isinstance(value, Text):
            return ast.parse(value, mode="eval").body
        return ast.Constant(value) if isinstance(value, int | float) else node


def as_lambda(function: ast.FunctionDef) -> ast.Lambda:
    """Return a function of assignments and one result as a lambda; raise Unknown for any other."""
    inner = LambdaFiller({})
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                inner.known[name] = Text(ast.unparse(inner.visit(copy.deepcopy(value))))
            case ast.Return(value=ast.expr() as value):
                return ast.Lambda(function.args, inner.visit(copy.deepcopy(value)))
            case _:
                break
    raise Unknown
