#include "sim/serve/engine/speculation.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/llm/draft_head.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/math/counter_random.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kMaxDrafts = 64;

class WithDraft : public IterationCost {
 public:
  WithDraft(std::unique_ptr<IterationCost> target, std::unique_ptr<IterationCost> draft,
            const SpeculationSpec& speculation)
      : target_{std::move(target)},
        draft_{std::move(draft)},
        levels_{speculation.levels()},
        topk_{speculation.topk} {}

  MixedCost cost(const MixedStep& step) override {
    MixedCost sum = target_->cost(step);
    const auto add = [&](const MixedCost& one, double times) {
      sum.time += one.time * times;
      sum.flops += one.flops * times;
      sum.bytes += one.bytes * times;
      sum.at_peak += one.at_peak * times;
    };
    DecodeLoad load{};
    if (step.decodes > 0) {
      // One level per pass: from that of the target's last token to the second to last.
      const double verified = static_cast<double>(step.decodes * step.decode_tokens);
      const double drafted = static_cast<double>(step.decodes) * 0.5 * (1.0 + levels_);
      // A draft attends to the entire text, like the layers that attend to most of it.
      double attended = 0;
      for (const DecodeLoad& of_class : step.loads)
        attended = std::max(attended, of_class.attended);
      load.attended = load.held = attended - verified + drafted;
    }
    const MixedStep first{
        .decodes = step.decodes, .loads = {&load, 1}, .chunks = step.chunks, .decode_tokens = 1};
    add(draft_->cost(first), 1);
    if (step.decodes == 0 || levels_ == 1) return sum;
    const MixedStep later{
        .decodes = step.decodes, .loads = {&load, 1}, .chunks = {}, .decode_tokens = topk_};
    add(draft_->cost(later), levels_ - 1.0);
    return sum;
  }
  std::span<const LayerSpan> layer_classes() const override { return target_->layer_classes(); }

 private:
  std::unique_ptr<IterationCost> target_, draft_;
  std::int32_t levels_, topk_;
};

}  // namespace

std::int32_t accepted_drafts(std::int32_t drafts, double acceptance, std::uint64_t seed,
                             std::int32_t request, std::int32_t step) {
  const std::uint64_t key =
      counter_key({seed, static_cast<std::uint64_t>(request), static_cast<std::uint64_t>(step)});
  std::int32_t accepted = 0;
  while (accepted < drafts &&
         counter_uniform(key, static_cast<std::uint64_t>(accepted)) < acceptance) {
    ++accepted;
  }
  return accepted;
}

void check_speculation(const SpeculationSpec& speculation) {
  const auto within = [](std::string_view key, std::int32_t value, std::int32_t max) {
    if (value >= 1 && value <= max) return;
    throw InputError{
        fmt::format("speculation: {}: expected an integer in [1, {}], got {}", key, max, value)};
  };
  within("tokens", speculation.tokens, kMaxDrafts);
  // Each level of a tree has at least one of the proposed tokens.
  within("steps", speculation.levels(), speculation.tokens);
  within("topk", speculation.topk, speculation.tokens);
  if (!(speculation.acceptance >= 0 && speculation.acceptance <= 1)) {
    throw InputError{
        fmt::format("speculation: acceptance: expected a probability in [0, 1], got {}",
                    speculation.acceptance)};
  }
}

namespace {

Llm proposing_llm(const ServeSpec& spec) {
  switch (spec.speculation.proposer) {
    case Proposer::kMtp:
      return draft_head(*spec.llm, DraftHead::kMtp);
    case Proposer::kEagle:
      return draft_head(*spec.llm, DraftHead::kEagle);
    case Proposer::kEagle3:
      return draft_head(*spec.llm, DraftHead::kEagle3);
    default:
      return *spec.speculation.draft;
  }
}

}  // namespace

std::unique_ptr<Draft> make_draft(const ServeSpec& spec, const CostInput& target) {
  KVSIM_CHECK(spec.speculation.has_draft(), "nothing drafts");
  check_speculation(spec.speculation);
  auto draft = std::make_unique<Draft>();
  const Llm whole = proposing_llm(spec);
  draft->llm = tensor_shard(whole, spec.tensor_parallel, spec.options.context_parallel.value_or(1));
  draft->method = make_method({"full", {}, {}}, target.prompt, method_site(whole, spec.kv_dtype));
  draft->in = target;
  draft->in.llm = &draft->llm;
  draft->in.method = draft->method.get();
  const Proposer proposer = spec.speculation.proposer;
  if (proposer != Proposer::kMtp) draft->in.weight_format = nullptr;
  // Published heads have 16 bits.
  if (whole.is_draft_head && proposer != Proposer::kMtp) {
    draft->in.weight_dtype = whole.compute_dtype;
  }
  draft->in.measured_weights.reset();
  draft->in.vocab_size = whole.vocab_size;
  for (const LayerSpec& layer : draft->llm.layers) {
    if (is_bounded(layer.attention)) {
      throw InputError{
          fmt::format("speculation: draft: the layers of {} have windows", whole.name)};
    }
  }
  draft->weights = weights_held(draft->in);
  draft->block = full_cache_bytes(draft->llm, target.stack->block_tokens, spec.kv_dtype);
  return draft;
}

std::unique_ptr<IterationCost> with_draft(std::unique_ptr<IterationCost> target,
                                          std::unique_ptr<IterationCost> draft,
                                          const SpeculationSpec& speculation) {
  return std::make_unique<WithDraft>(std::move(target), std::move(draft), speculation);
}

}  // namespace kvsim
