// The order in which the fifo sampler gives items out: positions of slots, as the owner took them in.
//
// The items given out are a prefix of each slot, recorded in shared words before the batch is gathered: an item is
// given out at most once, also if a process dies.
#pragma once

#include <deque>
#include <vector>

#include "gather.h"
#include "view.h"

namespace apexrl {

class Queue {
 public:
  // Positions [from, to) of a slot, which was not there before them. A range ends with an item: nothing of it is left
  // when its slot's last item has gone, for the slot may then have another generation.
  void push(const View& view, uint32_t slot, uint32_t from, uint32_t to) {
    const double* staged = view.staged(slot);
    while (to > from && !(staged[to - 1] >= 0.0)) --to;
    if (to == from) return;
    if (!ranges_.empty() && ranges_.back().slot == slot && ranges_.back().to == from) {
      ranges_.back().to = to;
    } else {
      ranges_.push_back({slot, from, to});
    }
  }

  // The next `n` items. False when fewer are there, which cannot be unless staged priorities were changed.
  bool take(const View& view, size_t n, std::vector<ItemRef>& items) {
    items.clear();
    while (items.size() < n) {
      if (ranges_.empty()) return false;
      Range& range = ranges_.front();
      const double* staged = view.staged(range.slot);
      while (range.from < range.to && items.size() < n) {
        if (staged[range.from] >= 0.0) items.push_back({range.slot, view.geometry().behind + range.from, 0, 0});
        ++range.from;
      }
      view.meta(range.slot).consumed.store(range.from, std::memory_order_release);
      if (range.from == range.to) ranges_.pop_front();
    }
    return true;
  }

 private:
  struct Range {
    uint32_t slot, from, to;
  };
  std::deque<Range> ranges_;
};

}  // namespace apexrl
