#include "kernels/quantise/decode_quantised.hpp"
#include "kernels/quantise/quantise.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/over_codes.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::DecodeShape;
using kernels::kQuantGroup;
using kernels::QuantShape;

template <class Code>
constexpr std::int64_t kBits = static_cast<std::int64_t>(sizeof(Code));
template <class Code>
std::string dtype() {
  return sizeof(Code) == 8 ? "fp8_e4m3" : "int" + text(kBits<Code>);
}

/// Code `channel` of `codes` as packed in words of eight.
template <class Code>
std::int32_t code_at(const std::vector<Code>& codes, std::int64_t channel) {
  const auto word = static_cast<std::uint64_t>(codes[at(channel / 8)]);
  const std::uint64_t mask = (std::uint64_t{1} << kBits<Code>)-1U;
  return static_cast<std::int32_t>((word >> static_cast<std::uint64_t>(channel % 8 * kBits<Code>)) &
                                   mask);
}

/// A cache that was quantised by the kernels, filled with `entries` of `capacity` entries.
template <class Code>
struct Packed {
  Array<Code>&keys, &values;
  Array<kv::Half>&key_steps, &key_zeros, &value_steps, &value_zeros;
};

template <class Code>
Packed<Code> pack_memory(Case& c, const QuantShape& s) {
  const std::int64_t codes = s.rows * s.capacity * s.head_dim / 8;
  const std::int64_t of_keys = s.rows * kernels::ceil_div(s.capacity, kQuantGroup) * s.head_dim;
  const std::int64_t of_values = s.rows * s.capacity * s.head_dim / kQuantGroup;
  return {
      c.output<Code>("key codes", codes),           c.output<Code>("value codes", codes),
      c.output<kv::Half>("key steps", of_keys),     c.output<kv::Half>("key zeros", of_keys),
      c.output<kv::Half>("value steps", of_values), c.output<kv::Half>("value zeros", of_values)};
}

/// The dequantised cache: zero + step * code of every element, [rows, entries, head_dim].
template <class Code>
std::vector<float> read_packed(const QuantShape& s, const Array<Code>& codes,
                               const Array<kv::Half>& steps, const Array<kv::Half>& zeros,
                               bool by_channel) {
  std::vector<float> result;
  const std::int64_t groups = kernels::ceil_div(s.capacity, kQuantGroup);
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto row = codes.download(r * s.capacity * s.head_dim / 8, s.entries * s.head_dim / 8);
    const std::int64_t first =
        by_channel ? r * groups * s.head_dim : r * s.capacity * s.head_dim / kQuantGroup;
    const std::int64_t count = by_channel ? kernels::ceil_div(s.entries, kQuantGroup) * s.head_dim
                                          : s.entries * s.head_dim / kQuantGroup;
    const auto step = values_of(steps.download(first, count));
    const auto zero = values_of(zeros.download(first, count));
    for (std::int64_t i = 0; i < s.entries * s.head_dim; ++i) {
      const std::int64_t group =
          by_channel ? i / s.head_dim / kQuantGroup * s.head_dim + i % s.head_dim : i / kQuantGroup;
      result.push_back(kernels::dequantised(code_at(row, i), step[at(group)], zero[at(group)]));
    }
  }
  return result;
}

template <class T, class Code>
void quantise_case(Bench& bench, const QuantShape& shape, bool keys) {
  bench.add(words(shape, Stored<T>::kName), dtype<Code>().c_str(), [&](Case& c) {
    const auto x = c.draw<T>(shape.rows * shape.capacity * shape.head_dim, -3, 3);
    const auto from = c.numbers<T>("from", x).span();
    const Packed<Code> packed = pack_memory<Code>(c, shape);
    if (keys) {
      c.run(quantise_keys_traffic(shape, sizeof(T), kBits<Code>),
            [=, codes = packed.keys.span(), steps = packed.key_steps.span(),
             zeros = packed.key_zeros.span()](Stream s) {
              kivi_quantise_keys<T, Code>(s, shape, from, codes, steps, zeros);
            });
    } else {
      c.run(quantise_values_traffic(shape, sizeof(T), kBits<Code>),
            [=, codes = packed.values.span(), steps = packed.value_steps.span(),
             zeros = packed.value_zeros.span()](Stream s) {
              kivi_quantise_values<T, Code>(s, shape, from, codes, steps, zeros);
            });
    }
    const auto expected = kernels::kivi_reference(shape, kBits<Code>, keys, only_entries(shape, x));
    const auto got =
        keys ? read_packed(shape, packed.keys, packed.key_steps, packed.key_zeros, true)
             : read_packed(shape, packed.values, packed.value_steps, packed.value_zeros, false);
    c.compare_exactly("what is read", got, expected);
  });
}

template <class T>
void fp8_case(Bench& bench, const QuantShape& shape) {
  bench.add(words(shape, Stored<T>::kName), "fp8_e4m3", [&](Case& c) {
    constexpr float kScale = 0.0078125F;  // the next power of two above 3 / 448
    auto x = c.draw<T>(shape.rows * shape.capacity * shape.head_dim, -3, 3);
    x[0] = 4;         // saturates
    x[1] = 0x1p-14F;  // subnormal
    const auto from = c.numbers<T>("from", x).span();
    auto& codes =
        c.output<std::uint64_t>("codes", shape.rows * shape.capacity * shape.head_dim / 8);
    c.run(quantise_fp8_traffic(shape, sizeof(T)),
          [=, to = codes.span()](Stream s) { quantise_fp8<T>(s, shape, kScale, from, to); });
    std::vector<float> got;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const auto row = codes.download(r * shape.capacity * shape.head_dim / 8,
                                      shape.entries * shape.head_dim / 8);
      for (std::int64_t i = 0; i < shape.entries * shape.head_dim; ++i) {
        got.push_back(kScale * kernels::fp8_value(static_cast<std::uint32_t>(code_at(row, i))));
      }
    }
    c.compare_exactly("what is read", got, kernels::fp8_reference(kScale, only_entries(shape, x)));
  });
}

/// Numbers of entries, packed keys and packed values in one row of a KIVI cache.
struct KiviRow {
  std::int64_t entries = 0, keys = 0, values = 0;
};
std::vector<KiviRow> kivi_rows(const DecodeShape& s, const AttentionExtras& wanted) {
  std::vector<KiviRow> rows;
  for (std::int64_t r = 0; r < s.batch * s.n_kv_heads; ++r) {
    const std::int64_t n =
        wanted.lengths.empty() ? s.entries : wanted.lengths[at(r / s.n_kv_heads)];
    rows.push_back(
        {n, kernels::packed_keys(n, wanted.residual), kernels::packed_values(n, wanted.residual)});
  }
  return rows;
}

/// The full-precision entries of each row, starting at its entry `packed`, in memory of `length`
/// entries; NaN elsewhere.
std::vector<float> residual_rows(const QuantShape& s, const std::vector<float>& all,
                                 const std::vector<KiviRow>& rows, std::int64_t KiviRow::*packed,
                                 std::int64_t length) {
  std::vector<float> result(at(s.rows * length * s.head_dim), std::nanf(""));
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const KiviRow& row = rows[at(r)];
    const auto from = all.begin() + (r * s.capacity + row.*packed) * s.head_dim;
    std::copy(from, from + (row.entries - row.*packed) * s.head_dim,
              result.begin() + r * length * s.head_dim);
  }
  return result;
}

/// The values read back for `all` if each row's first `packed` entries are quantised, [rows,
/// entries, head_dim].
std::vector<float> partly_packed(const QuantShape& s, std::int64_t bits, bool keys,
                                 const std::vector<float>& all, const std::vector<KiviRow>& rows,
                                 std::int64_t KiviRow::*packed) {
  std::vector<float> result = only_entries(s, all);
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const QuantShape first{
        .rows = 1, .entries = rows[at(r)].*packed, .capacity = s.entries, .head_dim = s.head_dim};
    if (first.entries == 0) continue;
    const auto row =
        std::span{result}.subspan(at(r * s.entries * s.head_dim), at(first.entries * s.head_dim));
    const auto rounded = kernels::kivi_reference(first, bits, keys, row);
    std::copy(rounded.begin(), rounded.end(), row.begin());
  }
  return result;
}

/// `n` elements of a span, starting at `first`.
template <class T>
Span<T> part_of(Span<T> whole, std::int64_t first, std::int64_t n) {
  whole.data += first;
  whole.size = n;
  return whole;
}

/// Quantises each row's packed entries; rows without any are unchanged.
template <class T, class Code>
void pack_rows(Stream stream, const QuantShape& s, const std::vector<KiviRow>& rows,
               Span<const T> keys, Span<const T> values, const Packed<Code>& packed) {
  const std::int64_t n = s.capacity * s.head_dim;
  const std::int64_t groups = kernels::ceil_div(s.capacity, kQuantGroup) * s.head_dim;
  const auto row_of = [](auto span, std::int64_t r, std::int64_t size) {
    return part_of(span, r * size, size);
  };
  for (std::int64_t r = 0; r < s.rows; ++r) {
    QuantShape one{
        .rows = 1, .entries = rows[at(r)].keys, .capacity = s.capacity, .head_dim = s.head_dim};
    if (one.entries > 0) {
      kivi_quantise_keys<T, Code>(
          stream, one, row_of(keys, r, n), row_of(packed.keys.span(), r, n / 8),
          row_of(packed.key_steps.span(), r, groups), row_of(packed.key_zeros.span(), r, groups));
    }
    one.entries = rows[at(r)].values;
    if (one.entries > 0) {
      kivi_quantise_values<T, Code>(stream, one, row_of(values, r, n),
                                    row_of(packed.values.span(), r, n / 8),
                                    row_of(packed.value_steps.span(), r, n / kQuantGroup),
                                    row_of(packed.value_zeros.span(), r, n / kQuantGroup));
    }
  }
}

template <class T, class Code>
void kivi_case(Bench& bench, const DecodeShape& shape, const AttentionExtras& wanted = {}) {
  bench.add(words(shape, Stored<T>::kName, wanted), dtype<Code>().c_str(), [&](Case& c) {
    const QuantShape quant{.rows = shape.batch * shape.n_kv_heads,
                           .entries = shape.entries,
                           .capacity = shape.capacity,
                           .head_dim = shape.head_dim};
    const std::int64_t elements = quant.rows * quant.capacity * quant.head_dim;
    const auto keys = c.draw<T>(elements, -2, 2);
    const auto values = c.draw<T>(elements, -2, 2);
    const auto q = c.draw<T>(shape.batch * shape.n_heads * shape.head_dim, -2, 2);
    const Packed<Code> packed = pack_memory<Code>(c, quant);
    const std::vector<KiviRow> rows = kivi_rows(shape, wanted);
    pack_rows<T, Code>(c.stream(), quant, rows, c.numbers<T>("keys", keys).span(),
                       c.numbers<T>("values", values).span(), packed);
    const auto whole_keys = residual_rows(quant, keys, rows, &KiviRow::keys, wanted.residual);
    const auto whole_values = residual_rows(quant, values, rows, &KiviRow::values, wanted.residual);
    const KiviResidual<T> residual{c.numbers<T>("residual keys", whole_keys).span(),
                                   c.numbers<T>("residual values", whole_values).span(),
                                   wanted.residual};
    const KiviCache<Code> cache{packed.keys.span(),        packed.values.span(),
                                packed.key_steps.span(),   packed.key_zeros.span(),
                                packed.value_steps.span(), packed.value_zeros.span()};
    const Attention<T> got = attention_of<T>(c, shape, q, wanted);
    const auto traffic = [&](const DecodeShape& s) {
      return decode_kivi_traffic(s, kBits<Code>, sizeof(T), wanted.residual, wanted.bias,
                                 wanted.logits, true);
    };
    c.run(wanted.lengths.empty()
              ? traffic(shape)
              : ragged_traffic(shape, wanted.lengths, false, sizeof(T), true, traffic),
          [=, arguments = got.arguments](Stream s) {
            decode_attention_kivi<T, Code>(s, shape, cache, residual, arguments);
          });
    if (c.timed_alone()) return;
    compare_attention(
        c, shape, q, partly_packed(quant, kBits<Code>, true, keys, rows, &KiviRow::keys),
        partly_packed(quant, kBits<Code>, false, values, rows, &KiviRow::values), got, wanted);
  });
}

template <class T>
void fp8_attention_case(Bench& bench, const DecodeShape& shape,
                        const AttentionExtras& wanted = {}) {
  bench.add(words(shape, Stored<T>::kName, wanted), "fp8_e4m3", [&](Case& c) {
    const QuantShape quant{.rows = shape.batch * shape.n_kv_heads,
                           .entries = shape.entries,
                           .capacity = shape.capacity,
                           .head_dim = shape.head_dim};
    constexpr float kKeyScale = 0.005F;
    constexpr float kValueScale = 0.0078125F;
    const std::int64_t elements = quant.rows * quant.capacity * quant.head_dim;
    const auto keys = c.draw<T>(elements, -2, 2);
    const auto values = c.draw<T>(elements, -2, 2);
    const auto q = c.draw<T>(shape.batch * shape.n_heads * shape.head_dim, -2, 2);
    auto& key_codes = c.output<std::uint64_t>("key codes", elements / 8);
    auto& value_codes = c.output<std::uint64_t>("value codes", elements / 8);
    const Stream stream = c.stream();
    quantise_fp8<T>(stream, quant, kKeyScale, c.numbers<T>("keys", keys).span(), key_codes.span());
    quantise_fp8<T>(stream, quant, kValueScale, c.numbers<T>("values", values).span(),
                    value_codes.span());
    const Fp8Cache cache{key_codes.span(), value_codes.span(), kKeyScale, kValueScale};
    const Attention<T> got = attention_of<T>(c, shape, q, wanted);
    const auto traffic = [&](const DecodeShape& s) {
      return decode_fp8_traffic(s, sizeof(T), wanted.bias, wanted.logits, true);
    };
    c.run(wanted.lengths.empty()
              ? traffic(shape)
              : ragged_traffic(shape, wanted.lengths, false, sizeof(T), true, traffic),
          [=, arguments = got.arguments](Stream s) {
            decode_attention_fp8<T>(s, shape, cache, arguments);
          });
    if (c.timed_alone()) return;
    compare_attention(c, shape, q, kernels::fp8_reference(kKeyScale, only_entries(quant, keys)),
                      kernels::fp8_reference(kValueScale, only_entries(quant, values)), got,
                      wanted);
  });
}

template <class Code>
void quantise_cases(Bench& bench, bool keys) {
  for (const std::int64_t entries : {1, 31, 257}) {
    const QuantShape shape{.rows = 3, .entries = entries, .capacity = entries + 3, .head_dim = 128};
    quantise_case<float, Code>(bench, shape, keys);
    quantise_case<kv::Half, Code>(bench, shape, keys);
    quantise_case<kv::BFloat16, Code>(bench, shape, keys);
  }
}

}  // namespace

void kivi_quantise_keys_cases(Bench& bench) {
  quantise_cases<std::uint16_t>(bench, true);
  quantise_cases<std::uint32_t>(bench, true);
}
void kivi_quantise_values_cases(Bench& bench) {
  quantise_cases<std::uint16_t>(bench, false);
  quantise_cases<std::uint32_t>(bench, false);
}
void quantise_fp8_cases(Bench& bench) {
  for (const std::int64_t entries : {1, 31, 257}) {
    const QuantShape shape{.rows = 3, .entries = entries, .capacity = entries + 3, .head_dim = 64};
    fp8_case<float>(bench, shape);
    fp8_case<kv::Half>(bench, shape);
    fp8_case<kv::BFloat16>(bench, shape);
  }
}

void decode_kivi_cases(Bench& bench) {
  const auto small = [](std::int64_t entries) {
    return DecodeShape{.batch = 2,
                       .n_heads = 4,
                       .n_kv_heads = 2,
                       .head_dim = entries > 200 ? 64 : 128,
                       .entries = entries,
                       .capacity = entries + 3,
                       .entries_per_split = 128};
  };
  // All unpacked, the last entry of a run, a run just packed, and several splits, with the bias of
  // merges.
  for (const std::int64_t entries : {1, 31, 32, 64, 97, 257}) {
    kivi_case<kv::Half, std::uint16_t>(bench, small(entries), {.residual = 32});
    kivi_case<kv::BFloat16, std::uint32_t>(bench, small(entries),
                                           {.bias = true, .logits = true, .residual = 64});
  }
  DecodeShape ragged = small(257);
  ragged.batch = 5;
  const std::vector<std::int32_t> lengths{0, 1, 64, 129, 257};
  kivi_case<kv::Half, std::uint16_t>(bench, ragged, {.bias = true, .lengths = lengths});
  kivi_case<kv::BFloat16, std::uint32_t>(bench, ragged, {.lengths = lengths});
  // Each row has a different residual length: none, a partial one, one just packed, and one key
  // more.
  ragged.batch = 8;
  const std::vector<std::int32_t> mixed{0, 1, 31, 32, 33, 64, 129, 257};
  kivi_case<kv::Half, std::uint16_t>(bench, ragged, {.residual = 32, .lengths = mixed});
  kivi_case<kv::BFloat16, std::uint32_t>(bench, ragged,
                                         {.bias = true, .residual = 64, .lengths = mixed});
  kivi_case<float, std::uint16_t>(bench, small(97), {.bias = true, .residual = 32});
  kivi_case<float, std::uint32_t>(bench, ragged, {.residual = 128, .lengths = mixed});
  for_attention(
      bench,
      [&](const DecodeShape& shape) {
        kivi_case<kv::Half, std::uint16_t>(bench, shape);
        kivi_case<kv::Half, std::uint32_t>(bench, shape);
        kivi_case<kv::BFloat16, std::uint16_t>(bench, shape);
        kivi_case<kv::BFloat16, std::uint32_t>(bench, shape);
      },
      [&](const DecodeShape& shape) {
        kivi_case<kv::BFloat16, std::uint16_t>(bench, shape);
        kivi_case<kv::BFloat16, std::uint32_t>(bench, shape);
      });
}
void decode_fp8_cases(Bench& bench) {
  fp8_attention_case<kv::Half>(bench,
                               {.batch = 5,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 64,
                                .entries = 257,
                                .capacity = 260,
                                .entries_per_split = 128},
                               {.bias = true, .lengths = {0, 1, 64, 129, 257}});
  for_attention(
      bench,
      [&](const DecodeShape& shape) {
        fp8_attention_case<float>(bench, shape);
        fp8_attention_case<kv::Half>(bench, shape);
        fp8_attention_case<kv::BFloat16>(bench, shape, {.bias = true, .logits = true});
      },
      [&](const DecodeShape& shape) { fp8_attention_case<kv::BFloat16>(bench, shape); });
}

}  // namespace kvsim::KVSIM_EXECUTOR
