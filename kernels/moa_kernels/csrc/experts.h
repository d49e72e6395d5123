// Mixtures of experts: each row's MLP is that of a few experts, chosen by a router in float32.
//
// Rows are sorted by expert, so that a call reads each expert's weights once, and an expert that no row has chosen not
// at all. What a row's experts give is added in the order of its own choice, so its bits do not depend on the others.
#pragma once

typedef struct {
    int expert, first, rows;  // places in the sorted order; at most BATCH_ROWS, whose codes lie together
} expert_block_t;

// Of one call. A place is one row's choice of one expert; places are in order of experts, then of rows.
typedef struct {
    int blocks;
    float *scores;       // [rows, experts], of the router
    int *expert;         // [rows, chosen], best first
    float *weight;       // [rows, chosen]
    int *place;          // [rows, chosen]
    int *row, *block;    // [places]
    float *in, *out;     // [places, inputs or outputs of a product]
    activations_t codes;
    expert_block_t *of;  // [blocks]
    activations_t *codes_of;
    product_t *products;
    int *task;           // first of each block's product; one more at the end
} mixture_t;

static int allocate_mixture(mixture_t *m, int rows, int experts, int chosen, int in, int out) {
    size_t places = (size_t)rows * chosen, blocks = places / BATCH_ROWS + (places < (size_t)experts ? places : (size_t)experts);
    m->scores = allocate((size_t)rows * experts * sizeof(float));
    m->expert = allocate(places * sizeof(int)), m->place = allocate(places * sizeof(int));
    m->row = allocate(places * sizeof(int)), m->block = allocate(places * sizeof(int));
    m->weight = allocate(places * sizeof(float));
    m->in = allocate(places * in * sizeof(float)), m->out = allocate(places * out * sizeof(float));
    m->of = allocate(blocks * sizeof *m->of), m->codes_of = allocate(blocks * sizeof *m->codes_of);
    m->products = allocate(blocks * sizeof *m->products), m->task = allocate((blocks + 1) * sizeof(int));
    int has_codes = allocate_activations(&m->codes, (int)places, in);
    return m->scores && m->expert && m->place && m->row && m->block && m->weight && m->in && m->out && m->of &&
           m->codes_of && m->products && m->task && has_codes;
}

static void free_mixture(mixture_t *m) {
    free(m->scores), free(m->expert), free(m->place), free(m->row), free(m->block), free(m->weight), free(m->in);
    free(m->out), free(m->of), free(m->codes_of), free(m->products), free(m->task);
    free_activations(&m->codes);
}

// The experts of one row with the highest scores, those of equal scores by their numbers, and what each weighs. Numbers
// that are none are never higher than others.
static void choose_experts(const moa_experts_t *e, const float *scores, int *chosen, float *weights) {
    float exponents[MOA_EXPERTS_MOST + MOA_LANES];
    uint8_t taken[MOA_EXPERTS_MOST] = {0};
    for (int rank = 0; rank < e->chosen; rank++) {
        int best = -1;
        for (int i = 0; i < e->count; i++)
            if (!taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
        taken[chosen[rank] = best] = 1;
    }
    int count = e->weighs_all ? e->count : e->chosen;
    for (int i = 0; i < count; i++) exponents[i] = scores[e->weighs_all ? i : chosen[i]];
    for (int i = count; i % MOA_LANES; i++) exponents[i] = -1e30f;
    vec largest = v_set(scores[chosen[0]]), sum = v_set(0.f);
    for (int i = 0; i < count; i += MOA_LANES) {
        vec power = v_exp(v_sub(v_load(exponents + i), largest));
        v_store(exponents + i, power);
        sum = v_add(sum, power);
    }
    float total = v_sum(sum);
    for (int rank = 0; rank < e->chosen; rank++) {
        weights[rank] = exponents[e->weighs_all ? chosen[rank] : rank] / total;
        if (e->scales) weights[rank] *= e->scales[chosen[rank]];
    }
}

// Sorts the rows' choices by expert, and cuts each expert's rows into blocks.
static void sort_places(const moa_experts_t *e, mixture_t *m, int rows) {
    int next[MOA_EXPERTS_MOST + 1] = {0}, places = rows * e->chosen;
    for (int i = 0; i < places; i++) next[m->expert[i] + 1]++;
    m->blocks = 0;
    for (int expert = 0; expert < e->count; expert++) {
        int first = next[expert], stop = next[expert + 1] += first;
        for (; first < stop; first += BATCH_ROWS) {
            int block_rows = stop - first < BATCH_ROWS ? stop - first : BATCH_ROWS;
            m->of[m->blocks] = (expert_block_t){expert, first, block_rows};
            for (int i = 0; i < block_rows; i++) m->block[first + i] = m->blocks;
            m->blocks++;
        }
    }
    for (int i = 0; i < places; i++) {
        m->place[i] = next[m->expert[i]]++;
        m->row[m->place[i]] = i / e->chosen;
    }
}

static void mixture_task(void *context, int task, int worker) {
    const mixture_t *m = context;
    int low = 0, high = m->blocks;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (m->task[middle] <= task) low = middle;
        else high = middle;
    }
    product_task(m->products + low, task - m->task[low], worker);
}

// Each block's part of m->codes, for products of so many inputs.
static void place_codes(mixture_t *m, int inputs) {
    int groups = inputs / MOA_GROUP;
    for (int i = 0; i < m->blocks; i++) {
        size_t at = (size_t)m->of[i].first * groups;
        m->codes_of[i] = (activations_t){m->of[i].rows, m->codes.codes + at * MOA_GROUP, m->codes.scales + at,
                                         m->codes.sums + at, m->codes.totals + 2 * at};
    }
}

// m->out = linears[expert](m->in or its codes), all threads over the blocks of all experts.
static void multiply_blocks(mixture_t *m, const moa_linear_t *linears, int threads) {
    int tiles = 0;
    for (int i = 0; i < m->blocks; i++)
        for (int part = 0; part < linears->parts; part++) tiles += tiles_of(linears[m->of[i].expert].part + part);
    int tiles_a_task = threads < 2 ? tiles : (tiles + 8 * threads - 1) / (8 * threads);
    m->task[0] = 0;
    for (int i = 0; i < m->blocks; i++) {
        const expert_block_t *b = m->of + i;
        const moa_linear_t *l = linears + b->expert;
        m->products[i] = (product_t){l, b->rows, tiles_a_task, m->codes_of + i, m->in + (size_t)b->first * l->inputs,
                                     m->out + (size_t)b->first * l->outputs};
        m->task[i + 1] = m->task[i];
        for (int part = 0; part < l->parts; part++) m->task[i + 1] += tasks_of(l->part + part, tiles_a_task);
    }
    parallel(threads, mixture_task, m, m->task[m->blocks]);
}
