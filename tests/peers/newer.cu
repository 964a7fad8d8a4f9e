// Kernels of our own with what newer hardware brought: fp8 and packed conversions, inline matrix instructions, warp
// reductions, TMA bulk copies that report to a cuda::barrier, and shared memory of a cluster.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace cg = cooperative_groups;
#define KERNEL extern "C" __global__ void

// Every conversion of fp8: from float, half and bfloat16 pairs, and back.
KERNEL eights(const float2 *x, unsigned short *codes, __half2 *back, float *single) {
    int t = threadIdx.x;
    unsigned short *mine = codes + 8 * t;
    __half2 h = __float22half2_rn(x[t]);
    __nv_bfloat162 b = __float22bfloat162_rn(x[t]);
    mine[0] = __nv_cvt_float2_to_fp8x2(x[t], __NV_SATFINITE, __NV_E4M3);
    mine[1] = __nv_cvt_float2_to_fp8x2(x[t], __NV_SATFINITE, __NV_E5M2);
    mine[2] = __nv_cvt_halfraw2_to_fp8x2(h, __NV_SATFINITE, __NV_E4M3);
    mine[3] = __nv_cvt_halfraw2_to_fp8x2(h, __NV_SATFINITE, __NV_E5M2);
    mine[4] = __nv_cvt_bfloat16raw2_to_fp8x2(b, __NV_SATFINITE, __NV_E4M3);
    mine[5] = __nv_cvt_float_to_fp8(x[t].x, __NV_NOSAT, __NV_E5M2);
    back[2 * t] = __nv_cvt_fp8x2_to_halfraw2(mine[0], __NV_E4M3);
    back[2 * t + 1] = __nv_cvt_fp8x2_to_halfraw2(mine[1], __NV_E5M2);
    single[t] = float(__nv_fp8_e4m3(x[t].y)) + float(__nv_fp8_e5m2(x[t].x));
}

// What the threads of a warp do together, on whole and on part of warps.
KERNEL warps(const int *x, int *out) {
    int t = threadIdx.x, v = x[t];
    auto block = cg::this_thread_block();
    auto eight = cg::tiled_partition<8>(block);
    int *mine = out + 12 * t;
    mine[0] = cg::reduce(eight, v, cg::plus<int>());
    mine[1] = cg::reduce(eight, v, cg::greater<int>());
    mine[2] = cg::inclusive_scan(eight, v);
    mine[3] = cg::exclusive_scan(eight, v, cg::bit_or<int>());
    auto same = cg::labeled_partition(cg::tiled_partition<32>(block), v & 3);
    mine[4] = same.size() * 100 + same.thread_rank();
    mine[5] = eight.shfl_xor(v, 3);
    int all;
    mine[6] = __match_all_sync(0xffffffff, v >> 30, &all) != 0;
    mine[7] = all + 2 * eight.all(v > 0) + 4 * eight.any(v > 90);
#if __CUDA_ARCH__ >= 800
    mine[8] = __reduce_add_sync(0xffffffff, v);
    mine[9] = __reduce_min_sync(0xffffffff, v);
    mine[10] = __reduce_or_sync(0xffffffff, v);
#endif
    mine[11] = __popc(cg::coalesced_threads().ballot(v & 1));
}

// C = A·B with 2:4 sparse A: registers and metadata as the host laid them out.
KERNEL sparse(const uint2 *a, const uint2 *b, const unsigned *meta, float4 *c) {
    int t = threadIdx.x;
    float4 d = c[t];
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%0, %1, %2, %3}, %8, 0x0;"
                 : "+f"(d.x), "+f"(d.y), "+f"(d.z), "+f"(d.w)
                 : "r"(a[t].x), "r"(a[t].y), "r"(b[t].x), "r"(b[t].y), "r"(meta[t]));
    c[t] = d;
}

// Halves and bfloat16 pairs that many threads add to one place.
KERNEL half_atomics(const __half2 *x, __half2 *h, __nv_bfloat162 *b, __half *one) {
    int t = threadIdx.x;
    atomicAdd(h, x[t]);
    atomicAdd(b, __float22bfloat162_rn(__half22float2(x[t])));
    atomicAdd(one, __low2half(x[t]));
}

// Local arrays under indices that only run time knows, in a function that calls itself.
__device__ __noinline__ int walk(const int *tree, int node, int depth) {
    int children[4];
    for (int i = 0; i < 4; ++i) children[i] = (node * 5 + i * i + tree[(node + i) & 31]) & 31;
    if (depth == 0) return tree[children[node & 3]];
    return walk(tree, children[(node >> 2) & 3], depth - 1) + 3 * children[depth & 3];
}
KERNEL walks(const int *tree, int *out) { out[threadIdx.x] = walk(tree, threadIdx.x & 31, threadIdx.x % 6); }

#if __CUDA_ARCH__ >= 900
// A ring of two stages filled by bulk copies, which report to a barrier of libcu++, and a bulk store at the end.
KERNEL bulk(const float *x, float *out, int tiles) {
    __shared__ alignas(128) float stage[2][128];
    __shared__ alignas(128) float sum[128];
    __shared__ cuda::barrier<cuda::thread_scope_block> full[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (auto &barrier : full) init(&barrier, blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    float total = 0;
    for (int i = 0; i < tiles + 1; ++i) {
        if (i < tiles) {
            auto &barrier = full[i & 1];
            if (t == 0) {
                cuda::device::memcpy_async_tx(stage[i & 1], x + 128 * i, cuda::aligned_size_t<16>(512), barrier);
                auto token = cuda::device::barrier_arrive_tx(barrier, 1, 512);
                (void)token;
            } else {
                (void)barrier.arrive();
            }
        }
        if (i == 0) continue;
        full[(i - 1) & 1].wait_parity(((i - 1) >> 1) & 1);
        total += stage[(i - 1) & 1][(t + i) % 128] * i;
        __syncthreads();
    }
    sum[t] = total;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (t == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, out, sum, 512);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
    }
}

// A histogram whose bins are spread over the blocks of a cluster.
KERNEL histogram(const int *x, int *bins, int n) {
    __shared__ int mine[16];
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), blocks = cluster.num_blocks();
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    cluster.sync();
    for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) {
        int bin = x[i];
        atomicAdd(cluster.map_shared_rank(mine, bin % blocks) + bin / blocks, 1);
    }
    cluster.sync();
    if (threadIdx.x < 16) bins[threadIdx.x * blocks + rank] = mine[threadIdx.x];
}
#endif
