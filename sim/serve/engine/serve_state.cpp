#include "sim/serve/engine/serve_state.hpp"

#include <algorithm>
#include <utility>

#include "models/units/check.hpp"

namespace kvsim {
namespace {
constexpr std::size_t kMaxOoms = 16;
constexpr std::size_t kGroup = ActiveArray<Sequence>::kGroup;
}  // namespace

ServeState::ServeState(const RequestTrace& of)
    : trace{&of},
      sequences(of.requests.size()),
      output(of.requests.size()),
      outcomes(of.requests.size()),
      open(of.requests.size()),
      computed_once(of.requests.size()),
      released_(of.requests.size() / kGroup + 1) {
  spans.reserve(of.requests.size());
  for (std::size_t i = 0; i < of.requests.size(); ++i) {
    outcomes[i].prompt_tokens = of.requests[i].prompt_tokens;
  }
}

void ServeState::arrive(RequestId id, SimTime now) {
  const auto i = static_cast<std::size_t>(id);
  const Request& r = trace->requests[i];
  sequences[i] = {.arrival = now,
                  .prompt = r.prompt_tokens,
                  .declared = r.declared_tokens,
                  .priority = r.priority,
                  .known = r.prompt_tokens,
                  .target = r.prompt_tokens,
                  .rank = arrived++};
  output[i] = r.output_tokens;
  outcomes[i].arrival = now;
}

std::optional<std::size_t> ServeState::release(RequestId id) {
  const std::size_t group = static_cast<std::size_t>(id) / kGroup;
  const std::size_t members = std::min(kGroup, sequences.size() - group * kGroup);
  if (std::cmp_less(++released_[group], members)) return std::nullopt;
  sequences.release_group(group);
  output.release_group(group);
  open.release_group(group);
  computed_once.release_group(group);
  return group;
}

void ServeState::new_span(RequestId id, std::int32_t replica, std::int32_t iteration, SimTime at) {
  TokenSpan& s = open[static_cast<std::size_t>(id)];
  if (s.count > 0) spans.push_back(s);
  s = {
      .request = id, .first = iteration, .count = 1, .replica = static_cast<std::int16_t>(replica)};
  RequestOutcome& out = outcomes[static_cast<std::size_t>(id)];
  if (out.first_token < SimTime{}) out.first_token = at;
}

void ServeState::end(RequestId id, RequestStatus status, SimTime at) {
  Sequence& s = sequences[static_cast<std::size_t>(id)];
  RequestOutcome& out = outcomes[static_cast<std::size_t>(id)];
  KVSIM_CHECK(s.state != SequenceState::kEnded, "request {} ends twice", id);
  s.state = SequenceState::kEnded;
  TokenSpan& span = open[static_cast<std::size_t>(id)];
  if (span.count > 0) spans.push_back(span);
  span.count = 0;
  out.output_tokens = s.generated();
  out.status = status;
  if (status == RequestStatus::kCompleted) out.finish = at;
  ended.push_back(id);
}

void ServeState::oom(SimTime at, RequestId id, std::string what, Bytes requested, Bytes free,
                     const Owners& owners, std::string message) {
  ++oom_events;
  if (ooms.size() < kMaxOoms) {
    ooms.push_back({.at = at,
                    .request = id,
                    .what = std::move(what),
                    .requested = requested,
                    .free = free,
                    .owners = owners,
                    .message = std::move(message)});
  }
}

}  // namespace kvsim
