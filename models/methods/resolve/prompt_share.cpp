#include "models/methods/resolve/prompt_share.hpp"

#include "models/methods/composed.hpp"
#include "models/methods/resolve/forwarding.hpp"

namespace kvsim {

double prompt_attention_share(const Method& method, std::int64_t prompt) {
  const Method* at = &method;
  while (const auto* forwards = dynamic_cast<const ForwardingMethod*>(at)) {
    at = &forwards->forwarded();
  }
  const auto* composed = dynamic_cast<const ComposedMethod*>(at);
  if (composed == nullptr || prompt < 1) return 1;
  const Composition& parts = composed->parts();
  double share = 1;
  if (parts.prefill) share *= parts.prefill->flops_share(parts.prefill->pairs_share(prompt));
  if (const auto* reads = dynamic_cast<const ReadsPromptInPart*>(parts.read.get())) {
    share *= reads->prompt_pairs_share(prompt);
  }
  return share;
}

}  // namespace kvsim
