"""Expressions of elements: functions, operators and casts over tiles, tensors and variables of a nest."""

from __future__ import annotations

from drawing.kernel import BITS, FLOATS, NIBBLES, Cannot, Kernel, Loop, Tile

FLOAT_FORMS = (
    "({x} + {y})", "({x} + {y})", "({x} - {y})", "({x} * {y})", "({x} * {y})", "T.max({x}, {y})", "T.min({x}, {y})",
    "({x} / (T.abs({y}) + 1))", "(-{x})", "T.abs({x})", "T.exp(T.min({x}, 4))", "T.exp2(T.min({x}, 6))",
    "T.exp10(T.min({x}, 2))", "T.log(T.abs({x}) + 1)", "T.log2(T.abs({x}) + 1)", "T.log10(T.abs({x}) + 1)",
    "T.sqrt(T.abs({x}))", "T.rsqrt(T.abs({x}) + 1)", "T.tanh({x})", "T.sigmoid({x})", "T.sin(T.clamp({x}, -3, 3))",
    "T.cos(T.clamp({x}, -3, 3))", "T.tan(T.clamp({x}, -1, 1))", "T.sinh(T.clamp({x}, -3, 3))",
    "T.cosh(T.clamp({x}, -3, 3))", "T.atan({x})", "T.erf({x})", "T.floor({x})", "T.ceil({x})", "T.trunc({x})",
    "T.round({x})", "T.nearbyint({x})", "T.pow(T.abs({x}) + 0.5, 2)", "T.fmod({x}, 3)",
    "T.if_then_else({c}, {x}, {y})", "T.Select({c}, {x}, {y})", "({x} if {c} else {y})", "T.clamp({x}, -2, 5)",
    "T.cast(T.cast({x}, 'int32'), '{t}')", "T.cast({i}, '{t}')", "T.Cast('{t}', {i})", "T.{t}({i})",
    "T.max({x}, T.min_value('{t}'))", "T.min({x}, T.max_value('{t}'))", "T.min({x}, T.infinity('{t}'))",
    "T.cast(T.isnan({x}), '{t}')", "T.cast(T.isinf({x}), '{t}')", "T.cast(T.isfinite({x}), '{t}')",
)  # fmt: skip
SINGLE_FORMS = (
    "T.__exp(T.clamp({x}, -4, 4))", "T.__exp10(T.clamp({x}, -2, 2))", "T.__log(T.abs({x}) + 1)",
    "T.__log2(T.abs({x}) + 1)", "T.__log10(T.abs({x}) + 1)", "T.__sin(T.clamp({x}, -3, 3))",
    "T.__cos(T.clamp({x}, -3, 3))", "T.__tan(T.clamp({x}, -1, 1))", "T.fast_rcp(T.abs({x}) + 1)",
    "T.ieee_add({x}, {y}, '{r}')", "T.ieee_sub({x}, {y}, '{r}')", "T.ieee_mul({x}, {y}, '{r}')",
    "T.ieee_fmaf({x}, {y}, {x}, '{r}')", "T.ieee_frcp(T.abs({x}) + 1, '{r}')", "T.ieee_fsqrt(T.abs({x}), '{r}')",
    "T.ieee_fdiv({x}, T.abs({y}) + 1, '{r}')", "T.ieee_frsqrt(T.abs({x}) + 1)",
    "T.reinterpret(T.reinterpret({x}, 'int32') & -65536, 'float32')",
)  # fmt: skip
INTEGER_FORMS = (
    "({x} + {y})", "({x} - {y})", "({x} * {y})", "({x} // 3)", "({x} % 5)", "({x} // ({y} % 3 + 4))", "({x} & {y})",
    "({x} | {y})", "({x} ^ {y})", "(~{x})", "({x} << 2)", "({x} >> 1)", "T.max({x}, {y})", "T.min({x}, {y})",
    "T.abs({x})", "T.floordiv({x}, 4)", "T.floormod({x}, 7)", "T.truncdiv({x}, 3)", "T.truncmod({x}, 3)",
    "T.bitwise_and({x}, 12)", "T.bitwise_or({x}, {y})", "T.bitwise_xor({x}, {y})", "T.bitwise_not({x})",
    "T.shift_left({x}, 1)", "T.shift_right({x}, 2)", "T.if_then_else({c}, {x}, {y})", "({x} if {c} else {y})",
    "T.clamp({x}, 1, 5)", "T.ceildiv({x}, 3)", "T.align_up({x}, 4)", "T.cast({f}, '{t}')", "T.cast({i}, '{t}')",
    "T.{t}({f})", "T.linear_index({x}, 2, 3)", "T.index_to_coordinates({x}, (4, 3))[1]",
    "T.max({x}, T.min_value('{t}'))",
    "T.max({x}, T.min_value('{t}'))", "T.popcount({x})", "T.cast(T.clz({x}), '{t}')", "T.cast(T.__ffs({x}), '{t}')",
)  # fmt: skip
BOOL_FORMS = (
    "({f} < {g})", "({f} >= {g})", "({i} == {j})", "({i} != {j})", "({i} <= {j})", "({b} and {c})", "({b} or {c})",
    "(not {b})", "({i} > 2)",
)  # fmt: skip
ROUNDINGS = ("rn", "rz", "ru", "rd")


class Nest:
    """What the elements of a nest are made of. `variables` count over its extents; a `lane` is a whole warp along the
    last."""

    def __init__(self, kernel: Kernel, variables: list[Loop], forbidden: tuple[str, ...] = ()) -> None:
        self.kernel, self.variables, self.forbidden = kernel, variables, forbidden
        self.fragments = True

    def value(self, dtype: str, depth: int) -> str:
        """An expression of a type."""
        k = self.kernel
        if depth == 0 or k.chance(0.15):
            return self.leaf(dtype)
        if dtype == "bool":
            return self.formed(k.pick(BOOL_FORMS), dtype, depth)
        if dtype in FLOATS:
            single = dtype == "float32" and k.chance(0.3)
            return self.formed(k.pick(SINGLE_FORMS if single else FLOAT_FORMS), dtype, depth)
        if dtype in ("float4_e2m1fn", "float8_e8m0fnu"):
            return f"T.cast({self.value('float32', depth - 1)}, {dtype!r})"
        return self.formed(k.pick(INTEGER_FORMS), dtype, depth)

    def formed(self, form: str, dtype: str, depth: int) -> str:
        """The form with expressions in it: x and y of its type, c a condition, i and j integers, f and g floats."""
        k = self.kernel
        if dtype in ("int4", "uint4") and any(word in form for word in ("<<", ">>", "shift", "_value", "T.popcount")):
            form = "({x} + {y})"
        made = form
        for letter, of in (
            ("x", dtype), ("y", dtype), ("c", "bool"), ("b", "bool"), ("i", "int32"), ("j", "int32"),
            ("f", "float32"), ("g", "float32"),
        ):  # fmt: skip
            if "{" + letter + "}" in made:
                made = made.replace("{" + letter + "}", self.value(of, depth - 1))
        return made.replace("{t}", dtype).replace("{r}", k.pick(ROUNDINGS))

    def leaf(self, dtype: str) -> str:
        k = self.kernel
        kind = k.rng.random()
        if kind < 0.12:
            return self.number(dtype)
        if kind < 0.15 and k.values:
            return self.as_type(*k.pick(k.values), dtype)
        if kind < 0.25 and self.variables + k.counters():
            name = k.pick(self.variables + k.counters()).name
            if dtype == "int32":
                return name
            return f"({name} > 1)" if dtype == "bool" else f"T.cast({name}, {dtype!r})"
        tiles = [t for t in k.tiles if t.name in k.ready and t.name not in self.forbidden]
        if kind < 0.85 and tiles:
            for _ in range(4):
                tile = k.pick(tiles)
                index = self.index(tile)
                if index is not None:
                    return self.as_type(f"{tile.name}[{index}]", tile.dtype, dtype)
        if len(k.parameters) > 6:
            return self.number(dtype)
        return self.as_type(*self.tensor_element(dtype), dtype)

    def number(self, dtype: str) -> str:
        k = self.kernel
        if dtype == "bool":
            return f"({k.pick(self.variables + k.counters()).name} < 2)"
        if dtype in FLOATS:
            return f"T.{dtype}({k.pick((0, 1, -1, 2, 0.5, -1.5, 3))})"
        return f"T.cast({k.pick((0, 1, 2, 3, 5))}, {dtype!r})"

    def as_type(self, text: str, dtype: str, wanted: str) -> str:
        if dtype == wanted:
            return text
        if wanted == "bool":
            return f"({text} > 0)" if dtype not in ("float8_e8m0fnu",) else f"(T.cast({text}, 'float32') > 1)"
        return f"T.cast({text}, {wanted!r})"

    def index(self, tile: Tile) -> str | None:
        """Where in a tile the element of the nest is, in its own place or another one."""
        extents = tuple(v.extent for v in self.variables)
        if tile.scope == "fragment":
            if not self.fragments:
                return None
            able = [v.name for v in self.variables]
            if tile.shape == extents:
                return ", ".join(able)
            for subset in (extents[:1], extents[1:], extents[:2]):
                if subset and tile.shape == subset and extents.index(subset[0]) is not None:
                    first = 1 if subset == extents[1:] and subset != extents[:1] else 0
                    return ", ".join(able[first : first + len(subset)])
            return None
        return ", ".join(self.coordinate(extent, at, len(tile.shape)) for at, extent in enumerate(tile.shape))

    def coordinate(self, extent: int, at: int, rank: int) -> str:
        """An index along a dimension of a shared tile."""
        k = self.kernel
        if k.chance(0.75) and len(self.variables) >= rank:
            variable = self.variables[len(self.variables) - rank + at]
        else:
            variable = k.pick(self.variables)
        if variable.extent == extent and k.chance(0.8):
            return variable.name
        if variable.extent <= extent and k.chance(0.7):
            spare = extent - variable.extent
            offset = k.rng.randint(0, spare)
            return f"{variable.name} + {offset}" if offset else variable.name
        kind = k.rng.random()
        if kind < 0.4:
            return f"({variable.name} + {k.rng.randint(0, 5)}) % {extent}"
        if kind < 0.6 and variable.extent <= 2 * extent:
            return f"{variable.name} // 2"
        if kind < 0.75 and variable.extent <= extent:
            return f"{extent - 1} - {variable.name}"
        if kind < 0.82 and variable.extent <= extent:
            return f"T.cast({variable.name}, {k.pick(('int64', 'uint32', 'int8'))!r})"
        if kind < 0.88 and len(k.parameters) < 7:
            ids = k.tensor((variable.extent,), k.pick(("int32", "int64", "int8")))
            return f"T.abs({ids}[{variable.name}]) % {extent}"
        return str(k.rng.randrange(extent))

    def tensor_element(self, dtype: str) -> tuple[str, str]:
        """An element of a new tensor, which a few elements of the nest are beside."""
        k = self.kernel
        of = dtype if k.chance(0.7) and dtype not in NIBBLES else k.pick(("float16", "float32", "int32", "int8"))
        index, shape = [], []
        for variable in self.variables:
            start, last = k.start(variable.extent)
            if k.chance(0.08) and len(k.parameters) < 7:  # wherever an element says, most often outside
                ids = f"{k.tensor((variable.extent,), k.pick(('int32', 'int64', 'uint32', 'int8')))}[{variable.name}]"
                index.append(
                    k.pick((ids, f"{ids} + {variable.name}", f"{ids} * 4 + {last}", f"{ids} - 3", f"2 * {ids}"))
                )
            else:
                index.append(f"{start} + {variable.name}" if start != "0" else variable.name)
            shape.append(max(last + variable.extent - k.pick((0, 0, 0, 0, 1, 3)), 1))
        name = k.tensor(tuple(shape), of)
        text = f"{name}[{', '.join(index)}]"
        return f"T.__ldg({text})" if k.chance(0.05) else text, of


def extents_of(kernel: Kernel) -> tuple[int, ...]:
    """Of a nest: as one of the tiles, or its own."""
    if kernel.chance(0.7):
        try:
            return kernel.filled().shape
        except Cannot:
            pass
    return kernel.shape("float32")


def variables_of(extents: tuple[int, ...]) -> list[Loop]:
    return [Loop(name, extent) for name, extent in zip("ijl", extents, strict=False)]


def bits(dtype: str) -> int:
    return BITS.get(dtype, 8)
