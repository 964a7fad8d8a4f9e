"""Runs the text of a kernel as the Python that it is, over lists of integers: the judge of the order of evaluation.

Three things of the language are no Python. A variable that T.alloc_var made is set by `=`, also through a parameter of
type T.Ref: such names become the attribute `value` of a cell, and what is given to such a parameter a cell or the place
of an element. A tensor gives 0 outside, and drops what is stored there. `T.loop_break()` is `break`. The rest runs
unchanged: T.Parallel in a shuffled order, all other loops in theirs.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

CHANGED_FIRST = {"atomic_add", "atomic_max", "atomic_min"}
"""Functions of the language that change what their first argument is the place of."""


def run(text: str, arrays: Mapping[str, list[int]], scalars: Mapping[str, int], seed: int) -> None:
    """Run the only kernel of a file. The arrays are changed in place."""
    tree = ast.parse(text)
    tree.body = [stmt for stmt in tree.body if not isinstance(stmt, ast.Import)]
    references = {f.name: _references(f) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
    tree = ast.fix_missing_locations(_Cells(references).visit(tree))
    kernels: list[Any] = []
    names = {"T": _language(random.Random(seed), kernels), "_Cell": Cell, "_Place": Place}
    exec(compile(tree, "kernel", "exec"), names)
    (kernel,) = kernels
    kernel(**{name: Tensor(array) for name, array in arrays.items()}, **scalars)


class Cell:
    """A variable."""

    def __init__(self, value: int = 0) -> None:
        self.value = value


class Tensor:
    """An array that is 0 outside; what is stored there is dropped."""

    def __init__(self, elements: list[int]) -> None:
        self.elements = elements

    def __getitem__(self, index: int) -> int:
        return self.elements[index] if 0 <= index < len(self.elements) else 0

    def __setitem__(self, index: int, value: int) -> None:
        if 0 <= index < len(self.elements):
            self.elements[index] = value


class Tile(list[int]):
    """An array that has no outside."""

    def __getitem__(self, index: Any) -> Any:
        assert 0 <= index < len(self)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert 0 <= index < len(self)
        super().__setitem__(index, value)


class Place:
    """An element, whose index is that of when it was named."""

    def __init__(self, array: Tensor | Tile, index: int) -> None:
        self.array, self.index = array, index

    @property
    def value(self) -> int:
        return self.array[self.index]

    @value.setter
    def value(self, value: int) -> None:
        self.array[self.index] = value


# ---- the language ----------------------------------------------------------------------------------------------------


def _language(rng: random.Random, kernels: list[Any]) -> Any:
    @contextmanager
    def launch(*grid: int, threads: int = 1) -> Iterator[int]:
        assert grid == (1,)
        yield 0

    def parallel(extent: int) -> Sequence[int]:
        return rng.sample(range(extent), extent)

    def array(shape: tuple[int], dtype: str) -> Tile:
        return Tile([0] * shape[0])

    def unroll(*bounds: int, explicit: bool = False, unroll_factor: int = 1) -> range:
        return range(*bounds)

    def atomic(combine: Any) -> Any:
        def change(place: Place, value: int, return_prev: bool = False) -> int | None:
            before = place.value
            place.value = combine(before, value)
            return before if return_prev else None

        return change

    return SimpleNamespace(
        prim_func=kernels.append, macro=lambda f: f, Kernel=launch, Parallel=parallel, serial=range, unroll=unroll,
        Tensor=lambda shape, dtype: None, Ref=None, int32=None, alloc_var=lambda dtype, init=0: Cell(init),
        alloc_fragment=array, alloc_shared=array, if_then_else=lambda c, a, b: a if c else b, min=min, max=max,
        atomic_add=atomic(lambda a, b: a + b), atomic_max=atomic(max), atomic_min=atomic(min),
    )  # fmt: skip


# ---- the text --------------------------------------------------------------------------------------------------------


def _references(node: ast.FunctionDef) -> set[int]:
    """The places of the parameters of type T.Ref."""
    found = [ast.unparse(a.annotation) if a.annotation else "" for a in node.args.args]
    return {place for place, annotation in enumerate(found) if annotation == "T.Ref"}


class _Cells(ast.NodeTransformer):
    def __init__(self, references: dict[str, set[int]]) -> None:
        self.references, self.cells = references, set[str]()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer = self.cells
        self.cells = {node.args.args[place].arg for place in self.references[node.name]}
        self.cells |= {a.targets[0].id for a in ast.walk(node) if _allocates(a)}  # type: ignore[attr-defined]
        for argument in node.args.args:
            argument.annotation = None
        node.body = [self.visit(s) for s in node.body]
        self.cells = outer
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Break() if ast.unparse(node.value) == "T.loop_break()" else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if _allocates(node):  # the cell itself is bound
            node.value = self.visit(node.value)
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.cells:
            return node
        return ast.Attribute(ast.Name(node.id, ast.Load()), "value", node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        changed: set[int] = set()
        if isinstance(node.func, ast.Name):
            changed = self.references.get(node.func.id, set())
        elif isinstance(node.func, ast.Attribute) and node.func.attr in CHANGED_FIRST:
            changed = {0}
        node.args = [self._place(a) if place in changed else self.visit(a) for place, a in enumerate(node.args)]
        node.keywords = [self.visit(k) for k in node.keywords]
        return node

    def _place(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            return node
        assert isinstance(node, ast.Subscript)
        parts: list[ast.expr] = [self.visit(node.value), self.visit(node.slice)]
        return ast.Call(ast.Name("_Place", ast.Load()), parts, [])


def _allocates(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("T.alloc_var(")
