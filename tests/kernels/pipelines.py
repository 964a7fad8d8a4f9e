"""Pipelined loops drawn at random; see `scheduled` for what becomes of them.

A `Loop` is a kernel of one block: tensors, shared tiles (float16), fragments (float32), a loop over 2 to 6 statements
that hand values to one another and on to the next iteration, and stores of what is left at its end. Elements are small
integers, so that most results are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

SHARED = ("s0", "s1", "s2")
FRAGMENTS = ("f0", "f1")
BINDS = ("twice = k * 2", "row = k * S", "x = X[k]", "chosen = Ids[k]")
ROWS = 6  # tiles along the first axis of a tensor

AROUND = (
    "for again_and_again in T.serial(2):",
    "for again_and_again in T.serial(3):",
    "for again_and_again in T.serial(T.min(n, 2)):",
    "for again_and_again in T.unroll(2):",
    "for again_and_again in T.Pipelined(2, num_stages=2):",
)
LEFT_EARLY = ("for z in T.serial(4):", "while True:", "while trip[0] < n:")
"""What may be left from the middle of an iteration, after `iteration[0]` of them; the first by the iteration's
number."""

_HEAD = """\
import tilelang.language as T
S, R = {size}, {rows}
@T.prim_func
def kernel(
    A: T.Tensor((R * S, S), "float16"), B: T.Tensor((R * S, S), "float16"), X: T.Tensor((R * S,), "float32"),
    Ids: T.Tensor((R,), "int32"), Ends: T.Tensor((4,), "int32"), G: T.Tensor((S, S), "float32"),
    O: T.Tensor((R * S, S), "float32"), P: T.Tensor((R * S, S), "float16"),
    Out: T.Tensor((6 * S, S), "float32"), n: T.int32, first: T.int32,
):
    with T.Kernel(1, threads={threads}) as bx:
        s0 = T.alloc_shared((S, S), "float16")
        s1 = T.alloc_shared((S, S), "float16")
        s2 = T.alloc_shared((S, S), "float16")
        f0 = T.alloc_fragment((S, S), "float32")
        f1 = T.alloc_fragment((S, S), "float32")
        r = T.alloc_fragment((S,), "float32")
        c = T.alloc_fragment((S,), "float32")
        h = T.alloc_shared((S,), "int32")
        trip = T.alloc_shared((1,), "int32")
        v = T.alloc_var("float32", init=1.0)
        w = T.alloc_var("int32", init=0)
"""


@dataclass(frozen=True)
class Loop:
    """A kernel's text and the values of its scalars: `n` iterations from `first` on."""

    text: str
    n: int
    first: int


# ---- loop bodies -----------------------------------------------------------------------------------------------------


class _Body:
    """Draws statements one after the other. `ready` tiles have a value where the next statement stands; `loadable` are
    filled by copies from tensors, `writable` by other statements; `around` are ready tiles that are only read."""

    def __init__(self, draw: DrawFn, ready: set[str], fed: bool, around: tuple[str, ...] = ()) -> None:
        self.draw, self.ready, self.fed = draw, ready | {*around}, fed
        self.shared = SHARED + around
        self.loadable = SHARED[:2] if fed else SHARED
        self.writable = SHARED[2:] if fed else SHARED
        self.lines: list[str] = []
        self.scalars: list[str] = []  # binds of what the loop may write

    def tile(self, names: tuple[str, ...], ready: bool = True) -> str:
        return self.draw(st.sampled_from([n for n in names if n in self.ready or not ready]))

    def has(self, *names: str) -> bool:
        return any(n in self.ready for n in names)

    def emit(self, *lines: str, writes: str = "") -> None:
        self.lines += lines
        if writes:
            self.ready.add(writes)

    def other(self, name: str) -> str | None:
        """A ready shared tile that is not this one."""
        able = [n for n in self.shared if n in self.ready and n != name]
        return self.draw(st.sampled_from(able)) if able else None

    def value(self, i: str, j: str) -> str:
        """A scalar that changes from iteration to iteration, or not."""
        return self.draw(
            st.sampled_from(
                [f"({i} - {j})", "T.cast(k, 'float32')", "2.0", "T.cast(twice, 'float32')", "x", "0.5", "v"]
                + self.scalars * 2
            )
        )

    def bind(self) -> None:
        """A scalar with its value at one time only, where the loop writes the tile or the tensor."""
        name = f"got{len(self.scalars)}"
        sources = [f"{self.tile(SHARED)}[3, 5]"] * 3 if self.has(*SHARED) else []
        self.emit(
            f"{name} = T.cast({self.draw(st.sampled_from([*sources, 'G[2, 1]', 'X[k * S + 1]', 'v']))}, 'float32')"
        )
        self.scalars.append(name)

    def step(self) -> None:
        """A variable that goes from iteration to iteration."""
        self.emit(f"v = T.min(v * 0.5 + {self.value('k', 'n')}, 4.0)")
        if not self.fed:
            self.emit("w = (w + 1) % R")

    def statements(self, count: int, anew: bool = False) -> None:
        """The first is a copy, so that most tiles are a pipeline's; in a loop that another role can feed, each such
        copy fills a tile of its own, which something reads. `anew`: a tile is computed in each iteration."""
        self.load()
        if anew:
            self.made_anew("s2")
        self.further_statements(max(count - 1 - 2 * anew, 0))
        self.read_all()

    def further_statements(self, count: int) -> None:
        for _ in range(count):
            self.draw(st.sampled_from(self.makers()))()

    def read_all(self) -> None:
        if self.fed:
            for tile in self.loadable:
                if tile in self.ready and not any(tile in line and f", {tile})" not in line for line in self.lines):
                    self.emit(f"T.copy({tile}, P[k * S, 0])")

    def makers(self) -> list[Callable[[], None]]:
        makers: list[Callable[[], None]] = [self.scalar_nest, self.fill, self.bind, self.bind, self.step]
        if not self.fed:
            makers += [self.further]
            if self.has(*SHARED):
                makers += [self.refill] * 2
        if not self.fed or not self.has(*self.loadable) or not all(t in self.ready for t in self.loadable):
            makers += [self.load] * 3
        if self.has(*self.shared):
            makers += [self.shared_to_fragment, self.shared_nest, self.shared_out, self.gemm, self.gemm, self.gemm]
        if self.has(*self.writable):
            makers += [self.in_place, self.handed_on, self.handed_on]
        if self.fed and self.has(*self.loadable):
            makers += [self.changed_load] * 2
        if self.has("h"):
            makers += [self.counted, self.count]
        if self.has(*SHARED) and not self.fed:
            makers += [self.partial_load, self.guarded_load]
        if self.has(*FRAGMENTS):
            makers += [self.fragment_to_shared, self.fragment_out, self.reduce, self.fragment_nest, self.global_update]
            makers += [self.guarded_nest, self.exchange, self.choice, self.atomic, self.atomic]
        if self.has(*FRAGMENTS) and self.has("r", "c"):
            makers += [self.row_nest]
        if self.has("r"):
            makers += [self.repeated, self.repeated]
        return makers

    def rows(self) -> str:
        more = [] if self.fed else ["w * S"]
        return self.draw(st.sampled_from(["k * S", "row", "row", "(R - 1 - k) * S", "k * S + 3", "chosen * S", *more]))

    def load(self) -> None:
        free = [t for t in self.loadable if not self.fed or t not in self.ready]
        tile, tensor = self.draw(st.sampled_from(free)), self.draw(st.sampled_from("AB"))
        self.emit(f"T.copy({tensor}[{self.rows()}, 0], {tile})", writes=tile)

    def partial_load(self) -> None:
        tile = self.tile(SHARED)
        self.emit(f"T.copy(A[k * S, 0], {tile}[0 : S // 2, 0:S])")

    def refill(self) -> None:
        """A tile is read, and filled for the next iteration: neither may overtake the other."""
        tile = self.tile(SHARED)
        self.emit(f"T.copy({tile}, O[k * S, 0])")
        self.emit(f"T.copy({self.draw(st.sampled_from('AB'))}[(R - 1 - k) * S, 0], {tile})")

    def guarded_load(self) -> None:
        tile = self.tile(SHARED)
        self.emit("if k % 2 == 0:", f"    T.copy(B[k * S, 0], {tile})")

    def shared_to_fragment(self) -> None:
        fragment = self.tile(FRAGMENTS, ready=False)
        self.emit(f"T.copy({self.tile(self.shared)}, {fragment})", writes=fragment)

    def fragment_to_shared(self) -> None:
        tile, fragment = self.tile(self.writable, ready=False), self.tile(FRAGMENTS)
        if self.draw(st.booleans()):
            self.emit(f"T.copy({fragment}, {tile})", writes=tile)
        else:
            self.nest(f"{tile}[i, j] = T.min(T.max({fragment}[i, j], -4.0), 4.0)")
            self.ready.add(tile)

    def handed_on(self) -> None:
        """A tile gives away what the iteration before left in it, and takes what this one has."""
        tile = self.tile(self.writable)
        self.emit(f"T.copy({tile}, O[k * S, 0])")
        self.nest(f"{tile}[i, j] = T.cast(k, 'float16') + X[k * S + i]")

    def made_anew(self, tile: str) -> None:
        """A tile that is covered, perhaps in steps, and then read: each iteration may have a version of its own."""
        self.cover(tile)
        for _ in range(self.draw(st.sampled_from([0, 0, 1, 1, 2]))):
            self.change(tile)
        self.ready.add(tile)
        f = self.tile(FRAGMENTS, ready=False)
        reader = self.draw(
            st.sampled_from(
                [
                    f"T.copy({tile}, P[k * S, 0])",
                    f"T.copy({tile}, {f})",
                    f"T.gemm({tile}, {tile}, {f}, clear_accum=True)",
                ]
            )
        )
        self.emit(reader, writes=f if f in reader else "")

    def cover(self, tile: str) -> None:
        """By a statement that leaves nothing in the tile."""
        kinds = ["fill", "clear", "nest", "both branches", "branches of a nest", "rows"] + ["load"] * (not self.fed)
        kinds += ["tile", "transpose"] * (self.other(tile) is not None) + ["fragment"] * 2 * self.has(*FRAGMENTS)
        kind = self.draw(st.sampled_from(kinds))
        load = f"T.fill({tile}, T.cast(k, 'float16'))" if self.fed else f"T.copy(A[{self.rows()}, 0], {tile})"
        match kind:
            case "fill":
                value = self.draw(st.sampled_from(["1.0", "x", "T.cast(k, 'float16')"]))
                self.emit(f"T.fill({tile}, {value})")
            case "clear":
                self.emit(f"T.clear({tile})")
            case "nest":
                self.nest(f"{tile}[j, i] = {self.value('i', 'j')}")
            case "both branches":
                self.emit("if k % 2 == 0:", f"    {load}", "else:", f"    T.fill({tile}, 2.0)")
            case "branches of a nest":
                self.nest(
                    "if i > j + k:", f"    {tile}[i, j] = 1.0", "else:", f"    {tile}[i, j] = {self.value('i', 'j')}"
                )
            case "rows":
                self.emit("for half in T.serial(2):", f"    T.fill({tile}, T.cast(half + k, 'float16'))")
            case "load":
                self.emit(load)
            case "tile" | "transpose":
                self.emit(f"T.{'copy' if kind == 'tile' else kind}({self.other(tile)}, {tile})")
            case "fragment":
                self.emit(f"T.copy({self.tile(FRAGMENTS)}, {tile})")

    def changed_load(self) -> None:
        """What another role has loaded."""
        self.change(self.tile(self.loadable))

    def change(self, tile: str) -> None:
        """In a part, or in some iterations only."""
        changes = [
            ["for i, j in T.Parallel(S // 2, S):", f"    {tile}[i, j] = {self.value('i', 'j')}"],
            ["if k % 2 == 1:", f"    T.fill({tile}, {self.draw(st.sampled_from(['0.0', 'x']))})"],
            ["for i, j in T.Parallel(S, S):", "    if i > j + k:", f"        {tile}[i, j] = 1.0"],
            ["for i, j in T.Parallel(S, S):", f"    {tile}[i, j] = T.min({tile}[i, j] + 1.0, 3.0)"],
        ]
        if not self.fed:
            changes += [
                [f"T.copy(A[k * S : k * S + S // 2, 0:S], {tile}[0 : S // 2, 0:S])"],
                ["if k > first:", f"    T.copy(B[k * S, 0], {tile})"],
                [f"T.copy(B[{self.rows()}, 0], {tile})"],
            ]
        self.emit(*self.draw(st.sampled_from(changes)))

    def in_place(self) -> None:
        tile = self.tile(self.writable)
        self.nest(f"{tile}[i, j] = T.min({tile}[i, j] + {self.value('i', 'j')}, 3.0)")

    def shared_nest(self) -> None:
        tile = self.tile(self.writable, ready=False)
        source = self.other(tile)
        read = "1.0" if source is None else f"{source}[j, i]"
        self.nest(f"{tile}[i, j] = {read} - {self.value('i', 'j')}")
        self.ready.add(tile)

    def scalar_nest(self) -> None:
        tile = self.draw(st.sampled_from(self.writable + FRAGMENTS))
        self.nest(f"{tile}[i, j] = {self.value('i', 'j')} * X[k * S + i]")
        self.ready.add(tile)

    def fragment_nest(self) -> None:
        to, source = self.tile(FRAGMENTS, ready=False), self.tile(FRAGMENTS)
        values = [f"{source}[i, j] * 0.5 + {self.value('i', 'j')}", f"T.max({source}[i, j], G[j, i])"]
        if self.has(*self.shared):
            values += [
                f"{source}[i, j] - {self.tile(self.shared)}[j, i]",
                f"{source}[i, j] + {self.tile(self.shared)}[i, j]",
            ]
        self.nest(f"{to}[i, j] = {self.draw(st.sampled_from(values))}")
        self.ready.add(to)

    def guarded_nest(self) -> None:
        fragment = self.tile(FRAGMENTS)
        condition = self.draw(st.sampled_from(["k % 2 == 1", "k > first", "x > 0.0", "Ids[k] == 2"]))
        self.emit(f"if {condition}:", "    for i, j in T.Parallel(S, S):")
        self.emit(f"        {fragment}[i, j] = {fragment}[i, j] + {self.value('i', 'j')}")
        if self.draw(st.booleans()):
            self.emit("else:", f"    T.fill({fragment}, 1.0)")

    def exchange(self) -> None:
        a, b = ("f0", "f1") if self.has("f0") and self.has("f1") else (self.tile(FRAGMENTS),) * 2
        self.nest(f"kept = {a}[i, j]", f"{a}[i, j] = {b}[i, j] - 1.0", f"{b}[i, j] = kept")

    def choice(self) -> None:
        f = self.tile(FRAGMENTS)
        lines = (f"if {f}[i, j] > 0.0:", f"    {f}[i, j] = -1.0", "else:", f"    {f}[i, j] = {f}[i, j] + 2.0")
        self.nest(*lines)

    def row_nest(self) -> None:
        fragment = self.tile(FRAGMENTS)
        term = self.draw(st.sampled_from([t for t, n in (("r[i]", "r"), ("c[j]", "c")) if n in self.ready]))
        self.nest(f"{fragment}[i, j] = {fragment}[i, j] - {term}")

    def atomic(self) -> None:
        """Into a tensor that others read and write too: the tile as a whole, or each element."""
        f, kind = self.tile(FRAGMENTS), self.draw(st.sampled_from(["add", "add", "max"]))
        if self.draw(st.booleans()):
            self.emit(f"T.atomic_{kind}({self.draw(st.sampled_from(['G[0, 0]', 'O[row, 0]']))}, {f})")
        else:
            self.nest(f"T.atomic_{kind}(G[j, i], {f}[i, j])")

    def count(self) -> None:
        """Many threads count in one place."""
        self.emit("for i in T.Parallel(S):", "    T.atomic_add(h[(i + k) % 4], 1)")

    def counted(self) -> None:
        self.emit("for i in T.Parallel(S):", "    X[k * S + i] = X[k * S + i] + T.cast(h[i], 'float32')")

    def repeated(self) -> None:
        """A loop inside, of a scalar nest or of a product."""
        bounds = self.draw(st.sampled_from(["2", "k % 3", "n"]))
        if self.has("f0") and self.has(*self.shared) and self.draw(st.booleans()):
            tile = self.tile(self.shared)
            self.emit(f"for again in T.serial({bounds}):", f"    T.gemm({tile}, {tile}, f0, transpose_B=True)")
            return
        self.emit(f"for again in T.serial({bounds}):", "    for i in T.Parallel(S):")
        self.emit("        r[i] = r[i] * 0.5 + X[k * S + i]")

    def further(self) -> None:
        """What a loop's end was read from may change; its end does not."""
        self.emit("for i in T.Parallel(4):", "    Ends[i] = Ends[i] + 1")

    def global_update(self) -> None:
        self.nest(f"G[i, j] = G[i, j] + {self.tile(FRAGMENTS)}[i, j]")

    def nest(self, *lines: str) -> None:
        self.emit("for i, j in T.Parallel(S, S):", *(f"    {line}" for line in lines))

    def fragment_out(self) -> None:
        self.emit(f"T.copy({self.tile(FRAGMENTS)}, {self.draw(st.sampled_from(['O[k * S, 0]', 'P[row, 0]', 'G']))})")

    def shared_out(self) -> None:
        self.emit(f"T.copy({self.tile(self.shared)}, {self.draw(st.sampled_from(['P[k * S, 0]', 'O[row, 0]']))})")

    def gemm(self) -> None:
        a, b, accumulator = self.tile(self.shared), self.tile(self.shared), self.tile(FRAGMENTS, ready=False)
        options = self.draw(st.sampled_from(["", ", transpose_A=True", ", transpose_B=True"]))
        clear = ", clear_accum=True" if accumulator not in self.ready or self.draw(st.booleans()) else ""
        line = f"T.gemm({a}, {b}, {accumulator}{options}{clear})"
        if not clear and self.draw(st.integers(0, 4)) == 0:
            self.emit("if k % 2 == 0:", f"    {line}")
        else:
            self.emit(line, writes=accumulator)

    def reduce(self) -> None:
        to, dim = self.draw(st.sampled_from([("r", 1), ("c", 0)]))
        kind = self.draw(st.sampled_from(["sum", "max"]))
        clear = "" if to not in self.ready or self.draw(st.booleans()) else ", clear=False"
        self.emit(f"T.reduce_{kind}({self.tile(FRAGMENTS)}, {to}, dim={dim}{clear})", writes=to)

    def fill(self) -> None:
        tile = self.draw(st.sampled_from((*self.writable, *FRAGMENTS, "r", "c")))
        self.emit(f"T.fill({tile}, {self.draw(st.sampled_from(['1.0', '0.0', 'x']))})", writes=tile)


@st.composite
def loops(draw: DrawFn, size: int, threads: int, fed: bool) -> Loop:
    """A kernel around one pipelined loop, sometimes inside a serial one, for tiles of `size` by `size` elements.
    `fed`: one that a producer role can feed."""
    filled = {n for n in (*FRAGMENTS, "r", "c") if draw(st.booleans())}
    anew = draw(st.sampled_from([True, True, True, False]))
    filled |= {n for n in (SHARED[2:] if fed else SHARED) if draw(st.integers(0, 3)) == 3 and not (anew and n == "s2")}
    body = _Body(draw, set(filled), fed)
    if draw(st.booleans()):
        body.ready.add("h")
    body.statements(draw(st.sampled_from([2, 3, 4, 4, 5, 5, 6, 6])), anew)
    n, first = draw(st.sampled_from([0, 1, 2, 2, 3, 3, 4, 4, 5, 6])), draw(st.sampled_from([0, 0, 0, 1, 2]))
    n = min(n, ROWS - first)
    static, runtime, read = f"{first}, {first + n}", "first, first + n", "first, T.min(Ends[0], R)"
    bounds = draw(st.sampled_from([static, static, runtime, runtime, read]))
    limit = draw(st.sampled_from(["", "", ", num_stages=1", ", num_stages=2", ", num_stages=3"]))
    repeat = draw(st.sampled_from(["", "", "", "", *AROUND, *LEFT_EARLY[: 1 if fed else 3]]))
    lines = [f"T.fill({name}, {1 + at % 2}.0)" for at, name in enumerate(sorted(filled))]
    if "h" in body.ready:
        lines.append("T.clear(h)")
    indent = ""
    if repeat:
        lines += ["trip[0] = 0"] * (repeat in LEFT_EARLY[1:]) + [repeat]
        indent = "    "
    if repeat in LEFT_EARLY:
        lines += early(draw, filled, by="z" if repeat == LEFT_EARLY[0] else "trip[0]")
    lines.append(f"{indent}for k in T.Pipelined({bounds}{limit}):")
    used = "\n".join(body.lines)
    lines += [f"{indent}    {b}" for b in BINDS if b.split()[0] in used]
    lines += [f"{indent}    {line}" for line in body.lines]
    if repeat in LEFT_EARLY[1:]:
        lines.append("    trip[0] = trip[0] + 1")
    lines += left(filled)
    text = _HEAD.format(size=size, threads=threads, rows=ROWS) + "".join(f"        {line}\n" for line in lines)
    return Loop(text, n, first)


OWN = {"s0": "q0", "s1": "q1"}
RENAMED = {"k": "z", "row": "z_row", "twice": "z_twice", "x": "z_x", "chosen": "z_chosen"}


@st.composite
def nested(draw: DrawFn, size: int, threads: int, fed: bool) -> Loop:
    """A kernel around two pipelined loops, over k in one over z, that share tiles; what the outer one loads is mostly
    its own."""
    own = OWN if fed or draw(st.integers(0, 3)) else {}
    filled = {n for n in (*FRAGMENTS, "r", "c") if draw(st.booleans())}
    filled |= {n for n in SHARED[2:] if draw(st.booleans())}
    outer = _Body(draw, set(filled), fed)
    outer.load()
    outer.further_statements(draw(st.integers(0, 2)))
    begun = len(outer.lines)
    read = tuple(own[n] for n in own if n in outer.ready)
    inner = _Body(draw, outer.ready - {*own}, fed, read)
    inner.statements(draw(st.sampled_from([2, 2, 3, 4])))
    outer.further_statements(draw(st.integers(0, 2)))
    outer.read_all()
    names = {**own, **RENAMED}
    rename = partial(re.compile(rf"\b({'|'.join(names)})\b").sub, lambda found: names[found[0]])
    around = [rename(line) for line in outer.lines]
    n, first = draw(st.sampled_from([0, 1, 2, 2, 3, 3, 4])), draw(st.sampled_from([0, 0, 1]))
    trips = draw(st.sampled_from([0, 1, 2, 2, 3, 4]))
    limits = ["", ", num_stages=1", ", num_stages=2", ", num_stages=3"]
    outer_bounds = draw(st.sampled_from([f"{first}, {first + n}", "first, first + n"]))
    inner_bounds = draw(
        st.sampled_from([f"{trips}", f"{trips}", "z", "first, z + 1", "n - first", "z, T.min(z + 2, R)"])
    )
    lines = [f"{tile} = T.alloc_shared((S, S), 'float16')" for tile in own.values()]
    lines += [f"T.fill({name}, {1 + at % 2}.0)" for at, name in enumerate(sorted(filled))]
    lines.append(f"for z in T.Pipelined({outer_bounds}{draw(st.sampled_from(limits))}):")
    lines += [f"    {b}" for b in map(rename, BINDS) if b.split()[0] in "\n".join(around)]
    lines += [f"    {line}" for line in around[:begun]]
    lines.append(f"    for k in T.Pipelined({inner_bounds}{draw(st.sampled_from(limits))}):")
    used = "\n".join(inner.lines)
    lines += [f"        {b}" for b in BINDS if b.split()[0] in used]
    lines += [f"        {line}" for line in inner.lines]
    lines += [f"    {line}" for line in around[begun:]]
    lines += left(filled)
    text = _HEAD.format(size=size, threads=threads, rows=ROWS) + "".join(f"        {line}\n" for line in lines)
    return Loop(text, n, first)


def left(filled: set[str]) -> list[str]:
    """Stores of what is left in the tiles at the end."""
    lines = []
    for at, name in enumerate(sorted(filled)):
        if name in ("r", "c"):
            index = "i" if name == "r" else "j"
            lines += ["for i, j in T.Parallel(S, S):", f"    Out[{at} * S + i, j] = {name}[{index}]"]
        else:
            lines.append(f"T.copy({name}, Out[{at} * S, 0])")
    return lines


def early(draw: DrawFn, filled: set[str], by: str) -> list[str]:
    """Statements of an iteration that start something, and the end of the loop while it is in flight."""
    started = [f"T.copy(s2, P[{by} * S, 0])"] if "s2" in filled else []
    if {"s2", "f0"} <= filled:
        started += ["T.gemm(s2, s2, f0, transpose_B=True)", "T.copy(f0, s2)"]
        if draw(st.booleans()):
            started = [f"T.copy(A[{by} * S, 0], s2)", *started[1:]]
    leave = [
        f"if {by} >= {draw(st.sampled_from(['first', '1', '2']))}:",
        *["    T.fill(f1, 1.0)"] * draw(st.integers(0, 1)),
    ]
    return [f"    {line}" for line in (*started, *leave, "    break")]
