"""One run of the front end: the mistakes found so far, and how much has been evaluated.

A statement that is refused is set aside and the next one looked at; the names it would have bound mean `BROKEN`, so
that their uses are not reported as well. What kernel text evaluates at compile time is bounded in steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilec.diag import CompileError, Diagnostic, Warn, fail, unheard
from tilec.source import NOWHERE, SourceFile, Span
from tilec.syntax import ast

MAX_STEPS = 200_000
"""Statements, calls and items of comprehensions that a file may evaluate at compile time: about a second."""

MAX_CALLS = 100
"""Calls inside each other. The interpreter below gets room for them."""

_PYTHON_FRAMES = 50_000


@dataclass(slots=True)
class Session:
    """`source` is the kernel file."""

    source: SourceFile = SourceFile("", "")
    warn: Warn = unheard
    steps: int = 0
    mistakes: list[Diagnostic] = field(default_factory=list)

    def step(self, span: Span) -> None:
        """Something has been evaluated."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.steps = 0  # for what is looked at after this mistake
            fail(
                "evaluation-too-long",
                "the evaluation does not end",
                span,
                f"{MAX_STEPS} steps have been made when it got here",
                help="what runs many times belongs into a loop of the kernel, T.serial or T.Parallel",
            )

    def report(self, error: CompileError) -> None:
        """Keep what is new in it: the second call of a wrong macro makes the same mistakes."""
        for found in error.diagnostics:
            if all((found.code, found.title, found.primary) != (m.code, m.title, m.primary) for m in self.mistakes):
                self.mistakes.append(found)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """A mistake inside ends what stands inside, and nothing else."""
        try:
            yield
        except CompileError as error:
            self.report(error)

    def finish(self) -> None:
        """Fail if there were mistakes, with all of them, in the order of the text."""
        if self.mistakes:
            raise CompileError(*sorted(self.mistakes, key=_place))


def _place(mistake: Diagnostic) -> tuple[bool, str, int, int]:
    span = NOWHERE if mistake.primary is None else mistake.primary.span
    return mistake.primary is not None, span.file, span.line, span.column


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Room on the interpreter's stack for what the limits here allow."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _PYTHON_FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def assigned(statement: ast.Stmt) -> Iterator[str]:
    """The names that a statement would bind."""
    match statement:
        case ast.Assign(targets=targets):
            for target in targets:
                yield from names_in(target)
        case ast.AnnotatedAssign(target=target) | ast.AugmentedAssign(target=target):
            yield from names_in(target)
        case ast.For(target=target, body=body):
            yield from names_in(target)
            for inner in body:
                yield from assigned(inner)
        case ast.With(target=with_target, body=body):
            yield from names_in(with_target) if with_target is not None else ()
            for inner in body:
                yield from assigned(inner)
        case ast.If(then=then, orelse=orelse):
            for inner in (*then, *orelse):
                yield from assigned(inner)
        case ast.While(body=body):
            for inner in body:
                yield from assigned(inner)
        case ast.Function(name=name):
            yield name
        case ast.Import(names=names):
            yield from (n.alias or n.name.split(".")[0] for n in names)
        case _:
            pass


def names_in(target: ast.Expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(items=items) | ast.List(items=items):
            for item in items:
                if not isinstance(item, ast.Starred):
                    yield from names_in(item)
        case _:
            pass
