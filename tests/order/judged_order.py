"""What tilec makes of a kernel, compared with what the same text does as Python."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import as_python
import numpy as np

from tilec.driver.build import Observer, build_kernel, load_kernel
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.interp.run import run_kernel as interpret
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SIZE = 8
ARRAYS = ("A", "B", "C", "D", "R")


def inputs(text: str, seed: int) -> tuple[dict[str, Any], dict[str, int]]:
    """The kernel's arrays and scalars, of small numbers. The elements of X differ, and some are no index."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.integers(-9, 10, SIZE).astype(np.int32) for name in ARRAYS}
    arrays["X"] = rng.permutation(np.arange(-4, SIZE + 4))[:SIZE].astype(np.int32)
    arrays = {name: array for name, array in arrays.items() if f"{name}: T.Tensor" in text}
    return arrays, {"p": int(rng.integers(-9, 10)), "q": int(rng.integers(-9, 10))}


def judged(text: str, seed: int, target: str | None = None, level: int = 2) -> tuple[str, str]:
    """Return the verdict on a kernel, "agrees", "refused" or "differs", and what there is to tell of it. Without a
    target the tile program is interpreted, else its PTX is emulated."""
    arrays, scalars = inputs(text, seed)
    expected = {name: array.tolist() for name, array in arrays.items()}
    as_python.run(text, expected, scalars, seed)
    options = (
        CompileOptions(lint="off") if target is None else CompileOptions(target=target, opt_level=level, lint="off")
    )
    try:
        if target is None:
            interpret(load_kernel(SourceFile("kernel.tl", text), options, Observer()), arrays, scalars)
        else:
            made = build_kernel(SourceFile("kernel.tl", text), options, Observer())
            given = emulate.draw_arguments(made.kernel, made.manifest, seed)
            given.tensors.update(arrays)
            given.scalars.update(scalars)
            emulate.emulate_build(made, given)
            arrays = {name: given.tensors[name] for name in arrays}
    except CompileError as error:
        return "refused", "; ".join(f"{d.code}: {d.title}" for d in error.diagnostics)
    wrong = [
        f"{name}: {array.tolist()}, as Python {expected[name]}"
        for name, array in arrays.items()
        if array.tolist() != expected[name]
    ]
    return ("differs", "\n".join(wrong)) if wrong else ("agrees", "")


def found(text: str, seed: int, target: str | None = None, level: int = 2) -> tuple[str, str]:
    """Return `judged`, or the kind of a fault or of an internal error."""
    try:
        return judged(text, seed, target, level)
    except Fault as fault:
        return f"fault: {fault.kind}", str(fault)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(re.findall(r"[A-Za-z_.:]{2,}", str(error).split("(")[0]))
        return f"crash: {type(error).__name__} at {Path(place.filename).name} {words[:80]}", str(error)
