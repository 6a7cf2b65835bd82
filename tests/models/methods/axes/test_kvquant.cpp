// KVQuant: stored rows compared with references of their equations, laws and bytes.

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "models/math/kmeans.hpp"
#include "models/units/error.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/reference/reference_content.hpp"
#include "tests/support/store_run.hpp"

namespace kvsim {
namespace {

using test::rel;
using Rows = std::vector<float>;
const std::string kSample = KVSIM_SOURCE_DIR "/traces/samples/books-treasure-512.safetensors";

TEST_CASE("k-means by hand: levels, centres, and no random numbers") {
  // Shares {0, 1} and {9, 10, 11}: starts at 1 and 10, ends at the means.
  CHECK(kmeans_levels({10, 0, 11, 1, 9}, 2, 50) == Rows{.5F, 10});
  CHECK(kmeans_levels({3, 3, 3}, 2, 50) == Rows{3, 3});
  CHECK(kmeans_levels({1, 2}, 4, 50) == Rows{1, 1, 2, 2});
  CHECK(kmeans_levels({0, 1, 5}, 3, 0) == Rows{0, 1, 5});
  const auto found = kmeans_rows(Rows{0, 0, 0, 2, 10, 0, 10, 2}, 2, 2, 50);
  CHECK(found.centres == Rows{0, 1, 10, 1});
  CHECK(found.nearest == std::vector<std::int32_t>{0, 0, 1, 1});
  CHECK(nearest_centre(Rows{5, 1}, found.centres) == 0);  // a tie
  // One centre per row: every row equals its centre.
  const Rows rows = test::normal_rows(20, 3, false);
  const auto own = kmeans_rows(rows, 3, 20, 10);
  CHECK(own.centres == rows);
  // More iterations never increase the squared distance.
  double before = 1e300;
  for (const std::int32_t iterations : {0, 1, 2, 5, 50}) {
    const auto some = kmeans_rows(rows, 3, 4, iterations);
    double sum = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      for (std::size_t j = 0; j < 3; ++j) {
        const auto c = static_cast<std::size_t>(some.nearest[i]);
        sum += std::pow(
            static_cast<double>(rows[i * 3 + j]) - static_cast<double>(some.centres[c * 3 + j]), 2);
      }
    }
    CHECK(sum <= before + 1e-9);
    before = sum;
  }
}

/// NumPy's percentile: linear interpolation between ranks.
double percentile_of(std::vector<double> x, double share) {
  std::sort(x.begin(), x.end());
  const double at = share * static_cast<double>(x.size() - 1);
  const auto i = static_cast<std::size_t>(at);
  return i + 1 < x.size() ? x[i] + (at - static_cast<double>(i)) * (x[i + 1] - x[i]) : x[i];
}

double nearest(const Rows& levels, double z) {
  double best = static_cast<double>(levels.front());
  for (const float each : levels) {
    if (std::abs(z - static_cast<double>(each)) < std::abs(z - best))
      best = static_cast<double>(each);
  }
  return best;
}

TEST_CASE("kvquant stores the rows of a reference: outliers, codebooks, every token") {
  constexpr std::int32_t kD = 16;
  constexpr std::int64_t kPrompt = 90, kTokens = 100;
  const Rope rope{kD, 10000, true};
  for (const auto& [bits, share, sinks] :
       std::vector<std::tuple<std::int64_t, double, std::int64_t>>{
           {3, .01, 1}, {4, .1, 1}, {2, 0.0, 0}, {3, .3, 5}}) {
    INFO("bits ", bits, " share ", share);
    std::vector<test::OwnedHead> owned;
    for (std::uint64_t h = 0; h < 2; ++h) {
      owned.push_back(test::random_head(2, kD, kTokens, kPrompt, 20 + h));
    }
    // A channel with long tails, so that a row has more key outliers than places.
    for (std::int64_t t = 80; t < kTokens; ++t) {
      for (std::int64_t j = 0; j < 8; ++j) owned[0].keys[static_cast<std::size_t>(t * kD + j)] *= 9;
    }
    owned[0].view.keys = owned[0].keys;
    const std::vector<HeadVectors> heads{owned[0].view, owned[1].view};
    // The layer's rows: [token][channel].
    std::vector<std::vector<double>> keys, values;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      auto& key = keys.emplace_back();
      auto& value = values.emplace_back();
      for (const HeadVectors& head : heads) {
        const auto back = test::rotation(kD, 10000, true, -t, 1);
        for (const double x : test::times(back, test::to_vec(head.key(t)))) key.push_back(x);
        for (const float x : head.value(t)) value.push_back(static_cast<double>(x));
      }
    }
    const std::size_t n = 2 * kD;
    const std::size_t places =
        share > 0 ? static_cast<std::size_t>(share / 2 * static_cast<double>(n - 1)) + 1 : 0;
    std::vector<double> middle(n), range(n);
    for (std::size_t c = 0; c < n; ++c) {
      std::vector<double> column;
      for (std::int64_t t = 0; t < kPrompt; ++t)
        column.push_back(keys[static_cast<std::size_t>(t)][c]);
      const double low = percentile_of(column, share / 2);
      const double high = percentile_of(column, 1 - share / 2);
      middle[c] = (low + high) / 2;
      range[c] = (high - low) / 2;
    }
    // Outliers of a row, with and without the limit of places; for values, the ends of the row.
    const auto key_outliers = [&](std::int64_t t, bool limited) {
      std::vector<std::pair<double, std::size_t>> up, down;
      for (std::size_t c = 0; c < n; ++c) {
        const double z = (keys[static_cast<std::size_t>(t)][c] - middle[c]) / range[c];
        if (share > 0 && z > 1 + 1e-7) up.emplace_back(-z, c);
        if (share > 0 && z < -1 - 1e-7) down.emplace_back(z, c);
      }
      std::set<std::size_t> out;
      for (auto* side : {&up, &down}) {
        std::sort(side->begin(), side->end());
        for (std::size_t i = 0; i < side->size() && (!limited || i < places); ++i) {
          out.insert((*side)[i].second);
        }
      }
      return out;
    };
    const auto value_ends = [&](std::int64_t t) {
      std::vector<std::pair<double, std::size_t>> order;
      for (std::size_t c = 0; c < n; ++c) {
        order.emplace_back(values[static_cast<std::size_t>(t)][c], c);
      }
      std::sort(order.begin(), order.end());
      return order;
    };
    Rows key_z, value_z;
    for (std::int64_t t = sinks; t < kPrompt; ++t) {
      const auto out = key_outliers(t, false);
      for (std::size_t c = 0; c < n; ++c) {
        const double z = (keys[static_cast<std::size_t>(t)][c] - middle[c]) / range[c];
        if (!out.contains(c)) key_z.push_back(static_cast<float>(z));
      }
      const auto order = value_ends(t);
      const double low = order[places].first;
      const double high = order[n - 1 - places].first;
      for (std::size_t i = places; i < n - places; ++i) {
        value_z.push_back(
            static_cast<float>((order[i].first - (low + high) / 2) / ((high - low) / 2)));
      }
    }
    const Rows key_levels = kmeans_levels(key_z, 1 << bits, 50);
    const Rows value_levels = kmeans_levels(value_z, 1 << bits, 50);

    LayerVectors layer;
    layer.heads = heads;
    layer.rope = &rope;
    std::size_t limited_rows = 0;
    for (std::size_t h = 0; h < 2; ++h) {
      PromptScores scores{{heads[h]}, static_cast<std::int32_t>(h), layer};
      test::StoreRun run{
          "kvquant",    {{"bits", bits}, {"outlier_share", share}, {"full_first", sinks}},
          kD,           kTokens,
          Dtype::kFp16, &rope};
      for (std::int32_t t = 0; t < kTokens; ++t) {
        run.table.append(t, heads[h].key(t), heads[h].value(t));
        if (t + 1 == kPrompt) run.store->prompt_written(run.table, scores, 0);
        if (t >= kPrompt) run.store->appended(run.table, t);
        if (t + 1 >= kPrompt) CHECK(run.held() == run.law(t + 1));
      }
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const auto at = static_cast<std::size_t>(t);
        const auto out = key_outliers(t, true);
        if (out.size() < key_outliers(t, false).size()) ++limited_rows;
        test::Vec key;
        for (std::size_t c = h * kD; c < (h + 1) * kD; ++c) {
          const double z = (keys[at][c] - middle[c]) / range[c];
          key.push_back(t < sinks || out.contains(c)
                            ? keys[at][c]
                            : nearest(key_levels, z) * range[c] + middle[c]);
        }
        key = test::times(test::rotation(kD, 10000, true, t, 1), key);
        const auto order = value_ends(t);
        const double low = order[places].first;
        const double high = order[n - 1 - places].first;
        int wrong = 0;
        for (std::size_t j = 0; j < kD; ++j) {
          const std::size_t c = h * kD + j;
          const auto slot = static_cast<std::int32_t>(t);
          wrong += std::abs(static_cast<double>(run.table.key(slot)[j]) - key[j]) > 2e-5 ? 1 : 0;
          const double x = values[at][c];
          double want = x;
          if (t >= sinks && x >= low && x <= high) {
            want = nearest(value_levels, (x - (low + high) / 2) / ((high - low) / 2)) *
                       ((high - low) / 2) +
                   (low + high) / 2;
          }
          wrong += std::abs(static_cast<double>(run.table.value(slot)[j]) - want) > 2e-5 ? 1 : 0;
        }
        // A number halfway between two levels may be rounded to either.
        CHECK(wrong <= 2);
      }
    }
    if (share > 0 && share < .05) CHECK(limited_rows > 0);
  }
}

TEST_CASE("kvquant's bytes: 21 outliers on each side of 4096 channels") {
  const auto law = [](std::int32_t kv_heads, std::int64_t bits, double share,
                      std::int64_t entries) {
    const auto method = make_method(
        {"kvquant", {{"bits", bits}, {"outlier_share", share}}, {}}, 64,
        {.shape = {.n_heads = 32, .n_kv_heads = kv_heads, .head_dim = 128}, .n_layers = 4});
    return as_composed(*method)
        .parts()
        .store->kv_bytes(entries, entries, 128, Dtype::kFp16)
        .count();
  };
  // A row of 32 heads: 42 key and 42 value outliers of 4 B, two fp16 numbers: 340 B, 10.625 per
  // head.
  CHECK(law(32, 3, .01, 33) == 512 + 32 * 2 * 48 + 340);
  CHECK(law(32, 4, .01, 33) == 512 + 32 * 2 * 64 + 340);
  // 8 heads: 6 on each side.
  CHECK(law(8, 3, .01, 9) == 512 + 8 * 2 * 48 + (24 * 4 + 4));
  CHECK(law(8, 2, 0.0, 9) == 512 + 8 * 2 * 32 + 4);
  CHECK(law(8, 3, .01, 2) == 512 + 2 * 48 + 13);  // 12.5 rounded up
  const auto refuses = [](const Params& params, const std::string& name = "kvquant",
                          std::optional<Budget> budget = {}) -> std::string {
    try {
      (void)make_method({name, params, budget}, 64,
                        {.shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64}, .n_layers = 4});
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  CHECK(refuses({{"bits", std::int64_t{5}}}).find("bits") != std::string::npos);
  CHECK(refuses({{"granularity", std::string{"query_head"}}}).find("granularity=kv_head") !=
        std::string::npos);
  CHECK(refuses({{"positions", std::string{"rerotate"}}}, "knorm+store=kvquant", Budget{0, 30})
            .find("positions=original") != std::string::npos);
}

TEST_CASE("kvquant in a replay follows its law, and more bits are better") {
  const Trace trace = Trace::open(kSample);
  const auto result = replay(trace,
                             {{"kvquant", {{"bits", std::int64_t{4}}}, {}},
                              {"kvquant", {{"bits", std::int64_t{2}}}, {}},
                              {"kvquant", {{"bits", std::int64_t{2}}, {"outlier_share", 0.0}}, {}},
                              {"rtn", {}, {}}},
                             {});
  for (const ReplayMethod& m : result.methods) {
    INFO(m.name);
    CHECK(m.bytes_held_final == *m.closed_form_bytes_final);
  }
  CHECK(result.methods[0].rel_error_mean < result.methods[1].rel_error_mean);
  CHECK(result.methods[1].rel_error_mean < result.methods[2].rel_error_mean);
}

}  // namespace
}  // namespace kvsim
