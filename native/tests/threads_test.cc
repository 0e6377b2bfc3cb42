// The native core without Python, for TSan: threads that share one mapping as processes would. Exits non-zero at the
// first broken invariant.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "tagged_rows.h"

using namespace apexrl;
using namespace apexrl::testing;

namespace {

// Three writers, a sampler and the owner's own thread over one mapping.
void threads(Sampler sampler, Remover remover, int most) {
  Geometry g = geometry(Kind::rows, 2000, chunk_of(2000), 4, 1);
  g.sampler = sampler;
  g.remover = remover;
  g.remover_alpha = -0.4;
  if (remover == Remover::proportional) g.chunk = 1;
  auto replay = create(g, columns(false));
  const auto owner = owned(replay);
  std::atomic<bool> stop{false};
  std::vector<std::thread> all;
  for (unsigned w = 0; w < 3; ++w)
    all.emplace_back([&, w] {
      Writer writer(replay->segment(), 1);
      CHECK(writer.lease() == WriteStatus::ok);
      Rows rows(37);
      uint64_t next = uint64_t(w + 1) * 1'000'000;
      while (!stop) {
        for (size_t i = 0; i < 37; ++i) rows.fill(i, next++);
        for (size_t start = 0; start < 37 && !stop;)
          if (writer.extend(rows.data().data(), nullptr, 37, start) == WriteStatus::wait) writer.wait(1'000'000);
      }
    });
  all.emplace_back([&] {
    while (!stop) {
      owner->serve();
      std::this_thread::yield();
    }
  });
  Drawn drawn(64, 1, false);
  for (int batches = 0; batches < most;) {
    if (owner->sample(0.4, drawn.out) != SampleStatus::ok) {
      owner->wait_for_items(1'000'000);
      continue;
    }
    drawn.check();
    std::vector<double> fresh(drawn.n, 0.5);
    size_t applied = 0, stale = 0;
    CHECK(owner->update(drawn.keys.data(), fresh.data(), drawn.n, applied, stale) && applied + stale == drawn.n);
    CHECK(sampler != Sampler::fifo || stale == drawn.n);
    ++batches;
  }
  stop = true;
  for (auto& thread : all) thread.join();
  CHECK(owner->check() == 0.0);
}

// Three writers of two streams each and a sampler: windows are read while later rows of theirs are marked.
void stream_threads(Kind kind, int most) {
  const bool steps = kind != Kind::transition;
  Geometry g = decaying(geometry(kind, 400, 12, 4, 8, steps ? 1 : 3, 3), steps ? 0.0 : 4.0, steps ? 0.0 : 50.0);
  if (steps) {
    g.burn_in = g.behind = 1;
    g.stride = kind == Kind::unroll ? 3 : 2;
    g.cells = g.chunk_items = 2 * g.chunk / g.stride;
  }
  auto replay = create(g, columns(true));
  const auto owner = owned(replay);
  std::atomic<bool> stop{false};
  std::vector<std::thread> all;
  for (unsigned w = 0; w < 3; ++w)
    all.emplace_back([&, w] {
      std::mt19937 random(w);
      Rows rows(2);
      const float reward[2] = {1.0f, 1.0f};
      for (uint64_t t = 1; !stop;) {
        Writer writer(replay->segment(), 2);
        const auto wait = [&] { return writer.wait(1'000'000), !stop; };
        if (writer.lease() != WriteStatus::ok) continue;
        for (int n = 0; n < 200 && !stop; ++n, ++t) {
          const uint8_t terminated[2] = {random() % 20 == 0, 0}, truncated[2] = {0, random() % 20 == 0};
          for (size_t s = 0; s < 2; ++s) rows.fill(s, t);
          append(writer, rows.data(), reward, terminated, truncated, 2, wait);
          if (random() % 4 == 0) writer.publish(nullptr);
        }
      }
    });
  const size_t n = 32, length = g.burn_in + g.n_step, frames = steps ? length + 1 : 3;
  Drawn drawn(n, uint32_t(frames), !steps);
  std::vector<uint32_t> small(n * length);
  std::vector<float> reward(n * length), discount(n * length);
  std::vector<uint8_t> mask(n * length), first(n * (length + 1));
  drawn.out.column[1] = reinterpret_cast<uint8_t*>(small.data());
  drawn.out.reward = reward.data();
  drawn.out.discount = discount.data();
  drawn.out.mask = mask.data();
  drawn.out.first = first.data();
  for (int batches = 0; batches < most;) {
    if (owner->sample(0.4, drawn.out) != SampleStatus::ok) {
      owner->wait_for_items(1'000'000);
      continue;
    }
    for (size_t i = 0; i < n * frames; ++i) CHECK(drawn.whole(i));
    ++batches;
  }
  stop = true;
  for (auto& thread : all) thread.join();
  CHECK(owner->check() == 0.0);
}

}  // namespace

// threads_test [STEP]: of the batches, one in STEP (1).
int main(int argc, char** argv) {
  const int step = argc > 1 ? std::max(1, int(std::strtol(argv[1], nullptr, 10))) : 1;
  threads(Sampler::prioritized, Remover::fifo, 300 / step);
  threads(Sampler::prioritized, Remover::proportional, 300 / step);
  threads(Sampler::fifo, Remover::fifo, 300 / step);
  for (const Kind kind : {Kind::transition, Kind::sequence, Kind::unroll}) {
    ragged = kind != Kind::unroll;
    stream_threads(kind, 200 / step);
  }
  std::puts("ok");
  return 0;
}
