// A copy of a replay while it is in use: block by block, under the owner's mutex.
#pragma once

#include <utility>
#include <vector>

#include "book.h"
#include "rng.h"

namespace apexrl {

// One slot in a snapshot; its rows and leaves follow. Where age counts, its priorities and youths instead of leaves. At the
// end its ragged values, row after row.
struct SnapshotEntry {
  uint32_t slot, visible;
  uint64_t generation;
  uint32_t order, stream;
  uint32_t consumed, ragged;  // bytes of its ragged values
};
constexpr uint32_t kRowsUnchanged = UINT32_MAX;  // in place of `ragged`: the rows are those of an earlier snapshot, and left out
inline size_t snapshot_entry_bytes(const Geometry& g) {
  return sizeof(SnapshotEntry) + g.slot_bytes + size_t(decays(g) ? 2 : 1) * g.leaves * sizeof(double);
}
// With the ragged values at their longest.
inline size_t snapshot_entry_most(const View& view) {
  uint64_t row = 0;
  for (const RaggedColumn& c : ragged_columns(view)) row += c.bytes;
  return snapshot_entry_bytes(view.geometry()) + round_up(row * view.geometry().rows, 8);
}
// The rows of a slot that its first `visible` positions need, with or without the items that have gone since.
inline uint32_t rows_needed(const View& view, uint32_t slot, uint32_t visible) {
  const Geometry& g = view.geometry();
  if (g.kind == Kind::rows) return visible;
  while (visible > 0 && !(flags_of(view.head(slot, g.behind + visible - 1)) & kItem)) --visible;
  const uint32_t last = g.behind + visible - 1;
  return visible == 0 ? 0 : last + span_of(view, slot, last, g.rows) + 1;
}

// The state of a copy: the slots oldest first, then those still being written; and the counters when it began.
struct Snapshot {
  struct Slot {
    uint32_t slot, visible;
    uint64_t generation;
  };
  uint64_t inserted = 0, sampled = 0, evicted = 0, deleted = 0, batches = 0;
  double largest = 0.0;
  std::pair<Rng, Rng> rng{Rng(0), Rng(0)};

  const std::vector<Slot>& slots() const { return slots_; }
  // Whether rows of an earlier snapshot are left out.
  bool continues() const { return !known_.empty(); }

  // `since`: a snapshot by the same owner, whose rows need not be copied again; or null.
  void begin(const View& view, const Book& book, const Snapshot* since) {
    copied_.assign(view.geometry().slots, 0);
    copied_visible_.assign(view.geometry().slots, 0);
    rewrites_ = book.store.rewrites();
    epoch_ = view.header().epoch.load();
    if (since != nullptr && since->epoch_ == epoch_) {
      known_ = since->copied_;
      known_visible_ = since->copied_visible_;
      known_rewrites_ = since->rewrites_;
    }
    list_slots(book);
    const Header& h = view.header();
    inserted = h.absorbed.load();
    sampled = h.sampled.load();
    evicted = h.evicted.load();
    deleted = h.deleted.load();
    largest = max_priority(h);
  }

  // Copies slots into `out`, one entry after the other, as many as fit; `bytes` becomes what they take. A slot that was evicted before it could be copied
  // is left out, and what came in its place is copied at the end. `drain` takes in what workers published; false from it
  // ends the copy: the owner has yielded.
  template <typename Drain>
  bool copy(const View& view, const Book& book, uint8_t* out, size_t& bytes, size_t& written, Drain&& drain) {
    const Geometry& g = view.geometry();
    const size_t entry_bytes = snapshot_entry_bytes(g);
    uint8_t* const begin = out;
    uint8_t* const end = out + bytes;
    const std::vector<RaggedColumn> ragged = ragged_columns(view);
    bytes = 0;
    for (;; ++next_) {
      if (next_ == slots_.size()) {
        if (!missed_ || passes_ == 3) break;
        ++passes_;
        if (!drain()) return false;
        list_slots(book);
        if (slots_.empty()) break;
      }
      if (size_t(end - out) < entry_bytes) break;
      const Slot& wanted = slots_[next_];
      const auto& now = book.store.slots[wanted.slot];
      if (now.generation != wanted.generation || now.visible < wanted.visible) {
        missed_ = true;
        continue;
      }
      const uint32_t consumed = std::min(view.meta(wanted.slot).consumed.load(), wanted.visible);
      const bool known = !known_.empty() && known_[wanted.slot] == wanted.generation + 1 &&
                         known_visible_[wanted.slot] == wanted.visible && book.store.rewritten(wanted.slot) <= known_rewrites_;
      const uint32_t rows = ragged.empty() || known ? 0 : rows_needed(view, wanted.slot, wanted.visible);
      const uint64_t values = ragged_bytes(view, ragged, wanted.slot, 0, rows);
      if (size_t(end - out) < entry_bytes + round_up(values, 8)) break;
      const SnapshotEntry entry{wanted.slot, wanted.visible, wanted.generation, ++order_, stream_group(view, wanted.slot), consumed,
                                known ? kRowsUnchanged : uint32_t(values)};
      std::memcpy(out, &entry, sizeof entry);
      out += sizeof entry;
      if (!known) {
        std::memcpy(out, view.slot(wanted.slot), g.slot_bytes);
        out += g.slot_bytes;
      }
      double* leaves = reinterpret_cast<double*>(out);
      std::fill_n(leaves, g.leaves, 0.0);
      std::copy_n(decays(g) ? view.staged(wanted.slot) : view.leaves(wanted.slot), wanted.visible, leaves);
      out += g.leaves * sizeof(double);
      if (decays(g)) {
        std::memset(out, 0, g.leaves * sizeof(double));
        std::memcpy(out, view.youths(wanted.slot), wanted.visible * sizeof(double));
        out += g.leaves * sizeof(double);
      }
      for (uint32_t row = 0; row < rows; ++row)
        for (const RaggedColumn& c : ragged) {
          const uint32_t n = ragged_bytes(view, c, wanted.slot, row);
          read_ragged(view, c, wanted.slot, row, out, n);
          out += n;
        }
      std::memset(out, 0, round_up(values, 8) - values);
      out += round_up(values, 8) - values;
      bytes = size_t(out - begin);
      copied_[wanted.slot] = wanted.generation + 1;
      copied_visible_[wanted.slot] = wanted.visible;
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
  std::vector<uint32_t> copied_visible_;
  std::vector<uint64_t> known_;   // what an earlier snapshot copied; empty: there is none
  std::vector<uint32_t> known_visible_;
  uint64_t known_rewrites_ = 0, rewrites_ = 0, epoch_ = 0;
  size_t next_ = 0;
  uint32_t order_ = 0;            // entries so far
  bool missed_ = false;           // some were evicted before they were copied
  int passes_ = 1;
};

}  // namespace apexrl
