// C interface of one kernel, decode attention over a contiguous cache, so that Python can pass
// torch's memory. nvcc compiles it for the GPU, with device pointers; any other compiler compiles
// it for the simulator, with host pointers.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/decode/decode_attention.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::DecodeShape;

/// Access of a kernel to the caller's memory.
#ifdef __CUDACC__
class Lent {
 public:
  template <class T>
  Span<T> span(T* data, std::int64_t n) {
    return {data, n};
  }
  [[nodiscard]] Stream stream(void* of_caller) const {
    return {static_cast<cudaStream_t>(of_caller)};
  }
  void finish() {}
};
#else
/// Copies in the simulator; memory that a kernel may write is copied back at the end.
class Lent {
 public:
  template <class T>
  Span<const T> span(const T* data, std::int64_t n) {
    return span_of(std::as_const(own<T>(data, n)));
  }
  template <class T>
  requires(!std::is_const_v<T>) Span<T> span(T* data, std::int64_t n) {
    cuda_sim::Buffer<T>& buffer = own<T>(data, n);
    back_.emplace_back([&buffer, data] {
      const std::vector<T> values = buffer.download();
      std::memcpy(data, values.data(), values.size() * sizeof(T));
    });
    return span_of(buffer);
  }
  Stream stream(void*) { return {&device_}; }
  void finish() {
    for (const auto& copy : back_) copy();
  }

 private:
  template <class T>
  cuda_sim::Buffer<T>& own(const T* data, std::int64_t n) {
    auto buffer =
        std::make_shared<cuda_sim::Buffer<T>>(device_, "a tensor", std::vector<T>(data, data + n));
    memory_.push_back(buffer);
    return *buffer;
  }

  cuda_sim::Device device_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<std::function<void()>> back_;
};
#endif

template <class T>
void attend(const DecodeShape& shape, float scale, const void* q, const void* keys,
            const void* values, void* out, float* partial, void* stream) {
  Lent lent;
  const std::int64_t rows = shape.batch * shape.n_heads;
  const std::int64_t cache = shape.batch * shape.n_kv_heads * shape.capacity * shape.head_dim;
  const std::int64_t splits = rows * shape.splits();
  const DecodeAttention<T> arguments{
      .q = lent.span(static_cast<const T*>(q), rows * shape.head_dim),
      .keys = lent.span(static_cast<const T*>(keys), cache),
      .values = lent.span(static_cast<const T*>(values), cache),
      .bias = {},
      .scale = scale,
      .out = lent.span(static_cast<T*>(out), rows * shape.head_dim),
      .logits = {},
      .log_sum = {},
      .partial = lent.span(partial, splits * shape.head_dim),
      .partial_max = lent.span(partial + splits * shape.head_dim, splits),
      .partial_sum = lent.span(partial + splits * (shape.head_dim + 1), splits)};
  decode_attention<T>(lent.stream(stream), shape, arguments);
  lent.finish();
}

}  // namespace
}  // namespace kvsim::KVSIM_EXECUTOR

extern "C" {

/// Sizes as in kernels/shapes.hpp; capacity equals entries.
struct kvsim_decode_shape {
  std::int64_t batch, n_heads, n_kv_heads, head_dim, entries, entries_per_split;
};

/// fp32 numbers that `partial` of kvsim_decode_attention must hold.
std::int64_t kvsim_decode_scratch(const kvsim_decode_shape* s) {
  const std::int64_t splits = (s->entries + s->entries_per_split - 1) / s->entries_per_split;
  return s->batch * s->n_heads * splits * (s->head_dim + 2);
}

/// out [batch, n_heads, head_dim] = softmax(scale q K^T) V over q [batch, n_heads, head_dim], keys
/// and values [batch, n_kv_heads, entries, head_dim], on `stream` (a cudaStream_t; null: the
/// default stream), without synchronization. dtype: 0 fp32, 1 fp16, 2 bf16. Returns 0 on success,
/// else 1 with the reason in `problem`, of `problem_size` characters.
int kvsim_decode_attention(const kvsim_decode_shape* s, int dtype, float scale, const void* q,
                           const void* keys, const void* values, void* out, float* partial,
                           void* stream, char* problem, std::size_t problem_size) {
  namespace executor = kvsim::KVSIM_EXECUTOR;
  const kvsim::kernels::DecodeShape shape{.batch = s->batch,
                                          .n_heads = s->n_heads,
                                          .n_kv_heads = s->n_kv_heads,
                                          .head_dim = s->head_dim,
                                          .entries = s->entries,
                                          .capacity = s->entries,
                                          .entries_per_split = s->entries_per_split};
  const auto refuse = [&](const char* why) {
    std::snprintf(problem, problem_size, "%s", why);
    return 1;
  };
  try {
    switch (dtype) {
      case 0:
        executor::attend<float>(shape, scale, q, keys, values, out, partial, stream);
        return 0;
      case 1:
        executor::attend<executor::kv::Half>(shape, scale, q, keys, values, out, partial, stream);
        return 0;
      case 2:
        executor::attend<executor::kv::BFloat16>(shape, scale, q, keys, values, out, partial,
                                                 stream);
        return 0;
      default:
        return refuse("dtype: expected 0 (fp32), 1 (fp16) or 2 (bf16)");
    }
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
}

}  // extern "C"
