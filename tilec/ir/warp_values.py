"""Definitions of the scalars of a warp program, and integer expressions as affine sums of them, for the verifier's
checks of boxes."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir import tile, warp
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """The values of a loop's variable: `start`, then every `step`, below `stop`; with `following`, also that value."""

    start: tile.Expr
    stop: tile.Expr
    step: int
    following: tile.Expr | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """All definitions of each variable; several roles and copies of a loop's body may define the same one."""

    values: dict[tile.Var, list[tile.Expr | Steps]]

    def sum(self, expr: tile.Expr) -> tuple[dict[tile.Expr, int], int]:
        """Write the expression as a sum: the factors of its terms, and a constant."""
        terms: dict[tile.Expr, int] = {}
        constant = self._collect_terms(expr, 1, terms)
        return {atom: factor for atom, factor in terms.items() if factor}, constant

    def _collect_terms(self, expr: tile.Expr, factor: int, terms: dict[tile.Expr, int]) -> int:
        """Add `factor` times the expression to the terms; return what of it is constant."""
        match expr:
            case tile.Const(value=value) if isinstance(value, int):
                return factor * value
            case tile.Binary(op="add", a=a, b=b):
                return self._collect_terms(a, factor, terms) + self._collect_terms(b, factor, terms)
            case tile.Binary(op="sub", a=a, b=b):
                return self._collect_terms(a, factor, terms) + self._collect_terms(b, -factor, terms)
            case tile.Unary(op="neg", a=a):
                return self._collect_terms(a, -factor, terms)
            case (
                tile.Binary(op="mul", a=a, b=tile.Const(value=int(by)))
                | tile.Binary(op="mul", a=tile.Const(value=int(by)), b=a)
            ):
                return self._collect_terms(a, factor * by, terms)
            case tile.Binary(op="shl", a=a, b=tile.Const(value=int(by))) if 0 <= by < 32:
                return self._collect_terms(a, factor << by, terms)
            case tile.Var() if (only := self._only_value(expr)) is not None:
                return self._collect_terms(only, factor, terms)
            case _:
                terms[expr] = terms.get(expr, 0) + factor
                return 0

    def _only_value(self, var: tile.Var) -> tile.Expr | None:
        found = self.values.get(var, [])
        if len(found) != 1 or isinstance(found[0], Steps):
            return None
        parts = tuple(tile.walk_expr(found[0]))
        return None if var in parts or any(isinstance(part, tile.Load) for part in parts) else found[0]


def find_definitions(operations: Iterable[warp.Operation]) -> Definitions:
    """Return everything that defines each variable."""
    found: dict[tile.Var, list[tile.Expr | Steps]] = {}
    for op in operations:
        match op:
            case warp.Let(var=var, value=value):
                found.setdefault(var, []).append(value)
            case warp.Loop(var=var, start=start, stop=stop, step=step, following=None):
                found.setdefault(var, []).append(Steps(start, stop, step))
            case warp.Loop(var=var, start=start, stop=stop, following=warp.NextIteration(value=following)):
                found.setdefault(var, []).append(Steps(start, stop, 1, following))
            case _:
                pass
    return Definitions(found)
