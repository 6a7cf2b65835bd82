#include "sim/serve/serve_spec.hpp"

#include <array>
#include <utility>

#include "sim/network/expert_network.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::pair<Proposer, std::string_view>, 4> kProposers{
    {{Proposer::kMtp, "mtp"},
     {Proposer::kEagle, "eagle"},
     {Proposer::kEagle3, "eagle3"},
     {Proposer::kNgram, "ngram"}}};

}  // namespace

std::string_view word_of(Proposer proposer) {
  for (const auto& [known, word] : kProposers) {
    if (known == proposer) return word;
  }
  return {};
}

std::optional<Proposer> find_proposer(std::string_view word) {
  for (const auto& [proposer, known] : kProposers) {
    if (known == word) return proposer;
  }
  return std::nullopt;
}

std::string name_of(const SpeculationSpec& speculation) {
  return speculation.proposer == Proposer::kModel ? speculation.draft->name
                                                  : std::string{word_of(speculation.proposer)};
}

std::int32_t stage_gpus(const ServeSpec& spec) {
  return spec.tensor_parallel * spec.options.prefill_context.value_or(1);
}

std::int32_t gpus_per_replica(const ServeSpec& spec) {
  return stage_gpus(spec) * spec.pipeline_parallel;
}

std::int32_t service_gpus(const ServeSpec& spec) {
  return gpus_per_replica(spec) * (spec.cluster.replicas + spec.cluster.prefill_replicas);
}

EngineSite engine_site(const ServeSpec& spec) {
  const std::int32_t experts = spec.options.expert_parallel.value_or(1);
  const auto& defaults = spec.stack->defaults;
  // Experts over more GPUs than attention: replicas are groups of one engine.
  const bool is_grouped = defaults && defaults->limits_of_all_groups &&
                          experts > spec.tensor_parallel && experts % spec.tensor_parallel == 0 &&
                          spec.cluster.replicas % (experts / spec.tensor_parallel) == 0;
  const std::int32_t groups = is_grouped ? experts / spec.tensor_parallel : 1;
  const bool drafts = spec.speculation.is_on();
  return {.gpu = spec.gpu,
          .llm = spec.llm,
          .gpus = gpus_per_replica(spec) * groups,
          .speculates = drafts,
          .looks_up = drafts && spec.speculation.proposer == Proposer::kNgram,
          .draft_model = drafts && spec.speculation.proposer == Proposer::kModel,
          .stages = spec.pipeline_parallel,
          .attention_groups = groups,
          .caches_prefixes = spec.scheduler.prefix_caching.value_or(true)};
}

bool is_in_one_node(const ServeSpec& spec, std::int32_t gpus) {
  return gpus <= node_gpus(*spec.gpu);
}

}  // namespace kvsim
