#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvsim {

/// The kind of a metric; rows of one kind are pooled.
enum class PublishedKind : std::uint8_t {
  kPeakMemory,    // peak or held bytes of a run
  kCacheSize,     // bytes of a cache, tokens that fit in a pool
  kEngineMemory,  // terms of an engine's start-up
  kCapacity,      // largest batch or context that runs
  kOom,           // whether it runs at all
  kTime,          // latencies and throughputs of a run
  kKernel,        // rates of one kernel
  kRelative,      // two runs of one source compared
  kEngineCache    // figures that an engine prints about its cache
};
[[nodiscard]] std::string_view name_of(PublishedKind kind);

struct PublishedMetricInfo {
  std::string_view name;
  PublishedKind kind;
  std::string_view rule;  // how it is predicted, for readers
};
/// All metrics of the layout that have a prediction rule, with their rules.
[[nodiscard]] std::span<const PublishedMetricInfo> published_metric_rules();
/// Returns nullptr for a metric without a rule.
[[nodiscard]] const PublishedMetricInfo* find_metric_rule(std::string_view name);

}  // namespace kvsim
