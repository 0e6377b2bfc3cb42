// One replay as one process sees it: the segment, and the Owner when this process is the one that samples.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "owner.h"
#include "writer.h"

namespace apexrl {

class Replay {
 public:
  // `g`: sizes and options; the layout is filled in here. `json`: the Python side's description, kept for attachers.
  static std::shared_ptr<Replay> create(Geometry g, std::vector<Column> columns, const std::string& json,
                                        uint64_t min_size, double samples_per_insert, double error_buffer,
                                        const std::string& directory) {
    g.json_bytes = json.size();
    // The desk holds the rows of a moment, not megabytes of large ones.
    uint64_t row = 0;
    for (const auto& c : columns) row += c.bytes;
    g.desk = g.kind == Kind::rows
                 ? uint32_t(std::clamp<uint64_t>((uint64_t(4) << 20) / std::max<uint64_t>(1, row * g.chunk), 2, 32))
                 : g.streams;
    if (g.chunk == 0 || g.chunk > 64) throw std::invalid_argument("a chunk has 1 to 64 item positions");
    lay_out(g, columns);
    auto segment = Segment::create(g.total, directory);
    View view(segment->data());
    Header& h = view.header();
    h.geometry = g;
    std::copy(columns.begin(), columns.end(), h.column);
    std::memcpy(segment->data() + g.json_at, json.data(), json.size());
    h.min_size.store(min_size);
    h.samples_per_insert.store(samples_per_insert);
    h.error_buffer.store(error_buffer);
    h.insert_limit.store(~uint64_t(0));
    if (samples_per_insert > 0.0)
      h.insert_limit.store(std::max<uint64_t>(
          std::max<uint64_t>(1, min_size), uint64_t((double(min_size) * samples_per_insert + error_buffer) / samples_per_insert)));
    h.version = kReplayVersion;
    h.bytes = sizeof(Header);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(h.magic, kReplayMagic, 8);
    return of(segment);
  }

  // The one Replay of this segment in this process.
  static std::shared_ptr<Replay> of(const std::shared_ptr<Segment>& segment) {
    static auto* all = new std::map<Uuid, std::weak_ptr<Replay>>();
    auto& entry = (*all)[segment->uuid()];
    if (auto known = entry.lock()) return known;
    if (segment->nbytes() < sizeof(Header)) throw std::runtime_error("this shared memory holds no replay");
    const Header& h = View(segment->data()).header();
    if (std::memcmp(h.magic, kReplayMagic, 8) != 0 || h.version != kReplayVersion || h.bytes != sizeof(Header))
      throw std::runtime_error("this shared memory holds no replay of this version of apexrl");
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
  // Becomes the owner if nobody else is; else returns null and who is.
  std::shared_ptr<Owner> own(int& holder) {
    std::lock_guard guard(mutex());
    if (auto mine = current()) return mine;
    owner_.reset(Owner::acquire(segment_, holder));
    owner_fork_ = fork_generation();
    return owner_;
  }
  void disown() {
    std::shared_ptr<Owner> last;
    std::lock_guard guard(mutex());
    last = current();
    owner_.reset();
  }

  // Ends the replay for every process that holds it and wakes all who wait.
  void shut() {
    Header& h = view_.header();
    h.closed.store(1, std::memory_order_seq_cst);
    futex_wake(h.bell);
    for (uint32_t l = 0; l < view_.geometry().lanes; ++l) futex_wake(view_.lane(l).bell);
  }
  bool closed() const { return view_.header().closed.load(std::memory_order_acquire); }

  // Every slot that no snapshot filled is free, with a generation above all that were ever handed out: keys of before
  // the snapshot stay good or stale, and cannot hit what comes.
  void finish_restore(uint64_t largest_generation) {
    const Geometry& g = view_.geometry();
    for (uint32_t s = 0; s < g.slots; ++s) {
      auto& word = view_.meta(s).word;
      if (SlotWord::unpack(word.load()).state != SlotState::committed)
        word.store(SlotWord{SlotState::free, 0, largest_generation}.pack());
    }
    view_.header().next_unused.store(g.slots);
  }
  uint64_t largest_generation() const {
    uint64_t largest = 0;
    for (uint32_t s = 0; s < view_.geometry().slots; ++s)
      largest = std::max(largest, SlotWord::unpack(view_.meta(s).word.load(std::memory_order_acquire)).generation);
    return largest;
  }

  // Puts a snapshot's slot back where it was. Only before anyone writes or samples.
  void restore_slot(uint32_t slot, uint64_t generation, uint64_t order, uint32_t visible, const uint8_t* rows,
                    const double* leaves, const double* staged) {
    const Geometry& g = view_.geometry();
    if (slot >= g.slots || visible > g.chunk) throw std::invalid_argument("slot or count out of range");
    std::memcpy(view_.slot(slot), rows, g.slot_bytes);
    std::copy_n(leaves, g.leaves, view_.leaves(slot));
    std::copy_n(staged, g.leaves, view_.staged(slot));
    uint32_t items = 0;
    for (uint32_t p = 0; p < visible; ++p) items += staged[p] >= 0.0;
    SlotMeta& meta = view_.meta(slot);
    meta.count.store(visible);
    meta.items.store(items);
    meta.drained.store(visible);
    meta.order.store(order);
    meta.word.store(SlotWord{SlotState::committed, 0, generation}.pack());
    Header& h = view_.header();
    h.next_order.store(std::max<uint64_t>(h.next_order.load(), order + 1));
  }

 private:
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
};

}  // namespace apexrl
