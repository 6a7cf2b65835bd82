// The compiled half of the Python module: the functions of the program on text and arrays.
// Documents are passed as JSON text, whose numbers read back to the same bits;
// sim/python/kvsim/__init__.py converts them to results.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "sim/plan/plan.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/batch/static_csv.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/launch/launch_report.hpp"
#include "sim/report/plan/plan_report.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/service/serve_csv.hpp"
#include "sim/report/sweep/scenario_sweep.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/version.hpp"
#include "sim/run/replay_job.hpp"
#include "sim/run/run_scenario.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "sim/scenario/read/log_start.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/sweep/run_sweep.hpp"
#include "sim/sweep/runners.hpp"
#include "traces/trace_writer.hpp"

namespace py = pybind11;

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

using Progress = std::function<void(double)>;

/// Thrown to end a run whose caller was interrupted.
struct Interrupted : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "interrupted"; }
};

/// Runs work(progress) on a separate thread, without Python's lock. Meanwhile this thread checks
/// for signals: after Ctrl-C `progress` throws, and KeyboardInterrupt is raised once all threads
/// have stopped.
template <class Work>
std::invoke_result_t<Work, const Progress&> interruptible(Work work) {
  constexpr std::chrono::milliseconds kBetweenLooks{50};
  std::atomic<bool> stop{false};
  const Progress progress = [&stop](double) {
    if (stop) throw Interrupted{};
  };
  auto result = std::async(std::launch::async, [&] { return work(progress); });
  for (;;) {
    {
      const py::gil_scoped_release unlocked;
      if (result.wait_for(kBetweenLooks) == std::future_status::ready) break;
    }
    if (PyErr_CheckSignals() == 0) continue;
    const py::error_already_set interrupt;
    stop = true;
    {
      const py::gil_scoped_release unlocked;
      result.wait();
    }
    throw interrupt;
  }
  return result.get();
}

/// A scenario: `text` as if it were the content of the file `name`, or, without a text, the file of
/// that name.
struct Source {
  std::optional<std::string> text;
  std::string name;
  std::vector<Override> overrides;

  [[nodiscard]] json document() const {
    return text ? scenario_document_of(*text, name, overrides) : scenario_document(name, overrides);
  }
  [[nodiscard]] Scenario scenario() const {
    if (!text) return read_scenario(name, overrides);
    return scenario_of(document(), name, name, !overrides.empty());
  }
};

using Texts = std::map<std::string, std::string>;

Source source_of(std::optional<std::string> text, std::string name,
                 const std::vector<std::pair<std::string, std::string>>& overrides) {
  Source source{std::move(text), std::move(name), {}};
  for (const auto& [pointer, value] : overrides) source.overrides.push_back({pointer, value});
  return source;
}

/// Rejects scenarios with a search or a sweep, which are not runs.
void refuse_searches(const Source& source) {
  const json document = source.document();
  for (const char* key : {"sweep", "plan"}) {
    if (!document.contains(key) || document.at(key).is_null()) continue;
    throw InputError{
        fmt::format("{}: has a {}, which kvsim.{}() runs; set={{\"/{}\": None}} takes it away",
                    source.name, key, key, key)};
  }
}

Texts run(const Source& source, int threads) {
  return interruptible([&](const Progress& progress) {
    refuse_searches(source);
    Scenario scenario = source.scenario();
    const RunReport report = run_scenario(scenario, {.threads = threads, .progress = progress});
    return Texts{
        {"document", to_file_text(run_document(report))},
        {"timeline", report.serves.empty() ? timeline_csv(report) : serve_timeline_csv(report)}};
  });
}

PlanResult planned(Scenario& scenario, int threads, const Progress& progress) {
  measure_missing_laws(scenario, {.threads = threads, .progress = progress});
  return run_plan(scenario, {.threads = threads, .progress = progress});
}

std::string plan(const Source& source, int threads) {
  return interruptible([&](const Progress& progress) {
    Scenario scenario = source.scenario();
    if (!scenario.plan) {
      throw InputError{fmt::format(
          "{}: has no \"plan\", which lists the questions to answer (docs/plan.md)", source.name)};
    }
    const PlanResult result = planned(scenario, threads, progress);
    return to_file_text(plan_document(scenario, result));
  });
}

/// Deployments of a plan's answers, or of the scenario's points; `manifest`: in this format.
std::string launch(const Source& source, const std::optional<std::string>& manifest, int threads) {
  return interruptible([&](const Progress& progress) {
    Scenario scenario = source.scenario();
    std::vector<NamedLaunch> launches;
    if (scenario.plan) {
      const PlanResult result = planned(scenario, threads, progress);
      launches = plan_launches(scenario, result);
    } else {
      launches = point_launches(scenario);
    }
    if (manifest) return launch_manifest(launches, *manifest, "manifest");
    return to_file_text(launch_document(launches));
  });
}

/// The document kvsim.calibrate-log/1 of a start-up log or of a metric.
std::string from_log(const std::string& path, const std::optional<Source>& source) {
  std::optional<ScenarioSource> scenario;
  if (source) {
    scenario = {.name = source->name, .read = [&source](const std::vector<Override>& more) {
                  Source changed = *source;
                  changed.overrides.insert(changed.overrides.end(), more.begin(), more.end());
                  return changed.scenario();
                }};
  }
  return to_file_text(
      log_start_json(start_of_log(read_text_file(path, kLongestLog), path, scenario)));
}

std::string sweep(const Source& source, const std::vector<std::string>& vary,
                  std::optional<std::int64_t> samples, std::optional<std::uint64_t> seed,
                  bool skip_impossible, int threads) {
  return interruptible([&](const Progress& progress) {
    SweepChanges changes{
        .vary = {}, .samples = samples, .seed = seed, .skip_impossible = skip_impossible};
    for (const std::string& axis : vary) changes.vary.push_back(axis_of_text(axis));
    const SweepPlan plan{source.document(), source.name, changes};
    std::vector<std::size_t> todo(plan.size());
    for (std::size_t i = 0; i < todo.size(); ++i) todo[i] = i;
    std::vector<std::string> objects(plan.size());
    run_sweep_points(plan, todo, runner_of(plan.kind()), {.threads = threads},
                     [&](std::size_t point, const std::string& object) {
                       objects[point] = object;
                       progress(0);
                     });
    return scenario_sweep_text(ScenarioSweep{plan, std::move(objects)});
  });
}

/// `methods`: JSON, written as under `method` in scenarios, one or a list. `sample`: JSON, the keys
/// `layers`, `heads` and `steps` of a scenario's `replay`.
Texts replay_trace(const std::string& trace, const std::string& methods, bool per_head,
                   const std::vector<std::int64_t>& block_sizes, std::uint64_t seed, int threads,
                   const std::string& split, const std::string& sample) {
  return interruptible([&](const Progress& progress) {
    const std::vector<MethodSpec> specs = read_replay_methods(Field::parse(methods, "methods"));
    ReplayOptions options;
    options.threads = threads;
    options.per_step = true;
    options.per_head = per_head;
    options.kept_positions = true;
    options.block_sizes = block_sizes;
    options.seed = seed;
    const auto at = split_of(split);
    if (!at) {
      throw InputError{"split", fmt::format("{}", fmt::join(kTraceSplits, ", ")),
                       fmt::format("\"{}\"", split)};
    }
    options.split = *at;
    const SampleSize size = read_sample_size(Field::parse(sample, "replay"));
    options.layers = size.layers;
    options.heads = size.heads;
    options.steps = size.steps;
    options.progress = progress;
    const ReplayJob job = run_replay_job(trace, specs, options);
    ordered_json document = replay_document(job.result, job.skipped);
    add_layer_steps(document, job.result);
    ordered_json kept = ordered_json::array();
    for (const ReplayMethod& method : job.result.methods)
      kept.push_back(kept_document(job.result, method));
    return Texts{{"document", to_file_text(document)}, {"kept", kept.dump()}};
  });
}

using Array = py::array_t<float, py::array::c_style | py::array::forcecast>;

/// Writes a trace of the tensors, in order: name, C-ordered values, and `dtype` "F32" or "F16".
void write_trace(const std::string& path, const std::vector<std::pair<std::string, Array>>& tensors,
                 const std::map<std::string, std::string>& metadata, const std::string& dtype) {
  const TensorType type = dtype == "F16" ? TensorType::kF16 : TensorType::kF32;
  std::vector<TensorPlan> plan;
  for (const auto& [name, array] : tensors) {
    TensorPlan& entry = plan.emplace_back(TensorPlan{name, type, {}});
    for (py::ssize_t i = 0; i < array.ndim(); ++i) entry.shape.push_back(array.shape(i));
  }
  SafetensorsWriter writer{path, plan, metadata};
  for (const auto& [name, array] : tensors) {
    writer.write(std::span{array.data(), static_cast<std::size_t>(array.size())});
  }
  writer.finish();
}

template <class Entries, class Describe>
std::string described(const Entries& entries, Describe describe) {
  ordered_json out = ordered_json::array();
  for (const auto& entry : entries) out.push_back(describe(entry));
  return to_file_text(out);
}

}  // namespace
}  // namespace kvsim

PYBIND11_MODULE(_core, module) {
  using namespace kvsim;
  module.doc() = "What kvsim computes, on text and arrays; import kvsim instead.";
  module.attr("version") = std::string{kvsim_version()};
  py::register_exception<InputError>(module, "InputError", PyExc_ValueError).attr("__module__") =
      "kvsim";
  py::register_exception<Interrupted>(module, "Interrupted", PyExc_RuntimeError);
  py::class_<Source>(module, "Source")
      .def(py::init(&source_of), py::arg("text"), py::arg("name"), py::arg("overrides"));
  module.def("run", &run, py::arg("source"), py::arg("threads"));
  module.def("plan", &plan, py::arg("source"), py::arg("threads"));
  module.def("from_log", &from_log, py::arg("path"), py::arg("source"));
  module.def("launch", &launch, py::arg("source"), py::arg("manifest"), py::arg("threads"));
  module.def("sweep", &sweep, py::arg("source"), py::arg("vary"), py::arg("samples"),
             py::arg("seed"), py::arg("skip_impossible"), py::arg("threads"));
  module.def("replay", &replay_trace, py::arg("trace"), py::arg("methods"), py::arg("per_head"),
             py::arg("block_sizes"), py::arg("seed"), py::arg("threads"), py::arg("split"),
             py::arg("sample"));
  module.def("write_trace", &write_trace, py::arg("path"), py::arg("tensors"), py::arg("metadata"),
             py::arg("dtype"));
  module.def("methods", [] { return described(builtin_methods(), method_json); });
  module.def("models", [] { return described(builtin_llms(), llm_json); });
  module.def("gpus", [] { return described(builtin_gpus(), gpu_json); });
  module.def("stacks", [] { return described(builtin_stacks(), stack_json); });
}
