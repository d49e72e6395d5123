// What Python may call, and the structures that it fills (moa_kernels/bindings.py mirrors them).
//
// One library per instruction set is built from the same sources. All of them give the same bits: each sum has one
// order, which depends neither on the instruction set, nor on how many rows a call has, nor on the number of threads.
#pragma once
#include <stdint.h>

#define MOA_GROUP 32      // weights, and activations, that share a scale
#define MOA_LANES 16      // outputs of a tile, and keys of a block
#define MOA_PAGE_ROWS 64  // positions of a page of a cache
#define MOA_EXPERTS_MOST 1024  // of a layer
#define MOA_TAPS_MOST 8        // of a convolution
#define MOA_EXPORT __attribute__((visibility("default")))

// The numbers stay what they are: files of tiles hold them.
enum {
    MOA_FLOAT32 = 0, MOA_Q4_1 = 1, MOA_Q8_0 = 2, MOA_Q4_0 = 3, MOA_Q5_0 = 4, MOA_Q5_1 = 5, MOA_Q2_K = 6, MOA_Q3_K = 7,
    MOA_Q4_K = 8, MOA_Q5_K = 9, MOA_Q6_K = 10, MOA_IQ4_NL = 11, MOA_IQ4_XS = 12, MOA_MXFP4 = 13, MOA_KINDS = 14
};
// What a file may hold besides: floats, which are packed as Q8_0 or Q4_1.
enum { MOA_STORED_F32 = -1, MOA_STORED_F16 = -2, MOA_STORED_BF16 = -3 };
enum { MOA_OK = 0, MOA_NO_MEMORY = -1, MOA_NOT_FINITE = -2 };

// A packed matrix: tiles of 16 outputs (the last padded with zeros), in units as formats.h has them. FLOAT32 has no
// units: for each input 16 floats.
typedef struct {
    int32_t kind, outputs;
    const uint8_t *tiles;
} moa_part_t;

// Matrices with the same inputs, whose outputs stand side by side: all quantised, or all FLOAT32.
typedef struct {
    int32_t outputs, inputs, parts;
    const moa_part_t *part;
    const float *bias;  // [outputs], or NULL
} moa_linear_t;

enum { MOA_SILU = 0, MOA_GELU_TANH = 1, MOA_CLAMPED_SWIGLU = 2 };

// An MLP in parts, of which each row has those that the router scores highest. Equal scores go by number.
typedef struct {
    int32_t count, chosen, inner;
    int32_t weighs_all;                  // weights are a softmax over all scores, else over those of the chosen
    const float *scales;                 // [count], of the experts' weights; NULL: none
    moa_linear_t router;                 // FLOAT32, `count` outputs
    const moa_linear_t *gate_up, *down;  // [count]
} moa_experts_t;

typedef struct {
    int32_t count, dim;  // of a layer's keys, and of its values
} moa_heads_t;

// A gated delta net; both dimensions are multiples of 32.
typedef struct {
    int32_t heads, key_heads, key_dim, value_dim;
    int32_t taps;              // of the convolution, at most MOA_TAPS_MOST
    int32_t tiled;             // value head h reads the key head h % key_heads, else h / (heads / key_heads)
    float eps, beta_scale;
    int64_t state, left;       // where its numbers begin in a session's states, and in what a drafted row leaves
    const float *convolution;  // [taps][channels]
    const float *decay_rate, *time_bias;  // [heads]
    const float *norm;         // [value_dim], of what a head reads
    moa_linear_t gate, decay_beta;  // [heads value_dim] outputs; FLOAT32, 2 heads outputs
} moa_delta_net_t;

typedef struct {
    const float *attention_norm, *mlp_norm;        // [hidden], of what they read; NULL: the rows as they are
    const float *attention_out_norm, *mlp_out_norm;  // [hidden], of what they add to the rows; NULL: none
    const float *query_norm, *key_norm;            // NULL: none
    const float *value_norm;                       // [head_dim], of each head; NULL: none
    // Of experts beside an MLP, [hidden]: of what router and experts read, of what these give, of what the MLP gives.
    const float *router_norm, *experts_norm, *experts_out_norm, *beside_out_norm;
    int32_t norms_all_heads;                       // queries' and keys' norms are over all heads, else [head_dim]
    int32_t window;                                // of the newest positions that a row sees; 0: all
    int32_t rotary;                                // which of the forward's tables turn queries and keys; -1: none
    int32_t rotated;                               // numbers of a head that are turned, from its first on
    moa_heads_t heads;                             // of its keys and values
    int32_t inner;                                 // width of its MLP
    int32_t cached;                                // the layer of the cache whose keys and values it reads
    int32_t writes;                                // it computes these; else they are there already, and qkv has none
    int32_t keys_are_values;                       // before norm and turn: qkv has no values
    float query_scale;                             // of scores
    float out_scale;                               // of the rows that leave it
    const float *sinks;                            // [heads], scores that weigh nothing but are counted; NULL: none
    moa_linear_t qkv, out, gate_up, down;
    const moa_experts_t *experts;                  // in place of gate_up and down, or beside them; NULL: none
    moa_linear_t embedding_gate, embedding_out;    // of the layer's own embedding of each token; no parts: it has none
    const float *embedding_norm;                   // [hidden], of what that adds
    // [embedding], of the layer's own embedding, which attention reads before the normed row; NULL: it reads that alone.
    const float *attention_embedding_norm;
    int32_t output_gate;                           // qkv has gates behind the queries, whose sigmoids multiply what is read
    const float *shared_gate;                      // [hidden], of an MLP beside the experts that all rows share; NULL: none
    const moa_delta_net_t *delta_net;              // in place of attention: qkv gives its channels; NULL: none
} moa_layer_t;

// Decoder layers that run one after the other over the same cache.
typedef struct {
    int32_t hidden, heads, layers;
    int32_t kv;            // how keys and values are kept
    int32_t only_fills;    // the last layer stores keys and values, and nothing leaves it
    int32_t activation;    // MOA_SILU, MOA_GELU_TANH, MOA_CLAMPED_SWIGLU
    int32_t embedding;     // width of the layers' own embeddings
    float eps;
    float residual_scale;  // of what attention and MLP add to the rows
    float score_cap;       // scores become cap tanh(score / cap); 0: they stay
    float qkv_clip;        // queries, keys and values, once normed, are cut off at this; 0: they are not
    float gate_slope, gate_limit;  // of MOA_CLAMPED_SWIGLU
    const moa_layer_t *layer;
    const moa_heads_t *cached;     // of the layers of the cache
} moa_stack_t;

// How keys and values are kept: MOA_KV_INT8 is 8 bits with a float32 scale for each row of a head.
enum { MOA_KV_FLOAT32, MOA_KV_FLOAT16, MOA_KV_INT8 };

// Keys and values in pages of 64 positions: [layers][heads]{keys [4 blocks][dim][16], values [64][dim]}, and with 8 bits
// behind them {scales of keys [64], of values [64]}. Layers may have other heads than others.
typedef struct {
    int32_t layers, kv;
    const moa_heads_t *heads;  // of each layer
    void *const *pages;
} moa_cache_t;

// One session's rows in a forward. Row r sees the slots 0..seen[r]-1 and then tail[tail_start[r]..tail_start[r+1]-1],
// which are ascending and not below seen[r]; it sees itself there, unless the stack reads memory.
typedef struct {
    int32_t rows, first_slot;
    void *const *pages;
    const int32_t *seen, *tail_start, *tail;
    // Where the stack has delta nets; else all of it is 0. Of each layer: matrices [heads][value_dim / 32][key_dim][32] and
    // the last inputs of the convolution [taps - 1][channels]; and of each drafted row what it leaves (delta_net.h).
    float *states, *left;
    int64_t left_size;         // of a row
    int32_t drafted;           // so many of the last rows are drafts; the others are a chain
    int32_t waiting, known;    // earlier drafts: some are replayed first, others stay drafts, which these rows may follow
    const int32_t *earlier;    // [waiting + known], where these are in `left`
    const int32_t *places;     // [drafted], where the rows' own come
    const int32_t *parents;    // [known + rows], numbers in the same order; -1: what was before all of them
} moa_segment_t;

// cosines, sines: tables [positions][rotated / 2], by the layers' `rotary`. query_factors: [rows], or NULL.
// embeddings: the layers' own, [rows][layers][embedding], or NULL.
MOA_EXPORT int moa_run(const moa_stack_t *stack, int rows, float *x, const float *embeddings, const int32_t *positions,
                       const float *const *cosines, const float *const *sines, const float *query_factors,
                       int segments, const moa_segment_t *segment, int states, const int32_t *state_layers,
                       float *state, int threads);
MOA_EXPORT int moa_linear(const moa_linear_t *linear, int rows, const float *x, float *y, int threads);
MOA_EXPORT void moa_norm(int rows, int width, float eps, const float *weight, const float *x, float *y);
// x becomes cap tanh(x / cap).
MOA_EXPORT void moa_cap(int64_t count, float cap, float *x);

// Bytes of a tile. From a file's rows, stored as blocks of that kind or as floats, to the tiles first..stop-1 of all, at
// `tiles`; `heads`: not 0 where the rows of each head's two halves lie in turn. Numbers that cannot be computed with:
// MOA_NOT_FINITE.
MOA_EXPORT int64_t moa_tile_bytes(int kind, int inputs);
MOA_EXPORT int moa_pack(int stored, int kind, int outputs, int inputs, int heads, int first, int stop,
                        const uint8_t *source, uint8_t *tiles);
MOA_EXPORT void moa_dequantise(int kind, int rows, int inputs, const uint8_t *blocks, float *out);

// Ends the process with the sentence and exit code 74 where a page of a mapped file cannot be read. Returns the guard's
// place, or MOA_NO_MEMORY.
MOA_EXPORT int moa_guard(const void *begin, int64_t size, const char *sentence);
MOA_EXPORT void moa_unguard(int place);
// Reads the pages of a mapped file and maps all of them, in a sixth of the time that it takes one by one.
MOA_EXPORT void moa_populate(const void *begin, int64_t size);

MOA_EXPORT void moa_cache_write(const moa_cache_t *cache, int layer, int slot, int rows, const float *keys,
                                const float *values);
// out: [rows][layers][width], of each head the key and then the value; left as it is where a layer has fewer numbers.
MOA_EXPORT void moa_cache_read(const moa_cache_t *cache, int first, int layers, int slot, int rows, int width, float *out);
MOA_EXPORT void moa_cache_move(const moa_cache_t *cache, int rows, const int32_t *from, const int32_t *to);
