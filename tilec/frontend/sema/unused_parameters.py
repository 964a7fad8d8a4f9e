"""unused-parameter: kernel parameters that no statement mentions. Statements that a constant disables count too."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.frontend.sema.context import Context
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.support.diagnostics import make_warning


def warn_of_unused_parameters(
    context: Context, function: ast.Function, params: Iterable[tile.Buffer | tile.Var]
) -> None:
    """Warn of each of `params` that only the signature of the function names."""
    made = {param.name for param in params}
    mentioned = {node.id for node in ast.walk_nodes(function) if isinstance(node, ast.Name)}
    for parameter in function.params:
        if parameter.name in made - mentioned:
            context.warn(
                make_warning(
                    "unused-parameter",
                    f"{function.name} does not use its parameter {parameter.name}",
                    parameter.span,
                    "never used",
                    help=f"remove {parameter.name}",
                )
            )
