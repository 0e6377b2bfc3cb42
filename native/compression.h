// Values of fields in fewer bytes: blocks of LZ4.
#pragma once

#include <cstddef>
#include <cstdint>

namespace apexrl {

// LZ4's: longer values cannot be compressed.
constexpr uint32_t kLargestInput = 0x7E000000;

// Writes `n` bytes to `out`, which has room for as many. Answers how many it took; n: they are there as they were.
uint32_t compress(const uint8_t* from, uint32_t n, uint8_t* out);

// The opposite. False: `from` is no block of exactly `n` bytes, and `out` holds zeros.
bool decompress(const uint8_t* from, uint32_t bytes, uint8_t* out, uint32_t n);

}  // namespace apexrl
