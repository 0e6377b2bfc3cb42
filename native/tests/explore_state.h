// What the runtime behind explore.h knows: threads, shared words, and the orders that were tried.
#pragma once

#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>

#include "explore.h"

namespace explore::runtime {

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
// Something that steps depend on one another by: a word, a mutex, the order of fences, whether a thread exists.
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
inline bool dependent(const Op& a, const Op& b) {
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
  Object existence;
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

inline Fiber fibers[kFibers];
inline int current = -1;
inline ucontext_t base;
inline bool exploring = false, redundant = false, grown = false, others_take_part = true;
inline std::vector<Node> path;
inline std::vector<std::pair<int, const void*>> trace;
inline size_t depth = 0;
inline int stale_used = 0;
inline uint64_t runs = 0;
inline int64_t clock_ns = 1'000'000'000'000;
inline Limits limits;
inline std::string failure;
inline uint8_t* shared_begin = nullptr;
inline size_t shared_bytes = 0;
inline std::vector<Shadow> shadow;
struct WordInfo {
  Object object;
  uint32_t index;
  uint32_t readers = 0, writers = 0;  // masks of fibers
  bool shared = false;
};
inline std::unordered_map<size_t, WordInfo> words;  // by offset
inline std::map<void*, Mutex> mutexes;
inline Object fences;
inline Seen fenced;

inline Object& fresh(Object& o) {
  if (o.run != runs) {
    o.stores.clear();
    o.events.clear();
    o.wrote = o.touched = Clock{};
    o.run = runs;
  }
  return o;
}
inline Fiber& self() { return fibers[current]; }

inline void fail(const std::string& what) {
  if (failure.empty()) failure = what + "\n";
}

inline void to_scheduler() { swapcontext(&self().context, &base); }

// The steps so far, as lines of source.
inline std::string steps_so_far() {
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
  bool shown = true;
  while (lines != nullptr && std::fgets(line, sizeof line, lines) != nullptr) {
    if (std::strncmp(line, "0x", 2) == 0) {  // the next step; then its lines, from the inside out
      shown = false;
      ++i;
    } else if (!shown && std::strncmp(line, "atomic", 6) != 0 && std::strncmp(line, "gthr", 4) != 0 && std::strncmp(line, "std_", 4) != 0 &&
               std::strncmp(line, "unique_", 7) != 0) {
      all += "  thread " + std::to_string(trace[i - 1].first) + " at " + line;
      shown = true;
    }
  }
  if (lines != nullptr) pclose(lines);
  return all;
}

}  // namespace explore::runtime
