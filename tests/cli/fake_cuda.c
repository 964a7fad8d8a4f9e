/* A CUDA driver that does nothing but write down, as JSON lines, what it is asked for. FAKE_SM is its machine: 90. */

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    printf("{\"call\": \"smem\", \"bytes\": %d}\n", value);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    *address = 0x7000;
    printf("{\"call\": \"alloc\", \"bytes\": %zu}\n", bytes);
    return CUDA_SUCCESS;
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

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if ((size_t)map % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    *(unsigned *)map = ++made; /* by which a parameter shows which map it is */
    printf("{\"call\": \"tiled\", \"type\": %d, \"rank\": %u, \"address\": %zu", (int)type, rank, (size_t)address);
    LIST("extents", extents, rank);
    LIST("strides", strides, rank - 1);
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
    if ((size_t)map % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    *(unsigned *)map = ++made;
    printf("{\"call\": \"im2col\", \"type\": %d, \"rank\": %u, \"address\": %zu", (int)type, rank, (size_t)address);
    LIST("extents", extents, rank);
    LIST("strides", strides, rank - 1);
    LIST("lower", lower, rank - 2);
    LIST("upper", upper, rank - 2);
    printf(", \"channels\": %u, \"pixels\": %u", channels, pixels);
    LIST("steps", steps, rank);
    printf(", \"modes\": [%d, %d, %d, %d]}\n", (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra) {
    const char *count = getenv("FAKE_PARAMETERS"); /* the driver knows it from the cubin */
    if (function == NULL || extra != NULL || count == NULL) return CUDA_ERROR_INVALID_VALUE;
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
