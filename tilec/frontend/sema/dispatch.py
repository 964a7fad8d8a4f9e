"""The dispatch tables, from syntax to functions: at compile time, and in a kernel."""

from __future__ import annotations

from tilec.frontend.sema.context import Dispatch
from tilec.frontend.sema.expressions import calls, evaluate, thread_values, vectors, views
from tilec.frontend.sema.expressions.calls import bind_signature
from tilec.frontend.sema.expressions.expressions import EXPRESSION_EVALUATORS
from tilec.frontend.sema.expressions.host_names import PROFILER_MARKS
from tilec.frontend.sema.launch import pointers
from tilec.frontend.sema.launch.hints import HINTS
from tilec.frontend.sema.loops.loop_headers import LOOP_BREAK
from tilec.frontend.sema.operations import inline_ptx, operations, rng, thread_copies
from tilec.frontend.sema.operations.block_scales import TRANSPOSE_SIGNATURE, transpose_scales
from tilec.frontend.sema.operations.printing import PRINT_SIGNATURE, elaborate_print
from tilec.frontend.sema.statements import jumps, statements
from tilec.ops.copies.thread_copy import ACCESS_PTR, THREAD_COPY
from tilec.ops.functions.signatures import AT_DATA, DP4A, LAUNCH_VALUES, PTX, VIEWS
from tilec.ops.functions.warp_functions import WARP_FUNCTIONS
from tilec.ops.language.vectors import LDG, WIDE_ACCESSES
from tilec.ops.reductions.reducer import UPDATE

COMPILE_TIME_DISPATCH = Dispatch(
    expressions=EXPRESSION_EVALUATORS,
    values=calls.COMPILE_TIME_CALLS,
    default_call=calls.refuse_unknown_call,
    statements={},
    elaborate_jumping_statement=lambda context, statement, rest: False,
    actions={},
)
"""The top of a file: constants and functions."""

KERNEL_DISPATCH = Dispatch(
    expressions=EXPRESSION_EVALUATORS,
    values={
        **calls.COMPILE_TIME_CALLS,
        **{
            name: bind_signature(f.signature, thread_values.evaluate_warp_function, takes_values=True)
            for name, f in WARP_FUNCTIONS.items()
        },
        **{
            name: bind_signature(place.signature, thread_values.evaluate_thread_value, takes_values=True)
            for name, place in LAUNCH_VALUES.items()
        },
        **{
            name: bind_signature(wide.signature, vectors.evaluate_wide_load)
            for name, wide in WIDE_ACCESSES.items()
            if not wide.stores
        },
        evaluate.RAMP_SIGNATURE.name: bind_signature(
            evaluate.RAMP_SIGNATURE, evaluate.evaluate_ramp, takes_values=True
        ),
        LDG.name: bind_signature(LDG, vectors.evaluate_ldg),
        PTX.name: bind_signature(PTX, inline_ptx.evaluate_ptx, takes_values=True),
        ACCESS_PTR.name: bind_signature(ACCESS_PTR, thread_copies.evaluate_access_ptr),
        **{name: bind_signature(signature, rng.draw_number) for name, signature in rng.DRAW_SIGNATURES.items()},
        **{
            name: bind_signature(s, pointers.make_tensor, takes_values=True)
            for name, s in pointers.MAKE_TENSOR_SIGNATURES.items()
        },
        **dict.fromkeys((*VIEWS, *AT_DATA), views.evaluate_view),
    },
    default_call=operations.evaluate_element_operation,
    statements=statements.STATEMENT_ELABORATORS,
    elaborate_jumping_statement=jumps.elaborate_jumping_statement,
    actions={
        statements.EVALUATE_SIGNATURE.name: statements.elaborate_evaluate_call,
        LOOP_BREAK.name: statements.elaborate_loop_break,
        **dict.fromkeys(PROFILER_MARKS, statements.ignore_profiler_mark),
        **dict.fromkeys(HINTS, statements.record_hint),
        PRINT_SIGNATURE.name: bind_signature(PRINT_SIGNATURE, elaborate_print),
        PTX.name: inline_ptx.elaborate_ptx,
        TRANSPOSE_SIGNATURE.name: bind_signature(TRANSPOSE_SIGNATURE, transpose_scales),
        THREAD_COPY.name: bind_signature(THREAD_COPY, thread_copies.elaborate_thread_copy),
        DP4A.name: bind_signature(DP4A, operations.elaborate_dp4a),
        UPDATE.name: bind_signature(UPDATE, operations.elaborate_reducer_update),
        rng.INIT_SIGNATURE.name: bind_signature(rng.INIT_SIGNATURE, rng.initialise_generator, takes_values=True),
        # A random number that is not used still advances the sequence.
        **{name: bind_signature(signature, rng.draw_number) for name, signature in rng.DRAW_SIGNATURES.items()},
        **{
            name: bind_signature(wide.signature, vectors.elaborate_wide_store)
            for name, wide in WIDE_ACCESSES.items()
            if wide.stores
        },
    },
)
"""The statements of a kernel. The operations of `ops.registry` have their own table there."""
