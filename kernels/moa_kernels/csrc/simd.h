// Vectors of 16 floats in the registers of the variant that is compiled, and what all sources that compute need.
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#ifndef INLINE  // as the sanitizers have it
#define INLINE static inline __attribute__((always_inline))
#endif
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(MOA_VARIANT_AVX512) || defined(MOA_VARIANT_AMX)
#include "simd_avx512.h"
#include "simd_x86.h"
#elif defined(MOA_VARIANT_AVX2) || defined(MOA_VARIANT_AVXVNNI)
#include "simd_avx2.h"
#include "simd_x86.h"
#elif defined(MOA_VARIANT_NEON)
#include "simd_neon.h"
#else
#error "Define one MOA_VARIANT_..."
#endif
