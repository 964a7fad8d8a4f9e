"""Warp IR to PTX: a module with one entry, and its launch manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from tilec.codegen.barriers import clusters
from tilec.codegen.entry import SMEM, EntryCode
from tilec.codegen.printing import VPRINTF, make_format_variables
from tilec.ir import manifest as launch, warp
from tilec.ir.expr import extent_to_size
from tilec.ir.tile import Buffer, Extent, Var
from tilec.ptx.module import Entry, Module, Param, Variable
from tilec.ptx.names import parameter_name
from tilec.support.diagnostics import InternalError
from tilec.support.sizes import Size
from tilec.target.table import Target


def emit_module(
    program: warp.Program,
    target: Target,
    file: str,
    roles: Mapping[str, launch.TensorRole],
    *,
    imported: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    fast_math: bool = False,
    fma: bool = True,
    min_blocks: int = 1,
) -> Module:
    """Return the PTX module of a warp program: one entry, its launch manifest, shared memory and formats.

    `.loc` lines name `file`, the kernel's own, and `imported`, the other files of spans. `roles` gives the use of each
    tensor, `outputs` the returned tensors. With fast math the assembler may also fuse products and sums, unless `fma`
    is False. It leaves a thread no more registers than `min_blocks` on a multiprocessor have.
    """
    made = EntryCode(program, target, imported)
    made.scalars.fast_math, made.scalars.may_fuse = fast_math, fast_math and fma
    body = made.build()
    threads = program.threads
    directives = [f".reqntid {threads}, 1, 1", f".minnctapersm {min_blocks}"]
    if program.cluster != (1, 1, 1):
        directives.append(f".reqnctapercluster {', '.join(map(str, program.cluster))}")
    params = [_make_param(p) for p in program.params]
    params += [Param("b8", parameter_name(m.name), 64, 128) for m in program.maps]
    entry = Entry(program.name, tuple(params), tuple(directives), body)
    variables = [launch.manifest_variable(replace(make_manifest(program, target, roles), outputs=outputs))]
    if program.smem_bytes:
        variables.append(Variable("shared", SMEM, 1024, 0, "extern"))
    variables += make_format_variables(made.builder)
    functions = (VPRINTF,) if made.builder.formats else ()
    version, files = _select_ptx_version(program, target), (file, *imported)
    return Module(version, target.ptx_target, tuple(variables), (entry,), files, functions)


def _make_param(param: Buffer | Var) -> Param:
    """Return the PTX parameter of a tensor, as a 64-bit pointer, or of a scalar, of at least 8 bits."""
    if isinstance(param, Buffer):
        return Param("u64", parameter_name(param.name))
    dtype = param.dtype
    spelled = f"f{dtype.bits}" if dtype.is_float and dtype.bits > 16 else f"b{max(dtype.bits, 8)}"
    return Param(spelled, parameter_name(param.name))


def make_manifest(program: warp.Program, target: Target, roles: Mapping[str, launch.TensorRole]) -> launch.Manifest:
    """Return a program's launch manifest; tensors without a role are workspaces, counters of grid barriers zeroed."""
    operations = tuple(program.operations())
    own = dict(roles)
    own |= {op.counter: "zeroed" for op in operations if isinstance(op, warp.GridSync)}
    tensors: list[launch.TensorInfo] = []
    scalars: list[launch.ScalarInfo] = []
    params: list[launch.Param] = []
    for p in program.params:
        if isinstance(p, Buffer):
            strides = None if p.strides is None else tuple(map(_make_size, p.strides))
            extents, role = tuple(map(_make_size, p.extents)), own.get(p.name, "workspace")
            tensors.append(launch.TensorInfo(p.name, p.dtype.name, extents, role, strides, p.table_rank))
            params.append(launch.PointerParam(p.name))
        else:
            scalars.append(launch.ScalarInfo(p.name, p.dtype.name))
            params.append(launch.ScalarParam(p.name, p.dtype.name))
    params += map(_make_map_param, program.maps)
    x, y, z = map(_make_size, program.grid)
    return launch.Manifest(
        program.name, target.ptx_target, (x, y, z), (program.threads, 1, 1), program.cluster, program.smem_bytes,
        tuple(tensors), tuple(scalars), tuple(params), attributes=clusters.find_launch_attributes(operations),
    )  # fmt: skip


def _select_ptx_version(program: warp.Program, target: Target) -> str:
    """Return the target's PTX version, or 8.7 if a tensor-core product needs `.kind::mxf4nvf4`."""
    scaled = {op.scales.kind for op in program.operations() if isinstance(op, warp.TensorMma) and op.scales is not None}
    return "8.7" if "mxf4nvf4" in scaled else target.ptx_version


def _make_map_param(made: warp.TensorMap) -> launch.TensorMapParam:
    """Return the manifest's description of a tensor map, tiled or im2col."""
    tensor, dtype, at = made.tensor.name, made.tensor.dtype.name, made.corners
    swizzle = cast(launch.Swizzle, made.swizzle)
    if at is None:
        return launch.TensorMapParam(tensor, dtype, made.box, swizzle)
    return launch.Im2colMapParam(tensor, dtype, made.box, swizzle, at.lower, at.upper, at.stride)


def _make_size(extent: Extent) -> Size:
    """Return an extent as an expression that a host can compute; an internal error if there is none."""
    size = extent_to_size(extent)
    if size is None:
        raise InternalError("a host cannot compute this extent")
    return size
