"""tilec from Python: compile a kernel, or load a cubin, and call it with arrays.

A call launches on the GPU where the arrays are, through cuda-python and on the caller's stream, and does not wait; or
it runs the PTX in the emulator, on arrays of the CPU.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilec.driver import build as driver
from tilec.host import notebook, tables
from tilec.host.arrays import CPU, GPU, View, dense_strides, view_array
from tilec.host.header_calls import ALIGNMENT
from tilec.ir.elements import fill_with_poison, is_poison, numpy_storage_type, storage_shape
from tilec.ir.expr import integer_range
from tilec.ir.manifest import Manifest, PointerParam, ScalarParam, TensorInfo, extract_from_cubin, extract_from_ptx
from tilec.ir.tile import Buffer
from tilec.ir.types import FLOAT8_E8M0, TYPES_BY_NAME, UINT8, DType
from tilec.support import files, options
from tilec.support.diagnostics import CompileError as CompileError, Diagnostic
from tilec.support.display import make_printable
from tilec.support.resources import target_names
from tilec.support.sizes import evaluate_shape, scalar_names
from tilec.support.source import SourceFile
from tilec.support.spelling import nearest_word

Device = Literal["cuda", "emulator"]
Number = int | float

_SCRATCH = ("workspace", "zeroed")


def compile(
    source: str | os.PathLike[str],
    *,
    target: str | None = None,
    entry: str | None = None,
    device: Device = "cuda",
    switches: Mapping[str, Any] | None = None,
    **params: options.Value,
) -> Kernel:
    """Compile a kernel file, or the several lines of text of one, and return a kernel ready to be called.

    `target` is a machine (`tilec targets`), by default the GPU here, or sm_90a. `entry` says which kernel, where there
    are several. `params` are constants of the file, as `-D` gives them: integers, floats, truth values, strings or
    scalars of numpy. `switches` are fields of `CompileOptions` (docs/options.md). With `device="emulator"` calls run on
    the CPU.

    Solved schedules are kept in the cache folder (`$TILEC_CACHE_DIR`, else tilec/ in the user's), so that a kernel that
    was compiled before compiles in a fraction of the time.

    Raises `CompileError` where the kernel is wrong, whose text shows the places; `ValueError` for a device, a
    switch or a switch's value that there is not; `TypeError` for a constant of another kind. Lints and other warnings
    are Python's (`UserWarning`), and `DeprecationWarning` tells of switches by older names.
    """
    _check_device(device)
    try:
        file = _read_source(source)
    except CompileError as error:
        raise error.with_traceback(None) from None  # the frames inside tilec do not help the caller
    chosen = options.CompileOptions(
        target=target or _choose_default_target(device),
        entry=entry,
        defines=tuple((name, _check_constant(name, value)) for name, value in params.items()),
        **{"cache_dir": options.cache_folder(), **_check_switches(switches or {})},
    )
    try:
        build = driver.build_kernel(file, chosen, driver.Observer())
    except CompileError as error:
        raise draw_error(_reword_for_python(error, file), file).with_traceback(None) from None
    for found in build.warnings:
        warnings.warn(_render_text(found, file), stacklevel=2)
    return Kernel(build.manifest, build.cubin, build, is_emulated=device == "emulator")


def load(cubin: str | os.PathLike[str] | bytes, entry: str | None = None, *, device: Device = "cuda") -> Kernel:
    """Return the kernel in a cubin that tilec made (the name of a file, or its bytes); `entry` selects one of several.
    It launches on a GPU of the cubin's target only, and has neither `ptx` nor `trace`.

    With `device="emulator"` it is PTX that tilec made (`--emit ptx`), and calls run on the CPU: the emulator does not
    read machine code.

    Raises `CompileError` where the file cannot be read, is no cubin or has no launch manifest. Raises `ValueError` for
    an unknown device or one that does not run the file, and where `entry` names no kernel, or is missing with several
    kernels.
    """
    _check_device(device)
    try:
        data = cubin if isinstance(cubin, bytes) else files.read_bytes(os.fspath(cubin))
        ptx = _decode_ptx(data) if device == "emulator" else None
        found = extract_from_cubin(data) if ptx is None else extract_from_ptx(ptx)
    except CompileError as error:
        raise error.with_traceback(None) from None
    chosen = [manifest for manifest in found if entry in (None, manifest.entry)]
    if len(chosen) != 1:
        what = f"the cubin has no kernel {entry}, but" if entry else "name the kernel with entry=:"
        raise ValueError(f"{what} {', '.join(manifest.entry for manifest in found)}")
    return Kernel(chosen[0], data) if ptx is None else Kernel(chosen[0], None, ptx=ptx, is_emulated=True)


def _check_device(device: str) -> None:
    """Raise `ValueError` unless the device is "cuda" or "emulator"."""
    if device not in ("cuda", "emulator"):
        raise ValueError(f"device is 'cuda' or 'emulator', not {device!r}")


def _decode_ptx(data: bytes) -> str:
    """Return PTX bytes as text; raise `ValueError` for a cubin, which the emulator cannot run."""
    if data.startswith(b"\x7fELF"):
        raise ValueError(
            "the emulator does not run machine code, and this is a cubin: give load the PTX that --emit ptx writes, "
            "or call tilec.compile with the kernel and device='emulator'"
        )
    return data.decode(errors="replace")


def _check_constant(name: str, value: object) -> options.Value:
    """Return a constant as a Python value, a numpy scalar converted; raise `TypeError` for another type."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, options.Value):
        raise TypeError(f"{name} is a number, a truth value or a string, not {type(value).__name__}")
    return value


def _check_switches(switches: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the compile switches by their present names, warning of former ones; raise `ValueError` for unknown
    ones.
    """
    for name in ("target", "entry", "defines"):
        if name in switches:
            raise ValueError(f"{name} is not a switch: it is an argument of compile itself")
    current: dict[str, Any] = {}
    for name, value in switches.items():
        now = options.FORMER_NAMES.get(name.replace("_", "-"), name)
        if now != name:
            warnings.warn(f"the switch {name} is now called {now}", DeprecationWarning, stacklevel=3)
        current[now] = _replace_former_codes(value) if now in ("silenced", "errors") else value
    options.check_fields(current)
    return current


def _replace_former_codes(given: Iterable[str]) -> tuple[str, ...]:
    """Return diagnostic codes with former ones replaced by their present codes, with a `DeprecationWarning` each."""
    from tilec.driver.explanations import FORMER_CODES

    for code in given:
        if code in FORMER_CODES:
            warnings.warn(f"the code {code} is now called {FORMER_CODES[code]}", DeprecationWarning, stacklevel=4)
    return tuple(FORMER_CODES.get(code, code) for code in given)


def _read_source(source: object) -> SourceFile:
    """Return a kernel's source: a text of several lines itself, else the file's; an error names the nearest file."""
    if isinstance(source, str) and "\n" in source:
        return SourceFile("kernel.tl", source)
    if not isinstance(source, str | os.PathLike):
        kind = f"not {type(source).__name__}; Python functions are not read"
        raise TypeError(f"a kernel is the name of a file, or the text of one, {kind}")
    try:
        return files.read_source(os.fspath(source))
    except CompileError as error:
        (first,) = error.diagnostics
        if first.code != "no-such-file" or (near := _find_similar_file(Path(source))) is None:
            raise
        raise CompileError(replace(first, help=f"did you mean {near}?")) from None


def _find_similar_file(path: Path) -> Path | None:
    """Return the file in the same folder, with the same suffix, whose name is nearest to a missing one, or None."""
    try:
        beside = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError:
        return None
    near = nearest_word(path.name, beside)
    return None if near is None else path.with_name(near)


def _choose_default_target(device: Device) -> str:
    """Return the best target for this machine's GPU; the command's default without one or for the emulator."""
    default = options.CompileOptions().target
    if device == "emulator":
        return default
    from tilec.host import runtime

    if not runtime.has_gpu():
        return default
    from tilec.host.machines import find_compatible_targets

    return next(iter(find_compatible_targets(runtime.compute_capability(), target_names())), default)


def draw_error(error: CompileError, source: SourceFile) -> CompileError:
    """Return the error with its places naming the kernel file, and its diagnostics rendered into `shown`."""
    located = error.with_main_path(source.path)
    located.shown = "\n".join(_render_text(diagnostic, source) for diagnostic in error.diagnostics)
    return located


def _reword_for_python(error: CompileError, source: SourceFile) -> CompileError:
    """Return a `CompileError` whose texts about `-D` constants name arguments of `tilec.compile`; others unchanged."""
    if not any(d.code.endswith("-define") for d in error.diagnostics):
        return error

    def reword_text(text: str) -> str:
        """Return a text with `-D name=…` said as an argument of `tilec.compile`."""
        return re.sub(r"-D (\w+=…)", r"\1 among the arguments of tilec.compile", text).replace("-D ", "")

    def reword_diagnostic(found: Diagnostic) -> Diagnostic:
        """Return a diagnostic about a `-D` constant with its title and help in words of Python; others unchanged."""
        if not found.code.endswith("-define"):
            return found
        help_text = None if found.help is None else reword_text(found.help)
        name = found.title.split()[1]
        if found.code == "unknown-define" and re.search(rf"\b{re.escape(name)}\s*:\s*T\.", source.text):
            help_text = f"{name} is a parameter of the kernel: pass it when you call what tilec.compile returns"
        return replace(found, title=reword_text(found.title), help=help_text)

    return CompileError(*map(reword_diagnostic, error.diagnostics))


def _render_text(diagnostic: Diagnostic, source: SourceFile) -> str:
    """Return a diagnostic rendered with its source lines as plain text."""
    from tilec.support.render import render_diagnostic

    return str(render_diagnostic(diagnostic, source).plain)


# ---- calling ---------------------------------------------------------------------------------------------------------


class Kernel:
    """A kernel to be called: `kernel(a, b, c)`; `compile` and `load` make it.

    `manifest` says how it is launched: grid, threads, bytes of shared memory, and each parameter's dtype and shape, in
    elements, whose sizes may be expressions of a call's sizes (docs/manifest.md). `cubin` is its machine code. `ptx`,
    its text, and `trace`, the schedules as JSON (docs/trace.md), exist where it was compiled here. A kernel that was
    loaded from PTX has no `cubin` and no `trace`. `inspect.signature` shows the parameters of a call.
    """

    def __init__(
        self,
        manifest: Manifest,
        cubin: bytes | None,
        build: driver.Build | None = None,
        *,
        ptx: str | None = None,
        is_emulated: bool = False,
    ) -> None:
        self.manifest, self.cubin = manifest, cubin
        self.ptx = ptx if build is None else build.ptx
        self._build = build
        self._is_emulated = is_emulated
        self._loaded: dict[int, Any] = {}
        self.__signature__ = self._python_signature()

    def __repr__(self) -> str:
        known = self.list_shape_scalars()
        written = (f"{n}: {t}" + " from the arrays" * (n in known) for n, t in self._types().items())
        return f"<tilec kernel {self.manifest.entry}({', '.join(written)}) for {self.manifest.target}>"

    def _types(self) -> dict[str, str]:
        """Return the dtype and shape of each parameter of a call, by name, as text such as `float16[128, n]`."""
        tensors = {t.name: _describe_type(t) for t in self.manifest.tensors}
        types = {scalar.name: scalar.dtype for scalar in self.manifest.scalars} | tensors
        return {name: types[name] for name in self.parameters()}

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: signature, parameters and launch, and the schedules if it was compiled here."""
        trace = self.trace
        loops = [] if trace is None else json.loads(trace)["tilec"]["loops"]
        roles = {tensor.name: tensor.role for tensor in self.manifest.tensors}
        parameters = [(name, kind, roles.get(name, "in")) for name, kind in self._types().items()]
        return notebook.kernel_html(self.signature(), self.manifest, parameters, loops)

    @property
    def trace(self) -> str | None:
        """Return the schedule trace as JSON, made on first use; None for a kernel that was loaded."""
        return None if self._build is None else self._build.trace

    def signature(self) -> str:
        """Return the text of a call's signature, with brackets around parameters that follow from the arrays'
        shapes.
        """
        known = self.list_shape_scalars()
        written = (f"[{name}]" if name in known else name for name in self.parameters())
        return f"{self.manifest.entry}({', '.join(written)})"

    def _python_signature(self) -> inspect.Signature:
        """Return a call's `inspect.Signature`: parameters that follow from shapes, and `stream`, are optional
        keywords.
        """
        kind, known = inspect.Parameter, self.list_shape_scalars()
        needed = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in self.parameters() if name not in known]
        others = dict.fromkeys([*(name for name in self.parameters() if name in known), "stream"])
        optional = [kind(name, kind.KEYWORD_ONLY, default=None) for name in others]
        taken = {parameter.name for parameter in needed}
        return inspect.Signature([*needed, *(p for p in optional if p.name not in taken)], return_annotation=None)

    def parameters(self) -> tuple[str, ...]:
        """Return the names of a call's parameters: the declared ones in order, then `T.dynamic` sizes, without
        scratch.
        """
        lent = {tensor.name for tensor in self.manifest.tensors if tensor.role in _SCRATCH}
        own = (
            param.tensor if isinstance(param, PointerParam) else param.name
            for param in self.manifest.params
            if isinstance(param, PointerParam | ScalarParam)
        )
        return tuple(name for name in own if name not in lent)

    def __call__(self, *args: object, stream: object = None, **named: object) -> None:
        """Run it, with arrays for its tensors and numbers for its scalars, by position or by name.

        Arrays must be dense and row-major (or have the strides that the kernel declares), with its shapes and types;
        outputs are written in place. A table of addresses is a list of arrays, or an array of their addresses. bfloat16
        and 8-bit floats may also come as their bits, uint16 and uint8. Sizes that shapes tell may be left out. `stream`
        is a number, or a stream of torch, cupy or cuda.core; by default the one that is current where the arrays come
        from. Raises `TypeError` or `ValueError` before anything is launched.
        """
        given = self._bind_arguments(args, named)
        handle = _get_stream_handle(stream, given.values())
        views: dict[str, View] = {}
        listed: dict[str, tables.TableArgument] = {}
        scalars: dict[str, Number] = {}
        tensors = {tensor.name: tensor for tensor in self.manifest.tensors}
        for name, value in given.items():
            if name in tensors and tensors[name].table:
                listed[name] = tables.read_table(tensors[name], value, partial(self._make_view, name, stream=handle))
            elif name in tensors:
                views[name] = self._make_view(name, value, handle)
            else:
                scalars[name] = _check_scalar(name, value, self.manifest)
        shapes = {name: _compute_element_shape(tensors[name], one) for name, one in views.items()}
        shapes |= {name: _compute_element_shape(tensors[name], one) for name, one in listed.items()}
        sizes = self.manifest.sizes(shapes, scalars)
        for name, one in views.items():
            _check_view(tensors[name], one, sizes)
            self._check_memory(tensors[name], one)
        for name, table in listed.items():
            self._check_table(tensors[name], table, sizes)
        if self._is_emulated:
            self._emulate(views, listed, {**scalars, **sizes})
        else:
            self._launch(views, listed, {**scalars, **sizes}, handle)

    def _bind_arguments(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        """Return a call's values by parameter, sizes that follow from shapes optional; raise `TypeError` for a wrong
        call.
        """
        order = self.parameters()
        if len(args) + len(named) < len(order):
            order = tuple(name for name in order if name not in self.list_shape_scalars() or name in named)
        positional = [name for name in order if name not in named]
        strange = [name for name in named if name not in self.parameters()]
        if len(args) != len(positional) or strange:
            why = self._explain_mismatch(args, named, order)
            raise TypeError(f"{self.manifest.entry}() {why}; it is {self.signature()}")
        return dict(zip(positional, args, strict=True)) | dict(named)

    def _explain_mismatch(self, args: tuple[object, ...], named: Mapping[str, object], order: tuple[str, ...]) -> str:
        """Return the text in which Python says what is wrong with a call's arguments, as "missing 1 required
        argument".
        """
        for name in named:
            if name not in self.parameters():
                return f"got an unexpected keyword argument {name!r}"
        if len(args) > len(order):
            return f"takes {len(order)} positional arguments but {len(args)} were given"
        for name in order[: len(args)]:
            if name in named:
                return f"got multiple values for argument {name!r}"
        missing = [repr(name) for name in order if name not in named][len(args) :]
        return f"missing {len(missing)} required argument{'s' * (len(missing) > 1)}: {', '.join(missing)}"

    def list_shape_scalars(self) -> set[str]:
        """Return the names of the scalars that occur in tensors' shapes."""
        return {name for tensor in self.manifest.tensors for size in tensor.shape for name in scalar_names(size)}

    def _make_view(self, name: str, value: object, stream: int) -> View:
        """Return an argument's address and layout; raise an error if it is no array, or not on the kernel's device."""
        try:
            found = view_array(value, stream)
        except (BufferError, ValueError) as error:
            raise ValueError(f"{name} of {self.manifest.entry} cannot be used: {error}") from error
        if found is None:
            raise TypeError(f"{name} of {self.manifest.entry} must be an array, not {type(value).__name__}")
        kind = CPU if self._is_emulated else GPU
        if found.device[0] != kind:
            wanted = "the CPU, since the emulator runs there"
            if kind == GPU:
                wanted = "the GPU; a cubin does not run on the CPU"
                wanted = wanted if self._build is None else "the GPU; compile for device='emulator'"
            raise ValueError(f"{name} of {self.manifest.entry} must be on {wanted}")
        # Two four-bit numbers are one byte, whether the array's bytes are signed or not.
        return replace(found, dtype="uint8") if found.dtype == "int8" and name in self._four_bit_tensors() else found

    def _four_bit_tensors(self) -> set[str]:
        """Return the names of the tensors of four-bit elements; none for a kernel that was loaded. A manifest calls
        them uint8.
        """
        params = () if self._build is None else self._build.kernel.params
        return {p.name for p in params if isinstance(p, Buffer) and p.dtype.per_byte == 2}

    def _check_memory(self, tensor: TensorInfo, one: View) -> None:
        """Raise `ValueError` if an array to be written is read-only, or an array's address is not aligned."""
        if one.is_read_only and tensor.role != "in":
            raise ValueError(f"{tensor.name} of {self.manifest.entry} is written, and the array is read-only")
        if one.address % ALIGNMENT and 0 not in one.shape:
            name = f"{tensor.name} of {self.manifest.entry}"
            raise ValueError(f"{name} does not begin at a multiple of {ALIGNMENT} bytes")

    def _check_table(self, tensor: TensorInfo, table: tables.TableArgument, sizes: Mapping[str, int]) -> None:
        """Raise an error unless a table has the kernel's extents, and its arrays what `_check_view` asks."""
        tables.check_entries(tensor, table, evaluate_shape(tensor.shape[: tensor.table], sizes))
        entry = replace(tensor, shape=tensor.shape[tensor.table :], table=0)
        for one in table.entries:
            _check_view(entry, one, sizes)
            self._check_memory(entry, one)

    def _emulate(
        self, views: Mapping[str, View], listed: Mapping[str, tables.TableArgument], scalars: dict[str, Number]
    ) -> None:
        """Run the kernel in the emulator on CPU arrays, print its output, and warn of elements it did not write."""
        from tilec.driver.emulation import emulate

        storage = {t.name: numpy_storage_type(TYPES_BY_NAME[t.dtype]) for t in self.manifest.tensors}
        arrays = {name: one.as_numpy(storage[name]) for name, one in views.items()}
        shared = self._warn_of_shared_memory(arrays)
        # Tables are joined to one array each, and copied back.
        entries: dict[str, list[View]] = {}
        for tensor in (t for t in self.manifest.tensors if t.name in listed):
            shape = evaluate_shape(tensor.shape, {n: int(v) for n, v in scalars.items()})
            entries[tensor.name] = list(tables.list_entry_views(tensor, listed[tensor.name], shape[tensor.table :]))
            arrays[tensor.name] = tables.join_entries(tensor, entries[tensor.name], shape)
        # The emulator's launcher copies strided tensors to their layout.
        arguments = emulate.KernelArguments(arrays, scalars)
        with self._report_unwritten({n: a for n, a in arrays.items() if n not in shared}):
            if self._build is not None:
                report = emulate.emulate_build(self._build, arguments)
            else:
                assert self.ptx is not None
                begins_early = "dependent" in self.manifest.attributes
                report = emulate.emulate_ptx_text(self.ptx, self.manifest, arguments, begins_early=begins_early)
        for tensor in (t for t in self.manifest.tensors if t.name in entries and t.role != "in"):
            tables.copy_to_entries(tensor, entries[tensor.name], arrays[tensor.name])
        print(make_printable(report.printed), end="")

    def _warn_of_shared_memory(self, arrays: Mapping[str, NDArray[Any]]) -> set[str]:
        """Warn of each output that shares memory with another argument, and return the names of all such arrays."""
        written = {tensor.name for tensor in self.manifest.tensors if tensor.role != "in"}
        shared: set[str] = set()
        for (a, first), (b, second) in combinations(arrays.items(), 2):
            if {a, b} & written and np.may_share_memory(first, second):
                output, other = (a, b) if a in written else (b, a)
                text = f"{output} of {self.manifest.entry}, which is written, shares memory with {other}"
                warnings.warn(f"{text}: blocks run in any order, so pass a separate array", stacklevel=4)
                shared |= {a, b}
        return shared

    @contextmanager
    def _report_unwritten(self, arrays: Mapping[str, NDArray[Any]]) -> Iterator[None]:
        """Warn, after the run in the `with`, of output elements that no block wrote, and restore what they held. The
        outputs are filled with poison before. Those not contiguous, or of a narrow dtype, are left out.
        """
        from tilec.driver.emulation.compare import shows_poison

        before: dict[str, tuple[NDArray[Any], DType]] = {}
        for tensor in self.manifest.tensors:
            dtype, array = TYPES_BY_NAME[tensor.dtype], arrays.get(tensor.name)
            if array is not None and tensor.role == "out" and shows_poison(dtype) and array.flags.c_contiguous:
                before[tensor.name] = array.copy(), dtype
                fill_with_poison(array, dtype)
        left: dict[str, NDArray[Any]] = {}
        try:
            yield
        finally:
            for name, (held, dtype) in before.items():
                left[name] = is_poison(arrays[name], dtype)
                np.copyto(arrays[name], held, where=left[name])
        for name, mask in left.items():
            if count := int(np.count_nonzero(mask)):
                text = f"no block wrote {count:,} of the {mask.size:,} elements of {name}"
                warnings.warn(f"{text}: check the grid and the indices of the stores", stacklevel=5)

    def _launch(
        self,
        views: Mapping[str, View],
        listed: Mapping[str, tables.TableArgument],
        scalars: Mapping[str, Number],
        stream: int,
    ) -> None:
        """Launch the kernel on its arrays' GPU, loading the cubin there at first; refuse arrays on different GPUs."""
        from tilec.host import runtime

        places = {one.device[1]: name for name, one in views.items()}
        for name, table in listed.items():
            places |= {one.device[1]: name for one in (*table.entries, *([table.addresses] if table.addresses else []))}
        if len(places) > 1:
            raise ValueError(f"{' and '.join(places.values())} of {self.manifest.entry} are on different GPUs")
        number = next(iter(places), 0)
        if number not in self._loaded:
            assert self.cubin is not None
            self._loaded[number] = runtime.Kernel(self.cubin, self.manifest.entry, number)
        addresses = {name: one.address for name, one in views.items()}
        addresses |= {name: one.addresses.address for name, one in listed.items() if one.addresses is not None}
        made = {n: [one.address for one in t.entries] for n, t in listed.items() if t.addresses is None}
        self._loaded[number].call(addresses, scalars, stream, made)


def _describe_type(tensor: TensorInfo) -> str:
    """Return a tensor's dtype and shape as text such as `float16[128, n]`, of a table `[g] of float16[128, n]`."""
    entries = f"[{', '.join(map(str, tensor.shape[: tensor.table]))}] of " if tensor.table else ""
    return f"{entries}{tensor.dtype}[{', '.join(map(str, tensor.shape[tensor.table :]))}]"


def _check_scalar(name: str, value: object, manifest: Manifest) -> Number:
    """Return a scalar argument as a Python number; raise an error if its type or value does not fit the parameter."""
    (dtype,) = (TYPES_BY_NAME[scalar.dtype] for scalar in manifest.scalars if scalar.name == name)
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float):
        raise TypeError(f"{name} of {manifest.entry} is a number, not {type(value).__name__}")
    if dtype.kind not in ("int", "uint"):
        return value
    if isinstance(value, float):
        raise TypeError(f"{name} of {manifest.entry} is {dtype.name}, not {value!r}")
    lowest, highest = integer_range(dtype)
    if not lowest <= value <= highest:
        raise ValueError(f"{name} of {manifest.entry} is {dtype.name}, and {value} does not fit")
    return value


def _compute_element_shape(tensor: TensorInfo, one: View | tables.TableArgument) -> tuple[int, ...]:
    """Return an array's shape in elements: as given, but twice the last extent for four-bit ones, two in a byte."""
    per_byte = TYPES_BY_NAME[tensor.dtype].per_byte
    if tensor.table == len(one.shape):
        return one.shape
    return one.shape if per_byte == 1 or not one.shape else (*one.shape[:-1], one.shape[-1] * per_byte)


def _check_view(tensor: TensorInfo, one: View, sizes: Mapping[str, int]) -> None:
    """Raise an error unless an array has the dtype, shape and strides that the kernel declares for the tensor."""
    dtype = TYPES_BY_NAME[tensor.dtype]
    storage = numpy_storage_type(dtype)
    # A manifest calls tensors of this type uint8, as kernels store them.
    scales = (FLOAT8_E8M0.name,) * (dtype == UINT8)
    if one.dtype not in (dtype.name, storage.name, *scales):
        raised = f" (or its bits, {storage.name})" if storage.name != dtype.name else ""
        raise TypeError(f"{tensor.name} is {one.dtype}, the kernel takes {dtype.name}{raised}")
    wanted = storage_shape(evaluate_shape(tensor.shape, sizes), dtype)
    if one.shape != wanted:
        raise ValueError(f"{tensor.name} has the shape {list(one.shape)}, the kernel takes {list(wanted)}")
    steps = dense_strides(wanted) if tensor.strides is None else evaluate_shape(tensor.strides, sizes)
    if not one.has_steps(steps):
        raise ValueError(f"{tensor.name} has the strides {list(one.strides)}, the kernel takes {list(steps)}")


def _get_stream_handle(stream: object, values: Any) -> int:
    """Return a stream's CUDA handle: of a number, of torch, cupy or cuda.core, of the arrays for None; raise for
    others.
    """
    if stream is None:
        return _find_current_stream(values)
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):  # the protocol of cuda.core
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):  # torch, cupy
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError(f"stream is a number or a stream, not {type(stream).__name__}")


def _find_current_stream(values: Any) -> int:
    """Return the handle of the current stream of the first torch or cupy array's library; 0 without such arrays."""
    for value in values:
        library = type(value).__module__.partition(".")[0]
        if library == "torch" and value.is_cuda:
            return int(sys.modules["torch"].cuda.current_stream(value.device).cuda_stream)
        if library == "cupy":
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0
