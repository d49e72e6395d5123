// The formats of weights: how GGUF stores a block, and how the tiles hold it. One line a format, which packing,
// dequantising and the products read; a constant kind makes each field a constant.
//
// A weight is scale (code - offset), or scale table[code], plus a minimum. A unit holds a block's inputs for 16 outputs:
//   16 scales (float16; MXFP4: 16 exponents); 16 minima (float16), where there are any;
//   for each group of 32 inputs the codes, `low` planes of 64 bytes and `high` more (their bits below and above);
//   behind as many groups as fill a line, for each `sub` times 16 bytes: integers that multiply its scales (and minima).
// So a unit is read from beginning to end. Without such integers a unit is one group, and its scales are behind it.
#pragma once

typedef struct {
    int values, bytes;  // of a block in the file
    int low, high;      // bits of a code that lie in the first and the second planes
    int offset;         // taken off each code
    int table;          // the codes stand for the numbers of a table
    int sub;            // 0; 1: a scale a group; 2: a scale and a minimum, or two scales where a group has two halves
    int halves;         // inputs 0-15 and 16-31 of a group have scales of their own
    int minima, exponent;
} format_t;

enum { MOA_NO_TABLE = 0, MOA_TABLE_IQ4 = 1, MOA_TABLE_MXFP4 = 2 };

static const format_t FORMATS[MOA_KINDS] = {
    //               values bytes low high offset table sub halves minima exponent
    [MOA_FLOAT32] = {1,     4,    0,  0,   0,     0,    0,  0,     0,     0},
    [MOA_Q4_0] =    {32,    18,   4,  0,   8,     0,    0,  0,     0,     0},
    [MOA_Q4_1] =    {32,    20,   4,  0,   0,     0,    0,  0,     1,     0},
    [MOA_Q5_0] =    {32,    22,   4,  1,   16,    0,    0,  0,     0,     0},
    [MOA_Q5_1] =    {32,    24,   4,  1,   0,     0,    0,  0,     1,     0},
    [MOA_Q8_0] =    {32,    34,   8,  0,   0,     0,    0,  0,     0,     0},
    [MOA_Q2_K] =    {256,   84,   2,  0,   0,     0,    2,  1,     1,     0},
    [MOA_Q3_K] =    {256,   110,  2,  1,   4,     0,    2,  1,     0,     0},
    [MOA_Q4_K] =    {256,   144,  4,  0,   0,     0,    2,  0,     1,     0},
    [MOA_Q5_K] =    {256,   176,  4,  1,   0,     0,    2,  0,     1,     0},
    [MOA_Q6_K] =    {256,   210,  4,  2,   32,    0,    2,  1,     0,     0},
    [MOA_IQ4_NL] =  {32,    18,   4,  0,   0,     1,    0,  0,     0,     0},
    [MOA_IQ4_XS] =  {256,   136,  4,  0,   0,     1,    1,  0,     0,     0},
    [MOA_MXFP4] =   {32,    17,   4,  0,   0,     2,    0,  0,     0,     1},
};

#define EACH_KIND(DO)                                                                                               \
    DO(MOA_Q4_0) DO(MOA_Q4_1) DO(MOA_Q5_0) DO(MOA_Q5_1) DO(MOA_Q8_0) DO(MOA_Q2_K) DO(MOA_Q3_K) DO(MOA_Q4_K)         \
    DO(MOA_Q5_K) DO(MOA_Q6_K) DO(MOA_IQ4_NL) DO(MOA_IQ4_XS) DO(MOA_MXFP4)

_Alignas(16) static const int8_t TABLES[3][16] = {
    [MOA_TABLE_IQ4] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    [MOA_TABLE_MXFP4] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
};

#define MOST_EXPONENT 251  // of MXFP4: 12 times 2^(251 - 128) is the largest number that is finite

static inline int unit_groups(int kind) { return FORMATS[kind].values / MOA_GROUP; }
static inline int group_bytes(int kind) { return 64 * (FORMATS[kind].low + FORMATS[kind].high); }
static inline int run_groups(int kind) { return FORMATS[kind].sub ? 4 / FORMATS[kind].sub : 1; }  // whose integers fill a line
static inline int scale_bytes(int kind) { return (FORMATS[kind].exponent ? 16 : 32) + (FORMATS[kind].minima ? 32 : 0); }
static inline int unit_bytes(int kind) {
    return scale_bytes(kind) + unit_groups(kind) * (group_bytes(kind) + 16 * FORMATS[kind].sub);
}
static inline int scales_at(int kind) { return FORMATS[kind].sub ? 0 : group_bytes(kind); }  // in a unit; minima: 32 behind
static inline int planes_at(int kind, int g) {
    int run = run_groups(kind), first = FORMATS[kind].sub ? scale_bytes(kind) : 0;
    return first + g * group_bytes(kind) + g / run * 16 * FORMATS[kind].sub * run;
}
static inline int subs_at(int kind, int g) {
    int run = run_groups(kind), first = g / run * run;
    return planes_at(kind, first) + run * group_bytes(kind) + 16 * FORMATS[kind].sub * (g - first);
}
static inline int bytes_a_group(int kind) { return unit_bytes(kind) / unit_groups(kind); }
static inline size_t tile_bytes(int kind, int inputs) {
    if (kind == MOA_FLOAT32) return (size_t)inputs * MOA_LANES * sizeof(float);
    return (size_t)(inputs / FORMATS[kind].values) * unit_bytes(kind);
}
static inline int is_signed(int kind) { return FORMATS[kind].low == 8 || FORMATS[kind].table == MOA_TABLE_IQ4; }
static inline float exponent_to_float(uint8_t exponent) {  // half of 2^(exponent - 127): the table's numbers are doubled
    uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
