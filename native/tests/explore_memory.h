// Accesses to shared memory, by the views of the C++ memory model: which stores a load may read, and data races.
#pragma once

#include <cstdlib>

#include "explore_schedule.h"

namespace explore::runtime {

inline bool in_share(const void* at) {
  const auto* p = static_cast<const uint8_t*>(at);
  return p >= shared_begin && p < shared_begin + shared_bytes;
}
inline WordInfo& word_at(const void* at) {
  const size_t offset = size_t(static_cast<const uint8_t*>(at) - shared_begin);
  auto [found, is_new] = words.try_emplace(offset);
  if (is_new) {
    found->second.index = uint32_t(words.size() - 1);
    if (words.size() > kWords) std::abort();
  }
  return found->second;
}

template <typename T>
T read_memory(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Answers the word where this access is a step of its own, else null.
template <typename T>
WordInfo* before_access(void* at, bool write, int order, const void* pc) {
  if (!exploring || !in_share(at)) return nullptr;
  WordInfo& w = word_at(at);
  (write ? w.writers : w.readers) |= 1u << current;
  const uint32_t all = w.readers | w.writers;
  if (!w.shared && w.writers != 0 && (all & (all - 1)) != 0) w.shared = grown = true;
  if (!w.shared) return nullptr;
  Op op;
  op.touch[0] = {&w.object, write};
  if (order == __ATOMIC_SEQ_CST) op.touch[1] = {&fences, kRead};
  op.pc = pc;
  step(op);
  Object& o = fresh(w.object);
  if (o.stores.empty()) {
    o.stores.push_back({0, Seen{}});
    T value = read_memory<T>(at);
    std::memcpy(&o.stores[0].value, &value, sizeof value);
  }
  if (order == __ATOMIC_SEQ_CST) self().cur.word[w.index] = std::max(self().cur.word[w.index], fenced.word[w.index]);
  return &w;
}
inline bool acquires(int order) { return order == __ATOMIC_ACQUIRE || order == __ATOMIC_CONSUME || order >= __ATOMIC_ACQ_REL; }
inline bool releases(int order) { return order == __ATOMIC_RELEASE || order >= __ATOMIC_ACQ_REL; }

inline void see(WordInfo& w, size_t which, int order) {
  Fiber& f = self();
  f.cur.word[w.index] = uint16_t(which);
  f.acquired.join(w.object.stores[which].seen);
  if (acquires(order)) f.cur.join(w.object.stores[which].seen);
}
template <typename T>
void append(WordInfo& w, void* at, T value, int order, const Seen* carried) {
  Fiber& f = self();
  Object& o = w.object;
  f.cur.word[w.index] = uint16_t(o.stores.size());
  if (releases(order)) ++f.cur.thread[current];
  Store store{0, releases(order) ? f.cur : f.released};
  store.seen.word[w.index] = uint16_t(o.stores.size());
  if (carried != nullptr) store.seen.join(*carried);
  std::memcpy(&store.value, &value, sizeof value);
  o.stores.push_back(store);
  if (order == __ATOMIC_SEQ_CST) fenced.word[w.index] = f.cur.word[w.index];
  std::memcpy(at, &value, sizeof value);
}

template <typename T>
T load(const void* at, int order, const void* pc) {
  WordInfo* w = before_access<T>(const_cast<void*>(at), kRead, order, pc);
  if (w == nullptr) return read_memory<T>(at);
  const size_t newest = w->object.stores.size() - 1, oldest = self().cur.word[w->index];
  const size_t which = newest - size_t(choose(int(newest - oldest + 1)));
  see(*w, which, order);
  if (order == __ATOMIC_SEQ_CST) fenced.word[w->index] = std::max(fenced.word[w->index], uint16_t(which));
  T value;
  std::memcpy(&value, &w->object.stores[which].value, sizeof value);
  return value;
}
template <typename T>
void store(void* at, T value, int order, const void* pc) {
  if (WordInfo* w = before_access<T>(at, kWrite, order, pc)) {
    append(*w, at, value, order, nullptr);
  } else {
    std::memcpy(at, &value, sizeof value);
  }
}
// Reads the newest and, unless `change` says no, writes.
template <typename T, typename Change>
T change(void* at, int order, const void* pc, Change&& change) {
  WordInfo* w = before_access<T>(at, kWrite, order, pc);
  const T old = read_memory<T>(at);
  T value = old;
  const bool written = change(value);
  if (w == nullptr) {
    std::memcpy(at, &value, sizeof value);
    return old;
  }
  const size_t newest = w->object.stores.size() - 1;
  see(*w, newest, order);
  if (written) {
    const Seen carried = w->object.stores[newest].seen;  // RMWs continue a release sequence
    append(*w, at, value, order, &carried);
  }
  return old;
}
template <typename T>
int compare_exchange(void* at, T* expected, T value, int order, const void* pc) {
  const T wanted = *expected;
  const T old = change<T>(at, order, pc, [&](T& now) {
    if (std::memcmp(&now, &wanted, sizeof now) != 0) return false;
    now = value;
    return true;
  });
  *expected = old;
  return std::memcmp(&old, &wanted, sizeof old) == 0;
}

inline void fence(int order, const void* pc) {
  if (!exploring || order == __ATOMIC_RELAXED) return;
  Fiber& f = self();
  if (order == __ATOMIC_SEQ_CST) {
    Op op;
    op.touch[0] = {&fences, kWrite};
    op.pc = pc;
    step(op);
    fresh(fences);
  }
  if (acquires(order)) f.cur.join(f.acquired);
  if (releases(order)) ++f.cur.thread[current];
  if (order == __ATOMIC_SEQ_CST) {
    f.cur.join(fenced);
    fenced = f.cur;
  }
  if (releases(order)) f.released = f.cur;
}

inline void plain(const void* at, size_t bytes, bool write, const void* pc) {
  if (!exploring || !in_share(at)) return;
  const size_t from = size_t(static_cast<const uint8_t*>(at) - shared_begin);
  for (size_t i = from; i < std::min(from + bytes, shared_bytes); ++i) {
    Shadow& s = shadow[i];
    if (s.run != runs) {
      s = Shadow{};
      s.run = runs;
    }
    bool race = s.writer >= 0 && s.writer != current && self().cur.thread[s.writer] < s.wrote;
    const uint16_t now = uint16_t(self().cur.thread[current] + 1);
    for (int f = 0; write && f < kFibers; ++f) race |= f != current && s.read[f] > self().cur.thread[f];
    if (race) {
      trace.emplace_back(current, pc);
      char text[80];
      std::snprintf(text, sizeof text, "a data race at byte %zu", i);
      fail(text);
    }
    if (write) {
      s.writer = int8_t(current);
      s.wrote = now;
    } else {
      s.read[current] = now;
    }
  }
}

}  // namespace explore::runtime
