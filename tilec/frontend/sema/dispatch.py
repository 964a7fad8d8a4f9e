"""The dispatch tables, from syntax to functions: at compile time, and in a kernel."""

from __future__ import annotations

from tilec.frontend.sema.context import Dispatch
from tilec.frontend.sema.expressions import calls, evaluate, thread_values, vectors, views
from tilec.frontend.sema.expressions.calls import bind_signatures
from tilec.frontend.sema.expressions.expressions import EXPRESSION_EVALUATORS
from tilec.frontend.sema.expressions.host_names import PROFILER_MARKS
from tilec.frontend.sema.launch import pointers
from tilec.frontend.sema.launch.hints import HINTS
from tilec.frontend.sema.loops.loop_headers import LOOP_BREAK
from tilec.frontend.sema.operations import inline_ptx, operations, rng, thread_copies
from tilec.frontend.sema.operations.block_scales import TRANSPOSE_SIGNATURE, transpose_scales
from tilec.frontend.sema.operations.printing import PRINT_SIGNATURE, elaborate_print
from tilec.frontend.sema.statements import jumps, statements
from tilec.ops.copies.thread_copy import ACCESS_PTR, THREAD_COPY, make_element_pointer
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
        **bind_signatures(
            thread_values.evaluate_warp_function, *(f.signature for f in WARP_FUNCTIONS.values()), takes_values=True
        ),
        **bind_signatures(
            thread_values.evaluate_thread_value, *(v.signature for v in LAUNCH_VALUES.values()), takes_values=True
        ),
        **bind_signatures(
            vectors.evaluate_wide_load, *(wide.signature for wide in WIDE_ACCESSES.values() if not wide.stores)
        ),
        **bind_signatures(evaluate.evaluate_ramp, evaluate.RAMP_SIGNATURE, takes_values=True),
        **bind_signatures(vectors.evaluate_ldg, LDG),
        **bind_signatures(inline_ptx.evaluate_ptx, PTX, takes_values=True),
        **bind_signatures(lambda context, call: make_element_pointer(call), ACCESS_PTR),
        **bind_signatures(rng.draw_number, *rng.DRAW_SIGNATURES),
        **bind_signatures(pointers.make_tensor, *pointers.MAKE_TENSOR_SIGNATURES.values(), takes_values=True),
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
        PTX.name: inline_ptx.elaborate_ptx,
        **bind_signatures(elaborate_print, PRINT_SIGNATURE),
        **bind_signatures(transpose_scales, TRANSPOSE_SIGNATURE),
        **bind_signatures(thread_copies.elaborate_thread_copy, THREAD_COPY),
        **bind_signatures(operations.elaborate_dp4a, DP4A),
        **bind_signatures(operations.elaborate_reducer_update, UPDATE),
        **bind_signatures(rng.initialise_generator, rng.INIT_SIGNATURE, takes_values=True),
        **bind_signatures(rng.draw_number, *rng.DRAW_SIGNATURES),  # one that is not used still advances the sequence
        **bind_signatures(
            vectors.elaborate_wide_store, *(wide.signature for wide in WIDE_ACCESSES.values() if wide.stores)
        ),
    },
)
"""The statements of a kernel. The operations of `ops.registry` have their own table there."""
