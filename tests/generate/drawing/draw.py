"""The kernel of a number."""

from __future__ import annotations

import json
import random

from drawing.control import attempt, body
from drawing.hints import head, layout, outside, stages
from drawing.kernel import Kernel
from drawing.roles import whole
from drawing.settings import TARGETS, drawn_options
from drawing.statements import load, store_tile

HEAD = "import tilelang\nimport tilelang.language as T"


def drawn(number: int | str) -> str:
    """The file: its first line says how it is compiled and run, the rest is what a person might have written."""
    rng = random.Random(f"kernel {number}")
    target = rng.choice(TARGETS)
    options = drawn_options(rng, target)
    kernels = [_kernel(rng, target, "kernel")]
    if rng.random() < 0.04:
        kernels.append(_kernel(rng, target, "other"))
    sizes = {name: value for k in kernels for name, value in k.sizes.items()}
    settings = {"options": options, "sizes": sizes, "seed": rng.randrange(1000), "entry": len(kernels) > 1}
    above = dict.fromkeys(line for k in kernels for line in k.above)
    for k in kernels:
        k.above = []
    return "\n".join((f"# {json.dumps(settings)}", HEAD, "", *above, *(k.text() for k in kernels)))


def _kernel(rng: random.Random, target: str, name: str) -> Kernel:
    k = Kernel(rng, target, name)
    if name != "kernel":
        k.names = 100
    if k.chance(0.1) and whole(k):
        return k
    attempt(k, load)
    body(k, k.pick((1, 2, 3, 3, 4, 5)))
    if k.chance(0.2):
        attempt(k, k.pick((layout, layout, stages, outside, head)))
    tiles = [t for t in k.tiles if t.name in k.ready and not t.name.startswith("_")]
    for tile in rng.sample(tiles, min(len(tiles), 3)):
        if len(k.parameters) < 14:
            store_tile(k, tile)
    return k
