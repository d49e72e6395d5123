// Operations on rows of float32: exponential, norm, rotary positions, SwiGLU, residuals. Widths are multiples of 16.
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

// silu(gate) * up of one row; gate and up lie one after the other.
static void swiglu_row(int inner, const float *gate_up, float *y) {
    for (int i = 0; i < inner; i += MOA_LANES) {
        vec gate = v_load(gate_up + i);
        vec minus_gate = v_sub(v_set(0.f), v_max(gate, v_set(-88.f)));  // beyond, exp would overflow
        vec silu = v_div(gate, v_add(v_set(1.f), v_exp(minus_gate)));
        v_store(y + i, v_mul(silu, v_load(gate_up + inner + i)));
    }
}
