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
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu import functions
from tilec.emu.fault import Fault, SourceLocation
from tilec.emu.functions import Formal, Layout
from tilec.emu.memory import CALL_PARAMS, DYNAMIC_ALIGNMENT, SHARED_BASE
from tilec.emu.numbers import TYPES, Type
from tilec.emu.special_registers import SPECIAL
from tilec.emu.steps import CLASSES, TIMERS, Place, Step
from tilec.ptx import isa
from tilec.ptx.module import (
    Address,
    Block,
    Entry,
    FloatImm,
    Function,
    Imm,
    Instruction,
    Item,
    Label,
    Loc,
    Module,
    Operand,
    Param,
    Reg,
    RegDecl,
    Symbol,
    Targets,
    Variable,
    Vector,
)
from tilec.ptx.text import print_instruction
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.calls import Site
    from tilec.emu.machine import Cta, Threads

_CLASS_BITS = {"pred": 1, "16": 16, "32": 32, "64": 64}


@dataclass(slots=True)
class _Scope:
    outer: _Scope | None
    registers: dict[str, Place] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    frames: dict[str, Place] = field(default_factory=dict)
    """For each `.local` variable of a recursive function, the register that holds its address."""
    vectors: dict[str, int] = field(default_factory=dict)
    targets: dict[str, Targets] = field(default_factory=dict)
    function: Layout | None = None

    def find(self, table: str, name: str) -> Any:
        scope: _Scope | None = self
        while scope is not None:
            found = getattr(scope, table).get(name)
            if found is not None:
                return found
            scope = scope.outer
        return None


Decoder = Callable[["Form"], None]
SEMANTICS: dict[str, Decoder] = {}
"""Decoders by the stem of the instruction's row in `ptx.isa`."""
_ACCEPTS: dict[str, frozenset[str]] = {}
HINTS = ("L1::", "L2::", "level::")
"""Cache hints, which change nothing here."""


def semantics(*stems: str, accepts: str = "") -> Callable[[Decoder], Decoder]:
    """Register a decoder, which sets the fields of `form.step`, for the instructions with these stems.

    A modifier that the decoder does not ask for is an error; `accepts` lists modifiers that make no difference here.
    """

    def register(decoder: Decoder) -> Decoder:
        for stem in stems:
            assert stem not in SEMANTICS, stem
            SEMANTICS[stem] = decoder
            _ACCEPTS[stem] = frozenset(("sync", "aligned", *accepts.split()))
        return decoder

    return register


class Program:
    """One decoded entry. Blocks make their registers from `rows`, `slots`, `constants` and `specials`."""

    def __init__(
        self,
        module: Module,
        entry: Entry,
        global_symbols: dict[str, int],
        dynamic_smem: int,
        whole_program: bool = False,
    ) -> None:
        self.entry = entry
        self.module = module
        self.target = module.target
        self.rows = dict.fromkeys(CLASSES, 0)
        self.slots: list[tuple[Place, Type]] = []
        self.constants: list[tuple[Place, int]] = []
        self.specials: list[tuple[Place, str]] = []
        self.steps: list[Step] = []
        self.shared: list[tuple[str, int, int]] = []
        self.local_bytes = 0
        self.params: dict[str, tuple[int, int]] = {}
        self.param_bytes = 0
        self.functions: dict[str, Layout] = {}
        self.function_at: dict[int, Layout] = {}
        self.sites: dict[int, Site] = {}
        self.cta_group = ""
        """The `.cta_group` that all tcgen05 instructions of the kernel must share."""
        self._slot_of: dict[tuple[Place, str], int] = {}
        self._constant_of: dict[tuple[str, int], Place] = {}
        self._special_of: dict[str, Place] = {}
        self._sink_of: dict[str, Place] = {}
        self._shared_end = SHARED_BASE
        self._carry: Place | None = None
        self.has_vectors = False
        """Some register has several parts."""

        outside = _Scope(None)
        outside.symbols.update(global_symbols)
        root = _Scope(outside)
        self._place_params(root)
        variables = [*module.variables, *(item for item in entry.body if isinstance(item, Variable))]
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

        pending: list[tuple[Instruction, _Scope, SourceLocation | None]] = []
        self._location: SourceLocation | None = None
        # Functions come first, callees before callers: the lowest step runs first, so that threads in different
        # callees converge where they return to.
        called, recursive = functions.reachable(module, entry)
        addresses = functions.addresses(module)
        for function in called:
            layout = self._add_function(function, outside, pending, function.name in recursive)
            self.function_at[addresses[function.name]] = layout
        self.start = len(pending)
        self._flatten(entry.body, root, pending)
        self._scopes: list[_Scope] = []
        for instruction, scope, location in pending:
            self.steps.append(self._decode(instruction, scope, location))
            self._scopes.append(scope)
        matrix = frozenset[Place]().union(*(step.registers for step in self.steps if step.is_matrix))
        for step in self.steps:
            if not step.is_matrix:
                step.stains = step.written & matrix

    def _add_function(
        self,
        function: Function,
        outside: _Scope,
        pending: list[tuple[Instruction, _Scope, SourceLocation | None]],
        is_recursive: bool,
    ) -> Layout:
        layout = self.functions[function.name] = Layout(function.name, len(pending), is_recursive)
        scope = _Scope(outside, function=layout)
        first = dict(self.rows)
        layout.returns = tuple(self._formal(param, scope) for param in function.returns)
        layout.params = tuple(self._formal(param, scope) for param in function.params)
        assert function.body is not None
        for item in function.body:
            if isinstance(item, Variable):
                self._place_variable(item, scope)
        self._flatten(function.body, scope, pending)
        # The end of a function is a return.
        pending.append((Instruction("ret", line=function.line), scope, None))
        layout.rows = {name: (row, self.rows[name]) for name, row in first.items()}
        return layout

    def _formal(self, param: Param, scope: _Scope) -> Formal:
        element = TYPES[param.type].bits // 8
        if param.is_register:
            self._declare(RegDecl(param.type, param.name), scope)
            return Formal(element, 0, scope.registers[param.name])
        size = element if param.size is None else param.size
        offset = self._take_local(max(element, param.align or 1), size)
        scope.symbols[param.name] = CALL_PARAMS + offset
        return Formal(size, offset)

    def _take_local(self, align: int, size: int) -> int:
        start = _round_up(self.local_bytes, align)
        self.local_bytes = start + size
        return start

    # -- declarations --------------------------------------------------------------------------------------------------

    def _place_params(self, scope: _Scope) -> None:
        offset = 0
        for param in self.entry.params:
            element = TYPES[param.type].bits // 8
            size = element if param.size is None else param.size
            offset = _round_up(offset, max(element, param.align or 1))
            self.params[param.name] = (offset, size)
            scope.symbols[param.name] = offset
            offset += size
        self.param_bytes = offset

    def _place_variable(self, variable: Variable, scope: _Scope) -> None:
        if variable.space == "shared" and variable.linkage != "extern":
            start = _round_up(self._shared_end, variable.align)
            scope.symbols[variable.name] = start
            self.shared.append((variable.name, start, variable.size))
            self._shared_end = start + variable.size
        elif variable.space == "param":
            # Parameters of calls lie in local memory; their addresses differ from those of the kernel's parameters.
            scope.symbols[variable.name] = CALL_PARAMS + self._take_local(variable.align, variable.size)
        elif variable.space == "local" and scope.function is not None and scope.function.is_recursive:
            layout = scope.function
            offset = _round_up(layout.frame_bytes, variable.align)
            layout.frame_bytes = _round_up(offset + variable.size, 16)
            place = scope.frames[variable.name] = self._new_row("64")
            layout.frames.append((place, offset))
        elif variable.space == "local":
            scope.symbols[variable.name] = self._take_local(variable.align, variable.size)

    def _flatten(
        self,
        items: tuple[Item, ...],
        scope: _Scope,
        pending: list[tuple[Instruction, _Scope, SourceLocation | None]],
    ) -> None:
        for item in items:
            match item:
                case Instruction():
                    pending.append((item, scope, self._location))
                case Label():
                    scope.labels[item.name] = len(pending)
                case RegDecl():
                    self._declare(item, scope)
                case Targets():
                    scope.targets[item.name] = item
                case Loc():
                    files = self.module.files
                    file = files[item.file - 1] if 0 < item.file <= len(files) else f"file {item.file}"
                    self._location = SourceLocation(file, item.source_line, item.column)
                case Block():
                    inner = _Scope(scope, function=scope.function)
                    for variable in item.body:
                        if isinstance(variable, Variable):
                            self._place_variable(variable, inner)
                    self._flatten(item.body, inner, pending)
                case _:
                    pass

    def _declare(self, declaration: RegDecl, scope: _Scope) -> None:
        if declaration.type == "b128":
            declaration = replace(declaration, type="b64", lanes=2)
        found = TYPES.get(declaration.type)
        if found is None:
            raise Fault("unsupported", f"registers of type .{declaration.type}", declaration.line)
        name = "pred" if found.kind == "pred" else str(max(found.bits, 16))
        names = [declaration.name]
        if declaration.count is not None:
            names = [f"{declaration.name}{index}" for index in range(declaration.count)]
        for register in names:
            if declaration.lanes == 1:
                scope.registers[register] = self._new_row(name)
                continue
            scope.vectors[register] = declaration.lanes
            self.has_vectors = True
            for lane in range(declaration.lanes):
                place = self._new_row(name)
                scope.registers[f"{register}.{'xyzw'[lane]}"] = scope.registers[f"{register}.{'rgba'[lane]}"] = place

    def _new_row(self, class_name: str) -> Place:
        row = self.rows[class_name]
        self.rows[class_name] = row + 1
        return class_name, row

    # -- operands ------------------------------------------------------------------------------------------------------

    def slot(self, place: Place, view: Type) -> int:
        key = (place, view.name)
        found = self._slot_of.get(key)
        if found is None:
            found = self._slot_of[key] = len(self.slots)
            self.slots.append((place, view))
        return found

    def constant(self, class_name: str, value: int) -> Place:
        value &= (1 << _CLASS_BITS[class_name]) - 1
        key = (class_name, value)
        if key not in self._constant_of:
            place = self._constant_of[key] = self._new_row(class_name)
            self.constants.append((place, value))
        return self._constant_of[key]

    def special(self, name: str) -> Place:
        if name not in self._special_of:
            place = self._special_of[name] = self._new_row(SPECIAL[name])
            self.specials.append((place, name))
        return self._special_of[name]

    def sink(self, class_name: str) -> Place:
        if class_name not in self._sink_of:
            self._sink_of[class_name] = self._new_row(class_name)
        return self._sink_of[class_name]

    def carry(self) -> Place:
        """Return the condition code that extended-precision instructions share."""
        if self._carry is None:
            self._carry = self._new_row("pred")
        return self._carry

    # -- instructions --------------------------------------------------------------------------------------------------

    def form(self, pc: int) -> Form:
        """Decode the operands of a step again, for a reader that does not run it. Call it before blocks exist: it may
        add registers."""
        step = self.steps[pc]
        row = isa.lookup(step.instruction.opcode)
        assert row is not None
        return Form(self, Step(step.instruction, step.stem, step.location), self._scopes[pc], row)

    def _decode(self, instruction: Instruction, scope: _Scope, location: SourceLocation | None) -> Step:
        try:
            row = isa.lookup(instruction.opcode)
            if row is None:
                raise Fault("unsupported", f"unknown instruction {instruction.opcode}")
            complaint = isa.check(instruction, self.module.target, self.module.version)
            if complaint is not None:
                raise Fault("unsupported", complaint)
            step = Step(instruction, row.stem, location)
            form = Form(self, step, scope, row)
            if instruction.guard is not None:
                step.guard = form.read(instruction.guard.reg, "pred")
                step.negated = instruction.guard.negated
            form.slots_read.clear()
            try:
                SEMANTICS[row.stem](form)
            except (LookupError, ValueError):
                # A decoder looked up a part of the opcode in a table that lacks it.
                raise form.unsupported("a missing or unknown modifier") from None
            form.require_understood()
            assert (step.run is None) != (step.control is None), instruction.opcode
            step.registers, step.written = frozenset(form.touched), frozenset(form.written)
            if step.exchanged is not None:
                step.exchanged = (tuple(form.slots_read), tuple(form.slots_written))
            return step
        except Fault as fault:
            raise fault.locate(instruction.line, print_instruction(instruction), location) from None


class Form:
    """An instruction during decoding: its modifiers, and its operands as slots."""

    def __init__(self, program: Program, step: Step, scope: _Scope, row: isa.Row) -> None:
        self.program = program
        self.step = step
        self.stem = row.stem
        operands = step.instruction.operands
        self.operands = tuple(_unfold(operand, scope) for operand in operands) if program.has_vectors else operands
        self.modifiers, self.types, self._parts = _split(step.instruction.opcode, row.stem)
        self.understood = {*_ACCEPTS[row.stem], *self.types}
        self.touched: set[Place] = set()
        self.written: set[Place] = set()
        self.slots_read: list[int] = []
        self.slots_written: list[int] = []
        self.function = scope.function
        """The function that contains the instruction; None in the kernel itself."""
        self._scope = scope

    def has(self, *modifiers: str) -> bool:
        """Return whether the opcode has one of these modifiers."""
        self.understood.update(modifiers)
        return not self._parts.isdisjoint(modifiers)

    def first(self, *modifiers: str, default: str = "") -> str:
        """Return the first modifier of the opcode that is among these, or `default`."""
        self.understood.update(modifiers)
        return next((modifier for modifier in self.modifiers if modifier in modifiers), default)

    def among(self, *modifiers: str) -> list[str]:
        """Return the modifiers of the opcode that are among these, in its order."""
        self.understood.update(modifiers)
        return [modifier for modifier in self.modifiers if modifier in modifiers]

    def match(self, pattern: str) -> re.Match[str] | None:
        """Return the match of the first modifier that this pattern matches in full."""
        for modifier in self.modifiers:
            found = re.fullmatch(pattern, modifier)
            if found is not None:
                self.understood.add(modifier)
                return found
        return None

    def require_understood(self) -> None:
        """Require that the decoder knows every part of the opcode."""
        for modifier in self.modifiers:
            if modifier not in self.understood and not modifier.startswith(HINTS):
                raise self.unsupported(f".{modifier}")

    def unsupported(self, what: str) -> Fault:
        return Fault("unsupported", f"{what} in {self.step.instruction.opcode}")

    def type(self, index: int | None = None) -> Type:
        """Return the only type of the opcode, or the one at an index where there are several."""
        if not self.types or (index is None and len(self.types) > 1):
            raise self.unsupported(f"{len(self.types)} types")
        return TYPES[self.types[index or 0]]

    def place(self, operand: Operand) -> Place:
        """Return the register that an operand names."""
        if not isinstance(operand, Reg):
            raise self.unsupported(f"{operand} where a register belongs")
        found = self._scope.find("registers", operand.name)
        if found is not None:
            self.touched.add(found)
            place: Place = found
            return place
        if operand.name in TIMERS:
            raise self.unsupported(f"{operand.name}, which only mov reads,")
        if operand.name in SPECIAL:
            return self.program.special(operand.name)
        raise self.unsupported(f"undeclared register {operand.name}")

    def read(self, operand: Operand, type_name: str) -> int:
        """Return the slot of a source."""
        slot = self._read(operand, type_name)
        self.slots_read.append(slot)
        return slot

    def _read(self, operand: Operand, type_name: str) -> int:
        view = TYPES[type_name]
        class_name = _class_of(view)
        match operand:
            case Reg(name="_"):
                return self.program.slot(self.program.constant(class_name, 0), view)
            case Reg():
                return self._viewed(self.place(operand), view, operand)
            case Imm(value=value):
                bits = _integer_bits(value, view)
                return self.program.slot(self.program.constant(class_name, bits), view)
            case FloatImm():
                return self.program.slot(self.program.constant(class_name, _float_bits(operand, view)), view)
            case Symbol(name=name, offset=0) if (frame := self._scope.find("frames", name)) is not None:
                return self.program.slot(frame, view)
            case Symbol():
                value = self.symbol(operand)
                return self.program.slot(self.program.constant(class_name, value), view)
            case _:
                raise self.unsupported(f"operand {operand}")

    def write(self, operand: Operand, type_name: str) -> int:
        """Return the slot of a destination. A register wider than an integer type is written whole, extended."""
        slot = self._write(operand, type_name)
        self.slots_written.append(slot)
        return slot

    def _write(self, operand: Operand, type_name: str) -> int:
        view = TYPES[type_name]
        if operand == Reg("_"):
            return self.program.slot(self.program.sink(_class_of(view)), view)
        place = self.place(operand)
        self.written.add(place)
        width = _CLASS_BITS[place[0]]
        if width > view.bits and view.kind in "us" and view.lanes == 1:
            view = TYPES[f"{view.kind}{width}"]
        return self._viewed(place, view, operand)

    def _viewed(self, place: Place, view: Type, operand: Operand) -> int:
        width = _CLASS_BITS[place[0]]
        if (place[0] == "pred") != (view.kind == "pred") or width < view.bits:
            raise self.unsupported(f"{operand} is too narrow for .{view.name}")
        return self.program.slot(place, view)

    def symbol(self, symbol: Symbol) -> int:
        """Return the address of a variable or parameter."""
        address = self._scope.find("symbols", symbol.name)
        if address is None:
            raise self.unsupported(f"unknown symbol {symbol.name}")
        return int(address) + symbol.offset

    def label(self, operand: Operand) -> int:
        """Return the step that a label precedes."""
        target = self._scope.find("labels", operand.name) if isinstance(operand, Symbol) else None
        if target is None:
            raise self.unsupported(f"unknown label {operand}")
        return int(target)

    def targets(self, operand: Operand) -> list[int]:
        """Return the steps of a `.branchtargets` list."""
        found = self._scope.find("targets", operand.name) if isinstance(operand, Symbol) else None
        if found is None:
            raise self.unsupported(f"unknown list of labels {operand}")
        return [self.label(Symbol(name)) for name in found.labels]

    def address(self, operand: Operand) -> Callable[[Cta, Threads], Any]:
        """Return a function that computes the int64 addresses of `[base+offset]` for some threads."""
        if not isinstance(operand, Address):
            raise self.unsupported(f"{operand} where an address belongs")
        return self.pointer(operand.base, operand.offset)

    def pointer(self, base: Reg | Symbol | Imm, offset: int = 0) -> Callable[[Cta, Threads], Any]:
        if isinstance(base, Reg):
            class_name = self.place(base)[0]
            if class_name not in ("32", "64"):
                raise self.unsupported(f"address in {base.name}")
            slot = self.program.slot(self.place(base), TYPES[f"b{class_name}"])
        elif isinstance(base, Symbol) and (frame := self._scope.find("frames", base.name)) is not None:
            slot, offset = self.program.slot(frame, TYPES["b64"]), offset + base.offset
        else:
            value = base.value if isinstance(base, Imm) else self.symbol(base)
            slot = self.program.slot(self.program.constant("64", value), TYPES["b64"])
        if not offset:
            return lambda cta, threads: cta.views[slot][threads].astype(np.int64)
        return lambda cta, threads: cta.views[slot][threads].astype(np.int64) + offset

    def integer(self, operand: Operand) -> int:
        """Return the value of an operand that must be a constant."""
        if not isinstance(operand, Imm):
            raise self.unsupported(f"{operand} where a constant belongs")
        return operand.value


@cache
def _split(opcode: str, stem: str) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the modifiers of an opcode, those that are types, and the set of all."""
    modifiers = tuple(opcode[len(stem) :].split(".")[1:])
    return modifiers, tuple(part for part in modifiers if part in TYPES), frozenset(modifiers)


def _unfold(operand: Operand, scope: _Scope) -> Operand:
    """Replace a vector register by the vector of its parts."""
    lanes = scope.find("vectors", operand.name) if isinstance(operand, Reg) else None
    if lanes is None or not isinstance(operand, Reg):
        return operand
    return Vector(tuple(Reg(f"{operand.name}.{part}") for part in "xyzw"[:lanes]))


def _class_of(view: Type) -> str:
    return "pred" if view.kind == "pred" else str(max(view.bits, 16))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _integer_bits(value: int, view: Type) -> int:
    if view.kind != "f" or view.lanes > 1:
        return value
    # An integer where a float belongs is its value, as in `mov.f32 %f0, 0`.
    return int.from_bytes(np.array(float(value), view.dtype).tobytes(), "little")


def _float_bits(operand: FloatImm, view: Type) -> int:
    if operand.width == view.bits:
        return operand.bits
    number: float = struct.unpack(
        "<f" if operand.width == 32 else "<d", operand.bits.to_bytes(operand.width // 8, "little")
    )[0]
    if view.kind == "f" and view.lanes == 1:
        return int.from_bytes(np.array(number, view.dtype).tobytes(), "little")
    # `mov.b32 %r0, 1.5`: an untyped register of 32 bits takes an f32.
    dtype = np.float32 if view.bits == 32 else np.float64
    return int.from_bytes(np.array(number, dtype).tobytes(), "little")
