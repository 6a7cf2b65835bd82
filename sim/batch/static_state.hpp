#pragma once

// Internal to sim/batch: the class behind run_static, shared by static_run.cpp and
// static_report.cpp.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/compiled/compiled.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "sim/batch/owner_bytes.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// The run of one spec: the memory in use between two graphs, and the results so far.
class StaticRun {
 public:
  StaticRun(const StaticSpec& spec, const StaticOptions& options);
  StaticResult run();

 private:
  /// The source of the run's rates. A calibration of kernels does not apply to a stack that names
  /// none.
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
  void note_peak(const OwnerBytes& holdings, const PeakLocation& place);
  /// The memory in use at a refused allocation is a peak too: the part of the step that fitted.
  void note_refusal(const OomEvent& event);
  /// A refused prefill leaves the cache that existed then, including the running layer's part.
  void count_refused_cache(const Owners& owners);
  /// The first refused allocation of `graph`, which runs at `place`, as an event.
  [[nodiscard]] OomEvent event(const OpGraph& graph, const PeakLocation& place);
  [[nodiscard]] PeakLocation place_of(RunPart part, std::int32_t layer,
                                      std::int64_t step = 0) const;
  void put_cache(std::int32_t layer, const LayerCache& cache);
  void take_cache(std::int32_t layer);
  [[nodiscard]] LayerCache stored(std::int32_t layer, std::int64_t entries) const;
  /// Of a cache that is set aside at the start.
  [[nodiscard]] std::int64_t placed_entries(std::int32_t layer) const;
  void sample(std::int64_t step, Bytes peak, Seconds time);
  void explain_times();
  void find_intervals();
  void finish();

  Llm llm_;      // of one GPU
  Stack stack_;  // with the run's settings
  StaticSpec spec_;
  bool explains_;
  bool finds_intervals_;
  std::optional<AllocationSession>* allocations_;  // not owned; null: only for this run
  Calibration calibration_;
  CostInput in_;
  Roofline roofline_;
  StaticResult result_;
  std::int32_t n_layers_;
  bool is_static_;
  std::int64_t static_end_;         // capacity of a static cache in tokens per sequence
  OwnerBytes holdings_;             // context, weights, caches, residents
  std::vector<LayerCache> caches_;  // per layer; a static cache is allocated from the start
  std::vector<std::int64_t> held_;  // entries per layer
  std::int64_t score_rows_;
  std::vector<std::int64_t> layer_score_rows_;  // of the prefilled layers
  Seconds prefill_device_;
  double prefill_time_ = 0;
  double decode_time_ = 0;
  std::optional<CompiledDecode> compiled_;
  Bytes resident_;  // of a decode step
  std::int64_t stride_;
  std::optional<StaticSample> last_;
  Seconds first_decode_;  // time of the first decode step
  PeakLocation peak_place_;
  OwnerBytes peak_holdings_;             // the memory in use then
  std::optional<OwnerBytes> peak_base_;  // set while the run's peak is a decode step's: everything
                                         // except that graph's own tensors
  PeakLocation refusal_place_;
};

}  // namespace kvsim
