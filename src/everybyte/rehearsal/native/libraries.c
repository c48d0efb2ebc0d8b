/* cuBLAS, cuDNN, NCCL and the smaller ones: versions, and the few answers that PyTorch acts upon. */
#include "gpu.h"

/* ---- cuBLAS, cuBLASLt */
#define CUBLAS_VERSION (CUDA_VERSION_SAID / 1000 * 10000 + CUDA_VERSION_SAID % 1000 * 10)
static __thread void *stream_of_cublas;
int ANSWER(cublasGetVersion_v2)(void *handle, int *version) { *version = CUBLAS_VERSION; return OK; }
size_t ANSWER(cublasLtGetVersion)(void) { return CUBLAS_VERSION; }
int ANSWER(cublasGetProperty)(int which, int *value) {
    *value = which == 0 ? CUBLAS_VERSION / 10000 : which == 1 ? CUBLAS_VERSION / 100 % 100 : 0;
    return OK;
}
int ANSWER(cublasSetStream_v2)(void *handle, void *stream) { stream_of_cublas = stream; given(stream); return OK; }
int ANSWER(cublasGetStream_v2)(void *handle, void **stream) { *stream = stream_of_cublas; return OK; }
int ANSWER(cublasGetPointerMode_v2)(void *handle, int *mode) { *mode = 0; return OK; }
int ANSWER(cublasGetMathMode)(void *handle, int *mode) { *mode = 0; return OK; }
int ANSWER(cublasGetSmCountTarget)(void *handle, int *count) { *count = 0; return OK; }
const char *ANSWER(cublasGetStatusString)(int status) { return "of a rehearsal's cuBLAS"; }
const char *ANSWER(cublasGetStatusName)(int status) { return "CUBLAS_STATUS_OF_REHEARSAL"; }
/* One algorithm, which needs no workspace: PyTorch has allocated the one that it offers before it asks. */
int ANSWER(cublasLtMatmulAlgoGetHeuristic)(void *handle, void *how, void *a, void *b, void *c, void *d, void *wish, int wanted, char *out, int *found) {
    memset(out, 0, 96);
    *found = 1;
    return OK;
}

/* ---- cuDNN: none of its plans can be made, so PyTorch goes elsewhere or says so */
#define NOT_SUPPORTED_BY_CUDNN 3000
size_t ANSWER(cudnnGetVersion)(void) { return CUDNN_VERSION_SAID; }
size_t ANSWER(cudnnGetCudartVersion)(void) { return CUDA_VERSION_SAID; }
const char *ANSWER(cudnnGetErrorString)(int status) { return "of a rehearsal's cuDNN, which has no plans"; }
void ANSWER(cudnnGetLastErrorString)(char *out, size_t room) { snprintf(out, room, "a rehearsal's cuDNN has no plans"); }
int ANSWER(cudnnGetProperty)(int which, int *value) {
    *value = which == 0 ? CUDNN_VERSION_SAID / 10000 : which == 1 ? CUDNN_VERSION_SAID / 100 % 100 : CUDNN_VERSION_SAID % 100;
    return OK;
}
int ANSWER(cudnnGetStream)(void *handle, void **stream) { *stream = 0; return OK; }
int ANSWER(cudnnBackendCreateDescriptor)(int kind, void **out) { *out = 0; return NOT_SUPPORTED_BY_CUDNN; }
int ANSWER(cudnnBackendFinalize)(void *descriptor) { return NOT_SUPPORTED_BY_CUDNN; }

/* ---- NCCL: every rank is taken to be as this one; what is small and known arrives, as if all had sent the same */
typedef struct { int size, rank; } Group;
typedef struct { char bytes[128]; } Id;
static int group(void **out, int size, int rank) {
    Group *made = malloc(sizeof *made);
    *made = (Group){size, rank};
    *out = made;
    return OK;
}
static size_t width(int kind) { /* ncclDataType_t */
    static const unsigned char widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return kind >= 0 && kind < (int)sizeof widths ? widths[kind] : 4;
}
int ANSWER(ncclGetVersion)(int *version) { *version = NCCL_VERSION_SAID; return OK; }
int ANSWER(ncclGetUniqueId)(void *id) { memset(id, 7, 128); return OK; }
const char *ANSWER(ncclGetErrorString)(int error) { return "of a rehearsal's NCCL"; }
const char *ANSWER(ncclGetLastError)(void *communicator) { return ""; }
int ANSWER(ncclCommInitRank)(void **out, int size, Id id, int rank) { return group(out, size, rank); }
int ANSWER(ncclCommInitRankConfig)(void **out, int size, Id id, int rank, void *config) { return group(out, size, rank); }
int ANSWER(ncclCommInitRankScalable)(void **out, int size, int rank, int ids, void *id, void *config) { return group(out, size, rank); }
int ANSWER(ncclCommSplit)(Group *all, int color, int key, void **out, void *config) { return group(out, all ? all->size : 1, key); }
int ANSWER(ncclCommCount)(Group *g, int *size) { *size = g->size; return OK; }
int ANSWER(ncclCommUserRank)(Group *g, int *rank) { *rank = g->rank; return OK; }
int ANSWER(ncclCommGetAsyncError)(void *g, int *error) { *error = 0; return OK; }
int ANSWER(ncclMemAlloc)(void **out, size_t size) { return take(out, size, PAGE, 1); }
int ANSWER(ncclMemFree)(void *address) { return give(address); }
int ANSWER(ncclCommRegister)(void *g, void *address, size_t size, void **out) { *out = new_handle(); return OK; }
int ANSWER(ncclRedOpCreatePreMulSum)(int *out) { *out = 5; return OK; }
int ANSWER(ncclBroadcast)(const void *from, void *to, size_t count, int kind, int root, Group *g, void *stream) {
    return from == to ? OK : copy(to, from, count * width(kind));
}
int ANSWER(ncclAllGather)(const void *from, void *to, size_t count, int kind, Group *g, void *stream) {
    size_t size = count * width(kind);
    if (size * g->size > 64 << 10) { forget(); return OK; }
    for (int rank = 0; rank < g->size; rank++)
        if ((char *)to + rank * size != from) copy((char *)to + rank * size, from, size);
    return OK;
}
int ANSWER(ncclAllReduce)(const void *from, void *to, size_t count, int kind, int how, Group *g, void *stream) { forget(); return OK; }
int ANSWER(ncclReduceScatter)(const void *from, void *to, size_t count, int kind, int how, Group *g, void *stream) { forget(); return OK; }

/* ---- NVRTC, cuFFT, CUPTI */
int ANSWER(nvrtcVersion)(int *major, int *minor) { *major = CUDA_VERSION_SAID / 1000; *minor = CUDA_VERSION_SAID / 10 % 100; return OK; }
const char *ANSWER(nvrtcGetErrorString)(int error) { return "of a rehearsal's NVRTC"; }
int ANSWER(nvrtcGetPTXSize)(void *program, size_t *size) { *size = 16; return OK; }
int ANSWER(nvrtcGetCUBINSize)(void *program, size_t *size) { *size = 16; return OK; }
int ANSWER(nvrtcGetProgramLogSize)(void *program, size_t *size) { *size = 1; return OK; }
int ANSWER(nvrtcGetLoweredName)(void *program, const char *name, const char **out) { *out = "rehearsal"; return OK; }
int ANSWER(cufftCreate)(int *plan) { *plan = 1; return OK; }
int ANSWER(cuptiGetVersion)(unsigned *version) { *version = 28; return OK; }
int ANSWER(cuptiGetResultString)(int error, const char **out) { *out = "of a rehearsal's CUPTI"; return OK; }
