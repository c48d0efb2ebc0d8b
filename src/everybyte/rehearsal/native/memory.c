/* Memory: addresses with nothing behind them, counted; and copies, which deliver what is known and else zeros. */
#include "gpu.h"
#include <pthread.h>
#include <sys/mman.h>

typedef struct { char *at; uint64_t size; int counts; } Block; /* counts: it is memory, not addresses alone */
static struct { Block *blocks; int count, room; uint64_t used; } heaps[MOST_GPUS];
static char *base; /* of all devices' addresses */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor(102))) static void begin(void) {
    if (!gpu.count) return;
    base = mmap(0, REGION * gpu.count + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) { perror("rehearsal: no addresses for its GPUs"); abort(); }
    base = (char *)(((uintptr_t)base + PAGE - 1) & ~(PAGE - 1));
}

int device_of(const void *address) {
    const char *at = address;
    return base && at >= base && at < base + REGION * gpu.count ? (int)((at - base) / REGION) : -1;
}
uint64_t used(int device) { return device >= 0 && device < gpu.count ? heaps[device].used : 0; }

static int room_for(int device, uint64_t size) { return heaps[device].used + size <= gpu.memory - gpu.context; }
static char *aligned(char *at, uint64_t align) { return (char *)(((uintptr_t)at + align - 1) & ~(align - 1)); }

/* The first gap of a device's addresses that is wide enough; its blocks stand in order. */
int take(void **out, uint64_t size, uint64_t align, int counts) {
    int device = current, place = 0;
    uint64_t whole = (size + PAGE - 1) & ~(PAGE - 1);
    *out = 0;
    if (!size) return OK;
    if (!gpu.count) return failed(NO_DEVICE);
    pthread_mutex_lock(&lock);
    char *end = base + REGION * (device + 1), *at = aligned(base + REGION * device + PAGE, align);
    for (; place < heaps[device].count && at + whole > heaps[device].blocks[place].at; place++)
        at = aligned(heaps[device].blocks[place].at + heaps[device].blocks[place].size, align);
    int fits = at + whole <= end && (!counts || room_for(device, whole));
    if (fits) {
        if (heaps[device].count == heaps[device].room)
            heaps[device].blocks = realloc(heaps[device].blocks, (heaps[device].room = 2 * heaps[device].room + 64) * sizeof(Block));
        memmove(heaps[device].blocks + place + 1, heaps[device].blocks + place, (heaps[device].count++ - place) * sizeof(Block));
        heaps[device].blocks[place] = (Block){at, whole, counts};
        if (counts) heaps[device].used += whole;
        *out = at;
    }
    pthread_mutex_unlock(&lock);
    return fits ? OK : failed(OUT_OF_MEMORY);
}
int give(void *address) {
    int device = device_of(address), found = 0;
    if (!address) return OK;
    if (device < 0) return failed(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < heaps[device].count && !found; i++)
        if ((found = heaps[device].blocks[i].at == (char *)address)) {
            if (heaps[device].blocks[i].counts) heaps[device].used -= heaps[device].blocks[i].size;
            memmove(heaps[device].blocks + i, heaps[device].blocks + i + 1, (--heaps[device].count - i) * sizeof(Block));
        }
    pthread_mutex_unlock(&lock);
    return found ? OK : failed(INVALID_VALUE);
}

int ANSWER(cudaMalloc)(void **out, size_t size) { return take(out, size, 512, 1); }
int ANSWER(cudaMallocManaged)(void **out, size_t size, unsigned flags) { return take(out, size, 512, 1); }
int ANSWER(cudaMallocAsync)(void **out, size_t size, void *stream) { return take(out, size, 512, 1); }
int ANSWER(cudaMemPrefetchAsync)(const void *at, size_t size, int kind, int id, unsigned flags, void *stream) { return OK; }
int ANSWER(cudaFree)(void *address) { rehearsal_catch_up(); return give(address); }
int ANSWER(cudaFreeAsync)(void *address, void *stream) { return give(address); }
int ANSWER(cudaMemGetInfo)(size_t *free_, size_t *total) {
    *total = gpu.memory;
    *free_ = gpu.memory - gpu.context - used(current);
    return gpu.count ? OK : failed(NO_DEVICE);
}
int ANSWER(cudaDeviceGetDefaultMemPool)(void **pool, int device) { *pool = new_handle(); return OK; }
int ANSWER(cudaMemPoolGetAttribute)(void *pool, int which, void *value) { *(uint64_t *)value = 0; return OK; }
/* Another process's memory: addresses of this one, which take nothing. A handle says how many. */
typedef struct { uint64_t size; char rest[56]; } Shared;
int ANSWER(cudaIpcGetMemHandle)(Shared *handle, char *address) {
    int device = device_of(address);
    if (device < 0) return failed(INVALID_VALUE);
    memset(handle, 0, sizeof *handle);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < heaps[device].count; i++) {
        Block *one = heaps[device].blocks + i;
        if (address >= one->at && address < one->at + one->size) {
            uintptr_t at = (uintptr_t)one->at;
            handle->size = one->size;
            memcpy(handle->rest, &at, sizeof at); /* two allocations are two handles */
        }
    }
    pthread_mutex_unlock(&lock);
    return handle->size ? OK : failed(INVALID_VALUE);
}
int ANSWER(cudaIpcOpenMemHandle)(void **out, Shared handle, unsigned flags) { return take(out, handle.size, PAGE, 0); }
int ANSWER(cudaIpcCloseMemHandle)(void *address) { return give(address); }
int ANSWER(cudaGetSymbolAddress)(void **out, const void *symbol) { *out = base + 512; return OK; }

/* ---- the host's memory that a GPU may read: the machine's own, and noted */
typedef struct { char *at; size_t size; } Span;
static struct { Span *spans; int count, room; } pinned;
static unsigned long long pinned_now, most_pinned;
unsigned long long rehearsal_most_pinned(void) { return most_pinned; }
static void pin(void *address, size_t size) {
    pthread_mutex_lock(&lock);
    if ((pinned_now += size) > most_pinned) most_pinned = pinned_now;
    if (pinned.count == pinned.room) pinned.spans = realloc(pinned.spans, (pinned.room = 2 * pinned.room + 64) * sizeof(Span));
    pinned.spans[pinned.count++] = (Span){address, size};
    pthread_mutex_unlock(&lock);
}
static int unpin(void *address) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < pinned.count && !found; i++)
        if ((found = pinned.spans[i].at == (char *)address)) pinned_now -= pinned.spans[i].size, pinned.spans[i] = pinned.spans[--pinned.count];
    pthread_mutex_unlock(&lock);
    return found;
}
static int is_pinned(const void *address) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < pinned.count && !found; i++)
        found = (char *)address >= pinned.spans[i].at && (char *)address < pinned.spans[i].at + pinned.spans[i].size;
    pthread_mutex_unlock(&lock);
    return found;
}
int ANSWER(cudaHostAlloc)(void **out, size_t size, unsigned flags) {
    if (posix_memalign(out, 4096, size ? size : 1)) return failed(OUT_OF_MEMORY);
    pin(*out, size);
    return OK;
}
int ANSWER(cudaMallocHost)(void **out, size_t size) { return ANSWER(cudaHostAlloc)(out, size, 0); }
int ANSWER(cudaFreeHost)(void *address) { if (unpin(address)) free(address); return OK; }
int ANSWER(cudaHostRegister)(void *address, size_t size, unsigned flags) { pin(address, size); return OK; }
int ANSWER(cudaHostUnregister)(void *address) { unpin(address); return OK; }
int ANSWER(cudaHostGetDevicePointer)(void **out, void *address, unsigned flags) { *out = address; return OK; }
int ANSWER(cudaPointerGetAttributes)(struct cudaPointerAttributes *out, const void *address) {
    int device = device_of(address);
    memset(out, 0, sizeof *out);
    out->device = device < 0 ? 0 : device;
    out->type = device >= 0 ? cudaMemoryTypeDevice : is_pinned(address) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    if (out->type != cudaMemoryTypeUnregistered) out->devicePointer = (void *)address;
    if (device < 0) out->hostPointer = (void *)address;
    if (out->type == cudaMemoryTypeUnregistered) out->device = -2;
    return OK;
}
int ANSWER(cuPointerGetAttribute)(void *value, int which, void *address) {
    int device = device_of(address);
    if (which == 3 && device < 0 && !is_pinned(address)) return INVALID_VALUE; /* no address of a GPU's: Triton says so */
    if (which == 3) *(void **)value = address;
    else if (which == 2) *(int *)value = device >= 0 ? 2 : 1; /* the kind of memory */
    else if (which == 9) *(int *)value = device < 0 ? 0 : device;
    else *(uint64_t *)value = 0;
    return OK;
}

/* ---- copies. What was sent to the device since the last launch is still known, as long as it is small: PyTorch's DDP
 * sends numbers, has them exchanged and reads them back to be sure that its ranks agree. Anything else reads as zeros. */
#define KNOWN 64
#define SMALL (64 << 10)
static struct { const char *at; char *bytes; size_t size; } known[KNOWN];
static unsigned told, reads;
static unsigned long long unknown_bytes;

static void (*on_read)(void);

unsigned rehearsal_unknown_reads(unsigned long long *bytes) { *bytes = unknown_bytes; return reads; }
/* Call a function at each read of what is not known; 0 for none. It is called by the thread that reads, without the lock. */
void rehearsal_on_read(void (*call)(void)) { on_read = call; }

static void note(const char *at, const void *bytes, size_t size) { /* bytes: null for zeros. The lock is held */
    char *kept = calloc(1, size + 1);
    if (bytes) memcpy(kept, bytes, size);
    unsigned i = told++ % KNOWN;
    free(known[i].bytes);
    known[i].at = at, known[i].bytes = kept, known[i].size = size;
}
static const char *look(const char *at, size_t size) { /* the latest word is the one that holds */
    for (unsigned n = 0; n < KNOWN && n < told; n++) {
        unsigned i = (told - 1 - n) % KNOWN;
        if (known[i].bytes && at >= known[i].at && at + size <= known[i].at + known[i].size)
            return known[i].bytes + (at - known[i].at);
        if (known[i].bytes && at < known[i].at + known[i].size && known[i].at < at + size) return 0;
    }
    return 0;
}
void forget(void) {
    if (!__atomic_load_n(&told, __ATOMIC_ACQUIRE)) return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KNOWN; i++) free(known[i].bytes), known[i].bytes = 0;
    told = 0;
    pthread_mutex_unlock(&lock);
}
int copy(void *to, const void *from, size_t size) {
    int there = device_of(to) >= 0, here = device_of(from) >= 0;
    if (!there && !here) { memmove(to, from, size); return OK; }
    if (there && size > SMALL) { forget(); return OK; }
    pthread_mutex_lock(&lock);
    const char *bytes = here ? look(from, size) : from;
    if (!there && bytes) memcpy(to, bytes, size);
    else if (!there) memset(to, size == 1 && of_all, size), reads++, unknown_bytes += size;
    else if (bytes) note(to, bytes, size);
    pthread_mutex_unlock(&lock);
    if (there && !bytes) forget();
    if (!there && !bytes && on_read) on_read();
    return OK;
}
/* Whether the bytes of an address are known: what was sent there, and has not been written since. */
int rehearsal_knows(const char *at, size_t size) {
    pthread_mutex_lock(&lock);
    int known = look(at, size) != 0;
    pthread_mutex_unlock(&lock);
    return known;
}
static int fill(void *address, int value, size_t size) {
    if (device_of(address) < 0) memset(address, value, size);
    else if (value || size > SMALL) forget();
    else { pthread_mutex_lock(&lock); note(address, 0, size); pthread_mutex_unlock(&lock); }
    return OK;
}
static int copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t rows) {
    for (size_t i = 0; i < rows; i++) copy(to + i * to_pitch, from + i * from_pitch, width);
    return OK;
}
int ANSWER(cudaMemcpy)(void *to, const void *from, size_t size, int kind) { wait_for(0); return copy(to, from, size); }
int ANSWER(cudaMemcpyAsync)(void *to, const void *from, size_t size, int kind, void *stream) { in_graph(stream); return copy(to, from, size); }
int ANSWER(cudaMemcpyPeer)(void *to, int there, const void *from, int here, size_t size) { return copy(to, from, size); }
int ANSWER(cudaMemcpyPeerAsync)(void *to, int there, const void *from, int here, size_t size, void *stream) { return copy(to, from, size); }
int ANSWER(cudaMemcpy2D)(void *to, size_t tp, const void *from, size_t fp, size_t w, size_t h, int kind) { return copy_rows(to, tp, from, fp, w, h); }
int ANSWER(cudaMemcpy2DAsync)(void *to, size_t tp, const void *from, size_t fp, size_t w, size_t h, int kind, void *stream) { return copy_rows(to, tp, from, fp, w, h); }
int ANSWER(cudaMemset)(void *address, int value, size_t size) { return fill(address, value, size); }
int ANSWER(cudaMemsetAsync)(void *address, int value, size_t size, void *stream) { in_graph(stream); return fill(address, value, size); }

/* ---- addresses apart from memory, as expandable segments ask for them */
typedef struct { uint64_t size; int device; } Physical;
int ANSWER(cuMemGetAllocationGranularity)(size_t *out, const void *wish, int option) { *out = PAGE; return OK; }
int ANSWER(cuMemAddressReserve)(void **out, size_t size, size_t align, void *wish, uint64_t flags) {
    return take(out, size, align > PAGE ? align : PAGE, 0);
}
int ANSWER(cuMemAddressFree)(void *address, size_t size) { return give(address); }
int ANSWER(cuMemCreate)(Physical **out, size_t size, const int *wish, uint64_t flags) {
    int device = wish ? wish[3] : current; /* CUmemAllocationProp: kind, kinds of handles, location {kind, device} */
    if (device < 0 || device >= gpu.count) device = current;
    pthread_mutex_lock(&lock);
    int fits = room_for(device, size);
    if (fits) heaps[device].used += size;
    pthread_mutex_unlock(&lock);
    if (!fits) return OUT_OF_MEMORY;
    *out = malloc(sizeof **out);
    **out = (Physical){size, device};
    return OK;
}
int ANSWER(cuMemRelease)(Physical *memory) {
    pthread_mutex_lock(&lock);
    heaps[memory->device].used -= memory->size;
    pthread_mutex_unlock(&lock);
    free(memory);
    return OK;
}
