"""What of a kernel must be computed to know which instructions run, and with which addresses.

The slice is closed over registers, whatever the order of the steps: what decides a branch, a predicate, an address or
a barrier is needed, and so is all that writes what is needed. The rest of the steps is passed over, which makes a
block of a large problem cheap to follow. Where the numbers themselves decide, everything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.emu.bulk import announcing
from tilec.emu.decode import Program
from tilec.emu.fault import Fault
from tilec.emu.functions import Place
from tilec.emu.steps import Step
from tilec.ptx.module import Address, Operand, Reg, TensorAddress

_SYNCHRONISES = ("mbarrier", "cp.async.mbarrier", "clusterlaunchcontrol", "tcgen05.commit", "atom",
                 "barrier.cluster", "setmaxnreg", "st.async", "red.async",
                 "cp.async.bulk.shared", "cp.async.bulk.tensor", "cp.reduce.async.bulk.shared", "griddepcontrol",
                 "tensormap", "fence.proxy.tensormap", "fence.mbarrier_init")  # fmt: skip
"""How the stems of steps begin that others may wait for, or read control from."""
_ORDERED = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"))
_RESERVES = ("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish")
"""What deals out tensor memory, whose addresses make no difference to time."""
_MATRIX = ("wgmma.mma", "mma", "tcgen05.mma", "tcgen05.ld", "wmma")


def skip_numbers(program: Program) -> bool:
    """Let the steps outside of the slice do nothing. False, and nothing is changed, where the results of matrix
    instructions decide what runs."""
    steps = program.steps
    kept = _kept(program)
    if any(steps[pc].stem.startswith(_MATRIX) for pc in kept):
        return False
    reads_shared = any(_loads(steps[pc], "shared") for pc in kept - _loads_of_answers(program))
    for pc, step in enumerate(steps):
        if step.stem.startswith(_RESERVES):
            step.run, step.control = _nothing, None
        elif step.control is None and pc not in kept:
            step.run = _nothing
        elif not reads_shared and step.stem.startswith("cp.async.bulk.tensor"):
            step.run = announcing(program.form(pc))
        step.stains = frozenset()
        step.is_matrix = False
    return True


def _nothing(cta: object, threads: object) -> None:
    return


def _kept(program: Program) -> set[int]:
    """The steps whose results are needed."""
    steps = program.steps
    answers = _loads_of_answers(program)
    kept: set[int] = set()
    needed: set[Place] = set()
    for pc, step in enumerate(steps):
        instruction = step.instruction
        if (step.control is not None and not step.stem.startswith(_RESERVES)) or _synchronises(step):
            kept.add(pc)
            needed |= step.registers
        if step.stem.startswith("tcgen05.mma"):
            needed |= _places(program, pc, (instruction.operands[3],))
        addressing: list[Operand] = [o for o in instruction.operands if isinstance(o, (Address, TensorAddress))]
        if instruction.guard is not None:
            addressing.append(instruction.guard.reg)
        if not step.stem.startswith("tcgen05"):
            # Where in tensor memory a product lies makes no difference to its time.
            needed |= _places(program, pc, addressing)
        elif instruction.guard is not None:
            needed |= _places(program, pc, (instruction.guard.reg,))
    is_growing = True
    while is_growing:
        is_growing = False
        spaces = [space for space in ("shared", "local") if any(_loads(steps[pc], space) for pc in kept - answers)]
        for pc, step in enumerate(steps):
            if pc in kept:
                continue
            feeds = step.stem in ("st", "stmatrix.sync") and any(_is_in(step, space) for space in spaces)
            if feeds or not needed.isdisjoint(step.written):
                kept.add(pc)
                needed |= step.registers
                is_growing = True
    return kept


def _loads_of_answers(program: Program) -> set[int]:
    """The loads from shared memory that bring what `clusterlaunchcontrol.query_cancel` is asked about, through moves
    only. Nothing but the request, which is carried out, writes that; so no number has to be known for it."""
    steps = program.steps
    asked = {
        place for step in steps if "query_cancel" in step.instruction.opcode for place in step.registers - step.written
    }
    found: set[int] = set()
    before = -1
    while before != len(asked):
        before = len(asked)
        for pc, step in enumerate(steps):
            if asked.isdisjoint(step.written):
                continue
            if _loads(step, "shared"):
                found.add(pc)
            elif step.stem == "mov":
                asked |= step.registers
    return found


def _places(program: Program, pc: int, operands: Sequence[Operand]) -> set[Place]:
    """The registers that these operands of a step read."""
    registers: list[Operand] = []
    for operand in operands:
        match operand:
            case Address(base=base):
                registers.append(base)
            case TensorAddress(map=base, coordinates=coordinates):
                registers += (base, *coordinates)
            case _:
                registers.append(operand)
    found: set[Place] = set()
    form = program.form(pc)
    for register in registers:
        if isinstance(register, Reg) and register.name != "_":
            try:
                found.add(form.place(register))
            except Fault:
                continue
    return found


def _synchronises(step: Step) -> bool:
    words = step.instruction.opcode.split(".")
    if step.stem.startswith("cp.async.bulk.tensor") and step.stem.endswith(".global"):
        return False  # a store: nobody's control waits for what it writes
    ordered = words[0] in ("ld", "st", "red") and not _ORDERED.isdisjoint(words)
    return ordered or step.stem.startswith(_SYNCHRONISES)


def _loads(step: Step, space: str) -> bool:
    return step.stem in ("ld", "ldmatrix.sync", "atom") and _is_in(step, space)


def _is_in(step: Step, space: str) -> bool:
    """Whether it may reach this memory: a generic address may reach all."""
    spaces = {word.partition("::")[0] for word in step.instruction.opcode.split(".")}
    named = spaces & {"shared", "local", "global", "param", "const"}
    return space in named or not named
