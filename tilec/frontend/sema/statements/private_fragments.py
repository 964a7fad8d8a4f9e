"""Fragments that are arrays of a thread: a kernel never uses them whole, nor in T.Parallel, which would spread them.

As arrays they would lose what one thread sets and another reads. So the same threads must set all elements, no others
may read them, and each at indices that these threads share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from tilec.frontend.sema.context import Context, PrivateUses
from tilec.frontend.sema.statements.per_thread import is_varying
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer
from tilec.ops.language.values import EXPR_TYPES
from tilec.support.diagnostics import CompileError
from tilec.support.source import Span


@contextmanager
def expected_spread(context: Context, buffer: Buffer) -> Iterator[None]:
    """Let a body use an element of a fragment as one that some threads hold, or raise its error. Then each thread has
    its own fragment in the next elaboration, if nothing else in the kernel spreads it."""
    try:
        yield
    except CompileError:
        if buffer.span is not None and is_used_by_elements_only(context.launched, buffer.span):
            context.findings.private_fragments.add(buffer.span)
        raise


def record_private_use(context: Context, buffer: Buffer, verb: Literal["read", "written"]) -> None:
    """Record which threads use an element of a fragment that is to be private: their role, and the conditions around
    the use. Conditions are compared with their elements read: what is read anew may have changed."""
    if buffer.span in context.findings.private_fragments:
        uses = context.private_uses.setdefault(buffer.name, PrivateUses())
        threads = context.role, *(mask.condition for mask in context.masks)
        (uses.written if verb == "written" else uses.read).append(threads)


def may_be_of_another_thread(context: Context, buffer: Buffer, indices: Sequence[object]) -> bool:
    """Return whether an element of a private fragment may be what another thread sets: its index differs between
    threads, or not all threads that were recorded to read elements set them."""
    uses = context.private_uses.get(buffer.name)
    if uses is None:
        return False
    setters = uses.written[0] if uses.written else ()
    is_shared = any(each != setters for each in uses.written) or any(
        each[: len(setters)] != setters for each in uses.read
    )
    return is_shared or any(isinstance(index, EXPR_TYPES) and is_varying(context, index) for index in indices)


def is_used_by_elements_only(statements: Iterable[ast.Stmt], allocation: Span) -> bool:
    """Return whether the statements use what they allocate at this place by single elements outside T.Parallel only;
    False where they do not allocate it."""
    allocations = (
        node.targets
        for stmt in statements
        for node in ast.walk_nodes(stmt)
        if isinstance(node, ast.Assign) and node.value.span == allocation
    )
    names = {target.id for targets in allocations for target in targets if isinstance(target, ast.Name)}
    return bool(names) and not any(_uses_whole(stmt, names) for stmt in statements)


def _uses_whole(node: ast.Node, names: set[str]) -> bool:
    """Return whether a node has one of these names anywhere but in `name[i, j]`, or at all inside T.Parallel or in a
    call that is a statement, which works on whole tiles."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Subscript(value=ast.Name(id=name), indices=indices) if name in names:
            return any(isinstance(index, ast.Slice) or _uses_whole(index, names) for index in indices)
        case ast.For(iterable=ast.Call(function=ast.Attribute(name="Parallel"))) | ast.Evaluate():
            return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk_nodes(node))
        case ast.Assign(targets=targets, value=value):
            others = (target for target in targets if not isinstance(target, ast.Name))
            return any(_uses_whole(part, names) for part in (*others, value))
        case _:
            return any(_uses_whole(child, names) for child in ast.list_children(node))
