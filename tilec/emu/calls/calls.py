"""Decoders of calls, returns and branches through a table.

Each thread has a stack of return steps. A call copies arguments into the parameters of the callee, and a return copies
results back, so that function bodies are ordinary steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.calls import printf
from tilec.emu.calls.functions import FormalParameter, FunctionLayout
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.memory import CALL_PARAMS
from tilec.emu.numbers import Array
from tilec.ptx.module import Arguments, Operand, Reg, Symbol
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Group, Threads

_MAX_CALL_DEPTH = 512
_MAX_STACK_BYTES = 1 << 20
_ADDRESS_PARAM = FormalParameter(8, 0)


@dataclass(frozen=True, slots=True)
class CallOperand:
    """An argument or result that a call names: bytes of local memory, or a register if `slot` is not -1."""

    offset: int
    slot: int = -1


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call instruction: its arguments and results, and the function that contains it."""

    caller: FunctionLayout | None
    returns: tuple[CallOperand, ...]
    arguments: tuple[CallOperand, ...]


class CallStack:
    """The return steps of one block's threads."""

    def __init__(self, thread_count: int, stack_base: int) -> None:
        self.depth = np.zeros(thread_count, np.int64)
        self.returns = np.zeros((4, thread_count), np.int64)
        self.top = np.full(thread_count, stack_base, np.int64)
        self.saved: dict[tuple[int, str], dict[str, Array]] = {}

    def push(self, members: Array, step: int) -> None:
        depth = self.depth[members]
        if int(depth.max()) >= _MAX_CALL_DEPTH:
            raise Fault("out-of-bounds", f"calls are nested more than {_MAX_CALL_DEPTH} deep")
        while int(depth.max()) >= len(self.returns):
            self.returns = np.concatenate([self.returns, np.zeros_like(self.returns)])
        self.returns[depth, members] = step
        self.depth[members] = depth + 1

    def pop(self, members: Array) -> Array:
        self.depth[members] -= 1
        steps: Array = self.returns[self.depth[members], members]
        return steps


def split_group_by_step(cta: Cta, group: Group, parts: list[tuple[Array, int]]) -> bool:
    """Split a group: each part (threads, step) goes on at its step. Together the parts are the whole group."""
    parts = [(members, step) for members, step in parts if len(members)]
    for members, step in parts[:-1]:
        cta.split(group, members, step)
    group.pc = parts[-1][1]
    return len(parts) == 1


def _held_back_threads(group: Group, members: Array) -> Array:
    """Return the threads of the group that the guard holds back."""
    if len(members) == len(group.indices):
        return members[:0]
    return group.indices[~np.isin(group.indices, members)]


# -- call --------------------------------------------------------------------------------------------------------------


@register_decoder("call", accepts="uni")
def _decode_call(form: Form) -> None:
    operands = list(form.operands)
    returned = operands.pop(0) if isinstance(operands[0], Arguments) else None
    target = operands.pop(0)
    passed = operands.pop(0) if operands and isinstance(operands[0], Arguments) else None
    callee = form.program.functions.get(target.name) if isinstance(target, Symbol) else None
    if isinstance(target, Symbol) and callee is None:
        lists = [list(part.items) if isinstance(part, Arguments) else [] for part in (passed, returned)]
        _decode_external_call(form, target.name, *lists)
        return
    call_site = CallSite(
        form.function,
        tuple(
            _decode_call_operand(form, item, None)
            for item in (returned.items if isinstance(returned, Arguments) else ())
        ),
        tuple(
            _decode_call_operand(form, item, callee.params[index] if callee and index < len(callee.params) else None)
            for index, item in enumerate(passed.items if isinstance(passed, Arguments) else ())
        ),
    )
    if callee is not None:
        _check_argument_counts(call_site, callee)
    program = form.program
    program.sites[len(program.steps)] = call_site
    target_slot = -1 if callee is not None else form.read(target, "u64")

    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        members = cta.thread_ids[threads]
        here = group.pc
        if callee is not None:
            _enter_function(cta, members, here, call_site, callee)
            return split_group_by_step(
                cta, group, [(_held_back_threads(group, members), here + 1), (members, callee.start)]
            )
        addresses = cta.views[target_slot][threads].copy()
        parts = [(_held_back_threads(group, members), here + 1)]
        for address in np.unique(addresses).tolist():
            function = program.function_at.get(address)
            if function is None:
                raise Fault("out-of-bounds", f"a call to {address:#x}, which is not the address of a function")
            _check_argument_counts(call_site, function)
            chosen = members[addresses == address]
            _enter_function(cta, chosen, here, call_site, function)
            parts.append((chosen, function.start))
        return split_group_by_step(cta, group, parts)

    form.step.control = move_group


def _decode_external_call(form: Form, name: str, passed: Sequence[Operand], returned: Sequence[Operand]) -> None:
    """Decode a call of a function without a body: `vprintf` prints, any other faults when it is reached."""
    if name == "vprintf":
        passed_operands = [_decode_call_operand(form, item, _ADDRESS_PARAM) for item in passed]
        result_operands = [_decode_call_operand(form, item, None) for item in returned]
        form.step.run = lambda cta, threads: _call_vprintf(
            cta, cta.thread_ids[threads], passed_operands, result_operands
        )
        return

    def run_step(cta: Cta, threads: Threads) -> None:
        if name == "__assertfail":
            raise Fault("trap", "an assertion of the kernel failed")
        raise Fault("unsupported", f"a call of '{name}', which has no body")

    form.step.run = run_step


def _call_vprintf(
    cta: Cta, members: Array, passed_operands: list[CallOperand], result_operands: list[CallOperand]
) -> None:
    if len(passed_operands) != 2:
        raise Fault("unsupported", f"a call of 'vprintf' with {len(passed_operands)} arguments; it takes 2")

    formats, arguments = (
        _read_operand(cta, members, call_operand, _ADDRESS_PARAM).copy().view(np.int64).reshape(-1)
        for call_operand in passed_operands
    )
    printf.print_for_threads(cta, members, formats, arguments)
    for call_operand in result_operands:
        _write_operand(cta, members, call_operand, np.zeros((len(members), 4), np.uint8))


def _check_argument_counts(call_site: CallSite, callee: FunctionLayout) -> None:
    if len(call_site.arguments) != len(callee.params) or len(call_site.returns) != len(callee.returns):
        raise Fault(
            "unsupported",
            f"{len(call_site.arguments)} arguments and {len(call_site.returns)} results in a call of '{callee.name}', "
            f"which has {len(callee.params)} and {len(callee.returns)}",
        )


def _decode_call_operand(form: Form, item: Operand, formal: FormalParameter | None) -> CallOperand:
    if isinstance(item, Symbol):
        address = form.find_symbol(item)
        if not CALL_PARAMS <= address < CALL_PARAMS << 1:
            raise form.unsupported(f"the argument {item.name}")
        return CallOperand(address - CALL_PARAMS)
    if isinstance(item, Reg):
        name = form.find_register(item)[0] if item.name != "_" else "32"
        if name == "pred":
            raise form.unsupported("a predicate as an argument")
        return CallOperand(0, form.read(item, f"b{name}"))
    return CallOperand(0, form.read(item, f"b{8 * formal.size if formal else 32}"))


def _enter_function(cta: Cta, members: Array, here: int, call_site: CallSite, callee: FunctionLayout) -> None:
    stack = cta.calls
    values = [
        _read_operand(cta, members, call_operand, formal)
        for call_operand, formal in zip(call_site.arguments, callee.params, strict=True)
    ]
    if call_site.caller is not None and call_site.caller.is_recursive:
        _save_registers(cta, members, call_site.caller)
    stack.push(members, here + 1)
    for formal, value in zip(callee.params, values, strict=True):
        _write_parameter(cta, members, formal.place, formal.offset, value)
    if callee.frame_bytes:
        top = stack.top[members]
        for (class_name, row), offset in callee.frames:
            cta.blocks[class_name][row, members] = (top + offset).astype(np.uint64)
        stack.top[members] = top + callee.frame_bytes
        needed = int(stack.top[members].max())
        if needed > _MAX_STACK_BYTES:
            raise Fault("out-of-bounds", f"the local variables of nested calls take more than {_MAX_STACK_BYTES} bytes")
        if needed > cta.local.shape[1]:
            cta.local = np.pad(cta.local, ((0, 0), (0, 2 * needed - cta.local.shape[1])))


def _read_operand(cta: Cta, members: Array, call_operand: CallOperand, formal: FormalParameter) -> Array:
    if call_operand.slot < 0:
        return cta.local[members, call_operand.offset : call_operand.offset + formal.size]
    data: Array = np.ascontiguousarray(cta.views[call_operand.slot][members]).view(np.uint8).reshape(len(members), -1)
    return data[:, : formal.size]


def _write_parameter(cta: Cta, members: Array, place: tuple[str, int] | None, offset: int, data: Array) -> None:
    if place is None:
        cta.local[members, offset : offset + data.shape[1]] = data
        return
    class_name, row = place
    word = cta.blocks[class_name].dtype
    padded = np.zeros((len(members), word.itemsize), np.uint8)
    padded[:, : data.shape[1]] = data
    cta.blocks[class_name][row, members] = padded.view(word).reshape(-1)


# -- recursion ---------------------------------------------------------------------------------------------------------


def _save_registers(cta: Cta, members: Array, caller: FunctionLayout) -> None:
    """Save the caller's registers by call depth."""
    stack = cta.calls
    for depth in np.unique(stack.depth[members]).tolist():
        chosen = members[stack.depth[members] == depth]
        key = (depth, caller.name)
        if key not in stack.saved:
            stack.saved[key] = {
                name: np.zeros((last - first, cta.thread_count), cta.blocks[name].dtype)
                for name, (first, last) in caller.rows.items()
            }
        for name, (first, last) in caller.rows.items():
            stack.saved[key][name][:, chosen] = cta.blocks[name][first:last, chosen]


def _restore_registers(cta: Cta, members: Array, caller: FunctionLayout) -> None:
    stack = cta.calls
    for depth in np.unique(stack.depth[members]).tolist():
        chosen = members[stack.depth[members] == depth]
        for name, (first, last) in caller.rows.items():
            cta.blocks[name][first:last, chosen] = stack.saved[depth, caller.name][name][:, chosen]


# -- ret ---------------------------------------------------------------------------------------------------------------


@register_decoder("ret", accepts="uni")
def _decode_ret(form: Form) -> None:
    function = form.function
    program = form.program

    def exit_kernel(cta: Cta, group: Group, threads: Threads) -> bool:
        group.pc += 1
        return cta.exit(group, threads)

    def return_to_caller(cta: Cta, group: Group, threads: Threads) -> bool:
        assert function is not None
        members = cta.thread_ids[threads]
        here = group.pc
        steps = cta.calls.pop(members)
        parts = [(_held_back_threads(group, members), here + 1)]
        for step in np.unique(steps).tolist():
            chosen = members[steps == step]
            call_site = program.sites[step - 1]
            values = [_read_result(cta, chosen, formal) for formal in function.returns]
            if call_site.caller is not None and call_site.caller.is_recursive:
                _restore_registers(cta, chosen, call_site.caller)
            if function.frame_bytes:
                cta.calls.top[chosen] -= function.frame_bytes
            for call_operand, value in zip(call_site.returns, values, strict=True):
                _write_operand(cta, chosen, call_operand, value)
            parts.append((chosen, step))
        return split_group_by_step(cta, group, parts)

    form.step.control = exit_kernel if function is None else return_to_caller


def _read_result(cta: Cta, members: Array, formal: FormalParameter) -> Array:
    if formal.place is None:
        return cta.local[members, formal.offset : formal.offset + formal.size]
    class_name, row = formal.place
    data: Array = np.ascontiguousarray(cta.blocks[class_name][row, members]).view(np.uint8).reshape(len(members), -1)
    return data[:, : formal.size]


def _write_operand(cta: Cta, members: Array, call_operand: CallOperand, data: Array) -> None:
    if call_operand.slot < 0:
        cta.local[members, call_operand.offset : call_operand.offset + data.shape[1]] = data
        return
    view = cta.views[call_operand.slot]
    padded = np.zeros((len(members), view.dtype.itemsize), np.uint8)
    padded[:, : data.shape[1]] = data
    view[members] = padded.view(view.dtype).reshape(-1)


# -- brx ---------------------------------------------------------------------------------------------------------------


@register_decoder("brx.idx", accepts="uni")
def _decode_brx(form: Form) -> None:
    index_slot = form.read(form.operands[0], "u32")
    targets = np.array(form.find_branch_targets(form.operands[1]))

    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        members = cta.thread_ids[threads]
        index = cta.views[index_slot][threads]
        if (index >= len(targets)).any():
            raise Fault("out-of-bounds", f"brx.idx {int(index.max())} into a table of {len(targets)} labels")
        steps = targets[index]
        parts = [(_held_back_threads(group, members), group.pc + 1)]
        parts += [(members[steps == step], step) for step in np.unique(steps).tolist()]
        return split_group_by_step(cta, group, parts)

    form.step.control = move_group
