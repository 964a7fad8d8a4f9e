"""The properties of instructions that a replay needs, whichever warp runs them: registers, pipe, transfer, deed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tilec.emu.calls.functions import RegisterIndex
from tilec.emu.machine.decode import Program
from tilec.emu.machine.steps import Step
from tilec.emu.tcgen05.instruction_descriptor import PRODUCT_K
from tilec.ptx.module import Imm, Vector
from tilec.simulate.costs import InstructionCosts, PipeCost
from tilec.simulate.machine_code import MachineLines, MachineStep, count_machine_steps
from tilec.simulate.machine_operations import find_machine_operations
from tilec.support.records import dataclass
from tilec.target.names import InstructionKind

Deed = Literal[
    "plain", "free", "load", "store", "copy", "copy.commit", "copy.wait", "copy.arrive", "bulk.load", "bulk.store",
    "bulk.commit", "bulk.wait", "wgmma", "wgmma.commit", "wgmma.wait", "mbarrier.init", "mbarrier.arrive",
    "mbarrier.expect", "mbarrier.wait", "barrier", "cluster.arrive", "cluster.wait", "tcgen05.mma", "tcgen05.commit",
    "tcgen05.wait",
]  # fmt: skip

_MUFU_OPCODES = ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh", "div")
_PLAIN_WORDS = ("bra", "ret", "exit", "brx", "call", "membar", "fence", "setmaxnreg", "nanosleep", "tcgen05", "wgmma",
                "mbarrier")  # fmt: skip
"""First words of instructions that take an issue slot only, of those that are not named before."""
_FREE_OPCODES = ("mov", "ld.param", "cvta", "prefetch", "pragma", "griddepcontrol", "tensormap", "nop")
"""Opcodes that the assembler removes: register copies, and parameters, which instructions read as operands."""
_FLOATS = ("f32", "f16", "f16x2", "bf16", "bf16x2", "f64", "f32x2")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction as a replay sees it. `reads` and `writes` are register numbers; `pipe` is the cost on a pipe of
    its quarter, `move` the row that prices its transfer. `number` is the parameter of its deed: for a wait the groups
    that may stay in flight, for a product its n."""

    pc: int
    text: str
    file: str
    line: int
    """Source line, 0 if there is none."""
    ptx_line: int
    deed: Deed
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    issue: float = 1.0
    spacing: float = 0.0
    """Cycles until its warp may issue the next instruction, if more than those that it issues."""
    pipe: PipeCost | None = None
    move: InstructionKind | None = None
    number: int = 0
    flops: int = 0
    """Operations of a product, of this warp's share; for tcgen05, for each (m, n) element."""
    flag: bool = False
    """A wait for bulk stores: waits for their reads only. A product: A is in registers. A barrier: the warp waits."""

    @property
    def place(self) -> str:
        """Return the source line in words, or the PTX line if there is none."""
        return f"line {self.line}" if self.line else f"PTX line {self.ptx_line}"


def build_instructions(
    program: Program, costs: InstructionCosts, lines: MachineLines | None = None
) -> tuple[Instruction, ...]:
    """Return a kernel's instructions as a replay sees them, one for each step: at the cost of their machine code, given
    by the `lines` of the PTX. Without it, arithmetic that the assembler computes once, before a loop or for several
    instructions, is taken to cost nothing."""
    made = _classify_steps(program, costs)
    if not lines:
        return made
    steps = program.steps
    found = count_machine_steps(steps, lines, [instruction.deed == "free" for instruction in made])
    return tuple(
        _apply_machine_code(one, machine, costs) if steps[one.pc].control is None or one.deed != "plain" else one
        for one, machine in zip(made, found, strict=True)
    )


def _apply_machine_code(one: Instruction, machine: MachineStep | None, costs: InstructionCosts) -> Instruction:
    """Return an instruction at the cost of its machine code: arithmetic, loads and stores; others stay as they are. The
    stall counts are its distance to the next one, so that no later one waits for a result of fixed latency."""
    if one.deed not in ("plain", "load", "store"):
        return one
    if machine is None:
        return one if one.deed != "plain" else replace(one, deed="free", issue=0.0, pipe=None)
    if one.pipe is not None and one.pipe.name == "tensor":
        return replace(one, spacing=machine.stalls)
    pipe = None
    if one.deed == "plain":
        special, integer, floating = (costs.pipe(unit) for unit in ("mufu", "integer", "elementwise"))
        held = (special, machine.special), (integer, machine.integer), (floating, machine.floating)
        unit, times = max(held, key=lambda one: one[0].cycles * one[1])
        latency = unit.latency if unit is special else 0.0
        pipe = replace(unit, cycles=unit.cycles * times, latency=latency) if times else None
    return replace(one, issue=machine.issued, spacing=machine.stalls, pipe=pipe)


def _classify_steps(program: Program, costs: InstructionCosts) -> tuple[Instruction, ...]:
    """Return a kernel's instructions by their opcodes and operands alone."""
    numbers: dict[RegisterIndex, int] = {}
    computed = _find_loop_invariants(program.steps) | _find_repeated_steps(program.steps)
    made = []
    for pc, step in enumerate(program.steps):
        reads = tuple(numbers.setdefault(place, len(numbers)) for place in sorted(step.registers - step.written))
        writes = tuple(numbers.setdefault(place, len(numbers)) for place in sorted(step.written))
        deed, issue, pipe, move, number, flag = _classify_step(step, costs)
        if pc in computed and deed == "plain":
            deed, issue, pipe = "free", 0.0, None
        if deed == "wgmma" or deed == "wgmma.wait":
            reads, writes = (), ()  # the tensor cores own the accumulators until the wait
        file, line = ("", 0) if step.location is None else (step.location.file, step.location.line)
        text, ptx_line, flops = step.instruction.opcode, step.instruction.line, _count_flops(step)
        made.append(
            Instruction(
                pc, text, file, line, ptx_line, deed, reads, writes, issue, 0.0, pipe, move, number, flops, flag
            )
        )
    return tuple(made)


_STEM_DEEDS: dict[str, tuple[Deed, InstructionKind | None]] = {
    "cp.async": ("copy", "cp.async"), "cp.async.commit_group": ("copy.commit", None),
    "cp.async.bulk.commit_group": ("bulk.commit", None), "wgmma.commit_group": ("wgmma.commit", None),
    "mbarrier.init": ("mbarrier.init", None), "tcgen05.commit": ("tcgen05.commit", None),
    "tcgen05.ld": ("load", "tcgen05.ld"), "tcgen05.st": ("store", "tcgen05.st"),
}  # fmt: skip
"""The deed and the transfer of steps for which nothing but the stem counts."""
_Classification = tuple[Deed, float, PipeCost | None, InstructionKind | None, int, bool]


def _classify_step(step: Step, costs: InstructionCosts) -> _Classification:
    """Return a step's deed in a replay, with its issue cycles, pipe, transfer, number and flag, by opcode and
    operands."""
    stem, opcode = step.stem, step.instruction.opcode
    words = opcode.split(".")
    operands = step.instruction.operands

    def read_first_number() -> int:
        """Return the value of the first operand, 0 if it is no constant."""
        return operands[0].value if operands and isinstance(operands[0], Imm) else 0

    def classify_as(
        deed: Deed, number: int = 0, flag: bool = False, move: InstructionKind | None = None
    ) -> _Classification:
        """Return the classification of a step with this deed, one issue cycle and no pipe."""
        return deed, 1.0, None, move, number, flag

    if opcode.startswith(_FREE_OPCODES) and not opcode.startswith("movmatrix"):
        return "free", 0.0, None, None, 0, False
    if stem in _STEM_DEEDS:
        deed, move = _STEM_DEEDS[stem]
        return classify_as(deed, move=move)
    if stem.startswith("wgmma.mma_async"):
        match = re.search(r"m64n(\d+)k", opcode)
        # Operands are D, A, B, …; A is a vector if it comes from registers instead of a descriptor.
        return classify_as("wgmma", int(match[1]) if match else 0, isinstance(operands[1], Vector))
    if stem == "wgmma.wait_group":
        return classify_as("wgmma.wait", read_first_number())
    if stem.startswith("mma.sync") or stem == "mma":
        return "plain", 1.0, costs.pipe("mma.sync", _count_mma_units(opcode)), None, 0, False
    if stem in ("cp.async.wait_group", "cp.async.wait_all"):
        return classify_as("copy.wait", read_first_number())
    if stem == "cp.async.mbarrier.arrive":
        return classify_as("copy.arrive", flag="noinc" in words)
    if stem.startswith("cp.async.bulk.wait_group"):
        return classify_as("bulk.wait", read_first_number(), "read" in words)
    if stem.startswith(("cp.async.bulk.tensor", "cp.async.bulk.shared", "cp.async.bulk.global", "cp.reduce")):
        if stem.endswith(".global") or stem.startswith(("cp.reduce", "cp.async.bulk.global")):
            return classify_as("bulk.store", move="tma.store")
        return classify_as("bulk.load", move="tma.load")
    if stem.startswith("clusterlaunchcontrol.try_cancel"):
        return classify_as("bulk.load", move="ld.global")
    if stem.startswith("mbarrier.arrive"):
        return classify_as("mbarrier.arrive", flag="expect_tx" in words)
    if stem in ("mbarrier.expect_tx", "mbarrier.complete_tx"):
        return classify_as("mbarrier.expect", -1 if stem == "mbarrier.complete_tx" else 1)
    if stem in ("mbarrier.try_wait", "mbarrier.test_wait"):
        return classify_as("mbarrier.wait", flag="parity" in words)
    if words[0] in ("bar", "barrier") and "cluster" in words:
        return classify_as("cluster.wait" if "wait" in words else "cluster.arrive")
    if words[0] in ("bar", "barrier") and "warp" not in words:
        return classify_as("barrier", flag="arrive" not in words)
    if stem.startswith("tcgen05.mma"):
        return classify_as("tcgen05.mma", 2 if "cta_group::2" in words else 1)
    if stem.startswith("tcgen05.wait"):
        return classify_as("tcgen05.wait")
    if stem in ("ldmatrix.sync", "stmatrix.sync", "ld", "ldu", "st", "red", "atom") or words[0] in ("ld", "st"):
        return _classify_memory(words, stem)
    if words[0] in ("shfl", "movmatrix"):
        return classify_as("load", move="ld.shared")
    if words[0] in _PLAIN_WORDS:
        return classify_as("plain")
    if (made := find_machine_operations(step.instruction)) is not None:
        pipe = costs.pipe("mufu", made.special) if made.special else costs.pipe("integer", made.issued)
        # The other instructions wait for each other, before the special function and behind it.
        return "plain", made.issued, replace(pipe, latency=pipe.latency + made.issued - 1), None, 0, False
    if words[0] in _MUFU_OPCODES:
        return "plain", 1.0, costs.pipe("mufu"), None, 0, False
    is_float = any(word in _FLOATS for word in words[1:])
    if words[0] in ("add", "sub", "mul", "fma", "mad", "neg", "abs") and is_float:
        return "plain", 1.0, costs.pipe("elementwise", 2 if "f64" in words else 1), None, 0, False
    is_wide = any(word in ("s64", "u64", "b64") for word in words[1:]) or "wide" in words
    return "plain", 2.0 if is_wide else 1.0, costs.pipe("integer", 2 if is_wide else 1), None, 0, False


def _classify_memory(words: Sequence[str], stem: str) -> _Classification:
    """Return the classification of a load or store by its words; local and generic addresses count as global memory."""
    is_store = words[0] in ("st", "red", "stmatrix")
    is_shared = any(word.partition("::")[0] == "shared" for word in words) or stem == "stmatrix.sync"
    move: InstructionKind = "st.global" if is_store else "ld.global"
    if is_shared:
        move = "st.shared" if is_store else "ld.shared"
    return "store" if is_store else "load", 1.0, None, "ldmatrix" if stem == "ldmatrix.sync" else move, 0, False


def _count_flops(step: Step) -> int:
    """Return a product's floating-point operations: of this warp's share, for tcgen05 of an (m, n) element; 0 for
    others."""
    opcode = step.instruction.opcode
    if step.stem.startswith("tcgen05.mma"):
        kind = re.search(r"kind::(\w+)", opcode)
        return 2 * PRODUCT_K.get(kind[1] if kind else "", 16)
    shape = re.search(r"\.m(\d+)n(\d+)k(\d+)", opcode)
    if shape is None or "mma" not in step.stem:
        return 0
    flops = 2 * int(shape[1]) * int(shape[2]) * int(shape[3])
    return flops // 4 if step.stem.startswith("wgmma") else flops


def _count_mma_units(opcode: str) -> int:
    """Return how many products of 16 × 8 with 32 bytes of k an mma.sync is worth, at least 1: the unit of the price."""
    shape = re.search(r"\.m(\d+)n(\d+)k(\d+)", opcode)
    kinds = opcode.split(".")
    bits = next((_TYPE_BITS[kind] for kind in reversed(kinds[:-1]) if kind in _TYPE_BITS), 16)
    if shape is None:
        return 1
    m, n, k = (int(part) for part in shape.groups())
    return max(1, -(-(m * n * k * bits) // (16 * 8 * 16 * 16)))


_TYPE_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "e4m3": 8,
         "e5m2": 8, "e2m1": 4, "e3m2": 8, "e2m3": 8}  # fmt: skip


def find_back_branches(program: Program) -> frozenset[int]:
    """Return the steps of the branches that close a loop of more than three steps."""
    return frozenset(end for start, end in _find_loops(program.steps) if end - start > 2)


def _find_loop_invariants(steps: Sequence[Step]) -> set[int]:
    """Return the steps of arithmetic that an assembler hoists out of loops. They have no predicate, alone write their
    registers in the loop, and read nothing that the loop changes."""
    found: set[int] = set()
    for start, end in _find_loops(steps):
        body = range(start, end + 1)
        writers: dict[RegisterIndex, list[int]] = {}
        for pc in body:
            for place in steps[pc].written:
                writers.setdefault(place, []).append(pc)
        invariant: set[int] = set()
        is_growing = True
        while is_growing:
            is_growing = False
            for pc in body:
                step = steps[pc]
                if pc in invariant or step.guard >= 0 or not step.written or not _is_arithmetic(step):
                    continue
                if any(writers[place] != [pc] for place in step.written):
                    continue
                if all(set(writers.get(place, ())) <= invariant for place in step.registers - step.written):
                    invariant.add(pc)
                    is_growing = True
        found |= invariant
    return found


def _find_repeated_steps(steps: Sequence[Step]) -> set[int]:
    """Return the steps that compute what an earlier one of the same straight code has computed: the same instruction,
    whose sources and result no step between them has written."""
    entered = {step.target for step in steps if step.target is not None}
    found: set[int] = set()
    versions: dict[RegisterIndex, int] = {}
    results: dict[tuple[object, ...], tuple[tuple[RegisterIndex, int], ...]] = {}
    for pc, step in enumerate(steps):
        if pc in entered:
            results.clear()
        key: tuple[object, ...] | None = None
        if step.guard < 0 and step.written and _is_arithmetic(step):
            sources = tuple((at, versions.get(at, -1)) for at in sorted(step.registers - step.written))
            key = step.instruction.opcode, step.instruction.operands[1:], sources
            if key in results and all(versions[at] == version for at, version in results[key]):
                found.add(pc)
        versions.update(dict.fromkeys(step.written, pc))
        if key is not None and pc not in found:
            results[key] = tuple((at, pc) for at in step.written)
    return found


def _is_arithmetic(step: Step) -> bool:
    """Return whether a step is arithmetic on registers that does not read its own destination."""
    operands = step.instruction.operands
    if step.control is not None or step.gather or step.is_matrix or operands[0] in operands[1:]:
        return False  # an accumulating step is not invariant
    return step.instruction.opcode.split(".")[0] in (
        "add", "sub", "mul", "mad", "fma", "shl", "shr", "and", "or", "xor", "not", "bfe", "bfi", "cvt", "setp", "selp",
        "min", "max", "shf", "lop3", "prmt", "mov", "neg", "abs", "rem", "div", "ex2", "lg2", "rcp", "sqrt", "rsqrt",
    )  # fmt: skip


def _find_loops(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the first and last step of each loop: the target of a back branch, and the branch."""
    return [(step.target, pc) for pc, step in enumerate(steps) if step.target is not None and step.target <= pc]


def count_access_bytes(text: str) -> int:
    """Return the bytes that one lane loads or stores, by the opcode, 4 if it has no type; 16 for ldmatrix and
    stmatrix."""
    if "matrix" in text:
        return 16
    words = text.split(".")
    bits = next((int(word[1:]) for word in reversed(words) if word[:1] in "busf" and word[1:].isdigit()), 32)
    if "f16x2" in words or "bf16x2" in words:
        bits = 32
    count = next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)
    return bits // 8 * count


def count_matrices(text: str) -> int:
    """Return the number of 8 × 8 matrices that an ldmatrix or stmatrix moves, 1 if the opcode does not say."""
    return next((int(word[1:]) for word in text.split(".") if word in ("x1", "x2", "x4")), 1)
