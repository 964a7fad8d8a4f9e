"""Names of the language that no drawn kernel has, and why: whoever adds a name draws it, or says here what tests it."""

from __future__ import annotations

_ROWS = """
T.const T.empty T.inline T.Ref T.Var T.SharedBuffer T.FragmentBuffer T.__tilelang_dialect__ T.annotate_pass_configs: \
ways to write what is drawn otherwise; tests/kernels/test_styles.py, tests/kernels/set_by_macros.tl
T.ptr T.make_tensor T.make_tensor_from_addr: a parameter whose shape stands elsewhere; \
tests/kernels/test_pointers.py, tests/kernels/test_pointer_tables.py
T.alloc_global T.sync_grid: blocks that wait for one another have no meaning one by one; tests/kernels/test_grid_sync.py
T.shuffle_elect T.thread_binding T.activemask T.dp4a T.__fns: tests/kernels/test_simt.py, tests/kernels/roles.tl, \
tests/kernels/test_scalar_names.py
T.float16x2 T.bfloat16x2 T.float32x2 T.float32x4 T.float32x8 T.float8_e4m3fnx8 T.float4_e2m1fnx2 T.uint32x2 \
T.uint32x4 T.uint32x8 T.add2 T.sub2 T.mul2 T.fma2 T.max2 T.min2 T.abs2: tests/kernels/test_vectors.py
T.ptx: tests/kernels/test_inline_ptx.py
T.grid T.Ramp T.tvm_warp_shuffle T.tvm_warp_shuffle_up T.tvm_warp_shuffle_down: other names of what is drawn; \
tests/kernels/test_tvm_names.py
T.rng_init T.rng_rand T.rng_rand_float: tests/kernels/test_random.py
T.gemm_sp: metadata that is legal; tests/kernels/test_gemm_sparse.py
T.tcgen05_sf_warp_transpose T.tcgen05_cp_warpx4 T.tcgen05_gemm_blockscaled: tests/kernels/test_block_scaled.py
T.tma_gather4 T.tma_scatter4 T.tma_gather4_bytes: tests/kernels/test_four_rows.py
T.copy_cluster T.alloc_cluster_barrier: blocks that reach one another; tests/kernels/test_clusters.py, \
tests/kernels/test_cluster_barriers.py
T.ptx_commit_group T.cp_async_barrier_noinc T.mbarrier_expect_tx T.mbarrier_arrive_expect_tx T.named_barrier_arrive \
T.dec_max_nreg: tests/kernels/test_explicit_roles.py, tests/kernels/explicit.tl
T.ptx_cp_async T.access_ptr: tests/kernels/test_thread_copies.py
T.TensorCoreIntrinEmitter T.get_swizzle_layout: tests/kernels/test_mma_emitters.py
T.tcgen05_gemm T.tcgen05_mma_arrive: tests/kernels/test_tensor_roles.py
T.clc_try_cancel T.clc_is_canceled T.clc_get_first_ctaid_x T.clc_get_first_ctaid_y T.clc_get_first_ctaid_z: \
which blocks go on is the machine's; tests/kernels/test_launch_control.py
T.dtype: known when the kernel is read; tests/unit/test_compile_time_names.py
T.annotate_l2_hit_ratio T.annotate_restrict_buffers T.annotate_ws_schedule: nothing becomes of them but a warning
T.WSSchedule T.WSRole T.WSPipeline T.WSScope T.WSSync T.WSSyncKind T.WSOpRef T.WSID T.ws_op: the same; \
tests/kernels/test_schedule_descriptions.py
"""

LEFT_OUT = {
    name: reason.strip()
    for names, _, reason in (row.partition(":") for row in _ROWS.strip().split("\n"))
    for name in names.split()
}
"""By name."""
