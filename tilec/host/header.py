"""A C and C++ header that loads and launches kernels, with the cubins embedded and their manifests as code.

It needs `cuda.h` alone: the driver is opened when it is first needed (`header_driver`). The C code launches exactly as
`runtime` does from Python: each is tested against the other.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilec.host.header_calls import (
    EMPTY_BYTES,
    Argument,
    Function,
    check_function,
    list_scratch_tensors,
    may_be_empty,
    write_launch_function,
    write_scratch_function,
)
from tilec.host.header_driver import DRIVER
from tilec.host.machines import is_portable, newest_portable, parse_capability, preference_key
from tilec.ir.manifest import Manifest, PointerParam, ScalarParam, TensorInfo, TensorMapParam
from tilec.support.records import dataclass
from tilec.support.sizes import Size, format_size, scalar_names


def describe_sizes(manifest: Manifest, spelled: Mapping[str, str]) -> str:
    """Return a C comment that lists, for each size parameter, the tensor dimensions computed from it; empty without
    any. `spelled` are the names in C.
    """
    lines = []
    for name in manifest.size_scalars():
        places = ", ".join(dict.fromkeys(_list_places(name, manifest, spelled)))
        lines.append(f" *   {spelled[name]}: {places or 'what the number of blocks is computed from'}\n")
    return f"/* Sizes, in this order:\n{''.join(lines)} */\n" if lines else ""


def _list_places(name: str, manifest: Manifest, spelled: Mapping[str, str]) -> Iterator[str]:
    """Yield each tensor dimension and stride that is computed from a size, in words such as `columns of w / 8`."""
    for tensor in manifest.tensors:
        if tensor.name not in spelled:
            continue
        for axis, size in enumerate(tensor.shape):
            if name in scalar_names(size):
                what = f"{_name_dimension(axis, len(tensor.shape))} of {spelled[tensor.name]}"
                yield _add_unit(what, size)
        for axis, size in enumerate(tensor.strides or ()):
            if name in scalar_names(size):
                yield _add_unit(f"stride {axis} of {spelled[tensor.name]}", size)


def _name_dimension(axis: int, rank: int) -> str:
    """Return what a tensor's axis is called: "elements" of rank 1, "rows" or "columns" of rank 2, else "dimension
    3".
    """
    if rank > 2:
        return f"dimension {axis}"
    return "elements" if rank == 1 else ("rows", "columns")[axis]


def _add_unit(what: str, size: Size) -> str:
    """Return `what` with the unit of a size: alone, divided by its factor, or with the formula of the size."""
    match size:
        case str():
            return what
        case ("mul", str(), int(factor)) | ("mul", int(factor), str()):
            return f"{what} / {factor}"
        case _:
            return f"{what}, which are {format_size(size)}"


_NUMBERS = {
    "float32": "float", "float64": "double", "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Types of C, in tensors and by value."""

_ELEMENTS = {
    "float16": "tilec_float16", "bfloat16": "tilec_bfloat16",
    "float8_e4m3fn": "tilec_float8_e4m3", "float8_e5m2": "tilec_float8_e5m2",
}  # fmt: skip
"""Types that C lacks: in C++ those of CUDA's headers, which need not be included for a pointer."""

_TYPES = """\
#ifndef TILEC_TYPES
#define TILEC_TYPES
#ifdef __cplusplus
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;
struct __nv_fp8_e5m2;
typedef struct __half tilec_float16;
typedef struct __nv_bfloat16 tilec_bfloat16;
typedef struct __nv_fp8_e4m3 tilec_float8_e4m3;
typedef struct __nv_fp8_e5m2 tilec_float8_e5m2;
#else
typedef uint16_t tilec_float16;
typedef uint16_t tilec_bfloat16;
typedef uint8_t tilec_float8_e4m3;
typedef uint8_t tilec_float8_e5m2;
#endif

/* Both round down, as in Python; what divides by 0 is 0. */
static inline int64_t tilec_floordiv(int64_t a, int64_t b) {
    return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t tilec_floormod(int64_t a, int64_t b) { return b == 0 ? 0 : a - b * tilec_floordiv(a, b); }
static inline int64_t tilec_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tilec_max(int64_t a, int64_t b) { return a > b ? a : b; }
#endif
"""

_CASTS = """\
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast" /* C has no others */
#endif
"""
_END_OF_CASTS = """\
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
"""

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else
enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
typeof union unsigned using virtual void volatile wchar_t while xor xor_eq linux unix NULL
attributes box config empty extents grid kernel lower moves status steps stream strides upper values
"""
_RESERVED_WORDS = frozenset(_WORDS.split())
"""Names that parameters cannot have: keywords of C and C++, and the functions' own local names."""

_RESERVED_PATTERN = re.compile(
    r"_.*|.*__.*|.*_t"  # reserved for compilers and systems
    r"|(mem|str|wcs|cu|CU|tilec|TILEC)[A-Za-z_].*"  # functions and types of the headers, and our own
    r"|[A-Z][A-Z0-9]*_[A-Z0-9_]*|[A-Z][A-Z0-9]{3,}|EOF|offsetof|errno|assert|i386"  # macros
)
"""Names that this or a later version of a header may define: INT32_MAX, CUDA_SUCCESS, memset, __LINE__."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The compiled form of a kernel file for one machine: the cubin, the PTX (which newer GPUs translate where it is
    portable), and the manifest of each kernel."""

    target: str
    cubin: bytes
    ptx: bytes
    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """The layout of a header: whether it only declares its functions (a source file asks for their definitions), and
    the C++ namespace of everything in it."""

    only_declares: bool = False
    namespace: tuple[str, ...] = ()


def is_namespace(text: str) -> bool:
    """Return whether `a` or `a::b` is a C++ namespace whose names are neither reserved nor keywords."""
    return all(
        re.fullmatch(r"[A-Za-z]\w*", part, re.ASCII)
        and part not in _RESERVED_WORDS
        and not _RESERVED_PATTERN.fullmatch(part)
        for part in text.split("::")
    )


def build_header(file: str, variants: Sequence[Variant], style: Style) -> str:
    """Return the C header of a kernel file: for each kernel load, check, launch and unload, with cubins embedded. They
    are called `NAME_load` and so on, and the header names the file `file`. The current context's GPU runs its own
    variant; a GPU newer than all runs PTX that the driver translates, where a variant is portable.
    """
    stem = _make_c_identifier(file.partition(".")[0])
    known = sorted(variants, key=lambda v: preference_key(v.target), reverse=True)
    file_name = "".join(c if c.isprintable() else "_" for c in file)
    portable = newest_portable(variant.target for variant in known)
    kernels = [
        _build_kernel(stem, entry, [(v.target, m) for v in known for m in v.manifests if m.entry == entry], portable)
        for entry in dict.fromkeys(m.entry for variant in known for m in variant.manifests)
    ]
    images = [_write_image_array(f"{stem}_{variant.target}_image", variant.cubin) for variant in known]
    images += [_write_image_array(f"{stem}_{v.target}_ptx", v.ptx + b"\0") for v in known if v.target == portable]
    name = "_".join(["TILEC", *style.namespace, stem]).upper()
    opened, closed = _write_namespace_lines(style)
    guard = f"#ifndef {name}_H\n#define {name}_H\n"
    parts = [_write_head_comment(file_name, known, style), guard, _INCLUDES, _CASTS, DRIVER, _TYPES, opened]
    if not style.only_declares:
        parts += images
    for kernel_type, functions, owner in kernels:
        shown = [function for function in functions if function.is_public or not style.only_declares]
        parts.append(kernel_type)
        parts += [f.declare() if style.only_declares else f.define(is_static=True) for f in shown]
        parts.append(owner)
    parts += [closed, _END_OF_CASTS, f"#endif /* {name}_H */\n"]
    if style.only_declares:
        parts.append(f"#if defined(TILEC_DEFINITIONS) && !defined({name}_DEFINED)\n#define {name}_DEFINED\n")
        parts += [_CASTS, opened, *images]
        parts += [function.define(is_static=False) for _, functions, _ in kernels for function in functions]
        parts += [closed, _END_OF_CASTS, f"#endif /* {name}_DEFINED */\n"]
    return "\n".join(part for part in parts if part)


def _write_namespace_lines(style: Style) -> tuple[str, str]:
    """Return the lines that open and close the C++ namespace, or `extern "C"` in a header of declarations; else ""."""
    if style.namespace:
        before = " ".join(f"namespace {name} {{" for name in style.namespace)
        behind = "}" * len(style.namespace)
    elif style.only_declares:
        before, behind = 'extern "C" {', "}"
    else:
        return "", ""
    return f"#ifdef __cplusplus\n{before}\n#endif\n", f"#ifdef __cplusplus\n{behind}\n#endif\n"


def _make_c_identifier(text: str) -> str:
    """Return the text as a C identifier, other characters replaced by `_`, with `_` before a leading digit."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if name[:1].isdigit() else name


def _write_head_comment(file: str, variants: Sequence[Variant], style: Style) -> str:
    """Return the C comment at the head of a header: its file and targets, how to include it, what functions do."""
    targets = ", ".join(v.target for v in variants)
    where = "Include it in one source file"
    if style.only_declares:
        where = "Include it in any source file, and define TILEC_DEFINITIONS before in exactly one of them"
    return f"""\
/* The kernels of {file} for {targets}. Made by tilec: change that file instead of this one.
 *
 * {where}: it carries the machine code. Of each kernel NAME, with a context current:
 *   NAME_load      makes it ready on the GPU of the context; CUDA_ERROR_NO_BINARY_FOR_GPU: not made for that one;
 *                  CUDA_ERROR_SHARED_OBJECT_INIT_FAILED: there is no NVIDIA driver on this machine
 *   NAME_check     what is wrong with arguments, or NULL
 *   NAME_launch    CUDA_ERROR_INVALID_VALUE where NAME_check finds something wrong: nothing is launched then
 *   NAME_unload    gives back what NAME_load took
 *   NAME_owner     in C++: a kernel that is loaded when it is made and unloaded when it goes
 * Tensors are in the memory of the GPU. Several threads may launch a kernel that is loaded.
 * The driver is opened when it is first needed: a program does not link with libcuda, only with libdl (-ldl) where the
 * C library is older than glibc 2.34. tilec_open_driver gives the driver's functions to the program too, and
 * tilec_error_text says what a status means.
 */
"""


_INCLUDES = """\
#include <cuda.h> /* of the CUDA toolkit, or of the Python package nvidia-cuda-runtime */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if CUDA_VERSION < 12000
#error "needs cuda.h of CUDA 12 or newer"
#endif
#if !defined(__cplusplus) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L)
#error "needs C11 or newer, or C++"
#endif
"""


def _write_image_array(name: str, data: bytes) -> str:
    """Return bytes as the text of a C array of 8-byte little-endian words, padded with zeros."""
    padded = data + bytes(-len(data) % 8)
    words = [f"0x{word:x}u" for (word,) in struct.iter_unpack("<Q", padded)]
    lines = [",".join(words[i : i + 8]) for i in range(0, len(words), 8)]
    return f"static const uint64_t {name}[{len(words)}] = {{\n" + ",\n".join(lines) + "};\n"


# ---- a kernel --------------------------------------------------------------------------------------------------------


def _build_kernel(
    stem: str, entry: str, variants: Sequence[tuple[str, Manifest]], portable: str | None
) -> tuple[str, list[Function], str]:
    """Return the C text of a kernel's handle type, its functions for all variants, and the text of its C++ owner."""
    arguments = _collect_arguments([manifest for _, manifest in variants], (f"{entry}_", f"{stem}_"))
    declared = ", ".join(a.declared for a in arguments.values())
    passed = ", ".join(a.name for a in arguments.values())
    comma = ", " if arguments else ""
    kernel_type = f"""\
/* ---- {entry} ---- */

typedef struct {{
    const tilec_driver *driver;
    CUmodule module;
    CUfunction function;
    CUdeviceptr zeros; /* what stands for an empty tensor in a tensor map */
    int variant;
}} {entry}_kernel;
"""
    functions = [_write_unload_function(entry), _load_function(stem, entry, variants, portable)]
    names, first = {name: a.name for name, a in arguments.items()}, f"const {entry}_kernel *kernel"
    for target, manifest in variants:
        functions.append(check_function(f"{entry}_{target}_check", declared, manifest, names))
        functions.append(write_launch_function(f"{entry}_{target}_launch", first, declared, manifest, names))
    for tensor in list_scratch_tensors([manifest for _, manifest in variants]):
        functions.append(write_scratch_function(entry, tensor, arguments, variants))
    checks = "\n".join(f"    case {i}: return {entry}_{t}_check({passed});" for i, (t, _) in enumerate(variants))
    launches = "\n".join(
        f"    case {i}: return {entry}_{t}_launch(kernel, stream{comma}{passed});" for i, (t, _) in enumerate(variants)
    )
    checked = f"""\
    switch (kernel->variant) {{
{checks}
    default: return "the kernel is not loaded";
    }}
"""
    launched = f"""\
    if ({entry}_check(kernel{comma}{passed}) != NULL) return CUDA_ERROR_INVALID_VALUE;
    switch (kernel->variant) {{
{launches}
    default: return CUDA_ERROR_INVALID_VALUE;
    }}
"""
    functions.append(Function(f"const char *{entry}_check({first}{comma}{declared})", checked))
    sizes = describe_sizes(variants[0][1], names)
    signature = f"CUresult {entry}_launch({first}, CUstream stream{comma}{declared})"
    functions.append(Function(signature, launched, comment=sizes))
    return kernel_type, functions, _write_owner_class(entry, declared, passed)


def _write_owner_class(entry: str, declared: str, passed: str) -> str:
    """Return the text of a C++ class whose constructor loads a kernel and whose destructor unloads it."""
    comma = ", " if declared else ""
    return f"""\
#ifdef __cplusplus
/* Loads {entry} for the current context, which must still be there at its end. `status` says whether that went well. */
class {entry}_owner {{
public:
    {entry}_owner() : status({entry}_load(&kernel)) {{}}
    ~{entry}_owner() {{ (void){entry}_unload(&kernel); }}
    {entry}_owner(const {entry}_owner &) = delete;
    {entry}_owner &operator=(const {entry}_owner &) = delete;
    const char *check({declared}) const {{ return {entry}_check(&kernel{comma}{passed}); }}
    CUresult launch(CUstream stream{comma}{declared}) const {{ return {entry}_launch(&kernel, stream{comma}{passed}); }}

    {entry}_kernel kernel;
    const CUresult status;
}};
#endif
"""


def _collect_arguments(manifests: Sequence[Manifest], prefixes: tuple[str, ...]) -> dict[str, Argument]:
    """Return a kernel's C arguments by parameter name, over all targets: the author's, then scratch memory."""
    own: dict[str, Argument] = {}
    lent: dict[str, Argument] = {}
    for manifest in manifests:
        scalars = {s.name: s for s in manifest.scalars}
        for param in manifest.params:
            match param:
                case PointerParam(name):
                    tensor = manifest.tensor(name)
                    into = lent if tensor.role in ("workspace", "zeroed") else own
                    into.setdefault(name, Argument(name, _build_pointer_type(tensor)))
                case ScalarParam(name):  # 16-bit floats are passed as their bits
                    own.setdefault(name, Argument(name, _NUMBERS.get(scalars[name].dtype, "uint16_t")))
                case TensorMapParam():
                    pass
    both = own | lent
    spelled = _choose_c_names(both, prefixes)
    return {name: Argument(spelled[name], argument.type) for name, argument in both.items()}


def _choose_c_names(names: Iterable[str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return each parameter's name in C: its own, or with `_` added where it is reserved or begins with a prefix. Names
    with one of the prefixes belong to the header.
    """
    listed = list(names)
    taken = set(listed)
    found: dict[str, str] = {}
    for name in listed:
        spelled = name
        if name in _RESERVED_WORDS or _RESERVED_PATTERN.fullmatch(name) or name.startswith(prefixes):
            while spelled in taken:
                spelled += "_"
            taken.add(spelled)
        found[name] = spelled
    return found


def _build_pointer_type(tensor: TensorInfo) -> str:
    """Return the C type of a pointer to a tensor: const for an input, `void *` for scratch memory and unknown
    elements. That of a table of addresses is a pointer to pointers.
    """
    if tensor.role in ("workspace", "zeroed"):
        return "void *"
    element = _NUMBERS.get(tensor.dtype) or _ELEMENTS.get(tensor.dtype, "void")
    if tensor.table:
        return f"const {element} *const *" if tensor.role == "in" else f"{element} *const *"
    return f"const {element} *" if tensor.role == "in" else f"{element} *"


def _load_function(stem: str, entry: str, variants: Sequence[tuple[str, Manifest]], portable: str | None) -> Function:
    """Return the C function that loads the variant for the context's GPU, or the PTX of `portable` (None: none), or
    fails.
    """
    choices, images = [], []
    for i, (target, manifest) in enumerate(variants):
        major, minor = parse_capability(target)
        condition = f"major == {major} && minor {'>=' if is_portable(target) else '=='} {minor}"
        choices.append(f"    {'else ' if i else ''}if ({condition}) kernel->variant = {i};")
        images.append(f"    case {i}: image = {stem}_{target}_image; smem = {manifest.dynamic_smem}; break;")
    newer = ""
    if portable in (targets := [target for target, _ in variants]):
        major, minor = parse_capability(portable)
        i = targets.index(portable)
        choices.append(f"    else if (major > {major} || (major == {major} && minor > {minor})) kernel->variant = {i};")
        newer = f"    if (kernel->variant == {i} && major != {major}) image = {stem}_{portable}_ptx;\n"
    needs_zeros = any(may_be_empty(manifest) for _, manifest in variants)
    zeros = f"""\
    if (status == CUDA_SUCCESS) status = kernel->driver->cuMemAlloc(&kernel->zeros, {EMPTY_BYTES});
    if (status == CUDA_SUCCESS) status = kernel->driver->cuMemsetD8(kernel->zeros, 0, {EMPTY_BYTES});
""" if needs_zeros else ""  # fmt: skip
    body = f"""\
    CUdevice device;
    CUresult status;
    const uint64_t *image = NULL;
    int major = 0, minor = 0, smem = 0;
    memset(kernel, 0, sizeof *kernel);
    kernel->variant = -1;
    status = tilec_open_driver(&kernel->driver);
    if (status == CUDA_SUCCESS) status = kernel->driver->cuCtxGetDevice(&device);
    if (status == CUDA_SUCCESS)
        status = kernel->driver->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (status == CUDA_SUCCESS)
        status = kernel->driver->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (status != CUDA_SUCCESS) return status;
{chr(10).join(choices)}
    switch (kernel->variant) {{
{chr(10).join(images)}
    default: return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }}
{newer}    status = kernel->driver->cuModuleLoadData(&kernel->module, image);
    if (status == CUDA_SUCCESS)
        status = kernel->driver->cuModuleGetFunction(&kernel->function, kernel->module, "{entry}");
    if (status == CUDA_SUCCESS && smem > 0)
        status = kernel->driver->cuFuncSetAttribute(
            kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem);
{zeros}    if (status != CUDA_SUCCESS) (void){entry}_unload(kernel);
    return status;
"""
    return Function(f"CUresult {entry}_load({entry}_kernel *kernel)", body)


def _write_unload_function(entry: str) -> Function:
    """Return the C function that frees a loaded kernel's memory and module, and clears its handle."""
    body = """\
    CUresult status = CUDA_SUCCESS;
    if (kernel->zeros != 0) status = kernel->driver->cuMemFree(kernel->zeros);
    if (kernel->module != NULL && status == CUDA_SUCCESS) status = kernel->driver->cuModuleUnload(kernel->module);
    memset(kernel, 0, sizeof *kernel);
    kernel->variant = -1;
    return status;
"""
    return Function(f"CUresult {entry}_unload({entry}_kernel *kernel)", body)
