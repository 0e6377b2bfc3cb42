// What the owner knows of its replay: which slot is what, the eviction order, the sum tree.
//
// All of it can be made again from shared words (take_over). Not thread-safe: the Owner holds its mutex around it.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "crash.h"
#include "layout.h"
#include "limiter.h"
#include "process.h"
#include "queue.h"
#include "removal.h"
#include "segment.h"
#include "sum_tree.h"

namespace apexrl {

class Book {
 public:
  struct SlotView {
    uint64_t generation = 0;
    uint32_t visible = 0;  // item positions in the tree, a prefix
    uint32_t items = 0;    // that are still there
    uint64_t order = 0;    // of eviction, from 1 on; 0: not committed
  };

  explicit Book(const std::shared_ptr<Segment>& segment)
      : limiter(View(segment->data())),
        tree(View(segment->data()).leaves(),
             size_t(View(segment->data()).geometry().slots) * View(segment->data()).geometry().leaves),
        slots(View(segment->data()).geometry().slots),
        removal_rng(View(segment->data()).geometry().seed ^ 0x5851f42d4c957f2d),
        segment_(segment),
        view_(segment->data()),
        held_(view_.geometry().lanes),
        seen_published_(view_.geometry().lanes, ~uint64_t(0)) {
    if (view_.geometry().remover == Remover::proportional) removal_ = std::make_unique<Removal>(view_);
  }

  static constexpr double kNoItem = -0.0;  // a leaf: adds nothing, and differs from an item of priority zero

  Limiter limiter;
  SumTree tree;                 // over item priorities
  std::vector<SlotView> slots;
  Rng removal_rng;

  uint64_t items() const { return items_; }

  // A new priority of an item, after eps and alpha.
  void set_priority(size_t leaf, double value) {
    tree.set(leaf, value);
    if (removal_) removal_->set(leaf, value);
  }

  // fifo: the next n items. Their slots stay until done_with() at least.
  void take(size_t n, std::vector<ItemRef>& items) {
    queue_.take(view_, n, items);
    for (const ItemRef& item : items) --slots[item.slot].items;
    items_ -= n;
  }
  void done_with(const std::vector<ItemRef>& items) {
    for (const ItemRef& item : items)
      if (slots[item.slot].items == 0 && slots[item.slot].order != 0) release(item.slot);
  }

  // Removes what is above `to` items.
  void trim(uint64_t to) {
    const Geometry& g = view_.geometry();
    if (g.sampler == Sampler::fifo) return;
    if (removal_) {
      while (items_ > to) {
        removal_->draw(size_t(items_ - to), removal_rng, drawn_);
        if (drawn_.empty()) return;
        for (const uint32_t leaf : drawn_) remove(leaf);
      }
    } else {
      while (items_ > to && evict_oldest()) {}
    }
    tree.propagate();
    header().items.store(items_, std::memory_order_release);
  }

  // Slots with items, oldest first, then those still being written.
  std::vector<uint32_t> filled() const {
    std::vector<uint32_t> all;
    auto add = [&](uint32_t s) {
      if (slots[s].visible > 0) all.push_back(s);
    };
    for (const auto& [s, order] : committed_)
      if (slots[s].order == order) add(s);
    for (const auto& lane : held_)
      for (const uint32_t s : lane) add(s);
    return all;
  }

  // Makes tree, order and lists again from the slot words; workers may go on meanwhile. Answers how many owners were before.
  uint64_t take_over() {
    Header& h = header();
    const Geometry& g = view_.geometry();
    const uint64_t epoch = h.epoch.fetch_add(1, std::memory_order_acq_rel);
    h.owner_pid.store(uint32_t(getpid()), std::memory_order_release);
    reclaim_grant();
    const uint64_t used = std::min<uint64_t>(h.next_unused.load(std::memory_order_acquire), g.slots);
    std::vector<std::pair<uint64_t, uint32_t>> order;
    for (uint32_t s = 0; s < used; ++s) order_slot(s, order);
    seen_unused_ = used;
    std::sort(order.begin(), order.end());
    for (const auto& [number, s] : order) {
      if (slots[s].items == 0) {  // its last item went just before a predecessor did
        release(s);
        continue;
      }
      slots[s].order = number;
      committed_.emplace_back(s, number);
      requeue(s);
    }
    for (auto& lane : held_) {
      in_order_of_use(lane);
      for (const uint32_t s : lane) requeue(s);
    }
    tree.rebuild();
    h.absorbed.store(h.inserted.load(std::memory_order_acquire), std::memory_order_release);
    h.lost.fetch_add(h.handed.exchange(0));
    h.items.store(items_, std::memory_order_release);
    drain();
    h.absorbed.store(h.inserted.load(std::memory_order_acquire), std::memory_order_release);
    if (g.sampler == Sampler::fifo)  // a predecessor may have died between giving out and counting
      h.sampled.store(h.absorbed.load() - std::min<uint64_t>(items_, h.absorbed.load()));
    return epoch;
  }

  // Takes in what workers published, evicts beyond capacity, hands out slots.
  void drain() {
    Header& h = header();
    const Geometry& g = view_.geometry();
    discover();
    for (uint32_t l = 0; l < g.lanes; ++l) {
      Lane& lane = view_.lane(l);
      const uint64_t published = lane.published.load(std::memory_order_acquire);
      if (published != seen_published_[l]) {
        seen_published_[l] = published;
        take_in(l);
        tree.propagate();
        lane.settled.store(published, std::memory_order_release);
      }
    }
    trim(g.most);
    tree.propagate();
    bool starved = false;
    for (uint32_t l = 0; l < g.lanes; ++l)
      if (view_.lane(l).active.load(std::memory_order_acquire)) starved |= !refill(l);
    const int64_t now = now_ns();
    if (now - swept_ > (starved ? 1'000'000 : 200'000'000)) {
      swept_ = now;
      sweep();
    }
    h.items.store(items_, std::memory_order_release);
    limiter.update();
    limiter.wake_lanes();
  }

  // Whether workers of other processes are at work.
  bool serves_others() const {
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) {
      const Lane& lane = view_.lane(l);
      if (lane.active.load(std::memory_order_acquire) && lane.pid.load(std::memory_order_relaxed) != uint32_t(getpid()))
        return true;
    }
    return false;
  }

 private:
  Header& header() const { return view_.header(); }

  void order_slot(uint32_t s, std::vector<std::pair<uint64_t, uint32_t>>& order) {
    const Geometry& g = view_.geometry();
    SlotMeta& meta = view_.meta(s);
    const SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));
    SlotView& mine = slots[s];
    mine = SlotView{word.generation, 0, 0, 0};
    double* leaves = view_.leaves(s);
    const bool live = word.state == SlotState::leased || word.state == SlotState::closed ||
                      word.state == SlotState::committed;
    if (live) {
      mine.visible = std::min(meta.drained.load(std::memory_order_acquire), g.chunk);
      const uint32_t consumed = meta.consumed.load(std::memory_order_acquire);
      const double* staged = view_.staged(s);
      for (uint32_t p = 0; p < mine.visible; ++p) {
        const bool item = staged[p] >= 0.0;
        mine.items += item && p >= consumed;
        if (!item) leaves[p] = kNoItem;
        if (removal_) removal_->set(size_t(s) * g.leaves + p, leaves[p]);
      }
      items_ += mine.items;
    }
    std::fill(leaves + mine.visible, leaves + g.leaves, 0.0);
    switch (word.state) {
      case SlotState::unused: unsettled_.push_back(s); break;
      case SlotState::free: free_.push_back(s); break;
      case SlotState::committed: order.emplace_back(meta.order.load(std::memory_order_relaxed), s); break;
      default: held_[word.lane].push_back(s);
    }
  }

  // fifo: what a lane published first is given out first. Answers how many slots are to be looked at: those without
  // items come last, for what their order word says is of an earlier life, and have their turn when it is new.
  size_t in_order_of_use(std::vector<uint32_t>& held) const {
    if (view_.geometry().sampler != Sampler::fifo) return held.size();
    const auto used = std::partition(held.begin(), held.end(), [&](uint32_t s) {
      return view_.meta(s).count.load(std::memory_order_acquire) > 0 ||
             SlotWord::unpack(view_.meta(s).word.load(std::memory_order_acquire)).state != SlotState::leased;
    });
    std::sort(held.begin(), used, [&](uint32_t a, uint32_t b) {
      return view_.meta(a).order.load(std::memory_order_relaxed) < view_.meta(b).order.load(std::memory_order_relaxed);
    });
    return size_t(used - held.begin());
  }

  // fifo: what a predecessor had taken in and not given out.
  void requeue(uint32_t s) {
    if (view_.geometry().sampler != Sampler::fifo) return;
    const uint32_t consumed = view_.meta(s).consumed.load(std::memory_order_acquire);
    if (consumed < slots[s].visible) queue_.push(view_, s, consumed, slots[s].visible);
  }

  // A predecessor died while it handed out a slot: take it back unless the worker got it.
  void reclaim_grant() {
    Header& h = header();
    const uint32_t granting = h.granting.load(std::memory_order_acquire);
    if (granting == 0) return;
    const Geometry& g = view_.geometry();
    SlotMeta& meta = view_.meta(granting - 1);
    SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));
    if (word.state == SlotState::leased) {
      bool seen = false;
      for (uint32_t d = 0; d < g.desk; ++d) seen |= view_.desk(word.lane)[d].load(std::memory_order_acquire) == granting;
      for (uint32_t s = 0; s < g.streams; ++s) seen |= view_.next(word.lane)[s].load(std::memory_order_acquire) == granting;
      for (uint32_t s = 0; s < g.streams; ++s)
        seen |= view_.current(word.lane)[s].load(std::memory_order_acquire) == granting;
      word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));  // it may have been filled since
      if (!seen && word.state == SlotState::leased && meta.count.load(std::memory_order_acquire) == 0) {
        word.state = SlotState::free;
        meta.word.store(word.pack(), std::memory_order_release);
      }
    }
    h.granting.store(0, std::memory_order_release);
  }

  // Slots that workers took from the counter of never-used ones.
  void discover() {
    const uint64_t used = std::min<uint64_t>(header().next_unused.load(std::memory_order_acquire),
                                             view_.geometry().slots);
    for (; seen_unused_ < used; ++seen_unused_) unsettled_.push_back(uint32_t(seen_unused_));
    for (size_t i = 0; i < unsettled_.size();) {
      const uint32_t s = unsettled_[i];
      const SlotWord word = SlotWord::unpack(view_.meta(s).word.load(std::memory_order_acquire));
      if (word.state == SlotState::unused) {  // claimed at this moment
        ++i;
        continue;
      }
      slots[s].generation = word.generation;
      auto& held = held_[word.lane];
      if (std::find(held.begin(), held.end(), s) == held.end()) held.push_back(s);
      seen_published_[word.lane] = ~uint64_t(0);
      unsettled_.erase(unsettled_.begin() + std::ptrdiff_t(i));
    }
  }

  // New items of a lane's slots into the tree; slots that it closed into the order.
  void take_in(uint32_t l) {
    auto& held = held_[l];
    size_t kept = 0;
    finished_.clear();
    const size_t with_items = in_order_of_use(held);
    // Newest first: what a worker published in an older slot before it is then seen too.
    news_.assign(held.size(), News{SlotWord{SlotState::leased, l, 0}, 0});
    for (size_t i = with_items; i-- > 0;) {
      const SlotMeta& meta = view_.meta(held[i]);
      news_[i].word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));  // before the count
      news_[i].count = meta.count.load(std::memory_order_acquire);
    }
    for (size_t i = 0; i < held.size(); ++i) {
      const uint32_t s = held[i];
      const SlotWord word = news_[i].word;
      SlotMeta& meta = view_.meta(s);
      absorb(s, news_[i].count);
      if (word.state == SlotState::leased) {
        held[kept++] = s;
      } else if (slots[s].items > 0) {
        finished_.emplace_back(meta.order.load(std::memory_order_relaxed), s);
      } else {
        release(s);
      }
    }
    held.resize(kept);
    std::sort(finished_.begin(), finished_.end());
    for (const auto& [used, s] : finished_) commit(s);
  }

  void absorb(uint32_t s, uint32_t count) {
    SlotView& mine = slots[s];
    if (count <= mine.visible) return;
    const Geometry& g = view_.geometry();
    const double* staged = view_.staged(s);
    const bool fifo = g.sampler == Sampler::fifo;
    uint32_t items = 0;
    for (uint32_t p = mine.visible; p < count; ++p) {
      const double value = staged[p];
      if (!(value >= 0.0)) {
        view_.leaves(s)[p] = kNoItem;
        continue;
      }
      if (fifo) {
        view_.leaves(s)[p] = 0.0;
      } else {
        set_priority(size_t(s) * g.leaves + p, value);
      }
      ++items;
    }
    if (fifo) queue_.push(view_, s, mine.visible, count);
    mine.visible = count;
    mine.items += items;
    items_ += items;
    APEXRL_POINT();
    view_.meta(s).drained.store(count, std::memory_order_release);
    APEXRL_POINT();
    header().absorbed.fetch_add(items, std::memory_order_relaxed);
  }

  void commit(uint32_t s) {
    Header& h = header();
    SlotMeta& meta = view_.meta(s);
    const uint64_t order = h.next_order.fetch_add(1, std::memory_order_relaxed) + 1;
    APEXRL_POINT();
    meta.order.store(order, std::memory_order_relaxed);
    APEXRL_POINT();
    set_state(s, SlotState::committed);
    slots[s].order = order;
    committed_.emplace_back(s, order);
    if (committed_.size() > 2 * slots.size()) {  // entries of slots that went out of turn
      std::erase_if(committed_, [&](const auto& entry) { return slots[entry.first].order != entry.second; });
    }
  }

  // False when no committed slot is left.
  bool evict_oldest() {
    while (!committed_.empty()) {
      const auto [s, order] = committed_.front();
      committed_.pop_front();
      if (slots[s].order != order) continue;  // it went out of turn
      header().evicted.fetch_add(slots[s].items, std::memory_order_relaxed);
      release(s);
      return true;
    }
    return false;
  }

  // Proportional removal of one item; its chunk is free when the last one has gone.
  void remove(size_t leaf) {
    const uint32_t s = uint32_t(leaf / view_.geometry().leaves), p = uint32_t(leaf % view_.geometry().leaves);
    view_.staged(s)[p] = -1.0;  // what a successor counts by
    APEXRL_POINT();
    set_priority(leaf, kNoItem);
    header().evicted.fetch_add(1, std::memory_order_relaxed);
    --slots[s].items;
    --items_;
    if (slots[s].items == 0 && slots[s].order != 0) release(s);
  }

  void release(uint32_t s) {
    const Geometry& g = view_.geometry();
    set_state(s, SlotState::free);  // before its leaves: a successor clears the leaves of free slots
    APEXRL_POINT();
    SlotView& mine = slots[s];
    items_ -= mine.items;
    for (uint32_t p = 0; p < mine.visible && g.sampler != Sampler::fifo; ++p) {
      const size_t leaf = size_t(s) * g.leaves + p;
      tree.set(leaf, 0.0);
      if (removal_) removal_->set(leaf, kNoItem);
    }
    mine.visible = mine.items = 0;
    mine.order = 0;
    free_.push_back(s);
  }

  void set_state(uint32_t s, SlotState state) {
    auto& word = view_.meta(s).word;
    SlotWord w = SlotWord::unpack(word.load(std::memory_order_relaxed));
    w.state = state;
    word.store(w.pack(), std::memory_order_release);
  }

  // Puts free slots on a lane's desk. False when there were too few and the lane has none left.
  bool refill(uint32_t l) {
    const Geometry& g = view_.geometry();
    Lane& lane = view_.lane(l);
    auto* desk = view_.desk(l);
    const uint32_t want =
        g.kind == Kind::rows ? g.desk : std::min(g.desk, lane.streams.load(std::memory_order_relaxed));
    uint32_t ready = 0, granted = 0;
    for (uint32_t d = 0; d < g.desk; ++d) ready += desk[d].load(std::memory_order_relaxed) != 0;
    for (uint32_t d = 0; d < g.desk && ready < want; ++d) {
      if (desk[d].load(std::memory_order_acquire) != 0) continue;
      if (free_.empty()) {
        const bool claimed = claim_unused();
        if (!claimed && (ready > 0 || g.sampler == Sampler::fifo)) break;
        if (!claimed) {  // many half-filled chunks: better to lose the oldest than to stop a worker
          if (!evict_oldest()) break;
          tree.propagate();
        }
      }
      const uint32_t s = free_.back();
      free_.pop_back();
      grant(s, l, desk[d]);
      ++ready;
      ++granted;
    }
    if (granted > 0 && lane.waiting.load(std::memory_order_seq_cst)) futex_wake(lane.bell);
    return ready > 0;
  }

  bool claim_unused() {
    auto& counter = header().next_unused;
    uint64_t n = counter.load(std::memory_order_acquire);
    if (n >= view_.geometry().slots || !counter.compare_exchange_strong(n, n + 1)) return false;
    set_state(uint32_t(n), SlotState::free);
    slots[n].generation = 0;
    free_.push_back(uint32_t(n));
    // Workers may have claimed slots just before ours: those are to be discovered, ours is not.
    for (; seen_unused_ < n; ++seen_unused_) unsettled_.push_back(uint32_t(seen_unused_));
    seen_unused_ = n + 1;
    return true;
  }

  void grant(uint32_t s, uint32_t l, std::atomic<uint32_t>& entry) {
    Header& h = header();
    SlotMeta& meta = view_.meta(s);
    meta.count.store(0, std::memory_order_relaxed);
    meta.items.store(0, std::memory_order_relaxed);
    meta.drained.store(0, std::memory_order_relaxed);
    meta.consumed.store(0, std::memory_order_relaxed);
    const uint64_t generation = SlotWord::unpack(meta.word.load(std::memory_order_relaxed)).generation + 1;
    APEXRL_POINT();
    h.granting.store(s + 1, std::memory_order_release);
    APEXRL_POINT();
    meta.word.store(SlotWord{SlotState::leased, l, generation}.pack(), std::memory_order_release);
    APEXRL_POINT();
    entry.store(s + 1, std::memory_order_release);
    APEXRL_POINT();
    h.granting.store(0, std::memory_order_release);
    APEXRL_POINT();
    slots[s] = SlotView{generation, 0, 0, 0};
    held_[l].push_back(s);
  }

  // Lanes whose worker has died, or that were given back while a slot was on its way to them.
  void sweep() {
    const Geometry& g = view_.geometry();
    for (uint32_t l = 0; l < g.lanes; ++l) {
      Lane& lane = view_.lane(l);
      const bool active = lane.active.load(std::memory_order_acquire);
      if (!active && held_[l].empty()) continue;
      if (!segment_->try_lock(kLaneLock + l)) continue;  // its worker lives
      retire_lane(view_, l);
      segment_->unlock(kLaneLock + l);
      if (active) header().lanes_reclaimed.fetch_add(1, std::memory_order_relaxed);
      take_in(l);
    }
    // A claim that stays unsettled although no lane is making it.
    for (size_t i = 0; i < unsettled_.size();) {
      const uint32_t s = unsettled_[i];
      bool claimed = false;
      for (uint32_t l = 0; l < g.lanes && !claimed; ++l)
        for (uint32_t k = 0; k < g.streams && !claimed; ++k)
          claimed = view_.next(l)[k].load(std::memory_order_acquire) == s + 1;
      if (claimed || view_.meta(s).word.load(std::memory_order_acquire) != 0) {
        ++i;
        continue;
      }
      unsettled_.erase(unsettled_.begin() + std::ptrdiff_t(i));
      set_state(s, SlotState::free);
      free_.push_back(s);
    }
    tree.propagate();
  }

  std::shared_ptr<Segment> segment_;
  View view_;
  std::vector<std::vector<uint32_t>> held_;  // per lane: slots leased to it
  std::vector<uint64_t> seen_published_;     // per lane: what was taken in
  std::deque<std::pair<uint32_t, uint64_t>> committed_;  // slot and order, oldest first; stale where the order differs
  Queue queue_;                              // fifo sampler
  std::unique_ptr<Removal> removal_;         // proportional remover
  std::vector<uint32_t> drawn_;
  struct News {
    SlotWord word;
    uint32_t count;
  };
  std::vector<News> news_;                   // of the lane that is being taken in
  std::vector<uint32_t> free_;
  std::vector<uint32_t> unsettled_;          // below next_unused, but not yet said to be anyone's
  std::vector<std::pair<uint64_t, uint32_t>> finished_;
  uint64_t seen_unused_ = 0;
  uint64_t items_ = 0;
  int64_t swept_ = 0;
};

}  // namespace apexrl
