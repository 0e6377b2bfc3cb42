// The owner, the one process that samples: sum tree, eviction order, limiter.
//
// A successor needs only the shared words: all members here can be rebuilt from them. A thread serves workers of other
// processes, so they never wait for the training loop. The mutex is private to this process.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "book.h"
#include "draws.h"
#include "view.h"
#include "segment.h"
#include "snapshot.h"
#include "stored_items.h"

namespace apexrl {

class Owner {
 public:
  // Takes ownership, or returns null and Segment::holder of the living owner. `provisional`: only to evict for writers; it
  // yields to a process that wants to sample.
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

  // A forked child does not own the replay: there the caller leaks this object instead of destroying it.
  ~Owner() {
    {
      std::lock_guard guard(mutex_);
      stop_ = true;
    }
    futex_wake(header().bell);
    if (thread_.joinable()) thread_.join();
    if (yielded_.load()) return;
    // The last batch is the caller's to use. Served batches count until a batch server settles them.
    header().handed.store(served_, std::memory_order_relaxed);
    leave();
  }

  // This object no longer owns the replay: it was provisional and let another process in, or it resigned.
  bool yielded() const { return yielded_.load(std::memory_order_acquire); }

  uint64_t size() {
    std::lock_guard guard(mutex_);
    if (yielded() || !drain()) return view_.size(true);
    return book_.store.items();
  }

  // Sum of all leaves, of which an item's share is its probability, in the unit of an item of priority 1 as young as the
  // newest; fifo: the number of items.
  double mass() {
    std::lock_guard guard(mutex_);
    if (yielded()) return 0.0;
    if (view_.geometry().sampler == Sampler::fifo) return double(book_.store.items());
    return book_.store.mass();
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
    change_state([&] { status = draw(beta, out, normalize, outstanding); });
    return status;
  }

  // fifo: chunks for another host, their bodies one after the other in `out`, of `most` bytes in all unless one item
  // needs more. The replay forgets them: the caller keeps them. `allowed`: items that may wait here until the next call.
  template <typename Bytes>
  SampleStatus take_chunks(int64_t linger, uint64_t most, uint64_t allowed, std::vector<ChunkHead>& chunks, Bytes& out) {
    std::lock_guard guard(mutex_);
    Header& h = header();
    chunks.clear();
    out.clear();
    if (h.closed.load(std::memory_order_acquire)) return SampleStatus::closed;
    if (yielded()) return SampleStatus::yielded;
    h.provisional.store(0, std::memory_order_relaxed);
    SampleStatus status = SampleStatus::yielded;
    change_state([&] { status = fill_chunks(linger, most, allowed, chunks, out); });
    return status;
  }

  // Writes powered priorities by key; a key whose item has gone is counted and left alone. False: it has yielded.
  bool update(const uint64_t* keys, const double* powered, size_t n, size_t& applied, size_t& stale) {
    std::lock_guard guard(mutex_);
    applied = stale = 0;
    if (yielded() || !drain()) return false;
    double largest = 0.0;
    applied = weigh_items(view_, book_.store, keys, powered, n, largest);
    stale = n - applied;
    Header& h = header();
    if (applied > 0) raise_max_priority(h, largest);
    h.updates_applied.fetch_add(applied, std::memory_order_relaxed);
    h.updates_stale.fetch_add(stale, std::memory_order_relaxed);
    return true;
  }

  // Items by key (stored_items.h): how many of them there were; -1 or nothing: it has yielded.
  std::optional<std::vector<uint64_t>> keys() {
    std::lock_guard guard(mutex_);
    if (!stays()) return std::nullopt;
    return keys_in_order(view_, book_);
  }
  int64_t read(const uint64_t* keys, size_t n, Outputs& out) {
    std::lock_guard guard(mutex_);
    return stays() ? int64_t(draws_.listed(book_.store, keys, n, out)) : -1;
  }
  int64_t remove(const uint64_t* keys, size_t n) {
    std::lock_guard guard(mutex_);
    if (!stays()) return -1;
    const int64_t removed = int64_t(delete_items(view_, book_.store, keys, n));
    book_.limiter.crowded = false;
    book_.tell_limiter();
    return removed;
  }
  int64_t change(const uint64_t* keys, size_t n, const std::vector<NewValues>& news) {
    std::lock_guard guard(mutex_);
    return stays() ? int64_t(change_items(view_, book_.store, keys, n, news)) : -1;
  }

  // Sleeps until workers publish something, at most `ns`. Safe without the GIL.
  void wait_for_items(int64_t ns) {
    Header& h = header();
    const uint32_t seen = h.bell.load(std::memory_order_acquire);
    {
      std::lock_guard guard(mutex_);
      if (yielded()) return;
      ++waiting_;
      h.sampler_waits.store(1, std::memory_order_relaxed);
      wake_fence();  // pairs with that of Lease::announce()
      bool some = false;
      change_state([&] {
        book_.drain();
        some = may_sample(1) == SampleStatus::ok;
      });
      if (some) ns = std::min<int64_t>(ns, 1'000'000);
      if (yielded() || h.absorbed.load(std::memory_order_relaxed) != tried_at_) ns = 0;  // something new came in
    }
    if (!h.closed.load(std::memory_order_acquire)) futex_wait(h.bell, seen, ns);
    std::lock_guard guard(mutex_);
    if (--waiting_ == 0 && !yielded()) h.sampler_waits.store(0, std::memory_order_relaxed);  // otherwise the word is the next owner's
  }

  // False: it has yielded.
  bool set_limiter(uint64_t min_size, double samples_per_insert, double insert_band) {
    std::lock_guard guard(mutex_);
    if (yielded()) return false;
    header().provisional.store(0, std::memory_order_relaxed);
    book_.limiter.set(min_size, samples_per_insert, insert_band);
    return true;
  }

  // fifo: items of served batches were used; were lost with a learner; or were given out by a predecessor, whose successor
  // counted them as lost.
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

  // False: it has yielded.
  bool snapshot(Snapshot& all, const Snapshot* since = nullptr) {
    std::lock_guard guard(mutex_);
    if (!stays()) return false;
    all.begin(view_, book_, since);
    all.batches = batches_;
    all.rng = {draws_.rng, book_.store.removal_rng};
    return true;
  }
  void set_batches(uint64_t batches) {
    std::lock_guard guard(mutex_);
    batches_ = batches;
  }
  // Copies as many entries of `all` into `out`, of `bytes`, as fit; `bytes` becomes what they take. False: it has yielded.
  bool snapshot_block(Snapshot& all, uint8_t* out, size_t& bytes, size_t& written) {
    std::lock_guard guard(mutex_);
    written = 0;
    return !yielded() && all.copy(view_, book_, out, bytes, written, [this] { return drain(); });
  }

  // For tests: worst error of a sum; 1e300 when the members disagree with the slot words or with each other.
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

  // Runs what changes the members. If memory runs out half-way, or shared words have impossible values, the members are
  // wrong: this process then gives the replay up (false, or the exception), and the next owner rebuilds them.
  template <typename Change>
  bool change_state(Change&& change) {
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
    return change_state([this] { book_.drain(); });
  }
  // Takes in what is new, to go on as the owner for more than eviction. False: it has yielded.
  bool stays() {
    if (yielded()) return false;
    const bool well = change_state([this] {
      book_.drain();
      if (book_.store.feeds_host()) book_.store.feed_sampler(book_.filled());  // items are to be had by their keys
    });
    if (!well) return false;
    header().provisional.store(0, std::memory_order_relaxed);
    return true;
  }
  void resign() {  // `handed` stays: items that were being given out are lost
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
    if (g.consumes) {
      if (outstanding) {
        served_ += out.n;
      } else {
        drawn_ = out.n;
      }
      h.handed.store(served_ + drawn_, std::memory_order_relaxed);
    }
    if (g.sampler == Sampler::fifo) {
      draws_.oldest(book_.store, out);
    } else if (g.sampler != Sampler::prioritized) {
      draws_.first(book_.store, out);
    } else {
      if (out.hindsight.column != UINT32_MAX && !book_.store.episodes) book_.store.index_episodes(book_.filled());
      draws_.on_disk = segment_->reads_by_page();
      draws_.proportional(book_.store, out, beta, normalize);
    }
    h.sampled.fetch_add(out.n, std::memory_order_relaxed);
    h.items.store(book_.store.items(), std::memory_order_release);
    if (g.trim_every > 1 && ++batches_ % g.trim_every == 0) book_.store.trim(g.capacity);
    book_.limiter.update();
    book_.limiter.wake_lanes();
    return SampleStatus::ok;
  }

  template <typename Bytes>
  SampleStatus fill_chunks(int64_t linger, uint64_t most, uint64_t allowed, std::vector<ChunkHead>& chunks, Bytes& out) {
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
    const int64_t now = now_ns();
    while (out.size() < most && chunks.size() < kMostChunks && book_.store.take_chunk(now, linger, most, chunk, body)) {
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

  // Whether a process asked to sample within the last second. It may have died since.
  static bool wanted(const Header& h) {
    const int64_t asked = h.wanted.load(std::memory_order_acquire);
    return asked != 0 && now_ns() - asked < 1'000'000'000;
  }

  void leave() {  // `provisional` means nothing without an owner, and the next one sets it
    header().owner.store(0, std::memory_order_release);
    segment_->unlock(kOwnerLock);
  }

  SampleStatus may_sample(size_t n) {
    const SampleStatus status = book_.limiter.may_sample(book_.store.items(), n);
    if (view_.geometry().sampler != Sampler::prioritized) return status;
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
          try {  // this process's own workers are served at fixed points, so that its draws repeat exactly
            if (others && !drain()) return;
          } catch (const std::bad_alloc&) {  // it has resigned
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
  uint32_t waiting_ = 0;   // threads that wait for items
  bool stop_ = false;
  std::atomic<bool> yielded_{false};
  std::thread thread_;
};

}  // namespace apexrl
