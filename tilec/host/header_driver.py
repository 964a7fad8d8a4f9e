"""The part of a header that opens NVIDIA's driver when it is first needed, so that programs do not link with it."""

from __future__ import annotations

_FUNCTIONS = (
    # Called by the functions of a header.
    "cuCtxGetDevice", "cuDeviceGetAttribute", "cuFuncSetAttribute", "cuGetErrorString", "cuLaunchKernelEx",
    "cuMemAlloc", "cuMemFree", "cuMemsetD8", "cuMemsetD8Async", "cuModuleGetFunction", "cuModuleLoadData",
    "cuModuleUnload", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled",
    # Needed by programs for a context and memory.
    "cuCtxSetCurrent", "cuCtxSynchronize", "cuDeviceGet", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRetain",
    "cuInit", "cuMemcpyDtoH", "cuMemcpyHtoD", "cuStreamSynchronize",
)  # fmt: skip
"""Functions of the driver. Some are macros of cuda.h with the version: `cuMemAlloc` is `cuMemAlloc_v2`."""

DRIVER = f"""\
#ifndef TILEC_DRIVER
#define TILEC_DRIVER

#define TILEC_TEXT(name) #name
#define TILEC_TYPE(name) typedef __typeof__(name) *tilec_##name;
#define TILEC_FIELD(name) tilec_##name name;
#define TILEC_FIND(name) \\
    symbol = dlsym(library, TILEC_TEXT(name)); \\
    if (symbol == NULL) status = CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND; \\
    memcpy(&known.name, &symbol, sizeof symbol);
/* One macro more: the name is replaced as cuda.h says before it is made part of another one. */
#define TILEC_WITH(what, name) what(name)
#define TILEC_OF_ALL(what) \\
    {f" {chr(92)}{chr(10)}    ".join(f"TILEC_WITH(what, {name})" for name in _FUNCTIONS)}

TILEC_OF_ALL(TILEC_TYPE)

/* Functions of the driver, as cuda.h declares them. */
typedef struct {{
    TILEC_OF_ALL(TILEC_FIELD)
}} tilec_driver;

/* Opens libcuda.so.1 at the first call. CUDA_ERROR_SHARED_OBJECT_INIT_FAILED: there is none on this machine.
 * CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: it is older than CUDA 12. */
static inline CUresult tilec_open_driver(const tilec_driver **driver) {{
    static tilec_driver known;
    static CUresult status = CUDA_SUCCESS;
    static int state = 0; /* 1: one thread is opening it, and the others wait; 2: it has been */
    int first = 0;
    if (__atomic_compare_exchange_n(&state, &first, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {{
        void *symbol, *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == NULL) {{
            status = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
        }} else {{
            TILEC_OF_ALL(TILEC_FIND)
        }}
        __atomic_store_n(&state, 2, __ATOMIC_RELEASE);
    }}
    while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != 2) {{
    }}
    *driver = &known;
    return status;
}}

/* What a status means. */
static inline const char *tilec_error_text(CUresult status) {{
    const tilec_driver *driver;
    const char *text = NULL;
    switch (status) {{
    case CUDA_SUCCESS: return "no error";
    case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED: return "no NVIDIA driver on this machine";
    case CUDA_ERROR_STUB_LIBRARY: return "no NVIDIA driver on this machine, only the toolkit's libcuda to link with";
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: return "the NVIDIA driver is older than CUDA 12";
    case CUDA_ERROR_NO_BINARY_FOR_GPU: return "the kernel was not compiled for this GPU";
    default: break;
    }}
    if (tilec_open_driver(&driver) != CUDA_SUCCESS) return "an error of CUDA";
    if (driver->cuGetErrorString(status, &text) == CUDA_SUCCESS && text != NULL) return text;
    return "an error of CUDA";
}}

#undef TILEC_TEXT
#undef TILEC_TYPE
#undef TILEC_FIELD
#undef TILEC_FIND
#undef TILEC_WITH
#undef TILEC_OF_ALL
#endif
"""
