// Separate from the metrics of services: the explorer's core needs only this.

#include "sim/batch/static_metrics_json.hpp"

#include <cmath>

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// Ends of an interval of tokens per second.
struct Rate {
  struct End {
    double value;
    [[nodiscard]] double count() const { return value; }
  };
  End low, high;
};

ordered_json seconds_json(const std::optional<Seconds>& time) {
  return number_json(time ? std::optional{time->count()} : std::nullopt);
}

}  // namespace

ordered_json number_json(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json static_metrics_json(const StaticSpec& spec, const StaticResult& result) {
  const auto& at = result.intervals;
  // Rates are highest if times are lowest.
  const auto rate = [&](const std::optional<Interval>& time) -> std::optional<Rate> {
    if (!time) return std::nullopt;
    const double tokens = static_cast<double>(spec.batch) * static_cast<double>(spec.output_tokens);
    return Rate{{tokens / time->high.count()}, {tokens / time->low.count()}};
  };
  const std::optional<Interval> prefill = at ? at->prefill : std::nullopt;
  const std::optional<Interval> decode = at ? at->decode : std::nullopt;
  std::optional<Interval> whole_run;
  if (prefill && decode) {
    whole_run = Interval{.low = prefill->low + decode->low, .high = prefill->high + decode->high};
  }
  std::optional<Seconds> latency;
  if (result.prefill_time && result.decode_time) {
    latency = *result.prefill_time + *result.decode_time;
  }
  ordered_json out;
  put_predicted(out, "peak_hbm_bytes", result.peak_hbm.count(), at ? at->peak : std::nullopt);
  // From the size law, which is exact.
  put_predicted(out, "kv_bytes", result.kv_bytes.count(), std::optional<BytesInterval>{});
  put_predicted(out, "throughput_tok_s", number_json(result.throughput_tok_s), rate(whole_run));
  put_predicted(out, "decode_tok_s", number_json(result.decode_tok_s), rate(decode));
  put_predicted(out, "latency_s", seconds_json(latency), whole_run);
  put_predicted(out, "prefill_s", seconds_json(result.prefill_time), prefill);
  put_predicted(out, "decode_s", seconds_json(result.decode_time), decode);
  out["oom_tokens_low"] = at && at->oom_low ? ordered_json(*at->oom_low) : ordered_json(nullptr);
  out["oom_tokens_high"] = at && at->oom_high ? ordered_json(*at->oom_high) : ordered_json(nullptr);
  return out;
}

}  // namespace kvsim
