// Sums over the lanes of a vector, in the one order that all instruction sets share: halves onto each other.
#pragma once

INLINE float v_sum(vec a) {
    __m256 eight = _mm256_add_ps(v_low(a), v_high(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
INLINE float v_maximum(vec a) {
    __m256 eight = _mm256_max_ps(v_low(a), v_high(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
