// A worker's lease of one of the replay's lanes, through which it receives free slots and hands over published ones.
//
// No call here waits for another process.
#pragma once

#include <cmath>
#include <memory>

#include "growth.h"
#include "view.h"
#include "segment.h"
#include "stream_copy.h"

namespace apexrl {

// What became of a write. Python uses the same names (bind.cc).
enum class WriteStatus {
  ok,
  wait,          // no slot, or the limiter holds inserts back: wait() and call again
  closed,        // the replay was closed
  no_lane,       // every lane is leased
  no_streams,    // the replay has fewer streams left than needed
  publish,       // (streams) complete items wait for their priorities: publish() first
  irregular,     // answered by the bindings alone, as all below: a value is not a plain array of the declared type
  bad_priority,  // a priority is NaN, infinite or negative
  busy,          // another thread uses this writer
  bad_reward,    // a reward is NaN or infinite
  yielded,       // this process let another one own the replay
};

class Lease {
 public:
  Lease(std::shared_ptr<Segment> segment, uint32_t streams)
      : segment_(std::move(segment)), view_(segment_->data()), streams_(streams), fork_(fork_generation()) {}
  ~Lease() { release(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  int lane() const { return lane_; }
  bool held() const { return lane_ >= 0 && fork_ == fork_generation(); }  // otherwise returned, or held by the parent process

  // Takes a lane without a living holder, after handing over what a dead holder published.
  WriteStatus take_lane() {
    const auto& g = view_.geometry();
    if (header().closed.load(std::memory_order_acquire)) return WriteStatus::closed;
    if (g.kind != Kind::rows && streams_in_use() + streams_ > g.streams) return WriteStatus::no_streams;
    for (int pass = 0; pass < 2; ++pass)  // first lanes that were never used or were returned
      for (uint32_t l = 0; l < g.lanes; ++l) {
        Lane& lane = view_.lane(l);
        if (pass == 0 && lane.active.load(std::memory_order_acquire)) continue;
        if (!segment_->try_lock(kLaneLock + l)) continue;
        retire_lane(view_, l);
        process_ = process_token();
        lane.process.store(process_, std::memory_order_relaxed);
        lane.streams.store(streams_, std::memory_order_relaxed);
        lane.generation.fetch_add(1, std::memory_order_relaxed);
        lane.active.store(1, std::memory_order_seq_cst);
        if (g.kind != Kind::rows && streams_in_use() > g.streams) {  // another lane was leased at the same moment
          lane.active.store(0, std::memory_order_release);
          segment_->unlock(kLaneLock + l);
          return WriteStatus::no_streams;
        }
        lane_ = int(l);
        fork_ = fork_generation();
        return WriteStatus::ok;
      }
    return WriteStatus::no_lane;
  }

  // Returns the lane; what was published stays.
  void release() {
    if (!held()) return;
    retire_lane(view_, uint32_t(lane_));
    segment_->unlock(kLaneLock + uint32_t(lane_));
    lane_ = -1;
    ring();
  }

  // A free slot from the desk, or a never-used one. It stands in next[stream] until settle().
  int64_t take(uint32_t stream) {
    const auto& g = view_.geometry();
    const uint32_t l = uint32_t(lane_);
    auto& next = view_.next(l)[stream];
    auto* desk = view_.desk(l);
    for (uint32_t k = 0; k < g.desk; ++k) {
      const uint32_t d = (desk_at_ + k) % g.desk;
      const uint32_t held = desk[d].load(std::memory_order_acquire);
      if (held == 0 || held > g.slots) continue;
      next.store(held, std::memory_order_release);
      desk[d].store(0, std::memory_order_release);
      desk_at_ = (d + 1) % g.desk;
      number(held - 1, stream);
      return held - 1;
    }
    auto& counter = header().next_unused;
    uint64_t n = counter.load(std::memory_order_acquire);
    // An owner may have free slots, and hands out those first. Without one there are none.
    const uint64_t most = header().owner.load(std::memory_order_relaxed) == 0 ? g.slots : std::min(g.at_will, g.slots);
    while (n < most && grown_to(*segment_, view_, n + 1)) {
      next.store(uint32_t(n) + 1, std::memory_order_seq_cst);  // said before the claim: see retire_lane
      if (counter.compare_exchange_strong(n, n + 1, std::memory_order_seq_cst)) {
        SlotMeta& meta = view_.meta(uint32_t(n));
        number(uint32_t(n), stream);
        meta.word.store(SlotWord{SlotState::leased, l, 1}.pack(), std::memory_order_release);
        return int64_t(n);
      }
    }
    next.store(0, std::memory_order_release);
    return -1;
  }

  // Assigns the slot of take() to the stream.
  void settle(uint32_t stream, int64_t slot) {
    const uint32_t l = uint32_t(lane_);
    view_.current(l)[stream].store(uint32_t(slot) + 1, std::memory_order_release);
    view_.next(l)[stream].store(0, std::memory_order_release);
  }
  // The stream's slot that the lane's last worker left part-filled (see retire_lane), or -1.
  int64_t left_open(uint32_t stream) const {
    const uint32_t held = view_.current(uint32_t(lane_))[stream].load(std::memory_order_acquire);
    return held == 0 || held > view_.geometry().slots ? -1 : int64_t(held) - 1;
  }
  // Unassigns the stream's slot.
  void leave(uint32_t stream) { view_.current(uint32_t(lane_))[stream].store(0, std::memory_order_release); }

  // Marks the slot as complete.
  void close_slot(uint32_t slot) {
    auto& word = view_.meta(slot).word;
    SlotWord w = SlotWord::unpack(word.load(std::memory_order_relaxed));
    w.state = SlotState::closed;
    word.store(w.pack(), std::memory_order_release);
  }

  // Makes a prefix of `count` positions visible, `items` items more than before.
  void publish_slot(uint32_t slot, uint32_t count, uint32_t items) {
    SlotMeta& meta = view_.meta(slot);
    meta.items.store(meta.items.load(std::memory_order_relaxed) + items, std::memory_order_relaxed);
    copies_done();
    meta.count.store(count, std::memory_order_release);
    header().inserted.fetch_add(items, std::memory_order_relaxed);
  }

  // Tells the owner that something was published, and wakes it if it waits.
  //
  // The fence pairs with that of Owner::wait_for_items. There `sampler_waits` is stored, then `published` loaded; here it is
  // the other way about. Of two sequentially consistent fences one comes first, and what was stored before it is seen
  // after the other: the owner sees the publication, or this worker sees that it must ring. Without them both stores
  // may still be in their processors' store buffers, and both loads miss.
  void announce() {
    Lane& lane = view_.lane(uint32_t(lane_));
    lane.published.store(lane.published.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    wake_fence();
    Header& h = header();
    if (h.sampler_waits.load(std::memory_order_relaxed)) return ring();
    if (h.owner.load(std::memory_order_relaxed) == process_) return;  // an owner in this process serves without a wake-up
    if (h.asleep.load(std::memory_order_relaxed) && low()) ring();  // missed: wait() rings when the desk is empty
  }

  bool all_settled() const {
    const Lane& lane = view_.lane(uint32_t(lane_));
    return lane.settled.load(std::memory_order_acquire) == lane.published.load(std::memory_order_relaxed);
  }

  // Sleeps until the owner rings, at most `ns`. Safe without the GIL.
  void wait(int64_t ns) {
    Lane& lane = view_.lane(uint32_t(lane_));
    Header& h = header();
    const uint32_t seen = lane.bell.load(std::memory_order_acquire);
    lane.waiting.store(1, std::memory_order_seq_cst);
    h.lane_waits.store(1, std::memory_order_seq_cst);
    futex_wake(h.bell);
    if (!h.closed.load(std::memory_order_acquire)) futex_wait(lane.bell, seen, ns);
    lane.waiting.store(0, std::memory_order_relaxed);
  }

  // The priority of what comes without one: the largest so far.
  double default_priority() const {
    const double largest = max_priority(header());
    if (largest > 0.0) return largest;
    const auto& g = view_.geometry();
    const double first = g.alpha == 0.0 ? 1.0 : std::pow(1.0 + g.eps, g.alpha);
    raise_max_priority(header(), first);
    return first;
  }

  // Items that the limiter admits now.
  uint64_t room() const {
    const uint64_t inserted = header().inserted.load(std::memory_order_relaxed);
    const uint64_t limit = header().insert_limit.load(std::memory_order_relaxed);
    return limit > inserted ? limit - inserted : 0;
  }

 private:
  Header& header() const { return view_.header(); }

  uint64_t streams_in_use() const {
    uint64_t leased = 0;
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l)
      if (view_.lane(l).active.load(std::memory_order_seq_cst) && segment_->held(kLaneLock + l))
        leased += view_.lane(l).streams.load(std::memory_order_relaxed);
    return leased;
  }

  // Slots closed together are committed in the order of their use; once committed, the word holds their rank.
  void number(uint32_t slot, uint32_t stream) {
    const uint64_t lease = view_.lane(uint32_t(lane_)).generation.load(std::memory_order_relaxed);
    view_.meta(slot).order.store(lease << 40 | taken_++, std::memory_order_relaxed);
    view_.meta(slot).stream.store(stream, std::memory_order_relaxed);
  }

  bool low() const {
    const auto& g = view_.geometry();
    const auto* desk = view_.desk(uint32_t(lane_));
    uint32_t left = 0;
    const uint32_t want = g.kind == Kind::rows ? g.desk : std::min(g.desk, streams_);
    for (uint32_t d = 0; d < g.desk; ++d) left += desk[d].load(std::memory_order_relaxed) != 0;
    return left * 2 < want;
  }

  void ring() { futex_wake(header().bell); }

  std::shared_ptr<Segment> segment_;
  View view_;
  uint32_t streams_;
  uint64_t fork_;
  int lane_ = -1;
  uint64_t process_ = 0;
  uint32_t desk_at_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace apexrl
