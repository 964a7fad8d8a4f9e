"""Rules that hold of a warp program as soon as it is made, before any wait is placed: everything it refers to exists.
Its control flow is checked by `ir.warp_verify.verify`.

1. The roles of each section partition the threads of the block, as in rule 1 there.
2. A ring has as many versions as each of its tiles; a tile is in one ring at most. A ring that roles hand on by
   barriers is filled, awaited and released by somebody.
3. A cursor walks through one ring, in one role, unless the kernel itself gives the version.
4. An operation touches a tensor of the kernel, a tile in shared or tensor memory, or a fragment of the program; its
   tensor maps and barriers are the program's, and the thread that acts for others is one of the role. No tensor map
   is of a table of addresses.
5. Loops go forwards; a pipeline has one steady state, over its own variable, and each of its guards is inside it.
6. A variable is used only where it is declared: as a parameter or block index, by a loop around, or by a `Let` before.
   A nest of elements declares no name twice, and none that is declared around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from tilec.ir import tile, warp
from tilec.ir.warp import Cursor, Operation, Program, Role
from tilec.ir.warp_verify.effects import effects_without_scalars, op_name
from tilec.ir.warp_verify.structure import check_partition

MACHINE_PREFIX = "%"
"""The prefix of names for values that every thread reads from the machine."""


def declaration_violations(program: Program) -> Iterator[str]:
    """Yield every broken rule about what a warp program refers to, as a sentence: roles, rings, operands, variables."""
    yield from check_partition(program)
    for section in program.sections:
        if (threads := sum(role.threads for role in section)) != program.threads:
            yield f"role {section[0].name} is of a section of {threads} threads, and the block has {program.threads}"
    yield from _check_rings(program)
    yield from _check_cursors(program)
    known = _list_buffer_names(program)
    for role in program.all_roles:
        for op in warp.walk_operations(role.body):
            for message in (*_check_operands(op, role, program, known), *_check_structure(op)):
                yield f"role {role.name}, line {op.span.line}: {op_name(op)} {message}"
        visible = {p.name for p in program.params if isinstance(p, tile.Var)} | {v.name for v in program.block_vars}
        yield from (f"role {role.name}, {message}" for message in _ScopeChecker().check_body(role.body, visible))


# ---- rings and cursors -----------------------------------------------------------------------------------------------


def _check_rings(program: Program) -> Iterator[str]:
    """Yield a message for each ring with a repeated name, another depth than its tiles, or no operation that it needs
    (rule 2). A tile in two rings is one too."""
    names = [ring.name for ring in program.rings]
    yield from (f"two rings are called {name}" for name in dict.fromkeys(names) if names.count(name) > 1)
    depths = {t.buffer.name: t.depth for t in program.shared} | {t.buffer.name: t.depth for t in program.tensor}
    ringed: dict[str, str] = {}
    for ring in program.rings:
        if ring.depth < 1:
            yield f"ring {ring.name} has {ring.depth} versions"
        for name in ring.buffers:
            if name not in depths:
                yield f"ring {ring.name} has versions of the tile {name}, which the program does not declare"
            elif depths[name] != ring.depth:
                yield f"{name} has {depths[name]} versions, its ring {ring.name} {ring.depth}"
            if ringed.setdefault(name, ring.name) != ring.name:
                yield f"{name} is in two rings, {ringed[name]} and {ring.name}"
    every = list(program.operations())
    for ring in program.rings:
        done = {type(op) for op in every if isinstance(op, _RING_OPERATIONS) and op.cursor.ring == ring.name}
        if done and not ring.has_barriers:
            yield f"ring {ring.name} has no barriers, and is committed"
        for needed in (warp.RingAcquire, warp.RingWait, warp.RingRelease):
            if done and needed not in done:
                yield f"ring {ring.name} is committed without {needed.__name__}"


_RING_OPERATIONS = (warp.RingAcquire, warp.RingFill, warp.RingWait, warp.RingRelease, warp.RingDrain)


def _check_cursors(program: Program) -> Iterator[str]:
    """Yield a message for each cursor without a ring, with the name of another, or moved by two roles (rule 3)."""
    rings = {ring.name for ring in program.rings}
    found: dict[str, tuple[Cursor, Role]] = {}
    for role in program.all_roles:
        for op in warp.walk_operations(role.body):
            own = (op.cursor,) if isinstance(op, (*_RING_OPERATIONS, warp.Advance)) else ()
            for cursor in (*op.cursors, *own):
                if cursor.ring not in rings:
                    yield f"cursor {cursor.name} belongs to {cursor.ring}, which is not a ring"
                first, by = found.setdefault(cursor.name, (cursor, role))
                if first.ring != cursor.ring or (first.index is None) != (cursor.index is None):
                    yield f"two cursors are called {cursor.name}"
                elif cursor.index is None and by is not role:
                    yield f"roles {by.name} and {role.name} move one cursor, {cursor.name}"


# ---- operands --------------------------------------------------------------------------------------------------------


def _list_buffer_names(program: Program) -> frozenset[str]:
    """Return the names of all buffers and barriers that the program declares."""
    found = [p.name for p in program.params if isinstance(p, tile.Buffer)]
    found += [shared_tile.buffer.name for shared_tile in program.shared]
    found += [shared_tile.buffer.name for shared_tile in program.tensor]
    found += [buffer.name for buffer, _ in program.fragments]
    return frozenset((*found, *(barriers.name for barriers in program.barriers)))


def _check_operands(op: Operation, role: Role, program: Program, known: frozenset[str]) -> Iterator[str]:
    """Yield a message for each buffer, tensor map or barrier of an operation that is undeclared, or a leader outside
    its role."""
    reads, writes, _, _ = effects_without_scalars(op)
    for name in sorted((reads | writes | set(warp.scalar_reads(op))) - known):
        yield f"touches {name}, which the program does not declare"
    tensor_map = getattr(op, "map", None)
    if tensor_map is not None and tensor_map not in program.maps:
        yield f"uses the tensor map {tensor_map.name}, which the program does not declare"
    if tensor_map is not None and tensor_map.tensor.table_rank:
        yield f"uses a tensor map of {tensor_map.tensor.name}, which is a table of addresses"
    barrier = getattr(op, "barrier", None)
    if barrier is not None and barrier.name not in {barriers.name for barriers in program.barriers}:
        yield f"signals the barrier {barrier.name}, which the program does not declare"
    leader = getattr(op, "leader", None)
    if leader is not None and not 0 <= leader < role.threads:
        yield f"is by thread {leader} of {role.threads}"


def _check_structure(op: Operation) -> Iterator[str]:
    """Yield a message for a loop with a step below 1, or a pipeline with a wrong steady state or guard (rule 5)."""
    match op:
        case warp.Loop(step=step, following=None) if step < 1:
            yield f"has step {step}"
        case warp.Pipeline(var=var, stages=stages, body=body):
            steady = [inner for inner in body if isinstance(inner, warp.Loop) and inner.part == "steady"]
            if len(steady) != 1 or steady[0].var != var:
                yield f"over {var.name} has {len(steady)} steady states of its own"
            for inner in body:
                if isinstance(inner, warp.Branch) and inner.part == "guard" and not 0 <= inner.least <= stages + 1:
                    yield f"of {stages} stages has a guard for {inner.least} iterations"
        case _:
            return


# ---- variables -------------------------------------------------------------------------------------------------------

_EXPRESSIONS = get_args(tile.Expr)


class _ScopeChecker:
    """Finds variables that are used where nothing declares them."""

    def check_body(self, body: tuple[Operation, ...], around: set[str]) -> Iterator[str]:
        """Yield a message for each use of an undeclared variable and each redeclared name in a list of operations (rule
        6). The names `around` are declared."""
        visible = set(around)
        for op in body:
            for name in sorted(_find_used_variables(op) - visible):
                yield f"line {op.span.line}: {op_name(op)} uses {name}, which is not declared there"
            for name in _find_redeclared_names(op, visible):
                yield f"line {op.span.line}: {op_name(op)} declares {name}, which has another value there"
            match op:
                case warp.Let(var=var):
                    visible.add(var.name)
                case warp.Loop(var=var):
                    for inner in op.bodies:
                        yield from self.check_body(inner, visible | {var.name})
                case warp.Pipeline(var=var, body=inner):
                    yield from self.check_body(inner, visible | {var.name})
                case _:
                    for inner in warp.nested_bodies(op):
                        yield from self.check_body(inner, visible)


_UNREAD_FIELDS = ("var", "layout", "moment", "span")
"""Fields whose variables are not read."""


def _find_used_variables(op: Operation) -> set[str]:
    """Return the names of the variables that an operation reads, without its own, the machine's, and nested
    operations'."""
    own: set[str] = set()
    if isinstance(op, warp.Loop):
        own.add(op.var.name)
    if isinstance(op, warp.Let):
        return _find_free_variables(op.value)
    if isinstance(op, warp.CpAsync) and isinstance(op.source, warp.Gather):
        own |= {var.name for var in op.source.variables}
    nested = warp.nested_bodies(op)
    found: set[str] = set()
    for part in fields(op):
        value = getattr(op, part.name)
        if part.name not in _UNREAD_FIELDS and not any(value is inner for inner in nested):
            found |= _find_free_variables(value)
    return found - own


def _find_redeclared_names(op: Operation, visible: set[str]) -> Iterator[str]:
    """Yield the names that an elementwise nest declares twice, or that are already visible; none for other
    operations."""
    if not isinstance(op, warp.Elementwise):
        return
    found = set(visible)
    for var in (
        *op.nest.vars,
        *(var for stmt in tile.walk_statements(op.nest.body) for var in tile.declared_variables(stmt)),
    ):
        if var.name in found:
            yield var.name
        found.add(var.name)


def _find_free_variables(value: Any) -> set[str]:
    """Return the names of the variables that a value uses without declaring them, except the machine's."""
    if isinstance(value, _EXPRESSIONS):
        found = {e.name for e in tile.walk_expr(value) if isinstance(e, tile.Var)}
        return {name for name in found if not name.startswith(MACHINE_PREFIX)}
    if isinstance(value, tile.Parallel):
        return _find_free_variables_of_nest(value.body) - {var.name for var in value.vars}
    if isinstance(value, tile.Buffer | warp.TensorMap | warp.NextIteration | warp.Phase):
        return set()
    if isinstance(value, tuple):
        return set().union(*map(_find_free_variables, value))
    parts = fields(value) if is_dataclass(value) else ()
    return set().union(*(_find_free_variables(getattr(value, part.name)) for part in parts))


def _find_free_variables_of_nest(body: tuple[tile.Stmt, ...]) -> set[str]:
    """Return the names of the variables that the statements of a nest use before they declare them, or never do."""
    found: set[str] = set()
    own: set[str] = set()
    for stmt in body:
        match stmt:
            case tile.Store(indices=indices, value=value):
                found |= _find_free_variables((*indices, value)) - own
                own |= {stmt.previous.name} if stmt.previous else set()
            case tile.Bind(var=var, value=value):
                found |= _find_free_variables(value) - own
                own.add(var.name)
            case tile.Print(values=values):
                found |= _find_free_variables(values) - own
            case tile.If(condition=condition, then=then, orelse=orelse):
                found |= (
                    _find_free_variables(condition)
                    | _find_free_variables_of_nest(then)
                    | _find_free_variables_of_nest(orelse)
                ) - own
            case _:
                pass
    return found
