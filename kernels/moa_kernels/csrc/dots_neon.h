// Sums over a group of 32 inputs, for a part of a tile (8 outputs) and a few rows, by the signed dot product of ARMv8.2.
//
// Codes become the weights' integers before they are multiplied, so nothing is taken off afterwards.
#pragma once

#define PART_LANES 8
#define PARTS 1
typedef struct { float32x4_t q[2]; } pvec;
#define P_BOTH(expression) ((pvec){{expression(0), expression(1)}})

// Keeps a sum in its register: see dots_x86.h.
#define HOLD(sum) __asm__("" : "+w"(sum))

INLINE pvec p_load(const float *p) { return (pvec){{vld1q_f32(p), vld1q_f32(p + 4)}}; }
INLINE void p_store(float *p, pvec a) { vst1q_f32(p, a.q[0]), vst1q_f32(p + 4, a.q[1]); }
INLINE pvec p_set(float a) { return (pvec){{vdupq_n_f32(a), vdupq_n_f32(a)}}; }
INLINE pvec p_add(pvec a, pvec b) { return (pvec){{vaddq_f32(a.q[0], b.q[0]), vaddq_f32(a.q[1], b.q[1])}}; }
INLINE pvec p_mul(pvec a, pvec b) { return (pvec){{vmulq_f32(a.q[0], b.q[0]), vmulq_f32(a.q[1], b.q[1])}}; }
INLINE pvec p_fma(pvec a, pvec b, pvec c) {  // a b + c
    return (pvec){{vfmaq_f32(c.q[0], a.q[0], b.q[0]), vfmaq_f32(c.q[1], a.q[1], b.q[1])}};
}
INLINE pvec p_fnma(pvec a, pvec b, pvec c) {  // c - a b
    return (pvec){{vfmsq_f32(c.q[0], a.q[0], b.q[0]), vfmsq_f32(c.q[1], a.q[1], b.q[1])}};
}
INLINE pvec p_half(const uint8_t *p) {
    uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(p));
    return (pvec){{vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))),
                   vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves)))}};
}
INLINE pvec p_words(int16x8_t words) {
    return (pvec){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(words)))}};
}
INLINE pvec p_bytes(const uint8_t *p) { return p_words(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)))); }
INLINE pvec p_signed_bytes(const uint8_t *p) { return p_words(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)))); }
INLINE pvec p_low_nibbles(const uint8_t *p) {
    return p_words(vreinterpretq_s16_u16(vmovl_u8(vand_u8(vld1_u8(p), vdup_n_u8(15)))));
}
INLINE pvec p_high_nibbles(const uint8_t *p) {
    return p_words(vreinterpretq_s16_u16(vmovl_u8(vshr_n_u8(vld1_u8(p), 4))));
}
INLINE pvec p_exponent(const uint8_t *p) {
    float scales[PART_LANES];
    for (int i = 0; i < PART_LANES; i++) scales[i] = exponent_to_float(p[i]);
    return p_load(scales);
}

INLINE uint8x16_t moved(uint8x16_t a, int right) {  // bits of each byte
    return vshlq_u8(a, vdupq_n_s8((int8_t)-right));
}

// The integers of the inputs 4 k to 4 k + 3 for four outputs.
INLINE int8x16_t integers(int kind, const uint8_t *planes, int k) {
    const int low = FORMATS[kind].low, high = FORMATS[kind].high;
    uint8x16_t codes = vld1q_u8(planes + 64 * (k * low / 8));
    if (low == 8) return vreinterpretq_s8_u8(codes);
    codes = vandq_u8(moved(codes, k * low % 8), vdupq_n_u8((uint8_t)((1 << low) - 1)));
    if (high) {
        uint8x16_t above = moved(vld1q_u8(planes + 64 * (low + k * high / 8)), k * high % 8 - low);
        codes = vorrq_u8(codes, vandq_u8(above, vdupq_n_u8((uint8_t)(((1 << high) - 1) << low))));
    }
    if (FORMATS[kind].table) return vqtbl1q_s8(vld1q_s8(TABLES[FORMATS[kind].table]), codes);
    return vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8((int8_t)FORMATS[kind].offset));
}

INLINE void dot_group(int kind, int rows, const uint8_t *planes, const uint8_t *subs, const int8_t *inputs,
                      const int16_t *totals, pvec dots[][PARTS]) {
    const int halves = FORMATS[kind].halves, span = halves ? 4 : 8;
    (void)totals;
    UNROLL for (int half = 0; half <= halves; half++) {
        int32x4_t sum[ROWS_MOST][2];
        pvec factor;
        if (halves) factor = FORMATS[kind].minima ? p_low_nibbles(subs + 16 * half) : p_signed_bytes(subs + 16 * half);
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int q = 0; q < 2; q++) sum[r][q] = vdupq_n_s32(0);
        UNROLL for (int i = 0; i < span; i++) {
            const int k = 4 * half + i;
            UNROLL for (int q = 0; q < 2; q++) {
                int8x16_t weights = integers(kind, planes + 16 * q, k);
                UNROLL for (int r = 0; r < rows; r++) {
                    sum[r][q] = vdotq_s32(sum[r][q], weights, four_inputs(inputs + r * MOA_GROUP + 4 * k));
                    HOLD(sum[r][q]);
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            pvec exact = {{vcvtq_f32_s32(sum[r][0]), vcvtq_f32_s32(sum[r][1])}};
            if (halves) exact = half ? p_fma(exact, factor, dots[r][0]) : p_mul(exact, factor);
            dots[r][0] = exact;
        }
    }
}
