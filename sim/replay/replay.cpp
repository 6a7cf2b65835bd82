#include "sim/replay/replay.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include <fmt/format.h>

#include "models/methods/prefill/blend.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/replay/best_mass.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/layer_block.hpp"
#include "sim/replay/summary.hpp"
#include "sim/replay/surrogates.hpp"
#include "traces/trace_model.hpp"

namespace kvsim {
namespace {

std::optional<Rope> rope_of(const TraceInfo& info) {
  if (!info.rope_style || !info.rope_theta || info.head_dim % 2 != 0) return std::nullopt;
  return Rope{info.head_dim, *info.rope_theta, *info.rope_style == RopeStyle::kInterleaved};
}

constexpr std::int64_t kSmallBytes = 256 << 20;

/// Bytes of the queries, keys and values of a layer in fp32.
std::int64_t vector_bytes(const TraceInfo& info) {
  return info.tokens * info.head_dim * (info.n_heads + 2LL * info.n_kv_heads) *
         static_cast<std::int64_t>(sizeof(float));
}

/// Number of layers whose heads are replayed concurrently: several if a layer has fewer heads than
/// there are threads, but at most a quarter of a GiB, so that long traces are still streamed.
std::int32_t layers_at_once(const TraceInfo& info, int threads, std::int64_t memory) {
  const std::int64_t layer_bytes = vector_bytes(info);
  const std::int64_t wanted = (threads + info.n_kv_heads - 1) / info.n_kv_heads;
  const std::int64_t limit = memory > 0 ? std::min(memory, kSmallBytes) : kSmallBytes;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(limit / layer_bytes, 1, wanted));
}

/// Reports progress from many threads, one at a time and monotonically.
class Progress {
 public:
  Progress(const std::function<void(double)>& report, std::size_t total)
      : report_{report}, total_{static_cast<double>(total)} {}
  void one_done() {
    if (!report_) return;
    const std::scoped_lock lock{guard_};
    report_(++done_ / total_);
  }

 private:
  const std::function<void(double)>& report_;
  double total_;
  double done_ = 0;
  std::mutex guard_;
};

/// Returns the trace's missing data that a method needs, as text; empty if there is none.
std::string missing_inputs(const TraceInputs& inputs, const TraceInfo& info) {
  std::string missing;
  const auto need = [&missing](bool there, std::string_view what) {
    if (!there) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", what);
  };
  if (inputs.hidden) need(info.has_hidden, "hidden states");
  if (inputs.output_projection) need(info.has_output_projection, "the output projection (wo)");
  if (inputs.rope) {
    need(info.rope_style && info.rope_theta, "rope_style and rope_theta in its metadata");
  }
  if (inputs.repeat) need(info.repeat_start.has_value(), "a repeat segment");
  if (inputs.token_ids) need(info.has_token_ids, "token ids (tokens)");
  if (inputs.separator_ids) {
    need(!info.separator_ids.empty(), "separator_ids in its metadata (or the parameter)");
  }
  if (inputs.reused) {
    need(info.has_reused, "rows of chunks computed separately (reused.k and reused.v)");
  }
  for (const PredictedScores& one : inputs.predicted) {
    need(!one.path.empty(), one.calibrates
                                ? "a calibration trace (parameter calibration)"
                                : "a surrogate's weights (parameter weights; kvsim fit-surrogate "
                                  "makes them), or another kvzap_source");
  }
  for (const std::string& name : inputs.per_head) {
    const auto in = [](const std::vector<std::string>& names, std::string_view wanted) {
      return std::find(names.begin(), names.end(), wanted) != names.end();
    };
    const std::size_t dot = name.find('.');
    const std::string kind = name.substr(0, dot);
    const std::string rest = name.substr(dot + 1);
    if (kind == "index") {
      need(info.index_heads > 0, "layers.{i}." + name);
      continue;
    }
    need(kind == "score" ? in(info.scores, rest) : in(info.decisions, rest), "layers.{i}." + name);
  }
  return missing;
}

/// State of one method during the replay of a trace.
struct Runner {
  const ComposedMethod& method;
  ReplaySummary summary;
  // If the whole model had to be read first: by layer, by unit of that layer.
  std::vector<std::vector<EntryBudget>> allotted;
  std::vector<std::vector<std::vector<std::int32_t>>> alive;  // nested: positions to keep
  std::vector<std::int32_t> computed;                         // for a prompt with reused rows
  bool may_fail = false;
  std::string failure;  // why it was skipped; empty if it was not
};

class TraceReplay {
 public:
  TraceReplay(const Trace& trace, const std::vector<std::shared_ptr<const Method>>& methods,
              const ReplayOptions& options)
      : trace_{trace},
        info_{trace.info()},
        options_{options},
        threads_{thread_count(options.threads)},
        rope_{rope_of(trace.info())},
        sample_{options.steps, info_.tokens - info_.prompt_tokens, options.seed} {
    for (const auto& method : methods) {
      const ComposedMethod& composed = as_composed(*method);
      runners_.push_back({.method = composed,
                          .summary = ReplaySummary{composed, info_, options, sample_},
                          .allotted = {},
                          .alive = {},
                          .computed = {},
                          .may_fail = options.may_fail.contains(composed.name()),
                          .failure = {}});
      inputs_ += composed.needs().inputs;
      pairs_ = pairs_ || composed.parts().share != nullptr;
    }
    surrogates_ = load_surrogates(inputs_, info_);
  }

  [[nodiscard]] const StepSample& sample() const { return sample_; }

  /// Returns the result of each method, or why it was skipped.
  std::vector<std::variant<ReplayMethod, std::string>> run() {
    const std::size_t passes =
        std::any_of(runners_.begin(), runners_.end(),
                    [](const Runner& each) { return each.method.needs_survey(); })
            ? 2
            : 1;
    Progress progress{options_.progress, passes * static_cast<std::size_t>(info_.n_layers)};
    choose_computed();
    if (passes == 2) survey(progress);
    std::int32_t wanted = layers_at_once(info_, threads_, options_.memory);
    if (pairs_) wanted = std::max(wanted, 2);
    for (std::int32_t first = 0; first < info_.n_layers;) {
      const std::int32_t count = block_size(first, wanted);
      const std::int32_t heads = heads_at_once(count);
      std::vector<Task> tasks;
      for (std::int32_t head = 0; head < info_.n_kv_heads; head += heads) {
        LayerBlock block{trace_,
                         first,
                         count,
                         inputs_,
                         rope(),
                         surrogates_,
                         HeadRange{head, std::min(heads, info_.n_kv_heads - head)}};
        block.compute_references(options_.threads, sample_);
        replay_block(block, tasks);
      }
      add_layers(first, count, tasks);
      for (std::int32_t i = 0; i < count; ++i) progress.one_done();
      first += count;
    }
    std::vector<std::variant<ReplayMethod, std::string>> results;
    for (Runner& runner : runners_) {
      if (runner.failure.empty()) {
        results.emplace_back(runner.summary.finish());
      } else {
        results.emplace_back(runner.failure);
      }
    }
    return results;
  }

 private:
  /// A unit of one method in the present block.
  struct Task {
    std::size_t runner = 0;
    std::size_t index = 0;  // within its layer
    DecisionUnit unit;
    PromptScores* scores = nullptr;
    std::unique_ptr<CacheSession> session;
    std::optional<EntryBudget> allotted;
    std::vector<HeadSeries> series;
    std::string failure;
  };

  [[nodiscard]] const Rope* rope() const { return rope_ ? &*rope_ : nullptr; }

  /// Returns `wanted` layers from `first`, or one more if a pair would otherwise be split.
  [[nodiscard]] std::int32_t block_size(std::int32_t first, std::int32_t wanted) const {
    std::int32_t count = std::min(wanted, info_.n_layers - first);
    const auto torn = [&](std::int32_t last) {
      return std::any_of(runners_.begin(), runners_.end(), [&](const Runner& each) {
        return each.method.starts_pair(last, info_.n_layers);
      });
    };
    while (first + count < info_.n_layers && torn(first + count - 1)) ++count;
    return count;
  }

  /// Number of KV heads of `layers` layers that are read together: all if a method needs them or
  /// they are small, otherwise one per thread as far as memory allows.
  [[nodiscard]] std::int32_t heads_at_once(std::int32_t layers) const {
    const std::int64_t limit = options_.memory > 0 ? options_.memory : machine_memory() / 4;
    const std::int64_t head = vector_bytes(info_) / info_.n_kv_heads;
    const bool apart =
        layers == 1 && std::all_of(runners_.begin(), runners_.end(), [](const Runner& runner) {
          return runner.method.heads_apart();
        });
    const std::int64_t needed = apart ? head : vector_bytes(info_) * layers;
    if (needed > limit) {
      throw InputError{
          "--memory",
          fmt::format("at least {}, the vectors of {} of this trace in fp32", Bytes{needed},
                      apart ? "a KV head" : "the heads that are replayed together"),
          fmt::format("{}", Bytes{limit})};
    }
    if (!apart || vector_bytes(info_) <= std::min(limit, kSmallBytes)) return info_.n_kv_heads;
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(
        std::min<std::int64_t>(limit / head, threads_), 1, info_.n_kv_heads));
  }

  std::vector<Task> tasks_of(LayerBlock& block, std::size_t runner) {
    std::vector<Task> tasks;
    if (!runners_[runner].failure.empty()) return tasks;
    std::int32_t layer = -1;
    std::size_t index = 0;
    for (DecisionUnit& unit : block.units(runners_[runner].method)) {
      index = unit.layer == layer ? index + 1 : 0;
      layer = unit.layer;
      Task task;
      task.runner = runner;
      task.index = index;
      task.scores = &block.scores(unit);
      task.unit = std::move(unit);
      tasks.push_back(std::move(task));
    }
    return tasks;
  }

  /// Calls action(i) for each of `tasks`, and removes all tasks of methods that failed. Errors:
  /// InputError that names method and layer, for a method that may not fail.
  template <class Action>
  void for_each(std::vector<Task>& tasks, Action action) {
    parallel_for(tasks.size(), options_.threads, [&](std::size_t i) {
      Task& task = tasks[i];
      const Runner& runner = runners_[task.runner];
      try {
        action(i);
      } catch (const InputError& error) {
        task.failure = error.what();
        if (!task.failure.starts_with("method ")) {  // user methods name themselves
          task.failure = fmt::format("method \"{}\": layer {}: {}", runner.method.name(),
                                     info_.number_of(task.unit.layer), task.failure);
        }
        if (!runner.may_fail) throw InputError{task.failure};
      }
    });
    for (const Task& task : tasks) {
      Runner& runner = runners_[task.runner];
      if (runner.failure.empty()) runner.failure = task.failure;
    }
    remove_failed(tasks);
  }

  void remove_failed(std::vector<Task>& tasks) const {
    std::erase_if(tasks, [&](const Task& task) { return !runners_[task.runner].failure.empty(); });
  }

  /// Creates the session of `task` and absorbs the prompt, unless that was done.
  void learn(const LayerBlock& block, Task& task) const {
    if (task.session) return;
    const Runner& runner = runners_[task.runner];
    task.session = std::make_unique<CacheSession>(
        runner.method, block.place(task.unit, options_.seed), block.vectors(task.unit));
    const auto layer = static_cast<std::size_t>(task.unit.layer);
    if (runner.alive.empty() || runner.alive[layer].empty()) {
      task.session->learn(*task.scores);
    } else {
      task.session->learn(*task.scores,
                          std::span<const std::int32_t>{runner.alive[layer][task.index]});
    }
  }

  /// Chooses the tokens that methods with reused rows recompute.
  void choose_computed() {
    for (Runner& runner : runners_) {
      const auto& prefill = runner.method.parts().prefill;
      const auto layer = prefill ? prefill->check_layer() : std::nullopt;
      if (!layer) continue;
      const TraceLayer rows = trace_.read_layer(*layer);
      const TraceRows reused = trace_.read_reused(*layer, 0, info_.n_kv_heads);
      runner.computed = prefill->computed_tokens(
          key_differences(rows.k, reused.k, info_.tokens, info_.head_dim, info_.prompt_tokens));
    }
  }

  /// Reads every layer's prompt once, for methods that need the whole model before they compress a
  /// layer.
  void survey(Progress& progress) {
    std::vector<std::vector<std::vector<HeadVerdict>>> verdicts(runners_.size());
    for (Runner& runner : runners_) {
      if (runner.method.parts().select->nested()) {
        runner.alive.resize(static_cast<std::size_t>(info_.n_layers) + 1);
      }
    }
    for (std::int32_t layer = 0; layer < info_.n_layers; ++layer) {
      LayerBlock block{trace_, layer, 1, inputs_, rope(), surrogates_};
      for (std::size_t r = 0; r < runners_.size(); ++r) {
        Runner& runner = runners_[r];
        if (!runner.method.needs_survey()) continue;
        std::vector<Task> tasks = tasks_of(block, r);
        std::vector<std::vector<HeadVerdict>> found(tasks.size());
        std::vector<std::vector<std::int32_t>> kept(tasks.size());
        const bool nested = runner.method.parts().select->nested();
        if (nested && layer + 1 == info_.n_layers) continue;  // no layer follows
        for_each(tasks, [&](std::size_t i) {
          learn(block, tasks[i]);
          if (nested) {
            kept[i] = tasks[i].session->planned(
                {.entries = *runner.method.parts().budget->entries(layer + 1)});
          } else {
            found[i] = tasks[i].session->verdicts();
          }
        });
        if (!runner.failure.empty()) continue;
        if (nested) {
          runner.alive[static_cast<std::size_t>(layer) + 1] = std::move(kept);
        } else {
          std::vector<HeadVerdict>& all = verdicts[r].emplace_back();
          for (auto& unit : found) std::move(unit.begin(), unit.end(), std::back_inserter(all));
        }
      }
      progress.one_done();
    }
    for (std::size_t r = 0; r < runners_.size(); ++r) {
      if (!runners_[r].failure.empty()) continue;
      if (runners_[r].method.parts().budget->scope() == BudgetScope::kModel) {
        runners_[r].allotted = runners_[r].method.parts().budget->allot_model(verdicts[r]);
        const double threshold = runners_[r].allotted.front().front().threshold;
        if (std::isfinite(threshold)) {
          runners_[r].summary.note(
              fmt::format("the budget comes to a threshold of {:.6g}", threshold));
        }
      }
    }
  }

  void allot(Task* first, std::size_t units) const {
    const BudgetRule& budget = *runners_[first->runner].method.parts().budget;
    std::vector<HeadVerdict> verdicts;
    for (std::size_t i = 0; i < units; ++i) {
      // Heads of one unit hold the same entries, or their budget has another scope.
      verdicts.push_back(first[i].session->verdicts().front());
    }
    const auto given = budget.allot_layer(info_.number_of(first->unit.layer), verdicts);
    for (std::size_t i = 0; i < units; ++i) first[i].allotted = given[i];
  }

  /// Replays `block`, and appends the results to `done`.
  void replay_block(LayerBlock& block, std::vector<Task>& done) {
    std::vector<Task> tasks;
    for (std::size_t r = 0; r < runners_.size(); ++r) {
      for (Task& task : tasks_of(block, r)) tasks.push_back(std::move(task));
    }
    const auto scope = [this](const Task& task) {
      return runners_[task.runner].method.parts().budget->scope();
    };
    for_each(tasks, [&](std::size_t i) {
      if (scope(tasks[i]) == BudgetScope::kLayer) learn(block, tasks[i]);
    });
    for (std::size_t i = 0; i < tasks.size();) {
      std::size_t units = 1;
      while (i + units < tasks.size() && tasks[i + units].runner == tasks[i].runner &&
             tasks[i + units].unit.layer == tasks[i].unit.layer) {
        ++units;
      }
      if (scope(tasks[i]) == BudgetScope::kLayer) allot(&tasks[i], units);
      i += units;
    }
    for_each(tasks, [&](std::size_t i) {
      Task& task = tasks[i];
      const Runner& runner = runners_[task.runner];
      learn(block, task);
      if (!task.allotted) {
        const auto layer = static_cast<std::size_t>(task.unit.layer);
        task.allotted = runner.allotted.empty()
                            ? EntryBudget{.entries = *runner.method.parts().budget->entries(
                                              info_.number_of(task.unit.layer))}
                            : runner.allotted[layer][task.index];
      }
      task.session->compute_only(runner.computed);
      if (std::ssize(tasks) < threads_) share_threads(*task.session, options_.threads);
      task.session->prefill(*task.scores, *task.allotted);
      task.series = replay_session(runner.method, *task.session, block.vectors(task.unit),
                                   block.references(task.unit), sample_, options_.kept_positions,
                                   !options_.block_sizes.empty());
      task.session.reset();
    });
    remove_failed(done);  // heads of the block that were replayed earlier
    compute_best_mass(block, tasks);
    std::move(tasks.begin(), tasks.end(), std::back_inserter(done));
  }

  void add_layers(std::int32_t first, std::int32_t count, std::vector<Task>& tasks) {
    for (std::int32_t layer = first; layer < first + count; ++layer) {
      for (std::size_t r = 0; r < runners_.size(); ++r) {
        if (!runners_[r].failure.empty()) continue;
        std::vector<HeadSeries> heads;
        for (Task& task : tasks) {
          if (task.runner != r) continue;
          for (std::size_t h = 0; h < task.unit.heads.size(); ++h) {
            if (task.unit.heads[h].layer == layer) heads.push_back(std::move(task.series[h]));
          }
        }
        runners_[r].summary.add_layer(layer, heads);
      }
    }
  }

  /// By KV head, for all methods whose retained mass is defined.
  void compute_best_mass(const LayerBlock& block, std::vector<Task>& tasks) const {
    const auto heads = static_cast<std::size_t>(info_.n_kv_heads);
    std::vector<std::vector<HeadSeries*>> series(static_cast<std::size_t>(block.count()) * heads);
    for (Task& task : tasks) {
      if (!runners_[task.runner].method.has_retained_mass()) continue;
      for (std::size_t h = 0; h < task.series.size(); ++h) {
        const DecisionUnit::StoredHead& at = task.unit.heads[h];
        series[static_cast<std::size_t>(at.layer - block.first()) * heads +
               static_cast<std::size_t>(at.kv_head)]
            .push_back(&task.series[h]);
      }
    }
    struct Part {
      std::size_t head = 0, block = 0;
    };
    std::vector<Part> parts;
    const HeadVectors& any = block.layer(block.first()).heads.front();
    const auto steps = static_cast<std::size_t>(sample_.size());
    for (std::size_t head = 0; head < series.size(); ++head) {
      for (HeadSeries* one : series[head]) {
        one->best_mass.resize(steps * static_cast<std::size_t>(one->queries));
      }
      for (std::size_t i = 0; !series[head].empty() && i < best_mass_blocks(any); ++i) {
        parts.push_back({head, i});
      }
    }
    parallel_for(parts.size(), options_.threads, [&](std::size_t i) {
      const std::size_t head = parts[i].head;
      const auto layer = block.first() + static_cast<std::int32_t>(head / heads);
      add_best_mass(block.layer(layer).heads[head % heads], block.reference(layer, head % heads),
                    parts[i].block, sample_, series[head]);
    });
  }

  const Trace& trace_;
  const TraceInfo& info_;
  const ReplayOptions& options_;
  int threads_;
  std::optional<Rope> rope_;
  StepSample sample_;
  TraceInputs inputs_;
  std::map<std::string, SurrogateFile> surrogates_;
  bool pairs_ = false;
  std::vector<Runner> runners_;
};

}  // namespace

MethodContext site_of(const TraceInfo& info) {
  TraceInputs recorded{.hidden = info.has_hidden,
                       .output_projection = info.has_output_projection,
                       .rope = info.rope_style && info.rope_theta,
                       .repeat = info.repeat_start.has_value(),
                       .token_ids = info.has_token_ids,
                       .separator_ids = !info.separator_ids.empty(),
                       .reused = info.has_reused,
                       .per_head = {},
                       .predicted = {}};
  for (const std::string& name : info.scores) recorded.per_head.push_back("score." + name);
  for (const std::string& name : info.decisions) recorded.per_head.push_back("decision." + name);
  if (info.index_heads > 0) {
    for (const char* name : {"index.q", "index.k", "index.w"}) recorded.per_head.emplace_back(name);
  }
  return {.recorded = info.dtype,
          .shape = {.n_heads = info.n_heads / info.n_kv_heads * info.model_kv_heads(),
                    .n_kv_heads = info.model_kv_heads(),
                    .head_dim = info.head_dim},
          .windows = {},
          .n_layers = info.model_layers(),
          .d_model = info.d_model,
          .recorded_inputs = std::move(recorded)};
}

namespace {

/// The reason why a method needs all "layers" or "heads", if a trace is a sample of them.
struct NeedsAll {
  std::string_view of, why;
};
std::optional<NeedsAll> refuses_sample(const ComposedMethod& method, const TraceInfo& info) {
  if (!info.samples_layers() && !info.samples_heads()) return std::nullopt;
  const std::string_view sampled = info.samples_heads() ? "heads" : "layers";
  if (method.needs_survey())
    return NeedsAll{sampled, "it compares all of them before it compresses one"};
  if (!method.needs().inputs.predicted.empty()) {
    return NeedsAll{sampled, "it has weights for each layer and head"};
  }
  if (info.samples_layers()) {
    for (std::int32_t layer = 0; layer < info.all_layers; ++layer) {
      if (method.starts_pair(layer, info.all_layers)) {
        return NeedsAll{"layers", "it joins neighbouring layers"};
      }
    }
    const auto& prefill = method.parts().prefill;
    if (prefill && prefill->check_layer()) {
      return NeedsAll{"layers", "it chooses tokens in one layer for all"};
    }
  }
  if (info.samples_heads() && !method.heads_apart()) {
    return NeedsAll{"heads", "it decides for all heads of a layer together"};
  }
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const Method> resolve_for_trace(const MethodSpec& spec, const TraceInfo& info) {
  auto method = make_method(spec, info.prompt_tokens, site_of(info));
  const std::string missing = missing_inputs(method->needs().inputs, info);
  if (!missing.empty()) {
    throw InputError{fmt::format("method \"{}\" needs data that trace \"{}\" does not have: {}",
                                 spec.name, info.name, missing)};
  }
  if (const auto all = refuses_sample(as_composed(*method), info)) {
    throw InputError{fmt::format("method \"{}\" needs all {} of trace \"{}\": {}", spec.name,
                                 all->of, info.name, all->why)};
  }
  return method;
}

ReplayResult replay(const Trace& trace, const std::vector<MethodSpec>& specs,
                    const ReplayOptions& options) {
  std::vector<std::shared_ptr<const Method>> methods;
  for (const MethodSpec& spec : specs) methods.push_back(resolve_for_trace(spec, trace.info()));
  ReplayResult result;
  result.trace = trace.info().name;
  result.prompt_tokens = trace.info().prompt_tokens;
  result.source = trace_words(trace.info());
  result.model = trace.info().model;
  result.parameters = trace_parameters(trace.info());
  if (trace.info().samples_layers() || trace.info().samples_heads()) {
    result.sample = ReplaySample{.layers = trace.info().layer_numbers,
                                 .of_layers = trace.info().all_layers,
                                 .kv_heads = trace.info().n_kv_heads,
                                 .of_kv_heads = trace.info().all_kv_heads,
                                 .heads = trace.info().head_numbers,
                                 .layers_by_stratum = trace.info().layers_by_stratum};
  }
  const std::int64_t most = trace.info().tokens - trace.info().prompt_tokens;
  if (options.steps > most) {
    throw InputError{fmt::format("trace \"{}\": a sample of decode steps", trace.info().name),
                     fmt::format("at most {}", most), std::to_string(options.steps)};
  }
  TraceReplay running{trace, methods, options};
  auto outcomes = running.run();
  if (const StepSample& steps = running.sample(); !steps.is_all()) {
    result.steps = ReplaySteps{.measured = steps.size(), .of = steps.steps()};
  }
  for (std::size_t m = 0; m < specs.size(); ++m) {
    if (const auto* reason = std::get_if<std::string>(&outcomes[m])) {
      result.failed.push_back({m, *reason});
      continue;
    }
    result.methods.push_back(std::get<ReplayMethod>(std::move(outcomes[m])));
    if (const auto& budget = specs[m].budget) {
      result.methods.back().budget =
          budget->fraction > 0 ? budget->fraction : static_cast<double>(budget->entries);
    }
  }
  return result;
}

}  // namespace kvsim
