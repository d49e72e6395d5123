// Products of several rows by AMX: a tile register holds up to 16 rows of activations, or 16 outputs of a group of
// weights.
//
// The integer sums are those of the vector instructions, and so are the float operations on them: the same bits.
#pragma once

#define AMX_ROWS 16        // the most at once; fewer in multiples of 4
#define AMX_LEAST_ROWS 9   // below, VNNI is as fast
#define AMX_LAG 4          // groups between the store of a tile register and the loads of its numbers, which would wait
#define AMX_RING 8         // groups whose sums are kept: a power of two, at least AMX_LAG + 2
#define UNPACK_AHEAD 2     // groups, in even numbers: a tile register is not loaded from what was just stored

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config_t;

// Tiles 0 and 1: activations [rows][32 inputs]; 2 and 3: weights [8][16 outputs][4 inputs]; 4 and 5: sums [rows][16].
static void begin_amx(int rows) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.rows[i] = (uint8_t)(i == 2 || i == 3 ? 8 : rows);
        config.row_bytes[i] = i < 2 ? MOA_GROUP : 64;
    }
    _tile_loadconfig(&config);
}
static void end_amx(void) { _tile_release(); }

// One tile of 16 outputs, for a block of rows.
typedef struct {
    const uint8_t *weights;  // as packed
    uint8_t *bytes;          // [groups][512]: nibbles as bytes (Q4_1)
    const activations_t *activations;
    int groups, row;         // row: the block's first; block 0 unpacks and prefetches
} amx_block_t;

// The nibbles of a group as bytes, in the order that the tile instruction takes.
INLINE void unpack_q4(const uint8_t *weights, uint8_t *bytes) {
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(weights + 64 * j);
        _mm512_store_si512(bytes + 128 * j, _mm512_and_si512(both, low));
        _mm512_store_si512(bytes + 128 * j + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
}

INLINE void prepare_amx_group(int kind, const amx_block_t *b, int g) {
    const int bytes = kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP;
    const uint8_t *weights = b->weights + (size_t)g * bytes;
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(weights + PREFETCH + line);
    if (kind == MOA_Q4_1) unpack_q4(weights, b->bytes + 512 * g);
}

// Sums of group g, by tile registers that alternate.
INLINE void multiply_amx_group(int kind, const amx_block_t *b, int g, int odd, int32_t *dots) {
    const activations_t *a = b->activations;
    const int8_t *codes = a->codes + ((size_t)g * a->rows + b->row) * MOA_GROUP;
    const uint8_t *bytes = kind == MOA_Q4_1 ? b->bytes + 512 * g : b->weights + (size_t)g * Q8_0_TILE_GROUP;
#define MULTIPLY(activations, weights, sums)                        \
    _tile_zero(sums);                                               \
    _tile_loadd(activations, codes, MOA_GROUP);                     \
    _tile_loadd(weights, bytes, 64);                                \
    if (kind == MOA_Q4_1) _tile_dpbsud(sums, activations, weights); \
    else _tile_dpbssd(sums, activations, weights);                  \
    _tile_stored(sums, dots, 64)
    if (odd) { MULTIPLY(1, 3, 5); }
    else { MULTIPLY(0, 2, 4); }
#undef MULTIPLY
}

INLINE void add_amx_group(int kind, int rows, const amx_block_t *b, int g, const int32_t *dots, vec *outputs) {
    const int bytes = kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP, at = g * b->activations->rows + b->row;
    const float *scales = b->activations->scales + at, *sums = b->activations->sums + at;
    const uint16_t *halves = (const uint16_t *)(b->weights + (size_t)g * bytes + (kind == MOA_Q4_1 ? 256 : 512));
    vec factors = v_load_half(halves), minima = kind == MOA_Q4_1 ? v_load_half(halves + MOA_LANES) : factors;
    UNROLL for (int r = 0; r < rows; r++) {
        vec dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots + MOA_LANES * r));
        outputs[r] = v_fma(v_mul(dot, v_set(scales[r])), factors, outputs[r]);
        if (kind == MOA_Q4_1) outputs[r] = v_fma(v_set(sums[r]), minima, outputs[r]);
    }
}

INLINE void amx_block(int kind, int rows, const amx_block_t *b, vec *outputs) {
    _Alignas(64) int32_t dots[AMX_RING][AMX_ROWS * MOA_LANES];
    UNROLL for (int r = 0; r < rows; r++) outputs[r] = v_set(0.f);
    if (b->row == 0)
        for (int g = 0; g < UNPACK_AHEAD && g < b->groups; g++) prepare_amx_group(kind, b, g);
    for (int g = 0; g < b->groups + AMX_LAG; g += 2) {
        UNROLL for (int odd = 0; odd < 2; odd++) {
            if (b->row == 0 && g + odd + UNPACK_AHEAD < b->groups) prepare_amx_group(kind, b, g + odd + UNPACK_AHEAD);
            if (g + odd < b->groups) multiply_amx_group(kind, b, g + odd, odd, dots[(g + odd) % AMX_RING]);
        }
        UNROLL for (int odd = 0; odd < 2; odd++) {
            int done = g + odd - AMX_LAG;
            if (done >= 0 && done < b->groups) add_amx_group(kind, rows, b, done, dots[done % AMX_RING], outputs);
        }
    }
}
