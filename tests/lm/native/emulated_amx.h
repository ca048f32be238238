/* AMX's tiles in plain C, by Intel's manual (Software Developer's Manual, volume 2: LDTILECFG, TILELOADD,
 * TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS, TDPBSUD); where that raises an exception, the process ends.
 */
#include <stdlib.h>

static _Thread_local struct {
    int rows, bytes;
    union {
        uint8_t rows[16][64];
        float floats[16][16];
        int32_t numbers[16][16];
        uint16_t halves[16][32];
    } data;
} emulated[8];

static void must(int allowed) {
    if (!allowed) abort();
}

static void release_tiles(void) { memset(emulated, 0, sizeof emulated); }

static void set_tiles(const TileShapes *shapes) {
    const TileShapes none = {.palette = 1};
    must(sizeof(TileShapes) == 64 && shapes->palette == 1 && !shapes->first_row);
    must(!memcmp(shapes->reserved, none.reserved, sizeof none.reserved));
    release_tiles();
    for (int i = 0; i < 16; i++) {
        must(shapes->rows[i] <= 16 && shapes->bytes[i] <= 64 && !shapes->rows[i] == !shapes->bytes[i]);
        must(i < 8 || !shapes->rows[i]);
        if (i < 8) emulated[i].rows = shapes->rows[i], emulated[i].bytes = shapes->bytes[i];
    }
}

static void CLEAR_TILE(int t) {
    must(emulated[t].rows);
    memset(&emulated[t].data, 0, sizeof emulated[t].data);
}

static void LOAD_TILE(int t, const void *from, int64_t apart) {
    CLEAR_TILE(t);
    must(emulated[t].bytes % 4 == 0);
    for (int r = 0; r < emulated[t].rows; r++)
        memcpy(emulated[t].data.rows[r], (const char *)from + r * apart, (size_t)emulated[t].bytes);
}

static void STORE_TILE(int t, void *to, int64_t apart) {
    must(emulated[t].rows && emulated[t].bytes % 4 == 0);
    for (int r = 0; r < emulated[t].rows; r++)
        memcpy((char *)to + r * apart, emulated[t].data.rows[r], (size_t)emulated[t].bytes);
}

static void must_fit(int sums, int x, int w) {
    must(sums != x && sums != w && x != w);
    must(emulated[sums].rows && emulated[sums].rows == emulated[x].rows);
    must(emulated[sums].bytes == emulated[w].bytes && emulated[x].bytes == 4 * emulated[w].rows);
    must(emulated[sums].bytes % 4 == 0);
}

/* Subnormal numbers are zeros, before and after each operation. */
static float flushed(float x) {
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x;
}

static float float_of(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return flushed(y);
}

static void ADD_PAIR_PRODUCTS(int sums, int x, int w) {
    must_fit(sums, x, w);
    for (int m = 0; m < emulated[sums].rows; m++)
        for (int n = 0; n < emulated[sums].bytes / 4; n++) {
            float both[2] = {0}, *sum = &emulated[sums].data.floats[m][n];
            for (int k = 0; k < emulated[w].rows; k++)
                for (int i = 0; i < 2; i++)
                    both[i] = flushed(__builtin_fmaf(float_of(emulated[x].data.halves[m][2 * k + i]),
                                                     float_of(emulated[w].data.halves[k][2 * n + i]),
                                                     both[i]));
            *sum = flushed(flushed(*sum) + flushed(both[0] + both[1]));
        }
}

static void ADD_BYTE_PRODUCTS(int sums, int x, int w) {
    must_fit(sums, x, w);
    for (int m = 0; m < emulated[sums].rows; m++)
        for (int n = 0; n < emulated[sums].bytes / 4; n++)
            for (int k = 0; k < emulated[w].rows; k++)
                for (int i = 0; i < 4; i++)
                    emulated[sums].data.numbers[m][n] += (int8_t)emulated[x].data.rows[m][4 * k + i] *
                                                      emulated[w].data.rows[k][4 * n + i];
}
