// Many descents of a sum tree, one level at a time, with vector instructions where the processor has them.
//
// All versions add in the same order: a tree and its draws give the same leaves on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define APEXRL_VECTORS 1
#include <immintrin.h>
#endif

namespace apexrl {

// Inclusive sums of eight numbers in three steps (Hillis & Steele 1986); the last equals SumTree's sum of the eight.
inline void sums_of_8(const double* v, double* s) {
  double a[8];
  for (int j = 0; j < 8; ++j) a[j] = j >= 1 ? v[j] + v[j - 1] : v[j];
  double b[8];
  for (int j = 0; j < 8; ++j) b[j] = j >= 2 ? a[j] + a[j - 2] : a[j];
  for (int j = 0; j < 8; ++j) s[j] = j >= 4 ? b[j] + b[j - 4] : b[j];
}

// Rounding can lead past the last positive child. Answers that child, and makes `prefix` lead to its last positive leaf.
inline uint32_t last_positive(const double* v, uint32_t child, double& prefix) {
  while (child > 0 && v[child] <= 0.0) --child;
  while (child < 7 && v[child] <= 0.0) ++child;
  prefix = v[child];
  return child;
}

inline void descend_plain(const double* below, const double* next, double* prefix, uint32_t* node, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double* v = below + size_t(node[i]) * 8;
    double s[8];
    sums_of_8(v, s);
    uint32_t child = 0;
    for (int j = 0; j < 7; ++j) child += prefix[i] >= s[j];
    if (v[child] <= 0.0) {
      child = last_positive(v, child, prefix[i]);
    } else if (child > 0) {
      prefix[i] -= s[child - 1];
    }
    node[i] = node[i] * 8 + child;
    if (next != nullptr) __builtin_prefetch(next + size_t(node[i]) * 8);
  }
}

#ifdef APEXRL_VECTORS
__attribute__((target("avx512f,popcnt"))) inline void descend_avx512(const double* below, const double* next,
                                                                     double* prefix, uint32_t* node, size_t n) {
  const __m512i by1 = _mm512_setr_epi64(0, 0, 1, 2, 3, 4, 5, 6), by2 = _mm512_setr_epi64(0, 0, 0, 1, 2, 3, 4, 5),
                by4 = _mm512_setr_epi64(0, 0, 0, 0, 0, 1, 2, 3);
  for (size_t i = 0; i < n; ++i) {
    const double* v = below + size_t(node[i]) * 8;
    __m512d s = _mm512_load_pd(v);
    s = _mm512_add_pd(s, _mm512_maskz_permutexvar_pd(0xfe, by1, s));
    s = _mm512_add_pd(s, _mm512_maskz_permutexvar_pd(0xfc, by2, s));
    s = _mm512_add_pd(s, _mm512_maskz_permutexvar_pd(0xf0, by4, s));
    const __mmask8 past = _mm512_cmp_pd_mask(_mm512_set1_pd(prefix[i]), s, _CMP_GE_OQ) & 0x7f;
    uint32_t child = uint32_t(__builtin_popcount(past));
    if (__builtin_expect(v[child] <= 0.0, 0)) {
      child = last_positive(v, child, prefix[i]);
    } else {
      const __m512d before = _mm512_maskz_permutexvar_pd(0xfe, by1, s);
      prefix[i] -= _mm512_cvtsd_f64(_mm512_permutexvar_pd(_mm512_set1_epi64(child), before));
    }
    node[i] = node[i] * 8 + child;
    if (next != nullptr) _mm_prefetch(reinterpret_cast<const char*>(next + size_t(node[i]) * 8), _MM_HINT_T0);
  }
}

__attribute__((target("avx2,popcnt"))) inline void descend_avx2(const double* below, const double* next, double* prefix,
                                                                uint32_t* node, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double* v = below + size_t(node[i]) * 8;
    __m256d lo = _mm256_load_pd(v), hi = _mm256_load_pd(v + 4);
    __m256d lo2 = _mm256_permute2f128_pd(lo, lo, 0x08), hi2 = _mm256_permute2f128_pd(lo, hi, 0x21);
    const __m256d lo1 = _mm256_shuffle_pd(lo2, lo, 0x5), hi1 = _mm256_shuffle_pd(hi2, hi, 0x5);
    lo = _mm256_add_pd(lo, lo1);
    hi = _mm256_add_pd(hi, hi1);
    lo2 = _mm256_permute2f128_pd(lo, lo, 0x08);
    hi2 = _mm256_permute2f128_pd(lo, hi, 0x21);
    lo = _mm256_add_pd(lo, lo2);
    hi = _mm256_add_pd(_mm256_add_pd(hi, hi2), lo);
    const __m256d p = _mm256_set1_pd(prefix[i]);
    const int past = _mm256_movemask_pd(_mm256_cmp_pd(p, lo, _CMP_GE_OQ)) |
                     (_mm256_movemask_pd(_mm256_cmp_pd(p, hi, _CMP_GE_OQ)) & 7) << 4;
    uint32_t child = uint32_t(__builtin_popcount(unsigned(past)));
    if (__builtin_expect(v[child] <= 0.0, 0)) {
      child = last_positive(v, child, prefix[i]);
    } else {
      alignas(32) double s[9];
      s[0] = 0.0;
      _mm256_storeu_pd(s + 1, lo);
      _mm256_storeu_pd(s + 5, hi);
      prefix[i] -= s[child];
    }
    node[i] = node[i] * 8 + child;
    if (next != nullptr) _mm_prefetch(reinterpret_cast<const char*>(next + size_t(node[i]) * 8), _MM_HINT_T0);
  }
}
#endif

using Descend = void (*)(const double* below, const double* next, double* prefix, uint32_t* node, size_t n);

// `which`: 2 AVX-512, 1 AVX2, 0 plain; null where this processor lacks it.
inline Descend descend_version(int which) {
#ifdef APEXRL_VECTORS
  if (which == 2 && __builtin_cpu_supports("avx512f")) return descend_avx512;
  if (which == 1 && __builtin_cpu_supports("avx2")) return descend_avx2;
#endif
  return which == 0 ? descend_plain : nullptr;
}

inline Descend best_descend() {
  static const Descend best = [] {
    for (int which : {2, 1})
      if (const Descend version = descend_version(which)) return version;
    return descend_version(0);
  }();
  return best;
}

}  // namespace apexrl
