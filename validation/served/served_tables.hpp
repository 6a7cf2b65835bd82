#pragma once

// What the mapping of serving runs knows of engines, benchmark clients and data sets, as data
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
  kNot,          // the opposite
  kChoice,       // one of `words`
  kSpeculation,  // served_speculation
  kElsewhere,    // read with the run's other columns
  kNoEffect,     // changes no result
  kUnmodelled,   // left out, and reported
  kRefused       // the run cannot be expressed
};
struct OptionRule {
  std::vector<std::string> names;  // as EngineOption::name
  OptionUse use = OptionUse::kUnmodelled;
  std::string key{};                           // JSON pointer in a scenario
  std::map<std::string, std::string> words{};  // of kChoice
  std::string reason{};                        // of the last four
  std::string unless{};                        // kRefused: not with this value
  std::optional<EngineVersion> from{};         // kUnmodelled in earlier releases
  std::optional<EngineVersion> before{};       // likewise in this and later ones
};

struct EngineRelease {
  EngineVersion version{};
  double date = 0;  // years since 2000
};

struct ServedEngine {
  std::string name;                // "vLLM"
  std::vector<std::string> words;  // any of which is in a run's engine
  struct StackOf {
    std::string stack;
    std::optional<EngineVersion> before{};
  };
  std::vector<StackOf> stacks{};          // the first that fits a version
  std::vector<EngineRelease> releases{};  // by date
  /// First release whose server samples as the model's generation_config.json says where a request
  /// says nothing.
  std::optional<EngineVersion> model_samples_from{};
  std::vector<OptionRule> options{};

  [[nodiscard]] const OptionRule* find_option(std::string_view option) const;
};

/// The part of a run that a client's figures are of.
enum class MeasureWindow : std::uint8_t {
  kAll,     // every completed request, from the first arrival to the last end
  kSteady,  // the time in which all users are busy: without the start and the end of the run
  kQueued   // from the first arrival until no request waits
};

/// What a client's requests say of sampling.
enum class ClientSampling : std::uint8_t {
  kGreedy,  // temperature 0
  kServer,  // nothing: the server's defaults
  kCutoff   // top-k or top-p
};

/// How many requests a client sends where a run does not say.
struct ServedCount {
  std::string workload, gpu;  // words in a run's workload and GPU; empty: any
  std::int64_t requests = 0;
};

/// A benchmark client.
struct ServedClient {
  std::string name;
  std::vector<std::string> words;      // any of which is in a run's workload or note
  std::vector<std::string> sources{};  // or in its source, if no client's words are in the others
  std::string engine{};                // the only engine that it is used with; empty: any
  bool comes_with_engine = false;      // is used where a run names no client
  std::string source{};
  MeasureWindow window = MeasureWindow::kAll;
  bool declares_output = true;        // max_tokens is the output; else a cap of the data set
  bool exponential_constant = false;  // its "constant" load has exponential gaps
  /// Calls the engine without an API server. Its requests stream, but for those of an offline run.
  bool in_process = false;
  /// By engine: options that it starts it with, unless a run says otherwise ("a=1;b=2").
  std::map<std::string, std::string> engine_options{};
  /// By engine: the usage of its stack, of an engine without data-parallel attention.
  std::map<std::string, std::string> engine_usages{};
  /// By engine: the release that it starts, unless a run says otherwise.
  std::map<std::string, EngineVersion> engine_versions{};
  /// Of the server that it starts: time of a step for each GPU of an engine but the first.
  Seconds step_time_per_further_gpu{0.0};
  std::vector<ServedCount> counts{};  // the first that fits a run
  /// TPOT is the mean over an engine's iterations of the mean gap of their tokens, of the whole
  /// run; else of requests.
  bool tpot_of_iterations = false;
  /// It times every chunk of a chat endpoint, whose first has the role and no token: one gap of
  /// nothing per request.
  bool times_role = false;
  bool ignores_eos = false;      // requests of one length generate exactly that many tokens
  bool repeats_prompts = false;  // request i sends prompt i mod N
  ClientSampling sampling = ClientSampling::kGreedy;
  /// Of the client that comes with an engine: the first release in which it says nothing.
  std::optional<EngineVersion> server_samples_from{};
  bool full_engine = false;  // keeps the engine at its limit of sequences
  bool fp8_recipe = false;   // weights that are not stated are in the GPU's 8- or 4-bit format
  /// A closed loop: from one user's first request to the next user's (0: all start together), and
  /// from an answer to the user's next request.
  Seconds send_time{0.0}, turn_time{0.0};
  std::int64_t requests_per_user = 10;  // simulated where the number of requests is not stated
  std::optional<Seconds> time_out{};
};

/// Lengths of a named data set.
struct ServedLengths {
  std::vector<std::string> words;                // any of which is in a run's workload
  std::string file{};                            // of the folder `lengths`; empty: `prompt_tokens`
  std::map<std::string, std::int64_t> bounds{};  // of the rows that are sampled
  double prompt_tokens = 0, prompt_p99 = 0;      // 0: not known
  std::vector<double> prompt_twentieths{};       // means of equal shares of the sorted prompts
  double output_tokens = 0, output_p99 = 0;
  bool outputs_as_prompts = false;  // outputs vary as prompts do
  std::int64_t cap = 0;             // max_tokens that clients send; 0: the output
  std::string source{};
};

/// How often a proposed token is accepted, where a run does not say.
struct ServedAcceptance {
  std::string draft;  // word_of(Proposer)
  double acceptance = 0;
  std::string source;
};

/// What is known of the cause where a source's values are far from the predicted ones.
struct ServedReason {
  std::string source;                // ScoredRun::source
  std::vector<std::string> metrics;  // empty: all
  std::string reason;
};

[[nodiscard]] std::span<const ServedEngine> served_engines();
/// The engine that a cell names; null: none is known.
[[nodiscard]] const ServedEngine* find_served_engine(std::string_view cell);
/// Whether a run with such a workload and note names the client.
[[nodiscard]] bool is_named(const ServedClient& client, std::string_view workload,
                            std::string_view note);
/// The client of a run with such a workload and note, of such a source, on such an engine.
[[nodiscard]] const ServedClient& find_served_client(std::string_view workload,
                                                     std::string_view note, std::string_view source,
                                                     std::string_view engine);
/// Null: the workload names no set.
[[nodiscard]] const ServedLengths* find_served_lengths(std::string_view workload);
/// Null: none is known.
[[nodiscard]] const ServedAcceptance* find_served_acceptance(std::string_view draft);
/// Null: no cause is known.
[[nodiscard]] const ServedReason* find_served_reason(std::string_view source,
                                                     std::string_view metric);
/// Whether the model called `name` is published with a top-k or a top-p.
[[nodiscard]] bool is_published_with_cutoff(std::string_view name);
/// p99 over mean of outputs that a model generated, of which only the mean is stated.
[[nodiscard]] double generated_p99_per_mean();
/// Share of the requests for a fixed number of tokens that stop before it, at the end of a
/// sequence.
[[nodiscard]] double stopping_share();

}  // namespace kvsim
