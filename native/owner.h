// The one process that samples: sum tree, eviction order, limiter.
//
// Everything that a successor needs stands in shared words; the members here can be made again from them. A native
// thread serves workers of other processes, so that they never wait for the training loop. Its mutex is private to
// this process.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gather.h"
#include "layout.h"
#include "power.h"
#include "rng.h"
#include "segment.h"
#include "sum_tree.h"

namespace apexrl {

enum class SampleStatus : int { ok = 0, too_few = 1, limited = 2, all_zero = 3, closed = 4 };

// Where a sampled batch goes: contiguous arrays of n rows.
struct Outputs {
  size_t n = 0;
  std::vector<uint8_t*> column;       // [columns], null: not wanted
  std::vector<uint8_t*> next_column;  // [columns], null: not wanted
  float* reward = nullptr;            // kind transition
  float* discount = nullptr;
  uint64_t* keys = nullptr;
  double* probabilities = nullptr;
  float* weights = nullptr;
};

class Owner {
 public:
  // Takes ownership, or returns null and the pid of the living owner.
  static Owner* acquire(const std::shared_ptr<Segment>& segment, int& holder) {
    if (!segment->try_lock(kOwnerLock)) {
      holder = segment->holder(kOwnerLock);
      return nullptr;
    }
    return new Owner(segment);
  }

  // In a forked child this object is only memory: the caller leaks it instead of destroying it.
  ~Owner() {
    {
      std::lock_guard guard(mutex_);
      stop_ = true;
    }
    futex_wake(header().bell);
    if (thread_.joinable()) thread_.join();
    header().owner_pid.store(0, std::memory_order_release);
    segment_->unlock(kOwnerLock);
  }

  uint64_t size() {
    std::lock_guard guard(mutex_);
    drain();
    return items_;
  }

  // Takes in what workers published, frees and hands out slots.
  void serve() {
    std::lock_guard guard(mutex_);
    drain();
  }

  SampleStatus sample(double beta, Outputs& out) {
    std::lock_guard guard(mutex_);
    Header& h = header();
    if (h.closed.load(std::memory_order_acquire)) return SampleStatus::closed;
    drain();
    const SampleStatus status = may_sample(out.n);
    if (status != SampleStatus::ok) return status;
    draw(out, beta);
    const Geometry& g = view_.geometry();
    if (g.kind == Kind::transition) {
      for (auto& ref : refs_) ref.span = span_of(view_, ref.slot, ref.row, g.rows);
      gather_returns(view_, refs_.data(), out.n, out.reward, out.discount);
    }
    for (uint32_t c = 0; c < g.columns; ++c) {
      if (out.column[c]) gather_column(view_, h.column[c], refs_.data(), out.n, false, out.column[c]);
      if (out.next_column[c]) gather_column(view_, h.column[c], refs_.data(), out.n, true, out.next_column[c]);
    }
    h.sampled.fetch_add(out.n, std::memory_order_relaxed);
    update_limit();
    wake_lanes();
    return SampleStatus::ok;
  }

  // Writes powered priorities by key; a key whose item has gone is counted and left alone.
  void update(const uint64_t* keys, const double* powered, size_t n, size_t& applied, size_t& stale) {
    std::lock_guard guard(mutex_);
    drain();
    const Geometry& g = view_.geometry();
    const uint64_t offset_mask = (uint64_t(1) << g.offset_bits) - 1, slot_mask = (uint64_t(1) << g.slot_bits) - 1;
    const uint64_t generation_mask = ~uint64_t(0) >> (g.offset_bits + g.slot_bits);
    double largest = 0.0;
    applied = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i + 8 < n) {
        const uint64_t ahead = std::min<uint64_t>(keys[i + 8] >> g.offset_bits & slot_mask, g.slots - 1);
        __builtin_prefetch(&slots_[ahead]);
        __builtin_prefetch(view_.leaves(uint32_t(ahead)) + (keys[i + 8] & offset_mask), 1);
      }
      const uint64_t offset = keys[i] & offset_mask, slot = keys[i] >> g.offset_bits & slot_mask;
      const uint64_t generation = keys[i] >> (g.offset_bits + g.slot_bits);
      if (slot >= g.slots || offset >= slots_[slot].visible ||
          (slots_[slot].generation & generation_mask) != generation || slots_[slot].finals >> offset & 1)
        continue;
      tree_.set(slot * g.leaves + offset, powered[i]);
      largest = std::max(largest, powered[i]);
      ++applied;
    }
    tree_.propagate();
    stale = n - applied;
    Header& h = header();
    if (applied > 0) raise_max_priority(h, largest);
    h.updates_applied.fetch_add(applied, std::memory_order_relaxed);
    h.updates_stale.fetch_add(stale, std::memory_order_relaxed);
  }

  // Sleeps until workers publish something, at most `ns`. Safe without the GIL.
  void wait_for_items(int64_t ns) {
    Header& h = header();
    const uint32_t seen = h.bell.load(std::memory_order_acquire);
    h.hungry.store(1, std::memory_order_seq_cst);
    {
      std::lock_guard guard(mutex_);
      drain();
      if (may_sample(1) == SampleStatus::ok && items_ >= min_size()) ns = std::min<int64_t>(ns, 1'000'000);
    }
    if (!h.closed.load(std::memory_order_acquire)) futex_wait(h.bell, seen, ns);
    h.hungry.store(0, std::memory_order_relaxed);
  }

  void set_limiter(uint64_t min_size, double samples_per_insert, double error_buffer) {
    std::lock_guard guard(mutex_);
    Header& h = header();
    h.min_size.store(min_size, std::memory_order_relaxed);
    h.samples_per_insert.store(samples_per_insert, std::memory_order_relaxed);
    h.error_buffer.store(error_buffer, std::memory_order_relaxed);
    update_limit();
    wake_lanes();
  }

  Rng rng_state() {
    std::lock_guard guard(mutex_);
    return rng_;
  }
  void set_rng_state(const Rng& rng) {
    std::lock_guard guard(mutex_);
    rng_ = rng;
  }

  // Slots a snapshot must hold, oldest first, then those still being written: slot, generation, visible positions.
  struct SnapshotSlot {
    uint32_t slot;
    uint64_t generation;
    uint32_t visible;
  };
  std::vector<SnapshotSlot> snapshot_slots() {
    std::lock_guard guard(mutex_);
    drain();
    std::vector<SnapshotSlot> all;
    auto add = [&](uint32_t s) {
      if (slots_[s].visible > 0) all.push_back({s, slots_[s].generation, slots_[s].visible});
    };
    for (uint32_t s : committed_) add(s);
    for (const auto& lane : held_)
      for (uint32_t s : lane) add(s);
    return all;
  }
  // Copies a slot's rows, leaves and staged priorities, unless it was evicted meanwhile.
  bool snapshot_slot(const SnapshotSlot& entry, uint8_t* rows, double* leaves, double* staged) {
    std::lock_guard guard(mutex_);
    const Geometry& g = view_.geometry();
    if (slots_[entry.slot].generation != entry.generation || slots_[entry.slot].visible < entry.visible) return false;
    std::memcpy(rows, view_.slot(entry.slot), g.slot_bytes);
    std::fill_n(leaves, g.leaves, 0.0);
    std::fill_n(staged, g.leaves, 0.0);
    std::copy_n(view_.leaves(entry.slot), entry.visible, leaves);
    std::copy_n(view_.staged(entry.slot), entry.visible, staged);
    return true;
  }

  // For tests: worst error of a sum, and whether the counts agree with the leaves.
  double check() {
    std::lock_guard guard(mutex_);
    drain();
    uint64_t items = 0;
    for (const auto& s : slots_) items += s.items;
    if (items != items_) return 1e300;
    return tree_.check();
  }

 private:
  struct SlotView {
    uint64_t generation = 0;
    uint32_t visible = 0;  // item positions in the tree, a prefix
    uint32_t items = 0;
    uint64_t finals = 0;   // bit p: position p is a final observation
  };

  explicit Owner(const std::shared_ptr<Segment>& segment)
      : segment_(segment),
        view_(segment->data()),
        tree_(view_.leaves(), size_t(view_.geometry().slots) * view_.geometry().leaves),
        rng_(view_.geometry().seed),
        slots_(view_.geometry().slots),
        held_(view_.geometry().lanes),
        seen_published_(view_.geometry().lanes, ~uint64_t(0)) {
    std::lock_guard guard(mutex_);
    take_over();
    start();
  }

  Header& header() const { return view_.header(); }
  uint64_t min_size() const {
    return std::max<uint64_t>(1, header().min_size.load(std::memory_order_relaxed));
  }

  // --- becoming the owner

  // Makes tree, order and lists again from the slot words. Workers may go on meanwhile.
  void take_over() {
    Header& h = header();
    const Geometry& g = view_.geometry();
    const uint64_t epoch = h.epoch.fetch_add(1, std::memory_order_acq_rel);
    h.owner_pid.store(uint32_t(getpid()), std::memory_order_release);
    if (epoch > 0) rng_ = Rng(g.seed + epoch * 0x9e3779b97f4a7c15);  // not the predecessor's draws again
    reclaim_grant();
    const uint64_t used = std::min<uint64_t>(h.next_unused.load(std::memory_order_acquire), g.slots);
    std::vector<std::pair<uint64_t, uint32_t>> order;
    for (uint32_t s = 0; s < used; ++s) order_slot(s, order);
    seen_unused_ = used;
    std::sort(order.begin(), order.end());
    for (const auto& [number, s] : order) committed_.push_back(s);
    tree_.rebuild();
    h.absorbed.store(h.inserted.load(std::memory_order_acquire), std::memory_order_release);
    h.items.store(items_, std::memory_order_release);
    drain();
    h.absorbed.store(h.inserted.load(std::memory_order_acquire), std::memory_order_release);
  }

  void order_slot(uint32_t s, std::vector<std::pair<uint64_t, uint32_t>>& order) {
    const Geometry& g = view_.geometry();
    SlotMeta& meta = view_.meta(s);
    const SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));
    SlotView& mine = slots_[s];
    mine = SlotView{word.generation, 0, 0, 0};
    double* leaves = view_.leaves(s);
    const bool live = word.state == SlotState::leased || word.state == SlotState::closed ||
                      word.state == SlotState::committed;
    if (live) {
      mine.visible = std::min(meta.drained.load(std::memory_order_acquire), g.chunk);
      const double* staged = view_.staged(s);
      for (uint32_t p = 0; p < mine.visible; ++p) {
        mine.items += staged[p] >= 0.0;
        mine.finals |= uint64_t(staged[p] < 0.0) << p;
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

  // --- serving

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
        tree_.propagate();
        lane.settled.store(published, std::memory_order_release);
      }
    }
    while (items_ > g.capacity && !committed_.empty()) evict_oldest();
    tree_.propagate();
    bool starved = false;
    for (uint32_t l = 0; l < g.lanes; ++l)
      if (view_.lane(l).active.load(std::memory_order_acquire)) starved |= !refill(l);
    const int64_t now = now_ns();
    if (now - swept_ > (starved ? 1'000'000 : 200'000'000)) {
      swept_ = now;
      sweep();
    }
    h.items.store(items_, std::memory_order_release);
    update_limit();
    wake_lanes();
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
      slots_[s].generation = word.generation;
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
    for (const uint32_t s : held) {
      SlotMeta& meta = view_.meta(s);
      const SlotWord word = SlotWord::unpack(meta.word.load(std::memory_order_acquire));  // before the count
      absorb(s, meta.count.load(std::memory_order_acquire));
      if (word.state == SlotState::leased) {
        held[kept++] = s;
      } else if (slots_[s].items > 0) {
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
    SlotView& mine = slots_[s];
    if (count <= mine.visible) return;
    const Geometry& g = view_.geometry();
    const double* staged = view_.staged(s);
    uint32_t items = 0;
    for (uint32_t p = mine.visible; p < count; ++p) {
      const double value = staged[p];
      if (value >= 0.0) {
        tree_.set(size_t(s) * g.leaves + p, value);
        ++items;
      } else {
        mine.finals |= uint64_t(1) << p;
      }
    }
    mine.visible = count;
    mine.items += items;
    items_ += items;
    view_.meta(s).drained.store(count, std::memory_order_release);
    header().absorbed.fetch_add(items, std::memory_order_relaxed);
  }

  void commit(uint32_t s) {
    Header& h = header();
    SlotMeta& meta = view_.meta(s);
    meta.order.store(h.next_order.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    set_state(s, SlotState::committed);
    committed_.push_back(s);
  }

  void evict_oldest() {
    const uint32_t s = committed_.front();
    committed_.pop_front();
    header().evicted.fetch_add(slots_[s].items, std::memory_order_relaxed);
    release(s);
  }

  void release(uint32_t s) {
    const Geometry& g = view_.geometry();
    set_state(s, SlotState::free);  // before its leaves: a successor clears the leaves of free slots
    SlotView& mine = slots_[s];
    items_ -= mine.items;
    if (mine.items > 0)
      for (uint32_t p = 0; p < mine.visible; ++p) tree_.set(size_t(s) * g.leaves + p, 0.0);
    mine.visible = mine.items = 0;
    mine.finals = 0;
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
        if (!claimed && (ready > 0 || committed_.empty())) break;
        if (!claimed) {  // many half-filled chunks: better to lose the oldest than to stop a worker
          evict_oldest();
          tree_.propagate();
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
    slots_[n].generation = 0;
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
    const uint64_t generation = SlotWord::unpack(meta.word.load(std::memory_order_relaxed)).generation + 1;
    h.granting.store(s + 1, std::memory_order_release);
    meta.word.store(SlotWord{SlotState::leased, l, generation}.pack(), std::memory_order_release);
    entry.store(s + 1, std::memory_order_release);
    h.granting.store(0, std::memory_order_release);
    slots_[s] = SlotView{generation, 0, 0, 0};
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
    tree_.propagate();
  }

  bool serves_others() const {
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) {
      const Lane& lane = view_.lane(l);
      if (lane.active.load(std::memory_order_acquire) && lane.pid.load(std::memory_order_relaxed) != uint32_t(getpid()))
        return true;
    }
    return false;
  }

  void start() {
    thread_ = std::thread([this] {
      Header& h = header();
      bool others = false;
      for (;;) {
        const uint32_t seen = h.bell.load(std::memory_order_acquire);
        {
          std::lock_guard guard(mutex_);
          if (stop_) return;
          others = serves_others();
          if (others) drain();  // this process's own workers are served at fixed points: its draws repeat exactly
        }
        h.asleep.store(1, std::memory_order_seq_cst);
        futex_wait(h.bell, seen, others ? 5'000'000 : 50'000'000);
        h.asleep.store(0, std::memory_order_relaxed);
      }
    });
  }

  // --- the limiter: diff = inserts * samples_per_insert - samples stays within min_size * samples_per_insert ± error

  SampleStatus may_sample(size_t n) {
    Header& h = header();
    if (items_ < min_size()) return SampleStatus::too_few;
    const double rate = h.samples_per_insert.load(std::memory_order_relaxed);
    if (rate > 0.0) {
      double error = h.error_buffer.load(std::memory_order_relaxed);
      if (error < double(n)) {  // the band must have room for one batch
        error = double(n);
        h.error_buffer.store(error, std::memory_order_relaxed);
        update_limit();
      }
      const double inserted = double(h.absorbed.load(std::memory_order_relaxed));
      const double sampled = double(h.sampled.load(std::memory_order_relaxed));
      if (inserted * rate - sampled - double(n) < double(min_size()) * rate - error) return SampleStatus::limited;
    }
    return tree_.total() > 0.0 ? SampleStatus::ok : SampleStatus::all_zero;
  }

  void update_limit() {
    Header& h = header();
    const double rate = h.samples_per_insert.load(std::memory_order_relaxed);
    uint64_t limit = ~uint64_t(0);
    if (rate > 0.0) {
      const double sampled = double(h.sampled.load(std::memory_order_relaxed));
      const double room = (sampled + double(min_size()) * rate + h.error_buffer.load(std::memory_order_relaxed)) / rate;
      limit = std::max<uint64_t>(min_size(), uint64_t(room));
    }
    h.insert_limit.store(limit, std::memory_order_release);
  }

  void wake_lanes() {
    Header& h = header();
    if (!h.lane_waits.load(std::memory_order_relaxed)) return;
    h.lane_waits.store(0, std::memory_order_seq_cst);
    const bool room = h.inserted.load(std::memory_order_relaxed) < h.insert_limit.load(std::memory_order_relaxed);
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) {
      Lane& lane = view_.lane(l);
      if (!lane.waiting.load(std::memory_order_seq_cst)) continue;
      if (room) {
        futex_wake(lane.bell);
      } else {
        h.lane_waits.store(1, std::memory_order_relaxed);
      }
    }
  }

  // --- sampling

  // Stratified proportional draws: one in each of n equal slices of the total (Schaul et al. 2016, appendix B.2.1).
  void draw(Outputs& out, double beta) {
    const Geometry& g = view_.geometry();
    const size_t n = out.n;
    refs_.resize(n);
    leaf_.resize(n);
    prefix_.resize(n);
    const double total = tree_.total(), slice = total / double(n);
    for (size_t i = 0; i < n; ++i) prefix_[i] = (double(i) + rng_.uniform()) * slice;
    tree_.find(prefix_.data(), leaf_.data(), n);
    double smallest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < n; ++i) {
      const uint32_t slot = leaf_[i] / g.leaves, offset = leaf_[i] - slot * g.leaves;
      refs_[i] = ItemRef{slot, g.behind + offset, 0};
      const uint8_t* record = view_.record(slot, g.behind + offset);
      __builtin_prefetch(record);
      __builtin_prefetch(record + g.record - 1);
      const double p = tree_.leaf(leaf_[i]);
      out.keys[i] = view_.key(slot, offset, slots_[slot].generation);
      prefix_[i] = p;
      out.probabilities[i] = p / total;
      smallest = std::min(smallest, p);
    }
    // (N P)^-beta over its largest value: N and the total cancel.
    inverse_powers(prefix_.data(), out.weights, n, smallest, beta);
  }

  std::shared_ptr<Segment> segment_;
  View view_;
  std::mutex mutex_;
  SumTree tree_;
  Rng rng_;
  std::vector<SlotView> slots_;
  std::vector<std::vector<uint32_t>> held_;  // per lane: slots leased to it, in the order of their lease
  std::vector<uint64_t> seen_published_;
  std::deque<uint32_t> committed_;           // oldest first
  std::vector<uint32_t> free_;
  std::vector<uint32_t> unsettled_;          // below next_unused, but not yet said to be anyone's
  uint64_t seen_unused_ = 0;
  uint64_t items_ = 0;
  int64_t swept_ = 0;
  bool stop_ = false;
  std::thread thread_;
  std::vector<ItemRef> refs_;
  std::vector<std::pair<uint64_t, uint32_t>> finished_;
  std::vector<uint32_t> leaf_;
  std::vector<double> prefix_;
};

}  // namespace apexrl
