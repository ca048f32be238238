/* A matrix, and rows of inputs packed as its products read them. products.c has the products. */
#include "vectors.h"
/* Whether several rows, and of bfloat16 all, are multiplied in AMX's tiles: by the option -DAMX. */
#if !defined(AMX) || W < 16 || SHORT_PRODUCTS
#undef AMX
#define AMX 0
#else
#include "amx.h"
#endif

/* Numbers in which two inputs are packed for products of bfloat16. */
#define PAIR_PARTS (PAIR_PRODUCTS || AMX ? 1 : 2)

#define PANEL 16
#define VECS (PANEL / W)
#define GROUP 32       /* inputs of a block */
/* Of a whole number for an input, in 16 bits and in 8: its upper 8 bits are then at most 127. */
#define MOST_INPUT 32512
#define MOST_NARROW_INPUT 127

/* As matrices.py names and packs them. */
typedef enum {
    F32,
    F16,
    BF16,
    Q8_0,   /* 8 bits; a step in float16 */
    Q4_0,   /* 4 bits */
    Q5_0,   /* 5 bits */
    Q4_1,   /* 4 bits; a step and a lowest value in float16 */
    Q5_1,   /* 5 bits */
    Q6_1,   /* 6 bits */
    Q2_K,   /* 2 bits; steps and lowest values in 4 bits for 16 inputs */
    Q3_K,   /* 3 bits; steps in 6 bits for 16 inputs */
    Q4_K,   /* 4 bits; steps and lowest values in 6 bits for 32 inputs */
    Q5_K,   /* 5 bits */
    Q6_K,   /* 6 bits; steps in 8 bits for 16 inputs */
    IQ4_NL, /* one of sixteen numbers; a step in float16 */
    MXFP4,  /* one of sixteen numbers; a step in bfloat16 */
} Format;

/* The numbers lo … hi − 1. */
typedef struct {
    int64_t lo, hi;
} Part;

typedef struct Matrix {
    const uint8_t *panels;
    const float *bias; /* [panels, PANEL], or null */
    int64_t out, in, format;
    int64_t narrow; /* whether codes are multiplied by inputs in 8 bits */
    int64_t panel_bytes;
    /* Panels `own` of m · x for all rows x, packed by `pack`; y [rows, stride] points at the first of
     * their outputs. */
    void (*multiply)(const struct Matrix *m, Part own, const float *x, int64_t rows, float *y,
                     int64_t stride);
    /* The weights of the outputs `ids` → y [num, in]. */
    void (*rows)(const struct Matrix *m, const int64_t *ids, int64_t num, float *y);
} Matrix;

/* GROUP inputs of a row: scale · (256 upper + lower), in 8 bits `lower` alone; or in whole numbers of 16
 * bits, of each four the first, the third, the second and the fourth. Of each half and of all: their sum,
 * and −128 times that of the whole numbers. */
typedef struct {
#if SHORT_PRODUCTS
    int16_t whole[GROUP];
#else
    int8_t upper[GROUP];
#endif
    int8_t lower[GROUP];
    float scale, sums[3];
    int32_t offsets[3];
} Inputs;

static int64_t num_panels(const Matrix *m) { return (m->out + PANEL - 1) / PANEL; }
static int64_t num_pairs(int64_t n) { return (n + 1) / 2; }
static int64_t num_groups(int64_t n) { return (n + GROUP - 1) / GROUP; }

/* How rows of x are packed for a matrix; codes in two ways. */
typedef enum { FLOATS, PAIRS, CODES, NARROW_CODES } Kind;
INLINE int kind_of(const int f) { return f <= F16 ? FLOATS : f == BF16 ? PAIRS : CODES; }
static int inputs_of(const Matrix *m) {
    const int kind = kind_of((int)m->format);
    return kind == CODES && m->narrow ? NARROW_CODES : kind;
}
/* Rows go through a panel in tiles, of about one size, whose sums fit into the registers: how many are
 * in the first of them. Fewer compile sooner. */
#ifndef MOST_ROWS
#define MOST_ROWS 24
#endif
INLINE int most_rows(const int kind) {
    const int fit = kind >= CODES ? 8 : AMX && kind == PAIRS ? 1 : VECS == 1 ? 24 : 6;
    return MOST_ROWS < fit ? MOST_ROWS : fit;
}
static int64_t tile_rows(const int kind, int64_t rows) {
    const int64_t tiles = (rows + most_rows(kind) - 1) / most_rows(kind);
    return (rows + tiles - 1) / tiles;
}
static int64_t num_steps_in(const int kind, int64_t in) {
    if (AMX && kind == PAIRS) return num_groups(in) * (GROUP / 2); /* rows of an AMX tile */
    return kind >= CODES ? num_groups(in) : kind == PAIRS ? num_pairs(in) : in;
}
/* Floats of a packed row. */
static int64_t packed_floats(const int kind, int64_t in) {
    const int64_t n = num_steps_in(kind, in);
    if (kind == PAIRS) return n * PAIR_PARTS;
    return kind >= CODES ? n * (int64_t)(sizeof(Inputs) / sizeof(float)) : n;
}

/* Rows of x [rows, n] tile by tile, each [n, rows of it]. */
static void pack_floats(const float *x, int64_t rows, int64_t n, float *packed) {
    for (int64_t tile; rows; rows -= tile, x += tile * n, packed += tile * n) {
        tile = tile_rows(FLOATS, rows);
        for (int64_t r = 0; r < tile; r++)
            for (int64_t k = 0; k < n; k++) packed[k * tile + r] = x[r * n + k];
    }
}

/* The same in bfloat16, rounded to nearest: each tile [pairs, PAIR_PARTS, rows of it], a pair in one
 * number or each of it in a float. */
static void pack_pairs(const float *x, int64_t rows, int64_t n, uint32_t *packed) {
    const int64_t each = packed_floats(PAIRS, n);
    for (int64_t tile; rows; rows -= tile, x += tile * n, packed += tile * each) {
        tile = tile_rows(PAIRS, rows);
        for (int64_t r = 0; r < tile; r++)
            for (int64_t k = 0; k < n; k += 2 * W) {
                const int64_t some = n - k < 2 * W ? n - k : 2 * W;
                float last[2 * W] = {0};
                const float *from = x + r * n + k;
                if (some < 2 * W) from = memcpy(last, from, sizeof(float) * (size_t)some);
                uint32_t bits[2 * W];
                for (int i = 0; i < 2 * W; i++) {
                    const uint32_t own = ((const uword *)from)[i];
                    bits[i] = (own + 0x7fff + (own >> 16 & 1)) >> 16;
                }
                uint32_t *to = packed + k / 2 * PAIR_PARTS * tile + r;
                for (int64_t i = 0; i < (AMX ? W : num_pairs(some)); i++)
#if PAIR_PARTS == 1
                    to[i * tile] = bits[2 * i] | bits[2 * i + 1] << 16;
#else
                    for (int part = 0; part < 2; part++)
                        to[(2 * i + part) * tile] = bits[2 * i + part] << 16;
#endif
            }
    }
}

/* Rows of x [rows, n] in whole numbers up to `limit`: [rows, groups], each by its own largest number.
 * Loops are over whole numbers wherever something is added up, so that the compiler may do so in any order. */
static void pack_codes(const float *x, int64_t rows, int64_t n, float limit, Inputs *to) {
    const float round = 12582912.0f; /* 1.5 · 2^23: added, it leaves an integer in the lower bits */
    for (int64_t r = 0; r < rows; r++, x += n)
        for (int64_t start = 0; start < n; start += GROUP, to++) {
            float last[GROUP], most;
            int32_t codes[GROUP];
            const float *from = x + start; /* a copy would be waited for */
            if (n - start < GROUP) {
                for (int i = 0; i < GROUP; i++) last[i] = start + i < n ? from[i] : 0.0f;
                from = last;
            }
            /* Sizes of numbers are in the order of their bits. */
            int32_t most_bits = 0;
            for (int i = 0; i < GROUP; i++) {
                const int32_t size = ((const word *)from)[i] & INT32_MAX;
                most_bits = size > most_bits ? size : most_bits;
            }
            memcpy(&most, &most_bits, sizeof most);
            /* What is smaller than that is nothing; its inverse might be infinite. */
            const float inverse = most > 1e-30f ? limit / most : 0.0f;
            for (int i = 0; i < GROUP; i += W)
                *(ivec *)(codes + i) =
                    (ivec)(*(const vec *)(from + i) * inverse + round) - (ivec)all_of(round);
            for (int i = 0; i < GROUP; i++) {
#if !SHORT_PRODUCTS
                to->upper[i] = (int8_t)((codes[i] + 128) >> 8);
#endif
                to->lower[i] = (int8_t)codes[i]; /* what is left: −128 … 127 */
            }
#if SHORT_PRODUCTS
            for (int i = 0; i < GROUP; i += 2 * W) store_shorts(codes + i, to->whole + i);
#endif
            to->scale = most / limit;
            int32_t sums[3];
            for (int half = 0; half < 2; half++) {
                int32_t sum = 0;
#pragma GCC unroll 1
                for (int i = 0; i < GROUP / 2; i++) sum += codes[half * (GROUP / 2) + i];
                sums[half] = sum;
            }
            sums[2] = sums[0] + sums[1];
            for (int i = 0; i < 3; i++)
                to->sums[i] = to->scale * (float)sums[i], to->offsets[i] = -128 * sums[i];
        }
}

/* Pack rows of x [rows, in] as products read them, `packed_floats` each. */
static void pack(const int kind, int64_t in, const float *x, int64_t rows, float *packed) {
    if (kind >= CODES)
        pack_codes(x, rows, in, kind == CODES ? MOST_INPUT : MOST_NARROW_INPUT, (Inputs *)packed);
    else if (kind == PAIRS)
        pack_pairs(x, rows, in, (uint32_t *)packed);
    else
        pack_floats(x, rows, in, packed);
}
