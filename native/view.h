// Typed access to a replay's segment, and the end of a worker's lease.
#pragma once

#include "layout.h"

namespace apexrl {

class View {
 public:
  explicit View(uint8_t* base) : base_(base) {}

  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  const Geometry& geometry() const { return header().geometry; }
  Lane& lane(uint32_t i) const {
    return *reinterpret_cast<Lane*>(base_ + geometry().lanes_at + geometry().lane_bytes * i);
  }
  Shared<uint32_t>* desk(uint32_t lane_index) const {
    return reinterpret_cast<Shared<uint32_t>*>(reinterpret_cast<uint8_t*>(&lane(lane_index)) + sizeof(Lane));
  }
  Shared<uint32_t>* current(uint32_t lane_index) const { return desk(lane_index) + geometry().desk; }
  Shared<uint32_t>* next(uint32_t lane_index) const { return current(lane_index) + geometry().streams; }
  SlotMeta& meta(uint32_t slot) const { return reinterpret_cast<SlotMeta*>(base_ + geometry().metas_at)[slot]; }
  double* leaves() const { return reinterpret_cast<double*>(base_ + geometry().leaves_at); }
  double* leaves(uint32_t slot) const { return leaves() + size_t(slot) * geometry().leaves; }
  // Priorities as the writer left them, after eps and alpha; negative: no item.
  double* staged(uint32_t slot) const {
    return reinterpret_cast<double*>(base_ + geometry().staged_at) + size_t(slot) * geometry().leaves;
  }
  // How young items are, in half-lives (decay.h); only where age counts.
  double* youths(uint32_t slot) const {
    return reinterpret_cast<double*>(base_ + geometry().youths_at) + size_t(slot) * geometry().leaves;
  }
  // The first of a slot's blocks, + 1; 0: it has none. Only where columns are ragged.
  Shared<uint32_t>& chain(uint32_t slot) const {
    return reinterpret_cast<Shared<uint32_t>*>(base_ + geometry().chains_at)[slot];
  }
  BlockHead& block(uint64_t b) const {
    return *reinterpret_cast<BlockHead*>(base_ + geometry().blocks_at + geometry().block * b);
  }
  uint8_t* block_bytes(uint64_t b) const { return reinterpret_cast<uint8_t*>(&block(b)) + sizeof(BlockHead); }
  uint8_t* slot(uint32_t slot_index) const {
    return base_ + geometry().slots_at + geometry().slot_bytes * slot_index;
  }
  uint8_t* record(uint32_t slot_index, uint32_t row) const {
    return slot(slot_index) + size_t(geometry().record) * row;
  }
  StepHead& head(uint32_t slot_index, uint32_t row) const {
    return *reinterpret_cast<StepHead*>(record(slot_index, row));
  }
  // One row's value of a column (of a per-item column: one cell's; of a ragged one: where its bytes are), and the distance
  // to the next row's.
  uint8_t* cell(const Column& c, uint32_t slot_index, uint32_t row) const {
    return c.plane ? slot(slot_index) + c.plane_offset + size_t(c.bytes) * row
                   : record(slot_index, row) + c.offset;
  }
  size_t stride(const Column& c) const { return c.plane ? c.bytes : geometry().record; }

  uint64_t key(uint32_t slot_index, uint32_t offset, uint64_t generation) const {
    const auto& g = geometry();
    return uint64_t(offset) | uint64_t(slot_index) << g.offset_bits | generation << (g.offset_bits + g.slot_bits);
  }

  // Items in the replay by the shared words: published, not evicted.
  uint64_t visible_items() const {
    return items_of_slots([this](uint32_t s) { return std::min(meta(s).items.load(std::memory_order_relaxed), geometry().chunk); });
  }

  // The same after an owner's death, which may leave old counters, holes (proportional removal) and items given out.
  uint64_t remaining_items() const {
    return items_of_slots([this](uint32_t s) {
      const uint32_t count = std::min(meta(s).count.load(std::memory_order_acquire), geometry().chunk);
      uint64_t items = 0;
      for (uint32_t p = meta(s).consumed.load(std::memory_order_relaxed); p < count; ++p) items += staged(s)[p] >= 0.0;
      return items;
    });
  }

  // `len`: exact once everything published was taken in by the owner, else an upper estimate within one publication.
  uint64_t size(bool owned) const {
    const Header& h = header();
    if (h.epoch.load(std::memory_order_acquire) == 0) return visible_items();
    if (!owned) return remaining_items();
    const uint64_t absorbed = h.absorbed.load(std::memory_order_acquire);
    const uint64_t inserted = h.inserted.load(std::memory_order_acquire);
    const uint64_t pending = inserted > absorbed ? inserted - absorbed : 0;
    return std::min(h.items.load(std::memory_order_acquire) + pending, geometry().most);
  }

 private:
  // The sum of `items` over all slots that hold any.
  template <typename Items>
  uint64_t items_of_slots(Items&& items) const {
    const uint64_t used = std::min<uint64_t>(header().next_unused.load(std::memory_order_acquire), geometry().slots);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < used; ++s) {
      const auto state = SlotWord::unpack(meta(s).word.load(std::memory_order_acquire)).state;
      if (state == SlotState::leased || state == SlotState::closed || state == SlotState::committed) sum += items(s);
    }
    return std::min(sum, geometry().most);
  }

  uint8_t* base_;
};

inline double max_priority(const Header& h) {
  const uint64_t bits = h.max_priority.load(std::memory_order_relaxed);
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}

inline void raise_max_priority(Header& h, double value) {
  uint64_t seen = h.max_priority.load(std::memory_order_relaxed);
  for (;;) {
    double old;
    std::memcpy(&old, &seen, 8);
    if (old >= value) return;
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    if (h.max_priority.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) return;
  }
}

// Ends a worker's lease, which it gave up or which died: its published items stay, the rest is freed. The caller holds
// the lane's lock. With finished rows and a fifo sampler, a slot stays the lane's until it is full, and the next worker
// of the lane continues in it. Otherwise writers that come and go would use up all slots.
inline void retire_lane(const View& view, uint32_t index) {
  Lane& lane = view.lane(index);
  Header& h = view.header();
  const auto& g = view.geometry();
  auto settle = [&](Shared<uint32_t>& entry, bool may_stay = false) {
    const uint32_t held = entry.load(std::memory_order_acquire);
    if (held == 0) return;
    if (held > g.slots) {
      h.damaged.fetch_add(1, std::memory_order_relaxed);
      return entry.store(0, std::memory_order_release);
    }
    const uint32_t slot = held - 1;
    SlotMeta& meta = view.meta(slot);
    SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));
    const uint32_t count = meta.count.load(std::memory_order_acquire);
    if (word.state == SlotState::leased && word.lane == index) {
      if (may_stay && count < g.chunk && meta.consumed.load(std::memory_order_acquire) < count) return;
      word.state = SlotState::closed;
      meta.word.store(word.pack(), std::memory_order_release);
    } else if (word.state == SlotState::unused && slot < h.next_unused.load(std::memory_order_acquire)) {
      // It died between claiming a never-used slot and marking it, unless another lane is claiming it now.
      bool elsewhere = false;
      for (uint32_t l = 0; l < g.lanes && !elsewhere; ++l)
        for (uint32_t s = 0; l != index && s < g.streams && !elsewhere; ++s)
          elsewhere = view.next(l)[s].load(std::memory_order_acquire) == held;
      // Exchanged, not stored: since the scan, its claimant may have marked it, or the owner have handed it out.
      uint64_t unused = 0;
      if (!elsewhere) meta.word.compare_exchange_strong(unused, SlotWord{SlotState::closed, index, 1}.pack());
    }
    entry.store(0, std::memory_order_release);
  };
  for (uint32_t s = 0; s < g.streams; ++s) settle(view.next(index)[s]);
  const bool may_stay = g.kind == Kind::rows && g.sampler == Sampler::fifo;
  for (uint32_t s = 0; s < g.streams; ++s) settle(view.current(index)[s], may_stay);
  for (uint32_t d = 0; d < g.desk; ++d) settle(view.desk(index)[d]);
  lane.active.store(0, std::memory_order_release);
  lane.published.fetch_add(1, std::memory_order_release);
}

}  // namespace apexrl
