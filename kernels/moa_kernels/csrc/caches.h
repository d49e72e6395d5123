// Single operations on a session's pages of keys and values.
#pragma once

static char *cache_head(const moa_cache_t *c, int layer, size_t offset, int head, int slot) {
    return (char *)c->pages[slot / MOA_PAGE_ROWS] + offset + head * head_bytes(c->kv, c->heads[layer].dim);
}

void moa_cache_write(const moa_cache_t *cache, int layer, int slot, int rows, const float *keys, const float *values) {
    size_t offset = layer_offset(cache->kv, cache->heads, layer);
    int dim = cache->heads[layer].dim;
    for (int row = 0; row < rows; row++)
        for (int head = 0; head < cache->heads[layer].count; head++, keys += dim, values += dim)
            store_keys_values(cache->kv, dim, cache_head(cache, layer, offset, head, slot + row), slot + row, keys,
                              values);
}

static void read_head(int kv, int dim, const char *from, int row, float *out) {
    size_t value = value_index(dim, row), size = kv_bytes(kv);
    vec scales[2] = {v_set(1.f), v_set(1.f)};
    if (kv == MOA_KV_INT8)
        for (int i = 0; i < 2; i++)
            scales[i] = v_set(key_scales(dim, (void *)from)[i * MOA_PAGE_ROWS + row % MOA_PAGE_ROWS]);
    for (int i = 0; i < dim; i += MOA_LANES) {
        float keys[MOA_LANES];  // as wide as they may be
        for (int j = 0; j < MOA_LANES; j++)
            memcpy((char *)keys + j * size, from + key_index(dim, row, i + j) * size, size);
        v_store(out + i, v_mul(load_kv(kv, keys, 0), scales[0]));
        v_store(out + dim + i, v_mul(load_kv(kv, from, value + i), scales[1]));
    }
}

void moa_cache_read(const moa_cache_t *cache, int first, int layers, int slot, int rows, int width, float *out) {
    size_t offset = layer_offset(cache->kv, cache->heads, first);
    for (int layer = first; layer < first + layers; layer++) {
        int dim = cache->heads[layer].dim, heads = cache->heads[layer].count;
        for (int row = 0; row < rows; row++)
            for (int head = 0; head < heads; head++)
                read_head(cache->kv, dim, cache_head(cache, layer, offset, head, slot + row), slot + row,
                          out + ((size_t)row * layers + layer - first) * width + 2 * head * dim);
        offset += heads * head_bytes(cache->kv, dim);
    }
}

static void move_row(int kv, int dim, const char *source, int from, char *target, int to) {
    size_t size = kv_bytes(kv);
    for (int i = 0; i < dim; i++)
        memcpy(target + key_index(dim, to, i) * size, source + key_index(dim, from, i) * size, size);
    memcpy(target + value_index(dim, to) * size, source + value_index(dim, from) * size, dim * size);
    if (kv == MOA_KV_INT8)
        for (int i = 0; i < 2; i++)
            key_scales(dim, target)[i * MOA_PAGE_ROWS + to % MOA_PAGE_ROWS] =
                key_scales(dim, (void *)source)[i * MOA_PAGE_ROWS + from % MOA_PAGE_ROWS];
}

// Copies rows in the order given; a row that is read later must not have been written before.
void moa_cache_move(const moa_cache_t *cache, int rows, const int32_t *from, const int32_t *to) {
    size_t offset = 0;
    for (int layer = 0; layer < cache->layers; layer++) {
        int dim = cache->heads[layer].dim, heads = cache->heads[layer].count;
        for (int head = 0; head < heads; head++)
            for (int row = 0; row < rows; row++)
                move_row(cache->kv, dim, cache_head(cache, layer, offset, head, from[row]), from[row],
                         cache_head(cache, layer, offset, head, to[row]), to[row]);
        offset += heads * head_bytes(cache->kv, dim);
    }
}
