#include "sim/serve/service/router.hpp"

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Engines = std::span<const std::unique_ptr<Engine>>;

std::int64_t load(const std::unique_ptr<Engine>& e) { return e->load() + e->promised(); }

std::size_t least_loaded(Engines engines) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < engines.size(); ++i) {
    if (load(engines[i]) < load(engines[best])) best = i;
  }
  return best;
}

class RoundRobin : public Router {
 public:
  std::size_t choose(RequestId /*id*/, Engines engines) override {
    return next_++ % engines.size();
  }

 private:
  std::size_t next_ = 0;
};

class LeastLoaded : public Router {
 public:
  std::size_t choose(RequestId /*id*/, Engines engines) override { return least_loaded(engines); }
};

class PrefixAware : public Router {
 public:
  explicit PrefixAware(std::int64_t margin) : margin_{margin} {}

  std::size_t choose(RequestId id, Engines engines) override {
    const std::size_t idle = least_loaded(engines);
    std::size_t best = idle;
    std::int32_t max = engines[idle]->prefix_found(id);
    for (std::size_t i = 0; i < engines.size(); ++i) {
      const std::int32_t found = engines[i]->prefix_found(id);
      if (found < max) continue;
      if (found == max && load(engines[i]) >= load(engines[best])) continue;
      best = i;
      max = found;
    }
    return load(engines[best]) > load(engines[idle]) + margin_ ? idle : best;
  }

 private:
  std::int64_t margin_;
};

}  // namespace

std::unique_ptr<Router> make_router(RouterPolicy policy, std::int64_t prefix_margin) {
  switch (policy) {
    case RouterPolicy::kRoundRobin:
      return std::make_unique<RoundRobin>();
    case RouterPolicy::kLeastLoaded:
      return std::make_unique<LeastLoaded>();
    case RouterPolicy::kPrefixAware:
      return std::make_unique<PrefixAware>(prefix_margin);
  }
  KVSIM_CHECK(false, "router {}", static_cast<int>(policy));
  return nullptr;
}

}  // namespace kvsim
