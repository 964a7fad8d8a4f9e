"""Run with an interpreter that has tilelang: python tilelang_read.py FILE.tl … prints, as JSON, what each file's kernel
takes as TileLang reads it: `[name, dtype, shape]` per parameter, no shape for a scalar, the name of an extent that is
known at launch; or the text of its refusal."""

import importlib.util
import json
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import tilelang  # noqa: F401, which the kernels import and which sets up its tvm
from tvm.tirx import PrimFunc, Var


def parameters(path):
    # A Python file of its own: TileLang reads the source of a kernel again.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{path.stem}.py"
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        loader = SourceFileLoader(f"kernel_{path.stem}", str(copy))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
    (kernel,) = (value for value in vars(module).values() if isinstance(value, PrimFunc))
    taken = []
    for var in kernel.params:
        buffer = kernel.buffer_map.get(var) if var in kernel.buffer_map else None
        if buffer is None:
            taken.append([var.name, str(var.dtype), None])
        else:
            taken.append(
                [buffer.name, str(buffer.dtype), [e.name if isinstance(e, Var) else int(e) for e in buffer.shape]]
            )
    return taken


found = {}
for name in sys.argv[1:]:
    try:
        found[name] = parameters(Path(name))
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
json.dump(found, sys.stdout)
