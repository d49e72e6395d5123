// Sixteen floats in one AVX-512 register; integer dot products with VNNI.
#pragma once
#include <immintrin.h>

typedef __m512 vec;
#define ROWS_MOST 8      // rows of a product at once
#define TILES_MOST 2     // tiles at once: an input that is fetched serves both, and fetching is what limits
#define QUERIES_MOST 6   // queries of attention at once
#define VALUES_WIDE 4    // vectors of a value row at once

INLINE vec v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vec a) { _mm512_storeu_ps(p, a); }
INLINE vec v_set(float a) { return _mm512_set1_ps(a); }
INLINE vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec v_abs(vec a) { return _mm512_abs_ps(a); }
INLINE vec v_round(vec a) { return _mm512_roundscale_ps(a, 0); }
INLINE vec v_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }    // a b + c
INLINE vec v_fnma(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
INLINE vec v_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void v_store_half(uint16_t *p, vec a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, 0)); }

INLINE vec v_power_of_two(vec n) {  // of whole numbers from -126 to 127
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
INLINE vec v_zero_below(vec a, vec x, float limit) {  // a where x >= limit, else 0
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), a);
}
INLINE __m256 v_low(vec a) { return _mm512_castps512_ps256(a); }
INLINE __m256 v_high(vec a) { return _mm512_extractf32x8_ps(a, 1); }

INLINE void v_store_int8(int8_t *p, vec a) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
INLINE int sum_int8(const int8_t *p) {  // of 32
    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_reduce_add_epi32(_mm512_madd_epi16(wide, _mm512_set1_epi16(1)));
}

INLINE __m512i four_inputs(const int8_t *p) { int32_t four; memcpy(&four, p, 4); return _mm512_set1_epi32(four); }

// Sums over a group of 32 inputs for `tiles` tiles of 16 outputs and `rows` rows of activations.
INLINE void dot_q4(int rows, int tiles, const uint8_t *weights, size_t tile_stride, const int8_t *inputs,
                   const int32_t *totals, vec sums[TILES_MOST][ROWS_MOST]) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i sum[TILES_MOST][ROWS_MOST];
    (void)totals;
    UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int r = 0; r < rows; r++) sum[t][r] = _mm512_setzero_si512();
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i first[TILES_MOST], second[TILES_MOST];
        UNROLL for (int t = 0; t < tiles; t++) {
            __m512i both = _mm512_loadu_si512(weights + t * tile_stride + 64 * j);
            first[t] = _mm512_and_si512(both, low);
            second[t] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            __m512i four = four_inputs(inputs + r * MOA_GROUP + 8 * j);
            UNROLL for (int t = 0; t < tiles; t++) sum[t][r] = _mm512_dpbusd_epi32(sum[t][r], first[t], four);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            __m512i four = four_inputs(inputs + r * MOA_GROUP + 8 * j + 4);
            UNROLL for (int t = 0; t < tiles; t++) sum[t][r] = _mm512_dpbusd_epi32(sum[t][r], second[t], four);
        }
    }
    UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int r = 0; r < rows; r++) sums[t][r] = _mm512_cvtepi32_ps(sum[t][r]);
}

// The instruction multiplies unsigned by signed: weights get 128 added, which `totals` (sums of the inputs) take off.
INLINE void dot_q8(int rows, int tiles, const uint8_t *weights, size_t tile_stride, const int8_t *inputs,
                   const int32_t *totals, vec sums[TILES_MOST][ROWS_MOST]) {
    __m512i sum[TILES_MOST][ROWS_MOST];
    UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int r = 0; r < rows; r++) sum[t][r] = _mm512_set1_epi32(-128 * totals[r]);
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i shifted[TILES_MOST];
        UNROLL for (int t = 0; t < tiles; t++)
            shifted[t] = _mm512_xor_si512(_mm512_loadu_si512(weights + t * tile_stride + 64 * j),
                                          _mm512_set1_epi8((char)128));
        UNROLL for (int r = 0; r < rows; r++) {
            __m512i four = four_inputs(inputs + r * MOA_GROUP + 4 * j);
            UNROLL for (int t = 0; t < tiles; t++) sum[t][r] = _mm512_dpbusd_epi32(sum[t][r], shifted[t], four);
        }
    }
    UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int r = 0; r < rows; r++) sums[t][r] = _mm512_cvtepi32_ps(sum[t][r]);
}
