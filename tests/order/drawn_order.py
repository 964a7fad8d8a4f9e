"""Draws kernels whose meaning depends on the order in which things are evaluated.

They have tuples on both sides of `=`, macros that change what they are given, values that are kept while their source
changes, augmented assignments with negative operands, variables that branches and loops change, loops that are written
out or whose bounds are data, jumps out of the middle of nested ones, conditions that change something, and elements
whose index is data and may be outside. Each element of a nest touches its own elements only, and numbers stay small.

Not drawn: other types than int32, tiles as wholes (copies, products, reductions: tests/generate draws them), more
threads than a warp, and more blocks than one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

HEAD = """\
import tilelang.language as T


@T.macro
def bump(v: T.Ref):
    v = v + 1
    return v


@T.macro
def put(x, r: T.Ref, y):
    r = 50 + y
    r = r + x + y
    return x


@T.macro
def exchange(a: T.Ref, b: T.Ref):
    a, b = b, a


@T.macro
def choose(x, y):
    if x > y:
        return x - y
    return y + 1


def total(x, y=2):
    z = x * 2
    return z + y


"""
OUTSIDE, NEST, MACRO = "outside", "nest", "macro"


def drawn(seed: int) -> str:
    """The text of a kernel."""
    return _Kernel(random.Random(seed)).text()


class _Kernel:
    """`values` can be read, `places` be set and given to T.Ref; `where` is what the statements stand in; `loops` are
    the loops around them that may be left, and whether by `break`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.depth = rng, list[str](), 0
        self.values: list[str] = []
        self.places: list[str] = []
        self.loops: list[bool] = []
        self.names = 0
        self.where = OUTSIDE
        self.macros: list[str] = []

    def text(self) -> str:
        for number in range(self.rng.randrange(3)):
            self.macro(f"drawn_{number}")
        self.emit("@T.prim_func")
        shape = 'T.Tensor((8,), "int32")'
        self.emit(f"def kernel({', '.join(f'{n}: {shape}' for n in 'ABCDRX')}, p: T.int32, q: T.int32):")
        with self.inside("    with T.Kernel(1, threads=32) as bx:", 2):
            self.emit('v = T.alloc_var("int32", 1)')
            self.emit('w = T.alloc_var("int32", 5)')
            self.emit('S = T.alloc_shared((8,), "int32")')
            self.emit('F = T.alloc_fragment((8,), "int32")')
            with self.inside("for i in T.Parallel(8):"):
                self.emit("S[i] = R[i] + 1")
                self.emit("F[i] = R[i] + 2")
            self.values = ["v", "w", "p", "q", *(f"{n}[{k}]" for n in "ABCRS" for k in (0, 3)), "R[v]", "A[w - 2]"]
            self.places = ["v", "w", *(f"{n}[{k}]" for n in "ABCS" for k in (0, 3))]
            for _ in range(self.rng.randrange(2, 6)):
                self.rng.choice((self.statement, self.statement, self.nest))()
            self.emit("C[7] = v % 61")
            self.emit("B[7] = w % 61")
            with self.inside("for i in T.Parallel(8):"):
                self.emit("A[i] += S[i] * 100 + F[i] * 10000")
        return HEAD + "\n".join(self.lines) + "\n"

    # ---- lines -------------------------------------------------------------------------------------------------------

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    @contextmanager
    def inside(self, head: str, by: int = 1) -> Iterator[None]:
        """A body, after which nobody sees what it has bound."""
        self.emit(head)
        self.depth += by
        values, places, before = list(self.values), list(self.places), len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= by
        self.values, self.places = values, places

    def name(self) -> str:
        self.names += 1
        return f"x{self.names}"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # ---- expressions -------------------------------------------------------------------------------------------------

    def value(self, depth: int = 2) -> str:
        """An expression, which may change something."""
        pick = self.rng.randrange(12) if depth else self.rng.randrange(3)
        match pick:
            case 0 | 1:
                return self.rng.choice(self.values)
            case 2:
                return str(self.rng.randrange(9))
            case 3 | 4:
                return f"({self.value(depth - 1)} {self.rng.choice(('+', '-', '+'))} {self.value(depth - 1)})"
            case 5:
                return f"({self.value(depth - 1)} * {self.rng.randrange(2, 5)} + {self.value(depth - 1)})"
            case 6 | 7:
                return self.call(depth)
            case 8:
                return f"(({self.value(depth - 1)}) {self.rng.choice(('% 61', '% -7', '// 3', '// -4', '>> 1'))})"
            case 9:
                c, a, b = self.condition(depth - 1), self.value(depth - 1), self.value(depth - 1)
                return self.rng.choice((f"({a} if {c} else {b})", f"T.if_then_else({c}, {a}, {b})"))
            case 10 if self.where != MACRO:
                return f"R[({self.value(depth - 1)}){self.rng.choice((' % 8', ' % 8', ''))}]"
            case _:
                return f"T.{self.rng.choice(('min', 'max'))}({self.value(depth - 1)}, {self.value(depth - 1)})"

    def call(self, depth: int) -> str:
        """A call that gives a value."""
        place = self.rng.choice(self.places)
        calls = [
            f"bump({place})",
            f"put({self.value(depth - 1)}, {place}, {self.value(depth - 1)})",
            f"choose({self.value(depth - 1)}, {self.value(depth - 1)})",
            f"total({self.value(depth - 1)})",
            f"total(y={self.value(depth - 1)}, x={self.value(depth - 1)})",
        ]
        calls += [f"{m}({place}, {self.value(depth - 1)})" for m in self.macros]
        if self.where == NEST and "[" in place and not place.startswith("F"):
            calls += [self.atomic(place, depth)] * 2
        return self.rng.choice(calls)

    def atomic(self, place: str, depth: int) -> str:
        word = self.rng.choice(("add", "max", "min"))
        return f"T.atomic_{word}({place}, {self.value(depth - 1)}, return_prev=True)"

    def condition(self, depth: int = 1) -> str:
        left = self.value(depth)
        if self.where == NEST and depth and self.chance(0.2):
            left = self.atomic(self.rng.choice([p for p in self.places if not p.startswith("F")]), depth)
        test = f"{left} {self.rng.choice(('<', '>', '==', '!='))} {self.value(depth)}"
        if depth and self.chance(0.25):
            return f"({test} {self.rng.choice(('and', 'or'))} {self.condition(depth - 1)})"
        if depth and self.chance(0.15):
            return f"({self.value(0)} < {self.value(1)} <= {self.value(0)})"
        return f"({test})"

    # ---- statements --------------------------------------------------------------------------------------------------

    def body(self, most: int = 3) -> None:
        for _ in range(self.rng.randrange(1, most + 1)):
            self.statement()

    def statement(self) -> None:
        if self.loops and self.chance(0.2):
            self.jump()
            return
        kinds = [self.store, self.store, self.several, self.several, self.chained, self.augmented, self.kept,
                 self.call_alone, self.call_alone]  # fmt: skip
        if self.depth < 6:
            kinds += [self.branch, self.branch, self.written_out]
            if self.where == OUTSIDE:
                kinds += [self.serial, self.serial, self.while_loop, self.variable]
        self.rng.choice(kinds)()

    def target(self) -> str:
        if self.where == OUTSIDE and self.chance(0.2):
            return f"{self.rng.choice('ABCS')}[({self.value(1)}) % 8]"
        if self.where == OUTSIDE and self.chance(0.1):
            return f"{self.rng.choice('ABC')}[{self.rng.choice(self.values)} - 2]"  # outside at times
        return self.rng.choice(self.places)

    def store(self) -> None:
        self.emit(f"{self.target()} = ({self.value()}) % 61")

    def several(self) -> None:
        """Swaps, rotations, and other tuples on both sides."""
        count = self.rng.choice((2, 2, 3))
        if self.chance(0.5) and len(self.places) >= count:
            targets = self.rng.sample(self.places, count)
            sources = targets[1:] + targets[:1]
        else:
            targets = [self.target() for _ in range(count)]
            sources = [f"({self.value(1)}) % 61" for _ in range(count)]
        self.emit(f"{', '.join(targets)} = {', '.join(sources)}")

    def chained(self) -> None:
        self.emit(f"{self.target()} = {self.target()} = ({self.value()}) % 61")

    def augmented(self) -> None:
        target, value = self.target(), self.value(1)
        match self.rng.randrange(6):
            case 0 | 1:
                self.emit(f"{target} {self.rng.choice(('+', '-'))}= ({value}) % {self.rng.choice(('61', '-13'))}")
            case 2:
                self.emit(f"{target} {self.rng.choice(('//', '%'))}= {self.divisor(value)}")
            case 3:
                self.emit(f"{target} {self.rng.choice(('&', '|', '^'))}= ({value}) % 61 - 30")
            case 4:
                self.emit(f"{target} >>= {self.rng.randrange(4)}")
            case _:
                target = self.rng.choice(self.places)
                factors = (f"= ({value}) % 7 - 3", "= -2")
                word = self.rng.choice((*(f"*{f}" for f in factors), "<<= 2"))
                self.emit(f"{target} {word}", f"{target} %= {self.rng.choice(('61', '-61'))}")

    def divisor(self, value: str) -> str:
        """An expression that is not 0."""
        return self.rng.choice(("3", "-3", "-7", f"(({value}) % 5 + 1)", f"(({value}) % 5 - 6)", f"(({value}) | 1)"))

    def variable(self) -> None:
        name = self.name()
        self.emit(f'{name} = T.alloc_var("int32", {self.rng.choice(("3", "-2"))})')
        self.values.append(name)
        self.places.append(name)
        self.augmented()

    def kept(self) -> None:
        """A value or several get a name."""
        name = self.name()
        match self.rng.randrange(4):
            case 0:
                self.emit(f"{name} = {self.value()}")
                self.values.append(name)
                return
            case 1:
                self.emit(f"{name} = ({self.value(1)}, {self.value(1)})")
            case 2:
                self.emit(f"{name} = [{self.value(1)} + k for k in range(2)]")
            case _:
                self.emit(f'{name} = {{"a": {self.value(1)}, "b": {self.value(1)}}}')
                self.values += [f'{name}["a"]', f'{name}["b"]']
                return
        self.values += [f"{name}[0]", f"{name}[1]"]

    def call_alone(self) -> None:
        if self.chance(0.5) and len(self.places) > 1:
            self.emit(f"exchange({', '.join(self.rng.sample(self.places, 2))})")
            return
        place = self.rng.choice(self.places)
        calls = [f"bump({place})", f"put({self.value(1)}, {place}, {self.value(1)})"]
        calls += [f"{m}({place}, {self.value(1)})" for m in self.macros]
        self.emit(self.rng.choice(calls))

    def branch(self) -> None:
        with self.inside(f"if {self.condition()}:"):
            self.body()
        if self.chance(0.3):
            with self.inside(f"elif {self.condition()}:"):
                self.body(2)
        if self.chance(0.4):
            with self.inside("else:"):
                self.body(2)

    def jump(self) -> None:
        words = ("continue", "break", "continue", "break", "T.loop_break()" if self.where == OUTSIDE else "break")
        word = self.rng.choice(words) if self.loops[-1] else "continue"
        match self.rng.randrange(4):
            case 0:
                with self.inside(f"if {self.condition()}:"):
                    self.emit(word)
            case 1:
                with self.inside(f"if {self.condition()}:"):
                    self.store()
                    with self.inside(f"if {self.condition()}:"):
                        self.emit(word)
                    self.store()
            case 2:
                with self.inside(f"if {self.condition()}:"):
                    self.store()
                with self.inside(f"elif {self.condition()}:"):
                    self.emit(word)
            case _:
                with self.inside(f"if {self.condition()}:"):
                    self.store()
                    self.emit(word)
                with self.inside("else:"):
                    self.store()

    def written_out(self) -> None:
        """A loop over values that are known, or that are read when it begins."""
        name = self.name()
        heads = [
            f"for {name} in (1, 2, 3):",
            f"for {name} in ({self.value(1)}, {self.value(1)}):",
            f"for {name}, _ in enumerate((5, 6, 7)):",
            f"for {name}, _ in zip((4, 2), (1, 3)):",
            f"for {name} in [{self.value(1)} for _ in range(2)]:",
        ]
        if self.where == NEST:
            heads += [f"for {name} in T.serial(3):", f"for {name} in T.unroll(3):"]
        head = self.rng.choice(heads)
        with self.inside(head):
            self.loop_body(name, "unroll" not in head)

    def serial(self) -> None:
        name, bound = self.name(), f"({self.rng.choice(self.values)}) % 4"
        word = self.rng.choice(("T.serial", "range"))
        heads = [
            f"{word}(3)", f"{word}(p % 4)", f"{word}({bound})", f"{word}({bound})", f"{word}({bound}, 3)",
            f"{word}(-1, {bound})", f"{word}({bound}, -1, -1)", f"T.unroll({bound}, unroll_factor=2)", "T.unroll(3)",
            "T.unroll(3, explicit=True)", "T.unroll(2, -1, -1)",
        ]  # fmt: skip
        head = self.rng.choice(heads)
        with self.inside(f"for {name} in {head}:"):
            self.loop_body(name, "unroll" not in head)

    def while_loop(self) -> None:
        """At most three iterations, whatever else says when it ends."""
        name = self.name()
        self.emit(f'{name} = T.alloc_var("int32", 0)')
        is_left = self.chance(0.4)
        with self.inside("while True:" if is_left else f"while {name} < 3 and {self.condition(0)}:"):
            self.emit(f"{name} += 1")
            if is_left:
                self.store()
                with self.inside(f"if {name} > 2:"):
                    self.emit(self.rng.choice(("break", "T.loop_break()")))
            self.loop_body(name, True)

    def loop_body(self, name: str, may_break: bool) -> None:
        self.loops.append(may_break)
        self.values.append(name)
        self.body()
        if self.chance(0.6):
            self.jump()
            self.body(2)
        self.loops.pop()

    def nest(self) -> None:
        """T.Parallel, each of whose elements has its own."""
        values, places, loops = self.values, self.places, self.loops
        with self.inside("for i in T.Parallel(8):"):
            self.where, self.loops = NEST, [False]
            self.places = [f"{n}[i]" for n in "ABCSF"]
            self.places += self.rng.sample([f"{n}[i + 8 * (R[i] % 3 - 1)]" for n in "ABC"], 1)  # its own, or outside
            self.places += [f"D[X[i]{self.rng.choice(('', ' + 1', ' - 2'))}]"]  # no two are the same
            self.values = [*self.places, "R[i]", "i", "p", "v", "w"]
            self.body(4)
        self.where, self.values, self.places, self.loops = OUTSIDE, values, places, loops

    def macro(self, name: str) -> None:
        """A macro of a place and a value."""
        self.emit("@T.macro")
        with self.inside(f"def {name}(r: T.Ref, x):"):
            self.where, self.values, self.places, self.loops = MACRO, ["r", "x", "3"], ["r"], []
            self.body()
            self.emit(f"return ({self.value(1)}) % 61")
        self.emit("")
        self.emit("")
        self.where = OUTSIDE
        self.macros.append(name)
