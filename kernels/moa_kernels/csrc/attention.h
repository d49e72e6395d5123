// Attention of one session's rows over its own pages of keys and values.
//
// Keys lie in blocks of 16, transposed, so that a score is one chain of products down the head; values lie row by row,
// so that an output is one chain of products over the slots in ascending order. A slot that a row does not see is not
// part of its sums, so the rest of a draft tree changes nothing. Rows of 8 bits are rounded once, when they are stored;
// their scales multiply a score, and the weight of a value.
#pragma once

#define PAGE_BLOCKS (MOA_PAGE_ROWS / MOA_LANES)

INLINE size_t kv_bytes(int kv) {  // of a number
    return kv == MOA_KV_FLOAT32 ? sizeof(float) : kv == MOA_KV_FLOAT16 ? sizeof(uint16_t) : sizeof(int8_t);
}
// Bytes of a layer's keys and values of one key/value head within a page, and where they begin.
static size_t head_bytes(int kv, int head_dim) {
    return 2 * MOA_PAGE_ROWS * ((size_t)head_dim * kv_bytes(kv) + (kv == MOA_KV_INT8 ? sizeof(float) : 0));
}
static size_t layer_offset(int kv, const moa_heads_t *heads, int layer) {
    size_t bytes = 0;
    for (int i = 0; i < layer; i++) bytes += heads[i].count * head_bytes(kv, heads[i].dim);
    return bytes;
}
static size_t key_index(int head_dim, int slot, int i) {  // within a page
    slot %= MOA_PAGE_ROWS;
    return ((size_t)(slot / MOA_LANES) * head_dim + i) * MOA_LANES + slot % MOA_LANES;
}
static size_t value_index(int head_dim, int slot) {
    return (size_t)(MOA_PAGE_ROWS + slot % MOA_PAGE_ROWS) * head_dim;
}

INLINE float *key_scales(int head_dim, void *head) {  // of 8 bits; those of the values follow
    return (float *)((int8_t *)head + (size_t)2 * MOA_PAGE_ROWS * head_dim);
}

INLINE vec load_kv(int kv, const void *at, size_t index) {
    if (kv == MOA_KV_INT8) return v_load_int8((const int8_t *)at + index);
    return kv == MOA_KV_FLOAT16 ? v_load_half((const uint16_t *)at + index) : v_load((const float *)at + index);
}

static float largest_of(int head_dim, const float *x) {
    vec largest = v_set(1e-12f);
    for (int i = 0; i < head_dim; i += MOA_LANES) largest = v_max(largest, v_abs(v_load(x + i)));
    return v_maximum(largest);
}

static void store_keys_values(int kv, int head_dim, void *head, int slot, const float *keys, const float *values) {
    size_t value = value_index(head_dim, slot);
    if (kv == MOA_KV_INT8) {
        int8_t *to = head, rounded[MOA_LANES];
        float key = largest_of(head_dim, keys), most = largest_of(head_dim, values);
        float *scales = key_scales(head_dim, head) + slot % MOA_PAGE_ROWS;
        scales[0] = key / 127.f, scales[MOA_PAGE_ROWS] = most / 127.f;
        for (int i = 0; i < head_dim; i += MOA_LANES) {
            v_store_int8(rounded, v_mul(v_load(keys + i), v_set(127.f / key)));
            for (int j = 0; j < MOA_LANES; j++) to[key_index(head_dim, slot, i + j)] = rounded[j];
            v_store_int8(to + value + i, v_mul(v_load(values + i), v_set(127.f / most)));
        }
    } else if (kv == MOA_KV_FLOAT16) {
        uint16_t *to = head, rounded[MOA_LANES];
        for (int i = 0; i < head_dim; i += MOA_LANES) {
            v_store_half(rounded, v_load(keys + i));
            for (int j = 0; j < MOA_LANES; j++) to[key_index(head_dim, slot, i + j)] = rounded[j];
            v_store_half(to + value + i, v_load(values + i));
        }
    } else {
        float *to = head;
        for (int i = 0; i < head_dim; i++) to[key_index(head_dim, slot, i)] = keys[i];
        memcpy(to + value, values, (size_t)head_dim * sizeof(float));
    }
}

// What a block of queries of one key/value head needs.
typedef struct {
    int head_dim;
    size_t offset;        // of this layer and head in a page, in bytes
    void *const *pages;
    const float *query[QUERIES_MOST];
    float *output[QUERIES_MOST];
    int seen[QUERIES_MOST], tail_count[QUERIES_MOST];
    const int32_t *tail[QUERIES_MOST];
    int first[QUERIES_MOST];  // of what a query sees, counted in order: what its window leaves out
    int from;             // the least of these, rounded down to a vector
    float cap;            // of scores; 0: none
    const float *sink[QUERIES_MOST];  // a score that is counted as if something had it; NULL: none
    float *scores;        // [queries, stride]
    int stride;
} block_t;

INLINE void *page_of(const block_t *b, int slot) { return (char *)b->pages[slot / MOA_PAGE_ROWS] + b->offset; }

// What the value in a slot is multiplied by for a query.
INLINE float value_weight(int kv, const block_t *b, void *page, int slot, float weight) {
    return kv == MOA_KV_INT8 ? weight * key_scales(b->head_dim, page)[MOA_PAGE_ROWS + slot % MOA_PAGE_ROWS] : weight;
}

// scores[query][slot] for all slots of the blocks of 16 from that of `start` up to `slots`.
INLINE void score_all(int queries, int kv, const block_t *b, int start, int slots) {
    const int head_dim = b->head_dim;
    for (int slot = start / (2 * MOA_LANES) * (2 * MOA_LANES); slot < slots; slot += 2 * MOA_LANES) {  // pages hold an even number of blocks
        void *page = page_of(b, slot);
        size_t first = key_index(head_dim, slot, 0), second = first + (size_t)head_dim * MOA_LANES;
        vec sums[QUERIES_MOST][2];
        UNROLL for (int q = 0; q < queries; q++) sums[q][0] = sums[q][1] = v_set(0.f);
        for (int i = 0; i < head_dim; i++) {
            vec keys0 = load_kv(kv, page, first + (size_t)i * MOA_LANES);
            vec keys1 = load_kv(kv, page, second + (size_t)i * MOA_LANES);
            UNROLL for (int q = 0; q < queries; q++) {
                vec factor = v_set(b->query[q][i]);
                sums[q][0] = v_fma(keys0, factor, sums[q][0]);
                sums[q][1] = v_fma(keys1, factor, sums[q][1]);
            }
        }
        if (kv == MOA_KV_INT8) {
            const float *scales = key_scales(head_dim, page) + slot % MOA_PAGE_ROWS;
            UNROLL for (int q = 0; q < queries; q++) {
                sums[q][0] = v_mul(sums[q][0], v_load(scales));
                sums[q][1] = v_mul(sums[q][1], v_load(scales + MOA_LANES));
            }
        }
        UNROLL for (int q = 0; q < queries; q++) {
            v_store(b->scores + (size_t)q * b->stride + slot, sums[q][0]);
            v_store(b->scores + (size_t)q * b->stride + slot + MOA_LANES, sums[q][1]);
        }
    }
}

// exp(score - largest) of what a query sees, its tail moved up behind the rest; the sum of these, and of its sink. What its window leaves
// out weighs exactly 0, so it matters to no bit from where on a block is looked at.
static float soften(const block_t *b, int q) {
    float *scores = b->scores + (size_t)q * b->stride;
    int seen = b->seen[q], count = seen + b->tail_count[q], padded = (count + MOA_LANES - 1) / MOA_LANES * MOA_LANES;
    for (int j = 0; j < b->tail_count[q]; j++) scores[seen + j] = scores[b->tail[q][j]];  // ascending: none is lost
    if (b->cap != 0.f)
        for (int j = b->from; j < padded; j += MOA_LANES)
            v_store(scores + j, v_cap(v_load(scores + j), v_set(b->cap)));
    for (int j = b->from; j < b->first[q]; j++) scores[j] = -1e30f;
    for (int j = count; j < padded; j++) scores[j] = -1e30f;
    vec largest = v_set(-1e30f), sum = v_set(0.f);
    for (int j = b->from; j < padded; j += MOA_LANES) largest = v_max(largest, v_load(scores + j));
    if (b->sink[q]) largest = v_max(largest, v_set(*b->sink[q]));
    largest = v_set(v_maximum(largest));
    for (int j = b->from; j < padded; j += MOA_LANES) {
        vec weight = v_exp(v_sub(v_load(scores + j), largest));
        v_store(scores + j, weight);
        sum = v_add(sum, weight);
    }
    if (!b->sink[q]) return v_sum(sum);
    float sink[MOA_LANES];
    v_store(sink, v_exp(v_sub(v_set(*b->sink[q]), largest)));
    return v_sum(sum) + sink[0];
}

// `wide` vectors of the outputs from dimension `at` on: what all queries see.
INLINE void mix_values(int queries, int wide, int kv, const block_t *b, int common, int at) {
    vec mixed[QUERIES_MOST][VALUES_WIDE];
    UNROLL for (int q = 0; q < queries; q++)
        UNROLL for (int w = 0; w < wide; w++) mixed[q][w] = v_set(0.f);
    for (int slot = b->from; slot < common; slot++) {
        void *page = page_of(b, slot);
        size_t value = value_index(b->head_dim, slot) + at;
        vec values[VALUES_WIDE];
        UNROLL for (int w = 0; w < wide; w++) values[w] = load_kv(kv, page, value + (size_t)w * MOA_LANES);
        UNROLL for (int q = 0; q < queries; q++) {
            vec weight = v_set(value_weight(kv, b, page, slot, b->scores[(size_t)q * b->stride + slot]));
            UNROLL for (int w = 0; w < wide; w++) mixed[q][w] = v_fma(values[w], weight, mixed[q][w]);
        }
    }
    UNROLL for (int q = 0; q < queries; q++)
        UNROLL for (int w = 0; w < wide; w++) v_store(b->output[q] + at + w * MOA_LANES, mixed[q][w]);
}

// Adds what this query of a block sees and another one does not, and divides by the sum of the weights.
INLINE void add_rest(int wide, int kv, const block_t *b, int q, int common, float sum, int at) {
    float *output = b->output[q] + at;
    vec mixed[VALUES_WIDE];
    UNROLL for (int w = 0; w < wide; w++) mixed[w] = v_load(output + w * MOA_LANES);
    for (int j = common > b->first[q] ? common : b->first[q]; j < b->seen[q] + b->tail_count[q]; j++) {
        int slot = j < b->seen[q] ? j : b->tail[q][j - b->seen[q]];
        void *page = page_of(b, slot);
        vec weight = v_set(value_weight(kv, b, page, slot, b->scores[(size_t)q * b->stride + j]));
        UNROLL for (int w = 0; w < wide; w++)
            mixed[w] = v_fma(load_kv(kv, page, value_index(b->head_dim, slot) + at + (size_t)w * MOA_LANES), weight,
                             mixed[w]);
    }
    UNROLL for (int w = 0; w < wide; w++) v_store(output + w * MOA_LANES, v_mul(mixed[w], v_set(1.f / sum)));
}

// Not inlined: a block of six queries would hold it twelve times.
static __attribute__((noinline)) void finish_query(int kv, const block_t *b, int q, int common, float sum) {
#define EACH_WIDTH(kv)                                                                     \
    case kv:                                                                               \
        for (; at + VALUES_WIDE * MOA_LANES <= b->head_dim; at += VALUES_WIDE * MOA_LANES) \
            add_rest(VALUES_WIDE, kv, b, q, common, sum, at);                              \
        for (; at < b->head_dim; at += MOA_LANES) add_rest(1, kv, b, q, common, sum, at);  \
        break;
    int at = 0;
    switch (kv) { EACH_WIDTH(MOA_KV_FLOAT32) EACH_WIDTH(MOA_KV_FLOAT16) EACH_WIDTH(MOA_KV_INT8) }
#undef EACH_WIDTH
}

INLINE void attend_block(int queries, int kv, const block_t *b) {
    int slots = 0, common = b->seen[0], start = b->from;
    float sums[QUERIES_MOST];
    for (int q = 0; q < queries; q++) {
        int most = b->tail_count[q] ? b->tail[q][b->tail_count[q] - 1] + 1 : b->seen[q];
        if (most > slots) slots = most;
        if (b->seen[q] < common) common = b->seen[q];
    }
    if (common < start) start = common;  // a window that begins in the tail: its slots are anywhere behind `seen`
    score_all(queries, kv, b, start, slots);
    for (int q = 0; q < queries; q++) sums[q] = soften(b, q);
    int at = 0;
    for (; at + VALUES_WIDE * MOA_LANES <= b->head_dim; at += VALUES_WIDE * MOA_LANES)
        mix_values(queries, VALUES_WIDE, kv, b, common, at);
    for (; at < b->head_dim; at += MOA_LANES) mix_values(queries, 1, kv, b, common, at);
    for (int q = 0; q < queries; q++) finish_query(kv, b, q, common, sums[q]);
}

#define EACH_PRECISION(queries)                                                  \
    case queries:                                                                \
        if (kv == MOA_KV_FLOAT16) attend_block(queries, MOA_KV_FLOAT16, b);      \
        else if (kv == MOA_KV_INT8) attend_block(queries, MOA_KV_INT8, b);       \
        else attend_block(queries, MOA_KV_FLOAT32, b);                           \
        break;

static void attend(int queries, int kv, const block_t *b) {
    switch (queries) {
        EACH_PRECISION(1) EACH_PRECISION(2) EACH_PRECISION(3)
#if QUERIES_MOST > 3
        EACH_PRECISION(4) EACH_PRECISION(5) EACH_PRECISION(6)
#endif
    }
}
