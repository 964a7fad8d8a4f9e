"""Restricts emulation to the steps that decide which instructions run, and with which addresses.

The slice is closed over registers, regardless of the order of steps: branches, predicates, addresses and barriers are
needed, and so is every step that writes a needed register. All other steps do nothing, which makes a block of a large
problem cheap to run. Where the numbers themselves decide control, everything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.emu.calls.functions import RegisterIndex
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Program
from tilec.emu.machine.steps import Step
from tilec.emu.tma.bulk import build_arrival_only_step
from tilec.ptx.module import Address, Operand, Reg, TensorAddress

_SYNCHRONISING_STEMS = ("mbarrier", "cp.async.mbarrier", "clusterlaunchcontrol", "tcgen05.commit", "atom",
                 "barrier.cluster", "setmaxnreg", "st.async", "red.async",
                 "cp.async.bulk.shared", "cp.async.bulk.tensor", "cp.reduce.async.bulk.shared", "griddepcontrol",
                 "tensormap", "fence.proxy.tensormap", "fence.mbarrier_init")  # fmt: skip
"""Prefixes of the stems of steps that other threads may wait for, or read control from."""
_ORDERED_QUALIFIERS = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"))
_TENSOR_MEMORY_ALLOCATION = ("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish")
"""Steps that allocate tensor memory, whose addresses do not affect time."""
_MATRIX_STEMS = ("wgmma.mma", "mma", "tcgen05.mma", "tcgen05.ld", "wmma")


def skip_numbers(program: Program) -> bool:
    """Make the steps that decide neither control nor addresses do nothing; return False, changing nothing, if products
    decide. Tensor loads then only arrive at their mbarriers, if no needed load reads shared memory."""
    steps = program.steps
    kept = _find_needed_steps(program)
    if any(steps[pc].stem.startswith(_MATRIX_STEMS) for pc in kept):
        return False
    reads_shared = any(_is_load_from(steps[pc], "shared") for pc in kept - _find_answer_loads(program))
    for pc, step in enumerate(steps):
        if step.stem.startswith(_TENSOR_MEMORY_ALLOCATION):
            step.run, step.control = _do_nothing, None
        elif step.control is None and pc not in kept:
            step.run = _do_nothing
        elif not reads_shared and step.stem.startswith("cp.async.bulk.tensor"):
            step.run = build_arrival_only_step(program.build_form(pc))
        step.written_matrix_registers = frozenset()
        step.is_matrix = False
    return True


def _do_nothing(cta: object, threads: object) -> None:
    """Do nothing, as the function of a step that is skipped."""
    return


def _find_needed_steps(program: Program) -> set[int]:
    """Return the steps that control, addresses and barriers depend on, directly or through registers and memory."""
    steps = program.steps
    answers = _find_answer_loads(program)
    kept: set[int] = set()
    needed: set[RegisterIndex] = set()
    for pc, step in enumerate(steps):
        instruction = step.instruction
        controls = step.control is not None and not step.stem.startswith(_TENSOR_MEMORY_ALLOCATION)
        if controls or _is_synchronising(step):
            kept.add(pc)
            needed |= step.registers
        if step.stem.startswith("tcgen05.mma"):
            needed |= _find_read_registers(program, pc, (instruction.operands[3],))
        addressing: list[Operand] = [o for o in instruction.operands if isinstance(o, (Address, TensorAddress))]
        if instruction.guard is not None:
            addressing.append(instruction.guard.reg)
        if not step.stem.startswith("tcgen05"):
            # The tensor-memory addresses of a product do not affect its time.
            needed |= _find_read_registers(program, pc, addressing)
        elif instruction.guard is not None:
            needed |= _find_read_registers(program, pc, (instruction.guard.reg,))
    is_growing = True
    while is_growing:
        is_growing = False
        spaces = [
            space for space in ("shared", "local") if any(_is_load_from(steps[pc], space) for pc in kept - answers)
        ]
        for pc, step in enumerate(steps):
            if pc in kept:
                continue
            feeds = step.stem in ("st", "stmatrix.sync") and any(_may_access(step, space) for space in spaces)
            if feeds or not needed.isdisjoint(step.written):
                kept.add(pc)
                needed |= step.registers
                is_growing = True
    return kept


def _find_answer_loads(program: Program) -> set[int]:
    """Return the loads from shared memory whose values reach `clusterlaunchcontrol.query_cancel` by moves only. Only
    the request writes them, and it is carried out, so they need no computed numbers."""
    steps = program.steps
    needed = {
        place for step in steps if "query_cancel" in step.instruction.opcode for place in step.registers - step.written
    }
    found: set[int] = set()
    previous = -1
    while previous != len(needed):
        previous = len(needed)
        for pc, step in enumerate(steps):
            if needed.isdisjoint(step.written):
                continue
            if _is_load_from(step, "shared"):
                found.add(pc)
            elif step.stem == "mov":
                needed |= step.registers
    return found


def _find_read_registers(program: Program, pc: int, operands: Sequence[Operand]) -> set[RegisterIndex]:
    """Return the registers that these operands of a step read, those of their addresses included, without undeclared
    ones."""
    registers: list[Operand] = []
    for operand in operands:
        match operand:
            case Address(base=base):
                registers.append(base)
            case TensorAddress(map=base, coordinates=coordinates):
                registers += (base, *coordinates)
            case _:
                registers.append(operand)
    found: set[RegisterIndex] = set()
    form = program.build_form(pc)
    for register in registers:
        if isinstance(register, Reg) and register.name != "_":
            try:
                found.add(form.find_register(register))
            except Fault:
                continue
    return found


def _is_synchronising(step: Step) -> bool:
    """Return whether other threads may wait for a step, or read control from what it writes; bulk tensor stores never
    count."""
    words = step.instruction.opcode.split(".")
    if step.stem.startswith("cp.async.bulk.tensor") and step.stem.endswith(".global"):
        return False  # a store: no control depends on the memory it writes
    ordered = words[0] in ("ld", "st", "red") and not _ORDERED_QUALIFIERS.isdisjoint(words)
    return ordered or step.stem.startswith(_SYNCHRONISING_STEMS)


def _is_load_from(step: Step, space: str) -> bool:
    """Return whether a step is a load, an ldmatrix or an atom that may access this state space."""
    return step.stem in ("ld", "ldmatrix.sync", "atom") and _may_access(step, space)


def _may_access(step: Step, space: str) -> bool:
    """Return whether a step may access this state space; an opcode without a space may access any."""
    spaces = {word.partition("::")[0] for word in step.instruction.opcode.split(".")}
    named = spaces & {"shared", "local", "global", "param", "const"}
    return space in named or not named
