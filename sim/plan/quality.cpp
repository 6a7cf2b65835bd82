#include "sim/plan/quality.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/plan/boundary.hpp"
#include "sim/replay/replay.hpp"
#include "sim/scenario/fields/method_field.hpp"
#include "traces/trace.hpp"
#include "traces/trace_model.hpp"

namespace kvsim {
namespace {

bool same_method(const MethodQuality& method, const MethodSpec& spec) {
  return method.name == spec.name && method.params == spec.params;
}

double share_of(const QualityTry& one) { return one.budget ? one.budget->fraction : 0; }

/// Replays the floor's trace and judges the results.
class Judge {
 public:
  Judge(const QualityFloor& floor, const Trace& trace, std::uint64_t seed, int threads)
      : floor_{floor}, trace_{trace} {
    options_.seed = seed;
    options_.threads = threads;
  }

  void judge(std::vector<std::pair<MethodSpec, QualityTry*>> wanted) const {
    std::vector<MethodSpec> able;
    std::vector<QualityTry*> of_able;
    for (auto& [spec, one] : wanted) {
      if (spec.budget && !(spec.budget->fraction > 0)) {
        one->why = fmt::format(
            "a budget of {} entries applies to one prompt length; the trace has {} prompt tokens",
            spec.budget->entries, trace_.info().prompt_tokens);
        continue;
      }
      try {
        (void)resolve_for_trace(spec, trace_.info());
      } catch (const InputError& error) {
        one->why = error.what();
        continue;
      }
      able.push_back(spec);
      of_able.push_back(one);
    }
    if (able.empty()) return;
    const ReplayResult result = replay(trace_, able, options_);
    for (std::size_t i = 0; i < able.size(); ++i) {
      const ReplayMethod& method = result.methods[i];
      of_able[i]->rel_error = method.rel_error_mean;
      of_able[i]->retained_mass = method.retained_mass_mean;
      hold(*of_able[i]);
    }
  }

 private:
  void hold(QualityTry& one) const {
    if (floor_.max_rel_error) {
      one.meets = *one.rel_error <= *floor_.max_rel_error;
      if (!one.meets) {
        one.why = fmt::format("mean relative error {:.3g}, at most {:g} is required",
                              *one.rel_error, *floor_.max_rel_error);
      }
      return;
    }
    if (!one.retained_mass) {
      one.why = "a method that merges entries has no retained mass; use max_rel_error instead";
      return;
    }
    one.meets = *one.retained_mass >= *floor_.min_retained_mass;
    if (!one.meets) {
      one.why = fmt::format("retained mass {:.3g}, at least {:g} is required", *one.retained_mass,
                            *floor_.min_retained_mass);
    }
  }

  const QualityFloor& floor_;
  const Trace& trace_;
  ReplayOptions options_;
};

/// Finds the smallest multiple of `step` between the given budgets that meets the floor.
void bisect(const Judge& judge, double step, MethodQuality& method) {
  double low = 2, high = 0;
  for (const QualityTry& one : method.tries) {
    if (share_of(one) <= 0) return;
    low = std::min(low, share_of(one));
    high = std::max(high, share_of(one));
  }
  const auto first = static_cast<std::int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(high / step + 1e-9));
  if (first >= last) return;
  // Budgets decrease as the search climbs.
  const auto holds = [&](std::int64_t falling) {
    const double share = static_cast<double>(-falling) * step;
    for (const QualityTry& one : method.tries) {
      if (std::abs(share_of(one) - share) < step * 1e-6) return one.meets;
    }
    QualityTry one{.budget = Budget{.fraction = share, .entries = 0},
                   .rel_error = {},
                   .retained_mass = {},
                   .meets = false,
                   .why = {}};
    judge.judge({{MethodSpec{method.name, method.params, one.budget}, &one}});
    method.tries.push_back(one);
    return one.meets;
  };
  constexpr std::size_t kNeighbours = 2;
  (void)largest_feasible({.min = -last,
                          .max = -first,
                          .start = -last,
                          .stride = std::max<std::int64_t>(1, (last - first) / 4),
                          .neighbours = kNeighbours},
                         holds);
}

void choose(MethodQuality& method) {
  std::stable_sort(
      method.tries.begin(), method.tries.end(),
      [](const QualityTry& a, const QualityTry& b) { return share_of(a) < share_of(b); });
  for (std::size_t i = 0; i < method.tries.size(); ++i) {
    const QualityTry& one = method.tries[i];
    if (one.meets && !method.chosen) method.chosen = i;
    if (!one.meets && method.chosen) method.monotone = false;
  }
  if (method.chosen) return;
  // The largest budget came nearest, or has the reason why none can be judged.
  const QualityTry& last = method.tries.back();
  method.reason = last.budget && last.rel_error
                      ? fmt::format("at a budget of {:.4g} %: {}", 100 * share_of(last), last.why)
                      : last.why;
}

}  // namespace

const MethodQuality& QualityReport::of(const MethodSpec& spec) const {
  const auto found = std::find_if(methods.begin(), methods.end(), [&](const MethodQuality& each) {
    return same_method(each, spec);
  });
  KVSIM_CHECK(found != methods.end(), "no quality of {}", spec.name);
  return *found;
}

QualityReport measure_quality(const QualityFloor& floor, const std::vector<MethodSpec>& specs,
                              std::uint64_t seed, int threads) {
  const Trace trace = Trace::open(floor.trace);
  QualityReport report{.trace = trace.info().name,
                       .prompt_tokens = trace.info().prompt_tokens,
                       .tokens = trace.info().tokens,
                       .source = trace_words(trace.info()),
                       .parameters = trace_parameters(trace.info()),
                       .methods = {}};
  for (const MethodSpec& spec : specs) {
    const auto found =
        std::find_if(report.methods.begin(), report.methods.end(),
                     [&](const MethodQuality& each) { return same_method(each, spec); });
    MethodQuality& method = found == report.methods.end()
                                ? report.methods.emplace_back(MethodQuality{.name = spec.name,
                                                                            .params = spec.params,
                                                                            .tries = {},
                                                                            .chosen = {},
                                                                            .monotone = true,
                                                                            .reason = {}})
                                : *found;
    const bool known =
        std::any_of(method.tries.begin(), method.tries.end(), [&](const QualityTry& one) {
          return one.budget.has_value() == spec.budget.has_value() &&
                 (!spec.budget || (one.budget->fraction == spec.budget->fraction &&
                                   one.budget->entries == spec.budget->entries));
        });
    if (!known) {
      method.tries.push_back(
          {.budget = spec.budget, .rel_error = {}, .retained_mass = {}, .meets = false, .why = {}});
    }
  }
  const Judge judge{floor, trace, seed, threads};
  std::vector<std::pair<MethodSpec, QualityTry*>> wanted;
  for (MethodQuality& method : report.methods) {
    for (QualityTry& one : method.tries) {
      wanted.emplace_back(MethodSpec{method.name, method.params, one.budget}, &one);
    }
  }
  judge.judge(std::move(wanted));
  for (MethodQuality& method : report.methods) {
    if (floor.bisect_step) bisect(judge, *floor.bisect_step, method);
    choose(method);
  }
  return report;
}

}  // namespace kvsim
