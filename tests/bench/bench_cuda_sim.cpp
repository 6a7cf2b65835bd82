// Prints the simulator's thread-steps per second on this machine. Not a test.

#include <ctime>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/decode/decode_attention.hpp"

namespace kvsim::on_sim {
namespace {

using cuda_sim::Buffer;
using cuda_sim::Device;

constexpr std::uint32_t kAll = 0xFFFFFFFFU;

KVSIM_KERNEL copy(Span<const float> in, Span<float> out) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x * 4;
  for (std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) * 4;
       i < in.size; i += stride) {
    kv::store16(out, i, kv::load16(in, i));
  }
}

KVSIM_KERNEL scalar_copy(Span<const float> in, Span<float> out) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
       i < in.size; i += stride) {
    kv::store(out, i, kv::load(in, i));
  }
}

KVSIM_KERNEL shuffle_sum(Span<const float> in, Span<float> out) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  float x = kv::load(in, i);
  for (int round = 0; round < 8; ++round) {
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAll, x, d);
  }
  kv::store(out, i, x);
}

struct Tile {
  SharedArray<float, 256> values;
};

KVSIM_KERNEL barriers(Span<const float> in, Span<float> out) {
  auto& tile = kv::shared<Tile>();
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  kv::store(tile.values, threadIdx.x, kv::load(in, i));
  for (unsigned d = 128; d > 0; d /= 2) {
    __syncthreads();
    if (threadIdx.x < d) {
      kv::store(tile.values, threadIdx.x,
                kv::load(tile.values, threadIdx.x) + kv::load(tile.values, threadIdx.x + d));
    }
  }
  __syncthreads();
  kv::store(out, i, kv::load(tile.values, 0));
}

template <class Once>
void measure(const char* name, const Device& device, Once once) {
  once();
  const std::int64_t before = device.counters().steps;
  double best = 1e9;
  constexpr int kSamples = 7;
  for (int i = 0; i < kSamples; ++i) {
    const std::clock_t start =
        std::clock();  // of the processor: other programs may run at the same time
    once();
    const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = took < best ? took : best;
  }
  const auto steps = static_cast<double>(device.counters().steps - before) / kSamples;
  fmt::print("{:<28} {:8.1f} million thread-steps/s  ({:.1f} ns each, {:.2f} ms a run)\n", name,
             steps / best / 1e6, best / steps * 1e9, best * 1e3);
}

template <class Kernel>
void measure_stream(const char* name, Kernel kernel) {
  constexpr std::int64_t kElements = 1 << 18;
  Device device;
  Buffer<float> in{device, "in", std::vector<float>(kElements, 1)};
  Buffer<float> out{device, "out", kElements};
  measure(name, device, [&] {
    launch({&device}, name, {kElements / 256}, {256}, 0, kernel, span_of(std::as_const(in)),
           span_of(out));
  });
}

/// 8 heads of 128 over 512 keys in bf16, without and with grouped queries.
void measure_attention(const char* name, std::int64_t n_kv_heads) {
  const kernels::DecodeShape shape{.batch = 1,
                                   .n_heads = 8,
                                   .n_kv_heads = n_kv_heads,
                                   .head_dim = 128,
                                   .entries = 512,
                                   .capacity = 512,
                                   .entries_per_split = 128};
  const auto ones = [](std::int64_t n) {
    return std::vector<kv::BFloat16>(static_cast<std::size_t>(n), kv::BFloat16{0x3F80});
  };
  Device device;
  Buffer<kv::BFloat16> q{device, "q", ones(8 * 128)};
  Buffer<kv::BFloat16> keys{device, "keys", ones(n_kv_heads * 512 * 128)};
  Buffer<kv::BFloat16> values{device, "values", ones(n_kv_heads * 512 * 128)};
  Buffer<kv::BFloat16> out{device, "out", 8 * 128};
  Buffer<float> partial{device, "partial", 8 * shape.splits() * 128};
  Buffer<float> partial_max{device, "partial_max", 8 * shape.splits()};
  Buffer<float> partial_sum{device, "partial_sum", 8 * shape.splits()};
  measure(name, device, [&] {
    decode_attention<kv::BFloat16>({&device}, shape,
                                   {.q = span_of(q),
                                    .keys = span_of(keys),
                                    .values = span_of(values),
                                    .bias = {},
                                    .scale = 0.1F,
                                    .out = span_of(out),
                                    .logits = {},
                                    .log_sum = {},
                                    .partial = span_of(partial),
                                    .partial_max = span_of(partial_max),
                                    .partial_sum = span_of(partial_sum)});
  });
}

}  // namespace
}  // namespace kvsim::on_sim

int main() {
  using namespace kvsim::on_sim;  // NOLINT
  measure_stream("copy, 16 bytes", copy);
  measure_stream("copy, 4 bytes", scalar_copy);
  measure_stream("shuffles", shuffle_sum);
  measure_stream("shared tree with barriers", barriers);
  measure_attention("decode attention, 8/8 heads", 8);
  measure_attention("decode attention, 8/1 heads", 1);
}
