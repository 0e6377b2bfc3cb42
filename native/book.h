// The owner's state of the workers: which slots they lease, what they published, which of them died.
//
// All of it can be rebuilt from shared words (take_over). Not thread-safe: the Owner holds its mutex around it.
#pragma once

#include <utility>
#include <vector>

#include "blocks.h"
#include "crash.h"
#include "growth.h"
#include "view.h"
#include "limiter.h"
#include "process.h"
#include "segment.h"
#include "store.h"

namespace apexrl {

class Book {
 public:
  explicit Book(const std::shared_ptr<Segment>& segment)
      : limiter(View(segment->data())),
        store(View(segment->data())),
        segment_(segment),
        view_(segment->data()),
        held_(view_.geometry().lanes),
        seen_published_(view_.geometry().lanes, ~uint64_t(0)) {}

  Limiter limiter;
  Store store;

  // Slots with items, oldest first, then those still being written, of each lane in the order of their use.
  std::vector<uint32_t> filled() const {
    std::vector<uint32_t> all = store.in_order();
    std::vector<std::pair<uint64_t, uint32_t>> open;
    for (const auto& lane : held_) {
      open.clear();
      for (const uint32_t s : lane)
        if (store.slots[s].visible > 0) open.emplace_back(view_.meta(s).order.load(std::memory_order_relaxed), s);
      std::sort(open.begin(), open.end());
      for (const auto& [used, s] : open) all.push_back(s);
    }
    return all;
  }

  // Rebuilds tree, order and lists from the slot words, while workers continue. Returns the number of earlier owners.
  uint64_t take_over() {
    Header& h = header();
    const Geometry& g = view_.geometry();
    const uint64_t epoch = h.epoch.fetch_add(1, std::memory_order_acq_rel);
    h.sampler_waits.store(0, std::memory_order_relaxed);  // a predecessor may have died while it waited
    h.owner.store(process_token(), std::memory_order_release);
    reclaim_grant();
    if (g.blocks > 0) search_all_blocks(view_);
    const uint64_t used = std::min<uint64_t>(h.next_unused.load(std::memory_order_acquire), g.slots);
    std::vector<std::pair<uint64_t, uint32_t>> order;
    for (uint32_t s = 0; s < used; ++s) order_slot(s, order);
    seen_unused_ = used;
    std::sort(order.begin(), order.end());
    for (const auto& [number, s] : order) store.restore(s, number);
    for (auto& lane : held_) {
      in_order_of_use(lane);
      for (const uint32_t s : lane) store.requeue(s);
    }
    store.rebuild(used);
    h.absorbed.store(h.inserted.load(std::memory_order_acquire), std::memory_order_release);
    h.lost.fetch_add(h.handed.exchange(0));
    h.items.store(store.items(), std::memory_order_release);
    drain();
    h.absorbed.store(h.inserted.load(std::memory_order_acquire), std::memory_order_release);
    limiter.update();
    if (g.sampler == Sampler::fifo)  // a predecessor may have died between giving out and counting
      h.sampled.store(h.absorbed.load() - std::min<uint64_t>(store.items(), h.absorbed.load()));
    return epoch;
  }

  // Absorbs what workers published, evicts beyond the capacity, and gives out slots.
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
        store.tree.propagate();
        lane.settled.store(published, std::memory_order_release);
      }
    }
    store.trim(g.most);
    if (h.blocks_short.load(std::memory_order_relaxed)) relieve_blocks();
    store.free_emptied();
    store.tree.propagate();
    bool starved = false;
    for (uint32_t l = 0; l < g.lanes; ++l)
      if (view_.lane(l).active.load(std::memory_order_acquire)) starved |= !refill(l);
    const int64_t now = now_ns();
    if (now - swept_ > (starved ? 1'000'000 : 200'000'000)) {
      swept_ = now;
      sweep();
    }
    limiter.crowded &= store.items() < limiter.min_size() && store.free.empty();
    tell_limiter();
  }

  // To be called when the number of items has changed.
  void tell_limiter() {
    header().items.store(store.items(), std::memory_order_release);
    limiter.update();
    limiter.wake_lanes();
  }

  // For tests: whether every used slot is in exactly the list that its word names.
  bool closes() const {
    const Geometry& g = view_.geometry();
    std::vector<uint32_t> lists(g.slots);
    bool fine = true;
    const auto check = [&](uint32_t s, auto... states) {
      const SlotWord word = SlotWord::unpack(view_.meta(s).word.load(std::memory_order_acquire));
      fine = fine && ((word.state == states) || ...);
      ++lists[s];
    };
    for (const uint32_t s : store.free) check(s, SlotState::free);
    for (const uint32_t s : store.in_order()) check(s, SlotState::committed);
    for (const auto& lane : held_)
      for (const uint32_t s : lane) check(s, SlotState::leased, SlotState::closed);
    for (const uint32_t s : unsettled_) check(s, SlotState::unused, SlotState::leased, SlotState::closed);
    for (uint64_t s = 0; s < seen_unused_; ++s) fine = fine && lists[s] == 1;
    return fine && blocks_close(view_);
  }

  // Whether other processes have workers.
  bool serves_others() const {
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) {
      const Lane& lane = view_.lane(l);
      if (lane.active.load(std::memory_order_acquire) && lane.process.load(std::memory_order_relaxed) != process_token())
        return true;
    }
    return false;
  }

 private:
  Header& header() const { return view_.header(); }

  void order_slot(uint32_t s, std::vector<std::pair<uint64_t, uint32_t>>& order) {
    SlotMeta& meta = view_.meta(s);
    const SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));
    if (!word.sound(view_.geometry())) return damaged();
    store.read(s, word);
    switch (word.state) {
      case SlotState::unused: unsettled_.push_back(s); break;
      case SlotState::free: store.free.push_back(s); break;
      case SlotState::committed: order.emplace_back(meta.order.load(std::memory_order_relaxed), s); break;
      default: held_[word.lane].push_back(s);
    }
  }

  // fifo: what a lane published first is given out first; where age counts, it is older. Answers how many slots are to
  // be looked at now.
  //
  // A worker goes on meanwhile. A slot that has items here makes all that were used before it due, also one that was
  // looked at first and was still empty then; what comes later has its turn with the next drain. What the order word
  // of a slot without items says is of an earlier generation.
  size_t in_order_of_use(std::vector<uint32_t>& held) {
    if (!keeps_order(view_.geometry())) return held.size();
    const auto filled = [&](uint32_t s) { return view_.meta(s).count.load(std::memory_order_acquire) > 0; };
    const auto order = [&](uint32_t s) { return view_.meta(s).order.load(std::memory_order_relaxed); };
    uint64_t newest = 0;
    for (const uint32_t s : held)
      if (filled(s)) newest = std::max(newest, order(s));
    const auto due = std::partition(held.begin(), held.end(), [&](uint32_t s) {
      if (filled(s)) return order(s) <= newest;
      return SlotWord::unpack(view_.meta(s).word.load(std::memory_order_acquire)).state != SlotState::leased;
    });
    used_.clear();  // a copy: sort keys must not change during the sort
    for (auto s = held.begin(); s != due; ++s) used_.emplace_back(order(*s), *s);
    std::sort(used_.begin(), used_.end());
    for (size_t i = 0; i < used_.size(); ++i) held[i] = used_[i].second;
    return used_.size();
  }

  void damaged() const { header().damaged.fetch_add(1, std::memory_order_relaxed); }

  // A predecessor died while it gave out a slot: take it back unless the worker received it.
  void reclaim_grant() {
    Header& h = header();
    const uint32_t granting = h.granting.load(std::memory_order_acquire);
    if (granting == 0) return;
    const Geometry& g = view_.geometry();
    if (granting > g.slots) {
      damaged();
      return h.granting.store(0, std::memory_order_release);
    }
    SlotMeta& meta = view_.meta(granting - 1);
    SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));
    if (word.state == SlotState::leased && word.sound(g)) {
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
    size_t kept = 0;
    for (const uint32_t s : unsettled_) {
      const SlotWord word = SlotWord::unpack(view_.meta(s).word.load(std::memory_order_acquire));
      if (word.state == SlotState::unused) {  // claimed at this moment
        unsettled_[kept++] = s;
        continue;
      }
      if (!word.sound(view_.geometry())) {
        damaged();
        continue;
      }
      auto& held = held_[word.lane];
      const bool seen = store.slots[s].generation != 0;  // as one that this owner gave out, which is there already
      store.slots[s].generation = word.generation;
      if (!seen || std::find(held.begin(), held.end(), s) == held.end()) held.push_back(s);
      seen_published_[word.lane] = ~uint64_t(0);
    }
    unsettled_.resize(kept);
  }

  // Adds new items of a lane's slots to the tree, and slots that it closed to the order.
  void take_in(uint32_t l) {
    auto& held = held_[l];
    size_t kept = 0;
    finished_.clear();
    const size_t with_items = in_order_of_use(held);
    // Newest first, so that what a worker published earlier in an older slot is seen too.
    news_.assign(held.size(), News{SlotWord{SlotState::leased, l, 0}, 0});
    for (size_t i = with_items; i-- > 0;) {
      const SlotMeta& meta = view_.meta(held[i]);
      news_[i].word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));  // before the count
      news_[i].count = meta.count.load(std::memory_order_acquire);
    }
    const int64_t now = now_ns();
    for (size_t i = 0; i < held.size(); ++i) {
      const uint32_t s = held[i];
      const SlotWord word = news_[i].word;
      SlotMeta& meta = view_.meta(s);
      if (!word.sound(view_.geometry())) {
        damaged();
        throw DamagedState();  // take_over() leaves it out
      }
      if (news_[i].count <= view_.geometry().chunk) {
        store.absorb(s, news_[i].count, now);
      } else {
        damaged();
      }
      if (word.state == SlotState::leased) {
        held[kept++] = s;
      } else if (store.slots[s].items > 0) {
        finished_.emplace_back(meta.order.load(std::memory_order_relaxed), s);
      } else {
        store.release(s);
      }
    }
    held.resize(kept);
    std::sort(finished_.begin(), finished_.end());
    for (const auto& [used, s] : finished_) store.commit(s);
  }

  // Puts free slots on a lane's desk. False: there were too few, and the lane has none left.
  bool refill(uint32_t l) {
    const Geometry& g = view_.geometry();
    Lane& lane = view_.lane(l);
    auto* desk = view_.desk(l);
    const uint32_t want =
        g.kind == Kind::rows ? g.desk : std::min(g.desk, lane.streams.load(std::memory_order_relaxed));
    uint32_t ready = 0, granted = 0;
    for (uint32_t d = 0; d < g.desk; ++d) {
      const uint32_t held = desk[d].load(std::memory_order_relaxed);
      if (held > g.slots) {
        damaged();
        desk[d].store(0, std::memory_order_relaxed);
      }
      ready += held != 0 && held <= g.slots;
    }
    for (uint32_t d = 0; d < g.desk && ready < want; ++d) {
      if (desk[d].load(std::memory_order_acquire) != 0) continue;
      if (store.free.empty()) {
        const bool claimed = claim_unused();
        if (!claimed && g.sampler == Sampler::fifo) break;
        if (!claimed && ready > 0 && !lane.waiting.load(std::memory_order_relaxed)) break;
        if (!claimed) {  // many part-filled chunks: evict the oldest rather than stop a worker
          if (!store.evict_oldest()) break;
          limiter.crowded = true;
          store.tree.propagate();
        }
      }
      const uint32_t s = store.free.back();
      store.free.pop_back();
      grant(s, l, desk[d]);
      ++ready;
      ++granted;
    }
    if (granted > 0 && lane.waiting.load(std::memory_order_seq_cst)) futex_wake(lane.bell);
    return ready > 0;
  }

  // Some worker got no block for a ragged value: the oldest chunk goes rather than stop it. (fifo: it waits.)
  void relieve_blocks() {
    Header& h = header();
    h.blocks_short.store(0, std::memory_order_relaxed);
    if (view_.geometry().sampler != Sampler::fifo) store.evict_oldest();
    h.lane_waits.store(1, std::memory_order_relaxed);
  }

  bool claim_unused() {
    auto& counter = header().next_unused;
    uint64_t n = counter.load(std::memory_order_acquire);
    do {
      if (n >= view_.geometry().slots || !grown_to(*segment_, view_, n + 1)) return false;
    } while (!counter.compare_exchange_weak(n, n + 1));
    store.set_state(uint32_t(n), SlotState::free);
    store.slots[n].generation = 0;
    store.free.push_back(uint32_t(n));
    // Workers may have claimed slots just before this one, which must be discovered.
    for (; seen_unused_ < n; ++seen_unused_) unsettled_.push_back(uint32_t(seen_unused_));
    seen_unused_ = n + 1;
    return true;
  }

  void grant(uint32_t s, uint32_t l, Shared<uint32_t>& entry) {
    Header& h = header();
    store.free_emptied();
    SlotMeta& meta = view_.meta(s);
    const uint64_t generation = SlotWord::unpack(meta.word.load(std::memory_order_relaxed)).generation + 1;
    meta.past.store((generation - 1) << 16 | (meta.count.load(std::memory_order_relaxed) & 0xffff), std::memory_order_relaxed);
    meta.word.store(SlotWord{SlotState::free, 0, generation}.pack(), std::memory_order_release);  // before its count goes
    meta.count.store(0, std::memory_order_release);
    meta.items.store(0, std::memory_order_relaxed);
    meta.drained.store(0, std::memory_order_relaxed);
    meta.consumed.store(0, std::memory_order_relaxed);
    h.granting.store(s + 1, std::memory_order_release);
    meta.word.store(SlotWord{SlotState::leased, l, generation}.pack(), std::memory_order_release);
    entry.store(s + 1, std::memory_order_release);
    h.granting.store(0, std::memory_order_release);
    store.slots[s] = Store::SlotView{generation, 0, 0, 0};
    held_[l].push_back(s);
  }

  // Reclaims lanes whose worker died, or that were returned while a slot was being given to them.
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
    // A claim that stays unsettled although no lane makes it.
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
      store.set_state(s, SlotState::free);
      store.free.push_back(s);
    }
    store.tree.propagate();
  }

  std::shared_ptr<Segment> segment_;
  View view_;
  std::vector<std::vector<uint32_t>> held_;  // per lane: slots leased to it
  std::vector<uint64_t> seen_published_;     // per lane: absorbed publications
  struct News {
    SlotWord word;
    uint32_t count;
  };
  std::vector<News> news_;                   // of the lane being absorbed
  std::vector<std::pair<uint64_t, uint32_t>> used_;  // order and slot, while in_order_of_use() sorts
  std::vector<uint32_t> unsettled_;          // below next_unused, but without a known holder
  std::vector<std::pair<uint64_t, uint32_t>> finished_;
  uint64_t seen_unused_ = 0;
  int64_t swept_ = 0;
};

}  // namespace apexrl
