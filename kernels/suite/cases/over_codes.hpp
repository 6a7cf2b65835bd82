#pragma once

// Shared parts of the cases of attention over codes: arguments, comparison, shapes and pages.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/decode/decode_attention.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/cases.hpp"

namespace kvsim::KVSIM_EXECUTOR {

using kernels::DecodeShape;
using kernels::QuantShape;

/// Pages of every sequence, in shuffled order.
inline std::vector<std::int32_t> page_table(const DecodeShape& s) {
  const std::int64_t n = s.caches() * s.pages_per_sequence;
  std::vector<std::int32_t> table;
  for (std::int64_t i = 0; i < n; ++i) table.push_back(static_cast<std::int32_t>((n - 1 - i)));
  for (std::size_t i = 0; i + 2 < table.size(); i += 3) std::swap(table[i], table[i + 2]);
  return table;
}

/// [batch, n_kv_heads, capacity, head_dim] as stored in pages; unfilled slots are `rest`.
inline std::vector<float> in_pages(const DecodeShape& s, const std::vector<std::int32_t>& table,
                                   const std::vector<float>& rows, float rest) {
  std::vector<float> result(table.size() * at(s.n_kv_heads * s.page * s.head_dim), rest);
  for (std::int64_t b = 0; b < s.caches(); ++b) {
    for (std::int64_t h = 0; h < s.n_kv_heads; ++h) {
      for (std::int64_t e = 0; e < s.entries; ++e) {
        const std::int64_t page = table[at(b * s.pages_per_sequence + e / s.page)];
        const auto from = rows.begin() + ((b * s.n_kv_heads + h) * s.capacity + e) * s.head_dim;
        std::copy(from, from + s.head_dim,
                  result.begin() + ((page * s.n_kv_heads + h) * s.page + e % s.page) * s.head_dim);
      }
    }
  }
  return result;
}

inline std::string words(const QuantShape& s, const char* of) {
  return text(s.rows) + " rows of " + text(s.entries) + "x" + text(s.head_dim) + ", from " + of;
}

inline std::vector<float> only_entries(const QuantShape& s, const std::vector<float>& all) {
  std::vector<float> result;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto first = all.begin() + r * s.capacity * s.head_dim;
    result.insert(result.end(), first, first + s.entries * s.head_dim);
  }
  return result;
}

/// Arguments of attention besides queries, keys and values.
struct AttentionExtras {
  bool bias = false, logits = false;
  std::int64_t residual = 0;            // KIVI's
  std::vector<std::int32_t> lengths{};  // of a ragged batch
};

/// The outputs and scratch of one attention.
template <class T>
struct Attention {
  Array<T>& out;
  Array<float>&log_sum, &logits;
  std::vector<float> bias;
  DecodeAttention<T> arguments;
};
template <class T>
Attention<T> attention_of(Case& c, const DecodeShape& s, const std::vector<float>& q,
                          const AttentionExtras& wanted) {
  const std::int64_t rows = s.batch * s.n_heads;
  auto& out = c.output<T>("out", rows * s.head_dim);
  auto& log_sum = c.output<float>("log_sum", rows);
  auto& logits = c.output<float>("logits", wanted.logits ? rows * s.capacity : 0);
  const auto bias =
      wanted.bias ? c.draw(s.batch * s.n_kv_heads * s.capacity, -3, 3) : std::vector<float>{};
  return {out, log_sum, logits, bias,
          DecodeAttention<T>{
              .q = c.numbers<T>("q", q).span(),
              .keys = {},
              .values = {},
              .bias = c.numbers<float>("bias", bias).span(),
              .scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim)),
              .out = out.span(),
              .logits = logits.span(),
              .log_sum = log_sum.span(),
              .partial = c.output<float>("partial", rows * s.splits() * s.head_dim).span(),
              .partial_max = c.output<float>("partial_max", rows * s.splits()).span(),
              .partial_sum = c.output<float>("partial_sum", rows * s.splits()).span(),
              .pages =
                  c.input("pages", s.page > 0 ? page_table(s) : std::vector<std::int32_t>{}).span(),
              .lengths = c.input("lengths", wanted.lengths).span()}};
}

/// Compares with attention over decoded keys and values, [rows, entries, head_dim] each.
template <class T>
void compare_attention(Case& c, DecodeShape shape, const std::vector<float>& q,
                       const std::vector<float>& keys, const std::vector<float>& values,
                       const Attention<T>& got, const AttentionExtras& wanted) {
  const std::int64_t capacity = shape.capacity;
  std::vector<float> bias;  // of the existing entries
  for (std::int64_t first = 0; first < std::ssize(got.bias); first += capacity) {
    const auto row = got.bias.begin() + first;
    bias.insert(bias.end(), row, row + shape.entries);
  }
  shape.capacity = shape.entries;
  const auto scale = static_cast<double>(got.arguments.scale);
  const auto expected =
      wanted.lengths.empty()
          ? kernels::decode_reference(shape, scale, q, keys, values, bias)
          : kernels::ragged_reference(shape, scale, q, keys, values, bias, wanted.lengths, {});
  c.compare("out", values_of(got.out.download(0, shape.batch * shape.n_heads * shape.head_dim)),
            expected.out, Stored<T>::kRounding + 4e-6);
  c.compare("log_sum", got.log_sum.download(0, shape.batch * shape.n_heads), expected.log_sum,
            4e-6);
  if (wanted.logits) {
    c.compare("logits",
              download_rows(got.logits, shape.batch * shape.n_heads, capacity, shape.entries),
              expected.logits, 6e-6);
  }
}

inline std::string words(const DecodeShape& s, const char* of, const AttentionExtras& wanted) {
  return "heads " + text(s.n_heads) + "/" + text(s.n_kv_heads) + "x" + text(s.head_dim) + ", " +
         text(s.entries) + " entries, " + of + (s.page > 0 ? ", pages of " + text(s.page) : "") +
         (wanted.residual > 0 ? ", residual " + text(wanted.residual) : "") +
         (wanted.bias ? ", bias" : "") + (wanted.logits ? ", logits" : "") +
         (wanted.lengths.empty() ? "" : ", ragged");
}

/// Calls add(shape) for each shape of attention, and add_large for shapes worth timing.
template <class Add, class AddLarge>
void for_attention(const Bench& bench, Add add, AddLarge add_large) {
  for (const std::int64_t entries : {1, 31, 257}) {
    for (const std::int64_t heads : {2, 10}) {  // one query head per stored head, and five
      add(DecodeShape{.batch = 2,
                      .n_heads = heads,
                      .n_kv_heads = 2,
                      .head_dim = entries == 31 ? 128 : 64,
                      .entries = entries,
                      .capacity = entries + 3,
                      .entries_per_split = 128});
    }
  }
  if (!bench.large()) return;
  add_large(DecodeShape{.batch = 8,
                        .n_heads = 32,
                        .n_kv_heads = 32,
                        .head_dim = 128,
                        .entries = 4096,
                        .capacity = 4096,
                        .entries_per_split = 512});
}

}  // namespace kvsim::KVSIM_EXECUTOR
