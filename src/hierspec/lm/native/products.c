/* Products with matrices in the bits they are stored in.
 *
 * Sixteen outputs are a panel, 32 inputs of it a block; the blocks of a panel follow one another, each
 * with all that is needed to read it. In formats of less than 16 bits a weight is a code, and
 *     weight = step · code + lowest
 * with a step and a lowest value of each output for 32 or 16 inputs. Codes are multiplied as bytes, by
 * inputs in 16 bits (twice 8) for each 32, or in 8, and on x86 without VNNI in 16 bits; bfloat16 weights
 * by inputs rounded to it, in pairs.
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

/* What code_products returns, from the sums with upper bytes of inputs and with lower ones. */
INLINE ivec whole_products(const int f, const int LIFT, const int NARROW, const int half, ivec upper,
                           ivec lower, const Inputs *x) {
    if (!NARROW) lower += upper << 8;
    if (has_lowest(f)) return lower;
    return lower + (all_of_word(x->offsets + (num_steps(f) == 2 ? half : 2)) >> (free_bits(f) - LIFT));
}

#if SHORT_PRODUCTS
/* Σ codes · inputs of a block, or of one half of it, for ROWS rows: in 16 bits by 16, or by inputs in 8
 * bits as bytes, where so many sums of two fit into 16 bits. */
INLINE void multiply_rows(const int f, const int NARROW, const int ROWS, const int half, const int part,
                          const uint8_t *codes, const Inputs *x, int64_t groups, ivec *sums) {
    const int each = QUADS / num_steps(f), first = half * each;
    const int fit = NARROW ? INT16_MAX / (2 * MOST_NARROW_INPUT * (255 >> free_bits(f))) : 0;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) sums[r] = (ivec){0};
    Bytes bytes[8];
#pragma GCC unroll 8
    for (int q = first; q < first + each; q++) {
        const Bytes quad = read_codes(f, 0, codes, q, part);
        const Bytes even = even_bytes(quad), odd = odd_bytes(quad);
        const int is_last = fit && ((q - first + 1) % fit == 0 || q + 1 == first + each);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const Inputs *row = x + r * groups;
            const word *whole = (const word *)row->whole + 2 * q;
            if (!fit) {
                sums[r] = add_short_products(sums[r], even, all_of_bytes(whole));
                sums[r] = add_short_products(sums[r], odd, all_of_bytes(whole + 1));
                continue;
            }
            const word ones = 1 << 16 | 1;
            const Bytes found = multiply_bytes(quad, all_of_bytes((const word *)row->lower + q));
            bytes[r] = (q - first) % fit ? (Bytes)now((ivec)add_shorts(bytes[r], found)) : found;
            if (is_last) sums[r] = add_short_products(sums[r], bytes[r], all_of_bytes(&ones));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
        sums[r] = whole_products(f, 0, 1, half, (ivec){0}, sums[r], x + r * groups);
}
#else
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
    return whole_products(f, LIFT, NARROW, half, sums[0], sums[1], x);
}
#endif

/* Products of a block, or of its two halves, with upper bytes of inputs and with lower ones, of up to 16
 * rows in AMX's tiles. */
typedef struct {
    word sums[2][2][16][PANEL] __attribute__((aligned(64)));
} TileProducts;

#if AMX
/* Weights in tile 6: four codes of each output a row, as they lie in a panel in 8 bits. Sums of whole
 * numbers are those of code_products, whatever their order. */
INLINE void multiply_block(const int f, const int NARROW, const uint8_t *codes, const Inputs *x,
                           int64_t groups, TileProducts *to) {
    const int64_t apart = groups * (int64_t)sizeof(Inputs);
    uint8_t bytes[QUADS][4 * PANEL] __attribute__((aligned(64)));
    if (low_bits(f) < 8) {
        for (int q = 0; q < QUADS; q++) {
            const Bytes found = read_codes(f, 0, codes, q, 0);
            memcpy(bytes[q], &found, sizeof found);
        }
        codes = bytes[0];
    }
    for (int half = 0; half < num_steps(f); half++) {
        LOAD_TILE(6, codes + half * (QUADS / 2) * 4 * PANEL, 4 * PANEL);
        if (!NARROW) {
            CLEAR_TILE(0);
            LOAD_TILE(4, x->upper + half * (GROUP / 2), apart);
            ADD_BYTE_PRODUCTS(0, 4, 6);
            STORE_TILE(0, to->sums[half][0], 4 * PANEL);
        }
        CLEAR_TILE(1);
        LOAD_TILE(5, x->lower + half * (GROUP / 2), apart);
        ADD_BYTE_PRODUCTS(1, 5, 6);
        STORE_TILE(1, to->sums[half][1], 4 * PANEL);
    }
}
#endif

/* sums[i, r] += Σ w x of a panel, for ROWS rows x [rows, groups], in AMX's tiles or not. */
INLINE void add_codes(const int f, const int NARROW, const int IN_TILES, const int ROWS,
                      const uint8_t *panel, int64_t groups, const Inputs *x, vec *sums) {
    const int LIFT = IN_TILES ? 0 : lift(f, ROWS);
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
#if !SHORT_PRODUCTS
        TileProducts found;
#endif
#if AMX
        if (IN_TILES) multiply_block(f, NARROW, codes, x + g, groups, &found);
#endif
        for (int i = 0; i < VECS; i++) { /* not unrolled: there is enough in it */
#if SHORT_PRODUCTS
            /* gcc would copy inputs to all lanes for all i at once, and keep that in memory. */
            __asm__ volatile("" ::: "memory");
            ivec products[2][8];
#pragma GCC unroll 2
            for (int half = 0; half < num_steps(f); half++)
                multiply_rows(f, NARROW, ROWS, half, i, codes, x + g, groups, products[half]);
#else
            Bytes quads[QUADS];
            if (!IN_TILES)
#pragma GCC unroll 8
                for (int q = 0; q < QUADS; q++) quads[q] = read_codes(f, LIFT, codes, q, i);
#endif
            vec step[2], lowest[2];
            for (int half = 0; half < num_steps(f); half++) {
                read_steps(f, steps, half, i, unit[i], lowest_unit[i], step + half, lowest + half);
                if (!has_units(f) && LIFT) step[half] *= lowered;
            }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const Inputs *row = x + r * groups + g;
#if SHORT_PRODUCTS
#define PRODUCTS(half) products[half][r]
#else
#define PRODUCTS(half)                                                                              \
    (IN_TILES ? whole_products(f, LIFT, NARROW, half, *(const ivec *)found.sums[half][0][r],        \
                               *(const ivec *)found.sums[half][1][r], row)                          \
              : code_products(f, LIFT, NARROW, half, quads, row))
#endif
                vec total = to_floats(PRODUCTS(0)) * step[0];
                if (num_steps(f) == 2) {
                    const ivec second = PRODUCTS(1);
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

/* The same in bfloat16, for rows x [pairs, PAIR_PARTS, ROWS]. */
INLINE void add_pairs(const int PANELS, const int ROWS, const uint8_t *panels, int64_t in,
                      const uint32_t *x, vec *sums) {
    const int64_t n = num_pairs(in);
    for (int64_t k = 0; k < n; k++, x += PAIR_PARTS * ROWS) {
        Pairs w[8];
        if (PANELS == 1 && ROWS > 1) fetch((const uint32_t *)panels + k * PANEL + AHEAD / 4);
#pragma GCC unroll 8
        for (int i = 0; i < PANELS * VECS; i++)
            w[i] = load_pairs((const uint32_t *)panels + (i / VECS * n + k) * PANEL + i % VECS * W);
#pragma GCC unroll 2
        for (int part = 0; part < PAIR_PARTS; part++)
#pragma GCC unroll 24
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int i = 0; i < PANELS * VECS; i++) {
                    vec *sum = sums + i * ROWS + r;
#if PAIR_PARTS == 1
                    *sum = add_pair_products(*sum, w[i], broadcast_pair(x[r]));
#else
                    /* A bfloat16 number is the upper half of a float32. */
                    const ivec own = part ? w[i] >> 16 << 16 : w[i] << 16;
                    *sum = fma_vec((vec)own, all_of(((const float *)x)[part * ROWS + r]), *sum);
#endif
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
    if (VECS > 1) return VECS == 2 && rows == 2 ? 2 : 1;
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
            add_codes(f, KIND == NARROW_CODES, 0, ROWS, panels, num_groups(m->in), (const Inputs *)x,
                      sums);
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

#if AMX
/* AMX's tiles: up to 16 rows times a panel are one product, and a panel's layout is that of weights. All
 * tiles of a call have one number of rows, so that their shapes are set once; the last of them ends with
 * the rows, and may compute some again.
 *
 * Bfloat16 goes through tiles whatever the number of rows: they add up in an order of their own, and a
 * row alone must have the bits that it has in company. A single one waits for memory as before: 1 KB of
 * weights is loaded in 8 cycles and multiplied in 16, and arrives in 200 at 15 GB/s and 3 GHz.
 *
 * Codes have steps for 32 inputs or 16, so that sums are stored and scaled as often. For 16 rows, 16
 * outputs and 32 inputs that takes 2 products of tiles and 6 instructions a row, where VNNI takes 22 (with
 * two steps: 4 and 11, where it takes 27), two in a cycle: 48 cycles for 176, beside which tiles are
 * multiplied in 32 and stored, with the sums, in 48. Codes are unpacked once for 16 rows, not for 8.
 * Up to 8 rows there is less to gain, and VNNI's sums, of whole numbers the same, stay in registers.
 *
 * This is by Intel's figures; nobody has timed it. */
static int64_t num_tiles(int64_t rows) { return (rows + 15) / 16; }
static int64_t rows_of_tile(int64_t rows) { return (rows + num_tiles(rows) - 1) / num_tiles(rows); }
static int64_t first_row(int64_t tile, int64_t rows) {
    const int64_t each = rows_of_tile(rows), last = rows - each;
    return tile * each < last ? tile * each : last;
}

/* Sums in tiles 0 … 3, inputs in 4 and 5, in rows of so many bytes, weights in 6 and 7. */
static void configure_tiles(int64_t rows, int bytes) {
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = (uint8_t)(i < 6 ? rows_of_tile(rows) : bytes / 4);
        shapes.bytes[i] = (uint16_t)(i == 4 || i == 5 ? bytes : 4 * PANEL);
    }
    set_tiles(&shapes);
}

/* Sums [rows of a tile, PANEL] of panel p with their biases to y. */
static void write_tile(const Matrix *m, int64_t p, const float *sums, int64_t rows, float *y,
                       int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        write_sums(m, p * PANEL, *(const vec *)(sums + r * PANEL), y + r * stride);
}

#define STEP (16 * 4 * PANEL) /* bytes of weights in a tile, of 32 inputs */

/* Products of one tile of rows with up to four panels, or of two with up to two: sums of the first
 * panel with each tile of rows, of the second with each, … The panels' last weights are in `rest`,
 * filled up with zeros. */
INLINE void multiply_tiles(const int TWO, int64_t panels, const uint8_t *w, int64_t panel_size,
                           const uint8_t (*rest)[STEP], int64_t pairs, const uint32_t *x,
                           const uint32_t *second, int64_t apart, float (*sums)[16 * PANEL]) {
    CLEAR_TILE(0);
    CLEAR_TILE(1);
    CLEAR_TILE(2);
    CLEAR_TILE(3);
    for (int64_t k = 0; k < pairs; k += 16, w += STEP, x += 16, second += 16) {
        if (pairs - k < 16) w = *rest, panel_size = STEP;
        LOAD_TILE(4, x, apart);
        LOAD_TILE(6, w, 4 * PANEL);
        ADD_PAIR_PRODUCTS(0, 4, 6);
        if (TWO) {
            LOAD_TILE(5, second, apart);
            ADD_PAIR_PRODUCTS(1, 5, 6);
        }
        if (panels > 1) LOAD_TILE(7, w + panel_size, 4 * PANEL);
        if (TWO && panels > 1) {
            ADD_PAIR_PRODUCTS(2, 4, 7);
            ADD_PAIR_PRODUCTS(3, 5, 7);
        }
        if (!TWO && panels > 1) ADD_PAIR_PRODUCTS(1, 4, 7);
        if (!TWO && panels > 2) {
            LOAD_TILE(6, w + 2 * panel_size, 4 * PANEL);
            ADD_PAIR_PRODUCTS(2, 4, 6);
        }
        if (!TWO && panels > 3) {
            LOAD_TILE(7, w + 3 * panel_size, 4 * PANEL);
            ADD_PAIR_PRODUCTS(3, 4, 7);
        }
    }
    STORE_TILE(0, sums[0], 4 * PANEL);
    STORE_TILE(1, sums[1], 4 * PANEL);
    STORE_TILE(2, sums[2], 4 * PANEL);
    STORE_TILE(3, sums[3], 4 * PANEL);
}

static void pairs_in_tiles(const Matrix *m, Part own, const uint32_t *x, int64_t rows, float *y,
                           int64_t stride) {
    const int64_t pairs = num_pairs(m->in), width = packed_floats(PAIRS, m->in);
    const int64_t size = panel_bytes(BF16, m->in), whole = pairs / 16 * STEP;
    uint8_t rest[4][STEP] __attribute__((aligned(64))) = {{0}};
    float sums[4][16 * PANEL] __attribute__((aligned(64)));
    configure_tiles(rows, 4 * 16);
    for (int64_t p = own.lo; p < own.hi; p += 4, y += 4 * PANEL) {
        const int64_t panels = own.hi - p < 4 ? own.hi - p : 4;
        const uint8_t *w = m->panels + p * size;
        for (int64_t i = 0; i < panels; i++)
            memcpy(rest[i], w + i * size + whole, (size_t)(size - whole));
        for (int64_t tile = 0; tile < num_tiles(rows); tile += 2) {
            const int64_t first[2] = {first_row(tile, rows), first_row(tile + 1, rows)};
            const int64_t both = tile + 1 < num_tiles(rows) ? 2 : 1, most = 4 / both;
            const uint32_t *from = x + first[0] * width, *second = x + first[1] * width;
            for (int64_t i = 0; i < panels; i += most) {
                const int64_t n = panels - i < most ? panels - i : most;
                const uint8_t *own_w = w + i * size;
                if (both == 2)
                    multiply_tiles(1, n, own_w, size, rest + i, pairs, from, second, width * 4, sums);
                else
                    multiply_tiles(0, n, own_w, size, rest + i, pairs, from, second, width * 4, sums);
                for (int64_t j = 0; j < n * both; j++)
                    write_tile(m, p + i + j / both, sums[j], rows_of_tile(rows),
                               y + (i + j / both) * PANEL + first[j % both] * stride, stride);
            }
        }
    }
    release_tiles();
}

INLINE void codes_in_tiles(const int f, const int NARROW, const Matrix *m, Part own,
                           const Inputs *x, int64_t rows, float *y, int64_t stride) {
    const int64_t groups = num_groups(m->in), each = rows_of_tile(rows);
    configure_tiles(rows, GROUP / num_steps(f));
    for (int64_t p = own.lo; p < own.hi; p++, y += PANEL)
        for (int64_t tile = 0; tile < num_tiles(rows); tile++) {
            const int64_t first = first_row(tile, rows);
            vec sums[16] = {{0}};
            add_codes(f, NARROW, 1, (int)each, m->panels + p * panel_bytes(f, m->in), groups,
                      x + first * groups, sums);
            write_tile(m, p, (const float *)sums, each, y + first * stride, stride);
        }
    release_tiles();
}
#endif

/* library.py compiles this file for each FORMAT that a model has. */
void hierspec_multiply(const Matrix *m, Part own, const float *x, int64_t rows, float *y,
                       int64_t stride) {
#if AMX
    if (kind_of(FORMAT) == PAIRS) {
        pairs_in_tiles(m, own, (const uint32_t *)x, rows, y, stride);
        return;
    }
    if (kind_of(FORMAT) == CODES && rows > most_rows(CODES)) {
        if (m->narrow)
            codes_in_tiles(FORMAT, 1, m, own, (const Inputs *)x, rows, y, stride);
        else
            codes_in_tiles(FORMAT, 0, m, own, (const Inputs *)x, rows, y, stride);
        return;
    }
#endif
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
