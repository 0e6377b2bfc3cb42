// xoshiro256++ (Blackman & Vigna 2019), seeded through splitmix64.
#pragma once

#include <array>
#include <cstdint>

namespace apexrl {

class Rng {
 public:
  explicit Rng(uint64_t seed) {
    for (auto& word : state) {
      uint64_t z = (seed += 0x9e3779b97f4a7c15);
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      word = z ^ (z >> 31);
    }
  }
  uint64_t next() {
    auto rotl = [](uint64_t x, int k) { return (x << k) | (x >> (64 - k)); };
    const uint64_t result = rotl(state[0] + state[3], 23) + state[0], t = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= t;
    state[3] = rotl(state[3], 45);
    return result;
  }
  double uniform() { return double(next() >> 11) * 0x1.0p-53; }  // [0, 1)

  std::array<uint64_t, 4> state;
};

}  // namespace apexrl
