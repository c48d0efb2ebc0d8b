/* CUDA graphs, and events. A stream that captures is known, with those that joined it by an event; what it launches is counted, and
 * a replay does nothing. No time passes: between any two events there are 10 ms. So what is decided by timing is a tie, which the
 * first wins, and a benchmark repeats what it times a few times only. */
#include "gpu.h"
#include <pthread.h>

enum { ILLEGAL_STATE = 401 };
typedef struct { unsigned long long id; size_t nodes; int broken; } Graph;
typedef struct Member { void *stream; Graph *graph; struct Member *next; } Member;
static Member *capturing; /* each stream that captures, and into what */
static unsigned long long captures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The graph that a stream captures, or null. The lock is held. */
static Graph *of_stream(void *stream) {
    for (Member *m = capturing; m; m = m->next) if (m->stream == stream) return m->graph;
    return 0;
}
static Graph *of_id(unsigned long long id) {
    for (Member *m = capturing; m; m = m->next) if (m->graph->id == id) return m->graph;
    return 0;
}
static void join(void *stream, Graph *graph) {
    Member *m = malloc(sizeof *m);
    *m = (Member){stream, graph, capturing};
    capturing = m;
}
static int nobody(void) { return !__atomic_load_n(&capturing, __ATOMIC_ACQUIRE); }

int in_graph(void *stream) {
    given(stream);
    if (nobody()) return 0;
    pthread_mutex_lock(&lock);
    Graph *graph = of_stream(stream);
    if (graph) graph->nodes++;
    pthread_mutex_unlock(&lock);
    return !!graph;
}
static int begin_capture(void *stream, Graph *graph) {
    if ((uintptr_t)stream <= 1) return failed(NOT_IN_CAPTURE); /* the default stream */
    pthread_mutex_lock(&lock);
    int twice = !!of_stream(stream);
    if (!twice) graph->id = ++captures, join(stream, graph);
    pthread_mutex_unlock(&lock);
    return twice ? failed(ILLEGAL_STATE) : OK;
}
static Graph *new_graph(void) { return calloc(1, sizeof(Graph)); }
int ANSWER(cudaStreamBeginCapture)(void *stream, int mode) { return begin_capture(stream, new_graph()); }
int ANSWER(cudaStreamBeginCaptureToGraph)(void *stream, Graph *graph, void *after, void *data, size_t n, int mode) { return begin_capture(stream, graph); }
int ANSWER(cudaStreamEndCapture)(void *stream, Graph **out) {
    pthread_mutex_lock(&lock);
    Graph *graph = of_stream(stream);
    for (Member **m = &capturing; *m;) {
        Member *gone = *m;
        if (gone->graph == graph) *m = gone->next, free(gone);
        else m = &gone->next;
    }
    pthread_mutex_unlock(&lock);
    int broken = !graph || graph->broken;
    *out = broken ? 0 : graph;
    if (graph && broken) free(graph);
    return !graph ? failed(ILLEGAL_STATE) : broken ? failed(BROKEN_CAPTURE) : OK;
}
static int info(void *stream, int *status, unsigned long long *id, Graph **graph, void **nodes, void **data, size_t *count) {
    pthread_mutex_lock(&lock);
    Graph *found = of_stream(stream);
    *status = !found ? 0 : 1 + found->broken; /* none, active, invalidated */
    if (id) *id = found ? found->id : 0;
    pthread_mutex_unlock(&lock);
    if (!found) return OK;
    if (graph) *graph = found;
    if (nodes) *nodes = 0;
    if (data) *data = 0;
    if (count) *count = 0;
    return OK;
}
int ANSWER(cudaStreamIsCapturing)(void *stream, int *status) { return info(stream, status, 0, 0, 0, 0, 0); }
int ANSWER(cudaStreamGetCaptureInfo)(void *stream, int *status, unsigned long long *id, Graph **graph, void **nodes, void **data, size_t *count) {
    return CUDA_VERSION_SAID < 13000 ? info(stream, status, id, 0, 0, 0, 0) : info(stream, status, id, graph, nodes, data, count);
}
int ANSWER(cudaStreamGetCaptureInfo_v2)(void *stream, int *status, unsigned long long *id, Graph **graph, void **nodes, size_t *count) { return info(stream, status, id, graph, nodes, 0, count); }
int ANSWER(cudaStreamGetCaptureInfo_v3)(void *stream, int *status, unsigned long long *id, Graph **graph, void **nodes, void **data, size_t *count) { return info(stream, status, id, graph, nodes, data, count); }

int ANSWER(cudaGraphCreate)(Graph **out, unsigned flags) { *out = new_graph(); return OK; }
int ANSWER(cudaGraphGetNodes)(Graph *graph, void **nodes, size_t *count) {
    if (!nodes) *count = graph->nodes;
    else memset(nodes, 0, *count * sizeof *nodes);
    return OK;
}
int ANSWER(cudaGraphInstantiate)(void **out, Graph *graph, unsigned long long flags) { *out = new_handle(); return OK; }
int ANSWER(cudaGraphInstantiateWithFlags)(void **out, Graph *graph, unsigned long long flags) { *out = new_handle(); return OK; }
int ANSWER(cudaGraphDestroy)(Graph *graph) { free(graph); return OK; }
int ANSWER(cudaGraphLaunch)(void *graph, void *stream) { given(stream); forget(); return OK; }

/* What may not be asked of a stream that captures, nor of the device: the capture is lost, and PyTorch says so as on a GPU. */
static int waits(void *stream, int all) {
    if (nobody()) return OK;
    pthread_mutex_lock(&lock);
    Graph *lost = all ? capturing ? capturing->graph : 0 : of_stream(stream);
    if (lost) lost->broken = 1;
    pthread_mutex_unlock(&lock);
    return lost ? failed(NOT_IN_CAPTURE) : OK;
}
int ANSWER(cudaStreamSynchronize)(void *stream) { wait_for(stream); return waits(stream, 0); }
int ANSWER(cudaStreamQuery)(void *stream) {
    int error = waits(stream, 0);
    return error ? error : is_done(now(stream)) ? OK : NOT_READY;
}
int ANSWER(cudaDeviceSynchronize)(void) { rehearsal_catch_up(); return waits(0, 1); }

/* ---- events: each knows in which capture it was recorded, and when */
typedef struct { unsigned long long capture; Moment then; } Event;
static int new_event(Event **out) { *out = calloc(1, sizeof **out); return OK; }
static int happen(Event *event, void *stream) {
    pthread_mutex_lock(&lock);
    Graph *graph = of_stream(stream);
    if (event) event->capture = graph ? graph->id : 0;
    pthread_mutex_unlock(&lock);
    if (event) event->then = now(stream);
    return OK;
}
static int happened(Event *event) {
    if (nobody() || !event || !event->capture) return OK;
    pthread_mutex_lock(&lock);
    Graph *lost = of_id(event->capture);
    if (lost) lost->broken = 1;
    pthread_mutex_unlock(&lock);
    return lost ? failed(CAPTURED_EVENT) : OK;
}
int ANSWER(cudaEventCreate)(Event **out) { return new_event(out); }
int ANSWER(cudaEventCreateWithFlags)(Event **out, unsigned flags) { return new_event(out); }
int ANSWER(cudaIpcOpenEventHandle)(Event **out) { return new_event(out); } /* another process's, which has happened */
int ANSWER(cudaEventDestroy)(Event *event) { free(event); return OK; }
int ANSWER(cudaEventRecord)(Event *event, void *stream) { return happen(event, stream); }
int ANSWER(cudaEventRecordWithFlags)(Event *event, void *stream, unsigned flags) { return happen(event, stream); }
int ANSWER(cudaEventQuery)(Event *event) {
    int error = happened(event);
    return error ? error : !event || is_done(event->then) ? OK : NOT_READY;
}
int ANSWER(cudaEventSynchronize)(Event *event) {
    if (event) wait_until(event->then);
    return happened(event);
}
int ANSWER(cudaStreamWaitEvent)(void *stream, Event *event, unsigned flags) {
    if (event) after(stream, event->then);
    if (nobody() || !event || !event->capture) return OK;
    pthread_mutex_lock(&lock);
    Graph *graph = of_id(event->capture);
    if (graph && !of_stream(stream)) join(stream, graph);
    pthread_mutex_unlock(&lock);
    return OK;
}
int ANSWER(cudaEventElapsedTime)(float *out, Event *from, Event *to) { *out = 10; return OK; }
int ANSWER(cudaEventElapsedTime_v2)(float *out, Event *from, Event *to) { *out = 10; return OK; }
