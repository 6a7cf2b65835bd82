#pragma once

// The explorer's core: the functions that its page calls when a user changes a control. They are
// the same in the program, in the tests and, compiled to WebAssembly (sim/explorer/wasm), in the
// browser. They read scenarios and files as text and use no file, thread or clock.

#include <string_view>

#include <nlohmann/json.hpp>

namespace kvsim {

/// What the page calls the scenario it writes: its name in results, and in complaints.
inline constexpr std::string_view kExplorerFile = "explorer.json";

/// The document of `kvsim run explorer.json --json` ("kvsim.run/1"), of a scenario of kind "static"
/// whose text is `scenario`. Errors: InputError as read_scenario; for what needs files or is no
/// static batch (extends, replay, sweep, plan, "kind": "serve", a method without a closed size
/// law); for more than kMaxExplored points.
[[nodiscard]] nlohmann::ordered_json explore_run(std::string_view scenario);

/// How far each point of the same scenario goes, and what it takes on the way
/// ("kvsim.explore/1", docs/explorer.md): the longest context that fits, as `kvsim plan` answers at
/// confidence 0, and where memory is as tight and as roomy as is likely; and peak, cache and speed
/// at contexts up to beyond there, each as `kvsim run` of that prompt gives it. Errors: as
/// explore_run.
[[nodiscard]] nlohmann::ordered_json explore_reach(std::string_view scenario);

/// How to start the engine of the same scenario's first point: the document of `kvsim run
/// explorer.json --print-command --json` (kvsim.launch/1) with `manifests`, the same as files by
/// kind. Errors: as explore_run; for a stack, method or format that no server has.
[[nodiscard]] nlohmann::ordered_json explore_launch(std::string_view scenario);

/// What an engine's start-up log, or its metric vllm:cache_config_info, says of the scenario's
/// start: the document of `kvsim calibrate --from-log LOG explorer.json --json`
/// (kvsim.calibrate-log/1). `question`: {"scenario": {…}, "log": TEXT}. Errors: as explore_run and
/// start_of_log.
[[nodiscard]] nlohmann::ordered_json explore_log(std::string_view question);

/// A benchmark of a service next to its prediction: the document of `kvsim compare RESULT BENCH
/// --json` (kvsim.compare-bench/1). `question`: {"result": TEXT, "bench": TEXT}, the texts of the
/// result.json of a service and of a file that parse_bench reads. Errors: as compare_bench, with
/// the places "result" and "benchmark".
[[nodiscard]] nlohmann::ordered_json explore_compare(std::string_view question);

/// What the knobs offer ("kvsim.catalogue/1"): models, GPUs, stacks, methods with their parameters,
/// formats, bounds, and the styles of the owners of memory.
[[nodiscard]] nlohmann::ordered_json explorer_catalogue();

inline constexpr std::size_t kMaxExplored = 16;

}  // namespace kvsim
