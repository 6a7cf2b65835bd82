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

bool is_in_one_node(const ServeSpec& spec, std::int32_t gpus) {
  return gpus <= node_gpus(*spec.gpu);
}

}  // namespace kvsim
