#pragma once

// Data on engines, benchmark clients and data sets for the mapping of serving runs
// (validation/data/served-engines.json, served-clients.json).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// How an option of an engine is expressed in a scenario.
enum class OptionUse : std::uint8_t {
  kCount,        // a whole number under `key`
  kShare,        // a number in (0, 1]
  kNumber,       // any number
  kSwitch,       // true or false
  kNot,          // a switch with the opposite meaning
  kChoice,       // one of `words`
  kSpeculation,  // served_speculation
  kElsewhere,    // read with the run's other columns
  kNoEffect,     // changes no result
  kUnmodelled,   // ignored and reported
  kRefused       // the run cannot be expressed
};
struct OptionRule {
  std::vector<std::string> names;  // in the form of EngineOption::name
  OptionUse use = OptionUse::kUnmodelled;
  std::string key{};                           // JSON pointer in a scenario
  std::map<std::string, std::string> words{};  // of kChoice
  std::string reason{};                        // of the last four
  std::string unless{};                        // kRefused: except with this value
  std::optional<EngineVersion> from{};         // kUnmodelled in earlier releases
  std::optional<EngineVersion> before{};       // kUnmodelled in this and later releases
};

struct EngineRelease {
  EngineVersion version{};
  double date = 0;  // years since 2000
};

struct ServedEngine {
  std::string name;                // "vLLM"
  std::vector<std::string> words;  // words, any of which is in a run's engine
  struct StackOf {
    std::string stack;
    std::optional<EngineVersion> before{};
  };
  std::vector<StackOf> stacks{};          // the first that matches a version
  std::vector<EngineRelease> releases{};  // by date
  /// First release whose server samples according to the model's generation_config.json by default.
  std::optional<EngineVersion> model_samples_from{};
  std::vector<OptionRule> options{};

  [[nodiscard]] const OptionRule* find_option(std::string_view option) const;
};

/// The part of a run covered by a client's figures.
enum class MeasureWindow : std::uint8_t {
  kAll,     // every completed request, from the first arrival to the last end
  kSteady,  // the time while all users are busy, without the start and the end of the run
  kQueued   // from the first arrival until no request waits
};

/// Sampling settings of a client's requests.
enum class ClientSampling : std::uint8_t {
  kGreedy,  // temperature 0
  kServer,  // the server's defaults
  kCutoff   // top-k or top-p
};

/// Number of requests that a client sends if the run does not state it.
struct ServedCount {
  std::string workload, gpu;  // words in a run's workload and GPU; empty: any
  std::int64_t requests = 0;
};

/// A benchmark client.
struct ServedClient {
  std::string name;
  std::vector<std::string> words;      // words, any of which is in a run's workload or note
  std::vector<std::string> sources{};  // or in its source, if no client's words match
  std::string engine{};                // the only engine it is used with; empty: any
  bool comes_with_engine = false;      // used if a run names no client
  std::string source{};
  MeasureWindow window = MeasureWindow::kAll;
  bool declares_output = true;        // max_tokens is the output; else the data set's cap
  bool exponential_constant = false;  // its "constant" load has exponential gaps
  /// Calls the engine without an API server. Its requests stream, except in offline runs.
  bool in_process = false;
  /// By engine: options it starts the engine with, unless a run states otherwise ("a=1;b=2").
  std::map<std::string, std::string> engine_options{};
  /// By engine: the usage of its stack for an engine without data-parallel attention.
  std::map<std::string, std::string> engine_usages{};
  /// By engine: the release it starts, unless a run states otherwise.
  std::map<std::string, EngineVersion> engine_versions{};
  /// Time per step that the server adds for each GPU of an engine except the first.
  Seconds step_time_per_further_gpu{0.0};
  std::vector<ServedCount> counts{};  // the first that matches a run
  /// TPOT is the mean over the iterations of an engine, in the whole run, of the mean gap of their
  /// tokens; else it is per request.
  bool tpot_of_iterations = false;
  /// The client times every chunk of a chat endpoint, whose first chunk has the role and no token:
  /// one zero gap per request.
  bool times_role = false;
  bool ignores_eos = false;      // requests of fixed length generate exactly that many tokens
  bool repeats_prompts = false;  // request i sends prompt i mod N
  ClientSampling sampling = ClientSampling::kGreedy;
  /// For a client that comes with an engine: the first release without sampling settings.
  std::optional<EngineVersion> server_samples_from{};
  bool full_engine = false;  // keeps the engine at its maximum number of sequences
  bool fp8_recipe = false;   // unstated weights are in the GPU's 8- or 4-bit format
  /// Closed loop: time from one user's first request to the next user's (0: all start together),
  /// and from a response to the user's next request.
  Seconds send_time{0.0}, turn_time{0.0};
  std::int64_t requests_per_user = 10;  // simulated if the number of requests is not stated
  std::optional<Seconds> time_out{};
};

/// Lengths of a named data set.
struct ServedLengths {
  std::vector<std::string> words;                // words, any of which is in a run's workload
  std::string file{};                            // file in the folder `lengths`; empty:
                                                 // `prompt_tokens`
  std::map<std::string, std::int64_t> bounds{};  // of the sampled rows
  double prompt_tokens = 0, prompt_p99 = 0;      // 0: unknown
  std::vector<double> prompt_twentieths{};       // means of equal shares of the sorted prompts
  double output_tokens = 0, output_p99 = 0;
  bool outputs_as_prompts = false;  // outputs have the distribution of prompts
  std::int64_t cap = 0;             // max_tokens that clients send; 0: the output
  std::string source{};
};

/// Acceptance rate of proposed tokens if a run does not state it.
struct ServedAcceptance {
  std::string draft;  // word_of(Proposer)
  double acceptance = 0;
  std::string source;
};

/// Known cause of large differences between a source's values and the predictions.
struct ServedReason {
  std::string source;                // ScoredRun::source
  std::vector<std::string> metrics;  // empty: all
  std::string reason;
};

[[nodiscard]] std::span<const ServedEngine> served_engines();
/// Returns the engine that a cell names; null if unknown.
[[nodiscard]] const ServedEngine* find_served_engine(std::string_view cell);
/// Whether a run with this workload and note names the client.
[[nodiscard]] bool is_named(const ServedClient& client, std::string_view workload,
                            std::string_view note);
/// Returns the client of a run with this workload, note, source and engine.
[[nodiscard]] const ServedClient& find_served_client(std::string_view workload,
                                                     std::string_view note, std::string_view source,
                                                     std::string_view engine);
/// Returns null if the workload names no data set.
[[nodiscard]] const ServedLengths* find_served_lengths(std::string_view workload);
/// Returns null if none is known.
[[nodiscard]] const ServedAcceptance* find_served_acceptance(std::string_view draft);
/// Returns null if no cause is known.
[[nodiscard]] const ServedReason* find_served_reason(std::string_view source,
                                                     std::string_view metric);
/// Whether the model called `name` is published with a top-k or a top-p.
[[nodiscard]] bool is_published_with_cutoff(std::string_view name);
/// Ratio of p99 to mean of generated outputs if only the mean is stated.
[[nodiscard]] double generated_p99_per_mean();
/// Share of requests for a fixed number of tokens that stop earlier at an end-of-sequence token.
[[nodiscard]] double stopping_share();

}  // namespace kvsim
