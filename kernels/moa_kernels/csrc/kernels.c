// The kernels of one instruction set: what kernels.h declares.
#define _DEFAULT_SOURCE  // sigaction, strdup
#include "kernels.h"

#include <sched.h>

#include "simd.h"
#include "formats.h"
#include "products.h"

static void *allocate(size_t bytes) { return aligned_alloc(64, (bytes / 64 + 1) * 64); }

#include "parallel.h"
#include "rows.h"
#include "quantise.h"
#include "pack.h"
#include "linear.h"
#include "attention.h"
#include "guard.h"
#include "experts.h"
#include "phases.h"
#include "delta_net.h"
#include "layer.h"
#include "caches.h"

// ---------------------------------------------------------------- a forward

// Splits each session's queries into blocks, by key/value head.
static int list_tasks(int heads, int kv_heads, int segments, const moa_segment_t *segment, attention_task_t *tasks) {
    int group = heads / kv_heads, count = 0;
    for (int session = 0; session < segments; session++)
        for (int kv_head = 0; kv_head < kv_heads; kv_head++)
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

// Room for the experts of all layers; true where none has any.
static int allocate_experts(mixture_t *m, const moa_stack_t *s, int rows) {
    int count = 0, chosen = 0, inner = 0;
    for (int layer = 0; layer < s->layers; layer++) {
        const moa_experts_t *e = s->layer[layer].experts;
        if (e) count = most_of(count, e->count), chosen = most_of(chosen, e->chosen), inner = most_of(inner, e->inner);
    }
    return !count || allocate_mixture(m, rows, count, chosen, most_of(s->hidden, inner), most_of(s->hidden, 2 * inner));
}

// The widest row that any layer has of each kind.
typedef struct {
    int wide, narrow, kv_heads;
} widths_t;

static widths_t widths_of(const moa_stack_t *s) {
    widths_t w = {most_of(s->hidden, s->embedding), most_of(s->hidden, s->embedding), 0};
    for (const moa_layer_t *l = s->layer; l < s->layer + s->layers; l++) {
        w.wide = most_of(w.wide, most_of(l->qkv.outputs, 2 * l->inner));
        w.narrow = most_of(most_of(w.narrow, l->qkv.inputs), most_of(l->out.inputs, l->inner));
        w.kv_heads = most_of(w.kv_heads, l->heads.count);
    }
    return w;
}

int moa_run(const moa_stack_t *stack, int rows, float *x, const float *embeddings, const int32_t *positions,
            const float *const *cosines, const float *const *sines, const float *query_factors, int segments,
            const moa_segment_t *segment, int states, const int32_t *state_layers, float *state, int threads) {
    const moa_stack_t *s = stack;
    widths_t most = widths_of(s);
    size_t size = (size_t)rows * s->hidden;
    int blocks = segments * most.kv_heads + rows * s->heads / QUERIES_MOST + 1, result = MOA_NO_MEMORY;
    threads = begin_parallel(threads);
    forward_t f = {.stack = s, .rows = rows, .threads = threads, .positions = positions, .cosines = cosines,
                   .sines = sines, .query_factors = query_factors, .embeddings = embeddings, .segments = segment,
                   .sessions = segments, .x = x};
    f.score_stride = (longest_context(segments, segment) + 2 * MOA_LANES - 1) / (2 * MOA_LANES) * 2 * MOA_LANES + 16;
    int *segment_rows = allocate(((size_t)segments + 1) * sizeof(int));
    attention_task_t *tasks = allocate((size_t)blocks * sizeof(attention_task_t));
    f.wide = allocate((size_t)rows * most.wide * sizeof(float));
    f.narrow = allocate((size_t)rows * most.narrow * sizeof(float));
    f.scores = allocate((size_t)threads * QUERIES_MOST * f.score_stride * sizeof(float));
    int has_codes = allocate_activations(&f.codes, rows, most.narrow);
    int has_experts = allocate_experts(&f.mixture, s, rows);
    if (segment_rows) {
        segment_rows[0] = 0;
        for (int i = 0; i < segments; i++) segment_rows[i + 1] = segment_rows[i] + segment[i].rows;
    }
    f.segment_rows = segment_rows;
    if (segment_rows && tasks && f.wide && f.narrow && f.scores && has_codes && has_experts && allocate_delta_nets(&f)) {
        f.tasks = tasks;
        for (int layer = 0, count = 0, kv_heads = 0; layer <= s->layers; layer++) {
            for (int i = 0; i < states; i++)
                if (layer == state_layers[i]) memcpy(state + i * size, x, size * sizeof(float));
            if (layer == s->layers) break;
            f.layer = s->layer + layer;
            f.layer_index = layer;
            if (f.layer->heads.count != kv_heads) {
                kv_heads = f.layer->heads.count;
                count = list_tasks(s->heads, kv_heads, segments, segment, tasks);
            }
            run_layer(&f, count);
        }
        result = MOA_OK;
    }
    free(segment_rows), free(tasks), free(f.wide), free(f.narrow), free(f.scores);
    free_activations(&f.codes);
    free_mixture(&f.mixture);
    free_delta_nets(&f);
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
