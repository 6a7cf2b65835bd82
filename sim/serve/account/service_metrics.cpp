#include "sim/serve/account/service_metrics.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <nlohmann/json.hpp>

namespace kvsim {
namespace {

using Result = ServeResult;
using Row = Metric<ServeResult>;
using Kind = MetricKind;

/// The value of a member.
template <auto Member>
MetricValue of(const Result& r) {
  return r.*Member;
}

MetricValue share(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return {};
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// A member of the pool's interval; null if the stack has no pool.
template <auto Member>
MetricValue of_pool(const Result& r) {
  return r.pool_interval ? MetricValue{(*r.pool_interval).*Member} : MetricValue{};
}

constexpr auto kMetrics = std::to_array<Metric<Result>>({
    Row(Kind::kCount, "requests", "", "number of requests in the workload",
        [](const Result& r) -> MetricValue { return r.completed + r.rejected + r.unfinished; }),
    Row(Kind::kCount, "completed", "", "number of completed requests", of<&Result::completed>,
        {.summary = {10, "done"}}),
    Row(Kind::kCount, "rejected", "",
        "requests longer than the engine's longest sequence or its cache; with static batches, "
        "requests of a batch that ran out of memory",
        of<&Result::rejected>),
    Row(Kind::kCount, "unfinished", "", "requests not finished at the end of the run",
        of<&Result::unfinished>),
    Row(Kind::kCount, "preemptions", "", "sequences put back into the queue",
        of<&Result::preemptions>, {.summary = {16, "pre-", "empted"}, .page = {7, "preempted"}}),
    Row(Kind::kCount, "oom_events", "", "allocations that were refused", of<&Result::oom_events>),
    Row(Kind::kLatency, "ttft_s", "s",
        "time to first token: from arrival to the end of the iteration that makes it",
        of<&Result::ttft>,
        {.words = "time to first token",
         .aliases = "ttft, time to first token, prefill",
         .summary = {1, "TTFT", "s"},
         .page = {1, "TTFT", "s"},
         .sweep = {6, "TTFT", "s"},
         .varies_with_times = true}),
    Row(Kind::kLatency, "tpot_s", "s",
        "time per output token: (last token - first token) / (output tokens - 1), of completed "
        "requests with at least two output tokens",
        of<&Result::tpot>,
        {.words = "time per output token",
         .aliases = "tpot",
         .summary = {2, "TPOT", "ms"},
         .page = {2, "TPOT", "s"},
         .sweep = {7, "TPOT", "s"},
         .varies_with_times = true}),
    Row(Kind::kLatency, "itl_s", "s",
        "inter-token latency: every gap between two tokens of a request, preemptions included",
        of<&Result::itl>,
        {.words = "inter-token latency",
         .aliases = "itl",
         .page = {.header = "ITL", .unit = "s"},
         .varies_with_times = true}),
    Row(Kind::kLatency, "e2e_s", "s", "from arrival to the last token", of<&Result::e2e>,
        {.words = "end-to-end time",
         .aliases = "e2e, latency",
         .summary = {3, "E2E", "s"},
         .page = {3, "E2E", "s"},
         .sweep = {8, "E2E", "s"},
         .varies_with_times = true}),
    Row(Kind::kLatency, "queue_s", "s", "from arrival to the request's first iteration",
        of<&Result::queue>, {.aliases = "queue", .varies_with_times = true}),
    Row(Kind::kRate, "output_tok_s", "tok/s",
        "output tokens of completed requests over the makespan", of<&Result::output_tok_s>,
        {.words = "output tokens per second",
         .aliases = "decode, decode tok/s, tok/s, output, output tok/s, throughput",
         .summary = {14, "output", "tok/s"},
         .page = {5, "out tok/s"},
         .sweep = {2, "tok/s", "tok/s"},
         .higher_is_better = true,
         .is_published = true,
         .varies_with_times = true}),
    Row(Kind::kRate, "total_tok_s", "tok/s",
        "prompt and output tokens of completed requests over the makespan",
        of<&Result::total_tok_s>,
        {.aliases = "all, all tok/s",
         .higher_is_better = true,
         .is_published = true,
         .varies_with_times = true}),
    Row(Kind::kRate, "request_s", "requests/s", "completed requests over the makespan",
        of<&Result::request_s>,
        {.aliases = "done, req/s",
         .summary = {13, "done", "req/s"},
         .page = {4, "requests/s"},
         .higher_is_better = true,
         .is_published = true,
         .varies_with_times = true}),
    Row(Kind::kAttained, "goodput", "requests/s",
        "requests per second within all bounds; null without bounds", of<&Result::goodput>,
        {.words = "goodput",
         .aliases = "good",
         .sweep = {3, "goodput", "requests/s"},
         .higher_is_better = true,
         .is_published = true,
         .varies_with_times = true}),
    Row(Kind::kAttained, "slo_attained", "share",
        "share of all requests that are within all bounds; null without bounds",
        of<&Result::slo_attained>,
        {.summary = {4, "good", "%"},
         .page = {6, "in bounds", "share"},
         .higher_is_better = true,
         .varies_with_times = true}),
    Row(Kind::kCount, "gpus", "GPUs", "of the whole service", of<&Result::gpus>),
    Row(Kind::kRate, "output_tok_s_per_gpu", "tok/s", "`output_tok_s` divided by `gpus`",
        [](const Result& r) -> MetricValue {
          return r.output_tok_s / static_cast<double>(r.gpus);
        }),
    Row(Kind::kRate, "total_tok_s_per_gpu", "tok/s", "`total_tok_s` divided by `gpus`",
        [](const Result& r) -> MetricValue { return r.total_tok_s / static_cast<double>(r.gpus); }),
    Row(Kind::kRate, "output_tok_s_per_user", "tok/s", "inverse of the mean TPOT",
        [](const Result& r) -> MetricValue {
          if (r.tpot.n == 0 || r.tpot.mean <= 0) return {};
          return 1 / r.tpot.mean;
        }),
    Row(Kind::kCount, "cut_short", "", "requests that ended at the engine's longest sequence",
        of<&Result::truncated_requests>),
    Row(Kind::kShare, "held_back", "share",
        "share of the makespan in which a request waited for free memory that the scheduler "
        "reserved for future outputs",
        of<&Result::reservation_wait_share>),
    Row(Kind::kShare, "mfu", "share",
        "share of the makespan that the arithmetic of one GPU takes at the data sheet's rate for "
        "each operator's format (fp8 products at the fp8 rate)",
        of<&Result::mfu>,
        {.summary = {18, "MFU", "%"}, .higher_is_better = true, .varies_with_times = true}),
    Row(Kind::kShare, "mbu", "share",
        "likewise: the time to move the bytes at the data sheet's bandwidth", of<&Result::mbu>,
        {.summary = {19, "MBU", "%"}, .higher_is_better = true, .varies_with_times = true}),
    Row(Kind::kShare, "busy", "share", "likewise: the time in which an iteration ran",
        of<&Result::busy>, {.summary = {17, "busy", "%"}, .varies_with_times = true}),
    Row(Kind::kTime, "makespan_s", "s", "first arrival to last finish", of<&Result::makespan>,
        {.varies_with_times = true}),
    Row(Kind::kCount, "iterations", "", "of all replicas", of<&Result::iterations>),
    Row(Kind::kCount, "output_tokens", "tokens", "of completed requests",
        of<&Result::output_tokens>),
    Row(Kind::kCount, "prompt_tokens", "tokens", "likewise", of<&Result::prompt_tokens>),
    Row(Kind::kCount, "recomputed_tokens", "tokens", "tokens prefilled again after preemption",
        of<&Result::recomputed_tokens>),
    Row(Kind::kShare, "prefix_hit_rate", "share",
        "share of the prompt tokens looked up that were found; null if none were looked up",
        [](const Result& r) { return share(r.prefix_hit_tokens, r.prefix_query_tokens); }),
    Row(Kind::kCount, "prefix_hit_tokens", "tokens", "prompt tokens found in the prefix cache",
        of<&Result::prefix_hit_tokens>),
    Row(Kind::kCount, "kv_capacity_tokens", "tokens",
        "capacity of one replica, in tokens of the full cache. Its interval and those of the pool "
        "cover the variation between engine starts: activations, non-PyTorch memory and graphs "
        "vary as in published starts, and the pool is the remainder; measured values in `engine` "
        "have no interval. Null for stacks without a pool",
        of<&Result::kv_capacity_tokens>,
        {.words = "cache capacity",
         .aliases = "kv, cache",
         .sweep = {10, "KV tokens", "tokens"},
         .higher_is_better = true,
         .is_published = true},
        [](const Result& r) -> MetricEnds {
          return {of_pool<&PoolInterval::tokens_low>(r), of_pool<&PoolInterval::tokens_high>(r)};
        }),
    Row(Kind::kCount, "kv_pool_bytes_low", "B", "the interval of `kv_pool_bytes`",
        of_pool<&PoolInterval::low>),
    Row(Kind::kCount, "kv_pool_bytes_high", "B", "likewise", of_pool<&PoolInterval::high>),
    Row(Kind::kCount, "blocks_low", "", "the interval of `blocks`",
        of_pool<&PoolInterval::blocks_low>),
    Row(Kind::kCount, "blocks_high", "", "likewise", of_pool<&PoolInterval::blocks_high>),
    Row(Kind::kText, "pool_interval_basis", "", "basis of these intervals",
        of_pool<&PoolInterval::basis>),
    Row(Kind::kBytes, "peak_hbm_bytes", "B",
        "peak of one GPU. Its interval: for engines, the other terms vary and the pool is the "
        "remainder (vLLM fills its fraction of all memory in any case, so its peak hardly "
        "changes); for static batches, the peak varies as published peaks in PyTorch do; null if "
        "nothing was served",
        of<&Result::peak_hbm>,
        {.words = "peak HBM",
         .aliases = "peak, memory, prefill gib, prefill peak, decode gib, decode peak",
         .sweep = {4, "peak GiB", "GiB"}},
        [](const Result& r) -> MetricEnds { return r.peak_interval; }),
    Row(Kind::kText, "peak_interval_basis", "", "basis of that interval",
        [](const Result& r) -> MetricValue {
          return r.peak_interval ? MetricValue{r.peak_basis} : MetricValue{};
        }),
    Row(Kind::kBytes, "usable_hbm_bytes", "B", "memory of one GPU that the stack may use",
        of<&Result::usable_hbm>),
    Row(Kind::kBytes, "reserved_hbm_bytes", "B",
        "for static batches with `allocator: simulate`: the CUDA context plus the peak reserved "
        "memory of the caching allocator; otherwise absent",
        [](const Result& r) -> MetricValue {
          if (!r.allocator) return NoMetric{};
          return r.reserved_hbm;
        }),
    Row(Kind::kBytes, "kv_pool_bytes", "B", "of one replica's GPU", of<&Result::kv_pool>),
    Row(Kind::kBytes, "offload_fetched_bytes", "B",
        "entries fetched from offload memory over all steps, for one GPU of each replica",
        of<&Result::offload_fetched>),
    Row(Kind::kBytes, "offload_written_bytes", "B", "likewise: entries written to offload memory",
        of<&Result::offload_written>),
    Row(Kind::kShare, "link_wait", "share",
        "share of the makespan by which these transfers prolong steps", of<&Result::link_wait>),
    Row(Kind::kBytes, "kv_dropped_bytes", "B",
        "tokens' entries that one GPU no longer held when their request completed "
        "([serving.md](serving.md#heads-that-differ))",
        of<&Result::kv_dropped>),
    Row(Kind::kBytes, "kv_reclaimed_bytes", "B", "likewise: the blocks freed by this",
        of<&Result::kv_reclaimed>),
    Row(Kind::kCount, "blocks", "", "of one replica's pool", of<&Result::blocks>),
    Row(Kind::kCount, "block_tokens", "tokens", "of one block", of<&Result::block_tokens>),
    Row(Kind::kCount, "peak_blocks", "", "maximum number in use simultaneously",
        of<&Result::peak_blocks>),
    Row(Kind::kText, "scheduler_as_run", "", "the scheduler with its settings",
        of<&Result::scheduler>),
});

}  // namespace

MetricTable<ServeResult> service_metrics() { return kMetrics; }

nlohmann::ordered_json service_metrics_json(const ServeResult& result,
                                            const std::optional<ServeIntervals>& intervals) {
  nlohmann::ordered_json out;
  put_metrics(out, service_metrics(), result);
  MetricInfos varying = infos_of(service_metrics());
  std::erase_if(varying, [](const MetricInfo* info) { return !info->varies_with_times; });
  std::stable_sort(varying.begin(), varying.end(),
                   [](const auto* a, const auto* b) { return a->kind < b->kind; });
  for (const bool low : {true, false}) {
    for (const MetricInfo* info : varying) {
      const MetricEnds ends = intervals ? intervals->ends(info->key) : MetricEnds{};
      auto& end = out[std::string{info->key} + (low ? "_low" : "_high")];
      end = metric_json(low ? ends.low : ends.high, info->kind);
      if (end.is_object()) end.erase("n");
    }
  }
  out["intervals"] = nullptr;
  if (!intervals) return out;
  out["intervals"] = {
      {"probability", 0.9},
      {"time_factor_low", intervals->faster.run.decode},
      {"time_factor_high", intervals->slower.run.decode},
      {"first_token_factor_low", intervals->faster.run.prefill * intervals->faster.first_token},
      {"first_token_factor_high", intervals->slower.run.prefill * intervals->slower.first_token},
      {"basis", intervals->basis}};
  if (intervals->slo_probability) {
    out["intervals"]["slo_share"] = kSloShare;
    out["intervals"]["slo_probability"] = *intervals->slo_probability;
  }
  return out;
}

}  // namespace kvsim
