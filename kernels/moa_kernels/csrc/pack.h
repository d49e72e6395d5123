// From GGUF's blocks to tiles, and to numbers. Block layouts are those of ggml; a test holds them to the gguf package.
#pragma once

typedef struct {
    uint8_t codes[256];
    uint16_t scale, minimum;  // float16
    uint8_t exponent;
    uint8_t subs[16];         // as the tiles have them: `sub` bytes a group
} file_block_t;

static uint16_t half_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

// Nibbles: the low ones are the first `count` codes, the high ones the next.
static void read_nibbles(const uint8_t *from, int count, uint8_t *codes) {
    for (int i = 0; i < count; i++) codes[i] = from[i] & 15, codes[count + i] = from[i] >> 4;
}

// Codes of 5 bits in 32: their fifths in one integer.
static void add_fifths(const uint8_t *from, uint8_t *codes) {
    for (int i = 0; i < 32; i++) codes[i] |= (uint8_t)((from[i / 8] >> i % 8 & 1) << 4);
}

// Eight scales and eight minima of 6 bits in 12 bytes, side by side.
static void read_k_scales(const uint8_t *from, uint8_t *subs) {
    for (int g = 0; g < 4; g++) {
        subs[2 * g] = from[g] & 63;
        subs[2 * g + 1] = from[4 + g] & 63;
        subs[2 * (4 + g)] = (uint8_t)((from[8 + g] & 15) | from[g] >> 6 << 4);
        subs[2 * (4 + g) + 1] = (uint8_t)(from[8 + g] >> 4 | from[4 + g] >> 6 << 4);
    }
}

static void read_q2_k(const uint8_t *from, file_block_t *b) {
    memcpy(b->subs, from, 16);
    for (int i = 0; i < 256; i++) b->codes[i] = from[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
    b->scale = half_at(from + 80), b->minimum = half_at(from + 82);
}

static void read_q3_k(const uint8_t *from, file_block_t *b) {
    const uint8_t *high = from, *low = from + 32, *scales = from + 96;
    for (int i = 0; i < 256; i++)
        b->codes[i] = (uint8_t)((low[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) | (high[i % 32] >> i / 32 & 1) << 2);
    for (int i = 0; i < 16; i++) {
        int lower = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4, upper = scales[8 + i % 4] >> i / 4 * 2 & 3;
        b->subs[i] = (uint8_t)((lower | upper << 4) - 32);
    }
    b->scale = half_at(from + 108);
}

static void read_q6_k(const uint8_t *from, file_block_t *b) {
    for (int i = 0; i < 256; i++) {
        int part = i / 128, row = i / 32 % 4, column = i % 32;
        int low = from[64 * part + row % 2 * 32 + column] >> row / 2 * 4 & 15;
        b->codes[i] = (uint8_t)(low | (from[128 + 32 * part + column] >> 2 * row & 3) << 4);
    }
    memcpy(b->subs, from + 192, 16);
    b->scale = half_at(from + 208);
}

INLINE void read_block(int kind, const uint8_t *from, file_block_t *b) {
    switch (kind) {
        case MOA_Q4_0:
        case MOA_IQ4_NL:
            b->scale = half_at(from);
            read_nibbles(from + 2, 16, b->codes);
            break;
        case MOA_Q4_1:
            b->scale = half_at(from), b->minimum = half_at(from + 2);
            read_nibbles(from + 4, 16, b->codes);
            break;
        case MOA_Q5_0:
            b->scale = half_at(from);
            read_nibbles(from + 6, 16, b->codes);
            add_fifths(from + 2, b->codes);
            break;
        case MOA_Q5_1:
            b->scale = half_at(from), b->minimum = half_at(from + 2);
            read_nibbles(from + 8, 16, b->codes);
            add_fifths(from + 4, b->codes);
            break;
        case MOA_Q8_0:
            b->scale = half_at(from);
            memcpy(b->codes, from + 2, 32);
            break;
        case MOA_MXFP4:
            b->exponent = from[0];
            read_nibbles(from + 1, 16, b->codes);
            break;
        case MOA_Q4_K:
        case MOA_Q5_K:
            b->scale = half_at(from), b->minimum = half_at(from + 2);
            read_k_scales(from + 4, b->subs);
            for (int g = 0; g < 8; g += 2)
                read_nibbles(from + (kind == MOA_Q4_K ? 16 : 48) + 16 * g, 32, b->codes + 32 * g);
            if (kind == MOA_Q5_K)
                for (int i = 0; i < 256; i++) b->codes[i] |= (uint8_t)((from[16 + i % 32] >> i / 32 & 1) << 4);
            break;
        case MOA_IQ4_XS:
            b->scale = half_at(from);
            for (int g = 0; g < 8; g++) {
                int low = from[4 + g / 2] >> g % 2 * 4 & 15, high = half_at(from + 2) >> 2 * g & 3;
                b->subs[g] = (uint8_t)((low | high << 4) - 32);
                read_nibbles(from + 8 + 16 * g, 16, b->codes + 32 * g);
            }
            break;
        case MOA_Q2_K:
            read_q2_k(from, b);
            break;
        case MOA_Q3_K:
            read_q3_k(from, b);
            break;
        case MOA_Q6_K:
            read_q6_k(from, b);
            break;
    }
}

// One output's codes of a group among the planes: four inputs at a time, at byte 4 * lane of a plane of 64. A code of 4
// bits lies beside that of four inputs on; of the planes of 1 and 2 bits each holds eight and four such fours.
INLINE void put_group(int kind, const uint8_t *codes, int lane, uint8_t *to) {
    const int low = FORMATS[kind].low, high = FORMATS[kind].high;
    uint32_t fours[8], planes[8] = {0};
    memcpy(fours, codes, 32);
    for (int k = 0; k < 8; k++) {
        uint32_t low_bits = fours[k] & 0x01010101u * ((1u << low) - 1), high_bits = (fours[k] >> low) & 0x03030303u;
        planes[k * low / 8] |= low_bits << k * low % 8;
        if (high) planes[low + k * high / 8] |= high_bits << k * high % 8;
    }
    for (int p = 0; p < low + high; p++) memcpy(to + 64 * p + 4 * lane, planes + p, 4);
}

static int is_finite_half(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Returns whether all scales are finite.
INLINE int pack_row(int kind, int inputs, const uint8_t *blocks, int lane, uint8_t *tile) {
    const format_t *f = FORMATS + kind;
    int finite = 1;
    for (int unit = 0; unit < inputs / f->values; unit++, blocks += f->bytes, tile += unit_bytes(kind)) {
        file_block_t b;
        read_block(kind, blocks, &b);
        for (int g = 0; g < unit_groups(kind); g++) {
            put_group(kind, b.codes + MOA_GROUP * g, lane, tile + planes_at(kind, g));
            for (int i = 0; i < f->sub; i++) tile[subs_at(kind, g) + 16 * i + lane] = b.subs[f->sub * g + i];
        }
        if (f->exponent) tile[scales_at(kind) + lane] = b.exponent;
        else memcpy(tile + scales_at(kind) + 2 * lane, &b.scale, 2);
        if (f->minima) memcpy(tile + scales_at(kind) + 32 + 2 * lane, &b.minimum, 2);
        finite &= f->exponent ? b.exponent <= MOST_EXPONENT : is_finite_half(b.scale);
        finite &= !f->minima || is_finite_half(b.minimum);
    }
    return finite;
}

static float half_to_float(uint16_t half) {
    float lanes[MOA_LANES];
    uint16_t halves[MOA_LANES] = {half};
    v_store(lanes, v_load_half(halves));
    return lanes[0];
}

INLINE void dequantise_row(int kind, int inputs, const uint8_t *blocks, float *out) {
    const format_t *f = FORMATS + kind;
    for (int unit = 0; unit < inputs / f->values; unit++, blocks += f->bytes) {
        file_block_t b;
        read_block(kind, blocks, &b);
        float scale = f->exponent ? exponent_to_float(b.exponent) : half_to_float(b.scale);
        float minimum = f->minima ? half_to_float(b.minimum) : 0.f;
        for (int i = 0; i < f->values; i++) {
            int group = i / MOA_GROUP, half = i / 16 % 2, sub = 1, least = -1, code = b.codes[i] - f->offset;
            if (f->table) code = TABLES[f->table][b.codes[i]];
            if (kind == MOA_Q8_0) code = (int8_t)b.codes[i];
            if (f->sub == 1) sub = (int8_t)b.subs[group];
            else if (f->sub && !f->halves) sub = b.subs[2 * group], least = b.subs[2 * group + 1];
            else if (f->sub && !f->minima) sub = (int8_t)b.subs[2 * group + half];
            else if (f->sub) sub = b.subs[2 * group + half] & 15, least = b.subs[2 * group + half] >> 4;
            float value = scale * (float)sub * (float)code;
            *out++ = f->minima ? value - minimum * (float)least : value;
        }
    }
}

// Which row of the file an output is. Where `heads` is not 0, the file has a head's two halves row by row in turn.
static int source_row(int output, int outputs, int heads) {
    if (!heads) return output;
    int dim = outputs / heads, row = output % dim;
    return output - row + 2 * (row % (dim / 2)) + row / (dim / 2);
}

static int pack_any_row(int kind, int inputs, const uint8_t *row, int lane, uint8_t *tile) {
#define PACK(each) \
    case each: return pack_row(each, inputs, row, lane, tile);
    switch (kind) {
        EACH_KIND(PACK)
        default:
            for (int i = 0; i < inputs; i++) memcpy(tile + 4 * ((size_t)i * MOA_LANES + lane), row + 4 * (size_t)i, 4);
            return 1;
    }
#undef PACK
}

int64_t moa_tile_bytes(int kind, int inputs) { return (int64_t)tile_bytes(kind, inputs); }

int moa_pack(int stored, int kind, int outputs, int inputs, int heads, int first, int stop, const uint8_t *source,
             uint8_t *tiles) {
    size_t row_bytes = stored_row_bytes(stored, inputs), size = tile_bytes(kind, inputs);
    uint8_t *blocks = stored < 0 ? allocate(stored_row_bytes(kind, inputs)) : NULL;
    int result = stored < 0 && !blocks ? MOA_NO_MEMORY : MOA_OK;
    for (int tile = first; tile < stop && result == MOA_OK; tile++, tiles += size) {
        int rows = outputs - tile * MOA_LANES < MOA_LANES ? outputs - tile * MOA_LANES : MOA_LANES;
        if (rows < MOA_LANES) memset(tiles, 0, size);
        for (int lane = 0; lane < rows; lane++) {
            const uint8_t *row = source + (size_t)source_row(tile * MOA_LANES + lane, outputs, heads) * row_bytes;
            if (blocks && !row_to_blocks(stored, kind, inputs, row, blocks)) result = MOA_NOT_FINITE;
            else if (!pack_any_row(kind, inputs, blocks ? blocks : row, lane, tiles)) result = MOA_NOT_FINITE;
        }
    }
    free(blocks);
    return result;
}

void moa_dequantise(int kind, int rows, int inputs, const uint8_t *blocks, float *out) {
    size_t row_bytes = (size_t)(inputs / FORMATS[kind].values) * FORMATS[kind].bytes;
    for (int row = 0; row < rows; row++, blocks += row_bytes, out += inputs) {
#define DEQUANTISE(each)                              \
    case each:                                        \
        dequantise_row(each, inputs, blocks, out);    \
        break;
        switch (kind) {
            EACH_KIND(DEQUANTISE)
            default:
                memcpy(out, blocks, row_bytes);
        }
#undef DEQUANTISE
    }
}
