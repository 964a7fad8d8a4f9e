// Kernels of our own for nvcc: each uses what C++ code asks of PTX and our compiler never emits.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mma.h>

namespace cg = cooperative_groups;
#define KERNEL extern "C" __global__ void

// -- reductions, votes, atomics --------------------------------------------------------------------------------------

KERNEL reduce_sum(const float *x, float *total, int *largest, int n) {
    __shared__ float partial[32];
    float sum = 0;
    int most = -2147483647;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += x[i];
        most = max(most, __float2int_rn(x[i] * 100));
    }
    for (int offset = 16; offset; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
#if __CUDA_ARCH__ >= 800
    most = __reduce_max_sync(0xffffffff, most);
#endif
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
        partial[warp] = sum;
        atomicMax(largest, most);
    }
    __syncthreads();
    if (warp == 0) {
        sum = lane < blockDim.x / 32 ? partial[lane] : 0;
        for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
        if (lane == 0) atomicAdd(total, sum);
    }
}

__device__ unsigned int tickets = 0;
__device__ volatile float staged[64];

// The last block to arrive adds up what the others wrote.
KERNEL last_block(const float *x, float *total, int n) {
    __shared__ bool is_last;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    sum = cg::reduce(tile, sum, cg::plus<float>());
    if (threadIdx.x == 0) {
        staged[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicInc(&tickets, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        float all = 0;
        for (int i = 0; i < gridDim.x; ++i) all += staged[i];
        *total = all;
    }
}

KERNEL votes(const int *x, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = x[i];
    unsigned r = __ballot_sync(~0u, v & 1);
    r += __all_sync(~0u, v >= 0) ? 7 : 0;
    r += __any_sync(~0u, v == 5) ? 11 : 0;
    r ^= __match_any_sync(~0u, v % 4);
    int pred;
    unsigned all = __match_all_sync(~0u, v / 1000, &pred);
    r += pred ? all : 3;
    r += __syncthreads_count(v > 10);
    r ^= __syncthreads_or(v == 77) ? 0x100 : 0;
    r ^= __syncthreads_and(v < 1000) ? 0x200 : 0;
    if (v & 2) r += __popc(__activemask());
    __syncwarp();
    if (v & 1) {
        auto active = cg::coalesced_threads();
        r += active.thread_rank() * 64 + active.size();
    }
    out[i] = r;
}

KERNEL atomics(int *i, unsigned *u, float *f, double *d, unsigned long long *l, __half2 *h, unsigned short *s) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&i[0], t); atomicSub(&i[1], t); atomicMin(&i[2], -t); atomicMax(&i[3], t); atomicXor(&i[4], t);
    atomicOr(&i[5], t); atomicAnd(&i[6], ~t); atomicExch(&i[7 + t], t * 3);
    atomicInc(&u[0], 9); atomicDec(&u[1], 9); atomicMax(&u[2], t * 0x1000000u);
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25); atomicAdd(l, 0x100000001ull); atomicMax(l + 1, (unsigned long long)t << 33);
    atomicAdd(h, __floats2half2_rn(1, 0.5f));
    for (unsigned old = *(volatile unsigned *)&u[3], seen; ; old = seen) {
        seen = atomicCAS(&u[3], old, old + 2 * t + 1);
        if (seen == old) break;
    }
    unsigned short guess = *(volatile unsigned short *)s, now;
    do { now = guess; guess = atomicCAS(s, now, (unsigned short)(now + 1)); } while (guess != now);
}

// -- memory -----------------------------------------------------------------------------------------------------------

KERNEL transpose(const float *in, float *out, int width, int height) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

__constant__ int lookup[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__constant__ double weights[3] = {0.5, -1.25, 1e10};
struct Pair { const float *from; float *to; short scale; char sign; };
struct Empty {};

KERNEL parameters(Pair pair, Empty, signed char byte, short2 shorts, double real, long long big, float *out) {
    int i = threadIdx.x;
    pair.to[i] = pair.from[i] * pair.scale * pair.sign + byte;
    out[i] = shorts.x * 10 + shorts.y + (float)(real * weights[i % 3]) + lookup[i % 8] + (float)(big >> 33);
}

KERNEL local_array(const int *x, int *out, int n) {
    int t = threadIdx.x, sorted[16];
    for (int i = 0; i < n; ++i) sorted[i] = x[t * n + i];
#pragma unroll 1
    for (int i = 1; i < n; ++i) {
        int v = sorted[i], j = i;
#pragma unroll 1
        for (; j > 0 && sorted[j - 1] > v; --j) sorted[j] = sorted[j - 1];
        sorted[j] = v;
    }
    for (int i = 0; i < n; ++i) out[t * n + i] = sorted[i];
}

// -- functions --------------------------------------------------------------------------------------------------------

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

struct Big { int v[6]; double d; };
__device__ __noinline__ Big build(Big b, int n) { b.v[n % 6] += n; b.d *= n; return b; }

// A recursion with an array of its own and a pointer into the caller's.
__device__ __noinline__ int descend(int *above, int n) {
    volatile int mine[4];
    for (int i = 0; i < 4; ++i) mine[i] = n * 10 + i;
    if (n == 0) return above[1];
    int below = descend((int *)mine, n - 1);
    return below + mine[n & 3] + above[n & 3];
}

KERNEL functions(const int *x, int *out, double *reals) {
    int t = threadIdx.x, seed[4] = {1, 2, 3, 4};
    out[t] = fibonacci(x[t] % 10);
    Big b = {{t, 1, 2, 3, 4, 5}, 1.5};
    b = build(b, x[t]);
    out[blockDim.x + t] = b.v[0] + 10 * b.v[x[t] % 6];
    reals[t] = b.d;
    out[2 * blockDim.x + t] = descend(seed, x[t] % 4);
}

typedef float (*Operation)(float, float);
__device__ __noinline__ float op_add(float a, float b) { return a + b; }
__device__ __noinline__ float op_sub(float a, float b) { return a - b; }
__device__ __noinline__ float op_mul(float a, float b) { return a * b; }
__device__ __noinline__ float op_div(float a, float b) { return a / b; }
__device__ Operation table[4] = {op_add, op_sub, op_mul, op_div};

KERNEL indirect(const float *a, const float *b, const int *which, float *out) {
    int t = threadIdx.x;
    out[t] = table[which[t] & 3](a[t], b[t]);
}

KERNEL switches(const int *x, int *out) {
    int t = threadIdx.x, v = x[t], r;
    switch (v) {
        case 0: r = v + 100; break;
        case 1: r = v * 7; break;
        case 2: r = out[t] - 5; break;
        case 3: r = v ^ 0x55; break;
        case 4: r = __popc(out[t]); break;
        case 5: r = out[t] / 3; break;
        case 6: r = out[t] % 7; break;
        case 7: r = __clz(v); break;
        case 8: r = out[t] << 3; break;
        case 9: r = -out[t]; break;
        default: r = -1;
    }
    out[t] = r;
}

// -- integers -----------------------------------------------------------------------------------------------------------

KERNEL integers(const long long *x, const long long *y, long long *out) {
    int t = threadIdx.x, o = t * 32;
    long long a = x[t], b = y[t];
    int i = (int)a, j = (int)b;
    unsigned u = i, v = j;
    unsigned long long p = a, q = b;
    out[o + 0] = b ? a / b : 0; out[o + 1] = b ? a % b : 0; out[o + 2] = q ? p / q : 0; out[o + 3] = q ? p % q : 0;
    out[o + 4] = j && !(i == -2147483647 - 1 && j == -1) ? i / j : 0; out[o + 5] = v ? u % v : 0;
    out[o + 6] = __mulhi(i, j); out[o + 7] = __umulhi(u, v); out[o + 8] = __mul64hi(a, b); out[o + 9] = __umul64hi(p, q);
    out[o + 10] = __popcll(a); out[o + 11] = __clzll(a); out[o + 12] = __ffsll(a); out[o + 13] = __brevll(a);
    out[o + 14] = __brev(i); out[o + 15] = __ffs(i); out[o + 16] = __sad(i, j, u); out[o + 17] = __usad(u, v, u);
    out[o + 18] = __byte_perm(u, v, 0x3715); out[o + 19] = __funnelshift_l(u, v, j); out[o + 20] = __funnelshift_rc(u, v, j & 63);
    out[o + 21] = __dp4a(i, j, 5); out[o + 22] = __dp2a_lo(i, j, 5); out[o + 23] = __hadd(i, j); out[o + 24] = __vadd4(u, v);
    out[o + 25] = __vabsdiffu4(u, v); out[o + 26] = __mul24(i, j); out[o + 27] = __umul24(u, v);
    unsigned __int128 product = (unsigned __int128)p * q + p;
    out[o + 28] = (long long)(product >> 64); out[o + 29] = (long long)((__int128)a * b - a >> 64);
    out[o + 30] = __fns(u, 0, (j & 7) + 1); out[o + 31] = (short)i * (signed char)j + (unsigned char)(u >> 3);
}

// -- floats -------------------------------------------------------------------------------------------------------------

KERNEL floats(const float *x, const float *y, float *out) {
    int t = threadIdx.x, o = t * 32;
    float a = x[t], b = y[t];
    out[o + 0] = a / b; out[o + 1] = sqrtf(a); out[o + 2] = __frcp_rn(a); out[o + 3] = __fdiv_rz(a, b);
    out[o + 4] = fmaf(a, b, a); out[o + 5] = __fmaf_rz(a, b, a); out[o + 6] = __fadd_rd(a, b); out[o + 7] = __fmul_ru(a, b);
    out[o + 8] = rintf(a); out[o + 9] = floorf(a); out[o + 10] = ceilf(a); out[o + 11] = truncf(a);
    out[o + 12] = copysignf(a, b); out[o + 13] = fminf(a, b); out[o + 14] = fmaxf(a, b); out[o + 15] = fabsf(a);
    out[o + 16] = expf(a * 0.01f); out[o + 17] = logf(fabsf(a)); out[o + 18] = sinf(a * 0.001f); out[o + 19] = tanhf(a * 0.01f);
    out[o + 20] = fmodf(a, b); out[o + 21] = __saturatef(a); out[o + 22] = (float)isnan(a); out[o + 23] = ldexpf(a, 3);
    out[o + 24] = rsqrtf(fabsf(a)); out[o + 25] = erff(a * 0.01f); out[o + 26] = powf(fabsf(a), 0.3f); out[o + 27] = cbrtf(a);
    out[o + 28] = __fsqrt_rd(fabsf(a)); out[o + 29] = remainderf(a, b); out[o + 30] = lgammaf(fabsf(a) * 0.001f + 1);
    out[o + 31] = (float)(signbit(a) ? 1 : 0);
}

KERNEL doubles(const double *x, const double *y, double *out, long long *whole) {
    int t = threadIdx.x, o = t * 16;
    double a = x[t], b = y[t];
    out[o + 0] = a / b; out[o + 1] = sqrt(a); out[o + 2] = fma(a, b, a); out[o + 3] = floor(a); out[o + 4] = fmod(a, b);
    out[o + 5] = exp(a * 0.001); out[o + 6] = log(fabs(a)); out[o + 7] = rsqrt(fabs(a)); out[o + 8] = sin(a * 0.01);
    out[o + 9] = __dadd_rz(a, b); out[o + 10] = __dmul_rd(a, b); out[o + 11] = (double)(float)a; out[o + 12] = fmax(a, b);
    out[o + 13] = __drcp_ru(a); out[o + 14] = hypot(a, b); out[o + 15] = atan2(a, b);
    whole[t * 4] = llrint(a); whole[t * 4 + 1] = (int)a; whole[t * 4 + 2] = (unsigned)fabs(a); whole[t * 4 + 3] = (long long)b;
}

KERNEL halves(const __half2 *x, const __half2 *y, __half2 *out, __nv_bfloat162 *brains, unsigned char *eights) {
    int t = threadIdx.x, o = t * 12;
    __half2 a = x[t], b = y[t];
    out[o + 0] = __hadd2(a, b); out[o + 1] = __hmul2(a, b); out[o + 2] = __hfma2(a, b, a); out[o + 3] = __hmax2(a, b);
    out[o + 4] = __hmin2_nan(a, b); out[o + 5] = __hneg2(__habs2(a)); out[o + 6] = __hsub2_sat(a, b);
    out[o + 7] = __h2div(a, b); out[o + 8] = h2exp2(__hmul2(a, __float2half2_rn(0.01f))); out[o + 9] = __hfma2_relu(a, b, a);
    out[o + 10] = __hgt2(a, b); out[o + 11] = h2tanh(__hmul2(a, __float2half2_rn(0.01f)));
    __nv_bfloat162 c = __floats2bfloat162_rn(__low2float(a), __high2float(a)), d = __floats2bfloat162_rn(__low2float(b), __high2float(b));
    brains[t * 5] = __hadd2(c, d); brains[t * 5 + 1] = __hmul2(c, d); brains[t * 5 + 2] = __hfma2(c, d, c);
    brains[t * 5 + 3] = __hmax2(c, d); brains[t * 5 + 4] = __hneg2(c);
    eights[t * 4] = __nv_fp8_e4m3(__low2float(a)).__x; eights[t * 4 + 1] = __nv_fp8_e5m2(__high2float(a)).__x;
    eights[t * 4 + 2] = __hbeq2(a, a); eights[t * 4 + 3] = (unsigned char)__half2ushort_rz(__habs(__low2half(b)));
}

// -- matrices, copies, clusters -----------------------------------------------------------------------------------------

using namespace nvcuda;

KERNEL wmma_f16(const __half *a, const __half *b, float *c, int k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + i, k);
        wmma::load_matrix_sync(fb, b + i, k);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2;
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

KERNEL wmma_s8(const signed char *a, const signed char *b, int *c, int k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> fc;
    wmma::fill_fragment(fc, 0);
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(fa, a + i, k);
        wmma::load_matrix_sync(fb, b + i * 16, 16);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_col_major);
}

KERNEL wmma_tf32(const float *a, const float *b, float *c, int k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> fc;
    wmma::load_matrix_sync(fc, c, 16, wmma::mem_row_major);
    for (int i = 0; i < k; i += 8) {
        wmma::load_matrix_sync(fa, a + i, k);
        wmma::load_matrix_sync(fb, b + i, k);
        for (int e = 0; e < fa.num_elements; ++e) fa.x[e] = wmma::__float_to_tf32(fa.x[e]);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

KERNEL wmma_f64(const double *a, const double *b, double *c, int k) {
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> fc;
    wmma::fill_fragment(fc, 0.0);
    for (int i = 0; i < k; i += 4) {
        wmma::load_matrix_sync(fa, a + i, k);
        wmma::load_matrix_sync(fb, b + i * 8, 8);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c, fc, 8, wmma::mem_row_major);
}

using Barrier = cuda::barrier<cuda::thread_scope_block>;

// Copies in flight behind a barrier of the library, whose wait loop reads the clock.
KERNEL pipeline(const float *x, float *out, int tiles) {
    __shared__ alignas(16) float buffer[2][128];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ Barrier barrier[2];
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) { init(&barrier[0], block.size()); init(&barrier[1], block.size()); }
    block.sync();
    int t = threadIdx.x;
    float sum = 0;
    cuda::memcpy_async(&buffer[0][t], &x[t], sizeof(float), barrier[0]);
    for (int i = 0; i < tiles; ++i) {
        int now = i & 1;
        if (i + 1 < tiles) cuda::memcpy_async(&buffer[!now][t], &x[(i + 1) * 128 + t], sizeof(float), barrier[!now]);
        barrier[now].arrive_and_wait();
        sum += buffer[now][(t + 1) % 128] * (i + 1);
        block.sync();
    }
    out[t] = sum;
}

#if __CUDA_ARCH__ >= 900
// Each block of the cluster reads its neighbour's shared memory.
KERNEL neighbours(const int *x, int *out) {
    __shared__ int mine[64];
    __shared__ int counter;
    auto cluster = cg::this_cluster();
    int t = threadIdx.x, rank = cluster.block_rank();
    mine[t] = x[blockIdx.x * 64 + t];
    if (t == 0) counter = 0;
    cluster.sync();
    int *theirs = cluster.map_shared_rank(mine, (rank + 1) % cluster.num_blocks());
    int *zero = cluster.map_shared_rank(&counter, 0);
    atomicAdd(zero, t);
    out[blockIdx.x * 64 + t] = theirs[63 - t];
    cluster.sync();
    if (rank == 0 && t == 0) out[gridDim.x * 64 + blockIdx.x / cluster.num_blocks()] = counter;
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM100_ALL
// C = A·B^T with tcgen05: a tile of 128 x 64, K in steps of 64. Threads put the operands into shared memory, swizzled.
__device__ unsigned shared_of(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void put_tile(char *tile, const __half *from, int rows, int stride) {
    for (int i = threadIdx.x; i < rows * 8; i += blockDim.x) {
        int row = i / 8, chunk = i % 8;
        *(uint4 *)(tile + row * 128 + ((chunk ^ (row % 8)) * 16)) = *(const uint4 *)(from + row * stride + chunk * 8);
    }
}

KERNEL tensor_gemm(const __half *a, const __half *b, float *c, int k) {
    extern __shared__ __align__(1024) char tiles[];
    __shared__ unsigned long long barrier;
    __shared__ unsigned columns;
    int t = threadIdx.x, warp = t / 32, phase = 0;
    char *ta = tiles, *tb = tiles + 128 * 128;
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(shared_of(&columns)));
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_of(&barrier)));
    __syncthreads();
    unsigned d = columns, idesc = 1u << 4 | (64 >> 3) << 17 | (128 >> 4) << 24;
    for (int step = 0; step < k; step += 64) {
        put_tile(ta, a + step, 128, k);
        put_tile(tb, b + step, 64, k);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (t == 0) {
            for (int part = 0; part < 4; ++part) {
                unsigned long long fixed = 0x4000404000010000ull;
                unsigned long long da = fixed | (shared_of(ta) + part * 32) >> 4, db = fixed | (shared_of(tb) + part * 32) >> 4;
                asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0;"
                             " tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d),
                             "l"(da), "l"(db), "r"(idesc), "r"(step + part)
                             : "memory");
            }
            asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                             shared_of(&barrier))
                         : "memory");
        }
        unsigned done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(shared_of(&barrier)), "r"(phase)
                         : "memory");
        phase ^= 1;
    }
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    for (int n = 0; n < 64; n += 8) {
        float v[8];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                     : "r"(d + (warp << 21) + n));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        for (int i = 0; i < 8; ++i) c[t * 64 + n + i] = v[i];
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(d));
}
#endif
