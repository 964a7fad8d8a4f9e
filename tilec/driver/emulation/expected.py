"""The user's own reference outputs: arrays of an `.npz` file, or results of a Python function.

The function takes numpy arrays and numbers by the names of the kernel's parameters, all or some of them. It returns the
array of the only output, a tuple of all outputs in the kernel's order, or a dictionary of arrays by name. The file is
trusted, and run as Python.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.ir import tile
from tilec.ir.elements import Array, decode_values, encode_values
from tilec.ir.types import TYPES_BY_NAME
from tilec.support import files
from tilec.support.diagnostics import CompileError, Diagnostic, raise_error

if TYPE_CHECKING:
    from tilec.driver.emulation.emulate import KernelArguments
    from tilec.ir.manifest import Manifest

Reference = Callable[[tile.Kernel, "Manifest", "KernelArguments"], dict[str, Array]]
"""Returns the expected outputs for these arguments, in storage format."""


def load_reference(text: str) -> Reference:
    """Return a function that computes expected outputs by `FILE.npz` or `FILE.py:FUNCTION`; raise an error otherwise.

    The file is read at once.
    """
    path, _, name = text.rpartition(":")
    if path.endswith(".py") and name.isidentifier():
        function = _load_function(path, name)
        return lambda kernel, manifest, given: _call_function(function, text, kernel, manifest, given)
    if not text.endswith(".npz"):
        raise_error("bad-expectation", f"{text} does not name a reference", help="give FILE.npz, or FILE.py:FUNCTION")
    data = files.read_bytes(text)
    return lambda kernel, manifest, given: _load_arrays(data, text, kernel, manifest, given)


def get_reference_path(text: str) -> str:
    """Return the path of the file in a reference of the form `FILE.npz` or `FILE.py:FUNCTION`."""
    return text if text.endswith(".npz") else text.rpartition(":")[0]


def list_outputs(kernel: tile.Kernel, manifest: Manifest) -> list[tile.Buffer]:
    """Return the tensors that the kernel writes, in the kernel's order."""
    return [p for p in kernel.params if isinstance(p, tile.Buffer) and manifest.tensor(p.name).role != "in"]


# ---- files -----------------------------------------------------------------------------------------------------------


def _load_arrays(
    data: bytes, path: str, kernel: tile.Kernel, manifest: Manifest, given: KernelArguments
) -> dict[str, Array]:
    """Return an `.npz` file's outputs by name, in storage format; raise an error if one is no output or misfits."""
    from tilec.driver.emulation.array_files import ArrayFile

    arrays = ArrayFile(data, path)
    known = _match_outputs(arrays.headers, path, kernel, manifest)
    for name, header in arrays.headers.items():
        _check_array_fits(header.dtype, header.shape, known[name], given.tensors[name], path)
    return {
        name: _encode_as_stored(arrays.read(name), known[name], given.tensors[name], path) for name in arrays.headers
    }


def _match_outputs(
    names: Collection[str], text: str, kernel: tile.Kernel, manifest: Manifest
) -> dict[str, tile.Buffer]:
    """Return the kernel's outputs by name; raise an error if `names` is empty or has a name that is no output."""
    known = {p.name: p for p in list_outputs(kernel, manifest)}
    if strays := [name for name in names if name not in known]:
        raise_error("bad-expectation", f"{text} has '{strays[0]}', which is not an output of {kernel.name}",
             help=f"its outputs are {', '.join(known)}")  # fmt: skip
    if not names:
        outputs = f"the outputs of {kernel.name} are {', '.join(known)}"
        raise_error("bad-expectation", f"{text} has no array", help=outputs)
    return known


def _check_array_fits(
    dtype: np.dtype[Any], shape: tuple[int, ...], param: tile.Buffer, stored: Array, text: str
) -> None:
    """Raise unless the array has the output's storage format, or is numeric with its shape."""
    is_bits = dtype.kind == "V" and dtype.itemsize == stored.dtype.itemsize
    if (is_bits or dtype == stored.dtype) and shape == stored.shape:
        return
    wanted = decode_values(stored, param.dtype).shape
    is_number = dtype.kind in "iufb" or dtype.name in TYPES_BY_NAME  # dtypes of ml_dtypes are of kind V
    if not is_number or shape != wanted:
        found = f"{dtype} {list(shape)}"
        raise_error("bad-expectation", f"{text}: {param.name} is {found}, expected {param.dtype} {list(wanted)}")


def _encode_as_stored(array: object, param: tile.Buffer, output: Array, text: str) -> Array:
    """Return the array in the output's storage format; raise an error if it does not fit.

    Raw bits of types that numpy lacks stay as they are.
    """
    found = np.asarray(array)
    _check_array_fits(found.dtype, found.shape, param, output, text)
    if found.dtype.kind == "V" and found.dtype.itemsize == output.dtype.itemsize:
        found = found.view(output.dtype)
    if found.dtype == output.dtype and found.shape == output.shape:
        return found
    with np.errstate(over="ignore", invalid="ignore"):
        return encode_values(found if found.dtype.kind in "iub" else found.astype(np.float64), param.dtype)


# ---- functions -------------------------------------------------------------------------------------------------------


def _load_function(path: str, name: str) -> Callable[..., object]:
    """Run a Python file, its folder importable, and return its function of this name; raise an error if it has none."""
    files.read_source(path)  # reports an unreadable file
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        namespace = _run_user_code(lambda: runpy.run_path(path, run_name="reference"), path, f"{path} cannot be run")
    finally:
        sys.path.remove(folder)
    function: Callable[..., object] | None = namespace.get(name)
    if not callable(function):
        own = [n for n, value in namespace.items() if inspect.isfunction(value) and value.__module__ == "reference"]
        functions = f"it has {', '.join(own)}" if own else None
        raise_error("bad-expectation", f"{path} has no function {name}", help=functions)
    return function


def _call_function(
    function: Callable[..., object], text: str, kernel: tile.Kernel, manifest: Manifest, given: KernelArguments
) -> dict[str, Array]:
    """Return the user's function's outputs by name; raise `bad-expectation` if they or its parameters misfit.

    It is called with the arguments that it names.
    """
    values: dict[str, object] = dict(given.scalars)
    for param in kernel.params:
        if isinstance(param, tile.Buffer):
            values[param.name] = decode_values(given.tensors[param.name], param.dtype).copy()
    wanted = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in wanted.values())
    for name, parameter in wanted.items():
        is_variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if name not in values and parameter.default is parameter.empty and not is_variadic:
            raise_error("bad-expectation", f"{text} takes '{name}', which is not a parameter of {kernel.name}",
                 help=f"its parameters are {', '.join(values)}")  # fmt: skip
    arguments = {name: value for name, value in values.items() if takes_all or name in wanted}
    results = _run_user_code(lambda: function(**arguments), get_reference_path(text), f"{text} fails")
    params = list_outputs(kernel, manifest)
    if not isinstance(results, Mapping):
        arrays = results if isinstance(results, tuple) else (results,)
        if len(arrays) != len(params):
            title = f"{text} returns {len(arrays)} arrays, but {kernel.name} has {len(params)} outputs"
            advice = f"return {', '.join(p.name for p in params)}, in this order"
            raise_error("bad-expectation", title, help=advice)
        results = {p.name: array for p, array in zip(params, arrays, strict=True)}
    known = _match_outputs(results, text, kernel, manifest)
    return {name: _encode_as_stored(array, known[name], given.tensors[name], text) for name, array in results.items()}


def _run_user_code(work: Callable[[], Any], path: str, what: str) -> Any:
    """Return the result of the user's code; turn its exception into a `CompileError` with the line of the file."""
    try:
        return work()
    except CompileError:
        raise
    except Exception as error:  # the user's code may raise anything
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == Path(path).name]
        line = frames[-1].lineno if frames else getattr(error, "lineno", None)
        where = f"{path}:{line}: " if line else ""
        notes = (f"{where}{type(error).__name__}: {error}",)
        raise CompileError(Diagnostic("bad-expectation", what, notes=notes)) from error
