// Which thread takes the next step, and which other orders are left to try.
#pragma once

#include <cstdlib>

#include "explore_state.h"

namespace explore::runtime {

// --- steps

inline bool can_go(int f) {
  const Fiber& fiber = fibers[f];
  if (fiber.state != State::ready || !fiber.pending) return false;
  if (fiber.daemon && !others_take_part) return false;
  if (fiber.op.kind == Kind::lock) return mutexes[fiber.op.at].holder < 0;
  if (fiber.op.kind == Kind::kill) return fibers[fiber.op.victim].mutexes == 0;
  return true;
}

// Which earlier steps this one races with: those are to be tried in the other order, too.
inline void note_races(int f, const Op& op) {
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
inline void step(Op op) {
  if (self().may_die) op.touch[2] = {&self().existence, kRead};
  self().op = op;
  self().pending = true;
  to_scheduler();
}

// Of `n` values that a load may see, the newest first.
inline int choose(int n) {
  if (!exploring || redundant || n <= 1) return 0;
  Node& node = path[depth - 1];
  if (node.choice == 0 && stale_used >= limits.stale) return 0;
  node.choices = n;
  return std::min(node.choice, n - 1);
}

// --- the scheduler

inline void entry() {
  self().body();
  self().body = nullptr;
  self().state = State::ended;
  for (Fiber& f : fibers)
    if (f.state == State::joining && f.joins == current) f.state = State::ready;
  to_scheduler();
}

inline int spawn(std::function<void()> body, uint32_t process) {
  const int f = int(std::find_if(fibers, fibers + kFibers, [](const Fiber& one) { return one.state == State::unused; }) - fibers);
  if (f == kFibers) std::abort();
  Fiber& fiber = fibers[f];
  auto stack = std::move(fiber.stack);
  fiber = Fiber{};
  fiber.stack = stack ? std::move(stack) : std::make_unique<char[]>(kStack);
  fiber.state = State::ready;
  fiber.body = std::move(body);
  fiber.process = process;
  if (current >= 0) fiber.cur = self().cur;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
  return f;
}

inline void go(int f) {
  current = f;
  fibers[f].pending = false;
  swapcontext(&base, &fibers[f].context);
  current = -1;
}

inline std::vector<int> awaited;  // fibers of run()
inline int runner = -1;

inline void execute(int f) {
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
  if (op.kind == Kind::kill) {  // what the dead had stored, the kernel shows to whoever is shown of its death
    Fiber& victim = fibers[op.victim];
    victim.state = State::ended;
    fibers[f].cur.join(victim.cur);
    fibers[f].cur.thread[op.victim] = uint16_t(victim.cur.thread[op.victim] + 1);
  }
  go(f);
}

// One step while orders are explored. False: nobody can go on.
inline bool schedule() {
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

inline void clear_run() {
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
inline bool next_path() {
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

}  // namespace explore::runtime
