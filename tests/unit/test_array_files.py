"""Files of arrays: a header is compared with what is wanted before any data is unpacked."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate, emulate_ptx, expected
from tilec.driver.emulation.array_files import ArrayFile
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

MEGABYTES = 1 << 20
KERNEL = """
import tilelang.language as T

n = T.dynamic("n")


@T.prim_func
def doubled(A: T.Tensor((n,), "float32"), B: T.Tensor((128,), "float32"), s: "float32"):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(128):
            B[i] = A[i] * s
"""


@cache
def _built() -> Build:
    return build_kernel(SourceFile("k.tl", KERNEL), CompileOptions(), Observer())


def _packed(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


BOMB = np.zeros(16 * MEGABYTES, np.uint8)
SMALL = {"A": np.arange(8, dtype=np.float32), "s": np.float32(2)}


def _read_inputs(data: bytes) -> object:
    return emulate.read_arguments(data, "in.npz", _built().kernel, _built().manifest)


def _read_expected(data: bytes) -> object:
    made, path = _built(), Path("ref.npz")
    path.write_bytes(data)
    given = emulate.draw_arguments(made.kernel, made.manifest, 0, {"n": 128})
    return expected.load_reference(str(path))(made.kernel, made.manifest, given)


@pytest.mark.parametrize(
    ("read", "arrays", "says"),
    [
        (_read_inputs, {**SMALL, "A": BOMB}, "A is uint8"),
        (_read_inputs, {**SMALL, "B": BOMB.view(np.float32)}, "B is float32"),
        (_read_inputs, {**SMALL, "s": BOMB.view(np.float32)}, "s is float32"),
        (_read_inputs, {**SMALL, "C": BOMB}, "not a parameter of doubled"),
        (_read_expected, {"B": BOMB.view(np.float32)}, "B is float32"),
        (_read_expected, {"B": np.zeros(128, np.float32), "C": BOMB}, "not an output of doubled"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_unpacked(
    read: Callable[[bytes], object],
    arrays: dict[str, Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    _built()
    data = _packed(**arrays)
    assert len(data) < MEGABYTES
    tracemalloc.start()
    try:
        with pytest.raises(CompileError, match=says):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * MEGABYTES
    finally:
        tracemalloc.stop()


def test_an_argument_of_foreign_ptx_unpacks_the_array_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.npz").write_bytes(_packed(A=SMALL["A"], bomb=BOMB))
    tracemalloc.start()
    try:
        first, again = emulate_ptx.parse_arguments(["in.npz:A", "in.npz:A"]).values
        assert tracemalloc.get_traced_memory()[1] < 2 * MEGABYTES
    finally:
        tracemalloc.stop()
    assert first is again and np.array_equal(first, SMALL["A"])


def test_every_kind_of_array_is_read_as_it_was_saved() -> None:
    arrays = {
        "number": np.float64(3),
        "empty": np.zeros((0, 4), np.int8),
        "columns": np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
        "swapped": np.arange(4, dtype=">i4"),
        "void": np.zeros(3, "V2"),
    }
    file = ArrayFile(_packed(**arrays), "in.npz")
    assert list(file.headers) == list(arrays)
    for name, array in arrays.items():
        found, header = file.read(name), file.headers[name]
        assert found.dtype == header.dtype == array.dtype
        assert found.shape == header.shape == np.shape(array)
        assert found.tobytes() == array.tobytes()
