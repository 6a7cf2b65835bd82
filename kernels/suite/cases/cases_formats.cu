#include "kernels/quantise/decode_formats.hpp"
#include "kernels/suite/cases/format_sides.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::CodeFormat;

// A format: two sides and attention over them.

template <ByteCode kCode>
struct TokenHeadFormat {
  using Key = TokenHeadSide<kCode>;
  using Value = Key;
  static const char* name() { return Key::name(); }
  template <class T>
  static auto attend(const Key& k, const Value& v, const DecodeShape& shape,
                     const DecodeAttention<T>& a) {
    const TokenHeadCache cache{k.words.span(), v.words.span(), k.steps.span(), v.steps.span()};
    return [=](Stream s) { decode_attention_token_head<T, kCode>(s, shape, cache, a); };
  }
};
struct Int4Format {
  using Key = Int4Side;
  using Value = Int4Side;
  static const char* name() { return Key::name(); }
  template <class T>
  static auto attend(const Key& k, const Value& v, const DecodeShape& shape,
                     const DecodeAttention<T>& a) {
    const Int4Cache cache{k.words.span(), v.words.span(), k.steps.span(), v.steps.span()};
    return [=](Stream s) { decode_attention_int4<T>(s, shape, cache, a); };
  }
};
struct Nvfp4Format {
  using Key = Nvfp4Side<false>;
  using Value = Key;
  static const char* name() { return Key::name(); }
  template <class T>
  static auto attend(const Key& k, const Value& v, const DecodeShape& shape,
                     const DecodeAttention<T>& a) {
    const Nvfp4Cache cache{k.words.span(), v.words.span(), k.steps.span(),
                           v.steps.span(), Key::kGlobal,   Key::kGlobal};
    return [=](Stream s) { decode_attention_nvfp4<T>(s, shape, cache, a); };
  }
};
template <int kKeyBits, int kValueBits>
struct TurboFormat {
  using Key = TurboKeySide<kKeyBits>;
  using Value = TurboValueSide<kValueBits>;
  static const char* name() {
    return kKeyBits == 8   ? "tq_k8v4"
           : kKeyBits == 4 ? "tq_4bit"
                           : (kValueBits == 4 ? "tq_k3v4" : "tq_3bit");
  }
  template <class T>
  static auto attend(const Key& k, const Value& v, const DecodeShape& shape,
                     const DecodeAttention<T>& a) {
    const TurboQuantCache cache{k.words.span(), v.words.span(), k.steps.span(), v.steps.span()};
    return
        [=](Stream s) { decode_attention_turboquant<T, kKeyBits, kValueBits>(s, shape, cache, a); };
  }
};

template <class T, class Format>
void attention_case(Bench& bench, const DecodeShape& shape, const AttentionExtras& extras = {}) {
  bench.add(words(shape, Stored<T>::kName, extras), Format::name(), [&](Case& c) {
    using Key = typename Format::Key;
    using Value = typename Format::Value;
    const std::int64_t heads = shape.batch * shape.n_kv_heads;
    const QuantShape logical{.rows = heads,
                             .entries = shape.entries,
                             .capacity = shape.capacity,
                             .head_dim = shape.head_dim};
    const bool is_paged = shape.page > 0;
    const QuantShape stored =
        is_paged ? QuantShape{.rows = shape.batch * shape.pages_per_sequence * shape.n_kv_heads,
                              .entries = shape.page,
                              .capacity = shape.page,
                              .head_dim = shape.head_dim}
                 : logical;
    const auto keys = c.draw<T>(heads * shape.capacity * shape.head_dim, -2, 2);
    const auto values = c.draw<T>(heads * shape.capacity * shape.head_dim, -2, 2);
    const auto q = c.draw<T>(shape.batch * shape.n_heads * shape.head_dim, -2, 2);
    const auto memory = [&](const char* name, const std::vector<float>& rows) {
      constexpr float kFar = 50;  // beyond a sequence's end, which attention must not read
      return c.numbers<T>(name, is_paged ? in_pages(shape, page_table(shape), rows, kFar) : rows)
          .span();
    };
    const Key key = side_memory<Key>(c, stored, "key codes", "key scales");
    const Value value = side_memory<Value>(c, stored, "value codes", "value scales");
    key.template encode<T>(c.stream(), stored, memory("keys", keys));
    value.template encode<T>(c.stream(), stored, memory("values", values));
    const Attention<T> got = attention_of<T>(c, shape, q, extras);
    const std::int64_t d = shape.head_dim;
    const CodeFormat bytes{d * Key::kBits / 8, d * Value::kBits / 8,
                           entry_bytes<Key>(d) - d * Key::kBits / 8,
                           entry_bytes<Value>(d) - d * Value::kBits / 8};
    const auto traffic = [&](const DecodeShape& s) {
      return decode_codes_traffic(s, bytes, sizeof(T), extras.bias, extras.logits, true);
    };
    c.run(extras.lengths.empty()
              ? traffic(shape)
              : ragged_traffic(shape, extras.lengths, false, sizeof(T), true, traffic),
          Format::template attend<T>(key, value, shape, got.arguments));
    if (c.timed_alone()) return;
    compare_attention(c, shape, q, Key::template expected<T>(d, only_entries(logical, keys)),
                      Value::template expected<T>(d, only_entries(logical, values)), got, extras);
  });
}

template <class Format>
void attention_cases(Bench& bench) {
  const auto shape = [](std::int64_t entries, std::int64_t heads, std::int64_t head_dim) {
    return DecodeShape{.batch = 2,
                       .n_heads = heads,
                       .n_kv_heads = 2,
                       .head_dim = head_dim,
                       .entries = entries,
                       .capacity = kernels::padded_entries(entries) + 8,
                       .entries_per_split = 128};
  };
  attention_case<kv::Half, Format>(bench, shape(1, 2, 64));
  attention_case<kv::Half, Format>(bench, shape(257, 10, 64));
  attention_case<kv::BFloat16, Format>(bench, shape(31, 20, 128), {.bias = true, .logits = true});
  DecodeShape ragged = shape(257, 8, 128);
  ragged.batch = 5;
  attention_case<kv::BFloat16, Format>(bench, ragged,
                                       {.bias = true, .lengths = {0, 1, 64, 129, 257}});
  for (const std::int64_t page : {8, 64}) {
    DecodeShape paged = shape(page == 8 ? 135 : 257, page == 8 ? 4 : 10, page == 8 ? 128 : 64);
    paged.page = page;
    paged.pages_per_sequence = kernels::ceil_div(paged.entries, page) + 1;
    attention_case<kv::Half, Format>(bench, paged);
  }
  if (!bench.large()) return;
  attention_case<kv::BFloat16, Format>(bench, {.batch = 8,
                                               .n_heads = 32,
                                               .n_kv_heads = 8,
                                               .head_dim = 128,
                                               .entries = 32'768,
                                               .capacity = 32'768,
                                               .entries_per_split = 512});
}

}  // namespace

void decode_token_head_cases(Bench& bench) {
  attention_cases<TokenHeadFormat<ByteCode::kInt8>>(bench);
  attention_cases<TokenHeadFormat<ByteCode::kE4m3>>(bench);
}
void decode_int4_cases(Bench& bench) { attention_cases<Int4Format>(bench); }
void decode_nvfp4_cases(Bench& bench) { attention_cases<Nvfp4Format>(bench); }
void decode_turboquant_cases(Bench& bench) {
  attention_cases<TurboFormat<8, 4>>(bench);
  attention_cases<TurboFormat<4, 4>>(bench);
  attention_cases<TurboFormat<3, 4>>(bench);
  attention_cases<TurboFormat<3, 3>>(bench);
}

}  // namespace kvsim::KVSIM_EXECUTOR
