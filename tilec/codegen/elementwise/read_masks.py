"""Under which conditions the elements that a nest reads are needed: those that may be stored meanwhile are read nowhere
else.

An element is needed where a step that uses it is done, in the arm of a choice only where that is chosen, and behind
`and` and `or` only where what stands before does not decide. What a condition reads is read before what it allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

from tilec.codegen.elementwise.steps import Step
from tilec.ir import tile
from tilec.ir.types import BOOL

Path = tuple[tile.Expr, ...]
"""Conditions that must all hold, each evaluated only where those before it do."""


def read_masks(steps: list[Step], needs_conditions: Callable[[tile.Load], bool]) -> dict[tile.Load, Path]:
    """Return the conditions under which each element has to be read from memory; none where it may be read anywhere.

    There are none unless it, or an element in its index, `needs_conditions`.
    """
    read = [
        e for step in steps for whole in step.expressions for e in tile.walk_expr(whole) if isinstance(e, tile.Load)
    ]
    if not any(map(needs_conditions, read)):
        return dict.fromkeys(read, ())
    return _Masks(steps, needs_conditions).all()


class _Masks:
    def __init__(self, steps: list[Step], needs_conditions: Callable[[tile.Load], bool]) -> None:
        self.needs_conditions = needs_conditions
        self.uses: dict[tile.Load, dict[Path, None]] = {}
        for step in steps:
            own = [e for e in step.expressions if e not in step.conditions]
            for number, condition in enumerate(step.conditions):
                self.visit(condition, step.conditions[:number])
            for expr in own:
                self.visit(expr, step.conditions)
        self.found: dict[tile.Load, Path] = {}
        self.under_way: set[tile.Load] = set()

    def all(self) -> dict[tile.Load, Path]:
        """Return the conditions under which each used element has to be read."""
        return {load: self.mask(load) for load in self.uses}

    def visit(self, expr: tile.Expr, path: Path) -> None:
        """Record each load in an expression that is evaluated where the path's conditions hold, with its own
        conditions.
        """
        match expr:
            case tile.Load():
                self.uses.setdefault(expr, {})[path] = None
                for index in expr.indices:
                    self.visit(index, path)
            case tile.Select(condition=condition, then=then, orelse=orelse):
                self.visit(condition, path)
                self.visit(then, (*path, condition))
                self.visit(orelse, (*path, _negated(condition)))
            case tile.Binary(op="and" | "or" as op, a=a, b=b):
                self.visit(a, path)
                self.visit(b, (*path, a if op == "and" else _negated(a)))
            case _:
                for part in tile.direct_operands(expr):
                    self.visit(part, path)

    def mask(self, load: tile.Load) -> Path:
        """Return the conditions under which an element has to be read; empty if it may be read anywhere."""
        if load not in self.found:
            self.under_way.add(load)
            paths = [tuple(c for c in path if self.comes_before(c)) for path in self.uses[load]]
            self.under_way.remove(load)
            races = any(self.needs_conditions(part) for part in tile.walk_expr(load) if isinstance(part, tile.Load))
            self.found[load] = _either(paths) if races else ()
        return self.found[load]

    def comes_before(self, condition: tile.Expr) -> bool:
        """Return whether a condition reads none of the elements whose masks are still being computed."""
        read = [part for part in tile.walk_expr(condition) if isinstance(part, tile.Load) and part in self.uses]
        if self.under_way.intersection(read):
            return False
        for part in read:
            self.mask(part)
        return True


def ranks(masks: dict[tile.Load, Path]) -> dict[Path, int]:
    """Return a number for each mask, above the numbers of the masks of what its conditions read; 0 for an empty one."""
    found: dict[Path, int] = {}

    def rank(mask: Path) -> int:
        """Return a mask's rank: 0 if empty, else one more than the highest rank of the elements that it reads."""
        if mask not in found:
            read = [part for c in mask for part in tile.walk_expr(c) if isinstance(part, tile.Load) and part in masks]
            found[mask] = 1 + max((rank(masks[part]) for part in read), default=0) if mask else 0
        return found[mask]

    for mask in masks.values():
        rank(mask)
    return found


def _either(paths: list[Path]) -> Path:
    """Return conditions equivalent to `any of these paths holds`, with complementary arms merged."""
    left = dict.fromkeys(paths)
    for path in sorted(left, key=len, reverse=True):  # an element that both arms need is needed in any case
        if path and (*path[:-1], _negated(path[-1])) in left:
            left[path[:-1]] = None
    kept = [path for path in left if not any(path[:n] in left for n in range(len(path)))]
    prefix = tuple(_common(kept))
    if len(kept) == 1 or prefix in kept:
        return prefix
    allowed = [reduce(lambda a, b: tile.Binary("and", a, b, BOOL), path[len(prefix) :]) for path in kept]
    return (*prefix, reduce(lambda a, b: tile.Binary("or", a, b, BOOL), allowed))


def _common(paths: list[Path]) -> Iterator[tile.Expr]:
    """Yield the conditions that all paths begin with, up to the first difference."""
    for conditions in zip(*paths, strict=False):
        if any(c != conditions[0] for c in conditions):
            return
        yield conditions[0]


def _negated(condition: tile.Expr) -> tile.Expr:
    """Return the negation of a condition; of `not c` it is `c`."""
    if isinstance(condition, tile.Unary) and condition.op == "not":
        return condition.a
    return tile.Unary("not", condition, BOOL)
