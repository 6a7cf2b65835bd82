#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "models/json/field.hpp"
#include "models/units/units.hpp"
#include "traces/requests/formats/length_pairs.hpp"
#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/generate/agent_sessions.hpp"
#include "traces/requests/lengths.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

enum class ArrivalKind : std::uint8_t { kPoisson, kGamma, kFixed, kClosed };

/// Arrival times of requests, or of the first requests of sessions.
struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1.0;       // per second; all but kClosed
  double cv = 1.0;         // kGamma: coefficient of variation of the time between arrivals
  std::int32_t users = 1;  // kClosed: each sends the next request when the previous one has ended
  bool shared = false;     // kClosed: users take the next request from one list (shared_list)
  Seconds ramp{0.0};       // kClosed: the users' first requests are spread evenly over this time
};

/// Time that a user thinks between an answer and the next request.
struct PauseSpec {
  Seconds mean{0.0};
  bool exponential = false;  // otherwise always the mean
};

/// Conversations: the prompt of a turn is the whole conversation so far and new tokens.
struct SessionSpec {
  LengthSpec turns{};  // requests of a session
  PauseSpec think{};   // between the turns
};

/// Prompts that begin with one of a few shared prefixes.
struct SharedPrefixSpec {
  std::int32_t prompts = 1;  // number of different prefixes
  std::int32_t tokens = 0;   // length of each, in addition to the drawn prompt
  double share = 1.0;        // of the sessions (or requests) that have a prefix
  double exponent = 0.0;     // Zipf exponent over the prefixes: 0 is uniform
};

/// A workload from distributions. Every component has its own stream (arrivals, prompt_tokens,
/// output_tokens, lengths, turns, think, shared_prefix), so that a change of one does not affect
/// the others.
struct GeneratorSpec {
  std::string name = "generated";
  ArrivalSpec arrivals{};
  std::int64_t count = 1;  // total number of requests; the last session is cut there
  LengthSpec prompt_tokens{};
  LengthSpec output_tokens{};
  std::optional<LengthPairs> lengths{};  // replaces both
  /// Each of N requests draws its lengths from a different Nth of the distributions, in random
  /// order: totals are those of the distributions for any seed. Pairs are stratified by their sums.
  bool stratified_lengths = false;
  PauseSpec think{};  // closed loop: between a user's requests that belong to different sessions
  std::optional<SessionSpec> sessions{};
  std::optional<SharedPrefixSpec> shared_prefix{};
  std::optional<AgentSpec> agents{};  // replaces everything but `arrivals`, which are those of
                                      // sessions
  std::int32_t prefix_block = 64;     // tokens per id, if sessions or prefixes are shared
};

/// Transformations of a workload, in this order.
struct TransformSpec {
  std::optional<Seconds> spread{};         // each arrival moves by a uniform share of this time
  std::optional<Seconds> from{}, until{};  // arrivals in [from, until) are kept; from becomes 0
  std::optional<std::int64_t> limit{};     // the first N requests
  std::int32_t repeat = 1;                 // number of consecutive repetitions, which do not share
                                           // prefixes
  double rate_scale = 1.0;                 // 2: twice the requests per second (think times are
                                           // unchanged)
  double prompt_scale = 1.0;               // lengths are rounded up
  double output_scale = 1.0;
  std::optional<std::int32_t> max_prompt_tokens{};  // longer prompts are cut
  std::optional<std::int32_t> max_output_tokens{};
  std::optional<std::int32_t> declared_tokens{};  // max_tokens of every request; outputs are cut to
                                                  // it
  bool declares_outputs = false;  // instead: every request declares its true output length
  /// Request i has the text of prompt i mod N, cut to the shorter of both lengths; absent: every
  /// prompt is different.
  std::optional<std::int32_t> distinct_prompts{};
};

/// A file or a generator, and the transformations of its requests.
struct WorkloadSpec {
  std::optional<std::filesystem::path> file{};  // absent: `generator`
  ReadOptions reading{};                        // options for the file
  std::optional<ArrivalSpec> arrivals{};        // for a file: replace its arrivals
  PauseSpec think{};                            // used with `arrivals` in a closed loop
  GeneratorSpec generator{};
  TransformSpec transform{};
};

/// Returns the requests; they pass check_requests. Equal spec and seed produce equal bytes. Errors:
/// InputError (file, line, column) for an invalid file, and if a transformation leaves no request.
[[nodiscard]] RequestTrace make_workload(const WorkloadSpec& spec, std::uint64_t seed);

/// Reads the key `/requests` of a scenario (docs/requests.md lists its members). Relative file
/// names start at `folder`. Reads no requests, except from the file of an empirical distribution.
/// Errors: InputError with the JSON pointer.
[[nodiscard]] WorkloadSpec read_workload(const Field& requests,
                                         const std::filesystem::path& folder);

}  // namespace kvsim
