// Draws a batch and gathers it: items, their probabilities and weights, and their rows as arrays.
//
// Not thread-safe: the Owner holds its mutex around it.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "episodes.h"
#include "gather.h"
#include "view.h"
#include "power.h"
#include "rng.h"
#include "store.h"

namespace apexrl {

// (transition) Goals drawn in hindsight, for `share` of a batch's items.
struct Hindsight {
  uint32_t column = UINT32_MAX;  // what was achieved; UINT32_MAX: no goals are drawn
  GoalStrategy strategy = GoalStrategy::future;
  double share = 0.0;
  uint8_t* relabelled = nullptr;  // [n]: a goal was drawn for it
  uint8_t* goal = nullptr;        // [n, column]; zeros where none was drawn
  uint8_t* achieved = nullptr;    // [n, n_step, column]: after each step of the item; zeros behind its last
  int32_t* steps = nullptr;       // [n]: steps of the item
};

// Where a sampled batch goes: contiguous arrays of n rows.
struct Outputs {
  size_t n = 0;
  std::vector<uint8_t*> column;       // [columns], null: not wanted
  std::vector<uint8_t*> next_column;  // [columns], null: not wanted
  float* reward = nullptr;            // [n]; sequences and unrolls [n, T]
  float* discount = nullptr;
  uint8_t* mask = nullptr;            // [n, T]
  uint8_t* first = nullptr;           // [n, T + 1]
  uint64_t* keys = nullptr;
  double* probabilities = nullptr;
  float* weights = nullptr;
  uint32_t n_step = UINT32_MAX;  // (transition) the most steps of an item, if fewer than the geometry's
  double gamma = -1.0;           // (transition) discount per step; negative: the geometry's
  Hindsight hindsight;
};

// The divisor of importance weights (N P)^-beta.
enum class Normalize : int { batch = 0, buffer = 1, none = 2 };

class Draws {
 public:
  explicit Draws(const View& view) : rng(view.geometry().seed), view_(view) {}

  Rng rng;
  bool on_disk = false;  // rows may have to be read from there first

  // Proportional draws; stratified: one in each of n equal slices of the total (Schaul et al. 2016, appendix B.2.1).
  // The rows of one block are prefetched while the next block is drawn.
  void proportional(Store& store, Outputs& out, double beta, Normalize normalize) {
    const bool independent = view_.geometry().independent;
    const size_t n = out.n;
    refs_.resize(n);
    leaf_.resize(n);
    prefix_.resize(n);
    const double total = store.tree.total(), slice = independent ? total : total / double(n);
    for (size_t i = 0; i < n; ++i) prefix_[i] = (double(independent ? 0 : i) + rng.uniform()) * slice;
    double smallest = std::numeric_limits<double>::infinity();
    for (size_t start = 0; start < n; start += kBlock) {
      const size_t count = std::min(kBlock, n - start);
      store.tree.find(prefix_.data() + start, leaf_.data() + start, count);
      smallest = std::min(smallest, name_drawn(store, out, start, count, total));
      if (on_disk) read_ahead(start, count);
      if (start > 0) gather(out, start - kBlock, kBlock);
    }
    const size_t last = (n - 1) / kBlock * kBlock;
    gather(out, last, n - last);
    if (out.hindsight.column != UINT32_MAX) draw_goals(store, out);
    // (N P)^-beta over its largest value, of the batch or of all items: N and the total cancel.
    if (normalize == Normalize::buffer) {
      if (!store.tree.tracks_least()) store.tree.track_least();
      smallest = store.tree.least();
    } else if (normalize == Normalize::none) {
      smallest = total / double(store.items());
    }
    inverse_powers(prefix_.data(), out.weights, n, smallest, beta);
  }

  // fifo: the oldest n.
  void oldest(Store& store, Outputs& out) {
    const Geometry& g = view_.geometry();
    store.take(out.n, refs_);
    for (size_t i = 0; i < out.n; ++i)
      out.keys[i] = view_.key(refs_[i].slot, refs_[i].row - g.behind, store.slots[refs_[i].slot].generation);
    std::fill_n(out.probabilities, out.n, 1.0);
    std::fill_n(out.weights, out.n, 1.0f);
    gather(out, 0, out.n);
    store.done_with(refs_);
  }

  // lifo, max- and min-heap: the first n in that order, each once.
  void first(Store& store, Outputs& out) {
    const Geometry& g = view_.geometry();
    store.first(out.n, leaf_);
    refs_.resize(out.n);
    for (size_t i = 0; i < out.n; ++i) name(store, out, i, leaf_[i]);
    std::fill_n(out.probabilities, out.n, 1.0);
    std::fill_n(out.weights, out.n, 1.0f);
    for (size_t i = 0; g.consumes && i < out.n; ++i) store.take_out(leaf_[i]);  // their slots keep the rows until others need them
    store.tree.propagate();
    gather(out, 0, out.n);
  }

  // Items by their keys, those that are still there, to the front of the outputs. Answers how many.
  size_t listed(const Store& store, const uint64_t* keys, size_t n, Outputs& out) {
    const bool drawn = view_.geometry().sampler == Sampler::prioritized;
    const double total = store.tree.total();
    refs_.resize(n);
    size_t found = 0;
    for (size_t i = 0; i < n; ++i) {
      const int64_t leaf = store.leaf_of(keys[i]);
      if (leaf < 0) continue;
      name(store, out, found, uint32_t(leaf));
      out.probabilities[found++] = drawn && total > 0.0 ? view_.leaves()[leaf] / total : 1.0;
    }
    std::fill_n(out.weights, found, 1.0f);
    gather(out, 0, found);
    return found;
  }

 private:
  static constexpr size_t kBlock = 64;  // items: their lines and paths through the tree fit the first cache

  // What was drawn: rows, keys, probabilities; `prefix_` becomes the priorities. Answers the smallest of those.
  double name_drawn(const Store& store, Outputs& out, size_t start, size_t count, double total) {
    const Geometry g = view_.geometry();  // a copy: stores to the outputs cannot change it
    const uint8_t* slots = view_.slot(0);
    const uint32_t near = std::clamp<uint32_t>(g.record, 1, 512);
    const double* leaves = view_.leaves();
    const Store::SlotView* known = store.slots.data();
    double smallest = std::numeric_limits<double>::infinity();
    for (size_t i = start; i < start + count; ++i) {
      const uint32_t leaf = leaf_[i], slot = leaf / g.leaves, offset = leaf - slot * g.leaves;
      refs_[i] = ItemRef{slot, g.behind + offset, 0, 0};
      const uint8_t* record = slots + g.slot_bytes * slot + size_t(g.record) * (g.behind + offset);
      for (uint32_t at = 0; at < near; at += 64) __builtin_prefetch(record + at);
      __builtin_prefetch(record + near - 1);
      const double p = leaves[leaf];
      out.keys[i] = uint64_t(offset) | uint64_t(slot) << g.offset_bits |
                    known[slot].generation << (g.offset_bits + g.slot_bits);
      prefix_[i] = p;
      out.probabilities[i] = p / total;
      smallest = std::min(smallest, p);
    }
    return smallest;
  }

  // Has the kernel read the rows of a block's items all at once: one after the other, each would wait for the disk.
  void read_ahead(size_t start, size_t count) const {
    const Geometry& g = view_.geometry();
    const Header& h = view_.header();
    const auto advise = [](const uint8_t* from, size_t bytes) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(from) & ~uintptr_t(4095);
      madvise(reinterpret_cast<void*>(first), reinterpret_cast<uintptr_t>(from) + bytes - first, MADV_WILLNEED);
    };
    for (size_t i = start; i < start + count; ++i) {
      const uint32_t first = refs_[i].row - std::min(refs_[i].row, g.behind), rows = std::min(g.behind + 1 + g.ahead, g.rows - first);
      if (g.record > 0) advise(view_.record(refs_[i].slot, first), size_t(g.record) * rows);
      for (uint32_t c = 0; c < g.columns; ++c)
        if (h.column[c].plane && !h.column[c].per_item)
          advise(view_.cell(h.column[c], refs_[i].slot, first), size_t(h.column[c].bytes) * rows);
    }
  }

  // The i-th item of a batch: its row and its key.
  void name(const Store& store, Outputs& out, size_t i, uint32_t leaf) {
    const Geometry& g = view_.geometry();
    const uint32_t slot = leaf / g.leaves, offset = leaf % g.leaves;
    refs_[i] = ItemRef{slot, g.behind + offset, 0, 0};
    out.keys[i] = view_.key(slot, offset, store.slots[slot].generation);
  }

  // Items [start, start + count) of a batch into its outputs.
  void gather(Outputs& out, size_t start, size_t count) {
    const Geometry& g = view_.geometry();
    const Header& h = view_.header();
    const bool windows = g.kind == Kind::sequence || g.kind == Kind::unroll;
    const size_t steps = windows ? g.burn_in + g.n_step : 1;
    ItemRef* refs = refs_.data() + start;
    if (g.kind != Kind::rows)
      for (size_t i = 0; i < count; ++i) refs[i] = item_at(view_, refs[i].slot, refs[i].row, g.rows);
    if (g.kind == Kind::transition) {
      for (size_t i = 0; i < count; ++i) refs[i].span = std::min(refs[i].span, out.n_step);
      const double gamma = out.gamma < 0.0 ? g.gamma : out.gamma;
      gather_returns(view_, refs, count, gamma, out.reward + start, out.discount + start);
    }
    if (windows)
      gather_steps(view_, refs, count, out.reward + start * steps, out.discount + start * steps,
                   out.mask + start * steps, out.first + start * (steps + 1));
    for (uint32_t c = 0; c < g.columns; ++c) {
      const Column& column = h.column[c];
      const size_t before = start * frames_of(g, column) * column.bytes;
      uint8_t* now = out.column[c] ? out.column[c] + before : nullptr;
      uint8_t* later = out.next_column[c] ? out.next_column[c] + before : nullptr;
      if (now && later) {
        gather_both(view_, column, refs, count, now, later);
      } else if (now) {
        gather_any(view_, column, refs, count, false, now);
      }
    }
    copies_done();
  }

  // Goals, from the episodes of the items that were gathered.
  void draw_goals(Store& store, Outputs& out) {
    const Hindsight& wanted = out.hindsight;
    const Geometry& g = view_.geometry();
    const Column& column = view_.header().column[wanted.column];
    Episodes& episodes = *store.episodes;
    episodes.join(store.slots);
    goals_.resize(out.n);
    for (size_t i = 0; i < out.n; ++i) {
      wanted.relabelled[i] = rng.uniform() < wanted.share;
      if (!wanted.relabelled[i]) continue;
      const uint64_t from = episodes.count(store.slots, refs_[i], wanted.strategy);
      const uint64_t number = std::min(uint64_t(rng.uniform() * double(from)), from - 1);
      goals_[i] = episodes.at(store.slots, refs_[i], wanted.strategy, number);
      __builtin_prefetch(view_.cell(column, goals_[i].slot, goals_[i].row));
    }
    for (size_t i = 0; i < out.n; ++i) {
      uint8_t* goal = wanted.goal + i * column.bytes;
      uint8_t* achieved = wanted.achieved + i * column.bytes * g.n_step;
      if (wanted.relabelled[i]) {
        std::memcpy(goal, view_.cell(column, goals_[i].slot, goals_[i].row), column.bytes);
      } else {
        std::memset(goal, 0, column.bytes);
      }
      const ItemRef& item = refs_[i];
      wanted.steps[i] = int32_t(item.span);
      for (uint32_t k = 1; k <= item.span; ++k, achieved += column.bytes)
        std::memcpy(achieved, view_.cell(column, item.slot, item.row + k), column.bytes);
      std::memset(achieved, 0, size_t(g.n_step - item.span) * column.bytes);
    }
  }

  View view_;
  std::vector<Episodes::Row> goals_;
  std::vector<ItemRef> refs_;  // of the batch under way, as the next two
  std::vector<uint32_t> leaf_;
  std::vector<double> prefix_;
};

}  // namespace apexrl
