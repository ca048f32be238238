/* Vectors of as many numbers as a register holds, in GNU C, and what needs the processor's own words.
 *
 * Every sum has one order, whatever is computed beside it; multiply-adds that must round alike
 * wherever they are inlined are spelled out (`fma_vec`).
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

/* Vectors of other sizes live in memory with gcc. */
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define W 16
#elif defined(__AVX__)
#define W 8
#else
#define W 4
#endif
typedef float vec __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t word __attribute__((may_alias));
typedef uint32_t uword __attribute__((may_alias));
typedef float half_vec __attribute__((vector_size(2 * W), aligned(4), may_alias));
typedef double double_vec __attribute__((vector_size(4 * W)));
#define INLINE static inline __attribute__((always_inline))

/* Ask for the 64 bytes at x, for the first cache or the second. gcc takes __builtin_prefetch for a
 * write, before which sums in registers are stored. */
#if defined(__x86_64__)
INLINE void fetch(const void *x) { __asm__ volatile("prefetcht0 (%0)" : : "r"(x)); }
INLINE void fetch_early(const void *x) { __asm__ volatile("prefetcht1 (%0)" : : "r"(x)); }
#elif defined(__aarch64__)
INLINE void fetch(const void *x) { __asm__ volatile("prfm pldl1keep, [%0]" : : "r"(x)); }
INLINE void fetch_early(const void *x) { __asm__ volatile("prfm pldl2keep, [%0]" : : "r"(x)); }
#else
INLINE void fetch(const void *x) { (void)x; }
INLINE void fetch_early(const void *x) { (void)x; }
#endif

INLINE vec fma_vec(vec a, vec b, vec c) {
#if W == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif W == 8 && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif W == 4 && defined(__ARM_NEON) && defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* The same of one number: left to the compiler, it rounds once here and twice there. */
INLINE float fma_float(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE vec all_of(float x) { return x - (vec){0}; } /* 0 + x would be computed, for x = −0 */
/* The same of a number in memory; gcc would go on with it alone, and copy it to all lanes then. */
INLINE ivec all_of_word(const word *x) {
#if W == 16
    /* Not by _mm_loadu_si32, which gcc has since 11 and has right since 11.3. */
    return (ivec)_mm512_broadcastd_epi32(_mm_set_epi32(0, 0, 0, *x));
#else
    return (ivec){0} + *x;
#endif
}
/* Lane by lane, by a comparison. */
INLINE vec choose(ivec which, vec yes, vec no) {
    return (vec)(((ivec)yes & which) | ((ivec)no & ~which));
}
/* x, computed now: of sums gcc would keep all that is to be added in memory, and add it up at the end. */
INLINE ivec now(ivec x) {
#if defined(__x86_64__)
    __asm__("" : "+v"(x));
#endif
    return x;
}
INLINE vec to_floats(ivec x) { return __builtin_convertvector(x, vec); }

INLINE float sum_lanes(vec x) {
    float sums[W];
    memcpy(sums, &x, sizeof sums);
    for (int width = W / 2; width; width /= 2)
        for (int i = 0; i < width; i++) sums[i] += sums[i + width];
    return sums[0];
}

/* W whole numbers of a byte each in float32. */
INLINE vec load_int8(const int8_t *x) {
#if W == 16
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)x)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)x)));
#else
    vec wide;
    for (int i = 0; i < W; i++) wide[i] = x[i];
    return wide;
#endif
}

INLINE vec load_uint8(const uint8_t *x) {
#if W == 16
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)x)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)x)));
#else
    vec wide;
    for (int i = 0; i < W; i++) wide[i] = x[i];
    return wide;
#endif
}

INLINE float from_float16(uint16_t x) {
    /* The exponent's bias differs by 112; so multiplied, subnormal numbers come out right. */
    uint32_t bits = (uint32_t)(x & 0x7fff) << 13;
    if ((x & 0x7c00) == 0x7c00) bits |= 0x7f800000; /* no number: NaN stays it */
    float magnitude;
    memcpy(&magnitude, &bits, sizeof bits);
    magnitude *= 0x1p112f;
    return x & 0x8000 ? -magnitude : magnitude;
}

/* W float16 numbers in float32. */
INLINE vec load_float16(const uint16_t *x) {
#if W == 16
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
#elif defined(__F16C__) && W == 8
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x));
#elif defined(__aarch64__)
    return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
#else
    vec wide;
    for (int i = 0; i < W; i++) wide[i] = from_float16(x[i]);
    return wide;
#endif
}

/* W bfloat16 numbers in float32. */
INLINE vec load_bfloat16(const uint16_t *x) {
#if W == 16
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)x)), 16);
#elif defined(__AVX2__)
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)x)), 16);
#else
    ivec wide;
    for (int i = 0; i < W; i++) wide[i] = (int32_t)((uint32_t)x[i] << 16);
    return (vec)wide;
#endif
}

/* The nearest bfloat16 number. */
INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The nearest float16 number; beyond the largest of them, that one. */
INLINE uint16_t to_float16(float x) {
    uint32_t bits, sign;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000, bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7e00; /* NaN */
    if (bits > 0x477fe000) bits = 0x477fe000;
    if (bits < 0x38800000) { /* subnormal: in units of a float32 number near .5 */
        float shifted;
        memcpy(&shifted, &bits, sizeof bits);
        shifted += 0.5f;
        memcpy(&bits, &shifted, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    return (uint16_t)(sign | ((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13));
}

/* Two bfloat16 numbers for each of W: weights side by side, or the same two inputs in all. */
#if defined(__AVX512BF16__) && W == 16
#define PAIR_PRODUCTS 1 /* whether one instruction adds the products of pairs */
typedef __m512i Pairs;
INLINE Pairs load_pairs(const uint32_t *w) { return _mm512_loadu_si512(w); }
INLINE Pairs broadcast_pair(uint32_t x) { return _mm512_set1_epi32((int)x); }
INLINE vec add_pair_products(vec sum, Pairs w, Pairs x) {
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
}
/* The numbers of `low`, then those of `high`. */
INLINE Pairs round_pairs(vec low, vec high) {
    return (Pairs)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
#else
#define PAIR_PRODUCTS 0
typedef ivec Pairs;
INLINE Pairs load_pairs(const uint32_t *w) { return *(const ivec *)w; }
INLINE Pairs broadcast_pair(uint32_t x) { return (ivec){0} + (int32_t)x; }
INLINE vec add_pair_products(vec sum, Pairs w, Pairs x) {
    /* A bfloat16 number is the upper half of a float32. */
    const int32_t upper = (int32_t)0xffff0000;
    return fma_vec((vec)(w & upper), (vec)(x & upper), fma_vec((vec)(w << 16), (vec)(x << 16), sum));
}
#endif

/* 4 W bytes, four for each lane. `add_quads`: sum += Σ of a lane's four (0 … most) times the four inputs
 * at x (a byte each, −128 … 127). WHOLE_BYTES: it takes as long for bytes above 127.
 *
 * x86 without AVX-512's VNNI has SHORT_PRODUCTS instead: sum += Σ of a lane's two numbers of 16 bits, which
 * its even bytes and its odd ones are, times those of y (`add_short_products`); and products of its bytes
 * and signed ones, in pairs of 16 bits (`multiply_bytes`). `store_shorts`: 2 W numbers in 16 bits, of each
 * four the first, the third, the second and the fourth. */
#define SHORTS_BY_TURNS _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)
#if W == 16
typedef __m512i Bytes;
INLINE Bytes load_bytes(const uint8_t *x) { return _mm512_loadu_si512(x); }
INLINE Bytes bits_of(Bytes x, const int shift, const int mask) {
    if (shift > 0) x = _mm512_srli_epi16(x, shift);
    if (shift < 0) x = _mm512_slli_epi16(x, -shift);
    return _mm512_and_si512(x, _mm512_set1_epi8((char)mask));
}
INLINE Bytes with_bits(Bytes y, Bytes x, const int shift, const int mask) {
    if (shift > 0) x = _mm512_srli_epi16(x, shift);
    if (shift < 0) x = _mm512_slli_epi16(x, -shift);
    return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8((char)mask), y, 0xea); /* x & mask | y */
}
/* Add `bit` to the bytes whose bit is set in 4 W bits. */
INLINE Bytes add_bit(Bytes x, const uint8_t *set, const int bit) {
    uint64_t mask;
    memcpy(&mask, set, sizeof mask);
    return _mm512_mask_add_epi8(x, (__mmask64)mask, x, _mm512_set1_epi8((char)bit));
}
INLINE Bytes look_up(Bytes x, const uint8_t *table) {
    __m128i numbers = _mm_loadu_si128((const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(numbers), x);
}
#if defined(__AVX512VNNI__)
#define WHOLE_BYTES 1
/* gcc would take an instruction more, to copy the inputs to all lanes. */
INLINE ivec add_quads(const int most, ivec sum, Bytes codes, const word *x) {
    (void)most;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*x));
    return sum;
}
#else
#define WHOLE_BYTES 0
#define SHORT_PRODUCTS 1
INLINE Bytes all_of_bytes(const word *x) { return _mm512_set1_epi32(*x); }
INLINE Bytes even_bytes(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi16(255)); }
INLINE Bytes odd_bytes(Bytes x) { return _mm512_srli_epi16(x, 8); }
INLINE ivec add_short_products(ivec sum, Bytes x, Bytes y) {
    return now(sum + (ivec)_mm512_madd_epi16(x, y));
}
INLINE Bytes multiply_bytes(Bytes codes, Bytes y) { return _mm512_maddubs_epi16(codes, y); }
INLINE Bytes add_shorts(Bytes x, Bytes y) { return _mm512_add_epi16(x, y); }
INLINE void store_shorts(const int32_t *x, int16_t *to) {
    const __m512i own = _mm512_packs_epi32(_mm512_loadu_si512(x), _mm512_loadu_si512(x + W));
    const __m512i quads = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i order = _mm512_broadcast_i32x4(SHORTS_BY_TURNS);
    _mm512_storeu_si512(to, _mm512_shuffle_epi8(_mm512_permutexvar_epi64(quads, own), order));
}
#endif
#elif defined(__AVX2__)
#define WHOLE_BYTES 0
typedef __m256i Bytes;
INLINE Bytes load_bytes(const uint8_t *x) { return _mm256_loadu_si256((const void *)x); }
INLINE Bytes bits_of(Bytes x, const int shift, const int mask) {
    if (shift > 0) x = _mm256_srli_epi16(x, shift);
    if (shift < 0) x = _mm256_slli_epi16(x, -shift);
    return _mm256_and_si256(x, _mm256_set1_epi8((char)mask));
}
INLINE Bytes with_bits(Bytes y, Bytes x, const int shift, const int mask) {
    return _mm256_or_si256(y, bits_of(x, shift, mask));
}
INLINE Bytes add_bit(Bytes x, const uint8_t *set, const int bit) {
    int32_t mask;
    memcpy(&mask, set, sizeof mask);
    const __m256i own = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                           0x0303030303030303);
    const __m256i of = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), own), of);
    __m256i found = _mm256_cmpeq_epi8(spread, of);
    return _mm256_or_si256(x, _mm256_and_si256(found, _mm256_set1_epi8((char)bit)));
}
INLINE Bytes look_up(Bytes x, const uint8_t *table) {
    __m128i numbers = _mm_loadu_si128((const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(numbers), x);
}
#define SHORT_PRODUCTS 1
INLINE Bytes all_of_bytes(const word *x) { return _mm256_set1_epi32(*x); }
INLINE Bytes even_bytes(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi16(255)); }
INLINE Bytes odd_bytes(Bytes x) { return _mm256_srli_epi16(x, 8); }
INLINE ivec add_short_products(ivec sum, Bytes x, Bytes y) {
#if defined(__AVXVNNI__)
    return (ivec)_mm256_dpwssd_avx_epi32((__m256i)sum, x, y);
#else
    return now(sum + (ivec)_mm256_madd_epi16(x, y));
#endif
}
INLINE Bytes multiply_bytes(Bytes codes, Bytes y) { return _mm256_maddubs_epi16(codes, y); }
INLINE Bytes add_shorts(Bytes x, Bytes y) { return _mm256_add_epi16(x, y); }
INLINE void store_shorts(const int32_t *x, int16_t *to) {
    const __m256i own = _mm256_packs_epi32(load_bytes((const void *)x), load_bytes((const void *)(x + W)));
    const __m256i order = _mm256_broadcastsi128_si256(SHORTS_BY_TURNS);
    _mm256_storeu_si256((void *)to, _mm256_shuffle_epi8(_mm256_permute4x64_epi64(own, 0xd8), order));
}
#else
typedef uint8_t Bytes __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef int16_t shorts __attribute__((vector_size(4 * W), may_alias));
INLINE Bytes load_bytes(const uint8_t *x) {
    Bytes bytes;
    memcpy(&bytes, x, sizeof bytes);
    return bytes;
}
INLINE Bytes bits_of(Bytes x, const int shift, const int mask) {
    return (shift > 0 ? x >> shift : x << -shift) & (Bytes)((Bytes){0} + (uint8_t)mask);
}
INLINE Bytes with_bits(Bytes y, Bytes x, const int shift, const int mask) {
    return y | bits_of(x, shift, mask);
}
INLINE Bytes add_bit(Bytes x, const uint8_t *set, const int bit) {
    const uint64_t all = 0x0101010101010101, own = 0x8040201008040201; /* a lane's own bit */
    uint64_t lanes[W / 2];
    for (int i = 0; i < W / 2; i++) lanes[i] = set[i] * all & own;
    Bytes found;
    memcpy(&found, lanes, sizeof found);
    return x | ((Bytes)(found != 0) & (Bytes)((Bytes){0} + (uint8_t)bit));
}
#if defined(__aarch64__) && W == 4
INLINE Bytes look_up(Bytes x, const uint8_t *table) {
    return (Bytes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)x);
}
#else
/* Byte by byte: inlined wherever a row needs it, it would take a compiler minutes. */
static __attribute__((noinline, unused)) Bytes look_up(Bytes x, const uint8_t *table) {
    for (int i = 0; i < 4 * W; i++) x[i] = table[x[i]];
    return x;
}
#endif
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define WHOLE_BYTES 0
#else
#define WHOLE_BYTES 1
#endif
INLINE ivec add_quads(const int most, ivec sum, Bytes codes, const word *x) {
#if defined(__ARM_FEATURE_MATMUL_INT8) && W == 4
    (void)most;
    int8x16_t inputs = vreinterpretq_s8_s32(vdupq_n_s32(*x));
    return (ivec)vusdotq_s32((int32x4_t)sum, (uint8x16_t)codes, inputs);
#elif defined(__ARM_FEATURE_DOTPROD) && W == 4
    int8x16_t inputs = vreinterpretq_s8_s32(vdupq_n_s32(*x));
    if (most < 128) return (ivec)vdotq_s32((int32x4_t)sum, (int8x16_t)codes, inputs);
    /* A code is 128 more than a byte with a sign. */
    int8x16_t less = (int8x16_t)(codes ^ (Bytes)((Bytes){0} + 128));
    int32x4_t with = vdotq_s32((int32x4_t)sum, less, inputs);
    int8x16_t half = vdupq_n_s8(64);
    return (ivec)vdotq_s32(vdotq_s32(with, half, inputs), half, inputs);
#else
    /* In each 16 bits a product, of bytes 0 and 2 of a lane or of bytes 1 and 3. */
    (void)most;
    const shorts bytes = (shorts)codes, inputs = (shorts)((ivec){0} + *x);
    const ivec even = (ivec)((bytes & 255) * (inputs << 8 >> 8));
    const ivec odd = (ivec)((bytes >> 8 & 255) * (inputs >> 8));
    return sum + (even << 16 >> 16) + (even >> 16) + (odd << 16 >> 16) + (odd >> 16);
#endif
}
#endif

#ifndef SHORT_PRODUCTS
#define SHORT_PRODUCTS 0
#endif

static float dot(const float *a, const float *b, int64_t n) {
    vec sum = {0};
    int64_t k = 0;
    for (; k + W <= n; k += W) sum = fma_vec(*(const vec *)(a + k), *(const vec *)(b + k), sum);
    float rest = sum_lanes(sum);
    for (; k < n; k++) rest = fma_float(a[k], b[k], rest);
    return rest;
}
/* e^x for x ≤ 88, to about 1e-7: 2^n · a polynomial on ± ln 2 / 2. */
INLINE vec exponential(vec x) {
    x = choose(x < -87.0f, all_of(-87.0f), x);
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

/* Two vectors' numbers by turns: of their first halves, of their second. */
#if W == 16
#define FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif W == 8
#define FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FIRST_HALVES 0, 4, 1, 5
#define SECOND_HALVES 2, 6, 3, 7
#endif
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* Number j of v[i] goes to number i of v[j]. */
INLINE void transpose(vec *v) {
#pragma GCC unroll 4
    for (int round = 1; round < W; round *= 2) {
        vec next[W];
#pragma GCC unroll 8
        for (int i = 0; i < W / 2; i++) {
            next[2 * i] = SHUFFLE(v[i], v[i + W / 2], FIRST_HALVES);
            next[2 * i + 1] = SHUFFLE(v[i], v[i + W / 2], SECOND_HALVES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) v[i] = next[i];
    }
}
