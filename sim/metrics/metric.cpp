#include "sim/metrics/metric.hpp"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace kvsim {

using nlohmann::ordered_json;

namespace {

ordered_json finite(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

struct JsonOf {
  MetricKind kind;
  ordered_json operator()(MetricValue::Null /*null*/) const { return nullptr; }
  ordered_json operator()(NoMetric /*none*/) const { return nullptr; }
  ordered_json operator()(bool value) const { return value; }
  ordered_json operator()(std::int64_t value) const { return value; }
  ordered_json operator()(double value) const {
    return kind == MetricKind::kBytes ? ordered_json(std::llround(value)) : finite(value);
  }
  ordered_json operator()(const std::string& value) const { return value; }
  ordered_json operator()(const Distribution& d) const {
    const auto value = [&](double x) { return d.n > 0 ? finite(x) : ordered_json(nullptr); };
    return {{"mean", value(d.mean)}, {"p50", value(d.p50)}, {"p90", value(d.p90)},
            {"p95", value(d.p95)},   {"p99", value(d.p99)}, {"n", d.n}};
  }
};

}  // namespace

std::optional<double> MetricValue::number() const {
  if (const auto* whole = std::get_if<std::int64_t>(&any_)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&any_)) return *real;
  return std::nullopt;
}

const Distribution* MetricValue::distribution() const {
  const auto* d = std::get_if<Distribution>(&any_);
  return d != nullptr && d->n > 0 ? d : nullptr;
}

const MetricInfo* find_info(const MetricInfos& infos, std::string_view key) {
  const auto found = std::find_if(infos.begin(), infos.end(),
                                  [&](const MetricInfo* info) { return info->key == key; });
  return found == infos.end() ? nullptr : *found;
}

MetricInfos shown_in(MetricInfos infos, MetricColumn MetricUse::*column) {
  std::erase_if(infos, [&](const MetricInfo* info) { return (info->*column).place == 0; });
  std::stable_sort(infos.begin(), infos.end(), [&](const MetricInfo* a, const MetricInfo* b) {
    return (a->*column).place < (b->*column).place;
  });
  return infos;
}

std::vector<std::string_view> split_columns(std::string_view columns) {
  std::vector<std::string_view> out;
  while (!columns.empty()) {
    const std::size_t end = std::min(columns.find(','), columns.size());
    out.push_back(columns.substr(0, end));
    columns.remove_prefix(std::min(end + 1, columns.size()));
  }
  return out;
}

ordered_json metric_json(const MetricValue& value, MetricKind kind) {
  return std::visit(JsonOf{kind}, value.any());
}

void put_metric(ordered_json& out, std::string_view key, MetricKind kind,
                const MetricValue& value) {
  if (value.has_key()) out[std::string{key}] = metric_json(value, kind);
}

void put_ends(ordered_json& out, std::string_view key, MetricKind kind, const MetricEnds& ends) {
  out[std::string{key} + "_low"] = metric_json(ends.low, kind);
  out[std::string{key} + "_high"] = metric_json(ends.high, kind);
}

}  // namespace kvsim
