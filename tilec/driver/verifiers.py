"""The verifiers of all values that passes exchange.

A verifier shares no code with the passes that it verifies. Tests and `--verify` run all of them; user builds run those
whose cost is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilec.support.options import Stage

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment


def find_stage_violations(stage: Stage, value: Any, *, everything: bool = True) -> Iterator[str]:
    """Yield what is wrong with a stage's value; without `everything`, by the quick verifiers only."""
    match stage:
        case "tile":
            yield from _check_kernel(value, everything)
        case "layout":
            yield from _check_assignment(value)
        case "problem":
            from tilec.sched.check import find_problem_faults

            yield from (fault for loop in value for fault in find_problem_faults(loop.problem))
        case "schedule":  # of any origin
            from tilec.sched.verify import find_violations

            for planned in value:
                yield from find_violations(planned.loop.problem, planned.solution.schedule)
        case "expand" | "warp":
            from tilec.ir.warp_verify.declarations import declaration_violations

            yield from declaration_violations(value)
            if stage == "warp" and everything:  # interprets the barriers: a third of the compile time of attention
                from tilec.ir.warp_verify.verify import program_violations

                yield from program_violations(value)
        case "ast" | "alias" | "ptx" | "cubin":
            return


def find_kernel_violations(kernel: Kernel) -> Iterator[str]:
    """Yield what is wrong with tile IR of a kernel as written, or with its operations if the tile IR is right."""
    from tilec.ir.tile_verify.verify import verify_tile
    from tilec.ops.form import show_violations

    broken = list(verify_tile(kernel))
    yield from broken or show_violations(kernel)


def find_rewritten_violations(kernel: Kernel) -> Iterator[str]:
    """Yield what is wrong with tile IR that passes have rewritten, with launched grid and decided operations."""
    from tilec.driver.decided_attributes import find_operation_violations
    from tilec.ir.tile_verify.verify import verify_tile

    broken = list(verify_tile(kernel, as_launched=True))
    yield from broken or find_operation_violations(kernel)


def _check_kernel(kernel: Kernel, everything: bool) -> Iterator[str]:
    """Yield a kernel's violations; with `everything`, also one if its printed text does not read back the same."""
    yield from find_kernel_violations(kernel)
    if everything:
        from tilec.ir.read import read_kernel
        from tilec.ir.text import print_kernel

        text = print_kernel(kernel)
        if print_kernel(read_kernel(text)) != text:
            yield "its text does not read back identically"


def _check_assignment(assignment: LayoutAssignment) -> Iterator[str]:
    """Yield what is wrong with kernels and layouts: each role's in a kernel with explicit roles, else the kernel's."""
    from tilec.ir.tile_verify.layouts import layout_violations

    yield from find_rewritten_violations(assignment.kernel)
    for part in assignment.roles:
        yield from (f"role {part.name}: {fault}" for fault in find_rewritten_violations(part.assignment.kernel))
    for one in assignment.kernels:
        yield from layout_violations(one.kernel, one.fragments, one.shared, one.nest_layout)
