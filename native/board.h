// The newest weights, for any number of readers, without locks (a seqlock).
//
// There are four buffers, each with a sequence word (odd while it is written). A reader copies the newest buffer and
// checks that its sequence did not change; after three spoilt copies it keeps the old weights and counts that. A
// publisher that died leaves an odd buffer, which the next publisher overwrites. One publisher at a time.
#pragma once

#include <atomic>
#include <cstring>
#include <stdexcept>

#include "process.h"
#include "segment.h"

namespace apexrl {

class Board {
 public:
  static constexpr uint32_t kBuffers = 4;
  static constexpr size_t kLayoutBytes = size_t(1) << 20;  // room for the names and shapes, written by the publisher

  static size_t bytes_for(size_t capacity) {
    return sizeof(Head) + kLayoutBytes + kBuffers * stride(capacity);
  }

  static std::shared_ptr<Segment> create(size_t capacity) {
    auto segment = Segment::create(bytes_for(capacity));
    Head* head = reinterpret_cast<Head*>(segment->data());
    head->capacity = capacity;
    head->magic.store(kMagic, std::memory_order_release);
    return segment;
  }

  explicit Board(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {
    if (segment_->nbytes() < sizeof(Head) || head().magic.load(std::memory_order_acquire) != kMagic)
      throw std::runtime_error("this shared memory holds no weights board");
    capacity_ = head().capacity;
    if (capacity_ > segment_->nbytes() || bytes_for(capacity_) > segment_->nbytes()) throw damaged();
    layout_text();
  }

  const std::shared_ptr<Segment>& segment() const { return segment_; }
  size_t capacity() const { return capacity_; }
  uint64_t version() const {  // of the newest buffer, in case a publisher died before it updated the head
    const Head& h = head();
    const uint64_t newest = h.slot[h.newest.load(std::memory_order_acquire) % kBuffers].version.load(std::memory_order_acquire);
    return std::max(newest, h.version.load(std::memory_order_acquire));
  }
  uint64_t spoilt() const { return head().spoilt.load(std::memory_order_relaxed); }

  // The layout is set once; later calls must pass the same bytes.
  bool set_layout(const char* text, size_t n) {
    Head& h = head();
    if (n > kLayoutBytes) return false;
    const uint64_t have = h.layout_bytes.load(std::memory_order_acquire);
    if (have != 0) return have == n && std::memcmp(layout(), text, n) == 0;
    std::memcpy(layout(), text, n);
    h.layout_bytes.store(n, std::memory_order_release);
    return true;
  }
  std::string layout_text() const {
    const uint64_t n = head().layout_bytes.load(std::memory_order_acquire);
    if (n > kLayoutBytes) throw damaged();
    return std::string(layout(), n);
  }

  // `version` must be larger than any before. `parts`: pieces that together are `nbytes` long.
  template <typename Parts>
  void publish(uint64_t version, const Parts& parts) {
    Head& h = head();
    const uint32_t at = (h.newest.load(std::memory_order_relaxed) + 1) % kBuffers;
    Slot& slot = h.slot[at];
    const uint64_t odd = slot.sequence.load(std::memory_order_relaxed) | 1;
    slot.sequence.store(odd, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    uint8_t* to = buffer(at);
    size_t total = 0;
    for (const auto& [data, n] : parts) {
      std::memcpy(to + total, data, n);
      total += n;
    }
    slot.version.store(version, std::memory_order_relaxed);
    slot.nbytes.store(total, std::memory_order_relaxed);
    slot.sequence.store(odd + 1, std::memory_order_release);
    h.newest.store(at, std::memory_order_release);
    h.version.store(version, std::memory_order_release);
    futex_wake(h.bell);
  }

  // Copies the newest weights if they are newer. Returns their version; 0: nothing newer, or three spoilt copies.
  uint64_t read(uint64_t newer_than, uint8_t* out, size_t nbytes) {
    Head& h = head();
    for (int attempt = 0; attempt < 3; ++attempt) {
      if (version() <= newer_than) return 0;
      const uint32_t at = h.newest.load(std::memory_order_acquire) % kBuffers;
      Slot& slot = h.slot[at];
      const uint64_t before = slot.sequence.load(std::memory_order_acquire);
      if (before & 1) continue;
      const uint64_t version = slot.version.load(std::memory_order_relaxed);
      if (slot.nbytes.load(std::memory_order_relaxed) != nbytes || nbytes > capacity_) continue;
      std::memcpy(out, buffer(at), nbytes);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (slot.sequence.load(std::memory_order_relaxed) == before) return version;
    }
    h.spoilt.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }

  // Sleeps until there is a version newer than `seen`, at most `ns`.
  void wait(uint64_t seen, int64_t ns) {
    Head& h = head();
    const uint32_t bell = h.bell.load(std::memory_order_acquire);
    if (version() <= seen) futex_wait(h.bell, bell, ns);
  }

 private:
  static constexpr uint64_t kMagic = 0x3152444252504158;
  struct Slot {
    std::atomic<uint64_t> sequence, version, nbytes;
  };
  struct alignas(64) Head {
    std::atomic<uint64_t> magic;
    uint64_t capacity;
    std::atomic<uint64_t> version, spoilt, layout_bytes;
    std::atomic<uint32_t> newest, bell;
    Slot slot[kBuffers];
  };

  static size_t stride(size_t capacity) { return (capacity + 4095) / 4096 * 4096; }
  Head& head() const { return *reinterpret_cast<Head*>(segment_->data()); }
  char* layout() const { return reinterpret_cast<char*>(segment_->data()) + sizeof(Head); }
  uint8_t* buffer(uint32_t i) const {
    return segment_->data() + sizeof(Head) + kLayoutBytes + stride(capacity_) * i;
  }
  std::runtime_error damaged() const {
    return std::runtime_error("the weights board in " + segment_->name() + " cannot be used: its words were overwritten");
  }

  std::shared_ptr<Segment> segment_;
  size_t capacity_ = 0;
};

}  // namespace apexrl
