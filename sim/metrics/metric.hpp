#pragma once

// A metric is a number of a result, described once: a row of the table of its kind of result
// (static_metrics, service_metrics, replay_metrics, plan_metrics). Documents, CSV files, tables,
// pages, `kvsim explain`, sweeps and docs/results.md are generated from the row.

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/units/check.hpp"
#include "models/units/units.hpp"
#include "sim/metrics/distribution.hpp"

namespace kvsim {

struct NoMetric {};  // the document does not have the key
/// One value. Null means that there is no number.
class MetricValue {
 public:
  using Null = std::monostate;
  using Any = std::variant<Null, NoMetric, bool, std::int64_t, double, std::string, Distribution>;

  MetricValue() = default;
  MetricValue(std::nullopt_t /*none*/) {}
  MetricValue(NoMetric none) : any_{none} {}
  MetricValue(bool value) : any_{value} {}
  MetricValue(std::integral auto value) : any_{static_cast<std::int64_t>(value)} {}
  MetricValue(double value) : any_{value} {}
  MetricValue(const char* value) : any_{std::string{value}} {}
  MetricValue(std::string value) : any_{std::move(value)} {}
  MetricValue(std::string_view value) : any_{std::string{value}} {}
  MetricValue(const Distribution& value) : any_{value} {}
  MetricValue(Bytes value) : any_{value.count()} {}
  MetricValue(Seconds value) : any_{value.count()} {}
  MetricValue(SimTime value) : any_{to_seconds(value).count()} {}
  template <class T>
  MetricValue(const std::optional<T>& value) {
    if (value) *this = MetricValue{*value};
  }

  [[nodiscard]] const Any& any() const { return any_; }
  [[nodiscard]] bool has_key() const { return !std::holds_alternative<NoMetric>(any_); }
  /// Returns whole and real numbers; nullopt for all other values.
  [[nodiscard]] std::optional<double> number() const;
  /// nullptr unless it is a distribution of at least one value.
  [[nodiscard]] const Distribution* distribution() const;

 private:
  Any any_;
};

/// The ends of a 90 % interval, the smaller first; null if unknown.
struct MetricEnds {
  MetricValue low, high;

  MetricEnds() = default;
  MetricEnds(MetricValue min, MetricValue max) : low{std::move(min)}, high{std::move(max)} {}
  template <class Ends>
  MetricEnds(const std::optional<Ends>& ends) {
    if (ends) *this = MetricEnds{ends->low, ends->high};
  }
};

enum class MetricKind : std::uint8_t {
  kLatency,   // a distribution over requests or tokens
  kRate,      // per second
  kTime,      // of a run
  kShare,     // of time, work or data; 1 is all
  kAttained,  // share of requests that meet the bounds; null without bounds
  kCount,
  kBytes,  // whole in documents
  kError,  // of attention outputs
  kText
};

/// A column of a table. Columns ascend by `place`; 0: the table does not show the metric.
struct MetricColumn {
  int place = 0;
  std::string_view header{};
  std::string_view unit{};  // below the header on the terminal; scales the value: "GiB", "ms"
  bool verbose = false;     // only if all columns are requested
};

/// The part of a document that contains the metric. Documents order their parts, with other keys
/// between them.
enum class MetricPart : std::uint8_t {
  kMain,
  kFit,       // of a static batch: other sizes that would fit
  kPhases,    // its peaks by phase
  kUsable,    // available memory
  kReserved,  // memory reserved by the allocator
  kWork,      // operations and traffic
  kTimes,     // of a plan's candidate: predicted times at the confidence
  kAtAnswer   // the run at its answer
};

/// Names of a metric for people, and the places where it is shown.
struct MetricUse {
  std::string_view words{};    // "time to first token": in sentences and figures of sweeps
  std::string_view aliases{};  // other names for it in `kvsim explain`, lower case: "ttft, prefill"
  MetricColumn summary{};      // of the terminal's table of points
  MetricColumn page{};   // of the page's table of points; latencies without a place are only in its
                         // table of percentiles; the unit is that of the page
  MetricColumn sweep{};  // of a sweep's table and figures, the most important first
  bool higher_is_better = false;
  bool is_published = false;  // a scenario's "published" may name it
  /// Whether it depends on times: a service's interval comes from runs with other iteration times.
  bool varies_with_times = false;
};

struct MetricInfo : MetricUse {
  std::string_view key;   // in documents and CSV files
  std::string_view unit;  // of its value: "s", "B", "tok/s", "requests/s", "share", "tokens", ""
  MetricKind kind = MetricKind::kCount;
  std::string_view help;  // in Markdown, for docs/results.md and definitions
  MetricPart part = MetricPart::kMain;
};

/// A row: the description of a metric, its value in a result, and its interval if the result itself
/// has one.
template <class Result>
struct Metric {
  using Value = MetricValue (*)(const Result&);
  using Ends = MetricEnds (*)(const Result&);
  using Text = std::string_view;

  MetricInfo info;
  Value value;
  Ends ends;

  constexpr Metric(MetricKind kind, Text key, Text unit, Text help, Value get, MetricUse use = {},
                   Ends get_ends = nullptr)
      : info{use, key, unit, kind, help}, value{get}, ends{get_ends} {}
  /// Returns the same metric in another part of documents.
  [[nodiscard]] constexpr Metric in(MetricPart part) const {
    Metric copy = *this;
    copy.info.part = part;
    return copy;
  }
};
template <class Result>
using MetricTable = std::span<const Metric<Result>>;

/// Returns nullptr if the table does not have the key.
template <class Result>
[[nodiscard]] const Metric<Result>* find_metric(MetricTable<Result> table, std::string_view key) {
  for (const Metric<Result>& metric : table) {
    if (metric.info.key == key) return &metric;
  }
  return nullptr;
}

/// The rows of a table without their values.
using MetricInfos = std::vector<const MetricInfo*>;
template <class Result>
[[nodiscard]] MetricInfos infos_of(MetricTable<Result> table) {
  MetricInfos out;
  for (const Metric<Result>& metric : table) out.push_back(&metric.info);
  return out;
}
/// Returns nullptr if there is no metric with this key.
[[nodiscard]] const MetricInfo* find_info(const MetricInfos& infos, std::string_view key);
/// Returns the metrics with a place in `column`, in its order.
[[nodiscard]] MetricInfos shown_in(MetricInfos infos, MetricColumn MetricUse::*column);

/// For documents: numbers that are not finite become null, bytes are whole.
[[nodiscard]] nlohmann::ordered_json metric_json(const MetricValue& value, MetricKind kind);
/// Writes KEY, unless the value is a NoMetric.
void put_metric(nlohmann::ordered_json& out, std::string_view key, MetricKind kind,
                const MetricValue& value);
/// Writes KEY_low and KEY_high.
void put_ends(nlohmann::ordered_json& out, std::string_view key, MetricKind kind,
              const MetricEnds& ends);

/// Writes the metrics of `part`, in the table's order, each followed by its interval.
template <class Result>
void put_metrics(nlohmann::ordered_json& out, MetricTable<Result> table, const Result& result,
                 MetricPart part = MetricPart::kMain) {
  for (const Metric<Result>& metric : table) {
    if (metric.info.part != part) continue;
    const MetricInfo& info = metric.info;
    put_metric(out, info.key, info.kind, metric.value(result));
    if (metric.ends != nullptr) put_ends(out, info.key, info.kind, metric.ends(result));
  }
}

/// Splits "a,b" into its parts.
[[nodiscard]] std::vector<std::string_view> split_columns(std::string_view columns);
/// Returns the rows of the keys in `columns`, "key,key". Errors: ContractError for an unknown key.
template <class Result>
[[nodiscard]] std::vector<const Metric<Result>*> columns_of(MetricTable<Result> table,
                                                            std::string_view columns) {
  std::vector<const Metric<Result>*> out;
  for (const std::string_view key : split_columns(columns)) {
    out.push_back(find_metric(table, key));
    KVSIM_CHECK(out.back() != nullptr, "no metric is called {}", key);
  }
  return out;
}

}  // namespace kvsim
