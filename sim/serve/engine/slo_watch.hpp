#pragma once

// Internal to sim/serve: whether enough requests can still meet their bounds.

#include <cstddef>
#include <vector>

#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// Counts the requests that can no longer meet a service's bounds, as soon as this is certain:
/// requests that ended outside them, and requests that have waited longer than a bound.
class SloWatch {
 public:
  /// A run is lost if fewer than the share `attained` of `requests` can meet `slo`.
  SloWatch(const SloSpec& slo, double attained, std::size_t requests);

  void arrived(RequestId id) { arrived_.push_back(id); }
  void ended(RequestId id, const RequestOutcome& outcome);
  /// Checks the requests that are not done; `outcomes` are as of `now`.
  void look(const std::vector<RequestOutcome>& outcomes, SimTime now);
  [[nodiscard]] bool lost() const { return missed_ > may_miss_; }

 private:
  void miss(RequestId id);

  SloSpec slo_;
  std::size_t may_miss_ = 0;
  std::size_t missed_ = 0;
  std::vector<bool> known_;         // per request: counted in missed_
  std::vector<RequestId> arrived_;  // in the order of their arrival
  std::size_t answered_ = 0;        // index into arrived_: earlier ones are past their bound on
                                    // TTFT
  std::size_t finished_ = 0;        // likewise, on the last token
};

/// Returns the share `attained` of `n` requests, rounded up.
[[nodiscard]] std::size_t requests_of_share(double attained, std::size_t n);

}  // namespace kvsim
