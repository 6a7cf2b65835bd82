#include <algorithm>
#include <numbers>

#include "kernels/merge/merge.hpp"
#include "kernels/reference.hpp"
#include "kernels/suite/cases/cases.hpp"
#include "models/math/merging/residual_merge.hpp"
#include "models/math/merging/slerp.hpp"
#include "models/math/merging/zip_merge.hpp"

namespace kvsim::KVSIM_EXECUTOR {
namespace {

using kernels::MergeShape;
using kernels::ResidualShape;

std::span<const float> row_of(const std::vector<float>& rows, std::int64_t row, std::int64_t d) {
  return std::span{rows}.subspan(at(row * d), at(d));
}

template <class T>
void slerp_case(Bench& bench, std::int64_t merges, std::int64_t d, bool far) {
  const MergeShape shape{.merges = merges, .entries = 0, .head_dim = d};
  const std::string words =
      text(merges) + " rows of " + text(d) + (far ? ", distances" : std::string{});
  bench.add(words, Stored<T>::kName, [&](Case& c) {
    constexpr float kT = 0.6F;
    auto a = c.draw<T>(merges * d);
    auto b = c.draw<T>(merges * d);
    if (merges > 2) {  // a row of zeros, and two parallel rows
      std::fill(a.begin(), a.begin() + d, 0.0F);
      for (std::int64_t j = 0; j < d; ++j) b[at(d + j)] = 2 * a[at(d + j)];
    }
    auto& direction = c.output<T>("direction", merges * d);
    auto& norm_a = c.output<float>("norm_a", merges);
    auto& norm_b = c.output<float>("norm_b", merges);
    auto& distance = c.output<float>("distance", far ? merges : 0);
    c.run(slerp_traffic(shape, sizeof(T), far),
          [=, from_a = c.numbers<T>("a", a).span(), from_b = c.numbers<T>("b", b).span(),
           e = direction.span(), na = norm_a.span(), nb = norm_b.span(), apart = distance.span()](
              Stream s) { slerp_rows<T>(s, shape, kT, from_a, from_b, e, na, nb, apart); });
    if (c.timed_alone()) return;
    std::vector<double> expected;
    std::vector<double> norms;
    std::vector<double> apart;
    for (std::int64_t n = 0; n < merges; ++n) {
      const auto x = row_of(a, n, d);
      const auto y = row_of(b, n, d);
      const std::vector<double> from{x.begin(), x.end()};
      const std::vector<double> to{y.begin(), y.end()};
      std::vector<double> e(at(d));
      const Slerp result = slerp(from, to, static_cast<double>(kT), e);
      expected.insert(expected.end(), e.begin(), e.end());
      norms.push_back(result.norm_a);
      norms.push_back(result.norm_b);
      apart.push_back(result.angle / std::numbers::pi);
    }
    c.compare("direction", values_of(direction.download(0, merges * d)), expected,
              Stored<T>::kRounding + 4e-6);
    std::vector<float> got;
    const auto na = norm_a.download(0, merges);
    const auto nb = norm_b.download(0, merges);
    for (std::int64_t n = 0; n < merges; ++n) {
      got.push_back(na[at(n)]);
      got.push_back(nb[at(n)]);
    }
    c.compare("norms", got, norms, 1e-6);
    // For a cosine near 1, the error of the angle is the square root of the rounding error.
    if (far) c.compare("distance", distance.download(0, merges), apart, 1e-3);
  });
}

template <class T>
void zip_case(Bench& bench, std::int64_t merges, std::int64_t d) {
  const MergeShape shape{.merges = merges, .entries = 3 * merges, .head_dim = d};
  bench.add(text(merges) + " pairs of " + text(shape.entries) + "x" + text(d), Stored<T>::kName,
            [&](Case& c) {
              const auto keys = c.draw<T>(shape.entries * d);
              const auto values = c.draw<T>(shape.entries * d);
              auto votes = c.draw(shape.entries, 1, 5);
              // Scores with a well-conditioned, moderate ratio, which is negative for every third
              // pair.
              auto scores = c.draw(shape.entries, 0.5, 3);
              std::vector<std::int32_t> into;
              std::vector<std::int32_t> from;
              for (std::int64_t n = 0; n < merges; ++n) {
                into.push_back(static_cast<std::int32_t>(3 * n + 1));
                from.push_back(static_cast<std::int32_t>(3 * (merges - 1 - n)));
              }
              for (std::int64_t n = 2; n < merges; n += 3) {
                votes[at(into[at(n)])] = 5;
                votes[at(from[at(n)])] = 1;
                scores[at(into[at(n)])] = -1;
                scores[at(from[at(n)])] = 1;
              }
              auto& key_rows = c.numbers<T>("keys", keys);
              auto& value_rows = c.numbers<T>("values", values);
              auto& all_votes = c.numbers<float>("votes", votes);
              auto& all_scores = c.numbers<float>("log_scores", scores);
              const ZipPairs<T> arguments{c.input("into", into).span(),
                                          c.input("from", from).span(),
                                          key_rows.span(),
                                          value_rows.span(),
                                          all_votes.span(),
                                          all_scores.span()};
              c.run(zip_merge_traffic(shape, sizeof(T)),
                    [=](Stream s) { zip_merge_pairs<T>(s, shape, arguments); });
              std::vector<double> k{keys.begin(), keys.end()};
              std::vector<double> v{values.begin(), values.end()};
              std::vector<double> p{votes.begin(), votes.end()};
              std::vector<double> l{scores.begin(), scores.end()};
              for (std::int64_t n = 0; n < merges; ++n) {
                std::vector<ZipMember> members;
                for (const std::int64_t e : {into[at(n)], from[at(n)]}) {
                  members.push_back({.key = row_of(keys, e, d),
                                     .value = row_of(values, e, d),
                                     .votes = static_cast<double>(votes[at(e)]),
                                     .log_score = static_cast<double>(scores[at(e)])});
                }
                const ZipMerged merged = zip_merge(members, {.key = ZipKey::kGuarded}, {}, 1);
                const std::int64_t to = into[at(n)];
                std::copy(merged.key.begin(), merged.key.end(), k.begin() + to * d);
                std::copy(merged.value.begin(), merged.value.end(), v.begin() + to * d);
                p[at(to)] = merged.votes;
                l[at(to)] = merged.log_score;
              }
              const double allowed = Stored<T>::kRounding + 4e-6;
              c.compare("keys", values_of(key_rows.download(0, shape.entries * d)), k, allowed);
              c.compare("values", values_of(value_rows.download(0, shape.entries * d)), v, allowed);
              c.compare("votes", all_votes.download(0, shape.entries), p, 4e-6);
              c.compare("log_scores", all_scores.download(0, shape.entries), l, 4e-6);
            });
}

template <class T>
void residual_case(Bench& bench, std::int64_t merges, std::int64_t slots, std::int64_t d) {
  const ResidualShape shape{.merges = merges, .slots = slots, .capacity = slots + 5, .head_dim = d};
  bench.add(text(merges) + " rows, " + text(slots) + " slots of " + text(d), Stored<T>::kName,
            [&](Case& c) {
              const auto keys = c.draw<T>(merges * shape.capacity * d);
              const auto values = c.draw<T>(merges * shape.capacity * d);
              std::vector<std::int32_t> victim;
              std::vector<std::int32_t> counts;
              for (std::int64_t n = 0; n < merges; ++n) {
                victim.push_back(static_cast<std::int32_t>(slots + n % 5));
                for (std::int64_t i = 0; i < slots; ++i) {
                  counts.push_back(static_cast<std::int32_t>(1 + (n + i) % 9));
                }
              }
              auto& key_rows = c.numbers<T>("keys", keys);
              auto& value_rows = c.numbers<T>("values", values);
              auto& all_counts = c.input("counts", counts);
              const ResidualMerge<T> arguments{c.input("victim", victim).span(), key_rows.span(),
                                               value_rows.span(), all_counts.span()};
              c.run(residual_traffic(shape, sizeof(T)),
                    [=](Stream s) { residual_merge<T>(s, shape, arguments); });
              std::vector<double> k{keys.begin(), keys.end()};
              std::vector<double> v{values.begin(), values.end()};
              for (std::int64_t n = 0; n < merges; ++n) {
                const std::int64_t base = n * shape.capacity;
                const std::int64_t gone = base + victim[at(n)];
                const std::int64_t best =
                    most_similar_key(row_of(keys, gone, d), slots,
                                     [&](std::int64_t i) { return row_of(keys, base + i, d); });
                std::int32_t& count = counts[at(n * slots + best)];
                const std::size_t to = at((base + best) * d);
                join_mean(std::span{k}.subspan(to, at(d)), row_of(keys, gone, d), count);
                join_mean(std::span{v}.subspan(to, at(d)), row_of(values, gone, d), count);
                ++count;
              }
              const double allowed = Stored<T>::kRounding + 1e-6;
              c.compare("keys", values_of(key_rows.download(0, merges * shape.capacity * d)), k,
                        allowed);
              c.compare("values", values_of(value_rows.download(0, merges * shape.capacity * d)), v,
                        allowed);
              c.compare_exactly("counts", all_counts.download(0, merges * slots), counts);
            });
}

/// Calls add(T{}, merges, head_dim) for each case.
template <class Add>
void for_merges(Add add) {
  for (const auto& [merges, d] :
       {std::pair<std::int64_t, std::int64_t>{1, 64}, {31, 128}, {257, 64}}) {
    add(float{}, merges, d);
    add(kv::Half{}, merges, d);
    add(kv::BFloat16{}, merges, d);
  }
}

}  // namespace

void slerp_cases(Bench& bench) {
  for_merges([&](auto type, std::int64_t merges, std::int64_t d) {
    slerp_case<decltype(type)>(bench, merges, d, merges == 31);
  });
  // Rows of all KV heads of a token, in several pieces of a warp's width; the last piece is
  // partial.
  for (const std::int64_t d : {264, 1000, 1024}) {
    slerp_case<float>(bench, 5, d, true);
    slerp_case<kv::Half>(bench, 5, d, false);
    slerp_case<kv::BFloat16>(bench, 5, 2 * d, true);
  }
  if (bench.large()) {
    slerp_case<kv::BFloat16>(bench, 1 << 20, 128, false);
    slerp_case<kv::BFloat16>(bench, 1 << 17, 1024, true);
  }
}
void zip_merge_cases(Bench& bench) {
  for_merges([&](auto type, std::int64_t merges, std::int64_t d) {
    zip_case<decltype(type)>(bench, merges, d);
  });
}
void residual_merge_cases(Bench& bench) {
  for_merges([&](auto type, std::int64_t merges, std::int64_t d) {
    residual_case<decltype(type)>(bench, merges, 1 + merges % 4, d);
  });
}

}  // namespace kvsim::KVSIM_EXECUTOR
