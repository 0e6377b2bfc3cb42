// Chunks sent between hosts: consecutive item positions of one slot, with the rows before and after that their windows
// need, as self-contained bytes.
//
//   heads [rows] | priorities after eps and alpha [positions], -1: no item | columns: [rows, bytes], or per item [cells, bytes]
//   | ragged columns: the rows' values one after the other, as long as their length column says
#pragma once

#include <cmath>
#include <deque>
#include <vector>

#include "gather.h"
#include "view.h"
#include "zeroed.h"

namespace apexrl {

constexpr size_t kMostChunks = 4096;  // in a frame

struct ChunkHead {
  uint64_t source;     // lane << 32 | stream of the writing host
  uint64_t slot_generation;       // slot << 24 | the low bits of its generation there
  uint32_t first;      // item position in that slot
  uint32_t positions;
  uint32_t rows;       // behind + positions + what the last window needs
  uint32_t cells;      // per-item values
  uint32_t items;
  uint64_t bytes;      // of the body

  bool operator==(const ChunkHead&) const = default;
};

// Without ragged values.
inline uint64_t chunk_bytes(const View& view, uint64_t rows, uint64_t positions, uint64_t cells) {
  uint64_t bytes = rows * sizeof(StepHead) + positions * sizeof(double);
  for (uint32_t c = 0; c < view.geometry().columns; ++c) {
    const Column& column = view.header().column[c];
    if (!column.ragged) bytes += (column.per_item ? cells : rows) * column.bytes;
  }
  return bytes;
}

// The ragged values of a chunk's body: where each column's begin, and how long each row's are.
class RaggedBody {
 public:
  // The body has at least chunk_bytes().
  RaggedBody(const View& view, const std::vector<RaggedColumn>& columns, const ChunkHead& c, const uint8_t* body)
      : columns_(columns), lengths_(columns.size()), at_(columns.size()) {
    for (size_t k = 0; k < columns.size(); ++k) {
      lengths_[k] = body + c.rows * sizeof(StepHead) + c.positions * sizeof(double);
      for (uint32_t i = 0; i < columns[k].lengths(); ++i) {
        const Column& before = view.header().column[i];
        if (!before.ragged) lengths_[k] += size_t(before.per_item ? c.cells : c.rows) * before.bytes;
      }
    }
    const uint8_t* next = body + chunk_bytes(view, c.rows, c.positions, c.cells);
    for (size_t k = 0; k < columns.size(); ++k) {
      at_[k] = next;
      for (uint32_t row = 0; row < c.rows; ++row) {
        const int64_t elements = length(k, row);
        fits_ = fits_ && elements >= 0 && uint64_t(elements) * columns[k].unit <= columns[k].bytes;
        bytes_ += row_bytes(k, row);
        next += row_bytes(k, row);
      }
    }
  }
  // Whether each is within its field.
  bool fits() const { return fits_; }
  uint64_t bytes() const { return bytes_; }

  // Of rows [from, to), of all columns.
  uint64_t bytes(uint32_t from, uint32_t to) const {
    uint64_t bytes = 0;
    for (size_t k = 0; k < columns_.size(); ++k)
      for (uint32_t row = from; row < to; ++row) bytes += row_bytes(k, row);
    return bytes;
  }
  // Calls row(k, r, value, n) for the values of rows [from, to), row after row.
  template <typename Row>
  void each_row(uint32_t from, uint32_t to, Row&& each) const {
    std::vector<const uint8_t*> at = at_;
    for (uint32_t row = 0; row < to; ++row)
      for (size_t k = 0; k < at.size(); ++k) {
        const uint32_t n = row_bytes(k, row);
        if (row >= from) each(columns_[k], row, at[k], n);
        at[k] += n;
      }
  }

 private:
  int32_t length(size_t k, uint32_t row) const {
    int32_t length;
    std::memcpy(&length, lengths_[k] + size_t(row) * sizeof length, sizeof length);
    return length;
  }
  uint32_t row_bytes(size_t k, uint32_t row) const { return ragged_bytes(columns_[k], length(k, row)); }

  const std::vector<RaggedColumn>& columns_;
  std::vector<const uint8_t*> lengths_, at_;
  uint64_t bytes_ = 0;
  bool fits_ = true;
};

// Positions [first, to) of a slot, all complete and the last an item.
inline ChunkHead describe_chunk(const View& view, uint32_t slot, uint32_t first, uint32_t to) {
  const Geometry& g = view.geometry();
  const double* staged = view.staged(slot);
  const SlotWord word = SlotWord::unpack(view.meta(slot).word.load(std::memory_order_acquire));
  const uint32_t last = g.behind + to - 1;
  ChunkHead chunk{uint64_t(word.lane) << 32 | view.meta(slot).stream.load(std::memory_order_relaxed),
                  uint64_t(slot) << 24 | (word.generation & 0xffffff), first, to - first,
                  last + span_of(view, slot, last, g.rows) + 1 - first, 0, 0, 0};
  for (uint32_t p = first; p < to; ++p) chunk.items += staged[p] >= 0.0;
  chunk.cells = g.cells > 0 ? chunk.items : 0;
  chunk.bytes = chunk_bytes(view, chunk.rows, chunk.positions, chunk.cells);
  if (g.blocks > 0) chunk.bytes += ragged_bytes(view, ragged_columns(view), slot, first, first + chunk.rows);
  return chunk;
}

// The chunk that begins at the first item of positions [first, to), of at most `most` bytes where one item does not need
// more. It has no items where they have none.
inline ChunkHead first_chunk(const View& view, uint32_t slot, uint32_t first, uint32_t to, uint64_t most) {
  const Geometry& g = view.geometry();
  const double* staged = view.staged(slot);
  const auto end_with_item = [&](uint32_t least) {
    while (to > least && !(staged[to - 1] >= 0.0)) --to;
  };
  while (first < to && !(staged[first] >= 0.0)) ++first;
  end_with_item(first);
  if (first >= to) return {};
  const uint64_t repeated = chunk_bytes(view, uint64_t(g.behind) + g.ahead, 0, 0);
  const uint64_t fit = std::clamp<uint64_t>(most > repeated ? (most - repeated) / chunk_bytes(view, 1, 1, 1) : 0, 1, 65535);
  if (to - first > fit) {
    to = first + uint32_t(fit);
    end_with_item(first + 1);
  }
  ChunkHead chunk = describe_chunk(view, slot, first, to);
  while (g.blocks > 0 && chunk.bytes > most && chunk.items > 1) {  // its ragged values are longer than that
    to = first + std::max(1u, (to - first) / 2);
    end_with_item(first + 1);
    chunk = describe_chunk(view, slot, first, to);
  }
  return chunk;
}

// The body, at `out`.
inline void write_chunk(const View& view, uint32_t slot, const ChunkHead& chunk, uint8_t* out) {
  const Geometry& g = view.geometry();
  const double* staged = view.staged(slot) + chunk.first;
  uint32_t cell = 0, first_cell = 0;
  const uint8_t* row = view.record(slot, chunk.first);
  const size_t record = g.record, behind = g.behind, cells = g.cells;  // stores to `out` cannot change them
  const auto put = [&](bool starts) {  // the next row, in which an item starts or none
    const StepHead& here = *reinterpret_cast<const StepHead*>(row);
    StepHead head{here.reward, uint8_t((flags_of(here) & ~kItem) | (starts ? kItem : 0)), here.age, 0};
    if (starts && cells > 0) {
      if (cell == 0) first_cell = uint32_t(std::min<size_t>(cell_of(here), cells - std::min<size_t>(cells, chunk.cells)));
      head.cell = uint16_t(cell++);
    }
    if (head.flags & kAbsent) head = StepHead{0.0f, kAbsent, 0, 0};  // none begins there
    std::memcpy(out, &head, sizeof head);
    row += record;
    out += sizeof head;
  };
  for (size_t r = 0; r < behind; ++r) put(false);
  for (uint32_t p = 0; p < chunk.positions; ++p) put(staged[p] >= 0.0);
  for (size_t r = behind + chunk.positions; r < chunk.rows; ++r) put(false);
  for (uint32_t p = 0; p < chunk.positions; ++p, out += sizeof(double)) {
    const double value = staged[p] >= 0.0 ? staged[p] : -1.0;
    std::memcpy(out, &value, sizeof value);
  }
  for (uint32_t c = 0; c < g.columns; ++c) {
    const Column& column = view.header().column[c];
    const uint32_t n = column.per_item ? chunk.cells : chunk.rows;
    if (n == 0 || column.ragged) continue;
    const uint8_t* from = view.cell(column, slot, column.per_item ? first_cell : chunk.first);
    const size_t stride = view.stride(column);
    if (stride == column.bytes) {
      std::memcpy(out, from, size_t(n) * column.bytes);
    } else {
      copy_rows(out, column.bytes, from, stride, column.bytes, n);
    }
    out += size_t(n) * column.bytes;
  }
  if (g.blocks == 0) return;
  for (const RaggedColumn& c : ragged_columns(view))
    for (uint32_t row = chunk.first; row < chunk.first + chunk.rows; ++row) {
      const uint32_t n = ragged_bytes(view, c, slot, row);
      read_ragged(view, c, slot, row, out, n);
      out += n;
    }
}

// The slots with items that were not sent yet, oldest first, in a replay that feeds another host.
class Outbox {
 public:
  explicit Outbox(const View& view) : view_(view), waits_(view.geometry().slots) {}

  // The slot has items beyond its consumed prefix.
  void add(uint32_t slot, int64_t now) {
    if (waits_[slot]) return;
    waits_[slot] = 1;
    waiting_.push_back({slot, now});
  }

  // The first slot that nobody writes any more, or whose items have waited for `linger` ns; or -1.
  int64_t ready(int64_t now, int64_t linger) const {
    for (const auto& [slot, since] : waiting_) {
      const SlotWord word = SlotWord::unpack(view_.meta(slot).word.load(std::memory_order_acquire));
      if (word.state != SlotState::leased || now - since >= linger) return slot;
    }
    return -1;
  }

  // Nothing of it waits any more.
  void remove(uint32_t slot) {
    waits_[slot] = 0;
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return one.slot == slot; }));
  }

 private:
  struct Waiting {
    uint32_t slot;
    int64_t since;
  };
  View view_;
  std::deque<Waiting> waiting_;
  Zeroed<uint8_t> waits_;  // per slot
};

}  // namespace apexrl
