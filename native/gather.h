// From item names (slot, row) to contiguous arrays: frame stacks, n-step returns, later observations.
#pragma once

#include <cmath>

#include "layout.h"

namespace apexrl {

struct ItemRef {
  uint32_t slot;
  uint32_t row;   // of the item's own step
  uint32_t span;  // m: environment steps to the bootstrap observation, m <= n (kind transition)
};

template <size_t N>
inline void copy_fixed(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i, out += N) std::memcpy(out, view.cell(c, items[i].slot, items[i].row), N);
}

// One column of n items: out [n, column].
inline void gather_plain(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* out) {
  switch (c.bytes) {
    case 1: return copy_fixed<1>(view, c, items, n, out);
    case 2: return copy_fixed<2>(view, c, items, n, out);
    case 4: return copy_fixed<4>(view, c, items, n, out);
    case 8: return copy_fixed<8>(view, c, items, n, out);
    case 16: return copy_fixed<16>(view, c, items, n, out);
    case 32: return copy_fixed<32>(view, c, items, n, out);
    default: break;
  }
  for (size_t i = 0; i < n; ++i, out += c.bytes) std::memcpy(out, view.cell(c, items[i].slot, items[i].row), c.bytes);
}

// A windowed column, stacked, `later` steps after each item (0, or its span): out [n, stack, column], oldest first.
// An episode's start pads the stack by repeating its first frame (Gymnasium's FrameStackObservation, "reset").
inline void gather_stacked(const View& view, const Column& c, const ItemRef* items, size_t n, bool later,
                           uint8_t* out) {
  const uint32_t stack = view.geometry().stack;
  const size_t stride = view.stride(c);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t row = items[i].row + (later ? items[i].span : 0);
    const uint32_t earlier = std::min<uint32_t>(stack - 1, view.head(items[i].slot, row).age);
    const uint8_t* first = view.cell(c, items[i].slot, row - earlier);
    for (uint32_t k = earlier + 1; k < stack; ++k, out += c.bytes) std::memcpy(out, first, c.bytes);
    if (stride == c.bytes) {
      std::memcpy(out, first, size_t(c.bytes) * (earlier + 1));
      out += size_t(c.bytes) * (earlier + 1);
    } else {
      for (uint32_t k = 0; k <= earlier; ++k, first += stride, out += c.bytes) std::memcpy(out, first, c.bytes);
    }
  }
}

inline void gather_column(const View& view, const Column& c, const ItemRef* items, size_t n, bool later,
                          uint8_t* out) {
  if (c.windowed && view.geometry().stack > 1) return gather_stacked(view, c, items, n, later, out);
  if (!later) return gather_plain(view, c, items, n, out);
  for (size_t i = 0; i < n; ++i, out += c.bytes)
    std::memcpy(out, view.cell(c, items[i].slot, items[i].row + items[i].span), c.bytes);
}

// m, the steps from `row` to its bootstrap observation: n, or fewer when the episode ends first.
// `rows`: rows written so far. 0: the bootstrap observation is not there yet.
inline uint32_t span_of(const View& view, uint32_t slot, uint32_t row, uint32_t rows) {
  const uint32_t n = view.geometry().n_step;
  for (uint32_t k = 0; k < n; ++k) {
    if (row + k >= rows) return 0;
    const bool ends = view.head(slot, row + k).flags & (kTerminated | kTruncated);
    if (ends || k + 1 == n) return row + k + 1 < rows ? k + 1 : 0;
  }
  return 0;
}

// n-step return sum_{k<m} gamma^k r_{t+k} and discount gamma^m (1 - terminated) (Sutton & Barto, eq. 7.1; the
// discount is 0 only at a true termination, so truncation bootstraps).
inline void gather_returns(const View& view, const ItemRef* items, size_t n, float* reward, float* discount) {
  const double gamma = view.geometry().gamma;
  for (size_t i = 0; i < n; ++i) {
    double sum = 0.0, factor = 1.0;
    bool terminated = false;
    for (uint32_t k = 0; k < items[i].span; ++k) {
      const StepHead& head = view.head(items[i].slot, items[i].row + k);
      sum += factor * head.reward;
      factor *= gamma;
      terminated = head.flags & kTerminated;
    }
    reward[i] = float(sum);
    discount[i] = terminated ? 0.0f : float(factor);
  }
}

}  // namespace apexrl
