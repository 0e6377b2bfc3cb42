// The one process that samples: sum tree, eviction order, limiter.
//
// Everything that a successor needs stands in shared words; the members here can be made again from them. A native
// thread serves workers of other processes, so that they never wait for the training loop. Its mutex is private to
// this process.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "book.h"
#include "gather.h"
#include "layout.h"
#include "power.h"
#include "rng.h"
#include "segment.h"

namespace apexrl {

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
    book_.drain();
    return book_.items();
  }

  // Takes in what workers published, frees and hands out slots.
  void serve() {
    std::lock_guard guard(mutex_);
    book_.drain();
  }

  SampleStatus sample(double beta, Outputs& out) {
    std::lock_guard guard(mutex_);
    Header& h = header();
    if (h.closed.load(std::memory_order_acquire)) return SampleStatus::closed;
    book_.drain();
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
    book_.limiter.update();
    book_.limiter.wake_lanes();
    return SampleStatus::ok;
  }

  // Writes powered priorities by key; a key whose item has gone is counted and left alone.
  void update(const uint64_t* keys, const double* powered, size_t n, size_t& applied, size_t& stale) {
    std::lock_guard guard(mutex_);
    book_.drain();
    const Geometry& g = view_.geometry();
    const uint64_t offset_mask = (uint64_t(1) << g.offset_bits) - 1, slot_mask = (uint64_t(1) << g.slot_bits) - 1;
    const uint64_t generation_mask = ~uint64_t(0) >> (g.offset_bits + g.slot_bits);
    double largest = 0.0;
    applied = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i + 8 < n) {
        const uint64_t ahead = std::min<uint64_t>(keys[i + 8] >> g.offset_bits & slot_mask, g.slots - 1);
        __builtin_prefetch(&book_.slots[ahead]);
        __builtin_prefetch(view_.leaves(uint32_t(ahead)) + (keys[i + 8] & offset_mask), 1);
      }
      const uint64_t offset = keys[i] & offset_mask, slot = keys[i] >> g.offset_bits & slot_mask;
      const uint64_t generation = keys[i] >> (g.offset_bits + g.slot_bits);
      if (slot >= g.slots || offset >= book_.slots[slot].visible ||
          (book_.slots[slot].generation & generation_mask) != generation || book_.slots[slot].finals >> offset & 1)
        continue;
      book_.tree.set(slot * g.leaves + offset, powered[i]);
      largest = std::max(largest, powered[i]);
      ++applied;
    }
    book_.tree.propagate();
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
      book_.drain();
      if (may_sample(1) == SampleStatus::ok && book_.items() >= book_.limiter.min_size()) ns = std::min<int64_t>(ns, 1'000'000);
    }
    if (!h.closed.load(std::memory_order_acquire)) futex_wait(h.bell, seen, ns);
    h.hungry.store(0, std::memory_order_relaxed);
  }

  void set_limiter(uint64_t min_size, double samples_per_insert, double error_buffer) {
    std::lock_guard guard(mutex_);
    book_.limiter.set(min_size, samples_per_insert, error_buffer);
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
    book_.drain();
    std::vector<SnapshotSlot> all;
    for (const uint32_t s : book_.filled()) all.push_back({s, book_.slots[s].generation, book_.slots[s].visible});
    return all;
  }
  // Copies a slot's rows, leaves and staged priorities, unless it was evicted meanwhile.
  bool snapshot_slot(const SnapshotSlot& entry, uint8_t* rows, double* leaves, double* staged) {
    std::lock_guard guard(mutex_);
    const Geometry& g = view_.geometry();
    if (book_.slots[entry.slot].generation != entry.generation || book_.slots[entry.slot].visible < entry.visible) return false;
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
    book_.drain();
    uint64_t items = 0;
    for (const auto& s : book_.slots) items += s.items;
    if (items != book_.items()) return 1e300;
    return book_.tree.check();
  }

 private:
  explicit Owner(const std::shared_ptr<Segment>& segment)
      : segment_(segment), view_(segment->data()), book_(segment), rng_(view_.geometry().seed) {
    std::lock_guard guard(mutex_);
    const uint64_t before = book_.take_over();
    if (before > 0) rng_ = Rng(view_.geometry().seed + before * 0x9e3779b97f4a7c15);  // not its predecessor's draws
    start();
  }

  Header& header() const { return view_.header(); }

  SampleStatus may_sample(size_t n) {
    const SampleStatus status = book_.limiter.may_sample(book_.items(), n);
    return status == SampleStatus::ok && book_.tree.total() <= 0.0 ? SampleStatus::all_zero : status;
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
          others = book_.serves_others();
          if (others) book_.drain();  // this process's own workers are served at fixed points: its draws repeat exactly
        }
        h.asleep.store(1, std::memory_order_seq_cst);
        futex_wait(h.bell, seen, others ? 5'000'000 : 50'000'000);
        h.asleep.store(0, std::memory_order_relaxed);
      }
    });
  }

  // Stratified proportional draws: one in each of n equal slices of the total (Schaul et al. 2016, appendix B.2.1).
  void draw(Outputs& out, double beta) {
    const Geometry& g = view_.geometry();
    const size_t n = out.n;
    refs_.resize(n);
    leaf_.resize(n);
    prefix_.resize(n);
    const double total = book_.tree.total(), slice = total / double(n);
    for (size_t i = 0; i < n; ++i) prefix_[i] = (double(i) + rng_.uniform()) * slice;
    book_.tree.find(prefix_.data(), leaf_.data(), n);
    double smallest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < n; ++i) {
      const uint32_t slot = leaf_[i] / g.leaves, offset = leaf_[i] - slot * g.leaves;
      refs_[i] = ItemRef{slot, g.behind + offset, 0};
      const uint8_t* record = view_.record(slot, g.behind + offset);
      __builtin_prefetch(record);
      __builtin_prefetch(record + g.record - 1);
      const double p = book_.tree.leaf(leaf_[i]);
      out.keys[i] = view_.key(slot, offset, book_.slots[slot].generation);
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
  Book book_;
  Rng rng_;
  bool stop_ = false;
  std::thread thread_;
  std::vector<ItemRef> refs_;  // of the draw under way, as the next two
  std::vector<uint32_t> leaf_;
  std::vector<double> prefix_;
};

}  // namespace apexrl
