#include "sim/cli/replay_job.hpp"

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/scenario/method_field.hpp"
#include "traces/trace.hpp"

namespace kvsim {

ReplayJob run_replay_job(const std::filesystem::path& path, const std::vector<MethodSpec>& methods,
                         const ReplayOptions& options) {
  const Trace trace = Trace::open(path);
  const TraceInfo& info = trace.info();
  const MethodSite site = site_of(info);
  ReplayJob job;
  std::vector<MethodSpec> able;
  for (const MethodSpec& spec : methods) {
    // A method that does not exist as asked for is a mistake; one that this trace has no data for,
    // or that cannot keep its budget at this prompt, is told of, and the others run.
    MethodSpec unbounded = spec;
    unbounded.budget.reset();
    (void)make_method(unbounded, info.prompt_tokens, site);
    try {
      (void)settle_for_trace(spec, info);
      able.push_back(spec);
    } catch (const InputError& error) {
      if (methods.size() == 1) throw;
      job.skipped.push_back({method_label(spec), error.what()});
    }
  }
  if (able.empty()) throw InputError{job.skipped.front().reason};
  job.result = replay(trace, able, options);
  return job;
}

}  // namespace kvsim
