// The owner's view of a replay's contents: items and their sums, slots in the order of eviction, free slots.
//
// Not thread-safe: the Owner holds its mutex around it.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "blocks.h"
#include "chunks.h"
#include "crash.h"
#include "decay.h"
#include "episodes.h"
#include "view.h"
#include "process.h"
#include "queue.h"
#include "selectors.h"
#include "sum_tree.h"
#include "zeroed.h"

namespace apexrl {

// Shared words contradict what was absorbed: the owner's state must be rebuilt.
struct DamagedState : std::runtime_error {
  DamagedState() : std::runtime_error("the replay's memory was changed by a process that it does not belong to") {}
};

class Store {
 public:
  struct SlotView {
    uint64_t generation = 0;
    uint32_t visible = 0;  // item positions in the tree (a prefix)
    uint32_t items = 0;    // that are still there
    uint64_t order = 0;    // of eviction, from 1 on; 0: not committed
  };

  explicit Store(const View& view)
      : tree(view.leaves(), tree_leaves(view.geometry())),
        slots(view.geometry().slots),
        removal_rng(view.geometry().seed ^ 0x5851f42d4c957f2d),
        view_(view),
        decay_(view.geometry()),
        selectors_(view) {}

  static constexpr double kNoItem = -0.0;  // a leaf: adds nothing, and differs from an item of priority zero

  SumTree tree;                 // over item priorities
  Zeroed<SlotView> slots;
  std::vector<uint32_t> free;
  Rng removal_rng;
  std::unique_ptr<Episodes> episodes;  // where goals are drawn in hindsight

  // Begins the index of episodes. `filled`: slots with items, those being written last.
  void index_episodes(const std::vector<uint32_t>& filled) {
    episodes = std::make_unique<Episodes>(view_);
    for (const uint32_t s : filled)  // ranks of complete slots are below the orders of use of the others
      episodes->take_in(slots, s, 0, slots[s].visible,
                        slots[s].order != 0 ? slots[s].order : view_.meta(s).order.load(std::memory_order_relaxed));
  }

  uint64_t items() const { return items_; }

  // A new priority of an item, after eps and alpha.
  void set_priority(size_t leaf, double value) {
    if (decay_.active() && !std::signbit(value)) {
      view_.staged(0)[leaf] = value;
      tree.set(leaf, aged(leaf));
    } else {
      tree.set(leaf, value);
    }
    if (selectors_.any()) selectors_.set(leaf, value);
  }

  // Changes of rows that were complete: how many there were, and the last of a slot.
  uint64_t rewrites() const { return rewrites_; }
  uint64_t rewritten(uint32_t s) const { return rewritten_.empty() ? 0 : rewritten_[s]; }
  void note_rewrite(uint32_t s) {
    if (rewritten_.empty()) rewritten_.resize(slots.size());
    rewritten_[s] = ++rewrites_;
  }

  // lifo, max- and min-heap: the first `n` leaves in the sampler's order.
  void first(size_t n, std::vector<uint32_t>& leaves) { selectors_.first(n, leaves); }

  // The leaf of a key's item, or -1: it has gone.
  int64_t leaf_of(uint64_t key) const {
    const Geometry& g = view_.geometry();
    const uint64_t offset = key & ((uint64_t(1) << g.offset_bits) - 1);
    const uint64_t slot = key >> g.offset_bits & ((uint64_t(1) << g.slot_bits) - 1);
    const uint64_t mask = ~uint64_t(0) >> (g.offset_bits + g.slot_bits), generation = key >> (g.offset_bits + g.slot_bits);
    if (slot >= g.slots || offset >= slots[slot].visible || (slots[slot].generation & mask) != generation) return -1;
    if (std::signbit(view_.leaves(uint32_t(slot))[offset])) return -1;
    if (g.sampler == Sampler::fifo && offset < view_.meta(uint32_t(slot)).consumed.load(std::memory_order_relaxed)) return -1;
    return int64_t(slot * g.leaves + offset);
  }

  // The sum of all leaves, in a unit that does not change with time (Decay::in_newest).
  double mass() const { return decay_.in_newest(tree.total()); }

  // fifo: the next n items. Their slots stay until done_with() at least.
  void take(size_t n, std::vector<ItemRef>& items) {
    if (!queue_.take(view_, n, items)) throw DamagedState();
    for (const ItemRef& item : items) --slots[item.slot].items;
    items_ -= n;
  }
  void done_with(const std::vector<ItemRef>& items) {
    for (const ItemRef& item : items)
      if (slots[item.slot].items == 0 && slots[item.slot].order != 0) release(item.slot);
  }

  // fifo: items go to another host from here on, chunk by chunk, or to the sampler. `filled`: slots, oldest first.
  bool feeds_host() const { return outbox_ != nullptr; }
  void feed_host(const std::vector<uint32_t>& filled) {
    queue_ = Queue();
    outbox_ = std::make_unique<Outbox>(view_);
    for (const uint32_t s : filled)
      if (slots[s].items > 0) outbox_->add(s, now_ns());
  }
  void feed_sampler(const std::vector<uint32_t>& filled) {
    outbox_.reset();
    for (const uint32_t s : filled) {
      for (uint32_t p = 0; p < slots[s].visible; ++p) view_.leaves(s)[p] = view_.staged(s)[p] >= 0.0 ? 0.0 : kNoItem;
      requeue(s);
    }
  }

  // fifo: the next chunk for another host, of at most `most` bytes where one item does not need more; false: nothing is
  // ready. A slot that is still being written waits until `now` for `linger` ns. Answers by `body` where to write the bytes.
  template <typename Body>
  bool take_chunk(int64_t now, int64_t linger, uint64_t most, ChunkHead& chunk, Body&& body) {
    const int64_t found = outbox_->ready(now, linger);
    if (found < 0) return false;
    const uint32_t s = uint32_t(found);
    std::atomic<uint32_t>& consumed = view_.meta(s).consumed;
    chunk = first_chunk(view_, s, consumed.load(std::memory_order_relaxed), slots[s].visible, most);
    if (chunk.items == 0 || chunk.items > slots[s].items) throw DamagedState();
    uint8_t* out = body(chunk.bytes);
    if (out == nullptr) return false;  // not this time
    consumed.store(chunk.first + chunk.positions, std::memory_order_release);
    write_chunk(view_, s, chunk, out);
    slots[s].items -= chunk.items;
    items_ -= chunk.items;
    if (slots[s].items == 0) {
      outbox_->remove(s);
      if (slots[s].order != 0) release(s);
    }
    return true;
  }

  // Removes what is above `to` items.
  void trim(uint64_t to) {
    const Geometry& g = view_.geometry();
    if (g.sampler == Sampler::fifo) return;
    if (selectors_.remove_items()) {
      while (items_ > to) {
        selectors_.to_remove(size_t(items_ - to), removal_rng, drawn_);
        if (drawn_.empty()) break;
        for (const uint32_t leaf : drawn_) remove(leaf);
      }
    } else {
      while (items_ > to && evict_oldest()) {}
    }
    tree.propagate();
    header().items.store(items_, std::memory_order_release);
  }

  // Slots with items that are complete, oldest first.
  std::vector<uint32_t> in_order() const {
    std::vector<uint32_t> all;
    for (const auto& [s, order] : committed_)
      if (slots[s].order == order) all.push_back(s);
    return all;
  }

  // --- after a predecessor

  // Reads a slot's items from shared words.
  void read(uint32_t s, const SlotWord& word) {
    const Geometry& g = view_.geometry();
    SlotView& mine = slots[s];
    mine = SlotView{word.generation, 0, 0, 0};
    double* leaves = view_.leaves(s);
    if (word.state == SlotState::free && g.blocks > 0) free_blocks(view_, s, scratch_);
    if (word.state == SlotState::leased || word.state == SlotState::closed || word.state == SlotState::committed) {
      const SlotMeta& meta = view_.meta(s);
      mine.visible = std::min(meta.drained.load(std::memory_order_acquire), g.chunk);
      const uint32_t consumed = meta.consumed.load(std::memory_order_acquire);
      const double* staged = view_.staged(s);
      for (uint32_t p = 0; p < mine.visible; ++p) {
        const bool item = staged[p] >= 0.0;
        mine.items += item && p >= consumed;
        if (!item) leaves[p] = kNoItem;
        if (item && (g.sampler == Sampler::fifo || !(leaves[p] >= 0.0 && leaves[p] <= kLargestPriority))) leaves[p] = 0.0;
        selectors_.set_mass(size_t(s) * g.leaves + p, priority_at(s, p));
        if (decay_.active() && item) {
          double& youth = view_.youths(s)[p];
          youth = Decay::sound(youth);
          view_.staged(s)[p] = std::min(staged[p], kLargestPriority);
          decay_.see(youth);
        }
      }
      items_ += mine.items;
      const uint32_t count = std::min(meta.count.load(std::memory_order_acquire), g.chunk);
      for (uint32_t p = mine.visible; p < count && decay_.active(); ++p) pending_ += staged[p] >= 0.0;
    }
    std::fill(leaves + mine.visible, leaves + g.leaves, 0.0);
  }
  // After all slots were read: the tree, over the leaves of the first `used` slots.
  void rebuild(uint64_t used) {
    const uint64_t inserted = header().inserted.load(std::memory_order_acquire);
    number_ = inserted - std::min(pending_, inserted);
    if (decay_.active()) {
      age_all();
    } else {
      tree.rebuild(size_t(used) * view_.geometry().leaves);
    }
  }
  // A committed slot, in the order of these calls.
  void restore(uint32_t s, uint64_t order) {
    if (slots[s].items == 0) return release(s);  // its last item was removed just before the predecessor died
    slots[s].order = order;
    committed_.emplace_back(s, order);
    requeue(s);
  }
  // Items that a predecessor had absorbed and not given out, where their order counts.
  void requeue(uint32_t s) {
    for (uint32_t p = 0; p < slots[s].visible && selectors_.any(); ++p)
      selectors_.set_rank(size_t(s) * view_.geometry().leaves + p, priority_at(s, p));
    if (view_.geometry().sampler != Sampler::fifo) return;
    const uint32_t consumed = view_.meta(s).consumed.load(std::memory_order_acquire);
    if (consumed < slots[s].visible) queue_.push(view_, s, consumed, slots[s].visible);
  }

  // --- new items

  // Positions [visible, count) of a slot that its worker has published, at the time `now`.
  void absorb(uint32_t s, uint32_t count, int64_t now) {
    SlotView& mine = slots[s];
    if (count <= mine.visible) return;
    const Geometry& g = view_.geometry();
    const double* staged = view_.staged(s);
    double* leaves = view_.leaves(s);
    const bool fifo = g.sampler == Sampler::fifo, ages = decay_.active();  // stores below cannot change them
    uint32_t items = 0;
    APEXRL_POINT();
    if (outbox_) {  // nobody asks for its items by key: their leaves are not read
      for (uint32_t p = mine.visible; p < count; ++p) items += staged[p] >= 0.0;
    } else if (!fifo && !ages && !selectors_.any()) {
      for (uint32_t p = mine.visible; p < count; ++p) {
        const bool item = staged[p] >= 0.0;
        leaves[p] = item ? std::min(staged[p], kLargestPriority) : kNoItem;
        items += item;
      }
      tree.touch(size_t(s) * g.leaves + mine.visible, size_t(s) * g.leaves + count);
    } else for (uint32_t p = mine.visible; p < count; ++p) {
      const double value = std::min(staged[p], kLargestPriority);
      if (!(value >= 0.0)) {
        leaves[p] = kNoItem;
        continue;
      }
      if (ages) {
        double& youth = view_.youths(s)[p];
        youth = decay_.youth(number_++, version(s, p));
        decay_.see(youth);
      }
      if (fifo) {
        leaves[p] = 0.0;
      } else {
        set_priority(size_t(s) * g.leaves + p, value);
      }
      ++items;
    }
    if (fifo && !outbox_) queue_.push(view_, s, mine.visible, count);
    if (fifo && outbox_ && items > 0) outbox_->add(s, now);
    if (episodes) episodes->take_in(slots, s, mine.visible, count, view_.meta(s).order.load(std::memory_order_relaxed));
    mine.visible = count;
    mine.items += items;
    items_ += items;
    view_.meta(s).drained.store(count, std::memory_order_release);
    header().absorbed.fetch_add(items, std::memory_order_relaxed);
    if (ages && decay_.must_move()) age_all();
  }

  // Adds a slot that its worker has closed to the order of eviction.
  void commit(uint32_t s) {
    Header& h = header();
    SlotMeta& meta = view_.meta(s);
    const uint64_t order = h.next_order.fetch_add(1, std::memory_order_relaxed) + 1;
    meta.order.store(order, std::memory_order_relaxed);
    set_state(s, SlotState::committed);
    slots[s].order = order;
    while (!committed_.empty() && slots[committed_.front().first].order != committed_.front().second) committed_.pop_front();
    committed_.emplace_back(s, order);
    if (committed_.size() > 2 * slots.size()) {  // entries of slots that were freed out of order
      std::erase_if(committed_, [&](const auto& entry) { return slots[entry.first].order != entry.second; });
    }
  }

  // False when no committed slot is left.
  bool evict_oldest() {
    while (!committed_.empty()) {
      const auto [s, order] = committed_.front();
      committed_.pop_front();
      if (slots[s].order != order) continue;  // it was freed out of order
      header().evicted.fetch_add(slots[s].items, std::memory_order_relaxed);
      release(s);
      return true;
    }
    return false;
  }

  // Removal of one item; its chunk is freed with its last item.
  void remove(size_t leaf) {
    take_out(leaf);
    header().evicted.fetch_add(1, std::memory_order_relaxed);
  }
  void take_out(size_t leaf) {
    const uint32_t s = uint32_t(leaf / view_.geometry().leaves), p = uint32_t(leaf % view_.geometry().leaves);
    APEXRL_POINT();
    view_.staged(s)[p] = -1.0;  // a successor counts items by it
    APEXRL_POINT();
    set_priority(leaf, kNoItem);
    --slots[s].items;
    --items_;
    if (slots[s].items == 0 && slots[s].order != 0) release(s);
  }

  // Frees a slot without items.
  void release(uint32_t s) {
    const Geometry& g = view_.geometry();
    set_state(s, SlotState::free);  // before its leaves and blocks: a successor clears those of free slots
    if (g.blocks > 0) emptied_.push_back(s);
    APEXRL_POINT();
    SlotView& mine = slots[s];
    items_ -= mine.items;
    const size_t leaf = size_t(s) * g.leaves;
    if (g.sampler != Sampler::fifo) {
      std::fill_n(view_.leaves(s), mine.visible, 0.0);
      tree.touch(leaf, leaf + mine.visible);
    }
    for (uint32_t p = 0; p < mine.visible && selectors_.any(); ++p) selectors_.set(leaf + p, kNoItem);
    mine.visible = mine.items = 0;
    mine.order = 0;
    free.push_back(s);
  }

  // Frees the blocks of released slots. Not while a batch that was drawn from them is gathered: workers take free blocks
  // by themselves. Always before a slot is granted.
  void free_emptied() {
    for (const uint32_t s : emptied_) free_blocks(view_, s, scratch_);
    emptied_.clear();
  }

  void set_state(uint32_t s, SlotState state) {
    auto& word = view_.meta(s).word;
    SlotWord w = SlotWord::unpack(word.load(std::memory_order_relaxed));
    w.state = state;
    word.store(w.pack(), std::memory_order_release);
  }

 private:
  Header& header() const { return view_.header(); }

  // An item's priority without its age; negative zero: there is none.
  double priority_at(uint32_t s, uint32_t p) const {
    const double leaf = view_.leaves(s)[p];
    return decay_.active() && !std::signbit(leaf) ? view_.staged(s)[p] : leaf;
  }

  // A leaf of priority and age.
  double aged(size_t leaf) const {
    return std::min(view_.staged(0)[leaf] * decay_.factor(view_.youths(0)[leaf]), kLargestPriority);
  }

  // Moves the base of all leaves.
  void age_all() {
    const Geometry& g = view_.geometry();
    const uint64_t used = std::min<uint64_t>(header().next_unused.load(std::memory_order_acquire), g.slots);
    decay_.move();
    double* leaves = view_.leaves();
    for (uint32_t s = 0; s < used; ++s)
      for (size_t leaf = size_t(s) * g.leaves, end = leaf + slots[s].visible; leaf < end; ++leaf)
        if (!std::signbit(leaves[leaf])) leaves[leaf] = aged(leaf);
    tree.rebuild(size_t(used) * g.leaves);
  }

  // Of the weights that chose an item's action.
  int64_t version(uint32_t s, uint32_t p) const {
    const Geometry& g = view_.geometry();
    if (g.version_column == 0) return 0;
    int64_t version;
    std::memcpy(&version, view_.cell(header().column[g.version_column - 1], s, g.behind + p), sizeof version);
    return version;
  }

  View view_;
  Decay decay_;
  Selectors selectors_;
  uint64_t number_ = 0;   // items taken in
  uint64_t pending_ = 0;  // published items that read() found, and that are not taken in
  std::deque<std::pair<uint32_t, uint64_t>> committed_;  // slot and order, oldest first; stale where the order differs
  Queue queue_;                                          // fifo sampler
  std::unique_ptr<Outbox> outbox_;                       // … in its place, where chunks go to another host
  std::vector<uint64_t> rewritten_;                      // per slot; empty: nothing was changed
  uint64_t rewrites_ = 0;
  std::vector<uint32_t> drawn_;
  std::vector<uint32_t> emptied_;  // released slots that may have blocks of ragged values
  std::vector<uint32_t> scratch_;
  uint64_t items_ = 0;
};

}  // namespace apexrl
