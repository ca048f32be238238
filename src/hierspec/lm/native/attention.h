/* Attention of a call's rows, each over the keys and values of its own sequence, and what else is done
 * to a row between two matrices.
 */
#include <stdlib.h>

#include "matrix.h"

#define MAX_QUERIES 12    /* queries that attend side by side, so many of them at most */
#define VALUES_AT_ONCE 32 /* of values, whose vectors stay in the first cache meanwhile; even */

typedef struct {
    Matrix q, k, v, proj, gate, up, down;
    const float *norm, *mlp_norm; /* [hidden], with sqrt(hidden) in it */
    const float *head_norm;       /* [heads + kv_heads, dim], with sqrt(dim) in it, or null */
    int64_t window;               /* positions seen back, itself included; 0: all */
} Layer;

typedef struct {
    int64_t hidden, inner, heads, kv_heads, dim;
    int64_t half; /* whether caches hold bfloat16, not float32 */
    float eps, head_eps; /* each added to a sum of squares */
    const Layer *layers;
} Model;

typedef struct {
    void *cache; /* one sequence's, of layer 0: [2 kv_heads, capacity, dim], keys then values */
    int64_t layer_stride, head_stride;
    int64_t start, count; /* its rows: stored at start … start + count − 1 */
    const int64_t *tree;  /* null: stored by position. Else [count, 3], `position`, `text` and
                             `length` of each as in Row, then all their paths */
} Span;

/* A row of a call: where it is stored, and which of the stored tokens it attends to, in the order of
 * their positions: the first `text`, then those at the places of `path`. */
typedef struct {
    const Span *span;
    int64_t place, position, text, length;
    const int64_t *path; /* [length] */
} Row;

/* A thread's part of the numbers 0 … count − 1. */
static Part part_of(int64_t count, int thread, int threads) {
    return (Part){count * thread / threads, count * (thread + 1) / threads};
}

static void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *y) {
    float inverse = 1.0f / sqrtf(dot(x, x, n) + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * inverse * weight[i];
}

/* gate ← silu(gate) · up */
static void swiglu(float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        vec g = *(vec *)(gate + i);
        vec minus = -g;
        ivec high = minus > 87.0f;
        minus = (vec)(((ivec)minus & ~high) | ((ivec)((vec){0} + 87.0f) & high));
        *(vec *)(gate + i) = g / (1.0f + exponential(minus)) * *(const vec *)(up + i);
    }
    for (; i < n; i++) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void rotate(const float *x, const float *rotation, int64_t dim, float *y) {
    for (int64_t j = 0; j < dim; j += 2) {
        float a = x[j], b = x[j + 1];
        y[j] = fma_float(a, rotation[j], -(b * rotation[j + 1]));
        y[j + 1] = fma_float(a, rotation[j + 1], b * rotation[j]);
    }
}

/* Number i of those at x, and W of them from there on, float32 or (HALF) bfloat16. */
INLINE const void *at(const int HALF, const void *x, int64_t i) {
    return (const char *)x + i * (HALF ? 2 : 4);
}
INLINE vec load(const int HALF, const void *x, int64_t i) {
    return HALF ? load_bfloat16((const uint16_t *)x + i) : *(const vec *)((const float *)x + i);
}
INLINE float number(const int HALF, const void *x, int64_t i) {
    if (!HALF) return ((const float *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Keys, and their values, that lie side by side, float32 or bfloat16. */
typedef struct {
    const void *keys, *values;
    int64_t n;
    int half;
} Run;

INLINE float dot_key(const int HALF, const float *q, const void *key, int64_t n) {
    vec sum = {0};
    int64_t k = 0;
    for (; k + W <= n; k += W) sum = fma_vec(*(const vec *)(q + k), load(HALF, key, k), sum);
    float rest = sum_lanes(sum);
    for (; k < n; k++) rest = fma_float(q[k], number(HALF, key, k), rest);
    return rest;
}

/* scores[i] = q · keys[i], n of them. */
INLINE void score_keys_of(const int HALF, const float *q, const void *keys, int64_t n, int64_t dim,
                          float *scores) {
    int64_t i = 0;
    for (; i + W <= n && dim % W == 0; i += W, keys = at(HALF, keys, W * dim)) {
        vec sums[W];
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) sums[j] = (vec){0};
        for (int64_t d = 0; d < dim; d += W) {
            const vec own = *(const vec *)(q + d);
#pragma GCC unroll 16
            for (int j = 0; j < W; j++)
                sums[j] = fma_vec(own, load(HALF, keys, j * dim + d), sums[j]);
        }
        *(vec *)(scores + i) = sum_lanes_of_each(sums);
    }
    for (; i < n; i++, keys = at(HALF, keys, dim)) scores[i] = dot_key(HALF, q, keys, dim);
}

static void score_keys(int half, const float *q, const void *keys, int64_t n, int64_t dim,
                       float *scores) {
    if (half)
        score_keys_of(1, q, keys, n, dim, scores);
    else
        score_keys_of(0, q, keys, n, dim, scores);
}

/* even[0 … MANY · W − 1] += Σ scores[i] values[i] of even i, `odd` of the others, except that the last
 * of an odd number of them is even's. */
INLINE void add_values_tile(const int HALF, const int MANY, const float *scores, const void *values,
                            int64_t n, int64_t dim, float *even, float *odd) {
    vec sums[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < MANY; j++)
        sums[0][j] = *(vec *)(even + j * W), sums[1][j] = *(vec *)(odd + j * W);
    int64_t i = 0;
    for (; i + 2 <= n; i += 2, values = at(HALF, values, 2 * dim))
#pragma GCC unroll 4
        for (int j = 0; j < MANY; j++) {
            sums[0][j] = fma_vec(all_of(scores[i]), load(HALF, values, j * W), sums[0][j]);
            sums[1][j] = fma_vec(all_of(scores[i + 1]), load(HALF, values, dim + j * W), sums[1][j]);
        }
    if (i < n)
#pragma GCC unroll 4
        for (int j = 0; j < MANY; j++)
            sums[0][j] = fma_vec(all_of(scores[i]), load(HALF, values, j * W), sums[0][j]);
#pragma GCC unroll 4
    for (int j = 0; j < MANY; j++)
        *(vec *)(even + j * W) = sums[0][j], *(vec *)(odd + j * W) = sums[1][j];
}

/* The same in all dimensions; what is left past whole vectors is added up in `even` alone. */
INLINE void add_values_of(const int HALF, const float *scores, const void *values, int64_t n,
                          int64_t dim, float *even, float *odd) {
    int64_t d = 0;
    for (; d + 4 * W <= dim; d += 4 * W)
        add_values_tile(HALF, 4, scores, at(HALF, values, d), n, dim, even + d, odd + d);
    for (; d + W <= dim; d += W)
        add_values_tile(HALF, 1, scores, at(HALF, values, d), n, dim, even + d, odd + d);
    for (; d < dim; d++)
        for (int64_t i = 0; i < n; i++)
            even[d] = fma_float(scores[i], number(HALF, values, i * dim + d), even[d]);
}

static void add_values(int half, const float *scores, const void *values, int64_t n, int64_t dim,
                       float *even, float *odd) {
    if (half)
        add_values_of(1, scores, values, n, dim, even, odd);
    else
        add_values_of(0, scores, values, n, dim, even, odd);
}

/* Of n numbers, n a multiple of W. */
static float max_of(const float *x, int64_t n) {
    vec most = *(const vec *)x;
    for (int64_t i = W; i < n; i += W) {
        const vec other = *(const vec *)(x + i);
        const ivec more = other > most;
        most = (vec)(((ivec)other & more) | ((ivec)most & ~more));
    }
    float found = most[0];
    for (int i = 1; i < W; i++) found = most[i] > found ? most[i] : found;
    return found;
}

/* Scores [n], padded to 16, of a query → e^(scale · (score − the largest)); returns 1 / their sum. */
static float softmax_weights(float *scores, int64_t n, float scale) {
    const int64_t padded = (n + 15) / 16 * 16;
    for (int64_t i = n; i < padded; i++) scores[i] = -INFINITY;
    const float most = max_of(scores, padded);
    vec sums = {0};
    for (int64_t i = 0; i < padded; i += W)
        *(vec *)(scores + i) = exponential(scale * (*(vec *)(scores + i) - most));
    for (int64_t i = n; i < padded; i++) scores[i] = 0.0f;
    for (int64_t i = 0; i < padded; i += W) sums += *(vec *)(scores + i);
    return 1.0f / sum_lanes(sums);
}

/* A query over the first `n` keys and values of a run, and over all of a second one. `scores` has room
 * for them, padded to 16. */
typedef struct {
    float *q, *even, *odd; /* [dim] */
    float *scores, *out;
    int64_t n;
} Query;

/* Ask for `n` of `all` keys or values, from number i on, before they are needed. */
static void prefetch(int half, const void *x, int64_t i, int64_t all, int64_t n, int64_t dim) {
    const int64_t each = dim * (half ? 2 : 4), end = (i + n < all ? i + n : all) * each;
    for (int64_t byte = i * each; byte < end; byte += 64) __builtin_prefetch((const char *)x + byte);
}

/* Queries that go together read each stretch of keys and values while it is in the cache. What they
 * add up, and in which order, is what each would alone. The first run is a whole number of vectors,
 * unless it is all: so sums are those of one run. */
static void attend(const Query *queries, int num, const Run *runs, int64_t dim) {
    const float scale = 1.0f / sqrtf((float)dim);
    const Query *end = queries + num;
    float inverse[MAX_QUERIES];
    int64_t max_length = 0;
    for (const Query *query = queries; query < end; query++)
        if (query->n > max_length) max_length = query->n;
    for (int64_t i = 0; i < max_length; i += W) {
        prefetch(runs[0].half, runs[0].keys, i + 2 * W, max_length, W, dim);
        for (const Query *query = queries; query < end; query++)
            if (i < query->n)
                score_keys(runs[0].half, query->q, at(runs[0].half, runs[0].keys, i * dim),
                           query->n - i < W ? query->n - i : W, dim, query->scores + i);
    }
    for (const Query *query = queries; query < end; query++) {
        score_keys(runs[1].half, query->q, runs[1].keys, runs[1].n, dim, query->scores + query->n);
        inverse[query - queries] = softmax_weights(query->scores, query->n + runs[1].n, scale);
        memset(query->even, 0, sizeof(float) * (size_t)dim);
        memset(query->odd, 0, sizeof(float) * (size_t)dim);
    }
    for (int64_t i = 0; i < max_length; i += VALUES_AT_ONCE) {
        prefetch(runs[0].half, runs[0].values, i + VALUES_AT_ONCE, max_length, VALUES_AT_ONCE, dim);
        for (const Query *query = queries; query < end; query++)
            if (i < query->n)
                add_values(runs[0].half, query->scores + i, at(runs[0].half, runs[0].values, i * dim),
                           query->n - i < VALUES_AT_ONCE ? query->n - i : VALUES_AT_ONCE, dim,
                           query->even, query->odd);
    }
    for (const Query *query = queries; query < end; query++) {
        add_values(runs[1].half, query->scores + query->n, runs[1].values, runs[1].n, dim,
                   query->even, query->odd);
        for (int64_t d = 0; d < dim; d++)
            query->out[d] = (query->even[d] + query->odd[d]) * inverse[query - queries];
    }
}

/* Rows of a call; null where there is no memory. */
static Row *locate_rows(const Span *spans, int64_t num_spans, int64_t rows) {
    Row *located = malloc(sizeof(Row) * (size_t)rows), *row = located;
    for (const Span *span = spans; located && span < spans + num_spans; span++) {
        const int64_t *path = span->tree ? span->tree + 3 * span->count : 0;
        for (int64_t i = 0; i < span->count; i++, row++) {
            const int64_t place = span->start + i;
            *row = (Row){span, place, place, place + 1, 0, 0};
            if (!span->tree) continue;
            const int64_t *own = span->tree + 3 * i;
            *row = (Row){span, place, own[0], own[1], own[2], path};
            path += row->length;
        }
    }
    return located;
}

/* Length of the scores of the longest text, a whole number of vectors. */
static int64_t padded_length(const Span *spans, int64_t num_spans) {
    int64_t max_length = 0;
    for (int64_t s = 0; s < num_spans; s++) {
        int64_t end = spans[s].start + spans[s].count;
        if (end > max_length) max_length = end;
    }
    return (max_length + 15) / 16 * 16 + 16;
}

/* Floats for the keys and values of the longest path, and of some text before it (`find_runs`). */
static int64_t copied_floats(const Row *located, int64_t rows, int64_t dim) {
    int64_t max_length = 0;
    for (const Row *row = located; located && row < located + rows; row++)
        if (row->length > max_length) max_length = row->length;
    return max_length ? 2 * (max_length + W) * dim : 0;
}

/* What a row attends to, of one head, from its key number `first` on. Text is read where it
 * is; of a path, and of the text that fills no vector before it, `buffer` gets copies side by side. */
static void find_runs(const Row *row, int64_t first, int half, const void *keys, const void *values,
                      int64_t dim, float *buffer, Run *runs) {
    int64_t whole = row->text - first;
    if (row->length) whole = whole > 0 ? whole / W * W : 0;
    const int64_t skipped = first * dim;
    runs[0] = (Run){at(half, keys, skipped), at(half, values, skipped), whole, half};
    const int64_t next = first + whole, rest = row->text + row->length - next;
    for (int64_t i = 0; i < rest; i++) {
        const int64_t place = next + i < row->text ? next + i : row->path[next + i - row->text];
        for (int64_t d = 0; d < dim; d++) {
            buffer[i * dim + d] = number(half, keys, place * dim + d);
            buffer[(rest + i) * dim + d] = number(half, values, place * dim + d);
        }
    }
    runs[1] = (Run){buffer, buffer + rest * dim, rest, 0};
}

/* Keys, rotated, and values of a thread's share of qkv [rows, heads + 2 kv, dim] go to layer l's
 * caches. */
static void store_keys_values(const Model *model, int64_t l, float *qkv, int64_t rows,
                              const Row *located, const float *rotations, int t, int all) {
    const int64_t dim = model->dim, heads = model->heads, kv = model->kv_heads;
    const float *head_norm = model->layers[l].head_norm;
    Part own = part_of(rows * 2 * kv, t, all);
    for (int64_t i = own.lo; i < own.hi; i++) {
        int64_t r = i / (2 * kv), g = i % (2 * kv);
        const Row *row = located + r;
        const Span *span = row->span;
        float *source = qkv + (r * (heads + 2 * kv) + heads + g) * dim;
        const int64_t place = l * span->layer_stride + g * span->head_stride + row->place * dim;
        if (g < kv) {
            if (head_norm)
                rms_norm(source, head_norm + (heads + g) * dim, model->head_eps, dim, source);
            rotate(source, rotations + row->position * dim, dim, source);
        }
        if (model->half)
            for (int64_t d = 0; d < dim; d++)
                ((uint16_t *)span->cache)[place + d] = to_bfloat16(source[d]);
        else
            memcpy((float *)span->cache + place, source, sizeof(float) * (size_t)dim);
    }
}

/* The first of its keys that a row attends to. */
static int64_t first_key(const Row *row, int64_t window) {
    const int64_t first = window ? row->text + row->length - window : 0;
    return first < 0 ? 0 : first;
}

/* Whether two rows of a sequence see the same keys as far as the shorter text goes. */
static int see_same_keys(const Row *a, const Row *b, int64_t window) {
    if (a == b) return 1;
    return !a->length && !b->length && !first_key(a, window) && !first_key(b, window);
}

/* Floats that a thread's queries need, besides `copied_floats`. */
static int64_t query_floats(int64_t dim, int64_t max_length) {
    return MAX_QUERIES * (3 * dim + max_length);
}

/* Attend with a thread's part of the queries → attended [rows, heads, dim]. Sequence by sequence,
 * queries that read one head of keys go together. `space` has `query_floats`, then `copied_floats`. */
static void attend_rows(const Model *model, int64_t l, float *qkv, int64_t rows, const Row *located,
                        const float *rotations, float *space, int64_t max_length, float *attended,
                        int t, int all) {
    const int64_t dim = model->dim, heads = model->heads, kv = model->kv_heads, each = heads / kv;
    const Layer *layer = model->layers + l;
    const Part own = part_of(rows * heads, t, all);
    Query queries[MAX_QUERIES];
    for (int i = 0; i < MAX_QUERIES; i++, space += 3 * dim + max_length)
        queries[i] = (Query){space, space + dim, space + 2 * dim, space + 3 * dim, 0, 0};
    int64_t before = 0; /* queries of earlier sequences and heads of keys */
    for (int64_t start = 0; start < rows; start += located[start].span->count) {
        const Span *span = located[start].span;
        const int64_t many = span->count * each;
        for (int64_t g = 0; g < kv; g++, before += many) {
            int64_t i = own.lo > before ? own.lo - before : 0;
            const int64_t end = own.hi - before < many ? own.hi - before : many;
            const int half = (int)model->half;
            const void *keys = at(half, span->cache, l * span->layer_stride + g * span->head_stride);
            while (i < end) {
                const Row *row = located + start + i / each;
                const int64_t first = first_key(row, layer->window);
                Run runs[2];
                find_runs(row, first, half, keys, at(half, keys, kv * span->head_stride), dim, space,
                          runs);
                int num = 0;
                for (; num < MAX_QUERIES && i < end; num++, i++) {
                    const Row *other = located + start + i / each;
                    if (!see_same_keys(row, other, layer->window)) break;
                    const int64_t head = g * each + i % each;
                    float *query = qkv + ((other - located) * (heads + 2 * kv) + head) * dim;
                    if (layer->head_norm)
                        rms_norm(query, layer->head_norm + head * dim, model->head_eps, dim, query);
                    rotate(query, rotations + other->position * dim, dim, queries[num].q);
                    queries[num].out = attended + ((other - located) * heads + head) * dim;
                    queries[num].n = other == row ? runs[0].n : other->text;
                }
                attend(queries, num, runs, dim);
            }
        }
    }
}

