"""Limits of fragments and nests, both of which are unrolled: registers and elements of a thread."""

from __future__ import annotations

from typing import NoReturn

from tilec.ir.tile import Parallel, walk
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import AT_ONCE, Label, Mistakes, fail

MAX_REGISTERS = 1024
"""Four times the registers of a thread. The assembler's time and memory grow with live registers times instructions: at
the limits of both, half a minute and more than a gigabyte."""

MAX_ELEMENTS = 65_536
"""Elements of a nest for each thread: more become more instructions than the assembler takes (too-many-instructions),
and the cost model visits each."""

MAX_WORK = 1 << 24
"""Registers of fragments times instructions, where the assembler has to spill: three quarters of this took ptxas 13.0
42 seconds and 375 MB."""

_THREAD = 255

_SHOWN = 3


def check_registers(assignment: LayoutAssignment, mistakes: Mistakes = AT_ONCE) -> None:
    """Refuse fragments that the assembler cannot be asked to keep. Those a little too large are spilled, with a warning
    (register-spill)."""
    for one in assignment.kernels:
        with mistakes.caught():
            _check(one)
        for nest in (s for s in walk(one.kernel.body) if isinstance(s, Parallel)):
            count = one.nest_layout(nest).register_count
            if count > MAX_ELEMENTS:
                with mistakes.caught():
                    fail(
                        "too-many-instructions",
                        f"each thread computes {count} elements, {MAX_ELEMENTS} are the most",
                        nest.span.first_line(),
                        "they are unrolled",
                        help="compute with a smaller tile in a T.serial loop, or in more blocks",
                    )


def check_work(assignment: LayoutAssignment, instructions: int) -> None:
    """Refuse fragments that make this many instructions too much work for the assembler."""
    for one in assignment.kernels:
        registers = sum(_taken(one).values())
        if registers > _THREAD and registers * instructions > MAX_WORK:
            _refuse(one, f"and {instructions:,} instructions use them: too many to assemble")


def _taken(assignment: LayoutAssignment) -> dict[str, int]:
    """Count the registers of a thread for each fragment."""
    known = {buffer.name: buffer for buffer in assignment.kernel.buffers}
    bits = {
        name: f.register_count * known[name].dtype.bits for name, f in assignment.fragments.items() if name in known
    }
    return {name: -(-count // 32) for name, count in bits.items()}


def _check(assignment: LayoutAssignment) -> None:
    if sum(_taken(assignment).values()) > MAX_REGISTERS:
        _refuse(assignment, f"which has {_THREAD}: up to {MAX_REGISTERS} are spilled, more are refused")


def _refuse(assignment: LayoutAssignment, why: str) -> NoReturn:
    taken, known = _taken(assignment), {buffer.name: buffer for buffer in assignment.kernel.buffers}
    largest = sorted(taken, key=lambda name: (-taken[name], name))[:_SHOWN]
    first, *others = (Label(known[n].span, f"{n}: {taken[n]} registers of each thread") for n in largest)
    fail(
        "fragment-overflow",
        f"the fragments take {sum(taken.values())} registers of a thread, {why}",
        first.span,
        first.text,
        secondary=tuple(others),
        help="use smaller tiles, or more threads to share them",
    )
