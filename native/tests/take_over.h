// While one thread becomes the owner of a large replay, the others of its process go on: they use other replays, and
// ask whether this one has an owner. Crash points let us look on in the middle of it.
#pragma once

#include <future>

#include "../crash.h"
#include "check.h"

namespace apexrl::testing::take_over {

inline std::shared_ptr<Replay> make(uint64_t capacity) {
  Geometry g{};
  g.capacity = capacity;
  g.chunk = 4;
  g.stack = g.n_step = g.streams = 1;
  g.lanes = 2;
  g.trim_every = 1;
  g.alpha = 1.0;
  return Replay::create(g, {Column{8, 8, 0, 1, 0, 0, 0, 0}}, "{}", 0, 0.0, 0.0, "");
}

inline std::shared_ptr<Replay> taken, other;
inline int looks = 0;

// The answer of another thread, which has ten seconds for it.
template <typename Call>
auto elsewhere(Call call) {
  std::packaged_task<decltype(call())()> task(call);
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  CHECK(answer.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  return answer.get();
}

inline void look() {
  at_crash_point = nullptr;
  ++looks;
  CHECK(elsewhere([] { return taken->owner(); }) == nullptr);
  const auto owner = elsewhere([] {
    int holder = 0;
    return other->own(holder);
  });
  CHECK(owner != nullptr && elsewhere([&] { return owner->size(); }) == 0);
}

inline void others_go_on() {
  taken = make(64);
  other = make(64);
  at_crash_point = look;
  int holder = 0;
  auto owner = taken->own(holder);
  CHECK(looks == 1 && owner != nullptr && taken->owner() == owner);
  owner.reset();
  // Of several threads that want to own it at the same moment all get the same owner.
  taken->disown();
  std::vector<std::future<std::shared_ptr<Owner>>> all;
  for (int i = 0; i < 8; ++i)
    all.push_back(std::async(std::launch::async, [] {
      int nobody = 0;
      return taken->own(nobody);
    }));
  const auto first = all[0].get();
  CHECK(first != nullptr);
  for (size_t i = 1; i < all.size(); ++i) CHECK(all[i].get() == first);
}

}  // namespace apexrl::testing::take_over
