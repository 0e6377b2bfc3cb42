#include "power.h"

#include <cmath>

// Built with -O3 -ffast-math, so that glibc's vector pow is used where there is one.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(APEXRL_SANITIZE)
#define APEXRL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define APEXRL_CLONES
#endif

namespace apexrl {

constexpr double kSmallRatio = 1e-37;  // a float quotient below it may be 0

APEXRL_CLONES
void powers(const double* in, double* out, size_t n, double eps, double alpha) {
  if (alpha == 0.0) {
    for (size_t i = 0; i < n; ++i) out[i] = 1.0;
  } else if (alpha == 1.0) {
    for (size_t i = 0; i < n; ++i) out[i] = in[i] + eps;
  } else {
    for (size_t i = 0; i < n; ++i) out[i] = std::pow(in[i] + eps, alpha);
  }
}

APEXRL_CLONES
void inverse_powers(const double* in, float* out, size_t n, double smallest, double beta) {
  const float exponent = float(beta);
  double largest = 0.0;
  for (size_t i = 0; i < n; ++i) {
    out[i] = std::pow(float(smallest / in[i]), exponent);
    largest = largest < in[i] ? in[i] : largest;
  }
  if (largest * kSmallRatio <= smallest) return;
  for (size_t i = 0; i < n; ++i)  // a quotient that no float holds may have a power that one does
    if (in[i] * kSmallRatio > smallest) out[i] = float(std::pow(smallest / in[i], beta));
}

}  // namespace apexrl
