"""Recovery after a mistake: the names that a wrong statement would bind are poisoned, so that their uses are silent."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.support.source import Span


def poison_names(scope: Scope, node: ast.Stmt) -> None:
    """Poison the names that a failed statement would bind; a compound statement's only where they are not visible
    yet.
    """
    is_whole = isinstance(node, ast.Assign | ast.AnnotatedAssign | ast.Function)
    for name, span in find_bound_names(node):
        if is_whole or not scope.is_visible(name):
            scope.poison(name, span)


def find_bound_names(node: ast.Stmt) -> Iterator[tuple[str, Span]]:
    """Yield the names that a statement binds, also inside its branches and bodies, with their spans."""
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _find_target_names(target)
        case ast.AnnotatedAssign(target=target) | ast.AugmentedAssign(target=target):
            yield from _find_target_names(target)
        case ast.Function(name=name, name_span=span):
            yield name, span
        case ast.Import(names=names):
            yield from ((n.alias or n.name.split(".")[0], n.span) for n in names)
        case ast.For(target=target, body=body):
            yield from _find_target_names(target)
            yield from _find_names_in_body(body)
        case ast.With(target=target, body=body):
            if target is not None:
                yield from _find_target_names(target)
            yield from _find_names_in_body(body)
        case ast.While(body=body):
            yield from _find_names_in_body(body)
        case ast.If(then=then, orelse=orelse):
            yield from _find_names_in_body((*then, *orelse))
        case _:
            return


def _find_names_in_body(body: tuple[ast.Stmt, ...]) -> Iterator[tuple[str, Span]]:
    """Yield the names that the statements of a body bind, with their spans."""
    for statement in body:
        yield from find_bound_names(statement)


def _find_target_names(target: ast.Expr) -> Iterator[tuple[str, Span]]:
    """Yield the plain names in an assignment's or loop's target, at any depth, with their spans."""
    match target:
        case ast.Name(id=name):
            yield name, target.span
        case ast.Tuple(items=items) | ast.List(items=items):
            for item in items:
                if not isinstance(item, ast.Starred):
                    yield from _find_target_names(item)
        case _:
            return
