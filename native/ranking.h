// Items in an order, of which the first are wanted: the newest (lifo), or those of the largest or smallest priority
// (max- and min-heap). Items of equal priority come oldest first.
//
// A tree of fan-out 8 whose nodes hold the first item below them. It is private to the owner's process, and follows from
// the leaves and the order in which items were taken in.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "layout.h"
#include "zeroed.h"

namespace apexrl {

class Ranking {
 public:
  Ranking(size_t leaves, Order order) : order_(order) {
    for (size_t n = round_up(std::max<size_t>(leaves, 1), kFan);; n = round_up(n / kFan, n / kFan == 1 ? 1 : kFan)) {
      levels_.emplace_back(n);
      if (n == 1) break;
    }
  }

  // A leaf's priority; negative zero: there is no item. An item keeps its place among equal ones when it changes.
  void set(size_t leaf, double priority) {
    Place& mine = levels_[0][leaf];
    if (std::signbit(priority)) {
      if (mine.number == 0) return;
      mine = Place{};
    } else {
      if (mine.number == 0) mine.number = ++numbers_;
      mine.value = order_ == Order::newest ? double(mine.number) : order_ == Order::largest ? priority : -priority;
    }
    for (size_t k = 1, i = leaf / kFan; k < levels_.size(); ++k, i /= kFan) {
      const Place first = best(levels_[k - 1].data() + i * kFan);
      Place& above = levels_[k][i];
      if (above.value == first.value && above.number == first.number) return;
      above = first;
    }
  }

  // The first `n` leaves, or all where there are fewer.
  void first(size_t n, std::vector<uint32_t>& leaves) {
    leaves.clear();
    nodes_.clear();
    const auto later = [](const Node& a, const Node& b) { return b.place.before(a.place); };
    const auto add = [&](size_t level, size_t index) {
      const Place place = levels_[level][index];
      if (place.number == 0) return;
      nodes_.push_back(Node{place, uint32_t(level), uint32_t(index)});
      std::push_heap(nodes_.begin(), nodes_.end(), later);
    };
    add(levels_.size() - 1, 0);
    while (leaves.size() < n && !nodes_.empty()) {
      std::pop_heap(nodes_.begin(), nodes_.end(), later);
      const Node node = nodes_.back();
      nodes_.pop_back();
      if (node.level == 0) {
        leaves.push_back(node.index);
        continue;
      }
      const size_t below = size_t(node.index) * kFan, end = std::min(below + kFan, levels_[node.level - 1].size());
      for (size_t child = below; child < end; ++child) add(node.level - 1, child);
    }
  }

 private:
  static constexpr size_t kFan = 8;

  struct Place {
    double value;
    uint64_t number;  // in the order of taking in; 0: no item
    bool before(const Place& other) const {
      return number != 0 && (other.number == 0 || value > other.value || (value == other.value && number < other.number));
    }
  };
  struct Node {
    Place place;
    uint32_t level, index;
  };

  static Place best(const Place* places) {
    Place best = places[0];
    for (size_t i = 1; i < kFan; ++i)
      if (places[i].before(best)) best = places[i];
    return best;
  }

  Order order_;
  uint64_t numbers_ = 0;
  std::vector<Zeroed<Place>> levels_;  // items, then ever fewer nodes, then one
  std::vector<Node> nodes_;            // while first() looks
};

}  // namespace apexrl
