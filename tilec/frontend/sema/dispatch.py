"""The dispatch tables, from syntax to functions: at compile time, and in a kernel."""

from __future__ import annotations

from tilec.frontend.sema import (
    calls,
    inline_ptx,
    jumps,
    operations,
    pointers,
    rng,
    statements,
    thread_values,
    vectors,
    views,
)
from tilec.frontend.sema.block_scales import TRANSPOSE, transposed
from tilec.frontend.sema.calls import bound
from tilec.frontend.sema.context import Dispatch
from tilec.frontend.sema.expressions import EXPRESSIONS
from tilec.frontend.sema.hints import HINTS
from tilec.frontend.sema.loops import LOOP_BREAK
from tilec.frontend.sema.printing import PRINT, print_
from tilec.ops.dp4a import DP4A
from tilec.ops.inline_ptx import PTX
from tilec.ops.reducer import UPDATE
from tilec.ops.threads import PLACES
from tilec.ops.vectors import LDG, WIDE
from tilec.ops.views import AT_DATA, VIEWS
from tilec.ops.warp_functions import WARP_FUNCTIONS

COMPILE_TIME = Dispatch(
    expressions=EXPRESSIONS,
    values=calls.AT_COMPILE_TIME,
    otherwise=calls.unknown,
    statements={},
    jumps=lambda context, statement, rest: False,
    actions={},
)
"""The top of a file: constants and functions."""

KERNEL = Dispatch(
    expressions=EXPRESSIONS,
    values={
        **calls.AT_COMPILE_TIME,
        **{
            name: bound(f.signature, thread_values.with_others, takes_values=True) for name, f in WARP_FUNCTIONS.items()
        },
        **{name: bound(place.signature, thread_values.place, takes_values=True) for name, place in PLACES.items()},
        **{name: bound(wide.signature, vectors.wide_load) for name, wide in WIDE.items() if not wide.stores},
        LDG.name: bound(LDG, vectors.read_only),
        PTX.name: bound(PTX, inline_ptx.value, takes_values=True),
        **{name: bound(signature, rng.draw) for name, signature in rng.DRAWS.items()},
        **{name: bound(s, pointers.make_tensor, takes_values=True) for name, s in pointers.MAKE_TENSOR.items()},
        **dict.fromkeys((*VIEWS, *AT_DATA), views.seen),
    },
    otherwise=operations.element_value,
    statements=statements.STATEMENTS,
    jumps=jumps.carry_out,
    actions={
        statements.EVALUATE.name: statements.evaluated,
        LOOP_BREAK.name: statements.loop_break,
        **dict.fromkeys(HINTS, statements.hint),
        PRINT.name: bound(PRINT, print_),
        PTX.name: inline_ptx.statement,
        TRANSPOSE.name: bound(TRANSPOSE, transposed),
        DP4A.name: bound(DP4A, operations.dot),
        UPDATE.name: bound(UPDATE, operations.contribute),
        rng.INIT.name: bound(rng.INIT, rng.initialise, takes_values=True),
        # A random number that is not used still advances the sequence.
        **{name: bound(signature, rng.draw) for name, signature in rng.DRAWS.items()},
        **{name: bound(wide.signature, vectors.wide_store) for name, wide in WIDE.items() if wide.stores},
    },
)
"""The statements of a kernel. The operations of `ops.registry` have their own table there."""
