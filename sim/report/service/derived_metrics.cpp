#include "sim/report/service/derived_metrics.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

constexpr double kPercent = 100;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

Bytes owner(const Owners& owners, const char* name) {
  const auto found = owners.find(name);
  return found == owners.end() ? Bytes{} : found->second;
}

}  // namespace

RequestTimes times_of(const RequestOutcome& o) {
  RequestTimes times;
  const auto since = [&](SimTime t) {
    return t < SimTime{} ? std::nullopt : std::optional{seconds_of(t - o.arrival)};
  };
  if (o.arrival < SimTime{}) return times;
  times.queue = since(o.scheduled);
  times.ttft = since(o.first_token);
  times.e2e = since(o.finish);
  if (times.ttft && times.e2e && o.output_tokens > 1) {
    times.tpot = seconds_of(o.finish - o.first_token) / static_cast<double>(o.output_tokens - 1);
  }
  return times;
}

std::string_view name_of(HbmPart part) {
  constexpr std::array<std::string_view, kHbmParts> kNames{
      "context",  "weights",          "activations",  "kv_logical",
      "kv_slack", "kv_prefix_cached", "kv_pool_free", "free"};
  return kNames.at(static_cast<std::size_t>(part));
}

std::string_view display_name(HbmPart part) {
  constexpr std::array<std::string_view, kHbmParts> kWords{
      "CUDA context",       "weights",           "activations",    "KV entries",
      "slack of KV blocks", "kept for prefixes", "free KV blocks", "free"};
  return kWords.at(static_cast<std::size_t>(part));
}

std::array<Bytes, kHbmParts> hbm_parts(const ServeResult& result, const ServeSample& s) {
  std::array<Bytes, kHbmParts> parts{};
  const auto at = [&](HbmPart part) -> Bytes& { return parts[static_cast<std::size_t>(part)]; };
  at(HbmPart::kWeights) = owner(result.peak_owners, "weights");
  at(HbmPart::kContext) = owner(result.peak_owners, "context");
  if (result.startup) {
    at(HbmPart::kWeights) = result.startup->weights;
    at(HbmPart::kContext) = result.startup->non_torch + result.startup->graphs;
  }
  at(HbmPart::kLogical) = std::min(s.kv_logical, s.kv_blocks);
  at(HbmPart::kSlack) = s.kv_blocks - at(HbmPart::kLogical);
  at(HbmPart::kCached) = s.kv_cached;
  const Bytes cache = s.kv_blocks + s.kv_cached;
  at(HbmPart::kPoolFree) = std::max(Bytes{}, result.kv_pool - cache);
  const Bytes known =
      at(HbmPart::kWeights) + at(HbmPart::kContext) + cache + at(HbmPart::kPoolFree);
  at(HbmPart::kActivations) = std::max(Bytes{}, s.held - known);
  at(HbmPart::kFree) = std::max(Bytes{}, result.usable_hbm - known - at(HbmPart::kActivations));
  return parts;
}

std::vector<Weighted> ascending(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::vector<Weighted> out;
  for (const double value : values) {
    if (out.empty() || out.back().value != value) out.push_back({value, 0});
    ++out.back().count;
  }
  return out;
}

std::vector<Weighted> token_gaps(const ServeResult& result) {
  std::vector<Weighted> gaps;
  for (const WeightedTime& gap :
       token_gaps(TokenTimes{result.spans, result.iteration_ends, result.outcomes})) {
    gaps.push_back({seconds_of(gap.time), gap.times});
  }
  std::sort(gaps.begin(), gaps.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  return gaps;
}

ServeUtilization utilization(const ServeResult& result) {
  constexpr double kTight = 0.95;
  ServeUtilization use;
  double total = 0;
  for (const auto& timeline : result.timeline) {
    for (std::size_t i = 0; i < timeline.size(); ++i) {
      use.max_running = std::max(use.max_running, timeline[i].running);
      if (i == 0) continue;
      // A sample is valid until the next.
      const double time = seconds_of(timeline[i].at - timeline[i - 1].at);
      const ServeSample& s = timeline[i - 1];
      total += time;
      if (s.waiting == 0) continue;
      use.waits += time;
      const bool tight =
          result.kv_pool > Bytes{} && static_cast<double>(s.kv_blocks.count()) >=
                                          kTight * static_cast<double>(result.kv_pool.count());
      if (tight) use.tight += time;
    }
  }
  if (total > 0) {
    use.waits /= total;
    use.tight /= total;
  }
  return use;
}

ServeBottleneck bottleneck(const ServeResult& r) {
  constexpr double kQueueMatters = 0.05;  // share of time with a request waiting
  constexpr double kIsBusy = 0.95;
  constexpr double kMajority = 0.5;
  constexpr double kPreemptionsMatter = 0.01;  // of the requests completed
  constexpr double kLittle = 0.25;             // of the data sheet's rates
  const auto percent = [](double share) { return fmt::format("{:.0f} %", kPercent * share); };
  if (r.startup && r.startup->shortage() > Bytes{} && r.completed == 0) {
    return {"start", fmt::format("it does not start: the cache's pool leaves {:.1f} GiB less than "
                                 "activations and CUDA graphs need",
                                 static_cast<double>(r.startup->shortage().count()) / kGiB)};
  }
  if (r.startup && !r.startup->serves() && r.completed == 0) {
    const double missing = static_cast<double>(r.startup->missing.count()) / kGiB;
    return {
        "start",
        r.startup->missing > Bytes{}
            ? fmt::format("it does not start: {:.1f} GiB of HBM are missing before any "
                          "cache",
                          missing)
            : fmt::format("it does not start: the cache holds {} tokens, less than its longest "
                          "sequence of {}",
                          with_commas(r.startup->tokens), with_commas(r.startup->max_model_len))};
  }
  if (r.completed == 0) {
    if (r.rejected == 0) return {"rejection", "no request completed"};
    return {"rejection",
            r.block_tokens > 0
                ? "no request can be served: each is longer than the engine or its cache allows"
                : "no request can be served: every batch runs out of memory"};
  }
  const ServeUtilization shares = utilization(r);
  const bool queues = shares.waits >= kQueueMatters;
  // One preemption among thousands of requests is not a bound.
  const bool preempts =
      static_cast<double>(r.preemptions) >= kPreemptionsMatter * static_cast<double>(r.completed);
  if (queues && ((r.preemptions > 0 && preempts) || shares.tight > kMajority * shares.waits)) {
    std::string text =
        fmt::format("bound by KV capacity: the cache was full {} of the time while requests waited",
                    percent(shares.tight));
    if (r.preemptions > 0) {
      text += fmt::format("; {} preemption{}", with_commas(r.preemptions),
                          r.preemptions == 1 ? "" : "s");
    }
    return {"kv_capacity", text};
  }
  if (queues && r.reservation_wait_share > kMajority * shares.waits) {
    std::string text = fmt::format(
        "bound by reservations: requests waited {} of the time, {} of it for free cache that was "
        "reserved for future outputs",
        percent(shares.waits), percent(r.reservation_wait_share));
    if (r.undeclared > 0) {
      text += fmt::format("; {} of {} requests have no declared_tokens, so that each may reach ",
                          with_commas(r.undeclared), with_commas(std::ssize(r.outcomes)));
      text += r.startup
                  ? fmt::format("{} tokens (max_model_len)", with_commas(r.startup->max_model_len))
                  : "the longest sequence (max_model_len)";
    }
    return {"kv_reservation", text};
  }
  if (!queues || r.busy < kIsBusy) {
    return {"arrival_rate",
            fmt::format("bound by the arrival rate: the engine was busy {} of the time; requests "
                        "waited {} of it",
                        percent(r.busy), percent(shares.waits))};
  }
  const std::int64_t limit = r.limits.seqs;
  if (limit > 0 && shares.max_running >= limit) {
    return {"max_num_seqs",
            fmt::format("bound by max_num_seqs: {} sequences ran at once, and others waited",
                        with_commas(limit))};
  }
  if (std::max(r.mfu, r.mbu) < kLittle && r.tokens_full > kMajority) {
    return {"token_budget",
            fmt::format("bound by the token budget: {} tokens per iteration are used up {} of the "
                        "time, at {} of the compute peak and {} of the memory bandwidth",
                        with_commas(r.limits.tokens), percent(r.tokens_full), percent(r.mfu),
                        percent(r.mbu))};
  }
  if (std::max(r.mfu, r.mbu) < kLittle) {
    return {"host", fmt::format("bound by overhead: the host, launches and small kernels; {} of "
                                "its compute peak and {} of its memory bandwidth are used",
                                percent(r.mfu), percent(r.mbu))};
  }
  return r.mfu >= r.mbu
             ? ServeBottleneck{"compute",
                               fmt::format("bound by compute: {} of the data sheet's peak, {} of "
                                           "its memory bandwidth",
                                           percent(r.mfu), percent(r.mbu))}
             : ServeBottleneck{
                   "memory_bandwidth",
                   fmt::format("bound by memory bandwidth: {} of the data sheet's, {} of its "
                               "compute peak",
                               percent(r.mbu), percent(r.mfu))};
}

}  // namespace kvsim
