// Kernels over the formats of engines: worked examples, rotation and its inverse, pages, bytes
// compared with the operator graph. The suite compares each with its reference.

#include "kernels/quantise/decode_formats.hpp"
#include "models/math/low_float.hpp"
#include "models/math/low_int.hpp"
#include "models/math/turboquant.hpp"
#include "tests/kernels/attention_run.hpp"

namespace kvsim::on_sim {
namespace {

using namespace kvsim::test;  // NOLINT
using kernels::QuantShape;

// Example A of the formats' definitions, and its nibbles under NVFP4.
const std::vector<float> kExampleA{.10009765625F, -.44921875F, .80078125F,      1.296875F,
                                   -2.59375F,     3.09375F,    -.050048828125F, .55078125F,
                                   1.046875F,     -1.703125F,  .30078125F,      -.2001953125F,
                                   2.203125F,     -.8984375F,  .6484375F,       -3.703125F};

std::vector<float> repeated(const std::vector<float>& part, std::size_t n) {
  std::vector<float> result;
  while (result.size() < n) result.insert(result.end(), part.begin(), part.end());
  return result;
}

std::vector<std::uint32_t> nibbles(const std::vector<std::uint32_t>& words) {
  std::vector<std::uint32_t> result;
  for (const std::uint32_t word : words) {
    for (unsigned j = 0; j < 8; ++j) result.push_back((word >> (4 * j)) & 15U);
  }
  return result;
}

constexpr QuantShape kOneRow{.rows = 1, .entries = 1, .capacity = 8, .head_dim = 64};

TEST_CASE("nvfp4 kernel: the worked examples, with and without 4over6") {
  struct Expected {
    bool four_over_six;
    std::uint8_t scale;
    std::vector<std::uint32_t> codes;
  };
  for (const Expected& e :
       {Expected{false, 50, {0, 9, 3, 4, 14, 6, 8, 2, 3, 13, 1, 9, 6, 11, 2, 15}},
        Expected{true, 55, {0, 9, 2, 3, 13, 5, 8, 1, 2, 12, 1, 8, 4, 10, 1, 14}}}) {
    Device device;
    const Buffer<float> from{device, "from", repeated(kExampleA, 8 * 64)};
    Buffer<std::uint32_t> codes{device, "codes", 8 * 64 / 8};
    Buffer<std::uint8_t> scales{device, "scales", 8 * 4};
    quantise_nvfp4<float>({&device}, kOneRow, 1, e.four_over_six, in(from), out(codes),
                          out(scales));
    for (const std::uint8_t scale : scales.download(0, 4)) CHECK(scale == e.scale);
    const auto got = nibbles(codes.download(0, 8));
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == e.codes[i % 16]);
    // The padding up to eight entries is zeros.
    for (const std::uint32_t word : codes.download(8, 56)) CHECK(word == 0);
    for (const std::uint8_t scale : scales.download(4, 28)) CHECK(scale == 0);
  }
}

TEST_CASE("int8 and fp8 per token-head kernels: the worked examples") {
  const std::vector<float> row{.5F, -1.25F, 2, .03125F, -.75F, 1.5F, -2.5F, .875F};
  const auto bytes = [&](auto encode) {
    Device device;
    const Buffer<float> from{device, "from", repeated(row, 8 * 64)};
    Buffer<std::uint64_t> codes{device, "codes", 8 * 8};
    Buffer<float> scales{device, "scales", 8};
    encode(Stream{&device}, in(from), out(codes), out(scales));
    std::vector<int> result;
    for (unsigned j = 0; j < 8; ++j) {
      result.push_back(static_cast<int>((codes.download(0, 1).front() >> (8 * j)) & 255U));
    }
    return std::pair{result, scales.download(0, 1).front()};
  };
  const auto [int8, int8_scale] = bytes([](Stream s, auto from, auto codes, auto scales) {
    quantise_token_head<float, ByteCode::kInt8>(s, kOneRow, from, codes, scales);
  });
  CHECK(int8_scale == doctest::Approx(.01968504).epsilon(1e-6));
  CHECK(int8 == std::vector<int>{25, 256 - 64, 102, 2, 256 - 38, 76, 256 - 127, 44});
  const auto [fp8, fp8_scale] = bytes([](Stream s, auto from, auto codes, auto scales) {
    quantise_token_head<float, ByteCode::kE4m3>(s, kOneRow, from, codes, scales);
  });
  CHECK(fp8_scale == doctest::Approx(.005580357).epsilon(1e-6));
  CHECK(fp8 == std::vector<int>{107, 246, 123, 75, 240, 120, 254, 114});
}

/// softmax(q K^T / sqrt(d)) V in double precision, one head per row of q.
std::vector<double> attention(const kernels::DecodeShape& s, const std::vector<float>& q,
                              const std::vector<float>& keys, const std::vector<float>& values) {
  const auto d = static_cast<std::size_t>(s.head_dim);
  const auto n = static_cast<std::size_t>(s.entries);
  std::vector<double> result;
  for (std::size_t h = 0; h < static_cast<std::size_t>(s.n_heads); ++h) {
    std::vector<double> weights;
    double sum = 0;
    for (std::size_t e = 0; e < n; ++e) {
      double dot = 0;
      for (std::size_t i = 0; i < d; ++i) {
        dot += static_cast<double>(q[h * d + i]) * static_cast<double>(keys[e * d + i]);
      }
      weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(d))));
      sum += weights.back();
    }
    for (std::size_t i = 0; i < d; ++i) {
      double x = 0;
      for (std::size_t e = 0; e < n; ++e) x += weights[e] * static_cast<double>(values[e * d + i]);
      result.push_back(x / sum);
    }
  }
  return result;
}

constexpr kernels::DecodeShape kOneHead{.batch = 1,
                                        .n_heads = 4,
                                        .n_kv_heads = 1,
                                        .head_dim = 128,
                                        .entries = 96,
                                        .capacity = 96,
                                        .entries_per_split = 64};
constexpr QuantShape kOneHeadRows{.rows = 1, .entries = 96, .capacity = 96, .head_dim = 128};

TEST_CASE("rotated formats: queries rotated, outputs rotated back, as attention over the rows") {
  const auto& s = kOneHead;
  const auto q = draw(1, s.n_heads * s.head_dim);
  const auto keys = read_back(stored<kv::Half>(draw(2, s.entries * s.head_dim, -2, 2)));
  const auto values = read_back(stored<kv::Half>(draw(3, s.entries * s.head_dim, -2, 2)));
  const auto rounded = [&](const std::vector<float>& rows, auto round) {
    std::vector<float> result = rows;
    const auto d = static_cast<std::size_t>(s.head_dim);
    for (std::size_t at = 0; at < result.size(); at += d) round(std::span{result}.subspan(at, d));
    return result;
  };
  Device device;
  const Buffer<kv::Half> from_q{device, "q", stored<kv::Half>(q)};
  const Buffer<kv::Half> from_keys{device, "keys", stored<kv::Half>(keys)};
  const Buffer<kv::Half> from_values{device, "values", stored<kv::Half>(values)};
  Buffer<kv::Half> rotated{device, "rotated", s.n_heads * s.head_dim};
  const float root = std::sqrt(static_cast<float>(s.head_dim));

  SUBCASE("int4") {
    Buffer<std::uint32_t> key_codes{device, "key codes", s.entries * 16};
    Buffer<std::uint32_t> value_codes{device, "value codes", s.entries * 16};
    Buffer<std::uint32_t> key_scales{device, "key scales", s.entries};
    Buffer<std::uint32_t> value_scales{device, "value scales", s.entries};
    quantise_int4_rotated<kv::Half>({&device}, kOneHeadRows, in(from_keys), out(key_codes),
                                    out(key_scales));
    quantise_int4_rotated<kv::Half>({&device}, kOneHeadRows, in(from_values), out(value_codes),
                                    out(value_scales));
    rotate_rows<kv::Half>({&device}, s.n_heads, s.head_dim, 1, in(from_q), out(rotated));
    AttentionMemory scratch{device, s};
    decode_attention_int4<kv::Half>(
        {&device}, s, {in(key_codes), in(value_codes), in(key_scales), in(value_scales)},
        scratch.arguments(in(rotated), 1 / root / static_cast<float>(s.head_dim)));
    Buffer<kv::Half> back{device, "back", s.n_heads * s.head_dim};
    rotate_rows<kv::Half>({&device}, s.n_heads, s.head_dim, 1 / static_cast<float>(s.head_dim),
                          in(scratch.out), out(back));
    const auto round = [](std::span<float> row) {
      hadamard(row);
      for (float& x : row) x = as_stored(x, Dtype::kFp16);
      const Int4Rotated step = int4_rotated_step(row);
      for (float& x : row) {
        x = static_cast<float>(int4_rotated_code(x, step) - step.zero) * step.stored();
      }
      hadamard(row);
      for (float& x : row) x /= static_cast<float>(row.size());
    };
    // Rotated queries and outputs are rounded to fp16 as well.
    CHECK(max_error(read_back(back.download(0, s.n_heads * s.head_dim)),
                    attention(s, q, rounded(keys, round), rounded(values, round))) < 3e-3);
  }
  SUBCASE("turboquant of 4 bits") {
    Buffer<std::uint32_t> key_codes{device, "key codes", s.entries * 16};
    Buffer<std::uint32_t> value_codes{device, "value codes", s.entries * 16};
    Buffer<kv::Half> norms{device, "norms", s.entries};
    Buffer<kv::Half> scales{device, "scales", 2 * s.entries};
    quantise_turboquant_keys<kv::Half, 4>({&device}, kOneHeadRows, in(from_keys), out(key_codes),
                                          out(norms));
    quantise_turboquant_values<kv::Half, 4>({&device}, kOneHeadRows, in(from_values),
                                            out(value_codes), out(scales));
    rotate_rows<kv::Half>({&device}, s.n_heads, s.head_dim, 1 / root, in(from_q), out(rotated));
    AttentionMemory scratch{device, s};
    decode_attention_turboquant<kv::Half, 4, 4>(
        {&device}, s, {in(key_codes), in(value_codes), in(norms), in(scales)},
        scratch.arguments(in(rotated), 1 / root));
    const auto expected = attention(
        s, q,
        rounded(
            keys,
            [](std::span<float> row) { round_turboquant_key(row, 4, true, Codebook::kEngine); }),
        rounded(values, [](std::span<float> row) { round_turboquant_value(row, 4); }));
    CHECK(max_error(read_back(scratch.out.download(0, s.n_heads * s.head_dim)), expected) < 3e-3);
  }
}

struct NamedFormat {
  const char* method;
  kernels::CodeFormat format;
};
const std::vector<NamedFormat>& named_formats() {
  static const std::vector<NamedFormat> all{
      {"int8-per-token-head", kernels::token_head_format(kHeadDim, 8)},
      {"fp8-per-token-head", kernels::token_head_format(kHeadDim, 8)},
      {"int4-per-token-head", kernels::token_head_format(kHeadDim, 4)},
      {"nvfp4", kernels::nvfp4_format(kHeadDim)},
      {"turboquant-k8v4", kernels::turboquant_format(kHeadDim, 8, 4)},
      {"turboquant-4bit-nc", kernels::turboquant_format(kHeadDim, 4, 4)},
      {"turboquant-k3v4-nc", kernels::turboquant_format(kHeadDim, 3, 4)},
      {"turboquant-3bit-nc", kernels::turboquant_format(kHeadDim, 3, 3)}};
  return all;
}

TEST_CASE("graph: attention over formats of engines with bytes added by splitting") {
  const std::int64_t batch = 2;
  for (const NamedFormat& of : named_formats()) {
    INFO(of.method);
    const std::int64_t entries = 264;  // a multiple of 16 bytes in every array
    const MethodGraph graph_of{of.method, {}, 0, batch};
    const OpGraph graph = graph_of.decode(entries, CacheChange::kGrow);
    const Op& op = op_of(graph, "attention");
    const kernels::DecodeShape shape = decode_shape(batch, entries);
    const auto traffic = decode_codes_traffic(shape, of.format, 2, false, false, false);
    const SplitAdds adds = split_adds(shape);
    CHECK(static_cast<double>(traffic.loaded.count() - adds.read) == op.bytes_read);
    CHECK(static_cast<double>(traffic.stored.count() - adds.written) == op.bytes_written);
    CHECK(staged_bytes(of.format, entries) == entries * of.format.bytes());
  }
}

TEST_CASE("graph: a prompt written in formats of engines, byte for byte") {
  const std::int64_t batch = 2;
  const std::int64_t prompt = 264;
  for (const NamedFormat& of : named_formats()) {
    INFO(of.method);
    const MethodGraph graph_of{of.method, {}, 0, batch, prompt};
    const OpGraph graph =
        prefill_layer(graph_of.in, 0, {.prompt = prompt, .kept = prompt, .score_rows = prompt});
    const Op& op = op_of(graph, "cache write");
    const QuantShape shape{
        .rows = batch * kStored, .entries = prompt, .capacity = prompt, .head_dim = kHeadDim};
    const auto keys = encode_traffic(shape, 2, of.format.key_codes + of.format.key_scales);
    const auto values = encode_traffic(shape, 2, of.format.value_codes + of.format.value_scales);
    CHECK(static_cast<double>((keys.loaded + values.loaded).count()) == op.bytes_read);
    CHECK(static_cast<double>((keys.stored + values.stored).count()) == op.bytes_written);
  }
}

TEST_CASE("kernels over formats: unsupported shapes and spans are refused") {
  Device device;
  const Buffer<float> from{device, "from", std::vector<float>(8 * 64)};
  Buffer<std::uint32_t> codes{device, "codes", 64};
  Buffer<std::uint8_t> scales{device, "scales", 32};
  const auto encode = [&](QuantShape shape, float global) {
    quantise_nvfp4<float>({&device}, shape, global, false, in(from), out(codes), out(scales));
  };
  CHECK_THROWS_AS(encode(kOneRow, 0), ContractError);
  QuantShape wrong = kOneRow;
  wrong.capacity = 9;
  CHECK_THROWS_AS(encode(wrong, 1), ContractError);
  wrong = kOneRow;
  wrong.head_dim = 96;
  CHECK_THROWS_AS(encode(wrong, 1), ContractError);
  wrong = kOneRow;
  wrong.rows = 2;
  CHECK_THROWS_AS(encode(wrong, 1), ContractError);

  kernels::DecodeShape shape{.batch = 1,
                             .n_heads = 1,
                             .n_kv_heads = 1,
                             .head_dim = 64,
                             .entries = 8,
                             .capacity = 8,
                             .entries_per_split = 64};
  encode(kOneRow, 1);
  const Buffer<kv::Half> q{device, "q", numbers<kv::Half>(64)};
  AttentionMemory scratch{device, shape};
  const Nvfp4Cache cache{in(codes), in(codes), in(scales), in(scales)};
  const auto attend = [&](const kernels::DecodeShape& s, const Nvfp4Cache& of) {
    decode_attention_nvfp4<kv::Half>({&device}, s, of, scratch.arguments(in(q), 1));
  };
  CHECK_NOTHROW(attend(shape, cache));
  Nvfp4Cache zero = cache;
  zero.key_global = 0;
  CHECK_THROWS_AS(attend(shape, zero), ContractError);
  Nvfp4Cache shorter = cache;
  shorter.value_scales.size = 31;
  CHECK_THROWS_AS(attend(shape, shorter), ContractError);
  shape.capacity = 7;  // rows of scales that are not a multiple of 16 bytes
  shape.entries = 7;
  CHECK_THROWS_AS(attend(shape, cache), ContractError);
}

}  // namespace
}  // namespace kvsim::on_sim
