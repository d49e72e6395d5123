// Operations on rows of float32: exponential, norm, rotary positions, gated activations, residuals. Widths are multiples of 16.
#pragma once

// exp(x) for x <= 88 by range reduction and a polynomial of degree 6 (Cephes' expf); 0 below -87.
INLINE vec v_exp(vec x) {
    vec clamped = v_max(x, v_set(-87.f));
    vec n = v_round(v_mul(clamped, v_set(1.44269504f)));
    vec r = v_fnma(n, v_set(0.693359375f), clamped);  // ln 2 in two parts
    r = v_fnma(n, v_set(-2.12194440e-4f), r);
    vec p = v_set(1 / 720.f);
    p = v_fma(p, r, v_set(1 / 120.f));
    p = v_fma(p, r, v_set(1 / 24.f));
    p = v_fma(p, r, v_set(1 / 6.f));
    p = v_fma(p, r, v_set(.5f));
    p = v_fma(p, r, v_set(1.f));
    p = v_fma(p, r, v_set(1.f));
    return v_zero_below(v_mul(p, v_power_of_two(n)), x, -87.f);
}

INLINE vec v_negative(vec x) { return v_sub(v_set(0.f), x); }

INLINE vec v_least(vec a, vec b) { return v_negative(v_max(v_negative(a), v_negative(b))); }

// tanh(x) with an error of 1e-7 (of 1, not of the result).
INLINE vec v_tanh(vec x) {
    vec doubled = v_least(v_add(x, x), v_set(80.f));  // at most 80: exp does not overflow
    return v_sub(v_set(1.f), v_div(v_set(2.f), v_add(v_exp(doubled), v_set(1.f))));
}

INLINE vec v_cap(vec x, vec cap) { return v_mul(v_tanh(v_div(x, cap)), cap); }

// Root-mean-square norm of one row, computed in float32.
static void norm_row(int width, float eps, const float *weight, const float *x, float *y) {
    vec squares = v_set(0.f);
    for (int i = 0; i < width; i += MOA_LANES) {
        vec a = v_load(x + i);
        squares = v_fma(a, a, squares);
    }
    vec scale = v_set(1.f / sqrtf(v_sum(squares) / (float)width + eps));
    for (int i = 0; i < width; i += MOA_LANES)
        v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(weight + i)));
}

static void add_row(int width, float *x, const float *addend) {
    for (int i = 0; i < width; i += MOA_LANES) v_store(x + i, v_add(v_load(x + i), v_load(addend + i)));
}

// Rotates one head by its position: pairs are (i, i + head_dim / 2), as in transformers.
static void rotate_head(int head_dim, const float *cosines, const float *sines, float *head) {
    int half = head_dim / 2;
    for (int i = 0; i < half; i += MOA_LANES) {
        vec a = v_load(head + i), b = v_load(head + half + i), c = v_load(cosines + i), s = v_load(sines + i);
        v_store(head + i, v_fnma(b, s, v_mul(a, c)));
        v_store(head + half + i, v_fma(a, s, v_mul(b, c)));
    }
}

static void scale_row(int width, float factor, float *x) {
    for (int i = 0; i < width; i += MOA_LANES) v_store(x + i, v_mul(v_load(x + i), v_set(factor)));
}

// gate / (1 + exp(-slope)).
INLINE vec v_gated(vec gate, vec slope) {
    vec minus_slope = v_sub(v_set(0.f), v_max(slope, v_set(-88.f)));  // beyond, exp would overflow
    return v_div(gate, v_add(v_set(1.f), v_exp(minus_slope)));
}

// silu(gate) * up of one row.
static void swiglu_row(int inner, const float *gates, const float *ups, float *y) {
    for (int i = 0; i < inner; i += MOA_LANES) {
        vec gate = v_load(gates + i);
        v_store(y + i, v_mul(v_gated(gate, gate), v_load(ups + i)));
    }
}

// As swiglu_row with gelu by tanh, which is gate / (1 + exp(-2 u)), u = sqrt(2 / pi) (gate + 0.044715 gate^3).
static void geglu_row(int inner, const float *gates, const float *ups, float *y) {
    for (int i = 0; i < inner; i += MOA_LANES) {
        vec gate = v_load(gates + i), square = v_mul(gate, gate);
        vec slope = v_mul(v_mul(gate, v_set(1.5957691216f)), v_fma(square, v_set(0.044715f), v_set(1.f)));
        v_store(y + i, v_mul(v_gated(gate, slope), v_load(ups + i)));
    }
}

// As swiglu_row where gates are cut off above `limit` and up at both sides, and 1 is added to up: gpt-oss's.
static void clamped_swiglu_row(int inner, float slope, float limit, const float *gates, const float *ups,
                               float *y) {
    for (int i = 0; i < inner; i += MOA_LANES) {
        vec gate = v_least(v_load(gates + i), v_set(limit));
        vec up = v_max(v_least(v_load(ups + i), v_set(limit)), v_set(-limit));
        v_store(y + i, v_mul(v_gated(gate, v_mul(gate, v_set(slope))), v_add(up, v_set(1.f))));
    }
}
