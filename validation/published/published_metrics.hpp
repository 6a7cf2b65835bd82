#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvsim {

/// The kind of a metric; rows of one kind are pooled.
enum class PublishedKind : std::uint8_t {
  kPeakMemory,    // peak or held bytes of a run
  kCacheSize,     // bytes of a cache, tokens that a pool holds
  kEngineMemory,  // terms of an engine's start-up
  kCapacity,      // largest batch or context that runs
  kOom,           // whether it runs at all
  kTime,          // latencies and throughputs of a run
  kKernel,        // rates of one kernel
  kRelative,      // two runs of one source compared
  kEngineCache    // what an engine prints about the cache that its memory holds
};
[[nodiscard]] std::string_view name_of(PublishedKind kind);

struct PublishedMetricInfo {
  std::string_view name;
  PublishedKind kind;
  std::string_view rule;  // how it is predicted, for people
};
/// All metrics of the layout that have a rule, and how each is predicted.
[[nodiscard]] std::span<const PublishedMetricInfo> published_metric_rules();
/// nullptr for a metric without one.
[[nodiscard]] const PublishedMetricInfo* find_metric_rule(std::string_view name);

}  // namespace kvsim
