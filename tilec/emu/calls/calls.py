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
        """Push the step to which these threads return; fault above the depth limit. The stack grows as needed."""
        depth = self.depth[members]
        if int(depth.max()) >= _MAX_CALL_DEPTH:
            raise Fault("out-of-bounds", f"calls are nested more than {_MAX_CALL_DEPTH} deep")
        while int(depth.max()) >= len(self.returns):
            self.returns = np.concatenate([self.returns, np.zeros_like(self.returns)])
        self.returns[depth, members] = step
        self.depth[members] = depth + 1

    def pop(self, members: Array) -> Array:
        """Remove and return the step to which each of these threads returns."""
        self.depth[members] -= 1
        steps: Array = self.returns[self.depth[members], members]
        return steps


def split_group_by_step(cta: Cta, group: Group, parts: list[tuple[Array, int]]) -> bool:
    """Split a group so that each part (threads, step) goes on at its step; return whether there is one part only.
    Together the parts are the whole group, and empty ones are dropped."""
    parts = [(members, step) for members, step in parts if len(members)]
    for members, step in parts[:-1]:
        cta.split(group, members, step)
    group.pc = parts[-1][1]
    return len(parts) == 1


def _held_back_threads(group: Group, members: Array) -> Array:
    """Return the threads of the group that are not in `members`, since the guard holds them back."""
    if len(members) == len(group.indices):
        return members[:0]
    return group.indices[~np.isin(group.indices, members)]


# -- call --------------------------------------------------------------------------------------------------------------


@register_decoder("call", accepts="uni")
def _decode_call(form: Form) -> None:
    """Decode `call` into a step that enters a function, named or in a register, or runs one without a body."""
    operands = list(form.operands)
    returned = operands.pop(0) if isinstance(operands[0], Arguments) else None
    target = operands.pop(0)
    passed = operands.pop(0) if operands and isinstance(operands[0], Arguments) else None
    results, values = (part.items if isinstance(part, Arguments) else () for part in (returned, passed))
    callee = form.program.functions.get(target.name) if isinstance(target, Symbol) else None
    if isinstance(target, Symbol) and callee is None:
        _decode_external_call(form, target.name, values, results)
        return
    formals = dict(enumerate(callee.params)) if callee is not None else {}
    call_site = CallSite(
        form.function,
        tuple(_decode_call_operand(form, item, None) for item in results),
        tuple(_decode_call_operand(form, item, formals.get(index)) for index, item in enumerate(values)),
    )
    if callee is not None:
        _check_argument_counts(call_site, callee)
    program = form.program
    program.sites[len(program.steps)] = call_site
    target_slot = -1 if callee is not None else form.read(target, "u64")

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Pass arguments, push the return step and split the group by the function entered; return whether it stays
        whole."""
        members = cta.thread_ids[threads]
        here = group.pc
        parts = [(_held_back_threads(group, members), here + 1)]
        if callee is not None:
            _enter_function(cta, members, here, call_site, callee)
            return split_group_by_step(cta, group, [*parts, (members, callee.start)])
        addresses = cta.views[target_slot][threads].copy()
        for address in np.unique(addresses).tolist():
            function = program.function_at.get(address)
            if function is None:
                raise Fault("out-of-bounds", f"a call to {address:#x}, which is not the address of a function")
            _check_argument_counts(call_site, function)
            chosen = members[addresses == address]
            _enter_function(cta, chosen, here, call_site, function)
            parts.append((chosen, function.start))
        return split_group_by_step(cta, group, parts)


def _decode_external_call(form: Form, name: str, passed: Sequence[Operand], returned: Sequence[Operand]) -> None:
    """Set the step of a call of a function without a body: `vprintf` prints, any other faults when reached."""
    if name == "vprintf":
        given = [_decode_call_operand(form, item, _ADDRESS_PARAM) for item in passed]
        results = [_decode_call_operand(form, item, None) for item in returned]
        form.step.run = lambda cta, threads: _call_vprintf(cta, cta.thread_ids[threads], given, results)
        return

    @form.set_run
    def run_external_call(cta: Cta, threads: Threads) -> None:
        """Fault: an assertion of the kernel failed, or the called function has no body."""
        if name == "__assertfail":
            raise Fault("trap", "an assertion of the kernel failed")
        raise Fault("unsupported", f"a call of '{name}', which has no body")


def _call_vprintf(cta: Cta, members: Array, passed: list[CallOperand], results: list[CallOperand]) -> None:
    """Print for these threads from the addresses passed, and set the result to 0; fault unless there are two
    arguments."""
    if len(passed) != 2:
        raise Fault("unsupported", f"a call of 'vprintf' with {len(passed)} arguments; it takes 2")
    formats, arguments = (_read_bytes(cta, members, place, 8).copy().view(np.int64).reshape(-1) for place in passed)
    printf.print_for_threads(cta, members, formats, arguments)
    for place in results:
        _write_bytes(cta, members, place, np.zeros((len(members), 4), np.uint8))


def _check_argument_counts(call_site: CallSite, callee: FunctionLayout) -> None:
    """Fault unless a call has as many arguments and results as the function."""
    given = len(call_site.arguments), len(call_site.returns)
    wanted = len(callee.params), len(callee.returns)
    if given != wanted:
        message = f"{given[0]} arguments and {given[1]} results in a call of '{callee.name}'"
        raise Fault("unsupported", f"{message}, which has {wanted[0]} and {wanted[1]}")


def _decode_call_operand(form: Form, item: Operand, formal: FormalParameter | None) -> CallOperand:
    """Return an argument's or result's place: local offset, or slot (constant: `formal`'s size, None: 32 bits); no
    predicate."""
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
    """Copy arguments to the callee's parameters, push the step after the call and set up its frame; fault if too deep.
    A recursive caller's registers are saved first."""
    stack = cta.calls
    pairs = zip(call_site.arguments, callee.params, strict=True)
    values = [_read_bytes(cta, members, place, formal.size) for place, formal in pairs]
    if call_site.caller is not None and call_site.caller.is_recursive:
        _save_registers(cta, members, call_site.caller)
    stack.push(members, here + 1)
    for formal, value in zip(callee.params, values, strict=True):
        _write_bytes(cta, members, formal, value)
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


def _find_register(cta: Cta, place: CallOperand | FormalParameter) -> Array | None:
    """Return the register row, over all threads, that holds an argument or parameter; None if local memory does."""
    if isinstance(place, CallOperand):
        return None if place.slot < 0 else cta.views[place.slot]
    return None if place.place is None else cta.blocks[place.place[0]][place.place[1]]


def _read_bytes(cta: Cta, members: Array, place: CallOperand | FormalParameter, size: int) -> Array:
    """Return the first `size` bytes of an argument or parameter, [thread, byte], from its register or local memory."""
    register = _find_register(cta, place)
    if register is None:
        return cta.local[members, place.offset : place.offset + size]
    data: Array = np.ascontiguousarray(register[members]).view(np.uint8).reshape(len(members), -1)
    return data[:, :size]


def _write_bytes(cta: Cta, members: Array, place: CallOperand | FormalParameter, data: Array) -> None:
    """Set the first bytes of an argument or parameter from `data`, [thread, byte]; the rest of a register becomes 0."""
    register = _find_register(cta, place)
    if register is None:
        cta.local[members, place.offset : place.offset + data.shape[1]] = data
        return
    padded = np.zeros((len(members), register.dtype.itemsize), np.uint8)
    padded[:, : data.shape[1]] = data
    register[members] = padded.view(register.dtype).reshape(-1)


# -- recursion ---------------------------------------------------------------------------------------------------------


def _save_registers(cta: Cta, members: Array, caller: FunctionLayout) -> None:
    """Save a recursive caller's registers for these threads, under each one's call depth."""
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
    """Set a recursive caller's registers to the values saved at each thread's call depth."""
    stack = cta.calls
    for depth in np.unique(stack.depth[members]).tolist():
        chosen = members[stack.depth[members] == depth]
        for name, (first, last) in caller.rows.items():
            cta.blocks[name][first:last, chosen] = stack.saved[depth, caller.name][name][:, chosen]


# -- ret ---------------------------------------------------------------------------------------------------------------


@register_decoder("ret", accepts="uni")
def _decode_ret(form: Form) -> None:
    """Decode `ret` into a step that returns threads to their callers, or in the kernel itself ends them."""
    function = form.function
    program = form.program

    def exit_kernel(cta: Cta, group: Group, threads: Threads) -> bool:
        """End these threads at a `ret` of the kernel; return whether any of the group go on."""
        group.pc += 1
        return cta.exit(group, threads)

    def return_to_caller(cta: Cta, group: Group, threads: Threads) -> bool:
        """Copy results to each thread's call, free its frame, split the group by return step; return whether it stays
        whole."""
        assert function is not None
        members = cta.thread_ids[threads]
        here = group.pc
        steps = cta.calls.pop(members)
        parts = [(_held_back_threads(group, members), here + 1)]
        for step in np.unique(steps).tolist():
            chosen = members[steps == step]
            call_site = program.sites[step - 1]
            values = [_read_bytes(cta, chosen, formal, formal.size) for formal in function.returns]
            if call_site.caller is not None and call_site.caller.is_recursive:
                _restore_registers(cta, chosen, call_site.caller)
            if function.frame_bytes:
                cta.calls.top[chosen] -= function.frame_bytes
            for place, value in zip(call_site.returns, values, strict=True):
                _write_bytes(cta, chosen, place, value)
            parts.append((chosen, step))
        return split_group_by_step(cta, group, parts)

    form.step.control = exit_kernel if function is None else return_to_caller


# -- brx ---------------------------------------------------------------------------------------------------------------


@register_decoder("brx.idx", accepts="uni")
def _decode_brx(form: Form) -> None:
    """Decode `brx.idx` into a step that moves each thread to the label that its index selects from a table."""
    index_slot = form.read(form.operands[0], "u32")
    targets = np.array(form.find_branch_targets(form.operands[1]))

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Split the group by the label of each thread's index; return whether it stays whole; fault beyond the
        table."""
        members = cta.thread_ids[threads]
        index = cta.views[index_slot][threads]
        if (index >= len(targets)).any():
            raise Fault("out-of-bounds", f"brx.idx {int(index.max())} into a table of {len(targets)} labels")
        steps = targets[index]
        parts = [(_held_back_threads(group, members), group.pc + 1)]
        parts += [(members[steps == step], step) for step in np.unique(steps).tolist()]
        return split_group_by_step(cta, group, parts)
