// From floats as files hold them to blocks of Q8_0 and Q4_1, with the bits of blocks.py.
#pragma once

static size_t stored_row_bytes(int stored, int inputs) {
    switch (stored) {
        case MOA_STORED_F32: return (size_t)inputs * 4;
        case MOA_STORED_F16:
        case MOA_STORED_BF16: return (size_t)inputs * 2;
        default: return (size_t)(inputs / FORMATS[stored].values) * FORMATS[stored].bytes;
    }
}

static void load_group(int stored, const uint8_t *from, float *x) {
    uint16_t halves[MOA_GROUP];
    if (stored == MOA_STORED_F32) {
        memcpy(x, from, MOA_GROUP * sizeof *x);
        return;
    }
    memcpy(halves, from, sizeof halves);
    if (stored == MOA_STORED_F16) {
        v_store(x, v_load_half(halves));
        v_store(x + MOA_LANES, v_load_half(halves + MOA_LANES));
        return;
    }
    for (int i = 0; i < MOA_GROUP; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(x + i, &bits, 4);
    }
}

static int are_finite(const float *x) {
    int bad = 0;
    for (int i = 0; i < MOA_GROUP; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

// To float16 and back.
static float put_half(float value, uint8_t *to) {
    uint16_t halves[MOA_LANES];
    float lanes[MOA_LANES];
    v_store_half(halves, v_set(value));
    memcpy(to, halves, 2);
    v_store(lanes, v_load_half(halves));
    return lanes[0];
}

// The largest of 32 numbers is 127 times the scale. A scale that was rounded down would need codes beyond 127.
static int to_q8_0(const float *x, uint8_t *block) {
    vec a = v_load(x), b = v_load(x + MOA_LANES), least = v_set(-127.f);
    float largest = v_maximum(v_max(v_abs(a), v_abs(b)));
    if (!are_finite(x) || largest >= 65504.f * 127.f) return 0;
    float scale = put_half(largest / 127.f, block);
    vec divisor = v_set(scale > 0.f ? scale : 1.f);
    v_store_int8((int8_t *)block + 2, v_max(v_div(a, divisor), least));
    v_store_int8((int8_t *)block + 2 + MOA_LANES, v_max(v_div(b, divisor), least));
    return 1;
}

// The smallest and the largest of 32 numbers are the codes 0 and 15.
static int to_q4_1(const float *x, uint8_t *block) {
    vec a = v_load(x), b = v_load(x + MOA_LANES), zero = v_set(0.f);
    int8_t low[MOA_LANES], high[MOA_LANES];
    float largest = v_maximum(v_max(a, b)), smallest = 0.f - v_maximum(v_max(v_sub(zero, a), v_sub(zero, b)));
    if (!are_finite(x) || largest >= 32752.f || smallest <= -32752.f) return 0;
    float minimum = put_half(smallest, block + 2), scale = put_half((largest - minimum) / 15.f, block);
    vec divisor = v_set(scale > 0.f ? scale : 1.f), from = v_set(minimum);
    v_store_int8(low, v_max(v_div(v_sub(a, from), divisor), zero));
    v_store_int8(high, v_max(v_div(v_sub(b, from), divisor), zero));
    for (int i = 0; i < MOA_LANES; i++)
        block[4 + i] = (uint8_t)((low[i] < 15 ? low[i] : 15) | (high[i] < 15 ? high[i] : 15) << 4);
    return 1;
}

static int row_to_blocks(int stored, int kind, int inputs, const uint8_t *from, uint8_t *blocks) {
    size_t group_bytes = stored_row_bytes(stored, MOA_GROUP);
    for (int g = 0; g < inputs / MOA_GROUP; g++, from += group_bytes, blocks += FORMATS[kind].bytes) {
        float x[MOA_GROUP];
        load_group(stored, from, x);
        if (!(kind == MOA_Q8_0 ? to_q8_0(x, blocks) : to_q4_1(x, blocks))) return 0;
    }
    return 1;
}
