// CHECK, and the rows and replays that several native tests use.
#pragma once

#include <unistd.h>

#include <cstdio>

#include "../replay.h"

// Ends the process, also a forked child, at the first broken expectation.
#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                            \
    }                                                                      \
  } while (0)

namespace apexrl::testing {

inline Geometry geometry(Kind kind, uint64_t capacity, uint32_t chunk, uint32_t lanes, uint32_t streams, uint32_t stack = 1,
                         uint32_t n_step = 1) {
  Geometry g{};
  g.kind = kind;
  g.capacity = capacity;
  g.chunk = chunk;
  g.behind = kind == Kind::rows ? 0 : stack - 1;
  g.ahead = kind == Kind::rows ? 0 : n_step;
  g.lanes = lanes;
  g.streams = streams;
  g.stack = stack;
  g.n_step = n_step;
  g.trim_every = 1;
  g.gamma = 0.9;
  g.alpha = 0.6;
  g.eps = 1e-6;
  g.seed = 1;
  return g;
}

// With chances that shrink by age, in items and in the first column, which counts up.
inline Geometry decaying(Geometry g, double items, double versions) {
  g.recency_half_life = items;
  g.lag_half_life = versions;
  g.version_column = versions > 0.0;
  return g;
}

inline std::shared_ptr<Replay> create(const Geometry& g, const std::vector<Column>& columns) {
  return Replay::create(g, columns, "{}", 0, 0.0, 0.0, "");
}

inline std::shared_ptr<Owner> owned(const std::shared_ptr<Replay>& replay) {
  int holder = 0;
  return replay->own(holder);
}

// Appends one step to each of `n` streams, and publishes what is complete with priority 1.5. `wait`: called where there
// is no room; false from it ends the call.
template <typename Wait>
bool append(Writer& writer, const std::vector<const uint8_t*>& columns, const float* reward, const uint8_t* terminated,
            const uint8_t* truncated, uint32_t n, Wait&& wait) {
  std::vector<ItemRef> pending;
  for (bool stored = false; !stored;) {
    const WriteStatus status = writer.append(columns.data(), reward, terminated, truncated, nullptr, n, stored);
    if (status == WriteStatus::publish) {
      writer.publish(std::vector<double>(writer.pending(pending), 1.5).data());
    } else if (!stored && !wait()) {
      return false;
    }
  }
  return true;
}

}  // namespace apexrl::testing
