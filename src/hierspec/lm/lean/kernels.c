/* A lean model's layers in one call: one parallel region, weights read once, rows kept apart.
 *
 * torch runs a layer as some twenty operations, each with its own threads to wake; for a draft of
 * one token that is most of the time. Here all threads stay together from the first layer to the
 * last and meet at barriers. Weights in 8 bits are converted to float32 as they are read; those in 4
 * are multiplied as integers, by inputs in twice 8 bits; those in 16 are bfloat16, by inputs rounded
 * to it, in pairs; those in 32 are float32. Every row of the result is summed in the same order
 * whatever the number of rows, so that a row's scores do not depend on what is computed beside it.
 *
 * Plain C with GNU vector types (gcc, clang): kernels.py compiles it for the processor at hand.
 */
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

/* As many numbers as a register holds: vectors of other sizes live in memory with gcc. */
#if defined(__AVX512F__)
#define W 16
#elif defined(__AVX__)
#define W 8
#else
#define W 4
#endif
typedef float vec __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t word __attribute__((may_alias));
#define PANEL 16
#define VECS (PANEL / W)
#define GROUP 32              /* inputs that share a step and a lowest value, in 4 bits */
#define FINE_STEPS 254        /* steps of an input's second 8 bits in one of its first */
#define PANELS_PER_REFINED 16 /* of so many panels of scores at most one is made again in 8 bits */
#define TILE_ROWS 6           /* rows of a tile: so many sums fit into the registers */
#define TILE_ROWS_4 8 /* the same in 4 bits, whose tiles have one panel: more rows gain nothing */
#define TILE_PANELS (VECS == 1 ? 4 : 1) /* panels of a tile of several rows */
#define MAX_PANELS                                                                                 \
    (8 > TILE_PANELS * VECS ? 8 : TILE_PANELS * VECS) /* of any tile, in parts of W */
#define MAX_SUMS                                                                                   \
    (VECS * (TILE_ROWS * TILE_PANELS > TILE_ROWS_4 ? TILE_ROWS * TILE_PANELS : TILE_ROWS_4))
#define MAX_QUERIES 12    /* queries that attend side by side, so many of them at most */
#define VALUES_AT_ONCE 32 /* of values, whose vectors stay in the first cache meanwhile; even */
#define INLINE static inline __attribute__((always_inline))

/* Outputs lie side by side, zeros past `out`. In 4 bits a weight is step · code + lowest. */
typedef struct {
    const void *weight;        /* 8 and 32 bits: [panels, in, PANEL]; 16: [panels, pairs, PANEL, 2];
                                  4 bits: [panels, groups, 4, PANEL, 4],
                                  of eight inputs the first four in the low halves of the bytes */
    const uint16_t *grid;      /* 4 bits: float16 [panels, groups, 2, PANEL], step and lowest;
                                  8 bits: null */
    const float *scale, *bias; /* [panels, PANEL] */
    int64_t out, in, bits;
} Matrix;

/* GROUP inputs of a row for weights in 4 bits: scale · (coarse + fine / FINE_STEPS). */
typedef struct {
    int8_t coarse[GROUP], fine[GROUP];
    float scale, sum; /* sum: Σ coarse + fine / FINE_STEPS */
} QuantizedGroup;

typedef struct {
    Matrix qkv, proj, gate, up, down;
    const float *norm, *mlp_norm; /* [hidden], with sqrt(hidden) in it */
    const float *head_norm;       /* [heads + kv_heads, dim], with sqrt(dim) in it, or null */
    int64_t window;               /* positions seen back, itself included; 0: all */
} Layer;

typedef struct {
    int64_t hidden, inner, heads, kv_heads, dim;
    float eps, head_eps; /* each added to a sum of squares */
    const Layer *layers;
} Model;

typedef struct {
    float *cache; /* one sequence's, of layer 0: [2 kv_heads, capacity, dim], keys then values */
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

/* --- threads */

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

/* A thread's part of the numbers 0 … count − 1: lo … hi − 1. */
typedef struct {
    int64_t lo, hi;
} Part;

static Part part_of(int64_t count, int thread, int threads) {
    return (Part){count * thread / threads, count * (thread + 1) / threads};
}

static int64_t num_panels(const Matrix *m) { return (m->out + PANEL - 1) / PANEL; }

/* Outputs in some panels of a matrix. */
static Part outputs_of(const Matrix *m, Part part) {
    int64_t end = part.hi * PANEL;
    return (Part){part.lo * PANEL, end < m->out ? end : m->out};
}

/* --- sums in one order */

INLINE float sum_lanes(vec x) {
    float sums[W];
    memcpy(sums, &x, sizeof sums);
    for (int width = W / 2; width; width /= 2)
        for (int i = 0; i < width; i++) sums[i] += sums[i + width];
    return sums[0];
}

INLINE vec load_int8(const int8_t *w) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)w)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)w)));
#else
    vec wide;
    for (int i = 0; i < W; i++) wide[i] = w[i];
    return wide;
#endif
}

/* Two bfloat16 numbers for each of W: weights side by side, or the same two inputs in all. */
#if defined(__AVX512BF16__)
typedef __m512i Pairs;
INLINE Pairs load_pairs(const uint32_t *w) { return _mm512_loadu_si512(w); }
INLINE Pairs broadcast_pair(uint32_t x) { return _mm512_set1_epi32((int)x); }
INLINE vec add_pair_products(vec sum, Pairs w, Pairs x) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
}
#else
typedef ivec Pairs;
INLINE Pairs load_pairs(const uint32_t *w) { return *(const ivec *)w; }
INLINE Pairs broadcast_pair(uint32_t x) { return (ivec){0} + (int32_t)x; }
INLINE vec add_pair_products(vec sum, Pairs w, Pairs x) {
    /* A bfloat16 number is the upper half of a float32. */
    const int32_t upper = (int32_t)0xffff0000;
    return sum + (vec)(w << 16) * (vec)(x << 16) + (vec)(w & upper) * (vec)(x & upper);
}
#endif

/* 4 W codes a byte, and Σ of four of them times four inputs (x, a byte each) for each of W. */
#if defined(__AVX512BW__)
typedef __m512i Bytes;
INLINE Bytes low_nibbles(const uint8_t *w) {
    return _mm512_and_si512(_mm512_loadu_si512(w), _mm512_set1_epi8(15));
}
INLINE Bytes high_nibbles(const uint8_t *w) {
    return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(w), 4), _mm512_set1_epi8(15));
}
INLINE ivec add_quad_products(ivec sum, Bytes codes, int32_t x) {
#if defined(__AVX512VNNI__)
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, codes, _mm512_set1_epi32(x));
#else
    __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi32(x));
    return sum + (ivec)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#endif
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
typedef __m256i Bytes;
INLINE Bytes low_nibbles(const uint8_t *w) {
    return _mm256_and_si256(_mm256_loadu_si256((const void *)w), _mm256_set1_epi8(15));
}
INLINE Bytes high_nibbles(const uint8_t *w) {
    __m256i shifted = _mm256_srli_epi16(_mm256_loadu_si256((const void *)w), 4);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}
INLINE ivec add_quad_products(ivec sum, Bytes codes, int32_t x) {
    __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi32(x));
    return sum + (ivec)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#else /* right, but slow: called, for inlined it takes compilers half a minute */
#define SLOW_4_BITS
typedef struct {
    uint8_t of[4 * W];
} Bytes;
static Bytes low_nibbles(const uint8_t *w) {
    Bytes codes;
    for (int i = 0; i < 4 * W; i++) codes.of[i] = w[i] & 15;
    return codes;
}
static Bytes high_nibbles(const uint8_t *w) {
    Bytes codes;
    for (int i = 0; i < 4 * W; i++) codes.of[i] = w[i] >> 4;
    return codes;
}
static __attribute__((noinline)) ivec add_quad_products(ivec sum, Bytes codes, int32_t x) {
    int8_t own[4];
    memcpy(own, &x, sizeof own);
    for (int i = 0; i < 4 * W; i++) sum[i / 4] += codes.of[i] * own[i % 4];
    return sum;
}
#endif

/* W float16 numbers in float32. */
INLINE vec load_float16(const uint16_t *x) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x));
#else
    vec wide;
    for (int i = 0; i < W; i++) {
        /* The exponent's bias differs by 112; so multiplied, subnormal numbers come out right. */
        uint32_t bits = (uint32_t)(x[i] & 0x7fff) << 13, sign = (uint32_t)(x[i] & 0x8000) << 16;
        float magnitude;
        memcpy(&magnitude, &bits, sizeof bits);
        magnitude *= 0x1p112f;
        wide[i] = sign ? -magnitude : magnitude;
    }
    return wide;
#endif
}

static int64_t num_pairs(int64_t n) { return (n + 1) / 2; }
static int64_t num_groups(int64_t n) { return (n + GROUP - 1) / GROUP; }

static float dot(const float *a, const float *b, int64_t n) {
    vec sum = {0};
    int64_t k = 0;
    for (; k + W <= n; k += W) sum += *(const vec *)(a + k) * *(const vec *)(b + k);
    float rest = sum_lanes(sum);
    for (; k < n; k++) rest += a[k] * b[k];
    return rest;
}

/* sums[i, r] += Σ w x for PANELS panels of PANEL outputs and ROWS rows x [in, ROWS], weights in 8
 * or 32 bits. A lane is an output, so that nothing is summed across lanes and all is read in the
 * order it lies in. */
INLINE void sum_whole(const int BITS, const int PANELS, const int ROWS, const Matrix *m,
                      int64_t panel, const float *x, vec *sums) {
    const int64_t n = m->in;
    for (int64_t k = 0; k < n; k++) {
        vec w[MAX_PANELS];
#pragma GCC unroll 16
        for (int i = 0; i < PANELS * VECS; i++) {
            const int64_t at = ((panel + i / VECS) * n + k) * PANEL + i % VECS * W;
            w[i] = BITS == 8 ? load_int8((const int8_t *)m->weight + at)
                             : *(const vec *)((const float *)m->weight + at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
            for (int i = 0; i < PANELS * VECS; i++) sums[i * ROWS + r] += w[i] * x[k * ROWS + r];
    }
}

/* The same in bfloat16, of rows packed by `pack_bfloat16`. */
INLINE void sum_16(const int PANELS, const int ROWS, const Matrix *m, int64_t panel, const float *x,
                   vec *sums) {
    const int64_t n = num_pairs(m->in);
    const uint32_t *weight = m->weight, *row = (const uint32_t *)x;
    for (int64_t k = 0; k < n; k++) {
        Pairs w[MAX_PANELS];
#pragma GCC unroll 16
        for (int i = 0; i < PANELS * VECS; i++)
            w[i] = load_pairs(weight + ((panel + i / VECS) * n + k) * PANEL + i % VECS * W);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Pairs inputs = broadcast_pair(row[k * ROWS + r]);
#pragma GCC unroll 16
            for (int i = 0; i < PANELS * VECS; i++)
                sums[i * ROWS + r] = add_pair_products(sums[i * ROWS + r], w[i], inputs);
        }
    }
}

/* The same in 4 bits, of rows packed by `quantize`. */
INLINE void sum_4(const int PANELS, const int ROWS, const Matrix *m, int64_t panel, const float *x,
                  vec *sums) {
    const int64_t n = num_groups(m->in);
    for (int64_t g = 0; g < n; g++) {
#pragma GCC unroll 16
        for (int i = 0; i < PANELS * VECS; i++) {
            const int64_t at = (panel + i / VECS) * n + g;
            const uint8_t *weight = (const uint8_t *)m->weight + at * 16 * PANEL + i % VECS * 4 * W;
            const uint16_t *grid = m->grid + at * 2 * PANEL + i % VECS * W;
            vec step = load_float16(grid), lowest = load_float16(grid + PANEL);
            Bytes first[4], second[4];
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                first[q] = low_nibbles(weight + q * 4 * PANEL);
                second[q] = high_nibbles(weight + q * 4 * PANEL);
            }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const QuantizedGroup *row = (const QuantizedGroup *)x + r * n + g;
                /* Copied first, they would be stored and waited for. */
                const word *inputs[2] = {(const word *)row->coarse, (const word *)row->fine};
                ivec coarse = {0}, fine = {0};
#pragma GCC unroll 4
                for (int q = 0; q < 4; q++) {
                    coarse = add_quad_products(coarse, first[q], inputs[0][2 * q]);
                    fine = add_quad_products(fine, first[q], inputs[1][2 * q]);
                    coarse = add_quad_products(coarse, second[q], inputs[0][2 * q + 1]);
                    fine = add_quad_products(fine, second[q], inputs[1][2 * q + 1]);
                }
                vec both = __builtin_convertvector(coarse, vec) +
                           __builtin_convertvector(fine, vec) * (1.0f / FINE_STEPS);
                sums[i * ROWS + r] += (both * step + lowest * row->sum) * row->scale;
            }
        }
    }
}

/* y[r][o] = scale · Σ w x + bias, of PANELS panels and ROWS rows. */
INLINE void tile(const int BITS, const int PANELS, const int ROWS, const Matrix *m, int64_t panel,
                 const float *x, float *y, int64_t y_stride) {
    vec sums[MAX_SUMS];
#pragma GCC unroll 16
    for (int i = 0; i < PANELS * ROWS * VECS; i++) sums[i] = (vec){0};
    if (BITS == 4)
        sum_4(PANELS, ROWS, m, panel, x, sums);
    else if (BITS == 16)
        sum_16(PANELS, ROWS, m, panel, x, sums);
    else
        sum_whole(BITS, PANELS, ROWS, m, panel, x, sums);
#pragma GCC unroll 16
    for (int i = 0; i < PANELS * VECS; i++) {
        int64_t o = panel * PANEL + i * W;
        vec scale = *(const vec *)(m->scale + o), bias = *(const vec *)(m->bias + o);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            vec sum = sums[i * ROWS + r] * scale + bias;
            float *to = y + r * y_stride + i * W;
            if (o + W <= m->out)
                *(vec *)to = sum;
            else
                for (int64_t j = 0; o + j < m->out; j++) to[j] = sum[j];
        }
    }
}

/* Pack rows of x [rows, n] in the order in which tiles in 8 bits read them: blocks of TILE_ROWS
 * rows and a rest, each [n, rows of it]. */
static void pack_float32(const float *x, int64_t rows, int64_t n, float *packed) {
    for (int64_t block; rows; rows -= block, x += block * n, packed += block * n) {
        block = rows < TILE_ROWS ? rows : TILE_ROWS;
        for (int64_t r = 0; r < block; r++)
            for (int64_t k = 0; k < n; k++) packed[k * block + r] = x[r * n + k];
    }
}

/* The same for tiles in bfloat16: each block [pairs, rows of it], rounded to nearest. */
static void pack_bfloat16(const float *x, int64_t rows, int64_t n, uint32_t *packed) {
    const int64_t half = num_pairs(n);
    for (int64_t block; rows; rows -= block, x += block * n, packed += block * half) {
        block = rows < TILE_ROWS ? rows : TILE_ROWS;
        for (int64_t r = 0; r < block; r++)
            for (int64_t k = 0; k < n; k += 2 * W) {
                const int64_t some = n - k < 2 * W ? n - k : 2 * W;
                uint32_t bits[2 * W] = {0};
                memcpy(bits, x + r * n + k, sizeof(float) * (size_t)some);
                for (int i = 0; i < 2 * W; i++)
                    bits[i] = (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16;
                uint32_t *to = packed + k / 2 * block + r;
                for (int64_t i = 0; i < num_pairs(some); i++)
                    to[i * block] = bits[2 * i] | bits[2 * i + 1] << 16;
            }
    }
}

/* Rows of x [rows, n] for tiles in 4 bits: [rows, groups], each by its own largest number. */
static void quantize(const float *x, int64_t rows, int64_t n, QuantizedGroup *to) {
    const float round = 12582912.0f; /* 1.5 · 2^23: added and taken away, it leaves an integer */
    for (int64_t r = 0; r < rows; r++, x += n)
        for (int64_t start = 0; start < n; start += GROUP, to++) {
            float from[GROUP] = {0}, most = 0;
            int32_t codes[2][GROUP], sums[2] = {0, 0};
            memcpy(from, x + start,
                   sizeof(float) * (size_t)(n - start < GROUP ? n - start : GROUP));
            for (int i = 0; i < GROUP; i++) {
                float size = fabsf(from[i]);
                most = size > most ? size : most;
            }
            float inverse = most > 0 ? 127.0f / most : 0.0f;
            for (int i = 0; i < GROUP; i += W) {
                vec scaled = *(const vec *)(from + i) * inverse;
                vec whole = scaled + round - round;
                vec rest = (scaled - whole) * (float)FINE_STEPS + round - round;
                *(ivec *)(codes[0] + i) = __builtin_convertvector(whole, ivec);
                *(ivec *)(codes[1] + i) = __builtin_convertvector(rest, ivec);
            }
            for (int i = 0; i < GROUP; i++) {
                to->coarse[i] = (int8_t)codes[0][i], to->fine[i] = (int8_t)codes[1][i];
                sums[0] += codes[0][i], sums[1] += codes[1][i];
            }
            to->scale = most / 127.0f;
            to->sum = (float)sums[0] + (float)sums[1] * (1.0f / FINE_STEPS);
        }
}

/* Pack rows of x as this matrix's tiles read them, `packed_floats` floats a row. */
static void pack(const Matrix *m, const float *x, int64_t rows, float *packed) {
    if (m->grid)
        quantize(x, rows, m->in, (QuantizedGroup *)packed);
    else if (m->bits == 16)
        pack_bfloat16(x, rows, m->in, (uint32_t *)packed);
    else
        pack_float32(x, rows, m->in, packed);
}

static int64_t packed_floats(const Matrix *m) {
    if (m->grid) return num_groups(m->in) * (int64_t)(sizeof(QuantizedGroup) / sizeof(float));
    return m->bits == 16 ? num_pairs(m->in) : m->in;
}

/* PANELS panels of all rows, tile by tile. */
INLINE void panel_rows(const int BITS, const int PANELS, const Matrix *m, int64_t panel,
                       const float *x, int64_t rows, float *y, int64_t y_stride) {
    const int block = BITS == 4 ? TILE_ROWS_4 : TILE_ROWS;
    for (; rows >= block; rows -= block, x += block * packed_floats(m), y += block * y_stride)
        tile(BITS, PANELS, block, m, panel, x, y, y_stride);
    switch (rows) { /* past TILE_ROWS in 4 bits alone */
    case 7: tile(BITS, PANELS, BITS == 4 ? 7 : 1, m, panel, x, y, y_stride); break;
    case 6: tile(BITS, PANELS, BITS == 4 ? 6 : 1, m, panel, x, y, y_stride); break;
    case 5: tile(BITS, PANELS, 5, m, panel, x, y, y_stride); break;
    case 4: tile(BITS, PANELS, 4, m, panel, x, y, y_stride); break;
    case 3: tile(BITS, PANELS, 3, m, panel, x, y, y_stride); break;
    case 2: tile(BITS, PANELS, 2, m, panel, x, y, y_stride); break;
    case 1: tile(BITS, PANELS, 1, m, panel, x, y, y_stride); break;
    }
}

/* Those panels, for one row several at a time (MOST): a sum alone would wait for itself. */
INLINE void panels_rows(const int BITS, const int MOST, const Matrix *m, Part own, const float *x,
                        int64_t rows, float *y, int64_t y_stride) {
    int64_t p = own.lo;
    if (rows == 1)
        for (; p + MOST <= own.hi; p += MOST, y += MOST * PANEL)
            tile(BITS, MOST, 1, m, p, x, y, y_stride);
    /* A row's inputs are read once for the panels of a tile; in 8 bits the sums of a whole block
     * leave no registers for four panels, in 4 the codes of one leave none for another's. */
    const int several = BITS == 4 ? 1 : TILE_PANELS == 1 || BITS > 8 ? TILE_PANELS : 2;
    if (BITS == 8 && rows < TILE_ROWS)
        for (; p + TILE_PANELS <= own.hi; p += TILE_PANELS, y += TILE_PANELS * PANEL)
            panel_rows(BITS, TILE_PANELS, m, p, x, rows, y, y_stride);
    for (; p + several <= own.hi; p += several, y += several * PANEL)
        panel_rows(BITS, several, m, p, x, rows, y, y_stride);
    for (; p < own.hi; p++, y += PANEL) panel_rows(BITS, 1, m, p, x, rows, y, y_stride);
}

/* Those panels of m · x for all rows x, in blocks; y points at the first of their outputs, of row 0.
 * Weights come from memory once, whatever the rows. */
static void product(const Matrix *m, Part own, const float *x, int64_t rows, float *y,
                    int64_t y_stride) {
    if (m->grid)
        panels_rows(4, 1, m, own, x, rows, y, y_stride);
    else if (m->bits == 16)
        panels_rows(16, 8 / VECS, m, own, x, rows, y, y_stride);
    else if (m->bits == 32)
        panels_rows(32, 8 / VECS, m, own, x, rows, y, y_stride);
    else
        panels_rows(8, 8 / VECS, m, own, x, rows, y, y_stride);
}

static void rms_norm(const float *x, const float *weight, float eps, int64_t n, float *y) {
    float inverse = 1.0f / sqrtf(dot(x, x, n) + eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * inverse * weight[i];
}

/* e^x for x ≤ 88, to about 1e-7: 2^n · a polynomial on ± ln 2 / 2. */
INLINE vec exponential(vec x) {
    ivec low = x < -87.0f;
    x = (vec)(((ivec)x & ~low) | ((ivec)((vec){0} - 87.0f) & low));
    vec scaled = x * 1.44269504f;
    ivec sign = (ivec)scaled & INT32_MIN;
    ivec n = __builtin_convertvector(scaled + (vec)((ivec)((vec){0} + 0.5f) | sign), ivec);
    vec whole = __builtin_convertvector(n, vec);
    vec r = x - whole * 0.693359375f;
    r = r + whole * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((n + 127) << 23);
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

/* --- attention */

static void rotate(const float *x, const float *rotation, int64_t dim, float *y) {
    for (int64_t j = 0; j < dim; j += 2) {
        float a = x[j], b = x[j + 1];
        y[j] = a * rotation[j] - b * rotation[j + 1];
        y[j + 1] = a * rotation[j + 1] + b * rotation[j];
    }
}

/* Lane i: the sum of the lanes of v[i]. */
INLINE vec sum_lanes_of_each(const vec *v) {
    vec sums;
#if defined(__AVX512F__)
    __m512 quads[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512 halves[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __m512 a = (__m512)v[4 * j + 2 * i], b = (__m512)v[4 * j + 2 * i + 1];
            halves[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        }
        __m512d a = _mm512_castps_pd(halves[0]), b = _mm512_castps_pd(halves[1]);
        quads[j] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 pair[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        __m512 a = quads[2 * j], b = quads[2 * j + 1];
        pair[j] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    sums = (vec)_mm512_add_ps(_mm512_shuffle_f32x4(pair[0], pair[1], 0x88),
                              _mm512_shuffle_f32x4(pair[0], pair[1], 0xdd));
#else
    for (int i = 0; i < W; i++) sums[i] = sum_lanes(v[i]);
#endif
    return sums;
}

/* Keys, and their values, that lie side by side. */
typedef struct {
    const float *keys, *values;
    int64_t n;
} Run;

/* scores[i] = q · keys[i], n of them. */
static void score_keys(const float *q, const float *keys, int64_t n, int64_t dim, float *scores) {
    int64_t i = 0;
    for (; i + W <= n && dim % W == 0; i += W, keys += W * dim) {
        vec sums[W];
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) sums[j] = (vec){0};
        for (int64_t d = 0; d < dim; d += W) {
            const vec own = *(const vec *)(q + d);
#pragma GCC unroll 16
            for (int j = 0; j < W; j++) sums[j] += own * *(const vec *)(keys + j * dim + d);
        }
        *(vec *)(scores + i) = sum_lanes_of_each(sums);
    }
    for (; i < n; i++, keys += dim) scores[i] = dot(q, keys, dim);
}

/* even[0 … MANY · W − 1] += Σ scores[i] values[i] of even i, `odd` of the others, except that the last
 * of an odd number of them is even's. */
INLINE void add_values_tile(const int MANY, const float *scores, const float *values, int64_t n,
                            int64_t dim, float *even, float *odd) {
    vec sums[2][4];
#pragma GCC unroll 4
    for (int j = 0; j < MANY; j++)
        sums[0][j] = *(vec *)(even + j * W), sums[1][j] = *(vec *)(odd + j * W);
    int64_t i = 0;
    for (; i + 2 <= n; i += 2, values += 2 * dim)
#pragma GCC unroll 4
        for (int j = 0; j < MANY; j++) {
            sums[0][j] += scores[i] * *(const vec *)(values + j * W);
            sums[1][j] += scores[i + 1] * *(const vec *)(values + dim + j * W);
        }
    if (i < n)
#pragma GCC unroll 4
        for (int j = 0; j < MANY; j++) sums[0][j] += scores[i] * *(const vec *)(values + j * W);
#pragma GCC unroll 4
    for (int j = 0; j < MANY; j++)
        *(vec *)(even + j * W) = sums[0][j], *(vec *)(odd + j * W) = sums[1][j];
}

/* The same in all dimensions; what is left past whole vectors is added up in `even` alone. */
static void add_values(const float *scores, const float *values, int64_t n, int64_t dim,
                       float *even, float *odd) {
    int64_t d = 0;
    for (; d + 4 * W <= dim; d += 4 * W)
        add_values_tile(4, scores, values + d, n, dim, even + d, odd + d);
    for (; d + W <= dim; d += W) add_values_tile(1, scores, values + d, n, dim, even + d, odd + d);
    for (; d < dim; d++)
        for (int64_t i = 0; i < n; i++) even[d] += scores[i] * values[i * dim + d];
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
static void prefetch(const float *x, int64_t i, int64_t all, int64_t n, int64_t dim) {
    const int64_t end = (i + n < all ? i + n : all) * dim;
    for (int64_t at = i * dim; at < end; at += 16) __builtin_prefetch(x + at);
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
        prefetch(runs[0].keys, i + 2 * W, max_length, W, dim);
        for (const Query *query = queries; query < end; query++)
            if (i < query->n)
                score_keys(query->q, runs[0].keys + i * dim, query->n - i < W ? query->n - i : W,
                           dim, query->scores + i);
    }
    for (const Query *query = queries; query < end; query++) {
        score_keys(query->q, runs[1].keys, runs[1].n, dim, query->scores + query->n);
        inverse[query - queries] = softmax_weights(query->scores, query->n + runs[1].n, scale);
        memset(query->even, 0, sizeof(float) * (size_t)dim);
        memset(query->odd, 0, sizeof(float) * (size_t)dim);
    }
    for (int64_t i = 0; i < max_length; i += VALUES_AT_ONCE) {
        prefetch(runs[0].values, i + VALUES_AT_ONCE, max_length, VALUES_AT_ONCE, dim);
        for (const Query *query = queries; query < end; query++)
            if (i < query->n)
                add_values(query->scores + i, runs[0].values + i * dim,
                           query->n - i < VALUES_AT_ONCE ? query->n - i : VALUES_AT_ONCE, dim,
                           query->even, query->odd);
    }
    for (const Query *query = queries; query < end; query++) {
        add_values(query->scores + query->n, runs[1].values, runs[1].n, dim, query->even,
                   query->odd);
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
static void find_runs(const Row *row, int64_t first, const float *keys, const float *values,
                      int64_t dim, float *buffer, Run *runs) {
    int64_t whole = row->text - first;
    if (row->length) whole = whole > 0 ? whole / W * W : 0;
    runs[0] = (Run){keys + first * dim, values + first * dim, whole};
    const int64_t next = first + whole, rest = row->text + row->length - next;
    for (int64_t i = 0; i < rest; i++) {
        const int64_t at = next + i < row->text ? next + i : row->path[next + i - row->text];
        memcpy(buffer + i * dim, keys + at * dim, sizeof(float) * (size_t)dim);
        memcpy(buffer + (rest + i) * dim, values + at * dim, sizeof(float) * (size_t)dim);
    }
    runs[1] = (Run){buffer, buffer + rest * dim, rest};
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
        float *place =
            span->cache + l * span->layer_stride + g * span->head_stride + row->place * dim;
        if (g >= kv) {
            memcpy(place, source, sizeof(float) * (size_t)dim);
        } else {
            if (head_norm)
                rms_norm(source, head_norm + (heads + g) * dim, model->head_eps, dim, source);
            rotate(source, rotations + row->position * dim, dim, place);
        }
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
            const float *keys = span->cache + l * span->layer_stride + g * span->head_stride;
            while (i < end) {
                const Row *row = located + start + i / each;
                const int64_t first = first_key(row, layer->window);
                Run runs[2];
                find_runs(row, first, keys, keys + kv * span->head_stride, dim, space, runs);
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

/* h += those outputs of m · x; `buffer` holds the product. */
static void add_product(const Matrix *m, Part own, const float *x, int64_t rows, float *buffer,
                        float *h) {
    Part columns = outputs_of(m, own);
    int64_t width = columns.hi - columns.lo;
    product(m, own, x, rows, buffer, width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < width; o++) h[r * m->out + columns.lo + o] += buffer[r * width + o];
}

/* --- what Python calls */

/* Layers lo … hi − 1 on h [rows, hidden], in place. `rotations` [positions, dim]: cos, sin of a
 * pair side by side. Returns 0, or −1 where there is no memory. */
int hierspec_layers(const Model *model, int64_t lo, int64_t hi, float *h, int64_t rows,
                    const float *rotations, const Span *spans, int64_t num_spans, int threads) {
    const int64_t d = model->hidden, inner = model->inner, dim = model->dim;
    const int64_t heads = model->heads, kv = model->kv_heads, width = (heads + 2 * kv) * dim;
    const int64_t max_length = padded_length(spans, num_spans);
    /* Shared: products and what is attended; each thread's own: rows, queries. */
    int64_t widest = d > inner ? d : inner;
    if (heads * dim > widest) widest = heads * dim;
    widest = num_groups(widest) * GROUP; /* a group of 4-bit weights takes whole inputs */
    int64_t common = rows * (width + heads * dim + 2 * inner);
    Row *located = locate_rows(spans, num_spans, rows);
    const int64_t each =
        rows * (d + widest) + query_floats(dim, max_length) + copied_floats(located, rows, dim);
    float *memory = malloc(sizeof(float) * (size_t)(common + threads * each));
    if (!memory || !located) {
        free(memory);
        free(located);
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
        float *x = memory + common + t * each, *packed = x + rows * d;
        float *queries = packed + rows * widest;
        for (int64_t l = lo; l < hi; l++) {
            const Layer *layer = model->layers + l;
            for (int64_t r = 0; r < rows; r++)
                rms_norm(h + r * d, layer->norm, model->eps, d, x + r * d);
            pack(&layer->qkv, x, rows, packed);
            Part own = part_of(num_panels(&layer->qkv), t, all);
            product(&layer->qkv, own, packed, rows, qkv + own.lo * PANEL, width);
            barrier_wait(&barrier);

            store_keys_values(model, l, qkv, rows, located, rotations, t, all);
            barrier_wait(&barrier);
            attend_rows(model, l, qkv, rows, located, rotations, queries, max_length, attended, t,
                        all);
            barrier_wait(&barrier);

            pack(&layer->proj, attended, rows, packed);
            add_product(&layer->proj, part_of(num_panels(&layer->proj), t, all), packed, rows, x,
                        h);
            barrier_wait(&barrier);

            for (int64_t r = 0; r < rows; r++)
                rms_norm(h + r * d, layer->mlp_norm, model->eps, d, x + r * d);
            pack(&layer->gate, x, rows, packed);
            own = part_of(num_panels(&layer->gate), t, all);
            Part columns = outputs_of(&layer->gate, own);
            product(&layer->gate, own, packed, rows, gate + columns.lo, inner);
            product(&layer->up, own, packed, rows, up + columns.lo, inner);
            for (int64_t r = 0; r < rows; r++)
                swiglu(gate + r * inner + columns.lo, up + r * inner + columns.lo,
                       columns.hi - columns.lo);
            barrier_wait(&barrier);

            pack(&layer->down, gate, rows, packed);
            add_product(&layer->down, part_of(num_panels(&layer->down), t, all), packed, rows, x,
                        h);
            barrier_wait(&barrier);
        }
    }
    free(memory);
    free(located);
    return 0;
}

/* The attention of layer l alone: qkv [rows, heads + 2 kv, dim], of which keys and values go to the
 * caches → attended [rows, heads, dim]. Of the model's layers it reads head_norm and window. Returns
 * 0, or −1 where there is no memory. */
int hierspec_attention(const Model *model, int64_t l, float *qkv, int64_t rows,
                       const float *rotations, const Span *spans, int64_t num_spans,
                       float *attended, int threads) {
    Row *located = locate_rows(spans, num_spans, rows);
    const int64_t max_length = padded_length(spans, num_spans);
    const int64_t each =
        query_floats(model->dim, max_length) + copied_floats(located, rows, model->dim);
    float *memory = malloc(sizeof(float) * (size_t)(threads * each));
    if (memory && located) {
#pragma omp parallel num_threads(threads)
        {
            const int t = omp_get_thread_num(), all = omp_get_num_threads();
            store_keys_values(model, l, qkv, rows, located, rotations, t, all);
#pragma omp barrier
            attend_rows(model, l, qkv, rows, located, rotations, memory + t * each, max_length,
                        attended, t, all);
        }
    }
    const int failed = memory && located ? 0 : -1;
    free(memory);
    free(located);
    return failed;
}

/* Final norm and output matrix: h [rows, hidden] → scores [rows, out]. */
int hierspec_head(const Matrix *matrix, const float *norm, float eps, const float *h, int64_t rows,
                  float *scores, int threads) {
    const int64_t d = matrix->in;
    float *x = malloc(sizeof(float) * (size_t)(rows * (d + num_groups(d) * GROUP)));
    float *packed = x + rows * d;
    if (!x) return -1;
    for (int64_t r = 0; r < rows; r++) rms_norm(h + r * d, norm, eps, d, x + r * d);
    pack(matrix, x, rows, packed);
#pragma omp parallel num_threads(threads)
    {
        Part own = part_of(num_panels(matrix), omp_get_thread_num(), omp_get_num_threads());
        product(matrix, own, packed, rows, scores + own.lo * PANEL, matrix->out);
    }
    free(x);
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

/* The same in 4 bits, and then in 8 for the panels whose best score comes near the row's best in 4:
 * of a large vocabulary few do, and half is read. Where more do, as of a row that nobody could guess,
 * only the nearest count. */
int hierspec_two_heads(const Matrix *coarse, const Matrix *fine, float near, const float *norm,
                       float eps, const float *h, int64_t rows, float *scores, int threads) {
    const int64_t d = fine->in, out = fine->out, n = num_panels(fine);
    float *x = malloc(sizeof(float) * (size_t)(rows * (d + num_groups(d) * GROUP + n)));
    if (!x) return -1;
    float *packed = x + rows * d, *tops = packed + rows * num_groups(d) * GROUP; /* [rows, n] */
    for (int64_t r = 0; r < rows; r++) rms_norm(h + r * d, norm, eps, d, x + r * d);
    pack(coarse, x, rows, packed);
#pragma omp parallel num_threads(threads)
    {
        Part own = part_of(n, omp_get_thread_num(), omp_get_num_threads());
        product(coarse, own, packed, rows, scores + own.lo * PANEL, out);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t p = own.lo; p < own.hi; p++) {
                int64_t end = (p + 1) * PANEL < out ? (p + 1) * PANEL : out;
                float top = -INFINITY;
                for (int64_t o = p * PANEL; o < end; o++)
                    top = scores[r * out + o] > top ? scores[r * out + o] : top;
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
                    panel_rows(8, 1, fine, p, x + r * d, 1, scores + r * out + p * PANEL, out);
        }
    }
    free(x);
    return 0;
}

/* Whether products in 4 bits are made with the processor's own sums of bytes. */
int hierspec_fast_in_4_bits(void) {
#ifdef SLOW_4_BITS
    return 0;
#else
    return 1;
#endif
}
