#include "sim/sweep/runners.hpp"

#include <utility>
#include <vector>

#include "models/units/error.hpp"
#include "sim/sweep/serve_point.hpp"
#include "sim/sweep/static_point.hpp"

namespace kvsim {
namespace {

/// To make a kind of scenario sweepable, add a line here.
const std::vector<std::pair<std::string, PointRunner>>& builtin_runners() {
  static const std::vector<std::pair<std::string, PointRunner>> all{{"static", run_static_point},
                                                                    {"serve", run_serve_point}};
  return all;
}

}  // namespace

PointRunner runner_of(const std::string& kind) {
  std::vector<std::string> known;
  for (const auto& [name, runner] : builtin_runners()) {
    if (name == kind) return runner;
    known.push_back(name);
  }
  throw InputError{unknown_name("kind of scenario to sweep", kind, known)};
}

}  // namespace kvsim
