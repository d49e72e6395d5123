// Which variants of the kernels this CPU and this operating system can run, as a bit mask (the bits of variants.py).
// The system counts: registers that it does not save at a task switch (XCR0) must not be used. AMX tiles must also
// be asked for, once a process; that is done here, so a variant that is reported can be used at once.
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <stdint.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { AVX2 = 1, AVXVNNI = 2, AVX512 = 4, AMX = 8, NEON = 16 };

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int all(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

// Linux gives a process the tiles' 8 KiB of state only when asked; other systems are not supported.
static int tiles_are_granted(void) {
#ifdef __linux__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

EXPORT int moa_probe(void) {
    uint32_t a, b, c, d, b7, c7, d7, subleaves, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if (!all(c, fma | osxsave | avx | f16c) || !__get_cpuid_count(7, 0, &subleaves, &b7, &c7, &d7)) return 0;
    if (subleaves >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);

    const uint64_t ymm = 1 << 1 | 1 << 2, zmm = ymm | 1 << 5 | 1 << 6 | 1 << 7, tiles = zmm | 1 << 17 | 1 << 18;
    const uint64_t saved = saved_registers();
    const uint32_t avx2 = 1u << 5, avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const uint32_t avx512_vnni = 1u << 11, avx_vnni = 1u << 4, amx_tile_int8 = 1u << 24 | 1u << 25;

    if (!all(saved, ymm) || !all(b7, avx2)) return 0;
    int variants = AVX2;
    if (all(a71, avx_vnni)) variants |= AVXVNNI;
    if (all(saved, zmm) && all(b7, avx512_f_dq_bw_vl) && all(c7, avx512_vnni)) {
        variants |= AVX512;
        if (all(saved, tiles) && all(d7, amx_tile_int8) && tiles_are_granted()) variants |= AMX;
    }
    return variants;
}

#elif defined(__aarch64__) && defined(__APPLE__)

EXPORT int moa_probe(void) { return NEON; }  // every Apple processor of this kind has the dot product

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

EXPORT int moa_probe(void) {
    const unsigned long asimddp = 1ul << 20;  // HWCAP_ASIMDDP
    return getauxval(AT_HWCAP) & asimddp ? NEON : 0;
}

#else

EXPORT int moa_probe(void) { return 0; }

#endif
