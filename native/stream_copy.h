// Copies with non-temporal stores, for large rows that would not stay in the cache.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

namespace apexrl {

constexpr size_t kStreamed = 2048;  // bytes from which this is faster

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx"))) inline void stream_copy_avx(uint8_t* to, const uint8_t* from, size_t bytes) {
  const size_t head = (32 - reinterpret_cast<uintptr_t>(to) % 32) % 32;
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  size_t at = 0;
  for (; at + 128 <= bytes; at += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from + at);
    auto* out = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1), c = _mm256_loadu_si256(in + 2),
                  d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
    _mm256_stream_si256(out + 2, c);
    _mm256_stream_si256(out + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}
#endif

inline void copy_large(uint8_t* to, const uint8_t* from, size_t bytes) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool avx = __builtin_cpu_supports("avx");
  if (bytes >= kStreamed && avx) return stream_copy_avx(to, from, bytes);
#endif
  std::memcpy(to, from, bytes);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx"))) inline void stream_zeros_avx(uint8_t* to, size_t bytes) {
  const size_t head = (32 - reinterpret_cast<uintptr_t>(to) % 32) % 32;
  std::memset(to, 0, head);
  to += head, bytes -= head;
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), _mm256_setzero_si256());
  std::memset(to + at, 0, bytes - at);
}
#endif

inline void zeros_large(uint8_t* to, size_t bytes) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool avx = __builtin_cpu_supports("avx");
  if (bytes >= kStreamed && avx) return stream_zeros_avx(to, bytes);
#endif
  std::memset(to, 0, bytes);
}

// Before others may read what was copied.
inline void copies_done() {
#if defined(__x86_64__) && defined(__GNUC__)
  _mm_sfence();
#endif
}

}  // namespace apexrl
