#include "traces/requests/generate/workload.hpp"

#include "traces/requests/generate/generate_requests.hpp"
#include "traces/requests/generate/transform_requests.hpp"

namespace kvsim {

RequestTrace make_workload(const WorkloadSpec& spec, std::uint64_t seed) {
  RequestTrace trace;
  if (spec.file) {
    ReadOptions reading = spec.reading;
    reading.seed = seed;
    trace = read_requests(*spec.file, reading);
    if (spec.arrivals) replace_arrivals(trace, *spec.arrivals, spec.think, seed);
  } else if (const auto& agents = spec.generator.agents) {
    trace = generate_agents(*agents, spec.generator.prefix_block, seed);
    replace_arrivals(trace, spec.generator.arrivals, spec.generator.think, seed);
    trace.notes.clear();  // the trace had no other arrivals
  } else {
    trace = generate_requests(spec.generator, seed);
  }
  transform_requests(trace, spec.transform, seed);
  return trace;
}

}  // namespace kvsim
