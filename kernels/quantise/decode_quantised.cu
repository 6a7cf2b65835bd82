#include "kernels/decode/decode_split.hpp"
#include "kernels/quantise/decode_quantised.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using namespace split_k;  // NOLINT: this file is one of its two parts

namespace {

constexpr int kWidth = static_cast<int>(kernels::kQuantPerLane);  // channels per word of codes
constexpr int kGroup = static_cast<int>(kernels::kQuantGroup);

template <class T, class Code, int kHeadDim>
struct KiviRows {
  static constexpr int kPer = kWidth;
  static constexpr int kAhead = 1;  // a lane keeps its group's steps from entry to entry
  using Row = WideRow<kPer>;
  KiviCache<Code> cache;
  KiviResidual<T> residual;
  std::int64_t base = 0, first_group = 0;
  std::int64_t n_keys = 0, n_values = 0;  // packed entries
  std::int64_t whole = 0;                 // first entry of the row in the residual's memory
  std::int64_t group = -1;                // group whose steps and zeros this lane holds
  kv::Vec16<kv::Half> step{}, zero{};

  KVSIM_DEVICE void begin(const DecodeShape& shape, std::int64_t sequence, std::int64_t kv_head,
                          std::int64_t entries, std::int64_t, std::int64_t) {
    const std::int64_t row = sequence * shape.n_kv_heads + kv_head;
    n_keys = kernels::packed_keys(entries, residual.length);
    n_values = kernels::packed_values(entries, residual.length);
    whole = row * residual.length;
    base = row * shape.capacity;
    first_group = row * ceil_div(shape.capacity, kGroup);
  }
  KVSIM_DEVICE static std::uint32_t code(std::uint32_t word, int j) {
    constexpr std::uint32_t kLevels = (1U << sizeof(Code)) - 1U;
    return (word >> (static_cast<unsigned>(j) * sizeof(Code))) & kLevels;
  }
  KVSIM_DEVICE Row read_whole(Span<const T> from, std::int64_t entry, int part) const {
    Row row;
    constexpr int kVector = kv::Vec16<T>::kSize;  // a lane's part takes two accesses in fp32
    KVSIM_UNROLL
    for (int first = 0; first < kPer; first += kVector) {
      const auto raw = kv::load16(from, (whole + entry) * kHeadDim + part * kPer + first);
      KVSIM_UNROLL
      for (int j = 0; j < kVector; ++j) row.x[first + j] = kv::to_float(raw.v[j]);
    }
    return row;
  }
  KVSIM_DEVICE Row key(std::int64_t entry, int part) {
    if (entry >= n_keys) return read_whole(residual.keys, entry - n_keys, part);
    if (const std::int64_t of = entry / kGroup; of != group) {
      group = of;
      step = kv::load16(cache.key_steps, (first_group + group) * kHeadDim + part * kPer);
      zero = kv::load16(cache.key_zeros, (first_group + group) * kHeadDim + part * kPer);
    }
    const std::uint32_t word = kv::load(cache.key_codes, (base + entry) * (kHeadDim / kPer) + part);
    Row row;
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) {
      row.x[j] =
          kv::to_float(zero.v[j]) + kv::to_float(step.v[j]) * static_cast<float>(code(word, j));
    }
    return row;
  }
  KVSIM_DEVICE Row value(std::int64_t entry, int part) {
    if (entry >= n_values) return read_whole(residual.values, entry - n_values, part);
    const std::int64_t of = (base + entry) * (kHeadDim / kGroup) + part / (kGroup / kPer);
    const float width = kv::to_float(kv::load(cache.value_steps, of));
    const float low = kv::to_float(kv::load(cache.value_zeros, of));
    const std::uint32_t word =
        kv::load(cache.value_codes, (base + entry) * (kHeadDim / kPer) + part);
    Row row;
    KVSIM_UNROLL
    for (int j = 0; j < kPer; ++j) row.x[j] = low + width * static_cast<float>(code(word, j));
    return row;
  }
};

template <class T, int kHeadDim, class Cache>
void launch_one_or_eight(Stream stream, const DecodeShape& shape, const Cache& cache,
                         const DecodeAttention<T>& a) {
  if (shape.group() == 1) {
    launch_split<T, kHeadDim, 1>(stream, shape, cache, a, 0);
  } else {
    launch_split<T, kHeadDim, 8>(stream, shape, cache, a, 0);
  }
}

template <class T>
void check_quantised(const DecodeShape& shape, const DecodeAttention<T>& a, std::int64_t n_keys,
                     std::int64_t n_values) {
  check_common(shape, a);
  KVSIM_LAUNCH_CHECK(shape.page == 0, "a quantised cache is contiguous");
  const std::int64_t words =
      shape.caches() * shape.n_kv_heads * shape.capacity * shape.head_dim / kWidth;
  KVSIM_LAUNCH_CHECK(n_keys >= words && n_values >= words,
                     "codes are [batch, n_kv_heads, capacity, head_dim / 8]");
}

}  // namespace

template <class T, class Code>
void decode_attention_kivi(Stream stream, const DecodeShape& shape, const KiviCache<Code>& cache,
                           const KiviResidual<T>& residual, const DecodeAttention<T>& a) {
  check_quantised(shape, a, cache.key_codes.size, cache.value_codes.size);
  KVSIM_LAUNCH_CHECK(residual.length >= 0 && residual.length % kGroup == 0,
                     "the residual's length is a multiple of the group");
  const std::int64_t whole = shape.caches() * shape.n_kv_heads * residual.length * shape.head_dim;
  KVSIM_LAUNCH_CHECK(residual.keys.size >= whole && residual.values.size >= whole,
                     "the residual's keys and values are [rows, length, head_dim]");
  const std::int64_t rows = shape.caches() * shape.n_kv_heads;
  const std::int64_t of_keys = rows * ceil_div(shape.capacity, kGroup) * shape.head_dim;
  const std::int64_t of_values = rows * shape.capacity * (shape.head_dim / kGroup);
  KVSIM_LAUNCH_CHECK(cache.key_steps.size >= of_keys && cache.key_zeros.size >= of_keys,
                     "steps and zeros of keys are [rows, ceil(capacity / 32), head_dim]");
  KVSIM_LAUNCH_CHECK(cache.value_steps.size >= of_values && cache.value_zeros.size >= of_values,
                     "steps and zeros of values are [rows, capacity, head_dim / 32]");
  if (shape.head_dim == 64) {
    launch_one_or_eight<T, 64>(stream, shape, KiviRows<T, Code, 64>{cache, residual}, a);
  } else {
    launch_one_or_eight<T, 128>(stream, shape, KiviRows<T, Code, 128>{cache, residual}, a);
  }
  launch_combine(stream, shape, a);
}

#define KVSIM_INSTANTIATE(T)                                                                       \
  template void decode_attention_kivi(Stream, const DecodeShape&, const KiviCache<std::uint16_t>&, \
                                      const KiviResidual<T>&, const DecodeAttention<T>&);          \
  template void decode_attention_kivi(Stream, const DecodeShape&, const KiviCache<std::uint32_t>&, \
                                      const KiviResidual<T>&, const DecodeAttention<T>&);
KVSIM_INSTANTIATE(float)
KVSIM_INSTANTIATE(kv::Half)
KVSIM_INSTANTIATE(kv::BFloat16)
#undef KVSIM_INSTANTIATE

}  // namespace kvsim::KVSIM_EXECUTOR
