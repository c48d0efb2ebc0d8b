/* How far each stream has come. Nothing takes time here, so a GPU that is always done, and one that does nothing before somebody waits
 * for it, are the two ends of what a real one may answer. Both are kept; which of them is told, REHEARSAL_LATE says. */
#include "gpu.h"
#include <pthread.h>

typedef struct { uint64_t at; Stream *other; uint64_t then; } Wait; /* what comes after `at` needs the other stream's `then` */
struct Stream { void *handle; int device; uint64_t given, done; Wait *waits; int count, room; Stream *next; };
static Stream *streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned differences;      /* questions to which a late GPU says that it is not done */
static __thread unsigned asked;   /* in a row, by a thread that does nothing else: it waits */
enum { PATIENCE = 1000 };

static Stream *of(void *handle) { /* the default stream is one for each device. The lock is held */
    Stream *s = streams;
    while (s && (s->handle != handle || s->device != current)) s = s->next;
    if (!s) {
        s = calloc(1, sizeof *s);
        *s = (Stream){handle, current, 0, 0, 0, 0, 0, streams};
        streams = s;
    }
    return s;
}
static void reach(Stream *s, uint64_t then) { /* a stream has come so far, and those that it waited for. The lock is held */
    if (!s || s->done >= then) return;
    s->done = then;
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        Wait w = s->waits[i];
        if (w.at <= then) reach(w.other, w.then);
        else s->waits[kept++] = w;
    }
    s->count = kept;
}
void given(void *handle) {
    pthread_mutex_lock(&lock);
    of(handle)->given++;
    pthread_mutex_unlock(&lock);
    asked = 0;
}
Moment now(void *handle) {
    pthread_mutex_lock(&lock);
    Stream *s = of(handle);
    Moment m = {s, s->given};
    pthread_mutex_unlock(&lock);
    asked = 0;
    return m;
}
void after(void *handle, Moment m) {
    if (!m.stream) return;
    pthread_mutex_lock(&lock);
    Stream *s = of(handle);
    if (s != m.stream && m.stream->done < m.then) {
        if (s->count == s->room) s->waits = realloc(s->waits, (s->room = 2 * s->room + 8) * sizeof(Wait));
        s->waits[s->count++] = (Wait){++s->given, m.stream, m.then};
    }
    pthread_mutex_unlock(&lock);
}
void wait_until(Moment m) {
    pthread_mutex_lock(&lock);
    reach(m.stream, m.then);
    pthread_mutex_unlock(&lock);
}
void wait_for(void *handle) { wait_until(now(handle)); }
/* Everything that was given to all devices is done. */
void rehearsal_catch_up(void) {
    pthread_mutex_lock(&lock);
    for (Stream *s = streams; s; s = s->next) reach(s, s->given);
    pthread_mutex_unlock(&lock);
}
int is_done(Moment m) {
    if (++asked > PATIENCE) rehearsal_catch_up(), asked = 0;
    pthread_mutex_lock(&lock);
    int done = !m.stream || m.stream->done >= m.then;
    differences += !done;
    pthread_mutex_unlock(&lock);
    return done || !gpu.late;
}
unsigned rehearsal_stream_differences(void) { return differences; }
