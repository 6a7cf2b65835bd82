#include "sim/batch/engine_settings.hpp"

#include "sim/batch/static_run.hpp"

namespace kvsim {

std::shared_ptr<const EngineSettings> engine_settings(const StaticSpec& spec) {
  return with_options(*spec.stack, spec.options, {spec.gpu, spec.llm, spec.tensor_parallel})
      .settings;
}

}  // namespace kvsim
