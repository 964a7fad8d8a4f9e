"""Lets a script that asks torch for CUDA run on the CPU: tensors stay there, and questions about the GPU are answered
for the target. Everything is put back when the script ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

MULTIPROCESSORS = 132
"""Of the GPU that scripts are told of: an H100."""


def is_cuda_device(value: object) -> bool:
    """Return whether a value is `"cuda"`, `"cuda:1"` or torch's device of such a name."""
    name = value if isinstance(value, str) else getattr(value, "type", None)
    is_device = isinstance(value, str) or type(value).__name__ == "device"
    return is_device and isinstance(name, str) and name.partition(":")[0] == "cuda"


def move_to_cpu(args: Sequence[object], named: dict[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
    """Return the arguments of a call of torch with each CUDA device replaced by "cpu", and memory not pinned."""
    moved = tuple("cpu" if is_cuda_device(value) else value for value in args)
    changed = {name: "cpu" if is_cuda_device(value) else value for name, value in named.items()}
    if isinstance(changed.get("device"), int) and not isinstance(changed["device"], bool):
        changed["device"] = "cpu"
    if changed.get("pin_memory"):
        changed["pin_memory"] = False
    return moved, changed


class NoEvent:
    """Serves `torch.cuda.Event` and `Stream`: everything has happened, and no time is known."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def elapsed_time(self, other: object) -> float:
        """Return nan, since no time is measured."""
        return float("nan")

    def query(self) -> bool:
        """Return True: all work is done at once."""
        return True

    def do_nothing(self, *_: object, **__: object) -> None:
        """Accept and ignore any call that queues work or waits for it."""

    record = wait = synchronize = wait_stream = wait_event = record_event = do_nothing


def list_answers(capability: tuple[int, int]) -> dict[str, object]:
    """Return by name what `torch.cuda` is replaced by: functions that describe one GPU of this capability, or do
    nothing. No two names have one function: torch's compiler has a table of its functions, with a rule for each.
    """
    properties = SimpleNamespace(
        name="emulated by tilec", major=capability[0], minor=capability[1], multi_processor_count=MULTIPROCESSORS,
        total_memory=80 << 30, shared_memory_per_block_optin=227 << 10, L2_cache_size=50 << 20, warp_size=32,
    )  # fmt: skip

    def return_value(value: object) -> Callable[..., object]:
        return lambda *_, **__: value

    ignored = (
        "synchronize", "empty_cache", "set_device", "init", "manual_seed", "manual_seed_all", "reset_peak_memory_stats",
    )  # fmt: skip
    return {
        "is_available": return_value(True), "is_initialized": return_value(True), "device_count": return_value(1),
        "current_device": return_value(0), "get_device_capability": return_value(capability),
        "get_device_properties": return_value(properties), "get_device_name": return_value(properties.name),
        **{name: return_value(None) for name in ignored}, "max_memory_allocated": return_value(0),
        "memory_allocated": return_value(0), "Event": NoEvent, "Stream": NoEvent,
        "current_stream": return_value(NoEvent()), "default_stream": return_value(NoEvent()),
        "stream": return_value(nullcontext()), "device": nullcontext,
    }  # fmt: skip


@contextmanager
def answer_for_gpu(torch: Any, capability: tuple[int, int]) -> Iterator[None]:
    """Patch `torch.cuda` to report a GPU, and keep all tensors on the CPU, for the `with`; undo both after it."""
    places = [(torch.cuda, name, value) for name, value in list_answers(capability).items()]
    if (generator := getattr(torch, "Generator", None)) is not None:
        places.append((torch, "Generator", _make_generator_class(generator)))
    if (set_default := getattr(torch, "set_default_device", None)) is not None:
        places.append(
            (torch, "set_default_device", lambda device: set_default("cpu" if is_cuda_device(device) else device))
        )
    before = [(owner, name, owner.__dict__.get(name, owner)) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)
    try:
        with _make_mode(torch)():
            yield
    finally:
        for owner, name, former in before:
            if former is owner:  # it had no such name
                delattr(owner, name)
            else:
                setattr(owner, name, former)


def _make_generator_class(generator: Any) -> Any:
    """Return a subclass of torch's random generator that is always on the CPU, whatever device is asked for."""

    class CpuGenerator(generator):
        """A generator on the CPU."""

        def __new__(cls, device: object = "cpu") -> Any:
            return super().__new__(cls, "cpu")

    return CpuGenerator


def _make_mode(torch: Any) -> Any:
    """Return a class of torch's function mode in which every call uses the CPU and tensors claim to be on a GPU."""
    own = {torch.Tensor.cuda, getattr(torch.Tensor, "pin_memory", None)}
    is_cuda = torch.Tensor.is_cuda.__get__

    class StayOnCpu(torch.overrides.TorchFunctionMode):
        """Changes the device in every call of torch."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in own:
                return args[0]
            if func == is_cuda:
                return True
            moved, named = move_to_cpu(args, kwargs or {})
            return func(*moved, **named)

    return StayOnCpu
