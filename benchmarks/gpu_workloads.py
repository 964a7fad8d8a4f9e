"""What the timed kernels compute, in PyTorch: inputs, outputs, a reference of higher precision, and the peers.

Tensors go by the names of the kernels' parameters. Nothing here needs a GPU but the peers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

Tensors = dict[str, Any]
Peer = Callable[[Tensors, Tensors], Any]
"""Given inputs and, to write into where the library can, outputs."""

MOST_ERROR = {
    "torch.float8_e4m3fn": 5e-2, "torch.bfloat16": 1e-2, "torch.float16": 1e-3, "torch.float32": 1e-4,
    "torch.int32": 0.0,
}  # fmt: skip
"""Of an output: ‖found − wanted‖ / ‖wanted‖, by its type; `Workload.most_error` may allow more."""


ROUNDED_BETWEEN = {**MOST_ERROR, "torch.float16": 3e-3, "torch.bfloat16": 2e-2}
"""Where what is multiplied last was itself computed, and rounded."""


class Workload(ABC):
    """One computation of some size. `work` is what it must do, at least: floating-point operations where `unit` is
    "TFLOP/s", bytes read and written where it is "TB/s". `ceiling` names the measured peak that it is compared with."""

    unit: ClassVar[str] = "TFLOP/s"
    repeats_exactly: ClassVar[bool] = True
    most_error: ClassVar[Mapping[str, float]] = MOST_ERROR
    work: int
    ceiling: str

    def __init__(self, torch: Any, parameters: Mapping[str, Any], device: str = "cuda") -> None:
        self.torch, self.device = torch, device
        self.set_up(**parameters)

    @abstractmethod
    def set_up(self, **parameters: Any) -> None: ...

    @abstractmethod
    def inputs(self) -> Tensors: ...

    @abstractmethod
    def outputs(self) -> Tensors:
        """Not yet written."""

    def between(self) -> Tensors:
        """What kernels of one computation hand on to each other."""
        return {}

    @abstractmethod
    def wanted(self, given: Tensors) -> Tensors: ...

    def scalars(self) -> dict[str, float]:
        return {}

    def peers(self) -> dict[str, Peer]:
        return {}

    def poison(self, made: Tensors, filling: float) -> None:
        """Into every output, so that what nobody writes shows."""
        for tensor in made.values():
            if tensor.element_size() == 1 and tensor.dtype.is_floating_point:
                # PyTorch turns no other NaN and no infinity into one byte: all bits set are NaN in each such type.
                tensor.view(self.torch.uint8).fill_(0xFF if math.isnan(filling) else 0x7F)
            else:
                tensor.fill_(filling if tensor.dtype.is_floating_point else int(math.copysign(77, filling)))

    # ---- for those below ----

    def random(self, *shape: int, dtype: Any) -> Any:
        torch = self.torch
        if dtype == torch.int8:
            return torch.randint(-8, 8, shape, dtype=dtype, device=self.device)
        return torch.randn(shape, device=self.device).to(dtype)

    def empty(self, *shape: int, dtype: Any) -> Any:
        return self.torch.empty(shape, dtype=dtype, device=self.device)

    def type(self, name: str) -> Any:
        return getattr(self.torch, name)


class Matmul(Workload):
    """C = A @ B, or A @ Bᵀ, summed in 32 bits."""

    def set_up(self, M: int, N: int, K: int, dtype: str, out_dtype: str, trans_B: bool = False) -> None:
        self.shape, self.trans = (M, N, K), trans_B
        self.dtype, self.out_dtype = self.type(dtype), self.type(out_dtype)
        self.work, self.ceiling = 2 * M * N * K, dtype

    def inputs(self) -> Tensors:
        m, n, k = self.shape
        b = (n, k) if self.trans else (k, n)
        return {"A": self.random(m, k, dtype=self.dtype), "B": self.random(*b, dtype=self.dtype)}

    def outputs(self) -> Tensors:
        return {"C": self.empty(*self.shape[:2], dtype=self.out_dtype)}

    def wanted(self, given: Tensors) -> Tensors:
        a, b = given["A"].double(), given["B"].double()
        return {"C": a @ (b.t() if self.trans else b)}

    def peers(self) -> dict[str, Peer]:
        found: dict[str, Peer] = {"cuBLAS": self.cublas()}
        try:
            from peers.triton_matmul import matmul
        except ImportError:
            return found
        return {**found, "Triton": lambda given, made: matmul(given["A"], given["B"], made["C"], self.trans)}

    def cublas(self) -> Peer:
        torch, out_type = self.torch, self.out_dtype

        def right(given: Tensors) -> Any:
            return given["B"].t() if self.trans else given["B"]

        if self.dtype == torch.int8:
            return lambda given, made: torch._int_mm(given["A"], right(given))
        if "float8" in str(self.dtype):
            one = torch.ones((), device=self.device)
            # Sums stay in the tensor cores, as ours do.
            return lambda given, made: torch._scaled_mm(
                given["A"], right(given), one, one, out_dtype=out_type, use_fast_accum=True
            )
        return lambda given, made: torch.matmul(given["A"], right(given), out=made["C"])


class Attention(Workload):
    """softmax(Q Kᵀ / √D) V of (batch, S, heads, D)."""

    # Of long sequences the means of 8-bit values are so small that the output has few bits of them.
    most_error: ClassVar[Mapping[str, float]] = {**ROUNDED_BETWEEN, "torch.float8_e4m3fn": 1e-1}

    def set_up(self, batch: int, heads: int, S: int, D: int, dtype: str, causal: bool) -> None:
        self.shape, self.causal, self.dtype = (batch, S, heads, D), causal, self.type(dtype)
        # Of a causal one only half, as is usual, diagonal or not.
        self.work, self.ceiling = 4 * batch * heads * S * S * D // (2 if causal else 1), dtype

    def inputs(self) -> Tensors:
        return {name: self.random(*self.shape, dtype=self.dtype) for name in "QKV"}

    def outputs(self) -> Tensors:
        return {"O": self.empty(*self.shape, dtype=self.dtype)}

    def wanted(self, given: Tensors) -> Tensors:
        q, k, v = (given[name].transpose(1, 2).float() for name in "QKV")
        out = self.torch.empty_like(q)
        for batch in range(q.shape[0]):
            for head in range(q.shape[1]):
                out[batch, head] = self.of_head(q[batch, head], k[batch, head], v[batch, head])
        return {"O": out.transpose(1, 2)}

    def of_head(self, q: Any, k: Any, v: Any, step: int = 2048) -> Any:
        """Some queries at a time, so that the scores of a long sequence fit."""
        torch, parts = self.torch, []
        for first in range(0, len(q), step):
            scores = q[first : first + step] @ k.t() / math.sqrt(q.shape[1])
            if self.causal:
                rows = torch.arange(first, first + len(scores), device=q.device)[:, None]
                scores = scores.masked_fill(torch.arange(len(k), device=q.device)[None, :] > rows, -math.inf)
            parts.append(torch.softmax(scores, dim=1) @ v)
        return torch.cat(parts)

    def peers(self) -> dict[str, Peer]:
        if self.dtype.itemsize == 1:
            return {}  # which PyTorch's attention does not take
        found: dict[str, Peer] = {"cuDNN": self.sdpa("CUDNN_ATTENTION"), "flash": self.sdpa("FLASH_ATTENTION")}
        try:
            from peers.triton_flash_attention import attention
        except ImportError:
            return found
        return {**found, "Triton": lambda given, made: attention(*(given[n] for n in "QKV"), made["O"], self.causal)}

    def sdpa(self, backend: str) -> Peer:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        def run(given: Tensors, made: Tensors) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return scaled_dot_product_attention(*(given[n].transpose(1, 2) for n in "QKV"), is_causal=self.causal)

        return run


class Backward(Workload):
    """The gradients of causal attention, of (batch, heads, S, D): delta, then dK and dV, then dQ."""

    most_error: ClassVar[Mapping[str, float]] = ROUNDED_BETWEEN

    def set_up(self, batch: int, heads: int, S: int, D: int, dtype: str) -> None:
        self.shape, self.dtype = (batch, heads, S, D), self.type(dtype)
        # Five products where forward has two, and half of each.
        self.work, self.ceiling = 5 * batch * heads * S * S * D, dtype

    def inputs(self) -> Tensors:
        given = {name: self.random(*self.shape, dtype=self.dtype) for name in ("Q", "K", "V", "dO")}
        out, lse = self.torch.empty_like(given["Q"]), self.empty(*self.shape[:3], dtype=self.torch.float32)
        for index in self.every_head():
            q, k, v = (given[name][index].float() for name in "QKV")
            scores = self.scores(q, k)
            lse[index] = scores.logsumexp(dim=1)
            out[index] = (scores - lse[index][:, None]).exp() @ v
        return {**given, "O": out, "lse": lse}

    def every_head(self) -> list[tuple[int, int]]:
        return [(batch, head) for batch in range(self.shape[0]) for head in range(self.shape[1])]

    def scores(self, q: Any, k: Any) -> Any:
        hidden = self.torch.ones(len(q), len(k), dtype=self.torch.bool, device=q.device).triu(1)
        return (q @ k.t() / math.sqrt(q.shape[1])).masked_fill(hidden, -math.inf)

    def outputs(self) -> Tensors:
        return {name: self.empty(*self.shape, dtype=self.dtype) for name in ("dQ", "dK", "dV")}

    def between(self) -> Tensors:
        return {"delta": self.empty(*self.shape[:3], dtype=self.torch.float32)}

    def wanted(self, given: Tensors) -> Tensors:
        made = {name: self.torch.empty_like(given["Q"], dtype=self.torch.float32) for name in ("dQ", "dK", "dV")}
        for index in self.every_head():
            q, k, v, d_out, out = (given[name][index].float() for name in ("Q", "K", "V", "dO", "O"))
            weights = (self.scores(q, k) - given["lse"][index][:, None]).exp()
            slopes = weights * (d_out @ v.t() - (out * d_out).sum(dim=1)[:, None]) / math.sqrt(q.shape[1])
            made["dQ"][index], made["dK"][index], made["dV"][index] = slopes @ k, slopes.t() @ q, weights.t() @ d_out
        return made

    def peers(self) -> dict[str, Peer]:
        return {"cuDNN": self.sdpa("CUDNN_ATTENTION"), "flash": self.sdpa("FLASH_ATTENTION")}

    def sdpa(self, backend: str) -> Peer:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        kept: dict[int, Any] = {}

        def run(given: Tensors, made: Tensors) -> Any:
            # The graph of the forward pass is made once for each set of inputs: only its way back is timed.
            key = given["Q"].data_ptr()
            if key not in kept:
                leaves = [given[name].detach().requires_grad_() for name in "QKV"]
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    kept[key] = leaves, scaled_dot_product_attention(*leaves, is_causal=True)
            leaves, out = kept[key]
            return self.torch.autograd.grad(out, leaves, given["dO"], retain_graph=True)

        return run


class Decode(Workload):
    """One query a sequence against its cache, in two kernels: parts of the cache, and what they leave put together."""

    unit = "TB/s"

    def set_up(self, batch: int, heads: int, kv_heads: int, longest: int, D: int, splits: int, dtype: str) -> None:
        self.batch, self.kv_heads, self.group = batch, kv_heads, heads // kv_heads
        self.longest, self.D, self.splits, self.dtype = longest, D, splits, self.type(dtype)
        # The cache, once; queries and outputs are nothing beside it.
        self.work, self.ceiling = 2 * batch * longest * kv_heads * D * self.dtype.itemsize, "copy"

    def inputs(self) -> Tensors:
        cache = (self.batch, self.longest, self.kv_heads, self.D)
        return {
            "Q": self.random(self.batch, self.kv_heads, self.group, self.D, dtype=self.dtype),
            "K": self.random(*cache, dtype=self.dtype),
            "V": self.random(*cache, dtype=self.dtype),
            "lengths": self.torch.full((self.batch,), self.longest, dtype=self.torch.int32, device=self.device),
        }

    def outputs(self) -> Tensors:
        return {"O": self.empty(self.batch * self.kv_heads * self.group, self.D, dtype=self.dtype)}

    def between(self) -> Tensors:
        rows, single = (self.batch, self.kv_heads, self.group, self.splits), self.torch.float32
        return {"parts": self.empty(*rows, self.D, dtype=single), "sums": self.empty(*rows, dtype=single)}

    def wanted(self, given: Tensors) -> Tensors:
        q, k, v = given["Q"].float(), given["K"].permute(0, 2, 3, 1).float(), given["V"].transpose(1, 2).float()
        weights = self.torch.softmax(q @ k / math.sqrt(self.D), dim=3)
        return {"O": (weights @ v).reshape(-1, self.D)}

    def peers(self) -> dict[str, Peer]:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        def run(given: Tensors, made: Tensors) -> Any:
            # The heads that share keys are rows of one product, as in ours.
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]):
                return scaled_dot_product_attention(given["Q"], *(given[n].transpose(1, 2) for n in "KV"))

        return {"SDPA": run}


# ---- bound by memory -------------------------------------------------------------------------------------------------


class Rows(Workload):
    """Rows of X, read once; what is written counts too."""

    unit = "TB/s"

    def set_up(self, M: int, N: int, dtype: str) -> None:
        self.shape, self.dtype = (M, N), self.type(dtype)
        self.read, self.ceiling = M * N * self.dtype.itemsize, "copy"
        self.work = self.read + sum(t.numel() * t.element_size() for t in self.on("meta", self.outputs).values())

    def on(self, device: str, make: Callable[[], Tensors]) -> Tensors:
        """What `make` makes, on another device: on "meta" it takes no memory."""
        kept, self.device = self.device, device
        try:
            return make()
        finally:
            self.device = kept

    def inputs(self) -> Tensors:
        return {"X": self.random(*self.shape, dtype=self.dtype)}

    def outputs(self) -> Tensors:
        return {"Y": self.empty(*self.shape, dtype=self.dtype)}


class Softmax(Rows):
    def wanted(self, given: Tensors) -> Tensors:
        return {"Y": self.torch.softmax(given["X"].float(), dim=1)}

    def peers(self) -> dict[str, Peer]:
        return {"torch": lambda given, made: self.torch.softmax(given["X"], dim=1, out=made["Y"])}


class LayerNorm(Rows):
    eps = 1e-5

    def inputs(self) -> Tensors:
        columns = self.shape[1]
        return {**super().inputs(), **{n: self.random(columns, dtype=self.dtype) for n in ("weight", "bias")}}

    def wanted(self, given: Tensors) -> Tensors:
        return {"Y": self.norm({name: tensor.float() for name, tensor in given.items()})}

    def norm(self, given: Tensors) -> Any:
        norm = self.torch.nn.functional.layer_norm
        return norm(given["X"], self.shape[1:], given["weight"], given["bias"], self.eps)

    def peers(self) -> dict[str, Peer]:
        return {"torch": lambda given, made: self.norm(given)}


class RmsNorm(Rows):
    eps = 1e-6

    def inputs(self) -> Tensors:
        return {**super().inputs(), "weight": self.random(self.shape[1], dtype=self.dtype)}

    def wanted(self, given: Tensors) -> Tensors:
        return {"Y": self.norm({name: tensor.float() for name, tensor in given.items()})}

    def norm(self, given: Tensors) -> Any:
        return self.torch.nn.functional.rms_norm(given["X"], self.shape[1:], given["weight"], self.eps)

    def peers(self) -> dict[str, Peer]:
        return {"torch": lambda given, made: self.norm(given)}


class ColumnSum(Rows):
    """Into `total`, which begins at 0, by atomics: in another order each time."""

    repeats_exactly = False

    def outputs(self) -> Tensors:
        return {"total": self.empty(self.shape[1], dtype=self.torch.float32)}

    def poison(self, made: Tensors, filling: float) -> None:
        made["total"].zero_()

    def wanted(self, given: Tensors) -> Tensors:
        return {"total": given["X"].double().sum(dim=0)}

    def peers(self) -> dict[str, Peer]:
        return {"torch": lambda given, made: self.torch.sum(given["X"], 0, dtype=self.torch.float32, out=made["total"])}


class Transpose(Rows):
    def inputs(self) -> Tensors:
        return {"A": self.random(*self.shape, dtype=self.dtype)}

    def outputs(self) -> Tensors:
        return {"B": self.empty(*reversed(self.shape), dtype=self.dtype)}

    def wanted(self, given: Tensors) -> Tensors:
        return {"B": given["A"].t()}

    def peers(self) -> dict[str, Peer]:
        return {"torch": lambda given, made: made["B"].copy_(given["A"].t())}


class Fp8Rows(Rows):
    """Rows as 8-bit floats with the factor that brings them back; a step of that type is up to an eighth."""

    def outputs(self) -> Tensors:
        eight = self.torch.float8_e4m3fn
        return {
            "Y": self.empty(*self.shape, dtype=eight),
            "scale": self.empty(self.shape[0], dtype=self.torch.float32),
        }

    def wanted(self, given: Tensors) -> Tensors:
        x = given["X"].float()
        scale = x.abs().amax(dim=1).clamp(min=1e-4) / 448
        return {"Y": x / scale[:, None], "scale": scale}


class Gather(Rows):
    """Rows of a table, each of which some index asks for once in the mean."""

    def set_up(self, tokens: int, vocabulary: int, width: int, dtype: str) -> None:
        self.vocabulary = vocabulary
        super().set_up(tokens, width, dtype)

    def inputs(self) -> Tensors:
        ids = self.torch.randint(0, self.vocabulary, self.shape[:1], dtype=self.torch.int32, device=self.device)
        return {"ids": ids, "table": self.random(self.vocabulary, self.shape[1], dtype=self.dtype)}

    def wanted(self, given: Tensors) -> Tensors:
        return {"Y": given["table"][given["ids"].long()]}

    def peers(self) -> dict[str, Peer]:
        return {"torch": lambda given, made: self.torch.index_select(given["table"], 0, given["ids"], out=made["Y"])}


class Chain(Rows):
    """Y = clamp(a X + b Z, -1, 1)."""

    def set_up(self, M: int, N: int, dtype: str) -> None:
        super().set_up(M, N, dtype)
        self.work += self.read

    def inputs(self) -> Tensors:
        return {**super().inputs(), "Z": self.random(*self.shape, dtype=self.dtype)}

    def scalars(self) -> dict[str, float]:
        return {"a": 0.75, "b": -0.5}

    def wanted(self, given: Tensors) -> Tensors:
        return {"Y": (0.75 * given["X"].float() - 0.5 * given["Z"].float()).clamp(-1, 1)}


class Copy(Rows):
    """A device-to-device copy: what memory gives."""

    def wanted(self, given: Tensors) -> Tensors:
        return {"Y": given["X"]}

    def peers(self) -> dict[str, Peer]:
        return {"copy": lambda given, made: made["Y"].copy_(given["X"])}


WORKLOADS: dict[str, type[Workload]] = {
    "matmul": Matmul, "attention": Attention, "backward": Backward, "decode": Decode, "softmax": Softmax,
    "layernorm": LayerNorm, "rmsnorm": RmsNorm, "column_sum": ColumnSum, "transpose": Transpose,
    "fp8_rows": Fp8Rows, "gather": Gather, "chain": Chain, "copy": Copy,
}  # fmt: skip
