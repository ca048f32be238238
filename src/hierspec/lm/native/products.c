/* Products with matrices in the bits they are stored in.
 *
 * Sixteen outputs are a panel, 32 inputs of it a block; the blocks of a panel follow one another, each
 * with all that is needed to read it. In formats of less than 16 bits a weight is a code, and
 *     weight = step · code + lowest
 * with a step and a lowest value of each output for 32 or 16 inputs. Codes are multiplied as bytes, by
 * inputs in 16 bits (twice 8) for each 32, or in 8; bfloat16 weights by inputs rounded to it, in pairs.
 *
 * A lane is an output, so that nothing is summed across lanes. Every row is summed in the order of its
 * inputs, whatever the number of rows: a row's outputs do not depend on what is computed beside it.
 * Weights come from memory once: all rows go through a panel before the next is read.
 */
#include "matrix.h"

#define SUPER 256 /* inputs that share the unit of their steps, in formats _K */
#define QUADS 8   /* of inputs in a block */
#define AHEAD 4096 /* bytes: so far before they are needed weights are asked for */

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
/* Bits of a byte that a code leaves free. Where there is no lowest value, 128 >> that is weight 0. */
INLINE int free_bits(const int f) { return has_table(f) ? 0 : 8 - low_bits(f) - high_bits(f); }
/* So far the codes of odd quads are raised in their bytes: what lies in a byte's upper bits can stay there,
 * and sums are shifted in its place. All products come out raised. Several rows would shift theirs more
 * often than codes are. */
INLINE int lift(const int f, const int ROWS) { return WHOLE_BYTES && ROWS == 1 ? free_bits(f) : 0; }
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

/* Codes of inputs 4 q … 4 q + 3 of W outputs, those of odd q raised by LIFT. A byte has the codes of
 * 8 / low_bits quads; behind them lie the high bits, one of all inputs of a quad side by side or two as
 * the low ones. */
INLINE Bytes read_codes(const int f, const int LIFT, const uint8_t *codes, const int q, const int part) {
    const int low = low_bits(f), quads = 8 / low, up = q % 2 * LIFT;
    Bytes found = load_bytes(codes + q / quads * 4 * PANEL + part * 4 * W);
    if (low < 8) found = bits_of(found, q % quads * low - up, ((1 << low) - 1) << up);
    const uint8_t *high = codes + low * GROUP * PANEL / 8;
    if (high_bits(f) == 1)
        found = add_bit(found, high + (q * 4 * PANEL + part * 4 * W) / 8, 1 << (low + up));
    if (high_bits(f) == 2) {
        Bytes two = load_bytes(high + q / 4 * 4 * PANEL + part * 4 * W);
        found = with_bits(found, two, q % 4 * 2 - low - up, 3 << (low + up));
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

/* Σ codes · inputs of a block, or of one half of it, raised by LIFT; without lowest values, of codes less
 * that of weight 0. */
INLINE ivec code_products(const int f, const int LIFT, const int NARROW, const int half,
                          const Bytes *quads, const Inputs *x) {
    const word *bytes[2] = {(const word *)x->upper, (const word *)x->lower};
    const int each = QUADS / num_steps(f), first = half * each;
    const int most = 255 >> (free_bits(f) - LIFT);
    ivec sums[2] = {{0}}; /* two, so that neither waits for the other */
#pragma GCC unroll 2
    for (int i = NARROW; i < 2; i++) {
#pragma GCC unroll 4
        for (int q = first; q < first + each; q += 2)
            sums[i] = add_quads(most, sums[i], quads[q], bytes[i] + q);
        sums[i] <<= LIFT;
#pragma GCC unroll 4
        for (int q = first + 1; q < first + each; q += 2)
            sums[i] = add_quads(most, sums[i], quads[q], bytes[i] + q);
    }
    if (!NARROW) sums[1] += sums[0] << 8;
    if (has_lowest(f)) return sums[1];
    return sums[1] + (all_of_word(x->offsets + (num_steps(f) == 2 ? half : 2)) >> (free_bits(f) - LIFT));
}

/* sums[i, r] += Σ w x of a panel, for ROWS rows x [rows, groups]. */
INLINE void add_codes(const int f, const int NARROW, const int ROWS, const uint8_t *panel,
                      int64_t groups, const Inputs *x, vec *sums) {
    const int LIFT = lift(f, ROWS);
    const float lowered = 1.0f / (float)(1 << LIFT); /* by a power of two: exact */
    vec unit[VECS] = {{0}}, lowest_unit[VECS] = {{0}};
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *steps = panel, *codes;
        for (int i = 0; i < block_bytes(f); i += 64) fetch(steps + AHEAD + i);
        if (has_units(f) && g % (SUPER / GROUP) == 0) {
            const uint16_t *units = (const uint16_t *)steps;
            steps += unit_bytes(f);
            for (int i = 0; i < VECS; i++) {
                unit[i] = load_float16(units + i * W) * lowered;
                if (has_lowest(f)) lowest_unit[i] = load_float16(units + PANEL + i * W);
            }
        }
        codes = steps + step_bytes(f), panel = steps + block_bytes(f);
        for (int i = 0; i < VECS; i++) { /* not unrolled: there is enough in it */
            Bytes quads[QUADS];
#pragma GCC unroll 8
            for (int q = 0; q < QUADS; q++) quads[q] = read_codes(f, LIFT, codes, q, i);
            vec step[2], lowest[2];
            for (int half = 0; half < num_steps(f); half++) {
                read_steps(f, steps, half, i, unit[i], lowest_unit[i], step + half, lowest + half);
                if (!has_units(f) && LIFT) step[half] *= lowered;
            }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const Inputs *row = x + r * groups + g;
                vec total = to_floats(code_products(f, LIFT, NARROW, 0, quads, row)) * step[0];
                if (num_steps(f) == 2) {
                    const ivec second = code_products(f, LIFT, NARROW, 1, quads, row);
                    total = fma_vec(to_floats(second), step[1], total);
                }
                vec sum = fma_vec(total, all_of(row->scale), sums[i * ROWS + r]);
                if (has_lowest(f))
                    for (int half = 0; half < num_steps(f); half++)
                        sum = fma_vec(lowest[half], all_of(row->sums[num_steps(f) == 2 ? half : 2]), sum);
                sums[i * ROWS + r] = sum;
            }
        }
    }
}

/* sums[i, r] += Σ w x of PANELS panels, for ROWS rows x [in, ROWS]. */
INLINE void add_floats(const int f, const int PANELS, const int ROWS, const uint8_t *panels,
                       int64_t in, const float *x, vec *sums) {
    for (int64_t k = 0; k < in; k++) {
        vec w[8];
        if (PANELS == 1 && ROWS > 1) fetch(panels + k * PANEL * (f == F16 ? 2 : 4) + AHEAD);
#pragma GCC unroll 8
        for (int i = 0; i < PANELS * VECS; i++) {
            const int64_t at = (i / VECS * in + k) * PANEL + i % VECS * W;
            w[i] = f == F16 ? load_float16((const uint16_t *)panels + at)
                            : *(const vec *)((const float *)panels + at);
        }
#pragma GCC unroll 24
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int i = 0; i < PANELS * VECS; i++)
                sums[i * ROWS + r] = fma_vec(w[i], all_of(x[k * ROWS + r]), sums[i * ROWS + r]);
    }
}

/* The same in bfloat16, for rows x [pairs, ROWS]. */
INLINE void add_pairs(const int PANELS, const int ROWS, const uint8_t *panels, int64_t in,
                      const uint32_t *x, vec *sums) {
    const int64_t n = num_pairs(in);
    for (int64_t k = 0; k < n; k++) {
        Pairs w[8];
        if (PANELS == 1 && ROWS > 1) fetch((const uint32_t *)panels + k * PANEL + AHEAD / 4);
#pragma GCC unroll 8
        for (int i = 0; i < PANELS * VECS; i++)
            w[i] = load_pairs((const uint32_t *)panels + (i / VECS * n + k) * PANEL + i % VECS * W);
#pragma GCC unroll 24
        for (int r = 0; r < ROWS; r++) {
            const Pairs inputs = broadcast_pair(x[k * ROWS + r]);
#pragma GCC unroll 8
            for (int i = 0; i < PANELS * VECS; i++)
                sums[i * ROWS + r] = add_pair_products(sums[i * ROWS + r], w[i], inputs);
        }
    }
}

/* Copy a vector of sums with their biases to y: outputs from number `first` on. */
INLINE void write_sums(const Matrix *m, int64_t first, vec sums, float *y) {
    if (m->bias) sums += *(const vec *)(m->bias + first);
    if (first + W <= m->out)
        *(vec *)y = sums;
    else if (first < m->out)
        memcpy(y, &sums, sizeof(float) * (size_t)(m->out - first));
}

/* Panels that a tile takes side by side: with few rows, sums alone would wait for themselves, and more
 * arrives from the memory in several streams. */
INLINE int tile_panels(const int kind, const int rows) {
    if (kind >= CODES) return 1;
    if (rows == 1) return 8 / VECS;
    if (VECS > 1) return 1;
    return rows <= 6 ? 4 : rows <= 8 ? 3 : rows <= 12 ? 2 : 1;
}

/* Panels `own`, PANELS at a time, for a tile of rows packed as this KIND. */
INLINE void tile(const int f, const int KIND, const int PANELS, const int ROWS, const Matrix *m,
                 Part own, const float *x, float *y, int64_t stride) {
    for (int64_t p = own.lo; p < own.hi; p += PANELS, y += PANELS * PANEL) {
        const uint8_t *panels = m->panels + p * panel_bytes(f, m->in);
        vec sums[PANELS * VECS * ROWS];
#pragma GCC unroll 24
        for (int i = 0; i < PANELS * VECS * ROWS; i++) sums[i] = (vec){0};
        if (KIND >= CODES)
            add_codes(f, KIND == NARROW_CODES, ROWS, panels, num_groups(m->in), (const Inputs *)x, sums);
        else if (KIND == PAIRS)
            add_pairs(PANELS, ROWS, panels, m->in, (const uint32_t *)x, sums);
        else
            add_floats(f, PANELS, ROWS, panels, m->in, x, sums);
#pragma GCC unroll 24
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int i = 0; i < PANELS * VECS; i++)
                write_sums(m, p * PANEL + i * W, sums[i * ROWS + r], y + r * stride + i * W);
    }
}

/* The same for all rows; SEVERAL panels at a time where a tile takes them, else one. */
INLINE void tiles(const int f, const int KIND, const int SEVERAL, const Matrix *m, Part own,
                  const float *x, int64_t rows, float *y, int64_t stride) {
    const int64_t each = packed_floats(KIND, m->in);
    for (int64_t n; rows; rows -= n, x += n * each, y += n * stride) {
        n = tile_rows(KIND, rows);
#define TILE(n)                                                                                     \
    case n:                                                                                         \
        if (n <= most_rows(KIND) && (!SEVERAL || tile_panels(KIND, n) > 1))                         \
            tile(f, KIND, SEVERAL ? tile_panels(KIND, n) : 1, n, m, own, x, y, stride);             \
        break;
#define TILES(n) TILE(n) TILE(n + 1) TILE(n + 2) TILE(n + 3)
        switch (n) { TILES(1) TILES(5) TILES(9) TILES(13) TILES(17) TILES(21) }
    }
}

/* library.py compiles this file for each FORMAT that a model has. */
void hierspec_multiply(const Matrix *m, Part own, const float *x, int64_t rows, float *y,
                       int64_t stride) {
    const int kind = kind_of(FORMAT), one_tile = rows <= most_rows(kind);
    const int64_t several = one_tile ? tile_panels(kind, (int)rows) : 1;
    if (several > 1) {
        const int64_t whole = (own.hi - own.lo) / several * several;
        tiles(FORMAT, kind, 1, m, (Part){own.lo, own.lo + whole}, x, rows, y, stride);
        own.lo += whole, y += whole * PANEL;
    }
    /* Several tiles go through a panel before the next is read. */
    const int64_t each = one_tile ? own.hi - own.lo : 1;
    for (int64_t p = own.lo; p < own.hi; p += each, y += each * PANEL) {
        const Part part = {p, p + each};
        if (kind == CODES && m->narrow)
            tiles(FORMAT, NARROW_CODES, 0, m, part, x, rows, y, stride);
        else
            tiles(FORMAT, kind, 0, m, part, x, rows, y, stride);
    }
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
            Bytes found = read_codes(f, 0, steps + step_bytes(f), q, part);
            memcpy(codes, &found, sizeof codes);
            for (int j = 0; j < 4 && g * GROUP + q * 4 + j < in; j++) {
                const int code = codes[own * 4 + j];
                y[g * GROUP + q * 4 + j] =
                    has_lowest(f) ? (float)code * step[half][own] + lowest[half][own]
                                  : (float)(code - (128 >> free_bits(f))) * step[half][own];
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
