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
// What a checksum becomes when kLane zero bytes follow: linear in its bits, so by its four bytes.
constexpr size_t kLane = 512;
inline uint32_t crc32c_after_lane(uint32_t crc) {
  static const auto table = [] {
    static constexpr uint8_t zeros[kLane] = {};
    std::array<std::array<uint32_t, 256>, 4> entries{};
    for (uint32_t byte = 0; byte < 4; ++byte)
      for (uint32_t i = 0; i < 256; ++i) entries[byte][i] = crc32c_by_table(i << 8 * byte, zeros, kLane);
    return entries;
  }();
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

// The instruction takes three cycles, and three of them may run at a time: three lanes side by side.
__attribute__((target("sse4.2"))) inline uint32_t crc32c_by_instruction(uint32_t crc, const uint8_t* data, size_t n) {
  for (; n >= 3 * kLane; data += 3 * kLane, n -= 3 * kLane) {
    uint64_t lane[3] = {crc, 0, 0};
    for (size_t at = 0; at < kLane; at += 8) {
      for (size_t k = 0; k < 3; ++k) {
        uint64_t word;
        std::memcpy(&word, data + k * kLane + at, 8);
        lane[k] = _mm_crc32_u64(lane[k], word);
      }
    }
    crc = crc32c_after_lane(crc32c_after_lane(uint32_t(lane[0])) ^ uint32_t(lane[1])) ^ uint32_t(lane[2]);
  }
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
