/* A GPU that does nothing: what its parts know of one another.
 *
 * stubs.py makes a library for each of NVIDIA's that PyTorch was linked with. Most functions in it return 0, success, and
 * nothing else; one that has a body here, ANSWER(name), jumps to it. Real are: how much memory is handed out, and that it runs
 * out; what a device says it is; which launches CUDA would refuse. Nothing is computed, and no time passes for it.
 *
 * Which GPU it is, the environment says (devices.py writes it): REHEARSAL_NAME, REHEARSAL_MEMORY, REHEARSAL_CONTEXT,
 * REHEARSAL_CAPABILITY (90 for 9.0), REHEARSAL_MULTIPROCESSORS, REHEARSAL_SHARED, REHEARSAL_L2, REHEARSAL_GPUS, and REHEARSAL_LATE=1
 * for one that does nothing before somebody waits for it.
 * Without REHEARSAL_MEMORY there is no device. With REHEARSAL_TRACE=1 each library says at its end which of its empty
 * functions were called, and how often. */
#ifndef EVERYBYTE_GPU_H
#define EVERYBYTE_GPU_H
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <driver_types.h> /* NVIDIA's own layout of what is asked for by structure */

#define ANSWER(name) answer_##name
#define MOST_GPUS 16
#define PAGE (2ull << 20)    /* what a driver hands out memory in */
#define REGION (1ull << 40)  /* addresses of one device: nothing behind them can be read or written */

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONFIGURATION = 9, NO_DEVICE = 100, INVALID_DEVICE = 101,
    FILE_NOT_FOUND = 301, NOT_READY = 600, NOT_SUPPORTED = 801, NOT_IN_CAPTURE = 900, BROKEN_CAPTURE = 901, CAPTURED_EVENT = 907,
};

typedef struct {
    const char *name;
    uint64_t memory, context; /* bytes of the device, and those that are gone before anything is asked for */
    int count, capability, multiprocessors, shared, l2, threads, trace, late;
} Gpu;

extern Gpu gpu;
extern __thread int current; /* the device of this thread */
extern int of_all;           /* whether what ran last asks whether all of some values are true */

int failed(int error);                /* keep an error for cudaGetLastError, and return it */
void *new_handle(void);               /* something that is not null and that nobody looks into */
int cuda_version(void);
void describe(struct cudaDeviceProp *properties, int device);
int attribute(int *value, int which, int device);

int device_of(const void *address);   /* -1: in the machine's own memory */
int take(void **out, uint64_t size, uint64_t align, int counts);
int give(void *address);
uint64_t used(int device);
int copy(void *to, const void *from, size_t size);
void forget(void);                    /* a kernel may have written anywhere */

typedef struct Stream Stream;
typedef struct { Stream *stream; uint64_t then; } Moment; /* how far a stream has to come */
void given(void *stream);             /* something to do */
Moment now(void *stream);
void after(void *stream, Moment m);   /* a stream waits for a moment of another */
int is_done(Moment m);
void wait_until(Moment m);
void wait_for(void *stream);
void rehearsal_catch_up(void);        /* everything that was given is done */

typedef struct { unsigned x, y, z; } Sides;
int refused(Sides grid, Sides block, size_t shared); /* why CUDA would not launch a kernel, or OK */
int in_graph(void *stream);           /* whether the stream captures a graph, which then holds one more thing */

#endif
