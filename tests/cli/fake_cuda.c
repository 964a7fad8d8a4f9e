/* A CUDA driver that does nothing but write down, as JSON lines, what it is asked for. FAKE_SM is its machine: 90. */

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned smem = 48 << 10; /* the most that a launch may ask for */

static int machine(void) {
    const char *text = getenv("FAKE_SM");
    return text ? atoi(text) : 90;
}

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    *context = NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) { return context == NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult status, const char **text) {
    (void)status;
    *text = "an error of the stand-in";
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = machine() / 10;
    else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *value = machine() % 10;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = (CUmodule)image;
    if (memcmp(image, ".version", 8) == 0) {
        printf("{\"call\": \"compile\", \"length\": %zu}\n", strlen(image));
        return CUDA_SUCCESS;
    }
    if ((size_t)image % 8 != 0 || memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
    printf("{\"call\": \"load\", \"image\": \"");
    for (int i = 0; i < 256; i++) printf("%02x", ((const unsigned char *)image)[i]);
    printf("\"}\n");
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    printf("{\"call\": \"unload\", \"loaded\": %d}\n", module != NULL);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)module;
    printf("{\"call\": \"function\", \"name\": \"%s\"}\n", name);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (value < 0 || value > 227 << 10) return CUDA_ERROR_INVALID_VALUE;
    smem = value > 48 << 10 ? (unsigned)value : 48 << 10;
    printf("{\"call\": \"smem\", \"bytes\": %d}\n", value);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *address = 0x7000;
    printf("{\"call\": \"alloc\", \"bytes\": %zu}\n", bytes);
    return CUDA_SUCCESS;
}

/* FAKE_COPIES is a folder: what is copied to the GPU becomes a file there, 0, 1, …, and what comes back is `result`. */
static FILE *copied(const char *name, const char *mode) {
    const char *folder = getenv("FAKE_COPIES");
    char path[4096];
    if (folder == NULL) return NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, mode);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    static int number = 0;
    char name[12];
    snprintf(name, sizeof name, "%d", number++);
    FILE *file = copied(name, "wb");
    (void)to;
    if (file != NULL) fwrite(from, 1, bytes, file), fclose(file);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    FILE *file = copied("result", "rb");
    (void)from;
    memset(to, 0, bytes);
    if (file == NULL) return CUDA_SUCCESS;
    const size_t found = fread(to, 1, bytes, file);
    fclose(file);
    return found == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree(CUdeviceptr address) {
    printf("{\"call\": \"free\", \"address\": %llu}\n", address);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t bytes) {
    printf("{\"call\": \"set\", \"address\": %llu, \"value\": %d, \"bytes\": %zu}\n", address, value, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
    printf("{\"call\": \"set\", \"address\": %llu, \"value\": %d, \"bytes\": %zu, \"stream\": %zu}\n", address, value, bytes,
           (size_t)stream);
    return CUDA_SUCCESS;
}

#define LIST(name, values, count)                                                             \
    do {                                                                                      \
        printf(", \"%s\": [", name);                                                          \
        for (unsigned i = 0; i < (count); i++) printf("%s%lld", i ? ", " : "", (long long)(values)[i]); \
        printf("]");                                                                          \
    } while (0)

static unsigned made = 0;

/* What cuda.h says of the arguments that both kinds of tensor maps have; `inner` is the width of what is copied. */
static int is_refused(const void *map, CUtensorMapDataType type, cuuint32_t rank, cuuint32_t least, const void *address,
                      const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *steps, cuuint64_t inner,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill) {
    static const cuuint64_t sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    static const cuuint64_t spans[] = {1 << 30, 32, 64, 128};
    if (map == NULL || (size_t)map % 64 != 0) return 1;
    if ((int)type < 0 || (size_t)type >= sizeof sizes / sizeof *sizes) return 1;
    if (rank < least || rank > 5 || address == NULL || (size_t)address % 16 != 0) return 1;
    /* An H200 refuses a null array of strides of a tensor of one dimension too, of which it reads none. */
    if (extents == NULL || strides == NULL || steps == NULL) return 1;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (extents[i] == 0 || extents[i] > (cuuint64_t)1 << 32) return 1;
        if (steps[i] == 0 || steps[i] > 8) return 1;
        if (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] >= (cuuint64_t)1 << 40)) return 1;
    }
    if ((int)interleave != 0 || (int)swizzle < 0 || (int)swizzle > 3) return 1; /* others: nothing here asks for them */
    if ((int)promotion < 0 || (int)promotion > 3 || (int)fill < 0 || (int)fill > 1) return 1;
    if ((int)fill == 1 && (int)type < 6) return 1;
    inner *= sizes[type];
    return inner % 16 != 0 || inner > spans[swizzle];
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if (box == NULL || is_refused(map, type, rank, 1, address, extents, strides, steps, box[0], interleave, swizzle,
                                  promotion, fill))
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++)
        if (box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    *(unsigned *)map = ++made; /* by which a parameter shows which map it is */
    printf("{\"call\": \"tiled\", \"type\": %d, \"rank\": %u, \"address\": %zu", (int)type, rank, (size_t)address);
    LIST("extents", extents, rank);
    LIST("strides", strides, rank > 1 ? rank - 1 : 1);
    LIST("box", box, rank);
    LIST("steps", steps, rank);
    printf(", \"modes\": [%d, %d, %d, %d]}\n", (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *extents, const cuuint64_t *strides, const int *lower,
                                 const int *upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if (is_refused(map, type, rank, 3, address, extents, strides, steps, channels, interleave, swizzle, promotion, fill))
        return CUDA_ERROR_INVALID_VALUE;
    if (lower == NULL || upper == NULL || channels == 0 || channels > 256 || pixels == 0 || pixels > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    const long long corner = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
    for (cuuint32_t i = 0; i < rank - 2; i++) {
        if (lower[i] < -corner || lower[i] >= corner || upper[i] < -corner || upper[i] >= corner)
            return CUDA_ERROR_INVALID_VALUE;
        if ((long long)extents[i + 1] + upper[i] - lower[i] <= 0) return CUDA_ERROR_INVALID_VALUE;
    }
    memset(map, 0, sizeof *map);
    *(unsigned *)map = ++made;
    printf("{\"call\": \"im2col\", \"type\": %d, \"rank\": %u, \"address\": %zu", (int)type, rank, (size_t)address);
    LIST("extents", extents, rank);
    LIST("strides", strides, rank > 1 ? rank - 1 : 1);
    LIST("lower", lower, rank - 2);
    LIST("upper", upper, rank - 2);
    printf(", \"channels\": %u, \"pixels\": %u", channels, pixels);
    LIST("steps", steps, rank);
    printf(", \"modes\": [%d, %d, %d, %d]}\n", (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra) {
    const char *count = getenv("FAKE_PARAMETERS"); /* the driver knows it from the cubin */
    const cuuint64_t threads = (cuuint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (function == NULL || extra != NULL || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (threads == 0 || threads > 1024 || config->sharedMemBytes > smem) return CUDA_ERROR_INVALID_VALUE;
    if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || config->gridDimX > 0x7fffffff ||
        config->gridDimY > 0xffff || config->gridDimZ > 0xffff)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *one = &config->attrs[i];
        if (one->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
            (config->gridDimX % one->value.clusterDim.x || config->gridDimY % one->value.clusterDim.y ||
             config->gridDimZ % one->value.clusterDim.z))
            return CUDA_ERROR_INVALID_VALUE;
    }
    printf("{\"call\": \"launch\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"smem\": %u, \"stream\": %zu",
           config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
           config->blockDimZ, config->sharedMemBytes, (size_t)config->hStream);
    printf(", \"attributes\": [");
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *one = &config->attrs[i];
        if (one->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            printf("%s[%d, %u, %u, %u]", i ? ", " : "", (int)one->id, one->value.clusterDim.x, one->value.clusterDim.y,
                   one->value.clusterDim.z);
        else
            printf("%s[%d, %d]", i ? ", " : "", (int)one->id, one->value.cooperative);
    }
    printf("], \"values\": [");
    for (int i = 0; i < atoi(count); i++) {
        unsigned first;
        memcpy(&first, values[i], sizeof first);
        printf("%s%u", i ? ", " : "", first);
    }
    printf("]}\n");
    return CUDA_SUCCESS;
}
