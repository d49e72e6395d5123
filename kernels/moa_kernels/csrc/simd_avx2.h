// Sixteen floats in two AVX registers; integer dot products with AVX-VNNI, or in 16 bits where that is missing.
#pragma once
#include <immintrin.h>

typedef struct { __m256 a, b; } vec;
#define ROWS_MOST 4
#define TILES_MOST 1
#define QUERIES_MOST 3
#define VALUES_WIDE 1
#define V_BOTH(name, x, y) ((vec){_mm256_##name##_ps((x).a, (y).a), _mm256_##name##_ps((x).b, (y).b)})
#define V_THREE(name, x, y, z) \
    ((vec){_mm256_##name##_ps((x).a, (y).a, (z).a), _mm256_##name##_ps((x).b, (y).b, (z).b)})

INLINE vec v_load(const float *p) { return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE void v_store(float *p, vec a) { _mm256_storeu_ps(p, a.a), _mm256_storeu_ps(p + 8, a.b); }
INLINE vec v_set(float a) { return (vec){_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
INLINE vec v_add(vec a, vec b) { return V_BOTH(add, a, b); }
INLINE vec v_sub(vec a, vec b) { return V_BOTH(sub, a, b); }
INLINE vec v_mul(vec a, vec b) { return V_BOTH(mul, a, b); }
INLINE vec v_div(vec a, vec b) { return V_BOTH(div, a, b); }
INLINE vec v_max(vec a, vec b) { return V_BOTH(max, a, b); }
INLINE vec v_abs(vec a) { vec sign = v_set(-0.f); return V_BOTH(andnot, sign, a); }
INLINE vec v_round(vec a) { return (vec){_mm256_round_ps(a.a, 8), _mm256_round_ps(a.b, 8)}; }
INLINE vec v_fma(vec a, vec b, vec c) { return V_THREE(fmadd, a, b, c); }    // a b + c
INLINE vec v_fnma(vec a, vec b, vec c) { return V_THREE(fnmadd, a, b, c); }  // c - a b
INLINE vec v_load_half(const uint16_t *p) {
    return (vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
INLINE void v_store_half(uint16_t *p, vec a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.a, 0));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.b, 0));
}
INLINE __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE vec v_power_of_two(vec n) { return (vec){power_of_two(n.a), power_of_two(n.b)}; }
INLINE vec v_zero_below(vec a, vec x, float limit) {  // a where x >= limit, else 0
    __m256 least = _mm256_set1_ps(limit);
    return (vec){_mm256_and_ps(a.a, _mm256_cmp_ps(x.a, least, _CMP_GE_OQ)),
                 _mm256_and_ps(a.b, _mm256_cmp_ps(x.b, least, _CMP_GE_OQ))};
}
INLINE __m256 v_low(vec a) { return a.a; }
INLINE __m256 v_high(vec a) { return a.b; }

INLINE void v_store_int8(int8_t *p, vec a) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i *)p,
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
INLINE int sum_int8(const int8_t *p) {  // of 32
    int sum = 0;
    for (int i = 0; i < 32; i++) sum += p[i];
    return sum;
}

INLINE __m256i four_inputs(const int8_t *p) { int32_t four; memcpy(&four, p, 4); return _mm256_set1_epi32(four); }
INLINE void set_half(vec *v, int half, __m256 a) { if (half) v->b = a; else v->a = a; }

#ifdef MOA_VARIANT_AVXVNNI
INLINE __m256i dot(__m256i sum, __m256i weights, __m256i inputs) {
    return _mm256_dpbusd_avx_epi32(sum, weights, inputs);
}
#else
INLINE __m256i dot(__m256i sum, __m256i weights, __m256i inputs) {  // |sum of a pair| stays below 2**15 (see dot_q8)
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, inputs), _mm256_set1_epi16(1)));
}
#endif

// Sums over a group of 32 inputs for one tile of 16 outputs and `rows` rows of activations.
INLINE void dot_q4(int rows, int tiles, const uint8_t *weights, size_t tile_stride, const int8_t *inputs,
                   const int32_t *totals, vec sums[TILES_MOST][ROWS_MOST]) {
    const __m256i low = _mm256_set1_epi8(15);
    (void)tiles, (void)tile_stride, (void)totals;
    for (int half = 0; half < 2; half++) {
        __m256i sum[ROWS_MOST];
        UNROLL for (int r = 0; r < rows; r++) sum[r] = _mm256_setzero_si256();
        for (int j = 0; j < 4; j++) {
            __m256i both = _mm256_loadu_si256((const __m256i *)(weights + 64 * j + 32 * half));
            __m256i first = _mm256_and_si256(both, low), second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
            UNROLL for (int r = 0; r < rows; r++) {
                const int8_t *eight = inputs + r * MOA_GROUP + 8 * j;
#ifdef MOA_VARIANT_AVXVNNI
                sum[r] = dot(dot(sum[r], first, four_inputs(eight)), second, four_inputs(eight + 4));
#else  // a whole group fits into 16 bits: 16 products of at most 15 * 127 a lane
                sum[r] = _mm256_add_epi16(sum[r], _mm256_maddubs_epi16(first, four_inputs(eight)));
                sum[r] = _mm256_add_epi16(sum[r], _mm256_maddubs_epi16(second, four_inputs(eight + 4)));
#endif
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
#ifndef MOA_VARIANT_AVXVNNI
            sum[r] = _mm256_madd_epi16(sum[r], _mm256_set1_epi16(1));
#endif
            set_half(&sums[0][r], half, _mm256_cvtepi32_ps(sum[r]));
        }
    }
}

// The instructions multiply unsigned by signed. AVX-VNNI: weights get 128 added, which `totals` (sums of the inputs) take
// off. AVX2, whose pairs must fit into 16 bits: the inputs' signs go over to the weights, which are never -128.
INLINE void dot_q8(int rows, int tiles, const uint8_t *weights, size_t tile_stride, const int8_t *inputs,
                   const int32_t *totals, vec sums[TILES_MOST][ROWS_MOST]) {
    (void)tiles, (void)tile_stride, (void)totals;
    for (int half = 0; half < 2; half++) {
        __m256i sum[ROWS_MOST];
#ifdef MOA_VARIANT_AVXVNNI
        UNROLL for (int r = 0; r < rows; r++) sum[r] = _mm256_set1_epi32(-128 * totals[r]);
#else
        UNROLL for (int r = 0; r < rows; r++) sum[r] = _mm256_setzero_si256();
#endif
        for (int j = 0; j < 8; j++) {
            __m256i w = _mm256_loadu_si256((const __m256i *)(weights + 64 * j + 32 * half));
#ifdef MOA_VARIANT_AVXVNNI
            w = _mm256_xor_si256(w, _mm256_set1_epi8((char)128));
            UNROLL for (int r = 0; r < rows; r++) sum[r] = dot(sum[r], w, four_inputs(inputs + r * MOA_GROUP + 4 * j));
#else
            UNROLL for (int r = 0; r < rows; r++) {
                __m256i four = four_inputs(inputs + r * MOA_GROUP + 4 * j);
                sum[r] = dot(sum[r], _mm256_abs_epi8(four), _mm256_sign_epi8(w, four));
            }
#endif
        }
        UNROLL for (int r = 0; r < rows; r++) set_half(&sums[0][r], half, _mm256_cvtepi32_ps(sum[r]));
    }
}
