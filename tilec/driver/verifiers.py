"""What is verified of each kind of value that passes hand on, whichever of them made it.

A verifier shares no code with what it verifies. All of them run where tests or `--verify` ask for it; in a user's build
those do that cost little beside what they look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilec.support.options import Stage

if TYPE_CHECKING:
    from tilec.driver.work import Planned
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.passes.loop.build_problem import LoopProblem


def verified(stage: Stage, value: Any, *, everything: bool = True) -> Iterator[str]:
    """The promises that a stage's value breaks, in words. Without `everything` those alone that are quick to see."""
    match stage:
        case "tile":
            yield from _kernel(value, everything)
        case "layout":
            yield from _assignment(value)
        case "problem":
            yield from _problems(value)
        case "schedule":
            yield from _schedules(value)
        case "expand":
            from tilec.ir.warp_declarations import declaration_violations

            yield from declaration_violations(value)
        case "warp":
            from tilec.ir.warp_declarations import declaration_violations

            yield from declaration_violations(value)
            if everything:  # runs the barriers: a third of the time that attention takes to compile
                from tilec.ir.warp_verify import program_violations

                yield from program_violations(value)
        case "ast" | "alias" | "ptx" | "cubin":
            return


def kernel_violations(kernel: Kernel) -> Iterator[str]:
    """Of a kernel as it was written."""
    from tilec.ir.verify import verify_tile
    from tilec.ops.form import show_violations

    broken = list(verify_tile(kernel))
    yield from broken or show_violations(kernel)


def rewritten_violations(kernel: Kernel) -> Iterator[str]:
    """Of a kernel about which passes have decided: with the grid that is launched, and operations that say how they are
    done."""
    from tilec.driver.decided_attributes import violations
    from tilec.ir.verify import verify_tile

    broken = list(verify_tile(kernel, as_launched=True))
    yield from broken or violations(kernel)


def _kernel(kernel: Kernel, everything: bool) -> Iterator[str]:
    yield from kernel_violations(kernel)
    if everything:
        from tilec.ir.read import read_kernel
        from tilec.ir.text import print_kernel

        text = print_kernel(kernel)
        if print_kernel(read_kernel(text)) != text:
            yield "its text does not read back identically"


def _assignment(assignment: LayoutAssignment) -> Iterator[str]:
    """The layouts of the roles, where a kernel makes these, else of all of it."""
    from tilec.ir.verify_layout import layout_violations

    yield from rewritten_violations(assignment.kernel)
    for part in assignment.roles:
        yield from (f"role {part.name}: {said}" for said in rewritten_violations(part.assignment.kernel))
    for one in assignment.kernels:
        yield from layout_violations(one.kernel, one.fragments, one.shared, one.nest_layout)


def _problems(loops: tuple[LoopProblem, ...]) -> Iterator[str]:
    from tilec.sched.check import find_problem_faults

    for loop in loops:
        yield from find_problem_faults(loop.problem)


def _schedules(planned: tuple[Planned, ...]) -> Iterator[str]:
    """Every schedule, wherever it came from."""
    from tilec.sched.verify import find_violations

    for one in planned:
        yield from find_violations(one.loop.problem, one.solution.schedule)
