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

/// When requests, or the first requests of sessions, come.
struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1.0;       // a second; all but kClosed
  double cv = 1.0;         // kGamma: coefficient of variation of the time between arrivals
  std::int32_t users = 1;  // kClosed: each sends its next when the last has ended
  bool shared = false;     // kClosed: users take the next request of one list (shared_list)
  Seconds ramp{0.0};       // kClosed: the users' first requests come evenly spread over this
};

/// How long a user thinks between an answer and the next request.
struct PauseSpec {
  Seconds mean{0.0};
  bool exponential = false;  // else always the mean
};

/// Conversations: a turn's prompt is all that was said before, and something new.
struct SessionSpec {
  LengthSpec turns{};  // requests of a session
  PauseSpec think{};   // between the turns
};

/// Prompts that begin with one of a few texts.
struct SharedPrefixSpec {
  std::int32_t prompts = 1;  // different ones
  std::int32_t tokens = 0;   // length of each; comes on top of the drawn prompt
  double share = 1.0;        // of the sessions (or requests) that have one
  double exponent = 0.0;     // Zipf over the prompts: 0, all equal
};

/// A workload from distributions. Every component has its own stream (arrivals, prompt_tokens,
/// output_tokens, lengths, turns, think, shared_prefix), so that none moves when another is
/// changed.
struct GeneratorSpec {
  std::string name = "generated";
  ArrivalSpec arrivals{};
  std::int64_t count = 1;  // requests in all; the last session is cut there
  LengthSpec prompt_tokens{};
  LengthSpec output_tokens{};
  std::optional<LengthPairs> lengths{};  // replaces both
  /// Of N requests each has its lengths from another Nth of the distributions, in random order:
  /// totals are those of the distributions, whatever the seed. Pairs are parted by their sums.
  bool stratified_lengths = false;
  PauseSpec think{};  // closed loop: between a user's requests that belong to no common session
  std::optional<SessionSpec> sessions{};
  std::optional<SharedPrefixSpec> shared_prefix{};
  std::optional<AgentSpec> agents{};  // instead of all but `arrivals`, which are of sessions
  std::int32_t prefix_block = 64;     // tokens per id, if sessions or prefixes are shared
};

/// What is done to a workload, in this order.
struct TransformSpec {
  std::optional<Seconds> spread{};         // each arrival moves by a uniform share of this
  std::optional<Seconds> from{}, until{};  // arrivals in [from, until) stay, from becoming 0
  std::optional<std::int64_t> limit{};     // the first N requests
  std::int32_t repeat = 1;                 // so many times behind each other, prefixes not shared
  double rate_scale = 1.0;                 // 2: twice the requests a second (think times stay)
  double prompt_scale = 1.0;               // lengths are rounded up
  double output_scale = 1.0;
  std::optional<std::int32_t> max_prompt_tokens{};  // longer ones are cut
  std::optional<std::int32_t> max_output_tokens{};
  std::optional<std::int32_t> declared_tokens{};  // max_tokens of every request; outputs end there
  bool declares_outputs = false;  // instead: every request declares what it will generate
  /// Request i has the text of prompt i mod N, cut to the shorter of both lengths; absent: every
  /// prompt is different.
  std::optional<std::int32_t> distinct_prompts{};
};

/// A file or a generator, and what is done to its requests.
struct WorkloadSpec {
  std::optional<std::filesystem::path> file{};  // absent: `generator`
  ReadOptions reading{};                        // of the file
  std::optional<ArrivalSpec> arrivals{};        // of a file: replace those it has
  PauseSpec think{};                            // with them, in a closed loop
  GeneratorSpec generator{};
  TransformSpec transform{};
};

/// The requests; they pass check_requests. Equal spec and seed: equal bytes.
/// Errors: InputError (file, line, column) for a file that is wrong, and where a transformation
/// leaves no request.
[[nodiscard]] RequestTrace make_workload(const WorkloadSpec& spec, std::uint64_t seed);

/// The key `/requests` of a scenario (docs/requests.md lists its members). Relative file names are
/// of `folder`. Reads no request, except of a file that an empirical distribution is taken from.
/// Errors: InputError with the JSON pointer.
[[nodiscard]] WorkloadSpec read_workload(const Field& requests,
                                         const std::filesystem::path& folder);

}  // namespace kvsim
