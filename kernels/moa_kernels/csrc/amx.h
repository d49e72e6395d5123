// Products of many rows by AMX: a tile holds 16 rows of activations, or 16 outputs of a group of weights.
//
// The integer sums are those of the vector instructions, and so are the float operations on them: the same bits.
#pragma once

#define AMX_ROWS 16
#define AMX_LEAST_ROWS 24  // below, VNNI is as fast

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config_t;

// Tiles 0 and 1: activations [16 rows][32 inputs]; 2 and 3: weights [8][16 outputs][4 inputs]; 4 and 5: sums [16][16].
static void begin_amx(void) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.rows[i] = i == 2 || i == 3 ? 8 : AMX_ROWS;
        config.row_bytes[i] = i < 2 ? MOA_GROUP : 64;
    }
    _tile_loadconfig(&config);
}
static void end_amx(void) { _tile_release(); }

// The nibbles of a group as bytes, in the order that the tile instruction takes.
INLINE void unpack_q4(const uint8_t *weights, uint8_t *bytes) {
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(weights + 64 * j);
        _mm512_store_si512(bytes + 128 * j, _mm512_and_si512(both, low));
        _mm512_store_si512(bytes + 128 * j + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
}

INLINE void add_amx_group(int kind, const int32_t *dots, const uint8_t *weights, const float *scales, const float *sums,
                          long groups, vec *outputs) {
    const uint16_t *halves = (const uint16_t *)(weights + (kind == MOA_Q4_1 ? 256 : 512));
    vec factors = v_load_half(halves), minima = kind == MOA_Q4_1 ? v_load_half(halves + MOA_LANES) : factors;
    UNROLL for (int r = 0; r < AMX_ROWS; r++) {
        vec dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots + MOA_LANES * r));
        outputs[r] = v_fma(v_mul(dot, v_set(scales[r * groups])), factors, outputs[r]);
        if (kind == MOA_Q4_1) outputs[r] = v_fma(v_set(sums[r * groups]), minima, outputs[r]);
    }
}

#define AMX_LAG 2  // groups between a tile's store and the loads of its numbers, which would otherwise wait for it

// Sums of group g, by tile registers that alternate.
INLINE void multiply_amx_group(int kind, const int8_t *codes, long stride, const uint8_t *bytes, int32_t *dots, int odd) {
#define MULTIPLY(activations, weights, sums)                               \
    _tile_zero(sums);                                                      \
    _tile_loadd(activations, codes, stride);                               \
    _tile_loadd(weights, bytes, 64);                                       \
    if (kind == MOA_Q4_1) _tile_dpbsud(sums, activations, weights);        \
    else _tile_dpbssd(sums, activations, weights);                         \
    _tile_stored(sums, dots, 64)
    if (odd) { MULTIPLY(1, 3, 5); }
    else { MULTIPLY(0, 2, 4); }
#undef MULTIPLY
}

// One tile of 16 outputs for 16 rows from `row` on, of which the last may be padding. bytes: the group's weights as
// bytes, `step` apart.
INLINE void amx_tile(int kind, int groups, const uint8_t *weights, const uint8_t *bytes, long step,
                     const activations_t *a, int row, vec *outputs) {
    const int tile_group = kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP;
    const long stride = (long)groups * MOA_GROUP;
    const int8_t *codes = a->codes + (size_t)row * stride;
    const float *scales = a->scales + (size_t)row * groups, *sums = a->sums + (size_t)row * groups;
    _Alignas(64) int32_t dots[AMX_LAG + 2][AMX_ROWS * MOA_LANES];
    UNROLL for (int r = 0; r < AMX_ROWS; r++) outputs[r] = v_set(0.f);
    for (int g = 0; g < groups + AMX_LAG; g += 2) {
        for (int odd = 0; odd < 2; odd++)
            if (g + odd < groups)
                multiply_amx_group(kind, codes + (long)(g + odd) * MOA_GROUP, stride, bytes + (g + odd) * step,
                                   dots[(g + odd) % (AMX_LAG + 2)], odd);
        for (int done = g - AMX_LAG; done < g - AMX_LAG + 2; done++)
            if (done >= 0 && done < groups)
                add_amx_group(kind, dots[done % (AMX_LAG + 2)], weights + (size_t)done * tile_group, scales + done,
                              sums + done, groups, outputs);
    }
}
