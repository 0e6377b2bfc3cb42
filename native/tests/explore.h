// Runs code of several threads in every order that matters, as the C++ memory model allows it: a model checker for the
// real headers, not for a copy of them.
//
// Code is compiled with -fsanitize=thread and linked with explore.cc in place of the sanitizer's runtime, so that each
// access to memory comes by here. Threads are fibers of one thread; mutexes, futexes, time, getpid and pthread_create
// are ours.
//
// What is explored: one order of each class of orders that differ only in steps that do not touch the same word (dynamic
// partial order reduction with sleep sets: Flanagan & Godefroid 2005), and for each load, each store that it may read
// from (views of messages as in Kang et al. 2017, without promises: loads see old values, as with store buffers and on
// ARM; no store comes before an earlier load). Plain accesses are checked for data races by the same views.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace explore {

struct Limits {
  uint64_t executions = ~uint64_t(0);
  int stale = 2;  // loads of one execution that see an older value than the newest
};

struct Outcome {
  std::string failure;  // empty: none
  uint64_t executions = 0, orders = 0;  // all; without those found to repeat another
  bool complete = false;
};

// Runs `scenario`, a function that sets up, calls run() once and then looks at what came out, in every order.
Outcome check(const std::function<void()>& scenario, const Limits& limits = {});

// --- for scenarios

// Memory that threads share as processes would: only there are orders explored, and races looked for.
void share(void* memory, size_t bytes);
struct Thread {
  uint32_t process;            // what getpid() says there
  std::function<void()> body;
  bool may_die = false;        // at any step, if it holds no mutex
  std::function<void()> after_death = nullptr;  // what the kernel then does
};
// Until all threads have ended. Threads that were started before take part if `others`. No wait times out: a thread that
// is never woken fails the check.
void run(std::vector<Thread> threads, bool others = true);
void as_process(uint32_t process, const std::function<void()>& body);  // before or after run()
void expect(bool condition, const char* what);
void advance(int64_t ns);  // the clock, which stands still otherwise

}  // namespace explore
