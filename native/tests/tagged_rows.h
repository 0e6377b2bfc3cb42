// Rows that can be told by their tag, whole or torn, for the tests of the core.
#pragma once

#include "check.h"

namespace apexrl::testing {

inline uint32_t chunk_of(uint64_t capacity) { return uint32_t(std::clamp<uint64_t>(capacity / 32, 1, 64)); }

constexpr uint32_t kLarge = 300;  // bytes: where it is ragged, in up to three blocks
inline bool ragged = false;       // the large column varies in length, and the fourth says how long it is

// Bytes of the large column in the row with this tag.
inline uint32_t length_of(uint64_t tag) { return !ragged ? kLarge : uint32_t(tag % 5 == 0 ? 0 : tag % 7 == 0 ? kLarge : tag * 13 % 90); }

inline std::vector<Column> columns(bool windowed) {
  std::vector<Column> all{Column{8, 8, uint8_t(windowed), 1, 0, 0, 0, 0}, Column{4, 4, 0, 1, 0, 0, 0, 0},
                          Column{kLarge, 1, uint8_t(windowed), 1, 0, 0, 0, 0, ragged ? 4u : 0u, ragged ? 1u : 0u}};
  if (ragged) all.push_back(Column{4, 4, uint8_t(windowed), 1, 0, 0, 0, 0});
  return all;
}

struct Rows {
  std::vector<uint64_t> tag;
  std::vector<uint32_t> small;
  std::vector<uint8_t> large;
  std::vector<int32_t> length;
  explicit Rows(size_t n) : tag(n), small(n), large(n * kLarge), length(n) {}
  void fill(size_t i, uint64_t value) {
    tag[i] = value;
    small[i] = uint32_t(value * 3);
    length[i] = int32_t(length_of(value));
    std::fill_n(large.begin() + std::ptrdiff_t(i * kLarge), length_of(value), uint8_t(value));
  }
  std::vector<const uint8_t*> data() const {
    std::vector<const uint8_t*> all{reinterpret_cast<const uint8_t*>(tag.data()), reinterpret_cast<const uint8_t*>(small.data()), large.data()};
    if (ragged) all.push_back(reinterpret_cast<const uint8_t*>(length.data()));
    return all;
  }
};

struct Drawn {
  size_t n;
  uint32_t stack;
  std::vector<uint64_t> tag, next_tag, keys;
  std::vector<uint32_t> small;
  std::vector<uint8_t> large, next_large;
  std::vector<double> probabilities;
  std::vector<float> weights, reward, discount;
  Outputs out;
  Drawn(size_t n_, uint32_t stack_, bool stream)
      : n(n_), stack(stack_), tag(n * stack), next_tag(n * stack), keys(n), small(n), large(n * stack * kLarge),
        next_large(n * stack * kLarge), probabilities(n), weights(n), reward(n), discount(n) {
    out.n = n;
    out.column = {reinterpret_cast<uint8_t*>(tag.data()), reinterpret_cast<uint8_t*>(small.data()), large.data()};
    out.next_column = {nullptr, nullptr, nullptr};
    if (stream) out.next_column = {reinterpret_cast<uint8_t*>(next_tag.data()), nullptr, next_large.data()};
    if (ragged) out.column.push_back(nullptr), out.next_column.push_back(nullptr);
    out.reward = reward.data();
    out.discount = discount.data();
    out.keys = keys.data();
    out.probabilities = probabilities.data();
    out.weights = weights.data();
  }
  // Whether the k-th frame is that of its tag, filled up with zeros.
  bool whole(size_t k) const {
    for (size_t b = 0; b < kLarge; ++b)
      if (large[k * kLarge + b] != (b < length_of(tag[k]) ? uint8_t(tag[k]) : 0)) return false;
    return true;
  }
  void check() const {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t t = tag[i * stack + stack - 1];
      CHECK(small[i] == uint32_t(t * 3));
      for (size_t k = 0; k < stack; ++k) CHECK(whole(i * stack + k));
      CHECK(probabilities[i] > 0.0 && probabilities[i] <= 1.0 && weights[i] > 0.0f && weights[i] <= 1.0f);
    }
  }
};

}  // namespace apexrl::testing
