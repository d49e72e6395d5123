// The kernels of one instruction set: what kernels.h declares.
#define _DEFAULT_SOURCE  // sigaction, strdup
#include "kernels.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "formats.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(MOA_VARIANT_AVX512) || defined(MOA_VARIANT_AMX)
#include "simd_avx512.h"
#include "simd_x86.h"
#elif defined(MOA_VARIANT_AVX2) || defined(MOA_VARIANT_AVXVNNI)
#include "simd_avx2.h"
#include "simd_x86.h"
#elif defined(MOA_VARIANT_NEON)
#include "simd_neon.h"
#else
#error "Define one MOA_VARIANT_..."
#endif
static void *allocate(size_t bytes) { return aligned_alloc(64, (bytes / 64 + 1) * 64); }

#ifdef MOA_VARIANT_NEON
#include "dots_neon.h"
#else
#include "dots_x86.h"
#endif
#include "parallel.h"
#include "rows.h"
#include "quantise.h"
#include "pack.h"
#include "linear.h"
#include "attention.h"
#include "peak.h"
#include "guard.h"
#include "experts.h"

// ---------------------------------------------------------------- a forward

typedef struct {
    int session, kv_head, row, queries, head;  // `queries` heads from (row, head) on, row by row
} attention_task_t;

// Everything that the phases of a forward share. Each phase splits its rows, outputs or blocks over the threads.
typedef struct {
    const moa_stack_t *stack;
    const moa_layer_t *layer;
    int rows, layer_index, threads, score_stride;
    const int32_t *positions;
    const float *const *cosines, *const *sines, *query_factors;
    const moa_segment_t *segments;
    const int *segment_rows;  // first row of each segment
    float *x;                 // [rows, hidden]
    float *wide;              // [rows, max(qkv, 2 inner)]
    float *narrow;            // [rows, max(hidden, heads head_dim, inner)]
    float *scores;            // [threads, queries, score_stride]
    activations_t codes;
    mixture_t mixture;        // where a layer has experts
    const attention_task_t *tasks;
} forward_t;

static int query_width(const moa_stack_t *s) { return s->heads * s->head_dim; }
static int qkv_width(const moa_stack_t *s) {
    return (s->heads + (s->reads_memory ? 0 : 2 * s->kv_heads)) * s->head_dim;
}

static void quantise_for(const moa_linear_t *linear, const float *x, forward_t *f, int row) {
    if (is_quantised(linear)) quantise_row(linear->inputs, x, &f->codes, row);
}

static void norm_for(const moa_linear_t *next, const float *weight, forward_t *f, int row) {
    int hidden = f->stack->hidden;
    float *normed = f->narrow + (size_t)row * hidden;
    const float *x = f->x + (size_t)row * hidden;
    if (weight) norm_row(hidden, f->stack->eps, weight, x, normed);
    else memcpy(normed, x, (size_t)hidden * sizeof *x);
    quantise_for(next, normed, f, row);
}

static void norm_before_attention(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    norm_for(&f->layer->qkv, f->layer->attention_norm, f, row);
}

static void norm_before_mlp(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_experts_t *e = f->layer->experts;
    norm_for(e ? &e->router : &f->layer->gate_up, f->layer->mlp_norm, f, row);
}

static void norm_heads(const forward_t *f, const float *norm, int heads, float *x) {
    int dim = f->stack->head_dim;
    if (!norm) return;
    if (f->layer->norms_all_heads) norm_row(heads * dim, f->stack->eps, norm, x, x);
    else for (int h = 0; h < heads; h++) norm_row(dim, f->stack->eps, norm, x + h * dim, x + h * dim);
}

static void clip_row(int width, float most, float *x) {
    for (int i = 0; i < width; i++) x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

// Norms, rotates and scales a row's queries; norms, rotates and stores its keys, stores its values.
static void place_row(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_stack_t *s = f->stack;
    int dim = s->head_dim, session = 0;
    float *heads = f->wide + (size_t)row * qkv_width(s);
    int kv_heads = s->reads_memory ? 0 : s->kv_heads;
    norm_heads(f, f->layer->query_norm, s->heads, heads);
    norm_heads(f, f->layer->key_norm, kv_heads, heads + query_width(s));
    if (s->qkv_clip > 0) clip_row(qkv_width(s), s->qkv_clip, heads);
    if (f->layer->rotary >= 0) {
        size_t at = (size_t)f->positions[row] * (s->rotated / 2);
        const float *cosines = f->cosines[f->layer->rotary] + at, *sines = f->sines[f->layer->rotary] + at;
        for (int h = 0; h < s->heads + kv_heads; h++) rotate_head(s->rotated, cosines, sines, heads + h * dim);
    }
    scale_row(query_width(s), s->query_scale, heads);
    if (f->query_factors) scale_row(query_width(s), f->query_factors[row], heads);
    if (s->reads_memory) return;
    while (row >= f->segment_rows[session + 1]) session++;
    const moa_segment_t *segment = f->segments + session;
    int slot = segment->first_slot + row - f->segment_rows[session];
    for (int h = 0; h < s->kv_heads; h++) {
        char *page = segment->pages[slot / MOA_PAGE_ROWS];
        store_keys_values(s->kv, dim, page + head_offset(s->kv, dim, s->kv_heads, f->layer_index, h), slot,
                          heads + (s->heads + h) * dim, heads + (s->heads + s->kv_heads + h) * dim);
    }
}

static void attend_task(void *context, int index, int worker) {
    forward_t *f = context;
    const moa_stack_t *s = f->stack;
    const attention_task_t *task = f->tasks + index;
    const moa_segment_t *segment = f->segments + task->session;
    int dim = s->head_dim, group = s->heads / s->kv_heads, row = task->row, head = task->head;
    block_t b = {.head_dim = dim, .pages = segment->pages, .stride = f->score_stride};
    b.offset = head_offset(s->kv, dim, s->kv_heads, f->layer_index, task->kv_head);
    b.scores = f->scores + (size_t)worker * QUERIES_MOST * f->score_stride;
    b.cap = s->score_cap;
    for (int q = 0; q < task->queries; q++) {
        size_t at = (size_t)(f->segment_rows[task->session] + row);
        int column = (task->kv_head * group + head) * dim;
        b.query[q] = f->wide + at * qkv_width(s) + column;
        b.output[q] = f->narrow + at * query_width(s) + column;
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
    quantise_for(&f->layer->out, f->narrow + (size_t)row * query_width(f->stack), f, row);
}

static void add_normed(const forward_t *f, int row, const float *norm, float *addend) {
    int hidden = f->stack->hidden;
    if (norm) norm_row(hidden, f->stack->eps, norm, addend, addend);
    if (f->stack->residual_scale != 1.f) scale_row(hidden, f->stack->residual_scale, addend);
    add_row(hidden, f->x + (size_t)row * hidden, addend);
}

static void add_attention(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    add_normed(f, row, f->layer->attention_out_norm, f->wide + (size_t)row * f->stack->hidden);
}

static void add_mlp(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    add_normed(f, row, f->layer->mlp_out_norm, f->wide + (size_t)row * f->stack->hidden);
}

static void gate_row(const moa_stack_t *s, int inner, const float *gate_up, float *activated) {
    if (s->activation == MOA_SILU) swiglu_row(inner, gate_up, activated);
    else if (s->activation == MOA_GELU_TANH) geglu_row(inner, gate_up, activated);
    else clamped_swiglu_row(inner, s->gate_slope, s->gate_limit, gate_up, activated);
}

static void activate(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    int inner = f->stack->inner;
    float *activated = f->narrow + (size_t)row * inner;
    gate_row(f->stack, inner, f->wide + (size_t)row * 2 * inner, activated);
    quantise_for(&f->layer->down, activated, f, row);
}

static void multiply(forward_t *f, const moa_linear_t *linear) {
    product(linear, f->rows, f->narrow, &f->codes, f->wide, f->threads);
}

// ---------------------------------------------------------------- experts

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
    float *activated = f->mixture.in + (size_t)place * e->inner;
    gate_row(f->stack, e->inner, f->mixture.out + (size_t)place * 2 * e->inner, activated);
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
    add_normed(f, row, f->layer->mlp_out_norm, sum);
}

static void run_experts(forward_t *f) {
    const moa_experts_t *e = f->layer->experts;
    mixture_t *m = &f->mixture;
    product(&e->router, f->rows, f->narrow, &f->codes, m->scores, f->threads);
    parallel(f->threads, route, f, f->rows);
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
    parallel(f->threads, norm_before_attention, f, f->rows);
    multiply(f, &f->layer->qkv);
    parallel(f->threads, place_row, f, f->rows);
    if (f->stack->only_fills && f->layer_index == f->stack->layers - 1) return;
    parallel(f->threads, attend_task, f, tasks);
    parallel(f->threads, quantise_attended, f, f->rows);
    multiply(f, &f->layer->out);
    parallel(f->threads, add_attention, f, f->rows);
    parallel(f->threads, norm_before_mlp, f, f->rows);
    if (f->layer->experts) {
        run_experts(f);
        return;
    }
    multiply(f, &f->layer->gate_up);
    parallel(f->threads, activate, f, f->rows);
    multiply(f, &f->layer->down);
    parallel(f->threads, add_mlp, f, f->rows);
}

// Splits each session's queries into blocks, by key/value head.
static int list_tasks(const moa_stack_t *s, int segments, const moa_segment_t *segment, attention_task_t *tasks) {
    int group = s->heads / s->kv_heads, count = 0;
    for (int session = 0; session < segments; session++)
        for (int kv_head = 0; kv_head < s->kv_heads; kv_head++)
            for (int query = 0, most = segment[session].rows * group; query < most; query += QUERIES_MOST) {
                int queries = most - query < QUERIES_MOST ? most - query : QUERIES_MOST;
                tasks[count++] = (attention_task_t){session, kv_head, query / group, queries, query % group};
            }
    return count;
}

static int longest_context(int segments, const moa_segment_t *segment) {
    int longest = 0;
    for (int i = 0; i < segments; i++)
        for (int row = 0; row < segment[i].rows; row++) {
            int stop = segment[i].tail_start[row + 1], tail = stop - segment[i].tail_start[row];
            int slots = tail ? segment[i].tail[stop - 1] + 1 : segment[i].seen[row];
            if (slots > longest) longest = slots;
        }
    return longest;
}

static int most_of(int a, int b) { return a > b ? a : b; }

// Room for the experts of all layers; true where none has any.
static int allocate_experts(mixture_t *m, const moa_stack_t *s, int rows) {
    int count = 0, chosen = 0, inner = 0;
    for (int layer = 0; layer < s->layers; layer++) {
        const moa_experts_t *e = s->layer[layer].experts;
        if (e) count = most_of(count, e->count), chosen = most_of(chosen, e->chosen), inner = most_of(inner, e->inner);
    }
    return !count || allocate_mixture(m, rows, count, chosen, most_of(s->hidden, inner), most_of(s->hidden, 2 * inner));
}

int moa_run(const moa_stack_t *stack, int rows, float *x, const int32_t *positions, const float *const *cosines,
            const float *const *sines, const float *query_factors, int segments, const moa_segment_t *segment,
            int states, const int32_t *state_layers, float *state, int threads) {
    const moa_stack_t *s = stack;
    int widest = most_of(most_of(s->hidden, query_width(s)), s->inner), result = MOA_NO_MEMORY;
    size_t wide = (size_t)rows * most_of(most_of(qkv_width(s), 2 * s->inner), s->hidden);
    size_t narrow = (size_t)rows * widest, size = (size_t)rows * s->hidden;
    int blocks = segments * s->kv_heads + rows * s->heads / QUERIES_MOST + 1;
    threads = begin_parallel(threads);
    forward_t f = {.stack = s, .rows = rows, .threads = threads, .positions = positions, .cosines = cosines,
                   .sines = sines, .query_factors = query_factors, .segments = segment, .x = x};
    f.score_stride = (longest_context(segments, segment) + 2 * MOA_LANES - 1) / (2 * MOA_LANES) * 2 * MOA_LANES + 16;
    int *segment_rows = allocate(((size_t)segments + 1) * sizeof(int));
    attention_task_t *tasks = allocate((size_t)blocks * sizeof(attention_task_t));
    f.wide = allocate(wide * sizeof(float));
    f.narrow = allocate(narrow * sizeof(float));
    f.scores = allocate((size_t)threads * QUERIES_MOST * f.score_stride * sizeof(float));
    int has_codes = allocate_activations(&f.codes, rows, widest), has_experts = allocate_experts(&f.mixture, s, rows);
    if (segment_rows && tasks && f.wide && f.narrow && f.scores && has_codes && has_experts) {
        segment_rows[0] = 0;
        for (int i = 0; i < segments; i++) segment_rows[i + 1] = segment_rows[i] + segment[i].rows;
        f.segment_rows = segment_rows;
        f.tasks = tasks;
        int count = list_tasks(s, segments, segment, tasks);
        for (int layer = 0; layer <= s->layers; layer++) {
            for (int i = 0; i < states; i++)
                if (layer == state_layers[i]) memcpy(state + i * size, x, size * sizeof(float));
            if (layer == s->layers) break;
            f.layer = s->layer + layer;
            f.layer_index = layer;
            run_layer(&f, count);
        }
        result = MOA_OK;
    }
    free(segment_rows), free(tasks), free(f.wide), free(f.narrow), free(f.scores);
    free_activations(&f.codes);
    free_mixture(&f.mixture);
    end_parallel(threads);
    return result;
}

// ---------------------------------------------------------------- single operations

int moa_linear(const moa_linear_t *linear, int rows, const float *x, float *y, int threads) {
    activations_t codes = {0};
    if (is_quantised(linear)) {
        if (!allocate_activations(&codes, rows, linear->inputs)) {
            free_activations(&codes);
            return MOA_NO_MEMORY;
        }
        for (int row = 0; row < rows; row++)
            quantise_row(linear->inputs, x + (size_t)row * linear->inputs, &codes, row);
    }
    threads = begin_parallel(threads);
    product(linear, rows, x, &codes, y, threads);
    end_parallel(threads);
    free_activations(&codes);
    return MOA_OK;
}

int64_t moa_peak(int64_t rounds) { return peak_products(rounds); }

void moa_norm(int rows, int width, float eps, const float *weight, const float *x, float *y) {
    for (int row = 0; row < rows; row++)
        norm_row(width, eps, weight, x + (size_t)row * width, y + (size_t)row * width);
}

void moa_cap(int64_t count, float cap, float *x) {
    for (int64_t i = 0; i < count; i += MOA_LANES) {
        float part[MOA_LANES] = {0};
        size_t size = (size_t)(count - i < MOA_LANES ? count - i : MOA_LANES) * sizeof *x;
        memcpy(part, x + i, size);
        v_store(part, v_cap(v_load(part), v_set(cap)));
        memcpy(x + i, part, size);
    }
}

// ---------------------------------------------------------------- caches

static char *cache_head(const moa_cache_t *c, int layer, int head, int slot) {
    return (char *)c->pages[slot / MOA_PAGE_ROWS] + head_offset(c->kv, c->head_dim, c->kv_heads, layer, head);
}

void moa_cache_write(const moa_cache_t *cache, int layer, int slot, int rows, const float *keys, const float *values) {
    for (int row = 0; row < rows; row++)
        for (int head = 0; head < cache->kv_heads; head++) {
            size_t at = ((size_t)row * cache->kv_heads + head) * cache->head_dim;
            store_keys_values(cache->kv, cache->head_dim, cache_head(cache, layer, head, slot + row), slot + row,
                              keys + at, values + at);
        }
}

// out: [rows, layers, kv_heads, 2, head_dim], keys before values.
void moa_cache_read(const moa_cache_t *cache, int slot, int rows, float *out) {
    int dim = cache->head_dim;
    for (int row = slot; row < slot + rows; row++)
        for (int layer = 0; layer < cache->layers; layer++)
            for (int head = 0; head < cache->kv_heads; head++, out += 2 * dim) {
                char *from = cache_head(cache, layer, head, row);
                size_t value = value_index(dim, row), size = kv_bytes(cache->kv);
                vec scales[2] = {v_set(1.f), v_set(1.f)};
                if (cache->kv == MOA_KV_INT8)
                    for (int i = 0; i < 2; i++)
                        scales[i] = v_set(key_scales(dim, from)[i * MOA_PAGE_ROWS + row % MOA_PAGE_ROWS]);
                for (int i = 0; i < dim; i += MOA_LANES) {
                    float keys[MOA_LANES];  // as wide as they may be
                    for (int j = 0; j < MOA_LANES; j++)
                        memcpy((char *)keys + j * size, from + key_index(dim, row, i + j) * size, size);
                    v_store(out + i, v_mul(load_kv(cache->kv, keys, 0), scales[0]));
                    v_store(out + dim + i, v_mul(load_kv(cache->kv, from, value + i), scales[1]));
                }
            }
}

// Copies rows in the order given; a row that is read later must not have been written before.
void moa_cache_move(const moa_cache_t *cache, int rows, const int32_t *from, const int32_t *to) {
    int dim = cache->head_dim;
    size_t size = kv_bytes(cache->kv);
    for (int layer = 0; layer < cache->layers; layer++)
        for (int head = 0; head < cache->kv_heads; head++)
            for (int row = 0; row < rows; row++) {
                char *source = cache_head(cache, layer, head, from[row]);
                char *target = cache_head(cache, layer, head, to[row]);
                for (int i = 0; i < dim; i++)
                    memcpy(target + key_index(dim, to[row], i) * size, source + key_index(dim, from[row], i) * size,
                           size);
                memcpy(target + value_index(dim, to[row]) * size, source + value_index(dim, from[row]) * size,
                       dim * size);
                if (cache->kv == MOA_KV_INT8)
                    for (int i = 0; i < 2; i++)
                        key_scales(dim, target)[i * MOA_PAGE_ROWS + to[row] % MOA_PAGE_ROWS] =
                            key_scales(dim, source)[i * MOA_PAGE_ROWS + from[row] % MOA_PAGE_ROWS];
            }
}
