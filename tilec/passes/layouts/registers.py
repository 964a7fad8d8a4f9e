"""How many registers of a thread its fragments take, and how many elements of a nest it computes: both are unrolled."""

from __future__ import annotations

from tilec.diag import AT_ONCE, Label, Mistakes, fail
from tilec.ir.tile import Parallel, walk
from tilec.passes.layouts.layout import Laid

MAX_REGISTERS = 1024
"""Four times what a thread has. What the assembler then needs grows with the registers that are live times the
instructions: with so many of both as there may be, half a minute and more than a gigabyte."""

MAX_ELEMENTS = 65_536
"""Of a nest, for each thread. No program that the assembler takes has an instruction for each of more
(too-many-instructions says how many there may be), and who prices nests looks at each."""

_SHOWN = 3


def check_registers(laid: Laid, mistakes: Mistakes = AT_ONCE) -> None:
    """Whether the assembler can be asked to keep the fragments of a kernel at all. Those that are only a little too
    large lie in local memory, which is slow, and said (register-spill)."""
    for one in laid.kernels:
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


def _check(laid: Laid) -> None:
    known = {buffer.name: buffer for buffer in laid.kernel.buffers}
    bits = {name: f.register_count * known[name].dtype.bits for name, f in laid.fragments.items() if name in known}
    taken = {name: -(-count // 32) for name, count in bits.items()}
    if sum(taken.values()) <= MAX_REGISTERS:
        return
    largest = sorted(taken, key=lambda name: (-taken[name], name))[:_SHOWN]
    first, *others = (Label(known[n].span, f"{n}: {taken[n]} registers of each thread") for n in largest)
    fail(
        "fragment-overflow",
        f"the fragments take {sum(taken.values())} registers of a thread, {MAX_REGISTERS} are the most",
        first.span,
        first.text,
        secondary=tuple(others),
        help="use smaller tiles, or more threads to share them: a thread has 255 registers",
    )
