"""Headers for C and C++: they compile, and ask the driver for what the launcher in Python asks it for.

A driver of our own stands behind both (`fake_cuda.c`; here, in place of cuda-python's functions) and writes it down.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from command import GEMM, SAMPLES, VECTOR_ADD, tilec
from native import CUDA, STRICT, done

from tilec.host import header, runtime
from tilec.ir.manifest import Manifest, PointerParam, ScalarParam, extract_from_cubin

HERE = Path(__file__).parent


pytestmark = pytest.mark.skipif(CUDA is None or shutil.which("g++") is None, reason="no cuda.h, or no compiler")


def run(body: str, header: str, library: Path, parameters: int = 0, sm: str = "90") -> list[Any]:
    """What the driver is asked for, and what is printed, by a C program with the header."""
    lines = ["#include <stdio.h>", f'#include "{header}"', "int main(void) {", body, "    return 0;", "}", ""]
    Path("main.c").write_text("\n".join(lines))
    done("gcc", "-std=c11", *STRICT, "main.c", "-o", "main", f"-Wl,-rpath,{library}")
    said = done("./main", FAKE_PARAMETERS=str(parameters), FAKE_SM=sm)
    return [json.loads(line) for line in said.splitlines()]


# ---- what Python's launcher asks for ---------------------------------------------------------------------------------


class _Map:
    def __init__(self, number: int) -> None:
        self.held = ctypes.c_uint32(number)

    def getPtr(self) -> int:
        return ctypes.addressof(self.held)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    from cuda.bindings import driver

    seen: list[dict[str, Any]] = []
    maps: list[_Map] = []

    def encoded(record: dict[str, Any], modes: Iterable[Any]) -> tuple[Any, _Map]:
        # `fake_cuda.c` checks the rest, which is the same.
        if not record["strides"]:  # a null pointer to the driver, which it refuses
            return (driver.CUresult.CUDA_ERROR_INVALID_VALUE, _Map(0))
        seen.append({**record, "modes": [int(mode) for mode in modes]})
        maps.append(_Map(len(maps) + 1))
        return driver.CUresult.CUDA_SUCCESS, maps[-1]

    def first(call: str, kind: Any, rank: int, address: int, extents: list[Any], strides: list[Any]) -> dict[str, Any]:
        listed = {"extents": [int(e) for e in extents], "strides": [int(s) for s in strides]}
        return {"call": call, "type": int(kind), "rank": rank, "address": address, **listed}

    def tiled(*given: Any) -> Any:
        box, steps = ([int(value) for value in values] for values in given[5:7])
        return encoded({**first("tiled", *given[:5]), "box": box, "steps": steps}, given[7:])

    def im2col(*given: Any) -> Any:
        lower, upper, channels, pixels, steps = given[5:10]
        of_places = {"lower": lower, "upper": upper, "channels": channels, "pixels": pixels}
        record = {**first("im2col", *given[:5]), **of_places, "steps": [int(step) for step in steps]}
        return encoded(record, given[10:])

    def launch(config: Any, function: Any, packed: int, extra: int) -> tuple[Any]:
        pointers = ctypes.cast(packed, ctypes.POINTER(ctypes.c_void_p))
        values = [ctypes.c_uint32.from_address(pointers[i] or 0).value for i in range(len(function.params))]
        attributes = []
        for one in config.attrs:
            dims = one.value.clusterDim
            is_cluster = one.id == driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attributes.append([int(one.id), *((dims.x, dims.y, dims.z) if is_cluster else (one.value.cooperative,))])
        grid = [config.gridDimX, config.gridDimY, config.gridDimZ]
        block = [config.blockDimX, config.blockDimY, config.blockDimZ]
        geometry = {"grid": grid, "block": block, "smem": config.sharedMemBytes, "stream": int(config.hStream)}
        seen.append({"call": "launch", **geometry, "attributes": attributes, "values": values})
        return (driver.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", tiled)
    monkeypatch.setattr(driver, "cuTensorMapEncodeIm2col", im2col)
    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    return seen


def launched_from_python(manifest: Manifest, scalars: dict[str, int], empty: tuple[str, ...]) -> None:
    kernel = object.__new__(runtime.Kernel)
    kernel.manifest, kernel._function = manifest, manifest
    places = {**addresses(manifest), **dict.fromkeys(empty, 0x7000)}
    kernel.launch(places, scalars, stream=64)


def addresses(manifest: Manifest) -> dict[str, int]:
    return {tensor.name: 0x10000 * (i + 1) for i, tensor in enumerate(manifest.tensors)}


def own_arguments(manifest: Manifest, scalars: dict[str, int]) -> list[str]:
    """As C, in the order of the header's functions: the memory that the caller lends comes last."""
    places = addresses(manifest)
    lent = {t.name for t in manifest.tensors if t.role in ("workspace", "zeroed")}
    written = {
        p.tensor if isinstance(p, PointerParam) else p.name: (
            f"(void *){places[p.tensor]}" if isinstance(p, PointerParam) else str(scalars[p.name])
        )
        for p in manifest.params
        if isinstance(p, PointerParam | ScalarParam)
    }
    return [text for name, text in written.items() if name not in lent] + [written[n] for n in written if n in lent]


BY_HAND = HERE.parent / "kernels"
CASES = [
    (SAMPLES / "vector_add.tl", "sm_80", {}, ""),
    (SAMPLES / "gemm.tl", "sm_90a", {}, ""),
    (SAMPLES / "gemm_bias_relu.tl", "sm_90a", {}, ""),
    (SAMPLES / "gemm.tl", "sm_80", {}, ""),
    (SAMPLES / "gemm" / "dynamic.tl", "sm_90a", {"M": 300}, ""),
    (SAMPLES / "gemm" / "dynamic.tl", "sm_90a", {"M": 0}, ""),
    (SAMPLES / "gemm" / "dynamic.tl", "sm_80", {"M": 300}, ""),
    (SAMPLES / "gemm" / "stream_k.tl", "sm_90a", {}, ""),
    (SAMPLES / "models" / "conv2d_im2col.tl", "sm_90a", {}, ""),
    (SAMPLES / "attention" / "varlen.tl", "sm_90a", {"tokens": 1000}, ""),
    (BY_HAND / "grid.tl", "sm_90a", {}, "chained"),
]


@pytest.mark.parametrize(
    ("sample", "target", "sizes", "entry"),
    CASES,
    ids=lambda v: v.stem if isinstance(v, Path) else "-".join(map(str, v.values())) if isinstance(v, dict) else v,
)
def test_the_driver_is_asked_for_what_python_asks_it_for(
    sample: Path,
    target: str,
    sizes: dict[str, int],
    entry: str,
    asked: list[dict[str, Any]],
    driver_library: Path,
    tmp_path: Path,
) -> None:
    options = ["--entry", entry] if entry else []
    assert tilec(str(sample), "--target", target, "--emit", "header,cubin", *options) == 0
    (manifest,) = extract_from_cubin((tmp_path / f"{sample.stem}.cubin").read_bytes())
    scalars = {s.name: sizes.get(s.name, 3) for s in manifest.scalars}
    empty = tuple(t.name for t in manifest.tensors if 0 in map(scalars.get, (e for e in t.shape if isinstance(e, str))))
    launched_from_python(manifest, scalars, empty)
    name, given = manifest.entry, ", ".join(own_arguments(manifest, scalars))
    body = f"""\
    {name}_kernel k;
    if ({name}_load(&k) != CUDA_SUCCESS) return 1;
    if ({name}_check(&k, {given}) != NULL) return 2;
    if ({name}_launch(&k, (CUstream)64, {given}) != CUDA_SUCCESS) return 3;
    if ({name}_unload(&k) != CUDA_SUCCESS) return 4;"""
    calls = run(body, f"{sample.stem}.h", driver_library, len(manifest.params), target.strip("sm_a"))
    assert calls[0]["image"] == (tmp_path / f"{sample.stem}.cubin").read_bytes()[:256].hex()
    assert calls[1]["name"] == manifest.entry
    assert [c["bytes"] for c in calls if c["call"] == "smem"] == [manifest.dynamic_smem] * (manifest.dynamic_smem > 0)
    assert {"call": "unload", "loaded": 1} in calls
    # Python's tells a tensor of nothing by its address, which its caller gives.
    pointers = {k: p.tensor for k, p in enumerate(manifest.params) if isinstance(p, PointerParam)}
    for call in asked:
        if call["call"] == "launch":
            call["values"] = [
                addresses(manifest)[pointers[k]] if k in pointers else v for k, v in enumerate(call["values"])
            ]
    assert [c for c in calls if c["call"] in ("tiled", "im2col", "launch")] == asked
    assert asked[-1]["call"] == "launch"


def test_the_whole_cubin_is_in_the_header(tmp_path: Path) -> None:
    assert tilec(GEMM, "--emit", "header,cubin") == 0
    text = (tmp_path / "gemm.h").read_text()
    words = text.split("image[")[1].split("{\n")[1].split("}")[0].replace("\n", "").split(",")
    data = b"".join(int(word.strip("u"), 16).to_bytes(8, "little") for word in words)
    cubin = (tmp_path / "gemm.cubin").read_bytes()
    assert data[: len(cubin)] == cubin
    assert len(data) - len(cubin) < 8


# ---- which variant ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sm", "threads"), [("80", 256), ("86", 256), ("90", 384), ("100", 256), ("75", None)])
def test_the_variant_of_the_machine_is_loaded(sm: str, threads: int | None, driver_library: Path) -> None:
    assert tilec(GEMM, "--target", "sm_80,sm_90a", "--emit", "header", "-o", "k.h") == 0
    body = """\
    gemm_kernel k;
    CUresult status = gemm_load(&k);
    if (status != CUDA_SUCCESS) return printf("%d\\n", (int)status), 0;
    if (gemm_launch(&k, NULL, (void *)16, (void *)32, (void *)48) != CUDA_SUCCESS) return 1;"""
    calls = run(body, "k.h", driver_library, 3, sm)
    if threads is None:
        assert calls == [209], "CUDA_ERROR_NO_BINARY_FOR_GPU"
    else:
        assert calls[-1]["block"] == [threads, 1, 1]
        # A GPU that no variant is made for gets the PTX of the newest variant that others can be made from.
        assert ("compile" in [call["call"] for call in calls]) == (sm == "100")


# ---- what is wrong with arguments ------------------------------------------------------------------------------------

SIZED = """\
import tilelang.language as T
m, n = T.dynamic("m"), T.dynamic("n")
@T.prim_func
def k(A: T.Tensor((m, n * 8), "float16"), B: T.Tensor((m, n * 8), "float16"), register: T.int32):
    with T.Kernel(T.ceildiv(m, 64), threads=128) as bx:
        s = T.alloc_shared((64, 64), "float16")
        for j in T.Pipelined(T.ceildiv(n * 8, 64), num_stages=2):
            T.copy(A[bx * 64, j * 64], s)
            T.copy(s, B[bx * 64, j * 64])
"""


def test_the_header_says_what_each_size_is() -> None:
    """In front of the launch, in the order of the arguments; what a size counts is not what a caller guesses."""
    Path("k.tl").write_text(SIZED.replace("k(A:", 'k(int: T.Tensor((m + 1, 2, n), "float16"), A:'))
    assert tilec("k.tl", "--emit", "header", "--target", "sm_80") == 0
    said = Path("k.h").read_text().partition("/* Sizes")[2].partition("*/")
    assert said[2].lstrip().startswith("static inline CUresult k_launch(")
    assert [line.strip(" *") for line in said[0].splitlines()[1:-1]] == [
        "m: dimension 0 of int_, which are m + 1, rows of A, rows of B",
        "n: dimension 2 of int_, columns of A / 8, columns of B / 8",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("(void *)32, (void *)48, 1, 64, 8", "fine"),
        ("(void *)0, (void *)48, 1, 64, 8", "A is NULL"),
        ("(void *)32, (void *)50, 1, 64, 8", "B is not aligned to 16 bytes"),
        ("(void *)32, (void *)48, 1, -1, 8", "m, extent 0 of A, is negative"),
        ("(void *)32, (void *)48, 1, 64, -8", "n * 8, extent 1 of A, is negative"),
        ("(void *)32, (void *)48, 1, 64, 1 << 28", "n * 8, of extent 1 of A, is more than 2147483647"),
        ("(void *)0, (void *)0, 1, 0, 8", "fine"),
        ("(void *)0, (void *)0, 1, 64, 0", "fine"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_launched(arguments: str, said: str, driver_library: Path) -> None:
    Path("k.tl").write_text(SIZED)
    assert tilec("k.tl", "--emit", "header") == 0
    body = f"""\
    k_kernel k;
    if (k_load(&k) != CUDA_SUCCESS) return 1;
    const char *wrong = k_check(&k, {arguments});
    printf("\\"%s\\"\\n", wrong ? wrong : "fine");
    printf("%d\\n", (int)k_launch(&k, NULL, {arguments}));"""
    calls = run(body, "k.h", driver_library, 5)
    assert said in calls
    launches = [call for call in calls if isinstance(call, dict) and call["call"] in ("tiled", "launch")]
    if said == "fine":
        assert calls[-1] == 0
    else:
        assert calls[-1] == 1, "CUDA_ERROR_INVALID_VALUE"
        assert launches == []


def test_a_kernel_that_was_not_loaded_says_so(driver_library: Path) -> None:
    assert tilec(VECTOR_ADD, "--emit", "header", "--target", "sm_90a") == 0
    body = """\
    vector_add_kernel k;
    printf("%d\\n", (int)vector_add_load(&k));
    printf("\\"%s\\"\\n", vector_add_check(&k, (void *)16, (void *)16, (void *)16));
    printf("%d\\n", (int)vector_add_launch(&k, NULL, (void *)16, (void *)16, (void *)16));"""
    assert run(body, "vector_add.h", driver_library, 3, "80") == [209, "the kernel is not loaded", 1]


# ---- memory that the caller lends ------------------------------------------------------------------------------------


def test_what_is_to_be_zero_is_set_before_each_launch(driver_library: Path, tmp_path: Path) -> None:
    kernel = BY_HAND / "split_k_meeting.tl"
    assert tilec(str(kernel), "--emit", "header,cubin") == 0
    (manifest,) = extract_from_cubin((tmp_path / "split_k_meeting.cubin").read_bytes())
    lent = [t for t in manifest.tensors if t.role in ("workspace", "zeroed")]
    assert {t.role for t in lent} == {"workspace", "zeroed"}, "else this test shows nothing"
    name, given = manifest.entry, ", ".join(own_arguments(manifest, {}))
    body = f"    {name}_kernel k;\n    if ({name}_load(&k) != CUDA_SUCCESS) return 1;\n"
    body += "".join(f'    printf("%zu\\n", {name}_{t.name}_bytes(&k));\n' for t in lent)
    body += f"    if ({name}_launch(&k, (CUstream)64, {given}) != CUDA_SUCCESS) return 2;"
    calls = run(body, "split_k_meeting.h", driver_library, len(manifest.params))
    printed = [call for call in calls if isinstance(call, int)]
    places = addresses(manifest)
    sets = [call for call in calls if isinstance(call, dict) and call["call"] == "set"]
    assert sets == [
        {"call": "set", "address": places[t.name], "value": 0, "bytes": size, "stream": 64}
        for t, size in zip(lent, printed, strict=True)
        if t.role == "zeroed"
    ]
    assert all(size >= math.prod(t.shape) * 4 for t, size in zip(lent, printed, strict=True))
    assert calls.index(sets[-1]) < len(calls) - 1
    assert calls[-1]["call"] == "launch"


# ---- other compilers -------------------------------------------------------------------------------------------------

TYPED = """\
HALF
#include "gemm.h"
int main() {
    gemm_kernel kernel;
    const __half *a = nullptr, *b = nullptr;
    RESULT *c = nullptr;
    if (gemm_load(&kernel) != CUDA_SUCCESS) return 1;
    return gemm_launch(&kernel, nullptr, a, b, c) == CUDA_ERROR_INVALID_VALUE ? gemm_unload(&kernel) : 2;
}
"""


@pytest.mark.parametrize("compiler", ["g++", "nvcc"])
def test_cplusplus_programs_with_typed_tensors(compiler: str, driver_library: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    assert tilec(GEMM, "--emit", "header", "--target", "sm_80,sm_90a") == 0
    options = [*STRICT, "-Wold-style-cast", "-std=c++17"] if compiler == "g++" else ["-std=c++17", "-I."]
    source = "main.cpp" if compiler == "g++" else "main.cu"
    # CUDA's own type; its header wants more of a toolkit than there is without nvcc.
    typed = TYPED.replace("HALF", "#include <cuda_fp16.h>" if compiler == "nvcc" else "struct __half { short bits; };")
    Path(source).write_text(typed.replace("RESULT", "__half"))
    done(compiler, *options, source, "-o", "main")
    done("./main", LD_LIBRARY_PATH=str(driver_library))
    Path(source).write_text(typed.replace("RESULT", "float"))
    failed = subprocess.run([compiler, *options, "-c", source], capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "float" in failed.stderr + failed.stdout


def test_sizes_that_are_extents_of_the_grid(driver_library: Path) -> None:
    """Nothing is compared with what its type cannot be: compilers warn of that."""
    Path("k.tl").write_text(
        'import tilelang.language as T\nm = T.dynamic("m")\n@T.prim_func\ndef k(A: T.Tensor((m, 64), "float32")):\n'
        "    with T.Kernel(m, m, threads=64) as (x, _):\n        for i in T.Parallel(64):\n            A[x, i] = 1.0\n"
    )
    assert tilec("k.tl", "--emit", "header") == 0
    arguments = "(float *)0x10000, 65536"
    body = f'k_kernel kernel;\nk_load(&kernel);\nprintf("\\"%s\\"\\n", k_check(&kernel, {arguments}));'
    assert run(body, "k.h", driver_library)[-1] == "more than 65535 blocks along y: m"


def test_headers_of_several_kernels_go_together() -> None:
    assert tilec(VECTOR_ADD, GEMM, "--emit", "header") == 0
    Path("main.c").write_text(
        '#include "gemm.h"\n#include "vector_add.h"\n#include "gemm.h"\nint main(void) { return 0; }\n'
    )
    done("gcc", "-std=c11", *STRICT, "main.c", "-o", "main")


# ---- the driver that stands in ---------------------------------------------------------------------------------------

REFUSED = [
    "rank = 0",
    "rank = 6",
    "address = (void *)8",
    "extents[1] = 0",
    "strides[0] = 40",
    "strides[0] = (cuuint64_t)1 << 40",
    "given = NULL",
    "given = NULL; rank = 1",
    "box[0] = 4",
    "box[0] = 128",
    "box[1] = 257",
    "steps[1] = 9",
    "type = CU_TENSOR_MAP_DATA_TYPE_INT32; fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
]


def test_the_stand_in_refuses_what_the_driver_does(driver_library: Path) -> None:
    """What cuda.h says of cuTensorMapEncodeTiled, and what an H200 said of strides of one dimension."""
    cases = "\n".join(f"    case {number}: {change}; break;" for number, change in enumerate(REFUSED))
    text = f"""#include <cuda.h>
static int encode(int number) {{
    static CUtensorMap map;
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    cuuint32_t rank = 2, box[2] = {{64, 8}}, steps[2] = {{1, 1}};
    cuuint64_t extents[2] = {{256, 64}}, strides[1] = {{512}};
    const cuuint64_t *given = strides;
    void *address = (void *)4096;
    switch (number) {{
{cases}
    default: break;
    }}
    return cuTensorMapEncodeTiled(&map, type, rank, address, extents, given, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, fill);
}}
int main(void) {{
    int wrong = encode(-1) != CUDA_SUCCESS;
    for (int i = 0; i < {len(REFUSED)}; i++)
        if (encode(i) != CUDA_ERROR_INVALID_VALUE) wrong = 100 + i;
    return wrong;
}}
"""
    Path("refused.c").write_text(text)
    linked = (f"-L{driver_library}", "-lcuda", f"-Wl,-rpath,{driver_library}")
    done("gcc", "-std=c11", *STRICT, "refused.c", "-o", "refused", *linked)
    done("./refused")


# ---- names -----------------------------------------------------------------------------------------------------------

NAMES = [
    "memset",
    "CUDA_SUCCESS",
    "INT32_MAX",
    "SIZE_MAX",
    "_Static_assert",
    "_Bool",
    "_Complex",
    "__asm__",
    "__LINE__",
    "__FILE__",
    "__func__",
    "__cplusplus",
    "memset_",
    "int",
    "int_",
    "k_launch",
    "k_kernel",
    "k_load",
    "names_sm_90a_image",
    "CUstream",
    "cuLaunchKernel",
    "NULL",
    "size_t",
    "uint64_t",
    "strlen",
    "offsetof",
    "kernel",
    "status",
    "WCHAR_MAX",
    "UINT8_C",
    "tilec_min",
    "TILEC_TYPES",
    "x1",
    "ALPHA",
    "_",
]
"""What C11, C++17 and the headers that ours includes reserve, its own names, and what such names become."""


def _write_kernel_of_names() -> None:
    params = ", ".join(f"{name}: T.int32" for name in NAMES)
    body = " + ".join(NAMES)
    Path("names.tl").write_text(f"""\
import tilelang.language as T
@T.prim_func
def k(out: T.Tensor((32,), "int32"), {params}):
    with T.Kernel(1, threads=32) as bx:
        for i in T.Parallel(32):
            out[i] = {body}
""")


@pytest.mark.weekly
@pytest.mark.parametrize("compiler", [("gcc", "-std=c11"), ("g++", "-std=c++17")], ids=lambda words: str(words[0]))
def test_parameters_may_have_any_names(compiler: tuple[str, str], driver_library: Path) -> None:
    _write_kernel_of_names()
    assert tilec("names.tl", "--emit", "header") == 0
    suffix = "c" if compiler[0] == "gcc" else "cpp"
    Path(f"main.{suffix}").write_text('#include "names.h"\nint main(void) { return 0; }\n')
    done(*compiler, *STRICT, "-fsyntax-only", f"main.{suffix}")


def test_names_that_c_may_know_get_an_underscore() -> None:
    spelled = header._choose_c_names([*NAMES, "alpha", "M", "dS", "n_rows"], ("k_", "names_"))
    assert len(set(spelled.values())) == len(spelled)
    free = {name for name, other in spelled.items() if name == other}
    assert free == {"int_", "x1", "alpha", "M", "dS", "n_rows"}
    assert (spelled["int"], spelled["memset"], spelled["SIZE_MAX"]) == ("int__", "memset__", "SIZE_MAX_")


# ---- the driver ------------------------------------------------------------------------------------------------------


def test_a_program_links_and_runs_without_a_driver(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--emit", "header", "--target", "sm_90a") == 0
    Path("main.c").write_text("""\
#include <stdio.h>
#include "vector_add.h"
int main(void) {
    const tilec_driver *driver;
    vector_add_kernel k;
    CUresult status = vector_add_load(&k);
    printf("%d %d\\n", (int)status, (int)tilec_open_driver(&driver));
    printf("%s\\n", vector_add_check(&k, NULL, NULL, NULL));
    printf("%s\\n", tilec_error_text(status));
    return vector_add_unload(&k);
}
""")
    done("gcc", "-std=c11", *STRICT, "main.c", "-o", "main")
    # A file that is no library stands for a driver that is not there, also where this machine has one.
    (tmp_path / "libcuda.so.1").write_text("none")
    said = done("./main", LD_LIBRARY_PATH=str(tmp_path))
    assert said == "303 303\nthe kernel is not loaded\nno NVIDIA driver on this machine\n"


def test_threads_that_open_the_driver_together_have_the_same(driver_library: Path) -> None:
    assert tilec(VECTOR_ADD, "--emit", "header", "--target", "sm_90a") == 0
    Path("main.cpp").write_text("""\
#include <thread>
#include <vector>
#include "vector_add.h"
int main() {
    const tilec_driver *found[16];
    CUresult status[16];
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; i++) threads.emplace_back([&, i] { status[i] = tilec_open_driver(&found[i]); });
    for (std::thread &thread : threads) thread.join();
    for (int i = 0; i < 16; i++)
        if (status[i] != CUDA_SUCCESS || found[i] != found[0] || found[i]->cuInit(0) != CUDA_SUCCESS) return 1;
    return 0;
}
""")
    done("g++", "-std=c++11", "-pthread", *STRICT, f"-Wl,-rpath,{driver_library}", "main.cpp", "-o", "main")
    done("./main")


def test_a_driver_that_lacks_a_function_is_too_old(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, "--emit", "header", "--target", "sm_90a") == 0
    Path("old.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    done("gcc", "-shared", "-fPIC", "old.c", "-o", "libcuda.so.1")
    body = '#include <stdio.h>\n#include "vector_add.h"\nint main(void) {\n    vector_add_kernel k;\n'
    Path("main.c").write_text(body + "    return puts(tilec_error_text(vector_add_load(&k))) < 0;\n}\n")
    done("gcc", "-std=c11", *STRICT, "main.c", "-o", "main")
    assert done("./main", LD_LIBRARY_PATH=str(tmp_path)) == "the NVIDIA driver is older than CUDA 12\n"


# ---- several source files, and C++ -----------------------------------------------------------------------------------


def test_the_owner_of_the_document_is_used_so() -> None:
    """docs/cpp.md shows it in a function that has a stream and three arrays."""
    text = (Path(__file__).parents[2] / "docs" / "cpp.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```cpp\n(.*?)```", text, re.S)
    assert tilec(GEMM, "--emit", "header") == 0
    arrays = "const tilec_float16 *a, const tilec_float16 *b, tilec_float16 *c"
    declared = f"int product(CUstream stream, {arrays});\nint product(CUstream stream, {arrays}) {{"
    Path("owner.cpp").write_text(f'#include "gemm.h"\n{declared}\n{lines}return 0;\n}}\n')
    done("g++", "-std=c++11", *STRICT, "-c", "owner.cpp")


PART = (
    '#include "vector_add.h"\n#include "gemm.h"\nCUresult part(vector_add_kernel *k) { return vector_add_load(k); }\n'
)
WHOLE = """\
#include "vector_add.h"
#define TILEC_DEFINITIONS
#include "gemm.h"
#include "vector_add.h"
extern "C" CUresult part(vector_add_kernel *k);
int main() {
    vector_add_kernel kernel;
    return part(&kernel) == CUDA_ERROR_SHARED_OBJECT_INIT_FAILED ? 0 : 1;
}
"""


def test_declarations_in_several_files_and_definitions_in_one(tmp_path: Path) -> None:
    assert tilec(VECTOR_ADD, GEMM, "--emit", "header", "--header-style", "declarations") == 0
    Path("part.c").write_text(PART)
    Path("whole.cpp").write_text(WHOLE)
    done("gcc", "-std=c11", *STRICT, "-c", "part.c")
    done(
        "g++", "-std=c++11", *STRICT, "-Wold-style-cast", "-Wmissing-declarations", "whole.cpp", "part.o", "-o", "main"
    )
    (tmp_path / "libcuda.so.1").write_text("none")
    done("./main", LD_LIBRARY_PATH=str(tmp_path))
    assert "image" not in subprocess.run(["nm", "part.o"], capture_output=True, text=True, check=True).stdout


def test_kernels_of_one_name_in_two_namespaces(driver_library: Path) -> None:
    for folder, style in (("one", "inline"), ("two", "declarations")):
        Path(folder).mkdir()
        options = ["--namespace", f"kernels::{folder}", "--header-style", style]
        assert tilec(VECTOR_ADD, "--emit", "header", "-o", f"{folder}/vector_add.h", *options) == 0
    Path("main.cpp").write_text("""\
#define TILEC_DEFINITIONS
#include "one/vector_add.h"
#include "two/vector_add.h"
int main() {
    const kernels::one::vector_add_owner first;
    const kernels::two::vector_add_owner second;
    const float *const a = nullptr;
    if (first.check(a, a, nullptr) == nullptr) return 1;
    return second.launch(nullptr, a, a, nullptr) == CUDA_ERROR_INVALID_VALUE ? first.status + second.status : 2;
}
""")
    strict = [*STRICT, "-Wold-style-cast", "-Wshadow", "-Wmissing-declarations"]
    done("g++", "-std=c++11", *strict, f"-Wl,-rpath,{driver_library}", "main.cpp", "-o", "main")
    calls = [json.loads(line)["call"] for line in done("./main").splitlines()]
    assert calls == ["load", "function"] * 2 + ["unload"] * 2


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a::", "class", "a::namespace", "std; int x"])
def test_names_that_no_namespace_can_have(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec(VECTOR_ADD, "--emit", "header", "--namespace", name) == 2
    assert "--namespace" in capfd.readouterr().err


def test_options_of_headers_are_refused_without_one(capfd: pytest.CaptureFixture[str]) -> None:
    for option in (["--namespace", "mine"], ["--header-style", "declarations"]):
        assert tilec(VECTOR_ADD, *option) == 2
        assert f"{option[0]} needs --emit header" in capfd.readouterr().err
