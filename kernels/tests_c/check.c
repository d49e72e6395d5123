// Runs every function of kernels.h on pseudo-random inputs and prints a hash of the output's bits, a line each, so
// that variants, compilers and processors can be compared. Usage: check [SEED]. Uses no mathematics library, whose
// last bits differ between machines; an output that is not finite is an error, because it would hide what it hashes.
#include "kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int moa_probe(void);

static uint64_t random_state;

static uint64_t next_random(void) {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Dull;
}

static void seed_random(uint64_t seed, const char *name) {  // every line by itself: one more changes no other
    random_state = seed * 0x9E3779B97F4A7C15ull + 1;
    for (; *name; name++) random_state = (random_state ^ (uint8_t)*name) * 0x100000001B3ull | 1;
    for (int i = 0; i < 8; i++) next_random();
}

static void *zeros(size_t bytes) {
    bytes = (bytes / 64 + 1) * 64;
    void *memory = aligned_alloc(64, bytes);
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    return memset(memory, 0, bytes);
}

// Uniform in [-scale, scale): 24 random bits, so that each step is exact.
static float *random_floats(size_t count, float scale) {
    float *floats = zeros(count * sizeof(float));
    for (size_t i = 0; i < count; i++) floats[i] = ((float)(next_random() >> 40) * 0x1p-23f - 1.f) * scale;
    return floats;
}

// A float16 between 2^-9 and 2^-5, of either sign.
static void random_half(uint8_t *to) {
    uint16_t bits = (uint16_t)((next_random() >> 48 & 0x83ff) | (6 + next_random() % 4) << 10);
    memcpy(to, &bits, 2);
}

static void print_hash(const char *name, const void *data, size_t bytes) {  // FNV-1a
    uint64_t hash = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001B3ull;
    printf("%s %016llx\n", name, (unsigned long long)hash);
}

static void print_floats(const char *name, const float *floats, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!isfinite(floats[i])) {
            fprintf(stderr, "%s: number %zu is not finite\n", name, i);
            exit(1);
        }
    print_hash(name, floats, count * sizeof(float));
}

// ---------------------------------------------------------------- matrices

static const char *KINDS[] = {"float32", "q4_1", "q8_0", "q4_0", "q5_0", "q5_1", "q2_k", "q3_k",
                              "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"};
static const struct { int values, bytes, halves[2]; } BLOCKS[] = {  // as GGUF has them; float16 at `halves`
    {1, 4, {-1, -1}}, {32, 20, {0, 2}}, {32, 34, {0, -1}}, {32, 18, {0, -1}}, {32, 22, {0, -1}},
    {32, 24, {0, 2}}, {256, 84, {80, 82}}, {256, 110, {108, -1}}, {256, 144, {0, 2}}, {256, 176, {0, 2}},
    {256, 210, {208, -1}}, {32, 18, {0, -1}}, {256, 136, {0, -1}}, {32, 17, {-1, -1}},
};

// Random blocks as GGUF has them, packed. The largest codes are frequent: they overflow first, where anything does.
static moa_linear_t random_linear(int kind, int outputs, int inputs, int has_bias) {
    size_t blocks = (size_t)outputs * inputs / BLOCKS[kind].values, tiles = (size_t)(outputs + MOA_LANES - 1) / MOA_LANES;
    size_t block = BLOCKS[kind].bytes;
    uint8_t *raw;
    if (kind == MOA_FLOAT32) {
        raw = (uint8_t *)random_floats((size_t)outputs * inputs, 0.1f);
    } else {
        raw = zeros(blocks * block);
        for (size_t b = 0; b < blocks; b++) {
            uint8_t *to = raw + b * block;
            for (size_t i = 0; i < block; i++) {
                uint8_t code = (uint8_t)(next_random() >> 56);
                if (b % 5 == 0) code = kind != MOA_Q8_0 ? 0xff : code & 1 ? 127 : 0x80;
                to[i] = code;
            }
            for (int i = 0; i < 2; i++)
                if (BLOCKS[kind].halves[i] >= 0) random_half(to + BLOCKS[kind].halves[i]);
            if (kind == MOA_MXFP4) to[0] = (uint8_t)(next_random() % 130);
        }
    }
    uint8_t *packed = zeros(tiles * (size_t)moa_tile_bytes(kind, inputs));
    moa_pack(kind, kind, outputs, inputs, 0, 0, (int)tiles, raw, packed);
    free(raw);
    moa_part_t *part = zeros(sizeof *part);
    *part = (moa_part_t){kind, outputs, packed};
    return (moa_linear_t){outputs, inputs, 1, part, has_bias ? random_floats((size_t)outputs, 1.f) : NULL};
}

static void free_linear(moa_linear_t linear) {
    if (!linear.part) return;
    free((void *)linear.part->tiles), free((void *)linear.part), free((void *)linear.bias);
}

static void check_linear(uint64_t seed) {
    static const struct { int outputs, inputs, rows, bias; } CASES[] = {
        {16, 32, 1, 0}, {40, 64, 2, 1}, {33, 96, 3, 0}, {64, 576, 4, 1}, {130, 160, 7, 1}, {48, 1536, 13, 0}, {96, 64, 40, 1},
        {17, 32, 24, 0}, {50, 288, 61, 1},  // from 24 rows on amx uses its tiles
    };
    char name[80];
    for (int kind = 0; kind < MOA_KINDS; kind++)
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
            for (int threads = 1; threads <= 3; threads += 2) {
                int outputs = CASES[i].outputs, inputs = CASES[i].inputs, rows = CASES[i].rows;
                if (BLOCKS[kind].values > inputs || inputs % BLOCKS[kind].values) inputs = BLOCKS[kind].values * (int)(i % 3 + 1);
                snprintf(name, sizeof name, "linear-%s-%dx%d-rows=%d", KINDS[kind], outputs, inputs, rows);
                seed_random(seed, name);
                moa_linear_t linear = random_linear(kind, outputs, inputs, CASES[i].bias);
                float *x = random_floats((size_t)rows * inputs, 3.f), *y = zeros((size_t)rows * outputs * sizeof(float));
                for (int j = 0; j < inputs; j++) {  // a row with an outlier a group, one of tiny numbers, one of zeros
                    if (rows > 1 && j % MOA_GROUP == 5) x[inputs + j] = 1e4f;
                    if (rows > 2) x[2 * inputs + j] *= 1e-30f;
                    if (rows > 3) x[3 * inputs + j] = 0.f;
                }
                if (moa_linear(&linear, rows, x, y, threads) != MOA_OK) exit(2);
                snprintf(name + strlen(name), 16, " threads=%d", threads);
                print_floats(name, y, (size_t)rows * outputs);
                free_linear(linear), free(x), free(y);
            }
}

static void check_pack(uint64_t seed) {
    for (int kind = 0; kind < MOA_KINDS; kind++) {
        char name[40];
        int inputs = BLOCKS[kind].values > 32 ? 512 : 64;
        snprintf(name, sizeof name, "pack-%s", KINDS[kind]);
        seed_random(seed, name);
        moa_linear_t linear = random_linear(kind, 32, inputs, 0);
        print_hash(name, linear.part->tiles, 2 * (size_t)moa_tile_bytes(kind, inputs));
        free_linear(linear);
    }
}

static void check_norm(uint64_t seed) {
    enum { ROWS = 3, WIDTH = 576 };
    seed_random(seed, "norm");
    float *x = random_floats(ROWS * WIDTH, 2.f), *weight = random_floats(WIDTH, 1.f), *y = zeros(ROWS * WIDTH * 4);
    for (int i = 0; i < WIDTH; i++) x[2 * WIDTH + i] *= 1e-20f;
    moa_norm(ROWS, WIDTH, 1e-5f, weight, x, y);
    print_floats("norm", y, ROWS * WIDTH);
    free(x), free(weight), free(y);
}

// ---------------------------------------------------------------- caches and stacks

enum { LAYERS = 2, PAGES = 4, PAST = 150, NODES = 9, TAILS = NODES * (NODES + 1) / 2 };

typedef struct {
    moa_cache_t c;
    moa_heads_t heads[LAYERS];
    void *pages[PAGES];
} cache_t;

static const char *const KV_NAMES[] = {"float32", "float16", "int8"};

static void new_cache(cache_t *cache, const moa_heads_t *heads, int kv) {
    size_t bytes = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        size_t dim = (size_t)heads[layer].dim, row = kv == MOA_KV_INT8 ? dim + 4 : dim * (kv == MOA_KV_FLOAT16 ? 2 : 4);
        bytes += (size_t)heads[layer].count * 2 * MOA_PAGE_ROWS * row;
        cache->heads[layer] = heads[layer];
    }
    for (int i = 0; i < PAGES; i++) cache->pages[i] = zeros(bytes);
    cache->c = (moa_cache_t){LAYERS, kv, cache->heads, cache->pages};
    for (int layer = 0; layer < LAYERS; layer++) {
        size_t count = (size_t)PAST * heads[layer].count * heads[layer].dim;
        float *keys = random_floats(count, 2.f), *values = random_floats(count, 2.f);
        moa_cache_write(&cache->c, layer, 0, PAST, keys, values);
        free(keys), free(values);
    }
}

static void print_cache(const char *name, const cache_t *cache, int rows) {
    int width = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        int own = 2 * cache->heads[layer].count * cache->heads[layer].dim;
        if (own > width) width = own;
    }
    size_t count = (size_t)rows * LAYERS * width;
    float *out = zeros(count * sizeof(float));
    moa_cache_read(&cache->c, 0, LAYERS, 0, rows, width, out);
    print_floats(name, out, count);
    free(out);
}

static void free_cache(cache_t *cache) {
    for (int i = 0; i < PAGES; i++) free(cache->pages[i]);
}

static void check_cache(uint64_t seed) {
    for (int kv = MOA_KV_FLOAT32; kv <= MOA_KV_INT8; kv++) {
        char name[32];
        snprintf(name, sizeof name, "cache-%s", KV_NAMES[kv]);
        seed_random(seed, name);
        cache_t cache;
        new_cache(&cache, (moa_heads_t[]){{2, 64}, {1, 96}}, kv);
        const int32_t from[] = {70, 72, 75, 131, 149}, to[] = {63, 64, 65, 66, 128};
        moa_cache_move(&cache.c, 5, from, to);
        print_cache(name, &cache, PAST);
        free_cache(&cache);
    }
}

typedef struct {
    const char *name;
    int kind, hidden, inner, heads, kv_heads, head_dim, bias, head_norms, reads_memory, only_fills;
    int experts, chosen, weighs_all;  // experts: 0: none; else with sinks and clamped gates
    int differs;                      // the first layer has one key/value head of twice the size, whose keys are its values
    int delta_net;                    // the first layer is one, the other has gated attention, and experts share an MLP
} shape_t;

// A gated delta net for a layer. It is read, and its state kept, by both sessions.
static moa_delta_net_t *random_delta_net(const shape_t *shape) {
    moa_delta_net_t *d = zeros(sizeof *d);
    *d = (moa_delta_net_t){.heads = 6, .key_heads = 3, .key_dim = 32, .value_dim = 64, .taps = 4, .eps = 1e-5f, .beta_scale = 1.5f};
    d->tiled = shape->experts > 0;
    int channels = 2 * d->key_heads * d->key_dim + d->heads * d->value_dim;
    d->convolution = random_floats((size_t)d->taps * channels, 1.f), d->norm = random_floats((size_t)d->value_dim, 1.f);
    float *rate = random_floats((size_t)d->heads, 1.f);
    for (int i = 0; i < d->heads; i++) rate[i] += 1.f;
    d->decay_rate = rate, d->time_bias = random_floats((size_t)d->heads, 4.f);
    d->gate = random_linear(shape->kind, d->heads * d->value_dim, shape->hidden, 0);
    d->decay_beta = random_linear(MOA_FLOAT32, 2 * d->heads, shape->hidden, 0);
    return d;
}

static size_t state_size(const moa_delta_net_t *d) {
    return (size_t)d->heads * d->key_dim * d->value_dim + (size_t)(d->taps - 1) * (2 * d->key_heads * d->key_dim + d->heads * d->value_dim);
}

static int64_t left_size(const moa_delta_net_t *d) {
    return d->heads + 3 * d->key_heads * d->key_dim + 2 * d->heads * d->value_dim;
}

static void free_delta_net(const moa_delta_net_t *d) {
    if (!d) return;
    free_linear(d->gate), free_linear(d->decay_beta), free((void *)d->convolution), free((void *)d->norm);
    free((void *)d->decay_rate), free((void *)d->time_bias), free((void *)d);
}

static moa_experts_t *random_experts(const shape_t *shape) {
    moa_linear_t *gate_up = zeros(shape->experts * sizeof *gate_up), *down = zeros(shape->experts * sizeof *down);
    for (int i = 0; i < shape->experts; i++) {
        gate_up[i] = random_linear(shape->kind, 2 * shape->inner, shape->hidden, 1);
        down[i] = random_linear(shape->kind, shape->hidden, shape->inner, 1);
    }
    moa_linear_t router = random_linear(MOA_FLOAT32, shape->experts, shape->hidden, 1);
    moa_experts_t *experts = zeros(sizeof *experts);
    const float *scales = shape->differs ? random_floats((size_t)shape->experts, 1.f) : NULL;
    *experts = (moa_experts_t){shape->experts, shape->chosen, shape->inner, shape->weighs_all, scales, router, gate_up, down};
    return experts;
}

static void free_experts(const moa_experts_t *experts) {
    if (!experts) return;
    for (int i = 0; i < experts->count; i++) free_linear(experts->gate_up[i]), free_linear(experts->down[i]);
    free((void *)experts->gate_up), free((void *)experts->down), free_linear(experts->router);
    free((void *)experts->scales), free((void *)experts);
}

// Rows of two sessions: a chain, and a tree whose nodes see their ancestors in the tail.
static void check_stack(uint64_t seed, const shape_t *shape, int kv, int threads) {
    char name[96];
    snprintf(name, sizeof name, "stack-%s-%s", shape->name, KV_NAMES[kv]);
    seed_random(seed, name);
    int memory = shape->reads_memory, hidden = shape->hidden, embedding = shape->differs ? 64 : 0;
    const moa_delta_net_t *net = shape->delta_net ? random_delta_net(shape) : NULL;
    moa_heads_t heads[LAYERS];
    moa_layer_t layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        int other = shape->differs && i == 0, dim = shape->head_dim * (other ? 2 : 1);
        int inner = shape->inner * (other ? 2 : 1), queries = shape->heads * dim;
        heads[i] = (moa_heads_t){other ? 1 : shape->kv_heads, dim};
        int keys = memory ? 0 : heads[i].count * dim, reads_own = embedding && i == LAYERS - 1;
        layers[i] = (moa_layer_t){
            .attention_norm = random_floats((size_t)hidden, 1.f),
            .mlp_norm = random_floats((size_t)hidden, 1.f),
            .query_norm = shape->head_norms ? random_floats((size_t)dim, 1.f) : NULL,
            .key_norm = shape->head_norms ? random_floats((size_t)dim, 1.f) : NULL,
            .value_norm = shape->differs ? random_floats((size_t)dim, 1.f) : NULL,
            .rotary = other,
            .rotated = dim,
            .heads = heads[i],
            .inner = inner,
            .cached = i,
            .writes = !memory,
            .keys_are_values = other,
            .query_scale = 0.125f,
            .out_scale = shape->differs ? 0.75f : 1.f,
            .qkv = random_linear(shape->kind, queries + (other ? keys : 2 * keys), hidden + (reads_own ? embedding : 0),
                                 shape->bias),
            .out = random_linear(shape->kind, hidden, queries, 0),
        };
        if (net) {
            int channels = 2 * net->key_heads * net->key_dim + net->heads * net->value_dim;
            free_linear(layers[i].qkv), free_linear(layers[i].out);
            layers[i].qkv = random_linear(shape->kind, i ? 2 * (queries + keys) : channels, hidden, 0);
            layers[i].out = random_linear(shape->kind, hidden, i ? queries : net->heads * net->value_dim, 0);
            layers[i].delta_net = i ? NULL : net, layers[i].output_gate = i;
            if (shape->experts) layers[i].shared_gate = random_floats((size_t)hidden, 1.f);
        }
        if (!shape->experts || shape->differs || net) {
            layers[i].gate_up = random_linear(shape->kind, 2 * inner, hidden, 0);
            layers[i].down = random_linear(shape->kind, hidden, inner, 0);
        }
        if (reads_own) layers[i].attention_embedding_norm = random_floats((size_t)embedding, 1.f);
        if (embedding) {
            layers[i].embedding_gate = random_linear(shape->kind, embedding, hidden, 0);
            layers[i].embedding_out = random_linear(shape->kind, hidden, embedding, 0);
            layers[i].embedding_norm = random_floats((size_t)hidden, 1.f);
        }
        if (!shape->experts) continue;
        layers[i].experts = random_experts(shape);
        layers[i].sinks = random_floats((size_t)shape->heads, 2.f);
        if (!shape->differs) continue;
        layers[i].router_norm = random_floats((size_t)hidden, 1.f);
        layers[i].experts_norm = random_floats((size_t)hidden, 1.f);
        layers[i].experts_out_norm = random_floats((size_t)hidden, 1.f);
        layers[i].beside_out_norm = random_floats((size_t)hidden, 1.f);
    }
    moa_stack_t stack = {
        .hidden = hidden, .heads = shape->heads, .layers = LAYERS, .kv = kv, .only_fills = shape->only_fills,
        .activation = shape->experts ? MOA_CLAMPED_SWIGLU : MOA_SILU, .embedding = embedding, .gate_slope = 1.7f,
        .gate_limit = 0.5f, .eps = 1e-5f, .residual_scale = 1.f, .layer = layers, .cached = heads,
    };
    enum { CHAIN = 20, ROWS = CHAIN + NODES };
    cache_t caches[2];
    for (int i = 0; i < 2; i++) new_cache(&caches[i], heads, kv);
    int32_t positions[ROWS], seen[ROWS], chain_tail[CHAIN + 1] = {0}, tail_start[NODES + 1] = {0}, tail[TAILS];
    for (int row = 0; row < CHAIN; row++) {
        positions[row] = PAST + row;
        seen[row] = memory ? PAST : PAST + row + 1;
    }
    for (int node = 0, count = 0; node < NODES; node++) {
        int32_t path[NODES], depth = 0;  // the parent of node n is (n - 1) / 2, of the first PAST's last row
        for (int at = node; !memory; at = (at - 1) / 2) {
            path[depth++] = PAST + at;
            if (at == 0) break;
        }
        for (int32_t i = depth; i > 0; i--) tail[count++] = path[i - 1];
        tail_start[node + 1] = count;
        positions[CHAIN + node] = PAST + depth;
        seen[CHAIN + node] = PAST;
    }
    // Of the chain the last two rows are drafts. The tree's root waits from before, its children are known, if there are states.
    enum { WAITING = 3, KNOWN = 2 };
    static const int32_t earlier[WAITING + KNOWN] = {2, 0, 4, 1, 3}, places[NODES] = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    int32_t chain_parents[CHAIN], parents[KNOWN + NODES] = {-1, -1};
    for (int row = 0; row < CHAIN; row++) chain_parents[row] = row - 1;
    for (int row = 0; row < NODES; row++) parents[KNOWN + row] = row ? (row - 1) / 2 + KNOWN : row % KNOWN;
    size_t states_size = net ? state_size(net) : 0, left_rows = WAITING + KNOWN + NODES, left_row = net ? left_size(net) : 0;
    float *recurrent = random_floats(2 * states_size, 1.f), *left = random_floats(2 * left_rows * left_row, 0.5f);
    moa_segment_t segments[] = {
        {CHAIN, PAST, caches[0].pages, seen, chain_tail, tail, recurrent, left, left_row, net ? 2 : 0, 0, 0, earlier, places, chain_parents},
        {NODES, PAST, caches[1].pages, seen + CHAIN, tail_start, tail, recurrent + states_size, left + left_rows * left_row, left_row,
         net ? NODES : 0, net ? WAITING : 0, net ? KNOWN : 0, earlier, places, parents},
    };
    static const int32_t state_layers[] = {1, 0};
    float *x = random_floats((size_t)ROWS * hidden, 1.f), *states = zeros((size_t)2 * ROWS * hidden * sizeof(float));
    float *cosines = random_floats((size_t)(PAST + CHAIN) * shape->head_dim, 1.f);
    float *sines = random_floats((size_t)(PAST + CHAIN) * shape->head_dim, 1.f);
    float *embeddings = embedding ? random_floats((size_t)ROWS * LAYERS * embedding, 1.f) : NULL;
    const float *all_cosines[] = {cosines, cosines}, *all_sines[] = {sines, sines};
    if (moa_run(&stack, ROWS, x, embeddings, positions, all_cosines, all_sines, NULL, 2, segments, 2, state_layers,
                states, threads) != MOA_OK)
        exit(2);
    size_t at = strlen(name);
    snprintf(name + at, sizeof name - at, "-rows threads=%d", threads);
    if (!shape->only_fills) print_floats(name, x, (size_t)ROWS * hidden);
    snprintf(name + at, sizeof name - at, "-states threads=%d", threads);
    print_floats(name, states, (size_t)2 * ROWS * hidden);
    if (net) {
        snprintf(name + at, sizeof name - at, "-recurrent threads=%d", threads);
        print_floats(name, recurrent, 2 * states_size);
        snprintf(name + at, sizeof name - at, "-left threads=%d", threads);
        print_floats(name, left, 2 * left_rows * left_row);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(name + at, sizeof name - at, "-cache%d threads=%d", i, threads);
        print_cache(name, &caches[i], memory ? PAST : PAST + (i ? NODES : CHAIN));
        free_cache(&caches[i]);
    }
    for (int i = 0; i < LAYERS; i++) {
        free((void *)layers[i].attention_norm), free((void *)layers[i].mlp_norm);
        free((void *)layers[i].query_norm), free((void *)layers[i].key_norm);
        free_linear(layers[i].qkv), free_linear(layers[i].out), free_linear(layers[i].gate_up), free_linear(layers[i].down);
        free_experts(layers[i].experts), free((void *)layers[i].sinks), free((void *)layers[i].value_norm);
        free_linear(layers[i].embedding_gate), free_linear(layers[i].embedding_out);
        free((void *)layers[i].embedding_norm), free((void *)layers[i].router_norm);
        free((void *)layers[i].experts_norm), free((void *)layers[i].experts_out_norm);
        free((void *)layers[i].beside_out_norm), free((void *)layers[i].attention_embedding_norm);
        free((void *)layers[i].shared_gate);
    }
    free_delta_net(net), free(recurrent), free(left);
    free(x), free(states), free(cosines), free(sines), free(embeddings);
}

int main(int count, char **arguments) {
    moa_probe();  // asks the system for the tiles that amx needs
    uint64_t seed = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
    static const shape_t SHAPES[] = {
        {"llama", MOA_Q4_1, 192, 256, 3, 1, 64, .differs = 0},
        {"qwen2", MOA_Q8_0, 128, 160, 4, 2, 32, .bias = 1},
        {"qwen3", MOA_Q4_1, 64, 96, 2, 2, 128, .head_norms = 1},
        {"fills", MOA_Q4_1, 64, 96, 2, 2, 32, .bias = 1, .head_norms = 1, .only_fills = 1},
        {"memory", MOA_Q8_0, 128, 160, 4, 2, 32, .reads_memory = 1},
        {"plain", MOA_FLOAT32, 64, 96, 2, 1, 64, .bias = 1, .head_norms = 1},
        {"many-heads", MOA_Q8_0, 64, 64, 7, 1, 32, .differs = 0},
        {"experts", MOA_Q4_1, 64, 96, 2, 1, 32, .experts = 19, .chosen = 4, .weighs_all = 1},
        {"few-experts", MOA_MXFP4, 64, 32, 2, 1, 32, .experts = 2, .chosen = 2},
        {"plain-experts", MOA_FLOAT32, 96, 64, 2, 1, 32, .experts = 5, .chosen = 1, .weighs_all = 1},
        {"differs", MOA_Q4_1, 64, 96, 4, 2, 32, .head_norms = 1, .differs = 1},
        {"hybrid", MOA_Q4_1, 64, 96, 4, 2, 32, .head_norms = 1, .delta_net = 1},
        {"hybrid-experts", MOA_Q8_0, 64, 96, 4, 2, 32, .experts = 7, .chosen = 3, .delta_net = 1},
        {"plain-hybrid", MOA_FLOAT32, 64, 96, 4, 2, 32, .delta_net = 1},
        {"beside", MOA_Q8_0, 64, 96, 4, 2, 32, .head_norms = 1, .experts = 7, .chosen = 3, .differs = 1},
        {"plain-beside", MOA_FLOAT32, 64, 96, 4, 2, 32, .head_norms = 1, .experts = 7, .chosen = 3, .differs = 1},
    };
    check_pack(seed);
    check_linear(seed);
    check_norm(seed);
    check_cache(seed);
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (int kv = MOA_KV_FLOAT32; kv <= MOA_KV_INT8; kv++)
            for (int threads = 1; threads <= 4; threads += 3) check_stack(seed, &SHAPES[i], kv, threads);
    return 0;
}
