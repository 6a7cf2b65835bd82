// Products through cuBLASLt on a GPU; in the simulator the plain kernels of gemm.hpp replace it, so
// that inputs, references and tolerances are tested without a GPU.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/basic/gemm.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/cases.hpp"
#ifdef __CUDACC__
#include "kernels/suite/library/blas_lt.hpp"
#endif

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::GemmShape;

#ifdef __CUDACC__
using Library = BlasLt;
template <class T>
constexpr cudaDataType kTypeOf = CUDA_R_32F;
template <>
constexpr cudaDataType kTypeOf<kv::Half> = CUDA_R_16F;
template <>
constexpr cudaDataType kTypeOf<kv::BFloat16> = CUDA_R_16BF;
#else
struct Library {};
#endif

/// e4m3 numbers with scale 1 in the library's format: one byte each.
template <class T>
Array<std::uint64_t>& as_fp8(Case& c, const char* name, const std::vector<float>& values) {
  constexpr std::int64_t kRowWidth = 32;
  const std::int64_t n = std::ssize(values);
  auto& codes = c.output<std::uint64_t>(name, n / 8);
  const std::int64_t rows = n / kRowWidth;
  quantise_fp8<T>(c.stream(), {.rows = 1, .entries = rows, .capacity = rows, .head_dim = kRowWidth},
                  1.0F, c.numbers<T>("values", values).span(), codes.span());
  return codes;
}

/// Enqueues the product of the case on a stream; `fp8`: the inputs are e4m3 numbers.
template <class T>
void run_product(Case& c, [[maybe_unused]] const Library& library, const GemmShape& shape, bool fp8,
                 const std::vector<float>& a, const std::vector<float>& b, Span<T> out) {
#ifdef __CUDACC__
  if (!library.ready()) return c.skip("libcublasLt was not found, or does not answer");
  if (fp8 && !BlasLt::has_fp8()) return c.skip("this GPU has no products of fp8");
  const auto plan =
      library.plan(static_cast<int>(shape.m), static_cast<int>(shape.n), static_cast<int>(shape.k),
                   fp8 ? CUDA_R_8F_E4M3 : kTypeOf<T>, kTypeOf<T>);
  if (!plan) return c.skip("cuBLASLt has no algorithm for this product");
  const void* x = fp8 ? static_cast<const void*>(as_fp8<T>(c, "a", a).span().data)
                      : c.numbers<T>("a", a).span().data;
  const void* y = fp8 ? static_cast<const void*>(as_fp8<T>(c, "b", b).span().data)
                      : c.numbers<T>("b", b).span().data;
  const std::int64_t element = fp8 ? 1 : static_cast<std::int64_t>(sizeof(T));
  const auto size = static_cast<std::int64_t>(sizeof(T));
  c.run_library({Bytes{(shape.m + shape.n) * shape.k * element}, Bytes{shape.m * shape.n * size}},
                [&library, plan = *plan, x, y, to = out.data](Stream s) {
                  library.multiply(plan, x, y, to, s);
                });
#else
  (void)fp8;
  const Gemm<T, T> arguments{
      .a = c.numbers<T>("a", a).span(), .b = c.numbers<T>("b", b).span(), .out = out};
  const bool one_row = shape.m == 1;
  c.run(one_row ? gemv_traffic(shape, sizeof(T), sizeof(T), false)
                : gemm_traffic(shape, sizeof(T), sizeof(T), false),
        [=](Stream s) {
          if (one_row) {
            gemv<T, T>(s, shape, arguments);
          } else {
            gemm<T, T>(s, shape, arguments);
          }
        });
#endif
}

template <class T>
void library_case(Bench& bench, const Library& library, const GemmShape& shape, bool fp8) {
  bench.add(text(shape.m) + "x" + text(shape.n) + "x" + text(shape.k),
            fp8 ? "fp8_e4m3" : Stored<T>::kName, [&](Case& c) {
              auto a = c.draw<T>(shape.m * shape.k);
              auto b = c.draw<T>(shape.n * shape.k);
              if (fp8) {
                a = kernels::fp8_reference(1.0F, a);
                b = kernels::fp8_reference(1.0F, b);
              }
              auto& out = c.output<T>("out", shape.m * shape.n);
              run_product<T>(c, library, shape, fp8, a, b, out.span());
              if (c.skipped()) return;
              const auto expected = kernels::gemm_reference(shape, a, b, {}, false);
              double largest = 1e-30;
              for (const double x : expected) largest = std::max(largest, std::abs(x));
              // The error of sums scales with their largest possible terms before cancellation, k
              // times 1. Tensor cores keep about 14 bits of a sum of fp8 products, and fp32 sums
              // for other types.
              const double terms = static_cast<double>(shape.k) / largest;
              c.compare("out", values_of(out.download(0, shape.m * shape.n)), expected,
                        Stored<T>::kRounding + (fp8 ? 0x1p-13 : 1e-6) * terms);
            });
}

}  // namespace

void library_gemm_cases(Bench& bench) {
  const auto library = std::make_unique<Library>();
  for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 48, 288},
                                {31, 48, 288},
                                {64, 32, 1056}}) {
    const GemmShape shape{.m = m, .n = n, .k = k};
    library_case<float>(bench, *library, shape, false);
    library_case<kv::Half>(bench, *library, shape, false);
    library_case<kv::BFloat16>(bench, *library, shape, false);
    library_case<kv::BFloat16>(bench, *library, shape, true);
  }
  if (!bench.large()) return;
  for (const std::int64_t n : {4096, 14'336, 128'256}) {  // memory-bound: weights exceed the L2
                                                          // cache
    for (const bool fp8 : {false, true}) {
      library_case<kv::BFloat16>(bench, *library, {.m = 1, .n = n, .k = 4096}, fp8);
    }
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR
