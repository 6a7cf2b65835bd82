// Published values compared with predictions, if the data is on the machine. Bounds are the values
// at the time of writing with some margin for changes of constants; targets are next to them.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/cost/kernels/spread.hpp"
#include "models/stack/stack.hpp"
#include "sim/batch/account/time_residual.hpp"
#include "sim/batch/memory_end.hpp"
#include "tests/support/check.hpp"
#include "validation/published/published_reasons.hpp"
#include "validation/published/published_runs.hpp"
#include "validation/published/published_score.hpp"
#include "validation/residuals/fit_residuals.hpp"

namespace kvsim {
namespace {

const PublishedGroup& pooled(const PublishedScore& score, const std::string& name) {
  const auto found =
      std::find_if(score.pooled.begin(), score.pooled.end(),
                   [&](const PublishedGroup& g) { return g.metric == name && !g.inconsistent; });
  REQUIRE(found != score.pooled.end());
  return *found;
}

/// The score of the whole table, computed once.
const PublishedScore& whole_score(const std::filesystem::path& data) {
  static const PublishedScore score =
      score_published(read_published_csv(data / "published/results.csv"));
  return score;
}

/// The score of logged starts.
const PublishedScore& start_score(const std::filesystem::path& data) {
  static const PublishedScore score =
      score_published(read_published_csv(data / "published/capacity_2026.csv"));
  return score;
}

TEST_CASE("capacities that vLLM logged for hybrid and sparse models") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = start_score(*data);
  // Complete: rows without assumptions.
  std::vector<double> complete, all;
  std::size_t expressed = 0;
  for (const ScoredRow& row : score.rows) {
    if (row.prediction.expressed()) ++expressed;
    if (!row.error()) continue;
    all.push_back(std::abs(*row.error()));
    if (row.prediction.assumed.empty()) complete.push_back(all.back());
  }
  const auto at = [](std::vector<double>& errors, double share) {
    std::sort(errors.begin(), errors.end());
    return errors[static_cast<std::size_t>(share * static_cast<double>(errors.size() - 1))];
  };
  // Reached: 91 of 96 expressed; complete rows have a median of 0.04 % and 90 % within 0.3 %, all
  // rows a median of 0.2 % and 90 % within 21 % (starts with predicted memory, forks).
  CHECK(expressed >= 88);
  REQUIRE(complete.size() >= 10);
  CHECK(at(complete, 0.5) < 0.01);
  CHECK(at(complete, 0.9) < 0.03);
  CHECK(at(all, 0.5) < 0.05);
}

TEST_CASE("published values are expressed and predicted within bounds") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  REQUIRE(score.rows.size() > 1000);

  // Coverage: target 95 % of rows in scope and 70 % of all; reached 98 and 93 %.
  const auto of = [](std::size_t part, std::size_t all) {
    return static_cast<double>(part) / static_cast<double>(all);
  };
  std::size_t expressed = 0;
  for (const ScoredRow& row : score.rows) expressed += row.prediction.expressed() ? 1U : 0U;
  CHECK(of(score.n_in_scope_expressed, score.n_in_scope) >= 0.95);
  CHECK(of(expressed, score.rows.size()) >= 0.85);

  // Peak memory: target 4 % MAPE; reached 2.4 % for all rows and 3.7 % for held-out rows.
  CHECK(*pooled(score, "all peak memory").mape < 0.04);
  CHECK(*pooled(score, "all peak memory").mape_held_out < 0.045);
  // Caches and pools: reached a median of 1.1 %; start-up logs of old engines have larger errors.
  CHECK(*pooled(score, "all cache size").median_ape < 0.015);
  // Throughput and latency: target a median of 15 %; reached 11.5 %, also for held-out rows.
  CHECK(*pooled(score, "all time").median_ape < 0.15);
  CHECK(*pooled(score, "all time").median_ape_held_out < 0.15);
  CHECK(*pooled(score, "all time").mape < 0.30);
  // Verdicts: target 95 %; 37 of 38. The miss is a run that used flash attention according to its
  // source.
  const PublishedGroup& verdicts = pooled(score, "all oom");
  CHECK(of(verdicts.oom_right, verdicts.oom_total) >= 0.95);
  // No published run is predicted to be out of memory.
  CHECK(pooled(score, "all").oom_total == verdicts.oom_total);

  for (const ScoredRow& row : score.rows) {
    INFO(row.row.id);
    CHECK(row.prediction.expressed() == row.prediction.reason.empty());
    if (row.interval) CHECK(row.interval->first <= row.interval->second);
    if (row.prediction.value) CHECK(*row.prediction.value >= -1e-9);
  }
}

TEST_CASE("every error above half and every stack with a bad median has a reason") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  std::size_t badly = 0;
  for (const ScoredRow& row : score.rows) {
    if (!misses_badly(row)) continue;
    ++badly;
    INFO(row.row.id, " of ", row.document, ": ", 100 * *row.error(), " %");
    CHECK(find_reason(row) != nullptr);
  }
  CHECK(badly > 0);
  CHECK(badly <= 92);  // the initial number
  for (const PublishedGroup& group : score.stacks) {
    INFO(group.metric, " of ", group.stack);
    CHECK((*group.median_ape <= kBadMedian || find_stack_reason(group.stack) != nullptr));
  }
  // Every listed reason explains at least one miss.
  for (const RowReason& reason : row_reasons()) {
    INFO(reason.document, ": ", reason.rows);
    const auto explains = [&](const ScoredRow& row) {
      return misses_badly(row) && find_reason(row) == &reason;
    };
    const std::vector<ScoredRow>& starts = start_score(*data).rows;
    CHECK((std::any_of(score.rows.begin(), score.rows.end(), explains) ||
           std::any_of(starts.begin(), starts.end(), explains)));
  }
  for (const StackReason& reason : stack_reasons()) {
    INFO(reason.stack);
    CHECK(std::any_of(score.stacks.begin(), score.stacks.end(), [&](const PublishedGroup& group) {
      return group.stack == reason.stack && *group.median_ape > kBadMedian;
    }));
  }
}

/// |error| of the rows selected by `takes`, largest first, with their ids.
template <class Takes>
std::vector<std::pair<double, std::string>> largest_errors(const PublishedScore& score,
                                                           const Takes& takes) {
  std::vector<std::pair<double, std::string>> errors;
  for (const ScoredRow& row : score.rows) {
    if (row.error() && !row.inconsistent && takes(row)) {
      errors.emplace_back(std::abs(*row.error()), row.row.id);
    }
  }
  std::sort(errors.rbegin(), errors.rend());
  return errors;
}

/// A bound on all errors except the `spared` largest, which have a separate bound before.
struct WorstGate {
  std::size_t spared;
  double worst;
};

template <class Takes>
void hold_worst(const PublishedScore& score, const char* what, std::size_t rows,
                const std::vector<WorstGate>& gates, const Takes& takes) {
  const auto errors = largest_errors(score, takes);
  CHECK_MESSAGE(errors.size() >= rows, what);
  for (const WorstGate& gate : gates) {
    REQUIRE(errors.size() > gate.spared);
    const auto& [error, id] = errors[gate.spared];
    fmt::print("{:26} {:3} rows, all but {}: {:6.2f} % ({})\n", what, errors.size(), gate.spared,
               100 * error, id);
    CHECK_MESSAGE(error <= gate.worst, what, ": ", id);
  }
}

// Bounds are slightly above the errors, which are stated next to them in percent with the row.
TEST_CASE("worst cases of published values by kind") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  const auto of = [](PublishedKind kind, bool held_out) {
    return [=](const ScoredRow& row) { return row.kind == kind && !(held_out && row.fitted); };
  };
  for (const bool held_out : {false, true}) {
    // SL-019: -23.7, AO-004: -21.6; no constant comes from their documents.
    hold_worst(score, held_out ? "peak memory, held out" : "peak memory", held_out ? 100 : 190,
               {{0, 0.26}, {1, 0.24}}, of(PublishedKind::kPeakMemory, held_out));
    // VL-033: 100.2, VL-038: -32.5, VL-034: -21.4: starts that do not state the deciding terms.
    hold_worst(score, held_out ? "cache size, held out" : "cache size", held_out ? 20 : 25,
               {{0, 1.1}, {1, 0.36}, {2, 0.24}, {3, 0.115}},
               of(PublishedKind::kCacheSize, held_out));
    // SN-002: -14.4.
    hold_worst(score, held_out ? "capacity, held out" : "capacity", 9, {{0, 0.16}},
               of(PublishedKind::kCapacity, held_out));
  }
  // VL-045: 1.3.
  hold_worst(score, "pool, all stated", 4, {{0, 0.015}},
             [](const ScoredRow& row) { return row.pool && row.unstated.empty(); });
  // VL-064: 300, VL-059: 189, VL-069: 145, all three pools of CUDA graphs; then VL-068: -7.1.
  hold_worst(score, "start-up, all stated", 14, {{0, 3.3}, {1, 2.1}, {2, 1.6}, {3, 0.08}},
             [](const ScoredRow& row) {
               return row.kind == PublishedKind::kEngineMemory &&
                      read_setup(row.row).unstated.empty();
             });
  // VL-037: 760, VL-036: 632, VL-003: -80, from old engines that state less; then VL-068.
  hold_worst(score, "start-up", 26, {{0, 8.4}, {1, 7.0}, {5, 0.89}, {6, 0.44}, {7, 0.08}},
             of(PublishedKind::kEngineMemory, false));
  // FG-010: 475, QS-064: 285, Q3-059: 237, NH-001: 231. The others are the 99th percentile.
  hold_worst(score, "time", 800, {{0, 5.3}, {1, 3.2}, {8, 1.42}}, of(PublishedKind::kTime, false));
  // QS-064: 285; 99th percentile, AO-044: 131.
  hold_worst(score, "time, held out", 550, {{0, 3.2}, {5, 1.45}}, of(PublishedKind::kTime, true));
}

TEST_CASE("intervals of published values cover rows of documents that were not used for them") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  std::map<std::string, std::pair<double, double>> documents;  // inside, counted
  double inside = 0, counted = 0;
  for (const ScoredRow& row : score.rows) {
    if (!row.interval || !row.error() || row.inconsistent) continue;
    const bool in = row.interval->first <= *row.value && *row.value <= row.interval->second;
    auto& [its_inside, its_counted] = documents[row.document];
    inside += in;
    its_inside += in;
    ++counted;
    ++its_counted;
  }
  double mean = 0;
  for (const auto& [name, counts] : documents) {
    mean += counts.first / counts.second / static_cast<double>(documents.size());
  }
  fmt::print(
      "{:.1f} % of {} rows lie in the 80 % interval; of a document on the average {:.1f} %\n",
      100 * inside / counted, counted, 100 * mean);
  CHECK(counted > 900);
  CHECK(inside / counted >= 0.76);
  CHECK(inside / counted <= 0.95);
  CHECK(mean >= 0.70);
  CHECK(mean <= 0.92);
}

TEST_CASE("pools of engines' starts are within bounds if all deciding terms are stated") {
  const auto data = test::data_dir();
  if (!data) return;
  const PublishedScore& score = whole_score(*data);
  const PublishedGroup& stated = pooled(score, "pool of a start, all stated");
  REQUIRE(stated.n >= 4);
  CHECK(*stated.mape <= 0.01);  // the target
  std::size_t others = 0;
  for (const ScoredRow& row : score.rows) {
    INFO(row.row.id);
    CHECK((row.pool || row.unstated.empty()));
    others += row.pool && !row.unstated.empty() && row.error() ? 1U : 0U;
  }
  CHECK(others + stated.n <= pooled(score, "all cache size").n);
  CHECK(others == pooled(score, "pool of a start, not all").n);
}

/// log(published / predicted) by document, and the ends of an interval with `kEnd` on either side.
struct Residuals {
  std::map<std::string, std::vector<double>> of;

  /// Low and high end from all documents except `without`.
  [[nodiscard]] std::pair<double, double> ends(const std::string& without) const {
    constexpr double kEnd = 0.95;  // of a 90 % interval
    Clusters up, down;
    for (const auto& [name, errors] : of) {
      if (name == without) continue;
      up.push_back(errors);
      down.push_back(errors);
      for (double& error : down.back()) error = -error;
    }
    return {-upper_limit(down, kEnd), upper_limit(up, kEnd)};
  }
  /// Share of rows inside the ends from the other documents.
  [[nodiscard]] double covered() const {
    double inside = 0;
    for (const auto& [document, errors] : of) {
      const auto [low, high] = ends(document);
      for (const double error : errors) inside += low <= error && error <= high;
    }
    return inside / static_cast<double>(rows());
  }
  [[nodiscard]] std::size_t rows() const {
    std::size_t n = 0;
    for (const auto& [document, errors] : of) n += errors.size();
    return n;
  }
};

/// An engine's start from a row about it.
EngineStartup start_of(const ScoredRow& row) {
  const PublishedSetup setup = read_setup(row.row);
  PublishedRuns runs{
      row.row, setup, *setup.llms.front(), {.name = "full", .params = {}, .budget = {}}};
  return runs.startup();
}

/// Published over predicted bytes of the uncertain terms of engines' starts, by the source (pull
/// request, issue, file) of the log.
struct TermLogs {
  Residuals activation, one_gpu, several_gpus, graphs;

  void add(const ScoredRow& row) {
    const bool several = read_setup(row.row).gpus > 1;
    Residuals& non_torch = several ? several_gpus : one_gpu;
    if (row.pool) {
      // Memory other than weights, predicted activations and the pool counts as non-PyTorch memory.
      const EngineStartup start = start_of(row);
      const auto of = [](Bytes bytes) { return static_cast<double>(bytes.count()); };
      const double pool = of(start.kv_cache) * *row.value / *row.prediction.value;
      const double rest = of(start.usable - start.weights - start.activation) - pool;
      non_torch.of[row.row.source].push_back(std::max(0.0, rest / of(start.non_torch)));
      return;
    }
    const std::string& metric = row.row.metric;
    Residuals* terms = metric == "activation_gb"   ? &activation
                       : metric == "non_torch_gb"  ? &non_torch
                       : metric == "cuda_graph_gb" ? &graphs
                                                   : nullptr;
    if (terms == nullptr) return;
    // A log's memory of CUDA graphs is a difference of free memory, and may be below 0.
    terms->of[row.row.source].push_back(std::max(0.0, *row.value / *row.prediction.value));
  }
  /// Ends for starts on one GPU or several, from all sources except `without`.
  [[nodiscard]] std::pair<TermFactors, TermFactors> ends(bool several,
                                                         const std::string& without) const {
    TermFactors low, high;
    const auto set = [&](const Residuals& term, double TermFactors::*factor) {
      const bool known = std::any_of(term.of.begin(), term.of.end(),
                                     [&](const auto& one) { return one.first != without; });
      if (!known) return;  // no other log states it: as predicted
      const auto [min, max] = term.ends(without);
      low.*factor = std::min(1.0, min);
      high.*factor = std::max(1.0, max);
    };
    set(activation, &TermFactors::activation);
    set(several ? several_gpus : one_gpu, &TermFactors::non_torch);
    set(graphs, &TermFactors::graphs);
    return {low, high};
  }
};

TEST_CASE("factors of an engine's terms come from logs of starts and cover those of others") {
  const auto data = test::data_dir();
  if (!data) return;
  TermLogs logs;
  std::vector<const ScoredRow*> pools;
  for (const ScoredRow& row : whole_score(*data).rows) {
    if (!row.error() || row.inconsistent) continue;
    logs.add(row);
    if (row.pool) pools.push_back(&row);
  }
  const Stack& vllm = find_stack("vllm");
  for (const std::int32_t gpus : {1, 4}) {
    const auto [low, high] = logs.ends(gpus > 1, "");
    const auto ends = memory_ends(vllm, gpus);
    REQUIRE(ends);
    CHECK_FALSE(ends->basis.empty());
    for (const auto& [known, found] :
         {std::pair{ends->low.terms, low}, std::pair{ends->high.terms, high}}) {
      for (double TermFactors::*factor :
           {&TermFactors::activation, &TermFactors::non_torch, &TermFactors::graphs}) {
        CHECK(known.*factor == doctest::Approx(found.*factor).epsilon(0.01));
      }
    }
    fmt::print(
        "{} GPUs: activation {:.3f} to {:.3f}, non-PyTorch {:.3f} to {:.3f}, graphs {:.3f} to "
        "{:.3f}\n",
        gpus, low.activation, high.activation, low.non_torch, high.non_torch, low.graphs,
        high.graphs);
  }

  // Whether each pool is in the interval from logs of other sources, and the width of that
  // interval.
  double inside = 0, inside_stated = 0, stated = 0, width = 0, width_of_all = 0;
  for (const ScoredRow* row : pools) {
    const bool several = read_setup(row->row).gpus > 1;
    const auto [low, high] = logs.ends(several, row->row.source);
    const EngineStartup start = start_of(*row);
    const auto pool = [&](const TermFactors& factors) {
      return static_cast<double>(at_factors(start, factors, vllm, {}).kv_cache.count());
    };
    const double predicted = static_cast<double>(start.kv_cache.count());
    const double published = predicted * *row->value / *row->prediction.value;
    const bool is_in = pool(high) <= published && published <= pool(low);
    inside += is_in;
    if (row->unstated.empty()) {
      ++stated;
      inside_stated += is_in;
    }
    width += (pool(low) - pool(high)) / predicted;
    // One factor for all except the pool, including weights, as in earlier versions: 0.83 to 1.21.
    const double all_but_pool = static_cast<double>((start.usable - start.kv_cache).count());
    width_of_all += (1.21 - 0.83) * all_but_pool / predicted;
  }
  const auto n = static_cast<double>(pools.size());
  fmt::print(
      "pools of starts: {} of {} in the interval of other sources ({} of {} that state all "
      "they depend on); mean width {:.2f} of the pool, with one factor of all {:.2f}\n",
      inside, n, inside_stated, stated, width / n, width_of_all / n);
  CHECK(inside / n >= 0.7);  // few sources, most of them old engines whose version is not stated
  CHECK(inside_stated == stated);
  CHECK(width < 0.7 * width_of_all);
}

/// A published peak in PyTorch, in bytes: memory other than weights and caches, and the predicted
/// activations in it.
struct PublishedPeak {
  double activations = 0, left = 0;
};

/// By document. Values of persistently allocated memory are not peaks: they have no activations.
std::map<std::string, std::vector<PublishedPeak>> published_peaks(const PublishedScore& score) {
  std::map<std::string, std::vector<PublishedPeak>> out;
  for (const ScoredRow& row : score.rows) {
    if (!row.error() || row.inconsistent || row.fitted || !row.prediction.peak) continue;
    const Stack& stack = find_stack(row.stack);
    if (!stack.rounds_allocations || stack.growth == CacheGrowth::kPaged) continue;
    const PredictedPeak& peak = *row.prediction.peak;
    const double published = peak.bytes * *row.value / *row.prediction.value;
    out[row.document].push_back(
        {.activations = peak.activations, .left = published - (peak.bytes - peak.activations)});
  }
  return out;
}

/// The narrowest line over activations that has no peak of `documents` above (`sign` 1) or below
/// (-1) it and that bounds the prediction: its factor is not below (above) 1 and its reserve not
/// below (above) 0. Narrow means close to the activations, averaged over documents with equal
/// weight.
MemoryEnd narrowest(const std::map<std::string, std::vector<PublishedPeak>>& documents, int sign,
                    const std::string& without = {}) {
  std::vector<PublishedPeak> peaks;
  double mean = 0, n = 0;
  for (const auto& [name, some] : documents) {
    if (name == without) continue;
    double sum = 0;
    for (const PublishedPeak& peak : some) sum += peak.activations;
    mean += sum / static_cast<double>(some.size());
    n += 1;
    peaks.insert(peaks.end(), some.begin(), some.end());
  }
  // Weights and caches are known: peaks below them do not constrain activations.
  for (PublishedPeak& peak : peaks) peak.left = std::max(0.0, peak.left);
  // The best line goes through two peaks, or has a factor at a bound.
  std::vector<double> factors{1};
  if (sign < 0) factors.push_back(0);
  for (std::size_t a = 0; a < peaks.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const double width = peaks[a].activations - peaks[b].activations;
      if (width != 0) factors.push_back((peaks[a].left - peaks[b].left) / width);
    }
  }
  double min = INFINITY;
  MemoryEnd out;
  for (const double factor : factors) {
    if (sign > 0 ? factor < 1 : factor < 0 || factor > 1) continue;
    double reserve = 0;
    for (const PublishedPeak& peak : peaks) {
      reserve = std::max(reserve, sign * (peak.left - factor * peak.activations));
    }
    const double off = sign * (factor - 1) * mean / n + reserve;
    if (off >= min) continue;
    min = off;
    out = {.terms = {.activation = factor}, .reserve = rounded<Bytes>(sign * reserve)};
  }
  return out;
}

TEST_CASE("activations and reserve of PyTorch come from published peaks and cover others") {
  const auto data = test::data_dir();
  if (!data) return;
  const auto documents = published_peaks(whole_score(*data));
  const auto known = memory_ends(find_stack("hf-sdpa"), 1);
  REQUIRE(known);
  const MemoryEnd low = narrowest(documents, -1), high = narrowest(documents, 1);
  const auto gib = [](Bytes bytes) { return static_cast<double>(bytes.count()) / (1 << 30); };
  CHECK(known->low.terms.activation == doctest::Approx(low.terms.activation).epsilon(0.02));
  CHECK(known->high.terms.activation == doctest::Approx(high.terms.activation).epsilon(0.02));
  CHECK(gib(known->low.reserve) == doctest::Approx(gib(low.reserve)).epsilon(0.02));
  CHECK(gib(known->high.reserve) == doctest::Approx(gib(high.reserve)).epsilon(0.02));

  // Whether each document is in the interval from the others, and the width of that interval.
  double inside = 0, n = 0, below_known = 0, width = 0, width_of_all = 0, max = 0;
  for (const auto& [document, peaks] : documents) {
    const MemoryEnd min = narrowest(documents, -1, document);
    const MemoryEnd greatest = narrowest(documents, 1, document);
    double its_inside = 0;
    for (const PublishedPeak& peak : peaks) {
      const auto activations = rounded<Bytes>(peak.activations);
      const auto end = [&](const MemoryEnd& of) {
        return static_cast<double>((activations + beyond_prediction(of, activations)).count());
      };
      its_inside += end(min) <= peak.left && peak.left <= end(greatest);
      below_known += peak.left < 0;
      width += end(high) - end(low);
      max = std::max(max, peak.activations);
    }
    fmt::print("{}: {} of {} peaks in the interval of the other documents\n", document, its_inside,
               peaks.size());
    inside += its_inside;
    n += static_cast<double>(peaks.size());
  }
  for (const ScoredRow& row : whole_score(*data).rows) {
    const auto& peak = row.prediction.peak;
    if (!documents.contains(row.document) || !row.error() || row.fitted || !peak) continue;
    width_of_all += (1.31 - 0.87) * peak->bytes;  // one factor for the total, as in earlier
                                                  // versions
  }
  fmt::print(
      "PyTorch: {} peaks of {} documents: activations x {:.3f} and {:.3f} GiB to x {:.3f} and "
      "{:.3f} GiB; left out, {} of {} inside ({} below weights and caches); mean width {:.2f} GiB, "
      "with one factor of all {:.2f}; activations up to {:.3f} GiB\n",
      n, documents.size(), low.terms.activation, gib(low.reserve), high.terms.activation,
      gib(high.reserve), inside, n, below_known, width / n / (1 << 30),
      width_of_all / n / (1 << 30), max / (1 << 30));
  CHECK(inside / n >= 0.88);
  CHECK(width < 0.7 * width_of_all);
  // The line applies up to the largest published activations, its ratio beyond them.
  const Bytes top = rounded<Bytes>(max), half = rounded<Bytes>(max / 2);
  CHECK(beyond_prediction(known->high, top + top).count() ==
        doctest::Approx(2 * static_cast<double>(beyond_prediction(known->high, top).count()))
            .epsilon(0.01));
  CHECK(beyond_prediction(known->high, half) == known->high.reserve);
}

TEST_CASE("intervals of whole runs cover published times of documents not used for them") {
  const auto data = test::data_dir();
  if (!data) return;
  std::vector<ResidualRow> rows;
  for (const ScoredRow& row : whole_score(*data).rows) {
    const auto error = row.log_error();
    if (!error || row.inconsistent || row.kind != PublishedKind::kTime) continue;
    REQUIRE_FALSE(row.residual_path.empty());
    const RunPhase phase =
        row.row.metric.starts_with("ttft") ? RunPhase::kPrefill : RunPhase::kDecode;
    rows.push_back({.metric = std::string{residual_metric(phase)},
                    .features = row.residual_path,
                    .document = row.document,
                    .log_ratio = *error});
    // The shipped file covers most of the table that it was fitted to.
    REQUIRE(ResidualModel::static_runs().find(rows.back().metric, rows.back().features) != nullptr);
  }
  const FittedResiduals fitted = fit_residuals(rows);
  for (const ResidualClass& c : fitted.classes) {
    if (!c.path.empty()) continue;
    fmt::print("{}: left out, {:.1f} % inside\n", c.words(), 100 * c.coverage);
    CHECK(c.coverage >= 0.8);
    CHECK(c.coverage <= 0.98);
  }
}

TEST_CASE("prompts in pieces take the published times with and without streaming heads") {
  const auto data = test::data_dir();
  if (!data) return;
  // DuoAttention on A100, chunks of a tenth of a prompt up to the whole prompt; reached 7.0 %
  // (DU-098).
  const auto errors = largest_errors(whole_score(*data), [](const ScoredRow& row) {
    return row.document == "github mit-han-lab/duo-attention" && row.row.metric == "ttft_s";
  });
  REQUIRE(errors.size() >= 36);
  CHECK_MESSAGE(errors.front().first < 0.08, errors.front().second);
}

TEST_CASE("the score does not depend on the order of rows") {
  const auto data = test::data_dir();
  if (!data) return;
  auto rows = read_published_csv(*data / "published/results.csv");
  rows.resize(200);
  const PublishedScore forward = score_published(rows);
  std::reverse(rows.begin(), rows.end());
  const PublishedScore backward = score_published(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(forward.rows[i].prediction.value == backward.rows[rows.size() - 1 - i].prediction.value);
  }
}

}  // namespace
}  // namespace kvsim
