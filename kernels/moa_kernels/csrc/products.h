// Products of tiles and rows: what kernels.c asks of products.c, by vector instructions, and of amx.c, by tile registers.
//
// Integer sums are exact, and the float sum over groups has one order, so a row's result does not depend on the others.
#pragma once
#include "kernels.h"

// Rows of activations in int8, in batches, and within a batch group by group: what a block of rows needs lies together.
typedef struct {
    int rows;         // of a batch, at most BATCH_ROWS; of one alone with room for ROWS_LEAST
    int8_t *codes;    // [batches, groups, rows, 32]
    float *scales;    // [batches, groups, rows]
    float *sums;      // [batches, groups, rows]: sum of the codes, times the scale
    int16_t *totals;  // [batches, groups, rows, 2]: sums of the codes of each half
} activations_t;

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

void product_tiles(const product_t *product, const tile_range_t *range);

extern const int has_amx;  // of the library; else the others do nothing
// Returns whether it has done all, because tile registers are faster.
int amx_tiles(const product_t *product, const tile_range_t *range);
