/* A Llama-shaped model's layers in one call: one parallel region, weights read once, rows kept apart.
 *
 * torch runs a layer as some twenty operations, each with its own threads to wake; for one token that
 * is most of the time. Here all threads stay together from the first layer to the last and meet at
 * barriers. products.c has the products, attention.h the attention.
 *
 * Plain C with GNU vector types (gcc, clang): library.py compiles it for the processor at hand.
 */
#include <sched.h>

#include "attention.h"
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

#define ATTENTION 1 /* parts of a layer, as bits */
#define MLP 2
#define PANELS_PER_REFINED 16 /* of so many panels of scores at most one is made again */

typedef struct {
    int arrived, generation, count;
} Barrier;

static void barrier_wait(Barrier *b) {
    if (b->count == 1) return;
    int generation = __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == b->count) {
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->generation, generation + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&b->generation, __ATOMIC_ACQUIRE) == generation; spins++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        /* Somebody else has the processor that the others need. */
        if (spins > 4000) sched_yield();
    }
}

/* Outputs in some panels of a matrix. */
static Part outputs_of(const Matrix *m, Part part) {
    int64_t end = part.hi * PANEL;
    return (Part){part.lo * PANEL, end < m->out ? end : m->out};
}

/* Rows packed for the matrices of one input, in one kind after the other. */
typedef struct {
    const float *x;
    float *packed;
    int64_t rows, kind;
} Packed;

/* Panels `own` of m times the rows, packed anew where this matrix needs another kind. */
static void multiply(const Matrix *m, Part own, Packed *rows, float *y, int64_t stride) {
    const int kind = inputs_of(m);
    if (rows->kind != kind) pack(kind, m->in, rows->x, rows->rows, rows->packed);
    rows->kind = kind;
    m->multiply(m, own, rows->packed, rows->rows, y, stride);
}

/* A thread's part of m · x, to its columns of y [rows, stride]. */
static void multiply_part(const Matrix *m, int t, int all, Packed *rows, float *y, int64_t stride) {
    Part own = part_of(num_panels(m), t, all);
    multiply(m, own, rows, y + own.lo * PANEL, stride);
}

/* h [rows, out] += that part; `buffer` holds the product. */
static void add_part(const Matrix *m, int t, int all, Packed *rows, float *buffer, float *h) {
    Part own = part_of(num_panels(m), t, all), columns = outputs_of(m, own);
    const int64_t width = columns.hi - columns.lo;
    multiply(m, own, rows, buffer, width);
    for (int64_t r = 0; r < rows->rows; r++)
        for (int64_t o = 0; o < width; o++) h[r * m->out + columns.lo + o] += buffer[r * width + o];
}

/* --- what Python calls */

/* Layers lo … hi − 1 on h [rows, hidden], in place; of layer l the parts named by parts[l − lo], all
 * where `parts` is null. q, k and v read `inputs` [rows, their width], normed in stretches of `hidden`;
 * h where it is null. `rotations` [positions, dim]: cos, sin of a pair side by side. Returns 0, or −1
 * where there is no memory. */
int hierspec_layers(const Model *model, int64_t lo, int64_t hi, const uint8_t *parts, float *h,
                    const float *inputs, int64_t rows, const float *rotations, const Span *spans,
                    int64_t num_spans, int threads) {
    const int64_t d = model->hidden, inner = model->inner, dim = model->dim;
    const int64_t heads = model->heads, kv = model->kv_heads, width = (heads + 2 * kv) * dim;
    const int64_t read = model->layers->q.in;
    /* Shared: products and what is attended; each thread's own: rows, what attention needs. */
    int64_t widest = read > inner ? read : inner;
    if (heads * dim > widest) widest = heads * dim;
    widest = num_groups(widest) * GROUP; /* codes take whole groups */
    int64_t common = rows * (width + heads * dim + 2 * inner);
    const Plan plan = plan_attention(model, spans, num_spans, rows, threads);
    const int64_t each = rows * (read + widest) + space_floats(model);
    float *memory = malloc(sizeof(float) * (size_t)(common + threads * each));
    if (!memory || !plan.rows) {
        free(memory);
        free_plan(plan);
        return -1;
    }
    float *qkv = memory, *attended = qkv + rows * width, *gate = attended + rows * heads * dim;
    float *up = gate + rows * inner;
    Barrier barrier = {0, 0, threads};
#pragma omp parallel num_threads(threads)
    {
        /* OpenMP may give fewer threads than asked for. */
#pragma omp single
        barrier.count = omp_get_num_threads();
        const int t = omp_get_thread_num(), all = barrier.count;
        float *x = memory + common + t * each, *packed = x + rows * read;
        const Space space = space_at(model, packed + rows * widest);
        for (int64_t l = lo; l < hi; l++) {
            const Layer *layer = model->layers + l;
            const int own_parts = parts ? parts[l - lo] : ATTENTION | MLP;
            if (own_parts & ATTENTION) {
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t i = 0; i < read; i += d)
                        rms_norm((inputs ? inputs : h) + r * read + i, layer->norm + i, model->eps,
                                 d, x + r * read + i);
                Packed normed = {x, packed, rows, -1};
                multiply_part(&layer->q, t, all, &normed, qkv, width);
                multiply_part(&layer->k, t, all, &normed, qkv + heads * dim, width);
                multiply_part(&layer->v, t, all, &normed, qkv + (heads + kv) * dim, width);
                barrier_wait(&barrier);

                rotate_and_store(model, l, qkv, rows, plan.rows, rotations, t, all);
                barrier_wait(&barrier);
                attend_rows(model, l, &plan, qkv, attended, &space, t, all);
                barrier_wait(&barrier);
                if (plan.blocks > 1) {
                    add_up_blocks(model, l, &plan, rows, attended, &space, t, all);
                    barrier_wait(&barrier);
                }

                Packed values = {attended, packed, rows, -1};
                add_part(&layer->proj, t, all, &values, x, h);
                barrier_wait(&barrier);
            }
            if (own_parts & MLP) {
                for (int64_t r = 0; r < rows; r++)
                    rms_norm(h + r * d, layer->mlp_norm, model->eps, d, x + r * d);
                Packed normed = {x, packed, rows, -1};
                multiply_part(&layer->gate, t, all, &normed, gate, inner);
                multiply_part(&layer->up, t, all, &normed, up, inner);
                Part columns = outputs_of(&layer->gate, part_of(num_panels(&layer->gate), t, all));
                for (int64_t r = 0; r < rows; r++)
                    swiglu(gate + r * inner + columns.lo, up + r * inner + columns.lo,
                           columns.hi - columns.lo);
                barrier_wait(&barrier);

                Packed activated = {gate, packed, rows, -1};
                add_part(&layer->down, t, all, &activated, x, h);
                barrier_wait(&barrier);
            }
        }
    }
    free(memory);
    free_plan(plan);
    return 0;
}

/* x [rows, in], normalised first unless `norm` is null → y [rows, out]. Returns 0, or −1 where there is
 * no memory. */
int hierspec_product(const Matrix *matrix, const float *norm, float eps, const float *x, int64_t rows,
                     float *y, int threads) {
    const int64_t d = matrix->in;
    const int kind = inputs_of(matrix);
    float *memory = malloc(sizeof(float) * (size_t)(rows * (d + packed_floats(kind, d))));
    float *packed = memory + rows * d;
    if (!memory) return -1;
    for (int64_t r = 0; norm && r < rows; r++) rms_norm(x + r * d, norm, eps, d, memory + r * d);
    pack(kind, d, norm ? memory : x, rows, packed);
#pragma omp parallel num_threads(threads)
    {
        Part own = part_of(num_panels(matrix), omp_get_thread_num(), omp_get_num_threads());
        matrix->multiply(matrix, own, packed, rows, y + own.lo * PANEL, matrix->out);
    }
    free(memory);
    return 0;
}

/* How far below the best a panel's best score may lie so that few panels do: at most `near`. */
static float margin_for_few(const float *tops, int64_t n, float most, float near) {
    for (;; near *= 0.8f) {
        int64_t count = 0;
        for (int64_t p = 0; p < n; p++) count += tops[p] >= most - near;
        if (count * PANELS_PER_REFINED <= n || count <= 1 || !(near > 1e-3f)) return near;
    }
}

/* The same in few bits (`coarse`), and then in more (`fine`) for the panels whose best score comes
 * near the row's best: of a large vocabulary few do, and half is read. Where more do, as of a row that
 * nobody could guess, only the nearest count. Both are of whole numbers. */
int hierspec_refined_product(const Matrix *coarse, const Matrix *fine, float near, const float *norm,
                             float eps, const float *x, int64_t rows, float *y, int threads) {
    const int64_t d = fine->in, out = fine->out, n = num_panels(fine);
    const int64_t each = packed_floats(CODES, d);
    float *normed = malloc(sizeof(float) * (size_t)(rows * (d + each + n)));
    if (!normed) return -1;
    float *packed = normed + rows * d, *tops = packed + rows * each; /* [rows, n] */
    for (int64_t r = 0; r < rows; r++) rms_norm(x + r * d, norm, eps, d, normed + r * d);
    pack(CODES, d, normed, rows, packed);
#pragma omp parallel num_threads(threads)
    {
        Part own = part_of(n, omp_get_thread_num(), omp_get_num_threads());
        coarse->multiply(coarse, own, packed, rows, y + own.lo * PANEL, out);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t p = own.lo; p < own.hi; p++) {
                int64_t end = (p + 1) * PANEL < out ? (p + 1) * PANEL : out;
                float top = -INFINITY;
                for (int64_t o = p * PANEL; o < end; o++)
                    top = y[r * out + o] > top ? y[r * out + o] : top;
                tops[r * n + p] = top;
            }
#pragma omp barrier
        for (int64_t r = 0; r < rows; r++) {
            const float *top = tops + r * n;
            float most = -INFINITY;
            for (int64_t p = 0; p < n; p++) most = top[p] > most ? top[p] : most;
            float limit = most - margin_for_few(top, n, most, near);
            for (int64_t p = own.lo; p < own.hi; p++)
                if (top[p] >= limit)
                    fine->multiply(fine, (Part){p, p + 1}, packed + r * each, 1,
                                   y + r * out + p * PANEL, out);
        }
    }
    free(normed);
    return 0;
}
