#pragma once

// Internal to sim/serve/schedulers: pipelines whose micro-batches each have their own sequences.

#include <cstdint>

#include "sim/serve/schedulers/scheduler.hpp"

namespace kvsim {

/// Micro-batches of a pipeline, one per stage, which alternate.
class MicroBatches {
 public:
  /// `stages`: at least 1.
  explicit MicroBatches(std::int64_t stages) : stages_{static_cast<std::int32_t>(stages)} {}

  [[nodiscard]] std::int32_t count() const { return stages_; }
  /// Calls `form` with the index of each micro-batch without sequences in flight, starting after
  /// the last one, until one plans something.
  template <class Form>
  void form_next(BatchBuilder& batch, const Form& form) {
    if (stages_ == 1) {
      form(0);
      return;
    }
    for (std::int32_t tried = 0; tried < stages_; ++tried) {
      const std::int32_t at = (next_ + tried) % stages_;
      if (!batch.open(at)) continue;
      form(at);
      if (batch.planned() == 0) continue;
      next_ = (at + 1) % stages_;
      return;
    }
  }

 private:
  std::int32_t stages_;
  std::int32_t next_ = 0;
};

}  // namespace kvsim
