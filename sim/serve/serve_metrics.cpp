#include "sim/serve/serve_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array kShares{0.5, 0.9, 0.95, 0.99};

/// Of n values in order, the first with at least that share of all at or below it.
std::int64_t rank_of(double share, std::int64_t n) {
  const auto rank = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(n)));
  return std::clamp<std::int64_t>(rank, 1, n);
}

std::array<double*, 4> quantiles(Distribution& d) { return {&d.p50, &d.p90, &d.p95, &d.p99}; }

double seconds(SimTime t) { return to_seconds(t).count(); }

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

std::vector<WeightedTime> token_gaps(std::span<const TokenSpan> spans,
                                     const std::vector<std::vector<SimTime>>& iteration_ends,
                                     std::span<const RequestOutcome> outcomes) {
  // By replica: how many more sequences make a token in an iteration and in the one before.
  std::vector<std::vector<std::int32_t>> changes;
  for (const auto& ends : iteration_ends) changes.emplace_back(ends.size() + 1);
  std::vector<WeightedTime> gaps;
  std::vector<SimTime> last(outcomes.size(), SimTime{-1});
  for (const TokenSpan& s : spans) {
    const auto request = static_cast<std::size_t>(s.request);
    if (outcomes[request].status != RequestStatus::kCompleted) continue;
    const auto& ends = iteration_ends[static_cast<std::size_t>(s.replica)];
    const auto first = static_cast<std::size_t>(s.first);
    const auto count = static_cast<std::size_t>(s.count);
    KVSIM_CHECK(first + count <= ends.size(), "tokens after the last iteration");
    if (last[request] >= SimTime{}) gaps.push_back({ends[first] - last[request], 1});
    last[request] = ends[first + count - 1];
    auto& change = changes[static_cast<std::size_t>(s.replica)];
    ++change[first + 1];
    --change[first + count];
  }
  for (std::size_t r = 0; r < iteration_ends.size(); ++r) {
    const auto& ends = iteration_ends[r];
    std::int64_t sequences = 0;
    for (std::size_t i = 1; i < ends.size(); ++i) {
      sequences += changes[r][i];
      if (sequences > 0) gaps.push_back({ends[i] - ends[i - 1], sequences});
    }
  }
  return gaps;
}

void measure(ServeResult& result, const SloSpec& slo) {
  std::vector<SimTime> ttft, tpot, e2e, queue;
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
    const SimTime total = r.finish - r.arrival;
    // Who generates nothing has its answer when it ends.
    const SimTime answer = r.first_token >= SimTime{} ? r.first_token - r.arrival : total;
    e2e.push_back(total);
    queue.push_back(r.scheduled - r.arrival);
    if (r.first_token >= SimTime{}) ttft.push_back(answer);
    double per_token = 0;
    if (r.output_tokens >= 2) {
      const std::int64_t gaps = r.output_tokens - 1;
      const SimTime spent = r.finish - r.first_token;
      tpot.push_back(SimTime{(spent.count() + gaps / 2) / gaps});
      per_token = seconds(spent) / static_cast<double>(gaps);
    }
    const bool keeps = (!slo.ttft || seconds(answer) <= slo.ttft->count()) &&
                       (!slo.tpot || per_token <= slo.tpot->count()) &&
                       (!slo.e2e || seconds(total) <= slo.e2e->count());
    good += keeps ? 1 : 0;
  }
  result.ttft = distribution_of(ttft);
  result.tpot = distribution_of(tpot);
  result.e2e = distribution_of(e2e);
  result.queue = distribution_of(queue);
  std::vector<WeightedTime> gaps = token_gaps(result.spans, result.iteration_ends, result.outcomes);
  result.itl = distribution_of(gaps);
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

}  // namespace kvsim
