#include "sim/serve/engine/speculation.hpp"

#include <utility>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/math/counter_random.hpp"
#include "models/units/error.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"

namespace kvsim {
namespace {

constexpr std::int32_t kMaxDrafts = 64;

class WithDraft : public IterationCost {
 public:
  WithDraft(std::unique_ptr<IterationCost> target, std::unique_ptr<IterationCost> draft,
            std::int32_t tokens)
      : target_{std::move(target)}, draft_{std::move(draft)}, tokens_{tokens} {}

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
      // One token a pass: from that of the target's last to the one before the last proposal.
      const double verified = static_cast<double>(step.decodes * step.decode_tokens);
      const double drafted = static_cast<double>(step.decodes) * 0.5 * (1.0 + tokens_);
      load.attended = load.held = step.loads.front().attended - verified + drafted;
    }
    const MixedStep first{
        .decodes = step.decodes, .loads = {&load, 1}, .chunks = step.chunks, .decode_tokens = 1};
    add(draft_->cost(first), 1);
    if (step.decodes == 0 || tokens_ == 1) return sum;
    add(draft_->cost({.decodes = step.decodes, .loads = {&load, 1}, .chunks = {}}), tokens_ - 1.0);
    return sum;
  }
  std::span<const LayerSpan> layer_classes() const override { return target_->layer_classes(); }

 private:
  std::unique_ptr<IterationCost> target_, draft_;
  std::int32_t tokens_;
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

std::unique_ptr<Draft> make_draft(const ServeSpec& spec, const CostInput& target) {
  const SpeculationSpec& speculation = spec.speculation;
  if (speculation.tokens < 1 || speculation.tokens > kMaxDrafts) {
    throw InputError{fmt::format("speculation: tokens: expected an integer in [1, {}], got {}",
                                 kMaxDrafts, speculation.tokens)};
  }
  if (!(speculation.acceptance >= 0 && speculation.acceptance <= 1)) {
    throw InputError{
        fmt::format("speculation: acceptance: expected a probability in [0, 1], got {}",
                    speculation.acceptance)};
  }
  auto draft = std::make_unique<Draft>();
  const Llm whole = speculation.uses_mtp ? mtp_head(*spec.llm) : *speculation.draft;
  draft->llm = tensor_shard(whole, spec.tensor_parallel);
  draft->method = make_method({"full", {}, {}}, target.prompt, method_site(whole, spec.kv_dtype));
  draft->in = target;
  draft->in.llm = &draft->llm;
  draft->in.method = draft->method.get();
  if (!speculation.uses_mtp) draft->in.weight_format = nullptr;
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
                                          std::int32_t tokens) {
  return std::make_unique<WithDraft>(std::move(target), std::move(draft), tokens);
}

}  // namespace kvsim
