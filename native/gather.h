// Copies items, given as slot and row, into contiguous arrays: frame stacks, n-step returns, later observations.
#pragma once

#include <cmath>
#include <vector>

#include "ragged.h"
#include "view.h"
#include "stream_copy.h"

namespace apexrl {

struct ItemRef {
  uint32_t slot;
  uint32_t row;   // of the item's own step
  uint32_t span;  // m: environment steps to the bootstrap observation, m <= n
  uint32_t burn_in;  // rows before it from which a recurrent state is built up
};

// Where a column's cells are. A copy: the compiler need not reload it after each store to an output.
struct Cells {
  Cells(const View& view, const Column& c)
      : first(view.cell(c, 0, 0)), slot_bytes(view.geometry().slot_bytes), stride(view.stride(c)) {}
  const uint8_t* at(const ItemRef& item) const { return first + slot_bytes * item.slot + stride * item.row; }

  const uint8_t* first;
  size_t slot_bytes, stride;
};

// A copy of 8 to 256 bytes without a call.
inline void copy_short(uint8_t* to, const uint8_t* from, size_t bytes) {
  if (bytes - 8 < 8) {
    std::memcpy(to, from, 8);
    std::memcpy(to + bytes - 8, from + bytes - 8, 8);
    return;
  }
  if (bytes < 16 || bytes > 256) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (size_t at = 0; at + 16 <= bytes; at += 16) std::memcpy(to + at, from + at, 16);
  std::memcpy(to + bytes - 16, from + bytes - 16, 16);
}

// n short rows, each `bytes` long.
inline void copy_rows(uint8_t* to, size_t to_stride, const uint8_t* from, size_t from_stride, size_t bytes, size_t n) {
  const auto each = [&](auto copy) {
    for (size_t i = 0; i < n; ++i, to += to_stride, from += from_stride) copy(to, from);
  };
  switch (bytes) {
    case 1: return each([](uint8_t* out, const uint8_t* in) { *out = *in; });
    case 4: return each([](uint8_t* out, const uint8_t* in) { std::memcpy(out, in, 4); });
    case 8: return each([](uint8_t* out, const uint8_t* in) { std::memcpy(out, in, 8); });
    case 16: return each([](uint8_t* out, const uint8_t* in) { std::memcpy(out, in, 16); });
    default: return each([=](uint8_t* out, const uint8_t* in) { copy_short(out, in, bytes); });
  }
}

template <size_t N>
inline void copy_fixed(const Cells cells, const ItemRef* items, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i, out += N) std::memcpy(out, cells.at(items[i]), N);
}

// One column of n items: out [n, column].
inline void gather_plain(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* out) {
  const Cells cells(view, c);
  const size_t bytes = c.bytes;
  switch (bytes) {
    case 1: return copy_fixed<1>(cells, items, n, out);
    case 2: return copy_fixed<2>(cells, items, n, out);
    case 4: return copy_fixed<4>(cells, items, n, out);
    case 8: return copy_fixed<8>(cells, items, n, out);
    case 16: return copy_fixed<16>(cells, items, n, out);
    case 24: return copy_fixed<24>(cells, items, n, out);
    case 32: return copy_fixed<32>(cells, items, n, out);
    default: break;
  }
  for (size_t i = 0; i < n; ++i, out += bytes) copy_short(out, cells.at(items[i]), bytes);
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
      copy_large(out, first, size_t(c.bytes) * (earlier + 1));
      out += size_t(c.bytes) * (earlier + 1);
    } else {
      for (uint32_t k = 0; k <= earlier; ++k, first += stride, out += c.bytes) std::memcpy(out, first, c.bytes);
    }
  }
}

// A ragged column, as gather_column, each value filled up with zeros.
inline void gather_ragged(const View& view, RaggedCells& cells, const Column& c, const ItemRef* items, size_t n, bool later,
                          uint8_t* out) {
  const uint32_t stack = c.windowed ? view.geometry().stack : 1;
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) cells.prefetch(items[i + kAhead].slot, items[i + kAhead].row + (later ? items[i + kAhead].span : 0));
    const uint32_t row = items[i].row + (later ? items[i].span : 0);
    const uint32_t earlier = stack == 1 ? 0 : std::min<uint32_t>(stack - 1, view.head(items[i].slot, row).age);
    for (uint32_t k = stack; k-- > 0; out += c.bytes) cells.read(items[i].slot, row - std::min(k, earlier), out);
  }
}
inline void gather_ragged(const View& view, const Column& c, const ItemRef* items, size_t n, bool later, uint8_t* out) {
  RaggedCells cells(view, c);
  gather_ragged(view, cells, c, items, n, later, out);
}

// A ragged column of sequences and unrolls: out [n, T (+ 1), (stack,) column]; zeros where an item has no row.
inline void gather_ragged_rows(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* out) {
  const Geometry& g = view.geometry();
  const size_t row_bytes = size_t(c.bytes) * (c.windowed ? g.stack : 1);
  const uint32_t total = g.burn_in + g.n_step + (c.windowed ? 1 : 0);
  RaggedCells cells(view, c);
  std::vector<ItemRef> rows(total);
  for (size_t i = 0; i < n; ++i) {
    const ItemRef& item = items[i];
    const uint32_t before = g.burn_in - item.burn_in, count = item.burn_in + item.span + (c.windowed ? 1 : 0);
    if (i + 1 < n)
      for (uint32_t k = 0; k < std::min(items[i + 1].span, 6u); ++k) cells.prefetch(items[i + 1].slot, items[i + 1].row + k);
    zeros_large(out, before * row_bytes);
    for (uint32_t k = 0; k < count; ++k) rows[k] = {item.slot, item.row - item.burn_in + k, 0, 0};
    gather_ragged(view, cells, c, rows.data(), count, false, out + before * row_bytes);
    zeros_large(out + (before + count) * row_bytes, (total - before - count) * row_bytes);
    out += total * row_bytes;
  }
}

inline void gather_column(const View& view, const Column& c, const ItemRef* items, size_t n, bool later,
                          uint8_t* out) {
  if (c.windowed && view.geometry().stack > 1) return gather_stacked(view, c, items, n, later, out);
  if (!later) return gather_plain(view, c, items, n, out);
  for (size_t i = 0; i < n; ++i, out += c.bytes)
    std::memcpy(out, view.cell(c, items[i].slot, items[i].row + items[i].span), c.bytes);
}

// A windowed column at each item and `span` steps later, item by item: the two share most of their frames.
inline void gather_both(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* now, uint8_t* later) {
  const size_t bytes = size_t(c.bytes) * view.geometry().stack;
  if (c.ragged) {
    gather_ragged(view, c, items, n, false, now);
    return gather_ragged(view, c, items, n, true, later);
  }
  for (size_t i = 0; i < n; ++i) {
    gather_column(view, c, items + i, 1, false, now + i * bytes);
    gather_column(view, c, items + i, 1, true, later + i * bytes);
  }
}

// m, the steps from `row` to its bootstrap observation: n, or fewer when the episode ends first (an unroll goes on).
// `rows`: rows written so far. 0: the bootstrap observation is not there yet.
inline uint32_t span_of(const View& view, uint32_t slot, uint32_t row, uint32_t rows) {
  const uint32_t n = view.geometry().n_step;
  if (view.geometry().kind == Kind::unroll) return row + n < rows ? n : 0;
  for (uint32_t k = 0; k < n; ++k) {
    if (row + k >= rows) return 0;
    const bool ends = flags_of(view.head(slot, row + k)) & (kTerminated | kTruncated);
    if (ends || k + 1 == n) return row + k + 1 < rows ? k + 1 : 0;
  }
  return 0;
}

// Burn-in rows of an item at `row`: within the episode (sequence) or the stream (unroll).
inline uint32_t burn_in_of(const View& view, uint32_t slot, uint32_t row) {
  const Geometry& g = view.geometry();
  if (g.burn_in == 0) return 0;
  if (g.kind == Kind::sequence) return std::min<uint32_t>(g.burn_in, view.head(slot, row).age);
  uint32_t burn_in = 0;
  while (burn_in < g.burn_in && !(flags_of(view.head(slot, row - burn_in - 1)) & kAbsent)) ++burn_in;
  return burn_in;
}

inline ItemRef item_at(const View& view, uint32_t slot, uint32_t row, uint32_t rows) {
  return {slot, row, span_of(view, slot, row, rows), burn_in_of(view, slot, row)};
}

// n-step return sum_{k<m} gamma^k r_{t+k} and discount gamma^m (1 - terminated) (Sutton & Barto, eq. 7.1; the
// discount is 0 only at a true termination, so truncation bootstraps).
inline void gather_returns(const View& view, const ItemRef* items, size_t n, double gamma, float* reward,
                           float* discount) {
  for (size_t i = 0; i < n; ++i) {
    double sum = 0.0, factor = 1.0;
    bool terminated = false;
    for (uint32_t k = 0; k < items[i].span; ++k) {
      const StepHead& head = view.head(items[i].slot, items[i].row + k);
      sum += factor * head.reward;
      factor *= gamma;
      terminated = flags_of(head) & kTerminated;
    }
    reward[i] = float(sum);
    discount[i] = terminated ? 0.0f : float(factor);
  }
}

// --- sequences and unrolls: T = burn_in + length rows an item, and one more of the windowed columns

// A column of n items: out [n, T (+ 1), (stack,) column]; zeros where an item has no row.
inline void gather_rows(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* out) {
  const Geometry& g = view.geometry();
  const bool stacked = c.windowed && g.stack > 1;
  const size_t row_bytes = size_t(c.bytes) * (stacked ? g.stack : 1);
  const uint32_t total = g.burn_in + g.n_step + (c.windowed ? 1 : 0);
  const size_t stride = view.stride(c);
  std::vector<ItemRef> rows(stacked ? total : 0);
  for (size_t i = 0; i < n; ++i) {
    const ItemRef& item = items[i];
    const uint32_t before = g.burn_in - item.burn_in, count = item.burn_in + item.span + (c.windowed ? 1 : 0);
    std::memset(out, 0, before * row_bytes);
    out += before * row_bytes;
    if (stacked) {
      for (uint32_t k = 0; k < count; ++k) rows[k] = {item.slot, item.row - item.burn_in + k, 0, 0};
      gather_stacked(view, c, rows.data(), count, false, out);
    } else {
      const uint8_t* from = view.cell(c, item.slot, item.row - item.burn_in);
      if (stride == c.bytes) {
        std::memcpy(out, from, count * row_bytes);
      } else {
        for (uint32_t k = 0; k < count; ++k) std::memcpy(out + k * row_bytes, from + k * stride, row_bytes);
      }
    }
    out += count * row_bytes;
    std::memset(out, 0, (total - before - count) * row_bytes);
    out += (total - before - count) * row_bytes;
  }
}

// A per-item column: out [n, column].
inline void gather_cells(const View& view, const Column& c, const ItemRef* items, size_t n, uint8_t* out) {
  const uint32_t last = std::max(view.geometry().cells, 1u) - 1;
  for (size_t i = 0; i < n; ++i, out += c.bytes) {
    const uint32_t cell = std::min<uint32_t>(cell_of(view.head(items[i].slot, items[i].row)), last);
    std::memcpy(out, view.cell(c, items[i].slot, cell), c.bytes);
  }
}

// A column of n items, in the shape that their kind has; `later`: (transition) its value `span` steps later.
inline void gather_any(const View& view, const Column& c, const ItemRef* items, size_t n, bool later, uint8_t* out) {
  const Kind kind = view.geometry().kind;
  if (c.per_item) return gather_cells(view, c, items, n, out);
  const bool windows = kind == Kind::sequence || kind == Kind::unroll;
  if (windows) return c.ragged ? gather_ragged_rows(view, c, items, n, out) : gather_rows(view, c, items, n, out);
  if (c.ragged) return gather_ragged(view, c, items, n, later, out);
  gather_column(view, c, items, n, later, out);
}

// Rewards, discounts and flags of the steps of n items: out [n, T] (first: [n, T + 1]). discount = gamma (1 -
// terminated); mask: a step was taken here; first: an episode begins here.
inline void gather_steps(const View& view, const ItemRef* items, size_t n, float* reward, float* discount,
                         uint8_t* mask, uint8_t* first) {
  const Geometry& g = view.geometry();
  const uint32_t total = g.burn_in + g.n_step;
  std::fill_n(reward, n * total, 0.0f);
  std::fill_n(discount, n * total, 0.0f);
  std::fill_n(mask, n * total, uint8_t(0));
  std::fill_n(first, n * (total + 1), uint8_t(0));
  for (size_t i = 0; i < n; ++i) {
    const ItemRef& item = items[i];
    const size_t before = g.burn_in - item.burn_in;
    for (uint32_t k = 0; k <= item.burn_in + item.span; ++k) {
      const StepHead& head = view.head(item.slot, item.row - item.burn_in + k);
      const uint8_t flags = flags_of(head);
      const bool step = !(flags & kFinal);
      first[i * (total + 1) + before + k] = step && head.age == 0;
      if (k == item.burn_in + item.span) break;
      reward[i * total + before + k] = head.reward;
      discount[i * total + before + k] = step && !(flags & kTerminated) ? float(g.gamma) : 0.0f;
      mask[i * total + before + k] = step;
    }
  }
}

}  // namespace apexrl
