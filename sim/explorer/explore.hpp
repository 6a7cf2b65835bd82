#pragma once

// The explorer's core: the functions that its page calls when a user changes a control. They are
// the same in the program, in the tests and, compiled to WebAssembly (sim/explorer/wasm), in the
// browser. They read scenarios and files as text and use no file, thread or clock.

#include <string_view>

#include <nlohmann/json.hpp>

namespace kvsim {

/// The file name of the scenario that the page writes, in results and in error messages.
inline constexpr std::string_view kExplorerFile = "explorer.json";

/// The document of `kvsim run explorer.json --json` ("kvsim.run/1") for the text of a scenario of
/// kind "static". Errors: InputError as read_scenario; for scenarios that need files or are not
/// static batches (extends, replay, sweep, plan, "kind": "serve", a method without a closed-form
/// size law); for more than kMaxExplored points.
[[nodiscard]] nlohmann::ordered_json explore_run(std::string_view scenario);

/// The longest context of each point of the same scenario ("kvsim.explore/1", docs/explorer.md), as
/// `kvsim plan` computes it at confidence 0, and at both ends of the memory's interval. Also the
/// peak, cache and speed at contexts up to beyond the longest one, as `kvsim run` computes them for
/// that prompt. Errors: as explore_run.
[[nodiscard]] nlohmann::ordered_json explore_reach(std::string_view scenario);

/// The commands that start the engine of the same scenario's first point: the document of `kvsim
/// run explorer.json --print-command --json` (kvsim.launch/1), plus `manifests`, the same launch as
/// files by kind. Errors: as explore_run, and for a stack, method or format that no server
/// supports.
[[nodiscard]] nlohmann::ordered_json explore_launch(std::string_view scenario);

/// The effect of an engine's start-up log, or of its metric vllm:cache_config_info, on the
/// scenario's engine start: the document of `kvsim calibrate --from-log LOG explorer.json --json`
/// (kvsim.calibrate-log/1). `question`: {"scenario": {…}, "log": TEXT}. Errors: as explore_run and
/// start_of_log.
[[nodiscard]] nlohmann::ordered_json explore_log(std::string_view question);

/// Compares a benchmark of a service with its prediction: the document of `kvsim compare RESULT
/// BENCH --json` (kvsim.compare-bench/1). `question`: {"result": TEXT, "bench": TEXT}, the texts of
/// the result.json of a service and of a file that parse_bench reads. Errors: as compare_bench,
/// with the places "result" and "benchmark".
[[nodiscard]] nlohmann::ordered_json explore_compare(std::string_view question);

/// The choices of the page's controls ("kvsim.catalogue/1"): models, GPUs, stacks, methods with
/// their parameters, formats, bounds, and the styles of memory owners.
[[nodiscard]] nlohmann::ordered_json explorer_catalogue();

inline constexpr std::size_t kMaxExplored = 16;

}  // namespace kvsim
