// Sixteen floats in one AVX-512 register; integer dot products with VNNI.
#pragma once
#include <immintrin.h>

typedef __m512 vec;
#define ROWS_MOST 8      // rows of a product at once
// Rows that a product computes at least, dropping what it makes of those that are not there. A row by itself asks for
// weights so fast that memory delivers up to a sixth more slowly than to two (docs/engine.md).
#define ROWS_LEAST 2
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
INLINE vec v_load_int8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE int sum_int8(const int8_t *p) {  // of 16
    return _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512i four_inputs(const int8_t *p) { int32_t four; memcpy(&four, p, 4); return _mm512_set1_epi32(four); }
