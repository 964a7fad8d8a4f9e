"""Limits of fragments and nests, both of which are unrolled: registers and elements of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tilec.ir.tile import Parallel, walk_statements
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, Label, raise_error

MAX_REGISTERS = 1024
"""Four times the registers of a thread. The assembler's time and memory grow with live registers times instructions: at
the limits of both, half a minute and more than a gigabyte."""

MAX_ELEMENTS = 65_536
"""Elements of a nest for each thread: more become more instructions than the assembler takes (too-many-instructions),
and the cost model visits each."""

MAX_WORK = 1 << 24
"""Registers of fragments times instructions, where the assembler has to spill: three quarters of this took ptxas 13.0
42 seconds and 375 MB."""

_THREAD_REGISTERS = 255
_MAX_SHOWN = 3


def check_registers(assignment: LayoutAssignment, mistakes: ErrorCollector = RAISE_FIRST) -> None:
    """Refuse fragments that together take over 1024 registers of a thread, and nests of over 65,536 elements of a
    thread.

    Those a little too large are spilled, with a warning (register-spill)."""
    for one in assignment.kernels:
        with mistakes.caught():
            if sum(_count_registers(one).values()) > MAX_REGISTERS:
                why = f"which has {_THREAD_REGISTERS}: up to {MAX_REGISTERS} are spilled, more are refused"
                _refuse_fragments(one, why)
        for nest in (s for s in walk_statements(one.kernel.body) if isinstance(s, Parallel)):
            count = one.nest_layout(nest).register_count
            if count > MAX_ELEMENTS:
                with mistakes.caught():
                    raise_error(
                        "too-many-instructions",
                        f"each thread computes {count} elements; the limit is {MAX_ELEMENTS}",
                        nest.span.first_line(),
                        "they are unrolled",
                        help="compute with a smaller tile in a T.serial loop, or in more blocks",
                    )


def check_assembler_work(assignment: LayoutAssignment, instructions: int) -> None:
    """Refuse fragments too large for a thread's registers if so many instructions would take ptxas too long."""
    for one in assignment.kernels:
        registers = sum(_count_registers(one).values())
        if registers > _THREAD_REGISTERS and registers * instructions > MAX_WORK:
            _refuse_fragments(one, f"used by {instructions:,} instructions: more than ptxas can handle")


def refuse_fragments(assignments: Sequence[LayoutAssignment]) -> NoReturn:
    """Raise the error that the products of a kernel leave its threads no registers, at the largest fragments of those
    assignments that take most."""
    parts = [part for assignment in assignments for part in assignment.kernels]
    most = max(parts, key=lambda part: sum(_count_registers(part).values()))
    threads = max(assignment.block_threads for assignment in assignments)
    wanted = most.kernel.min_blocks
    fewer = (
        None if wanted is None else Label(wanted.span, f"{wanted.count} blocks are to share those of a multiprocessor")
    )
    _refuse_fragments(most, f"and products cannot spill theirs: each of {threads} threads has too few", fewer)


def _count_registers(assignment: LayoutAssignment) -> dict[str, int]:
    """Return, for each fragment by name, how many 32-bit registers of a thread it takes."""
    known = {buffer.name: buffer for buffer in assignment.kernel.buffers}
    bits = {
        name: f.register_count * known[name].dtype.bits for name, f in assignment.fragments.items() if name in known
    }
    return {name: -(-count // 32) for name, count in bits.items()}


def _refuse_fragments(assignment: LayoutAssignment, why: str, fewer: Label | None = None) -> NoReturn:
    """Raise the error that a kernel's fragments take too many registers, pointing at the largest ones, and at what
    leaves it `fewer`."""
    taken, known = _count_registers(assignment), {buffer.name: buffer for buffer in assignment.kernel.buffers}
    largest = sorted(taken, key=lambda name: (-taken[name], name))[:_MAX_SHOWN]
    first, *others = (Label(known[n].span, f"{n}: {taken[n]} registers of each thread") for n in largest)
    raise_error(
        "fragment-overflow",
        f"the fragments take {sum(taken.values())} registers of a thread, {why}",
        first.span,
        first.text,
        secondary=(*others, *([] if fewer is None else [fewer])),
        help="use smaller tiles, or more threads to share them" if fewer is None else "request fewer blocks",
    )
