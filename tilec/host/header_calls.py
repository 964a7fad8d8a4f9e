"""The C functions of a header that handle arguments: check them, encode their tensor maps, and launch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tilec.ir.expr import integer_range
from tilec.ir.manifest import Im2colMapParam, Manifest, PointerParam, ScalarParam, TensorInfo, TensorMapParam
from tilec.ir.types import INT64, TYPES_BY_NAME
from tilec.support import sizes
from tilec.support.records import dataclass
from tilec.support.sizes import Shape, Size

EMPTY_BYTES = 16
"""The bytes of the stand-in for an empty tensor in a tensor map, whose strides are multiples of it."""

ALIGNMENT = 16
"""The alignment of every tensor in bytes: tensor maps and the widest accesses need it."""

POINTER_ALIGNMENT = 8
"""The alignment of a table of addresses in bytes."""

MAP_TYPES = {
    "float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32", "float64": "FLOAT64",
    "int32": "INT32", "int64": "INT64", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int16": "UINT16", "uint8": "UINT8", "int8": "UINT8", "bool": "UINT8",
    "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8",
}  # fmt: skip
"""TMA moves bits: a type that the driver lacks is mapped to one of its size."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a header: its signature and body in C, and whether programs call it."""

    signature: str
    body: str
    is_public: bool = True
    comment: str = ""

    def declare(self) -> str:
        """Return the C prototype of the function, after its comment."""
        return f"{self.comment}{self.signature};\n"

    def define(self, is_static: bool) -> str:
        """Return the C definition of the function, `static inline` if `is_static` or if no program calls it."""
        linkage = "static inline " if is_static or not self.is_public else ""
        return f"{self.comment}{linkage}{self.signature} {{\n{self.body}}}\n"


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the functions: its name and its type in C."""

    name: str
    type: str

    @property
    def declared(self) -> str:
        """Return the argument's declaration in C, as `const float *A`."""
        return f"{self.type}{'' if self.type.endswith('*') else ' '}{self.name}"


# ---- arguments, before a launch --------------------------------------------------------------------------------------


def check_function(function: str, declared: str, manifest: Manifest, names: Mapping[str, str]) -> Function:
    """Return the C function that returns a message for the first wrong argument of a call, or NULL."""
    checks = (
        *_build_size_checks(manifest, names),
        *_build_tensor_checks(manifest, names),
        *_build_grid_checks(manifest, names),
    )
    # The first check of each condition.
    lines = [*{wrong: (wrong, message) for wrong, message in reversed(checks)}.values()][::-1]
    looked_at = {word for wrong, _ in lines for word in re.findall(r"\w+", wrong)}
    body = [f"    (void){name};" for name in names.values() if name not in looked_at]
    body += [f"    if ({wrong}) return {_quote_c_string(message)};" for wrong, message in lines]
    body.append("    return NULL;\n")
    return Function(f"const char *{function}({declared or 'void'})", "\n".join(body), is_public=False)


def _quote_c_string(text: str) -> str:
    """Return a text as a C string literal, with backslashes and quotes escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _build_size_checks(manifest: Manifest, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield C conditions, with messages, for wrong sizes: zero divisors, odd rows of four-bit elements, negative or too
    large extents.
    """
    divisors = {b for size in manifest.extents() for b in _find_divisors(size)}
    for divisor in sorted(divisors, key=sizes.format_size):
        yield (
            f"{_write_c_expression(divisor, names)} == 0",
            f"{sizes.format_size(divisor)} is 0, and a size is divided by it",
        )
    for halved, by in sorted({(part[1], part[2]) for part in _list_shifts(manifest)}, key=str):
        assert isinstance(by, int), "a size is divided by a power of two that the compiler knows"
        yield (
            f"{_write_c_expression(halved, names)} % {1 << by} != 0",
            f"{sizes.format_size(halved)} is not a multiple of {1 << by}",
        )
    for tensor in manifest.tensors:
        for axis, size in enumerate(tensor.shape):
            if _find_value_range(size, manifest)[0] < 0:
                what = f"{sizes.format_size(size)}, extent {axis} of {tensor.name}, is negative"
                yield f"{_write_c_expression(size, names)} < 0", what
            for part in sizes.nested_sizes(size):
                if _find_value_range(part, manifest)[1] > sizes.MOST_ELEMENTS:
                    what = f"{sizes.format_size(part)}, of extent {axis} of {tensor.name},"
                    wrong = f"{_write_c_expression(part, names)} > {sizes.MOST_ELEMENTS}"
                    yield wrong, f"{what} is more than {sizes.MOST_ELEMENTS}"


def _find_value_range(size: Size, manifest: Manifest) -> tuple[int, int]:
    """Return the smallest and largest value of a size: of its scalar's type, of int64 for a formula, or the number."""
    if isinstance(size, int):
        return size, size
    if not isinstance(size, str):
        return integer_range(INT64)
    (dtype,) = (TYPES_BY_NAME[s.dtype] for s in manifest.scalars if s.name == size)
    return integer_range(dtype)


def _list_shifts(manifest: Manifest) -> Iterator[tuple[str, Size, Size]]:
    """Yield the parts of the kernel's sizes that divide a multiple of a power of two by it."""
    for size in manifest.extents():
        for part in sizes.nested_sizes(size):
            if isinstance(part, tuple) and part[0] == "shr":
                yield part


def _find_divisors(size: Size) -> Iterator[Size]:
    """Yield the divisors in a size's formula that are not numbers."""
    for part in sizes.nested_sizes(size):
        if isinstance(part, tuple) and part[0] in ("floordiv", "floormod") and not isinstance(part[2], int):
            yield part[2]


def _build_tensor_checks(manifest: Manifest, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield C conditions, with messages, for unusable tensors: null, misaligned, or wrong for a tensor map."""
    for tensor in _list_passed_tensors(manifest):
        name, there = names[tensor.name], _build_non_emptiness_prefix(tensor, names)
        yield f"{there}{name} == NULL", f"{tensor.name} is NULL"
        least = POINTER_ALIGNMENT if tensor.table else ALIGNMENT
        yield f"{there}(uintptr_t){name} % {least} != 0", f"{tensor.name} is not aligned to {least} bytes"
    for tensor in (t for t in manifest.tensors if any(_find_tensor_maps(manifest, t))):
        there, bytes_each = _build_non_emptiness_prefix(tensor, names), TYPES_BY_NAME[tensor.dtype].bytes
        for axis, size in enumerate(tensor.shape):
            if _find_value_range(size, manifest)[1] > 1 << 32:
                what = f"extent {axis} of {tensor.name} is larger than 2**32"
                yield f"{there}{_write_c_expression(size, names)} > 4294967296", what
        for axis, step in enumerate(_find_element_strides(tensor)[:-1]):
            if isinstance(step, int):
                continue
            stride = f"{bytes_each} * {_write_c_expression(step, names)}"
            what = f"rows of {tensor.name} along axis {axis} are not a multiple of 16 bytes apart"
            yield f"{there}({stride}) % 16 != 0", what
            yield f"{there}{stride} >= ((int64_t)1 << 40)", f"rows of {tensor.name} along axis {axis} are too far apart"


def _build_grid_checks(manifest: Manifest, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield C conditions, with messages, for a grid with too many blocks or one that clusters do not divide."""
    most = (2147483647, 65535, 65535)
    for axis, size, cluster, limit in zip("xyz", manifest.grid, manifest.cluster, most, strict=True):
        if _find_value_range(size, manifest)[1] > limit:
            what = f"more than {limit} blocks along {axis}: {sizes.format_size(size)}"
            yield f"{_write_c_expression(size, names)} > {limit}", what
        if cluster > 1 and not isinstance(size, int):
            what = f"{sizes.format_size(size)} blocks along {axis} are not made of clusters of {cluster}"
            yield f"tilec_max({_write_c_expression(size, names)}, 0) % {cluster} != 0", what


def _list_passed_tensors(manifest: Manifest) -> list[TensorInfo]:
    """Return the tensors whose addresses the kernel takes as parameters, without those of tensor maps only."""
    return [manifest.tensor(p.tensor) for p in manifest.params if isinstance(p, PointerParam)]


def _find_tensor_maps(manifest: Manifest, tensor: TensorInfo) -> Iterator[TensorMapParam]:
    """Yield the kernel's tensor-map parameters for this tensor."""
    return (p for p in manifest.params if isinstance(p, TensorMapParam) and p.tensor == tensor.name)


def may_be_empty(manifest: Manifest) -> bool:
    """Return whether any tensor that has a tensor map may have no elements for some sizes."""
    return any(
        _build_emptiness_condition(t, {}) != "0" for t in manifest.tensors if any(_find_tensor_maps(manifest, t))
    )


def _build_emptiness_condition(tensor: TensorInfo, names: Mapping[str, str]) -> str:
    """Return the C condition that a tensor has no elements: "0" or "1" if known, else comparisons of its sizes."""
    conditions = [f"{_write_c_expression(size, names)} == 0" for size in tensor.shape if not isinstance(size, int)]
    return "1" if 0 in tensor.shape else " || ".join(conditions) or "0"


def _build_non_emptiness_prefix(tensor: TensorInfo, names: Mapping[str, str]) -> str:
    """Return `!(empty) && ` in C, to put before a check of a tensor with elements; "" if it is never empty."""
    empty = _build_emptiness_condition(tensor, names)
    return "" if empty == "0" else f"!({empty}) && "


# ---- a launch --------------------------------------------------------------------------------------------------------


def write_launch_function(
    function: str, first: str, declared: str, manifest: Manifest, names: Mapping[str, str]
) -> Function:
    """Return the C function that clears zeroed tensors, encodes tensor maps and launches a kernel, nothing for no
    blocks.
    """
    extents = (
        size if isinstance(size, int) else f"tilec_max({_write_c_expression(size, names)}, 0)" for size in manifest.grid
    )
    maps = [(i, manifest.tensor(p.tensor), p) for i, p in enumerate(manifest.params) if isinstance(p, TensorMapParam)]
    values = []
    for i, param in enumerate(manifest.params):
        match param:
            case PointerParam(name) | ScalarParam(name):
                values.append(f"(void *)&{names[name]}")
            case TensorMapParam():
                values.append(f"&map_{i}")
    attributes = list(_build_launch_attributes(manifest))
    # The other arguments are for another target's variant.
    taken = {p.name if isinstance(p, ScalarParam) else p.tensor for p in manifest.params}
    lines = [
        f"    const int64_t grid[3] = {{{', '.join(map(str, extents))}}};",
        *(f"    CUtensorMap map_{i};" for i, _, _ in maps),
        f"    void *values[] = {{{', '.join(values) or 'NULL'}}};",
        *([f"    CUlaunchAttribute attributes[{len(attributes)}];"] if attributes else []),
        "    CUlaunchConfig config;",
        *(["    CUresult status;"] if maps or any(t.role == "zeroed" for t in manifest.tensors) else []),
        *(f"    (void){name};" for given, name in names.items() if given not in taken),
        "    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return CUDA_SUCCESS; /* nothing to do */",
        *(
            line
            for tensor in manifest.tensors
            if tensor.role == "zeroed"
            for line in _write_tensor_clearing(tensor, names)
        ),
        *(line for i, tensor, param in maps for line in _encode_map(i, tensor, param, names)),
        "    memset(&config, 0, sizeof config);",
        *(f"    config.gridDim{a} = (unsigned)grid[{i}];" for i, a in enumerate("XYZ")),
        *(f"    config.blockDim{a} = {extent};" for a, extent in zip("XYZ", manifest.block, strict=True)),
        f"    config.sharedMemBytes = {manifest.dynamic_smem};",
        "    config.hStream = stream;",
        *(["    memset(attributes, 0, sizeof attributes);"] if attributes else []),
        *(f"    attributes[{i}].{line};" for i, lines in enumerate(attributes) for line in lines),
        *(["    config.attrs = attributes;", f"    config.numAttrs = {len(attributes)};"] if attributes else []),
        "    return kernel->driver->cuLaunchKernelEx(&config, kernel->function, values, NULL);\n",
    ]
    parameters = ", ".join(s for s in (first, "CUstream stream", declared) if s)
    return Function(f"CUresult {function}({parameters})", "\n".join(lines), is_public=False)


def _build_launch_attributes(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """Yield, for each launch attribute of a kernel, the C assignments that set it: cluster, cooperative, dependent."""
    if manifest.cluster != (1, 1, 1):
        dims = [f"value.clusterDim.{a} = {extent}" for a, extent in zip("xyz", manifest.cluster, strict=True)]
        yield "id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", *dims
    if "cooperative" in manifest.attributes:
        yield "id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE", "value.cooperative = 1"
    if "dependent" in manifest.attributes:
        serialised = "value.programmaticStreamSerializationAllowed = 1"
        yield "id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", serialised


def _write_tensor_clearing(tensor: TensorInfo, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the C lines that fill a zeroed tensor's memory with 0 on the stream, and leave on an error."""
    return (
        f"    status = kernel->driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t){names[tensor.name]}, 0, "
        f"(size_t)({_build_byte_count(tensor, names)}), stream);",
        "    if (status != CUDA_SUCCESS) return status;",
    )


def _encode_map(index: int, tensor: TensorInfo, param: TensorMapParam, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the C lines by which the driver encodes a tensor map, with a row of zeros for an empty tensor. The driver
    takes the fastest dimension first, and no extent of 0: all reads of that row are out of bounds or read zeros.
    """
    rank, size = len(tensor.shape), TYPES_BY_NAME[tensor.dtype].bytes
    extents = [_write_c_expression(e, names) for e in reversed(tensor.shape)]
    strides = [f"{size} * {_write_c_expression(step, names)}" for step in reversed(_find_element_strides(tensor)[:-1])]
    if rank == 1:  # the driver refuses a null array: pretend a second dimension
        strides = [f"({size} * {extents[0]} + {EMPTY_BYTES - 1}) / {EMPTY_BYTES} * {EMPTY_BYTES}"]
    address = f"(void *){names[tensor.name]}"
    empty = _build_emptiness_condition(tensor, names)
    if empty != "0":
        row = [str(EMPTY_BYTES // size), *["1"] * (rank - 1)]
        extents = [f"empty ? {one} : {extent}" for one, extent in zip(row, extents, strict=True)]
        strides = [f"empty ? {EMPTY_BYTES} : {stride}" for stride in strides]
        address = f"empty ? (void *)(uintptr_t)kernel->zeros : {address}"
    common = f"CU_TENSOR_MAP_DATA_TYPE_{MAP_TYPES[param.dtype]}, {rank},\n            {address}, extents, strides"
    swizzle = "NONE" if param.swizzle == 0 else f"{param.swizzle}B"
    modes = (
        f"CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_{swizzle},\n            "
        "CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"
    )
    yield "    {"
    if empty != "0":
        yield f"        const int empty = {empty};"
    yield f"        const cuuint64_t extents[{rank}] = {_write_c_array('cuuint64_t', extents)};"
    yield f"        const cuuint64_t strides[{max(rank - 1, 1)}] = {_write_c_array('cuuint64_t', strides)};"
    if not isinstance(param, Im2colMapParam):
        yield f"        const cuuint32_t box[{rank}] = {{{', '.join(map(str, reversed(param.box)))}}};"
        yield f"        const cuuint32_t steps[{rank}] = {{{', '.join(['1'] * rank)}}};"
        yield f"        status = kernel->driver->cuTensorMapEncodeTiled(&map_{index}, {common}, box, steps,"
    else:
        pixels, channels = param.box
        inner = rank - 2
        moves = ["1", *[str(param.stride)] * inner, "1"]
        yield f"        const int lower[{inner}] = {{{', '.join([str(param.lower)] * inner)}}};"
        yield f"        const int upper[{inner}] = {{{', '.join([str(param.upper)] * inner)}}};"
        yield f"        const cuuint32_t moves[{rank}] = {{{', '.join(moves)}}};"
        yield f"        status = kernel->driver->cuTensorMapEncodeIm2col(&map_{index}, {common}, lower, upper,"
        yield f"            {channels}, {pixels}, moves,"
    yield f"            {modes});"
    yield "        if (status != CUDA_SUCCESS) return status;"
    yield "    }"


def _write_c_array(kind: str, values: Sequence[str]) -> str:
    """Return values as a C initialiser in braces, each cast to `kind` unless it is a number."""
    return "{" + ", ".join(v if v.isdecimal() else f"({kind})({v})" for v in values) + "}"


# ---- scratch memory of the caller ------------------------------------------------------------------------------------


def list_scratch_tensors(manifests: Sequence[Manifest]) -> list[str]:
    """Return the names, each once, of the workspace and zeroed tensors, whose memory the caller provides."""
    return list(dict.fromkeys(t.name for m in manifests for t in m.tensors if t.role in ("workspace", "zeroed")))


def write_scratch_function(
    entry: str, name: str, arguments: Mapping[str, Argument], variants: Sequence[tuple[str, Manifest]]
) -> Function:
    """Return the C function that computes, for the loaded variant, a scratch tensor's bytes from the sizes it needs."""
    found = [(i, t) for i, (_, m) in enumerate(variants) for t in m.tensors if t.name == name]
    used = dict.fromkeys(n for _, t in found for size in t.shape for n in sizes.scalar_names(size))
    names = {n: arguments[n].name for n in used}
    declared = "".join(f", {arguments[n].declared}" for n in used)
    cases = "\n".join(f"    case {i}: return (size_t)({_build_byte_count(t, names)});" for i, t in found)
    comment = f"/* What `{name}` of {entry}_launch must have room for; what it holds does not matter. */\n"
    signature = f"size_t {entry}_{name}_bytes(const {entry}_kernel *kernel{declared})"
    body = f"    switch (kernel->variant) {{\n{cases}\n    default: return 0;\n    }}\n"
    return Function(signature, body, comment=comment)


def _build_byte_count(tensor: TensorInfo, names: Mapping[str, str]) -> str:
    """Return a C expression of a tensor's size in bytes, at least `EMPTY_BYTES`."""
    factors = (TYPES_BY_NAME[tensor.dtype].bytes, *tensor.shape)
    product = " * ".join(_write_c_expression(factor, names) for factor in factors)
    return f"tilec_max({product}, {EMPTY_BYTES})"


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "shr": ">>"}


def _write_c_expression(size: Size, names: Mapping[str, str]) -> str:
    """Return a size, or the formula of one, as a C expression of type int64_t, with parameters' C names."""
    if isinstance(size, int):
        return str(size)
    if isinstance(size, str):
        return f"(int64_t){names.get(size, size)}"
    name, a, b = size
    left, right = _write_c_expression(a, names), _write_c_expression(b, names)
    if name in _OPERATORS:
        return f"({left} {_OPERATORS[name]} {right})"
    return f"tilec_{name}({left}, {right})"


def _find_element_strides(tensor: TensorInfo) -> Shape:
    """Return a tensor's strides in elements, perhaps formulas: the declared ones, or a row-major array's."""
    if tensor.strides is not None:
        return tensor.strides
    steps: list[Size] = [1]
    for extent in reversed(tensor.shape[1:]):
        step = steps[-1]
        product = extent * step if isinstance(extent, int) and isinstance(step, int) else ("mul", extent, step)
        steps.append(extent if step == 1 else product)
    return tuple(reversed(steps))
