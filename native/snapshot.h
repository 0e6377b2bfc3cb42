// A copy of a replay while it is in use: block by block, under the owner's mutex.
#pragma once

#include <utility>
#include <vector>

#include "book.h"
#include "rng.h"

namespace apexrl {

// One slot in a snapshot; its rows and leaves follow. Where age counts, its priorities and youths instead of leaves.
struct SnapshotEntry {
  uint32_t slot, visible;
  uint64_t generation;
  uint32_t order, stream;
  uint32_t consumed, unused;
};
inline size_t snapshot_entry_bytes(const Geometry& g) {
  return sizeof(SnapshotEntry) + g.slot_bytes + (decays(g) ? 2 : 1) * g.leaves * sizeof(double);
}

// The state of a copy: the slots oldest first, then those still being written; and the counters when it began.
struct Snapshot {
  struct Slot {
    uint32_t slot, visible;
    uint64_t generation;
  };
  uint64_t inserted = 0, sampled = 0, evicted = 0, batches = 0;
  double largest = 0.0;
  std::pair<Rng, Rng> rng{Rng(0), Rng(0)};

  const std::vector<Slot>& slots() const { return slots_; }

  void begin(const View& view, const Book& book) {
    copied_.assign(view.geometry().slots, 0);
    list_slots(book);
    const Header& h = view.header();
    inserted = h.absorbed.load();
    sampled = h.sampled.load();
    evicted = h.evicted.load();
    largest = max_priority(h);
  }

  // Copies slots into `out`, one entry after the other, as many as fit. A slot that was evicted before it could be copied
  // is left out, and what came in its place is copied at the end. `drain` takes in what workers published; false from it
  // ends the copy: the owner has yielded.
  template <typename Drain>
  bool copy(const View& view, const Book& book, uint8_t* out, size_t bytes, size_t& written, Drain&& drain) {
    const Geometry& g = view.geometry();
    const size_t entry_bytes = snapshot_entry_bytes(g);
    for (;; ++next_) {
      if (next_ == slots_.size()) {
        if (!missed_ || passes_ == 3) break;
        ++passes_;
        if (!drain()) return false;
        list_slots(book);
        if (slots_.empty()) break;
      }
      if (bytes < entry_bytes) break;
      const Slot& wanted = slots_[next_];
      const auto& now = book.store.slots[wanted.slot];
      if (now.generation != wanted.generation || now.visible < wanted.visible) {
        missed_ = true;
        continue;
      }
      const uint32_t consumed = std::min(view.meta(wanted.slot).consumed.load(), wanted.visible);
      const SnapshotEntry entry{wanted.slot, wanted.visible, wanted.generation, ++order_, stream_group(view, wanted.slot), consumed, 0};
      std::memcpy(out, &entry, sizeof entry);
      out += sizeof entry;
      std::memcpy(out, view.slot(wanted.slot), g.slot_bytes);
      out += g.slot_bytes;
      double* leaves = reinterpret_cast<double*>(out);
      std::fill_n(leaves, g.leaves, 0.0);
      std::copy_n(decays(g) ? view.staged(wanted.slot) : view.leaves(wanted.slot), wanted.visible, leaves);
      out += g.leaves * sizeof(double);
      if (decays(g)) {
        std::memset(out, 0, g.leaves * sizeof(double));
        std::memcpy(out, view.youths(wanted.slot), wanted.visible * sizeof(double));
        out += g.leaves * sizeof(double);
      }
      bytes -= entry_bytes;
      copied_[wanted.slot] = wanted.generation + 1;
      ++written;
    }
    return true;
  }

 private:
  // The slots that hold items which were not copied yet.
  void list_slots(const Book& book) {
    slots_.clear();
    next_ = 0;
    missed_ = false;
    for (const uint32_t s : book.filled()) {
      const auto& now = book.store.slots[s];
      if (copied_[s] != now.generation + 1) slots_.push_back({s, now.visible, now.generation});
    }
  }

  std::vector<Slot> slots_;
  std::vector<uint64_t> copied_;  // per slot: generation + 1 of what was copied, or 0
  size_t next_ = 0;
  uint32_t order_ = 0;            // entries so far
  bool missed_ = false;           // some were evicted before they were copied
  int passes_ = 1;
};

}  // namespace apexrl
