/* The kernels in a process of their own: under a sanitizer, or on another processor (kernels_apart.py).
 *
 * Reads calls from standard input until it ends, and answers on standard output. A call is some
 * buffers, each in memory of its own size, and where in them addresses of others stand.
 *
 * Threads are POSIX ones, by the functions that gcc calls for OpenMP: sanitizers know what those wait
 * for.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_THREADS 64

typedef struct Matrix Matrix;
typedef struct {
    int64_t lo, hi;
} Part;

/* Of each format: DRIVER_FORMATS is X(F32) X(F16) …, in the order of formats.py. */
#define X(f)                                                                                        \
    void multiply_##f(const Matrix *, Part, const float *, int64_t, float *, int64_t);              \
    void rows_##f(const Matrix *, const int64_t *, int64_t, float *);
DRIVER_FORMATS
#undef X
#define X(f) {(void *)multiply_##f, (void *)rows_##f},
static void *const functions[][2] = {DRIVER_FORMATS};
#undef X
#define X(f) rows_##f,
static void (*const rows_of[])(const Matrix *, const int64_t *, int64_t, float *) = {DRIVER_FORMATS};

int hierspec_run(const void *, const void *, int);
int hierspec_product(const Matrix *, const float *, float, const float *, int64_t, float *, int);

/* --- what gcc calls for OpenMP */

static pthread_barrier_t together;
static _Thread_local int own_number, own_count = 1;
typedef struct {
    void (*run)(void *);
    void *data;
    int number, count;
} Start;

static void *start(void *at) {
    Start *own = at;
    own_number = own->number, own_count = own->count;
    own->run(own->data);
    return 0;
}

void GOMP_parallel(void (*run)(void *), void *data, unsigned count, unsigned flags) {
    pthread_t threads[MAX_THREADS];
    Start starts[MAX_THREADS];
    (void)flags;
    /* One less than asked for where there are many, as OpenMP may. */
    if (count > 4) count--;
    pthread_barrier_init(&together, 0, count);
    for (int i = 0; i < (int)count; i++) starts[i] = (Start){run, data, i, (int)count};
    for (unsigned i = 1; i < count; i++)
        if (pthread_create(threads + i, 0, start, starts + i)) abort();
    start(starts);
    for (unsigned i = 1; i < count; i++) pthread_join(threads[i], 0);
    pthread_barrier_destroy(&together);
    own_number = 0, own_count = 1;
}
void GOMP_barrier(void) { pthread_barrier_wait(&together); }
_Bool GOMP_single_start(void) { return own_number == 0; }
int omp_get_thread_num(void) { return own_number; }
int omp_get_num_threads(void) { return own_count; }

/* --- calls */

static void read_all(void *to, size_t size) {
    if (fread(to, 1, size, stdin) != size) exit(3);
}

typedef union {
    int64_t number;
    double real;
    void *at;
} Word;

static int64_t call(const Word *a) {
    switch (a[0].number) {
    case 0:
        return hierspec_run(a[1].at, a[2].at, (int)a[3].number);
    case 1:
        return hierspec_product(a[1].at, a[2].at, (float)a[3].real, a[4].at, a[5].number, a[6].at,
                                (int)a[7].number);
    default: rows_of[a[0].number - 2](a[1].at, a[2].at, a[3].number, a[4].at); return 0;
    }
}

int main(void) {
    int64_t head[2]; /* numbers of buffers and of addresses */
    while (fread(head, sizeof head, 1, stdin) == 1) {
        int64_t *sizes = malloc(sizeof(int64_t) * (size_t)head[0]);
        int64_t(*addresses)[4] = malloc(sizeof *addresses * (size_t)(head[1] + 1));
        char **buffers = malloc(sizeof(char *) * (size_t)head[0]);
        read_all(sizes, sizeof(int64_t) * (size_t)head[0]);
        read_all(addresses, sizeof *addresses * (size_t)head[1]);
        for (int64_t i = 0; i < head[0]; i++) {
            /* A negative size: memory to be written, of unknown contents. */
            buffers[i] = malloc((size_t)llabs(sizes[i]));
            if (sizes[i] > 0) read_all(buffers[i], (size_t)sizes[i]);
        }
        for (int64_t i = 0; i < head[1]; i++) { /* in which buffer, where; of which, where */
            const int64_t *own = addresses[i];
            void **at = (void **)(buffers[own[0]] + own[1]);
            *at = own[2] >= 0 ? buffers[own[2]] + own[3] : functions[-1 - own[2]][own[3]];
        }
        int64_t result = call((const Word *)buffers[0]);
        fwrite(&result, sizeof result, 1, stdout);
        for (int64_t i = 1; i < head[0]; i++) {
            fwrite(buffers[i], 1, (size_t)llabs(sizes[i]), stdout);
            free(buffers[i]);
        }
        fflush(stdout);
        free(buffers[0]), free(buffers), free(addresses), free(sizes);
    }
    return 0;
}
