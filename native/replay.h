// A replay in one process: the segment, and the Owner if this process samples.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "owner.h"
#include "writer.h"

namespace apexrl {

class Replay {
 public:
  // `g`: sizes and options; the layout is computed here. `json`: Python's description, for attaching processes.
  static std::shared_ptr<Replay> create(Geometry g, std::vector<Column> columns, const std::string& json,
                                        uint64_t min_size, double samples_per_insert, double insert_band,
                                        const std::string& directory) {
    if (g.chunk == 0 || g.chunk > 65535) throw std::invalid_argument("a chunk has 1 to 65535 item positions");
    if (g.most < g.capacity) g.most = g.capacity;
    if (g.chunk_items == 0) g.chunk_items = g.chunk;
    g.json_bytes = json.size();
    // The desk holds the rows of a moment, not megabytes of large ones.
    uint64_t row = 0;
    for (const auto& c : columns) row += c.bytes;
    g.desk = g.kind == Kind::rows
                 ? uint32_t(std::clamp<uint64_t>((uint64_t(4) << 20) / std::max<uint64_t>(1, row * g.chunk), 2, g.chunk < 8 ? 256 : 32))
                 : g.streams;
    lay_out(g, columns);
    auto segment = Segment::create(g.total, directory, g.slots_at);
    View view(segment->data());
    Header& h = view.header();
    h.geometry = g;
    h.committed.store(segment->strict() ? 0 : g.slots);
    h.blocks_committed.store(segment->strict() ? 0 : g.blocks);
    std::copy(columns.begin(), columns.end(), h.column);
    std::memcpy(segment->data() + g.json_at, json.data(), json.size());
    h.min_size.store(min_size);
    h.samples_per_insert.store(samples_per_insert);
    const double error_buffer = insert_band * double(min_size) * samples_per_insert;
    h.error_buffer.store(error_buffer);
    h.insert_band.store(insert_band);
    h.insert_limit.store(g.sampler == Sampler::fifo ? g.capacity : ~uint64_t(0));
    if (samples_per_insert > 0.0)
      h.insert_limit.store(std::max<uint64_t>(
          std::max<uint64_t>(1, min_size),
          uint64_t(std::min((double(min_size) * samples_per_insert + error_buffer) / samples_per_insert, 0x1p62))));
    h.version = kReplayVersion;
    h.bytes = sizeof(Header);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(h.magic, kReplayMagic, 8);
    return of(segment);
  }

  // The one Replay of this segment in this process.
  static std::shared_ptr<Replay> of(const std::shared_ptr<Segment>& segment) {
    static auto* all = new std::map<Uuid, std::weak_ptr<Replay>>();
    std::lock_guard guard(mutex());
    auto& entry = (*all)[segment->uuid()];
    if (auto known = entry.lock()) return known;
    if (segment->nbytes() < sizeof(Header)) throw std::runtime_error("this shared memory holds no replay");
    const Header& h = View(segment->data()).header();
    if (std::memcmp(h.magic, kReplayMagic, 8) != 0 || h.version != kReplayVersion || h.bytes != sizeof(Header))
      throw std::runtime_error("this shared memory holds no replay of this version of apexrl");
    if (!is_laid_out(h, segment->nbytes()))
      throw std::runtime_error("the replay in " + segment->name() + " cannot be used: its header was overwritten");
    auto replay = std::shared_ptr<Replay>(new Replay(segment));
    entry = replay;
    return replay;
  }

  ~Replay() { disown(); }

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  const View& view() const { return view_; }
  std::string json() const {
    const auto& g = view_.geometry();
    return std::string(reinterpret_cast<const char*>(segment_->data() + g.json_at), g.json_bytes);
  }

  // The Owner here, or null.
  std::shared_ptr<Owner> owner() {
    std::lock_guard guard(mutex());
    return current();
  }
  // Becomes the owner if nobody else is; else returns null and who is. The mutex is free meanwhile: a new owner reads
  // all that the replay holds, and every call of this process, to whatever replay, asks under it for an owner.
  std::shared_ptr<Owner> own(int& holder, bool provisional = false) {
    const uint64_t here = fork_generation() + 1;  // another thread of a parent is none of this process
    for (;;) {
      const uint32_t seen = acquired_.load(std::memory_order_acquire);
      {
        std::lock_guard guard(mutex());
        if (auto mine = current()) return mine;
        if (acquiring_ != here) {
          acquiring_ = here;
          break;
        }
      }
      futex_wait(acquired_, seen, 100'000'000);  // another thread is becoming the owner
    }
    const auto done = [&](std::shared_ptr<Owner> mine) {
      std::lock_guard guard(mutex());
      acquiring_ = 0;
      owner_ = std::move(mine);
      owner_fork_ = fork_generation();
      futex_wake(acquired_);
      return owner_;
    };
    try {
      return done(std::shared_ptr<Owner>(Owner::acquire(segment_, provisional, holder)));
    } catch (...) {
      done(nullptr);
      throw;
    }
  }
  void disown() {
    std::shared_ptr<Owner> last;
    std::lock_guard guard(mutex());
    last = current();
    owner_.reset();
  }

  // Ends the replay for every process and wakes all waiting threads.
  void shut() {
    Header& h = view_.header();
    h.closed.store(1, std::memory_order_seq_cst);
    futex_wake(h.bell);
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) futex_wake(view_.lane(l).bell);
  }
  bool closed() const { return view_.header().closed.load(std::memory_order_acquire); }

  // Frees every slot that the snapshot did not fill, with a generation above all earlier ones: keys from before the
  // snapshot stay valid or stale, and never match new items. Those of a fifo are never updated: there, slots that were
  // not needed stay unused.
  void finish_restore(uint64_t largest_generation) {
    const Geometry& g = view_.geometry();
    if (g.sampler != Sampler::fifo) {
      commit_slots(g.slots);  // free slots are leased and written without another check
      view_.header().next_unused.store(g.slots);
    }
    for (uint64_t s = 0, used = view_.header().next_unused.load(); s < used; ++s) {
      auto& word = view_.meta(uint32_t(s)).word;
      if (SlotWord::unpack(word.load()).state != SlotState::committed)
        word.store(SlotWord{SlotState::free, 0, largest_generation}.pack());
    }
  }
  uint64_t largest_generation() const {
    uint64_t largest = 0;
    const uint64_t used = std::min<uint64_t>(view_.header().next_unused.load(), view_.geometry().slots);
    for (uint64_t s = 0; s < used; ++s)
      largest = std::max(largest, SlotWord::unpack(view_.meta(uint32_t(s)).word.load(std::memory_order_acquire)).generation);
    return largest;
  }

  // Restores `count` entries of a snapshot to their positions. Only before any write or sample.
  void restore_block(const uint8_t* in, size_t bytes, size_t count) {
    const Geometry& g = view_.geometry();
    const std::vector<SnapshotEntry> entries = entries_of(in, bytes, count);
    Header& h = view_.header();
    uint64_t used = 0;
    for (const SnapshotEntry& entry : entries) {
      if (entry.slot >= g.slots) throw std::invalid_argument("slot out of range");
      used = std::max<uint64_t>(used, entry.slot + 1);
    }
    commit_slots(g.sampler == Sampler::fifo ? used : g.slots);
    h.next_unused.store(std::max<uint64_t>(h.next_unused.load(), used));
    touch_pages(entries);
    Blocks blocks(segment_);
    for (const SnapshotEntry& entry : entries) {
      in += sizeof entry;
      if (entry.visible > g.chunk || entry.consumed > entry.visible) throw std::invalid_argument("count out of range");
      std::memcpy(view_.slot(entry.slot), in, g.slot_bytes);
      in += g.slot_bytes;
      std::memcpy(view_.leaves(entry.slot), in, g.leaves * sizeof(double));
      in += g.leaves * sizeof(double);
      if (decays(g)) {
        std::memcpy(view_.youths(entry.slot), in, g.leaves * sizeof(double));
        in += g.leaves * sizeof(double);
      }
      if (g.kind == Kind::sequence || g.kind == Kind::unroll)
        for (uint32_t row = 0; row < g.rows; ++row) {
          StepHead& head = view_.head(entry.slot, row);
          head.cell = uint16_t(std::min<uint32_t>(head.cell, std::max(g.cells, 1u) - 1));
        }
      uint32_t items = 0;
      for (uint32_t p = 0; p < entry.visible; ++p) {
        const double leaf = view_.leaves(entry.slot)[p];
        view_.staged(entry.slot)[p] = std::signbit(leaf) ? -1.0 : leaf;
        items += !std::signbit(leaf);
      }
      if (g.blocks > 0) restore_ragged(blocks, entry, in);
      in += round_up(entry.ragged, 8);
      SlotMeta& meta = view_.meta(entry.slot);
      meta.count.store(entry.visible);
      meta.items.store(items);
      meta.drained.store(entry.visible);
      meta.consumed.store(entry.consumed);
      meta.order.store(entry.order);
      meta.stream.store(entry.stream);
      meta.word.store(SlotWord{SlotState::committed, 0, entry.generation}.pack());
      h.next_order.store(std::max<uint64_t>(h.next_order.load(), entry.order + 1));
    }
  }

 private:
  // The heads of a block's entries.
  std::vector<SnapshotEntry> entries_of(const uint8_t* in, size_t bytes, size_t count) const {
    const size_t least = snapshot_entry_bytes(view_.geometry());
    std::vector<SnapshotEntry> entries;
    for (size_t at = 0; at < bytes || entries.size() < count;) {
      if (bytes - at < least || entries.size() == count) throw std::invalid_argument("a block has another size than its entries");
      SnapshotEntry entry;
      std::memcpy(&entry, in + at, sizeof entry);
      if (view_.geometry().blocks == 0) entry.ragged = 0;
      if (round_up(entry.ragged, 8) > bytes - at - least) throw std::invalid_argument("a block has another size than its entries");
      at += least + round_up(entry.ragged, 8);
      entries.push_back(entry);
    }
    return entries;
  }

  // A slot's ragged values into blocks; its records and priorities are there.
  void restore_ragged(Blocks& blocks, const SnapshotEntry& entry, const uint8_t* in) {
    const uint32_t rows = rows_needed(view_, entry.slot, entry.visible);
    uint64_t bytes = 0;
    for (const RaggedColumn& c : blocks.columns)
      for (uint32_t row = 0; row < rows; ++row) {
        int32_t length;
        std::memcpy(&length, view_.cell(view_.header().column[c.lengths()], entry.slot, row), sizeof length);
        if (length < 0 || uint64_t(length) * c.unit > c.bytes) throw std::invalid_argument("a ragged value is longer than its field");
        bytes += uint64_t(length) * c.unit;
      }
    if (bytes != entry.ragged) throw std::invalid_argument("a slot's ragged values are not as long as its rows say");
    BlockEnd end;
    std::vector<uint8_t> scratch;
    if (!blocks.reserve(entry.slot, end, bytes)) throw std::runtime_error("the memory for its ragged values is refused");
    for (uint32_t row = 0; row < view_.geometry().rows; ++row) {
      if (row >= rows) {
        blocks.clear_row(entry.slot, row);
        continue;
      }
      for (const RaggedColumn& c : blocks.columns) {
        const uint32_t n = ragged_bytes(view_, c, entry.slot, row);
        if (n > 0 && !sound_value(c, in, n, scratch)) throw std::invalid_argument("a compressed value is none of its field");
        blocks.write(entry.slot, row, c, end, in, n);
        in += n;
      }
    }
  }

  void commit_slots(uint64_t slots) {
    if (!grown_to(*segment_, view_, slots)) throw std::runtime_error("the memory for its slots is refused");
  }

  // Has the kernel make the pages of a block's slots in one go, where they lie together: cheaper than one by one.
  void touch_pages([[maybe_unused]] const std::vector<SnapshotEntry>& entries) const {
#if defined(MADV_POPULATE_WRITE)
    const Geometry& g = view_.geometry();
    uint64_t first = g.slots, last = 0;
    for (const SnapshotEntry& entry : entries) {
      first = std::min<uint64_t>(first, entry.slot);
      last = std::max<uint64_t>(last, entry.slot);
    }
    if (last >= g.slots || last - first + 1 > entries.size() + entries.size() / 4) return;
    const auto page = [](uint8_t* at, uintptr_t up) { return (reinterpret_cast<uintptr_t>(at) + up) & ~uintptr_t(4095); };
    const uintptr_t begin = page(view_.slot(uint32_t(first)), 0), end = page(view_.slot(uint32_t(last)) + g.slot_bytes, 4095);
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);  // the kernel may refuse: then as ever
#endif
  }

  explicit Replay(std::shared_ptr<Segment> segment) : segment_(std::move(segment)), view_(segment_->data()) {}

  // Of `owner_`; of this process alone, replaced in a forked child.
  static std::mutex& mutex() {
    static auto* one = new std::mutex();
    static const int registered =
        pthread_atfork([] { one->lock(); }, [] { one->unlock(); }, [] { one = new std::mutex(); });
    (void)registered;
    return *one;
  }
  std::shared_ptr<Owner> current() {
    if (owner_ && owner_fork_ == fork_generation() && owner_->yielded()) owner_.reset();
    if (owner_ && owner_fork_ != fork_generation()) {
      new std::shared_ptr<Owner>(std::move(owner_));  // the parent's, its thread does not exist here: leaked on purpose
      owner_.reset();
    }
    return owner_;
  }

  std::shared_ptr<Segment> segment_;
  View view_;
  std::shared_ptr<Owner> owner_;
  uint64_t owner_fork_ = 0;
  uint64_t acquiring_ = 0;  // fork generation + 1 of the process that is becoming the owner; 0: none
  std::atomic<uint32_t> acquired_{0};
};

}  // namespace apexrl
