"""Options that a file gives the compiler: the keywords of @tilelang.jit, and T.annotate_pass_configs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import rewrite_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.im2col import Im2col
from tilec.ops.language.signature import Argument, find_nearest_name
from tilec.ops.language.values import Dictionary, DictionaryEntry, Member, describe_value
from tilec.support.diagnostics import Warn, make_warning, raise_error

_OPTION_OF_CONFIG: Mapping[str, tile.KernelOption] = {
    "enable_fast_math": "fast-math",
    "disable_warp_specialized": "unspecialised",
    "disable_tma_lower": "without-tma",
}
"""By key without `tl.` or `PassConfigKey.TL_`: the option that it sets where it is true."""

_REASON_NOT_USED = {
    "disable_wgmma": "tilec chooses the instructions for each tile",
    "enable_auto_warp_specialization": "tilec schedules every pipelined loop",
    "ptxas_register_usage_level": "tilec sets the registers of each role from its live values",
    "device_compile_flags": "there is no CUDA compiler",
    "config_index_bitwidth": "indices are as wide as their tensor needs",
}
_MEANINGLESS_CONFIGS = (
    "simplify", "disable_buffer_init_check", "disable_data_race_check", "disable_prelower_semantic_check",
    "enable_auto_schedule", "emit_line_directives", "enable_reducer_plan_verbose", "layout_cost_model",
    "reducer_force_baseline", "disable_safe_memory_access", "disable_safe_memory_legalize", "disable_vectorize_256",
    "enable_fp32x2_reduction", "enable_async_copy", "enable_lower_ldgstg", "enable_lower_ldgstg_predicated",
    "enable_vectorize_planner_verbose", "debug_merge_shared_memory_allocations",
    "enable_aggressive_shared_memory_merge", "disable_shared_memory_reuse", "disable_shuffle_elect",
    "disable_loop_unswitching", "loop_unswitching_allow_non_trivial_else", "if_stmt_binding_inline_replayable_binds",
    "disable_thread_storage_sync", "force_let_inline", "ast_print_enable", "layout_visualization_enable",
    "layout_visualization_formats", "storage_rewrite_detect_inplace", "disable_dynamic_tail_split",
    "dynamic_alignment", "disable_rdna_wmma", "disable_fast_math", "enable_ptxas_verbose_output",
    "enable_equiv_terms_in_cse_tir", "disable_cse_tir", "disable_storage_rewrite", "disable_vectorize",
    "use_async_copy", "enable_debug", "merge_static_smem", "add_lower_pass", "noalias",
    "disable_out_of_bound_warning", "enable_dump_ir", "dump_ir_path", "dump_ir_dir", "pass_profile",
    "pass_profile_threshold_ms",
)  # fmt: skip
"""Configs of passes that tilec does not have, or whose result it always gives."""


def read_pass_configs(configs: Argument, warn: Warn) -> Iterator[tile.KernelOption]:
    """Yield the options that a dictionary of pass configs turns on (None: none), warn of unknown keys; refuse other
    values.
    """
    if not isinstance(configs.value, Dictionary):
        if configs.value is not None:
            found = describe_value(configs.value)
            raise_error("wrong-argument", "pass_configs needs a dictionary", configs.span, f"this is {found}")
        return
    for entry in configs.value.entries:
        key = _read_config_name(entry)
        if key in _OPTION_OF_CONFIG:
            if entry.value:
                yield _OPTION_OF_CONFIG[key]
        elif key in _REASON_NOT_USED:
            warn(make_warning("hint-not-used", f"{key} has no effect", entry.span, _REASON_NOT_USED[key]))
        elif key not in _MEANINGLESS_CONFIGS:
            near = find_nearest_name(key, [*_OPTION_OF_CONFIG, *_REASON_NOT_USED, *_MEANINGLESS_CONFIGS])
            help_text = f"did you mean tl.{near}?" if near else None
            warn(make_warning("unknown-pass-config", f"there is no pass config `{key}`", entry.span, help=help_text))


def _read_config_name(entry: DictionaryEntry) -> str:
    """Return a pass config's name in lower case, without module and `TL_` or `TIR_` prefix; refuse a key that is no
    name.
    """
    match entry.key:
        case str() as text:
            name = text.rpartition(".")[2]
        case Member(path=path):
            name = path.rpartition(".")[2]
        case other:
            raise_error("wrong-argument", "a pass config has a name", entry.span, f"this is {describe_value(other)}")
    for prefix in ("tl_", "tir_"):
        name = name.lower().removeprefix(prefix)
    return name


def find_outputs(kernel: tile.Kernel, out_idx: Argument, own_tensors: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the tensor parameters at `out_idx`, from the back if negative, each once; refuse bad
    positions. From the back, scalars after the last tensor do not count; nor do `own_tensors` of the function.
    """
    params = [param for param in kernel.params if not (isinstance(param, tile.Buffer) and param.name in own_tensors)]
    while params and not isinstance(params[-1], tile.Buffer):
        params.pop()
    value = out_idx.value
    indices = value if isinstance(value, tuple) else () if value is None else (value,)
    names = []
    for index in indices:
        if not isinstance(index, int) or isinstance(index, bool):
            raise_error("wrong-argument", "out_idx counts parameters", out_idx.span, f"this is {describe_value(index)}")
        if not -len(params) <= index < len(kernel.params):
            count = f"{kernel.name} has {len(kernel.params)} parameters"
            raise_error("out-of-range", f"there is no parameter {index}", out_idx.span, count)
        param = params[index] if index < 0 else kernel.params[index]
        if not isinstance(param, tile.Buffer):
            raise_error("wrong-argument", "only tensors are returned", out_idx.span, f"{param.name} is a scalar")
        names.append(param.name)
    return tuple(dict.fromkeys(names))


def apply_options(kernel: tile.Kernel, asks: Iterable[tile.KernelOption]) -> tile.Kernel:
    """Return the kernel with these options instead of its own; `without-tma` is not kept, but marks copies and
    im2cols.
    """
    options = set(asks)
    if "without-tma" in options:
        kernel = replace(kernel, body=rewrite_statements(kernel.body, _disable_tma))
    return replace(kernel, asks=tuple(sorted(options - {"without-tma"})))


def _disable_tma(stmt: tile.Stmt) -> tile.Stmt:
    """Return a copy or im2col statement with TMA switched off, any other statement as it is."""
    return replace(stmt, tma=False) if isinstance(stmt, Copy | Im2col) else stmt
