// Commits chunks of other hosts to a replay, through an ordinary lane. One thread at a time; no call waits.
//
// Bodies are not trusted: a chunk that no Writer could have written is refused before a byte of it is stored.
#pragma once

#include <memory>
#include <vector>

#include "blocks.h"
#include "chunks.h"
#include "lease.h"
#include "receipts.h"

namespace apexrl {

// (|δ| + eps)^alpha is no less than that of δ = 0; a little less where two machines' powers differ.
inline double least_priority(const View& view) {
  return std::pow(view.geometry().eps, view.geometry().alpha) * (1.0 - 1e-6);
}

// Why a chunk is refused; nullptr: it is valid.
//
// `least`: of a priority (least_priority).
inline const char* flaw_of(const View& view, const ChunkHead& c, const uint8_t* body, uint64_t bytes, double least) {
  const Geometry& g = view.geometry();
  if (g.kind == Kind::rows) return "this replay takes finished rows, not chunks";
  if (c.positions == 0 || c.positions > 65535 || c.first > 1u << 30) return "it names no positions";
  if (c.rows < g.behind + c.positions || c.rows > uint64_t(g.behind) + c.positions + g.ahead) return "its rows do not fit its positions";
  if (c.items == 0 || c.items > c.positions || c.cells != (g.cells > 0 ? c.items : 0)) return "its items do not fit its positions";
  const auto head = [&](uint32_t r) {
    StepHead h;
    std::memcpy(&h, body + size_t(r) * sizeof h, sizeof h);
    return h;
  };
  const uint64_t fixed = chunk_bytes(view, c.rows, c.positions, c.cells);
  if (g.blocks == 0 ? bytes != fixed : bytes < fixed) return "its body has another size than its head says";
  if (g.blocks > 0) {
    const std::vector<RaggedColumn> columns = ragged_columns(view);
    const RaggedBody ragged(view, columns, c, body);
    if (!ragged.fits()) return "a ragged value is longer than its field";
    if (bytes - fixed != ragged.bytes()) return "its body has another size than its head says";
    std::vector<uint8_t> scratch;
    bool sound = true;
    ragged.each_row(0, c.rows, [&](const Column& column, uint32_t r, const uint8_t* value, uint32_t n) {
      sound = sound && ((n == 0 && (head(r).flags & kAbsent)) || sound_value(column, value, n, scratch));
    });
    if (!sound) return "a compressed value is none of its field";
  }
  StepHead before{};
  constexpr uint8_t kKnown = kTerminated | kTruncated | kFinal | kStart | kItem | kAbsent, kEnd = kTerminated | kTruncated;
  for (uint32_t r = 0; r < c.rows; ++r) {
    const StepHead last = before, now = before = head(r);
    const bool within = ((now.flags & ~(kItem | kStart)) | (last.flags & ~(kItem | kStart))) == 0 && r > 0;
    if (within && now.age == std::min(last.age + 1, 255) && std::isfinite(now.reward)) continue;  // as most are
    if (now.flags & ~kKnown) return "a step has unknown flags";
    if (!std::isfinite(now.reward)) return "a reward is NaN or infinite";
    if (now.flags & kAbsent) {
      if (r >= g.behind || now.flags != kAbsent || (r > 0 && !(last.flags & kAbsent))) return "a step is absent in between";
      continue;
    }
    if ((now.flags & kFinal) && (now.flags & kEnd)) return "a final observation ends again";
    if (r == 0) continue;
    if (last.flags & (kFinal | kAbsent)) {
      if (now.age != 0 || (now.flags & kFinal)) return "an episode does not begin where the last one ended";
    } else if (now.age != std::min(last.age + 1, 255) || bool(now.flags & kFinal) != bool(last.flags & kEnd)) {
      return "an episode's steps do not follow one another";
    }
  }
  uint32_t items = 0;
  const bool plain = g.kind == Kind::transition && g.cells == 0;
  const uint64_t behind = g.behind, n_step = g.n_step;
  for (uint32_t p = 0; p < c.positions; ++p) {
    double value;
    std::memcpy(&value, body + size_t(c.rows) * sizeof(StepHead) + p * sizeof value, sizeof value);
    const StepHead now = head(uint32_t(behind + p));
    if (plain && (now.flags & (kItem | kFinal)) == kItem && value >= least && value <= 1e300 && behind + p + n_step < c.rows) {
      ++items;
      continue;  // as most are
    }
    const bool item = now.flags & kItem;
    if (item ? !(value >= least && value <= 1e300) : value != -1.0) return "a priority is out of range";
    if (!item) {
      if (g.kind == Kind::transition && !(now.flags & kFinal)) return "a step is no item";
      continue;
    }
    if (g.kind == Kind::transition ? bool(now.flags & kFinal) : !(now.flags & kStart)) return "an item begins where none can";
    if (g.cells > 0 && now.cell != items) return "the per-item values are out of order";
    ++items;
    const uint32_t row = g.behind + p;
    bool complete = uint64_t(row) + g.n_step < c.rows;  // as span_of
    for (uint32_t r = row; !complete && g.kind != Kind::unroll && r + 1 < c.rows; ++r) complete = head(r).flags & kEnd;
    if (!complete) return "an item's window is not complete";
  }
  return items == c.items ? nullptr : "its items are not as many as it says";
}

enum class CommitStatus { done, wait, closed, repeated, refused };

class Inbox {
 public:
  Inbox(std::shared_ptr<Segment> segment, uint32_t streams, std::shared_ptr<Segment> receipts)
      : view_(segment->data()), blocks_(segment), lease_(std::move(segment), streams), receipts_(std::move(receipts)), stream_(streams),
        least_(least_priority(view_)) {}

  WriteStatus lease() {
    const WriteStatus status = lease_.take_lane();
    if (status != WriteStatus::ok) return status;
    std::fill(stream_.begin(), stream_.end(), Stream{});
    receipts_.recover(view_);  // the lane's last worker is dead: nothing more is published in its name
    return status;
  }
  void release() { lease_.release(); }
  bool leased() const { return lease_.held(); }
  uint32_t streams() const { return uint32_t(stream_.size()); }
  size_t accounts() const { return receipts_.accounts(); }
  const View& view() const { return view_; }
  void wait(int64_t ns) { lease_.wait(ns); }
  bool all_settled() const { return lease_.all_settled(); }

  // Closes the slot that the stream fills.
  void close(uint32_t i) {
    Stream& s = stream_[i];
    if (s.slot < 0) return;
    lease_.close_slot(uint32_t(s.slot));
    lease_.leave(i);
    lease_.announce();
    s = Stream{};
  }

  // Commits the chunks of a frame, the first of which is number `sequence` of an account's sender, with its item number
  // `item`. Chunk k is of stream streams[places[k]]. `done`: chunks before which all is done with, before and after the
  // call; `sound`: before which an earlier call with these bytes found no flaw. Answers the last chunk's status.
  CommitStatus commit(const uint32_t* streams, const uint32_t* places, const std::vector<ChunkHead>& heads, const uint8_t* body, uint64_t bytes,
                      uint32_t account, uint64_t sequence, uint64_t item, size_t& done, size_t& sound, const char*& why) {
    CommitStatus answer = CommitStatus::done;
    uint64_t at = 0;
    for (size_t k = 0; k < heads.size(); item += heads[k].items, at += heads[k].bytes, ++k) {
      why = heads[k].bytes > bytes - at ? "its body is cut off" : nullptr;
      if (why != nullptr) return CommitStatus::refused;
      if (k < done) continue;
      bool checked = k < sound;
      answer = commit(streams[places[k]], heads[k], body + at, heads[k].bytes, account, sequence + k, item, checked, why);
      if (checked) sound = std::max(sound, k + 1);
      if (answer != CommitStatus::done && answer != CommitStatus::repeated) return answer;
      done = k + 1;
    }
    return answer;
  }

  // Commits chunk number `sequence` of an account's sender, whose first item is its number `item`. With CommitStatus::wait
  // a part may be committed already: the call is to be repeated, and goes on there. `sound`: an earlier call with these bytes
  // found no flaw, and this one does not look for any; after the call, whether there is none.
  CommitStatus commit(uint32_t i, const ChunkHead& c, const uint8_t* body, uint64_t bytes, uint32_t account, uint64_t sequence,
                uint64_t item, bool& sound, const char*& why) {
    why = nullptr;
    if (view_.header().closed.load(std::memory_order_relaxed)) return CommitStatus::closed;
    Account& account_state = receipts_.account(account);
    const uint64_t progress = account_state.progress.load(std::memory_order_relaxed);
    if (sequence < progress >> 16) {
      account_state.repeated.fetch_add(std::min(c.items, 65535u), std::memory_order_relaxed);
      return CommitStatus::repeated;
    }
    if (!sound) why = flaw_of(view_, c, body, bytes, least_);
    sound = why == nullptr;
    const uint64_t expected = account_state.next_item.load(std::memory_order_relaxed);
    uint32_t from = sequence == progress >> 16 ? uint32_t(progress & 0xffff) : 0;
    if (why == nullptr && from >= c.positions) why = "it is another chunk than the one that came before under its number";
    if (why == nullptr && from == 0 && item < expected) why = "its items were numbered before";
    constexpr uint64_t kAhead = uint64_t(1) << 34;  // more than any sender loses; forged numbers must not spoil the counters
    const bool joined = progress == 0 && expected == item;  // it sent before these receipts began
    if (why == nullptr && from == 0 && !joined && (item - expected > kAhead || sequence - (progress >> 16) > kAhead)) why = "it is numbered too far ahead";
    if (why == nullptr && (sequence >= uint64_t(1) << 40 || item >= uint64_t(1) << 50)) why = "its number is out of range";
    if (why != nullptr) return CommitStatus::refused;
    const uint64_t missing = account_state.missing.load(std::memory_order_relaxed) + (from == 0 ? item - expected : 0);
    uint32_t before = 0;  // items in positions before `from`
    for (uint32_t p = 0; p < from; ++p) before += staged_of(c, body, p) >= 0.0;
    while (from < c.positions) {
      if (lease_.room() == 0) return CommitStatus::wait;
      const int64_t n = place(i, c, body, from, before, Entry{account, 0, item, account_state.committed.load(std::memory_order_relaxed), missing}, sequence);
      if (n < 0) return CommitStatus::wait;
      if (from + n < c.positions)
        for (int64_t k = 0; k < n; ++k) before += staged_of(c, body, from + uint32_t(k)) >= 0.0;
      from += uint32_t(n);
    }
    lease_.announce();
    return CommitStatus::done;
  }

 private:
  struct Stream {
    int64_t slot = -1;
    uint64_t slot_generation = 0;   // of the sender's slot
    int64_t base = 0;    // the sender's position at our position 0
    uint32_t count = 0;  // positions published
    uint32_t rows = 0;   // written
    uint32_t cells = 0;
    BlockEnd end;        // of ragged values
  };

  double staged_of(const ChunkHead& c, const uint8_t* body, uint32_t p) const {
    double value;
    std::memcpy(&value, body + size_t(c.rows) * sizeof(StepHead) + size_t(p) * sizeof value, sizeof value);
    return value;
  }

  // Puts as many positions as fit, from `from` on, where they belong. Answers how many; -1: there is no slot.
  int64_t place(uint32_t i, const ChunkHead& c, const uint8_t* body, uint32_t from, uint32_t before, Entry entry, uint64_t sequence) {
    const Geometry& g = view_.geometry();
    Stream& s = stream_[i];
    const int64_t here = int64_t(c.first) + from;
    if (s.slot >= 0) {  // only what follows what is there without a hole may join it
      const bool follows = s.slot_generation == c.slot_generation && here >= s.base + s.count && here - s.base < g.chunk &&
                           int64_t(c.first) - s.base <= int64_t(s.rows) && int64_t(c.first) >= s.base && agrees(s, c, body);
      if (!follows) close(i);
    }
    if (s.slot < 0) {
      const int64_t slot = lease_.take(i);
      if (slot < 0) return -1;
      lease_.settle(i, slot);
      s = Stream{slot, c.slot_generation, here, 0, 0, 0, {}};
    }
    const uint32_t slot = uint32_t(s.slot), at = uint32_t(here - s.base);  // our first position
    uint32_t n = std::min(c.positions - from, g.chunk - at), items = 0;
    if (g.cells == 0) {
      for (uint32_t k = 0; k < n; ++k) items += staged_of(c, body, from + k) >= 0.0;
    } else {
      for (uint32_t k = 0; k < n; ++k) {
        if (!(staged_of(c, body, from + k) >= 0.0)) continue;
        if (s.cells + items == g.cells) {
          n = k;
          break;
        }
        ++items;
      }
    }
    if (n == 0) {  // its cells are used up
      close(i);
      return place(i, c, body, from, before, entry, sequence);
    }
    if (!write_rows(s, c, body, from, n, before)) return -1;
    double* staged = view_.staged(slot);
    std::fill(staged + s.count, staged + at, -1.0);  // positions that are no items, or never came
    std::memcpy(staged + at, body + size_t(c.rows) * sizeof(StepHead) + size_t(from) * sizeof(double), n * sizeof(double));
    double largest[4] = {};  // as many that do not wait for one another
    for (uint32_t k = 0; k < n; ++k) largest[k % 4] = std::max(largest[k % 4], staged[at + k]);
    const bool last = from + n == c.positions;
    entry.progress = last ? (sequence + 1) << 16 : sequence << 16 | (from + n);
    entry.next_item += before + items;
    entry.committed += items;
    copies_done();
    receipts_.announce(view_, slot, at + n, entry);
    lease_.publish_slot(slot, at + n, items);
    receipts_.enter();
    raise_max_priority(view_.header(), std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3])));
    s.count = at + n;
    s.cells += items;
    if (s.count == g.chunk) close(i);
    return n;
  }

  // Whether the rows that the chunk shares with those here are equal; otherwise it only claims to continue the same slot.
  bool agrees(const Stream& s, const ChunkHead& c, const uint8_t* body) const {
    const uint32_t slot = uint32_t(s.slot), begin = uint32_t(int64_t(c.first) - s.base), end = std::min(s.rows, begin + c.rows);
    const uint8_t* column_at = body + size_t(c.rows) * sizeof(StepHead) + size_t(c.positions) * sizeof(double);
    for (uint32_t r = begin; r < end; ++r) {
      StepHead in;
      std::memcpy(&in, body + size_t(r - begin) * sizeof in, sizeof in);
      const StepHead& head = view_.head(slot, r);
      if (in.reward != head.reward || in.age != head.age || ((in.flags ^ head.flags) & ~kItem) != 0) return false;
    }
    for (uint32_t k = 0; k < view_.geometry().columns; ++k) {
      const Column& column = view_.header().column[k];
      if (column.ragged) continue;
      for (uint32_t r = begin; r < end && !column.per_item; ++r)
        if (std::memcmp(column_at + size_t(r - begin) * column.bytes, view_.cell(column, slot, r), column.bytes) != 0) return false;
      column_at += size_t(column.per_item ? c.cells : c.rows) * column.bytes;
    }
    bool same = true;
    if (view_.geometry().blocks > 0)  // the lengths are
      RaggedBody(view_, blocks_.columns, c, body).each_row(0, end - begin, [&](const Column& column, uint32_t row, const uint8_t* value, uint32_t) {
        uint32_t left = 0;
        each_piece(view_, column, slot, begin + row, left, [&](const uint8_t* piece, uint32_t n) {
          same = same && std::memcmp(value, piece, n) == 0;
          value += n;
        });
      });
    return same;
  }

  // The chunk's rows into the slot; those that are there already get what is new of them: where items begin. False: there
  // is no room for ragged values.
  bool write_rows(Stream& s, const ChunkHead& c, const uint8_t* body, uint32_t from, uint32_t n, uint32_t before) {
    const Geometry& g = view_.geometry();
    const uint32_t slot = uint32_t(s.slot);
    const int64_t shift = int64_t(c.first) - s.base;  // our row of the chunk's row 0; negative in a slot begun in its middle
    const uint32_t row = uint32_t(int64_t(from) + shift) + g.behind, end = uint32_t(std::min<int64_t>(g.rows, c.rows + shift));
    const uint8_t* column_at = body + size_t(c.rows) * sizeof(StepHead) + size_t(c.positions) * sizeof(double);
    const uint32_t fresh = s.rows;
    if (g.blocks > 0 && end > fresh) {
      const uint32_t first = uint32_t(int64_t(fresh) - shift), last = uint32_t(int64_t(end) - shift);
      const RaggedBody ragged(view_, blocks_.columns, c, body);
      if (!blocks_.reserve(slot, s.end, ragged.bytes(first, last))) return false;
      ragged.each_row(first, last, [&](const Column& column, uint32_t r, const uint8_t* value, uint32_t bytes) {
        blocks_.write(slot, uint32_t(int64_t(r) + shift), column, s.end, value, bytes);
      });
    }
    const uint64_t cells = g.cells, record = g.record;  // stores below cannot change them
    uint8_t* out = view_.record(slot, std::min(row, fresh));
    const uint8_t* in_at = body + size_t(int64_t(std::min(row, fresh)) - shift) * sizeof(StepHead);
    for (uint32_t r = std::min(row, fresh); r < end; ++r, out += record, in_at += sizeof(StepHead)) {
      StepHead in;
      std::memcpy(&in, in_at, sizeof in);
      const bool starts = r >= row && r < row + n;
      if (!starts) in.flags &= uint8_t(~kItem);
      in.cell = starts && (in.flags & kItem) && cells > 0 ? uint16_t(s.cells + in.cell - before) : 0;
      StepHead& head = *reinterpret_cast<StepHead*>(out);
      if (r >= fresh) {
        head = in;
      } else if (r >= row) {  // windows of published items read its reward and its ends meanwhile
        mark(head, in.flags, in.cell);
      }
    }
    for (uint32_t k = 0; k < g.columns; ++k) {
      const Column& column = view_.header().column[k];
      if (column.per_item) {
        uint32_t items = 0;
        for (uint32_t p = 0; p < n; ++p) items += staged_of(c, body, from + p) >= 0.0;
        std::memcpy(view_.cell(column, slot, s.cells), column_at + size_t(before) * column.bytes, size_t(items) * column.bytes);
        column_at += size_t(c.cells) * column.bytes;
        continue;
      }
      if (column.ragged) continue;
      if (end > fresh) {
        const uint8_t* in = column_at + size_t(int64_t(fresh) - shift) * column.bytes;
        uint8_t* out = view_.cell(column, slot, fresh);
        const size_t stride = view_.stride(column);
        if (stride == column.bytes) {
          copy_large(out, in, size_t(end - fresh) * column.bytes);
        } else {
          copy_rows(out, stride, in, column.bytes, column.bytes, end - fresh);
        }
      }
      column_at += size_t(c.rows) * column.bytes;
    }
    s.rows = std::max(s.rows, end);
    return true;
  }

  View view_;
  Blocks blocks_;
  Lease lease_;
  Receipts receipts_;
  std::vector<Stream> stream_;
  const double least_;
};

}  // namespace apexrl
