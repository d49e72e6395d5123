// What a core can do at most: the instructions that products are made of, on registers alone.
#pragma once

#define PEAK_SUMS 12  // independent: more than an instruction's latency covers

#ifdef MOA_VARIANT_NEON
typedef int32x4_t peak_t;
#define USE(sum) __asm__ volatile("" : : "w"(sum))
INLINE peak_t peak_dot(peak_t sum, peak_t codes) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(codes));
}
INLINE peak_t peak_zero(void) { return vdupq_n_s32(0); }
#else
typedef ivec peak_t;
#define USE(sum) __asm__ volatile("" : : "v"(sum))  // or the compiler would drop what nobody reads
#if BIASED
INLINE peak_t peak_dot(peak_t sum, peak_t codes) { return dot(sum, codes, codes); }
#else
INLINE peak_t peak_dot(peak_t sum, peak_t codes) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, codes));
}
#endif
INLINE peak_t peak_zero(void) { return I_OP(set1_epi32)(0); }
#endif

static int64_t peak_products(int64_t rounds) {
    peak_t sums[PEAK_SUMS], codes = peak_zero();
    UNROLL for (int s = 0; s < PEAK_SUMS; s++) sums[s] = peak_zero();
    for (int64_t i = 0; i < rounds; i++)
        UNROLL for (int s = 0; s < PEAK_SUMS; s++) {
            HOLD(codes);  // or the compiler would multiply once
            sums[s] = peak_dot(sums[s], codes);
            HOLD(sums[s]);
        }
    UNROLL for (int s = 0; s < PEAK_SUMS; s++) USE(sums[s]);
    return rounds * PEAK_SUMS * (int64_t)sizeof(peak_t);
}
