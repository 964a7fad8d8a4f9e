"""setmaxnreg: warpgroups give registers back to their block's pool and take them from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, Program, register_decoder
from tilec.emu.numbers import Array
from tilec.ptx.module import Imm, Instruction

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Group, Threads

_REGISTERS_PER_SM = 65_536
_MAX_PER_THREAD = 256
"""A thread names at most 255 registers, but they are allocated in units of 8."""
_WARP = 32
_WARPGROUP = 128


class RegisterPool:
    """The registers that each warp of a block holds, and those that the block has free."""

    def __init__(self, cta: Cta) -> None:
        entry = cta.program.entry
        directives = (directive.partition(" ") for directive in entry.directives)
        limits = {word: [int(number) for number in re.findall(r"\d+", values)] for word, _, values in directives}
        threads = cta.thread_count
        blocks = limits.get(".minnctapersm", [1])[0]
        self.size = _REGISTERS_PER_SM // blocks
        self.held: Array = np.full(-(-threads // _WARP), _count_at_entry(cta.program, limits, blocks), np.int64)
        self.version = 0

    @property
    def free(self) -> int:
        """Return how many of the block's registers no warp holds."""
        return int(self.size - self.held.sum() * _WARP)

    def describe(self) -> str:
        """Return the free registers and those each warpgroup's threads hold, in words, for a deadlock report."""
        groups = [f"{int(self.held[first])} each" for first in range(0, len(self.held), 4)]
        return f"{self.free} of {self.size} registers are free; its warpgroups hold {', '.join(groups)}"


def _count_at_entry(program: Program, limits: Mapping[str, Sequence[int]], blocks: int) -> int:
    """Return the registers of each thread at kernel entry; fault if ptxas would ignore setmaxnreg. As observed with
    ptxas 13.0: `.maxnreg`, or an equal share of the multiprocessor for each thread of whole warpgroups, but no more
    than the largest setmaxnreg.inc of the kernel."""
    bounds = [limits[word] for word in (".reqntid", ".maxntid") if word in limits]
    if ".maxnreg" in limits:
        share = limits[".maxnreg"][0]
    elif bounds and ".minnctapersm" in limits:
        threads = -(-math.prod(bounds[0]) // _WARPGROUP) * _WARPGROUP
        share = min(_REGISTERS_PER_SM // blocks // threads // 8 * 8, _MAX_PER_THREAD)
    else:
        message = "the assembler ignores setmaxnreg, because it does not know how many registers a thread starts with"
        raise Fault("setmaxnreg-ignored", f"{message}: .maxntid or .reqntid needs .minnctapersm (or give .maxnreg)")
    grown = (step.instruction for step in program.steps if step.instruction.opcode.startswith("setmaxnreg.inc"))
    return min(share, max((_requested_count(instruction) for instruction in grown), default=share))


def _requested_count(instruction: Instruction) -> int:
    """Return the register count that a setmaxnreg names, the largest possible if it is not a constant."""
    operand = instruction.operands[0]
    return operand.value if isinstance(operand, Imm) else _MAX_PER_THREAD


@register_decoder("setmaxnreg", accepts="dec")
def _decode_setmaxnreg(form: Form) -> None:
    """Decode `setmaxnreg` of 24 to 256 in steps of 8 into a step by which warps return registers to a pool or wait for
    more."""
    form.step.gather = _WARP
    wanted = form.parse_constant(form.operands[0])
    is_growing = form.has("inc")
    if wanted % 8 or not 24 <= wanted <= 256:
        raise form.unsupported(f"{wanted} registers: 24 to 256 in steps of 8")

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Set these warps' count and return True; park the group and return False if registers lack; fault on a wrong
        direction. Wrong is an `inc` that would shrink, or a `dec` that would grow."""
        if cta.register_pool is None:
            cta.register_pool = RegisterPool(cta)
        pool = cta.register_pool
        warps = np.unique(cta.thread_ids[threads] // _WARP)
        held = pool.held[warps]
        way, limit = ("inc", int(held.max())) if is_growing else ("dec", int(held.min()))
        if limit > wanted if is_growing else limit < wanted:
            message = f"setmaxnreg.{way} to {wanted} registers of a warp that holds {limit}"
            raise Fault("bad-setmaxnreg", message)
        needed = int((wanted - held).sum()) * _WARP
        if needed > pool.free:
            version = pool.version

            def describe_wait() -> str:
                """Return the words for a wait for registers, with the state of the pool."""
                return f"{needed} registers to grow to {wanted} a thread, where {pool.describe()}"

            return group.park(describe_wait, lambda: pool.version != version)
        pool.held[warps] = wanted
        pool.version += 1
        group.pc += 1
        return True
