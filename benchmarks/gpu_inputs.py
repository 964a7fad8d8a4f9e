"""How the inputs of a sample at a real size are made, for `gpu_cases.py`: a recipe for each tensor that needs one.

A tensor without a recipe is normal (floats) or zero (integers). `gpu_variants.made` follows the recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Recipe = dict[str, Any]


def normal(scale: float) -> Recipe:
    return {"make": "normal", "scale": scale}


def uniform(low: float, high: float) -> Recipe:
    return {"make": "uniform", "low": low, "high": high}


def integers(low: int, high: int) -> Recipe:
    return {"make": "integers", "low": low, "high": high}


def full(value: int) -> Recipe:
    return {"make": "full", "value": value}


def values(*numbers: int) -> Recipe:
    return {"make": "values", "values": list(numbers)}


ZERO: Recipe = {"make": "zero"}
PLACES: Recipe = {"make": "places"}
"""Words that say which two of four values of a sparse matrix are kept."""
LENGTHS = (4096, 1000, 2048, 3500, 512, 4000, 128, 2900)
"""Of the sequences of a batch whose tokens stand one behind the other."""
STARTS = tuple(sum(LENGTHS[:i]) for i in range(len(LENGTHS) + 1))
EXPERTS = {8: (1500, 300, 1024, 900, 2100, 64, 1280, 1024), 64: (128, 384, 200, 312) * 16}
"""Rows of each expert, by the number of experts."""
BACKWARD = {"lse": uniform(9.0, 10.0), "delta": normal(0.1)}
SCALES = {"A": normal(0.5), "B": normal(0.5), "A_scale": uniform(0.01, 0.02), "B_scale": uniform(0.01, 0.02)}
MAMBA = {"dt": uniform(0.0, 1.0), "decay": {"make": "running", "low": -0.1, "high": 0.0}}
DELTA: Mapping[str, Recipe] = {
    "K": {"make": "unit"}, "gate": {"make": "running", "low": -0.1, "high": 0.0, "chunk": 64},
    "beta": uniform(0.0, 1.0),
}  # fmt: skip
WEIGHT = {"weight": normal(0.03)}
BYTES = integers(0, 256)
SMALL = {name: normal(0.3) for name in "QKV"}

BY_KERNEL: Mapping[str, Mapping[str, Recipe]] = {
    "samples/gemm/fp8_block_scaled.tl": SCALES,
    "samples/gemm/fp8_row_scaled.tl": SCALES,
    "samples/gemm/swiglu.tl": {"gate": normal(1 / 64), "up": normal(1 / 64)},
    "samples/gemm/dequant_int4.tl": {"B": BYTES, "scale": uniform(0.001, 0.004)},
    "samples/gemm/dequant_split_k.tl": {"B": integers(-(1 << 31), 1 << 31), "scale": uniform(0.001, 0.004), "C": ZERO},
    "samples/gemm/dequant_fp4.tl": {"B": BYTES, "scale": integers(118, 124)},
    "samples/gemm/sparse_2_4.tl": {"places": PLACES},
    "samples/gemm/sparse_tensor_cores.tl": {"E": PLACES},
    "samples/gemm/split_k.tl": {"C": ZERO},
    "samples/gemm/stream_k.tl": {"C": ZERO},
    "samples/rows/gemv_transposed.tl": {"y": ZERO},
    "samples/rows/column_sum.tl": {"total": ZERO},
    "samples/gemm/int8.tl": {"A": integers(-8, 8), "B": integers(-8, 8), "factor": uniform(0.001, 0.002)},
    "samples/rows/top_p.tl": {"X": uniform(0.0, 1.0), "p": uniform(0.5, 0.95), "draws": uniform(0.0, 1.0)},
    "samples/attention/varlen.tl": {"starts": values(*STARTS)},
    "samples/attention/backward_dkdv.tl": BACKWARD,
    "samples/attention/backward_dq.tl": BACKWARD,
    "samples/attention/backward_atomic.tl": {**BACKWARD, "dQ": ZERO},
    "samples/models/mamba_chunk_scan.tl": {**MAMBA, "CB": normal(0.3)},
    "samples/models/mamba_chunk_state.tl": MAMBA,
    "samples/models/mamba_state_passing.tl": {"decay": uniform(-2.0, 0.0)},
    "samples/models/linear_attention.tl": SMALL,
    "samples/models/conv2d.tl": WEIGHT,
    "samples/models/conv2d_im2col.tl": WEIGHT,
    "samples/alcop/conv2d.tl": WEIGHT,
    "samples/alcop/conv3d.tl": WEIGHT,
    "samples/models/kda_chunk.tl": DELTA,
    "samples/models/kda_chunk_backward.tl": {**DELTA, "dQ": ZERO, "dK": ZERO, "dgate": ZERO, "dbeta": ZERO},
    "samples/models/lightning_indexer.tl": {"K_scale": uniform(0.01, 0.02), "weights": normal(0.1)},
    "samples/models/gated_delta_rule.tl": DELTA,
}  # fmt: skip
"""What does not depend on a size."""
OTHER_PRODUCTS = ("samples/gemm/swiglu.tl", "samples/rows/gemv_transposed.tl")
"""With a K, and without a matrix B."""
DECODING = tuple(f"samples/attention/{name}.tl" for name in ("decode_split", "mla_decode", "mla_seesaw", "mla_split"))
"""With the length of each sequence as a tensor."""
SCALARS: Mapping[str, Mapping[str, float]] = {
    "samples/attention/varlen.tl": {"tokens": STARTS[-1]},
    "samples/elementwise/chain.tl": {"a": 0.75, "b": -0.5},
    "samples/gemm/dynamic.tl": {"M": 8192},
}


def recipes(kernel: str, sizes: Mapping[str, Any]) -> dict[str, Recipe]:
    """Return the recipes of a kernel's tensors, by their names, for constants of these values."""
    found: dict[str, Recipe] = {}
    if "K" in sizes and kernel not in OTHER_PRODUCTS:
        found["B"] = normal(sizes["K"] ** -0.5)  # as small as weights are: sums stay in range
    if kernel == "samples/gemm/grouped.tl":
        found |= {"B": normal(1 / 64), "sizes": values(*EXPERTS[sizes["groups"]])}
    if kernel in ("samples/gemm/moe_grouped.tl", "samples/gemm/moe_ping_pong.tl"):
        found |= {"ids": integers(0, sizes["tokens"]), "weights": uniform(0.0, 1.0), "C": ZERO}
        found["sizes"] = values(*EXPERTS[sizes["groups"]])
    if kernel in DECODING:
        found["lengths"] = full(sizes["longest"])
    if kernel == "samples/attention/decode_paged.tl":
        found |= {"table": integers(0, sizes["pages"]), "lengths": full(sizes["most"] * sizes["page_size"])}
    if kernel == "samples/attention/native_sparse.tl":
        found["blocks"] = {"make": "lists", "of": sizes["S"] // 64}
    if kernel == "samples/rows/cross_entropy.tl":
        found["label"] = integers(0, sizes["N"])
    if kernel == "samples/attention/block_sparse.tl":
        found |= {"blocks": {"make": "lists", "of": sizes["S"] // 64}, "counts": full(sizes["most"])}
    if kernel == "samples/elementwise/embedding.tl":
        found["ids"] = integers(0, sizes["vocabulary"])
    return {**found, **BY_KERNEL.get(kernel, {})}


def known_contents(kernel: str, sizes: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Return the contents of tensors that are the same in every run: those that decide how long a kernel takes."""
    found: dict[str, int | tuple[int, ...]] = {}
    for name, recipe in recipes(kernel, sizes).items():
        if recipe["make"] == "full":
            found[name] = recipe["value"]
        elif recipe["make"] == "values":
            found[name] = tuple(recipe["values"])
    return found
