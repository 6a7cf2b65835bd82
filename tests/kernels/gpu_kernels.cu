// The kernels on a GPU against their references. A program of its own: what nvcc compiles holds no
// fmt, so no doctest either. Prints what it checked; exits 1 where an error is too large. Without
// a device it says which was looked for, and ctest reports it as skipped. Built without one too:
// that shows that every kernel compiles and links for the architectures of the build.

#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "kernels/bandwidth.hpp"
#include "kernels/compact.hpp"
#include "kernels/decode_attention.hpp"
#include "kernels/reference.hpp"
#include "kernels/scores.hpp"
#include "kernels/select.hpp"
#include "models/math/counter_random.hpp"
#include "models/math/half.hpp"

namespace kvsim::on_gpu {
namespace {

int failures = 0;

void cuda(cudaError_t status, int line) { check_cuda(status, "a test", __FILE__, line); }

template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t n) : size_{n} {
    cuda(cudaMalloc(&data_, bytes()), __LINE__);
    cuda(cudaMemset(data_, 0xFF, bytes()), __LINE__);  // poison: a NaN in each format
  }
  explicit Buffer(const std::vector<T>& values) : Buffer{static_cast<std::int64_t>(values.size())} {
    cuda(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), __LINE__);
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] Span<T> span() { return {data_, size_}; }
  [[nodiscard]] std::vector<T> download() const {
    std::vector<T> values(static_cast<std::size_t>(size_));
    cuda(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), __LINE__);
    return values;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }
  T* data_ = nullptr;
  std::int64_t size_;
};

std::vector<float> draw(std::uint64_t seed, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(2 * counter_uniform(seed, i) - 1);
  }
  return values;
}

template <class A, class B>
void check(const char* what, std::int64_t size, const A& got, const B& expected, double allowed) {
  double error = got.size() == expected.size() ? 0 : HUGE_VAL;
  double largest = 1e-30;
  for (std::size_t i = 0; i < got.size() && i < expected.size(); ++i) {
    const double off = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (!(off <= error)) error = off;  // NaN too
    largest = std::fmax(largest, std::abs(static_cast<double>(expected[i])));
  }
  const bool ok = error / largest <= allowed;
  if (!ok) ++failures;
  std::printf("%-4s %-24s %6lld  error %.2e of %.2e\n", ok ? "ok" : "BAD", what,
              static_cast<long long>(size), error / largest, allowed);
}

void check_streams(std::int64_t n) {
  const auto a = draw(1, n);
  const auto b = draw(2, n);
  Buffer<float> a_buffer{a}, b_buffer{b}, out{n}, sums{3};
  const kernels::BandwidthShape shape{n, 3};
  stream_copy({}, shape, a_buffer.span(), out.span());
  check("stream_copy", n, out.download(), a, 0);
  stream_triad({}, shape, a_buffer.span(), b_buffer.span(), 3.0F, out.span());
  std::vector<double> triad, total{0};
  for (std::size_t i = 0; i < a.size(); ++i) {
    triad.push_back(static_cast<double>(a[i]) + 3.0 * static_cast<double>(b[i]));
    total[0] += static_cast<double>(a[i]);
  }
  check("stream_triad", n, out.download(), triad, 1e-6);
  stream_read({}, shape, a_buffer.span(), sums.span());
  std::vector<double> sum{0};
  for (const float x : sums.download()) sum[0] += static_cast<double>(x);
  check("stream_read", n, sum, total, 1e-4);
  stream_write({}, shape, 2.5F, out.span());
  check("stream_write", n, out.download(), std::vector<float>(a.size(), 2.5F), 0);
}

void check_attention(std::int64_t entries, std::int64_t heads) {
  const kernels::DecodeShape shape{2, heads, 2, 128, entries, entries + 3, 128};
  const std::int64_t rows = shape.batch * shape.n_heads;
  const std::int64_t cache = shape.batch * shape.n_kv_heads * shape.capacity;
  const auto rounded = [](std::vector<float> values, std::vector<kv::BFloat16>& to) {
    for (float& x : values) {
      to.push_back({float_to_bf16(x)});
      x = bf16_to_float(to.back().bits);
    }
    return values;
  };
  std::vector<kv::BFloat16> q, k, v;
  const auto q_float = rounded(draw(3, rows * shape.head_dim), q);
  const auto k_float = rounded(draw(4, cache * shape.head_dim), k);
  const auto v_float = rounded(draw(5, cache * shape.head_dim), v);
  const auto bias = draw(6, cache);
  Buffer<kv::BFloat16> q_buffer{q}, k_buffer{k}, v_buffer{v}, out{rows * shape.head_dim};
  Buffer<float> bias_buffer{bias}, log_sum{rows}, partial{rows * shape.splits() * shape.head_dim},
      partial_max{rows * shape.splits()}, partial_sum{rows * shape.splits()};
  const float scale = 1.0F / std::sqrt(128.0F);
  decode_attention<kv::BFloat16>({}, shape,
                                 {q_buffer.span(),
                                  k_buffer.span(),
                                  v_buffer.span(),
                                  bias_buffer.span(),
                                  scale,
                                  out.span(),
                                  {},
                                  log_sum.span(),
                                  partial.span(),
                                  partial_max.span(),
                                  partial_sum.span()});
  const auto reference =
      kernels::decode_reference(shape, static_cast<double>(scale), q_float, k_float, v_float, bias);
  std::vector<float> got;
  for (const kv::BFloat16 x : out.download()) got.push_back(bf16_to_float(x.bits));
  check("decode_attention bf16", entries, got, reference.out, 0x1p-8 + 2e-6);
  check("its log_sum", entries, log_sum.download(), reference.log_sum, 2e-6);
}

void check_selection(std::int64_t entries) {
  const std::int64_t stride = (entries + 3) / 4 * 4;
  const auto scores = draw(7, 3 * stride);
  const auto probabilities = draw(8, 6 * stride);
  Buffer<float> score_buffer{scores}, p_buffer{probabilities};
  const std::int64_t keep = entries < 100 ? entries : 100;
  const kernels::SelectShape shape{3, entries, stride, keep};
  Buffer<std::int64_t> least{3};
  argmin_rows({}, shape, score_buffer.span(), least.span());
  check("argmin_rows", entries, least.download(), kernels::argmin_reference(shape, scores), 0);
  Buffer<std::int32_t> kept{3 * keep};
  top_rows({}, shape, score_buffer.span(), kept.span());
  const auto expected = kernels::top_reference(shape, scores);
  check("top_rows", entries, kept.download(), expected, 0);
  Buffer<float> cache{draw(9, 3 * entries * 8)}, compact{3 * keep * 8};
  gather_entries<float>({}, {3, 32, entries, keep, keep}, cache.span(), kept.span(),
                        compact.span());
  const auto from = cache.download();
  std::vector<float> moved;
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t i = 0; i < keep * 8; ++i) {
      const std::int64_t source = expected[static_cast<std::size_t>(r * keep + i / 8)];
      moved.push_back(from[static_cast<std::size_t>((r * entries + source) * 8 + i % 8)]);
    }
  }
  check("gather_entries", entries, compact.download(), moved, 0);
  const kernels::ScoreShape update{3, 2, entries, stride};
  update_scores({}, update, 0.9F, p_buffer.span(), score_buffer.span());
  const auto all = score_buffer.download();
  std::vector<float> got;
  for (std::int64_t r = 0; r < 3; ++r) {
    got.insert(got.end(), all.begin() + r * stride, all.begin() + r * stride + entries);
  }
  check("update_scores", entries, got,
        kernels::update_scores_reference(update, 0.9F, probabilities, scores), 1e-6);
}

int run() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("KVSIM-SKIPPED: the CUDA runtime finds no device (%s)\n",
                cudaGetErrorString(status));
    return 0;
  }
  for (const std::int64_t n : {1, 31, 257, 100'003}) {
    check_streams(n);
    check_selection(n);
  }
  for (const std::int64_t entries : {1, 31, 257, 3001}) {
    for (const std::int64_t heads : {2, 6, 16, 20}) check_attention(entries, heads);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvsim::on_gpu

int main() { return kvsim::on_gpu::run(); }
