#include "kernels/suite/cases/format_sides.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

template <class T, class S>
void encode_case(Bench& bench, const QuantShape& shape) {
  bench.add(words(shape, Stored<T>::kName), S::name(), [&](Case& c) {
    auto x = c.draw<T>(shape.rows * shape.capacity * shape.head_dim, -3, 3);
    if (shape.entries > 1) {  // a row of zeros
      std::fill_n(x.begin() + shape.head_dim, shape.head_dim, 0.0F);
    }
    const auto from = c.numbers<T>("from", x).span();
    const S side = side_memory<S>(c, shape, "codes", "scales");
    c.run(kernels::encode_traffic(shape, sizeof(T), entry_bytes<S>(shape.head_dim)),
          [=](Stream s) { side.template encode<T>(s, shape, from); });
    if (c.timed_alone()) return;
    std::vector<float> got;
    constexpr std::int64_t kWord = static_cast<std::int64_t>(sizeof(typename S::Word)) * 8;
    const std::int64_t row_words = shape.head_dim * S::kBits / kWord;
    const std::int64_t row_scales = S::n_scales(shape.head_dim);
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const auto row = side.read(
          shape, side.words.download(r * shape.capacity * row_words, shape.entries * row_words),
          side.steps.download(r * shape.capacity * row_scales, shape.entries * row_scales));
      got.insert(got.end(), row.begin(), row.end());
    }
    c.compare_exactly("what is read", got,
                      S::template expected<T>(shape.head_dim, only_entries(shape, x)));
  });
}

/// Adds one case for each row size and element type.
template <class S>
void encode_cases(Bench& bench) {
  const auto shape = [](std::int64_t entries, std::int64_t head_dim) {
    return QuantShape{.rows = 3,
                      .entries = entries,
                      .capacity = kernels::padded_entries(entries) + 8,
                      .head_dim = head_dim};
  };
  encode_case<float, S>(bench, shape(1, 64));
  encode_case<float, S>(bench, shape(31, 128));
  encode_case<kv::Half, S>(bench, shape(257, 64));
  encode_case<kv::BFloat16, S>(bench, shape(31, 128));
  if (!bench.large()) return;
  encode_case<kv::BFloat16, S>(bench,
                               {.rows = 64, .entries = 4096, .capacity = 4096, .head_dim = 128});
}

template <class T>
void rotate_case(Bench& bench, std::int64_t rows, std::int64_t head_dim) {
  bench.add(text(rows) + " rows of " + text(head_dim), Stored<T>::kName, [&](Case& c) {
    const float factor = 1 / std::sqrt(static_cast<float>(head_dim));
    const auto x = c.draw<T>(rows * head_dim);
    const auto from = c.numbers<T>("from", x).span();
    auto& to = c.output<T>("to", rows * head_dim);
    c.run(kernels::rotate_rows_traffic(rows, head_dim, sizeof(T)),
          [=, out = to.span()](Stream s) { rotate_rows<T>(s, rows, head_dim, factor, from, out); });
    if (c.timed_alone()) return;
    c.compare("to", values_of(to.download(0, rows * head_dim)),
              kernels::rotate_reference(head_dim, static_cast<double>(factor), x),
              Stored<T>::kRounding + 2e-6);
  });
}

}  // namespace

void quantise_token_head_cases(Bench& bench) {
  encode_cases<TokenHeadSide<ByteCode::kInt8>>(bench);
  encode_cases<TokenHeadSide<ByteCode::kE4m3>>(bench);
}
void quantise_int4_cases(Bench& bench) { encode_cases<Int4Side>(bench); }
void quantise_nvfp4_cases(Bench& bench) {
  encode_cases<Nvfp4Side<false>>(bench);
  encode_cases<Nvfp4Side<true>>(bench);
}
void quantise_turboquant_cases(Bench& bench) {
  encode_cases<TurboKeySide<3>>(bench);
  encode_cases<TurboKeySide<4>>(bench);
  encode_cases<TurboKeySide<8>>(bench);
  encode_cases<TurboValueSide<3>>(bench);
  encode_cases<TurboValueSide<4>>(bench);
}
void rotate_rows_cases(Bench& bench) {
  rotate_case<float>(bench, 3, 64);
  rotate_case<kv::Half>(bench, 33, 128);
  rotate_case<kv::BFloat16>(bench, 1, 64);
  if (bench.large()) rotate_case<kv::BFloat16>(bench, 65'536, 128);
}
}  // namespace kvsim::KVSIM_EXECUTOR
