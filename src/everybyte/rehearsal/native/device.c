/* What the GPU says it is, to the runtime, the driver and the management library. */
#include "gpu.h"
#include <dlfcn.h>

Gpu gpu;
__thread int current;
static __thread int last_error;

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *said = getenv(name);
    return said && *said ? strtoull(said, 0, 10) : otherwise;
}

/* As CUDA_VISIBLE_DEVICES has it: a list of devices, of which only the length counts; "" and "-1" for none. */
static int visible(int count) {
    const char *said = getenv("CUDA_VISIBLE_DEVICES");
    if (!said) return count;
    if (!*said || *said == '-') return 0;
    int named = 1;
    for (; *said; said++) named += *said == ',';
    return named < count ? named : count;
}

__attribute__((constructor(101))) static void begin(void) {
    gpu.memory = number("REHEARSAL_MEMORY", 0);
    gpu.context = number("REHEARSAL_CONTEXT", 512ull << 20);
    gpu.capability = number("REHEARSAL_CAPABILITY", 90);
    gpu.multiprocessors = number("REHEARSAL_MULTIPROCESSORS", 132);
    gpu.shared = number("REHEARSAL_SHARED", 232448);
    gpu.l2 = number("REHEARSAL_L2", 50 << 20);
    gpu.trace = number("REHEARSAL_TRACE", 0);
    gpu.late = number("REHEARSAL_LATE", 0);
    gpu.name = getenv("REHEARSAL_NAME") ? getenv("REHEARSAL_NAME") : "rehearsal: no GPU";
    gpu.count = gpu.memory ? visible(number("REHEARSAL_GPUS", 1)) : 0;
    if (gpu.count > MOST_GPUS) gpu.count = MOST_GPUS;
    int c = gpu.capability; /* threads of a multiprocessor: CUDA's table of technical specifications */
    gpu.threads = c == 75 ? 1024 : c == 86 || c == 89 || c >= 120 ? 1536 : 2048;
}

int failed(int error) { return last_error = error; }
int cuda_version(void) { return CUDA_VERSION_SAID; }
void *new_handle(void) {
    static uintptr_t next = 0x10000;
    return (void *)__atomic_add_fetch(&next, 64, __ATOMIC_RELAXED);
}

/* ---- the runtime */
int ANSWER(cudaGetDeviceCount)(int *count) { *count = gpu.count; return gpu.count ? OK : failed(NO_DEVICE); }
int ANSWER(cudaGetDevice)(int *device) { *device = current; return OK; }
int ANSWER(cudaSetDevice)(int device) {
    if (device < 0 || device >= gpu.count) return failed(gpu.count ? INVALID_DEVICE : NO_DEVICE);
    current = device;
    return OK;
}
int ANSWER(cudaDriverGetVersion)(int *version) { *version = gpu.count ? cuda_version() : 0; return OK; }
int ANSWER(cudaRuntimeGetVersion)(int *version) { *version = cuda_version(); return OK; }

void describe(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", gpu.name);
    memcpy(&p->uuid, "rehearsal-no-gpu", sizeof p->uuid);
    ((char *)&p->uuid)[15] += device;
    p->totalGlobalMem = gpu.memory;
    p->major = gpu.capability / 10;
    p->minor = gpu.capability % 10;
    p->multiProcessorCount = gpu.multiprocessors;
    p->l2CacheSize = gpu.l2;
    p->persistingL2CacheMaxSize = gpu.l2 / 8 * 5;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = gpu.shared;
    p->sharedMemPerMultiprocessor = gpu.shared + 1024;
    p->reservedSharedMemPerBlock = gpu.capability >= 80 ? 1024 : 0;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->totalConstMem = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = gpu.threads;
    p->maxBlocksPerMultiProcessor = gpu.threads / 64;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = p->memPitch = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->memoryBusWidth = 5120;
    p->pciBusID = 1 + device;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = p->managedMemory = 1;
    p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = p->cooperativeLaunch = 1;
    p->hostRegisterSupported = p->memoryPoolsSupported = p->canUseHostPointerForRegisteredMem = 1;
    p->clusterLaunch = gpu.capability >= 90;
}
int ANSWER(cudaGetDeviceProperties)(struct cudaDeviceProp *p, int device) {
    if (device < 0 || device >= gpu.count) return failed(INVALID_DEVICE);
    describe(p, device);
    return OK;
}
int ANSWER(cudaGetDeviceProperties_v2)(struct cudaDeviceProp *p, int device) {
    return ANSWER(cudaGetDeviceProperties)(p, device);
}

/* The runtime's attributes and the driver's have the same numbers; what is not told apart here is 0. */
int attribute(int *value, int which, int device) {
    static const short yes[] = {15, 19, 31, 32, 41, 78, 79, 80, 83, 90, 91, 95, 99, 102, 103, 115, 125};
    struct cudaDeviceProp p;
    if (device < 0 || device >= gpu.count) return INVALID_DEVICE;
    describe(&p, device);
    switch (which) {
    case 1: *value = p.maxThreadsPerBlock; break;
    case 2: case 3: *value = p.maxThreadsDim[0]; break;
    case 4: *value = p.maxThreadsDim[2]; break;
    case 5: case 11: *value = p.maxGridSize[0]; break;
    case 6: case 7: *value = p.maxGridSize[1]; break;
    case 8: *value = p.sharedMemPerBlock; break;
    case 9: *value = p.totalConstMem; break;
    case 10: *value = p.warpSize; break;
    case 12: *value = p.regsPerBlock; break;
    case 13: *value = 1980000; break; /* clocks, in kHz: nothing is timed by them */
    case 14: *value = p.textureAlignment; break;
    case 16: *value = p.multiProcessorCount; break;
    case 33: *value = p.pciBusID; break;
    case 36: *value = 2619000; break;
    case 37: *value = p.memoryBusWidth; break;
    case 38: *value = p.l2CacheSize; break;
    case 39: *value = p.maxThreadsPerMultiProcessor; break;
    case 40: *value = p.asyncEngineCount; break;
    case 75: *value = p.major; break;
    case 76: *value = p.minor; break;
    case 81: *value = p.sharedMemPerMultiprocessor; break;
    case 82: *value = p.regsPerMultiprocessor; break;
    case 97: *value = p.sharedMemPerBlockOptin; break;
    case 106: *value = p.maxBlocksPerMultiProcessor; break;
    case 108: *value = p.persistingL2CacheMaxSize; break;
    case 111: *value = p.reservedSharedMemPerBlock; break;
    case 120: *value = p.clusterLaunch; break;
    default:
        *value = 0;
        for (unsigned i = 0; i < sizeof yes / sizeof *yes; i++) *value |= which == yes[i];
    }
    return OK;
}
int ANSWER(cudaDeviceGetAttribute)(int *value, int which, int device) {
    int error = attribute(value, which, device);
    return error ? failed(error) : OK;
}
int ANSWER(cudaDeviceGetPCIBusId)(char *out, int room, int device) {
    snprintf(out, room, "0000:%02x:00.0", 1 + device);
    return OK;
}
int ANSWER(cudaDeviceCanAccessPeer)(int *can, int a, int b) { *can = a != b; return OK; }
int ANSWER(cudaDeviceGetStreamPriorityRange)(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return OK;
}
int ANSWER(cudaGetLastError)(void) { int error = last_error; last_error = 0; return error; }
int ANSWER(cudaPeekAtLastError)(void) { return last_error; }
static const char *words(int error) {
    switch (error) {
    case OK: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case INVALID_CONFIGURATION: return "invalid configuration argument";
    case NO_DEVICE: return "no CUDA-capable device is detected (a rehearsal's GPU is there under `everybyte rehearse` alone)";
    case INVALID_DEVICE: return "invalid device ordinal";
    case NOT_IN_CAPTURE: return "operation not permitted when stream is capturing";
    case BROKEN_CAPTURE: return "operation failed due to a previous error during capture";
    case CAPTURED_EVENT: return "operation not permitted on an event last recorded in a capturing stream";
    case NOT_SUPPORTED: return "operation not supported (by a rehearsal, which has no GPU)";
    }
    return "an error of the rehearsal, which has no GPU";
}
const char *ANSWER(cudaGetErrorString)(int error) { return words(error); }
const char *ANSWER(cudaGetErrorName)(int error) {
    return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : error ? "cudaErrorOfRehearsal" : "cudaSuccess";
}

/* ---- the driver */
static int nothing(void) { return OK; }
static int look_up(const char *name, void **found) {
    static void *driver;
    char later[256];
    if (!driver) driver = dlopen(DRIVER, RTLD_LAZY | RTLD_LOCAL);
    snprintf(later, sizeof later, "%s_v2", name);
    *found = driver ? dlsym(driver, name) : 0;
    if (!*found && driver) *found = dlsym(driver, later);
    if (!*found) {
        *found = (void *)nothing;
        if (gpu.trace) fprintf(stderr, "rehearsal: %s is asked for by name, and does nothing\n", name);
    }
    return OK;
}
int ANSWER(cudaGetDriverEntryPoint)(const char *name, void **found, unsigned long long flags, int *status) {
    if (status) *status = 0;
    return look_up(name, found);
}
int ANSWER(cudaGetDriverEntryPointByVersion)(const char *name, void **found, unsigned version, unsigned long long flags, int *status) {
    if (status) *status = 0;
    return look_up(name, found);
}
int ANSWER(cuGetProcAddress_v2)(const char *name, void **found, int version, uint64_t flags, int *status) {
    if (status) *status = 0;
    return look_up(name, found);
}
int ANSWER(cuInit)(unsigned flags) { return gpu.count ? OK : NO_DEVICE; }
int ANSWER(cuDriverGetVersion)(int *version) { *version = cuda_version(); return OK; }
int ANSWER(cuDeviceGetCount)(int *count) { *count = gpu.count; return OK; }
int ANSWER(cuDeviceGet)(int *device, int ordinal) { *device = ordinal; return OK; }
int ANSWER(cuDeviceGetAttribute)(int *value, int which, int device) { return attribute(value, which, device); }
int ANSWER(cuDeviceTotalMem_v2)(size_t *bytes, int device) { *bytes = gpu.memory; return OK; }
int ANSWER(cuDeviceGetName)(char *out, int room, int device) { snprintf(out, room, "%s", gpu.name); return OK; }
static void *context_of(int device) { return (void *)(uintptr_t)(0x500 + 16 * device); }
int ANSWER(cuDevicePrimaryCtxGetState)(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return OK; }
int ANSWER(cuDevicePrimaryCtxRetain)(void **context, int device) { *context = context_of(device); return OK; }
int ANSWER(cuCtxGetCurrent)(void **context) { *context = context_of(current); return OK; }
int ANSWER(cuCtxGetDevice)(int *device) { *device = current; return OK; }
int ANSWER(cuGetErrorString)(int error, const char **out) { *out = words(error); return OK; }

/* ---- the management library */
int ANSWER(nvmlDeviceGetCount_v2)(unsigned *count) { *count = gpu.count; return OK; }
int ANSWER(nvmlDeviceGetHandleByIndex_v2)(unsigned index, void **device) {
    *device = (void *)(uintptr_t)(index + 1);
    return OK;
}
int ANSWER(nvmlDeviceGetHandleByPciBusId_v2)(const char *id, void **device) {
    unsigned bus = 1;
    sscanf(id, "%*x:%x", &bus);
    *device = (void *)(uintptr_t)bus;
    return OK;
}
int ANSWER(nvmlDeviceGetMemoryInfo)(void *device, uint64_t *total_free_used) {
    uint64_t gone = gpu.context + used((int)(uintptr_t)device - 1);
    total_free_used[0] = gpu.memory;
    total_free_used[1] = gpu.memory - gone;
    total_free_used[2] = gone;
    return OK;
}
int ANSWER(nvmlDeviceGetName)(void *device, char *out, unsigned room) { snprintf(out, room, "%s", gpu.name); return OK; }
int ANSWER(nvmlDeviceGetComputeRunningProcesses)(void *device, unsigned *count, void *out) { *count = 0; return OK; }
int ANSWER(nvmlDeviceGetComputeRunningProcesses_v3)(void *device, unsigned *count, void *out) { *count = 0; return OK; }
/* What scripts ask of it through nvidia-ml-py: a GPU at rest. */
int ANSWER(nvmlInitWithFlags)(unsigned flags) { return OK; }
int ANSWER(nvmlShutdown)(void) { return OK; }
const char *ANSWER(nvmlErrorString)(int error) { return words(error); }
int ANSWER(nvmlDeviceGetIndex)(void *device, unsigned *index) { *index = (unsigned)(uintptr_t)device - 1; return OK; }
int ANSWER(nvmlDeviceGetUUID)(void *device, char *out, unsigned room) { snprintf(out, room, "GPU-rehearsal-no-gpu-%lu", (unsigned long)(uintptr_t)device); return OK; }
int ANSWER(nvmlDeviceGetUtilizationRates)(void *device, unsigned *gpu_memory) { gpu_memory[0] = gpu_memory[1] = 0; return OK; }
int ANSWER(nvmlDeviceGetTemperature)(void *device, int sensor, unsigned *out) { *out = 0; return OK; }
int ANSWER(nvmlDeviceGetPowerUsage)(void *device, unsigned *out) { *out = 0; return OK; }
int ANSWER(nvmlDeviceGetCudaComputeCapability)(void *device, int *major, int *minor) {
    *major = gpu.capability / 10, *minor = gpu.capability % 10;
    return OK;
}
int ANSWER(nvmlDeviceGetMemoryInfo_v2)(void *device, struct { unsigned version; uint64_t total, reserved, free, used; } *out) {
    uint64_t gone = used((int)(uintptr_t)device - 1);
    out->total = gpu.memory, out->reserved = gpu.context, out->used = gone, out->free = gpu.memory - gpu.context - gone;
    return OK;
}
int ANSWER(nvmlSystemGetDriverVersion)(char *out, unsigned room) { snprintf(out, room, "rehearsal"); return OK; }

/* ---- what the stub libraries themselves use */
uint64_t rehearsal_handle(void **where) { *where = new_handle(); return OK; }
void rehearsal_report(const char *library, const struct { const char *name; uint64_t calls; } *empty) {
    for (; gpu.trace && empty->name; empty++)
        if (empty->calls) fprintf(stderr, "rehearsal: %s %s x %lu\n", library, empty->name, (unsigned long)empty->calls);
}
