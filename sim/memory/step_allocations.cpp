#include "sim/memory/step_allocations.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/cost/layer/step_graphs.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using BlockId = CachingAllocator::BlockId;

constexpr Bytes kBlock = 512_B;

/// A tensor in memory.
struct Held {
  BlockId id{};
  Bytes bytes;  // as counted by the graph
};

/// One operation of a graph on memory.
struct Action {
  enum class Kind : std::uint8_t { kAllocate, kRelease, kBecomes, kTakeInput, kTakeCache } kind;
  std::size_t tensor = 0;
  std::size_t from = 0;  // kBecomes: the tensor whose block it takes over; kTakeCache: its part
};

/// Keys, values, side data and all other data that a layer holds between graphs.
using ResidentCache = std::array<std::optional<Held>, 4>;

std::size_t part_of(const Tensor& tensor) {
  if (tensor.owner == Owner::kSideData) return 2;
  if (tensor.name == "states and index") return 3;
  return tensor.name == "values" ? 1 : 0;
}

bool is_cache(Owner owner) { return owner == Owner::kKvCache || owner == Owner::kSideData; }
bool is_copy(Owner owner) { return owner == Owner::kConcatCopy || owner == Owner::kCompaction; }

/// A graph's allocations and releases in the order of its schedule: an operator's outputs are
/// allocated before the tensors that it uses last are released.
std::vector<Action> schedule_of(const OpGraph& graph, bool has_resident_cache) {
  using Kind = Action::Kind;
  const auto tensors = graph.tensors();
  const auto lives = [&](const Tensor& t) { return t.bytes > Bytes{} && t.last >= t.first; };
  // A copy of the cache becomes the cache immediately: the same tensor under another name.
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::size_t> taken_over(tensors.size(), kNone);  // by the copy: the cache tensor
  std::vector<std::size_t> copy_of(tensors.size(), kNone);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].owner != Owner::kKvCache || !lives(tensors[t])) continue;
    for (std::size_t u = 0; u < tensors.size(); ++u) {
      if (is_copy(tensors[u].owner) && tensors[u].last == tensors[t].first - 1 &&
          tensors[u].bytes == tensors[t].bytes && lives(tensors[u]) && taken_over[u] == kNone) {
        taken_over[u] = t;
        copy_of[t] = u;
        break;
      }
    }
  }
  std::vector<Action> out;
  for (OpIndex op = 0; op <= graph.size(); ++op) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].first != op || !lives(tensors[t])) continue;
      if (copy_of[t] != kNone) {
        out.push_back({Kind::kBecomes, t, copy_of[t]});
      } else if (op == 0 &&
                 (tensors[t].name == "layer input" || tensors[t].name == "hidden states")) {
        out.push_back({Kind::kTakeInput, t, 0});
      } else if (op == 0 && has_resident_cache && is_cache(tensors[t].owner)) {
        out.push_back({Kind::kTakeCache, t, part_of(tensors[t])});
      } else {
        out.push_back({Kind::kAllocate, t, 0});
      }
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].last == op && lives(tensors[t]) && taken_over[t] == kNone) {
        out.push_back({Kind::kRelease, t, 0});
      }
    }
  }
  return out;
}

}  // namespace

struct AllocationSession::Impl {
 public:
  Impl(const AllocatorDevice& device, const AllocatorConfig& config) : allocator_{device, config} {
    for (std::size_t i = 0; i < kOwners; ++i) {
      owners_[i] = allocator_.owner(name_of(static_cast<Owner>(i)));
    }
  }

  std::optional<AllocationRefusal> load(const CostInput& in) {
    KVSIM_CHECK(in.llm != nullptr, "allocations without a model");
    refusal_.reset();
    if (loaded_) return std::nullopt;
    release_all(weights_);
    phase_ = "load";
    const bool shared = shares_experts(*in.stack);
    const Llm held = shared ? held_model(in) : Llm{};
    for (const WeightTensor& weight : weight_tensors(shared ? held : *in.llm, in.weight_dtype)) {
      const auto got = allocate(Owner::kWeights, weight.bytes, "weights", -1);
      if (!got) return refusal_;
      weights_.push_back(*got);
    }
    if (const Bytes vision = vision_weights(in); vision > Bytes{}) {
      const auto got = allocate(Owner::kWeights, vision, "vision encoder", -1);
      if (!got) return refusal_;
      weights_.push_back(*got);
    }
    loaded_ = true;
    return std::nullopt;
  }

  AllocationReport batch(const AllocationRun& run) {
    KVSIM_CHECK(run.cost != nullptr, "a run of allocations without a model");
    KVSIM_CHECK(run.prompt >= 1 && run.output >= 0, "prompt {} at least 1, output {} at least 0",
                run.prompt, run.output);
    end_batch();
    run_ = &run;
    in_ = run.cost;
    step_ = 0;
    caches_.assign(static_cast<std::size_t>(in_->llm->n_layers()), {});
    AllocationReport mine;
    const auto note = [&] {
      note_fragmentation();
      mine.samples.push_back(
          {.allocated = allocator_.allocated(), .reserved = allocator_.reserved()});
    };
    if (!load(*in_) && place() && prefill()) {
      note();
      for (std::int64_t step = 1; step <= run.output; ++step) {
        if (!decode(step)) break;
        mine.steps = step;
        note();
      }
    }
    if (!first_oom_) first_oom_ = refusal_;
    steps_ += mine.steps;
    mine.oom = refusal_;
    add_totals(mine);
    return mine;
  }

  void end_batch() {
    // For a refused graph: its tensors, its input and the cache that it took over.
    for (std::optional<Held>& tensor : held_) {
      if (tensor) drop(*std::exchange(tensor, std::nullopt));
    }
    if (input_) drop(*std::exchange(input_, std::nullopt));
    if (embeddings_) release(*std::exchange(embeddings_, std::nullopt));
    if (mask_) release(*std::exchange(mask_, std::nullopt));
    release_all(older_);
    for (ResidentCache& cache : caches_) {
      for (std::optional<Held>& part : cache) {
        if (part) release(*std::exchange(part, std::nullopt));
      }
    }
    release_all(placed_);
    if (!loaded_) release_all(weights_);
    Bytes weights;
    for (const Held& tensor : weights_) weights += round_up(tensor.bytes, kBlock);
    KVSIM_CHECK(alive_ == weights, "{} B are held between batches, the weights are {} B",
                alive_.count(), weights.count());
  }

  [[nodiscard]] AllocationReport report() const {
    AllocationReport all;
    all.steps = steps_;
    all.oom = first_oom_;
    add_totals(all);
    return all;
  }

 private:
  void add_totals(AllocationReport& report) const {
    report.end = allocator_.stats();
    report.tensor_peak = tensor_peak_;
    report.owners_at_peak = allocator_.peak_owners();
    report.worst_fragmentation = worst_fragmentation_;
  }
  void note_fragmentation() {
    worst_fragmentation_ = std::max(worst_fragmentation_, allocator_.stats().fragmentation());
  }

  std::optional<Held> allocate(Owner owner, Bytes bytes, std::string_view what,
                               std::int32_t layer) {
    const auto got = allocator_.malloc(bytes, owners_[static_cast<std::size_t>(owner)]);
    if (!got) {
      refusal_ = AllocationRefusal{
          .step = step_,
          .tokens = phase_ == "load" ? 0 : run_->prompt + step_,
          .phase = phase_,
          .what = layer < 0 ? std::string{what} : fmt::format("{} of layer {}", what, layer),
          .reason = got.error()};
      return std::nullopt;
    }
    alive_ += round_up(bytes, kBlock);
    tensor_peak_ = std::max(tensor_peak_, alive_);
    return Held{got.value(), bytes};
  }
  void release(const Held& held) {
    allocator_.free(held.id);
    alive_ -= round_up(held.bytes, kBlock);
  }

  void release_all(std::vector<Held>& tensors) {
    for (const Held& tensor : tensors) release(tensor);
    tensors.clear();
  }

  /// Makes the allocations of a batch before it runs.
  bool place() {
    phase_ = "load";
    const CostInput& in = *in_;
    const std::int64_t end = std::max(run_->prompt + run_->output, in.allocated);
    const auto keep = [&](Owner owner, Bytes bytes, std::string_view what, std::int32_t layer) {
      if (bytes <= Bytes{}) return true;
      const auto got = allocate(owner, bytes, what, layer);
      if (got) placed_.push_back(*got);
      return got.has_value();
    };
    if (in.stack->full_causal_mask &&
        !keep(Owner::kMask, full_mask_bytes(in, end), "full causal mask", -1)) {
      return false;
    }
    if (in.stack->growth != CacheGrowth::kStatic) return true;
    for (std::int32_t l = 0; l < in.llm->n_layers(); ++l) {
      const LayerCache cache = layer_cache(in, l,
                                           std::max(held_entries(in, l, run_->prompt, run_->prompt),
                                                    held_entries(in, l, run_->prompt, end)));
      for (const auto& [owner, bytes] :
           {std::pair{Owner::kKvCache, cache.keys}, std::pair{Owner::kKvCache, cache.values},
            std::pair{Owner::kKvCache, cache.other}, std::pair{Owner::kSideData, cache.side}}) {
        if (!keep(owner, bytes, "static cache", l)) return false;
      }
    }
    return true;
  }

  /// Runs one graph; `layer` -1: none.
  bool run_graph(const OpGraph& graph, const std::vector<Action>& schedule, std::int32_t layer) {
    using Kind = Action::Kind;
    const auto tensors = graph.tensors();
    held_.assign(tensors.size(), std::nullopt);
    auto* cache = layer < 0 ? nullptr : &caches_[static_cast<std::size_t>(layer)];
    for (const Action& action : schedule) {
      const Tensor& tensor = tensors[action.tensor];
      std::optional<Held>& mine = held_[action.tensor];
      switch (action.kind) {
        case Kind::kAllocate:
          mine = allocate(tensor.owner, tensor.bytes, tensor.name, layer);
          if (!mine) return false;
          break;
        case Kind::kRelease:
          if (mine) drop(*std::exchange(mine, std::nullopt));
          break;
        case Kind::kBecomes:
          mine = std::exchange(held_[action.from], std::nullopt);
          allocator_.hand_over(mine->id, owners_[static_cast<std::size_t>(tensor.owner)]);
          break;
        case Kind::kTakeInput:
          KVSIM_CHECK(input_.has_value(), "{} is not there", tensor.name);
          mine = std::exchange(input_, std::nullopt);
          break;
        case Kind::kTakeCache: {
          mine = std::exchange(cache->at(action.from), std::nullopt);
          if (mine && mine->bytes == tensor.bytes) break;
          // A method's side data is created again if the entries were compressed.
          KVSIM_CHECK(tensor.owner == Owner::kSideData,
                      "{} of layer {} are not as the previous step left them", tensor.name, layer);
          if (mine) release(*std::exchange(mine, std::nullopt));
          mine = allocate(tensor.owner, tensor.bytes, tensor.name, layer);
          if (!mine) return false;
          break;
        }
      }
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (!held_[t]) continue;
      if (is_cache(tensors[t].owner) && cache != nullptr) {
        (*cache)[part_of(tensors[t])] = *held_[t];
      } else if (tensors[t].name == "layer output" || tensors[t].name == "input embeddings") {
        input_ = held_[t];
      } else if (tensors[t].owner == Owner::kConcatCopy) {
        older_.push_back(*held_[t]);
      } else {
        drop(*held_[t]);
      }
    }
    held_.clear();
    return true;
  }

  /// Releases a tensor of a graph, unless the caller also holds it.
  void drop(const Held& held) {
    if (embeddings_ && embeddings_->id == held.id) return;
    release(held);
  }

  bool prefill() {
    phase_ = "prefill";
    const Step step = prefill_step(*in_, run_->prompt, run_->score_rows);
    return run_step(step, run_->prompt, false);
  }
  bool decode(std::int64_t step) {
    phase_ = "decode";
    step_ = step;
    const std::int64_t tokens = run_->prompt + step;
    return run_step(decode_step(*in_, run_->prompt, tokens), 1,
                    in_->stack->growth != CacheGrowth::kStatic);
  }

  bool run_step(const Step& step, std::int64_t tokens, bool has_resident_cache) {
    bool logits_done = false;
    for (std::size_t s = 0; s < step.segments.size(); ++s) {
      const Segment& segment = step.segments[s];
      const bool compresses = logits_done;
      const auto schedule = schedule_of(*segment.graph, has_resident_cache || compresses);
      for (std::int32_t i = 0; i < segment.repeat; ++i) {
        const std::int32_t layer = segment.first_layer < 0 ? -1 : segment.first_layer + i;
        if (!run_graph(*segment.graph, schedule, layer)) return false;
      }
      if (s == 0) {
        // Tensors that callers and all layers hold until the end of the step.
        if (in_->stack->keeps_inputs) embeddings_ = input_;
        for (const Tensor& t : resident_tensors(*in_, tokens)) {
          if (t.owner != Owner::kMask) continue;
          mask_ = allocate(t.owner, t.bytes, t.name, -1);
          if (!mask_) return false;
        }
      } else if (segment.first_layer < 0) {
        logits_done = true;
        if (embeddings_) release(*std::exchange(embeddings_, std::nullopt));
        if (mask_) release(*std::exchange(mask_, std::nullopt));
      }
    }
    release_all(older_);
    return true;
  }

  CachingAllocator allocator_;
  std::array<CachingAllocator::OwnerId, kOwners> owners_{};
  std::vector<Held> weights_;
  bool loaded_ = false;                 // all of them
  const AllocationRun* run_ = nullptr;  // during the run
  const CostInput* in_ = nullptr;
  std::vector<Held> placed_;               // before the batch ran
  std::vector<ResidentCache> caches_;      // by layer
  std::vector<std::optional<Held>> held_;  // of the running graph
  std::optional<Held> input_;              // of the next graph
  std::optional<Held> embeddings_;         // held by the caller
  std::optional<Held> mask_;               // of all layers of a step
  std::vector<Held> older_;                // caches that the caller holds to the step's end
  Bytes alive_;
  std::int64_t step_ = 0;
  std::string phase_;
  std::optional<AllocationRefusal> refusal_;  // of the running batch
  std::optional<AllocationRefusal> first_oom_;
  Bytes tensor_peak_;
  double worst_fragmentation_ = 0;
  std::int64_t steps_ = 0;
};

AllocationSession::AllocationSession(const AllocatorDevice& device, const AllocatorConfig& config)
    : impl_{std::make_unique<Impl>(device, config)} {}
AllocationSession::AllocationSession(AllocationSession&&) noexcept = default;
AllocationSession& AllocationSession::operator=(AllocationSession&&) noexcept = default;
AllocationSession::~AllocationSession() = default;

std::optional<AllocationRefusal> AllocationSession::load(const CostInput& in) {
  return impl_->load(in);
}
AllocationReport AllocationSession::batch(const AllocationRun& run) { return impl_->batch(run); }
void AllocationSession::end_batch() { impl_->end_batch(); }
AllocationReport AllocationSession::report() const { return impl_->report(); }

}  // namespace kvsim
