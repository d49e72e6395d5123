// What becomes of a group's integer sums, in the one order that all variants have, and the rows' results.
#pragma once
#include "products.h"
#include "simd.h"
#include "formats.h"
#ifdef MOA_VARIANT_NEON
#include "dots_neon.h"
#else
#include "dots_x86.h"
#endif

#define PREFETCH 4096          // bytes ahead, into the first cache: about what memory delivers while it takes to fetch a line

INLINE void prefetch(const uint8_t *p, int bytes) {
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + line);
}

// The rows' results of a part of a tile, of which `outputs` are wanted. Not inlined: its hundred callers would be twice
// as large.
static __attribute__((noinline)) void store_rows(int rows, const pvec *sums, const float *bias, int outputs, float *y,
                                                 long stride) {
    if (outputs >= PART_LANES) {
        for (int r = 0; r < rows; r++) p_store(y + r * stride, bias ? p_add(sums[r], p_load(bias)) : sums[r]);
        return;
    }
    float padded[PART_LANES] = {0};
    if (bias) memcpy(padded, bias, (size_t)outputs * sizeof(float));
    pvec added = p_load(padded);
    for (int r = 0; r < rows; r++) {
        p_store(padded, bias ? p_add(sums[r], added) : sums[r]);
        memcpy(y + r * stride, padded, (size_t)outputs * sizeof(float));
    }
}

// What a group's sums are multiplied by, and what is added for each input. `subs`: the group's, from the part on. Scales
// of 11 bits times integers of 6 are exact.
typedef struct { pvec scale, minimum; } factors_t;

INLINE factors_t unit_factors(int kind, const uint8_t *unit, int lane) {
    const uint8_t *scales = unit + scales_at(kind) + lane * (FORMATS[kind].exponent ? 1 : 2);
    factors_t f;
    f.scale = FORMATS[kind].exponent ? p_exponent(scales) : p_half(scales);
    f.minimum = FORMATS[kind].minima ? p_half(scales + 32) : f.scale;
    return f;
}

INLINE factors_t group_factors(int kind, factors_t unit, const uint8_t *subs) {
    if (FORMATS[kind].sub == 1) unit.scale = p_mul(unit.scale, p_signed_bytes(subs));
    if (FORMATS[kind].sub == 2 && !FORMATS[kind].halves) {
        unit.scale = p_mul(unit.scale, p_bytes(subs));
        unit.minimum = p_mul(unit.minimum, p_bytes(subs + 16));
    }
    return unit;
}

// The float operations of a group, in the one order that all variants have. `at`: of the row in scales and sums.
INLINE pvec add_group(int kind, pvec dots, factors_t f, const uint8_t *subs, const activations_t *a, int at, pvec sum) {
    pvec scale = p_set(a->scales[at]);
    sum = p_fma(p_mul(dots, scale), f.scale, sum);
    if (FORMATS[kind].minima && FORMATS[kind].halves) {
        pvec first = p_set((float)a->totals[2 * at]), second = p_set((float)a->totals[2 * at + 1]);
        pvec least = p_fma(second, p_high_nibbles(subs + 16), p_mul(first, p_high_nibbles(subs)));
        return p_fnma(p_mul(least, scale), f.minimum, sum);
    }
    if (!FORMATS[kind].minima) return sum;
    return FORMATS[kind].sub ? p_fnma(p_set(a->sums[at]), f.minimum, sum) : p_fma(p_set(a->sums[at]), f.minimum, sum);
}
