#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/methods/resolve/measured.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/fields/plan_field.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

inline constexpr std::string_view kClosedForm = "closed form";

/// One run of a scenario: one choice for each key that is a list in the file.
struct ScenarioPoint {
  /// For a serve point: the engine, and the longest prompt and output of its workload.
  StaticSpec spec;
  MethodSpec method;  // as written in the file; spec.method is the resolved method
  /// The scenario's keys at this point, in file units: "model", "gpu", "stack", "method" (its
  /// name), "budget" (as requested, or null), "method_params" (those given), "dtype", ….
  nlohmann::ordered_json keys;
  /// The keys that differ between points, for legends and table rows: "zeromerge budget 18000".
  std::string label{};
  /// Cache and side data of the whole batch at full length, whether or not they fit; absent if only
  /// a replay can determine them.
  std::optional<Bytes> kv_bytes_wanted{};
  /// The source of the size law: "closed form", "measured on TRACE", …
  std::string size_law{kClosedForm};
  /// The trace on which measure_laws must measure the law; empty if it need not.
  std::filesystem::path measured_on{};
  std::shared_ptr<const MeasuredLaw> measured{};  // set by measure_laws
  std::vector<std::string> notes{};               // remarks on the law
  std::optional<ServeSpec> serve{};               // for kind "serve"; replaces the static run
};

/// A random sample of a trace (ReplayOptions); 0: all.
struct SampleSize {
  std::int32_t layers = 0, heads = 0;  // KV heads of each layer
  std::int64_t steps = 0;
};

/// Replay of an attention trace, in addition to the scenario's points.
struct ReplaySection {
  std::filesystem::path trace;  // resolved against the scenario file's folder
  std::vector<MethodSpec> methods;
  bool per_step = true;
  bool per_head = false;
  TraceSplit split = TraceSplit::kRecorded;
  SampleSize sample{};
};

/// A value published for a point, shown next to the prediction with its error.
struct PublishedValue {
  std::size_t point = 0;  // index into points
  std::string metric;     // "kv_bytes", "peak_hbm_bytes", "throughput_tok_s", "oom_tokens", …
  double value = 0;       // base units
  std::string text;       // as published: "335 GB"
  std::string source;
  std::string note;  // the reason if the figure cannot be right
};

struct Scenario {
  std::string name;  // file name without extension
  std::string title, description;
  std::string kind;  // "static" or "serve"
  std::vector<ScenarioPoint> points;
  std::optional<ReplaySection> replay;
  std::optional<PlanSection> plan;
  std::vector<PublishedValue> published;
  std::optional<std::vector<std::string>> figures;  // names of the figures to draw; absent: all
  nlohmann::ordered_json echo;                      // the scenario that was run, after `extends`
                                                    // and overrides
  std::string hash;  // hexadecimal hash of echo, the same on every machine
  std::uint64_t seed = 0;
  std::vector<std::string> notes;                      // published figures that match no point, …
  std::vector<std::shared_ptr<const Llm>> own_models;  // models read from config.json files
  std::vector<std::shared_ptr<const Gpu>> own_gpus;    // GPUs with corrected memory
  std::vector<std::shared_ptr<const Calibration>> own_calibrations;  // calibrations read from files
};

}  // namespace kvsim
