// Linear layers: packed weights times rows of activations, which are rounded to int8 in groups of 32 on the way.
//
// Integer sums are exact, and the float sum over groups has one order, so a row's result does not depend on the others.
#pragma once

#define Q4_1_TILE_GROUP 320  // bytes of a group of a tile: 256 of nibbles, 16 scales, 16 minima
#define Q8_0_TILE_GROUP 544  // 512 of integers, 16 scales
#define PREFETCH 3072        // bytes ahead: about what the memory delivers while it takes to fetch a line

typedef struct {
    int8_t *codes;    // [rows, inputs]
    float *scales;    // [rows, groups]
    float *sums;      // [rows, groups]: sum of the codes, times the scale
    int32_t *totals;  // [rows, groups]: sum of the codes
} activations_t;

static size_t tile_bytes(int kind, int inputs) {
    if (kind == MOA_FLOAT32) return (size_t)inputs * MOA_LANES * sizeof(float);
    return (size_t)(inputs / MOA_GROUP) * (kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP);
}

// Rounds one row to int8, with a scale a group.
static void quantise_row(int inputs, const float *x, const activations_t *to, int row) {
    int groups = inputs / MOA_GROUP;
    for (int g = 0; g < groups; g++, x += MOA_GROUP) {
        size_t at = (size_t)row * groups + g;
        int8_t *codes = to->codes + at * MOA_GROUP;
        vec a = v_load(x), b = v_load(x + MOA_LANES);
        float largest = v_maximum(v_max(v_abs(a), v_abs(b)));
        if (!(largest > 1e-12f)) largest = 1e-12f;
        vec inverse = v_set(127.f / largest);
        v_store_int8(codes, v_mul(a, inverse));
        v_store_int8(codes + MOA_LANES, v_mul(b, inverse));
        int total = sum_int8(codes);
        to->scales[at] = largest / 127.f;
        to->sums[at] = (float)total * to->scales[at];
        to->totals[at] = total;
    }
}

INLINE void store_rows(int rows, const vec *sums, const float *bias, int outputs, float *y, long stride) {
    UNROLL for (int r = 0; r < rows; r++) {
        vec sum = bias ? v_add(sums[r], v_load(bias)) : sums[r];
        if (outputs >= MOA_LANES) {
            v_store(y + r * stride, sum);
        } else {
            float padded[MOA_LANES];
            v_store(padded, sum);
            memcpy(y + r * stride, padded, (size_t)outputs * sizeof(float));
        }
    }
}

// One tile, 16 outputs, for up to ROWS_MOST rows.
INLINE void quantised_tile(int rows, int kind, int groups, const uint8_t *tile, const activations_t *a, int row,
                           vec *sums, int prefetch) {
    const int bytes = kind == MOA_Q4_1 ? Q4_1_TILE_GROUP : Q8_0_TILE_GROUP;
    const long stride = (long)groups * MOA_GROUP;
    const int8_t *codes = a->codes + (size_t)row * stride;
    const size_t at = (size_t)row * groups;
    UNROLL for (int r = 0; r < rows; r++) sums[r] = v_set(0.f);
    for (int g = 0; g < groups; g++, codes += MOA_GROUP, tile += bytes) {
        vec dots[ROWS_MOST];
        if (prefetch)
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(tile + PREFETCH + line);
        if (kind == MOA_Q4_1) {
            dot_q4(rows, tile, codes, stride, a->totals + at + g, groups, dots);
            vec scales = v_load_half((const uint16_t *)(tile + 256)), minima = v_load_half((const uint16_t *)(tile + 288));
            UNROLL for (int r = 0; r < rows; r++) {
                sums[r] = v_fma(v_mul(dots[r], v_set(a->scales[at + (size_t)r * groups + g])), scales, sums[r]);
                sums[r] = v_fma(v_set(a->sums[at + (size_t)r * groups + g]), minima, sums[r]);
            }
        } else {
            dot_q8(rows, tile, codes, stride, a->totals + at + g, groups, dots);
            vec scales = v_load_half((const uint16_t *)(tile + 512));
            UNROLL for (int r = 0; r < rows; r++)
                sums[r] = v_fma(v_mul(dots[r], v_set(a->scales[at + (size_t)r * groups + g])), scales, sums[r]);
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

typedef struct {
    const moa_linear_t *linear;
    int rows, tiles_a_task;
    const activations_t *codes;  // of quantised layers
    const float *x;              // [rows, inputs], of float32 layers
    float *y;                    // [rows, outputs]
} product_t;

INLINE void one_block(const product_t *p, int kind, int rows, int row, int output, const uint8_t *tile) {
    const moa_linear_t *l = p->linear;
    vec sums[ROWS_MOST];
    if (kind == MOA_FLOAT32)
        float_tile(rows, l->inputs, (const float *)tile, p->x + (size_t)row * l->inputs, sums);
    else
        quantised_tile(rows, kind, l->inputs / MOA_GROUP, tile, p->codes, row, sums, row == 0);
    store_rows(rows, sums, l->bias ? l->bias + output : NULL, l->outputs - output,
               p->y + (size_t)row * l->outputs + output, l->outputs);
}

#define EACH_KIND(rows)                                                                          \
    case rows:                                                                                   \
        if (l->kind == MOA_Q4_1) one_block(p, MOA_Q4_1, rows, row, output, tile);                \
        else if (l->kind == MOA_Q8_0) one_block(p, MOA_Q8_0, rows, row, output, tile);           \
        else one_block(p, MOA_FLOAT32, rows, row, output, tile);                                 \
        break;

static void product_tile(const product_t *p, int output, const uint8_t *tile) {
    const moa_linear_t *l = p->linear;
    int blocks = (p->rows + ROWS_MOST - 1) / ROWS_MOST;
    for (int block = 0, row = 0; block < blocks; block++) {
        int rows = (p->rows - row + blocks - block - 1) / (blocks - block);  // even blocks: 9 rows are 5 and 4
        switch (rows) {
            EACH_KIND(1) EACH_KIND(2) EACH_KIND(3) EACH_KIND(4)
#if ROWS_MOST > 4
            EACH_KIND(5) EACH_KIND(6) EACH_KIND(7) EACH_KIND(8)
#endif
        }
        row += rows;
    }
}

static void product_task(void *context, int task, int worker) {
    (void)worker;
    const product_t *p = context;
    const moa_linear_t *l = p->linear;
    size_t bytes = tile_bytes(l->kind, l->inputs);
    int first = task * p->tiles_a_task * MOA_LANES, stop = first + p->tiles_a_task * MOA_LANES;
    if (stop > l->outputs) stop = l->outputs;
    for (int output = first; output < stop; output += MOA_LANES)
        product_tile(p, output, l->tiles + (size_t)(output / MOA_LANES) * bytes);
}

// y = linear(x), given the rows' codes (quantised layers) or the rows (float32).
static void product(const moa_linear_t *linear, int rows, const float *x, const activations_t *codes, float *y,
                    int threads) {
    int tiles = (linear->outputs + MOA_LANES - 1) / MOA_LANES;
    int tiles_a_task = threads < 2 ? tiles : (tiles + 4 * threads - 1) / (4 * threads);
    product_t p = {linear, rows, tiles_a_task, codes, x, y};
    parallel(threads, product_task, &p, (tiles + tiles_a_task - 1) / tiles_a_task);
}
