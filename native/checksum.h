// CRC-32C (Castagnoli, RFC 3720 appendix B.4): by instruction on x86-64, else by table.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#endif

namespace apexrl {

inline uint32_t crc32c_by_table(uint32_t crc, const uint8_t* data, size_t n) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
      entries[i] = c;
    }
    return entries;
  }();
  for (size_t i = 0; i < n; ++i) crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
  return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) inline uint32_t crc32c_by_instruction(uint32_t crc, const uint8_t* data, size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; data += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = uint32_t(wide);
  for (; n > 0; ++data, --n) crc = _mm_crc32_u8(crc, *data);
  return crc;
}
#endif

inline uint32_t crc32c(const uint8_t* data, size_t n) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("sse4.2")) return ~crc32c_by_instruction(~0u, data, n);
#endif
  return ~crc32c_by_table(~0u, data, n);
}

}  // namespace apexrl
