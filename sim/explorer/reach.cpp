// The longest context of a point, and its memory and speed as functions of the context.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "models/stack/stack.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/explorer/explore.hpp"
#include "sim/explorer/request.hpp"
#include "sim/plan/candidate.hpp"
#include "sim/report/text/json_values.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kSteps = 24;  // per curve
constexpr double kBeyond = 1.25;     // times the longest context, so that the limit is visible

/// The longest context of a point.
struct Reach {
  PlanCandidate predicted;
  std::optional<double> low, high;  // contexts; only for stacks with a memory interval
};

PlanCandidate longest_context(const ScenarioPoint& point) {
  PlanSection plan;
  plan.questions = {PlanQuestion::kLongestContext};
  PlanCandidate out;
  out.question = PlanQuestion::kLongestContext;
  plan_static({.plan = &plan, .point = &point, .method = point.method, .error = {}}, out);
  return out;
}

Reach reach_of(const ScenarioPoint& point) {
  Reach out{.predicted = longest_context(point), .low = {}, .high = {}};
  const AnswerRange& range = out.predicted.range;
  if (!range.is_known) return out;
  out.low = range.safe.value_or(0);
  out.high = range.optimistic.value_or(0);
  return out;
}

ordered_json context_json(const Reach& reach) {
  const PlanCandidate& found = reach.predicted;
  ordered_json out = {{"tokens", found.answer.value_or(0)},
                      {"tokens_low", number_or_null(reach.low)},
                      {"tokens_high", number_or_null(reach.high)},
                      {"at_most", found.at_most},
                      {"limited_by", nullptr},
                      {"impossible", nullptr},
                      {"notes", found.notes}};
  if (found.runs_out) out["limited_by"] = found.runs_out->why.constraint;
  if (found.impossible) {
    out["impossible"] = {{"constraint", found.impossible->constraint},
                         {"text", found.impossible->text},
                         {"need", number_or_null(found.impossible->need)}};
  }
  return out;
}

/// The memory of a run other than its cache and activations.
PeakParts outside_cache(const StaticSpec& spec) {
  StaticSpec start = spec;
  start.batch = 1;
  start.output_tokens = 0;
  start.allocator.reset();
  constexpr std::size_t kMin = 3;
  return peak_parts(spec, run_static(start, {.max_samples = kMin}), Bytes{}, Bytes{});
}

/// The point at any prompt length; its method is resolved as in a scenario of that length.
class Curve {
 public:
  explicit Curve(const ScenarioPoint& point)
      : point_{point},
        method_{point.method, *point.spec.llm, point.spec.kv_dtype},
        ends_{memory_ends(*point.spec.stack, point.spec.gpus())},
        compiled_{{.llm = point.spec.llm,
                   .gpu = point.spec.gpu,
                   .stack = point.spec.stack,
                   .method = [this](std::int64_t prompt) { return method_.at(prompt); },
                   .weight_dtype = point.spec.weight_dtype,
                   .kv_dtype = point.spec.kv_dtype,
                   .calibration = point.spec.calibration,
                   .weight_format = point.spec.weight_format,
                   .tensor_parallel = point.spec.tensor_parallel,
                   .options = point.spec.options}} {}
  Curve(const Curve&) = delete;
  Curve& operator=(const Curve&) = delete;

  ordered_json at(std::int64_t context) {
    const std::int64_t output = point_.spec.output_tokens;
    const Point size{
        .batch = point_.spec.batch, .prompt_tokens = context - output, .output_tokens = output};
    const PointResult memory = compiled_.memory_at(size);
    ordered_json out = {{"tokens", context},
                        {"fits", memory.fits},
                        {"peak_hbm_bytes", memory.peak().count()},
                        {"peak_hbm_bytes_low", nullptr},
                        {"peak_hbm_bytes_high", nullptr},
                        {"kv_bytes", memory.kv_bytes.count()},
                        {"prefill_s", nullptr},
                        {"last_step_tok_s", nullptr}};
    if (ends_) {
      PeakParts parts = outside_;
      parts.peak = memory.peak();
      parts.known =
          ends_->by_term ? outside_.known + memory.kv_bytes : memory.peak() - memory.activations;
      const BytesInterval likely = peak_interval(*ends_, parts);
      out["peak_hbm_bytes_low"] = likely.low.count();
      out["peak_hbm_bytes_high"] = likely.high.count();
    }
    if (!memory.fits) return out;
    const PointResult timed = compiled_.at(size);
    if (!timed.times) return out;
    out["prefill_s"] = timed.times->prefill.count();
    if (output > 0) {
      out["last_step_tok_s"] = static_cast<double>(size.batch) / timed.times->last_step.count();
    }
    return out;
  }

 private:
  const ScenarioPoint& point_;
  MethodByPrompt method_;  // as in a scenario; for too short prompts as in a plan
  std::optional<MemoryEnds> ends_;
  PeakParts outside_ = outside_cache(point_.spec);
  CompiledPoint compiled_;
};

/// Contexts of a chart: even steps up to `top`, and the requested ones.
std::vector<std::int64_t> contexts(std::int64_t min, std::int64_t top,
                                   std::vector<std::int64_t> wanted) {
  for (std::int64_t i = 0; i <= kSteps; ++i) wanted.push_back(top * i / kSteps);
  for (std::int64_t& n : wanted) n = std::clamp(n, min, std::max(min, top));
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

}  // namespace

ordered_json explore_reach(std::string_view text) {
  const Scenario scenario = explored_scenario(text);
  std::vector<Reach> reaches;
  double furthest = 0;
  for (const ScenarioPoint& point : scenario.points) {
    reaches.push_back(reach_of(point));
    const Reach& reach = reaches.back();
    const auto requested = static_cast<double>(point.spec.prompt_tokens + point.spec.output_tokens);
    furthest = std::max({furthest, reach.predicted.answer.value_or(0), requested});
  }
  const auto longest = static_cast<double>(kMaxPointTokens);
  const auto top = static_cast<std::int64_t>(std::min(furthest * kBeyond, longest));
  ordered_json out = {{"schema", "kvsim.explore/1"}, {"points", ordered_json::array()}};
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    const ScenarioPoint& point = scenario.points[i];
    std::vector<std::int64_t> wanted{point.spec.prompt_tokens + point.spec.output_tokens};
    if (const auto answer = reaches[i].predicted.answer) {
      wanted.push_back(static_cast<std::int64_t>(*answer));
    }
    Curve curve{point};
    ordered_json one = {{"label", point.label},
                        {"method", point.method.name},
                        {"longest_context", context_json(reaches[i])},
                        {"curve", ordered_json::array()}};
    for (const std::int64_t tokens : contexts(point.spec.output_tokens + 1, top, wanted)) {
      one["curve"].push_back(curve.at(tokens));
    }
    out["points"].push_back(std::move(one));
  }
  return out;
}

}  // namespace kvsim
