// What this process is: its fork generation, and futex waits on words in shared memory.
#pragma once

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <random>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace apexrl {

// Counts forks in this line of processes. An object that remembers another number was inherited from a parent:
// it owns no lane, no lock and no thread here.
inline std::atomic<uint64_t>& fork_counter() {
  static std::atomic<uint64_t> forks{0};
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_counter().fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks;
}

inline uint64_t fork_generation() { return fork_counter().load(std::memory_order_relaxed); }

// A random number of this process, another one in every forked child. Pids are of one PID namespace only: containers
// that share memory may each have a process 1.
#ifdef APEXRL_EXPLORE  // native/tests/explore.h: several processes in one
inline uint64_t process_token() { return uint64_t(getpid()); }
#else
inline uint64_t process_token() {
  static std::atomic<uint64_t> token{0};
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { token.store(0, std::memory_order_relaxed); });
  (void)registered;
  uint64_t mine = token.load(std::memory_order_relaxed);
  if (mine != 0) return mine;
  std::random_device random;
  const uint64_t fresh = uint64_t(random()) << 32 | random() | 1;
  return token.compare_exchange_strong(mine, fresh, std::memory_order_relaxed) ? fresh : mine;
}
#endif

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Sleeps while `word` holds `seen`, at most `ns`. May wake early; callers re-check what they wait for.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t ns) {
  if (ns <= 0) return;
#if defined(__linux__)
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &t, nullptr, 0);
#else
  const int64_t end = now_ns() + ns;
  while (word.load(std::memory_order_acquire) == seen && now_ns() < end) usleep(500);
#endif
}

inline void futex_wake(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

// Between a store that others look for and the load that tells whether to wake them, or to sleep oneself: one on each
// side. APEXRL_WITHOUT_WAKE_FENCE: for the test that finds what then goes wrong.
inline void wake_fence() {
#ifndef APEXRL_WITHOUT_WAKE_FENCE
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

inline int64_t nanoseconds(double seconds) {
  if (seconds >= 9e9) return std::numeric_limits<int64_t>::max();  // infinity, too
  return seconds > 0.0 ? int64_t(seconds * 1e9) : 0;
}

}  // namespace apexrl
