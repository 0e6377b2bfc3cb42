// The writer of a replay: fills slots and publishes prefixes of them. One thread at a time.
//
// No call here waits: without a free slot or room it returns WriteStatus::wait, and the caller decides.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "blocks.h"
#include "gather.h"
#include "view.h"
#include "lease.h"

namespace apexrl {

class Writer {
 public:
  Writer(std::shared_ptr<Segment> segment, uint32_t streams)
      : view_(segment->data()), streams_(streams), blocks_(segment), ragged_(!blocks_.columns.empty()), lease_(std::move(segment), streams) {
    for (uint32_t c = 0; c < view_.geometry().columns; ++c) per_item_ = per_item_ || header().column[c].per_item;
  }

  ~Writer() { release(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  int lane() const { return lease_.lane(); }
  bool leased() const { return lease_.held(); }

  WriteStatus lease() {
    const WriteStatus status = lease_.take_lane();
    if (status != WriteStatus::ok) return status;
    stream_.assign(streams_, Stream{});
    const Geometry& g = view_.geometry();
    if (g.kind == Kind::rows) stream_[0].slot = lease_.left_open(0);
    if (stream_[0].slot >= 0)
      stream_[0].rows = std::min(view_.meta(uint32_t(stream_[0].slot)).count.load(std::memory_order_acquire), g.chunk);
    if (ragged_ && stream_[0].slot >= 0) stream_[0].end = blocks_.end_of(uint32_t(stream_[0].slot), stream_[0].rows);
    return status;
  }

  // Returns the lane. Published rows stay; complete items that were not published are lost.
  void release() {
    if (!leased()) return;
    header().dropped_steps.fetch_add(incomplete_steps(), std::memory_order_relaxed);
    lease_.release();
  }

  bool all_settled() const { return lease_.all_settled(); }
  // Sleeps until the owner rings, at most `ns`. Safe without the GIL.
  void wait(int64_t ns) { lease_.wait(ns); }

  // --- rows

  // Copies rows [start, n) from contiguous columns; `start` advances past what was stored. `powered`: (|p|+eps)^alpha
  // per row, or null for the largest so far.
  WriteStatus extend(const uint8_t* const* columns, const double* powered, size_t n, size_t& start) {
    const auto& g = view_.geometry();
    Header& h = header();
    Stream& stream = stream_[0];
    WriteStatus status = WriteStatus::ok;
    const size_t before = start;
    while (start < n) {
      if (h.closed.load(std::memory_order_relaxed)) { status = WriteStatus::closed; break; }
      const uint64_t room = lease_.room();
      if (room == 0) { status = WriteStatus::wait; break; }
      if (stream.slot < 0) {
        stream.slot = lease_.take(0);
        if (stream.slot < 0) { status = WriteStatus::wait; break; }
        lease_.settle(0, stream.slot);
        stream.rows = 0;
        stream.end = {};
      }
      const uint32_t slot = uint32_t(stream.slot);
      uint32_t count = uint32_t(std::min<uint64_t>({n - start, g.chunk - stream.rows, room}));
      if (ragged_) count = extend_ragged(stream, columns, start, count);
      if (count == 0) { status = WriteStatus::wait; break; }
      for (uint32_t c = 0; c < g.columns; ++c) {
        const Column& column = h.column[c];
        if (column.ragged) continue;
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
        std::fill_n(staged, count, lease_.default_priority());
      }
      stream.rows += count;
      start += count;
      lease_.publish_slot(slot, stream.rows, count);
      if (stream.rows == g.chunk) {
        lease_.close_slot(slot);
        lease_.leave(0);
        stream.slot = -1;
      }
    }
    if (start != before) lease_.announce();
    return status;
  }

  // --- streams

  // One step of each named stream (`which` null: streams 0 … n-1). All or nothing: on any status but ok and publish
  // nothing was stored. WriteStatus::publish with `stored`: stored, and items now wait for publish().
  WriteStatus append(const uint8_t* const* columns, const float* reward, const uint8_t* terminated,
                const uint8_t* truncated, const int64_t* which, size_t n, bool& stored) {
    const auto& g = view_.geometry();
    Header& h = header();
    stored = false;
    if (h.closed.load(std::memory_order_relaxed)) return WriteStatus::closed;
    if (lease_.room() <= pending_) return pending_ > 0 ? WriteStatus::publish : WriteStatus::wait;
    for (size_t i = 0; i < n; ++i) {
      const WriteStatus status = make_room(which ? uint32_t(which[i]) : uint32_t(i));
      if (status != WriteStatus::ok) return status;
    }
    if (ragged_ && !reserve(columns, which, n)) return pending_ > 0 ? WriteStatus::publish : WriteStatus::wait;
    for (uint32_t c = 0; c < g.columns; ++c) {
      const Column& column = h.column[c];
      if (column.per_item || column.ragged) continue;
      for (size_t i = 0; i < n; ++i) {
        const Stream& s = stream_[which ? size_t(which[i]) : i];
        copy_large(view_.cell(column, uint32_t(s.slot), s.rows), columns[c] + i * column.bytes, column.bytes);
      }
    }
    for (size_t i = 0; ragged_ && i < n; ++i) {
      Stream& s = stream_[which ? size_t(which[i]) : i];
      blocks_.write_row(uint32_t(s.slot), s.rows, s.end, columns, i);
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
    return full ? WriteStatus::publish : WriteStatus::ok;
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
    const double standard = powered ? 0.0 : lease_.default_priority();
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
      lease_.publish_slot(slot, s.published, items);
    }
    if (taken > 0) raise_max_priority(header(), largest);
    pending_ = 0;
    lease_.announce();
    // Leave complete slots now if there are free ones: windows cut short by an episode's end may be complete there too.
    for (uint32_t i = 0; i < streams_; ++i)
      if (stream_[i].slot >= 0 && stream_[i].complete == stream_[i].limit) make_room(i);
  }

 private:
  struct Stream {
    int64_t slot = -1;
    int64_t taken = -1;      // the slot to go on in, whose repeated rows found no block
    BlockEnd end;            // of ragged values in this slot
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

  // Steps appended since the last published position of each stream. Rows are whole by themselves.
  uint64_t incomplete_steps() const {
    if (view_.geometry().kind == Kind::rows) return 0;
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
      case 4: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + size_t(i) * 4, 4); return;
      case 8: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + size_t(i) * 8, 8); return;
      case 16: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + size_t(i) * 16, 16); return;
      default: for (uint32_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * size_t(bytes), bytes);
    }
  }

  // Gives stream `i` a row to write. A complete slot is left once the steps that the next chunk repeats are copied.
  WriteStatus make_room(uint32_t i) {
    const auto& g = view_.geometry();
    Stream& s = stream_[i];
    if (s.slot >= 0 && s.complete < s.limit) return WriteStatus::ok;
    if (s.slot >= 0 && s.published < s.limit) return WriteStatus::publish;
    const int64_t slot = s.taken >= 0 ? s.taken : lease_.take(i);
    if (slot < 0) return pending_ > 0 ? WriteStatus::publish : WriteStatus::wait;
    BlockEnd end;
    if (s.slot < 0) {
      lease_.settle(i, slot);
      s.rows = g.behind;
      for (uint32_t row = 0; row < g.behind; ++row) {
        view_.head(uint32_t(slot), row).flags = kAbsent;
        if (ragged_) blocks_.clear_row(uint32_t(slot), row);
      }
    } else {
      const uint32_t old = uint32_t(s.slot), from = s.limit, repeated = s.rows - from;
      if (ragged_ && !blocks_.reserve(uint32_t(slot), end, ragged_bytes(view_, blocks_.columns, old, from, s.rows))) {
        s.taken = slot;
        return pending_ > 0 ? WriteStatus::publish : WriteStatus::wait;
      }
      s.taken = -1;
      if (repeated > 0) {
        std::memcpy(view_.record(uint32_t(slot), 0), view_.record(old, from), size_t(g.record) * repeated);
        for (uint32_t c = 0; c < g.columns; ++c) {
          const Column& column = header().column[c];
          if (column.plane && !column.per_item)
            std::memcpy(view_.cell(column, uint32_t(slot), 0), view_.cell(column, old, from),
                        size_t(column.bytes) * repeated);
        }
        for (uint32_t row = 0; ragged_ && row < repeated; ++row) blocks_.copy_row(uint32_t(slot), row, end, old, from + row);
      }
      lease_.close_slot(old);
      lease_.settle(i, slot);
      lease_.announce();
      s.rows = repeated;
      s.covered -= std::min(s.covered, from);
      while (!s.kept.empty() && s.kept.front().row < from) s.kept.pop_front();
      for (auto& kept : s.kept) kept.row -= from;
    }
    s.slot = slot;
    s.end = end;
    s.limit = g.chunk;
    s.complete = s.published = s.cells = 0;
    complete(s);
    return WriteStatus::ok;
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
        // The tail of an episode is not a sequence of its own if the previous one contains it.
        if (g.kind == Kind::sequence) item = head.age == 0 || span == g.n_step || span + g.stride > g.n_step;
      }
      uint16_t cell = head.cell;
      if (item && g.cells > 0) {
        if (s.cells == g.cells) {
          s.limit = s.complete;
          return;
        }
        cell = uint16_t(s.cells++);
        if (per_item_) fill_cell(s, row - burn_in_of(view_, slot, row), cell);
      }
      if (item) {
        mark(head, head.flags | kItem, cell);
        if (g.kind != Kind::transition) s.covered = row + span_of(view_, slot, row, s.rows);
      }
      ++s.complete;
      pending_ += item;
    }
  }

  // Per-item values are kept until their item is complete and gets a cell.
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

  // Room for a step of each stream. False: some got no block.
  bool reserve(const uint8_t* const* columns, const int64_t* which, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const Stream& s = stream_[which ? size_t(which[i]) : i];
      if (!blocks_.reserve(uint32_t(s.slot), s.end, blocks_.bytes_of(columns, i))) return false;
    }
    return true;
  }

  // The ragged values of up to `count` rows. Answers how many rows had room.
  uint32_t extend_ragged(Stream& s, const uint8_t* const* columns, size_t start, uint32_t count) {
    const uint32_t slot = uint32_t(s.slot);
    for (uint32_t i = 0; i < count; ++i) {
      if (!blocks_.reserve(slot, s.end, blocks_.bytes_of(columns, start + i))) return i;
      blocks_.write_row(slot, s.rows + i, s.end, columns, start + i);
    }
    return count;
  }

  View view_;
  uint32_t streams_;
  Blocks blocks_;
  const bool ragged_;  // some column is
  Lease lease_;
  bool per_item_ = false;  // some column is
  size_t pending_ = 0;
  std::vector<Stream> stream_;
};

}  // namespace apexrl
