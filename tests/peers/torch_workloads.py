"""Run by a Python with PyTorch, without a GPU: how far each workload's reference is from PyTorch's own, as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_child
import torch
from gpu_workloads import MOST_ERROR, WORKLOADS, Tensors, Workload
from torch.nn.functional import scaled_dot_product_attention

from tilec.ir.manifest import TensorInfo

ROWS = {"M": 24, "N": 64, "dtype": "float16"}
SIZES: dict[str, list[dict[str, Any]]] = {
    "matmul": [
        {"M": 32, "N": 48, "K": 64, "dtype": "bfloat16", "out_dtype": "bfloat16", "trans_B": False},
        {"M": 32, "N": 48, "K": 64, "dtype": "int8", "out_dtype": "int32", "trans_B": True},
        {"M": 32, "N": 48, "K": 64, "dtype": "float8_e4m3fn", "out_dtype": "bfloat16", "trans_B": True},
    ],
    "attention": [
        {"batch": 2, "heads": 3, "S": 40, "D": 16, "dtype": "float16", "causal": causal} for causal in (False, True)
    ],
    "backward": [{"batch": 2, "heads": 3, "S": 40, "D": 16, "dtype": "float16"}],
    "decode": [
        {"batch": 3, "heads": 8, "kv_heads": 2, "longest": 40, "D": 16, "splits": 4, "dtype": "float16"},
    ],
    "gather": [{"tokens": 24, "vocabulary": 30, "width": 64, "dtype": "float16"}],
    **{
        name: [ROWS]
        for name in ("softmax", "layernorm", "rmsnorm", "column_sum", "transpose", "fp8_rows", "chain", "copy")
    },
}


def again(name: str, workload: Workload, given: Tensors) -> Tensors:
    """The same by PyTorch's own functions, in the type of the inputs where they have one for it."""
    if name == "matmul":
        b = given["B"].float()
        return {"C": given["A"].float() @ (b.t() if workload.trans else b)}
    if name == "attention":
        q, k, v = (given[n].transpose(1, 2) for n in "QKV")
        return {"O": scaled_dot_product_attention(q, k, v, is_causal=workload.causal).transpose(1, 2)}
    if name == "backward":
        leaves = [given[n].float().requires_grad_() for n in "QKV"]
        out = scaled_dot_product_attention(*leaves, is_causal=True)
        return dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(out, leaves, given["dO"].float()), strict=True))
    if name == "decode":
        out = scaled_dot_product_attention(given["Q"], *(given[n].transpose(1, 2) for n in "KV"))
        return {"O": out.reshape(-1, workload.D)}
    if name == "fp8_rows":
        wanted = workload.wanted(given)
        eight = wanted["Y"].to(torch.float8_e4m3fn)
        back = eight.float() * wanted["scale"][:, None]
        error = (back - given["X"].float()).norm() / given["X"].float().norm()
        assert error < 5e-2, error
        return {"Y": eight, "scale": wanted["scale"]}
    if name == "chain":
        return {"Y": (given["X"] * 0.75 - given["Z"] * 0.5).clamp(-1, 1)}
    made = workload.outputs()
    (peer,) = workload.peers().values()
    returned = peer(given, made)
    (key,) = made
    return {key: returned}


# ---- a contest, with a stand-in for the kernel and for the GPU -------------------------------------------------------


class StandIn:
    """Copies X to Y, rows of it, and adds to the first word how often it ran, if told to."""

    def __init__(self, left_out: int = 0, counts: bool = False) -> None:
        self.left_out, self.counts, self.runs = left_out, counts, 0
        self.manifest = SimpleNamespace(
            tensors=(TensorInfo("X", "float16", (24, 64), "in"), TensorInfo("Y", "float16", (24, 64), "out"))
        )

    def bound(self, addresses: dict[str, int], scalars: dict[str, float]) -> Any:
        def launch(stream: int) -> None:
            ctypes.memmove(addresses["Y"], addresses["X"], (24 - self.left_out) * 128)
            self.runs += 1
            if self.counts:
                ctypes.c_uint16.from_address(addresses["Y"]).value = 0x3C00 + self.runs

        return launch


class Event:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1000


def contest(kernel: Any) -> gpu_child.Contest:
    return gpu_child.Contest(WORKLOADS["copy"](torch, ROWS, device="cpu"), [kernel], torch)


def contests() -> dict[str, Any]:
    library: Any = torch
    library.cuda = SimpleNamespace(
        current_stream=lambda: SimpleNamespace(cuda_stream=0), synchronize=lambda: None, Event=Event,
        _sleep=lambda cycles: None,
    )  # fmt: skip
    gpu_child.L2_BYTES = 1 << 14
    whole = contest(StandIn())
    times = whole.times(7)
    return {
        "whole": whole.fault(),
        "short": contest(StandIn(left_out=1)).fault(),
        "counting": contest(StandIn(counts=True)).fault(),
        "sets": len(whole.sets),
        "timed": {name: timing.low <= timing.median <= timing.high for name, timing in times.items()},
    }


def main() -> None:
    found = []
    for name in WORKLOADS:
        for sizes in SIZES[name]:
            torch.manual_seed(1)
            workload = WORKLOADS[name](torch, sizes, device="cpu")
            given, made = workload.inputs(), workload.outputs()
            workload.poison(made, float("nan"))
            wanted, other = workload.wanted(given), again(name, workload, given)
            errors = {
                key: float((other[key].double() - wanted[key].double()).norm() / wanted[key].double().norm())
                for key in made
            }
            found.append({
                "workload": name, "errors": errors, "work": workload.work,
                "allowed": {key: workload.most_error[str(tensor.dtype)] for key, tensor in made.items()},
                "shapes": all(wanted[key].shape == tensor.shape for key, tensor in made.items()),
            })  # fmt: skip
    assert set(SIZES) == set(WORKLOADS) and MOST_ERROR
    print(json.dumps({"workloads": found, "contests": contests()}))


if __name__ == "__main__":
    main()
