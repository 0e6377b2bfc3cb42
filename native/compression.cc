// LZ4 1.9.4 as its authors wrote it, and what we call of it. In one file: whatever builds the core adds this one alone.
#define LZ4LIB_VISIBILITY  // nobody else calls this copy
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include "vendor/lz4.c"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#include <cstring>

#include "compression.h"

namespace apexrl {

static_assert(kLargestInput == LZ4_MAX_INPUT_SIZE && kLargestInput < INT32_MAX);

uint32_t compress(const uint8_t* from, uint32_t n, uint8_t* out) {
  if (n > 1 && n <= kLargestInput) {
    const int bytes = LZ4_compress_default(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(out), int(n), int(n - 1));
    if (bytes > 0) return uint32_t(bytes);
  }
  std::memcpy(out, from, n);
  return n;
}

bool decompress(const uint8_t* from, uint32_t bytes, uint8_t* out, uint32_t n) {
  if (bytes == n) {
    std::memcpy(out, from, n);
    return true;
  }
  if (bytes < n && n <= kLargestInput &&
      LZ4_decompress_safe(reinterpret_cast<const char*>(from), reinterpret_cast<char*>(out), int(bytes), int(n)) == int(n))
    return true;
  std::memset(out, 0, n);
  return false;
}

}  // namespace apexrl
