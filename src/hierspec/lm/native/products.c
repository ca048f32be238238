/* Products with matrices in the bits they are stored in.
 *
 * Sixteen outputs are a panel, 32 inputs of it a block; the blocks of a panel follow one another, each
 * with all that is needed to read it. In formats of less than 16 bits a weight is a code, and
 *     weight = step · code + lowest
 * with a step and a lowest value of each output for 32 or 16 inputs. Codes are multiplied as bytes, by
 * inputs in twice 8 bits for each 32; bfloat16 weights by inputs rounded to it, in pairs.
 *
 * A lane is an output, so that nothing is summed across lanes. Every row is summed in the order of its
 * inputs, whatever the number of rows: a row's outputs do not depend on what is computed beside it.
 * Weights come from memory once: all rows go through a stretch of inputs before the next is read.
 */
#include "matrix.h"

#define SUPER 256 /* inputs that share the unit of their steps, in formats _K */
#define QUADS 8   /* of inputs in a block */

INLINE int low_bits(const int f) { return f == Q8_0 ? 8 : f == Q2_K || f == Q3_K ? 2 : 4; }
INLINE int high_bits(const int f) {
    if (f == Q5_0 || f == Q5_1 || f == Q5_K || f == Q3_K) return 1;
    return f == Q6_1 || f == Q6_K ? 2 : 0;
}
INLINE int has_units(const int f) { return f >= Q2_K && f <= Q6_K; }
INLINE int has_lowest(const int f) {
    return f == Q4_1 || f == Q5_1 || f == Q6_1 || f == Q2_K || f == Q4_K || f == Q5_K;
}
INLINE int has_table(const int f) { return f == IQ4_NL || f == MXFP4; }
/* Steps of an output in a block: one, or one for each 16 inputs. */
INLINE int num_steps(const int f) { return f == Q2_K || f == Q3_K || f == Q6_K ? 2 : 1; }
/* The code of weight 0 where there is no lowest value. */
INLINE int zero_code(const int f) {
    if (f == Q8_0 || has_table(f)) return 128;
    return f == Q6_K ? 32 : f == Q5_0 ? 16 : f == Q3_K ? 4 : 8;
}
INLINE int most_code(const int f) {
    return f == Q8_0 || has_table(f) ? 255 : (1 << (low_bits(f) + high_bits(f))) - 1;
}
INLINE int64_t unit_bytes(const int f) {
    return has_units(f) ? (has_lowest(f) ? 4 : 2) * PANEL : 0;
}
INLINE int64_t step_bytes(const int f) {
    if (f == Q2_K || has_units(f)) return 2 * PANEL;
    return (has_lowest(f) ? 4 : 2) * PANEL;
}
INLINE int64_t block_bytes(const int f) {
    return step_bytes(f) + (low_bits(f) + high_bits(f)) * GROUP * PANEL / 8;
}

/* Where block g of a panel begins; that of its last is where the next panel does. */
INLINE int64_t block_at(const int f, int64_t g) {
    const int64_t each = SUPER / GROUP;
    return g * block_bytes(f) + (g + each - 1) / each * unit_bytes(f);
}

INLINE int64_t panel_bytes(const int f, int64_t in) {
    if (f == F32) return in * PANEL * 4;
    if (f == F16) return in * PANEL * 2;
    if (f == BF16) return num_pairs(in) * PANEL * 4;
    return block_at(f, num_groups(in));
}

/* What a code of 4 bits stands for, plus 128: numbers of IQ4_NL, and twice those of MXFP4. */
static const uint8_t TABLES[2][16] = {
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116},
};

/* Codes of inputs 4 q … 4 q + 3 of W outputs. A byte has the codes of 8 / low_bits quads; behind them
 * lie the high bits, one of all inputs of a quad side by side or two as the low ones. */
INLINE Bytes read_codes(const int f, const uint8_t *codes, const int q, const int part) {
    const int low = low_bits(f), quads = 8 / low;
    Bytes found = load_bytes(codes + q / quads * 4 * PANEL + part * 4 * W);
    if (low < 8) found = bits_of(found, q % quads * low, (1 << low) - 1);
    const uint8_t *high = codes + low * GROUP * PANEL / 8;
    if (high_bits(f) == 1) found = add_bit(found, high + (q * 4 * PANEL + part * 4 * W) / 8, 1 << low);
    if (high_bits(f) == 2) {
        Bytes two = load_bytes(high + q / 4 * 4 * PANEL + part * 4 * W);
        found = either(found, bits_of(two, q % 4 * 2 - low, 3 << low));
    }
    return has_table(f) ? look_up(found, TABLES[f == MXFP4]) : found;
}

/* A step and a lowest value of W outputs for all inputs of a block, or for one half of them. */
INLINE void read_steps(const int f, const uint8_t *steps, const int half, const int part, vec unit,
                       vec lowest_unit, vec *step, vec *lowest) {
    const uint8_t *own = steps + half * PANEL + part * W;
    *lowest = (vec){0};
    if (f == Q2_K) {
        ivec both;
        for (int i = 0; i < W; i++) both[i] = own[i];
        *step = unit * to_floats(both & 15);
        *lowest = -(lowest_unit * to_floats(both >> 4));
    } else if (f == Q4_K || f == Q5_K) {
        *step = unit * load_uint8(own);
        *lowest = -(lowest_unit * load_uint8(own + PANEL));
    } else if (has_units(f)) {
        *step = unit * load_int8((const int8_t *)own);
    } else {
        const uint16_t *halves = (const uint16_t *)steps + part * W;
        *step = f == MXFP4 ? load_bfloat16(halves) : load_float16(halves);
        if (has_lowest(f)) *lowest = load_float16(halves + PANEL);
    }
}

/* sums[part, r] += Σ w x of blocks lo … hi − 1 of a panel, for ROWS rows x [rows, groups]. */
INLINE void add_codes(const int f, const int ROWS, const uint8_t *panel, int64_t lo, int64_t hi,
                      const Inputs *x, int64_t groups, vec *sums) {
    vec unit[VECS] = {{0}}, lowest_unit[VECS] = {{0}};
    for (int64_t g = lo; g < hi; g++) {
        const uint8_t *steps = panel + block_at(f, g), *codes = steps + step_bytes(f);
        if (has_units(f) && g % (SUPER / GROUP) == 0) {
            const uint16_t *units = (const uint16_t *)steps;
            steps += unit_bytes(f), codes += unit_bytes(f);
            for (int i = 0; i < VECS; i++) {
                unit[i] = load_float16(units + i * W);
                if (has_lowest(f)) lowest_unit[i] = load_float16(units + PANEL + i * W);
            }
        }
        for (int i = 0; i < VECS; i++) { /* not unrolled: there is enough in it */
            Bytes quads[QUADS];
#pragma GCC unroll 8
            for (int q = 0; q < QUADS; q++) quads[q] = read_codes(f, codes, q, i);
            vec step[2], lowest[2];
            for (int half = 0; half < num_steps(f); half++)
                read_steps(f, steps, half, i, has_units(f) ? unit[i] : (vec){0},
                           has_units(f) && has_lowest(f) ? lowest_unit[i] : (vec){0}, step + half,
                           lowest + half);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const Inputs *row = x + r * groups + g;
                /* Copied first, they would be stored and waited for. */
                const word *coarse = (const word *)row->coarse, *fine = (const word *)row->fine;
                vec total = {0};
#pragma GCC unroll 2
                for (int half = 0; half < num_steps(f); half++) {
                    int32_t coarse_zero = 0, fine_zero = 0;
                    float sum = 0.0f;
                    if (num_steps(f) == 2) {
                        coarse_zero = row->coarse_sums[half], fine_zero = row->fine_sums[half];
                        sum = row->sums[half];
                    } else {
                        coarse_zero = row->coarse_sums[0] + row->coarse_sums[1];
                        fine_zero = row->fine_sums[0] + row->fine_sums[1];
                        sum = row->sums[0] + row->sums[1];
                    }
                    ivec first = {0}, second = {0};
                    if (!has_lowest(f)) {
                        first -= zero_code(f) * coarse_zero;
                        second -= zero_code(f) * fine_zero;
                    }
                    const int each = QUADS / num_steps(f);
#pragma GCC unroll 8
                    for (int q = half * each; q < (half + 1) * each; q++) {
                        first = add_quads(most_code(f), first, quads[q], coarse[q]);
                        second = add_quads(most_code(f), second, quads[q], fine[q]);
                    }
                    vec both =
                        fma_vec(to_floats(second), all_of(1.0f / FINE_STEPS), to_floats(first));
                    if (has_lowest(f)) total = fma_vec(lowest[half], all_of(sum), total);
                    total = fma_vec(both, step[half], total);
                }
                sums[i * ROWS + r] = fma_vec(total, all_of(row->scale), sums[i * ROWS + r]);
            }
        }
    }
}

/* sums[i, r] += Σ w x of inputs lo … hi − 1 for PANELS panels and ROWS rows x [in, ROWS]. */
INLINE void add_floats(const int f, const int PANELS, const int ROWS, const uint8_t *panels,
                       int64_t in, int64_t lo, int64_t hi, const float *x, vec *sums) {
    for (int64_t k = lo; k < hi; k++) {
        vec w[8 * VECS];
#pragma GCC unroll 16
        for (int i = 0; i < PANELS * VECS; i++) {
            const int64_t at = (i / VECS * in + k) * PANEL + i % VECS * W;
            w[i] = f == F16 ? load_float16((const uint16_t *)panels + at)
                            : *(const vec *)((const float *)panels + at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
            for (int i = 0; i < PANELS * VECS; i++)
                sums[i * ROWS + r] = fma_vec(w[i], all_of(x[k * ROWS + r]), sums[i * ROWS + r]);
    }
}

/* The same in bfloat16, of pairs lo … hi − 1 and rows x [pairs, ROWS]. */
INLINE void add_pairs(const int PANELS, const int ROWS, const uint8_t *panels, int64_t in, int64_t lo,
                      int64_t hi, const uint32_t *x, vec *sums) {
    const int64_t n = num_pairs(in);
    for (int64_t k = lo; k < hi; k++) {
        Pairs w[8 * VECS];
#pragma GCC unroll 16
        for (int i = 0; i < PANELS * VECS; i++)
            w[i] = load_pairs((const uint32_t *)panels + (i / VECS * n + k) * PANEL + i % VECS * W);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Pairs inputs = broadcast_pair(x[k * ROWS + r]);
#pragma GCC unroll 16
            for (int i = 0; i < PANELS * VECS; i++)
                sums[i * ROWS + r] = add_pair_products(sums[i * ROWS + r], w[i], inputs);
        }
    }
}

/* Panels of a tile of several rows, and of one row, whose sums alone would wait for themselves. */
INLINE int tile_panels(const int f, const int rows) {
    if (kind_of(f) == CODES) return 1;
    return rows == 1 ? 8 / VECS : VECS == 1 ? 4 : 1;
}
/* Steps (inputs, pairs or groups) that all rows go through before the next are read. */
INLINE int64_t stretch(const int kind) { return kind == CODES ? SUPER / GROUP : 64; }
#define MAX_BLOCK 48 /* rows that go through a stretch together, a whole number of tiles */

/* y [ROWS, stride] += w x of steps lo … hi − 1, of PANELS panels. */
INLINE void add_tile(const int f, const int PANELS, const int ROWS, const uint8_t *panels, int64_t in,
                     int64_t lo, int64_t hi, const float *x, float *y, int64_t stride) {
    vec sums[PANELS * ROWS * VECS];
#pragma GCC unroll 16
    for (int i = 0; i < PANELS * VECS; i++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) sums[i * ROWS + r] = *(const vec *)(y + r * stride + i * W);
    if (kind_of(f) == CODES)
        add_codes(f, ROWS, panels, lo, hi, (const Inputs *)x, num_groups(in), sums);
    else if (kind_of(f) == PAIRS)
        add_pairs(PANELS, ROWS, panels, in, lo, hi, (const uint32_t *)x, sums);
    else
        add_floats(f, PANELS, ROWS, panels, in, lo, hi, x, sums);
#pragma GCC unroll 16
    for (int i = 0; i < PANELS * VECS; i++)
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) *(vec *)(y + r * stride + i * W) = sums[i * ROWS + r];
}

/* The same for a block of at most MAX_BLOCK rows, tile by tile. */
INLINE void add_block(const int f, const int PANELS, const uint8_t *panels, int64_t in, int64_t lo,
                      int64_t hi, const float *x, int64_t rows, float *y) {
    const int most = tile_rows(kind_of(f)), stride = PANELS * PANEL;
    const int64_t each = packed_floats(kind_of(f), in);
    for (; rows >= most; rows -= most, x += most * each, y += most * stride)
        add_tile(f, PANELS, most, panels, in, lo, hi, x, y, stride);
#define TILE_OF(n)                                                                                  \
    case n: add_tile(f, PANELS, most > n ? n : 1, panels, in, lo, hi, x, y, stride); break;
    switch (rows) {
        TILE_OF(7) TILE_OF(6) TILE_OF(5) TILE_OF(4) TILE_OF(3) TILE_OF(2) TILE_OF(1)
    }
}

/* Copy sums [rows, PANELS · PANEL] with biases to y [rows, stride], outputs panel · PANEL …. */
static void write_sums(const Matrix *m, int64_t panel, int panels, const float *sums, int64_t rows,
                       float *y, int64_t stride) {
    const int64_t first = panel * PANEL;
    const int64_t n = first + panels * PANEL < m->out ? panels * PANEL : m->out - first;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < n; o++)
            y[r * stride + o] =
                sums[r * panels * PANEL + o] + (m->bias ? m->bias[first + o] : 0.0f);
}

/* PANELS panels from number `panel` on, for all rows. */
INLINE void panel_products(const int f, const int PANELS, const Matrix *m, int64_t panel,
                           const float *x, int64_t rows, float *y, int64_t stride) {
    const int64_t bytes = panel_bytes(f, m->in), n = num_steps_in(kind_of(f), m->in);
    const int64_t each = packed_floats(kind_of(f), m->in);
    const uint8_t *panels = m->panels + panel * bytes;
    float sums[MAX_BLOCK * PANELS * PANEL];
    for (int64_t many; rows; rows -= many, x += many * each, y += many * stride) {
        many = rows < MAX_BLOCK ? rows : MAX_BLOCK;
        memset(sums, 0, sizeof(float) * (size_t)(many * PANELS * PANEL));
        const int64_t step = many == 1 ? n : stretch(kind_of(f));
        for (int64_t lo = 0; lo < n; lo += step) {
            const int64_t hi = lo + step < n ? lo + step : n;
            if (hi < n) { /* the next stretch comes while this one is computed with */
                const int64_t from = kind_of(f) == CODES ? block_at(f, hi) : bytes / n * hi;
                const int64_t end = hi + step < n ? hi + step : n;
                const int64_t to = kind_of(f) == CODES ? block_at(f, end) : bytes / n * end;
                for (int i = 0; i < PANELS; i++)
                    for (int64_t at = from; at < to; at += 64)
                        __builtin_prefetch(panels + i * bytes + at);
            }
            add_block(f, PANELS, panels, m->in, lo, hi, x, many, sums);
        }
        write_sums(m, panel, PANELS, sums, many, y, stride);
    }
}

INLINE void products_of(const int f, const Matrix *m, Part own, const float *x, int64_t rows, float *y,
                        int64_t stride) {
    int64_t p = own.lo;
    const int one = tile_panels(f, 1), several = tile_panels(f, 2);
    if (rows == 1)
        for (; p + one <= own.hi; p += one, y += one * PANEL)
            panel_products(f, one, m, p, x, rows, y, stride);
    for (; p + several <= own.hi; p += several, y += several * PANEL)
        panel_products(f, several, m, p, x, rows, y, stride);
    if (several > 1)
        for (; p < own.hi; p++, y += PANEL) panel_products(f, 1, m, p, x, rows, y, stride);
}

/* library.py compiles this file for each FORMAT that a model has. */
void hierspec_multiply(const Matrix *m, Part own, const float *x, int64_t rows, float *y,
                       int64_t stride) {
    products_of(FORMAT, m, own, x, rows, y, stride);
}

/* Weight k of one output, of a matrix of floating-point numbers. */
INLINE float float_weight(const int f, const uint8_t *panel, int64_t k, int64_t lane) {
    float lanes[W];
    const int64_t part = lane / W * W;
    vec found;
    if (f == BF16) {
        const uint16_t *pairs = (const uint16_t *)panel + (k / 2 * PANEL + lane) * 2 + k % 2;
        uint32_t bits = (uint32_t)*pairs << 16;
        memcpy(lanes, &bits, sizeof bits);
        return lanes[0];
    }
    found = f == F16 ? load_float16((const uint16_t *)panel + k * PANEL + part)
                     : *(const vec *)((const float *)panel + k * PANEL + part);
    memcpy(lanes, &found, sizeof lanes);
    return lanes[lane - part];
}

/* Weights of blocks of one output. */
INLINE void code_weights(const int f, const uint8_t *panel, int64_t in, int64_t lane, float *y) {
    const int part = (int)(lane / W), own = (int)(lane % W);
    vec unit = {0}, lowest_unit = {0};
    for (int64_t g = 0; g < num_groups(in); g++) {
        const uint8_t *steps = panel + block_at(f, g);
        if (has_units(f) && g % (SUPER / GROUP) == 0) {
            const uint16_t *units = (const uint16_t *)steps;
            unit = load_float16(units + part * W);
            if (has_lowest(f)) lowest_unit = load_float16(units + PANEL + part * W);
            steps += unit_bytes(f);
        }
        float step[2][W], lowest[2][W];
        for (int half = 0; half < num_steps(f); half++) {
            vec each, least;
            read_steps(f, steps, half, part, unit, lowest_unit, &each, &least);
            memcpy(step[half], &each, sizeof each);
            memcpy(lowest[half], &least, sizeof least);
        }
#pragma GCC unroll 8
        for (int q = 0; q < QUADS; q++) {
            const int half = q * num_steps(f) / QUADS;
            uint8_t codes[4 * W];
            Bytes found = read_codes(f, steps + step_bytes(f), q, part);
            memcpy(codes, &found, sizeof codes);
            for (int j = 0; j < 4 && g * GROUP + q * 4 + j < in; j++) {
                const int code = codes[own * 4 + j];
                y[g * GROUP + q * 4 + j] =
                    has_lowest(f) ? (float)code * step[half][own] + lowest[half][own]
                                  : (float)(code - zero_code(f)) * step[half][own];
            }
        }
    }
}

/* Weights of the outputs `ids` → y [num, in]. */
void hierspec_rows(const Matrix *m, const int64_t *ids, int64_t num, float *y) {
    for (int64_t i = 0; i < num; i++, y += m->in) {
        const uint8_t *panel = m->panels + ids[i] / PANEL * panel_bytes(FORMAT, m->in);
        if (kind_of(FORMAT) == CODES)
            code_weights(FORMAT, panel, m->in, ids[i] % PANEL, y);
        else
            for (int64_t k = 0; k < m->in; k++)
                y[k] = float_weight(FORMAT, panel, k, ids[i] % PANEL);
    }
}
