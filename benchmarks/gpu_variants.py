"""Times a workload at a real size as the compiler decided, and with one decision changed at a time.

All variants run on the same operands, of which there are as many sets as the L2 cache cannot hold; they take turns. The
results of each variant are compared with those of the first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_case import Case, cubins, summary

sys.path.insert(0, str(Path(__file__).parents[1]))

from tilec.host import runtime
from tilec.ir.manifest import Manifest, TensorInfo, extract_from_cubin
from tilec.ir.types import TYPES_BY_NAME
from tilec.support.sizes import evaluate_shape

L2_BYTES = 64 << 20
MOST_BYTES = 6 << 30
"""Of all sets of operands."""
WARM_UPS = 3
AHEAD_CYCLES = 200_000
ALLOWED = {"float8_e4m3fn": 1e-1, "float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-3}
"""By type, how far (‖a − b‖ / ‖b‖) two variants may be apart: sums come in another order."""
SIGNED = {"uint16": "int16", "uint32": "int32", "bool": "uint8"}
"""Types that PyTorch computes little with, as types of the same bits that it does."""


# ---- inputs ----------------------------------------------------------------------------------------------------------


def made(torch: Any, recipe: Mapping[str, Any], shape: tuple[int, ...], dtype: str) -> Any:
    """Return a tensor that is made as a recipe of `gpu_inputs` says."""
    to, how = getattr(torch, SIGNED.get(dtype, dtype)), recipe.get("make", "normal")
    narrow = to if dtype in ("float16", "bfloat16", "float32") else torch.float16
    match how:
        case "normal" if dtype.startswith(("float", "bfloat")):
            return torch.randn(shape, dtype=narrow, device="cuda").mul_(recipe.get("scale", 1.0)).to(to)
        case "normal" | "zero":
            return torch.zeros(shape, dtype=to, device="cuda")
        case "uniform":
            return spread(torch, recipe, shape, narrow).to(to)
        case "integers":
            return torch.randint(recipe["low"], recipe["high"], shape, dtype=to, device="cuda")
        case "full":
            return torch.full(shape, recipe["value"], dtype=to, device="cuda")
        case "values":
            return torch.tensor(recipe["values"], dtype=to, device="cuda").reshape(shape)
        case "unit":
            x = torch.randn(shape, dtype=torch.float32, device="cuda")
            return (x / x.norm(dim=-1, keepdim=True)).to(to)
        case "running":
            x = spread(torch, recipe, shape, torch.float32)
            chunks = x.reshape(*shape[:-1], -1, recipe.get("chunk", shape[-1]))
            return chunks.cumsum(-1).reshape(shape).to(to)
        case "places":
            pairs = torch.tensor([a | b << 2 for a in range(4) for b in range(a + 1, 4)], device="cuda")
            chosen = pairs[torch.randint(0, len(pairs), (*shape, 4), device="cuda")]
            word = (chosen << torch.arange(0, 16, 4, device="cuda")).sum(-1)
            return torch.where(word >= 1 << 15, word - (1 << 16), word).to(to)
        case "lists":
            rows = math.prod(shape[:-1])
            return torch.rand(rows, recipe["of"], device="cuda").argsort(-1)[:, : shape[-1]].reshape(shape).to(to)
    raise ValueError(f"no recipe makes {how}")


def spread(torch: Any, recipe: Mapping[str, Any], shape: tuple[int, ...], dtype: Any) -> Any:
    low, high = recipe["low"], recipe["high"]
    return torch.rand(shape, dtype=dtype, device="cuda").mul_(high - low).add_(low)


# ---- operands and variants -------------------------------------------------------------------------------------------


class Operands:
    """Sets of a workload's tensors, which all its variants use."""

    def __init__(self, torch: Any, case: Case, manifest: Manifest) -> None:
        self.torch, self.scalars = torch, dict(case.parameters["scalars"])
        self.tensors = [tensor for tensor in manifest.tensors if tensor.role not in ("workspace", "zeroed")]
        recipes = case.parameters["recipes"]
        first = {t.name: made(torch, recipes.get(t.name, {}), self.shape(t), t.dtype) for t in self.tensors}
        size = max(sum(x.numel() * x.element_size() for x in first.values()), 1)
        count = max(1, min(max(2, -(-2 * L2_BYTES // size) + 1), 64, MOST_BYTES // size))
        self.sets = [first] + [{name: x.clone() for name, x in first.items()} for _ in range(count - 1)]
        # What kernels add to is given back its first contents before each result that counts.
        self.before = {t.name: first[t.name].clone() for t in self.tensors if t.role == "inout"}

    def shape(self, tensor: TensorInfo) -> tuple[int, ...]:
        return tuple(evaluate_shape(tensor.shape, self.scalars))

    def outputs(self) -> dict[str, Any]:
        return {t.name: self.sets[0][t.name] for t in self.tensors if t.role in ("out", "inout")}

    def reset(self) -> None:
        """Give the outputs of the first set their contents before a launch: NaN where nothing is read."""
        for name, tensor in self.outputs().items():
            if name in self.before:
                tensor.copy_(self.before[name])
            else:
                tensor.view(self.torch.uint8).fill_(0xFF)


class Variant:
    """A cubin with a launch for each set of operands."""

    def __init__(self, torch: Any, cubin: bytes, operands: Operands) -> None:
        self.kernel, self.kept = runtime.Kernel(cubin), []
        self.calls: list[list[Callable[[int], Any]]] = []
        for held in operands.sets:
            known, calls = dict(held), []
            for tensor in self.kernel.manifest.tensors:
                if tensor.role in ("workspace", "zeroed"):
                    size = math.prod(operands.shape(tensor)) * TYPES_BY_NAME[tensor.dtype].bytes
                    known[tensor.name] = torch.zeros(
                        max(int(size), runtime.EMPTY_BYTES), dtype=torch.uint8, device="cuda"
                    )
                    self.kept.append(known[tensor.name])
                    if tensor.role == "zeroed":
                        calls.append(lambda stream, own=known[tensor.name]: own.zero_())
            addresses = {tensor.name: known[tensor.name].data_ptr() for tensor in self.kernel.manifest.tensors}
            self.calls.append([*calls, self.kernel.bound(addresses, operands.scalars)])

    def run(self, turn: int, stream: int) -> None:
        for call in self.calls[turn % len(self.calls)]:
            call(stream)


def difference(torch: Any, found: Any, wanted: Any) -> float:
    """Return how far two tensors are apart: ‖a − b‖ / ‖b‖, or of integers the share that differs. Infinite where of two
    elements only one is finite."""
    if not found.dtype.is_floating_point:
        return float((found != wanted).sum()) / max(found.numel(), 1)
    apart = norm = 0.0
    for a, b in zip(found.reshape(-1).split(1 << 26), wanted.reshape(-1).split(1 << 26), strict=True):
        a, b = a.float(), b.float()
        finite = b.isfinite()
        if bool((a.isfinite() != finite).any()):
            return math.inf
        apart += float(torch.where(finite, a - b, 0.0).double().square().sum())
        norm += float(torch.where(finite, b, 0.0).double().square().sum())
    return math.sqrt(apart / norm if norm else apart)


def fault(torch: Any, results: Mapping[str, Any], first: Mapping[str, Any], dtypes: Mapping[str, str]) -> str:
    """Return how the results differ from those of the first variant; nothing if they agree."""
    for name, tensor in results.items():
        if (apart := difference(torch, tensor, first[name])) > ALLOWED.get(dtypes[name], 0.0):
            return f"{name} differs by {apart:.1e} from the first variant's"
    return ""


class ContextLost(Exception):
    """A variant took the context with it: this process is of no more use."""


# ---- a case ----------------------------------------------------------------------------------------------------------


def result(
    folder: Path, case: Case, repeat: int, skipped: Mapping[str, str], say: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """Return what is known of a workload. `skipped` are variants that ended an earlier process, and why. Before a
    variant is tried, `say` hears of it: should the process end, that one is at fault."""
    import torch

    torch.manual_seed(1)
    labels, data = case.parameters["labels"], cubins(folder, case)
    base = labels[0]
    if base in skipped:
        return {"fault": skipped[base], "work": case.parameters["work"], "unit": case.parameters["unit"]}
    (manifest,) = extract_from_cubin(data[0])
    operands = Operands(torch, case, manifest)
    dtypes = {tensor.name: tensor.dtype for tensor in operands.tensors}
    stream = torch.cuda.current_stream().cuda_stream
    ready: dict[str, Variant] = {}
    variants: dict[str, dict[str, Any]] = {label: {"fault": why} for label, why in skipped.items()}
    first: dict[str, Any] | None = None
    try:
        for label, cubin in zip(labels, data, strict=True):
            if label in skipped:
                continue
            say({"begins": case.name, "variant": label})
            try:
                operands.reset()
                ready[label] = Variant(torch, cubin, operands)
                ready[label].run(0, stream)
                torch.cuda.synchronize()
                results = operands.outputs()
                if first is None:
                    first = {name: tensor.clone() for name, tensor in results.items()}
                variants[label] = {"fault": fault(torch, results, first, dtypes)}
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:300]
                variants[label] = {"fault": why}
                ready.pop(label, None)
                try:
                    runtime.wait_for_gpu()
                except runtime.GpuError:
                    raise ContextLost(why) from error
            if label == base and variants[base]["fault"]:
                break
        found = {"fault": variants[base]["fault"], "work": case.parameters["work"]}
        found |= {"unit": case.parameters["unit"], "ceiling": case.name, "variants": variants}
        for label, decisions in case.parameters.get("decided", {}).items():
            variants[label]["decisions"] = decisions
        if found["fault"]:
            return found
        say({"begins": case.name})
        for label, times in turns(torch, ready, repeat, stream).items():
            variants[label]["us"] = round(1000 * times.median, 3)
            if label == base:
                found["milliseconds"] = {"tilec": asdict(times)}
        return found
    finally:
        for variant in ready.values():
            with suppress(Exception):  # of a lost context
                variant.kernel.close()


def turns(torch: Any, ready: Mapping[str, Variant], repeat: int, stream: int) -> dict[str, Any]:
    """Return the times of the variants, which take turns; each turn begins with another one, since the first finds the
    GPU idle."""
    taken: dict[str, list[float]] = {label: [] for label in ready}
    Event, labels = torch.cuda.Event, list(ready)
    for turn in range(-WARM_UPS, repeat):
        first = turn * len(labels) // repeat % len(labels)
        in_turn = labels[first:] + labels[:first]
        marks = {label: (Event(enable_timing=True), Event(enable_timing=True)) for label in in_turn}
        for place, (label, (begin, end)) in enumerate(marks.items()):
            torch.cuda._sleep(AHEAD_CYCLES)
            begin.record()
            ready[label].run(turn + place, stream)
            end.record()
        torch.cuda.synchronize()
        if turn >= 0:
            for label, (begin, end) in marks.items():
                taken[label].append(begin.elapsed_time(end))
    return {label: summary(times) for label, times in taken.items()}


def once(folder: Path, case: Case) -> None:
    """Launch the first variant once, for a profiler to see."""
    import torch

    torch.manual_seed(1)
    cubin = cubins(folder, case)[0]
    (manifest,) = extract_from_cubin(cubin)
    variant = Variant(torch, cubin, Operands(torch, case, manifest))
    variant.run(0, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
