/* Attention of a call's rows, each over the keys and values of its own sequence, and what else is done
 * to a row between two matrices.
 */
#include <stdlib.h>

#include "matrix.h"

#define BLOCK 256         /* positions whose sums are one, whatever is computed beside it */
#define STRETCH 32        /* keys or values that are packed at a time; 2 W or a multiple */
#define MAX_QUERIES 48    /* of the rows that go together, unless one row has more */
#define TILE_QUERIES 6    /* whose sums fit into the registers */
#define UNITS_PER_THREAD 4 /* so many groups of rows keep the threads busy without dividing texts */

/* What a cache's numbers are: as model.py counts them. */
enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef struct {
    Matrix q, k, v, proj, gate, up, down;
    const float *norm, *mlp_norm; /* [hidden], with sqrt(hidden) in it */
    const float *head_norm;       /* [heads + kv_heads, dim], with sqrt(dim) in it, or null */
    int64_t window;               /* positions seen back, itself included; 0: all */
} Layer;

typedef struct {
    int64_t hidden, inner, heads, kv_heads, dim;
    int64_t kind; /* of caches */
    float eps, head_eps; /* each added to a sum of squares */
    const Layer *layers;
    const Matrix *embedding, *output;
    const Matrix *refined; /* null, or: the same as `output` in more bits, for scores near the best */
    const float *final_norm; /* [hidden], with sqrt(hidden) in it */
} Model;

typedef struct {
    void *cache; /* one sequence's, of layer 0: [2 kv_heads, capacity, dim], keys then values */
    int64_t layer_stride, head_stride;
    int64_t start, count; /* its rows: stored at start … start + count − 1 */
    const int64_t *tree;  /* null: stored by position. Else [count, 3], `position`, `text` and
                             `length` of each as in Row, then all their paths */
    const float *input;   /* of its rows [count, hidden]; null: they are tokens, to be embedded */
    float *output;        /* the same behind the last layer, and of drafted tokens after these */
    int64_t num_drafted;  /* tokens to draft after its last row; 0 in all spans of a call, or in none */
    int64_t *draft;       /* [num_drafted] where they go */
    float temperature;    /* that they are drawn at; 0: the best are picked */
    float min_p;          /* of the best token's probability, that others need; 0: any will do */
    int64_t top_k;        /* they are among so many best; 0: among all */
    double top_p;         /* and among the fewest best with this mass; 1: with all */
    const double *uniforms; /* [num_drafted] what they are drawn by */
    float *probs;           /* [num_drafted, num_choices] where what they are drawn from goes */
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
        const vec minus = choose(-g > 87.0f, all_of(87.0f), -g);
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

/* Number i of those at x. */
INLINE const void *at(int kind, const void *x, int64_t i) {
    return (const char *)x + i * (kind == FLOAT32 ? 4 : 2);
}

/* The first of its keys that a row attends to, and how many there are up to its own. */
static int64_t first_key(const Row *row, int64_t window) {
    const int64_t first = window ? row->text + row->length - window : 0;
    return first < 0 ? 0 : first;
}
static int64_t end_of(const Row *row) { return row->text + row->length; }

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

/* Rows of one sequence that attend together. */
typedef struct {
    const Row *rows, *longest; /* `longest` of their texts */
    int64_t count;
    int64_t shared; /* so many keys are the same for all that see them */
    int64_t end;    /* of the keys that any of them sees */
} Group;

/* What the attention of a call's rows is divided into, in all layers alike.
 *
 * Keys are counted in the order of their positions. A query adds up a block of them at a time, from
 * its first to its last, and then the blocks, one after the other: so its bits do not depend on
 * who does that, nor on what other queries do. Few rows are divided among the threads by blocks, too;
 * `sums` [rows, heads, blocks, sums_width] then has what each found. */
typedef struct {
    Row *rows;
    Group *groups;
    int64_t num_groups, blocks; /* `blocks` of the longest text; 1 where rows are not divided */
    float *sums;
} Plan;

/* Of the sums of a block: the values', in whole tiles; the largest score, and that of the weights. */
static int64_t num_columns(int64_t dim) { return (dim + 2 * W - 1) / (2 * W) * (2 * W); }
static int64_t sums_width(int64_t dim) { return num_columns(dim) + 16; }

static int64_t max_rows_of_group(int64_t each) { return each < MAX_QUERIES ? MAX_QUERIES / each : 1; }

static Group group_of(const Row *rows, int64_t count) {
    Group group = {rows, rows, count, INT64_MAX, 0};
    for (const Row *row = rows; row < rows + count; row++) {
        if (row->text > group.longest->text) group.longest = row;
        if (end_of(row) > group.end) group.end = end_of(row);
        if (row->length) group.shared = 0;
    }
    for (const Row *row = rows; row < rows + count && !group.shared; row++)
        if (row == rows || row->text < group.shared) group.shared = row->text;
    return group;
}

/* The first key that any of a group's rows attends to: of a tree's rows the first need not be it. */
static int64_t first_key_of(const Group *group, int64_t window) {
    int64_t first = group->end;
    for (const Row *row = group->rows; row < group->rows + group->count; row++)
        if (first_key(row, window) < first) first = first_key(row, window);
    return first;
}

static void free_plan(Plan plan) {
    free(plan.rows);
    free(plan.groups);
    free(plan.sums);
}

/* Null rows where there is no memory. */
static Plan plan_attention(const Model *model, const Span *spans, int64_t num_spans, int64_t rows,
                           int threads) {
    const int64_t max_rows = max_rows_of_group(model->heads / model->kv_heads);
    Plan plan = {locate_rows(spans, num_spans, rows), malloc(sizeof(Group) * (size_t)rows), 0, 1, 0};
    int64_t end = 0, num = 0;
    for (int64_t r = 0; plan.rows && plan.groups && r < rows; r += num) {
        const Span *span = plan.rows[r].span;
        for (num = 1; num < max_rows && r + num < rows && plan.rows[r + num].span == span;) num++;
        const Group group = group_of(plan.rows + r, num);
        plan.groups[plan.num_groups++] = group;
        if (group.end > end) end = group.end;
    }
    if (threads > 1 && plan.num_groups * model->kv_heads < UNITS_PER_THREAD * threads)
        plan.blocks = (end + BLOCK - 1) / BLOCK;
    if (plan.blocks > 1)
        plan.sums = malloc(sizeof(float) *
                           (size_t)(rows * model->heads * plan.blocks * sums_width(model->dim)));
    if (plan.rows && plan.groups && (plan.sums || plan.blocks == 1)) return plan;
    free_plan(plan);
    return (Plan){0};
}

/* Where queries and weights of bfloat16 caches are rounded to it, two make a word, as two numbers of
 * the cache do; elsewhere a word is a float. */
INLINE int is_paired(int kind) { return kind == BFLOAT16 && PAIR_PRODUCTS; }
INLINE vec load_words(const int KIND, const void *x, int64_t i) {
    if (KIND == FLOAT32) return *(const vec *)((const word *)x + i);
    const uint16_t *halves = (const uint16_t *)x + i;
    return KIND == BFLOAT16 ? load_bfloat16(halves) : load_float16(halves);
}
INLINE word load_word(const int KIND, const void *x, int64_t i) {
    if (KIND == FLOAT32) return ((const word *)x)[i];
    const uint16_t half = ((const uint16_t *)x)[i];
    if (KIND == BFLOAT16) return (word)((uint32_t)half << 16);
    const float wide = from_float16(half);
    word bits;
    memcpy(&bits, &wide, sizeof bits);
    return bits;
}

/* What a product asks for meanwhile: `bytes` in each step. */
typedef struct {
    const char *next;
    int64_t bytes;
} Ahead;

/* y [MANY, 2 W] += a [MANY, steps] · b [steps, 2 W]. */
INLINE void add_tile(const int PAIRED, const int MANY, const word *a, int64_t a_stride, const word *b,
                     int64_t b_stride, int64_t steps, float *y, int64_t y_stride, Ahead ahead) {
    vec sums[TILE_QUERIES][2];
#pragma GCC unroll 6
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < 2; j++) sums[i][j] = *(vec *)(y + i * y_stride + j * W);
    for (int64_t k = 0; k < steps; k++, b += b_stride, ahead.next += ahead.bytes) {
        for (int64_t byte = 0; byte < ahead.bytes; byte += 64) fetch_early(ahead.next + byte);
#pragma GCC unroll 6
        for (int i = 0; i < MANY; i++)
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++)
                if (PAIRED)
                    sums[i][j] = add_pair_products(sums[i][j], load_pairs((const void *)(b + j * W)),
                                                   broadcast_pair((uint32_t)a[i * a_stride + k]));
                else
                    sums[i][j] = fma_vec(all_of(((const float *)a)[i * a_stride + k]),
                                         *(const vec *)(b + j * W), sums[i][j]);
    }
#pragma GCC unroll 6
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < 2; j++) *(vec *)(y + i * y_stride + j * W) = sums[i][j];
}

/* The same of any number of rows and of columns, a multiple of 2 W. */
INLINE void add_products_of(const int PAIRED, int64_t many, const word *a, int64_t a_stride,
                            const word *b, int64_t b_stride, int64_t columns, int64_t steps,
                            float *y, int64_t y_stride, Ahead ahead) {
    for (int64_t c = 0; c < columns; c += 2 * W, ahead.next += steps * ahead.bytes) {
        const word *x = a;
        float *to = y + c;
        int64_t left = many;
        for (; left >= TILE_QUERIES; left -= TILE_QUERIES) {
            add_tile(PAIRED, TILE_QUERIES, x, a_stride, b + c, b_stride, steps, to, y_stride, ahead);
            x += TILE_QUERIES * a_stride, to += TILE_QUERIES * y_stride;
        }
        switch (left) {
        case 1: add_tile(PAIRED, 1, x, a_stride, b + c, b_stride, steps, to, y_stride, ahead); break;
        case 2: add_tile(PAIRED, 2, x, a_stride, b + c, b_stride, steps, to, y_stride, ahead); break;
        case 3: add_tile(PAIRED, 3, x, a_stride, b + c, b_stride, steps, to, y_stride, ahead); break;
        case 4: add_tile(PAIRED, 4, x, a_stride, b + c, b_stride, steps, to, y_stride, ahead); break;
        case 5: add_tile(PAIRED, 5, x, a_stride, b + c, b_stride, steps, to, y_stride, ahead); break;
        }
    }
}
static void add_products(int paired, int64_t many, const word *a, int64_t a_stride, const word *b,
                         int64_t b_stride, int64_t columns, int64_t steps, float *y,
                         int64_t y_stride, Ahead ahead) {
    if (paired)
        add_products_of(1, many, a, a_stride, b, b_stride, columns, steps, y, y_stride, ahead);
    else
        add_products_of(0, many, a, a_stride, b, b_stride, columns, steps, y, y_stride, ahead);
}

/* Keys [STRETCH, words], wherever each lies → [words, STRETCH]. */
INLINE void pack_keys_of(const int KIND, const void *const *from, int64_t words, word *to) {
    for (int64_t j = 0; j < STRETCH; j += W, from += W) {
        int64_t k = 0;
        for (; k + W <= words; k += W) {
            vec numbers[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; i++) numbers[i] = load_words(KIND, from[i], k);
            transpose(numbers);
#pragma GCC unroll 16
            for (int i = 0; i < W; i++) *(vec *)(to + (k + i) * STRETCH + j) = numbers[i];
        }
        for (; k < words; k++)
            for (int i = 0; i < W; i++) to[k * STRETCH + j + i] = load_word(KIND, from[i], k);
    }
}
static void pack_keys(int kind, const void *const *from, int64_t dim, word *to) {
    if (kind == FLOAT16)
        pack_keys_of(FLOAT16, from, dim, to);
    else if (kind == BFLOAT16 && !PAIR_PRODUCTS)
        pack_keys_of(BFLOAT16, from, dim, to);
    else
        pack_keys_of(FLOAT32, from, kind == FLOAT32 ? dim : dim / 2, to);
}

/* Values [STRETCH, dim] → [STRETCH, columns], or (PAIRED) two by two [STRETCH / 2, columns]. */
INLINE void pack_values_of(const int KIND, const int PAIRED, const void *const *from, int64_t dim,
                           word *to) {
    const int64_t columns = num_columns(dim);
    for (int i = 0; i < STRETCH; i += 1 + PAIRED, to += columns) {
        int64_t d = 0;
        for (; d + W <= dim; d += W) {
            ivec numbers = (ivec)load_words(KIND, from[i], d);
            if (PAIRED)
                numbers = (numbers >> 16 & 0xffff) | (ivec)load_words(KIND, from[i + 1], d);
            *(ivec *)(to + d) = numbers;
        }
        for (; d < dim; d++) {
            to[d] = load_word(KIND, from[i], d);
            if (PAIRED) to[d] = (to[d] >> 16 & 0xffff) | load_word(KIND, from[i + 1], d);
        }
        for (; d < columns; d++) to[d] = 0;
    }
}
static void pack_values(int kind, const void *const *from, int64_t dim, word *to) {
    if (kind == FLOAT16)
        pack_values_of(FLOAT16, 0, from, dim, to);
    else if (kind == BFLOAT16)
        pack_values_of(BFLOAT16, PAIR_PRODUCTS, from, dim, to);
    else
        pack_values_of(FLOAT32, 0, from, dim, to);
}

/* Of n numbers, n a multiple of W. */
static float max_of(const float *x, int64_t n) {
    vec most = *(const vec *)x;
    for (int64_t i = W; i < n; i += W) {
        const vec other = *(const vec *)(x + i);
        most = choose(other > most, other, most);
    }
    float found = most[0];
    for (int i = 1; i < W; i++) found = most[i] > found ? most[i] : found;
    return found;
}

/* Scores lo … hi − 1 of n, a multiple of 2 W → words of e^(scale · (score − the largest)), those of
 * the others 0; `found` gets the largest, and the weights' sum. */
static void weigh(int paired, float *scores, int64_t lo, int64_t hi, int64_t n, float scale,
                  float *found) {
    for (int64_t i = 0; i < lo; i++) scores[i] = -INFINITY;
    for (int64_t i = hi; i < n; i++) scores[i] = -INFINITY;
    const float most = max_of(scores, n);
    for (int64_t i = 0; i < n; i += W)
        *(vec *)(scores + i) = exponential(scale * (*(vec *)(scores + i) - most));
    for (int64_t i = 0; i < lo; i++) scores[i] = 0.0f;
    for (int64_t i = hi; i < n; i++) scores[i] = 0.0f;
    vec total = {0};
#if PAIR_PRODUCTS
    for (int64_t i = 0; paired && i < n; i += 2 * W) {
        const Pairs pairs = round_pairs(*(vec *)(scores + i), *(vec *)(scores + i + W));
        total = add_pair_products(total, pairs, broadcast_pair(0x3f803f80)); /* twice 1 */
        memcpy(scores + i / 2, &pairs, sizeof pairs);
    }
#endif
    for (int64_t i = 0; !paired && i < n; i += W) total += *(vec *)(scores + i);
    found[0] = most, found[1] = sum_lanes(total);
}

/* Add a block's sums to those of earlier blocks. */
static void add_block(float *sums, const float *block, int64_t columns, float scale) {
    const float before = sums[columns], most = block[columns] > before ? block[columns] : before;
    vec factors = {0};
    factors[0] = before - most, factors[1] = block[columns] - most;
    factors = exponential(scale * factors);
    const vec old = all_of(factors[0]), new = all_of(factors[1]);
    for (int64_t c = 0; c < columns; c += W)
        *(vec *)(sums + c) = fma_vec(*(const vec *)(block + c), new, *(vec *)(sums + c) * old);
    sums[columns] = most;
    sums[columns + 1] = fma_float(block[columns + 1], factors[1], sums[columns + 1] * factors[0]);
}

static void clear_sums(float *sums, int64_t columns) {
    memset(sums, 0, sizeof(float) * (size_t)(columns + 2));
    sums[columns] = -INFINITY;
}

static void finish_sums(const float *sums, int64_t dim, float *out) {
    const float inverse = 1.0f / sums[num_columns(dim) + 1];
    for (int64_t d = 0; d < dim; d++) out[d] = sums[d] * inverse;
}

/* A thread's memory: a group's queries, their scores and weights, sums of a block and of all so far. */
typedef struct {
    word *q, *packed; /* [queries, words]; a stretch */
    float *scores;    /* [queries, BLOCK] */
    float *block, *sums, *none; /* [queries, sums_width]; numbers that no key or value has */
} Space;

static int64_t max_queries(const Model *model) {
    const int64_t each = model->heads / model->kv_heads;
    return each * max_rows_of_group(each);
}
static int64_t space_floats(const Model *model) {
    const int64_t columns = num_columns(model->dim);
    return max_queries(model) * (columns + BLOCK + 2 * sums_width(model->dim)) +
           STRETCH * columns + columns + 16;
}
static Space space_at(const Model *model, float *memory) {
    const int64_t n = max_queries(model), columns = num_columns(model->dim);
    Space space;
    space.scores = memory + (-(uintptr_t)memory % 64) / sizeof(float); /* a line of the cache */
    space.block = space.scores + n * BLOCK;
    space.sums = space.block + n * sums_width(model->dim);
    space.packed = (word *)(space.sums + n * sums_width(model->dim));
    space.q = space.packed + STRETCH * columns;
    space.none = (float *)space.q + n * columns;
    memset(space.none, 0, sizeof(float) * (size_t)columns);
    return space;
}

/* Where a stretch of a row's keys lies from number k on, or of its values: of those it has, from
 * `first` on. */
static void locate_keys(const Row *row, int64_t first, int64_t k, int kind, const void *x,
                        int64_t dim, const void *none, const void **from) {
    for (int64_t i = k; i < k + STRETCH; i++) {
        const int64_t place = i < row->text || i >= end_of(row) ? i : row->path[i - row->text];
        from[i - k] = i < first || i >= end_of(row) ? none : at(kind, x, place * dim);
    }
}

/* What a product asks for meanwhile is read two stretches later: by then it has arrived. */
static Ahead ahead_of(int kind, const void *stretch) {
    return (Ahead){stretch, 2 * W * (kind == FLOAT32 || is_paired(kind) ? 4 : 2)};
}

/* The sums of a group's queries over block b, of the head of these keys and values, to space->block;
 * `next` are the keys that are read after it. */
static void attend_block(const Model *model, int64_t window, const Group *group, const void *keys,
                         const void *values, int64_t b, const void *next, const Space *space) {
    const int kind = (int)model->kind, paired = is_paired(kind);
    const int64_t dim = model->dim, each = model->heads / model->kv_heads, lo = b * BLOCK;
    const int64_t hi = group->end < lo + BLOCK ? group->end : lo + BLOCK;
    const int64_t n = (hi - lo + STRETCH - 1) / STRETCH * STRETCH;
    const int64_t words = paired ? dim / 2 : dim, width = sums_width(dim);
    const int64_t columns = num_columns(dim), queries = group->count * each;
    const int64_t first = first_key_of(group, window);
    const void *from[STRETCH];
    for (int64_t i = 0; i < queries; i++) {
        memset(space->scores + i * BLOCK, 0, sizeof(float) * (size_t)n);
        memset(space->block + i * width, 0, sizeof(float) * (size_t)columns);
    }
    for (int64_t k = lo; k < hi; k += STRETCH) {
        const int64_t many = k + STRETCH <= group->shared ? group->count : 1, later = k + 2 * STRETCH;
        const void *ahead = later < lo + n ? at(kind, keys, later * dim)
                                           : at(kind, values, (later - n) * dim);
        for (int64_t r = 0; r < group->count; r += many) {
            const Row *row = many == group->count ? group->longest : group->rows + r;
            locate_keys(row, first, k, kind, keys, dim, space->none, from);
            pack_keys(kind, from, dim, space->packed);
            add_products(paired, many * each, space->q + r * each * words, words, space->packed,
                         STRETCH, STRETCH, words, space->scores + r * each * BLOCK + k - lo, BLOCK,
                         ahead_of(kind, ahead));
        }
    }
    for (int64_t i = 0; i < queries; i++) {
        const Row *row = group->rows + i / each;
        const int64_t begin = first_key(row, window) - lo, end = end_of(row) - lo;
        weigh(paired, space->scores + i * BLOCK, begin < 0 ? 0 : begin < n ? begin : n,
              end < 0 ? 0 : end < n ? end : n, n, 1.0f / sqrtf((float)dim),
              space->block + i * width + columns);
    }
    for (int64_t k = lo; k < hi; k += STRETCH) {
        const int64_t many = k + STRETCH <= group->shared ? group->count : 1;
        const int64_t left = hi - k < STRETCH ? hi - k : STRETCH, at_word = (k - lo) >> paired;
        const int64_t later = k + 2 * STRETCH;
        const void *ahead = later < lo + n ? at(kind, values, later * dim)
                                           : at(kind, next, (later - n - lo) * dim);
        for (int64_t r = 0; r < group->count; r += many) {
            const Row *row = many == group->count ? group->longest : group->rows + r;
            const word *packed = at(kind, values, k * dim); /* as it is, where it can be read so */
            if (kind != FLOAT32 || dim != columns || k < first || k + STRETCH > row->text) {
                locate_keys(row, first, k, kind, values, dim, space->none, from);
                pack_values(kind, from, dim, space->packed);
                packed = space->packed;
            }
            add_products(paired, many * each, (word *)space->scores + r * each * BLOCK + at_word,
                         BLOCK, packed, columns, columns, (left + paired) >> paired,
                         space->block + r * each * width, width, ahead_of(kind, ahead));
        }
    }
}

/* Queries and keys of a thread's share of qkv [rows, heads + 2 kv, dim] are rotated, queries become
 * words; keys and values go to layer l's caches. */
static void rotate_and_store(const Model *model, int64_t l, float *qkv, int64_t rows,
                             const Row *located, const float *rotations, int t, int all) {
    const int64_t dim = model->dim, heads = model->heads, kv = model->kv_heads;
    const float *head_norm = model->layers[l].head_norm;
    Part own = part_of(rows * (heads + 2 * kv), t, all);
    for (int64_t i = own.lo; i < own.hi; i++) {
        const Row *row = located + i / (heads + 2 * kv);
        const int64_t head = i % (heads + 2 * kv);
        const Span *span = row->span;
        float *x = qkv + i * dim;
        if (head < heads + kv) {
            if (head_norm) rms_norm(x, head_norm + head * dim, model->head_eps, dim, x);
            rotate(x, rotations + row->position * dim, dim, x);
        }
        if (head < heads) {
            for (int64_t d = 0; is_paired((int)model->kind) && d < dim; d += 2)
                ((word *)x)[d / 2] = to_bfloat16(x[d]) | (word)((uint32_t)to_bfloat16(x[d + 1]) << 16);
            continue;
        }
        const int64_t place =
            l * span->layer_stride + (head - heads) * span->head_stride + row->place * dim;
        uint16_t *halves = (uint16_t *)span->cache + place;
        if (model->kind == FLOAT32)
            memcpy((float *)span->cache + place, x, sizeof(float) * (size_t)dim);
        else if (model->kind == BFLOAT16)
            for (int64_t d = 0; d < dim; d++) halves[d] = to_bfloat16(x[d]);
        else
            for (int64_t d = 0; d < dim; d++) halves[d] = to_float16(x[d]);
    }
}

/* Whether a row attends to any key of block b. */
static int sees_block(const Row *row, int64_t window, int64_t b) {
    return first_key(row, window) < (b + 1) * BLOCK && b * BLOCK < end_of(row);
}

/* The keys of a unit of the plan: of one group's head, all or those of a block. */
static const void *keys_of(const Model *model, int64_t l, const Plan *plan, int64_t unit) {
    const int64_t g = unit / plan->blocks % model->kv_heads, block = unit % plan->blocks;
    const Span *span = plan->groups[unit / plan->blocks / model->kv_heads].rows->span;
    const int64_t place = l * span->layer_stride + g * span->head_stride + block * BLOCK * model->dim;
    return at((int)model->kind, span->cache, place);
}

/* A thread's share of the groups, each with one head of keys, or of their blocks: to attended [rows,
 * heads, dim], or to the plan's sums. */
static void attend_rows(const Model *model, int64_t l, const Plan *plan, const float *qkv,
                        float *attended, const Space *space, int t, int all) {
    const int64_t dim = model->dim, heads = model->heads, kv = model->kv_heads, each = heads / kv;
    const int64_t window = model->layers[l].window, width = sums_width(dim);
    const int64_t words = is_paired((int)model->kind) ? dim / 2 : dim, columns = num_columns(dim);
    const float scale = 1.0f / sqrtf((float)dim);
    const int64_t units = plan->num_groups * kv * plan->blocks;
    const int divided = plan->blocks > 1;
    /* Blocks of a text follow one another in memory; of a prompt's rows the last have most keys. */
    const Part part = divided ? part_of(units, t, all) : (Part){t, units};
    for (int64_t unit = part.lo; unit < part.hi; unit += divided ? 1 : all) {
        const int64_t g = unit / plan->blocks % kv, own = unit % plan->blocks;
        const Group *group = plan->groups + unit / plan->blocks / kv;
        const Span *span = group->rows->span;
        const void *keys = at((int)model->kind, span->cache, l * span->layer_stride + g * span->head_stride);
        const void *values = at((int)model->kind, keys, kv * span->head_stride);
        const int64_t queries = group->count * each, r = group->rows - plan->rows;
        if (own * BLOCK >= group->end) continue;
        for (int64_t i = 0; i < queries; i++) {
            const int64_t at_query = (r + i / each) * (heads + 2 * kv) + g * each + i % each;
            memcpy(space->q + i * words, qkv + at_query * dim, sizeof(word) * (size_t)words);
            clear_sums(space->sums + i * width, columns);
        }
        int64_t b = divided ? own : first_key_of(group, window) / BLOCK;
        for (; b * BLOCK < group->end; b++) {
            const int64_t next = unit + (divided ? 1 : all);
            const void *following = at((int)model->kind, keys, (b + 1) * BLOCK * dim);
            if (divided || (b + 1) * BLOCK >= group->end)
                following = keys_of(model, l, plan, next < part.hi ? next : unit);
            attend_block(model, window, group, keys, values, b, following, space);
            for (int64_t i = 0; i < queries; i++) {
                const float *found = space->block + i * width;
                const int64_t query = (r + i / each) * heads + g * each + i % each;
                if (divided)
                    memcpy(plan->sums + (query * plan->blocks + b) * width, found,
                           sizeof(float) * (size_t)(columns + 2));
                else if (sees_block(group->rows + i / each, window, b))
                    add_block(space->sums + i * width, found, columns, scale);
            }
            if (divided) break;
        }
        for (int64_t i = 0; !divided && i < queries; i++)
            finish_sums(space->sums + i * width, dim,
                        attended + ((r + i / each) * heads + g * each + i % each) * dim);
    }
}

/* Where rows are divided: a thread's share of the queries add up their blocks → attended. */
static void add_up_blocks(const Model *model, int64_t l, const Plan *plan, int64_t rows,
                          float *attended, const Space *space, int t, int all) {
    const int64_t dim = model->dim, window = model->layers[l].window, columns = num_columns(dim);
    const float scale = 1.0f / sqrtf((float)dim);
    const Part own = part_of(rows * model->heads, t, all);
    for (int64_t query = own.lo; query < own.hi; query++) {
        const Row *row = plan->rows + query / model->heads;
        const float *blocks = plan->sums + query * plan->blocks * sums_width(dim);
        clear_sums(space->sums, columns);
        for (int64_t b = first_key(row, window) / BLOCK; sees_block(row, window, b); b++)
            add_block(space->sums, blocks + b * sums_width(dim), columns, scale);
        finish_sums(space->sums, dim, attended + query * dim);
    }
}
