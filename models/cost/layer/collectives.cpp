#include "models/cost/layer/collectives.hpp"

#include "models/cost/rates/kernel_use.hpp"

namespace kvsim {

Op collective_op(std::string_view name, CollectiveKind kind, double bytes, std::int32_t ranks,
                 Dtype dtype, std::int32_t passes) {
  // An all-reduce is a reduce-scatter and an all-gather.
  const double times = kind == CollectiveKind::kAllReduce ? 2 : 1;
  return {.name = name,
          .family = OpFamily::kCollective,
          .bytes_read = times * bytes * (ranks - 1) / ranks,
          .launches = passes,
          .dtype = dtype,
          .kernel = collective_use(kind, bytes, ranks, passes)};
}

}  // namespace kvsim
