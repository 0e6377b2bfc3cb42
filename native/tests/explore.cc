// The runtime behind explore.h: the search, and the functions that the code under test calls in place of the sanitizer's
// and libc's. Compiled without -fsanitize=thread.
#include "explore.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

#include <cstdarg>

#include "explore_memory.h"

namespace explore {

using namespace runtime;

Outcome check(const std::function<void()>& scenario, const Limits& given) {
  limits = given;
  failure.clear();
  path.clear();
  words.clear();
  Outcome outcome;
  for (;;) {
    clear_run();
    grown = false;
    for (Fiber& f : fibers) f.state = State::unused;
    const int main = spawn(scenario, 1);
    while (fibers[main].state != State::ended && failure.empty()) {
      if (exploring) {
        bool left = false;
        for (const int f : awaited) left |= fibers[f].state != State::ended;
        if (left && schedule()) continue;
        if (left) fail("threads are stuck: nobody wakes them");
        exploring = false;
        fibers[runner].state = State::ready;
        continue;
      }
      int f = 0;  // in order, until each waits
      while (f < kFibers && !(fibers[f].state == State::ready && (!fibers[f].pending || can_go(f)))) ++f;
      if (f == kFibers) {
        fail("threads are stuck after the exploration");
        break;
      }
      if (fibers[f].pending) execute(f);
      else go(f);
    }
    exploring = false;
    ++outcome.executions;
    outcome.orders += !redundant;
    if (grown) {  // words turned out to be shared: from the beginning
      failure.clear();
      path.clear();
      continue;
    }
    if (!failure.empty()) {
      outcome.failure = failure + steps_so_far();
      return outcome;
    }
    if (!next_path()) {
      outcome.complete = true;
      return outcome;
    }
    if (outcome.executions >= limits.executions) return outcome;
  }
}

void share(void* memory, size_t bytes) {
  shared_begin = static_cast<uint8_t*>(memory);
  shared_bytes = bytes;
  if (shadow.size() != bytes) shadow.assign(bytes, Shadow{});
}

void run(std::vector<Thread> threads, bool others) {
  awaited.clear();
  others_take_part = others;
  for (int f = 0; f < kFibers; ++f)
    if (f != current && fibers[f].state != State::unused) fibers[f].daemon = true;
  for (auto& thread : threads) {
    const int f = spawn(std::move(thread.body), thread.process);
    awaited.push_back(f);
    if (!thread.may_die) continue;
    fibers[f].may_die = true;
    const auto after = thread.after_death;
    awaited.push_back(spawn([f, after] {
      Op op;
      op.kind = Kind::kill;
      op.victim = f;
      op.touch[0] = {&fibers[f].existence, kWrite};
      step(op);
      if (after) after();
    }, thread.process));
  }
  runner = current;
  self().state = State::joining;
  self().joins = -2;
  exploring = true;
  to_scheduler();
}

void as_process(uint32_t process, const std::function<void()>& body) {
  std::swap(process, self().process);
  body();
  std::swap(process, self().process);
}
void expect(bool condition, const char* what) {
  if (!condition) fail(what);
}
void advance(int64_t ns) { clock_ns += ns; }

// --- what the code under test calls

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define PC __builtin_return_address(0)
#define PLAIN(n)                                                                  \
  void __tsan_read##n(void* p) { plain(p, n, kRead, PC); }                        \
  void __tsan_write##n(void* p) { plain(p, n, kWrite, PC); }                      \
  void __tsan_unaligned_read##n(void* p) { plain(p, n, kRead, PC); }              \
  void __tsan_unaligned_write##n(void* p) { plain(p, n, kWrite, PC); }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)
void __tsan_read_range(void* p, unsigned long n) { plain(p, n, kRead, PC); }
void __tsan_write_range(void* p, unsigned long n) { plain(p, n, kWrite, PC); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  plain(from, n, kRead, PC);
  plain(to, n, kWrite, PC);
  return std::memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  plain(from, n, kRead, PC);
  plain(to, n, kWrite, PC);
  return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  plain(to, n, kWrite, PC);
  return std::memset(to, value, n);
}
#define ATOMIC(bits)                                                                                                       \
  using U##bits = uint##bits##_t;                                                                                          \
  U##bits __tsan_atomic##bits##_load(const volatile U##bits* p, int o) { return load<U##bits>(const_cast<U##bits*>(p), o, PC); } \
  void __tsan_atomic##bits##_store(volatile U##bits* p, U##bits v, int o) { store<U##bits>(const_cast<U##bits*>(p), v, o, PC); } \
  U##bits __tsan_atomic##bits##_exchange(volatile U##bits* p, U##bits v, int o) {                                          \
    return change<U##bits>(const_cast<U##bits*>(p), o, PC, [=](U##bits& x) { return x = v, true; });                       \
  }                                                                                                                        \
  U##bits __tsan_atomic##bits##_fetch_add(volatile U##bits* p, U##bits v, int o) {                                         \
    return change<U##bits>(const_cast<U##bits*>(p), o, PC, [=](U##bits& x) { return x = U##bits(x + v), true; });          \
  }                                                                                                                        \
  U##bits __tsan_atomic##bits##_fetch_sub(volatile U##bits* p, U##bits v, int o) {                                         \
    return change<U##bits>(const_cast<U##bits*>(p), o, PC, [=](U##bits& x) { return x = U##bits(x - v), true; });          \
  }                                                                                                                        \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile U##bits* p, U##bits* e, U##bits v, int o, int) {              \
    return compare_exchange<U##bits>(const_cast<U##bits*>(p), e, v, o, PC);                                                \
  }                                                                                                                        \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile U##bits* p, U##bits* e, U##bits v, int o, int) {                \
    return compare_exchange<U##bits>(const_cast<U##bits*>(p), e, v, o, PC);                                                \
  }
ATOMIC(8) ATOMIC(16) ATOMIC(32) ATOMIC(64)
void __tsan_atomic_thread_fence(int order) { fence(order, PC); }
void __tsan_atomic_signal_fence(int) {}

long syscall(long number, ...) noexcept {
  va_list arguments;
  va_start(arguments, number);
  long a[6];
  for (long& one : a) one = va_arg(arguments, long);
  va_end(arguments);
  if (number != SYS_futex || current < 0) {
    static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  auto* at = reinterpret_cast<uint32_t*>(a[0]);
  if (exploring) {
    Op op;
    op.touch[0] = {&word_at(at).object, a[1] == FUTEX_WAKE};
    op.pc = PC;
    step(op);
  }
  if (a[1] == FUTEX_WAKE) {
    for (Fiber& f : fibers)
      if (f.state == State::parked && f.parked_at == at) {
        f.state = State::ready;
        f.clock.join(self().clock);
      }
  } else if (*at == uint32_t(a[2])) {
    self().state = State::parked;
    self().parked_at = at;
    to_scheduler();
  }
  return 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (current < 0) return 0;
  if (exploring) {
    Op op;
    op.kind = Kind::lock;
    op.at = mutex;
    op.touch[0] = {&mutexes[mutex].object, kWrite};
    op.pc = PC;
    step(op);
    return 0;
  }
  Mutex& m = mutexes[mutex];
  while (m.holder >= 0) {
    Op op;
    op.kind = Kind::lock;
    op.at = mutex;
    self().op = op;
    self().pending = true;
    to_scheduler();
    if (m.holder == current) return 0;
  }
  m.holder = current;
  ++self().mutexes;
  return 0;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (current < 0) return 0;
  Mutex& m = mutexes[mutex];
  if (exploring) {
    fresh(m.object).wrote.join(self().clock);
    m.object.touched.join(self().clock);
    ++self().cur.thread[current];
    m.seen = self().cur;
  }
  m.holder = -1;
  --self().mutexes;
  return 0;
}
int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*), void* argument) noexcept {
  const int f = spawn([=] { start(argument); }, self().process);
  *thread = pthread_t(f + 1);
  return 0;
}
int pthread_join(pthread_t thread, void**) {
  const int f = int(thread) - 1;
  if (fibers[f].state != State::ended) {
    self().state = State::joining;
    self().joins = f;
    to_scheduler();
  }
  return 0;
}
int clock_gettime(clockid_t, timespec* t) noexcept {
  t->tv_sec = clock_ns / 1'000'000'000;
  t->tv_nsec = clock_ns % 1'000'000'000;
  return 0;
}
pid_t getpid() noexcept {
  static const auto real = reinterpret_cast<pid_t (*)()>(dlsym(RTLD_NEXT, "getpid"));
  return current < 0 ? real() : pid_t(self().process);
}

}  // extern "C"

}  // namespace explore
