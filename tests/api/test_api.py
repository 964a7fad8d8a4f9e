"""Kernels called from Python: in the emulator with numpy, and on the GPU as the driver is asked for it."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
from tilec.host import api, runtime
from tilec.support.diagnostics import CompileError, Diagnostic, Label
from tilec.support.source import Span

SAMPLES = Path(__file__).parents[2] / "samples"

SCALED = """\
import tilelang.language as T
factor = 2.0
@T.prim_func
def scaled(A: T.Tensor((T.dynamic("m"), 64), "float32"), B: T.Tensor((T.dynamic("m"), 64), "float32"), by: T.float32):
    with T.Kernel(T.ceildiv(T.dynamic("m"), 4), threads=64) as bx:
        for i, j in T.Parallel(4, 64):
            if bx * 4 + i < T.dynamic("m"):
                B[bx * 4 + i, j] = A[bx * 4 + i, j] * by * factor
"""


NIBBLES = """\
import tilelang.language as T
@T.prim_func
def nibbles(A: T.Tensor((64,), "int4"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[i]
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


# ---- in the emulator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_gemm_in_the_emulator(target: str) -> None:
    kernel = tilec.compile(SAMPLES / "gemm.tl", target=target, device="emulator", M=128, N=128, K=128)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((128, 128)).astype(np.float16) for _ in "ab")
    c = np.zeros((128, 128), np.float16)
    kernel(a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=2e-3, atol=2e-2)
    assert kernel.manifest.target == target
    assert ".entry gemm" in kernel.ptx


def test_text_sizes_and_scalars() -> None:
    kernel = tilec.compile(SCALED, device="emulator", factor=3.0)
    assert kernel.signature() == "scaled(A, B, by, [m])"
    a = np.arange(6 * 64, dtype=np.float32).reshape(6, 64)
    for call in (lambda b: kernel(a, b, 0.5), lambda b: kernel(a, b, 0.5, 6), lambda b: kernel(B=b, A=a, by=0.5)):
        b = np.zeros_like(a)
        call(b)
        np.testing.assert_array_equal(b, a * 1.5)


def test_scales_of_ml_dtypes() -> None:
    text = """import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((64,), "float8_e8m0fnu"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = T.cast(A[i], "float32")
"""
    a = (2.0 ** np.arange(-32, 32)).astype(ml_dtypes.float8_e8m0fnu)
    for given in (a, a.view(np.uint8)):
        b = np.zeros(64, np.float32)
        tilec.compile(text, device="emulator")(given, b)
        np.testing.assert_array_equal(b, a.astype(np.float32))


def test_an_array_of_nothing() -> None:
    tilec.compile(SCALED, device="emulator")(np.zeros((0, 64), np.float32), np.zeros((0, 64), np.float32), 1.0)


class Lent:
    """An array of another library, which lends its memory by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_arrays_of_any_library_are_written_in_place() -> None:
    kernel = tilec.compile(SCALED, device="emulator")
    a, b = np.ones((4, 64), np.float32), np.zeros((4, 64), np.float32)
    kernel(Lent(a), Lent(b), 4.0)
    assert (b == 8.0).all()


HALF = """\
import tilelang.language as T
@T.prim_func
def doubled(A: T.Tensor((64,), "bfloat16")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            A[i] = A[i] + A[i]
"""


def test_bfloat16_as_bits() -> None:
    a = np.full(64, 0x3F80, np.uint16)  # 1.0
    tilec.compile(HALF, device="emulator")(a)
    assert (a == 0x4000).all()  # 2.0


@pytest.mark.parametrize("bytes_are", [np.uint8, np.int8])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_two_numbers_in_a_byte_of_either_sign(dtype: str, bytes_are: Any) -> None:
    kernel = tilec.compile(NIBBLES.replace("int4", dtype), device="emulator")
    numbers = np.arange(64) % 16 - (8 if dtype == "int4" else 0)
    packed = ((numbers[0::2] & 15) | (numbers[1::2] & 15) << 4).astype(np.uint8).view(bytes_are)
    found = np.zeros(64, np.int32)
    kernel(packed, found)
    assert np.array_equal(found, numbers)
    with pytest.raises(TypeError, match="A is int16, the kernel takes uint8"):
        kernel(packed.astype(np.int16), found)
    with pytest.raises(TypeError, match="A is int8, the kernel takes uint8"):  # where each byte is a number
        tilec.compile(NIBBLES.replace("int4", "uint8"), device="emulator")(np.zeros(64, np.int8), found)


def test_types_that_numpy_has_from_others() -> None:
    kernel = tilec.compile(HALF, device="emulator")
    a = np.full(64, 1.5, ml_dtypes.bfloat16)
    kernel(a)
    assert (a == 3.0).all()
    narrow = api.view_array(np.zeros(64, ml_dtypes.float4_e2m1fn))
    assert narrow is not None and narrow.dtype == "float4_e2m1fn, one in a byte", "those of a kernel lie two in one"


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tilec.compile(SCALED, device="emulator")


ROWS = np.ones((4, 64), np.float32)


@pytest.mark.parametrize(
    ("arguments", "named", "kind", "said"),
    [
        ((ROWS, ROWS), {}, TypeError, r"scaled\(\) missing 1 required argument: 'by'; it is scaled\(A, B, by, \[m\]\)"),
        ((ROWS, ROWS, 1.0, 4, 5), {}, TypeError, r"scaled\(\) takes 4 positional arguments but 5 were given"),
        ((ROWS, ROWS, 1.0), {"C": ROWS}, TypeError, "got an unexpected keyword argument 'C'"),
        ((ROWS, 3, 1.0), {}, TypeError, "B of scaled must be an array, not int"),
        ((ROWS, ROWS, "much"), {}, TypeError, "by of scaled is a number, not str"),
        ((ROWS, ROWS.astype(np.float64), 1.0), {}, TypeError, "B is float64, the kernel takes float32"),
        ((ROWS, np.ones((4, 32), np.float32), 1.0), {}, ValueError, r"B has the shape \[4, 32\], .* takes \[4, 64\]"),
        ((ROWS[0], ROWS[0], 1.0), {}, ValueError, r"A has the shape \[64\], the kernel takes \[m, 64\]"),
        ((ROWS, np.ones((5, 64), np.float32), 1.0), {}, ValueError, r"m is 4 by A.shape\[0\] = 4, but 5 by B"),
        ((ROWS, ROWS, 1.0, 7), {}, ValueError, "m is given as 7, but the arrays make it 4"),
        (
            (ROWS, np.ones((64, 4), np.float32).T, 1.0),
            {},
            ValueError,
            r"B has the strides \[1, 4\], .* takes \[64, 1\]",
        ),
    ],
)
def test_arguments_that_do_not_fit(
    scaled: Any, arguments: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], said: str
) -> None:
    before = ROWS.copy()
    with pytest.raises(kind, match=said):
        scaled(*arguments, **named)
    np.testing.assert_array_equal(before, ROWS)


WHOLE = """\
import tilelang.language as T
@T.prim_func
def shifted(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), by: T.int32, up: T.uint8, at: T.float32):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[i] * at + by + up
"""


@pytest.fixture(scope="module")
def shifted() -> Any:
    return tilec.compile(WHOLE, device="emulator", switches={"scheduler": "heuristic"})


def test_numbers_are_taken_as_they_are_or_refused(shifted: Any) -> None:
    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    shifted(a, b, np.int64(-3), np.uint8(255), np.float32(2.0))
    np.testing.assert_array_equal(b, a * 2 + 252)
    shifted(a, b, True, 0, 2)
    np.testing.assert_array_equal(b, a * 2 + 1)
    for by, up, said in (
        (1.5, 0, "by of shifted is int32, not 1.5"),
        (np.float64(2.0), 0, "by of shifted is int32, not 2.0"),
        (1 << 31, 0, "by of shifted is int32, and 2147483648 does not fit"),
        (0, -1, "up of shifted is uint8, and -1 does not fit"),
        (np.zeros(1), 0, "by of shifted is a number, not ndarray"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(said)):
            shifted(a, b, by, up, 1.0)


def test_arrays_that_may_only_be_read(shifted: Any, tmp_path: Path) -> None:
    np.arange(64, dtype=np.float32).tofile(tmp_path / "a")
    a, b = np.memmap(tmp_path / "a", np.float32, mode="r"), np.zeros(64, np.float32)
    shifted(a, b, 1, 0, 1.0)
    np.testing.assert_array_equal(b, a + 1)
    with pytest.raises(ValueError, match="B of shifted is written, and the array is read-only"):
        shifted(b, a, 1, 0, 1.0)


def _odd(array: Any) -> Any:
    data = np.zeros(array.nbytes + 8, np.uint8)
    start = 8 - data.ctypes.data % 16
    return data[start % 16 : start % 16 + array.nbytes].view(array.dtype)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(64, ">f4"), "A is >f4, the kernel takes float32"),
        (np.zeros(64, np.complex64), "A is complex64"),
        (np.zeros(64, [("a", "f4")]), "A is void32"),
        (
            np.zeros(64, [("a", "f4"), ("b", "u1")])["a"],
            "A of shifted cannot be used: its elements are .5. bytes apart",
        ),
        (np.zeros(64, np.float32)[::-1], "A has the strides .-1."),
        (_odd(np.zeros(64, np.float32)), "A of shifted does not begin at a multiple of 16 bytes"),
    ],
    ids=["endian", "complex", "record", "member", "backwards", "alignment"],
)
def test_arrays_as_no_kernel_takes_them(shifted: Any, array: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        shifted(array, np.zeros(64, np.float32), 0, 0, 1.0)


class Withheld(Lent):
    def __dlpack__(self) -> object:
        raise BufferError("not while it is being used")


def test_what_its_owner_does_not_lend(shifted: Any) -> None:
    a = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="A of shifted cannot be used: not while it is being used"):
        shifted(Withheld(a), a, 0, 0, 1.0)
    with pytest.raises(TypeError, match=r"shifted\(\) got multiple values for argument 'A'"):
        shifted(a, a, 0, 0, 1.0, A=a)


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"factor": [1]}, TypeError, "factor is a number, a truth value or a string, not list"),
        ({"switches": {"schedular": "exact"}}, ValueError, "there is no switch 'schedular'; did you mean 'scheduler'?"),
        ({"switches": {"scheduler": "fast"}}, ValueError, "scheduler is 'exact' or 'heuristic', not 'fast'"),
        ({"switches": {"opt_level": 7}}, ValueError, "opt_level must be a number from 0 to 3, not 7"),
        ({"switches": {"overlap": "no"}}, ValueError, "overlap is False or True, not 'no'"),
        ({"switches": {"target": "sm_80"}}, ValueError, "target is not a switch: it is an argument of compile itself"),
    ],
)
def test_switches_and_constants_that_are_wrong(given: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        tilec.compile(SCALED, device="emulator", **given)


def test_a_switch_by_the_name_that_it_had() -> None:
    with pytest.warns(DeprecationWarning, match="the switch dependent_launch is now called pdl"):
        tilec.compile(SCALED, device="emulator", switches={"dependent_launch": False})


def test_a_code_by_the_name_that_it_had() -> None:
    with pytest.warns(DeprecationWarning, match="the code never-set is now called uninitialised-read"):
        tilec.compile(SCALED, device="emulator", switches={"silenced": ("never-set",)})


def test_constants_of_numpy() -> None:
    a, b = np.ones((4, 64), np.float32), np.zeros((4, 64), np.float32)
    tilec.compile(SCALED, device="emulator", factor=np.float32(3.0))(a, b, 1.0)
    assert (b == 3.0).all()


def test_what_programs_use_is_listed() -> None:
    assert {"Kernel", "compile", "load"} <= set(dir(tilec)) & set(tilec.__all__)


def test_a_mistake_in_the_kernel_shows_its_place() -> None:
    with pytest.raises(CompileError, match=r"\[unknown-define\]"):
        tilec.compile(SCALED, device="emulator", nothing=3)
    with pytest.raises(tilec.CompileError) as caught:
        tilec.compile(SCALED.replace("* by", "* nowhere"), device="emulator")
    first, place, *drawn = str(caught.value).splitlines()
    assert first.startswith("error[unknown-name]: ") and place.strip().startswith("--> kernel.tl:8:")
    assert any("^^^^^^^" in line for line in drawn)


def test_a_traceback_shows_the_refusal_and_nothing_of_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "mine.tl"
    path.write_text(SCALED.replace("* by", "* nowhere"))
    for call in (lambda: tilec.compile(path), lambda: tilec.load(b"no cubin"), lambda: tilec.compile("nowhere.tl")):
        with pytest.raises(tilec.CompileError) as caught:
            call()
        text = "".join(traceback.format_exception(caught.value))
        assert text.count("  File ") == 3, "this function, the lambda and the function of tilec"
        assert "\ntilec.CompileError: " in text
        assert "During handling" not in text
    with pytest.raises(tilec.CompileError) as caught:
        tilec.compile(path)
    assert (caught.value.file, caught.value.line) == (str(path), 8)
    assert caught.value.diagnostics[0].primary.span.file == str(path)
    with pytest.raises(tilec.CompileError) as caught:
        tilec.load(b"no cubin")
    assert (caught.value.file, caught.value.line) == (None, None)


def test_a_kernel_shows_its_parameters() -> None:
    kernel = tilec.compile(SCALED, device="emulator")
    assert str(inspect.signature(kernel)) == "(A, B, by, *, m=None, stream=None) -> None"
    a, b = np.ones((4, 64), np.float32), np.zeros((4, 64), np.float32)
    kernel(*inspect.signature(kernel).bind(a, b, by=2.0).args)
    assert (b == 4.0).all()


def test_a_mistake_that_is_not_drawn_has_its_line() -> None:
    place = Label(Span(7, 3, 7, 4), "here")
    twice = Diagnostic("wrong-rank", "2 indices for 1 dimension", place)
    assert str(CompileError(twice, twice)) == "[wrong-rank] 2 indices for 1 dimension (line 7)"


def test_a_mistake_survives_a_queue_between_processes() -> None:
    with pytest.raises(CompileError) as caught:
        tilec.compile(SCALED, device="emulator", nothing=3)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, CompileError)
    assert (str(again), again.diagnostics) == (str(caught.value), caught.value.diagnostics)


def test_a_notebook_shows_the_schedule() -> None:
    kernel = tilec.compile(SAMPLES / "gemm.tl", target="sm_90a")
    shown = kernel._repr_html_()
    assert "<b>gemm(A, B, C)</b> for sm_90a" in shown and "an interval of 512 cycles, optimal" in shown
    assert shown.count("<table>") == shown.count("</table>") == 4 and "<td>copy A → A_shared</td>" in shown
    loaded = tilec.load(kernel.cubin)._repr_html_()
    assert loaded.startswith("<div><b>gemm(A, B, C)</b> for sm_90a<table>") and loaded.count("<table>") == 2
    assert "<td>A</td><td>float16[1024, 1024]</td><td>in</td>" in loaded
    assert repr(kernel).startswith("<tilec kernel gemm(A: float16[1024, 1024], B: ")


ODD = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((512, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        s = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=3, stage=[0, 1], order=[0, 1], sync=[[], []]):
            T.copy(A[k * 64, 0], s)
            T.gemm(s, s, c)
        T.copy(c, C)
"""


def test_warnings_are_pythons() -> None:
    switches = {"silenced": ("sync-incomplete",)}
    with pytest.warns(UserWarning, match=r"warning\[depth-override\]: [^\0]*--> kernel.tl:8:"):
        tilec.compile(ODD, target="sm_80", switches=switches)


PARTIAL = """\
import tilelang.language as T
@T.prim_func
def partial(A: T.Tensor((200,), "float32"), B: T.Tensor((200,), "float32")):
    with T.Kernel(200 // 128, threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i]
"""


def test_the_emulator_warns_of_unwritten_elements_and_leaves_them_alone() -> None:
    kernel = tilec.compile(PARTIAL, device="emulator")
    a, b = np.ones(200, np.float32), np.full(200, 7, np.float32)
    with pytest.warns(UserWarning, match="no block wrote 72 of the 200 elements of B: check the grid") as found:
        kernel(a, b)
    assert found[0].filename == __file__
    np.testing.assert_array_equal(b, np.where(np.arange(200) < 128, 1, 7))


def test_the_emulator_warns_of_an_output_that_is_an_input() -> None:
    kernel = tilec.compile(PARTIAL, device="emulator")
    a = np.arange(200, dtype=np.float32)
    with pytest.warns(UserWarning, match="B of partial, which is written, shares memory with A") as found:
        kernel(a, a)
    assert [one.filename for one in found] == [__file__]
    np.testing.assert_array_equal(a, np.arange(200))


@pytest.mark.parametrize(
    ("source", "constants", "said"),
    [
        (SCALED, {"by": 2.0}, "by is not a constant of the file[^-]*by is a parameter of the kernel: pass it when you"),
        (SCALED, {"factr": 2.0}, r"error\[unknown-define\]: factr is not a constant [^\0]*did you mean factor\?"),
        (SAMPLES / "gemn.tl", {}, r"gemn.tl does not exist[^\0]*did you mean .*gemm.tl\?"),
        ('extern "C" __global__ void k() {\n}\n', {}, "is CUDA C\\+\\+, not a kernel file"),
        (SCALED.replace("by * factor", "A[:, :, None]"), {}, r"3 indices for 2 dimensions[^\0]*remove None"),
        (SCALED.replace("by * factor", "np.inf"), {}, r"np.inf is not known [^\0]*T.infinity\("),
        (
            SCALED.replace("by * factor", "T.cast(by, np.float16)"),
            {},
            r"`np` is not defined[^\0]*write \"float16\"",
        ),
        (SCALED.replace("by * factor", "T.threadIdx.x"), {}, r"T.threadIdx is not supported[^\0]*T.get_thread_binding"),
    ],
)
def test_refusals_are_in_words_of_python(source: Any, constants: dict[str, Any], said: str) -> None:
    with pytest.raises(CompileError) as caught:
        tilec.compile(source, device="emulator", **constants)
    shown = caught.value.shown or "\n".join(f"{d.title}: {d.help}" for d in caught.value.diagnostics)
    assert re.search(said, shown) and "-D" not in shown


def test_a_function_is_no_kernel() -> None:
    with pytest.raises(TypeError, match="a kernel is the name of a file, or the text of one, not function"):
        tilec.compile(lambda: None)


def test_words_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="device is 'cuda' or 'emulator', not 'cpu'"):
        tilec.compile(SCALED, device="cpu")
    with pytest.raises(AttributeError, match="no attribute 'compiled'"):
        _ = tilec.compiled


# ---- cubins ----------------------------------------------------------------------------------------------------------


def test_a_cubin_is_loaded_with_its_manifest(tmp_path: Path) -> None:
    kernel = tilec.compile(SAMPLES / "gemm.tl", target="sm_90a")
    (tmp_path / "k.cubin").write_bytes(kernel.cubin)
    for loaded in (
        tilec.load(tmp_path / "k.cubin"),
        tilec.load(str(tmp_path / "k.cubin"), "gemm"),
        tilec.load(kernel.cubin),
    ):
        assert loaded.manifest == kernel.manifest
        shapes = ", ".join(f"{name}: float16[1024, 1024]" for name in "ABC")
        assert repr(loaded) == f"<tilec kernel gemm({shapes}) for sm_90a>"
    with pytest.raises(ValueError, match="the cubin has no kernel other, but gemm"):
        tilec.load(kernel.cubin, "other")
    with pytest.raises(CompileError, match="not-a-cubin"):
        tilec.load(b"no cubin")


def test_ptx_is_loaded_for_the_emulator(tmp_path: Path) -> None:
    kernel = tilec.compile(SCALED, target="sm_90a")
    (tmp_path / "k.ptx").write_text(kernel.ptx)
    loaded = tilec.load(tmp_path / "k.ptx", device="emulator")
    assert (loaded.manifest, loaded.ptx, loaded.cubin) == (kernel.manifest, kernel.ptx, None)
    a, b = np.ones((4, 64), np.float32), np.zeros((4, 64), np.float32)
    loaded(a, b, 1.5)
    assert (b == 3.0).all()
    with pytest.raises(
        ValueError, match="the emulator does not run machine code, and this is a cubin: give load the PTX"
    ):
        tilec.load(kernel.cubin, device="emulator")
    with pytest.raises(ValueError, match="A of scaled must be on the GPU; a cubin does not run on the CPU"):
        tilec.load(kernel.cubin)(a, b, 1.5)
    with pytest.raises(CompileError, match="ptx-syntax"):
        tilec.load(b"no ptx", device="emulator")
    with pytest.raises(ValueError, match="device is 'cuda' or 'emulator', not 'gpu'"):
        tilec.load(kernel.cubin, device="gpu")


def test_without_a_gpu_the_target_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "has_gpu", lambda: False)
    assert tilec.compile(SCALED).manifest.target == "sm_90a"
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    # The code of sm_120a runs on 12.0 alone, that of sm_80 on any 8.x, and nothing here on 7.5.
    for capability, target in (
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((9, 0), "sm_90a"),
        ((12, 0), "sm_120a"),
        ((12, 1), "sm_90a"),
        ((7, 5), "sm_90a"),
    ):
        monkeypatch.setattr(runtime, "compute_capability", lambda found=capability: found)
        assert tilec.compile(SCALED).manifest.target == target


# ---- on a GPU --------------------------------------------------------------------------------------------------------


class OnGpu:
    """An array of the GPU by `__cuda_array_interface__`: like a numpy array, at an address that nobody reads."""

    def __init__(self, array: Any, address: int) -> None:
        interface = array.__array_interface__
        self.__cuda_array_interface__ = {**interface, "data": (address, False), "version": 3}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """cuda-python's driver, of which every call succeeds and the interesting ones are written down."""
    from cuda.bindings import driver

    seen: list[Any] = []
    done = driver.CUresult.CUDA_SUCCESS

    def answer(name: str, *values: Any) -> None:
        def called(*given: Any) -> tuple[Any, ...]:
            seen.append((name, *(int(g) if isinstance(g, driver.CUstream) else g for g in given)))
            return done, *values

        monkeypatch.setattr(driver, name, called)

    for name, *values in (
        ("cuInit",), ("cuDeviceGet", 5), ("cuDevicePrimaryCtxRetain", "context"), ("cuCtxSetCurrent",),
        ("cuCtxPushCurrent",), ("cuCtxPopCurrent", "context"), ("cuModuleLoadData", "module"),
        ("cuModuleGetFunction", "function"), ("cuFuncSetAttribute",), ("cuMemAllocAsync", 0x9000),
        ("cuMemsetD8Async",), ("cuMemFreeAsync",),
    ):  # fmt: skip
        answer(name, *values)

    def launch(config: Any, function: Any, packed: int, extra: int) -> tuple[Any]:
        seen.append(("launch", config.gridDimX, int(config.hStream)))
        return (done,)

    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    return seen


def test_a_call_launches_on_the_callers_stream(driver: list[Any]) -> None:
    kernel = tilec.compile(SCALED, target="sm_90a")
    a = OnGpu(np.zeros((10, 64), np.float32), 0x1000)
    streams = (
        7,
        SimpleNamespace(cuda_stream=8),
        SimpleNamespace(ptr=9),
        SimpleNamespace(__cuda_stream__=lambda: (0, 10)),
    )
    for stream in streams:
        kernel(a, a, 1.0, stream=stream)
    assert [call for call in driver if call[0] == "launch"] == [("launch", 3, s) for s in (7, 8, 9, 10)]
    assert sum(call[0] == "cuModuleLoadData" for call in driver) == 1, "it is loaded once"
    pushed = [call[0] for call in driver if call[0] in ("cuCtxPushCurrent", "launch", "cuCtxPopCurrent")]
    assert pushed == ["cuCtxPushCurrent", "launch", "cuCtxPopCurrent"] * 4, "the caller's context is left as it was"
    with pytest.raises(TypeError, match="stream is a number or a stream, not str"):
        kernel(a, a, 1.0, stream="main")


def test_scratch_memory_lives_on_the_stream(driver: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "encode_tensor_map", lambda *_: SimpleNamespace(getPtr=lambda: 0))
    kernel = tilec.compile(SAMPLES.parent / "tests" / "kernels" / "split_k_meeting.tl", target="sm_90a")
    arrays = [
        OnGpu(np.zeros(t.shape, t.dtype), 0x1000) for t in kernel.manifest.tensors if t.name in kernel.parameters()
    ]
    kernel(*arrays, stream=3)
    lent = [t for t in kernel.manifest.tensors if t.role in ("workspace", "zeroed")]
    order = [call[0] for call in driver if "Async" in call[0] or call[0] == "launch"]
    asked = [name for t in lent for name in ("cuMemAllocAsync", *(["cuMemsetD8Async"] * (t.role == "zeroed")))]
    assert lent
    assert order == [*asked, "launch", *["cuMemFreeAsync"] * len(lent)]
    assert {call[-1] for call in driver if "Async" in call[0]} == {3}


def test_arrays_must_be_where_the_kernel_runs(driver: list[Any]) -> None:
    kernel = tilec.compile(SCALED, target="sm_90a")
    host = np.zeros((4, 64), np.float32)
    with pytest.raises(ValueError, match="A of scaled must be on the GPU; compile for device='emulator'"):
        kernel(host, host, 1.0)
    emulated = tilec.compile(SCALED, device="emulator")
    with pytest.raises(ValueError, match="A of scaled must be on the CPU, since the emulator runs there"):
        emulated(OnGpu(host, 0x1000), host, 1.0)
    assert not any(call[0] == "launch" for call in driver)


# ---- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "bool"])
def test_what_dlpack_and_the_interface_say(dtype: str) -> None:
    array = np.zeros((4, 6, 8), dtype)[1:, ::2, 4:]
    by_dlpack, by_interface = (
        tilec.host.api.view_array(array),
        tilec.host.api.view_array(OnGpu(array, array.ctypes.data)),
    )
    assert by_dlpack is not None and by_interface is not None
    for found in (by_dlpack, by_interface):
        assert (found.address, found.dtype, found.shape) == (array.ctypes.data, dtype, (3, 3, 4))
        assert found.strides == (48, 16, 1)
    assert (by_dlpack.device, by_interface.device) == ((1, 0), (2, 0))
    by_dlpack.as_numpy(array.dtype)[...] = 1
    assert array.all()
    assert api.view_array(3.0) is None
