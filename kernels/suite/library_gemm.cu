#include <algorithm>
#include <array>
#include <functional>
#include <memory>

#include "kernels/decode/decode_steps.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/suite/bench/array.hpp"
#include "kernels/suite/bench/timing.hpp"
#include "kernels/suite/library/blas.hpp"
#include "kernels/suite/library/blas_lt.hpp"
#include "kernels/suite/library_gemm.hpp"

namespace kvsim::kernels {
namespace {

using on_gpu::Array;
using on_gpu::Machine;
using on_gpu::Stream;
namespace kv = on_gpu::kv;

struct Product {
  int m, n, k;
  [[nodiscard]] std::string words() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  }
};

/// Projections to queries, keys and values, both halves of a feed-forward block, and logits, for 1
/// row (a GEMV) to 4096 rows.
std::vector<Product> products() {
  constexpr std::array<std::array<int, 2>, 4> kWeights{
      {{6144, 4096}, {14336, 4096}, {4096, 14336}, {128256, 4096}}};
  std::vector<Product> all;
  for (const auto [n, k] : kWeights) {
    for (const int m : {1, 8, 64, 512, 4096}) all.push_back({m, n, k});
  }
  return all;
}

void push_skipped(std::vector<Measurement>& out, const char* name, const std::string& shape,
                  const std::string& reason) {
  Measurement none;
  none.name = name;
  none.shape = shape;
  none.skipped = reason;
  out.push_back(none);
}

/// bf16 or fp8 (e4m3) inputs, drawn at random on the device: products of NaN or of a constant draw
/// a different power than products of random numbers.
class Operands {
 public:
  Operands(const Product& p, bool fp8)
      : a_{machine_, "a", std::int64_t{p.m} * p.k},
        b_{machine_, "b", std::int64_t{p.n} * p.k},
        out_{machine_, "out", std::int64_t{p.m} * p.n} {
    on_gpu::fill_random<kv::BFloat16>({}, 1, -1, 1, a_.span());
    on_gpu::fill_random<kv::BFloat16>({}, 2, -1, 1, b_.span());
    if (!fp8) return;
    codes_a_ = coded(a_);
    codes_b_ = coded(b_);
  }
  [[nodiscard]] const void* a() { return of(a_, codes_a_); }
  [[nodiscard]] const void* b() { return of(b_, codes_b_); }
  [[nodiscard]] void* out() { return out_.span().data; }

 private:
  using Numbers = Array<kv::BFloat16>;
  using Codes = std::unique_ptr<Array<std::uint64_t>>;
  [[nodiscard]] Codes coded(Numbers& numbers) {
    constexpr std::int64_t kWidth = 2048;  // divides every product above
    const std::int64_t rows = numbers.span().size / kWidth;
    auto codes = std::make_unique<Array<std::uint64_t>>(machine_, "codes", numbers.span().size / 8);
    on_gpu::quantise_fp8<kv::BFloat16>(
        {}, {.rows = 1, .entries = rows, .capacity = rows, .head_dim = kWidth}, 1.0F,
        numbers.span(), codes->span());
    return codes;
  }
  [[nodiscard]] static const void* of(Numbers& numbers, const Codes& codes) {
    if (codes) return codes->span().data;
    return numbers.span().data;
  }
  Machine machine_;
  Numbers a_, b_, out_;
  Codes codes_a_, codes_b_;
};

/// Appends the FLOP/s and bytes/s of one product with `element` bytes per input element.
void push_timed(std::vector<Measurement>& out, const std::string& library, const Product& p,
                const std::string& words, std::int64_t element,
                const std::function<void(Stream)>& launch) {
  const KernelTiming time = on_gpu::time_launch(launch);
  Measurement one;
  one.name = library + "_gemm";
  one.shape = p.words() + " " + words;
  one.unit = "TFLOP/s";
  one.value = 2.0 * p.m * p.n * p.k / time.median_us / 1e6;
  one.spread = time.spread;
  one.samples = time.samples;
  out.push_back(one);
  one.name = library + "_bytes";
  one.unit = "GB/s";
  const double inputs = (static_cast<double>(p.m) + p.n) * p.k * static_cast<double>(element);
  one.value = (inputs + 2.0 * p.m * p.n) / time.median_us / 1e3;
  out.push_back(one);
}

/// Runs `measure`; a product that does not fit, or that the library rejects, fails without
/// affecting others.
void apart(std::vector<Measurement>& out, const char* name, const std::string& shape,
           const std::function<void()>& measure) {
  try {
    measure();
  } catch (const std::exception& error) {
    (void)cudaGetLastError();
    push_skipped(out, name, shape, error.what());
  }
}

void through_cublas(std::vector<Measurement>& out) {
  const on_gpu::Blas blas;
  if (!blas.ready()) {
    return push_skipped(out, "cublas_gemm", "", "libcublas was not found, or does not answer");
  }
  for (const Product& p : products()) {
    apart(out, "cublas_gemm", p.words() + " bf16", [&] {
      Operands on{p, false};
      push_timed(out, "cublas", p, "bf16", 2,
                 [&](Stream) { blas.multiply(p.m, p.n, p.k, on.a(), on.b(), on.out()); });
    });
  }
}

void through_cublaslt(std::vector<Measurement>& out) {
  const on_gpu::BlasLt blas;
  if (!blas.ready()) {
    return push_skipped(out, "cublaslt_gemm", "", "libcublasLt was not found, or does not answer");
  }
  const auto measure = [&](const Product& p, const char* type, cudaDataType of,
                           std::int64_t element, Operands& on) {
    const auto plan = blas.plan(p.m, p.n, p.k, of, CUDA_R_16BF);
    if (!plan) {
      return push_skipped(out, "cublaslt_gemm", p.words() + " " + type,
                          "the library has no algorithm for it");
    }
    const std::string words = std::string{type} + ", workspace " +
                              std::to_string(plan->workspace() / 1024) + " of " +
                              std::to_string(on_gpu::BlasLt::kWorkspace / 1024) + " KiB";
    push_timed(out, "cublaslt", p, words, element,
               [&](Stream s) { blas.multiply(*plan, on.a(), on.b(), on.out(), s); });
  };
  for (const Product& p : products()) {
    apart(out, "cublaslt_gemm", p.words() + " bf16", [&] {
      Operands on{p, false};
      measure(p, "bf16", CUDA_R_16BF, 2, on);
    });
  }
  if (!on_gpu::BlasLt::has_fp8()) {
    return push_skipped(out, "cublaslt_gemm", "fp8_e4m3", "this GPU has no products of fp8");
  }
  for (const Product& p : products()) {
    apart(out, "cublaslt_gemm", p.words() + " fp8_e4m3", [&] {
      Operands on{p, true};
      measure(p, "fp8_e4m3", CUDA_R_8F_E4M3, 1, on);
    });
  }
}

}  // namespace

void library_gemm(std::vector<Measurement>& out) {
  apart(out, "cublas_gemm", "", [&] { through_cublas(out); });
  apart(out, "cublaslt_gemm", "", [&] { through_cublaslt(out); });
}

}  // namespace kvsim::kernels
