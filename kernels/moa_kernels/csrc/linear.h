// Linear layers: packed weights times rows of activations, which are rounded to int8 in groups of 32 on the way.
//
// Integer sums are exact, and the float sum over groups has one order, so a row's result does not depend on the others.
#pragma once

#define Q4_1_TILE_GROUP 320  // bytes of a group of a tile: 256 of nibbles, 16 scales, 16 minima
#define Q8_0_TILE_GROUP 544  // 512 of integers, 16 scales
#define BATCH_ROWS 64          // 36 kB of codes for 576 inputs
#define PREFETCH 3072        // bytes ahead: about what the memory delivers while it takes to fetch a line

#define ROWS_OVER 16         // AMX reads whole blocks of rows; what it makes of the rows behind the last is dropped

// Rows of activations in int8, in batches, and within a batch group by group: what a block of rows needs lies together.
typedef struct {
    int rows;         // of a batch, at most BATCH_ROWS
    int8_t *codes;    // [batches, groups, rows, 32]
    float *scales;    // [batches, groups, rows]
    float *sums;      // [batches, groups, rows]: sum of the codes, times the scale
    int32_t *totals;  // [batches, groups, rows]: sum of the codes
} activations_t;

static size_t tile_bytes(int kind, int inputs) {
    if (kind == MOA_FLOAT32) return (size_t)inputs * MOA_LANES * sizeof(float);
    return (size_t)(inputs / MOA_GROUP) * (kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP);
}

// Room for `rows` rows of `inputs` numbers; false where there is none. What is there already is not kept.
static int allocate_activations(activations_t *a, int rows, int inputs) {
    int batch = rows < BATCH_ROWS ? rows : BATCH_ROWS;
    size_t padded = ((size_t)rows + BATCH_ROWS - 1) / BATCH_ROWS * batch, count = padded * (inputs / MOA_GROUP) + ROWS_OVER;
    *a = (activations_t){batch, allocate(count * MOA_GROUP), allocate(count * 4), allocate(count * 4), allocate(count * 4)};
    if (!a->codes || !a->scales || !a->sums || !a->totals) return 0;
    memset(a->scales, 0, count * 4);  // subnormal numbers, which are slow, may lie there
    memset(a->sums, 0, count * 4);
    return 1;
}
static void free_activations(activations_t *a) { free(a->codes), free(a->scales), free(a->sums), free(a->totals); }

static activations_t batch_of(const activations_t *a, int row, int groups) {  // row: a multiple of a->rows
    size_t at = (size_t)row * groups;
    return (activations_t){a->rows, a->codes + at * MOA_GROUP, a->scales + at, a->sums + at, a->totals + at};
}

// Rounds one row to int8, with a scale a group.
static void quantise_row(int inputs, const float *x, const activations_t *to, int row) {
    int groups = inputs / MOA_GROUP;
    activations_t batch = batch_of(to, row / to->rows * to->rows, groups);
    for (int g = 0; g < groups; g++, x += MOA_GROUP) {
        int at = g * to->rows + row % to->rows;
        int8_t *codes = batch.codes + (size_t)at * MOA_GROUP;
        vec a = v_load(x), b = v_load(x + MOA_LANES);
        float largest = v_maximum(v_max(v_abs(a), v_abs(b)));
        if (!(largest > 1e-12f)) largest = 1e-12f;
        vec inverse = v_set(127.f / largest);
        v_store_int8(codes, v_mul(a, inverse));
        v_store_int8(codes + MOA_LANES, v_mul(b, inverse));
        int total = sum_int8(codes);
        batch.scales[at] = largest / 127.f;
        batch.sums[at] = (float)total * batch.scales[at];
        batch.totals[at] = total;
    }
}

// The last tile's bias may end before its 16 numbers do.
INLINE vec load_bias(const float *bias, int outputs) {
    if (outputs >= MOA_LANES) return v_load(bias);
    float padded[MOA_LANES] = {0};
    memcpy(padded, bias, (size_t)outputs * sizeof(float));
    return v_load(padded);
}

INLINE void store_rows(int rows, const vec *sums, const float *bias, int outputs, float *y, long stride) {
    UNROLL for (int r = 0; r < rows; r++) {
        vec sum = bias ? v_add(sums[r], load_bias(bias, outputs)) : sums[r];
        if (outputs >= MOA_LANES) {
            v_store(y + r * stride, sum);
        } else {
            float padded[MOA_LANES];
            v_store(padded, sum);
            memcpy(y + r * stride, padded, (size_t)outputs * sizeof(float));
        }
    }
}

// `tiles` tiles, of 16 outputs each, for up to ROWS_MOST rows.
INLINE void quantised_tiles(int rows, int tiles, int kind, int groups, const uint8_t *weights, const activations_t *a,
                            int row, vec sums[TILES_MOST][ROWS_MOST], int prefetch) {
    const int bytes = kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP;
    const size_t tile_stride = (size_t)groups * bytes;
    UNROLL for (int t = 0; t < tiles; t++)
        UNROLL for (int r = 0; r < rows; r++) sums[t][r] = v_set(0.f);
    for (int g = 0; g < groups; g++, row += a->rows, weights += bytes) {
        const int8_t *codes = a->codes + (size_t)row * MOA_GROUP;
        vec dots[TILES_MOST][ROWS_MOST], scales[TILES_MOST], minima[TILES_MOST];
        if (prefetch)
            UNROLL for (int t = 0; t < tiles; t++)
                for (int line = 0; line < bytes; line += 64)
                    __builtin_prefetch(weights + t * tile_stride + PREFETCH + line);
        if (kind == MOA_Q4_1)
            dot_q4(rows, tiles, weights, tile_stride, codes, a->totals + row, dots);
        else
            dot_q8(rows, tiles, weights, tile_stride, codes, a->totals + row, dots);
        UNROLL for (int t = 0; t < tiles; t++) {
            const uint16_t *halves = (const uint16_t *)(weights + t * tile_stride + (kind == MOA_Q4_1 ? 256 : 512));
            scales[t] = v_load_half(halves);
            if (kind == MOA_Q4_1) minima[t] = v_load_half(halves + MOA_LANES);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vec scale = v_set(a->scales[row + r]), sum = v_set(a->sums[row + r]);
            UNROLL for (int t = 0; t < tiles; t++) {
                sums[t][r] = v_fma(v_mul(dots[t][r], scale), scales[t], sums[t][r]);
                if (kind == MOA_Q4_1) sums[t][r] = v_fma(sum, minima[t], sums[t][r]);
            }
        }
    }
}

INLINE void float_tile(int rows, int inputs, const float *tile, const float *x, vec *sums) {
    UNROLL for (int r = 0; r < rows; r++) sums[r] = v_set(0.f);
    for (int i = 0; i < inputs; i++, tile += MOA_LANES) {
        vec weights = v_load(tile);
        UNROLL for (int r = 0; r < rows; r++) sums[r] = v_fma(weights, v_set(x[(size_t)r * inputs + i]), sums[r]);
    }
}

#ifdef MOA_VARIANT_AMX
#include "amx.h"
#endif

typedef struct {
    const moa_linear_t *linear;
    int rows, tiles_a_task;
    const activations_t *codes;  // of quantised layers
    const float *x;              // [rows, inputs], of float32 layers
    float *y;                    // [rows, outputs]
} product_t;

INLINE void one_block(const product_t *p, int kind, int rows, int tiles, int row, int output) {
    const moa_linear_t *l = p->linear;
    const uint8_t *weights = l->tiles + (size_t)(output / MOA_LANES) * tile_bytes(l->kind, l->inputs);
    vec sums[TILES_MOST][ROWS_MOST];
    if (kind == MOA_FLOAT32)
        float_tile(rows, l->inputs, (const float *)weights, p->x + (size_t)row * l->inputs, sums[0]);
    else
        quantised_tiles(rows, tiles, kind, l->inputs / MOA_GROUP, weights, p->codes, row, sums, row == 0);
    UNROLL for (int t = 0; t < tiles; t++) {
        int first = output + t * MOA_LANES;
        store_rows(rows, sums[t], l->bias ? l->bias + first : NULL, l->outputs - first,
                   p->y + (size_t)row * l->outputs + first, l->outputs);
    }
}

#define ROWS_OF(kind, tiles, rows)                              \
    case rows:                                                  \
        one_block(p, kind, rows, tiles, row, output);           \
        break;
#if ROWS_MOST > 4
#define EACH_ROWS(kind, tiles)                                                                                \
    ROWS_OF(kind, tiles, 1) ROWS_OF(kind, tiles, 2) ROWS_OF(kind, tiles, 3) ROWS_OF(kind, tiles, 4)           \
    ROWS_OF(kind, tiles, 5) ROWS_OF(kind, tiles, 6) ROWS_OF(kind, tiles, 7) ROWS_OF(kind, tiles, 8)
#else
#define EACH_ROWS(kind, tiles) \
    ROWS_OF(kind, tiles, 1) ROWS_OF(kind, tiles, 2) ROWS_OF(kind, tiles, 3) ROWS_OF(kind, tiles, 4)
#endif

#ifdef MOA_VARIANT_AMX
static int amx_block_rows(int rows) {  // even blocks: 20 rows are twice 12
    int blocks = (rows + AMX_ROWS - 1) / AMX_ROWS;
    return ((rows + blocks - 1) / blocks + 3) / 4 * 4;
}

INLINE void amx_product(const product_t *p, int kind, int block_rows, int output) {
    const moa_linear_t *l = p->linear;
    const int groups = l->inputs / MOA_GROUP;
    _Alignas(64) uint8_t unpacked[kind == MOA_Q4_1 ? groups : 1][512];  // once for all rows
    const uint8_t *weights = l->tiles + (size_t)(output / MOA_LANES) * tile_bytes(kind, l->inputs);
    for (int row = 0; row < p->rows; row += block_rows) {
        amx_block_t b = {weights, unpacked[0], p->codes, groups, row};
        vec sums[AMX_ROWS];
        int rows = p->rows - row < block_rows ? p->rows - row : block_rows;
        amx_block(kind, block_rows, &b, sums);
        UNROLL for (int r = 0; r < block_rows; r++)  // known indices: the sums stay in registers
            if (r < rows)
                store_rows(1, sums + r, l->bias ? l->bias + output : NULL, l->outputs - output,
                           p->y + (size_t)(row + r) * l->outputs + output, l->outputs);
    }
}

static void amx_tiles(const product_t *p, int first, int stop) {
    int block_rows = amx_block_rows(p->rows), kind = p->linear->kind;
    begin_amx(block_rows);
#define BLOCKS_OF(rows)                                                                                  \
    case rows:                                                                                           \
        if (kind == MOA_Q4_1)                                                                            \
            for (int o = first; o < stop; o += MOA_LANES) amx_product(p, MOA_Q4_1, rows, o);             \
        else                                                                                             \
            for (int o = first; o < stop; o += MOA_LANES) amx_product(p, MOA_Q8_0, rows, o);             \
        break;
    switch (block_rows) { BLOCKS_OF(4) BLOCKS_OF(8) BLOCKS_OF(12) BLOCKS_OF(16) }
#undef BLOCKS_OF
    end_amx();
}
#endif

// One or TILES_MOST tiles for all rows, in even blocks: 9 rows are 5 and 4.
static void product_tiles(const product_t *p, int output, int tiles) {
    int blocks = (p->rows + ROWS_MOST - 1) / ROWS_MOST, kind = p->linear->kind;
    for (int block = 0, row = 0; block < blocks; block++) {
        int rows = (p->rows - row + blocks - block - 1) / (blocks - block);
        if (kind == MOA_FLOAT32) switch (rows) { EACH_ROWS(MOA_FLOAT32, 1) }
        else if (kind == MOA_Q4_1 && tiles == 1) switch (rows) { EACH_ROWS(MOA_Q4_1, 1) }
        else if (kind == MOA_Q8_0 && tiles == 1) switch (rows) { EACH_ROWS(MOA_Q8_0, 1) }
#if TILES_MOST > 1
        else if (kind == MOA_Q4_1) switch (rows) { EACH_ROWS(MOA_Q4_1, TILES_MOST) }
        else switch (rows) { EACH_ROWS(MOA_Q8_0, TILES_MOST) }
#endif
        row += rows;
    }
}

static void product_task(void *context, int task, int worker) {
    (void)worker;
    const product_t *p = context;
    const moa_linear_t *l = p->linear;
    int first = task * p->tiles_a_task * MOA_LANES, stop = first + p->tiles_a_task * MOA_LANES;
    if (stop > l->outputs) stop = l->outputs;
#ifdef MOA_VARIANT_AMX
    if (l->kind != MOA_FLOAT32 && p->rows >= AMX_LEAST_ROWS) {
        amx_tiles(p, first, stop);
        return;
    }
#endif
    while (first < stop) {
        int tiles = l->kind != MOA_FLOAT32 && stop - first >= TILES_MOST * MOA_LANES ? TILES_MOST : 1;
        product_tiles(p, first, tiles);
        first += tiles * MOA_LANES;
    }
}

// y = linear(x), given the rows' codes (quantised layers) or the rows (float32). Rows go in batches whose codes stay in
// the first or second cache while all outputs are computed.
static void product(const moa_linear_t *linear, int rows, const float *x, const activations_t *codes, float *y,
                    int threads) {
    int tiles = (linear->outputs + MOA_LANES - 1) / MOA_LANES, groups = linear->inputs / MOA_GROUP;
    int tiles_a_task = threads < 2 ? tiles : (tiles + 4 * threads - 1) / (4 * threads);
    if (tiles_a_task % TILES_MOST) tiles_a_task += TILES_MOST - tiles_a_task % TILES_MOST;
    for (int row = 0; row < rows; row += BATCH_ROWS) {
        activations_t batch = batch_of(codes, row, groups);
        product_t p = {linear, rows - row < BATCH_ROWS ? rows - row : BATCH_ROWS, tiles_a_task, &batch,
                       x + (size_t)row * linear->inputs, y + (size_t)row * linear->outputs};
        parallel(threads, product_task, &p, (tiles + tiles_a_task - 1) / tiles_a_task);
    }
}
