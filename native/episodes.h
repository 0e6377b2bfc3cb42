// The owner's index of episodes: which rows of which slots are the steps of one episode, for goals drawn in hindsight.
//
// An episode goes on from slot to slot of its stream. Which slot follows which is not in shared memory: it is found from
// lane, stream and order of use, and holds only where the first row of the one slot is the row that the other slot repeats
// behind its last position. So nothing but rows that were published is ever read as one episode.
#pragma once

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <vector>

#include "gather.h"
#include "view.h"
#include "zeroed.h"

namespace apexrl {

// Which achieved goal takes the place of the desired one (Andrychowicz et al. 2017, section 4.5).
enum class GoalStrategy : int { future = 0, final = 1, episode = 2 };

constexpr uint32_t kMostEpisodeChunk = 64;  // item positions of a slot: the bits of a word

// A slot's group, from lane and stream, in which slots follow one another. A restored slot has it as its stream.
inline uint32_t stream_group(const View& view, uint32_t slot) {
  const SlotMeta& meta = view.meta(slot);
  const uint32_t lane = SlotWord::unpack(meta.word.load(std::memory_order_relaxed)).lane;
  return lane << 16 | meta.stream.load(std::memory_order_relaxed);
}

class Episodes {
 public:
  struct Row {
    uint32_t slot, row;
  };

  explicit Episodes(const View& view) : view_(view), parts_(view.geometry().slots) {}

  // The owner has taken in positions [from, to) of a slot. `order`: grows with the slots of a stream.
  template <typename Slots>
  void take_in(const Slots& slots, uint32_t s, uint32_t from, uint32_t to, uint64_t order) {
    Part& part = parts_[s];
    if (from == 0) {
      part = Part{};
      begun_.push_back({stream_group(view_, s), order, {s, slots[s].generation}, {}});
    }
    for (uint32_t p = from; p < to && p < kMostEpisodeChunk; ++p)
      if (flags_of(view_.head(s, view_.geometry().behind + p)) & kFinal) part.finals |= uint64_t(1) << p;
  }

  // Joins the slots that were begun since the last call to those before them, as far as these are complete.
  template <typename Slots>
  void join(const Slots& slots) {
    if (begun_.empty() && waiting_.empty()) return;
    std::sort(begun_.begin(), begun_.end(), [](const Begun& a, const Begun& b) {
      return a.group != b.group ? a.group < b.group : a.order < b.order;
    });
    for (Begun& one : begun_) {
      Slot& newest = newest_[one.group];
      one.before = newest;
      newest = one.slot;
      waiting_.push_back(one);
    }
    begun_.clear();
    std::erase_if(waiting_, [&](const Begun& one) {
      if (!lives(slots, one.slot) || !lives(slots, one.before)) return true;
      if (slots[one.before.index].order == 0) return false;  // it is still being written, or was taken in by half
      if (continues(slots, one.before.index, one.slot.index)) {
        parts_[one.before.index].after = one.slot;
        parts_[one.slot.index].before = one.before;
      }
      return true;
    });
  }

  // The steps of an item's episode from which `strategy` draws: the rows where something was achieved. At least one.
  template <typename Slots>
  uint64_t count(const Slots& slots, const ItemRef& item, GoalStrategy strategy) const {
    const uint32_t p = item.row - view_.geometry().behind;
    const uint64_t later = after(slots, item.slot, p + 1, ~uint64_t(0), nullptr);
    if (strategy == GoalStrategy::final) return later > 0;
    return strategy == GoalStrategy::future ? later : later + before(slots, item.slot, p, ~uint64_t(0), nullptr);
  }

  // The one numbered `number` among them.
  template <typename Slots>
  Row at(const Slots& slots, const ItemRef& item, GoalStrategy strategy, uint64_t number) const {
    const uint32_t p = item.row - view_.geometry().behind;
    Row row{item.slot, item.row + item.span};
    const uint64_t later = strategy == GoalStrategy::future ? ~uint64_t(0) : after(slots, item.slot, p + 1, ~uint64_t(0), nullptr);
    if (strategy == GoalStrategy::final) number = later - 1;
    if (number < later) {
      after(slots, item.slot, p + 1, number, &row);
    } else {
      before(slots, item.slot, p, number - later, &row);
    }
    return row;
  }

 private:
  struct Slot {
    uint32_t index = 0;
    uint64_t generation = 0;  // 0: none
  };
  struct Part {
    uint64_t finals;  // positions that are final observations, a bit each
    Slot before, after;
  };
  struct Begun {
    uint32_t group;
    uint64_t order;
    Slot slot, before;
  };

  template <typename Slots>
  static bool lives(const Slots& slots, const Slot& one) {
    return one.generation != 0 && slots[one.index].generation == one.generation && slots[one.index].visible > 0;
  }

  // Whether the first row of slot `s` is the one that follows the last position of slot `old`, in the same episode.
  template <typename Slots>
  bool continues(const Slots& slots, uint32_t old, uint32_t s) const {
    const Geometry& g = view_.geometry();
    const uint32_t row = g.behind + slots[old].visible;
    if (row >= g.rows || (parts_[old].finals >> (slots[old].visible - 1) & 1) != 0) return false;
    const StepHead &here = view_.head(s, g.behind), &there = view_.head(old, row);
    if (here.age == 0 || here.age != there.age || std::bit_cast<uint32_t>(here.reward) != std::bit_cast<uint32_t>(there.reward) ||
        ((flags_of(here) ^ flags_of(there)) & ~kItem) != 0)
      return false;
    for (uint32_t c = 0; c < g.columns; ++c) {
      const Column& column = view_.header().column[c];
      if (column.ragged) continue;  // its length says enough
      if (std::memcmp(view_.cell(column, s, g.behind), view_.cell(column, old, row), column.bytes) != 0) return false;
    }
    return true;
  }

  // Rows of the episode from position `q` of a slot on, the final observation included. Answers how many there are;
  // `found`: the one numbered `number`.
  template <typename Slots>
  uint64_t after(const Slots& slots, uint32_t s, uint32_t q, uint64_t number, Row* found) const {
    const Geometry& g = view_.geometry();
    uint64_t n = 0;
    for (uint32_t hops = 0; hops <= g.slots; ++hops, q = 0) {
      const uint64_t finals = q < kMostEpisodeChunk ? parts_[s].finals >> q : 0;
      const Slot next = finals ? Slot{} : parts_[s].after;
      const bool goes_on = lives(slots, next);
      uint32_t to = slots[s].visible;
      if (finals) {
        to = q + uint32_t(std::countr_zero(finals)) + 1;
      } else if (!goes_on) {  // the last window's rows were published with it
        to += span_of(view_, s, g.behind + to - 1, g.rows);
      }
      if (found && number < n + (to - q)) {
        *found = {s, g.behind + q + uint32_t(number - n)};
        return n;
      }
      n += to - q;
      if (!goes_on) return n;
      s = next.index;
    }
    return n;
  }

  // … and at and before position `p`, newest first, without the episode's first observation, which achieved nothing.
  template <typename Slots>
  uint64_t before(const Slots& slots, uint32_t s, uint32_t p, uint64_t number, Row* found) const {
    const Geometry& g = view_.geometry();
    uint64_t n = 0;
    for (uint32_t hops = 0; hops <= g.slots; ++hops, p = slots[s].visible - 1) {
      const uint64_t finals = parts_[s].finals << (kMostEpisodeChunk - 1 - p) << 1;  // those before p, at the top
      uint32_t from = finals ? p - uint32_t(std::countl_zero(finals)) : 0;
      const bool begins = view_.head(s, g.behind + from).age == 0;
      const uint32_t rows = p + 1 - from - begins;
      if (found && number < n + rows) {
        *found = {s, g.behind + p - uint32_t(number - n)};
        return n;
      }
      n += rows;
      const Slot previous = parts_[s].before;
      if (begins || finals || !lives(slots, previous)) return n;
      s = previous.index;
    }
    return n;
  }

  View view_;
  Zeroed<Part> parts_;                         // per slot
  std::vector<Begun> begun_;                   // slots whose first positions were taken in since the last join()
  std::vector<Begun> waiting_;                 // … whose predecessor is still being written
  std::unordered_map<uint32_t, Slot> newest_;  // of each group
};

}  // namespace apexrl
