"""Loops and branches, and which statement is drawn next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

from drawing.conditions import CONDITIONS
from drawing.forms import FORMS
from drawing.hints import HINTS
from drawing.kernel import Cannot, Kernel, Loop
from drawing.products import PRODUCTS
from drawing.scalars import SCALARS
from drawing.statements import COMMON, Drawer, load_tile, store_tile


@dataclass
class Lists:
    """Of a pipeline by hand: how many of its statements are loads; none have been drawn where there are no lists."""

    count: int = 0


@contextmanager
def around(k: Kernel, word: str, least: int) -> Iterator[Lists]:
    """A loop; a pipelined one has its stages said in one way or another."""
    most = 10 // prod(max(outer.extent, 1) for outer in k.loops)
    trip_count = max(min(k.pick((1, 2, 3, 3, 4, 5)), most), least)
    if most < 1:
        raise Cannot
    if not least and k.chance(0.03):
        trip_count = 0
    before = set(k.ready)
    loop = Loop(k.new("k"), trip_count)
    bounds, lists = str(trip_count), Lists()
    if k.chance(0.15):
        bounds = k.scalar(trip_count)
    elif trip_count and k.chance(0.1):  # at most so many
        source = k.tensor((4,), k.pick(("int32", "int32", "int64", "int8")))
        bounds = f"T.cast({source}[{k.pick((0, 1, 3))}], 'int32') % {trip_count + 1}"
    elif k.values and trip_count and k.chance(0.3):
        bounds = f"T.cast({k.pick(k.values)[0]}, 'int32') % {trip_count + 1}"
    elif k.chance(0.1):
        bounds = f"0, {trip_count}"
    elif word == "serial" and k.chance(0.2):
        bounds = f"0, {trip_count}, 1"
    elif k.chance(0.1) and trip_count <= 2:
        bounds = f"T.ceildiv({trip_count * 16}, 16)"
    if word == "Pipelined":
        bounds += k.pick(("", ", num_stages=0", *(f", num_stages={n}" for n in (1, 2, 2, 2, 3, 3, 4))))
    elif word == "serial" and trip_count and k.chance(0.2):
        first, step = k.pick((1, 2, 5)), k.pick((1, 2, 3))
        bounds = f"{first}, {first + step * trip_count}, {step}"
        loop = Loop(loop.name, first + step * (trip_count - 1) + 1)
    elif word == "unroll" and k.chance(0.3) and bounds == str(trip_count):
        bounds += ", explicit=True"
    head = f"for {loop.name} in T.{word}({bounds}):"
    if word == "serial" and k.chance(0.3) and "," not in bounds:
        head = f"for {loop.name} in range({bounds}):"
    if word != "Pipelined" and k.chance(0.1):
        head = head.replace(f"T.{word}(", f"T.{word.capitalize()}(")
    k.loops.append(loop)
    at, depth = len(k.lines), k.depth
    with k.inside(head):
        yield lists
    k.loops.pop()
    if not trip_count or "%" in bounds:
        k.ready = before
    if word == "Pipelined" and lists.count and "num_stages" not in head and k.chance(0.5):
        indent = "    " * (depth + 1)
        statements = [
            line for line in k.lines[at + 1 :] if line.startswith(indent) and not line.startswith(indent + " ")
        ]
        late = k.pick((1, 1, 2, 3))
        stage = [0] * lists.count + [late] * (len(statements) - lists.count)
        order = list(range(len(statements)))
        if k.chance(0.3):
            order = [(i - lists.count) % len(statements) for i in order]
        k.lines[at] = k.lines[at].replace("):", f", order={order}, stage={stage}):")


def loop(k: Kernel) -> None:
    if len(k.loops) > 1:
        raise Cannot
    at = len(k.lines)
    with around(k, k.pick(("serial", "serial", "unroll", "Pipelined", "Pipelined")), 0):
        body(k, k.pick((1, 2, 2, 3)))
        if k.chance(0.25):
            before = set(k.ready)
            leave(k, "unroll" not in k.lines[at].lower())
            body(k, k.pick((1, 1, 2)))
            k.ready = before


def leave(k: Kernel, is_leavable: bool) -> None:
    """On to the next iteration, or out of the loop: at a time, or as data say."""
    loop = k.loops[-1]
    conditions = [f"{loop.name} {asked}" for asked in (f"== {max(loop.extent - 1, 0)}", "== 0", "== 1", "== 2", "> 0")]
    conditions += [f"{name} > {loop.name}" for name, dtype in k.values if dtype == "int32"]
    if len(k.parameters) < 9:
        conditions.append(f"{k.tensor((8,), 'int32')}[{loop.name}] > {k.pick((-1, 0, 2))}")
    before, was = set(k.ready), k.is_conditional
    k.is_conditional = True
    with k.inside(f"if {k.pick(conditions)}:"):
        if k.chance(0.3):
            body(k, 1)
        k.emit(k.pick(("break", "continue", "T.loop_break()") if is_leavable else ("continue",)))
    k.ready, k.is_conditional = before, was


def pipeline(k: Kernel) -> None:
    """Tiles that are loaded in each iteration, and what is done with them."""
    if len(k.loops) > 1:
        raise Cannot
    with around(k, "Pipelined", 0) as lists:
        count = k.pick((1, 1, 2))
        loaded = []
        for _ in range(count):
            dtype = k.dtype()
            tile = k.tile(k.shape(dtype, 2), dtype, "shared")
            load_tile(k, tile, dtype)
            loaded.append(tile)
        lists.count = count
        k.steady |= {t.name for t in loaded}
        body(k, k.pick((1, 2, 2)))
        if k.chance(0.5):
            store_tile(k, k.pick(loaded))
        k.steady -= {t.name for t in loaded}


def while_loop(k: Kernel) -> None:
    """A variable that counts, and a loop that ends by it."""
    if k.loops or k.depth > 2:
        raise Cannot
    name, trip_count = k.new("w"), k.pick((1, 2, 3))
    k.emit(f'{name} = T.alloc_var("int32", init=0)')
    is_left = k.chance(0.3)
    with k.inside("while True:" if is_left else f"while {name} < {trip_count}:"):
        k.loops.append(Loop(name, trip_count))
        body(k, k.pick((1, 2)))
        k.loops.pop()
        k.emit(f"{name} += 1")
        if is_left:
            with k.inside(f"if {name} >= {trip_count}:"):
                k.emit(k.pick(("break", "T.loop_break()")))


def variable(k: Kernel) -> None:
    """A scalar that a loop changes, which a nest takes."""
    if k.depth > 2:
        raise Cannot
    name, dtype = k.new("v"), k.pick(("float32", "int32"))
    k.emit(f"{name} = T.alloc_var({dtype!r}, init=1)")
    source = k.tensor((8,), dtype)
    with around(k, "serial", 0):
        k.emit(f"{name} = {name} + {source}[{k.loops[-1].name}]")
    k.values.append((name, dtype))


def branch(k: Kernel) -> None:
    """On a block, an iteration, a number that is known at launch, an element, or nothing at all."""
    if k.depth > 4:
        raise Cannot
    counter = k.pick(k.counters())
    conditions = [f"{counter.name} == 0", f"{counter.name} % 2 == {k.pick((0, 1))}", f"{counter.name} < 2",
                  f"{counter.name} > 0", "1 > 2", "3 == 3"]  # fmt: skip
    condition = k.pick(conditions)
    if k.chance(0.15):
        condition = f"{k.scalar(k.pick((1, 2, 5)))} > 2"
    elif k.chance(0.1):
        name = k.tensor((4,), "int32")
        condition = f"{name}[{k.pick((0, 1, 3))}] > 1"
    before, was = set(k.ready), k.is_conditional
    k.is_conditional = True
    heads = [f"if {condition}:"]
    heads += [f"elif {c}:" for c in conditions if k.chance(0.05)]
    heads += ["else:"] * k.chance(0.3)
    for head in heads:
        with k.inside(head):
            if len(heads) == 1 or k.chance(0.85):
                body(k, k.pick((1, 1, 2)))
        k.ready = set(before)
    k.is_conditional = was


def condition_of_tile(k: Kernel) -> None:
    """Whether some or all elements are not 0."""
    if k.is_conditional or k.depth > 2:
        raise Cannot
    tile = k.filled(lambda t: t.scope == "shared" and t.dtype in ("bool", "int32", "int8", "uint8"))
    before = set(k.ready)
    k.is_conditional = True
    with k.inside(f"if T.{k.pick(('any_of', 'all_of'))}({tile.name}):"):
        body(k, 1)
    k.ready, k.is_conditional = before, False


CONTROL: tuple[tuple[int, Drawer], ...] = (
    (3, loop), (4, pipeline), (1, while_loop), (1, variable), (3, branch), (1, condition_of_tile),
)  # fmt: skip


def body(k: Kernel, count: int) -> None:
    """So many statements."""
    drawers: list[Drawer] = []
    for weight, drawer in (*COMMON, *CONDITIONS, *PRODUCTS, *CONTROL, *SCALARS, *HINTS, *FORMS):
        drawers += [drawer] * weight
    done = tries = 0
    while done < count and tries < 60:
        tries += 1
        done += attempt(k, k.pick(drawers))


def attempt(k: Kernel, drawer: Drawer) -> bool:
    """Draws a statement, or leaves everything as it was."""
    kept: dict[str, Any] = {}
    for name, value in k.__dict__.items():
        kept[name] = value.copy() if isinstance(value, list | set | dict) else value
    try:
        drawer(k)
    except Cannot:
        k.__dict__.update(kept)
        return False
    return True
