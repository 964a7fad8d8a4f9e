"""Random loops in the exchange form, like the signal-processing graphs that schedulers are compared on."""

from __future__ import annotations

import random
from typing import Any


def graph(seed: int, count: int) -> dict[str, Any]:
    """Ops of three kinds of unit and some without, in layers, with a few values carried to later iterations."""
    draw = random.Random(seed)
    limits = {"mul": draw.choice((1, 1, 2)), "add": draw.choice((1, 1, 2)), "mem": draw.choice((1, 2))}
    latency = {"mul": draw.randint(2, 4), "add": draw.randint(1, 4), "mem": draw.randint(1, 3), None: 0}
    kinds = [draw.choice(("mul", "mul", "add", "add", "mem", None)) for _ in range(count)]
    edges = []
    for op in range(1, count):
        for src in draw.sample(range(max(0, op - 12), op), min(op, draw.choice((1, 1, 2)))):
            edges.append([src, op, latency[kinds[src]], 0])
    for _ in range(count // 6):
        src = draw.randrange(count // 3, count)
        dst = draw.randrange(max(0, src - 12), src)
        edges.append([src, dst, latency[kinds[src]], draw.randint(1, 3)])
    ops = [{"name": f"op{at}", "resource": kind, "duration": int(kind is not None)} for at, kind in enumerate(kinds)]
    return {"name": f"graph {seed}", "ops": ops, "edges": edges, "limits": limits}


def crowded(seed: int, count: int) -> dict[str, Any]:
    """Long uses of four full slots, short-ranged dependences and many values carried around."""
    draw = random.Random(seed)
    limits = {f"unit {at}": draw.choice((1, 1, 2)) for at in range(4)}
    ops = [
        {"name": f"op{at}", "resource": draw.choice(list(limits)), "duration": draw.randint(1, 40)}
        for at in range(count)
    ]
    edges = []
    for op in range(1, count):
        for _ in range(draw.randint(1, 3)):
            edges.append([draw.randrange(max(0, op - 15), op), op, draw.randint(1, 60), 0])
    for _ in range(count // 8):
        dst = draw.randrange(count - 1)
        edges.append([draw.randrange(dst, min(count, dst + 20)), dst, draw.randint(1, 40), draw.randint(1, 3)])
    return {"name": f"crowded {seed}", "ops": ops, "edges": edges, "limits": limits}
