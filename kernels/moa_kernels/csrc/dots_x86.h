// Sums over a group of 32 inputs, for the 16 outputs of a tile (two parts in AVX2) and a few rows.
//
// The instructions multiply unsigned codes by signed inputs. What a code lies above its weight (`bias`) times the sum of
// the inputs is taken off the sum, all in integers: below 2**24, so that it is exact in float32 too.
#pragma once

#if defined(MOA_VARIANT_AVX512) || defined(MOA_VARIANT_AMX)
#define PART_LANES 16
#define PARTS 1  // computed at once
typedef __m512i ivec;
typedef __m512 pvec;
#define I_OP(name) _mm512_##name
INLINE ivec i_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE ivec i_and(ivec a, ivec b) { return _mm512_and_si512(a, b); }
INLINE ivec i_or(ivec a, ivec b) { return _mm512_or_si512(a, b); }
INLINE ivec i_xor(ivec a, ivec b) { return _mm512_xor_si512(a, b); }
INLINE ivec i_table(const int8_t *p) { return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)p)); }
INLINE ivec i_bytes(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE ivec i_signed_bytes(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE pvec p_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE pvec p_bits(ivec a) { return _mm512_castsi512_ps(a); }
INLINE ivec dot(ivec sum, ivec weights, ivec inputs) { return _mm512_dpbusd_epi32(sum, weights, inputs); }
#define BIASED 1
#else
#define PART_LANES 8
#define PARTS 2  // computed at once: the inputs are loaded once for both
typedef __m256i ivec;
typedef __m256 pvec;
#define I_OP(name) _mm256_##name
INLINE ivec i_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE ivec i_and(ivec a, ivec b) { return _mm256_and_si256(a, b); }
INLINE ivec i_or(ivec a, ivec b) { return _mm256_or_si256(a, b); }
INLINE ivec i_xor(ivec a, ivec b) { return _mm256_xor_si256(a, b); }
INLINE ivec i_table(const int8_t *p) { return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)p)); }
INLINE ivec i_bytes(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE ivec i_signed_bytes(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE pvec p_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE pvec p_bits(ivec a) { return _mm256_castsi256_ps(a); }
#ifdef MOA_VARIANT_AVXVNNI
INLINE ivec dot(ivec sum, ivec weights, ivec inputs) { return _mm256_dpbusd_avx_epi32(sum, weights, inputs); }
#define BIASED 1
#else
#define BIASED 0  // pairs of products must fit into 16 bits: signed codes give their signs to the inputs
#endif
#endif

// Keeps a sum in its register. gcc at -O3 otherwise reorders the integer sums of all rows and spills nearly each one to
// the stack, which costs 40 % (docs/engine.md); the barrier costs nothing, and the bits are the same with and without.
#define HOLD(sum) __asm__("" : "+v"(sum))
// Has a sum computed that nothing reads.
#define COMPUTED(sum) __asm__ volatile("" : : "v"(sum))

INLINE pvec p_load(const float *p) { return I_OP(loadu_ps)(p); }
INLINE void p_store(float *p, pvec a) { I_OP(storeu_ps)(p, a); }
INLINE pvec p_set(float a) { return I_OP(set1_ps)(a); }
INLINE pvec p_add(pvec a, pvec b) { return I_OP(add_ps)(a, b); }
INLINE pvec p_mul(pvec a, pvec b) { return I_OP(mul_ps)(a, b); }
INLINE pvec p_fma(pvec a, pvec b, pvec c) { return I_OP(fmadd_ps)(a, b, c); }    // a b + c
INLINE pvec p_fnma(pvec a, pvec b, pvec c) { return I_OP(fnmadd_ps)(a, b, c); }  // c - a b
INLINE pvec p_bytes(const uint8_t *p) { return I_OP(cvtepi32_ps)(i_bytes(p)); }
INLINE pvec p_signed_bytes(const uint8_t *p) { return I_OP(cvtepi32_ps)(i_signed_bytes(p)); }
INLINE pvec p_low_nibbles(const uint8_t *p) {
    return I_OP(cvtepi32_ps)(i_and(i_bytes(p), I_OP(set1_epi32)(15)));
}
INLINE pvec p_high_nibbles(const uint8_t *p) { return I_OP(cvtepi32_ps)(I_OP(srli_epi32)(i_bytes(p), 4)); }
INLINE pvec p_exponent(const uint8_t *p) {  // half of 2^(exponent - 127)
    float scales[PART_LANES];
    for (int i = 0; i < PART_LANES; i++) scales[i] = exponent_to_float(p[i]);
    return p_load(scales);
}

INLINE int bias_of(int kind) {
    if (FORMATS[kind].table == MOA_TABLE_MXFP4) return 12;
    return BIASED && is_signed(kind) ? 128 : FORMATS[kind].offset;
}

INLINE ivec shifted(ivec a, int right) {
    return right > 0 ? I_OP(srli_epi16)(a, right) : right < 0 ? I_OP(slli_epi16)(a, -right) : a;
}

// Codes of the inputs 4 k to 4 k + 3, output after output; `planes`: of a group, from the part's first output on.
INLINE ivec fours(int kind, const uint8_t *planes, int k) {
    const int low = FORMATS[kind].low, high = FORMATS[kind].high, mask = (1 << low) - 1;
    ivec codes = i_load(planes + 64 * (k * low / 8));
    if (low == 8) return BIASED ? i_xor(codes, I_OP(set1_epi8)((char)128)) : codes;
    codes = i_and(shifted(codes, k * low % 8), I_OP(set1_epi8)((char)mask));
    if (high) {
        ivec above = shifted(i_load(planes + 64 * (low + k * high / 8)), k * high % 8 - low);
        codes = i_or(codes, i_and(above, I_OP(set1_epi8)((char)(((1 << high) - 1) << low))));
    }
    if (FORMATS[kind].table) {
        ivec table = i_table(TABLES[FORMATS[kind].table]);
        if (bias_of(kind)) table = I_OP(add_epi8)(table, I_OP(set1_epi8)((char)bias_of(kind)));
        codes = I_OP(shuffle_epi8)(table, codes);
    }
    return codes;
}

#if BIASED
INLINE void dot_group(int kind, int rows, const uint8_t *planes, const uint8_t *subs, const int8_t *inputs,
                      const int16_t *totals, pvec dots[][PARTS]) {
    const int halves = FORMATS[kind].halves, bias = bias_of(kind), span = halves ? 4 : 8;
    UNROLL for (int half = 0; half <= halves; half++) {
        ivec sum[ROWS_MOST][PARTS];
        UNROLL for (int r = 0; r < rows; r++) {
            int total = halves ? totals[2 * r + half] : totals[2 * r] + totals[2 * r + 1];
            UNROLL for (int p = 0; p < PARTS; p++) sum[r][p] = I_OP(set1_epi32)(-bias * total);
        }
        UNROLL for (int i = 0; i < span; i++) {
            const int k = 4 * half + i;
            ivec codes[PARTS];
            UNROLL for (int p = 0; p < PARTS; p++) codes[p] = fours(kind, planes + 4 * PART_LANES * p, k);
            UNROLL for (int r = 0; r < rows; r++) {
                ivec four = four_inputs(inputs + r * MOA_GROUP + 4 * k);
                UNROLL for (int p = 0; p < PARTS; p++) {
                    sum[r][p] = dot(sum[r][p], codes[p], four);
                    HOLD(sum[r][p]);
                }
            }
        }
        UNROLL for (int p = 0; p < PARTS; p++) {
            const uint8_t *at = subs + 16 * half + PART_LANES * p;
            pvec factor;
            if (halves) factor = FORMATS[kind].minima ? p_low_nibbles(at) : p_signed_bytes(at);
            UNROLL for (int r = 0; r < rows; r++) {
                pvec exact = I_OP(cvtepi32_ps)(sum[r][p]);
                if (halves) exact = half ? p_fma(exact, factor, dots[r][p]) : p_mul(exact, factor);
                dots[r][p] = exact;
            }
        }
    }
}
#else
// How many sums of two products fit into 16 bits.
INLINE int sums_in_16_bits(int kind) {
    if (is_signed(kind)) return 1;
    int most = FORMATS[kind].table ? 24 : (1 << (FORMATS[kind].low + FORMATS[kind].high)) - 1;
    int fit = 32767 / (2 * 127 * most);
    return fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

INLINE void dot_group(int kind, int rows, const uint8_t *planes, const uint8_t *subs, const int8_t *inputs,
                      const int16_t *totals, pvec dots[][PARTS]) {
    const int halves = FORMATS[kind].halves, bias = bias_of(kind);
    const int run = halves && sums_in_16_bits(kind) > 4 ? 4 : sums_in_16_bits(kind);
    ivec sum[ROWS_MOST][PARTS], words[ROWS_MOST][PARTS], factor[PARTS], factors[2][PARTS];
    UNROLL for (int p = 0; p < PARTS; p++) {
        factor[p] = _mm256_set1_epi16(1);
        if (halves)
            UNROLL for (int half = 0; half < 2; half++) {
                const uint8_t *at = subs + 16 * half + PART_LANES * p;
                factors[half][p] = FORMATS[kind].minima ? i_and(i_bytes(at), _mm256_set1_epi32(15)) : i_signed_bytes(at);
            }
    }
    UNROLL for (int k = 0; k < 8; k++) {
        ivec codes[PARTS], size[PARTS];
        UNROLL for (int p = 0; p < PARTS; p++) {
            if (halves && k % 4 == 0)  // the factor of a half, for both words of a sum
                factor[p] = i_or(i_and(factors[k / 4][p], _mm256_set1_epi32(0xffff)),
                                 _mm256_slli_epi32(factors[k / 4][p], 16));
            codes[p] = fours(kind, planes + 4 * PART_LANES * p, k);
            size[p] = is_signed(kind) ? _mm256_abs_epi8(codes[p]) : codes[p];
        }
        UNROLL for (int r = 0; r < rows; r++) {
            ivec four = four_inputs(inputs + r * MOA_GROUP + 4 * k);
            UNROLL for (int p = 0; p < PARTS; p++) {
                // inputs are never -128, codes may be
                ivec products = _mm256_maddubs_epi16(size[p], is_signed(kind) ? _mm256_sign_epi8(four, codes[p]) : four);
                words[r][p] = k % run ? _mm256_add_epi16(words[r][p], products) : products;
                HOLD(words[r][p]);
                if (k % run == run - 1) {
                    ivec wide = _mm256_madd_epi16(words[r][p], factor[p]);
                    sum[r][p] = k >= run ? _mm256_add_epi32(sum[r][p], wide) : wide;
                    HOLD(sum[r][p]);
                }
            }
        }
    }
    UNROLL for (int p = 0; p < PARTS; p++) {
        ivec both = _mm256_set1_epi32(bias * 0x10001);  // for the totals of the two halves
        if (bias && halves)
            both = _mm256_mullo_epi16(
                i_or(i_and(factors[0][p], _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(factors[1][p], 16)),
                _mm256_set1_epi16((short)bias));
        UNROLL for (int r = 0; r < rows; r++) {
            if (bias) {
                int32_t pair;
                memcpy(&pair, totals + 2 * r, 4);
                sum[r][p] = _mm256_sub_epi32(sum[r][p], _mm256_madd_epi16(both, _mm256_set1_epi32(pair)));
            }
            dots[r][p] = _mm256_cvtepi32_ps(sum[r][p]);
        }
    }
}
#endif
