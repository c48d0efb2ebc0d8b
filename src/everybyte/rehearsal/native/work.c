/* Streams on which nothing waits, kernels that do nothing: what CUDA refuses is refused. */
#include "gpu.h"

int ANSWER(cudaStreamCreate)(void **out) { *out = new_handle(); return OK; }
int ANSWER(cudaStreamCreateWithFlags)(void **out, unsigned flags) { *out = new_handle(); return OK; }
int ANSWER(cudaStreamCreateWithPriority)(void **out, unsigned flags, int priority) { *out = new_handle(); return OK; }
int ANSWER(cudaStreamGetPriority)(void *stream, int *priority) { *priority = 0; return OK; }
int ANSWER(cudaStreamGetFlags)(void *stream, unsigned *flags) { *flags = 1; return OK; }
int ANSWER(cudaLaunchHostFunc)(void *stream, void (*call)(void *), void *with) { if (!in_graph(stream)) call(with); return OK; }
int ANSWER(cudaStreamAddCallback)(void *stream, void (*call)(void *, int, void *), void *with, unsigned flags) {
    call(stream, 0, with);
    return OK;
}

/* ---- kernels */
static __thread struct { Sides grid, block; size_t shared; void *stream; } pushed;

/* The kernels behind PyTorch's `all`, by their names' mangled part. Where one ran last, the byte that is read is taken for true:
 * checks hold, as on a GPU, whose numbers are in order. */
#define ALL "15and_kernel_cuda"
static const void *all_kernels[256];
static unsigned all_count;
int of_all;
void ANSWER(__cudaRegisterFunction)(void **code, const char *function, char *kernel, const char *name) {
    if (name && strstr(name, ALL) && all_count < sizeof all_kernels / sizeof *all_kernels) all_kernels[all_count++] = function;
}

int refused(Sides grid, Sides block, size_t shared) {
    int empty = !grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z;
    int wide = grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 || block.z > 64;
    if (empty || wide || (uint64_t)block.x * block.y * block.z > 1024) return INVALID_CONFIGURATION;
    return shared > (size_t)gpu.shared ? INVALID_VALUE : OK;
}
static int launch(const void *kernel, Sides grid, Sides block, size_t shared, void *stream) {
    int error = refused(grid, block, shared);
    forget();
    of_all = 0;
    for (unsigned i = 0; kernel && i < all_count; i++) of_all |= all_kernels[i] == kernel;
    in_graph(stream);
    return error ? failed(error) : OK;
}
unsigned ANSWER(__cudaPushCallConfiguration)(Sides grid, Sides block, size_t shared, void *stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return OK;
}
int ANSWER(__cudaPopCallConfiguration)(Sides *grid, Sides *block, size_t *shared, void **stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
    return OK;
}
int ANSWER(cudaLaunchKernel)(const void *kernel, Sides grid, Sides block, void **with, size_t shared, void *stream) { return launch(kernel, grid, block, shared, stream); }
int ANSWER(__cudaLaunchKernel)(void *kernel, Sides grid, Sides block, void **with, size_t shared, void *stream) { return launch(kernel, grid, block, shared, stream); }
int ANSWER(cudaLaunchCooperativeKernel)(const void *kernel, Sides grid, Sides block, void **with, size_t shared, void *stream) { return launch(kernel, grid, block, shared, stream); }
int ANSWER(cudaLaunchKernelExC)(const struct { Sides grid, block; size_t shared; void *stream; } *how, const void *kernel, void **with) { return launch(kernel, how->grid, how->block, how->shared, how->stream); }

static const int built_for[] = {ARCHITECTURES};
int ANSWER(cudaFuncGetAttributes)(struct cudaFuncAttributes *out, const void *kernel) {
    memset(out, 0, sizeof *out);
    for (unsigned i = 0; i < sizeof built_for / sizeof *built_for; i++)
        if (built_for[i] <= gpu.capability) out->ptxVersion = out->binaryVersion = built_for[i];
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32; /* no kernel was read: a guess */
    out->maxDynamicSharedSizeBytes = gpu.shared;
    return OK;
}
/* Blocks that a multiprocessor holds: by threads, shared memory and the 32 registers above. */
static int resident(int block, size_t shared) {
    int by_threads = gpu.threads / (block > 0 ? block : 1), most = gpu.threads / 64;
    int by_shared = (gpu.shared + 1024) / (shared + 1024);
    int n = by_threads < most ? by_threads : most;
    return n < by_shared ? n : by_shared;
}
int ANSWER(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(int *out, const void *kernel, int block, size_t shared) { *out = resident(block, shared); return OK; }
int ANSWER(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *out, const void *kernel, int block, size_t shared, unsigned flags) { *out = resident(block, shared); return OK; }
int ANSWER(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *out, void *kernel, int block, size_t shared) { *out = resident(block, shared); return OK; }

/* ---- code that PyTorch's libraries hold, and that never runs */
static void *image[4];
void **ANSWER(__cudaRegisterFatBinary)(void *code) { return image; }
char ANSWER(__cudaInitModule)(void **code) { return 1; }
int ANSWER(__cudaGetKernel)(const void **kernel, const void *function) { *kernel = function; return OK; }
