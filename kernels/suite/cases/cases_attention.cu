#include <algorithm>

#include "kernels/decode/decode_attention.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/over_codes.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::DecodeShape;

struct Wanted {
  bool bias = false, logits = false;
  std::vector<std::int32_t> lengths{}, cache_of{};  // of a ragged batch; of a mixed batch
};

std::string attention_words(const DecodeShape& s, const Wanted& wanted) {
  return "batch " + text(s.batch) + ", heads " + text(s.n_heads) + "/" + text(s.n_kv_heads) + "x" +
         text(s.head_dim) + ", " + text(s.entries) + " entries" +
         (s.page > 0 ? ", pages of " + text(s.page) : "") + (wanted.bias ? ", bias" : "") +
         (wanted.logits ? ", logits" : "") +
         (wanted.lengths.empty()    ? ""
          : wanted.cache_of.empty() ? ", ragged"
                                    : ", mixed");
}

/// The last sequence of a large batch, which has the largest offset.
template <class T>
void compare_last(Case& c, const DecodeShape& shape, const Wanted& wanted, double scale,
                  const std::vector<float>& q, const std::vector<float>& keys,
                  const std::vector<float>& values, const Array<T>& out) {
  DecodeShape one = shape;
  one.batch = 1;
  one.page = 0;
  if (!wanted.lengths.empty()) one.entries = wanted.lengths.back();
  const auto last = [](const std::vector<float>& all, std::int64_t n) {
    return std::span{all}.last(at(n));
  };
  const std::int64_t cache = shape.n_kv_heads * shape.capacity * shape.head_dim;
  const std::int64_t row = shape.n_heads * shape.head_dim;
  const auto expected = kernels::decode_reference(one, scale, last(q, row), last(keys, cache),
                                                  last(values, cache), {});
  c.compare("out", values_of(out.download((shape.batch - 1) * row, row)), expected.out,
            Stored<T>::kRounding + 2e-6);
}

template <class T>
void attention_case(Bench& bench, const DecodeShape& shape, const Wanted& wanted) {
  bench.add(attention_words(shape, wanted), Stored<T>::kName, [&](Case& c) {
    const std::int64_t rows = shape.batch * shape.n_heads;
    const std::int64_t cache = shape.caches() * shape.n_kv_heads * shape.capacity;
    const auto q = c.draw<T>(rows * shape.head_dim, -2, 2);
    const auto keys = c.draw<T>(cache * shape.head_dim, -2, 2);
    const auto values = c.draw<T>(cache * shape.head_dim, -2, 2);
    const auto bias = wanted.bias ? c.draw(cache, -3, 3) : std::vector<float>{};
    auto& out = c.output<T>("out", rows * shape.head_dim);
    auto& logits = c.output<float>("logits", wanted.logits ? rows * shape.capacity : 0);
    auto& log_sum = c.output<float>("log_sum", rows);
    const bool paged = shape.page > 0;
    const auto table = paged ? page_table(shape) : std::vector<std::int32_t>{};
    const float nan = std::nanf("");  // beyond a sequence's end, which attention must not read
    const DecodeAttention<T> arguments{
        .q = c.numbers<T>("q", q).span(),
        .keys = c.numbers<T>("keys", paged ? in_pages(shape, table, keys, nan) : keys).span(),
        .values =
            c.numbers<T>("values", paged ? in_pages(shape, table, values, nan) : values).span(),
        .bias = c.numbers<float>("bias", bias).span(),
        .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim)),
        .out = out.span(),
        .logits = logits.span(),
        .log_sum = log_sum.span(),
        .partial = c.output<float>("partial", rows * shape.splits() * shape.head_dim).span(),
        .partial_max = c.output<float>("partial_max", rows * shape.splits()).span(),
        .partial_sum = c.output<float>("partial_sum", rows * shape.splits()).span(),
        .pages = c.input("pages", table).span(),
        .lengths = c.input("lengths", wanted.lengths).span(),
        .cache_of = c.input("cache_of", wanted.cache_of).span()};
    const auto traffic = [&](const DecodeShape& s) {
      return decode_traffic(s, sizeof(T), wanted.bias, wanted.logits, true);
    };
    const bool ragged = !wanted.lengths.empty();
    c.run(ragged ? ragged_traffic(shape, wanted.lengths, !wanted.cache_of.empty(), sizeof(T), true,
                                  traffic)
                 : traffic(shape),
          [=](Stream s) { decode_attention<T>(s, shape, arguments); });
    const auto scale = static_cast<double>(arguments.scale);
    if (c.timed_alone()) return compare_last(c, shape, wanted, scale, q, keys, values, out);
    const auto expected = ragged ? kernels::ragged_reference(shape, scale, q, keys, values, bias,
                                                             wanted.lengths, wanted.cache_of)
                                 : kernels::decode_reference(shape, scale, q, keys, values, bias);
    c.compare("out", values_of(out.download(0, rows * shape.head_dim)), expected.out,
              Stored<T>::kRounding + 2e-6);
    c.compare("log_sum", log_sum.download(0, rows), expected.log_sum, 2e-6);
    if (wanted.logits) {
      c.compare("logits", download_rows(logits, rows, shape.capacity, shape.entries),
                expected.logits, 4e-6);
    }
  });
}

DecodeShape small(std::int64_t entries, std::int64_t heads, std::int64_t kv_heads,
                  std::int64_t head_dim) {
  return {.batch = 2,
          .n_heads = heads,
          .n_kv_heads = kv_heads,
          .head_dim = head_dim,
          .entries = entries,
          .capacity = entries + 3,
          .entries_per_split = 128};
}

template <class T>
void attention_cases(Bench& bench) {
  for (const std::int64_t entries : {1, 31, 257}) {
    attention_case<T>(bench, small(entries, 2, 2, 64), {.logits = true});
    attention_case<T>(bench, small(entries, 8, 1, 64), {.bias = true});
  }
  attention_case<T>(bench, small(31, 6, 2, 128), {});
  // Lengths from 0 up, across the edges of tiles and splits; and the three rows of a prompt chunk,
  // which use the second cache, with three decodes.
  for (const std::int64_t page : {0, 16}) {
    DecodeShape shape = small(257, 8, 2, 64);
    shape.batch = 7;
    shape.page = page;
    shape.pages_per_sequence = page > 0 ? kernels::ceil_div(257, page) : 0;
    attention_case<T>(bench, shape, {.bias = true, .lengths = {0, 1, 63, 64, 128, 129, 257}});
    shape.batch = 6;
    shape.sequences = 4;
    attention_case<T>(bench, shape,
                      {.lengths = {257, 40, 41, 42, 1, 200}, .cache_of = {0, 1, 1, 1, 3, 2}});
  }
}

}  // namespace

void decode_attention_cases(Bench& bench) {
  attention_cases<float>(bench);
  attention_cases<kv::Half>(bench);
  attention_cases<kv::BFloat16>(bench);
  if (!bench.large()) return;
  // A batch with lengths from one entry to all entries, and a uniform batch with the same mean.
  std::vector<std::int32_t> lengths;
  for (std::int32_t i = 0; i < 16; ++i) lengths.push_back(1 + i * 16'383 / 15);
  for (const bool ragged : {false, true}) {
    attention_case<kv::BFloat16>(bench,
                                 {.batch = 16,
                                  .n_heads = 32,
                                  .n_kv_heads = 8,
                                  .head_dim = 128,
                                  .entries = ragged ? 16'384 : 8192,
                                  .capacity = 16'384,
                                  .entries_per_split = 512},
                                 {.lengths = ragged ? lengths : std::vector<std::int32_t>{}});
  }
  for (const std::int64_t kv_heads : {32, 8}) {  // 512 MiB of cache, MHA and groups of four
    const std::int64_t entries = kv_heads == 32 ? 4096 : 16'384;
    attention_case<kv::BFloat16>(bench,
                                 {.batch = 8,
                                  .n_heads = 32,
                                  .n_kv_heads = kv_heads,
                                  .head_dim = 128,
                                  .entries = entries,
                                  .capacity = entries,
                                  .entries_per_split = 512},
                                 {});
  }
}

void paged_attention_cases(Bench& bench) {
  const auto add = [&](auto type) {
    using T = decltype(type);
    for (const std::int64_t entries : {1, 31, 257}) {
      for (const std::int64_t page : {8, 16, 64}) {
        if (page != 16 && entries == 31) continue;
        DecodeShape shape = small(entries, page == 16 ? 8 : 2, 2, 64);
        shape.page = page;
        shape.pages_per_sequence = kernels::ceil_div(entries, page) + 1;
        attention_case<T>(bench, shape, {.bias = page == 16});
      }
    }
  };
  add(float{});
  add(kv::Half{});
  add(kv::BFloat16{});
  if (!bench.large()) return;
  for (const std::int64_t page : {8, 16, 64}) {
    attention_case<kv::BFloat16>(bench,
                                 {.batch = 8,
                                  .n_heads = 32,
                                  .n_kv_heads = 8,
                                  .head_dim = 128,
                                  .entries = 16'384,
                                  .capacity = 16'384,
                                  .entries_per_split = 512,
                                  .page = page,
                                  .pages_per_sequence = 16'384 / page},
                                 {});
  }
}

void score_row_cases(Bench& bench) {
  for (const std::int64_t entries : {1, 31, 257}) {
    const std::int64_t rows = 3;
    const std::int64_t stride = (entries + 3) / 4 * 4 + 4;
    bench.add(text(rows) + " rows of " + text(entries), "fp32", [&](Case& c) {
      const auto logits = c.draw(rows * stride, -5, 5);
      const auto sums = c.draw(rows, 4, 6);
      const auto log_sum = c.numbers<float>("log_sum", sums).span();
      auto& p = c.numbers<float>("rows", logits);
      c.run(kernels::normalise_traffic(rows, entries), [=, to = p.span()](Stream s) {
        normalise_rows(s, rows, entries, stride, log_sum, to);
      });
      std::vector<double> expected;
      for (std::int64_t i = 0; i < rows * entries; ++i) {
        expected.push_back(
            std::exp(static_cast<double>(logits[at(i / entries * stride + i % entries)]) -
                     static_cast<double>(sums[at(i / entries)])));
      }
      c.compare("rows", download_rows(p, rows, stride, entries), expected, 1e-6);
    });
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR
