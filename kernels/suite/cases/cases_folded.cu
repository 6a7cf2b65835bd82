#include "kernels/decode/decode_folded.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/over_codes.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::DecodeShape;

/// Folded rows of one side, and the values that a cache reads for them.
template <class T>
struct Folded {
  FoldedRows<T> rows;
  std::vector<float> restored;  // [batch, n_kv_heads, capacity, head_dim]
  std::int64_t retained = 0;    // among the entries attended to
};

/// Retains every seventh entry, starting at `first`.
template <class T>
Folded<T> fold(Case& c, const DecodeShape& s, std::int64_t first) {
  const std::int64_t entries = s.batch * s.n_kv_heads * s.capacity;
  const auto directions = c.draw<T>(entries * s.head_dim, -0.5, 0.5);
  const auto norms = c.draw(entries, 1, 4);
  const auto own = c.draw<T>((entries / 7 + 1) * s.head_dim, -2, 2);
  Folded<T> folded;
  std::vector<std::int32_t> retained_at;
  std::int32_t next = 0;
  for (std::int64_t e = 0; e < entries; ++e) {
    const bool whole = e % 7 == first;
    if (whole && e % s.capacity < s.entries) ++folded.retained;
    for (std::int64_t j = 0; j < s.head_dim; ++j) {
      folded.restored.push_back(whole ? own[at(next * s.head_dim + j)]
                                      : norms[at(e)] * directions[at(e * s.head_dim + j)]);
    }
    retained_at.push_back(whole ? next++ : -1);
  }
  folded.rows = {c.numbers<T>("directions", directions).span(),
                 c.numbers<float>("norms", norms).span(),
                 c.input("retained_at", retained_at).span(), c.numbers<T>("retained", own).span()};
  return folded;
}

template <class T>
void folded_case(Bench& bench, const DecodeShape& s) {
  bench.add("heads " + text(s.n_heads) + "/" + text(s.n_kv_heads) + "x" + text(s.head_dim) + ", " +
                text(s.entries) + " entries",
            Stored<T>::kName, [&](Case& c) {
              const std::int64_t rows = s.batch * s.n_heads;
              const auto q = c.draw<T>(rows * s.head_dim, -2, 2);
              const Folded<T> keys = fold<T>(c, s, 0);
              const Folded<T> values = fold<T>(c, s, 3);
              auto& out = c.output<T>("out", rows * s.head_dim);
              const DecodeAttention<T> arguments{
                  .q = c.numbers<T>("q", q).span(),
                  .keys = {},
                  .values = {},
                  .bias = {},
                  .scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim)),
                  .out = out.span(),
                  .logits = {},
                  .log_sum = {},
                  .partial = c.output<float>("partial", rows * s.splits() * s.head_dim).span(),
                  .partial_max = c.output<float>("partial_max", rows * s.splits()).span(),
                  .partial_sum = c.output<float>("partial_sum", rows * s.splits()).span()};
              c.run(decode_folded_traffic(s, keys.retained + values.retained, sizeof(T)),
                    [=, k = keys.rows, v = values.rows](Stream stream) {
                      decode_attention_folded<T>(stream, s, k, v, arguments);
                    });
              if (c.timed_alone()) return;
              const auto expected = kernels::decode_reference(
                  s, static_cast<double>(arguments.scale), q, keys.restored, values.restored, {});
              c.compare("out", values_of(out.download(0, rows * s.head_dim)), expected.out,
                        Stored<T>::kRounding + 4e-6);
            });
}

}  // namespace

void decode_folded_cases(Bench& bench) {
  for_attention(
      bench,
      [&](const DecodeShape& shape) {
        folded_case<float>(bench, shape);
        folded_case<kv::Half>(bench, shape);
        folded_case<kv::BFloat16>(bench, shape);
      },
      [&](const DecodeShape& shape) { folded_case<kv::BFloat16>(bench, shape); });
}

}  // namespace kvsim::KVSIM_EXECUTOR
