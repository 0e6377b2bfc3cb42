// The runtime behind explore.h. Compiled without -fsanitize=thread.
#include "explore.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

namespace explore {
namespace {

constexpr int kFibers = 8;
constexpr size_t kWords = 512, kStack = 256 << 10;
constexpr bool kWrite = true, kRead = false;

// What a thread has seen: of each word up to which store, of each thread up to which of its releases.
struct Seen {
  uint16_t word[kWords] = {};
  uint16_t thread[kFibers] = {};
  void join(const Seen& other) {
    for (size_t i = 0; i < kWords; ++i) word[i] = std::max(word[i], other.word[i]);
    for (int i = 0; i < kFibers; ++i) thread[i] = std::max(thread[i], other.thread[i]);
  }
};
struct Store {
  uint64_t value;
  Seen seen;
};
struct Event {
  int fiber;
  uint32_t number, depth;
  bool write;
};
struct Clock {
  uint32_t at[kFibers] = {};
  void join(const Clock& other) {
    for (int i = 0; i < kFibers; ++i) at[i] = std::max(at[i], other.at[i]);
  }
};
// Something that steps depend on one another by: a word, a mutex, the order of fences, a thread's life.
struct Object {
  std::vector<Store> stores;
  std::vector<Event> events;
  Clock wrote, touched;
  uint64_t run = 0;
};
struct Touch {
  Object* object = nullptr;
  bool write = false;
};
enum class Kind { step, lock, kill };
struct Op {
  Kind kind = Kind::step;
  Touch touch[3];
  void* at = nullptr;  // mutex
  const void* pc = nullptr;
  int victim = -1;
};
bool dependent(const Op& a, const Op& b) {
  for (const Touch& x : a.touch)
    for (const Touch& y : b.touch)
      if (x.object != nullptr && x.object == y.object && (x.write || y.write)) return true;
  return false;
}

enum class State { unused, ready, parked, joining, ended };
struct Fiber {
  State state = State::unused;
  bool pending = false;    // stopped before `op`
  bool daemon = false, may_die = false;
  uint32_t process = 1;
  int mutexes = 0;
  void* parked_at = nullptr;
  int joins = -1;
  Op op;
  Seen cur, acquired, released;
  Clock clock;
  uint32_t number = 0;
  Object life;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  std::function<void()> body, after_death;
};
struct Node {
  int fiber = -1, choice = 0, choices = 1;
  uint32_t enabled = 0, backtrack = 0, done = 0, sleep = 0;
};
struct Mutex {
  int holder = -1;
  Seen seen;
  Object object;
};
struct Shadow {
  uint64_t run = 0;
  uint16_t wrote = 0, read[kFibers] = {};
  int8_t writer = -1;
};

Fiber fibers[kFibers];
int current = -1;
ucontext_t base;
bool exploring = false, redundant = false, grown = false, others_take_part = true;
std::vector<Node> path;
std::vector<std::pair<int, const void*>> trace;
size_t depth = 0;
int stale_used = 0;
uint64_t runs = 0;
int64_t clock_ns = 1'000'000'000'000;
Limits limits;
std::string failure;
uint8_t* shared_begin = nullptr;
size_t shared_bytes = 0;
std::vector<Shadow> shadow;
struct WordInfo {
  Object object;
  uint32_t index;
  uint32_t readers = 0, writers = 0;  // masks of fibers
  bool shared = false;
};
std::unordered_map<size_t, WordInfo> words;  // by offset
std::map<void*, Mutex> mutexes;
Object fences;
Seen fenced;

Object& fresh(Object& o) {
  if (o.run != runs) {
    o.stores.clear();
    o.events.clear();
    o.wrote = o.touched = Clock{};
    o.run = runs;
  }
  return o;
}
Fiber& me() { return fibers[current]; }

void fail(const std::string& what) {
  if (failure.empty()) failure = what + "\n";
}

// The steps so far, as lines of source.
std::string story() {
  std::string command = "addr2line -a -i -s -e /proc/" + std::to_string(getpid()) + "/exe";
  Dl_info info;
  for (const auto& [f, pc] : trace) {
    char text[32] = " 0";
    if (pc != nullptr && dladdr(pc, &info) != 0)
      std::snprintf(text, sizeof text, " 0x%zx", size_t(static_cast<const char*>(pc) - 1 - static_cast<const char*>(info.dli_fbase)));
    command += text;
  }
  std::string all;
  FILE* lines = popen(command.c_str(), "r");
  char line[512];
  size_t i = 0;
  bool told = true;
  while (lines != nullptr && std::fgets(line, sizeof line, lines) != nullptr) {
    if (std::strncmp(line, "0x", 2) == 0) {  // the next step; then its lines, from the inside out
      told = false;
      ++i;
    } else if (!told && std::strncmp(line, "atomic", 6) != 0 && std::strncmp(line, "gthr", 4) != 0 && std::strncmp(line, "std_", 4) != 0 &&
               std::strncmp(line, "unique_", 7) != 0) {
      all += "  thread " + std::to_string(trace[i - 1].first) + " at " + line;
      told = true;
    }
  }
  if (lines != nullptr) pclose(lines);
  return all;
}

void to_scheduler() { swapcontext(&me().context, &base); }

// --- steps

bool can_go(int f) {
  const Fiber& fiber = fibers[f];
  if (fiber.state != State::ready || !fiber.pending) return false;
  if (fiber.daemon && !others_take_part) return false;
  if (fiber.op.kind == Kind::lock) return mutexes[fiber.op.at].holder < 0;
  if (fiber.op.kind == Kind::kill) return fibers[fiber.op.victim].mutexes == 0;
  return true;
}

// Which earlier steps this one races with: those are to be tried in the other order, too.
void note_races(int f, const Op& op) {
  Fiber& fiber = fibers[f];
  const Clock before = fiber.clock;
  for (const Touch& touch : op.touch) {
    if (touch.object == nullptr) continue;
    Object& o = fresh(*touch.object);
    if (!redundant)
      for (size_t i = o.events.size(); i-- > 0;) {
        const Event& e = o.events[i];
        if (e.fiber == f || !(e.write || touch.write) || before.at[e.fiber] >= e.number) continue;
        Node& node = path[e.depth];
        node.backtrack |= node.enabled >> f & 1 ? 1u << f : node.enabled;
      }
    fiber.clock.join(touch.write ? o.touched : o.wrote);
  }
  fiber.clock.at[f] = ++fiber.number;
  for (const Touch& touch : op.touch) {
    if (touch.object == nullptr) continue;
    touch.object->events.push_back({f, fiber.number, uint32_t(depth - 1), touch.write});
    touch.object->touched.join(fiber.clock);
    if (touch.write) touch.object->wrote.join(fiber.clock);
  }
}

// A thread stops before each step that others may depend on, until the scheduler lets it go on.
void step(Op op) {
  if (me().may_die) op.touch[2] = {&me().life, kRead};
  me().op = op;
  me().pending = true;
  to_scheduler();
}

// Of `n` values that a load may see, the newest first.
int choose(int n) {
  if (!exploring || redundant || n <= 1) return 0;
  Node& node = path[depth - 1];
  if (node.choice == 0 && stale_used >= limits.stale) return 0;
  node.choices = n;
  return std::min(node.choice, n - 1);
}

bool in_share(const void* at) {
  const auto* p = static_cast<const uint8_t*>(at);
  return p >= shared_begin && p < shared_begin + shared_bytes;
}
WordInfo& word_at(const void* at) {
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
  if (order == __ATOMIC_SEQ_CST) me().cur.word[w.index] = std::max(me().cur.word[w.index], fenced.word[w.index]);
  return &w;
}
bool acquires(int order) { return order == __ATOMIC_ACQUIRE || order == __ATOMIC_CONSUME || order >= __ATOMIC_ACQ_REL; }
bool releases(int order) { return order == __ATOMIC_RELEASE || order >= __ATOMIC_ACQ_REL; }

void see(WordInfo& w, size_t which, int order) {
  Fiber& f = me();
  f.cur.word[w.index] = uint16_t(which);
  f.acquired.join(w.object.stores[which].seen);
  if (acquires(order)) f.cur.join(w.object.stores[which].seen);
}
template <typename T>
void append(WordInfo& w, void* at, T value, int order, const Seen* carried) {
  Fiber& f = me();
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
  const size_t newest = w->object.stores.size() - 1, oldest = me().cur.word[w->index];
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

void fence(int order, const void* pc) {
  if (!exploring || order == __ATOMIC_RELAXED) return;
  Fiber& f = me();
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

void plain(const void* at, size_t bytes, bool write, const void* pc) {
  if (!exploring || !in_share(at)) return;
  const size_t from = size_t(static_cast<const uint8_t*>(at) - shared_begin);
  for (size_t i = from; i < std::min(from + bytes, shared_bytes); ++i) {
    Shadow& s = shadow[i];
    if (s.run != runs) {
      s = Shadow{};
      s.run = runs;
    }
    bool race = s.writer >= 0 && s.writer != current && me().cur.thread[s.writer] < s.wrote;
    const uint16_t now = uint16_t(me().cur.thread[current] + 1);
    for (int f = 0; write && f < kFibers; ++f) race |= f != current && s.read[f] > me().cur.thread[f];
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

// --- the scheduler

void entry() {
  me().body();
  me().body = nullptr;
  me().state = State::ended;
  for (Fiber& f : fibers)
    if (f.state == State::joining && f.joins == current) f.state = State::ready;
  to_scheduler();
}

int spawn(std::function<void()> body, uint32_t process) {
  const int f = int(std::find_if(fibers, fibers + kFibers, [](const Fiber& one) { return one.state == State::unused; }) - fibers);
  if (f == kFibers) std::abort();
  Fiber& fiber = fibers[f];
  auto stack = std::move(fiber.stack);
  fiber = Fiber{};
  fiber.stack = stack ? std::move(stack) : std::make_unique<char[]>(kStack);
  fiber.state = State::ready;
  fiber.body = std::move(body);
  fiber.process = process;
  if (current >= 0) fiber.cur = me().cur;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
  return f;
}

void go(int f) {
  current = f;
  fibers[f].pending = false;
  swapcontext(&base, &fibers[f].context);
  current = -1;
}

std::vector<int> awaited;  // fibers of run()
int runner = -1;

void execute(int f) {
  const Op op = fibers[f].op;
  if (exploring) {
    trace.emplace_back(f, op.pc);
    note_races(f, op);
  }
  if (op.kind == Kind::lock) {
    Mutex& m = mutexes[op.at];
    m.holder = f;
    ++fibers[f].mutexes;
    fibers[f].cur.join(m.seen);
  }
  if (op.kind == Kind::kill) {  // what the dead had stored, the kernel shows to whoever is told of its death
    Fiber& victim = fibers[op.victim];
    victim.state = State::ended;
    fibers[f].cur.join(victim.cur);
    fibers[f].cur.thread[op.victim] = uint16_t(victim.cur.thread[op.victim] + 1);
  }
  go(f);
}

// One step while orders are explored. False: nobody can go on.
bool schedule() {
  for (int f = 0; f < kFibers; ++f)  // up to their first step
    while (fibers[f].state == State::ready && !fibers[f].pending && f != runner && (others_take_part || !fibers[f].daemon)) go(f);
  uint32_t enabled = 0;
  for (int f = 0; f < kFibers; ++f) enabled |= uint32_t(f != runner && can_go(f)) << f;
  if (enabled == 0) return false;
  int f = -1;
  if (!redundant && depth == path.size()) path.emplace_back();
  static Op last_op;
  static uint32_t last_sleep;
  if (!redundant) {
    Node& node = path[depth];
    if (node.fiber < 0) {
      node.enabled = enabled;
      uint32_t sleep = 0;
      if (depth > 0)
        for (int q = 0; q < kFibers; ++q)
          if (last_sleep >> q & 1 && q != path[depth - 1].fiber && fibers[q].pending && !dependent(fibers[q].op, last_op))
            sleep |= 1u << q;
      node.sleep = sleep;
      const uint32_t awake = enabled & ~sleep;
      if (awake == 0) {
        path.pop_back();
        redundant = true;
      } else {
        const int last = depth > 0 ? path[depth - 1].fiber : -1;
        node.fiber = last >= 0 && awake >> last & 1 ? last : __builtin_ctz(awake);
        node.backtrack = 1u << node.fiber;
      }
    }
    if (!redundant) {
      f = node.fiber;
      if (!(enabled >> f & 1)) std::abort();  // the scenario does not repeat itself
      last_op = fibers[f].op;
      last_sleep = node.sleep;
      stale_used += node.choice > 0;
      ++depth;
    }
  }
  if (f < 0) f = __builtin_ctz(enabled);
  execute(f);
  return true;
}

void clear_run() {
  ++runs;
  depth = 0;
  stale_used = 0;
  redundant = false;
  trace.clear();
  mutexes.clear();
  fenced = Seen{};
  fresh(fences);
}

// To the next path; false: all were tried.
bool next_path() {
  while (!path.empty()) {
    Node& node = path.back();
    if (node.choice + 1 < node.choices) {
      ++node.choice;
      return true;
    }
    node.done |= 1u << node.fiber;
    node.sleep |= 1u << node.fiber;
    const uint32_t left = node.backtrack & node.enabled & ~node.done & ~node.sleep;
    if (left != 0) {
      node.fiber = __builtin_ctz(left);
      node.choice = 0;
      node.choices = 1;
      return true;
    }
    path.pop_back();
  }
  return false;
}

}  // namespace

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
      outcome.failure = failure + story();
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
      op.touch[0] = {&fibers[f].life, kWrite};
      step(op);
      if (after) after();
    }, thread.process));
  }
  runner = current;
  me().state = State::joining;
  me().joins = -2;
  exploring = true;
  to_scheduler();
}

void as_process(uint32_t process, const std::function<void()>& body) {
  std::swap(process, me().process);
  body();
  std::swap(process, me().process);
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
        f.clock.join(me().clock);
      }
  } else if (*at == uint32_t(a[2])) {
    me().state = State::parked;
    me().parked_at = at;
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
    me().op = op;
    me().pending = true;
    to_scheduler();
    if (m.holder == current) return 0;
  }
  m.holder = current;
  ++me().mutexes;
  return 0;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  if (current < 0) return 0;
  Mutex& m = mutexes[mutex];
  if (exploring) {
    fresh(m.object).wrote.join(me().clock);
    m.object.touched.join(me().clock);
    ++me().cur.thread[current];
    m.seen = me().cur;
  }
  m.holder = -1;
  --me().mutexes;
  return 0;
}
int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*start)(void*), void* argument) noexcept {
  const int f = spawn([=] { start(argument); }, me().process);
  *thread = pthread_t(f + 1);
  return 0;
}
int pthread_join(pthread_t thread, void**) {
  const int f = int(thread) - 1;
  if (fibers[f].state != State::ended) {
    me().state = State::joining;
    me().joins = f;
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
  return current < 0 ? real() : pid_t(me().process);
}

}  // extern "C"

}  // namespace explore
