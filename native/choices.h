// Draws choices from logits, as actors do after every pass of their network.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace apexrl {

// e^x of x ≤ 0; where that is less than any float, as of an action that is not possible, without the call, which takes
// long there.
inline float mass_of(float x) { return x < -104.0f ? 0.0f : std::exp(x); }

// For each of `rows` rows of `n` logits, `stride` apart: the least choice whose cumulative probability is above
// `uniform`, or else the last, into every `step`-th of `chosen`; its log-probability is added to `log_prob`.
inline void draw_choices(const float* logits, size_t rows, size_t n, size_t stride, const double* uniform,
                         int64_t* chosen, size_t step, float* log_prob) {
  for (size_t row = 0; row < rows; ++row, logits += stride) {
    float largest = logits[0];
    for (size_t i = 1; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
    double total = 0.0;
    for (size_t i = 0; i < n; ++i) total += mass_of(logits[i] - largest);
    const double threshold = uniform[row] * total;
    size_t choice = 0;
    double mass = mass_of(logits[0] - largest);
    while (choice + 1 < n && mass <= threshold) mass += mass_of(logits[++choice] - largest);
    chosen[row * step] = int64_t(choice);
    log_prob[row] += logits[choice] - largest - float(std::log(total));
  }
}

}  // namespace apexrl
