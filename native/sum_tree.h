// A float64 sum tree of fan-out 8, so that the children of a node are one cache line.
//
// Parents are always recomputed from their children, in a fixed order: no drift, and the same leaves give the same
// sums. Leaves may live elsewhere (in shared memory); the levels above belong to this object. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tree_step.h"
#include "zeroed.h"

namespace apexrl {

class SumTree {
 public:
  static constexpr size_t kFan = 8;

  // `leaves`: 64-byte aligned, `count` of them, a multiple of 8, non-negative. Where some are not zero, rebuild().
  SumTree(double* leaves, size_t count) : leaves_(leaves), count_(count) {
    if (count == 0 || count % kFan != 0) throw std::invalid_argument("a sum tree takes a positive multiple of 8 leaves");
    for (size_t n = count / kFan;; n = (n + kFan - 1) / kFan) {
      const size_t padded = n == 1 ? kFan : (n + kFan - 1) / kFan * kFan;
      levels_.emplace_back(padded);
      dirty_.emplace_back();
      if (n == 1) break;
    }
  }

  size_t size() const { return count_; }
  double total() const { return levels_.back().data()[0]; }
  double leaf(size_t i) const { return leaves_[i]; }

  // All sums anew: of the first `used` leaves, the only ones that are not zero. The others are not read: leaves in
  // shared memory that nobody touched cost none.
  void rebuild(size_t used) {
    const double* below = leaves_;
    size_t n = used;
    for (auto& level : levels_) {
      n = (n + kFan - 1) / kFan;
      for (size_t i = 0; i < n; ++i) level[i] = sum8(below + i * kFan);
      below = level.data();
    }
    for (auto& list : dirty_) list.clear();
    least_.clear();
  }

  // From now on least() answers in O(1); costs one more pass over what propagate() touches.
  void track_least() {
    if (tracks_least()) return;
    const double* below = leaves_;
    for (const auto& level : levels_) {
      least_.emplace_back(level.size());
      for (size_t i = 0; i < level.size(); ++i)  // below a sum of zero nothing is read
        if (level[i] > 0.0) least_.back()[i] = least8(below + i * kFan);
      below = least_.back().data();
    }
  }
  bool tracks_least() const { return !least_.empty(); }
  // The smallest positive leaf; 0 when there is none.
  double least() const { return least_.back().data()[0]; }

  // Changes a leaf; sums are right again after propagate().
  void set(size_t i, double value) {
    leaves_[i] = value;
    touch(i);
  }
  void touch(size_t i) {
    const uint32_t parent = uint32_t(i / kFan);
    if (dirty_[0].empty() || dirty_[0].back() != parent) dirty_[0].push_back(parent);
  }
  // Leaves [from, to), which the caller has changed.
  void touch(size_t from, size_t to) {
    for (size_t i = from; i < to; i = (i / kFan + 1) * kFan) touch(i);
  }

  void propagate() {
    const double* below = leaves_;
    for (size_t k = 0; k < levels_.size(); ++k) {
      double* level = levels_[k].data();
      for (const uint32_t node : dirty_[k]) {
        level[node] = sum8(below + size_t(node) * kFan);
        if (!least_.empty())
          least_[k].data()[node] = least8((k == 0 ? leaves_ : least_[k - 1].data()) + size_t(node) * kFan);
        if (k + 1 < levels_.size()) {
          const uint32_t parent = node / kFan;
          auto& above = dirty_[k + 1];
          if (above.empty() || above.back() != parent) above.push_back(parent);
        }
      }
      dirty_[k].clear();
      below = level;
    }
  }

  // For each prefix[i] in [0, total): the leaf whose half-open interval of the running sum holds it. Never a zero leaf
  // (unless the total is zero). `prefix` is overwritten. Best called for so few that a cache line of each fits the cache.
  void find(double* prefix, uint32_t* leaf, size_t n, Descend descend = best_descend()) const {
    std::fill_n(leaf, n, 0u);
    for (size_t k = levels_.size(); k-- > 0;) {
      const double* next = k >= 2 ? levels_[k - 2].data() : k == 1 ? leaves_ : nullptr;
      descend(k == 0 ? leaves_ : levels_[k - 1].data(), next, prefix, leaf, n);
    }
  }

  // Largest absolute difference between a stored sum and the sum of its children; 0: consistent.
  double check() const {
    const double* below = leaves_;
    size_t n = count_;
    double worst = 0.0;
    for (const auto& level : levels_) {
      n = (n + kFan - 1) / kFan;
      for (size_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(level.data()[i] - sum8(below + i * kFan)));
      below = level.data();
    }
    return worst;
  }

 private:
  static double sum8(const double* v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

  static double least8(const double* v) {
    double least = 0.0;
    for (size_t j = 0; j < kFan; ++j)
      if (v[j] > 0.0 && (least == 0.0 || v[j] < least)) least = v[j];
    return least;
  }

  double* leaves_;
  size_t count_;
  std::vector<Zeroed<double>> levels_;
  std::vector<Zeroed<double>> least_;  // of the positive leaves below; empty until asked for
  std::vector<std::vector<uint32_t>> dirty_;
};

}  // namespace apexrl
