// Sixteen floats in two AVX registers.
#pragma once
#include <immintrin.h>

typedef struct { __m256 a, b; } vec;
#define ROWS_MOST 4
#define ROWS_LEAST 1
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
INLINE __m256 eight_int8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vec v_load_int8(const int8_t *p) { return (vec){eight_int8(p), eight_int8(p + 8)}; }
INLINE int sum_int8(const int8_t *p) {  // of 16
    int sum = 0;
    for (int i = 0; i < 16; i++) sum += p[i];
    return sum;
}

INLINE __m256i four_inputs(const int8_t *p) { int32_t four; memcpy(&four, p, 4); return _mm256_set1_epi32(four); }
