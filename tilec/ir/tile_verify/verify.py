"""Verifier of tile IR, independent of the passes that make it.

Checked here:

1. names: parameters, buffers, block variables, loop variables and binds all have different names
2. a variable is used only where its block, loop or bind is visible; a buffer only if the kernel declares it
3. types: operands agree, comparisons and and/or/not give bool, conditions are bool, indices are integers
4. a store's value, and an atomic's previous value, has its buffer's dtype; a bind's value has its variable's
5. an access has one index per dimension; a region has one start and one extent per dimension, none larger than a tile
6. parameters are global; extents, grid and threads are positive and within the machine's limits, or int32 expressions
   of the parameters
7. T.Parallel holds stores, binds and ifs only; stores stand nowhere else; a nest of every thread covers all threads
   that run it
8. manual `stage` and `order` come together and have the same length; `order` is a permutation
9. a break ends an iteration of a serial loop or a while
10. a constant has a value of its type; functions are known, with operands of the types that they take
11. a region of a tile that begins at a number lies within the tile

Not checked here: that indices stay within tiles for every value of the variables, and the operands of each operation:
its form checks them (`ops.form`).

Verifier of calls and constants of tile IR: the known functions, their numbers of operands, their types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import assert_never

from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, guarded_warps
from tilec.ir.ptx_values import find_ptx_error
from tilec.ir.text import show_expr
from tilec.ir.types import BOOL, FLOAT32, INT32, UINT32, UINT64, DType
from tilec.support.source import Span

Violation = str | tuple[Span, str]
"""A violation, with its place where that is not the statement being checked."""


MAX_INT32 = (1 << 31) - 1
"""The largest number counted in int32: elements along a dimension, iterations, slots."""
MOST_BLOCKS = (MAX_INT32, 65535, 65535)
MOST_THREADS = 1024
"""CUDA programming guide, table of technical specifications: maximum dimensions of a grid, threads of a block."""


def verify_tile(kernel: tile.Kernel, *, as_launched: bool = False) -> Iterator[str]:
    """Yield every broken rule of a kernel in tile IR as a sentence, with the line in front if it is a statement's.
    `as_launched` allows the final grid, in which a loop may be dynamically scheduled."""
    for span, message in tile_violations(kernel, as_launched=as_launched):
        yield message if span == kernel.span else f"line {span.line}: {message}"


def tile_violations(kernel: tile.Kernel, *, as_launched: bool = False) -> Iterator[tuple[Span, str]]:
    """Yield every broken rule of a kernel in tile IR, as the place in the source and a message: launch, declarations,
    body. `as_launched` allows a loop to be dynamically scheduled.
    """
    checker = _Checker(kernel, as_launched)
    for violation in (*_check_launch(kernel), *checker.check_declarations(kernel)):
        yield (kernel.span, violation) if isinstance(violation, str) else violation
    yield from checker.check_body(kernel.body, in_parallel=False)


def _check_launch(kernel: tile.Kernel) -> Iterator[str]:
    """Yield a message where grid, block or cluster break the machine's limits, or the grid is not whole clusters."""
    if not 1 <= len(kernel.grid) <= 3 or len(kernel.grid) != len(kernel.block_vars):
        yield f"{len(kernel.grid)} grid extents for {len(kernel.block_vars)} block variables"
    if any(isinstance(e, int) and not 1 <= e <= most for e, most in zip(kernel.grid, MOST_BLOCKS, strict=False)):
        yield f"a grid of {kernel.grid} is empty, or larger than {MOST_BLOCKS}"
    if kernel.threads % 32 or not 32 <= kernel.threads <= MOST_THREADS:
        yield f"a block of {kernel.threads} threads; there are 32 to {MOST_THREADS}, in whole warps of 32"
    for extent, size in zip((*kernel.grid, 1, 1), kernel.cluster.extents, strict=False):
        if size < 1 or (isinstance(extent, int) and extent % size):
            yield f"a grid of {kernel.grid} is not made of clusters of {kernel.cluster.extents}"


class _Checker:
    def __init__(self, kernel: tile.Kernel, as_launched: bool) -> None:
        self.names: set[str] = set()
        self.as_launched = as_launched
        self.threads = kernel.threads
        self.warps = kernel.threads // WARP_THREADS
        self.visible: set[tile.Var] = {tile.THREAD}
        self.buffers: set[tile.Buffer] = set()

    def check_declarations(self, kernel: tile.Kernel) -> Iterator[Violation]:
        """Declare a kernel's parameters, buffers and block variables, and yield a violation for each ill-formed one.
        Checks extents, strides, layouts and split tiles too."""
        for param in kernel.params:
            yield from self._check_declaration(param)
            if isinstance(param, tile.Buffer) and param.scope != "global":
                yield f"parameter {param.name} is not in global memory"
        for buffer in kernel.buffers:
            yield from self._check_declaration(buffer)
        tensors = [p for p in kernel.params if isinstance(p, tile.Buffer)]
        for tensor in tensors:
            if tensor.strides is not None and (len(tensor.strides) != len(tensor.extents) or tensor.strides[-1] != 1):
                yield f"{tensor.name} has strides {tensor.strides}"
            if not 0 <= tensor.table_rank < len(tensor.extents):
                yield f"{tensor.name} has {len(tensor.extents)} dimensions, {tensor.table_rank} of them of a table"
        for extent in (*kernel.grid, *(e for p in tensors for e in (*p.extents, *(p.strides or ())))):
            if not isinstance(extent, int):
                yield from self.check_expression(extent)
                if extent.dtype != INT32:
                    yield f"the extent {show_expr(extent)} is {extent.dtype}"
        for var in kernel.block_vars:
            yield from self._declare_name(var)
        for pinned in kernel.layouts:
            wanted = "shared" if isinstance(pinned.layout, int | tile.Placement) else "fragment"
            if pinned.buffer not in kernel.buffers or pinned.buffer.scope != wanted:
                yield f"{pinned.buffer.name} has a layout for another kind of tile"
        for subtile in kernel.subtiles:
            if subtile.buffer not in kernel.buffers or len(subtile.parts) != len(subtile.buffer.extents):
                yield f"{subtile.buffer.name} is not a tile with {len(subtile.parts)} dimensions"
            if min(subtile.parts) < 1 or sum(p > 1 for p in subtile.parts) > 1:
                yield f"{subtile.buffer.name} can be split along one dimension only, into one or more parts"
        if len({pinned.buffer for pinned in kernel.layouts}) != len(kernel.layouts):
            yield "a tile has two layouts"

    def _check_declaration(self, what: tile.Buffer | tile.Var) -> Iterator[Violation]:
        """Declare a buffer or variable by `_declare_name`, and yield its violations, with the place of a buffer's
        declaration."""
        for message in self._declare_name(what):
            yield (what.span, message) if isinstance(what, tile.Buffer) else message

    def _declare_name(self, what: tile.Buffer | tile.Var) -> Iterator[str]:
        """Make a name visible; yield violations if the name is taken, or its buffer has a shape impossible for its
        scope."""
        if what.name in self.names:
            yield f"the name {what.name} is used twice"
        self.names.add(what.name)
        if isinstance(what, tile.Var):
            self.visible.add(what)
            return
        self.buffers.add(what)
        fits = all(1 <= e <= MAX_INT32 if isinstance(e, int) else what.scope == "global" for e in what.extents)
        if not what.extents or not fits:
            yield f"{what.name} has shape {what.extents}"
        elif what.scope == "tmem" and len(what.extents) < 2:
            yield f"{what.name} is in tensor memory and has {len(what.extents)} dimension"
        elif what.scope == "barrier" and (len(what.extents) != 1 or what.dtype != UINT64):
            yield f"{what.name} is {what.dtype}{list(what.extents)}, barriers are a row of uint64"

    # ---- statements --------------------------------------------------------------------------------------------------

    def check_body(self, body: tuple[tile.Stmt, ...], in_parallel: bool) -> Iterator[tuple[Span, str]]:
        """Yield the violations in a list of statements with their places; variables declared there are invisible
        afterwards. `in_parallel`: the statements are inside T.Parallel.
        """
        before = set(self.visible)
        for stmt in body:
            for violation in self._check_statement(stmt, in_parallel):
                yield (stmt.span, violation) if isinstance(violation, str) else violation
        self.visible = before

    def _check_statement(self, stmt: tile.Stmt, in_parallel: bool) -> Iterator[Violation]:
        """Yield the violations by one statement, inside T.Parallel if `in_parallel`, and those nested; declare what it
        binds.
        """
        if in_parallel and isinstance(stmt, tile.TileOp | tile.For | tile.While | tile.Break | tile.Parallel):
            yield f"a {'TileOp' if isinstance(stmt, tile.TileOp) else type(stmt).__name__} is inside Parallel"
        match stmt:
            case tile.TileOp(regions=regions):
                yield from self._check_tile_op(stmt, regions)
                for value in stmt.expressions:
                    yield from self.check_expression(value)
            case tile.Store(buffer=buffer, indices=indices, value=value):
                if not in_parallel:
                    yield f"a store to {buffer.name} is outside Parallel"
                yield from self._check_access(buffer, indices)
                yield from _check_element_access(buffer)
                yield from self.check_expression(value)
                if value.dtype != buffer.dtype:
                    yield f"a {value.dtype} is stored to {buffer.name}, which holds {buffer.dtype}"
                if stmt.previous is not None:
                    if stmt.atomic is None or stmt.previous.dtype != buffer.dtype:
                        yield f"{stmt.previous.name} cannot be what {buffer.name} held"
                    yield from self._declare_name(stmt.previous)
            case tile.Print(values=values):
                if not in_parallel:
                    yield "a print is outside Parallel"
                for value in values:
                    yield from self.check_expression(value)
                    if value.dtype.bits < 32:
                        yield f"{show_expr(value)}, which is printed, is {value.dtype}"
            case tile.Bind(var=var, value=value):
                yield from self.check_expression(value)
                if var.dtype != value.dtype:
                    yield f"{var.name} is {var.dtype}, its value is {value.dtype}"
                yield from self._declare_name(var)
            case tile.Parallel(vars=variables, extents=extents, body=body):
                if len(variables) != len(extents) or not extents or any(not 1 <= e <= MAX_INT32 for e in extents):
                    yield f"{len(variables)} parallel variables for extents {extents}"
                elif stmt.is_per_thread and extents[0] != self.threads:
                    yield f"a nest of every thread has {extents[0]} of them"
                for version in stmt.versions:
                    yield from self.check_expression(version)
                yield from self._check_nested(body, variables, True)
            case tile.For(start=start, stop=stop, var=var, body=body):
                yield from self.check_expression(start)
                yield from self.check_expression(stop)
                yield from _check_loop(stmt)
                if stmt.dynamically_scheduled and not self.as_launched:
                    yield f"the values of {var.name} are dynamically scheduled, which only a pass may set"
                yield from _check_breaks(body, stmt.kind == "serial")
                yield from self._check_nested(body, (var,), in_parallel)
            case tile.If(condition=condition, then=then, orelse=orelse):
                threads, warps = self.threads, guarded_warps(stmt)
                if warps is None:  # else its operands are numbers and the index of a warp or warpgroup
                    yield from self.check_expression(condition)
                elif not 0 <= warps.start < warps.stop <= self.warps:
                    yield f"there are no warps {warps.start} to {warps.stop - 1}"
                yield from _check_condition(condition)
                self.threads = threads if warps is None else WARP_THREADS * len(warps)
                yield from self.check_body(then, in_parallel)
                self.threads = threads
                yield from self.check_body(orelse, in_parallel)
            case tile.While(condition=condition, body=body):
                yield from (*self.check_expression(condition), *_check_condition(condition))
                yield from _check_breaks(body, True)
                yield from self.check_body(body, in_parallel)
            case tile.Break():
                return
            case _:
                assert_never(stmt)

    def _check_nested(
        self, body: tuple[tile.Stmt, ...], variables: tuple[tile.Var, ...], in_parallel: bool
    ) -> Iterator[Violation]:
        """Declare a loop's variables, yield the violations in its body, and make the variables invisible again."""
        before = set(self.visible)
        for var in variables:
            if var != tile.THREAD:  # visible everywhere
                yield from self._declare_name(var)
        yield from self.check_body(body, in_parallel)
        self.visible = before

    def _check_tile_op(self, op: tile.TileOp, regions: tuple[tile.Region, ...]) -> Iterator[str]:
        """Yield a violation for each region with invalid indices, a wrong number of extents, or a part outside its
        tile."""
        for region in regions:
            yield from self._check_access(region.buffer, region.start)
            if len(region.extent) != len(region.buffer.extents):
                yield f"a region of {region.buffer.name} has {len(region.extent)} extents"
                continue
            if any(extent != 1 for extent in region.extent[: region.buffer.table_rank]):
                yield f"a region of {region.buffer.name} spans several tensors of a table"
            is_tile = region.buffer.scope != "global"
            for start, extent, size in zip(region.start, region.extent, region.buffer.extents, strict=True):
                if extent < 1 or (is_tile and isinstance(size, int) and extent > size):
                    yield f"a region of {region.buffer.name} has extent {extent} in a dimension of {size}"
                    continue
                last = (size if isinstance(size, int) else MAX_INT32) - extent
                if is_tile and isinstance(start, tile.Const) and not 0 <= start.value <= last:
                    yield f"a region of {region.buffer.name} covers {start.value}:+{extent} in a dimension of {size}"

    # ---- expressions -------------------------------------------------------------------------------------------------

    def check_expression(self, expr: tile.Expr) -> Iterator[str]:
        """Yield a violation for each part of an expression with mismatched types, an unknown function or an invisible
        name."""
        for child in tile.direct_operands(expr):
            yield from self.check_expression(child)
        match expr:
            case tile.Const():
                if message := find_constant_error(expr):
                    yield message
            case tile.Cast():
                return
            case tile.Var(name=name):
                if expr not in self.visible:
                    yield f"{name} is not visible"
            case tile.Load(buffer=buffer, indices=indices):
                yield from self._check_indices(buffer, indices)
                yield from _check_element_access(buffer)
            case tile.Unary(op=op, a=a, dtype=dtype):
                if a.dtype != dtype or (op == "not") != (dtype == BOOL):
                    yield f"{show_expr(expr)} is {dtype} of {a.dtype}"
            case tile.Binary():
                yield from _check_binary(expr)
            case tile.Call():
                if message := find_call_error(expr):
                    yield message
            case tile.Ptx():
                if message := find_ptx_error(expr):
                    yield message
            case tile.Select(condition=condition, then=then, orelse=orelse, dtype=dtype):
                if condition.dtype != BOOL or then.dtype != dtype or orelse.dtype != dtype:
                    yield f"{show_expr(expr)} is {dtype} of {condition.dtype}, {then.dtype}, {orelse.dtype}"
            case _:
                assert_never(expr)

    def _check_access(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> Iterator[str]:
        """Yield the violations by the indices of an access: each as an expression, then their number and types."""
        for index in indices:
            yield from self.check_expression(index)
        yield from self._check_indices(buffer, indices)

    def _check_indices(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> Iterator[str]:
        """Yield a violation if the buffer is not declared, the number of indices is wrong, or an index is not int32."""
        if buffer not in self.buffers:
            yield f"{buffer.name} is not declared"
        if len(indices) != len(buffer.extents):
            yield f"{len(indices)} indices for {buffer.name}, which has {len(buffer.extents)} dimensions"
        for index in indices:
            if index.dtype != INT32:
                yield f"the index {show_expr(index)} is {index.dtype}"


def _check_element_access(buffer: tile.Buffer) -> Iterator[str]:
    """Yield a violation if the buffer is in tensor memory, which has no access to single elements."""
    if buffer.scope == "tmem":
        yield f"an element of {buffer.name}, which is in tensor memory"


def _check_condition(condition: tile.Expr) -> Iterator[str]:
    """Yield a violation if the type of a condition is not bool."""
    if condition.dtype != BOOL:
        yield f"the condition {show_expr(condition)} is {condition.dtype}"


def _check_binary(expr: tile.Binary) -> Iterator[str]:
    """Yield violations if operands differ in type, the result has another type, or the operator does not take the
    type."""
    a, b, dtype = expr.a.dtype, expr.b.dtype, expr.dtype
    logical = expr.op in ("and", "or")
    wanted = BOOL if logical or expr.op in tile.COMPARISONS else a
    if a != b or dtype != wanted or (logical and a != BOOL):
        yield f"{show_expr(expr)} is {dtype} of {a} and {b}"
    if expr.op == "div" and not dtype.is_float:
        yield f"{show_expr(expr)} divides integers"
    if expr.op in ("floordiv", "floormod", "bitand", "bitor", "xor", "shl", "shr") and dtype.is_float:
        yield f"{show_expr(expr)} needs integers"


def _check_breaks(body: tuple[tile.Stmt, ...], allowed: bool) -> Iterator[tuple[Span, str]]:
    """Yield each break that is not the last statement of an iteration; `allowed` tells whether the body's last may be
    one."""
    for place, stmt in enumerate(body):
        ends = allowed and place == len(body) - 1
        if isinstance(stmt, tile.Break) and not ends:
            yield stmt.span, "a statement follows a break, or its loop has no break"
        elif isinstance(stmt, tile.If):
            yield from _check_breaks(stmt.then, ends)
            yield from _check_breaks(stmt.orelse, ends)


def _check_loop(loop: tile.For) -> Iterator[str]:
    """Yield violations by a loop's step, bounds, stages, unroll factor, and manual stage, order and scheduling
    hints."""
    if not 1 <= loop.step <= MAX_INT32:
        yield f"the loop over {loop.var.name} has step {loop.step}"
    if loop.start.dtype != loop.var.dtype or loop.stop.dtype != loop.var.dtype:
        yield f"{loop.var.name} is {loop.var.dtype}, its bounds are {loop.start.dtype} and {loop.stop.dtype}"
    if loop.num_stages is not None and not 0 <= loop.num_stages <= MAX_INT32:
        yield f"the loop over {loop.var.name} has {loop.num_stages} stages"
    if loop.factor is not None and not 1 <= loop.factor <= MAX_INT32:
        yield f"the loop over {loop.var.name} is unrolled {loop.factor} times"
    if (loop.stage is None) != (loop.order is None):
        yield "stage and order must be given together"
    elif loop.stage is not None and loop.order is not None:
        if len(loop.stage) != len(loop.order):
            yield f"{len(loop.stage)} stages for {len(loop.order)} places"
        if sorted(loop.order) != list(range(len(loop.order))):
            yield f"order {loop.order} is not a permutation"
        if not all(0 <= stage <= MAX_INT32 for stage in loop.stage):
            yield f"stage {loop.stage} has one below 0"
    yield from _check_scheduling_hints(loop)


def _check_scheduling_hints(loop: tile.For) -> Iterator[str]:
    """Yield violations where scheduling hints differ in length from the stages, name absent statements or groups below
    −1.
    """
    if (hints := loop.scheduling_hints) is None:
        return
    given = {len(part) for part in (loop.stage, hints.asynchronous, hints.groups, hints.sync) if part is not None}
    if len(given) > 1:
        yield f"lists of {' and '.join(map(str, sorted(given)))} entries for the statements of one loop"
    for statements in hints.sync or ():
        if any(type(place) is not int or not 0 <= place < min(given) for place in statements):
            yield f"sync {list(statements)} names statements that do not exist"
    if any(group < -1 for group in hints.groups or ()):
        yield f"groups {list(hints.groups or ())} has one below -1"


_UNARY = frozenset(
    {"exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sinh", "cosh", "tanh", "sigmoid", "erf", "abs",
     "reciprocal",
     "sin", "cos", "tan", "atan", "floor", "ceil", "trunc", "round", "nearbyint"}
)  # fmt: skip
_OTHERS = {"pow": 2, "fmod": 2, "fma": 3}
_FAST = frozenset(f"fast_{fn}" for fn in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "rcp"))
_IEEE = re.compile(r"ieee_(add|sub|mul|fmaf|frcp|fsqrt|fdiv|frsqrt)_(rn|rz|ru|rd)")
_IEEE_OPERANDS = {"add": 2, "sub": 2, "mul": 2, "fdiv": 2, "fmaf": 3}
_SHUFFLES = ("shfl_xor", "shfl_up", "shfl_down", "shfl_sync")
_FOLDS = ("warp_sum", "warp_max", "warp_min", "warp_and", "warp_or")
_VOTES = {
    "ballot": UINT32, "block_count": INT32, **dict.fromkeys(("vote_any", "vote_all", "block_and", "block_or"), BOOL)
}  # fmt: skip
_MATCHES = ("match_any", "match_all")


def find_call_error(call: tile.Call) -> str | None:
    """Return a message if a call's function is unknown or its types do not fit the function; None if they do."""
    fn, types = call.fn, tuple(a.dtype for a in call.args)
    fits = _call_predicate(fn)
    if fits is None:
        return f"there is no function '{fn}'"
    if fits(call, types):
        return None
    return f"{show_expr(call)} is {call.dtype} of {', '.join(map(str, types))}"


def _call_predicate(fn: str) -> Callable[[tile.Call, tuple[DType, ...]], bool] | None:
    """Return the predicate of a call and its operand types that a call of this function must satisfy; None if
    unknown."""
    if fn == "reinterpret":
        return lambda call, types: [t.bits for t in types] == [call.dtype.bits]
    if fn in tile.BIT_COUNTS:
        return lambda call, types: call.dtype == INT32 and len(types) == 1 and types[0] in (UINT32, UINT64)
    if fn in tile.INTEGER_CALLS:
        return lambda call, types: (types, call.dtype) == tile.INTEGER_CALLS[fn]
    if fn == tile.PHASE_DONE:
        return _is_phase
    if fn in _SHUFFLES:
        return _is_shuffle
    if fn in _FOLDS:
        integers = fn in ("warp_and", "warp_or")
        return lambda call, types: (
            types == (call.dtype,) and call.dtype.bits == 32 and not (integers and call.dtype.is_float)
        )
    if fn in _VOTES:
        return lambda call, types: types == (BOOL,) and call.dtype == _VOTES[fn]
    if fn in _MATCHES:
        return lambda call, types: (
            len(types) == 1 and types[0].bits in (32, 64) and not types[0].is_float and call.dtype == UINT32
        )
    if fn in _FAST:
        return lambda call, types: (*types, call.dtype) == (FLOAT32, FLOAT32)
    if found := _IEEE.fullmatch(fn):
        count = _IEEE_OPERANDS.get(found[1], 1)
        return lambda call, types: types == (FLOAT32,) * count and call.dtype == FLOAT32
    count = 1 if fn in _UNARY else _OTHERS.get(fn, 0)
    return (lambda call, types: types == (call.dtype,) * count and call.dtype.is_float) if count else None


def _is_phase(call: tile.Call, types: tuple[DType, ...]) -> bool:
    """Return whether a call is a bool of a barrier's element and an int32 parity."""
    at = call.args[0] if call.args else None
    return call.dtype == BOOL and isinstance(at, tile.Load) and at.buffer.scope == "barrier" and types[1:] == (INT32,)


def _is_shuffle(call: tile.Call, types: tuple[DType, ...]) -> bool:
    """Return whether a shuffle has a 32-bit value of the result's type, an int32 lane, and a width of 2 to 32."""
    if len(types) != 3 or types[0] != call.dtype or types[0].bits != 32 or types[1:] != (INT32, INT32):
        return False
    width = call.args[2]
    return isinstance(width, tile.Const) and width.value in (2, 4, 8, 16, 32)


def find_constant_error(const: tile.Const) -> str | None:
    """Return a message if a constant's value has the wrong Python type or is out of its type's range; None if it
    fits."""
    value, dtype = const.value, const.dtype
    if dtype == BOOL or dtype.is_float:
        wanted: type = bool if dtype == BOOL else float
        fits = type(value) is wanted
    else:
        low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        fits = type(value) is int and low <= value < low + (1 << dtype.bits)
    if fits:
        return None
    shown = f"{value!r:.40}" if isinstance(value, float) or math.fabs(value.bit_length()) < 200 else "a long number"
    return f"{shown} is not a value of {dtype}"
