// Commits the memory of unused slots just before their use, where the system could otherwise refuse it later.
#pragma once

#include "view.h"
#include "segment.h"

namespace apexrl {

// Whether the memory of slots up to `slots` is there to be written. Where it must be committed first it is, some slots
// ahead; several processes may do so at once.
inline bool grown_to(Segment& segment, const View& view, uint64_t slots) {
  Header& h = view.header();
  const Geometry& g = view.geometry();
  uint64_t there = h.committed.load(std::memory_order_acquire);
  if (slots <= there) return true;
  constexpr uint64_t kStep = uint64_t(16) << 20;
  uint64_t want = std::min<uint64_t>(std::max(slots, there + kStep / g.slot_bytes), g.slots);
  const auto commits = [&] {
    return segment.commit(g.slots_at + g.slot_bytes * there, g.slots_at + g.slot_bytes * want);
  };
  bool grown = commits();
  if (!grown) {
    want = slots;
    grown = commits();
  }
  if (!grown) {
    h.growth_refused.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  while (there < want && !h.committed.compare_exchange_weak(there, want)) {}
  return true;
}

}  // namespace apexrl
