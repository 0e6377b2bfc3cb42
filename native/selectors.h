// What chooses items beside the sum tree: the proportional remover, and the orders of lifo, max- and min-heap.
//
// They follow the leaves of items, and a new owner fills them anew.
#pragma once

#include <memory>
#include <vector>

#include "ranking.h"
#include "removal.h"
#include "view.h"

namespace apexrl {

class Selectors {
 public:
  explicit Selectors(const View& view) {
    const Geometry& g = view.geometry();
    const auto ranked = [&](Order order) {
      return order == Order::none ? nullptr : std::make_unique<Ranking>(tree_leaves(g), order);
    };
    if (g.remover == Remover::proportional) removal_ = std::make_unique<Removal>(view);
    to_sample_ = ranked(order_of(g.sampler));
    to_remove_ = ranked(order_of(g.remover));
    any_ = removal_ || to_sample_ || to_remove_;
  }

  bool any() const { return any_; }
  bool remove_items() const { return removal_ || to_remove_; }  // and not the oldest slots

  // An item's priority; negative zero: it has gone.
  void set(size_t leaf, double value) {
    set_mass(leaf, value);
    set_rank(leaf, value);
  }
  void set_mass(size_t leaf, double value) {
    if (removal_) removal_->set(leaf, value);
  }
  void set_rank(size_t leaf, double value) {
    if (to_sample_) to_sample_->set(leaf, value);
    if (to_remove_) to_remove_->set(leaf, value);
  }

  // The first `n` leaves in the sampler's order.
  void first(size_t n, std::vector<uint32_t>& leaves) { to_sample_->first(n, leaves); }

  // Up to `n` leaves that the remover chooses.
  void to_remove(size_t n, Rng& rng, std::vector<uint32_t>& leaves) {
    if (removal_) {
      removal_->draw(n, rng, leaves);
    } else {
      to_remove_->first(n, leaves);
    }
  }

 private:
  std::unique_ptr<Removal> removal_;
  std::unique_ptr<Ranking> to_sample_, to_remove_;
  bool any_ = false;  // looked at for every item
};

}  // namespace apexrl
