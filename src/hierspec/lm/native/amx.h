/* AMX: eight tiles of up to 16 rows of 64 bytes, and their products.
 *
 * Instructions are spelled out: gcc's intrinsics do not say that they read memory (of a configuration,
 * the first 8 of 64 bytes), so that what is written just before might be left out. With EMULATED_AMX they
 * are plain C: tests/lm/native/emulated_amx.h. A tile is named by its number, 0 … 7, written out.
 */
typedef struct {
    uint8_t palette, first_row, reserved[14];
    uint16_t bytes[16]; /* of a row of each tile */
    uint8_t rows[16];
} TileShapes;

#if defined(EMULATED_AMX)
#include "emulated_amx.h"
#else
/* Give the tiles of this thread their shapes, and zeros. */
INLINE void set_tiles(const TileShapes *shapes) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*shapes) : "memory");
}
/* Give them up: a thread without tiles is switched sooner. */
INLINE void release_tiles(void) { __asm__ volatile("tilerelease"); }
#define CLEAR_TILE(t) __asm__ volatile("tilezero %%tmm" #t : :)
/* Rows of a tile from memory, or to it, so many bytes apart. */
#define LOAD_TILE(t, from, apart)                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                                \
                     :                                                                              \
                     : "r"((const void *)(from)), "r"((int64_t)(apart))                             \
                     : "memory")
#define STORE_TILE(t, to, apart)                                                                    \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                            \
                     :                                                                              \
                     : "r"((void *)(to)), "r"((int64_t)(apart))                                     \
                     : "memory")
/* sums [m, n] += Σ x [m, k] w [k, n]: x and w in pairs of bfloat16 numbers, for sums in float32. Those
 * of a tile's first numbers and of its second are added up for themselves, then both, then to `sums`. */
#define ADD_PAIR_PRODUCTS(sums, x, w)                                                               \
    __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : :)
/* The same in fours of bytes, x −128 … 127 and w 0 … 255, for sums in 32 bits. */
#define ADD_BYTE_PRODUCTS(sums, x, w)                                                               \
    __asm__ volatile("tdpbsud %%tmm" #w ", %%tmm" #x ", %%tmm" #sums : :)
#endif
