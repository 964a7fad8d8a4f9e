"""Products: their operands in shared tiles and fragments, of all types, in loops and by themselves."""

from __future__ import annotations

from drawing.kernel import Cannot, Kernel, Tile
from drawing.statements import load_tile, store_tile

PAIRS = (
    ("float16", "float16", "float32"), ("float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float16"), ("float32", "float32", "float32"), ("int8", "int8", "int32"),
    ("uint8", "uint8", "int32"), ("float8_e4m3fn", "float8_e4m3fn", "float32"),
    ("float8_e5m2", "float8_e4m3fn", "float32"), ("float64", "float64", "float64"), ("int4", "int4", "int32"),
    ("uint4", "uint4", "int32"), ("float8_e4m3fn", "float8_e4m3fn", "float16"),
)  # fmt: skip
POLICIES = ("",) * 6 + tuple(f", policy=T.GemmWarpPolicy.{name}" for name in ("Square", "FullRow", "FullCol"))


def _sides(k: Kernel, dtype: str) -> tuple[int, int, int]:
    """M, N and K."""
    warps = k.threads // 32
    deep = {"float64": 8, "float32": 16, "float16": 32, "bfloat16": 32}.get(dtype, 64)
    m = k.pick((64, 64, 128, 32, 16 * warps)) if k.threads >= 128 else k.pick((16, 32, 64))
    if dtype == "float64":
        m = min(m, 64)
    return m, k.pick((16, 32, 64, 8 * warps, 48)), deep * k.pick((1, 1, 2))


def product(k: Kernel) -> None:
    """One product, or a loop of them, and its accumulator stored."""
    if k.depth > 3 or k.is_conditional:
        raise Cannot
    a_type, b_type, c_type = k.pick(PAIRS)
    if "float8" in a_type and k.target == "sm_80":
        a_type = b_type = "float16"
    m, n, deep = _sides(k, a_type)
    narrow = "int4" in a_type
    transposed_a = not narrow and k.chance(0.2)
    transposed_b = narrow or k.chance(0.4)
    if a_type in ("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "float32") and k.chance(0.6):
        transposed_a, transposed_b = False, True
    a = k.tile((deep, m) if transposed_a else (m, deep), a_type, "shared")
    b = k.tile((n, deep) if transposed_b else (deep, n), b_type, "shared")
    c = k.tile((m, n), c_type, "fragment")
    by_parts = f"{', transpose_A=True' if transposed_a else ''}{', transpose_B=True' if transposed_b else ''}"
    initialises = k.chance(0.2)
    if not initialises:
        k.emit(f"T.clear({c.name})")
        k.ready.add(c.name)
    if k.chance(0.65):
        from drawing.control import around

        first = f"{', clear_accum=True' if initialises else ''}"
        with around(
            k, k.pick(("Pipelined", "Pipelined", "Pipelined", "serial", "unroll")), 2 if initialises else 0
        ) as lists:
            load_tile(k, a, a_type)
            load_tile(k, b, b_type)
            lists.count = 2
            _multiply(k, a, b, c, by_parts, first, transposed_a, narrow)
            k.ready.add(c.name)
            if k.chance(0.25):
                from drawing.control import body

                k.steady |= {a.name, b.name}
                body(k, 1)
                k.steady -= {a.name, b.name}
    else:
        load_tile(k, a, a_type)
        load_tile(k, b, b_type)
        _multiply(k, a, b, c, by_parts, ", clear_accum=True" if initialises else "", transposed_a, narrow)
        k.ready.add(c.name)
    if k.chance(0.5):
        store_tile(k, c)


def _multiply(k: Kernel, a: Tile, b: Tile, c: Tile, turns: str, clear: str, transposed_a: bool, narrow: bool) -> None:
    left = a.name
    if not transposed_a and not narrow and k.chance(0.2):
        in_registers = k.tile(a.shape, a.dtype, "fragment")
        k.emit(f"T.copy({a.name}, {in_registers.name})")
        k.ready.add(in_registers.name)
        if a.dtype in ("float16", "bfloat16", "float32") and k.chance(0.5):
            with k.inside(f"for i, j in T.Parallel({a.shape[0]}, {a.shape[1]}):"):
                k.emit(f"{in_registers.name}[i, j] = {in_registers.name}[i, j] * 2")
        left = in_registers.name
    if k.target == "sm_90a" and k.threads >= 128 and k.chance(0.15):
        k.emit(f"T.wgmma_gemm({left}, {b.name}, {c.name}{turns}{clear})", "T.wait_wgmma(0)")
    else:
        k.emit(f"T.gemm({left}, {b.name}, {c.name}{turns}{k.pick(POLICIES)}{clear})")
    if k.chance(0.15):
        if k.chance(0.5) and a.dtype in ("float16", "bfloat16", "float32", "int8"):
            with k.inside(f"for i, j in T.Parallel({a.shape[0]}, {a.shape[1]}):"):
                k.emit(f"{a.name}[i, j] = {a.name}[i, j] * 2")
        k.emit(f"T.gemm({a.name}, {b.name}, {c.name}{turns})")


def chained(k: Kernel) -> None:
    """A product of a product, as attention has it."""
    if k.depth > 2 or k.threads < 128:
        raise Cannot
    dtype = k.pick(("float16", "bfloat16"))
    q, s, v = k.tile((64, 32), dtype, "shared"), k.tile((64, 32), dtype, "shared"), k.tile((64, 32), dtype, "shared")
    scores, weights = k.tile((64, 64), "float32", "fragment"), k.tile((64, 64), dtype, "fragment")
    out, rows = k.tile((64, 32), "float32", "fragment"), k.tile((64,), "float32", "fragment")
    load_tile(k, q, dtype)
    k.emit(f"T.clear({out.name})")
    from drawing.control import around

    with around(k, k.pick(("Pipelined", "Pipelined", "serial")), 0) as lists:
        load_tile(k, s, dtype)
        load_tile(k, v, dtype)
        lists.count = 2
        k.emit(f"T.clear({scores.name})")
        k.emit(f"T.gemm({q.name}, {s.name}, {scores.name}, transpose_B=True)")
        if k.chance(0.5):
            k.emit(f"T.reduce_max({scores.name}, {rows.name}, dim=1)")
            with k.inside("for i, j in T.Parallel(64, 64):"):
                k.emit(f"{scores.name}[i, j] = T.exp2(T.min({scores.name}[i, j] - {rows.name}[i], 0) * 0.125)")
        k.emit(f"T.copy({scores.name}, {weights.name})")
        k.emit(f"T.gemm({weights.name}, {v.name}, {out.name})")
    k.ready |= {t.name for t in (q, s, v, scores, weights, out)}
    store_tile(k, out)


PRODUCTS = ((2, product), (1, chained))
