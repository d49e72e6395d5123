// What a core can do at most: the instructions that products are made of, on registers alone.
#pragma once

#define PEAK_SUMS 12  // independent: more than an instruction's latency covers

#if defined(MOA_VARIANT_AMX)
// Two tile registers of activations by two of weights, into four of sums.
static int64_t peak_products(int64_t rounds) {
    _Alignas(64) static const int8_t codes[1024];
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.rows[i] = 16, config.row_bytes[i] = 64;
    configure_tiles(&config);
    _tile_loadd(0, codes, 64);
    _tile_loadd(1, codes, 64);
    _tile_loadd(2, codes, 64);
    _tile_loadd(3, codes, 64);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbssd(4, 0, 2);
        _tile_dpbssd(5, 0, 3);
        _tile_dpbssd(6, 1, 2);
        _tile_dpbssd(7, 1, 3);
    }
    _tile_release();
    return rounds * 4 * 16 * 16 * 64;
}
#else
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
#endif
