// Values of ragged columns: bytes in the blocks of their slot, one row's after the other's. A row's record holds the length
// (the length column) and where the first byte lies: block << 16 | offset in it. A compressed column is a ragged one of
// bytes: values are as long as their compressed form, and whoever gathers them gets them as they were.
//
// All words are looked at twice: a process that does not belong to the replay may have written them.
#pragma once

#include <cstring>
#include <vector>

#include "compression.h"
#include "stream_copy.h"
#include "view.h"

namespace apexrl {

// Where the next byte of a slot comes to lie.
struct BlockEnd {
  uint32_t block = 0;  // + 1; 0: the slot has none yet
  uint32_t used = 0;   // of its bytes
};

struct RaggedColumn : Column {
  uint32_t number;  // among all columns
  uint32_t lengths() const { return ragged - 1; }
};

// The ragged columns of a replay, in order.
inline std::vector<RaggedColumn> ragged_columns(const View& view) {
  std::vector<RaggedColumn> all;
  for (uint32_t c = 0; c < view.geometry().columns; ++c)
    if (view.header().column[c].ragged != 0) all.push_back({view.header().column[c], c});
  return all;
}

// Bytes of so many elements; no more than the column has at its most.
inline uint32_t ragged_bytes(const Column& c, int32_t length) {
  const uint64_t bytes = uint64_t(std::max(length, 0)) * c.unit;
  return uint32_t(std::min<uint64_t>(bytes, c.bytes));
}
inline uint32_t ragged_bytes(const View& view, const Column& c, uint32_t slot, uint32_t row) {
  int32_t length;
  std::memcpy(&length, view.cell(view.header().column[c.ragged - 1], slot, row), sizeof length);
  return ragged_bytes(c, length);
}
// Of all ragged columns of rows [from, to).
inline uint64_t ragged_bytes(const View& view, const std::vector<RaggedColumn>& ragged, uint32_t slot, uint32_t from, uint32_t to) {
  uint64_t bytes = 0;
  for (const RaggedColumn& c : ragged)
    for (uint32_t row = from; row < to; ++row) bytes += ragged_bytes(view, c, slot, row);
  return bytes;
}

// Whether so many bytes are a value of a column: of one that is not compressed any are.
inline bool sound_value(const Column& c, const uint8_t* value, uint32_t bytes, std::vector<uint8_t>& scratch) {
  if (!c.compressed) return true;
  scratch.resize(c.bytes);
  return decompress(value, bytes, scratch.data(), c.bytes);
}

// Calls piece(bytes, n) for the pieces of a row's value. Answers where it ends, and what it left out as no block is there.
template <typename Piece>
inline BlockEnd each_piece(const View& view, const Column& c, uint32_t slot, uint32_t row, uint32_t& left, Piece&& piece) {
  const uint32_t room = block_room(view.geometry());
  const uint64_t blocks = view.geometry().blocks;
  left = ragged_bytes(view, c, slot, row);
  if (left == 0) return {};
  uint64_t at;
  std::memcpy(&at, view.cell(c, slot, row), sizeof at);
  uint64_t block = at >> 16;
  uint32_t offset = std::min(uint32_t(at & 0xffff), room);
  for (;;) {
    if (block >= blocks) return {};
    const uint32_t n = std::min(left, room - offset);
    piece(view.block_bytes(block) + offset, n);
    left -= n;
    if (left == 0) return {uint32_t(block) + 1, offset + n};
    offset = 0;
    block = uint64_t(view.block(block).next.load(std::memory_order_relaxed)) - 1;  // none: beyond all
  }
}

// A row's bytes to `out`; zeros up to `padded`.
inline void read_ragged(const View& view, const Column& c, uint32_t slot, uint32_t row, uint8_t* out, size_t padded) {
  uint8_t* const end = out + padded;
  uint32_t left = 0;
  each_piece(view, c, slot, row, left, [&](const uint8_t* bytes, uint32_t n) {
    copy_large(out, bytes, n);
    out += n;
  });
  zeros_large(out, size_t(end - out));
}

// The same for the rows of many slots: what does not change is read once.
class RaggedCells {
 public:
  RaggedCells(const View& view, const Column& c)
      : view_(view), column_(c), place_(view.cell(c, 0, 0)), length_(view.cell(view.header().column[c.ragged - 1], 0, 0)),
        blocks_(reinterpret_cast<const uint8_t*>(&view.block(0))), slot_bytes_(view.geometry().slot_bytes), record_(view.geometry().record),
        count_(view.geometry().blocks), block_(view.geometry().block), room_(block_room(view.geometry())) {}

  // Has the first lines of a row's value fetched.
  void prefetch(uint32_t slot, uint32_t row) const {
    const uint64_t at = place(slot, row);
    const uint8_t* first = blocks_ + std::min(at >> 16, count_ - 1) * block_ + sizeof(BlockHead) + (at & 0xffff);
    for (uint32_t line = 0, n = std::min(bytes(slot, row), 512u); line < n; line += 64) __builtin_prefetch(first + line);
  }

  // As read_ragged, up to the longest; of a compressed column the value as it was.
  void read(uint32_t slot, uint32_t row, uint8_t* out) {
    const uint64_t at = place(slot, row);
    const uint32_t n = bytes(slot, row), offset = uint32_t(at & 0xffff);
    const bool whole = offset + n <= room_ && at >> 16 < count_;
    const uint8_t* from = blocks_ + (at >> 16) * block_ + sizeof(BlockHead) + offset;
    if (column_.compressed) {
      if (!whole) {
        pieces_.resize(column_.bytes);
        read_ragged(view_, column_, slot, row, pieces_.data(), column_.bytes);  // by now it may be longer than n
        from = pieces_.data();
      }
      decompress(from, n, out, column_.bytes);
      return;
    }
    if (!whole) return read_ragged(view_, column_, slot, row, out, column_.bytes);
    copy_large(out, from, n);
    zeros_large(out + n, column_.bytes - n);
  }

 private:
  uint64_t place(uint32_t slot, uint32_t row) const {
    uint64_t at;
    std::memcpy(&at, place_ + slot_bytes_ * slot + record_ * row, sizeof at);
    return at;
  }
  uint32_t bytes(uint32_t slot, uint32_t row) const {
    int32_t length;
    std::memcpy(&length, length_ + slot_bytes_ * slot + record_ * row, sizeof length);
    return ragged_bytes(column_, length);
  }

  const View view_;
  const Column column_;
  const uint8_t *place_, *length_, *blocks_;
  const size_t slot_bytes_, record_;
  const uint64_t count_;
  const uint32_t block_, room_;
  std::vector<uint8_t> pieces_;  // of a compressed value in several blocks
};

}  // namespace apexrl
