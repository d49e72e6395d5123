// Linear layers: packed weights times rows of activations, which are rounded to int8 in groups of 32 on the way.
#pragma once

#define BATCH_ROWS 64          // 36 kB of codes for 576 inputs
#define ROWS_OVER 16           // AMX reads whole blocks of rows; what it makes of the rows behind the last is dropped

static int is_quantised(const moa_linear_t *linear) { return linear->part[0].kind != MOA_FLOAT32; }

// Room for `rows` rows of `inputs` numbers; false where there is none. What is there already is not kept.
static int allocate_activations(activations_t *a, int rows, int inputs) {
    int least = has_amx ? 1 : ROWS_LEAST;  // small matrices take up to half as long again on CPUs with AMX
    int batch = rows < least ? least : rows < BATCH_ROWS ? rows : BATCH_ROWS;
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
    if (!amx_tiles(p, &range)) product_tiles(p, &range);
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
