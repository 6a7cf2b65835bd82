#include "sim/run/replay_job.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "models/math/student_t.hpp"
#include "models/units/error.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

/// Methods replayed together: each holds its series of every head of the current layers.
constexpr std::size_t kMaxConcurrent = 64;

/// Same as replay(), whose result for a method does not depend on the other methods.
ReplayResult replay_in_batches(const Trace& trace, const std::vector<MethodSpec>& methods,
                               const ReplayOptions& options) {
  ReplayResult all;
  for (std::size_t first = 0; first < methods.size(); first += kMaxConcurrent) {
    const std::size_t count = std::min(kMaxConcurrent, methods.size() - first);
    ReplayOptions part = options;
    if (options.progress) {
      part.progress = [&](double done) {
        options.progress((static_cast<double>(first) + done * static_cast<double>(count)) /
                         static_cast<double>(methods.size()));
      };
    }
    const auto begin = methods.begin() + static_cast<std::ptrdiff_t>(first);
    ReplayResult some = replay(trace, {begin, begin + static_cast<std::ptrdiff_t>(count)}, part);
    all.trace = std::move(some.trace);
    all.prompt_tokens = some.prompt_tokens;
    all.source = std::move(some.source);
    all.model = std::move(some.model);
    all.parameters = some.parameters;
    all.sample = std::move(some.sample);
    all.steps = some.steps;
    for (ReplayMethod& method : some.methods) all.methods.push_back(std::move(method));
    for (ReplayFailure& failure : some.failed) {
      all.failed.push_back({first + failure.method, std::move(failure.reason)});
    }
  }
  return all;
}

ReplayJob run_methods(const Trace& trace, const std::vector<MethodSpec>& methods,
                      const ReplayOptions& options, const std::set<std::string>& whole_catalogue) {
  const TraceInfo& info = trace.info();
  const MethodContext site = site_of(info);
  ReplayJob job;
  std::vector<MethodSpec> able;
  std::map<std::size_t, SkippedMethod> skipped;  // by the index of the requested method
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const MethodSpec& spec = methods[i];
    // An unknown method is an error. A method without data in this trace is reported, and the
    // others run.
    if (!whole_catalogue.contains(spec.name)) (void)make_method(spec, info.prompt_tokens, site);
    try {
      (void)resolve_for_trace(spec, info);
      able.push_back(spec);
      job.ran.push_back(i);
    } catch (const InputError& error) {
      if (methods.size() == 1) throw;
      skipped[i] = {method_label(spec), error.what()};
    }
  }
  ReplayOptions each = options;
  each.may_fail = whole_catalogue;
  job.result = replay_in_batches(trace, able, each);
  for (const ReplayFailure& failure : job.result.failed) {
    skipped[job.ran[failure.method]] = {method_label(able[failure.method]), failure.reason};
  }
  if (job.result.methods.empty()) throw InputError{skipped.begin()->second.reason};
  std::erase_if(job.ran, [&](std::size_t i) { return skipped.contains(i); });
  for (auto& [i, method] : skipped) job.skipped.push_back(std::move(method));
  return job;
}

/// Number of standard errors of a sample's mean that bounds its error as often as one standard
/// error bounds that of a normal mean. Few layers may be equal by chance, with a small standard
/// error: Student's t accounts for this by its degrees of freedom.
double student_factor(const ReplaySample& sample) {
  constexpr double kNormal = 1.959964;  // 0.975
  const auto degrees = std::ssize(sample.layers) - std::ssize(sample.layers_by_stratum);
  return degrees < 1 ? 1 : student_t_975(degrees) / kNormal;
}

/// Whether the error of each method is known to within `share` of it; rounding errors count as 0.
bool is_known(const ReplayResult& result, double share) {
  if (!result.sample && !result.steps) return true;
  if (result.sample && std::ssize(result.sample->layers) < result.sample->of_layers) {
    share /= student_factor(*result.sample);
  }
  return std::all_of(result.methods.begin(), result.methods.end(), [&](const ReplayMethod& m) {
    // More layers do not turn NaN into a number.
    if (!m.standard_errors || std::isnan(m.rel_error_mean)) return true;
    if (m.rel_error_mean < kRoundingError) return true;
    const auto& error = m.standard_errors->rel_error_mean;
    return error && *error <= share * m.rel_error_mean;
  });
}

}  // namespace

ReplayJob run_replay_job(const std::filesystem::path& path, const std::vector<MethodSpec>& methods,
                         const ReplayOptions& options,
                         const std::set<std::string>& whole_catalogue) {
  Trace trace = Trace::open(path);
  trace.split(options.split);
  if (!options.until) {
    if (options.layers > 0 || options.heads > 0) {
      trace.sample(options.layers, options.heads, options.seed);
    }
    return run_methods(trace, methods, options, whole_catalogue);
  }
  constexpr std::int32_t kFirstShare = 8;  // of the layers
  constexpr std::int32_t kFirstLayers = 8;
  const std::int32_t all = trace.info().all_layers;
  std::int32_t layers =
      options.layers > 0 ? options.layers : std::max(kFirstLayers, all / kFirstShare);
  for (;; layers *= 2) {
    layers = std::min(layers, all);
    trace.sample(layers, options.heads, options.seed);
    ReplayJob job;
    try {
      job = run_methods(trace, methods, options, whole_catalogue);
    } catch (const InputError&) {
      if (layers == all) throw;
      layers = all;  // no method can run with fewer
      continue;
    }
    const bool known = is_known(job.result, *options.until);
    if (known || layers == all) {
      if (!known) {
        for (ReplayMethod& m : job.result.methods) {
          m.notes.push_back(
              "all layers were replayed, but the error is less certain than --until requires: use "
              "more --heads or --steps");
        }
      }
      return job;
    }
  }
}

}  // namespace kvsim
