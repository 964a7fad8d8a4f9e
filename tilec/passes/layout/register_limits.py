"""How many registers of a thread its fragments take, and how many elements of a nest it computes: both are unrolled."""

from __future__ import annotations

from typing import NoReturn

from tilec.ir.tile import Parallel, walk
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import AT_ONCE, Label, Mistakes, fail

MAX_REGISTERS = 1024
"""Four times what a thread has. What the assembler then needs grows with the registers that are live times the
instructions: with so many of both as there may be, half a minute and more than a gigabyte."""

MAX_ELEMENTS = 65_536
"""Of a nest, for each thread. No program that the assembler takes has an instruction for each of more
(too-many-instructions says how many there may be), and who prices nests looks at each."""

MAX_WORK = 1 << 24
"""Of registers that fragments take times instructions, where the assembler has to keep some in local memory: three
quarters of this took ptxas 13.0 42 seconds and 375 MB."""

_THREAD = 255
"""Registers of a thread."""

_SHOWN = 3


def check_registers(assignment: LayoutAssignment, mistakes: Mistakes = AT_ONCE) -> None:
    """Whether the assembler can be asked to keep the fragments of a kernel at all. Those that are only a little too
    large lie in local memory, which is slow, and said (register-spill)."""
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
    """The same of a kernel that is written out, for what so many instructions make of it."""
    for one in assignment.kernels:
        registers = sum(_taken(one).values())
        if registers > _THREAD and registers * instructions > MAX_WORK:
            _refuse(one, f"and {instructions:,} instructions use them: too many to assemble")


def _taken(assignment: LayoutAssignment) -> dict[str, int]:
    """Registers of a thread for each fragment."""
    known = {buffer.name: buffer for buffer in assignment.kernel.buffers}
    bits = {
        name: f.register_count * known[name].dtype.bits for name, f in assignment.fragments.items() if name in known
    }
    return {name: -(-count // 32) for name, count in bits.items()}


def _check(assignment: LayoutAssignment) -> None:
    if sum(_taken(assignment).values()) > MAX_REGISTERS:
        _refuse(assignment, f"{MAX_REGISTERS} are the most")


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
        help="use smaller tiles, or more threads to share them: a thread has 255 registers",
    )
