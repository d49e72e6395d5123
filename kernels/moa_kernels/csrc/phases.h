// What a layer computes, row by row and task by task: attention, MLP, and the layer's own embeddings.
#pragma once

typedef struct {
    int session, kv_head, row, queries, head;  // `queries` heads from (row, head) on, row by row
} attention_task_t;

// Everything that the phases of a forward share. Each phase splits its rows, outputs or blocks over the threads.
typedef struct {
    const moa_stack_t *stack;
    const moa_layer_t *layer;
    int rows, layer_index, threads, score_stride;
    const int32_t *positions;
    const float *const *cosines, *const *sines, *query_factors, *embeddings;
    const moa_segment_t *segments;
    int sessions;             // as many as there are segments
    const int *segment_rows;  // first row of each segment
    size_t cache_offset;      // of the keys and values that the layer reads, in a page
    float *x;                 // [rows, hidden]
    float *wide;              // [rows, the widest of qkv and 2 inner]
    float *narrow;            // [rows, the widest of what attention reads, heads head_dim, inner and embedding]
    float *scores;            // [threads, queries, score_stride]
    activations_t codes;
    mixture_t mixture;        // where a layer has experts
    const attention_task_t *tasks;
    // Where a layer has a delta net:
    float *mixed, *gates;     // what the convolution gives, [rows channels]; [rows, heads value_dim]
    float *said, *overlap;    // [rows, 2 heads], decays and betas; [rows, key_heads], products of keys and queries
    float *copies;            // [threads, copy_size], of states, for drafted rows
    size_t copy_size;
    int mix_parts;            // tasks of a row's convolution
    int *copy;                // [rows], which of them a drafted row writes, and room to plan that
} forward_t;

static int most_of(int a, int b) { return a > b ? a : b; }

static int query_width(const forward_t *f) { return f->stack->heads * f->layer->heads.dim; }

static int session_of(const forward_t *f, int row) {
    int session = 0;
    while (row >= f->segment_rows[session + 1]) session++;
    return session;
}

static void quantise_for(const moa_linear_t *linear, const float *x, forward_t *f, int row) {
    if (is_quantised(linear)) quantise_row(linear->inputs, x, &f->codes, row);
}

// The row's norm, or the row as it is where there is no weight.
static void norm_into(float *normed, const float *weight, const forward_t *f, int row) {
    int hidden = f->stack->hidden;
    const float *x = f->x + (size_t)row * hidden;
    if (weight) norm_row(hidden, f->stack->eps, weight, x, normed);
    else memcpy(normed, x, (size_t)hidden * sizeof *x);
}

static void norm_for(const moa_linear_t *next, const float *weight, forward_t *f, int row) {
    float *normed = f->narrow + (size_t)row * f->stack->hidden;
    norm_into(normed, weight, f, row);
    quantise_for(next, normed, f, row);
}

// The layer's own embedding of a row's token.
static const float *own_embedding(const forward_t *f, int row) {
    return f->embeddings + ((size_t)row * f->stack->layers + f->layer_index) * f->stack->embedding;
}

static void norm_before_attention(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_layer_t *l = f->layer;
    int embedding = l->attention_embedding_norm ? f->stack->embedding : 0;
    float *read = f->narrow + (size_t)row * (embedding + f->stack->hidden);
    if (embedding) norm_row(embedding, f->stack->eps, l->attention_embedding_norm, own_embedding(f, row), read);
    norm_into(read + embedding, l->attention_norm, f, row);
    quantise_for(is_quantised(&l->qkv) || !l->delta_net ? &l->qkv : &l->delta_net->gate, read, f, row);
}

static void norm_before_mlp(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    norm_for(&f->layer->gate_up, f->layer->mlp_norm, f, row);
}

static void norm_heads(const forward_t *f, const float *norm, int heads, float *x) {
    int dim = f->layer->heads.dim;
    if (!norm) return;
    if (f->layer->norms_all_heads) norm_row(heads * dim, f->stack->eps, norm, x, x);
    else for (int h = 0; h < heads; h++) norm_row(dim, f->stack->eps, norm, x + h * dim, x + h * dim);
}

// Stores a row's keys, and its values after their norm.
static void store_row(const forward_t *f, int row, const float *keys, float *values) {
    const moa_layer_t *l = f->layer;
    int dim = l->heads.dim, session = session_of(f, row), kv = f->stack->kv;
    const moa_segment_t *segment = f->segments + session;
    int slot = segment->first_slot + row - f->segment_rows[session];
    char *page = (char *)segment->pages[slot / MOA_PAGE_ROWS] + f->cache_offset;
    for (int h = 0; h < l->heads.count; h++) {
        if (l->value_norm) norm_row(dim, f->stack->eps, l->value_norm, values + h * dim, values + h * dim);
        store_keys_values(kv, dim, page + h * head_bytes(kv, dim), slot, keys + h * dim, values + h * dim);
    }
}

static void clip_row(int width, float most, float *x) {
    for (int i = 0; i < width; i++) x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

// Norms, rotates and scales a row's queries; norms, rotates and stores its keys, stores its values.
static void place_row(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_layer_t *l = f->layer;
    int dim = l->heads.dim, kv_heads = l->writes ? l->heads.count : 0, queries = query_width(f);
    float *heads = f->wide + (size_t)row * l->qkv.outputs, *keys = heads + (l->output_gate ? 2 : 1) * queries;
    float *values = keys + kv_heads * dim;
    if (l->keys_are_values) {
        values = f->narrow + (size_t)row * queries;
        memcpy(values, keys, (size_t)kv_heads * dim * sizeof *keys);
    }
    norm_heads(f, l->query_norm, f->stack->heads, heads);
    norm_heads(f, l->key_norm, kv_heads, keys);
    if (f->stack->qkv_clip > 0) {
        clip_row(queries, f->stack->qkv_clip, heads);
        clip_row(l->qkv.outputs - (int)(keys - heads), f->stack->qkv_clip, keys);
    }
    if (l->rotary >= 0) {
        size_t at = (size_t)f->positions[row] * (l->rotated / 2);
        const float *cosines = f->cosines[l->rotary] + at, *sines = f->sines[l->rotary] + at;
        for (int h = 0; h < f->stack->heads; h++) rotate_head(l->rotated, cosines, sines, heads + h * dim);
        for (int h = 0; h < kv_heads; h++) rotate_head(l->rotated, cosines, sines, keys + h * dim);
    }
    scale_row(queries, l->query_scale, heads);
    if (f->query_factors) scale_row(queries, f->query_factors[row], heads);
    if (l->writes) store_row(f, row, keys, values);
}

static void attend_task(void *context, int index, int worker) {
    forward_t *f = context;
    const moa_stack_t *s = f->stack;
    const attention_task_t *task = f->tasks + index;
    const moa_segment_t *segment = f->segments + task->session;
    int dim = f->layer->heads.dim, group = s->heads / f->layer->heads.count, row = task->row, head = task->head;
    block_t b = {.head_dim = dim, .pages = segment->pages, .stride = f->score_stride};
    b.offset = f->cache_offset + task->kv_head * head_bytes(s->kv, dim);
    b.scores = f->scores + (size_t)worker * QUERIES_MOST * f->score_stride;
    b.cap = s->score_cap;
    for (int q = 0; q < task->queries; q++) {
        size_t at = (size_t)(f->segment_rows[task->session] + row);
        int column = (task->kv_head * group + head) * dim;
        b.query[q] = f->wide + at * f->layer->qkv.outputs + column;
        b.output[q] = f->narrow + at * query_width(f) + column;
        b.seen[q] = segment->seen[row];
        b.tail[q] = segment->tail + segment->tail_start[row];
        b.sink[q] = f->layer->sinks ? f->layer->sinks + task->kv_head * group + head : NULL;
        b.tail_count[q] = segment->tail_start[row + 1] - segment->tail_start[row];
        int seen = b.seen[q] + b.tail_count[q], window = f->layer->window;
        b.first[q] = window && seen > window ? seen - window : 0;
        if (!q || b.first[q] < b.from) b.from = b.first[q];
        if (++head == group) head = 0, row++;
    }
    b.from = b.from / MOA_LANES * MOA_LANES;
    attend(task->queries, s->kv, &b);
}

static void quantise_attended(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    int width = query_width(f);
    float *attended = f->narrow + (size_t)row * width;
    const float *gates = f->wide + (size_t)row * f->layer->qkv.outputs + width;
    if (f->layer->output_gate)
        for (int i = 0; i < width; i += MOA_LANES) v_store(attended + i, v_gated(v_load(attended + i), v_load(gates + i)));
    quantise_for(&f->layer->out, attended, f, row);
}

// `out_scale`: of the row's sum.
static void add_normed(const forward_t *f, int row, const float *norm, float *addend, float out_scale) {
    int hidden = f->stack->hidden;
    float *x = f->x + (size_t)row * hidden;
    if (norm) norm_row(hidden, f->stack->eps, norm, addend, addend);
    if (f->stack->residual_scale != 1.f) scale_row(hidden, f->stack->residual_scale, addend);
    add_row(hidden, x, addend);
    if (out_scale != 1.f) scale_row(hidden, out_scale, x);
}

static int has_embedding(const moa_layer_t *layer) { return layer->embedding_gate.parts; }

// What the MLP, or the experts, add to a row: the last addition of a layer without an embedding.
static void add_of_mlp(const forward_t *f, int row, float *addend) {
    add_normed(f, row, f->layer->mlp_out_norm, addend, has_embedding(f->layer) ? 1.f : f->layer->out_scale);
}

static void add_attention(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    add_normed(f, row, f->layer->attention_out_norm, f->wide + (size_t)row * f->stack->hidden, 1.f);
}

static void add_mlp(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    add_of_mlp(f, row, f->wide + (size_t)row * f->stack->hidden);
}

static void gate_row(const moa_stack_t *s, int inner, const float *gate, const float *up, float *activated) {
    if (s->activation == MOA_SILU) swiglu_row(inner, gate, up, activated);
    else if (s->activation == MOA_GELU_TANH) geglu_row(inner, gate, up, activated);
    else clamped_swiglu_row(inner, s->gate_slope, s->gate_limit, gate, up, activated);
}

static void activate(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    int inner = f->layer->inner;
    float *activated = f->narrow + (size_t)row * inner, *gate = f->wide + (size_t)row * 2 * inner;
    gate_row(f->stack, inner, gate, gate + inner, activated);
    quantise_for(&f->layer->down, activated, f, row);
}

static void multiply(forward_t *f, const moa_linear_t *linear) {
    product(linear, f->rows, f->narrow, &f->codes, f->wide, f->threads);
}

static void enter_embedding(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    norm_for(&f->layer->embedding_gate, NULL, f, row);
}

static void gate_embedding(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    int width = f->stack->embedding;
    float *gated = f->narrow + (size_t)row * width;
    gate_row(f->stack, width, f->wide + (size_t)row * width, own_embedding(f, row), gated);
    quantise_for(&f->layer->embedding_out, gated, f, row);
}

static void add_embedding(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    float *addend = f->wide + (size_t)row * f->stack->hidden;
    add_normed(f, row, f->layer->embedding_norm, addend, f->layer->out_scale);
}

static void run_embedding(forward_t *f) {
    parallel(f->threads, enter_embedding, f, f->rows);
    multiply(f, &f->layer->embedding_gate);
    parallel(f->threads, gate_embedding, f, f->rows);
    multiply(f, &f->layer->embedding_out);
    parallel(f->threads, add_embedding, f, f->rows);
}

static void run_mlp(forward_t *f) {
    parallel(f->threads, norm_before_mlp, f, f->rows);
    multiply(f, &f->layer->gate_up);
    parallel(f->threads, activate, f, f->rows);
    multiply(f, &f->layer->down);
}
