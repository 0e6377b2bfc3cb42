// Items by their keys: listed in order, weighed anew, deleted, and changed. The Owner holds its mutex around it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "book.h"
#include "crash.h"

namespace apexrl {

// The keys of all items, chunk by chunk, oldest first; what is still being written comes last.
inline std::vector<uint64_t> keys_in_order(const View& view, const Book& book) {
  const Geometry& g = view.geometry();
  std::vector<uint64_t> keys;
  keys.reserve(book.store.items());
  for (const uint32_t s : book.filled()) {
    const Store::SlotView& slot = book.store.slots[s];
    const uint32_t first = g.sampler == Sampler::fifo ? view.meta(s).consumed.load(std::memory_order_relaxed) : 0;
    for (uint32_t p = first; p < slot.visible; ++p)
      if (!std::signbit(view.leaves(s)[p])) keys.push_back(view.key(s, p, slot.generation));
  }
  return keys;
}

// Writes powered priorities; items that have gone, and those of a fifo, are left alone. Answers how many there were, and
// the largest.
inline size_t weigh_items(const View& view, Store& store, const uint64_t* keys, const double* powered, size_t n,
                          double& largest) {
  const Geometry g = view.geometry();  // a copy: stores to leaves cannot change it
  const uint64_t offset_mask = (uint64_t(1) << g.offset_bits) - 1, slot_mask = (uint64_t(1) << g.slot_bits) - 1;
  const uint64_t generation_mask = ~uint64_t(0) >> (g.offset_bits + g.slot_bits);
  const Store::SlotView* known = store.slots.data();
  const double* leaves = view.leaves();
  size_t applied = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + 8 < n) {
      const uint64_t ahead = std::min<uint64_t>(keys[i + 8] >> g.offset_bits & slot_mask, g.slots - 1);
      __builtin_prefetch(known + ahead);
      __builtin_prefetch(leaves + ahead * g.leaves + (keys[i + 8] & offset_mask), 1);
    }
    const uint64_t offset = keys[i] & offset_mask, slot = keys[i] >> g.offset_bits & slot_mask;
    const uint64_t generation = keys[i] >> (g.offset_bits + g.slot_bits);
    if (slot >= g.slots || offset >= known[slot].visible || (known[slot].generation & generation_mask) != generation ||
        std::signbit(leaves[slot * g.leaves + offset]) || g.sampler == Sampler::fifo)
      continue;
    store.set_priority(slot * g.leaves + offset, powered[i]);
    largest = std::max(largest, powered[i]);
    ++applied;
  }
  store.tree.propagate();
  return applied;
}

// Removes the items of keys; those that have gone already are left alone. Answers how many were there.
inline size_t delete_items(const View& view, Store& store, const uint64_t* keys, size_t n) {
  size_t deleted = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t leaf = store.leaf_of(keys[i]);
    if (leaf < 0) continue;
    store.take_out(size_t(leaf));
    ++deleted;
  }
  store.tree.propagate();
  view.header().deleted.fetch_add(deleted, std::memory_order_relaxed);
  view.header().items.store(store.items(), std::memory_order_release);
  return deleted;
}

// A column and its new values, one of column.bytes for each key.
struct NewValues {
  const Column* column;
  const uint8_t* values;
};

// Writes new values of some columns: of the item's own row, or its cell. Answers how many items were there.
//
// While an item is being changed, shared memory says that there is none: should this process die, its successor finds
// one item less, and none that is half of each.
inline size_t change_items(const View& view, Store& store, const uint64_t* keys, size_t n,
                           const std::vector<NewValues>& news) {
  const Geometry& g = view.geometry();
  size_t changed = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t leaf = store.leaf_of(keys[i]);
    if (leaf < 0) continue;
    const uint32_t slot = uint32_t(uint64_t(leaf) / g.leaves), row = g.behind + uint32_t(uint64_t(leaf) % g.leaves);
    volatile double& staged = view.staged(0)[leaf];
    const double before = staged;
    APEXRL_POINT();
    staged = -1.0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    APEXRL_POINT();
    for (const NewValues& one : news) {
      const uint32_t bytes = one.column->bytes;
      const uint32_t at = one.column->per_item ? std::min<uint32_t>(cell_of(view.head(slot, row)), std::max(g.cells, 1u) - 1) : row;
      std::memcpy(view.cell(*one.column, slot, at), one.values + i * bytes, bytes);
      APEXRL_POINT();
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);
    staged = before;
    store.note_rewrite(slot);
    ++changed;
  }
  return changed;
}

}  // namespace apexrl
