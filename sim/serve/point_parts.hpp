#pragma once

// What compiled_point.cpp keeps of methods, batch sizes and the run asked for last.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/compiled.hpp"
#include "models/cost/roofline.hpp"
#include "models/cost/step.hpp"
#include "sim/serve/step_sum.hpp"
#include "sim/serve/trajectory.hpp"

namespace kvsim {

/// Times of one graph, and the most its tensors take.
struct GraphFigures {
  Seconds time;
  Bytes alive;
  bool by_scores = false;  // the most is alive where a method's scores are
};

/// A prefill: its peak less what load put there, and its time where it was asked for.
struct PrefillFigures {
  Bytes peak;
  std::optional<Seconds> time;
};

/// All decode steps of one batch size.
struct DecodeForms {
  DecodeForms(const CostInput& input, const Roofline& roofline, const DecodeEnds& ends,
              const std::vector<LayerGroup>& groups)
      : in{input}, compiled{in, roofline, ends, groups}, roofline_{roofline} {
    for (const Tensor& t : resident_tensors(in, 1)) resident += t.bytes;
    for (const LayerGroup& group : compiled.groups()) rows.emplace_back(in, group.first);
    between = between_steps(in);
  }
  DecodeForms(const DecodeForms&) = delete;
  DecodeForms& operator=(const DecodeForms&) = delete;

  /// One layer's step, by its compiled form or by its graph.
  [[nodiscard]] Seconds time(const LayerColumn& column, const DecodeMoment& moment, bool by_graph) {
    return by_graph ? on_graph(column, moment, true).time : form_of(column, moment).time(moment);
  }
  [[nodiscard]] Bytes alive(const LayerColumn& column, const DecodeMoment& moment, bool by_graph) {
    if (by_graph) return on_graph(column, moment, true).alive;
    const CompiledLayer& form = form_of(column, moment);
    return form.is_linear() ? form.alive_peak(moment) : on_graph(column, moment, false).alive;
  }

  CostInput in;
  CompiledDecode compiled;
  Bytes resident;
  std::vector<CacheRows> rows;  // by group
  Seconds between;

 private:
  struct Known {
    std::int32_t like = -1;
    DecodeMoment moment{};
    bool timed = false;
    GraphFigures figures;
    std::uint64_t asked = 0;  // last
  };
  const CompiledLayer& form_of(const LayerColumn& column, const DecodeMoment& moment) {
    return compiled.layer(static_cast<std::size_t>(column.group), moment);
  }
  const GraphFigures& on_graph(const LayerColumn& column, const DecodeMoment& moment, bool timed) {
    Known* oldest = &known_[0];
    for (Known& k : known_) {
      if (k.like == column.like && k.moment == moment && k.timed == timed) {
        k.asked = ++asked_;
        return k.figures;
      }
      if (k.asked < oldest->asked) oldest = &k;
    }
    const OpGraph graph = decode_layer(in, column.first, moment);
    *oldest = {.like = column.like,
               .moment = moment,
               .timed = timed,
               .figures = {.time = timed ? evaluate(graph, roofline_).time : Seconds{},
                           .alive = graph.alive_peak().bytes},
               .asked = ++asked_};
    return oldest->figures;
  }

  const Roofline& roofline_;
  // Kinds of layers often alternate, and all runs of a prompt begin with the same step.
  std::array<Known, 8> known_;
  std::uint64_t asked_ = 0;
};

/// A method settled for some prompts, and what was worked out for it.
struct PointLaw {
  std::shared_ptr<const Method> method;
  std::vector<LayerGroup> groups;
  std::vector<LayerColumn> columns;
  std::int32_t laws = 0;                                                     // of the columns
  std::map<std::pair<std::int64_t, std::int64_t>, Trajectory> trajectories;  // (prompt, allocated)
  std::map<std::pair<std::int64_t, std::int64_t>, DecodeForms> decodes;      // (batch, prompt or 0)
};

/// The layers of one decode step, neighbours that do the same together.
struct StepLayers {
  struct Alike {
    const LayerColumn* column = nullptr;  // the first
    std::int64_t layers = 0;
    DecodeMoment moment{};

    [[nodiscard]] bool does_as(const Alike& other) const {
      return column->like == other.column->like && moment == other.moment;
    }
  };
  std::int64_t step = 0;  // 0: none
  std::vector<Alike> all;
};

/// Times of the steps asked for last: runs of one prompt share their first, sums and results ask
/// for the same last one.
class StepTimes {
 public:
  /// `work_out()` where it is not known.
  template <class F>
  [[nodiscard]] Seconds at(std::int64_t step, bool by_graph, F&& work_out) {
    Known* oldest = &known_[0];
    for (Known& k : known_) {
      if (k.step == step && k.by_graph == by_graph) {
        k.asked = ++asked_;
        return k.time;
      }
      if (k.asked < oldest->asked) oldest = &k;
    }
    *oldest = {.step = step, .by_graph = by_graph, .time = work_out(), .asked = ++asked_};
    return oldest->time;
  }
  void clear() { known_ = {}; }

 private:
  struct Known {
    std::int64_t step = 0;  // 0: none
    bool by_graph = false;
    Seconds time;
    std::uint64_t asked = 0;  // last
  };
  std::array<Known, 8> known_;
  std::uint64_t asked_ = 0;
};

/// One (batch, prompt), without its output.
struct PointRun {
  PointLaw* law = nullptr;
  std::int64_t batch = 0;
  std::int64_t prompt = 0;
  std::int64_t allocated = 0;
  CostInput in;
  std::vector<CacheRows> rows;            // by group
  std::optional<PrefillFigures> prefill;  // with score matrices whole
  struct Retried {
    Bytes room;
    PrefillFigures figures;
  };
  std::optional<Retried> retried;  // with smaller ones where there is that room alone
  Trajectory* trajectory = nullptr;
  DecodeForms* decode = nullptr;
  StepLayers now;  // of the step asked for last
  StepTimes times;
  // Of all steps before the trajectory's n-th segment, as far as they were asked for.
  std::vector<Bytes> peaks;  // less what load put there
  std::vector<StepSum> sums;
};

/// The run's prefill, its time if asked for. As StaticRun's, without what is told of it: score
/// matrices are taken whole, or, where `room` is given, in as many query rows as its retries end
/// at.
[[nodiscard]] PrefillFigures evaluate_prefill(const PointRun& run, const Roofline& roofline,
                                              bool times, std::optional<Bytes> room = std::nullopt);

}  // namespace kvsim
