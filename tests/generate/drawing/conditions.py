"""Nests whose statements are conditions in conditions, chains of `elif`, loops and names, over what they change."""

from __future__ import annotations

from drawing.expressions import Nest, variables_of
from drawing.kernel import FLOATS, SMALL, Kernel, Tile
from drawing.statements import Drawer

DEEPEST = 3


class Changes:
    """The tiles that a nest changes. Each element reads its own place in them only, other tiles anywhere."""

    def __init__(self, kernel: Kernel, tiles: list[Tile]) -> None:
        self.kernel, self.tiles = kernel, tiles
        variables = variables_of(tiles[0].shape)
        self.index = ", ".join(v.name for v in variables)
        self.first = variables[0]
        self.nest = Nest(kernel, variables, tuple(t.name for t in tiles))

    def own(self, tile: Tile) -> str:
        return f"{tile.name}[{self.index}]"

    def condition(self) -> str:
        """A condition, of what the nest changes most often."""
        k = self.kernel
        own = self.own(k.pick(self.tiles))
        if k.chance(0.3):
            return f"{self.first.name} {k.pick(('<', '>='))} {k.rng.randint(0, self.first.extent)}"
        if k.chance(0.15):
            return f"{k.pick((-2, -1, 0))} < {own} <= {k.pick((0, 1, 3))}"
        if k.chance(0.2):
            return f"{own} > 0 {k.pick(('and', 'or'))} {self.nest.value('bool', 1)}"
        if k.chance(0.2):
            return self.nest.value("bool", 1)
        return f"{own} {k.pick(('>', '<', '!=', '>='))} {k.pick((-1, 0, 1, 2))}"

    def assign(self) -> None:
        """Set the element of one tile from its own old value, from the other tile's, or from anything."""
        k = self.kernel
        tile = k.pick(self.tiles)
        own, value = self.own(tile), self.nest.value(tile.dtype, k.pick((0, 1)))
        source = k.pick(self.tiles)
        form = k.rng.random()
        if form < 0.3:
            k.emit(f"{own} = {k.pick(('-', ''))}{own} + {value}")
        elif form < 0.5:
            k.emit(f"{own} = {self.nest.as_type(self.own(source), source.dtype, tile.dtype)}")
        elif form < 0.7:
            bits = () if tile.dtype in FLOATS else ("&=", "|=", "^=")
            k.emit(f"{own} {k.pick(('+=', '-=', '*=', *bits))} {value}")
        elif form < 0.85:
            name = k.new("x")
            k.emit(f"{name} = {own}", f"{own} = {value}", f"{own} += {name}")
        else:
            k.emit(f"{own} = {value}")

    def statements(self, depth: int) -> None:
        """One to three statements, with conditions or a loop among them."""
        k = self.kernel
        for _ in range(k.pick((1, 1, 2, 3) if depth else (1, 2, 2, 3))):
            kind = k.rng.random()
            if kind < (0.8, 0.5, 0.35, 0.0)[depth]:
                self.branches(depth + 1)
            elif kind < 0.9 or depth > 1:
                self.assign()
            else:
                with k.inside(f"for {k.new('v')} in T.{k.pick(('serial', 'unroll'))}({k.pick((1, 2, 3))}):"):
                    self.statements(DEEPEST)

    def branches(self, depth: int) -> None:
        """Draw `if`, perhaps with `elif` and `else`; some branches are empty."""
        k = self.kernel
        heads = [f"if {self.condition()}:"]
        while k.chance(0.35) and len(heads) < 3:
            heads.append(f"elif {self.condition()}:")
        if k.chance(0.35):
            heads.append("else:")
        for head in heads:
            with k.inside(head):
                if len(heads) == 1 or k.chance(0.75):
                    self.statements(depth)


def conditions(k: Kernel) -> None:
    """Draw a nest that changes one or two tiles under conditions that read them."""
    first = k.filled(lambda t: t.dtype not in SMALL and t.name not in k.steady)
    alike = [t for t in k.tiles if t.shape == first.shape and t.dtype not in SMALL and t != first]
    alike = [t for t in alike if t.name in k.ready and t.name not in k.steady]
    changed = Changes(k, [first, *alike[: k.pick((0, 1, 1))]])
    with k.inside(f"for {changed.index} in T.Parallel({', '.join(map(str, first.shape))}):"):
        changed.statements(0)


CONDITIONS: tuple[tuple[int, Drawer], ...] = ((6, conditions),)
