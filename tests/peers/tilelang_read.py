"""Run with an interpreter that has tilelang: python tilelang_read.py FILE.tl … prints, as JSON, what the kernels of
each file take as TileLang reads them: `[name, dtype, shape]` per parameter, no shape for a scalar, the text of an
extent that is known at launch; or the text of its refusal."""

import importlib.util
import json
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import tilelang  # noqa: F401, which the kernels import and which sets up its tvm
from tvm.tirx import IntImm, PrimFunc


def parameters(path):
    # A Python file of its own: TileLang reads the source of a kernel again.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{path.stem}.py"
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        loader = SourceFileLoader(f"kernel_{path.stem}", str(copy))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
    kernels = [value for value in vars(module).values() if isinstance(value, PrimFunc)]
    return {str(kernel.attrs["global_symbol"]): taken(kernel) for kernel in kernels}


def taken(kernel):
    found = []
    for var in kernel.params:
        buffer = kernel.buffer_map.get(var) if var in kernel.buffer_map else None
        if buffer is None:
            found.append([var.name, str(var.dtype), None])
        else:
            found.append([buffer.name, str(buffer.dtype), [size(extent) for extent in buffer.shape]])
    return found


def size(extent):
    return int(extent) if isinstance(extent, IntImm) else str(extent).replace(" ", "")


found = {}
for name in sys.argv[1:]:
    try:
        found[name] = parameters(Path(name))
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
json.dump(found, sys.stdout)
