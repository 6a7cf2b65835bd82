#pragma once

// Fixed-width lanes through the compiler's vector extension. The lane structure is part of the
// algorithm: sums are folded in the same order on every instruction set. Only multiply_add differs:
// it rounds once with fused multiply-add (x86-64-v3) and twice without.

#ifdef __FMA__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace kvsim::lanes {

using D4 = double __attribute__((vector_size(32)));
using I4 = std::int64_t __attribute__((vector_size(32)));
using F4 = float __attribute__((vector_size(16)));

inline D4 load(const double* p) {
  D4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline D4 load(const float* p) {
  F4 v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, D4);
}
inline void store(double* p, D4 v) { std::memcpy(p, &v, sizeof v); }

inline D4 all(double x) { return D4{x, x, x, x}; }

/// a * b + c.
inline D4 multiply_add(D4 a, D4 b, D4 c) {
#ifdef __FMA__
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

inline double fold(D4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/// e^x for x <= 0, to about 1 ulp; 0 below -708. Computed as 2^n times a degree-13 polynomial of
/// the remainder in [-ln2/2, ln2/2] (Cody-Waite reduction).
inline D4 exp_nonpositive(D4 x) {
  constexpr double kLog2e = 1.4426950408889634074;
  constexpr double kLn2High = 6.93145751953125e-1;
  constexpr double kLn2Low = 1.42860682030941723212e-6;
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to the nearest integer
  const D4 floor_x = all(-708.0);
  const I4 alive = x >= floor_x;
  x = alive ? x : floor_x;
  const D4 shifted = x * kLog2e + kMagic;
  const D4 n = shifted - kMagic;
  const D4 r = (x - n * kLn2High) - n * kLn2Low;
  D4 p = all(1.0 / 6227020800.0);  // 1/13!
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The low bits of `shifted` hold n as an integer; shifting them into the exponent gives 2^n.
  I4 bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  I4 scale_bits = (bits + 1023) << 52;
  D4 scale;
  std::memcpy(&scale, &scale_bits, sizeof scale);
  const D4 zero{};
  return alive ? p * scale : zero;
}

/// ln x for finite normal x > 0, to about 2 ulp. Uses x = 2^n m with m in [sqrt(1/2), sqrt(2)), and
/// ln m = 2 atanh(s), s = (m - 1) / (m + 1), as a series up to s^21 (|s| < 0.172).
inline D4 log_positive(D4 x) {
  constexpr double kLn2High = 6.93147180369123816490e-1;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr std::int64_t kSqrtHalf = 0x3FE6A09E667F3BCD;  // bits of sqrt(1/2)
  constexpr std::int64_t kMantissa = (std::int64_t{1} << 52) - 1;
  I4 bits;
  std::memcpy(&bits, &x, sizeof bits);
  const I4 above = bits - kSqrtHalf;
  const I4 n = above >> 52;  // arithmetic shift: rounds towards minus infinity
  const I4 m_bits = (above & kMantissa) + kSqrtHalf;
  D4 m;
  std::memcpy(&m, &m_bits, sizeof m);
  const D4 s = (m - 1.0) / (m + 1.0);
  const D4 z = s * s;
  D4 p = all(1.0 / 21.0);
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  const D4 exponent = __builtin_convertvector(n, D4);
  return exponent * kLn2High + (2.0 * s + (2.0 * s * z * p + exponent * kLn2Low));
}

}  // namespace kvsim::lanes
