// Vectorised powers. In a file of its own, because only there may the compiler assume finite numbers.
#pragma once

#include <cstddef>

namespace apexrl {

// out[i] = (in[i] + eps)^alpha for finite in[i] >= 0. `in` may be `out`.
void powers(const double* in, double* out, size_t n, double eps, double alpha);

// out[i] = (smallest / in[i])^beta for finite in[i] >= smallest > 0.
void inverse_powers(const double* in, float* out, size_t n, double smallest, double beta);

}  // namespace apexrl
