// Blocks of ragged values: a worker claims them for its slots, the owner frees those of a slot with the slot.
//
// A slot's blocks form a chain, from its word `chain` on. A block is named by the last link before it is claimed, and is
// the slot's when its head says so, by a compare-exchange. So whoever dies in between, the chain up to the first block
// of somebody else is what the slot has. A chain is freed from its end: its beginning stays a chain.
#pragma once

#include <memory>
#include <vector>

#include "ragged.h"
#include "segment.h"

namespace apexrl {

// Frees a slot's blocks. Only its owner calls it, for a slot that is free.
inline void free_blocks(const View& view, uint32_t slot, std::vector<uint32_t>& scratch) {
  const Geometry& g = view.geometry();
  auto& first = view.chain(slot);
  uint32_t next = first.load(std::memory_order_acquire);
  if (next == 0) return;
  scratch.clear();
  while (next != 0 && next <= g.blocks && scratch.size() < g.slot_blocks) {
    const BlockHead& head = view.block(next - 1);
    if (head.slot.load(std::memory_order_acquire) != slot + 1) break;  // named, and not claimed
    scratch.push_back(next - 1);
    next = head.next.load(std::memory_order_acquire);
  }
  uint32_t lowest = UINT32_MAX;
  for (size_t i = scratch.size(); i-- > 0;) {
    BlockHead& head = view.block(scratch[i]);
    head.next.store(0, std::memory_order_relaxed);
    head.slot.store(0, std::memory_order_release);
    lowest = std::min(lowest, scratch[i]);
  }
  first.store(0, std::memory_order_release);
  if (lowest == UINT32_MAX) return;
  auto& hint = view.header().free_block;
  uint64_t seen = hint.load(std::memory_order_relaxed), now;
  do {  // counted: a worker that looked for a free block meanwhile may have passed these
    now = ((seen >> 32) + 1) << 32 | std::min<uint64_t>(seen & 0xffffffff, lowest);
  } while (!hint.compare_exchange_weak(seen, now, std::memory_order_acq_rel));
}

// A predecessor may have died before it said which blocks it had freed.
inline void search_all_blocks(const View& view) {
  auto& hint = view.header().free_block;
  uint64_t seen = hint.load(std::memory_order_relaxed);
  while (!hint.compare_exchange_weak(seen, ((seen >> 32) + 1) << 32)) {}
}

// For tests, while no worker writes: whether the chains of all slots hold every block that is not free, once.
inline bool blocks_close(const View& view) {
  const Geometry& g = view.geometry();
  uint64_t chained = 0, taken = 0;
  const uint64_t touched = std::min(view.header().blocks_touched.load(), g.blocks);
  for (uint64_t b = 0; b < touched; ++b) taken += view.block(b).slot.load() != 0;
  for (uint32_t s = 0; g.blocks > 0 && s < g.slots; ++s)
    for (uint32_t next = view.chain(s).load(); next != 0 && next <= g.blocks && view.block(next - 1).slot.load() == s + 1; ++chained) {
      if (chained > taken) return false;
      next = view.block(next - 1).next.load();
    }
  return chained == taken;
}

// What a worker writes ragged values through. One thread at a time; no call waits.
class Blocks {
 public:
  explicit Blocks(std::shared_ptr<Segment> segment)
      : columns(ragged_columns(View(segment->data()))), segment_(std::move(segment)), view_(segment_->data()) {}

  const std::vector<RaggedColumn> columns;  // the ragged ones

  // Makes room for so many bytes from `end` on. False: there is none now.
  bool reserve(uint32_t slot, BlockEnd end, uint64_t bytes) {
    const uint32_t room = block_room(view_.geometry());
    uint64_t there = end.block == 0 ? 0 : room - end.used;
    while (there < bytes) {
      const uint32_t next = following(slot, end.block);
      end.block = next != 0 ? next : claim(slot, end.block);
      if (end.block == 0) return false;
      there += room;
    }
    return true;
  }

  // Of a row's values, as a caller gives them: row `i` of all columns.
  uint64_t bytes_of(const uint8_t* const* from, size_t i) const {
    uint64_t bytes = 0;
    for (const RaggedColumn& c : columns) bytes += given(c, from, i);
    return bytes;
  }
  // Writes them into room that was reserved.
  void write_row(uint32_t slot, uint32_t row, BlockEnd& end, const uint8_t* const* from, size_t i) {
    for (const RaggedColumn& c : columns) write(slot, row, c, end, from[c.number] + i * c.bytes, given(c, from, i));
  }
  // Of one column, so many bytes.
  void write(uint32_t slot, uint32_t row, const Column& c, BlockEnd& end, const uint8_t* from, uint32_t bytes) {
    name(slot, row, c, end, bytes);
    append(slot, end, from, bytes);
  }
  // A row's values from a row of another slot.
  void copy_row(uint32_t slot, uint32_t row, BlockEnd& end, uint32_t from_slot, uint32_t from_row) {
    for (const Column& c : columns) {
      name(slot, row, c, end, ragged_bytes(view_, c, from_slot, from_row));
      uint32_t left = 0;
      each_piece(view_, c, from_slot, from_row, left, [&](const uint8_t* bytes, uint32_t n) { append(slot, end, bytes, n); });
    }
  }
  // Makes a row empty that will hold no step.
  void clear_row(uint32_t slot, uint32_t row) {
    for (const Column& c : columns) {
      std::memset(view_.cell(c, slot, row), 0, sizeof(uint64_t));
      std::memset(view_.cell(view_.header().column[c.ragged - 1], slot, row), 0, sizeof(int32_t));
    }
  }

  // Behind the last value of rows [0, rows) of a slot, whose worker is another one.
  BlockEnd end_of(uint32_t slot, uint32_t rows) const {
    BlockEnd end;
    for (uint32_t row = rows; row-- > 0 && end.block == 0;)
      for (size_t k = columns.size(); k-- > 0 && end.block == 0;) {
        uint32_t left = 0;
        end = each_piece(view_, columns[k], slot, row, left, [](const uint8_t*, uint32_t) {});
      }
    return end;
  }

 private:
  Header& header() const { return view_.header(); }

  static uint32_t given(const RaggedColumn& c, const uint8_t* const* from, size_t i) {
    int32_t length;
    std::memcpy(&length, from[c.lengths()] + i * sizeof length, sizeof length);
    return ragged_bytes(c, length);
  }

  Shared<uint32_t>& link(uint32_t slot, uint32_t block) const {
    return block == 0 ? view_.chain(slot) : view_.block(block - 1).next;
  }
  // The slot's block behind `block`, + 1; 0: none.
  uint32_t following(uint32_t slot, uint32_t block) const {
    const uint32_t next = link(slot, block).load(std::memory_order_relaxed);
    return next != 0 && next <= view_.geometry().blocks && view_.block(next - 1).slot.load(std::memory_order_relaxed) == slot + 1 ? next : 0;
  }

  void name(uint32_t slot, uint32_t row, const Column& c, BlockEnd& end, uint32_t bytes) {
    uint64_t at = 0;
    if (bytes > 0) {
      advance(slot, end);
      at = uint64_t(end.block - 1) << 16 | end.used;
    }
    std::memcpy(view_.cell(c, slot, row), &at, sizeof at);
  }
  void append(uint32_t slot, BlockEnd& end, const uint8_t* from, uint32_t bytes) {
    const uint32_t room = block_room(view_.geometry());
    while (bytes > 0) {
      advance(slot, end);
      const uint32_t n = std::min(bytes, room - end.used);
      copy_large(view_.block_bytes(end.block - 1) + end.used, from, n);
      end.used += n;
      from += n;
      bytes -= n;
    }
  }
  void advance(uint32_t slot, BlockEnd& end) const {
    if (end.block != 0 && end.used < block_room(view_.geometry())) return;
    const uint32_t next = following(slot, end.block);
    if (next == 0) throw std::logic_error("ragged values without room");
    end = {next, 0};
  }

  // The lowest free block, + 1, which becomes the slot's; 0: none. `last`: of its blocks so far.
  uint32_t claim(uint32_t slot, uint32_t last) {
    Header& h = header();
    const uint64_t blocks = view_.geometry().blocks;
    auto& named = link(slot, last);
    uint64_t seen = h.free_block.load(std::memory_order_acquire);
    for (uint64_t b = seen & 0xffffffff; b < blocks; ++b) {
      if (b >= h.blocks_committed.load(std::memory_order_acquire) && !commit(b + 1)) break;
      BlockHead& head = view_.block(b);
      if (head.slot.load(std::memory_order_relaxed) != 0) continue;
      uint64_t touched = h.blocks_touched.load(std::memory_order_relaxed);
      while (touched <= b && !h.blocks_touched.compare_exchange_weak(touched, b + 1)) {}
      named.store(uint32_t(b) + 1, std::memory_order_release);  // said before the claim: see free_blocks
      uint32_t none = 0;
      if (!head.slot.compare_exchange_strong(none, slot + 1, std::memory_order_acq_rel)) continue;
      h.free_block.compare_exchange_strong(seen, (seen >> 32) << 32 | (b + 1), std::memory_order_acq_rel);
      return uint32_t(b) + 1;
    }
    named.store(0, std::memory_order_release);
    h.blocks_short.store(1, std::memory_order_release);
    return 0;
  }

  // As grown_to (growth.h), of blocks.
  bool commit(uint64_t to) {
    Header& h = header();
    const Geometry& g = view_.geometry();
    uint64_t there = h.blocks_committed.load(std::memory_order_acquire), want = std::min<uint64_t>(std::max(to, there + (1 << 20) / g.block), g.blocks);
    const auto commits = [&] { return segment_->commit(g.blocks_at + g.block * there, g.blocks_at + g.block * want); };
    bool grown = commits();
    if (!grown) {
      want = to;
      grown = commits();
    }
    if (!grown) {
      h.growth_refused.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    while (there < want && !h.blocks_committed.compare_exchange_weak(there, want)) {}
    return true;
  }

  std::shared_ptr<Segment> segment_;
  View view_;
};

}  // namespace apexrl
