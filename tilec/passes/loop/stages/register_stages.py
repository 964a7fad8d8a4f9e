"""Fragments with several stages: later steps of an inner loop load their operands to other registers meanwhile.

    for k0: load A_shared                  for k0: load A_shared
        for k1 in range(4):                    r1 = A_shared[1]; C += r0 @ …
            A_reg = A_shared[k1]       →       r0 = A_shared[2]; C += r1 @ …
            C += A_reg @ …                     r1 = A_shared[3]; C += r0 @ …
                                               r0 = A_shared of the next iteration[0]; C += r1 @ …

Registers cannot be indexed, so the steps of the inner loop are unrolled, step k on version k mod `stages`, and become
statements of the pipelined loop around. The load of a step issues `stages − 1` steps before that step, or behind the
product of that earlier step where products are asynchronous, as wgmma. Every schedule has to keep that order
(`analysis.fragment_prefetch`). The loads of the first steps belong to the last steps of the previous iteration. So the
outer loop has them in an earlier stage, with a prologue of their own. Only these loads touch the next iteration's
shared tiles first, so threads wait for such tiles once an iteration, there. Operands unpacked from a fragment have
versions too.

Where the stages do not divide the steps, the remaining steps at the end are peeled: they load registers of their own
without a prefetch, so that each outer iteration begins with the same version."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.analysis import rings
from tilec.analysis.fragment_prefetch import find_rewritten_fragments
from tilec.analysis.rings import is_pipelined
from tilec.analysis.trip_count import get_static_trip_count
from tilec.analysis.usage import find_reads
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm
from tilec.passes.loop.stages.detect_pipelines import find_loads
from tilec.passes.loop.stages.requested_stages import StageRequest, refuse_request
from tilec.rewriting.substitution import rename_buffers, substitute_stmt
from tilec.support.diagnostics import ErrorCollector, Label

MAX_UNROLLED_STATEMENTS = 32
"""The most statements that an inner loop may become: more take long to schedule."""


def apply_register_stages(
    kernel: tile.Kernel, requests: Sequence[StageRequest], mistakes: ErrorCollector
) -> tile.Kernel:
    """Unroll loops that load fragments in requested stages, and pipeline those around them; record refused requests.
    Errors: `pipeline-impossible`. A loop that loads fragments with one stage is marked with num_stages=1."""
    requests = [request for request in requests if request.tile.in_registers]
    inner: dict[tile.Var, dict[str, StageRequest]] = {}
    loops: dict[tile.Var, tile.For] = {}
    single: set[tile.Var] = set()
    for request in requests:
        with mistakes.caught():
            loop = _find_checked_loop(kernel, request)
            if request.stages == 1:
                single.add(loop.var)
            else:
                inner.setdefault(loop.var, {})[request.tile.name] = request
                loops[loop.var] = loop
    for key, loop in loops.items():
        inner[key] |= _find_derived_operands(rings.analyse_loop_body(kernel, loop), inner[key])
    if not inner and not single:
        return kernel
    versions = {}
    for key, request in ((key, request) for key, requested in inner.items() for request in requested.values()):
        count = request.stages + bool(_count_peeled_steps(loops[key], request))
        versions[request.tile.name] = [_version_buffer(request.tile, number) for number in range(count)]
    buffers = tuple(made for b in kernel.buffers for made in versions.get(b.name, [b]))
    layouts = tuple(replace(p, buffer=made) for p in kernel.layouts for made in versions.get(p.buffer.name, [p.buffer]))
    body = tuple(s for stmt in kernel.body for s in _unroll_loops(stmt, inner, single))
    return replace(kernel, body=body, buffers=buffers, layouts=layouts)


def _find_derived_operands(body: rings.LoopBody, requests: Mapping[str, StageRequest]) -> dict[str, StageRequest]:
    """Return requests for product operands that nests recompute in each step from a fragment with stages. They get as
    many versions, so that one is computed while a product reads the other."""
    multiplied = {r.buffer for s in body.statements if isinstance(s, Gemm) for r in s.regions[:2]}
    derived: dict[str, StageRequest] = {}
    for at, stmt in enumerate(body.statements):
        of = next((requests[buffer.name] for buffer in find_reads(stmt) if buffer.name in requests), None)
        for buffer in () if of is None else find_rewritten_fragments(stmt):
            is_new = not any(buffer.name in touched.all_names for touched in body.touched[:at])
            if of is not None and buffer in multiplied and is_new and buffer.name not in body.outside:
                derived[buffer.name] = replace(of, tile=buffer)
    return derived


def _version_buffer(buffer: tile.Buffer, number: int) -> tile.Buffer:
    return replace(buffer, name=f"{buffer.name}.stage{number}")


def _unroll_loops(
    stmt: tile.Stmt, inner: Mapping[tile.Var, Mapping[str, StageRequest]], single: Collection[tile.Var]
) -> tuple[tile.Stmt, ...]:
    """Return the statement with loops in `inner` unrolled, those around pipelined, and those in `single` marked."""

    def unroll_body(body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return map_statements(body, lambda each: _unroll_loops(each, inner, single))

    match stmt:
        case tile.For() if stmt.var in inner:
            return tuple(_unroll_steps(stmt, inner[stmt.var]))
        case tile.For():
            made = map_nested_bodies(stmt, unroll_body)
            is_around = any(isinstance(s, tile.For) and s.var in inner for s in stmt.body)
            made = replace(made, kind="pipelined") if is_around else made
            return (replace(made, num_stages=1) if stmt.var in single else made,)
        case _:
            return (map_nested_bodies(stmt, unroll_body),)


def _count_peeled_steps(loop: tile.For, request: StageRequest) -> int:
    """Return how many of the loop's last steps are peeled: the trip count modulo the stages."""
    return _get_trip_count(loop) % request.stages


def _get_trip_count(loop: tile.For) -> int:
    """Return the trip count of a loop that is unrolled."""
    trip_count = get_static_trip_count(loop)
    assert trip_count is not None, "checked"
    return trip_count


def _unroll_steps(loop: tile.For, requests: Mapping[str, StageRequest]) -> Iterator[tile.Stmt]:
    """Yield the statements of all steps of a loop on their versions of the fragments; mark prefetches, but for
    peeled steps."""
    trip_count = _get_trip_count(loop)
    for step in range(trip_count):
        values: dict[tile.Var, tile.Expr] = {loop.var: add_exprs(loop.start, tile.int32_const(step * loop.step))}
        declared = (var for stmt in tile.walk_statements(loop.body) for var in tile.declared_variables(stmt))
        for var in (var for var in declared if var != tile.THREAD):  # each step has its own
            values[var] = tile.Var(f"{var.name}.step{step}", var.dtype)
        peeled = {name for name, request in requests.items() if step >= trip_count - _count_peeled_steps(loop, request)}
        names = {
            name: _version_buffer(request.tile, request.stages if name in peeled else step % request.stages).name
            for name, request in requests.items()
        }
        for stmt in loop.body:
            made, fragment = rename_buffers(substitute_stmt(stmt, values), names), find_loaded_fragment(stmt)
            if isinstance(made, Copy) and fragment in requests and fragment not in peeled:
                made = replace(made, prefetch_distance=requests[fragment].stages - 1, of=fragment, step=step)
            yield made


def find_loaded_fragment(stmt: tile.Stmt) -> str:
    """Return the name of the fragment that a statement loads as a whole from shared memory, else ""."""
    if not isinstance(stmt, Copy) or not stmt.destination.is_whole:
        return ""
    is_load = (stmt.source.buffer.scope, stmt.destination.buffer.scope) == ("shared", "fragment")
    return stmt.destination.buffer.name if is_load else ""


def _find_checked_loop(kernel: tile.Kernel, request: StageRequest) -> tile.For:
    """Return the loop whose steps load the requested fragment; refuse a request for which no loop can be unrolled."""
    name = request.tile.name
    loops = [loop for loop in tile.walk_statements(kernel.body) if isinstance(loop, tile.For)]
    loop = next((loop for loop in loops if any(find_loaded_fragment(s) == name for s in loop.body)), None)
    if loop is None:
        refuse_request(
            request,
            f"no loop loads {name} from shared memory in each iteration",
            Label(request.tile.span, "it is in registers"),
            help=f"T.copy to all of {name} directly in a loop, or give the stages to a shared tile",
        )
    place = Label(loop.span, "the loop that loads it")
    if request.stages == 1:
        return loop
    if loop.kind not in ("serial", "unroll"):
        refuse_request(request, f"the loop that loads {name} from shared memory is pipelined itself", place,
               help="put the copy and the product in a T.serial loop in it, over parts of the tiles")  # fmt: skip
    trip_count = get_static_trip_count(loop)
    if trip_count is None:
        refuse_request(request, f"the trip count of the loop that loads {name} is known only at run time", place,
               help="the loop must be unrolled for that: make its trip count a constant")  # fmt: skip
    if trip_count < request.stages:
        count = f"{trip_count} iteration{'s' * (trip_count != 1)}"
        refuse_request(request, f"{name} has {request.stages} stages, but the loop that loads it has {count}", place,
               help="give it at most as many stages as the loop has iterations")  # fmt: skip
    if trip_count * len(loop.body) > MAX_UNROLLED_STATEMENTS:
        statements = f"{trip_count} iterations of {len(loop.body)} statements"
        refuse_request(request, f"{statements} are too many to unroll", place,
               help=f"the limit is {MAX_UNROLLED_STATEMENTS} statements together: use larger steps")  # fmt: skip
    if left := next((s for s in tile.walk_statements(loop.body) if isinstance(s, tile.Break)), None):
        refuse_request(request, f"the loop that loads {name} may end early", place,
               Label(left.span, "left here, with loads of later steps pending"),
               help="guard the rest of the body with `if`")  # fmt: skip
    if (reason := _why_not_versioned(rings.analyse_loop_body(kernel, loop), name)) is not None:
        refuse_request(request, f"{name} cannot have versions: {reason}", place,
               help="let one copy of the loop fill it before others read it, and nothing else use it")  # fmt: skip
    around = next((outer for outer in loops if any(s is loop for s in outer.body)), None)
    if around is None or not (is_pipelined(around) or (around.kind == "serial" and any(find_loads(around)))):
        where = () if around is None else (Label(around.span, "the loop around it"),)
        refuse_request(request, f"the loop that loads {name} is not directly in a pipelined loop", place, *where,
               help="put it directly in a T.Pipelined loop, which loads its first steps early")  # fmt: skip
    if around.stage is not None:
        refuse_request(request, f"the loop around the one that loads {name} has a manual schedule",
               Label(around.span, "here"), help="remove `stage` and `order`, or this")  # fmt: skip
    return loop


def _why_not_versioned(body: rings.LoopBody, name: str) -> str | None:
    """Return why a fragment cannot have versions in the loop that loads it; None if it can."""
    if name in body.outside:
        return f"{name} is also used outside the loop"
    first, *others = (at for at, touched in enumerate(body.touched) if name in touched.all_names)
    if find_loaded_fragment(body.statements[first]) != name:
        return f"{body.statements[first].span.place} uses {name} before it is loaded"
    if (again := next((at for at in others if find_loaded_fragment(body.statements[at]) == name), None)) is not None:
        return f"{body.statements[again].span.place} loads {name} again"
    if not any(name in body.touched[at].reads for at in others):
        return f"nothing in the loop reads {name}"
    return None
