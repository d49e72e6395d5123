// Sixteen floats in four NEON registers; integer products by the dot product of ARMv8.2.
#pragma once
#include <arm_neon.h>

typedef struct { float32x4_t q[4]; } vec;
#define ROWS_MOST 4
#define ROWS_LEAST 1
#define QUERIES_MOST 3
#define VALUES_WIDE 1
#define V_EACH(expression) ((vec){{expression(0), expression(1), expression(2), expression(3)}})

INLINE vec v_load(const float *p) {
#define E(i) vld1q_f32(p + 4 * (i))
    return V_EACH(E);
#undef E
}
INLINE void v_store(float *p, vec a) { UNROLL for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.q[i]); }
INLINE vec v_set(float a) { float32x4_t four = vdupq_n_f32(a); return (vec){{four, four, four, four}}; }
#define V_TWO(name, function)                \
    INLINE vec name(vec a, vec b) {          \
        return (vec){{function(a.q[0], b.q[0]), function(a.q[1], b.q[1]), \
                      function(a.q[2], b.q[2]), function(a.q[3], b.q[3])}}; \
    }
V_TWO(v_add, vaddq_f32)
V_TWO(v_sub, vsubq_f32)
V_TWO(v_mul, vmulq_f32)
V_TWO(v_div, vdivq_f32)
V_TWO(v_max, vmaxq_f32)
#define E(i) vabsq_f32(a.q[i])
INLINE vec v_abs(vec a) { return V_EACH(E); }
#undef E
#define E(i) vrndnq_f32(a.q[i])
INLINE vec v_round(vec a) { return V_EACH(E); }
#undef E
#define E(i) vfmaq_f32(c.q[i], a.q[i], b.q[i])
INLINE vec v_fma(vec a, vec b, vec c) { return V_EACH(E); }  // a b + c
#undef E
#define E(i) vfmsq_f32(c.q[i], a.q[i], b.q[i])
INLINE vec v_fnma(vec a, vec b, vec c) { return V_EACH(E); }  // c - a b
#undef E
#define E(i) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * (i))))
INLINE vec v_load_half(const uint16_t *p) { return V_EACH(E); }
#undef E
INLINE void v_store_half(uint16_t *p, vec a) {
    UNROLL for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
#define E(i) vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.q[i]), vdupq_n_s32(127)), 23))
INLINE vec v_power_of_two(vec n) { return V_EACH(E); }  // of whole numbers from -126 to 127
#undef E
#define E(i) vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.q[i]), vcgeq_f32(x.q[i], vdupq_n_f32(limit))))
INLINE vec v_zero_below(vec a, vec x, float limit) { return V_EACH(E); }  // a where x >= limit, else 0
#undef E

// Over the lanes, in the one order that all instruction sets share: halves onto each other.
INLINE float v_sum(vec a) {
    float32x4_t four = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
INLINE float v_maximum(vec a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q[0], a.q[2]), vmaxq_f32(a.q[1], a.q[3])));
}

INLINE void v_store_int8(int8_t *p, vec a) {
    int16x8_t low = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.q[0])), vqmovn_s32(vcvtnq_s32_f32(a.q[1])));
    int16x8_t high = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.q[2])), vqmovn_s32(vcvtnq_s32_f32(a.q[3])));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}
INLINE vec v_load_int8(const int8_t *p) {
    int8x16_t codes = vld1q_s8(p);
    int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_s8(vget_high_s8(codes));
    return (vec){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
INLINE int sum_int8(const int8_t *p) { return vaddlvq_s8(vld1q_s8(p)); }  // of 16

INLINE int8x16_t four_inputs(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
