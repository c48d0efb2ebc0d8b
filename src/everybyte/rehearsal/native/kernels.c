/* Kernels as the driver knows them: code that is loaded and never runs. Of what Triton compiled, registers and memory are read. */
#include "gpu.h"
#include <elf.h>
#include <pthread.h>

typedef struct Kernel { int registers, stack, shared; struct Kernel *next; } Kernel;
static Kernel *kernels; /* all that were asked for: a handle is the address of one, or no kernel's */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const Kernel unread = {.registers = 32}; /* of PTX, or what a stub linked: a guess */

/* ---- a cubin is an ELF file */
enum { REGISTERS = 0x2f, FRAME = 0x11 }; /* ptxas' notes on a function, in .nv.info */
typedef struct { const unsigned char *at; const Elf64_Ehdr *head; const Elf64_Shdr *sections; const char *names; } Cubin;

static Cubin opened(const unsigned char *code) {
    Cubin c = {code, (const void *)code, 0, 0};
    c.sections = (const void *)(code + c.head->e_shoff);
    c.names = (const char *)code + c.sections[c.head->e_shstrndx].sh_offset;
    return c;
}
static int is_elf(const void *code) { return code && !memcmp(code, ELFMAG, SELFMAG); }
/* A note: its form (4: a size and so many bytes follow), its kind, its size; then the function's symbol and the number. */
static int noted(Cubin c, unsigned symbol, int kind) {
    for (int i = 0; i < c.head->e_shnum; i++) {
        if (strcmp(c.names + c.sections[i].sh_name, ".nv.info")) continue;
        const unsigned char *note = c.at + c.sections[i].sh_offset, *end = note + c.sections[i].sh_size;
        while (note + 4 <= end) {
            int sized = note[0] == 4, size = note[2] | note[3] << 8;
            const unsigned *words = (const void *)(note + 4);
            if (sized && note[1] == kind && size >= 8 && words[0] == symbol) return (int)words[1];
            note += 4 + (sized ? size : 0);
        }
    }
    return 0;
}
static Kernel read_kernel(const unsigned char *code, const char *name) {
    Kernel k = unread;
    if (!is_elf(code)) return k;
    Cubin c = opened(code);
    for (int i = 0; i < c.head->e_shnum; i++) {
        const Elf64_Shdr *s = c.sections + i;
        const char *called = c.names + s->sh_name;
        if (s->sh_type == SHT_NOBITS && !strncmp(called, ".nv.shared.", 11) && !strcmp(called + 11, name)) k.shared = s->sh_size;
        if (s->sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbols = (const void *)(code + s->sh_offset);
        const char *strings = (const char *)code + c.sections[s->sh_link].sh_offset;
        for (unsigned n = 0; n < s->sh_size / sizeof *symbols; n++)
            if (ELF64_ST_TYPE(symbols[n].st_info) == STT_FUNC && !strcmp(strings + symbols[n].st_name, name))
                k.registers = noted(c, n, REGISTERS), k.stack = noted(c, n, FRAME);
    }
    return k;
}
static size_t length(const unsigned char *code) {
    if (!is_elf(code)) return 0;
    Cubin c = opened(code);
    size_t end = c.head->e_shoff + (size_t)c.head->e_shnum * c.head->e_shentsize;
    size_t segments = c.head->e_phoff + (size_t)c.head->e_phnum * c.head->e_phentsize;
    if (segments > end) end = segments;
    for (int i = 0; i < c.head->e_shnum; i++) {
        size_t last = c.sections[i].sh_offset + c.sections[i].sh_size;
        if (c.sections[i].sh_type != SHT_NOBITS && last > end) end = last;
    }
    return end;
}

/* ---- modules: a copy of their code, which whoever loads it may free; empty where it cannot be read */
static int load(unsigned char **out, const unsigned char *code, size_t size) {
    *out = calloc(1, size + SELFMAG);
    if (size) memcpy(*out, code, size);
    return OK;
}
int ANSWER(cuModuleLoadData)(unsigned char **out, const void *code) { return load(out, code, length(code)); }
int ANSWER(cuModuleLoadDataEx)(unsigned char **out, const void *code, unsigned n, void *options, void *values) { return load(out, code, length(code)); }
int ANSWER(cuModuleLoad)(unsigned char **out, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return FILE_NOT_FOUND;
    fseek(file, 0, SEEK_END);
    size_t size = ftell(file);
    *out = calloc(1, size + SELFMAG);
    rewind(file);
    fread(*out, 1, size, file);
    fclose(file);
    return OK;
}
int ANSWER(cuModuleGetFunction)(Kernel **out, const unsigned char *module, const char *name) {
    *out = malloc(sizeof **out);
    **out = read_kernel(module, name);
    pthread_mutex_lock(&lock);
    (*out)->next = kernels, kernels = *out;
    pthread_mutex_unlock(&lock);
    return OK;
}
int ANSWER(cuModuleUnload)(unsigned char *module) { return OK; } /* a few kB stay */
int ANSWER(cuFuncGetAttribute)(int *out, int which, const Kernel *kernel) {
    pthread_mutex_lock(&lock);
    const Kernel *k = kernels;
    while (k && k != kernel) k = k->next;
    pthread_mutex_unlock(&lock);
    if (!k) k = &unread;
    *out = which == 0 ? 1024 : which == 1 ? k->shared : which == 3 ? k->stack : which == 4 ? k->registers : 0;
    return OK;
}
static void *nothing[4];
int ANSWER(cuLinkComplete)(void *state, void **out, size_t *size) { *out = nothing; *size = sizeof nothing; return OK; }
int ANSWER(cudaLibraryLoadData)(void **out) { *out = new_handle(); return OK; }
int ANSWER(cudaLibraryGetKernel)(void **out, void *library, const char *name) { *out = new_handle(); return OK; }

/* ---- what Triton asks of a context, and launches by the driver, which has one word for all that it refuses */
int ANSWER(cuCtxGetLimit)(size_t *out, int which) { *out = which == 1 ? 1 << 20 : 1024; return OK; }
int ANSWER(cuCtxSetLimit)(int which, size_t value) { return OK; }
int ANSWER(cuFuncSetCacheConfig)(void *kernel, int which) { return OK; }
int ANSWER(cuTensorMapEncodeIm2col)(void *map) { return OK; }
int ANSWER(cuOccupancyMaxActiveClusters)(int *out, void *kernel, const Sides *cluster) {
    *out = gpu.multiprocessors / (cluster->x ? cluster->x : 1);
    return OK;
}
static int launch(Sides grid, Sides block, size_t shared, void *stream) {
    forget();
    of_all = 0;
    in_graph(stream);
    return refused(grid, block, shared) ? INVALID_VALUE : OK;
}
int ANSWER(cuLaunchKernelEx)(const struct { Sides grid, block; unsigned shared; void *stream; } *how, void *kernel, void **with, void **more) {
    return launch(how->grid, how->block, how->shared, how->stream);
}
int ANSWER(cuLaunchKernel)(void *kernel, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void *stream, void **with, void **more) {
    return launch((Sides){x, y, z}, (Sides){a, b, c}, shared, stream);
}
int ANSWER(cuLaunchCooperativeKernel)(void *kernel, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared, void *stream, void **with) {
    return launch((Sides){x, y, z}, (Sides){a, b, c}, shared, stream);
}
