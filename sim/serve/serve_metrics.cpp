#include "sim/serve/serve_metrics.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array kShares{0.5, 0.9, 0.95, 0.99};

/// Rank of the smallest of n sorted values with at least that share of all at or below it.
std::int64_t rank_of(double share, std::int64_t n) {
  const auto rank = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(n)));
  return std::clamp<std::int64_t>(rank, 1, n);
}

std::array<double*, 4> quantiles(Distribution& d) { return {&d.p50, &d.p90, &d.p95, &d.p99}; }

double seconds(SimTime t) { return to_seconds(t).count(); }

/// A duration of completed requests; nullopt if the request does not have it.
struct DurationKind {
  std::optional<SimTime> (*of)(const RequestOutcome&);
  Distribution ServeResult::*all;
  Distribution ReplicaResult::*replica;
};
constexpr std::array kDurations{
    DurationKind{[](const RequestOutcome& r) {
                   return r.first_token >= SimTime{} ? std::optional{r.first_token - r.arrival}
                                                     : std::nullopt;
                 },
                 &ServeResult::ttft, &ReplicaResult::ttft},
    DurationKind{[](const RequestOutcome& r) -> std::optional<SimTime> {
                   if (r.output_tokens < 2) return std::nullopt;
                   const std::int64_t gaps = r.output_tokens - 1;
                   return SimTime{((r.finish - r.first_token).count() + gaps / 2) / gaps};
                 },
                 &ServeResult::tpot, &ReplicaResult::tpot},
    DurationKind{[](const RequestOutcome& r) { return std::optional{r.finish - r.arrival}; },
                 &ServeResult::e2e, &ReplicaResult::e2e},
    DurationKind{[](const RequestOutcome& r) { return std::optional{r.scheduled - r.arrival}; },
                 &ServeResult::queue, &ReplicaResult::queue},
};

}  // namespace

Distribution distribution_of(std::vector<SimTime>& sample) {
  Distribution out{.n = std::ssize(sample)};
  if (out.n == 0) return out;
  double sum = 0;
  for (const SimTime t : sample) sum += static_cast<double>(t.count());
  out.mean = sum / static_cast<double>(out.n) * 1e-12;
  auto from = sample.begin();
  for (std::size_t q = 0; q < kShares.size(); ++q) {
    const auto at = sample.begin() + (rank_of(kShares[q], out.n) - 1);
    std::nth_element(from, at, sample.end());
    *quantiles(out)[q] = seconds(*at);
    from = at;
  }
  return out;
}

Distribution distribution_of(std::vector<WeightedTime>& sample) {
  Distribution out;
  double sum = 0;
  for (const WeightedTime& w : sample) {
    out.n += w.times;
    sum += static_cast<double>(w.time.count()) * static_cast<double>(w.times);
  }
  if (out.n == 0) return out;
  out.mean = sum / static_cast<double>(out.n) * 1e-12;
  std::sort(sample.begin(), sample.end(),
            [](const WeightedTime& a, const WeightedTime& b) { return a.time < b.time; });
  std::int64_t below = 0;
  std::size_t q = 0;
  for (const WeightedTime& w : sample) {
    below += w.times;
    while (q < kShares.size() && below >= rank_of(kShares[q], out.n)) {
      *quantiles(out)[q++] = seconds(w.time);
    }
  }
  return out;
}

void for_token_gaps(std::span<const TokenSpan> spans,
                    const std::vector<std::vector<SimTime>>& iteration_ends,
                    std::span<const RequestOutcome> outcomes,
                    const std::function<void(const TokenGap&)>& see) {
  // By replica and stride: change of the number of sequences that get a token in an iteration and
  // in the one a stride before, relative to a stride earlier.
  std::vector<std::map<std::size_t, std::vector<std::int32_t>>> changes(iteration_ends.size());
  std::vector<SimTime> last(outcomes.size(), SimTime{-1});
  for (const TokenSpan& s : spans) {
    const auto request = static_cast<std::size_t>(s.request);
    if (outcomes[request].status != RequestStatus::kCompleted) continue;
    const auto& ends = iteration_ends[static_cast<std::size_t>(s.replica)];
    const auto first = static_cast<std::size_t>(s.first);
    const auto final = static_cast<std::size_t>(s.last());
    const auto stride = static_cast<std::size_t>(s.stride);
    KVSIM_CHECK(final < ends.size(), "tokens after the last iteration");
    if (last[request] >= SimTime{}) {
      see({s.replica, s.first, ends[first] - last[request], 1, true});
    }
    last[request] = ends[final];
    if (s.count == 1) continue;
    if (stride == 0) {
      see({s.replica, s.first, SimTime{}, s.count - 1});
      continue;
    }
    auto& change = changes[static_cast<std::size_t>(s.replica)][stride];
    if (change.empty()) change.resize(ends.size() + stride);
    ++change[first + stride];
    --change[final + stride];
  }
  for (std::size_t r = 0; r < iteration_ends.size(); ++r) {
    const auto& ends = iteration_ends[r];
    for (auto& [stride, sequences] : changes[r]) {
      for (std::size_t i = stride; i < ends.size(); ++i) {
        sequences[i] += sequences[i - stride];
        if (sequences[i] <= 0) continue;
        see({static_cast<std::int32_t>(r), static_cast<std::int32_t>(i), ends[i] - ends[i - stride],
             sequences[i]});
      }
    }
  }
}

namespace {

/// Calls `see` as for_token_gaps does, but combines sequences that paused together.
void for_joint_gaps(const TokenTimes& of, const std::function<void(const WeightedTime&)>& see) {
  WeightedTime last{};
  for_token_gaps(of.spans, of.iteration_ends, of.outcomes, [&](const TokenGap& gap) {
    if (gap.is_pause && last.times > 0 && last.time == gap.time) {
      ++last.times;
      return;
    }
    if (last.times > 0) see(last);
    last = {gap.time, gap.times};
  });
  if (last.times > 0) see(last);
}

/// Returns a bin number that never falls as durations rise from 0. Durations in one bin differ by
/// at most a thousandth.
std::size_t bin_of(SimTime time) {
  constexpr int kBits = 10;
  const auto t = static_cast<std::uint64_t>(time.count());
  const int cut = std::max(0, static_cast<int>(std::bit_width(t)) - kBits - 1);
  return (static_cast<std::size_t>(cut) << kBits) + static_cast<std::size_t>(t >> cut);
}
constexpr std::size_t kBins = std::size_t{64} << 10;

}  // namespace

std::vector<WeightedTime> token_gaps(const TokenTimes& of) {
  std::vector<WeightedTime> gaps;
  for_joint_gaps(of, [&](const WeightedTime& gap) { gaps.push_back(gap); });
  return gaps;
}

Distribution gap_distribution(const TokenTimes& of) {
  Distribution out;
  double sum = 0;
  std::vector<std::int64_t> in_bin(kBins);
  for_joint_gaps(of, [&](const WeightedTime& gap) {
    out.n += gap.times;
    sum += static_cast<double>(gap.time.count()) * static_cast<double>(gap.times);
    in_bin[bin_of(gap.time)] += gap.times;
  });
  if (out.n == 0) return out;
  out.mean = sum / static_cast<double>(out.n) * 1e-12;
  // A service has millions of gaps: only gaps next to a quantile are listed and sorted.
  struct Bin {
    std::int64_t below = 0;
    std::vector<WeightedTime> gaps{};
  };
  std::map<std::size_t, Bin> bins;
  std::size_t bin = 0;
  std::int64_t below = 0;
  for (const double share : kShares) {
    while (below + in_bin[bin] < rank_of(share, out.n)) below += in_bin[bin++];
    bins[bin].below = below;
  }
  for_joint_gaps(of, [&](const WeightedTime& gap) {
    const auto found = bins.find(bin_of(gap.time));
    if (found != bins.end()) found->second.gaps.push_back(gap);
  });
  std::size_t q = 0;
  for (auto& [number, each] : bins) {
    std::sort(each.gaps.begin(), each.gaps.end(),
              [](const WeightedTime& a, const WeightedTime& b) { return a.time < b.time; });
    for (const WeightedTime& gap : each.gaps) {
      each.below += gap.times;
      while (q < kShares.size() && each.below >= rank_of(kShares[q], out.n)) {
        *quantiles(out)[q++] = seconds(gap.time);
      }
    }
  }
  return out;
}

bool keeps(const SloSpec& slo, const RequestOutcome& r) {
  if (r.status != RequestStatus::kCompleted) return false;
  const SimTime total = r.finish - r.arrival;
  const SimTime answer = r.first_token >= SimTime{} ? r.first_token - r.arrival : total;
  const double per_token = r.output_tokens >= 2 ? seconds(r.finish - r.first_token) /
                                                      static_cast<double>(r.output_tokens - 1)
                                                : 0;
  return (!slo.ttft || seconds(answer) <= slo.ttft->count()) &&
         (!slo.tpot || per_token <= slo.tpot->count()) &&
         (!slo.e2e || seconds(total) <= slo.e2e->count());
}

std::array<double, 3> slo_shares(const SloSpec& slo, const RequestOutcome& r) {
  const SimTime total = r.finish - r.arrival;
  const SimTime answer = r.first_token >= SimTime{} ? r.first_token - r.arrival : total;
  const double token = r.output_tokens >= 2
                           ? to_seconds(r.finish - r.first_token).count() / (r.output_tokens - 1)
                           : 0;
  return {slo.ttft ? to_seconds(answer).count() / slo.ttft->count() : 0,
          slo.tpot ? token / slo.tpot->count() : 0,
          slo.e2e ? to_seconds(total).count() / slo.e2e->count() : 0};
}

void measure(ServeResult& result, const SloSpec& slo) {
  SimTime first{-1}, last{-1};
  std::int64_t good = 0;
  for (const RequestOutcome& r : result.outcomes) {
    if (r.arrival >= SimTime{} && (first < SimTime{} || r.arrival < first)) first = r.arrival;
    if (r.status == RequestStatus::kRejected) ++result.rejected;
    if (r.status == RequestStatus::kUnfinished) ++result.unfinished;
    if (r.status != RequestStatus::kCompleted) continue;
    ++result.completed;
    result.output_tokens += r.output_tokens;
    result.prompt_tokens += r.prompt_tokens;
    last = std::max(last, r.finish);
    good += keeps(slo, r) ? 1 : 0;
  }
  for (const DurationKind& kind : kDurations) {
    std::vector<SimTime> sample;  // one kind after another: millions of requests need much memory
    sample.reserve(static_cast<std::size_t>(result.completed));
    for (const RequestOutcome& r : result.outcomes) {
      if (r.status != RequestStatus::kCompleted) continue;
      if (const auto duration = kind.of(r)) sample.push_back(*duration);
    }
    result.*kind.all = distribution_of(sample);
  }
  result.itl = gap_distribution({result.spans, result.iteration_ends, result.outcomes});
  if (last >= SimTime{}) result.makespan = last - first;
  const double span = seconds(result.makespan);
  if (span > 0) {
    result.request_s = static_cast<double>(result.completed) / span;
    result.output_tok_s = static_cast<double>(result.output_tokens) / span;
    result.total_tok_s = static_cast<double>(result.output_tokens + result.prompt_tokens) / span;
  }
  if (!slo.empty()) {
    result.goodput = span > 0 ? static_cast<double>(good) / span : 0;
    const auto all = static_cast<double>(result.outcomes.size());
    result.slo_attained = all > 0 ? static_cast<double>(good) / all : 0;
  }
}

void measure_replicas(ServeResult& result) {
  for (const TokenSpan& s : result.spans) {
    result.replicas[static_cast<std::size_t>(s.replica)].output_tokens += s.count;
  }
  for (const RequestOutcome& r : result.outcomes) {
    if (r.status != RequestStatus::kCompleted) continue;
    ++result.replicas[static_cast<std::size_t>(r.replica)].completed;
  }
  std::vector<std::vector<SimTime>> samples(result.replicas.size());
  for (const DurationKind& kind : kDurations) {
    for (auto& sample : samples) sample.clear();
    for (const RequestOutcome& r : result.outcomes) {
      if (r.status != RequestStatus::kCompleted) continue;
      const auto duration = kind.of(r);
      if (duration) samples[static_cast<std::size_t>(r.replica)].push_back(*duration);
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
      result.replicas[i].*kind.replica = distribution_of(samples[i]);
    }
  }
}

int shown_percentile(double attainment) {
  constexpr double kRounding = 1e-9;
  for (const int percentile : {50, 90, 95}) {
    if (attainment <= percentile / 100.0 + kRounding) return percentile;
  }
  return 99;
}

double value_at(const Distribution& times, int percentile) {
  switch (percentile) {
    case 50:
      return times.p50;
    case 90:
      return times.p90;
    case 95:
      return times.p95;
    default:
      return times.p99;
  }
}

}  // namespace kvsim
