"""Let the first product of a sum initialise its accumulator (scale-d = 0), instead of threads that clear it. So tensor
cores need not wait for the threads where a tile begins, and threads write no zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import warp
from tilec.ir.rewrite import map_nested_bodies
from tilec.ir.tile import Const, Parallel, Store
from tilec.passes.lower.waits.touches import find_touches


def initialise_by_products(program: warp.Program) -> warp.Program:
    """Return the program with first wgmma products overwriting their sums, and without the zero fills before these. The
    program has no waits yet."""
    return program.map_roles(lambda role: replace(role, body=_initialise_body(role.body)))


def _initialise_body(body: tuple[warp.Operation, ...]) -> tuple[warp.Operation, ...]:
    """Return operations with each zero fill dropped whose fragment a wgmma product touches next, which overwrites
    it."""
    found = [map_nested_bodies(op, _initialise_body) for op in body]
    for at in reversed(range(len(found))):
        cleared = _find_cleared_fragment(found[at])
        first = _find_first_product(cleared, found[at + 1 :]) if cleared else None
        if first is not None:
            product = found[at + 1 + first]
            assert isinstance(product, warp.Wgmma)
            found[at + 1 + first] = replace(product, clear=True)
            del found[at]
    return tuple(found)


def _find_cleared_fragment(op: warp.Operation) -> str:
    """Return the name of the fragment that a nest only fills with zeros, else ""."""
    match op:
        case warp.Elementwise(
            nest=Parallel(body=(Store(buffer=buffer, indices=indices, value=Const(value=0), atomic=None),)), block=None
        ):
            is_whole = indices == op.nest.vars and op.nest.extents == buffer.extents
            return buffer.name if is_whole and buffer.scope == "fragment" else ""
        case _:
            return ""


def _find_first_product(fragment: str, following: Sequence[warp.Operation]) -> int | None:
    """Return the index of the wgmma product that is first to touch the fragment, as its sum; None if none is."""
    for at, op in enumerate(following):
        if warp.nested_bodies(op) or isinstance(op, warp.Break):
            return None
        if any(touch.buffer == fragment for touch in find_touches(op)[0]):
            is_sum = isinstance(op, warp.Wgmma) and op.c.name == fragment
            return at if is_sum else None
    return None
