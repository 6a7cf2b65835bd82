#include <random>
#include <vector>

#include "models/units/check.hpp"
#include "sim/memory/hbm.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

Bytes sum_of(const Owners& owners) {
  Bytes sum;
  for (const auto& [name, n] : owners) sum += n;
  return sum;
}

TEST_CASE("used + free == capacity and owners sum to used after any request") {
  std::mt19937_64 dice{11};
  for (const Bytes block : {Bytes{1}, Bytes{512}}) {
    Hbm hbm{Bytes{100000}, block};
    std::vector<Hbm::Id> live;
    const char* owners[] = {"weights", "kv_cache", "scores"};
    Bytes highest;
    for (int i = 0; i < 3000; ++i) {
      if (!live.empty() && dice() % 3 == 0) {
        const auto k = static_cast<std::ptrdiff_t>(dice() % live.size());
        hbm.release(live[static_cast<std::size_t>(k)]);
        live.erase(live.begin() + k);
      } else {
        const auto before = hbm.owners();
        const Bytes used = hbm.used();
        const auto got =
            hbm.allocate(owners[dice() % 3], Bytes{static_cast<std::int64_t>(dice() % 20000)});
        if (got) {
          live.push_back(got.value());
          CHECK(hbm.used() % block == Bytes{});
        } else {
          // A refused allocation does not change the state and reports it.
          CHECK(hbm.owners() == before);
          CHECK(hbm.used() == used);
          CHECK(got.error().owners == before);
          CHECK(got.error().free == hbm.free());
          CHECK(got.error().requested > hbm.free());
        }
      }
      CHECK(hbm.used() + hbm.free() == hbm.capacity());
      CHECK(sum_of(hbm.owners()) == hbm.used());
      highest = std::max(highest, hbm.used());
      CHECK(hbm.peak() == highest);
      CHECK(sum_of(hbm.peak_owners()) == highest);
    }
    for (const Hbm::Id id : live) hbm.release(id);
    CHECK(hbm.used() == Bytes{});
    CHECK(hbm.owners().empty());
  }
}

TEST_CASE("blocks of 512 B by hand") {
  Hbm hbm{Bytes{1500}, Bytes{512}};
  CHECK(hbm.allocate("a", Bytes{1}).has_value());  // 512
  CHECK(hbm.free() == Bytes{988});
  CHECK_FALSE(hbm.allocate("b", Bytes{600}).has_value());  // 1024
  CHECK(hbm.allocate("b", Bytes{512}).has_value());
  CHECK(hbm.used() == Bytes{1024});
  CHECK(hbm.allocate("c", Bytes{}).has_value());  // zero bytes use no memory
  CHECK(hbm.owners().size() == 2);
}

TEST_CASE("misuse of an Hbm is a contract violation") {
  Hbm hbm{Bytes{10}};
  CHECK_THROWS_AS((void)hbm.allocate("a", Bytes{-1}), ContractError);
  const auto got = hbm.allocate("a", Bytes{5});
  hbm.release(got.value());
  CHECK_THROWS_AS(hbm.release(got.value()), ContractError);
  CHECK_THROWS_AS(Hbm(Bytes{-1}), ContractError);
}

}  // namespace
}  // namespace kvsim
