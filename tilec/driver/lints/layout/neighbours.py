"""hint-not-used: `coalesced_width=` or T.vectorized asks for adjacent elements per thread, and the layout has none.

Where the layout that a nest must keep spreads them over several threads, memory is accessed element by element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.driver.lints.registry import LAYOUT, register_warning
from tilec.ir.tile import Parallel, walk_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.fragments.vector_widths import find_streamed_buffers
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, make_warning


@register_warning(LAYOUT)
def find_unkept_widths(work: KernelState) -> Iterator[Diagnostic]:
    for assignment in work.assignment.kernels:
        yield from _check_nest_widths(assignment)


def _check_nest_widths(assignment: LayoutAssignment) -> Iterator[Diagnostic]:
    for nest in walk_statements(assignment.kernel.body):
        if (
            not isinstance(nest, Parallel)
            or nest.width is None
            or nest.is_per_thread
            or not find_streamed_buffers(nest)
        ):
            continue
        layout = assignment.nest_layout(nest)
        first = next((axis for axis in layout.registers if axis.size > 1), None)
        run = first.size if first is not None and (first.dim, first.stride) == (len(nest.extents) - 1, 1) else 1
        if run % nest.width:
            given = "loop_layout" if nest.layout is not None else "a fragment's layout"
            yield make_warning(
                "hint-not-used",
                f"the hint asks for {nest.width} adjacent elements per thread, and the layout does not give them",
                nest.span,
                f"{given} gives each thread {math.gcd(run, nest.width)} at a time",
                help="give each thread adjacent elements in that layout, or remove the hint",
            )
