// Products by vector instructions.
#include "groups.h"

#define PREFETCH_FAR 8192      // into the second cache, which has room for more lines that are under way
#define PREFETCH_NEAR 1024     // from there into the first

INLINE void prefetch_far(const uint8_t *p, int bytes) {
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + line, 0, 2);
}

// Whether computing takes long enough for lines to pass through the second cache. Where memory is waited for all the
// time, that costs a quarter; elsewhere it gains up to a third (docs/engine.md).
INLINE int has_time(int kind, int rows) {
    return FORMATS[kind].high || rows * MOA_GROUP * MOA_LANES > 5 * bytes_a_group(kind) / 2;
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
            const int8_t *codes = a->codes + (size_t)row * MOA_GROUP;
            __asm__("" : "+r"(codes));  // or gcc may keep an address for each four inputs, on the stack
            dot_group(kind, rows, planes, subs, codes, a->totals + 2 * row, dots);
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

// Rows of a tile, in one of `blocks` blocks. Memory delivers while all of them compute. `computed`: rows, of which those
// from `rows` on are dropped.
INLINE void one_block(const product_t *p, int kind, int rows, int computed, const tile_range_t *range, int tile, int row,
                      int block, int blocks) {
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
            quantised_parts(kind, computed, l->inputs, weights, lane, p->codes, row, ahead, passes, sums);
#if ROWS_LEAST > 1
            UNROLL for (int r = rows; r < computed; r++)
                UNROLL for (int n = 0; n < PARTS; n++) COMPUTED(sums[r][n]);
#endif
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

#define ROWS_OF(kind, count)                                                            \
    case count:                                                                         \
        if (count < ROWS_LEAST && p->codes->rows >= ROWS_LEAST)                         \
            one_block(p, kind, count, ROWS_LEAST, range, tile, row, block, blocks);     \
        else one_block(p, kind, count, count, range, tile, row, block, blocks);         \
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

void product_tiles(const product_t *p, const tile_range_t *range) {
#define TILES_OF(kind)              \
    case kind:                      \
        tiles_##kind(p, range);     \
        return;
    switch (range->part->kind) { EACH_KIND(TILES_OF) TILES_OF(MOA_FLOAT32) }
}
