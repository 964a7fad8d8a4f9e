"""Names of the language that statements alone can carry out, each with the function that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilec.frontend.sema.block_scales import TRANSPOSE, transposed
from tilec.frontend.sema.pointers import MAKE_TENSOR, make_tensor
from tilec.frontend.sema.printing import PRINT, print_
from tilec.frontend.sema.rng import DRAWS, INIT, draw, initialise
from tilec.frontend.sema.vectors import read_only, wide_load, wide_store
from tilec.frontend.syntax import ast
from tilec.ops.signature import Call, Signature, bind
from tilec.ops.values import Value
from tilec.ops.vectors import LDG, WIDE
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.frontend.sema.per_thread import PerThread


@dataclass(frozen=True, slots=True)
class Form:
    """`takes_values`: an indexed buffer among the arguments is one of its elements."""

    signature: Signature
    does: Callable[[PerThread, Call], Value]
    takes_values: bool = False


def _done(function: Callable[[PerThread, Call], None]) -> Callable[[PerThread, Call], Value]:
    return lambda body, call: function(body, call)


ACTIONS: dict[str, Form] = {
    PRINT.name: Form(PRINT, _done(print_)),
    TRANSPOSE.name: Form(TRANSPOSE, _done(transposed)),
    INIT.name: Form(INIT, _done(initialise), takes_values=True),
    **{name: Form(wide.signature, _done(wide_store)) for name, wide in WIDE.items() if wide.stores},
    # A number that nobody takes is one less to come.
    **{name: Form(signature, draw) for name, signature in DRAWS.items()},
}
"""By name: statements of their own."""

VALUES: dict[str, Form] = {
    **{name: Form(wide.signature, wide_load) for name, wide in WIDE.items() if not wide.stores},
    LDG.name: Form(LDG, read_only),
    **{name: Form(signature, draw) for name, signature in DRAWS.items()},
    **{name: Form(signature, make_tensor, takes_values=True) for name, signature in MAKE_TENSOR.items()},
}
"""By name: those that give a value."""


def carried_out(form: Form, body: PerThread, node: ast.Call) -> Value:
    """The value of a call, and what it does."""
    arguments = body.operands(node) if form.takes_values else body.arguments(node)
    return form.does(body, bind(form.signature, *arguments, node.span))
