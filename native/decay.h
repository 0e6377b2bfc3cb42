// How the chance of an item shrinks with its age: it halves with every half-life.
//
// An item's youth is a number of half-lives that never changes: later items have more. Two items' chances differ by
// 2^(difference of their youths), so ages need no updates. Leaves are priority * 2^(youth - base). When the newest are
// far above the base, the base moves, and all leaves are computed again: they follow from priority and youth, which lie
// in shared memory. A move multiplies leaves by a power of two, which is exact, and changes no draw.
#pragma once

#include <algorithm>
#include <cmath>

#include "layout.h"

namespace apexrl {

class Decay {
 public:
  explicit Decay(const Geometry& g) : items_(g.recency_half_life), versions_(g.lag_half_life) {}

  bool active() const { return items_ > 0.0 || versions_ > 0.0; }

  // Of the item that was inserted as the `number`-th, with weights of this `version`.
  double youth(uint64_t number, int64_t version) const {
    double youth = 0.0;
    if (items_ > 0.0) youth += double(number) / items_;
    if (versions_ > 0.0) youth += double(std::clamp<int64_t>(version, 0, kLargestVersion)) / versions_;
    return youth;
  }
  // What shared memory says may be damaged.
  static double sound(double youth) { return youth >= 0.0 && youth <= kLargestYouth ? youth : 0.0; }

  double factor(double youth) const {
    const double whole = std::floor(youth);
    return std::ldexp(std::exp2(youth - whole), int(std::clamp(whole - base_, -kRange, kRange)));
  }

  void see(double youth) { newest_ = std::max(newest_, youth); }
  bool must_move() const { return newest_ - base_ > kRange / 2; }
  void move() { base_ = std::floor(newest_); }

  // A sum of leaves in the unit of an item of priority 1 as young as the newest.
  double in_newest(double sum) const { return active() ? sum / factor(newest_) : sum; }

 private:
  static constexpr double kRange = 512.0;  // half-lives: an item that is older is drawn as if it were of that age
  static constexpr int64_t kLargestVersion = int64_t(1) << 40;
  static constexpr double kLargestYouth = 0x1p60;

  double items_, versions_;  // half-lives; 0: none
  double base_ = 0.0;        // a whole number
  double newest_ = 0.0;      // the largest youth so far
};

}  // namespace apexrl
