#pragma once

// Inside of sim/serve: whether enough requests can still keep their bounds.

#include <cstddef>
#include <vector>

#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// Counts the requests that cannot keep a service's bounds any more, as soon as that is sure: those
/// that ended without, and those that have waited for longer than a bound.
class SloWatch {
 public:
  /// Lost is a run in which fewer than the share `attained` of `requests` can keep `slo`.
  SloWatch(const SloSpec& slo, double attained, std::size_t requests);

  void arrived(RequestId id) { arrived_.push_back(id); }
  void ended(RequestId id, const RequestOutcome& outcome);
  /// Looks at those that are still waited for, `outcomes` being those of `now`.
  void look(const std::vector<RequestOutcome>& outcomes, SimTime now);
  [[nodiscard]] bool lost() const { return missed_ > may_miss_; }

 private:
  void miss(RequestId id);

  SloSpec slo_;
  std::size_t may_miss_ = 0;
  std::size_t missed_ = 0;
  std::vector<bool> known_;         // of each request: counted in missed_
  std::vector<RequestId> arrived_;  // in the order of their arrival
  std::size_t answered_ = 0;        // of these, those before it are past their bound on TTFT
  std::size_t finished_ = 0;        // likewise, on the last token
};

/// How many of `n` requests are the share `attained`, rounded up.
[[nodiscard]] std::size_t requests_of_share(double attained, std::size_t n);

}  // namespace kvsim
