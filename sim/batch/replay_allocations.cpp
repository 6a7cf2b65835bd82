#include "sim/batch/replay_allocations.hpp"

#include <vector>

namespace kvsim {

std::optional<TensorRefusal> replay_allocations(Hbm& hbm, const OpGraph& graph) {
  const auto tensors = graph.tensors();
  std::vector<std::optional<Hbm::Id>> held(tensors.size());
  for (OpIndex op = 0; op < graph.size(); ++op) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].first != op || tensors[t].last < op) continue;
      auto got = hbm.allocate(name_of(tensors[t].owner), tensors[t].bytes);
      if (!got) {
        return TensorRefusal{
            .what = std::string{tensors[t].name}, .op = op, .tensor = t, .refusal = got.error()};
      }
      held[t] = got.value();
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (held[t] && tensors[t].last == op) {
        hbm.release(*held[t]);
        held[t].reset();
      }
    }
  }
  for (const auto& id : held) {
    if (id) hbm.release(*id);
  }
  return std::nullopt;
}

}  // namespace kvsim
