#include <algorithm>

#include "kernels/merge/nearest_merge.hpp"
#include "kernels/suite/cases/cases.hpp"
#include "models/math/attention/value_spread.hpp"
#include "models/math/merging/cosine_merge.hpp"
#include "models/math/merging/cosine_search.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::NearestShape;
using kernels::SpreadShape;

std::span<const float> row_of(const std::vector<float>& rows, std::int64_t row, std::int64_t d) {
  return std::span{rows}.subspan(at(row * d), at(d));
}

std::vector<std::int32_t> victims_of(const NearestShape& s) {
  std::vector<std::int32_t> victim;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    victim.push_back(static_cast<std::int32_t>((3 * r + 1) % s.entries));
  }
  return victim;
}

std::string nearest_words(const NearestShape& s) {
  return text(s.rows) + " rows of " + text(s.entries) + "x" + text(s.head_dim);
}

template <class T>
void nearest_case(Bench& bench, const NearestShape& shape) {
  bench.add(nearest_words(shape), Stored<T>::kName, [&](Case& c) {
    const std::int64_t d = shape.head_dim;
    auto keys = c.draw<T>(shape.rows * shape.capacity * d);
    const auto victim = victims_of(shape);
    // Two special rows: a victim of zeros, and equal keys, the first of which is the nearest.
    if (shape.rows > 1) std::fill_n(keys.begin() + victim[0] * d, d, 0.0F);
    if (shape.rows > 2 && shape.entries > 3) {
      const std::int64_t base = shape.capacity;
      for (const std::int64_t e : {2, 3}) {
        std::copy_n(keys.begin() + (base + victim[1]) * d, d,
                    keys.begin() + (base + (victim[1] + e) % shape.entries) * d);
      }
    }
    auto& nearest = c.output<std::int32_t>("nearest", shape.rows);
    auto& cosine = c.output<float>("cosine", shape.rows);
    const NearestKeys<T> arguments{c.numbers<T>("keys", keys).span(),
                                   c.input("victim", victim).span(), nearest.span(), cosine.span()};
    c.run(nearest_traffic(shape, sizeof(T)),
          [=](Stream s) { nearest_keys<T>(s, shape, arguments); });
    if (c.timed_alone()) return;
    std::vector<std::int32_t> expected;
    std::vector<double> likeness;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      std::vector<double> all(at(shape.entries));
      cosines(row_of(keys, r * shape.capacity + victim[at(r)], d),
              std::span{keys}.subspan(at(r * shape.capacity * d), at(shape.entries * d)), all);
      all[at(victim[at(r)])] = -2;
      const auto best = std::max_element(all.begin(), all.end());
      expected.push_back(static_cast<std::int32_t>(best - all.begin()));
      likeness.push_back(*best);
    }
    c.compare_exactly("nearest", nearest.download(0, shape.rows), expected);
    c.compare("cosine", cosine.download(0, shape.rows), likeness, 2e-6);
  });
}

template <class T>
void cosine_merge_case(Bench& bench, const NearestShape& shape) {
  bench.add(nearest_words(shape), Stored<T>::kName, [&](Case& c) {
    const std::int64_t d = shape.head_dim;
    const auto keys = c.draw<T>(shape.rows * shape.capacity * d);
    const auto values = c.draw<T>(shape.rows * shape.capacity * d);
    const auto victim = victims_of(shape);
    const auto cosine = c.draw(shape.rows);
    auto threshold = c.draw(shape.rows);
    std::vector<std::int32_t> nearest;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      nearest.push_back(static_cast<std::int32_t>((victim[at(r)] + 1) % shape.entries));
      if (r % 3 == 0) threshold[at(r)] = -std::numeric_limits<float>::infinity();  // unset
    }
    constexpr float kKeep = 0.5F;
    std::vector<double> k{keys.begin(), keys.end()};
    std::vector<double> v{values.begin(), values.end()};
    std::vector<double> next;
    std::vector<std::int32_t> joins;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const auto u = static_cast<double>(cosine[at(r)]);
      const double before = std::isinf(threshold[at(r)]) ? std::numeric_limits<double>::quiet_NaN()
                                                         : static_cast<double>(threshold[at(r)]);
      next.push_back(next_cosine_threshold(before, u, static_cast<double>(kKeep),
                                           1 - static_cast<double>(kKeep)));
      joins.push_back(u >= next.back() ? 1 : 0);
      if (joins.back() == 0) continue;
      const std::int64_t gone = r * shape.capacity + victim[at(r)];
      const CosineJoining joining{
          .key = row_of(keys, gone, d), .value = row_of(values, gone, d), .cosine = u};
      const std::size_t to = at((r * shape.capacity + nearest[at(r)]) * d);
      cosine_merge(std::span{k}.subspan(to, at(d)), std::span{v}.subspan(to, at(d)),
                   std::span{&joining, 1}, CosineWeights::kPaper);
    }
    auto& key_rows = c.numbers<T>("keys", keys);
    auto& value_rows = c.numbers<T>("values", values);
    auto& thresholds = c.numbers<float>("threshold", threshold);
    auto& joined = c.output<std::int32_t>("joined", shape.rows);
    const CosineMerge<T> arguments{.victim = c.input("victim", victim).span(),
                                   .nearest = c.input("nearest", nearest).span(),
                                   .cosine = c.numbers<float>("cosine", cosine).span(),
                                   .keep = kKeep,
                                   .threshold = thresholds.span(),
                                   .keys = key_rows.span(),
                                   .values = value_rows.span(),
                                   .joined = joined.span()};
    c.run(cosine_merge_traffic(shape, std::count(joins.begin(), joins.end(), 1), sizeof(T)),
          [=](Stream s) { cosine_merge_entries<T>(s, shape, arguments); });
    const double allowed = Stored<T>::kRounding + 1e-6;
    const std::int64_t n = shape.rows * shape.capacity * d;
    c.compare("keys", values_of(key_rows.download(0, n)), k, allowed);
    c.compare("values", values_of(value_rows.download(0, n)), v, allowed);
    c.compare("threshold", thresholds.download(0, shape.rows), next, 1e-6);
    c.compare_exactly("joined", joined.download(0, shape.rows), joins);
  });
}

template <class T>
void spread_case(Bench& bench, const SpreadShape& shape, bool expected) {
  bench.add(
      text(shape.rows) + " rows, " + text(shape.max_takers) + " takers of " + text(shape.head_dim) +
          (expected ? ", expected" : ", by chance"),
      Stored<T>::kName, [&](Case& c) {
        const std::int64_t d = shape.head_dim;
        const auto values = c.draw<T>(shape.rows * shape.capacity * d);
        auto attention = c.draw(shape.rows * shape.capacity, 0, 1);
        const auto chance = c.draw(shape.rows, 0, 1);
        std::vector<std::int32_t> victim;
        std::vector<std::int32_t> takers;
        std::vector<float> v = values;
        std::vector<std::int32_t> spreads;
        std::int64_t all = 0;
        std::int64_t of_spread = 0;
        for (std::int64_t r = 0; r < shape.rows; ++r) {
          victim.push_back(static_cast<std::int32_t>(r % 2));
          const float* a = &attention[at(r * shape.capacity)];
          if (r % 7 == 3) attention[at(r * shape.capacity + victim.back())] = 0;
          const std::int64_t m = r % 5 == 4 ? 0 : shape.max_takers - r % 2;
          double sum = 0;
          for (std::int64_t i = 0; i < shape.max_takers; ++i) {
            takers.push_back(static_cast<std::int32_t>(i < m ? i + 2 : -1));
            if (i < m) sum += static_cast<double>(a[i + 2]);
          }
          const double p = spread_probability(static_cast<double>(a[victim.back()]), sum, m);
          const double share = expected ? p : (static_cast<double>(chance[at(r)]) < p ? 1.0 : 0.0);
          all += m;
          spreads.push_back(share > 0 ? 1 : 0);
          if (share == 0) continue;
          of_spread += m;
          for (std::int64_t i = 0; i < m; ++i) {
            spread_value(std::span{v}.subspan(at((r * shape.capacity + i + 2) * d), at(d)),
                         row_of(values, r * shape.capacity + victim.back(), d), share, m);
          }
        }
        auto& rows = c.numbers<T>("values", values);
        auto& spread = c.output<std::int32_t>("spread", shape.rows);
        const ValueSpread<T> arguments{.victim = c.input("victim", victim).span(),
                                       .takers = c.input("takers", takers).span(),
                                       .attention = c.numbers<float>("attention", attention).span(),
                                       .chance = c.numbers<float>("chance", chance).span(),
                                       .expected = expected,
                                       .values = rows.span(),
                                       .spread = spread.span()};
        c.run(spread_traffic(shape, all, std::count(spreads.begin(), spreads.end(), 1), of_spread,
                             sizeof(T)),
              [=](Stream s) { spread_values<T>(s, shape, arguments); });
        c.compare("values", values_of(rows.download(0, shape.rows * shape.capacity * d)), v,
                  Stored<T>::kRounding + 1e-6);
        c.compare_exactly("spread", spread.download(0, shape.rows), spreads);
      });
}

/// Calls add(T{}, rows, entries, head_dim) for each case.
template <class Add>
void for_rows(Add add) {
  for (const auto& [rows, entries, d] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 2, 64},
        {3, 31, 128},
        {31, 33, 64},
        {3, 257, 64}}) {
    add(float{}, rows, entries, d);
    add(kv::Half{}, rows, entries, d);
    add(kv::BFloat16{}, rows, entries, d);
  }
}

}  // namespace

void nearest_key_cases(Bench& bench) {
  for_rows([&](auto type, std::int64_t rows, std::int64_t entries, std::int64_t d) {
    nearest_case<decltype(type)>(
        bench, {.rows = rows, .entries = entries, .capacity = entries + 2, .head_dim = d});
  });
  if (bench.large()) {
    nearest_case<kv::BFloat16>(bench,
                               {.rows = 256, .entries = 4096, .capacity = 4096, .head_dim = 128});
  }
}
void cosine_merge_cases(Bench& bench) {
  for_rows([&](auto type, std::int64_t rows, std::int64_t entries, std::int64_t d) {
    cosine_merge_case<decltype(type)>(
        bench, {.rows = rows, .entries = entries, .capacity = entries + 2, .head_dim = d});
  });
}
void spread_value_cases(Bench& bench) {
  for (const std::int64_t max : {1, 31, 33}) {
    for (const bool expected : {false, true}) {
      const auto add = [&](auto type) {
        spread_case<decltype(type)>(
            bench, {.rows = 9, .max_takers = max, .capacity = max + 4, .head_dim = 64}, expected);
      };
      add(float{});
      add(kv::Half{});
      add(kv::BFloat16{});
    }
  }
}

}  // namespace kvsim::KVSIM_EXECUTOR
