// RotateKV: stored rows compared with a reference of their equations, hand-solved cases, laws and
// bytes.

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/store_run.hpp"

namespace kvsim {
namespace {

using Rows = std::vector<float>;
const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

/// x times the Hadamard matrix by its definition: the sign of (i, j) is the parity of i & j.
std::vector<double> rotated(const std::vector<double>& x) {
  std::vector<double> out(x.size(), 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) {
      out[i] += (std::popcount(i & j) % 2 == 0 ? 1 : -1) * x[j] /
                std::sqrt(static_cast<double>(x.size()));
    }
  }
  return out;
}

struct Coding {
  std::int64_t bits = 2, group = 8, heads = 2;
  double clip = 1;
  bool slip = false;  // the step divides by bits^2 - 1
};

/// Decoded codes of groups of channels.
std::vector<double> coded(std::vector<double> x, const Coding& set) {
  const auto top = static_cast<double>((1 << set.bits) - 1);
  for (auto part = x.begin(); part != x.end(); part += set.group) {
    const auto end = part + set.group;
    const double low = *std::min_element(part, end) * set.clip;
    const double high = *std::max_element(part, end) * set.clip;
    const double step =
        (high - low) / (set.slip ? static_cast<double>(set.bits * set.bits - 1) : top);
    const double zero = std::nearbyint(-low / step);
    for (auto at = part; at != end; ++at) {
      *at = step * (std::clamp(std::nearbyint(*at / step) + zero, 0.0, top) - zero);
    }
  }
  return x;
}

std::vector<double> in_groups(const std::vector<double>& x, std::size_t width) {
  std::vector<double> out;
  for (std::size_t at = 0; at < x.size(); at += width) {
    const auto first = x.begin() + static_cast<std::ptrdiff_t>(at);
    const auto part = rotated({first, first + static_cast<std::ptrdiff_t>(width)});
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

Params given(const Coding& set, std::int64_t pivots, const std::string& order) {
  return {{"bits", set.bits},
          {"quant_group", set.group},
          {"head_group", set.heads},
          {"clip", set.clip},
          {"levels", std::string{set.slip ? "code" : "full"}},
          {"pivots", pivots},
          {"order", order}};
}

TEST_CASE("rotatekv stores the rows of a reference: rotation across heads, order, codes, pivots") {
  constexpr std::int32_t kD = 16;
  constexpr std::int64_t kPrompt = 60, kTokens = 80, kPivots = 5;
  const Rope rope{kD, 10000, true};
  const std::vector<Coding> codings{{.bits = 2, .group = 16, .heads = 2, .clip = .8},
                                    {.bits = 4, .group = 8, .heads = 1},
                                    {.bits = 3, .group = 4, .heads = 2},
                                    {.bits = 3, .group = 16, .heads = 2, .slip = true}};
  for (const Coding& set : codings) {
    for (const std::string order : {"identity", "trace"}) {
      INFO("bits ", set.bits, " groups of ", set.group, ", order ", order);
      std::vector<test::OwnedHead> owned;
      std::vector<HeadVectors> heads;
      for (std::uint64_t h = 0; h < 2; ++h) {
        owned.push_back(test::random_head(2, kD, kTokens, kPrompt, 70 + h));
      }
      for (const auto& each : owned) heads.push_back(each.view);
      // The layer's keys before RoPE, each group of heads rotated: [token][channel].
      std::vector<std::vector<double>> keys;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        std::vector<double> row;
        for (const HeadVectors& head : heads) {
          const auto back = test::rotation(kD, 10000, true, -t, 1);
          for (const double x : test::times(back, test::to_vec(head.key(t)))) row.push_back(x);
        }
        keys.push_back(in_groups(row, static_cast<std::size_t>(set.heads) * kD));
      }
      std::vector<std::size_t> channels(2 * kD);
      std::iota(channels.begin(), channels.end(), std::size_t{0});
      if (order == "trace") {
        std::vector<double> sums(channels.size(), 0.0);
        for (std::int64_t t = 0; t < kPrompt; ++t) {
          for (std::size_t c = 0; c < sums.size(); ++c) {
            sums[c] += keys[static_cast<std::size_t>(t)][c];
          }
        }
        std::sort(channels.begin(), channels.end(),
                  [&](std::size_t a, std::size_t b) { return sums[a] < sums[b]; });
      }
      LayerVectors layer;
      layer.heads = heads;
      layer.rope = &rope;
      std::int64_t wrong = 0;
      for (std::size_t h = 0; h < 2; ++h) {
        PromptScores scores{{heads[h]}, static_cast<std::int32_t>(h), layer};
        test::StoreRun run{"rotatekv", given(set, kPivots, order), kD, kTokens, Dtype::kFp16,
                           &rope};
        for (std::int32_t t = 0; t < kTokens; ++t) {
          run.table.append(t, heads[h].key(t), heads[h].value(t));
          if (t + 1 == kPrompt) run.store->prompt_written(run.table, scores, 0);
          if (t >= kPrompt) run.store->appended(run.table, t);
          if (t + 1 >= kPrompt) CHECK(run.held() == run.law(t + 1));
        }
        for (std::int64_t t = 0; t < kTokens; ++t) {
          std::vector<double> sorted, row(2 * kD);
          for (const std::size_t c : channels) {
            sorted.push_back(keys[static_cast<std::size_t>(t)][c]);
          }
          sorted = coded(sorted, set);
          for (std::size_t c = 0; c < channels.size(); ++c) row[channels[c]] = sorted[c];
          row = in_groups(row, static_cast<std::size_t>(set.heads) * kD);
          const auto first = row.begin() + static_cast<std::ptrdiff_t>(h) * kD;
          test::Vec key{first, first + kD};
          key = test::times(test::rotation(kD, 10000, true, t, 1), key);
          test::Vec value = test::to_vec(heads[h].value(t));
          if (t < kPivots) {
            key = test::to_vec(heads[h].key(t));
          } else {
            value = rotated(coded(rotated(value), set));
          }
          bool equal = true;
          for (std::size_t j = 0; j < kD; ++j) {
            const auto slot = static_cast<std::int32_t>(t);
            const auto k = static_cast<double>(run.table.key(slot)[j]);
            const auto v = static_cast<double>(run.table.value(slot)[j]);
            equal = equal && std::abs(k - key[j]) < 2e-5 && std::abs(v - value[j]) < 2e-5;
          }
          wrong += equal ? 0 : 1;
        }
      }
      // A number halfway between two levels may be rounded to either, which changes its row.
      CHECK(wrong <= 2);
    }
  }
}

/// One token of heads [d] at position 0, where RoPE is the identity, as head `h` reads it.
std::vector<Rows> stored(const std::vector<Rows>& keys, const Params& params) {
  const auto d = static_cast<std::int32_t>(keys.front().size());
  const Rope rope{d, 10000, false};
  std::vector<HeadVectors> heads;
  for (const Rows& key : keys) {
    heads.push_back({.q = key,
                     .keys = key,
                     .values = key,
                     .group = 1,
                     .head_dim = d,
                     .tokens = 1,
                     .prompt = 1,
                     .scale = 1});
  }
  LayerVectors layer;
  layer.heads = heads;
  layer.rope = &rope;
  std::vector<Rows> out;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    PromptScores scores{{heads[h]}, static_cast<std::int32_t>(h), layer};
    test::StoreRun run{"rotatekv", params, d, 1, Dtype::kFp16, &rope};
    run.table.append(0, keys[h], keys[h]);
    run.store->prompt_written(run.table, scores, 0);
    out.push_back(run.keys());
    if (keys.size() == 1) out.push_back(run.values());
  }
  return out;
}

TEST_CASE("rotatekv by hand: clipped range, the slip of 3 bits, equal channels, order") {
  const auto near = [](const Rows& got, const Rows& want) {
    REQUIRE(got.size() == want.size());
    for (std::size_t j = 0; j < got.size(); ++j) CHECK(std::abs(got[j] - want[j]) < 1e-5F);
  };
  const auto one = [&](const Rows& row, Coding set, const Rows& want) {
    set.heads = 1;
    const auto [key, value] = std::tuple{stored({row}, given(set, 0, "identity"))[0],
                                         stored({row}, given(set, 0, "identity"))[1]};
    near(key, want);
    near(value, want);
  };
  // (5, 1) rotated is (6, 4) / sqrt 2. Times sqrt 2: the range is .9 * 4 = 3.6 to .9 * 6 = 5.4, the
  // step .6, the zero point -6. 4 / .6 = 6.67 is rounded to 7, code 1, decoded as 4.2; 6 / .6 = 10,
  // code 4, clamped to 3: 5.4. Rotated back: (5.4 + 4.2) / 2 and (5.4 - 4.2) / 2.
  one({5, 1}, {.bits = 2, .clip = .9}, {4.8F, .6F});
  // (3.5, 3.5) rotated is (7, 0) / sqrt 2: a step of 1 reaches it with code 7, a step of 7 / 8
  // reaches only 6.125.
  one({3.5F, 3.5F}, {.bits = 3}, {3.5F, 3.5F});
  one({3.5F, 3.5F}, {.bits = 3, .slip = true}, {3.0625F, 3.0625F});
  // Equal rotated channels and zeros are exact.
  one({2, 0}, {.bits = 2}, {2, 0});
  one({0, 0}, {.bits = 2, .clip = .8}, {0, 0});
  // Rotated channels of two heads (0 10 1 11) and (2 12 3 13). Ordered by their sums, groups of 4
  // have ranges of 3 and are exact; in their original order, a range of 11 has steps of 11 / 3.
  const auto row = [](const std::vector<double>& of) {
    const auto back = rotated(of);
    return Rows{back.begin(), back.end()};
  };
  const std::vector<Rows> keys{row({0, 10, 1, 11}), row({2, 12, 3, 13})};
  const Coding set{.bits = 2, .group = 4, .heads = 1};
  const auto sorted = stored(keys, given(set, 0, "trace"));
  near(sorted[0], keys[0]);
  near(sorted[1], keys[1]);
  const auto plain = stored(keys, given(set, 0, "identity"));
  near(plain[0], row({0, 11, 0, 11}));  // codes 0 3 0 3
}

TEST_CASE("rotatekv: values are QuaRot's where the range contains 0, and errors are as listed") {
  const Rows values = test::normal_rows(256, 128, /*outliers=*/true);
  const Rope rope{128, 10000, false};
  for (const std::int64_t bits : {2, 4}) {
    test::StoreRun quarot{"quarot", {{"bits", bits}}, 128, 256};
    quarot.append_all(values, values);
    test::OwnedHead owned;
    owned.view = {.q = values,
                  .keys = values,
                  .values = values,
                  .group = 1,
                  .head_dim = 128,
                  .tokens = 256,
                  .prompt = 256,
                  .scale = 1};
    LayerVectors layer;
    layer.heads = {owned.view};
    layer.rope = &rope;
    PromptScores scores{{owned.view}, 0, layer};
    test::StoreRun run{"rotatekv",
                       {{"bits", bits},
                        {"clip", 1.0},
                        {"pivots", std::int64_t{0}},
                        {"head_group", std::int64_t{1}}},
                       128,
                       256,
                       Dtype::kBf16,
                       &rope};
    for (std::int32_t t = 0; t < 256; ++t) {
      run.table.append(t, owned.view.key(t), owned.view.value(t));
    }
    run.store->prompt_written(run.table, scores, 0);
    CHECK(run.values() == quarot.values());
    // Keys are rotated before RoPE: different numbers with the same error (8.34e-3 for 4 bits).
    const double error = test::relative_error(run.keys(), values);
    CHECK(error == doctest::Approx(test::relative_error(quarot.keys(), values)).epsilon(.05));
    if (bits == 4) CHECK(error == doctest::Approx(8.34e-3).epsilon(.05));
  }
}

TEST_CASE("rotatekv: pivots by hidden states are the tokens with the largest elements") {
  constexpr std::int32_t kD = 8;
  constexpr std::int64_t kPrompt = 12;
  const auto owned = test::random_head(1, kD, 14, kPrompt, 5);
  const Rope rope{kD, 10000, false};
  Rows hidden(14 * 2, .1F);
  hidden[3 * 2 + 1] = -9;                    // token 3
  hidden[7 * 2] = 4, hidden[7 * 2 + 1] = 4;  // two large elements, counted once
  hidden[9 * 2] = 2;                         // token 9
  hidden[13 * 2] = 50;                       // not in the prompt
  LayerVectors layer;
  layer.heads = {owned.view};
  layer.rope = &rope;
  layer.hidden = hidden;
  layer.d_model = 2;
  PromptScores scores{{owned.view}, 0, layer};
  test::StoreRun run{"rotatekv",
                     {{"pivots", std::int64_t{3}},
                      {"pivots_by", std::string{"hidden"}},
                      {"head_group", std::int64_t{1}}},
                     kD,
                     14,
                     Dtype::kFp16,
                     &rope};
  for (std::int32_t t = 0; t < 14; ++t) {
    run.table.append(t, owned.view.key(t), owned.view.value(t));
    if (t + 1 == kPrompt) run.store->prompt_written(run.table, scores, 0);
    if (t >= kPrompt) run.store->appended(run.table, t);
    if (t + 1 >= kPrompt) CHECK(run.held() == run.law(t + 1));
  }
  for (std::int32_t t = 0; t < 14; ++t) {
    const auto key = run.table.key(t), exact = owned.view.key(t);
    const bool same = std::equal(key.begin(), key.end(), exact.begin());
    CHECK(same == (t == 3 || t == 7 || t == 9));
  }
  CHECK(run.method->needs().inputs.hidden);
}

TEST_CASE("rotatekv's bytes and traffic by hand, and what it refuses") {
  const LayerShape shape{.n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
  const MethodContext site{.recorded = Dtype::kFp16, .shape = shape, .n_layers = 4};
  const auto method_of = [&](const Params& params, std::int64_t prompt = 1000) {
    return make_method({"rotatekv", params, {}}, prompt, site);
  };
  const auto law = [&](const Method& method, std::int64_t entries) {
    return method.layer_bytes(0, shape, Dtype::kFp16, 1000, entries)->kv;
  };
  // 32 b + 8 bytes per key and value, 20 unquantised tokens.
  for (const std::int64_t bits : {2, 3, 4}) {
    const auto method = method_of({{"bits", bits}});
    CHECK(law(*method, 1000) == Bytes{8 * (20 * 512 + 980 * (32 * bits + 8))});
  }
  CHECK(law(*method_of({{"quant_group", std::int64_t{32}}}), 1000) ==
        Bytes{8 * (20 * 512 + 980 * 2 * (32 + 4 * 4))});
  // A prompt shorter than the number of pivots: tokens after it are in 2 bits.
  const auto few = make_method({"rotatekv", {}, {}}, 5, site);
  CHECK(few->layer_bytes(0, shape, Dtype::kFp16, 5, 30)->kv == Bytes{8 * (5 * 512 + 25 * 72)});
  // A step over 1,000 entries of 8 heads: 512 channels are rotated together, log2 512 = 9, RoPE 3;
  // two operations of dequantisation per element of keys and values; 7 of rounding.
  const auto method = method_of({});
  const StepTraffic step = method->decode_traffic(0, shape, Dtype::kFp16, 1000, false);
  CHECK(step.attention_read == 8 * (20 * 512 + 980 * 72));
  CHECK(step.append_write == 8 * 72);
  CHECK(step.extra_flops == 8 * (1000.0 * 128 * 12 + 1000.0 * 256 * 2 + 256 * 7));
  CHECK(method->prefill_extra(0, shape, Dtype::kFp16, 1000).flops == 1000 * 8 * 256.0 * 7);
  CHECK(method->needs().inputs.rope);
  CHECK_FALSE(method->needs().inputs.hidden);
  CHECK(std::get<double>(method->params().at("clip")) == .8);
  CHECK(std::get<double>(method_of({{"bits", std::int64_t{3}}})->params().at("clip")) == 1);
  // Six KV heads are divisible by groups of 2, but not of 4.
  const auto six = make_method({"rotatekv", {}, {}}, 100,
                               {.shape = {.n_heads = 6, .n_kv_heads = 6, .head_dim = 64}});
  CHECK(std::get<std::int64_t>(six->params().at("head_group")) == 2);

  const auto refuses = [&](const Params& params, const std::string& name = "rotatekv",
                           std::int32_t d = 64) -> std::string {
    try {
      (void)make_method(
          {name, params, name == "rotatekv" ? std::nullopt : std::optional{Budget{0, 30}}}, 64,
          {.shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = d}, .n_layers = 4});
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(refuses({{"bits", std::int64_t{5}}}).find("bits") != std::string::npos);
  CHECK(refuses({{"head_group", std::int64_t{3}}}).find("power of two") != std::string::npos);
  CHECK(refuses({{"quant_group", std::int64_t{48}}}).find("divisor") != std::string::npos);
  CHECK(refuses({}, "rotatekv", 96).find("power of two") != std::string::npos);
  CHECK(refuses({{"granularity", std::string{"query_head"}}}).find("granularity=kv_head") !=
        std::string::npos);
  CHECK(refuses({}, "zeromerge+store=rotatekv").find("merge=drop") != std::string::npos);
  CHECK(refuses({{"positions", std::string{"rerotate"}}}, "knorm+store=rotatekv")
            .find("positions=original") != std::string::npos);
  CHECK(refuses({}, "snapkv+store=rotatekv").empty());
}

TEST_CASE("rotatekv in a replay follows its law, more bits are better, threads change nothing") {
  const Trace trace = Trace::open(kSample);
  std::vector<MethodSpec> specs;
  for (const std::int64_t bits : {2, 3, 4}) specs.push_back({"rotatekv", {{"bits", bits}}, {}});
  specs.push_back({"rotatekv", {{"pivots_by", std::string{"hidden"}}}, {}});
  specs.push_back({"rotatekv", {{"order", std::string{"trace"}}}, {}});
  const auto result = replay(trace, specs, {.threads = 1});
  const auto again = replay(trace, specs, {.threads = 3});
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ReplayMethod& m = result.methods[i];
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
    CHECK(m.rel_error_mean == again.methods[i].rel_error_mean);
  }
  CHECK(result.methods[1].rel_error_mean < result.methods[0].rel_error_mean);
  CHECK(result.methods[2].rel_error_mean < result.methods[1].rel_error_mean);
  CHECK(result.methods[3].bytes_held_final == result.methods[0].bytes_held_final);
  CHECK(result.methods[3].rel_error_mean != result.methods[0].rel_error_mean);
  CHECK(result.methods[4].rel_error_mean != result.methods[0].rel_error_mean);
}

}  // namespace
}  // namespace kvsim
