"""Variables: branches and loops change them, their values say how often loops run and which elements are stored."""

from __future__ import annotations

from math import prod

from drawing.kernel import INTEGERS, Cannot, Kernel
from drawing.statements import Drawer

SIGNED = ("int32", "int32", "int32", "int64", "int16", "int8")
DEEPEST = 3


class Changes:
    """Statements of one thread, all of one type. `names` are variables, `counters` those of loops, whose iterations
    `leavable` says may be the last."""

    def __init__(self, k: Kernel) -> None:
        self.k, self.dtype = k, k.pick((*SIGNED, "uint32"))
        self.source = k.tensor((8,), self.dtype)
        self.out = k.tensor((prod(k.grid), 8), self.dtype, "O")
        self.row = "bx" if len(k.grid) == 1 else f"bx * {k.grid[1]} + by"
        self.names: list[str] = []
        self.counters = [k.pick(k.blocks).name]
        self.leavable: list[bool] = []

    def number(self) -> str:
        return str(self.k.pick((0, 1, 2, 3, 5) if self.dtype == "uint32" else (-5, -3, -1, 1, 2, 4)))

    def leaf(self) -> str:
        k = self.k
        if k.chance(0.15):
            return f"T.cast({k.pick(self.counters)}, {self.dtype!r})"
        return f"{self.source}[{self.place()}]" if k.chance(0.3) else k.pick(self.names)

    def place(self) -> str:
        """An index from 0 to 7, or whatever the data say, which may be outside."""
        k = self.k
        return k.pick((str(k.rng.randrange(8)), k.pick(self.counters), k.pick(self.names), f"{k.pick(self.names)} - 2"))

    def value(self) -> str:
        k = self.k
        form = k.pick(("{x}", "{x} + {y}", "{x} - {y}", "{x} * {n}", "{x} // {d}", "{x} % {d}", "{x} ^ {y}", "-{x}",
                       "T.max({x}, {y})", "T.if_then_else({c}, {x}, {y})"))  # fmt: skip
        for letter, made in (("x", self.leaf), ("y", self.leaf), ("n", self.number), ("d", self.divisor)):
            form = form.replace("{" + letter + "}", made())
        return form.replace("{c}", f"({self.condition()})")

    def divisor(self) -> str:
        number = self.k.pick((2, 3, 7) if self.dtype == "uint32" else (2, 3, -3, -4, 7))
        return self.k.pick((str(number), f"({self.leaf()} % {abs(number)} + {abs(number)})"))

    def condition(self) -> str:
        k = self.k
        made = f"{self.leaf()} {k.pick(('<', '>', '==', '!=', '<=', '>='))} {k.pick((self.leaf(), self.number()))}"
        if k.chance(0.2):
            made += f" {k.pick(('and', 'or'))} {self.leaf()} > {self.number()}"
        return made

    def target(self) -> str:
        k = self.k
        return k.pick(self.names) if k.chance(0.7) else f"{self.out}[{self.row}, {self.place()}]"

    def change(self) -> None:
        k, target = self.k, self.target()
        match k.rng.randrange(5):
            case 0 | 1:
                k.emit(f"{target} = {self.value()}")
            case 2:
                k.emit(f"{target} {k.pick(('+=', '-=', '&=', '|=', '^='))} {self.value()}")
            case 3:
                k.emit(f"{target} *= {self.number()}")
            case _:
                shift = f"{k.pick(('<<=', '>>='))} {k.pick((1, 2))}"
                k.emit(f"{target} {k.pick((f'//= {self.divisor()}', f'%= {self.divisor()}', shift))}")

    def statements(self, depth: int) -> None:
        k = self.k
        for _ in range(k.pick((1, 2, 2, 3))):
            kind = k.rng.random()
            if kind < 0.2 and self.leavable:
                self.jump()
            elif kind < 0.45 and depth < DEEPEST:
                self.branch(depth + 1)
            elif kind < 0.65 and depth < DEEPEST:
                self.loop(depth + 1)
            else:
                self.change()

    def branch(self, depth: int) -> None:
        k = self.k
        heads = [f"if {self.condition()}:"]
        heads += [f"elif {self.condition()}:"] * k.chance(0.25) + ["else:"] * k.chance(0.4)
        for head in heads:
            with k.inside(head):
                self.statements(depth)

    def jump(self) -> None:
        """Leave the iteration, or the loop, in the middle of its body."""
        k = self.k
        word = k.pick(("continue", "break", "T.loop_break()")) if self.leavable[-1] else "continue"
        with k.inside(f"if {self.condition()}:"):
            if k.chance(0.4):
                self.change()
            if k.chance(0.3):
                with k.inside(f"if {self.condition()}:"):
                    k.emit(word)
                self.change()
            else:
                k.emit(word)
        self.change()

    def loop(self, depth: int) -> None:
        k, name = self.k, self.k.new("k")
        data = f"{k.pick((self.leaf(), self.leaf(), f'{self.source}[0]'))} % {k.pick((2, 3, 4))}"
        word = k.pick(("T.serial", "T.serial", "range"))
        loops = [f"{word}({data})", f"{word}({data})", f"{word}(3)", f"{word}({data}, 3)", f"{word}({data}, -1, -1)",
                 "T.unroll(3)", "T.unroll(2, explicit=True)", "while",
                 f"T.unroll({data}, unroll_factor=2)"]  # fmt: skip
        head = k.pick(loops)
        if head == "while":
            k.emit(f'{name} = T.alloc_var("int32", init=0)')
            head = f"while {name} < {k.pick((1, 2, 3))} and ({self.condition()}):"
        else:
            head = f"for {name} in {head}:"
        counters = list(self.counters)
        with k.inside(head):
            self.counters.append(name)
            self.leavable.append("unroll" not in head)
            if head.startswith("while"):
                k.emit(f"{name} += 1")
            self.statements(depth)
            if k.chance(0.5):
                self.jump()
            self.leavable.pop()
        self.counters = counters


def scalars(k: Kernel) -> None:
    """Variables that statements change, the results stored, and read by nests behind them."""
    if len(k.parameters) > 9 or k.depth > 3:
        raise Cannot
    changes = Changes(k)
    for _ in range(k.pick((1, 2, 3))):
        name = k.new("v")
        k.emit(f"{name} = T.alloc_var({changes.dtype!r}, init={changes.number()})")
        changes.names.append(name)
    changes.statements(0)
    changes.statements(0)
    for at, name in enumerate(changes.names):
        k.emit(f"{changes.out}[{changes.row}, {at}] = {name}")
    if k.depth == 2:
        k.values += [(name, changes.dtype) for name in changes.names]


def scatter(k: Kernel) -> None:
    """Elements that are stored where data say, most often outside, and atomic operations whose results decide."""
    if len(k.parameters) > 9:
        raise Cannot
    tile = k.filled(lambda t: len(t.shape) < 3 and t.name not in k.steady)
    names = "ij"[: len(tile.shape)]
    dtype = k.pick(("int32", "int64", "uint32", "float32"))
    starts, extents = k.own(tile.shape)
    lead = len(starts) - len(tile.shape)
    index = [*starts[:lead], *(n if s == "0" else f"{s} + {n}" for s, n in zip(starts[lead:], names, strict=True))]
    out = k.tensor(extents, dtype, "O")
    if lead and k.chance(0.7):  # no two elements go to one place, since they differ by less than the extent
        ids = k.tensor((tile.shape[0],), k.pick(("int32", "int64", "int8", "int16")))
        index[lead] = f"i + {tile.shape[0]} * T.cast({ids}[i], {k.pick(('int32', 'int64'))!r})"
    place = f"{out}[{', '.join(index)}]"
    own = f"{tile.name}[{', '.join(names)}]"
    value = f"T.cast({own}, {dtype!r})"
    found = f"T.atomic_{k.pick(('add', 'max', 'min'))}({place}, {value}, return_prev=True)"
    with k.inside(f"for {', '.join(names)} in T.Parallel({', '.join(map(str, tile.shape))}):"):
        match k.rng.randrange(5):
            case 0:
                k.emit(f"{place} = {value}")
            case 1:
                operators = ("+=", "-=", "*=", "//=", "%=") if dtype in INTEGERS else ("+=", "-=", "*=")
                operator = k.pick(operators)
                k.emit(f"{place} {operator} {3 if operator in ('//=', '%=') else value}")
            case 2 if tile.dtype != "bool":
                with k.inside(f"if {found} > {k.pick((0, 1, 2))}:"):
                    k.emit(f"{own} = T.cast(2, {tile.dtype!r})")
            case 3 if tile.dtype != "bool":
                name = k.new("x")
                k.emit(f"{name} = {found}")
                with k.inside(f"if {name} > 0 {k.pick(('and', 'or'))} {names[0]} > 2:"):
                    k.emit(f"{own} = T.cast({name} % 3, {tile.dtype!r})" if dtype in INTEGERS else f"{place} = {name}")
            case _:
                with k.inside(f"if {own} > {k.pick((0, 1))}:" if tile.dtype != "bool" else f"if {own}:"):
                    k.emit(f"T.atomic_add({place}, {value})")


SCALARS: tuple[tuple[int, Drawer], ...] = ((3, scalars), (2, scatter))
