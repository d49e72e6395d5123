// A decoder layer: its phases one after the other, experts among them.
#pragma once

// Whether the layer's experts stand beside an MLP with norms of their own.
static int is_beside(const moa_layer_t *layer) { return layer->beside_out_norm != NULL; }

static void norm_before_router(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_layer_t *l = f->layer;
    norm_for(&l->experts->router, is_beside(l) ? l->router_norm : l->mlp_norm, f, row);
    if (!l->shared_gate) return;
    int hidden = f->stack->hidden;  // what the shared MLP gives, as much of it as the row's gate lets through
    float gate[MOA_LANES];
    v_store(gate, v_gated(v_set(1.f), v_set(dot(hidden, f->narrow + (size_t)row * hidden, l->shared_gate))));
    scale_row(hidden, gate[0], f->wide + (size_t)row * hidden);
}

// After the router: what experts beside an MLP read, and what that MLP gives.
static void norm_before_experts(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    float *given = f->wide + (size_t)row * f->stack->hidden;
    norm_for(&f->layer->experts->router, f->layer->experts_norm, f, row);
    norm_row(f->stack->hidden, f->stack->eps, f->layer->beside_out_norm, given, given);
}

static void route(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_experts_t *e = f->layer->experts;
    size_t at = (size_t)row * e->chosen;
    choose_experts(e, f->mixture.scores + (size_t)row * e->count, f->mixture.expert + at, f->mixture.weight + at);
}

// A place's input of the product that is next: as codes, or as it is.
static void enter_place(forward_t *f, const moa_linear_t *next, const float *x, int place) {
    mixture_t *m = &f->mixture;
    const int block = m->block[place];
    if (is_quantised(next)) quantise_row(next->inputs, x, m->codes_of + block, place - m->of[block].first);
    else memmove(m->in + (size_t)place * next->inputs, x, (size_t)next->inputs * sizeof *x);
}

static void enter_experts(void *context, int place, int worker) {
    (void)worker;
    forward_t *f = context;
    const float *normed = f->narrow + (size_t)f->mixture.row[place] * f->stack->hidden;
    enter_place(f, f->layer->experts->gate_up, normed, place);
}

static void activate_place(void *context, int place, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_experts_t *e = f->layer->experts;
    float *activated = f->mixture.in + (size_t)place * e->inner, *gate = f->mixture.out + (size_t)place * 2 * e->inner;
    gate_row(f->stack, e->inner, gate, gate + e->inner, activated);
    enter_place(f, e->down, activated, place);
}

static void add_experts(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const mixture_t *m = &f->mixture;
    int hidden = f->stack->hidden, chosen = f->layer->experts->chosen;
    float *sum = f->narrow + (size_t)row * hidden;
    for (int i = 0; i < hidden; i += MOA_LANES) {
        vec part = v_set(0.f);
        for (int choice = row * chosen; choice < (row + 1) * chosen; choice++)
            part = v_fma(v_load(m->out + (size_t)m->place[choice] * hidden + i), v_set(m->weight[choice]), part);
        v_store(sum + i, part);
    }
    if (is_beside(f->layer)) norm_row(hidden, f->stack->eps, f->layer->experts_out_norm, sum, sum);
    if (f->layer->gate_up.parts) add_row(hidden, sum, f->wide + (size_t)row * hidden);
    add_of_mlp(f, row, sum);
}

static void run_experts(forward_t *f) {
    const moa_experts_t *e = f->layer->experts;
    mixture_t *m = &f->mixture;
    parallel(f->threads, norm_before_router, f, f->rows);
    product(&e->router, f->rows, f->narrow, &f->codes, m->scores, f->threads);
    parallel(f->threads, route, f, f->rows);
    if (is_beside(f->layer)) parallel(f->threads, norm_before_experts, f, f->rows);
    sort_places(e, m, f->rows);
    place_codes(m, f->stack->hidden);
    parallel(f->threads, enter_experts, f, f->rows * e->chosen);
    multiply_blocks(m, e->gate_up, f->threads);
    place_codes(m, e->inner);
    parallel(f->threads, activate_place, f, f->rows * e->chosen);
    multiply_blocks(m, e->down, f->threads);
    parallel(f->threads, add_experts, f, f->rows);
}

static void run_layer(forward_t *f, int tasks) {
    const moa_layer_t *l = f->layer;
    int only_fills = f->stack->only_fills && f->layer_index == f->stack->layers - 1;
    parallel(f->threads, norm_before_attention, f, f->rows);
    multiply(f, &l->qkv);
    if (l->delta_net) {
        run_delta_net(f);
        if (only_fills) return;
    } else {
        f->cache_offset = layer_offset(f->stack->kv, f->stack->cached, l->cached);
        parallel(f->threads, place_row, f, f->rows);
        if (only_fills) return;
        parallel(f->threads, attend_task, f, tasks);
        parallel(f->threads, quantise_attended, f, f->rows);
    }
    multiply(f, &l->out);
    parallel(f->threads, add_attention, f, f->rows);
    if (l->gate_up.parts) run_mlp(f);
    if (l->experts) run_experts(f);
    else parallel(f->threads, add_mlp, f, f->rows);
    if (has_embedding(l)) run_embedding(f);
}
