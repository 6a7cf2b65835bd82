#include "sim/report/batch/static_finding.hpp"

#include <optional>

#include "sim/report/text/method_cases.hpp"

namespace kvsim {
namespace {

/// The share of the memory available for a cache that the batch's cache takes.
std::optional<double> cache_share(const StaticResult& r) {
  const auto weights = r.peak_owners.find("weights");
  const Bytes room = r.startup                        ? r.startup->kv_cache
                     : weights == r.peak_owners.end() ? Bytes{}
                                                      : r.usable_hbm - weights->second;
  if (room <= Bytes{}) return std::nullopt;
  return static_cast<double>(r.kv_bytes.count()) / static_cast<double>(room.count());
}

}  // namespace

std::string static_finding(const Scenario& scenario, const std::vector<StaticResult>& results) {
  const auto rival = [](const StaticResult& r) {
    return MethodCase::Rival{.label = {}, .runs = !r.oom, .value = r.decode_tok_s};
  };
  return finding_of(method_cases(scenario, results, rival, cache_share), static_case_words());
}

}  // namespace kvsim
