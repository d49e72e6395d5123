// Products of several rows by AMX: a tile register holds up to 16 rows of activations, or 16 outputs of a group of
// weights.
//
// The integer sums are those of the vector instructions, and so are the float operations on them: the same bits. Linked
// into every library, because kernels.c is the same with AMX and without.
#include "products.h"

#ifdef MOA_VARIANT_AMX
#include "groups.h"

const int has_amx = 1;

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

// GCC's intrinsic names 8 of the configuration's bytes to the compiler, which may then leave out the stores of the others.
INLINE void configure_tiles(const tile_config_t *config) {
    __asm__ volatile("" : : "m"(*config));
    _tile_loadconfig(config);
}

// Tiles 0 and 1: activations [rows][32 inputs]; 2 and 3: weights [8][16 outputs][4 inputs]; 4 and 5: sums [rows][16].
static void begin_amx(int rows) {
    tile_config_t config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.rows[i] = (uint8_t)(i == 2 || i == 3 ? 8 : rows);
        config.row_bytes[i] = i < 2 ? MOA_GROUP : 64;
    }
    configure_tiles(&config);
}
static void end_amx(void) { _tile_release(); }

// One tile of 16 outputs, for a block of rows.
typedef struct {
    const uint8_t *weights;  // as packed
    uint8_t *bytes;          // [groups][512]: codes as bytes (not Q8_0)
    const activations_t *activations;
    int groups, row;         // row: the block's first; block 0 unpacks and prefetches
} amx_block_t;

// Formats whose groups share a scale; of the others (Q2_K, Q3_K, Q6_K) the vector instructions take all rows.
#define AMX_KINDS(DO)                                                                                         \
    DO(MOA_Q4_0) DO(MOA_Q4_1) DO(MOA_Q5_0) DO(MOA_Q5_1) DO(MOA_Q8_0) DO(MOA_Q4_K) DO(MOA_Q5_K) DO(MOA_IQ4_NL) \
    DO(MOA_IQ4_XS) DO(MOA_MXFP4)

INLINE const uint8_t *unit_of(int kind, const amx_block_t *b, int g) {
    return b->weights + (size_t)(g / unit_groups(kind)) * unit_bytes(kind);
}

// A group's codes as bytes, in the order that the tile instruction takes; Q8_0 lies so already.
INLINE void prepare_amx_group(int kind, const amx_block_t *b, int g) {
    const uint8_t *planes = unit_of(kind, b, g) + planes_at(kind, g % unit_groups(kind));
    prefetch(b->weights + (size_t)g * bytes_a_group(kind) + PREFETCH, bytes_a_group(kind));
    if (kind != MOA_Q8_0)
        UNROLL for (int k = 0; k < 8; k++) _mm512_store_si512(b->bytes + 512 * g + 64 * k, fours(kind, planes, k));
}

// Sums of group g, by tile registers that alternate.
INLINE void multiply_amx_group(int kind, const amx_block_t *b, int g, int odd, int32_t *dots) {
    const activations_t *a = b->activations;
    const int8_t *codes = a->codes + ((size_t)g * a->rows + b->row) * MOA_GROUP;
    const uint8_t *bytes = kind == MOA_Q8_0 ? unit_of(kind, b, g) : b->bytes + 512 * g;
#define MULTIPLY(activations, weights, sums)                        \
    _tile_zero(sums);                                               \
    _tile_loadd(activations, codes, MOA_GROUP);                     \
    _tile_loadd(weights, bytes, 64);                                \
    if (kind == MOA_Q8_0) _tile_dpbssd(sums, activations, weights); \
    else _tile_dpbsud(sums, activations, weights);                  \
    _tile_stored(sums, dots, 64)
    if (odd) { MULTIPLY(1, 3, 5); }
    else { MULTIPLY(0, 2, 4); }
#undef MULTIPLY
}

INLINE void add_amx_group(int kind, int rows, const amx_block_t *b, int g, const int32_t *dots, pvec *outputs) {
    const activations_t *a = b->activations;
    const int at = g * a->rows + b->row, bias = kind == MOA_Q8_0 ? 0 : bias_of(kind);
    const uint8_t *unit = unit_of(kind, b, g);
    const uint8_t *subs = unit + subs_at(kind, g % unit_groups(kind));
    factors_t f = group_factors(kind, unit_factors(kind, unit, 0), subs);
    UNROLL for (int r = 0; r < rows; r++) {
        __m512i sum = _mm512_load_si512(dots + MOA_LANES * r);
        if (bias) {
            int total = a->totals[2 * (at + r)] + a->totals[2 * (at + r) + 1];
            sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(bias * total));
        }
        outputs[r] = add_group(kind, _mm512_cvtepi32_ps(sum), f, subs, a, at + r, outputs[r]);
    }
}

INLINE void amx_block(int kind, int rows, const amx_block_t *b, pvec *outputs) {
    _Alignas(64) int32_t dots[AMX_RING][AMX_ROWS * MOA_LANES];
    UNROLL for (int r = 0; r < rows; r++) outputs[r] = p_set(0.f);
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

INLINE void amx_product(const product_t *p, int kind, int block_rows, const tile_range_t *range, int tile) {
    const moa_linear_t *l = p->linear;
    const int groups = l->inputs / MOA_GROUP, at = range->offset + tile * MOA_LANES;
    _Alignas(64) uint8_t unpacked[kind == MOA_Q8_0 ? 1 : groups][512];  // once for all rows
    const uint8_t *weights = range->part->tiles + (size_t)tile * tile_bytes(kind, l->inputs);
    for (int row = 0; row < p->rows; row += block_rows) {
        amx_block_t b = {weights, unpacked[0], p->codes, groups, row};
        pvec sums[AMX_ROWS], stored[AMX_ROWS];
        int rows = p->rows - row < block_rows ? p->rows - row : block_rows;
        amx_block(kind, block_rows, &b, sums);
        UNROLL for (int r = 0; r < block_rows; r++) stored[r] = sums[r];  // which stay in registers until here
        store_rows(rows, stored, l->bias ? l->bias + at : NULL, range->part->outputs - tile * MOA_LANES,
                   p->y + (size_t)row * l->outputs + at, l->outputs);
    }
}

static int amx_block_rows(int rows) {  // even blocks, 20 rows are twice 12: of AMX_LEAST_ROWS and more always 12 or 16
    int blocks = (rows + AMX_ROWS - 1) / AMX_ROWS;
    return ((rows + blocks - 1) / blocks + 3) / 4 * 4;
}

#define AMX_BLOCKS(kind, rows)                                                                          \
    case rows:                                                                                          \
        for (int tile = range->first; tile < range->stop; tile++) amx_product(p, kind, rows, range, tile); \
        break;
#define DEFINE_AMX_TILES(kind)                                                              \
    static void amx_tiles_##kind(const product_t *p, const tile_range_t *range) {           \
        int block_rows = amx_block_rows(p->rows);                                           \
        begin_amx(block_rows);                                                              \
        switch (block_rows) { AMX_BLOCKS(kind, 12) AMX_BLOCKS(kind, 16) }                   \
        end_amx();                                                                          \
    }
AMX_KINDS(DEFINE_AMX_TILES)

int amx_tiles(const product_t *p, const tile_range_t *range) {
#define AMX_TILES_OF(kind)          \
    case kind:                      \
        amx_tiles_##kind(p, range); \
        return 1;
    if (p->rows >= AMX_LEAST_ROWS) switch (range->part->kind) { AMX_KINDS(AMX_TILES_OF) }
    return 0;
}
#else
const int has_amx = 0;
int amx_tiles(const product_t *p, const tile_range_t *range) { return (void)p, (void)range, 0; }
#endif
