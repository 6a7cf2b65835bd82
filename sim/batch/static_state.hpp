#pragma once

// Inside of sim/serve: the run that run_static makes, which static_run.cpp and static_report.cpp
// share.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/compiled/compiled.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "sim/batch/holdings.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// The run of one spec: the memory in use between two graphs, and the results so far.
class StaticRun {
 public:
  StaticRun(const StaticSpec& spec, const StaticOptions& options);
  StaticResult run();

 private:
  /// What the run takes for granted that the real stack or GPU does otherwise.
  [[nodiscard]] std::string provenance() const;
  [[nodiscard]] bool load();
  [[nodiscard]] bool blocks_suffice();
  [[nodiscard]] bool prefill();
  [[nodiscard]] bool prefill_layers();
  [[nodiscard]] bool compress_all_layers();
  [[nodiscard]] bool decode();
  [[nodiscard]] bool decode_one(std::int64_t step);

  /// A graph's peak on top of everything in `holdings_`.
  [[nodiscard]] bool fits(const AlivePeak& alive);
  void note_peak(const Holdings& holdings, const PeakPlace& place);
  /// The memory in use at a refused allocation is a peak too: the part of the step that fitted.
  void note_refusal(const OomEvent& event);
  /// A refused prefill leaves the cache that existed then, including the running layer's part.
  void count_refused_cache(const Owners& owners);
  /// The first allocation of `graph`, which runs at `place`, that is refused, as an event.
  [[nodiscard]] OomEvent event(const OpGraph& graph, const PeakPlace& place);
  [[nodiscard]] PeakPlace place_of(RunPart part, std::int32_t layer, std::int64_t step = 0) const;
  void put_cache(std::int32_t layer, const LayerCache& cache);
  void take_cache(std::int32_t layer);
  [[nodiscard]] LayerCache stored(std::int32_t layer, std::int64_t entries) const;
  void sample(std::int64_t step, Bytes peak, Seconds time);
  void explain_times();
  void find_intervals();
  void finish();

  Llm llm_;      // of one GPU
  Stack stack_;  // as the run sets it
  StaticSpec spec_;
  bool explains_;
  bool finds_intervals_;
  std::optional<AllocationSession>* allocations_;  // not owned; null: one of the run's own
  Calibration calibration_;
  CostInput in_;
  Roofline roofline_;
  StaticResult result_;
  std::int32_t n_layers_;
  bool is_static_;
  std::int64_t static_end_;         // tokens a sequence that a static cache has room for
  Holdings holdings_;               // context, weights, caches, residents
  std::vector<LayerCache> caches_;  // per layer; a static cache is allocated from the start
  std::vector<std::int64_t> held_;  // entries per layer
  std::int64_t score_rows_;
  std::vector<std::int64_t> layer_score_rows_;  // of the layers prefilled
  Seconds prefill_device_;
  double prefill_time_ = 0;
  double decode_time_ = 0;
  std::optional<CompiledDecode> compiled_;
  Bytes resident_;  // of a decode step
  std::int64_t stride_;
  std::optional<StaticSample> last_;
  Seconds first_decode_;  // time of the first decode step
  PeakPlace peak_place_;
  Holdings peak_holdings_;             // the memory in use then
  std::optional<Holdings> peak_base_;  // set while the run's peak is a decode step's: everything
                                       // but that graph's own tensors
  PeakPlace refusal_place_;
};

}  // namespace kvsim
