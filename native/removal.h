// Removal in proportion to a power of the priority (Ape-X DPG: -0.4), item by item.
//
// Masses follow from the leaves: they are private to the owner's process, and a new owner recomputes them.
#pragma once

#include <cmath>
#include <vector>

#include "view.h"
#include "rng.h"
#include "sum_tree.h"

namespace apexrl {

class Removal {
 public:
  explicit Removal(const View& view)
      : exponent_(view.geometry().remover_alpha == 0.0 ? 0.0 : view.geometry().remover_alpha / view.geometry().alpha),
        floor_(std::pow(1e-12, view.geometry().alpha)),
        mass_(tree_leaves(view.geometry())),
        tree_(mass_.data(), mass_.size()) {}

  // A leaf of the sampler's tree, (|p|+eps)^alpha, has changed; negative zero: there is no item.
  void set(size_t leaf, double value) {
    tree_.set(leaf, std::signbit(value) ? 0.0 : std::pow(std::max(value, floor_), exponent_));
  }

  // Up to `n` distinct leaves with items, in proportion to their mass. Redrawing duplicates is equivalent to drawing
  // one by one without replacement.
  void draw(size_t n, Rng& rng, std::vector<uint32_t>& leaf) {
    tree_.propagate();
    prefix_.resize(n);
    leaf.resize(n);
    const double total = tree_.total();
    for (auto& p : prefix_) p = rng.uniform() * total;
    if (total > 0.0) tree_.find(prefix_.data(), leaf.data(), n);
    std::sort(leaf.begin(), leaf.end());
    leaf.erase(std::unique(leaf.begin(), leaf.end()), leaf.end());
    if (total <= 0.0) leaf.clear();
  }

 private:
  double exponent_, floor_;  // a zero priority counts as 1e-12
  Zeroed<double> mass_;
  SumTree tree_;
  std::vector<double> prefix_;
};

}  // namespace apexrl
