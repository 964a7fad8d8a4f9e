"""Random expressions of elements, and reductions of them: numpy evaluates, the emulator runs the PTX.

Only operations that are rounded once, as in numpy, are drawn, so that every element must be equal to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Array = NDArray[Any]

KERNEL = """
import tilelang.language as T
@T.prim_func
def expressions(
    A: T.Tensor(({m}, {n}), "float32"), B: T.Tensor(({m}, {n}), "float32"), r: T.Tensor(({m},), "float32"),
    I: T.Tensor(({m}, {n}), "int32"), J: T.Tensor(({m}, {n}), "int32"), s: T.float32, t: T.int32,
    F: T.Tensor(({m}, {n}), "float32"), G: T.Tensor(({m}, {n}), "int32"),
    P: T.Tensor(({m}, {n}), "float32"), Q: T.Tensor(({kept},), "int32"), R: T.Tensor(({kept},), "float32"),
):
    with T.Kernel(1, threads={threads}) as bx:
        f = T.alloc_fragment(({m}, {n}), "float32")
        g = T.alloc_fragment(({m}, {n}), "int32")
        q = T.alloc_fragment(({kept},), "int32")
        u = T.alloc_fragment(({kept},), "float32")
        for i, j in T.Parallel({m}, {n}):
            f[i, j] = {floats}
            g[i, j] = {integers}
        for i, j in T.Parallel({m}, {n}):
            if {condition}:
                P[i, j] = f[i, j]
            else:
                P[i, j] = T.float32(g[i, j] % 1000)
        T.copy(f, F)
        T.copy(g, G)
        T.reduce_{whole}(g, q, dim={dim})
        T.reduce_{largest}(f, u, dim={dim})
        T.copy(q, Q)
        T.copy(u, R)
"""

# As T.reduce_* of 32-bit integers: sums wrap around.
REDUCTIONS = {
    "sum": lambda x, dim: x.sum(axis=dim, dtype=np.int32),
    "max": lambda x, dim: x.max(axis=dim),
    "min": lambda x, dim: x.min(axis=dim),
    "absmax": lambda x, dim: np.abs(x).max(axis=dim),
    "bitxor": lambda x, dim: np.bitwise_xor.reduce(x, axis=dim),
}


@dataclass(frozen=True)
class Drawn:
    """The same expression for both: in a kernel, and in numpy over the arrays of that name."""

    kernel: str
    numpy: str


def apply(kernel: str, numpy: str, *parts: Drawn) -> Drawn:
    return Drawn(kernel.format(*(p.kernel for p in parts)), numpy.format(*(p.numpy for p in parts)))


def same(text: str, *parts: Drawn) -> Drawn:
    return apply(text, text, *parts)


FLOATS = (
    Drawn("A[i, j]", "A"), Drawn("B[i, j]", "B"), Drawn("r[i]", "r[:, None]"), Drawn("s", "s"),
    Drawn("0.75", "np.float32(0.75)"), Drawn("T.float32(-3)", "np.float32(-3)"),
)  # fmt: skip
INTEGERS = (
    Drawn("I[i, j]", "I"), Drawn("J[i, j]", "J"), Drawn("t", "t"), Drawn("i", "i"), Drawn("j", "j"),
    Drawn("T.int32(7)", "np.int32(7)"),
)  # fmt: skip


def conditions(floats: st.SearchStrategy[Drawn], integers: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    comparison = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    single = st.one_of(
        st.builds(lambda op, a, b: same(f"({{}} {op} {{}})", a, b), comparison, floats, floats),
        st.builds(lambda op, a, b: same(f"({{}} {op} {{}})", a, b), comparison, integers, integers),
    )
    return st.one_of(
        single,
        st.builds(lambda a, b: apply("({} and {})", "({} & {})", a, b), single, single),
        st.builds(lambda a, b: apply("({} or not {})", "({} | ~{})", a, b), single, single),
    )


def deeper(floats: st.SearchStrategy[Drawn], integers: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    """Floats of the next depth."""
    return st.one_of(
        floats,
        st.builds(lambda op, a, b: same(f"({{}} {op} {{}})", a, b), st.sampled_from("+-*"), floats, floats),
        st.builds(lambda a, b: apply("({} / (T.abs({}) + 1))", "({} / (np.abs({}) + one))", a, b), floats, floats),
        st.builds(lambda a, b: apply("T.max({}, {})", "np.maximum({}, {})", a, b), floats, floats),
        st.builds(lambda a, b: apply("T.min({}, {})", "np.minimum({}, {})", a, b), floats, floats),
        st.builds(lambda a: apply("T.sqrt(T.abs({}))", "np.sqrt(np.abs({}))", a), floats),
        st.builds(lambda a: apply("T.floor({})", "np.floor({})", a), floats),
        st.builds(lambda a: same("(-{})", a), floats),
        st.builds(lambda a: apply("T.float32({} % 512)", "f32({} % 512)", a), integers),
        st.builds(
            lambda c, a, b: apply("T.if_then_else({}, {}, {})", "np.where({}, {}, {})", c, a, b),
            conditions(floats, integers), floats, floats,
        ),
    )  # fmt: skip


def deeper_integers(floats: st.SearchStrategy[Drawn], integers: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    return st.one_of(
        integers,
        st.builds(lambda op, a, b: same(f"({{}} {op} {{}})", a, b), st.sampled_from("+-*&|^"), integers, integers),
        st.builds(
            lambda op, a, b: same(f"({{}} {op} (({{}} & 7) + 1))", a, b),
            st.sampled_from(["//", "%"]), integers, integers,
        ),
        st.builds(lambda a, k: same(f"({{}} // {k})", a), integers, st.sampled_from([-8, -3, 2, 5, 16])),
        st.builds(lambda a, k: same(f"({{}} % {k})", a), integers, st.sampled_from([-8, -3, 2, 5, 16])),
        st.builds(lambda a, k: same(f"({{}} >> {k})", a), integers, st.integers(0, 31)),
        st.builds(lambda a, k: same(f"({{}} << {k})", a), integers, st.integers(0, 8)),
        st.builds(lambda a: same("(~{})", a), integers),
        st.builds(lambda a: apply("T.abs({})", "np.abs({})", a), integers),
        st.builds(lambda a, b: apply("T.max({}, {})", "np.maximum({}, {})", a, b), integers, integers),
        st.builds(
            lambda a: apply('T.cast(T.clamp({}, -900.0, 900.0), "int32")', "i32(np.clip({}, -900, 900))", a), floats
        ),
        st.builds(
            lambda c, a, b: apply("({1} if {0} else {2})", "np.where({0}, {1}, {2})", c, a, b),
            conditions(floats, integers), integers, integers,
        ),
    )  # fmt: skip


floats0, integers0 = st.sampled_from(FLOATS), st.sampled_from(INTEGERS)
floats1, integers1 = deeper(floats0, integers0), deeper_integers(floats0, integers0)
floats2, integers2 = deeper(floats1, integers1), deeper_integers(floats1, integers1)
floats3, integers3 = deeper(floats2, integers2), deeper_integers(floats2, integers2)


@given(
    floats=floats3,
    integers=integers3,
    condition=conditions(floats1, integers1),
    shape=st.sampled_from([(4, 32), (3, 20), (8, 17), (1, 64)]),
    threads=st.sampled_from([32, 64, 128]),
    target=st.sampled_from(["sm_80", "sm_90a"]),
    whole=st.sampled_from(sorted(REDUCTIONS)),
    largest=st.sampled_from(["max", "min", "absmax"]),
    dim=st.sampled_from([0, 1]),
    seed=st.integers(0, 9),
)
def test_random_expressions(
    floats: Drawn, integers: Drawn, condition: Drawn, shape: tuple[int, int], threads: int, target: str,
    whole: str, largest: str, dim: int, seed: int,
) -> None:  # fmt: skip
    m, n = shape
    text = KERNEL.format(
        m=m, n=n, kept=shape[1 - dim], threads=threads, floats=floats.kernel, integers=integers.kernel,
        condition=condition.kernel, whole=whole, largest=largest, dim=dim,
    )  # fmt: skip
    made = build_kernel(SourceFile("expressions.tl", text), CompileOptions(target=target), Observer())
    arguments = emulate.draw_arguments(made.kernel, made.manifest, seed)
    for name in ("I", "J"):  # large ones too, so that sums and products wrap around
        arguments.tensors[name] *= np.int32(10007)
    expected = evaluated(floats, integers, condition, arguments, shape)
    emulate.emulate_build(made, arguments)
    expected["Q"] = REDUCTIONS[whole](expected["G"], dim)
    expected["R"] = REDUCTIONS[largest](expected["F"], dim)
    for name, wanted in expected.items():
        np.testing.assert_array_equal(arguments.tensors[name], wanted, err_msg=f"{name} of {text}")


def evaluated(
    floats: Drawn, integers: Drawn, condition: Drawn, arguments: emulate.KernelArguments, shape: tuple[int, int]
) -> dict[str, Array]:
    """What numpy makes of it, in 32 bits."""
    names: dict[str, Any] = {name: array.copy() for name, array in arguments.tensors.items()}
    rows, columns = np.indices(shape, dtype=np.int32)
    names |= {
        "np": np, "one": np.float32(1), "i": rows, "j": columns,
        "s": np.full(shape, arguments.scalars["s"], np.float32), "t": np.full(shape, arguments.scalars["t"], np.int32),
        "f32": lambda x: np.asarray(x, np.float32), "i32": lambda x: np.asarray(x).astype(np.int32),
    }  # fmt: skip
    with np.errstate(over="ignore"):
        f = np.broadcast_to(np.asarray(eval(floats.numpy, names), np.float32), shape)
        g = np.broadcast_to(np.asarray(eval(integers.numpy, names), np.int32), shape)
        holds = np.broadcast_to(eval(condition.numpy, names), shape)
    return {"F": f, "G": g, "P": np.where(holds, f, (g % 1000).astype(np.float32))}
