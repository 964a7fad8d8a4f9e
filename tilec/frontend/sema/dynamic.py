"""Parameters for the sizes of T.dynamic: after those of the kernel, in order of appearance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.frontend.sema.scope import Scope
from tilec.ir import tile
from tilec.ops.values import EXPR_TYPES, Value
from tilec.passes.analysis.usage import expressions
from tilec.support.diagnostics import fail
from tilec.support.identity import Same


def names(scope: Scope) -> Iterator[str]:
    """Yield the names of the visible sizes, which no variable of the kernel may take."""
    for name in scope.visible():
        binding = scope.find(name)
        yield from (v.name for v in _variables(binding.value if binding else None))


def _variables(value: Value) -> Iterator[tile.Var]:
    level = [value]
    while level:
        for node in level:
            if isinstance(node, EXPR_TYPES):
                yield from (part for part in tile.walk_expr(node) if isinstance(part, tile.Var))
        # An object that occurs many times is looked at once.
        inner = (item for node in level if isinstance(node, tuple) for item in node)
        level = list({Same(item): item for item in inner if isinstance(item, (tuple, *EXPR_TYPES))}.values())


def with_sizes(kernel: tile.Kernel) -> tile.Kernel:
    """Add a parameter for every size that the kernel uses without declaring it."""
    declared = {p for p in (*kernel.params, *kernel.block_vars, tile.THREAD, tile.WARPGROUP) if isinstance(p, tile.Var)}
    for stmt in tile.walk(kernel.body):
        declared |= set(tile.declared(stmt))
    sizes = tuple(v for v in dict.fromkeys(_used(kernel)) if v not in declared)
    if not sizes:
        return kernel
    taken = {p.name: p for p in kernel.params}
    for size in sizes:
        if size.name in taken:
            fail(
                "duplicate-definition",
                f"a parameter and a size are both called {size.name}",
                getattr(taken[size.name], "span", kernel.span),
                help="give the size another name in T.dynamic",
            )
    return replace(kernel, params=(*kernel.params, *sizes))


def _used(kernel: tile.Kernel) -> Iterator[tile.Var]:
    extents = (e for p in kernel.params if isinstance(p, tile.Buffer) for e in (*p.extents, *(p.strides or ())))
    exprs: list[tile.Expr] = [e for e in (*extents, *kernel.grid) if not isinstance(e, int)]
    for stmt in tile.walk(kernel.body):
        exprs += expressions(stmt)
    yield from (part for expr in exprs for part in tile.walk_expr(expr) if isinstance(part, tile.Var))
