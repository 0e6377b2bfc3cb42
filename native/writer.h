// The worker's side of a replay: leases a lane, fills slots, publishes prefixes. One thread at a time.
//
// No call here waits: what needs a slot or room that is not there returns Status::wait, and the caller decides.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "crash.h"
#include "gather.h"
#include "layout.h"
#include "segment.h"

namespace apexrl {

enum class Status : int {
  ok = 0,
  wait = 1,         // no slot, or the limiter holds inserts back: wait() and call again
  closed = 2,       // the replay was closed
  no_lane = 3,      // every lane is leased
  no_streams = 4,   // the replay has fewer streams left than asked for
  publish = 5,      // (streams) complete items wait for their priorities: publish() first
};

class Writer {
 public:
  Writer(std::shared_ptr<Segment> segment, uint32_t streams)
      : segment_(std::move(segment)), view_(segment_->data()), streams_(streams), fork_(fork_generation()) {
    for (uint32_t c = 0; c < view_.geometry().columns; ++c) per_item_ = per_item_ || header().column[c].per_item;
  }

  ~Writer() { release(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool inherited() const { return fork_ != fork_generation(); }
  int lane() const { return lane_; }
  bool leased() const { return lane_ >= 0 && !inherited(); }

  // Takes a lane that nobody alive holds. A dead predecessor's published rows are handed over first.
  Status lease() {
    const auto& g = view_.geometry();
    if (header().closed.load(std::memory_order_acquire)) return Status::closed;
    if (g.kind != Kind::rows && streams_in_use() + streams_ > g.streams) return Status::no_streams;
    for (int pass = 0; pass < 2; ++pass)  // lanes that were never used or were given back first
      for (uint32_t l = 0; l < g.lanes; ++l) {
        Lane& lane = view_.lane(l);
        if (pass == 0 && lane.active.load(std::memory_order_acquire)) continue;
        if (!segment_->try_lock(kLaneLock + l)) continue;
        retire_lane(view_, l);
        pid_ = uint32_t(getpid());
        APEXRL_POINT();
        lane.pid.store(pid_, std::memory_order_relaxed);
        lane.streams.store(streams_, std::memory_order_relaxed);
        lane.generation.fetch_add(1, std::memory_order_relaxed);
        APEXRL_POINT();
        lane.active.store(1, std::memory_order_seq_cst);
        APEXRL_POINT();
        if (g.kind != Kind::rows && streams_in_use() > g.streams) {  // another was leased at the same moment
          lane.active.store(0, std::memory_order_release);
          segment_->unlock(kLaneLock + l);
          return Status::no_streams;
        }
        lane_ = int(l);
        fork_ = fork_generation();
        stream_.assign(streams_, Stream{});
        return Status::ok;
      }
    return Status::no_lane;
  }

  // Gives the lane back. Published rows stay; complete items that were never published are lost.
  void release() {
    if (!leased()) return;
    header().dropped_steps.fetch_add(incomplete_steps(), std::memory_order_relaxed);
    retire_lane(view_, uint32_t(lane_));
    segment_->unlock(kLaneLock + uint32_t(lane_));
    lane_ = -1;
    ring();
  }

  // --- rows

  // Copies rows [start, n) from contiguous columns; `start` advances past what was stored. `powered`: (|p|+eps)^alpha
  // per row, or null for the largest so far.
  Status extend(const uint8_t* const* columns, const double* powered, size_t n, size_t& start) {
    const auto& g = view_.geometry();
    Header& h = header();
    Stream& stream = stream_[0];
    Status status = Status::ok;
    const size_t before = start;
    while (start < n) {
      if (h.closed.load(std::memory_order_relaxed)) { status = Status::closed; break; }
      const uint64_t room = this->room();
      if (room == 0) { status = Status::wait; break; }
      if (stream.slot < 0) {
        stream.slot = take(0);
        if (stream.slot < 0) { status = Status::wait; break; }
        settle(0, stream.slot);
        stream.rows = 0;
      }
      const uint32_t slot = uint32_t(stream.slot);
      const uint32_t count = uint32_t(std::min<uint64_t>({n - start, g.chunk - stream.rows, room}));
      for (uint32_t c = 0; c < g.columns; ++c) {
        const Column& column = h.column[c];
        copy_in(view_.cell(column, slot, stream.rows), view_.stride(column),
                columns[c] + start * column.bytes, column.bytes, count);
      }
      double* staged = view_.staged(slot) + stream.rows;
      if (powered != nullptr) {
        double largest = 0.0;
        for (uint32_t i = 0; i < count; ++i) {
          staged[i] = powered[start + i];
          largest = std::max(largest, staged[i]);
        }
        raise_max_priority(h, largest);
      } else {
        std::fill_n(staged, count, default_priority());
      }
      stream.rows += count;
      start += count;
      publish_slot(slot, stream.rows, count);
      if (stream.rows == g.chunk) {
        close_slot(slot);
        view_.current(uint32_t(lane_))[0].store(0, std::memory_order_release);
        stream.slot = -1;
      }
    }
    if (start != before) announce();
    return status;
  }

  // --- streams

  // One step of each named stream (`which` null: streams 0 … n-1). All or nothing: on any status but ok and publish
  // nothing was stored. Status::publish with `stored`: stored, and items now wait for publish().
  Status append(const uint8_t* const* columns, const float* reward, const uint8_t* terminated,
                const uint8_t* truncated, const int64_t* which, size_t n, bool& stored) {
    const auto& g = view_.geometry();
    Header& h = header();
    stored = false;
    if (h.closed.load(std::memory_order_relaxed)) return Status::closed;
    if (room() <= pending_) return pending_ > 0 ? Status::publish : Status::wait;
    for (size_t i = 0; i < n; ++i) {
      const Status status = make_room(which ? uint32_t(which[i]) : uint32_t(i));
      if (status != Status::ok) return status;
    }
    for (uint32_t c = 0; c < g.columns; ++c) {
      const Column& column = h.column[c];
      if (column.per_item) continue;
      for (size_t i = 0; i < n; ++i) {
        const Stream& s = stream_[which ? size_t(which[i]) : i];
        copy_large(view_.cell(column, uint32_t(s.slot), s.rows), columns[c] + i * column.bytes, column.bytes);
      }
    }
    bool full = false;
    for (size_t i = 0; i < n; ++i) {
      Stream& s = stream_[which ? size_t(which[i]) : i];
      StepHead& head = view_.head(uint32_t(s.slot), s.rows);
      const bool final = s.ended;
      s.age = s.fresh ? 0 : std::min<uint32_t>(s.age + 1, 255);
      head.age = uint8_t(s.age);
      head.cell = 0;
      head.reward = final ? 0.0f : reward[i];
      head.flags = final ? uint8_t(kFinal)
                         : uint8_t((terminated[i] ? kTerminated : 0) | (truncated[i] ? kTruncated : 0));
      s.ended = !final && head.flags != 0;
      s.steps = g.kind == Kind::sequence && s.fresh ? 0 : s.steps;
      if (g.stride > 0) {
        if (!(final && g.kind == Kind::sequence) && s.steps % g.stride == 0) head.flags |= kStart;
        if (per_item_ && (s.steps == 0 || (s.steps + g.burn_in) % g.stride == 0)) keep_cell(s, columns, i);
      }
      ++s.steps;
      s.fresh = final;
      ++s.rows;
      complete(s);
      full = full || s.complete == s.limit;
    }
    stored = true;
    return full ? Status::publish : Status::ok;
  }

  // Complete items that wait for their priorities, in the order that publish() expects.
  size_t pending(std::vector<ItemRef>& items) const {
    items.clear();
    const uint32_t behind = view_.geometry().behind;
    for (const Stream& s : stream_)
      for (uint32_t p = s.published; s.slot >= 0 && p < s.complete; ++p) {
        const uint32_t row = behind + p;
        if (!(view_.head(uint32_t(s.slot), row).flags & kItem)) continue;
        items.push_back(item_at(view_, uint32_t(s.slot), row, s.rows));
      }
    return items.size();
  }
  size_t pending_count() const { return pending_; }

  // Makes complete items visible. `powered`: one per pending item, or null for the largest so far.
  void publish(const double* powered) {
    const uint32_t behind = view_.geometry().behind;
    const double standard = powered ? 0.0 : default_priority();
    double largest = 0.0;
    size_t taken = 0;
    for (Stream& s : stream_) {
      if (s.slot < 0 || s.published == s.complete) continue;
      const uint32_t slot = uint32_t(s.slot);
      double* staged = view_.staged(slot);
      uint32_t items = 0;
      for (uint32_t p = s.published; p < s.complete; ++p) {
        if (!(view_.head(slot, behind + p).flags & kItem)) {
          staged[p] = -1.0;
          continue;
        }
        staged[p] = powered ? powered[taken] : standard;
        largest = std::max(largest, staged[p]);
        ++taken;
        ++items;
      }
      s.published = s.complete;
      publish_slot(slot, s.published, items);
    }
    if (taken > 0) raise_max_priority(header(), largest);
    pending_ = 0;
    announce();
    // Leave complete slots now if there are others: windows that an episode's end cut short may be complete there too.
    for (uint32_t i = 0; i < streams_; ++i)
      if (stream_[i].slot >= 0 && stream_[i].complete == stream_[i].limit) make_room(i);
  }

  // --- waiting

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

 private:
  struct Stream {
    int64_t slot = -1;
    uint32_t rows = 0;       // written in this slot
    uint32_t complete = 0;   // item positions whose windows are written
    uint32_t published = 0;  // … and published
    uint32_t limit = 0;      // item positions of this slot: chunk, or fewer when its cells are used up
    uint32_t cells = 0;      // per-item values in this slot
    uint32_t covered = 0;    // rows that some item holds (sequence, unroll)
    uint32_t age = 0;
    uint64_t steps = 0;      // of the episode (sequence), of the stream (unroll): where items start
    bool fresh = true;       // the next step begins an episode
    bool ended = false;      // the next step is a final observation
    struct Kept {
      uint32_t row;
      std::vector<uint8_t> bytes;
    };
    std::deque<Kept> kept;   // per-item values of rows that may begin an item
  };

  Header& header() const { return view_.header(); }

  // Steps appended since the last published position of each stream.
  uint64_t incomplete_steps() const {
    uint64_t steps = 0;
    for (const Stream& s : stream_)
      for (uint32_t row = std::max(view_.geometry().behind + s.published, s.covered); s.slot >= 0 && row < s.rows; ++row)
        steps += !(view_.head(uint32_t(s.slot), row).flags & kFinal);
    return steps;
  }

  static void copy_in(uint8_t* to, size_t stride, const uint8_t* from, uint32_t bytes, uint32_t n) {
    if (stride == bytes) {
      copy_large(to, from, size_t(bytes) * n);
      return;
    }
    switch (bytes) {
      case 1: for (uint32_t i = 0; i < n; ++i) to[i * stride] = from[i]; return;
      case 4: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * 4, 4); return;
      case 8: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * 8, 8); return;
      case 16: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * 16, 16); return;
      default: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * size_t(bytes), bytes);
    }
  }

  double default_priority() const {
    const double largest = max_priority(header());
    if (largest > 0.0) return largest;
    const auto& g = view_.geometry();
    const double first = g.alpha == 0.0 ? 1.0 : std::pow(1.0 + g.eps, g.alpha);
    raise_max_priority(header(), first);
    return first;
  }

  // Items that the limiter lets in just now.
  uint64_t room() const {
    const uint64_t inserted = header().inserted.load(std::memory_order_relaxed);
    const uint64_t limit = header().insert_limit.load(std::memory_order_relaxed);
    return limit > inserted ? limit - inserted : 0;
  }

  uint64_t streams_in_use() const {
    uint64_t leased = 0;
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l)
      if (view_.lane(l).active.load(std::memory_order_seq_cst) && segment_->holder(kLaneLock + l) != 0)
        leased += view_.lane(l).streams.load(std::memory_order_relaxed);
    return leased;
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
      if (held == 0) continue;
      APEXRL_POINT();
      next.store(held, std::memory_order_release);
      APEXRL_POINT();
      desk[d].store(0, std::memory_order_release);
      APEXRL_POINT();
      desk_at_ = (d + 1) % g.desk;
      number(held - 1);
      return held - 1;
    }
    auto& counter = header().next_unused;
    uint64_t n = counter.load(std::memory_order_acquire);
    while (n < g.slots) {
      next.store(uint32_t(n) + 1, std::memory_order_seq_cst);  // said before the claim: see retire_lane
      APEXRL_POINT();
      if (counter.compare_exchange_strong(n, n + 1, std::memory_order_seq_cst)) {
        SlotMeta& meta = view_.meta(uint32_t(n));
        APEXRL_POINT();
        number(uint32_t(n));
        APEXRL_POINT();
        meta.word.store(SlotWord{SlotState::leased, l, 1}.pack(), std::memory_order_release);
        return int64_t(n);
      }
    }
    next.store(0, std::memory_order_release);
    return -1;
  }

  // Slots closed together are committed in the order of their use; once committed, the word holds their rank.
  void number(uint32_t slot) {
    const uint64_t lease = view_.lane(uint32_t(lane_)).generation.load(std::memory_order_relaxed);
    view_.meta(slot).order.store(lease << 40 | taken_++, std::memory_order_relaxed);
  }

  void settle(uint32_t stream, int64_t slot) {
    const uint32_t l = uint32_t(lane_);
    APEXRL_POINT();
    view_.current(l)[stream].store(uint32_t(slot) + 1, std::memory_order_release);
    APEXRL_POINT();
    view_.next(l)[stream].store(0, std::memory_order_release);
  }

  void close_slot(uint32_t slot) {
    auto& word = view_.meta(slot).word;
    SlotWord w = SlotWord::unpack(word.load(std::memory_order_relaxed));
    w.state = SlotState::closed;
    APEXRL_POINT();
    word.store(w.pack(), std::memory_order_release);
    APEXRL_POINT();
  }

  void publish_slot(uint32_t slot, uint32_t count, uint32_t items) {
    SlotMeta& meta = view_.meta(slot);
    meta.items.store(meta.items.load(std::memory_order_relaxed) + items, std::memory_order_relaxed);
    copies_done();
    APEXRL_POINT();
    meta.count.store(count, std::memory_order_release);
    APEXRL_POINT();
    header().inserted.fetch_add(items, std::memory_order_relaxed);
  }

  // Tells the owner that something was published, and wakes it when it is wanted.
  void announce() {
    Lane& lane = view_.lane(uint32_t(lane_));
    lane.published.store(lane.published.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    Header& h = header();
    if (h.hungry.load(std::memory_order_relaxed)) return ring();
    if (h.owner_pid.load(std::memory_order_relaxed) == pid_) return;  // an owner in this process is asked directly
    if (h.asleep.load(std::memory_order_relaxed) && low()) ring();
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

  // Gives stream `i` a row to write. A complete slot is left once the steps that the next chunk repeats are copied.
  Status make_room(uint32_t i) {
    const auto& g = view_.geometry();
    Stream& s = stream_[i];
    if (s.slot >= 0 && s.complete < s.limit) return Status::ok;
    if (s.slot >= 0 && s.published < s.limit) return Status::publish;
    const int64_t slot = take(i);
    if (slot < 0) return pending_ > 0 ? Status::publish : Status::wait;
    if (s.slot < 0) {
      settle(i, slot);
      s.rows = g.behind;
      for (uint32_t row = 0; row < g.behind; ++row) view_.head(uint32_t(slot), row).flags = kAbsent;
    } else {
      const uint32_t old = uint32_t(s.slot), from = s.limit, repeated = s.rows - from;
      if (repeated > 0) {
        std::memcpy(view_.record(uint32_t(slot), 0), view_.record(old, from), size_t(g.record) * repeated);
        for (uint32_t c = 0; c < g.columns; ++c) {
          const Column& column = header().column[c];
          if (column.plane && !column.per_item)
            std::memcpy(view_.cell(column, uint32_t(slot), 0), view_.cell(column, old, from),
                        size_t(column.bytes) * repeated);
        }
      }
      close_slot(old);
      settle(i, slot);
      announce();
      s.rows = repeated;
      s.covered -= std::min(s.covered, from);
      while (!s.kept.empty() && s.kept.front().row < from) s.kept.pop_front();
      for (auto& kept : s.kept) kept.row -= from;
    }
    s.slot = slot;
    s.limit = g.chunk;
    s.complete = s.published = s.cells = 0;
    complete(s);
    return Status::ok;
  }

  // Counts the positions whose windows the newest row has completed, and marks those where an item begins.
  void complete(Stream& s) {
    const auto& g = view_.geometry();
    const uint32_t slot = uint32_t(s.slot);
    while (s.complete < s.limit) {
      const uint32_t row = g.behind + s.complete;
      if (row >= s.rows) return;
      StepHead& head = view_.head(slot, row);
      bool item = g.kind == Kind::transition ? !(head.flags & kFinal) : head.flags & kStart;
      if (item) {
        const uint32_t span = span_of(view_, slot, row, s.rows);
        if (span == 0) return;
        // The tail of an episode is no sequence of its own when the one before holds all of it.
        if (g.kind == Kind::sequence) item = head.age == 0 || span == g.n_step || span + g.stride > g.n_step;
      }
      if (item && g.cells > 0) {
        if (s.cells == g.cells) {
          s.limit = s.complete;
          return;
        }
        head.cell = uint16_t(s.cells++);
        if (per_item_) fill_cell(s, row - warm_of(view_, slot, row), head.cell);
      }
      if (item) {
        head.flags |= kItem;
        if (g.kind != Kind::transition) s.covered = row + span_of(view_, slot, row, s.rows);
      }
      ++s.complete;
      pending_ += item;
    }
  }

  // Per-item values wait here until their item is complete, for only then it has a cell.
  void keep_cell(Stream& s, const uint8_t* const* columns, size_t row_of_call) {
    typename Stream::Kept kept{s.rows, {}};
    for (uint32_t c = 0; c < view_.geometry().columns; ++c) {
      const Column& column = header().column[c];
      if (!column.per_item) continue;
      const uint8_t* value = columns[c] + row_of_call * column.bytes;
      kept.bytes.insert(kept.bytes.end(), value, value + column.bytes);
    }
    s.kept.push_back(std::move(kept));
  }
  void fill_cell(const Stream& s, uint32_t row, uint32_t cell) {
    for (const auto& kept : s.kept) {
      if (kept.row != row) continue;
      const uint8_t* value = kept.bytes.data();
      for (uint32_t c = 0; c < view_.geometry().columns; ++c) {
        const Column& column = header().column[c];
        if (!column.per_item) continue;
        std::memcpy(view_.cell(column, uint32_t(s.slot), cell), value, column.bytes);
        value += column.bytes;
      }
      return;
    }
  }

  std::shared_ptr<Segment> segment_;
  View view_;
  uint32_t streams_;
  uint64_t fork_;
  bool per_item_ = false;  // some column is
  int lane_ = -1;
  uint32_t pid_ = 0;
  uint32_t desk_at_ = 0;
  uint64_t taken_ = 0;
  size_t pending_ = 0;
  std::vector<Stream> stream_;
};

}  // namespace apexrl
