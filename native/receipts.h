// Receipts: how much of each sender was committed to a replay, in shared memory that outlives the committing process.
//
// A chunk is committed by the single store that publishes its items. The new counters are written to an intent before
// that store. After a death, the successor checks whether the store was made, and applies or drops the intent. So no
// chunk is committed twice, and only committed items are counted.
#pragma once

#include "crash.h"
#include "view.h"
#include "segment.h"

namespace apexrl {

// Counters of one generation of one sender. Python reads these words as uint64 (replay/chunks.py).
struct Account {
  Shared<uint64_t> sender;     // digest of its name and generation; 0: unused
  Shared<uint64_t> progress;   // sequence number of the next chunk << 16 | its positions already committed
  Shared<uint64_t> next_item;  // number of the sender's next item
  Shared<uint64_t> committed;  // items
  Shared<uint64_t> missing;    // items that were numbered and never arrived
  Shared<uint64_t> repeated;   // items that arrived again and were dropped
  Shared<uint64_t> word[10];   // used by Python
};
static_assert(sizeof(Account) == 128);

struct Intent {
  Shared<uint64_t> account;  // + 1; 0: none
  Shared<uint64_t> slot, generation, count;
  Shared<uint64_t> progress, next_item, committed, missing;
};

struct Entry {
  uint32_t account;
  uint64_t progress, next_item, committed, missing;
};

class Receipts {
 public:
  static constexpr size_t kHead = 128;
  static_assert(sizeof(Intent) <= kHead);
  static size_t bytes(size_t accounts) { return kHead + accounts * sizeof(Account); }

  explicit Receipts(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {
    if (segment_->nbytes() < bytes(1)) throw std::invalid_argument("too small for receipts");
  }

  size_t accounts() const { return (segment_->nbytes() - kHead) / sizeof(Account); }
  Account& account(size_t i) const { return reinterpret_cast<Account*>(segment_->data() + kHead)[i]; }

  // Writes the intent, before the store that commits.
  void announce(const View& view, uint32_t slot, uint32_t count, const Entry& entry) {
    Intent& w = intent();
    w.slot.store(slot, std::memory_order_relaxed);
    w.generation.store(SlotWord::unpack(view.meta(slot).word.load(std::memory_order_relaxed)).generation,
                       std::memory_order_relaxed);
    w.count.store(count, std::memory_order_relaxed);
    w.progress.store(entry.progress, std::memory_order_relaxed);
    w.next_item.store(entry.next_item, std::memory_order_relaxed);
    w.committed.store(entry.committed, std::memory_order_relaxed);
    w.missing.store(entry.missing, std::memory_order_relaxed);
    w.account.store(entry.account + 1, std::memory_order_release);
  }
  // Applies the intent, after the store.
  void enter() {
    Intent& w = intent();
    Account& mine = account(w.account.load(std::memory_order_relaxed) - 1);
    mine.next_item.store(w.next_item.load(std::memory_order_relaxed), std::memory_order_relaxed);
    mine.committed.store(w.committed.load(std::memory_order_relaxed), std::memory_order_relaxed);
    mine.missing.store(w.missing.load(std::memory_order_relaxed), std::memory_order_relaxed);
    mine.progress.store(w.progress.load(std::memory_order_relaxed), std::memory_order_release);
    w.account.store(0, std::memory_order_release);
  }
  // After a predecessor's death. The slot records its present generation and the previous one. If the intent is older,
  // it counts as committed, because nothing may be committed twice.
  void recover(const View& view) {
    Intent& w = intent();
    const uint64_t whose = w.account.load(std::memory_order_acquire);
    if (whose == 0) return;
    const uint64_t slot = w.slot.load(std::memory_order_relaxed);
    if (whose > accounts() || slot >= view.geometry().slots) return w.account.store(0, std::memory_order_release);
    const SlotMeta& meta = view.meta(uint32_t(slot));
    const uint64_t then = w.generation.load(std::memory_order_relaxed);
    uint64_t published = meta.count.load(std::memory_order_acquire);
    bool known = SlotWord::unpack(meta.word.load(std::memory_order_acquire)).generation == then;
    if (!known) {  // the count may belong to a later generation: grant() changes the generation first
      const uint64_t past = meta.past.load(std::memory_order_acquire);
      known = past >> 16 == then;
      published = past & 0xffff;
    }
    if (known && published < w.count.load(std::memory_order_relaxed)) {
      w.account.store(0, std::memory_order_release);
    } else {
      enter();
    }
  }

 private:
  Intent& intent() const { return *reinterpret_cast<Intent*>(segment_->data()); }

  std::shared_ptr<Segment> segment_;
};

}  // namespace apexrl
