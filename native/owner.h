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
#include "draws.h"
#include "layout.h"
#include "segment.h"

namespace apexrl {

class Owner {
 public:
  // Takes ownership, or returns null and Segment::holder of the living owner. `provisional`: only to make room; a process
  // that wants to sample is let in.
  static Owner* acquire(const std::shared_ptr<Segment>& segment, bool provisional, int& holder) {
    Header& h = View(segment->data()).header();
    if (provisional && wanted(h)) return nullptr;  // after them
    if (!segment->try_lock(kOwnerLock)) {
      holder = segment->holder(kOwnerLock);
      if (!provisional && h.provisional.load(std::memory_order_acquire)) {
        h.wanted.store(now_ns(), std::memory_order_release);
        futex_wake(h.bell);
      }
      return nullptr;
    }
    try {
      return new Owner(segment, provisional);
    } catch (...) {  // no memory, no thread
      h.owner.store(0, std::memory_order_release);
      segment->unlock(kOwnerLock);
      throw;
    }
  }

  // In a forked child this object is only memory: the caller leaks it instead of destroying it.
  ~Owner() {
    {
      std::lock_guard guard(mutex_);
      stop_ = true;
    }
    futex_wake(header().bell);
    if (thread_.joinable()) thread_.join();
    if (yielded_.load()) return;
    // An orderly end: the last batch is its holder's to use. Those that are served count until a server sees to them.
    header().handed.store(served_, std::memory_order_relaxed);
    leave();
  }

  // It was provisional and has let another process in: this object is good for nothing more.
  bool yielded() const { return yielded_.load(std::memory_order_acquire); }

  uint64_t size() {
    std::lock_guard guard(mutex_);
    if (yielded() || !drain()) return view_.size(true);
    return book_.store.items();
  }

  // Sum of all leaves, of which an item's share is its probability; fifo: the number of items.
  double mass() {
    std::lock_guard guard(mutex_);
    if (yielded()) return 0.0;
    if (view_.geometry().sampler == Sampler::fifo) return double(book_.store.items());
    return book_.store.tree.total();
  }

  // Takes in what workers published, frees and hands out slots.
  void serve() {
    std::lock_guard guard(mutex_);
    if (!yielded()) drain();
  }

  // `outstanding`: fifo: earlier batches may still be in use, and count as lost when this process dies.
  SampleStatus sample(double beta, Outputs& out, Normalize normalize = Normalize::batch, bool outstanding = false) {
    std::lock_guard guard(mutex_);
    Header& h = header();
    if (h.closed.load(std::memory_order_acquire)) return SampleStatus::closed;
    if (yielded()) return SampleStatus::yielded;
    h.provisional.store(0, std::memory_order_relaxed);
    SampleStatus status = SampleStatus::yielded;
    keep_books([&] { status = draw(beta, out, normalize, outstanding); });
    return status;
  }

  // fifo: chunks for another host, their bodies one after the other in `out`, of `most` bytes in all unless one item
  // needs more. They are given out: they are the caller's to keep from here on. `allowed`: items that may wait here
  // until the next call.
  SampleStatus take_chunks(int64_t linger, uint64_t most, uint64_t allowed, std::vector<ChunkHead>& chunks,
                           std::vector<uint8_t>& out) {
    std::lock_guard guard(mutex_);
    Header& h = header();
    chunks.clear();
    out.clear();
    if (h.closed.load(std::memory_order_acquire)) return SampleStatus::closed;
    if (yielded()) return SampleStatus::yielded;
    h.provisional.store(0, std::memory_order_relaxed);
    SampleStatus status = SampleStatus::yielded;
    keep_books([&] { status = fill_chunks(linger, most, allowed, chunks, out); });
    return status;
  }

  // Writes powered priorities by key; a key whose item has gone is counted and left alone. False: it has yielded.
  bool update(const uint64_t* keys, const double* powered, size_t n, size_t& applied, size_t& stale) {
    std::lock_guard guard(mutex_);
    applied = stale = 0;
    if (yielded() || !drain()) return false;
    const Geometry g = view_.geometry();  // a copy: stores to leaves cannot change it
    const uint64_t offset_mask = (uint64_t(1) << g.offset_bits) - 1, slot_mask = (uint64_t(1) << g.slot_bits) - 1;
    const uint64_t generation_mask = ~uint64_t(0) >> (g.offset_bits + g.slot_bits);
    const Store::SlotView* known = book_.store.slots.data();
    const double* leaves = view_.leaves();
    double largest = 0.0;
    for (size_t i = 0; i < n; ++i) {
      if (i + 8 < n) {
        const uint64_t ahead = std::min<uint64_t>(keys[i + 8] >> g.offset_bits & slot_mask, g.slots - 1);
        __builtin_prefetch(known + ahead);
        __builtin_prefetch(leaves + ahead * g.leaves + (keys[i + 8] & offset_mask), 1);
      }
      const uint64_t offset = keys[i] & offset_mask, slot = keys[i] >> g.offset_bits & slot_mask;
      const uint64_t generation = keys[i] >> (g.offset_bits + g.slot_bits);
      if (slot >= g.slots || offset >= known[slot].visible || (known[slot].generation & generation_mask) != generation ||
          std::signbit(leaves[slot * g.leaves + offset]) || g.sampler == Sampler::fifo)
        continue;
      book_.store.set_priority(slot * g.leaves + offset, powered[i]);
      largest = std::max(largest, powered[i]);
      ++applied;
    }
    book_.store.tree.propagate();
    stale = n - applied;
    Header& h = header();
    if (applied > 0) raise_max_priority(h, largest);
    h.updates_applied.fetch_add(applied, std::memory_order_relaxed);
    h.updates_stale.fetch_add(stale, std::memory_order_relaxed);
    return true;
  }

  // Sleeps until workers publish something, at most `ns`. Safe without the GIL.
  void wait_for_items(int64_t ns) {
    Header& h = header();
    const uint32_t seen = h.bell.load(std::memory_order_acquire);
    {
      std::lock_guard guard(mutex_);
      if (yielded()) return;
      ++hungry_;
      h.hungry.store(1, std::memory_order_relaxed);
      wake_fence();  // pairs with that of Lease::announce()
      bool some = false;
      keep_books([&] {
        book_.drain();
        some = may_sample(1) == SampleStatus::ok && book_.store.items() >= book_.limiter.min_size();
      });
      if (some) ns = std::min<int64_t>(ns, 1'000'000);
      if (yielded() || h.absorbed.load(std::memory_order_relaxed) != tried_at_) ns = 0;  // there is something to look at
    }
    if (!h.closed.load(std::memory_order_acquire)) futex_wait(h.bell, seen, ns);
    std::lock_guard guard(mutex_);
    if (--hungry_ == 0 && !yielded()) h.hungry.store(0, std::memory_order_relaxed);  // else it is the next owner's word
  }

  // False: it has yielded.
  bool set_limiter(uint64_t min_size, double samples_per_insert, double insert_band) {
    std::lock_guard guard(mutex_);
    if (yielded()) return false;
    header().provisional.store(0, std::memory_order_relaxed);
    book_.limiter.set(min_size, samples_per_insert, insert_band);
    return true;
  }

  // fifo: items of served batches are done with, were lost with a learner, or are out since a predecessor's time (who
  // came after it counted them as lost).
  void done(uint64_t items) {
    std::lock_guard guard(mutex_);
    served_ -= std::min(items, served_);
    header().handed.store(served_ + drawn_, std::memory_order_relaxed);
  }
  void lose(uint64_t items) {
    done(items);
    header().lost.fetch_add(items, std::memory_order_relaxed);
  }
  void adopt(uint64_t items) {
    std::lock_guard guard(mutex_);
    served_ += items;
    header().handed.store(served_ + drawn_, std::memory_order_relaxed);
    header().lost.fetch_sub(std::min<uint64_t>(items, header().lost.load()), std::memory_order_relaxed);
  }

  // Of the draws and of proportional removal.
  void set_rng_state(const Rng& draws, const Rng& removal) {
    std::lock_guard guard(mutex_);
    draws_.rng = draws;
    book_.store.removal_rng = removal;
  }

  // What a snapshot must hold: slots oldest first, then those still being written; and the counters of this moment.
  struct SnapshotSlot {
    uint32_t slot;
    uint32_t visible;
    uint64_t generation;
  };
  struct Snapshot {
    std::vector<SnapshotSlot> slots;
    std::vector<uint64_t> copied;  // per slot: generation + 1 of what was copied, or 0
    size_t next = 0;
    uint64_t order = 0;            // entries so far
    bool missed = false;           // some were evicted before they were copied
    int passes = 1;
    uint64_t inserted = 0, sampled = 0, evicted = 0, batches = 0;
    double largest = 0.0;
    std::pair<Rng, Rng> rng{Rng(0), Rng(0)};
  };
  // False: it has yielded.
  bool snapshot(Snapshot& all) {
    std::lock_guard guard(mutex_);
    if (yielded() || !drain()) return false;
    header().provisional.store(0, std::memory_order_relaxed);
    all.copied.assign(view_.geometry().slots, 0);
    list_slots(all);
    const Header& h = header();
    all.inserted = h.absorbed.load();
    all.sampled = h.sampled.load();
    all.evicted = h.evicted.load();
    all.largest = max_priority(h);
    all.batches = batches_;
    all.rng = {draws_.rng, book_.store.removal_rng};
    return true;
  }
  void set_batches(uint64_t batches) {
    std::lock_guard guard(mutex_);
    batches_ = batches;
  }
  // Copies slots into `out`, one entry after the other, as many as fit; answers how many. What was evicted before it
  // could be copied is left out, and what came in its place is copied at the end. False: it has yielded.
  bool snapshot_block(Snapshot& all, uint8_t* out, size_t bytes, size_t& written) {
    std::lock_guard guard(mutex_);
    written = 0;
    if (yielded()) return false;
    const Geometry& g = view_.geometry();
    const size_t entry_bytes = snapshot_entry_bytes(g);
    for (;; ++all.next) {
      if (all.next == all.slots.size()) {
        if (!all.missed || all.passes == 3) break;
        ++all.passes;
        if (!drain()) return false;
        list_slots(all);
        if (all.slots.empty()) break;
      }
      if (bytes < entry_bytes) break;
      const SnapshotSlot& wanted = all.slots[all.next];
      const auto& now = book_.store.slots[wanted.slot];
      if (now.generation != wanted.generation || now.visible < wanted.visible) {
        all.missed = true;
        continue;
      }
      const uint32_t consumed = std::min(view_.meta(wanted.slot).consumed.load(), wanted.visible);
      const SnapshotEntry entry{wanted.slot, wanted.visible, wanted.generation, ++all.order, consumed, 0};
      std::memcpy(out, &entry, sizeof entry);
      out += sizeof entry;
      std::memcpy(out, view_.slot(wanted.slot), g.slot_bytes);
      out += g.slot_bytes;
      double* leaves = reinterpret_cast<double*>(out);
      std::fill_n(leaves, g.leaves, 0.0);
      std::copy_n(view_.leaves(wanted.slot), wanted.visible, leaves);
      out += g.leaves * sizeof(double);
      bytes -= entry_bytes;
      all.copied[wanted.slot] = wanted.generation + 1;
      ++written;
    }
    return true;
  }

  // For tests: worst error of a sum; 1e300 when the books disagree with the slot words or with themselves.
  double check() {
    std::lock_guard guard(mutex_);
    if (yielded() || !drain()) return 0.0;
    uint64_t items = 0;
    for (const auto& s : book_.store.slots) items += s.items;
    if (items != book_.store.items() || !book_.closes()) return 1e300;
    return book_.store.tree.check();
  }

 private:
  Owner(const std::shared_ptr<Segment>& segment, bool provisional)
      : segment_(segment), view_(segment->data()), book_(segment), draws_(view_) {
    std::lock_guard guard(mutex_);
    if (!provisional) header().wanted.store(0, std::memory_order_relaxed);
    header().provisional.store(provisional, std::memory_order_release);
    const uint64_t before = book_.take_over();
    if (before > 0) draws_.rng = Rng(view_.geometry().seed + before * 0x9e3779b97f4a7c15);  // not its predecessor's draws
    start();
  }

  Header& header() const { return view_.header(); }

  // Does what changes the books. Where memory ran out half-way, or shared words say what cannot be, they are wrong: then
  // this process gives the replay up (false, or the exception), and the next owner, which it may be, makes them again.
  template <typename Change>
  bool keep_books(Change&& change) {
    try {
      change();
      return true;
    } catch (const DamagedState&) {
      resign();
      return false;
    } catch (...) {
      resign();
      throw;
    }
  }
  bool drain() {
    return keep_books([this] { book_.drain(); });
  }
  void resign() {  // `handed` stays: what was being given out is lost
    yielded_.store(true, std::memory_order_release);
    leave();
    futex_wake(header().bell);  // the thread
  }

  SampleStatus draw(double beta, Outputs& out, Normalize normalize, bool outstanding) {
    Header& h = header();
    const Geometry& g = view_.geometry();
    book_.drain();
    if (book_.store.feeds_host()) book_.store.feed_sampler(book_.filled());
    h.allowed.store(0, std::memory_order_relaxed);
    tried_at_ = h.absorbed.load(std::memory_order_relaxed);
    const SampleStatus status = may_sample(out.n);
    if (status != SampleStatus::ok) return status;
    if (g.sampler == Sampler::fifo) {
      if (outstanding) {
        served_ += out.n;
      } else {
        drawn_ = out.n;
      }
      h.handed.store(served_ + drawn_, std::memory_order_relaxed);
      draws_.oldest(book_.store, out);
    } else {
      draws_.proportional(book_.store, out, beta, normalize);
    }
    h.sampled.fetch_add(out.n, std::memory_order_relaxed);
    h.items.store(book_.store.items(), std::memory_order_release);
    if (g.trim_every > 1 && ++batches_ % g.trim_every == 0) book_.store.trim(g.capacity);
    book_.limiter.update();
    book_.limiter.wake_lanes();
    return SampleStatus::ok;
  }

  SampleStatus fill_chunks(int64_t linger, uint64_t most, uint64_t allowed, std::vector<ChunkHead>& chunks,
                           std::vector<uint8_t>& out) {
    Header& h = header();
    book_.drain();
    tried_at_ = h.absorbed.load(std::memory_order_relaxed);
    if (!book_.store.feeds_host()) book_.store.feed_host(book_.filled());
    ChunkHead chunk;
    const auto body = [&](uint64_t bytes) -> uint8_t* {
      if (!chunks.empty() && out.size() + bytes > most) return nullptr;
      out.resize(out.size() + bytes);
      return out.data() + out.size() - bytes;
    };
    uint64_t items = 0;
    while (out.size() < most && book_.store.take_chunk(linger, most, chunk, body)) {
      chunks.push_back(chunk);
      items += chunk.items;
    }
    h.sampled.fetch_add(items, std::memory_order_relaxed);
    h.items.store(book_.store.items(), std::memory_order_release);
    h.allowed.store(std::min(allowed, view_.geometry().capacity) + 1, std::memory_order_relaxed);
    book_.limiter.update();
    book_.limiter.wake_lanes();
    return chunks.empty() ? SampleStatus::too_few : SampleStatus::ok;
  }

  // Whether a process asked to sample within the last second: it may have died since.
  static bool wanted(const Header& h) {
    const int64_t asked = h.wanted.load(std::memory_order_acquire);
    return asked != 0 && now_ns() - asked < 1'000'000'000;
  }

  // What is there and was not copied yet.
  void list_slots(Snapshot& all) const {
    all.slots.clear();
    all.next = 0;
    all.missed = false;
    for (const uint32_t s : book_.filled()) {
      const auto& now = book_.store.slots[s];
      if (all.copied[s] != now.generation + 1) all.slots.push_back({s, now.visible, now.generation});
    }
  }

  void leave() {  // `provisional` stays as it is: without an owner it says nothing, and the next one sets it
    header().owner.store(0, std::memory_order_release);
    segment_->unlock(kOwnerLock);
  }

  SampleStatus may_sample(size_t n) {
    const SampleStatus status = book_.limiter.may_sample(book_.store.items(), n);
    if (view_.geometry().sampler == Sampler::fifo) return status;
    return status == SampleStatus::ok && book_.store.tree.total() <= 0.0 ? SampleStatus::all_zero : status;
  }

  void start() {
    thread_ = std::thread([this] {
      Header& h = header();
      bool others = false;
      for (;;) {
        const uint32_t seen = h.bell.load(std::memory_order_acquire);
        {
          std::lock_guard guard(mutex_);
          if (stop_ || yielded()) return;
          if (wanted(h) && h.provisional.load(std::memory_order_acquire)) {
            yielded_.store(true, std::memory_order_release);
            return leave();
          }
          others = book_.serves_others();
          try {  // this process's own workers are served at fixed points: its draws repeat exactly
            if (others && !drain()) return;
          } catch (const std::bad_alloc&) {  // it has resigned; whoever samples next has its memory, or is told so
            return;
          }
        }
        h.asleep.store(1, std::memory_order_seq_cst);
        futex_wait(h.bell, seen, others ? 5'000'000 : 50'000'000);
        h.asleep.store(0, std::memory_order_relaxed);
      }
    });
  }

  std::shared_ptr<Segment> segment_;
  View view_;
  std::mutex mutex_;
  Book book_;
  Draws draws_;
  uint64_t batches_ = 0;  // sampled
  uint64_t served_ = 0;   // fifo: items of batches that learners have or will have
  uint64_t drawn_ = 0;    // fifo: items of the last batch that was not served
  uint64_t tried_at_ = 0; // items taken in before the last look for a batch
  uint32_t hungry_ = 0;   // threads that wait for items
  bool stop_ = false;
  std::atomic<bool> yielded_{false};
  std::thread thread_;
};

}  // namespace apexrl
