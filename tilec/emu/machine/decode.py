"""Decodes one kernel into steps: closures over operands that are resolved once.

Every operand becomes a *slot*, an index into `Cta.views`: a numpy view of one register over all threads of the block,
in the instruction's type. Immediates and special registers are registers that are filled in advance, so a step never
distinguishes kinds of operands.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilec.emu.calls import functions
from tilec.emu.calls.functions import FormalParameter, FunctionLayout
from tilec.emu.fault import Fault, SourceLocation
from tilec.emu.machine.steps import (
    REGISTER_CLASSES,
    SPECIAL_REGISTERS,
    TIMER_REGISTERS,
    ControlFunction,
    RegisterIndex,
    Step,
    StepFunction,
)
from tilec.emu.memory.memory import CALL_PARAMS, DYNAMIC_ALIGNMENT, SHARED_BASE
from tilec.emu.numbers import TYPES, PtxType
from tilec.ptx import isa, module as ptx
from tilec.ptx.text import print_instruction
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.calls.calls import CallSite
    from tilec.emu.machine.machine import Cta, Threads

_CLASS_BITS = {"pred": 1, "16": 16, "32": 32, "64": 64}


@dataclass(slots=True)
class _Scope:
    outer: _Scope | None
    registers: dict[str, RegisterIndex] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    frames: dict[str, RegisterIndex] = field(default_factory=dict)
    """For each `.local` variable of a recursive function, the register that holds its address."""
    vectors: dict[str, int] = field(default_factory=dict)
    targets: dict[str, ptx.Targets] = field(default_factory=dict)
    function: FunctionLayout | None = None

    def look_up(self, table: str, name: str) -> Any:
        """Return the meaning of a name in one of the tables, of this scope or the innermost outer one; None if not
        declared."""
        scope: _Scope | None = self
        while scope is not None:
            found = getattr(scope, table).get(name)
            if found is not None:
                return found
            scope = scope.outer
        return None


Decoder = Callable[["Form"], None]
DECODERS: dict[str, Decoder] = {}
"""Decoders by the stem of the instruction's row in `ptx.isa`."""
_IGNORED_MODIFIERS: dict[str, frozenset[str]] = {}
CACHE_HINTS = ("L1::", "L2::", "level::")
"""Cache hints, which change nothing here."""


def register_decoder(*stems: str, accepts: str = "") -> Callable[[Decoder], Decoder]:
    """Return a decorator that registers a decoder for these stems; `accepts` has modifiers that make no difference. The
    decoder sets the fields of `form.step`.

    A modifier that the decoder does not ask for is an error; `accepts` lists modifiers that make no difference here.
    """

    def add_decoder(decoder: Decoder) -> Decoder:
        """Enter a decoder in `DECODERS` under each stem, with the modifiers that it accepts, and return it."""
        for stem in stems:
            assert stem not in DECODERS, stem
            DECODERS[stem] = decoder
            _IGNORED_MODIFIERS[stem] = frozenset(("sync", "aligned", *accepts.split()))
        return decoder

    return add_decoder


class Program:
    """One decoded entry. Blocks make their registers from `rows`, `slots`, `constants` and `specials`."""

    def __init__(
        self,
        module: ptx.Module,
        entry: ptx.Entry,
        symbols: dict[str, int],
        dynamic_smem: int,
        whole_program: bool = False,
    ) -> None:
        self.entry = entry
        self.module = module
        self.target = module.target
        self.rows = dict.fromkeys(REGISTER_CLASSES, 0)
        self.slots: list[tuple[RegisterIndex, PtxType]] = []
        self.constants: dict[tuple[str, int], RegisterIndex] = {}
        """The register of each constant, by class and value."""
        self.specials: dict[str, RegisterIndex] = {}
        self.steps: list[Step] = []
        self.shared: list[tuple[str, int, int]] = []
        self.local_bytes = 0
        self.params: dict[str, tuple[int, int]] = {}
        self.param_bytes = 0
        self.functions: dict[str, FunctionLayout] = {}
        self.function_at: dict[int, FunctionLayout] = {}
        self.sites: dict[int, CallSite] = {}
        self.cta_group = ""
        """The `.cta_group` that all tcgen05 instructions of the kernel must share."""
        self._slot_of: dict[tuple[RegisterIndex, str], int] = {}
        self._helpers: dict[tuple[str, str], RegisterIndex] = {}
        """The sinks of each class, and the condition code, by purpose and class."""
        self._shared_end = SHARED_BASE
        self.has_vectors = False
        """Some register has several parts."""

        outside = _Scope(None, symbols=dict(symbols))
        root = _Scope(outside)
        self._place_params(root)
        variables = [*module.variables, *(item for item in entry.body if isinstance(item, ptx.Variable))]
        for variable in variables:
            self._place_variable(variable, outside)
        for variable in variables:
            if variable.space == "shared" and variable.linkage == "extern":
                align = max(variable.align, DYNAMIC_ALIGNMENT) if whole_program else DYNAMIC_ALIGNMENT
                start = _round_up(self._shared_end, align)
                outside.symbols[variable.name] = start
                if dynamic_smem and all(name != "dynamic shared memory" for name, _, _ in self.shared):
                    self.shared.append(("dynamic shared memory", start, dynamic_smem))
        self.shared_bytes = max((start + size for _, start, size in self.shared), default=SHARED_BASE)

        self._pending: list[tuple[ptx.Instruction, _Scope, SourceLocation | None]] = []
        self._location: SourceLocation | None = None
        # Functions come first, callees before callers: the lowest step runs first, so that threads in different
        # callees converge where they return to.
        called, recursive = functions.find_reachable_functions(module, entry)
        addresses = functions.assign_function_addresses(module)
        for function in called:
            layout = self._add_function(function, outside, function.name in recursive)
            self.function_at[addresses[function.name]] = layout
        self.start = len(self._pending)
        self._flatten_items(entry.body, root)
        self._scopes = [scope for _, scope, _ in self._pending]
        for item in self._pending:
            self.steps.append(self._decode_instruction(*item))
        matrix = frozenset[RegisterIndex]().union(*(step.registers for step in self.steps if step.is_matrix))
        for step in self.steps:
            if not step.is_matrix:
                step.written_matrix_registers = step.written & matrix

    def _add_function(self, function: ptx.Function, outside: _Scope, is_recursive: bool) -> FunctionLayout:
        """Queue a function's instructions for decoding and place its parameters, variables and registers; return its
        layout."""
        layout = self.functions[function.name] = FunctionLayout(function.name, len(self._pending), is_recursive)
        scope = _Scope(outside, function=layout)
        first = dict(self.rows)
        layout.returns = tuple(self._place_formal(param, scope) for param in function.returns)
        layout.params = tuple(self._place_formal(param, scope) for param in function.params)
        assert function.body is not None
        for item in function.body:
            if isinstance(item, ptx.Variable):
                self._place_variable(item, scope)
        self._flatten_items(function.body, scope)
        # The end of a function is a return.
        self._pending.append((ptx.Instruction("ret", line=function.line), scope, None))
        layout.rows = {name: (row, self.rows[name]) for name, row in first.items()}
        return layout

    def _place_formal(self, param: ptx.Param, scope: _Scope) -> FormalParameter:
        """Give a function's parameter or result a register or an offset in local memory, and return that."""
        align, size = functions.measure_param(param)
        if param.is_register:
            self._declare_registers(ptx.RegDecl(param.type, param.name), scope)
            return FormalParameter(size, 0, scope.registers[param.name])
        offset = self._reserve_local(align, size)
        scope.symbols[param.name] = CALL_PARAMS + offset
        return FormalParameter(size, offset)

    def _reserve_local(self, align: int, size: int) -> int:
        """Reserve bytes of every thread's local memory, and return their offset."""
        start = _round_up(self.local_bytes, align)
        self.local_bytes = start + size
        return start

    # -- declarations --------------------------------------------------------------------------------------------------

    def _place_params(self, scope: _Scope) -> None:
        """Assign offsets in parameter memory to the kernel's parameters, and set their total size."""
        offset = 0
        for param in self.entry.params:
            align, size = functions.measure_param(param)
            offset = _round_up(offset, align)
            self.params[param.name] = (offset, size)
            scope.symbols[param.name] = offset
            offset += size
        self.param_bytes = offset

    def _place_variable(self, variable: ptx.Variable, scope: _Scope) -> None:
        """Give a `.param`, local or non-extern shared variable an address, or a recursive function's local one a frame
        offset."""
        if variable.space == "shared" and variable.linkage != "extern":
            start = _round_up(self._shared_end, variable.align)
            scope.symbols[variable.name] = start
            self.shared.append((variable.name, start, variable.size))
            self._shared_end = start + variable.size
        elif variable.space == "param":
            # Parameters of calls lie in local memory; their addresses differ from those of the kernel's parameters.
            scope.symbols[variable.name] = CALL_PARAMS + self._reserve_local(variable.align, variable.size)
        elif variable.space == "local" and scope.function is not None and scope.function.is_recursive:
            layout = scope.function
            offset = _round_up(layout.frame_bytes, variable.align)
            layout.frame_bytes = _round_up(offset + variable.size, 16)
            place = scope.frames[variable.name] = self._add_register("64")
            layout.frames.append((place, offset))
        elif variable.space == "local":
            scope.symbols[variable.name] = self._reserve_local(variable.align, variable.size)

    def _flatten_items(self, items: tuple[ptx.Item, ...], scope: _Scope) -> None:
        """Queue the instructions of a body and of its blocks for decoding; declare its labels, registers and inner
        variables."""
        for item in items:
            match item:
                case ptx.Instruction():
                    self._pending.append((item, scope, self._location))
                case ptx.Label():
                    scope.labels[item.name] = len(self._pending)
                case ptx.RegDecl():
                    self._declare_registers(item, scope)
                case ptx.Targets():
                    scope.targets[item.name] = item
                case ptx.Loc():
                    files = self.module.files
                    file = files[item.file - 1] if 0 < item.file <= len(files) else f"file {item.file}"
                    self._location = SourceLocation(file, item.source_line, item.column)
                case ptx.Block():
                    inner = _Scope(scope, function=scope.function)
                    for variable in item.body:
                        if isinstance(variable, ptx.Variable):
                            self._place_variable(variable, inner)
                    self._flatten_items(item.body, inner)

    def _declare_registers(self, declaration: ptx.RegDecl, scope: _Scope) -> None:
        """Add a `.reg`'s registers to the scope, one for each part of a vector, two for a `.b128`; fault on an unknown
        type."""
        if declaration.type == "b128":
            declaration = replace(declaration, type="b64", lanes=2)
        found = TYPES.get(declaration.type)
        if found is None:
            raise Fault("unsupported", f"registers of type .{declaration.type}", declaration.line)
        name = _register_class(found)
        names = [declaration.name]
        if declaration.count is not None:
            names = [f"{declaration.name}{index}" for index in range(declaration.count)]
        for register in names:
            if declaration.lanes == 1:
                scope.registers[register] = self._add_register(name)
                continue
            scope.vectors[register] = declaration.lanes
            self.has_vectors = True
            for lane in range(declaration.lanes):
                place = self._add_register(name)
                scope.registers[f"{register}.{'xyzw'[lane]}"] = scope.registers[f"{register}.{'rgba'[lane]}"] = place

    def _add_register(self, class_name: str) -> RegisterIndex:
        """Return a new register of a class: the class and its next row."""
        row = self.rows[class_name]
        self.rows[class_name] = row + 1
        return class_name, row

    # -- operands ------------------------------------------------------------------------------------------------------

    def find_slot(self, place: RegisterIndex, view: PtxType) -> int:
        """Return the index in a block's views of a register seen as a type, a new index at the first call."""
        key = (place, view.name)
        if key not in self._slot_of:
            self._slot_of[key] = len(self.slots)
            self.slots.append((place, view))
        return self._slot_of[key]

    def place_constant(self, class_name: str, value: int) -> RegisterIndex:
        """Return the register that holds a constant in every thread, a new one at the first call."""
        key = (class_name, value & (1 << _CLASS_BITS[class_name]) - 1)
        if key not in self.constants:
            self.constants[key] = self._add_register(class_name)
        return self.constants[key]

    def place_special(self, name: str) -> RegisterIndex:
        """Return the register that holds the value of a special register, a new one at the first call."""
        if name not in self.specials:
            self.specials[name] = self._add_register(SPECIAL_REGISTERS[name])
        return self.specials[name]

    def place_helper(self, purpose: Literal["sink", "carry"], class_name: str) -> RegisterIndex:
        """Return the register of a class for ignored results, or for the carry; a new one at the first call."""
        key = (purpose, class_name)
        if key not in self._helpers:
            self._helpers[key] = self._add_register(class_name)
        return self._helpers[key]

    # -- instructions --------------------------------------------------------------------------------------------------

    def build_form(self, pc: int) -> Form:
        """Return a new form of a step, with its operands not yet decoded, for a reader that does not run it. Call it
        before blocks exist: decoding may add registers."""
        step = self.steps[pc]
        row = isa.find_row(step.instruction.opcode)
        assert row is not None
        return Form(self, Step(step.instruction, step.stem, step.location), self._scopes[pc], row)

    def _decode_instruction(self, instruction: ptx.Instruction, scope: _Scope, location: SourceLocation | None) -> Step:
        """Return the step of an instruction; raise a located `Fault` if the emulator does not know it."""
        try:
            row = isa.find_row(instruction.opcode)
            if row is None:
                raise Fault("unsupported", f"unknown instruction {instruction.opcode}")
            complaint = isa.check_instruction(instruction, self.module.target, self.module.version)
            if complaint is not None:
                raise Fault("unsupported", complaint)
            step = Step(instruction, row.stem, location)
            form = Form(self, step, scope, row)
            if instruction.guard is not None:
                step.guard = form.read(instruction.guard.reg, "pred")
                step.negated = instruction.guard.negated
            form.slots_read.clear()
            try:
                DECODERS[row.stem](form)
            except (LookupError, ValueError):
                # A decoder looked up a part of the opcode in a table that lacks it.
                raise form.unsupported("a missing or unknown modifier") from None
            form.require_understood()
            assert (step.run is None) != (step.control is None), instruction.opcode
            step.registers, step.written = frozenset(form.touched), frozenset(form.written)
            if step.exchanged_slots is not None:
                step.exchanged_slots = (tuple(form.slots_read), tuple(form.slots_written))
            return step
        except Fault as fault:
            raise fault.locate(instruction.line, print_instruction(instruction), location) from None


class Form:
    """An instruction during decoding: its modifiers, and its operands as slots."""

    def __init__(self, program: Program, step: Step, scope: _Scope, row: isa.Row) -> None:
        self.program = program
        self.step = step
        self.stem = row.stem
        self.line = step.instruction.line
        operands = step.instruction.operands
        if program.has_vectors:
            operands = tuple(_expand_vector(operand, scope) for operand in operands)
        self.operands = operands
        self.modifiers, self.types, self._parts = _split_opcode(step.instruction.opcode, row.stem)
        self.understood = {*_IGNORED_MODIFIERS[row.stem], *self.types}
        self.touched: set[RegisterIndex] = set()
        self.written: set[RegisterIndex] = set()
        self.slots_read: list[int] = []
        self.slots_written: list[int] = []
        self.function = scope.function
        """The function that contains the instruction; None in the kernel itself."""
        self._scope = scope

    def set_run(self, run: StepFunction) -> StepFunction:
        """Set the function of an ordinary step, and return it; a decorator."""
        self.step.run = run
        return run

    def set_control(self, control: ControlFunction) -> ControlFunction:
        """Set the function of a step that moves threads, and return it; a decorator."""
        self.step.control = control
        return control

    def has(self, *modifiers: str) -> bool:
        """Return whether the opcode has one of these modifiers, which from now on count as understood."""
        self.understood.update(modifiers)
        return not self._parts.isdisjoint(modifiers)

    def find_modifier(self, *modifiers: str, default: str = "") -> str:
        """Return the first modifier of the opcode that is among these, or `default`; these count as understood."""
        self.understood.update(modifiers)
        return next((modifier for modifier in self.modifiers if modifier in modifiers), default)

    def find_modifiers(self, *modifiers: str) -> list[str]:
        """Return the modifiers of the opcode that are among these, in its order; these count as understood."""
        self.understood.update(modifiers)
        return [modifier for modifier in self.modifiers if modifier in modifiers]

    def match(self, pattern: str) -> re.Match[str] | None:
        """Return the match of the first modifier that the pattern matches in full, which counts as understood; None if
        none does."""
        for modifier in self.modifiers:
            found = re.fullmatch(pattern, modifier)
            if found is not None:
                self.understood.add(modifier)
                return found
        return None

    def require_understood(self) -> None:
        """Raise a fault for a modifier that the decoder has not asked about; cache hints are exempt."""
        for modifier in self.modifiers:
            if modifier not in self.understood and not modifier.startswith(CACHE_HINTS):
                raise self.unsupported(f".{modifier}")

    def unsupported(self, what: str) -> Fault:
        """Return a fault that says what of this instruction the emulator does not support; the caller raises it."""
        return Fault("unsupported", f"{what} in {self.step.instruction.opcode}")

    def parse_type(self, index: int | None = None) -> PtxType:
        """Return the only type of the opcode, or the one at an index; fault if it has none, or several and no index is
        given."""
        if not self.types or (index is None and len(self.types) > 1):
            raise self.unsupported(f"{len(self.types)} types instead of one")
        return TYPES[self.types[index or 0]]

    def find_register(self, operand: ptx.Operand) -> RegisterIndex:
        """Return the register, ordinary or special, that an operand names; fault if undeclared, a timer or no
        register."""
        if not isinstance(operand, ptx.Reg):
            raise self.unsupported(f"{operand} where a register belongs")
        found: RegisterIndex | None = self._scope.look_up("registers", operand.name)
        if found is not None:
            self.touched.add(found)
            return found
        if operand.name in TIMER_REGISTERS:
            raise self.unsupported(f"{operand.name}, which only mov may read,")
        if operand.name in SPECIAL_REGISTERS:
            return self.program.place_special(operand.name)
        raise self.unsupported(f"undeclared register {operand.name}")

    def read(self, operand: ptx.Operand, type_name: str) -> int:
        """Return the slot through which a step reads a source operand, constants included, as a type; fault if too
        narrow."""
        view, program = TYPES[type_name], self.program
        class_name = _register_class(view)
        match operand:
            case ptx.Reg(name="_"):
                place = program.place_constant(class_name, 0)
            case ptx.Reg():
                place = self.find_register(operand)
                self._require_width(place, view, operand)
            case ptx.Imm(value=value):
                place = program.place_constant(class_name, _integer_bits(value, view))
            case ptx.FloatImm():
                place = program.place_constant(class_name, _float_bits(operand, view))
            case ptx.Symbol(name=name, offset=0) if (frame := self._scope.look_up("frames", name)) is not None:
                place = frame
            case ptx.Symbol():
                place = program.place_constant(class_name, self.find_symbol(operand))
            case _:
                raise self.unsupported(f"operand {operand}")
        slot = program.find_slot(place, view)
        self.slots_read.append(slot)
        return slot

    def write(self, operand: ptx.Operand, type_name: str) -> int:
        """Return the slot through which a step writes a destination; `_` is a sink, and a wider integer register is
        extended."""
        view = TYPES[type_name]
        if operand == ptx.Reg("_"):
            place = self.program.place_helper("sink", _register_class(view))
        else:
            place = self.find_register(operand)
            self.written.add(place)
            width = _CLASS_BITS[place[0]]
            if width > view.bits and view.kind in "us" and view.lanes == 1:
                view = TYPES[f"{view.kind}{width}"]
            self._require_width(place, view, operand)
        slot = self.program.find_slot(place, view)
        self.slots_written.append(slot)
        return slot

    def write_pair(self, destination: ptx.Operand, type_name: str) -> tuple[int, int]:
        """Return the slots of the result and of the predicate in a destination `d|p`; -1 where there is no `p`."""
        if not isinstance(destination, ptx.Pair):
            return self.write(destination, type_name), -1
        predicate = self.write(destination.second, "pred")
        return self.write(destination.first, type_name), predicate

    def _require_width(self, place: RegisterIndex, view: PtxType, operand: ptx.Operand) -> None:
        """Fault unless a register is at least as wide as a type, and a predicate exactly where one belongs."""
        if (place[0] == "pred") != (view.kind == "pred") or _CLASS_BITS[place[0]] < view.bits:
            raise self.unsupported(f"{operand} is too narrow for .{view.name}")

    def find_symbol(self, symbol: ptx.Symbol) -> int:
        """Return the address of a variable or parameter, plus the symbol's offset; fault if it is not declared."""
        address = self._scope.look_up("symbols", symbol.name)
        if address is None:
            raise self.unsupported(f"unknown symbol {symbol.name}")
        return int(address) + symbol.offset

    def find_label(self, operand: ptx.Operand) -> int:
        """Return the number of the step that a label precedes; fault if there is no such label."""
        target = self._scope.look_up("labels", operand.name) if isinstance(operand, ptx.Symbol) else None
        if target is None:
            raise self.unsupported(f"unknown label {operand}")
        return int(target)

    def find_branch_targets(self, operand: ptx.Operand) -> list[int]:
        """Return the step numbers of the labels of a `.branchtargets` list; fault if there is no such list."""
        found = self._scope.look_up("targets", operand.name) if isinstance(operand, ptx.Symbol) else None
        if found is None:
            raise self.unsupported(f"unknown list of labels {operand}")
        return [self.find_label(ptx.Symbol(name)) for name in found.labels]

    def build_address(self, operand: ptx.Operand) -> Callable[[Cta, Threads], Any]:
        """Return a function that computes the int64 addresses of `[base+offset]` for given threads; fault on other
        operands."""
        if not isinstance(operand, ptx.Address):
            raise self.unsupported(f"{operand} where an address belongs")
        return self.build_pointer(operand.base, operand.offset)

    def build_pointer(self, base: ptx.Reg | ptx.Symbol | ptx.Imm, offset: int = 0) -> Callable[[Cta, Threads], Any]:
        """Return a function from threads to int64 addresses `base + offset`; fault unless a register is of 32 or 64
        bits."""
        if isinstance(base, ptx.Reg):
            class_name = self.find_register(base)[0]
            if class_name not in ("32", "64"):
                raise self.unsupported(f"address in {base.name}")
            slot = self.program.find_slot(self.find_register(base), TYPES[f"b{class_name}"])
        elif isinstance(base, ptx.Symbol) and (frame := self._scope.look_up("frames", base.name)) is not None:
            slot, offset = self.program.find_slot(frame, TYPES["b64"]), offset + base.offset
        else:
            value = base.value if isinstance(base, ptx.Imm) else self.find_symbol(base)
            slot = self.program.find_slot(self.program.place_constant("64", value), TYPES["b64"])
        if not offset:
            return lambda cta, threads: cta.views[slot][threads].astype(np.int64)
        return lambda cta, threads: cta.views[slot][threads].astype(np.int64) + offset

    def parse_constant(self, operand: ptx.Operand) -> int:
        """Return the value of an integer constant; fault if the operand is anything else."""
        if not isinstance(operand, ptx.Imm):
            raise self.unsupported(f"{operand} where a constant belongs")
        return operand.value


@cache
def _split_opcode(opcode: str, stem: str) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the modifiers of an opcode behind its stem, those of them that are types, and the set of all."""
    modifiers = tuple(opcode[len(stem) :].split(".")[1:])
    return modifiers, tuple(part for part in modifiers if part in TYPES), frozenset(modifiers)


def _expand_vector(operand: ptx.Operand, scope: _Scope) -> ptx.Operand:
    """Return a declared vector register as the vector of its parts, and any other operand unchanged."""
    lanes = scope.look_up("vectors", operand.name) if isinstance(operand, ptx.Reg) else None
    if lanes is None or not isinstance(operand, ptx.Reg):
        return operand
    return ptx.Vector(tuple(ptx.Reg(f"{operand.name}.{part}") for part in "xyzw"[:lanes]))


def _register_class(view: PtxType) -> str:
    """Return the class of registers that hold a type: "pred", or the bits as text, at least 16."""
    return "pred" if view.kind == "pred" else str(max(view.bits, 16))


def _round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple that is not below a value."""
    return -(-value // multiple) * multiple


def _encode_float(number: float, dtype: np.dtype[Any]) -> int:
    """Return the bits of a number in a float type, as an integer."""
    return int.from_bytes(np.array(number, dtype).tobytes(), "little")


def _integer_bits(value: int, view: PtxType) -> int:
    """Return the bits of an integer constant: of its value where the type is a float, the integer itself otherwise."""
    # An integer where a float belongs is its value, as in `mov.f32 %f0, 0`.
    return _encode_float(float(value), view.dtype) if view.kind == "f" and view.lanes == 1 else value


def _float_bits(operand: ptx.FloatImm, view: PtxType) -> int:
    """Return the bits of a float constant, converted to the type if its width differs; an untyped register takes a
    float."""
    if operand.width == view.bits:
        return operand.bits
    code = "<f" if operand.width == 32 else "<d"
    (number,) = struct.unpack(code, operand.bits.to_bytes(operand.width // 8, "little"))
    # `mov.b32 %r0, 1.5`: an untyped register of 32 bits takes an f32.
    is_typed = view.kind == "f" and view.lanes == 1
    return _encode_float(number, view.dtype if is_typed else np.dtype(np.float32 if view.bits == 32 else np.float64))
