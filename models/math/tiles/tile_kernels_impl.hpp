#pragma once

// The kernels of TileKernels for the instruction set of the including file. Everything has internal
// linkage, and no standard template is used: a function shared with other files could be compiled
// for one processor and run on another.

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "models/math/tiles/tile_kernels.hpp"

namespace kvsim {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kVectorBytes = 64;
constexpr std::size_t kRows = 12;  // 24 sums, two query vectors and a factor in 32 registers
#elif defined(__AVX__)
constexpr std::size_t kVectorBytes = 32;
constexpr std::size_t kRows = 6;
#else
constexpr std::size_t kVectorBytes = 16;
constexpr std::size_t kRows = 6;
#endif

using F = float __attribute__((vector_size(kVectorBytes)));
using D = double __attribute__((vector_size(kVectorBytes)));
using I = std::int32_t __attribute__((vector_size(kVectorBytes)));
using L = std::int64_t __attribute__((vector_size(kVectorBytes)));
using HalfF = float __attribute__((vector_size(kVectorBytes / 2)));

template <class V, class T>
inline V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
inline void store(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

#if defined(__AVX512F__)
inline F all(float x) { return (F)_mm512_set1_ps(x); }
inline D all(double x) { return (D)_mm512_set1_pd(x); }
inline F fma(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline D fma(D a, D b, D c) { return (D)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
#elif defined(__FMA__)
inline F all(float x) { return (F)_mm256_set1_ps(x); }
inline D all(double x) { return (D)_mm256_set1_pd(x); }
inline F fma(F a, F b, F c) { return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline D fma(D a, D b, D c) { return (D)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
#else
inline F all(float x) { return F{} + x; }
inline D all(double x) { return D{} + x; }
inline F fma(F a, F b, F c) { return a * b + c; }
inline D fma(D a, D b, D c) { return a * b + c; }
#endif

template <class V>
struct ElementOf;
template <>
struct ElementOf<F> {
  using type = float;
};
template <>
struct ElementOf<D> {
  using type = double;
};
template <class V>
using Element = typename ElementOf<V>::type;
template <class V>
constexpr std::size_t kLanes = kVectorBytes / sizeof(Element<V>);
template <class V>
constexpr std::size_t kWidth = 2 * kLanes<V>;  // of a panel: two vectors

/// out[i, lane] = sum over c of left(i, c) panel[row(c), lane] for N rows of `left`, whose element
/// (i, c) is at left[i * d + c], or at left[c * d + i] if kByColumn.
template <class V, std::size_t N, bool kByColumn>
inline void block(const Element<V>* left, std::size_t d, std::size_t depth,
                  const std::uint32_t* rows, const Element<V>* panel, Element<V>* out) {
  V sums[N][2] = {};
  for (std::size_t c = 0; c < depth; ++c) {
    const Element<V>* right = panel + (rows == nullptr ? c : rows[c]) * kWidth<V>;
    const V a = load<V>(right);
    const V b = load<V>(right + kLanes<V>);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < N; ++i) {
      const V x = all(kByColumn ? left[c * d + i] : left[i * d + c]);
      sums[i][0] = fma(x, a, sums[i][0]);
      sums[i][1] = fma(x, b, sums[i][1]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < N; ++i) {
    store(out + i * kWidth<V>, sums[i][0]);
    store(out + i * kWidth<V> + kLanes<V>, sums[i][1]);
  }
}

template <class V, bool kByColumn>
void product(const Element<V>* left, std::size_t count, std::size_t d, std::size_t depth,
             const std::uint32_t* rows, const Element<V>* panel, Element<V>* out) {
  std::size_t i = 0;
  const auto run = [&]<std::size_t N>() {
    for (; i + N <= count; i += N) {
      block<V, N, kByColumn>(left + (kByColumn ? i : i * d), d, depth, rows, panel,
                             out + i * kWidth<V>);
    }
  };
  run.template operator()<kRows>();
  run.template operator()<4>();
  run.template operator()<1>();
}

void score(const float* keys, std::size_t entries, std::size_t d, const float* queries,
           float* scores) {
  product<F, false>(keys, entries, d, d, nullptr, queries, scores);
}

void score_precise(const double* keys, std::size_t entries, std::size_t d, const double* queries,
                   double* scores) {
  product<D, false>(keys, entries, d, d, nullptr, queries, scores);
}

void mix(const float* values, const std::uint32_t* rows, std::size_t entries, std::size_t d,
         const float* weights, float* out) {
  product<F, true>(values, d, d, entries, rows, weights, out);
}

/// e^x for x <= 0, to about 1e-7 relative; 0 below -87. 2^n times a polynomial of the remainder in
/// [-ln2/2, ln2/2] (Cody-Waite reduction, Taylor to degree 7).
inline F exp_nonpositive(F x) {
  constexpr float kLog2e = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kMagic = 0x1.8p23F;  // adding it rounds to the nearest integer
  const F floor_x = all(-87.0F);
  const I alive = x >= floor_x;
  x = alive ? x : floor_x;
  const F shifted = fma(x, all(kLog2e), all(kMagic));
  const F n = shifted - all(kMagic);
  const F r = fma(n, all(-kLn2Low), fma(n, all(-kLn2High), x));
  F p = all(1.0F / 5040);
  p = fma(p, r, all(1.0F / 720));
  p = fma(p, r, all(1.0F / 120));
  p = fma(p, r, all(1.0F / 24));
  p = fma(p, r, all(1.0F / 6));
  p = fma(p, r, all(0.5F));
  p = fma(p, r, all(1.0F));
  p = fma(p, r, all(1.0F));
  // The low bits of `shifted` hold n as an integer; shifting them into the exponent gives 2^n.
  const I scale = (I)((((I)shifted) + 127) << 23);
  return alive ? p * (F)scale : F{};
}

/// The same in fp64, to about 1 ulp; 0 below -708.
inline D exp_nonpositive(D x) {
  constexpr double kLog2e = 1.4426950408889634074;
  constexpr double kLn2High = 6.93145751953125e-1;
  constexpr double kLn2Low = 1.42860682030941723212e-6;
  constexpr double kMagic = 0x1.8p52;
  const D floor_x = all(-708.0);
  const L alive = x >= floor_x;
  x = alive ? x : floor_x;
  const D shifted = fma(x, all(kLog2e), all(kMagic));
  const D n = shifted - all(kMagic);
  const D r = fma(n, all(-kLn2Low), fma(n, all(-kLn2High), x));
  D p = all(1.0 / 6227020800.0);  // 1/13!
  p = fma(p, r, all(1.0 / 479001600.0));
  p = fma(p, r, all(1.0 / 39916800.0));
  p = fma(p, r, all(1.0 / 3628800.0));
  p = fma(p, r, all(1.0 / 362880.0));
  p = fma(p, r, all(1.0 / 40320.0));
  p = fma(p, r, all(1.0 / 5040.0));
  p = fma(p, r, all(1.0 / 720.0));
  p = fma(p, r, all(1.0 / 120.0));
  p = fma(p, r, all(1.0 / 24.0));
  p = fma(p, r, all(1.0 / 6.0));
  p = fma(p, r, all(0.5));
  p = fma(p, r, all(1.0));
  p = fma(p, r, all(1.0));
  const L scale = (((L)shifted) + 1023) << 52;
  return alive ? p * (D)scale : D{};
}

constexpr float kHiddenScore = -1e30F;

template <bool kMasked>
void mask_and_raise(float* scores, std::size_t entries, const TileKernels::Visible* visible,
                    F (&top)[2]) {
  for (std::size_t i = 0; i < entries; ++i) {
    float* row = scores + i * kWidth<F>;
    for (std::size_t v = 0; v < 2; ++v) {
      F s = load<F>(row + v * kLanes<F>);
      if constexpr (kMasked) {
        const I step = load<I>(visible->steps + v * kLanes<F>);
        I seen = step >= visible->born[i];
        if (visible->gone != nullptr) seen = seen & (step < visible->gone[i]);
        s = seen ? s : all(kHiddenScore);
        store(row + v * kLanes<F>, s);
      }
      top[v] = s > top[v] ? s : top[v];
    }
  }
}

bool soften(float* scores, std::size_t entries, float scale, const TileKernels::Visible* visible,
            float* highest, double* sum, double* factor) {
  F top[2], before[2];
  for (std::size_t v = 0; v < 2; ++v) top[v] = before[v] = load<F>(highest + v * kLanes<F>);
  if (visible == nullptr) {
    mask_and_raise<false>(scores, entries, nullptr, top);
  } else {
    mask_and_raise<true>(scores, entries, visible, top);
  }
  F total[2] = {};
  for (std::size_t i = 0; i < entries; ++i) {
    float* row = scores + i * kWidth<F>;
    for (std::size_t v = 0; v < 2; ++v) {
      const F w = exp_nonpositive((load<F>(row + v * kLanes<F>) - top[v]) * scale);
      store(row + v * kLanes<F>, w);
      total[v] = total[v] + w;
    }
  }
  float raised[kWidth<F>], added[kWidth<F>];
  bool rescaled = false;
  for (std::size_t v = 0; v < 2; ++v) {
    store(highest + v * kLanes<F>, top[v]);
    store(raised + v * kLanes<F>, exp_nonpositive((before[v] - top[v]) * scale));
    store(added + v * kLanes<F>, total[v]);
  }
  for (std::size_t lane = 0; lane < kWidth<F>; ++lane) {
    factor[lane] = raised[lane];
    sum[lane] = sum[lane] * factor[lane] + added[lane];
    rescaled = rescaled || raised[lane] != 1.0F;
  }
  return rescaled;
}

void accumulate(double* total, const double* factor, const float* part, std::size_t d) {
  for (std::size_t c = 0; c < d; ++c) {
    for (std::size_t lane = 0; lane < kWidth<F>; lane += kLanes<D>) {
      double* to = total + c * kWidth<F> + lane;
      const D more = __builtin_convertvector(load<HalfF>(part + c * kWidth<F> + lane), D);
      store(to, fma(load<D>(to), load<D>(factor + lane), more));
    }
  }
}

void add_columns(double* scores, std::size_t entries, double scale, const double* visible,
                 const double* weight, double* sums) {
  constexpr double kHidden = -1e300;
  D top[2] = {all(kHidden), all(kHidden)};
  for (std::size_t i = 0; i < entries; ++i) {
    const D at = all(static_cast<double>(i));
    for (std::size_t v = 0; v < 2; ++v) {
      double* row = scores + i * kWidth<D> + v * kLanes<D>;
      const D s = at < load<D>(visible + v * kLanes<D>) ? load<D>(row) * scale : all(kHidden);
      store(row, s);
      top[v] = s > top[v] ? s : top[v];
    }
  }
  D total[2] = {};
  for (std::size_t i = 0; i < entries; ++i) {
    for (std::size_t v = 0; v < 2; ++v) {
      double* row = scores + i * kWidth<D> + v * kLanes<D>;
      const D e = exp_nonpositive(load<D>(row) - top[v]);
      store(row, e);
      total[v] = total[v] + e;
    }
  }
  for (std::size_t v = 0; v < 2; ++v) total[v] = load<D>(weight + v * kLanes<D>) / total[v];
  for (std::size_t i = 0; i < entries; ++i) {
    double sum = sums[i];
    for (std::size_t v = 0; v < 2; ++v) {
      const D share = load<D>(scores + i * kWidth<D> + v * kLanes<D>) * total[v];
      for (std::size_t lane = 0; lane < kLanes<D>; ++lane) sum += share[lane];
    }
    sums[i] = sum;
  }
}

/// Sums are folded in four lanes on every instruction set.
double softmax(const double* logits, std::size_t entries, double* probabilities) {
  using D4 = double __attribute__((vector_size(32)));
  const std::size_t whole = entries / kLanes<D> * kLanes<D>;
  double highest = logits[0];
  if (whole > 0) {
    D top = load<D>(logits);
    for (std::size_t e = kLanes<D>; e < whole; e += kLanes<D>) {
      const D x = load<D>(logits + e);
      top = x > top ? x : top;
    }
    for (std::size_t lane = 0; lane < kLanes<D>; ++lane) {
      highest = top[lane] > highest ? top[lane] : highest;
    }
  }
  for (std::size_t e = whole; e < entries; ++e) highest = logits[e] > highest ? logits[e] : highest;
  for (std::size_t e = 0; e < whole; e += kLanes<D>) {
    store(probabilities + e, exp_nonpositive(load<D>(logits + e) - highest));
  }
  if (whole < entries) {
    double tail[kLanes<D>] = {};
    for (std::size_t e = whole; e < entries; ++e) tail[e - whole] = logits[e] - highest;
    store(tail, exp_nonpositive(load<D>(tail)));
    for (std::size_t e = whole; e < entries; ++e) probabilities[e] = tail[e - whole];
  }
  const std::size_t padded = (entries + 3) / 4 * 4;
  for (std::size_t e = entries; e < padded; ++e) probabilities[e] = 0;
  D4 total{};
  for (std::size_t e = 0; e < padded; e += 4) total = total + load<D4>(probabilities + e);
  const double sum = (total[0] + total[2]) + (total[1] + total[3]);
  const double inverse = 1.0 / sum;
  for (std::size_t e = 0; e < padded; e += 4) {
    store(probabilities + e, load<D4>(probabilities + e) * inverse);
  }
  return highest + __builtin_log(sum);
}

constexpr TileKernels kernels_named(const char* name) {
  return {.name = name,
          .width = kWidth<F>,
          .width_precise = kWidth<D>,
          .score = score,
          .score_precise = score_precise,
          .mix = mix,
          .soften = soften,
          .accumulate = accumulate,
          .add_columns = add_columns,
          .softmax = softmax};
}

}  // namespace
}  // namespace kvsim
