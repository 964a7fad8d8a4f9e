"""Describes the sizes that a function of a C header takes: the dimensions of tensors that each one is, and its unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilec.ir.manifest import Manifest
from tilec.support.sizes import Size, format_size, scalar_names


def describe_sizes(manifest: Manifest, spelled: Mapping[str, str]) -> str:
    """Return a comment that says what each size is; empty if there are none. `spelled` are the names in C."""
    lines = [f" *   {spelled[name]}: {_description(name, manifest, spelled)}\n" for name in manifest.size_scalars()]
    return f"/* Sizes, in this order:\n{''.join(lines)} */\n" if lines else ""


def _description(name: str, manifest: Manifest, spelled: Mapping[str, str]) -> str:
    places = dict.fromkeys(_places(name, manifest, spelled))
    return ", ".join(places) or "what the number of blocks is computed from"


def _places(name: str, manifest: Manifest, spelled: Mapping[str, str]) -> Iterator[str]:
    """Yield each dimension and stride that is computed from a size, with the unit in which the size counts it."""
    for tensor in manifest.tensors:
        if tensor.name not in spelled:
            continue
        for axis, size in enumerate(tensor.shape):
            if name in scalar_names(size):
                what = f"{_dimension(axis, len(tensor.shape))} of {spelled[tensor.name]}"
                yield _in_units(what, size)
        for axis, size in enumerate(tensor.strides or ()):
            if name in scalar_names(size):
                yield _in_units(f"stride {axis} of {spelled[tensor.name]}", size)


def _dimension(axis: int, rank: int) -> str:
    if rank > 2:
        return f"dimension {axis}"
    return "elements" if rank == 1 else ("rows", "columns")[axis]


def _in_units(what: str, size: Size) -> str:
    """Return `columns of w / 8` for a size that counts eights; what is no multiple of it is shown as it is computed."""
    match size:
        case str():
            return what
        case ("mul", str(), int(factor)) | ("mul", int(factor), str()):
            return f"{what} / {factor}"
        case _:
            return f"{what}, which are {format_size(size)}"
