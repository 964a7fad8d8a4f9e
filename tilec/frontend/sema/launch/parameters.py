"""Parameters of a kernel: those for the sizes of T.dynamic, after its own and in order of appearance, and those that no
statement mentions (unused-parameter; statements that a constant disables count too).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilec.analysis.usage import list_expressions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ops.language.values import EXPR_TYPES, Value
from tilec.support.diagnostics import make_warning, raise_error
from tilec.support.identity import IdentityKey


def list_size_names(scope: Scope) -> Iterator[str]:
    """Yield the names of all variables in the values that a scope sees, so that the kernel's own avoid them."""
    for name in scope.list_visible_names():
        binding = scope.find(name)
        yield from (v.name for v in _find_variables(binding.value if binding else None))


def _find_variables(value: Value) -> Iterator[tile.Var]:
    """Yield the variables in an expression, or in the expressions of a tuple at any depth."""
    level = [value]
    while level:
        for node in level:
            if isinstance(node, EXPR_TYPES):
                yield from (part for part in tile.walk_expr(node) if isinstance(part, tile.Var))
        # An object that occurs many times is looked at once.
        inner = (item for node in level if isinstance(node, tuple) for item in node)
        level = list({IdentityKey(item): item for item in inner if isinstance(item, (tuple, *EXPR_TYPES))}.values())


def add_size_parameters(kernel: tile.Kernel) -> tile.Kernel:
    """Return the kernel with a parameter for every variable that it does not declare; refuse one with a parameter's
    name. These are sizes of T.dynamic.
    """
    indices = (tile.THREAD, tile.WARPGROUP, tile.BLOCK_WARP)
    declared = {p for p in (*kernel.params, *kernel.block_vars, *indices) if isinstance(p, tile.Var)}
    for stmt in tile.walk_statements(kernel.body):
        declared |= set(tile.declared_variables(stmt))
    sizes = tuple(v for v in dict.fromkeys(_find_used_variables(kernel)) if v not in declared)
    if not sizes:
        return kernel
    taken = {p.name: p for p in kernel.params}
    for size in sizes:
        if size.name in taken:
            title = f"a parameter and a size are both called {size.name}"
            way_out = "give the size another name in T.dynamic"
            raise_error("duplicate-definition", title, getattr(taken[size.name], "span", kernel.span), help=way_out)
    return replace(kernel, params=(*kernel.params, *sizes))


def _find_used_variables(kernel: tile.Kernel) -> Iterator[tile.Var]:
    """Yield the variables that occur in a kernel's parameter extents and strides, its grid and its statements."""
    extents = (e for p in kernel.params if isinstance(p, tile.Buffer) for e in (*p.extents, *(p.strides or ())))
    exprs: list[tile.Expr] = [e for e in (*extents, *kernel.grid) if not isinstance(e, int)]
    for stmt in tile.walk_statements(kernel.body):
        exprs += list_expressions(stmt)
    yield from (part for expr in exprs for part in tile.walk_expr(expr) if isinstance(part, tile.Var))


def warn_of_unused_parameters(
    context: Context, function: ast.Function, params: Iterable[tile.Buffer | tile.Var]
) -> None:
    """Warn of each parameter in `params` whose name occurs nowhere in the function but in its signature."""
    made = {param.name for param in params}
    mentioned = {node.id for node in ast.walk_nodes(function) if isinstance(node, ast.Name)}
    for parameter in function.params:
        if parameter.name in made - mentioned:
            title = f"{function.name} does not use its parameter {parameter.name}"
            note = "never used"
            context.warn(make_warning("unused-parameter", title, parameter.span, note, help=f"remove {parameter.name}"))
