"""Decoders of calls, returns and branches through a table.

Each thread has a stack of return steps. A call copies arguments into the parameters of the callee, and a return copies
results back, so that function bodies are ordinary steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu import printf
from tilec.emu.decode import Form, semantics
from tilec.emu.fault import Fault
from tilec.emu.functions import Formal, Layout
from tilec.emu.memory import CALL_PARAMS
from tilec.emu.numbers import Array
from tilec.ptx.module import Arguments, Operand, Reg, Symbol
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Group, Threads

_DEEPEST = 512
_STACK_BYTES = 1 << 20
_ADDRESS = Formal(8, 0)


@dataclass(frozen=True, slots=True)
class Carrier:
    """An argument or result that a call names: bytes of local memory, or a register if `slot` is not -1."""

    offset: int
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Site:
    """One call instruction: its arguments and results, and the function that contains it."""

    caller: Layout | None
    returns: tuple[Carrier, ...]
    arguments: tuple[Carrier, ...]


class CallStack:
    """The return steps of one block's threads."""

    def __init__(self, thread_count: int, stack_base: int) -> None:
        self.depth = np.zeros(thread_count, np.int64)
        self.returns = np.zeros((4, thread_count), np.int64)
        self.top = np.full(thread_count, stack_base, np.int64)
        self.saved: dict[tuple[int, str], dict[str, Array]] = {}

    def push(self, members: Array, step: int) -> None:
        depth = self.depth[members]
        if int(depth.max()) >= _DEEPEST:
            raise Fault("out-of-bounds", f"calls are nested more than {_DEEPEST} deep")
        while int(depth.max()) >= len(self.returns):
            self.returns = np.concatenate([self.returns, np.zeros_like(self.returns)])
        self.returns[depth, members] = step
        self.depth[members] = depth + 1

    def pop(self, members: Array) -> Array:
        self.depth[members] -= 1
        steps: Array = self.returns[self.depth[members], members]
        return steps


def spread(cta: Cta, group: Group, parts: list[tuple[Array, int]]) -> bool:
    """Split a group: each part (threads, step) goes on at its step. Together the parts are the whole group."""
    parts = [(members, step) for members, step in parts if len(members)]
    for members, step in parts[:-1]:
        cta.split(group, members, step)
    group.pc = parts[-1][1]
    return len(parts) == 1


def _rest(group: Group, members: Array) -> Array:
    """Return the threads of the group that the guard holds back."""
    if len(members) == len(group.indices):
        return members[:0]
    return group.indices[~np.isin(group.indices, members)]


# -- call --------------------------------------------------------------------------------------------------------------


@semantics("call", accepts="uni")
def _call(form: Form) -> None:
    operands = list(form.operands)
    returned = operands.pop(0) if isinstance(operands[0], Arguments) else None
    target = operands.pop(0)
    passed = operands.pop(0) if operands and isinstance(operands[0], Arguments) else None
    callee = form.program.functions.get(target.name) if isinstance(target, Symbol) else None
    if isinstance(target, Symbol) and callee is None:
        lists = [list(part.items) if isinstance(part, Arguments) else [] for part in (passed, returned)]
        _call_outside(form, target.name, *lists)
        return
    call_site = Site(
        form.function,
        tuple(_carrier(form, item, None) for item in (returned.items if isinstance(returned, Arguments) else ())),
        tuple(
            _carrier(form, item, callee.params[index] if callee and index < len(callee.params) else None)
            for index, item in enumerate(passed.items if isinstance(passed, Arguments) else ())
        ),
    )
    if callee is not None:
        _check_counts(call_site, callee)
    program = form.program
    program.sites[len(program.steps)] = call_site
    target_slot = -1 if callee is not None else form.read(target, "u64")

    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        members = cta.thread_ids[threads]
        here = group.pc
        if callee is not None:
            _enter(cta, members, here, call_site, callee)
            return spread(cta, group, [(_rest(group, members), here + 1), (members, callee.start)])
        addresses = cta.views[target_slot][threads].copy()
        parts = [(_rest(group, members), here + 1)]
        for address in np.unique(addresses).tolist():
            function = program.function_at.get(address)
            if function is None:
                raise Fault("out-of-bounds", f"a call to {address:#x}, which is not the address of a function")
            _check_counts(call_site, function)
            chosen = members[addresses == address]
            _enter(cta, chosen, here, call_site, function)
            parts.append((chosen, function.start))
        return spread(cta, group, parts)

    form.step.control = control


def _call_outside(form: Form, name: str, passed: Sequence[Operand], returned: Sequence[Operand]) -> None:
    """Decode a call of a function without a body: `vprintf` prints, any other faults when it is reached."""
    if name == "vprintf":
        passed_operands = [_carrier(form, item, _ADDRESS) for item in passed]
        result_operands = [_carrier(form, item, None) for item in returned]
        form.step.run = lambda cta, threads: _print(cta, cta.thread_ids[threads], passed_operands, result_operands)
        return

    def run(cta: Cta, threads: Threads) -> None:
        if name == "__assertfail":
            raise Fault("trap", "an assertion of the kernel failed")
        raise Fault("unsupported", f"a call of '{name}', which has no body")

    form.step.run = run


def _print(cta: Cta, members: Array, passed_operands: list[Carrier], result_operands: list[Carrier]) -> None:
    if len(passed_operands) != 2:
        raise Fault("unsupported", f"{len(passed_operands)} arguments in a call of 'vprintf', which has 2")

    formats, arguments = (
        _bytes(cta, members, call_operand, _ADDRESS).copy().view(np.int64).reshape(-1)
        for call_operand in passed_operands
    )
    printf.write(cta, members, formats, arguments)
    for call_operand in result_operands:
        _take(cta, members, call_operand, np.zeros((len(members), 4), np.uint8))


def _check_counts(call_site: Site, callee: Layout) -> None:
    if len(call_site.arguments) != len(callee.params) or len(call_site.returns) != len(callee.returns):
        raise Fault(
            "unsupported",
            f"{len(call_site.arguments)} arguments and {len(call_site.returns)} results in a call of '{callee.name}', "
            f"which has {len(callee.params)} and {len(callee.returns)}",
        )


def _carrier(form: Form, item: Operand, formal: Formal | None) -> Carrier:
    if isinstance(item, Symbol):
        address = form.symbol(item)
        if not CALL_PARAMS <= address < CALL_PARAMS << 1:
            raise form.unsupported(f"the argument {item.name}")
        return Carrier(address - CALL_PARAMS)
    if isinstance(item, Reg):
        name = form.place(item)[0] if item.name != "_" else "32"
        if name == "pred":
            raise form.unsupported("a predicate as an argument")
        return Carrier(0, form.read(item, f"b{name}"))
    return Carrier(0, form.read(item, f"b{8 * formal.size if formal else 32}"))


def _enter(cta: Cta, members: Array, here: int, call_site: Site, callee: Layout) -> None:
    stack = cta.calls
    values = [
        _bytes(cta, members, call_operand, formal)
        for call_operand, formal in zip(call_site.arguments, callee.params, strict=True)
    ]
    if call_site.caller is not None and call_site.caller.is_recursive:
        _save(cta, members, call_site.caller)
    stack.push(members, here + 1)
    for formal, value in zip(callee.params, values, strict=True):
        _put(cta, members, formal.place, formal.offset, value)
    if callee.frame_bytes:
        top = stack.top[members]
        for (class_name, row), offset in callee.frames:
            cta.blocks[class_name][row, members] = (top + offset).astype(np.uint64)
        stack.top[members] = top + callee.frame_bytes
        needed = int(stack.top[members].max())
        if needed > _STACK_BYTES:
            raise Fault("out-of-bounds", f"the local variables of nested calls take more than {_STACK_BYTES} bytes")
        if needed > cta.local.shape[1]:
            cta.local = np.pad(cta.local, ((0, 0), (0, 2 * needed - cta.local.shape[1])))


def _bytes(cta: Cta, members: Array, call_operand: Carrier, formal: Formal) -> Array:
    if call_operand.slot < 0:
        return cta.local[members, call_operand.offset : call_operand.offset + formal.size]
    data: Array = np.ascontiguousarray(cta.views[call_operand.slot][members]).view(np.uint8).reshape(len(members), -1)
    return data[:, : formal.size]


def _put(cta: Cta, members: Array, place: tuple[str, int] | None, offset: int, data: Array) -> None:
    if place is None:
        cta.local[members, offset : offset + data.shape[1]] = data
        return
    class_name, row = place
    word = cta.blocks[class_name].dtype
    padded = np.zeros((len(members), word.itemsize), np.uint8)
    padded[:, : data.shape[1]] = data
    cta.blocks[class_name][row, members] = padded.view(word).reshape(-1)


# -- recursion ---------------------------------------------------------------------------------------------------------


def _save(cta: Cta, members: Array, caller: Layout) -> None:
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


def _restore(cta: Cta, members: Array, caller: Layout) -> None:
    stack = cta.calls
    for depth in np.unique(stack.depth[members]).tolist():
        chosen = members[stack.depth[members] == depth]
        for name, (first, last) in caller.rows.items():
            cta.blocks[name][first:last, chosen] = stack.saved[depth, caller.name][name][:, chosen]


# -- ret ---------------------------------------------------------------------------------------------------------------


@semantics("ret", accepts="uni")
def _ret(form: Form) -> None:
    function = form.function
    program = form.program

    def leave(cta: Cta, group: Group, threads: Threads) -> bool:
        group.pc += 1
        return cta.exit(group, threads)

    def go_back(cta: Cta, group: Group, threads: Threads) -> bool:
        assert function is not None
        members = cta.thread_ids[threads]
        here = group.pc
        steps = cta.calls.pop(members)
        parts = [(_rest(group, members), here + 1)]
        for step in np.unique(steps).tolist():
            chosen = members[steps == step]
            call_site = program.sites[step - 1]
            values = [_result(cta, chosen, formal) for formal in function.returns]
            if call_site.caller is not None and call_site.caller.is_recursive:
                _restore(cta, chosen, call_site.caller)
            if function.frame_bytes:
                cta.calls.top[chosen] -= function.frame_bytes
            for call_operand, value in zip(call_site.returns, values, strict=True):
                _take(cta, chosen, call_operand, value)
            parts.append((chosen, step))
        return spread(cta, group, parts)

    form.step.control = leave if function is None else go_back


def _result(cta: Cta, members: Array, formal: Formal) -> Array:
    if formal.place is None:
        return cta.local[members, formal.offset : formal.offset + formal.size]
    class_name, row = formal.place
    data: Array = np.ascontiguousarray(cta.blocks[class_name][row, members]).view(np.uint8).reshape(len(members), -1)
    return data[:, : formal.size]


def _take(cta: Cta, members: Array, call_operand: Carrier, data: Array) -> None:
    if call_operand.slot < 0:
        cta.local[members, call_operand.offset : call_operand.offset + data.shape[1]] = data
        return
    view = cta.views[call_operand.slot]
    padded = np.zeros((len(members), view.dtype.itemsize), np.uint8)
    padded[:, : data.shape[1]] = data
    view[members] = padded.view(view.dtype).reshape(-1)


# -- brx ---------------------------------------------------------------------------------------------------------------


@semantics("brx.idx", accepts="uni")
def _brx(form: Form) -> None:
    index_slot = form.read(form.operands[0], "u32")
    targets = np.array(form.targets(form.operands[1]))

    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        members = cta.thread_ids[threads]
        index = cta.views[index_slot][threads]
        if (index >= len(targets)).any():
            raise Fault("out-of-bounds", f"brx.idx {int(index.max())} into a table of {len(targets)} labels")
        steps = targets[index]
        parts = [(_rest(group, members), group.pc + 1)]
        parts += [(members[steps == step], step) for step in np.unique(steps).tolist()]
        return spread(cta, group, parts)

    form.step.control = control
