// Linear layers: packed weights times rows of activations, which are rounded to int8 in groups of 32 on the way.
//
// Integer sums are exact, and the float sum over groups has one order, so a row's result does not depend on the others.
#pragma once

#define BATCH_ROWS 64          // 36 kB of codes for 576 inputs
#define PREFETCH 4096          // bytes ahead, into the first cache: about what memory delivers while it takes to fetch a line
#define PREFETCH_FAR 8192      // into the second cache, which has room for more lines that are under way
#define PREFETCH_NEAR 1024     // from there into the first
#define ROWS_OVER 16         // AMX reads whole blocks of rows; what it makes of the rows behind the last is dropped

// Rows of activations in int8, in batches, and within a batch group by group: what a block of rows needs lies together.
typedef struct {
    int rows;         // of a batch, at most BATCH_ROWS; of one alone with room for ROWS_LEAST
    int8_t *codes;    // [batches, groups, rows, 32]
    float *scales;    // [batches, groups, rows]
    float *sums;      // [batches, groups, rows]: sum of the codes, times the scale
    int16_t *totals;  // [batches, groups, rows, 2]: sums of the codes of each half
} activations_t;

static int is_quantised(const moa_linear_t *linear) { return linear->part[0].kind != MOA_FLOAT32; }

// Room for `rows` rows of `inputs` numbers; false where there is none. What is there already is not kept.
static int allocate_activations(activations_t *a, int rows, int inputs) {
    int batch = rows < ROWS_LEAST ? ROWS_LEAST : rows < BATCH_ROWS ? rows : BATCH_ROWS;
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
    return (activations_t){a->rows, a->codes + at * MOA_GROUP, a->scales + at, a->sums + at, a->totals + 2 * at};
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
        int first = sum_int8(codes), second = sum_int8(codes + MOA_LANES);
        batch.scales[at] = largest / 127.f;
        batch.sums[at] = (float)(first + second) * batch.scales[at];
        batch.totals[2 * at] = (int16_t)first;
        batch.totals[2 * at + 1] = (int16_t)second;
    }
}

INLINE void prefetch(const uint8_t *p, int bytes) {
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + line);
}
INLINE void prefetch_far(const uint8_t *p, int bytes) {
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + line, 0, 2);
}

// Whether computing takes long enough for lines to pass through the second cache. Where memory is waited for all the
// time, that costs a quarter; elsewhere it gains up to a third (docs/engine.md).
INLINE int has_time(int kind, int rows) {
    return FORMATS[kind].high || rows * MOA_GROUP * MOA_LANES > 5 * bytes_a_group(kind) / 2;
}

// The rows' results of a part of a tile, of which `outputs` are wanted.
INLINE void store_rows(int rows, const pvec *sums, const float *bias, int outputs, float *y, long stride) {
    if (outputs >= PART_LANES) {
        UNROLL for (int r = 0; r < rows; r++) p_store(y + r * stride, bias ? p_add(sums[r], p_load(bias)) : sums[r]);
        return;
    }
    float padded[PART_LANES] = {0};
    if (bias) memcpy(padded, bias, (size_t)outputs * sizeof(float));
    pvec added = p_load(padded);
    UNROLL for (int r = 0; r < rows; r++) {
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

// Some parts of a tile, from output `lane` on, for up to ROWS_MOST rows: a whole row's groups, so that the sums stay in
// registers. Where that is one of several passes over the tile, each fetches its share of the next tile, from `ahead` on;
// where it is the only one, what comes a little behind `ahead`.
INLINE void quantised_parts(int kind, int rows, int inputs, const uint8_t *tile, int lane, const activations_t *a, int row,
                            const uint8_t *ahead, int passes, pvec sums[][PARTS]) {
    const int step = bytes_a_group(kind) / passes;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PARTS; p++) sums[r][p] = p_set(0.f);
    for (int unit = 0; unit < inputs / FORMATS[kind].values; unit++, tile += unit_bytes(kind)) {
        factors_t of_unit[PARTS];
        UNROLL for (int p = 0; p < PARTS; p++) of_unit[p] = unit_factors(kind, tile, lane + PART_LANES * p);
        for (int g = 0; g < unit_groups(kind); g++, row += a->rows, ahead += step) {
            const uint8_t *planes = tile + planes_at(kind, g) + 4 * lane;
            const uint8_t *subs = tile + subs_at(kind, g) + lane;
            pvec dots[ROWS_MOST][PARTS];
            if (passes > 1) prefetch_far(ahead, step);
            else if (has_time(kind, rows)) {
                prefetch_far(ahead + PREFETCH_FAR, bytes_a_group(kind));
                prefetch(ahead + PREFETCH_NEAR, bytes_a_group(kind));
            } else prefetch(ahead + PREFETCH, bytes_a_group(kind));
            dot_group(kind, rows, planes, subs, a->codes + (size_t)row * MOA_GROUP, a->totals + 2 * row, dots);
            UNROLL for (int p = 0; p < PARTS; p++, subs += PART_LANES) {
                factors_t f = group_factors(kind, of_unit[p], subs);
                UNROLL for (int r = 0; r < rows; r++)
                    sums[r][p] = add_group(kind, dots[r][p], f, subs, a, row + r, sums[r][p]);
            }
        }
    }
}

INLINE void float_parts(int rows, int inputs, const float *tile, const float *x, pvec sums[][PARTS]) {
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < PARTS; p++) sums[r][p] = p_set(0.f);
    for (int i = 0; i < inputs; i++, tile += MOA_LANES)
        UNROLL for (int p = 0; p < PARTS; p++) {
            pvec weights = p_load(tile + PART_LANES * p);
            UNROLL for (int r = 0; r < rows; r++)
                sums[r][p] = p_fma(weights, p_set(x[(size_t)r * inputs + i]), sums[r][p]);
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

// Some tiles of a part of a linear layer, whose first output is the layer's output `offset`.
typedef struct {
    const moa_part_t *part;
    int offset, first, stop;
} tile_range_t;

// Rows of a tile, in one of `blocks` blocks. Memory delivers while all of them compute.
INLINE void one_block(const product_t *p, int kind, int rows, const tile_range_t *range, int tile, int row, int block,
                      int blocks) {
    const moa_linear_t *l = p->linear;
    const int lanes = PART_LANES * PARTS, passes = blocks * (MOA_LANES / lanes);
    const size_t bytes = tile_bytes(kind, l->inputs);
    const uint8_t *weights = range->part->tiles + tile * bytes;
    for (int lane = 0; lane < MOA_LANES; lane += lanes) {
        pvec sums[ROWS_MOST][PARTS];
        if (kind == MOA_FLOAT32)
            float_parts(rows, l->inputs, (const float *)weights + lane, p->x + (size_t)row * l->inputs, sums);
        else {
            int pass = block * (MOA_LANES / lanes) + lane / lanes;
            const uint8_t *ahead = passes == 1 ? weights : weights + bytes + pass * (bytes / passes);
#if ROWS_LEAST > 1
            if (rows < ROWS_LEAST && p->codes->rows >= ROWS_LEAST) {
                quantised_parts(kind, ROWS_LEAST, l->inputs, weights, lane, p->codes, row, ahead, passes, sums);
                UNROLL for (int r = rows; r < ROWS_LEAST; r++)
                    UNROLL for (int n = 0; n < PARTS; n++) COMPUTED(sums[r][n]);
            } else
#endif
            quantised_parts(kind, rows, l->inputs, weights, lane, p->codes, row, ahead, passes, sums);
        }
        UNROLL for (int n = 0; n < PARTS; n++) {
            int output = tile * MOA_LANES + lane + PART_LANES * n, at = range->offset + output;
            pvec of_part[ROWS_MOST];
            if (output >= range->part->outputs) return;
            UNROLL for (int r = 0; r < rows; r++) of_part[r] = sums[r][n];
            store_rows(rows, of_part, l->bias ? l->bias + at : NULL, range->part->outputs - output,
                       p->y + (size_t)row * l->outputs + at, l->outputs);
        }
    }
}

#define ROWS_OF(kind, rows)                               \
    case rows:                                            \
        one_block(p, kind, rows, range, tile, row, block, blocks);       \
        break;
#if ROWS_MOST > 4
#define EACH_ROWS(kind)                                                                   \
    ROWS_OF(kind, 1) ROWS_OF(kind, 2) ROWS_OF(kind, 3) ROWS_OF(kind, 4)                   \
    ROWS_OF(kind, 5) ROWS_OF(kind, 6) ROWS_OF(kind, 7) ROWS_OF(kind, 8)
#else
#define EACH_ROWS(kind) ROWS_OF(kind, 1) ROWS_OF(kind, 2) ROWS_OF(kind, 3) ROWS_OF(kind, 4)
#endif

// All rows, in even blocks: 9 rows are 5 and 4.
#define DEFINE_TILES(kind)                                                                \
    static void tiles_##kind(const product_t *p, const tile_range_t *range) {             \
        int blocks = (p->rows + ROWS_MOST - 1) / ROWS_MOST;                               \
        for (int tile = range->first; tile < range->stop; tile++)                         \
            for (int block = 0, row = 0; block < blocks; block++) {                       \
                int rows = (p->rows - row + blocks - block - 1) / (blocks - block);       \
                switch (rows) { EACH_ROWS(kind) }                                         \
                row += rows;                                                              \
            }                                                                             \
    }
EACH_KIND(DEFINE_TILES)
DEFINE_TILES(MOA_FLOAT32)

#ifdef MOA_VARIANT_AMX
INLINE void amx_product(const product_t *p, int kind, int block_rows, const tile_range_t *range, int tile) {
    const moa_linear_t *l = p->linear;
    const int groups = l->inputs / MOA_GROUP, at = range->offset + tile * MOA_LANES;
    _Alignas(64) uint8_t unpacked[kind == MOA_Q8_0 ? 1 : groups][512];  // once for all rows
    const uint8_t *weights = range->part->tiles + (size_t)tile * tile_bytes(kind, l->inputs);
    for (int row = 0; row < p->rows; row += block_rows) {
        amx_block_t b = {weights, unpacked[0], p->codes, groups, row};
        pvec sums[AMX_ROWS];
        int rows = p->rows - row < block_rows ? p->rows - row : block_rows;
        amx_block(kind, block_rows, &b, sums);
        UNROLL for (int r = 0; r < block_rows; r++)  // known indices: the sums stay in registers
            if (r < rows)
                store_rows(1, sums + r, l->bias ? l->bias + at : NULL, range->part->outputs - tile * MOA_LANES,
                           p->y + (size_t)(row + r) * l->outputs + at, l->outputs);
    }
}

static int amx_block_rows(int rows) {  // even blocks: 20 rows are twice 12
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
        switch (block_rows) {                                                               \
            AMX_BLOCKS(kind, 4) AMX_BLOCKS(kind, 8) AMX_BLOCKS(kind, 12) AMX_BLOCKS(kind, 16) \
        }                                                                                   \
        end_amx();                                                                          \
    }
AMX_KINDS(DEFINE_AMX_TILES)
#endif

static void product_tiles(const product_t *p, const tile_range_t *range) {
#define TILES_OF(kind)              \
    case kind:                      \
        tiles_##kind(p, range);     \
        return;
#ifdef MOA_VARIANT_AMX
#define AMX_TILES_OF(kind)          \
    case kind:                      \
        amx_tiles_##kind(p, range); \
        return;
    if (p->rows >= AMX_LEAST_ROWS) switch (range->part->kind) { AMX_KINDS(AMX_TILES_OF) }
#endif
    switch (range->part->kind) { EACH_KIND(TILES_OF) TILES_OF(MOA_FLOAT32) }
}

static int tiles_of(const moa_part_t *part) { return (part->outputs + MOA_LANES - 1) / MOA_LANES; }
static int tasks_of(const moa_part_t *part, int tiles_a_task) { return (tiles_of(part) + tiles_a_task - 1) / tiles_a_task; }

static void product_task(void *context, int task, int worker) {
    (void)worker;
    const product_t *p = context;
    tile_range_t range = {p->linear->part, 0, 0, 0};
    while (task >= tasks_of(range.part, p->tiles_a_task)) {
        task -= tasks_of(range.part, p->tiles_a_task);
        range.offset += range.part++->outputs;
    }
    range.first = task * p->tiles_a_task, range.stop = range.first + p->tiles_a_task;
    if (range.stop > tiles_of(range.part)) range.stop = tiles_of(range.part);
    product_tiles(p, &range);
}

// y = linear(x), given the rows' codes (quantised layers) or the rows (float32). Rows go in batches whose codes stay in
// the first or second cache while all outputs are computed.
static void product(const moa_linear_t *linear, int rows, const float *x, const activations_t *codes, float *y,
                    int threads) {
    int tiles = 0, tasks = 0, groups = linear->inputs / MOA_GROUP;
    for (int i = 0; i < linear->parts; i++) tiles += tiles_of(linear->part + i);
    int tiles_a_task = threads < 2 ? tiles : (tiles + 4 * threads - 1) / (4 * threads);
    for (int i = 0; i < linear->parts; i++) tasks += tasks_of(linear->part + i, tiles_a_task);
    for (int row = 0; row < rows; row += BATCH_ROWS) {
        activations_t batch = batch_of(codes, row, groups);
        product_t p = {linear, rows - row < BATCH_ROWS ? rows - row : BATCH_ROWS, tiles_a_task, &batch,
                       x + (size_t)row * linear->inputs, y + (size_t)row * linear->outputs};
        parallel(threads, product_task, &p, tasks);
    }
}
