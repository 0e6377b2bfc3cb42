// Crash points: tests kill a process before each store to shared memory in turn (native/tests/crash_test.cc).
//
// Shared<T> is std::atomic<T>. Under APEXRL_CRASH_POINTS every change of one is a place to die at, and so is
// APEXRL_POINT(), which stands before changes of plain shared memory.
#pragma once

#include <atomic>

#ifndef APEXRL_CRASH_POINTS

namespace apexrl {

template <typename T>
using Shared = std::atomic<T>;

}  // namespace apexrl

#define APEXRL_POINT() static_cast<void>(0)

#else

#include <csignal>
#include <cstdint>
#include <source_location>

namespace apexrl {

struct CrashPoint {
  const char* file = nullptr;
  uint32_t line = 0;
};

// Crash points left until this process kills itself; 0: it does not.
inline std::atomic<uint64_t> crash_countdown{0};
// Where it died, for whoever maps the same memory; null: nobody asks.
inline CrashPoint* crash_place = nullptr;

// Called at every passage: what a test looks at while the core is in the middle of something.
inline void (*at_crash_point)() = nullptr;

inline void crash_point(const std::source_location& where) {
  if (at_crash_point != nullptr) at_crash_point();
  if (crash_countdown.load(std::memory_order_relaxed) == 0 || crash_countdown.fetch_sub(1) != 1) return;
  if (crash_place != nullptr) *crash_place = CrashPoint{where.file_name(), where.line()};
  raise(SIGKILL);
}

template <typename T>
struct Shared : std::atomic<T> {
  using Where = std::source_location;
  static constexpr auto kOrder = std::memory_order_seq_cst;

  void store(T value, std::memory_order order = kOrder, Where where = Where::current()) {
    crash_point(where);
    std::atomic<T>::store(value, order);
  }
  T exchange(T value, std::memory_order order = kOrder, Where where = Where::current()) {
    crash_point(where);
    return std::atomic<T>::exchange(value, order);
  }
  T fetch_add(T value, std::memory_order order = kOrder, Where where = Where::current()) {
    crash_point(where);
    return std::atomic<T>::fetch_add(value, order);
  }
  T fetch_sub(T value, std::memory_order order = kOrder, Where where = Where::current()) {
    crash_point(where);
    return std::atomic<T>::fetch_sub(value, order);
  }
  bool compare_exchange_strong(T& seen, T value, std::memory_order order = kOrder, Where where = Where::current()) {
    crash_point(where);
    return std::atomic<T>::compare_exchange_strong(seen, value, order);
  }
  bool compare_exchange_weak(T& seen, T value, std::memory_order order = kOrder, Where where = Where::current()) {
    crash_point(where);
    return std::atomic<T>::compare_exchange_weak(seen, value, order);
  }
};

}  // namespace apexrl

#define APEXRL_POINT() ::apexrl::crash_point(std::source_location::current())

#endif
