#include "traces/synthetic/synthetic_rotation.hpp"

#include <algorithm>

namespace kvsim::synthetic {

Attractors attractors_of(const GenerateOptions& o, const Rotation& rope) {
  const auto d = static_cast<std::size_t>(o.head_dim);
  Attractors a;
  for (auto* v : {&a.sink_key, &a.heavy_key, &a.sink_query, &a.heavy_query}) v->resize(d);
  const std::int64_t slowest = o.head_dim / 2 - 1;
  const auto put = [&](std::vector<float>& v, std::int64_t pair, double angle) {
    v[static_cast<std::size_t>(rope.first(pair))] = static_cast<float>(std::cos(angle));
    v[static_cast<std::size_t>(rope.second(pair))] = static_cast<float>(std::sin(angle));
  };
  const auto lead = [&](std::int64_t pair) {
    return std::min(1.0, 0.5 * rope.frequency(pair) * static_cast<double>(o.tokens));
  };
  // A query at distance n after the key is rotated by n * frequency; the lead compensates half of
  // it.
  put(a.sink_key, slowest, 0);
  put(a.sink_query, slowest, -lead(slowest));
  const bool shared = o.head_dim < 16;  // too few slow pairs: use a quarter turn of the same one
  const std::int64_t second = shared ? slowest : slowest - 1;
  const double quarter = shared ? 1.5707963267948966 : 0.0;
  put(a.heavy_key, second, quarter);
  put(a.heavy_query, second, quarter - lead(second));
  return a;
}

}  // namespace kvsim::synthetic
