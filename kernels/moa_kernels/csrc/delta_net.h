// Gated delta nets (arXiv 2412.06464): a convolution over the last rows, gates, and a matrix a head that each row decays,
// corrects and reads. All of it is float32, row by row.
//
// A head's values are independent of one another, so lanes run along them and a sum over the keys has one order. Blocks
// of 32 values lie together, keys after keys, and go through all rows of a session before the next block: 16 kB for 128
// keys. Committed rows advance a state in place. A drafted row leaves its decay, key, delta and input, and works on a
// copy, which exists while it has children that are not computed.
#pragma once

#define STATE_BLOCK 32  // values
#define STATE_WIDE (VALUES_WIDE > 1 ? 2 : 1)  // vectors of them at once: as many sums as a processor needs to be busy

static int channels_of(const moa_delta_net_t *d) { return 2 * d->key_heads * d->key_dim + d->heads * d->value_dim; }
static int group_of(const moa_delta_net_t *d) { return d->heads / d->key_heads; }
static int head_of(const moa_delta_net_t *d, int key, int number) {  // the value heads of a key head
    return d->tiled ? number * d->key_heads + key : key * group_of(d) + number;
}

// ln(1 + x) of 0 to 1, as 2 artanh(x / (2 + x)).
INLINE vec v_log1p(vec x) {
    vec t = v_div(x, v_add(x, v_set(2.f))), square = v_mul(t, t), p = v_set(2 / 15.f);
    for (int n = 13; n > 0; n -= 2) p = v_fma(p, square, v_set(2 / (float)n));
    return v_mul(p, t);
}

INLINE vec v_softplus(vec x) {
    return v_add(v_max(x, v_set(0.f)), v_log1p(v_exp(v_negative(v_abs(x)))));
}

// ---------------------------------------------------------------- what a drafted row leaves in a layer, and states

typedef struct {
    float *decays, *keys, *deltas, *inputs;  // [heads], [key_heads][key_dim], [heads][value_dim], [channels]
} left_t;

static left_t left_at(const moa_delta_net_t *d, const moa_segment_t *s, int place) {
    left_t left = {.decays = s->left + (size_t)place * s->left_size + d->left};
    left.keys = left.decays + d->heads;
    left.deltas = left.keys + (size_t)d->key_heads * d->key_dim;
    left.inputs = left.deltas + (size_t)d->heads * d->value_dim;
    return left;
}

static float *state_inputs(const moa_delta_net_t *d, const moa_segment_t *s) {  // [taps - 1][channels], the oldest first
    return s->states + d->state + (size_t)d->heads * d->key_dim * d->value_dim;
}

// The convolution's input of a node: of known drafts and then rows; negative ones wait, or are in the state.
static const float *input_of(const forward_t *f, int session, int node) {
    const moa_delta_net_t *d = f->layer->delta_net;
    const moa_segment_t *s = f->segments + session;
    int channels = channels_of(d);
    if (node >= s->known) return f->wide + (size_t)(f->segment_rows[session] + node - s->known) * channels;
    if (node >= -s->waiting) return left_at(d, s, s->earlier[s->waiting + node]).inputs;
    return state_inputs(d, s) + (size_t)(d->taps - 1 + node + s->waiting) * channels;
}

// ---------------------------------------------------------------- convolution and gates

// What the convolution gives lies head by head, so that a head's rows are read as one stream: queries and keys, values.
static float *query_of(const forward_t *f, int key, size_t row) {
    const moa_delta_net_t *d = f->layer->delta_net;
    return f->mixed + ((size_t)key * f->rows + row) * 2 * d->key_dim;
}
static float *key_of(const forward_t *f, int key, size_t row) { return query_of(f, key, row) + f->layer->delta_net->key_dim; }
static float *value_of(const forward_t *f, int head, size_t row) {  // in time what is read
    const moa_delta_net_t *d = f->layer->delta_net;
    return query_of(f, d->key_heads, 0) + ((size_t)head * f->rows + row) * d->value_dim;
}

static void convolve(const moa_delta_net_t *d, const float *const *inputs, int first, int count, float *out) {
    int channels = channels_of(d);
    for (int i = first; i < first + count; i += MOA_LANES, out += MOA_LANES) {
        vec sum = v_mul(v_load(inputs[0] + i), v_load(d->convolution + i));
        for (int tap = 1; tap < d->taps; tap++)
            sum = v_fma(v_load(inputs[tap] + i), v_load(d->convolution + (size_t)tap * channels + i), sum);
        v_store(out, v_gated(sum, sum));
    }
}

static float dot(int width, const float *a, const float *b) {
    vec sum = v_set(0.f);
    for (int i = 0; i < width; i += MOA_LANES) sum = v_fma(v_load(a + i), v_load(b + i), sum);
    return v_sum(sum);
}

// In place, of the heads of a key: what decays follow becomes the decay, and what betas follow the beta.
static void compute_gates(const moa_delta_net_t *d, int key, float *said) {
    for (int first = 0, group = group_of(d); first < group; first += MOA_LANES) {
        float decay[MOA_LANES] = {0}, beta[MOA_LANES] = {0}, bias[MOA_LANES] = {0}, rate[MOA_LANES] = {0};
        int some = group - first < MOA_LANES ? group - first : MOA_LANES;
        for (int i = 0; i < some; i++) {
            int head = head_of(d, key, first + i);
            decay[i] = said[head], beta[i] = said[d->heads + head];
            bias[i] = d->time_bias[head], rate[i] = d->decay_rate[head];
        }
        vec time = v_softplus(v_add(v_load(decay), v_load(bias)));
        v_store(decay, v_exp(v_negative(v_mul(v_load(rate), time))));
        v_store(beta, v_gated(v_set(d->beta_scale), v_load(beta)));
        for (int i = 0; i < some; i++) {
            int head = head_of(d, key, first + i);
            said[head] = decay[i], said[d->heads + head] = beta[i];
        }
    }
}

// A row's queries and keys, of length 1 (queries of one over the root of their numbers), and the values of the heads that
// read them: of all keys, or of one.
static void mix_task(void *context, int task, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_delta_net_t *d = f->layer->delta_net;
    int row = task / f->mix_parts, dim = d->key_dim, keys = d->key_heads * dim, some = d->key_heads / f->mix_parts;
    int session = session_of(f, row), node = f->segments[session].known + row - f->segment_rows[session];
    const float *inputs[MOA_TAPS_MOST];
    for (int tap = d->taps; tap-- > 0; node = node >= 0 ? f->segments[session].parents[node] : node - 1)
        inputs[tap] = input_of(f, session, node);
    for (int key = task % f->mix_parts * some, stop = key + some; key < stop; key++) {
        float *query = query_of(f, key, row), *own = key_of(f, key, row);
        convolve(d, inputs, key * dim, dim, query);
        convolve(d, inputs, keys + key * dim, dim, own);
        for (int i = 0; i < group_of(d); i++) {
            int head = head_of(d, key, i);
            convolve(d, inputs, 2 * keys + head * d->value_dim, d->value_dim, value_of(f, head, row));
        }
        scale_row(dim, 1.f / (sqrtf(dot(dim, query, query) + 1e-6f) * sqrtf((float)dim)), query);
        scale_row(dim, 1.f / sqrtf(dot(dim, own, own) + 1e-6f), own);
        f->overlap[(size_t)row * d->key_heads + key] = dot(dim, query, own);
        compute_gates(d, key, f->said + (size_t)row * 2 * d->heads);
    }
}

// ---------------------------------------------------------------- recurrence

// What a key and a query find in a state.
INLINE void look(int key_dim, const float *state, const float *key, const float *query, vec *held, vec *read) {
    vec sums[2][2][STATE_WIDE];  // of keys with even and with odd numbers
    UNROLL for (int odd = 0; odd < 2; odd++)
        UNROLL for (int w = 0; w < STATE_WIDE; w++) sums[odd][0][w] = sums[odd][1][w] = v_set(0.f);
    for (int i = 0; i < key_dim; i += 2)
        UNROLL for (int odd = 0; odd < 2; odd++) {
            vec by_key = v_set(key[i + odd]), by_query = v_set(query[i + odd]);
            UNROLL for (int w = 0; w < STATE_WIDE; w++) {
                vec numbers = v_load(state + (size_t)(i + odd) * STATE_BLOCK + w * MOA_LANES);
                sums[odd][0][w] = v_fma(numbers, by_key, sums[odd][0][w]);
                sums[odd][1][w] = v_fma(numbers, by_query, sums[odd][1][w]);
            }
        }
    UNROLL for (int w = 0; w < STATE_WIDE; w++) {
        held[w] = v_add(sums[0][0][w], sums[1][0][w]);
        read[w] = v_add(sums[0][1][w], sums[1][1][w]);
    }
}

INLINE void advance(int key_dim, const float *from, float *to, float decay, const float *key, const float *delta) {
    vec factor = v_set(decay), deltas[STATE_WIDE];
    UNROLL for (int w = 0; w < STATE_WIDE; w++) deltas[w] = v_load(delta + w * MOA_LANES);
    for (int i = 0; i < key_dim; i++) {
        vec by_key = v_set(key[i]);
        UNROLL for (int w = 0; w < STATE_WIDE; w++) {
            size_t at = (size_t)i * STATE_BLOCK + w * MOA_LANES;
            v_store(to + at, v_fma(by_key, deltas[w], v_mul(v_load(from + at), factor)));
        }
    }
}

static int first_node(const forward_t *f, int session) {  // of a session, in f->copy
    int first = f->segment_rows[session];
    for (int i = 0; i < session; i++) first += f->segments[i].known;
    return first;
}

// Some values of a head, from number `value` on, through all rows of a session. `key`: its key head.
static void recur_values(const forward_t *f, int session, int key, int head, int value, float *state, float *copies) {
    const moa_delta_net_t *d = f->layer->delta_net;
    const moa_segment_t *s = f->segments + session;
    const int *copy = f->copy + first_node(f, session);
    int dim = d->key_dim, committed = s->rows - s->drafted;
    size_t at = (size_t)head * d->value_dim + value, size = (size_t)dim * STATE_BLOCK;
    for (int i = 0; i < s->waiting + s->known; i++) {
        left_t left = left_at(d, s, s->earlier[i]);
        int node = i - s->waiting, parent = node < 0 ? -1 : s->parents[node];
        if (node >= 0 && copy[node] < 0) continue;
        advance(dim, parent < 0 ? state : copies + copy[parent] * size, node < 0 ? state : copies + copy[node] * size,
                left.decays[head], left.keys + key * dim, left.deltas + at);
    }
    for (int row = 0; row < s->rows; row++) {
        size_t number = (size_t)f->segment_rows[session] + row;
        int node = s->known + row, parent = s->parents[node];
        const float *from = parent < committed ? state : copies + copy[parent] * size, *own = key_of(f, key, number);
        const float decay = f->said[number * 2 * d->heads + head], beta = f->said[(number * 2 + 1) * d->heads + head];
        const float overlap = f->overlap[number * d->key_heads + key];
        float *values = value_of(f, head, number) + value, deltas[STATE_WIDE * MOA_LANES];
        vec held[STATE_WIDE], read[STATE_WIDE];
        look(dim, from, own, query_of(f, key, number), held, read);
        UNROLL for (int w = 0; w < STATE_WIDE; w++) {
            vec missing = v_fnma(held[w], v_set(decay), v_load(values + w * MOA_LANES)), delta = v_mul(missing, v_set(beta));
            v_store(deltas + w * MOA_LANES, delta);
            v_store(values + w * MOA_LANES, v_fma(delta, v_set(overlap), v_mul(read[w], v_set(decay))));
        }
        if (row >= committed) memcpy(left_at(d, s, s->places[row - committed]).deltas + at, deltas, sizeof deltas);
        if (row < committed || copy[node] >= 0)
            advance(dim, from, row < committed ? state : copies + copy[node] * size, decay, own, deltas);
    }
}

// The convolution's inputs of some channels: the last committed ones come into the state, drafted rows leave theirs.
static void keep_inputs(const forward_t *f, int session, int first, int count) {
    const moa_delta_net_t *d = f->layer->delta_net;
    const moa_segment_t *s = f->segments + session;
    int committed = s->rows - s->drafted, channels = channels_of(d);
    float *kept = state_inputs(d, s) + first;
    for (int i = 0; i < d->taps - 1; i++)  // the oldest first: what is read later has not been written
        memmove(kept + (size_t)i * channels, input_of(f, session, committed - (d->taps - 1) + i) + first,
                (size_t)count * sizeof *kept);
    for (int row = committed; row < s->rows; row++)
        memcpy(left_at(d, s, s->places[row - committed]).inputs + first, input_of(f, session, s->known + row) + first,
               (size_t)count * sizeof *kept);
}

// One key head of a session: its value heads, and what drafted rows leave.
static void recur_task(void *context, int task, int worker) {
    forward_t *f = context;
    const moa_delta_net_t *d = f->layer->delta_net;
    int session = task / d->key_heads, key = task % d->key_heads, dim = d->key_dim, keys = d->key_heads * dim;
    const moa_segment_t *s = f->segments + session;
    int committed = s->rows - s->drafted;
    for (int i = 0; i < group_of(d); i++) {
        int head = head_of(d, key, i);
        float *state = s->states + d->state + (size_t)head * dim * d->value_dim;
        for (int value = 0; value < d->value_dim; value += STATE_WIDE * MOA_LANES)
            recur_values(f, session, key, head, value, state + value / STATE_BLOCK * STATE_BLOCK * dim + value % STATE_BLOCK,
                         f->copies + (size_t)worker * f->copy_size);
        keep_inputs(f, session, 2 * keys + head * d->value_dim, d->value_dim);
    }
    keep_inputs(f, session, key * dim, dim);
    keep_inputs(f, session, keys + key * dim, dim);
    for (int row = committed; row < s->rows; row++) {  // now that all heads of the key have replayed
        left_t left = left_at(d, s, s->places[row - committed]);
        size_t number = (size_t)f->segment_rows[session] + row;
        memcpy(left.keys + key * dim, key_of(f, key, number), (size_t)dim * sizeof(float));
        for (int i = 0; i < group_of(d); i++) {
            int head = head_of(d, key, i);
            left.decays[head] = f->said[number * 2 * d->heads + head];
        }
    }
}

// Norms what a row's heads have read, and multiplies it by its gates.
static void gate_heads(void *context, int row, int worker) {
    (void)worker;
    forward_t *f = context;
    const moa_delta_net_t *d = f->layer->delta_net;
    int width = d->heads * d->value_dim;
    float *read = f->narrow + (size_t)row * width;
    for (int head = 0; head < d->heads; head++)
        norm_row(d->value_dim, d->eps, d->norm, value_of(f, head, row), read + head * d->value_dim);
    swiglu_row(width, f->gates + (size_t)row * width, read, read);
    quantise_for(&f->layer->out, read, f, row);
}

static void run_delta_net(forward_t *f) {
    const moa_delta_net_t *d = f->layer->delta_net;
    product(&d->gate, f->rows, f->narrow, &f->codes, f->gates, f->threads);
    product(&d->decay_beta, f->rows, f->narrow, &f->codes, f->said, f->threads);
    f->mix_parts = f->rows < 4 * f->threads ? d->key_heads : 1;
    parallel(f->threads, mix_task, f, f->rows * f->mix_parts);
    parallel(f->threads, recur_task, f, f->sessions * d->key_heads);
    parallel(f->threads, gate_heads, f, f->rows);
}

// ---------------------------------------------------------------- room

// Which copy of a state each draft writes (-1: none, nothing follows it), so that as few as can be are in use.
// `scratch`: twice as many numbers as nodes. Returns how many copies there are.
static int plan_copies(const moa_segment_t *s, int *copy, int *scratch) {
    int nodes = s->known + s->rows, committed = s->rows - s->drafted, count = 0, unused_count = 0;
    int *children = memset(scratch, 0, (size_t)nodes * sizeof *scratch), *unused = scratch + nodes;
    for (int node = nodes; node-- > committed;)  // of known drafts those count that a row follows
        if (s->parents[node] >= committed && (node >= s->known || children[node])) children[s->parents[node]]++;
    for (int node = 0; node < nodes; node++) {
        int parent = s->parents[node], counts = node >= committed && (node >= s->known || children[node]);
        copy[node] = -1;
        if (counts && parent >= committed && --children[parent] == 0) unused[unused_count++] = copy[parent];
        if (counts && children[node]) copy[node] = unused_count ? unused[--unused_count] : count++;
    }
    return count;
}

static void free_delta_nets(forward_t *f) {
    free(f->mixed), free(f->gates), free(f->said), free(f->overlap), free(f->copies), free(f->copy);
}

// Room for the delta nets of all layers; true where none has any.
static int allocate_delta_nets(forward_t *f) {
    int channels = 0, width = 0, heads = 0, key_heads = 0, key_dim = 0, copies = 0;
    size_t rows = (size_t)f->rows;
    for (const moa_layer_t *l = f->stack->layer; l < f->stack->layer + f->stack->layers; l++) {
        const moa_delta_net_t *d = l->delta_net;
        if (!d) continue;
        channels = most_of(channels, channels_of(d)), width = most_of(width, d->heads * d->value_dim);
        heads = most_of(heads, d->heads), key_heads = most_of(key_heads, d->key_heads), key_dim = most_of(key_dim, d->key_dim);
    }
    if (!heads) return 1;
    int nodes = first_node(f, f->sessions);
    if (!(f->copy = allocate((size_t)3 * nodes * sizeof *f->copy))) return 0;
    for (int i = 0; i < f->sessions; i++)
        copies = most_of(copies, plan_copies(f->segments + i, f->copy + first_node(f, i), f->copy + nodes));
    f->copy_size = (size_t)copies * key_dim * STATE_BLOCK;
    f->mixed = allocate(rows * channels * sizeof(float)), f->gates = allocate(rows * width * sizeof(float));
    f->said = allocate(rows * 2 * heads * sizeof(float)), f->overlap = allocate(rows * key_heads * sizeof(float));
    f->copies = allocate(f->threads * f->copy_size * sizeof(float));
    return f->mixed && f->gates && f->said && f->overlap && f->copies;
}
