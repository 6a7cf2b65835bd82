#include <map>
#include <random>
#include <string>
#include <vector>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/memory/caching_allocator.hpp"
#include "tests/sim/memory/slow_allocator.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using BlockId = CachingAllocator::BlockId;

/// An allocator on an otherwise empty device, with one owner.
struct Bench {
  explicit Bench(Bytes total = 1_GiB, std::string_view conf = "")
      : allocator{{.total = total}, parse_alloc_conf(conf, "conf")}, owner{allocator.owner("x")} {}

  BlockId get(Bytes n, std::int32_t stream = 0) {
    return allocator.malloc(n, owner, stream).value();
  }
  [[nodiscard]] Bytes reserved() const { return allocator.reserved(); }
  [[nodiscard]] Bytes allocated() const { return allocator.allocated(); }

  CachingAllocator allocator;
  CachingAllocator::OwnerId owner;
};

/// Checks that no two blocks overlap, that segments have no gap and no two free neighbours, and
/// that sums match the statistics.
void check_laws(const CachingAllocator& allocator, Bytes device) {
  const AllocatorStats stats = allocator.stats();
  std::uint64_t end = 0;
  std::int64_t in_use = 0, reserved = 0;
  for (const auto& segment : allocator.snapshot()) {
    REQUIRE(!segment.blocks.empty());
    CHECK(segment.blocks.front().address >= end);
    end = segment.blocks.front().address;
    for (std::size_t i = 0; i < segment.blocks.size(); ++i) {
      const auto& block = segment.blocks[i];
      CHECK(block.address == end);
      CHECK(block.size > 0);
      CHECK(block.size % 512 == 0);
      end += static_cast<std::uint64_t>(block.size);
      if (block.in_use) in_use += block.size;
      if (block.mapped) reserved += block.size;
      if (i == 0) continue;
      const auto& before = segment.blocks[i - 1];
      CHECK((block.in_use || before.in_use || block.mapped != before.mapped));
    }
  }
  CHECK(stats.active.count() == in_use);
  CHECK(stats.reserved.count() == reserved);
  CHECK(stats.allocated <= stats.active);
  CHECK(stats.requested <= stats.active);
  CHECK(stats.active <= stats.reserved);
  CHECK(stats.reserved <= device);
  CHECK(stats.largest_free <= stats.reserved - stats.active);
  CHECK(stats.inactive_split <= stats.reserved - stats.active);
  CHECK(stats.fragmentation() >= 0);
  CHECK(stats.fragmentation() <= 1);
  Bytes held;
  for (const auto& [owner, bytes] : allocator.owners()) held += bytes;
  CHECK(held == stats.allocated);
}

TEST_CASE("small sizes: 512 B blocks out of 2 MiB segments") {
  Bench b;
  (void)b.get(1_B);
  CHECK(b.allocated() == 512_B);
  CHECK(b.reserved() == 2_MiB);
  (void)b.get(1_MiB);  // still small: fits next to it
  CHECK(b.allocated() == 1_MiB + 512_B);
  CHECK(b.reserved() == 2_MiB);
  (void)b.get(1_MiB);  // 1 MiB - 512 B remain: not enough
  CHECK(b.reserved() == 4_MiB);
  CHECK(b.allocator.segments() == 2);
  // Remaining: 1 MiB - 512 B of the first segment, 1 MiB of the second.
  CHECK(b.allocator.stats().largest_free == 1_MiB);
  CHECK(b.allocator.stats().inactive_split == 2_MiB - 512_B);
}

TEST_CASE("large sizes: 20 MiB segments below 10 MiB, then whole 2 MiB") {
  Bench b;
  (void)b.get(1_MiB + 1_B);
  CHECK(b.allocated() == 1_MiB + 512_B);
  CHECK(b.reserved() == 20_MiB);
  (void)b.get(10_MiB - 512_B);  // from the remainder of the first segment
  CHECK(b.reserved() == 20_MiB);
  (void)b.get(10_MiB);  // 9 MiB remain; from 10 MiB, the segment has the requested size
  CHECK(b.reserved() == 30_MiB);
  (void)b.get(10_MiB + 1_B);
  CHECK(b.reserved() == 42_MiB);
  CHECK(b.allocated() == 1_MiB + 512_B + 10_MiB - 512_B + 10_MiB + 10_MiB + 512_B);
}

TEST_CASE("a large block is split only if more than 1 MiB is left") {
  Bench b{1_GiB};
  const BlockId whole = b.get(20_MiB);
  b.allocator.free(whole);
  const BlockId kept = b.get(19_MiB);  // exactly 1 MiB would remain
  CHECK(b.allocated() == 20_MiB);
  CHECK(b.allocator.stats().requested == 19_MiB);
  b.allocator.free(kept);
  (void)b.get(19_MiB - 512_B);
  CHECK(b.allocated() == 19_MiB - 512_B);
  CHECK(b.allocator.stats().inactive_split == 1_MiB + 512_B);
  CHECK(b.reserved() == 20_MiB);
}

TEST_CASE("best fit: the smallest cached block that is large enough and the lower one of two") {
  Bench b;
  const BlockId forty = b.get(40_MiB);
  const BlockId thirty = b.get(30_MiB);
  const BlockId other = b.get(30_MiB);
  const std::uint64_t address = b.allocator.address(thirty);
  for (const BlockId id : {forty, thirty, other}) b.allocator.free(id);
  const BlockId got = b.get(25_MiB);
  CHECK(b.allocator.address(got) == address);
  CHECK(b.reserved() == 100_MiB);
  // The remaining 5 MiB are used by the next allocation.
  const BlockId next = b.get(4_MiB);
  CHECK(b.allocator.address(next) == address + 25 * 1048576ULL);
  CHECK(b.allocator.stats().largest_free == 40_MiB);
}

TEST_CASE("freed neighbours coalesce across splits") {
  Bench b;
  std::vector<BlockId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(b.get(4_MiB));  // 4 MiB remain at the end
  b.allocator.free(ids[0]);
  b.allocator.free(ids[2]);
  CHECK(b.allocator.stats().largest_free == 4_MiB);
  CHECK(b.allocator.stats().inactive_split == 12_MiB);
  // 12 MiB are cached, but no piece is larger than 4: 1 - 4/12.
  CHECK(b.allocator.stats().fragmentation() == test::rel(1.0 - 4.0 / 12.0));
  (void)b.get(5_MiB);  // so this uses another segment
  CHECK(b.reserved() == 40_MiB);
  b.allocator.free(ids[1]);
  CHECK(b.allocator.stats().largest_free == 15_MiB);  // of the second segment; the first has 12
  b.allocator.free(ids[3]);
  CHECK(b.allocator.stats().largest_free == 20_MiB);
  b.allocator.empty_cache();
  CHECK(b.reserved() == 20_MiB);
}

TEST_CASE("without room cached blocks are released and the allocation is repeated") {
  Bench b{100_MiB};
  b.allocator.free(b.get(60_MiB));
  CHECK(b.reserved() == 60_MiB);
  const BlockId id = b.get(70_MiB);
  CHECK(b.reserved() == 70_MiB);
  CHECK(b.allocator.stats().retries == 1);
  CHECK(b.allocator.stats().reserved_peak == 70_MiB);
  b.allocator.free(id);
  // A cached segment that is split stays: its 70 MiB, 5 of which are in use, leave too little for
  // 40.
  (void)b.get(5_MiB);
  const auto refused = b.allocator.malloc(80_MiB, b.owner);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().free == 30_MiB);
  CHECK(b.allocated() == 5_MiB);
  (void)b.get(65_MiB);
  CHECK(b.reserved() == 70_MiB);
}

TEST_CASE("the refusal reads like PyTorch's and lists the owners") {
  CachingAllocator allocator{{.total = 100_MiB, .outside = 10_MiB}, {}};
  const auto weights = allocator.owner("weights");
  const auto cache = allocator.owner("kv_cache");
  (void)allocator.malloc(40_MiB, weights).value();
  (void)allocator.malloc(30_MiB + 300_KiB, cache).value();  // segment of 32 MiB, unsplit
  const auto refused = allocator.malloc(9_MiB, cache);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().message() ==
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 100.00 MiB "
        "of which 18.00 MiB is free. Including non-PyTorch memory, this process has 82.00 MiB "
        "memory in use. Of the allocated memory 70.29 MiB is allocated by PyTorch, and 1.71 MiB is "
        "reserved by PyTorch but unallocated.\n"
        "Held by: weights 40.00 MiB, kv_cache 30.29 MiB");
  CHECK(allocator.stats().refusals == 1);
}

TEST_CASE("max_split_size keeps large blocks whole and for large requests") {
  Bench b{200_MiB, "max_split_size_mb:32"};
  const BlockId big = b.get(64_MiB);
  b.allocator.free(big);
  (void)b.get(10_MiB);  // may not split an oversize block
  CHECK(b.reserved() == 74_MiB);
  const BlockId near = b.get(50_MiB);  // 64 < 50 + 20: used whole
  CHECK(b.reserved() == 74_MiB);
  CHECK(b.allocated() == 74_MiB);
  b.allocator.free(near);
  const BlockId far = b.get(40_MiB);  // 64 >= 40 + 20
  CHECK(b.reserved() == 114_MiB);
  b.allocator.free(far);
  // 100 MiB: 86 are free on the device. Oversize blocks of 64 and 40 are cached: the largest is
  // released, then the other, because 64 is less than 100; 190 MiB are free and the rest of the
  // cache stays.
  b.allocator.free(b.get(3_MiB));  // 20 MiB more, unsplit and not oversize
  CHECK(b.reserved() == 134_MiB);
  (void)b.get(100_MiB);
  CHECK(b.reserved() == 130_MiB);
  CHECK(b.allocator.stats().retries == 0);
}

TEST_CASE("blocks belong to the stream that they were allocated for") {
  Bench b;
  b.allocator.free(b.get(30_MiB, 0));
  (void)b.get(30_MiB, 1);
  CHECK(b.reserved() == 60_MiB);
  (void)b.get(30_MiB, 0);
  CHECK(b.reserved() == 60_MiB);
}

TEST_CASE("a block whose release is delayed is active and cannot be reused") {
  Bench b;
  const BlockId id = b.get(30_MiB);
  b.allocator.request_free(id);
  CHECK(b.allocated() == 0_B);
  CHECK(b.allocator.stats().active == 30_MiB);
  (void)b.get(30_MiB);
  CHECK(b.reserved() == 60_MiB);
  b.allocator.complete_free(id);
  CHECK(b.allocator.stats().active == 30_MiB);
  (void)b.get(30_MiB);
  CHECK(b.reserved() == 60_MiB);
  CHECK_THROWS_AS(b.allocator.complete_free(id), ContractError);
  CHECK_THROWS_AS(b.allocator.free(id), ContractError);
}

TEST_CASE("expandable segments grow by granules of 20 MiB and return them one by one") {
  Bench b{1_GiB, "expandable_segments:True"};
  const BlockId first = b.get(21_MiB);
  CHECK(b.reserved() == 40_MiB);
  const BlockId second = b.get(30_MiB);  // 19 MiB are free at the end, one more granule is mapped
  CHECK(b.reserved() == 60_MiB);
  CHECK(b.allocator.address(second) == b.allocator.address(first) + 21 * 1048576ULL);
  CHECK(b.allocator.segments() == 1);
  (void)b.get(300_KiB);  // small blocks have a separate segment, in granules of 2 MiB
  CHECK(b.reserved() == 62_MiB);
  CHECK(b.allocator.segments() == 2);
  b.allocator.free(first);
  b.allocator.empty_cache();
  // The first granule of [0, 21) is released; the free end [51, 60) has no whole granule.
  CHECK(b.reserved() == 42_MiB);
  // Address space is used from the lowest address: the hole of 20 MiB and the MiB after it.
  const BlockId again = b.get(21_MiB);
  CHECK(b.reserved() == 62_MiB);
  CHECK(b.allocator.address(again) < b.allocator.address(second));
  check_laws(b.allocator, 1_GiB);
}

TEST_CASE("old cached blocks are collected above the threshold") {
  Bench b{100_MiB, "per_process_memory_fraction:1.0,garbage_collection_threshold:0.5"};
  const BlockId old = b.get(20_MiB);
  const BlockId young = b.get(30_MiB);
  b.allocator.free(old);    // after 2 searches
  (void)b.get(2_MiB);       // from its segment: splits it, so it cannot be collected
  b.allocator.free(young);  // after 3 searches
  const BlockId keep = b.get(40_MiB);
  // 50 MiB are not above the threshold: nothing is released.
  CHECK(b.reserved() == 90_MiB);
  b.allocator.free(keep);
  // 45 MiB: 90 > 50 MiB. Blocks of 30 (age 2) and 40 (age 1): mean 1.5; the older is released, and
  // 60 remain; then the other (age 1, mean 1) is released, because 30 < 40 are requested.
  (void)b.get(45_MiB);
  CHECK(b.reserved() == 66_MiB);
  CHECK(b.allocator.stats().retries == 0);
}

TEST_CASE("sizes are rounded to divisions of a power of two on request") {
  const AllocatorConfig four = parse_alloc_conf("roundup_power2_divisions:4", "x");
  CHECK(rounded_size(four, 1200) == 1536);  // too small for four divisions of 512 B
  CHECK(rounded_size(four, 2100) == 2560);  // 2048 + 512
  CHECK(rounded_size(four, 4096) == 4096);
  CHECK(rounded_size(four, (5 << 20) + 1) == 6 << 20);  // 4 + 2 of 4, 5, 6, 7, 8
  const AllocatorConfig by_size =
      parse_alloc_conf("roundup_power2_divisions:[2:1, 4:2, 16:4, >:8]", "x");
  CHECK(rounded_size(by_size, (3 << 20) + 1) == (3 << 20) + 512);
  CHECK(rounded_size(by_size, (4 << 20) + 1) == 6 << 20);
  CHECK(rounded_size(by_size, (16 << 20) + 1) == 18 << 20);  // the last interval is that of >
  CHECK(rounded_size({}, 1) == 512);
  CHECK(rounded_size({}, 513) == 1024);
}

TEST_CASE("invalid settings are refused with their place") {
  const auto said = [](std::string_view conf) -> std::string {
    try {
      (void)parse_alloc_conf(conf, "--alloc-conf");
    } catch (const InputError& error) {
      return error.what();
    }
    return "taken";
  };
  CHECK(said("") == "taken");
  CHECK(said("backend:native,expandable_segments:False,max_split_size_mb:20") == "taken");
  CHECK(said("max_split_size_mb:19").find("column 19: expected a number of MiB of at least 20") !=
        std::string::npos);
  CHECK(said("max_split_size_mb:1e3").find("got \"1e3\"") != std::string::npos);
  CHECK(said("expandable_segment:True").find("did you mean \"expandable_segments\"") !=
        std::string::npos);
  CHECK(said("expandable_segments:true").find("expected True or False") != std::string::npos);
  CHECK(said("expandable_segments").find("got the end") != std::string::npos);
  CHECK(said("expandable_segments:True max_split_size_mb:64").find("expected \",\"") !=
        std::string::npos);
  CHECK(said("garbage_collection_threshold:1.0").find("(0, 1)") != std::string::npos);
  CHECK(said("garbage_collection_threshold:nan").find("expected") != std::string::npos);
  CHECK(said("roundup_power2_divisions:3").find("a power of two") != std::string::npos);
  CHECK(said("roundup_power2_divisions:[256:1").find("\"]\"") != std::string::npos);
  CHECK(said("backend:cudaMallocAsync").find("native") != std::string::npos);
}

TEST_CASE("misuse is a contract violation") {
  Bench b;
  CHECK_THROWS_AS((void)b.allocator.malloc(0_B, b.owner), ContractError);
  const BlockId id = b.get(1_MiB);
  b.allocator.free(id);
  CHECK_THROWS_AS(b.allocator.free(id), ContractError);
  CHECK_THROWS_AS(b.allocator.free(static_cast<BlockId>(77)), ContractError);
  CHECK_THROWS_AS((CachingAllocator{{.total = 1_MiB, .outside = 2_MiB}, {}}), ContractError);
}

struct Fuzz {
  const char* name;
  const char* conf;
};

TEST_CASE("any sequence: the laws hold and a slow reference gives the same result") {
  for (const Fuzz& fuzz :
       {Fuzz{"plain", ""}, Fuzz{"split limit", "max_split_size_mb:24"},
        Fuzz{"expandable", "expandable_segments:True"},
        Fuzz{"rounded", "roundup_power2_divisions:4"},
        Fuzz{"both limits", "max_split_size_mb:40,max_non_split_rounding_mb:30"}}) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      INFO(fuzz.name, " seed ", seed);
      constexpr Bytes kDevice = 600_MiB;
      const AllocatorConfig config = parse_alloc_conf(fuzz.conf, "conf");
      CachingAllocator allocator{{.total = kDevice}, config};
      CachingAllocator twin{{.total = kDevice}, config};
      test::SlowAllocator slow{kDevice.count(), config};
      const auto owner = allocator.owner("x");
      (void)twin.owner("x");
      std::mt19937_64 random{seed};
      struct Live {
        BlockId id, twin;
        std::int64_t slow;
      };
      std::vector<Live> live;
      std::int64_t refused = 0;
      for (int step = 0; step < 1500; ++step) {
        const std::uint64_t dice = random() % 100;
        if (dice < 55 || live.empty()) {
          // Sizes from bytes to a fifth of the device, uniform over powers of two.
          const auto bits = 1 + random() % 27;
          const auto n = static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << bits));
          const auto stream = static_cast<std::int32_t>(random() % 8 == 0);
          const auto got = allocator.malloc(Bytes{n}, owner, stream);
          const auto other = twin.malloc(Bytes{n}, owner, stream);
          const auto expected = slow.malloc(n, stream);
          REQUIRE(got.has_value() == expected.has_value());
          REQUIRE(other.has_value() == got.has_value());
          if (got) {
            live.push_back({got.value(), other.value(), *expected});
            CHECK(allocator.address(got.value()) == twin.address(other.value()));
          } else {
            ++refused;
          }
        } else if (dice < 99) {
          const std::size_t at = random() % live.size();
          allocator.free(live[at].id);
          twin.free(live[at].twin);
          slow.free(live[at].slow);
          live[at] = live.back();
          live.pop_back();
        } else {
          allocator.empty_cache();
          twin.empty_cache();
          slow.empty_cache();
        }
        const AllocatorStats stats = allocator.stats();
        REQUIRE(stats.allocated.count() == slow.allocated());
        REQUIRE(stats.reserved.count() == slow.reserved());
        REQUIRE(stats.segments == slow.segments());
        REQUIRE(stats.largest_free.count() == slow.largest_free());
        REQUIRE(stats.retries == slow.retries);
        if (step % 50 == 0) check_laws(allocator, kDevice);
      }
      CHECK(refused > 0);  // the device was full at times
      for (const Live& each : live) allocator.free(each.id);
      // All blocks coalesced: each segment is one block, and all memory is released.
      for (const auto& segment : allocator.snapshot()) {
        if (!segment.expandable) CHECK(segment.blocks.size() == 1);
      }
      CHECK(allocator.stats().inactive_split == 0_B);
      CHECK(allocator.allocated() == 0_B);
      allocator.empty_cache();
      CHECK(allocator.reserved() == 0_B);
      // Only address space reserved by a refused allocation may stay.
      for (const auto& segment : allocator.snapshot()) {
        CHECK(segment.expandable);
        CHECK(segment.blocks.size() == 1);
      }
    }
  }
}

TEST_CASE("caches that grow by concatenation fragment fixed segments, not expandable ones") {
  // Caches that grow by concatenation: no freed block fits the next size.
  Bench b{4_GiB, "expandable_segments:True"};
  Bench plain{4_GiB};
  std::vector<BlockId> caches, plain_caches;
  for (int i = 0; i < 16; ++i) {
    caches.push_back(b.get(30_MiB));
    plain_caches.push_back(plain.get(30_MiB));
  }
  for (std::int64_t step = 1; step <= 300; ++step) {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const Bytes longer = 30_MiB + Bytes{step * 65536};
      const BlockId next = b.get(longer);
      b.allocator.free(caches[i]);
      caches[i] = next;
      const BlockId plain_next = plain.get(longer);
      plain.allocator.free(plain_caches[i]);
      plain_caches[i] = plain_next;
    }
  }
  check_laws(b.allocator, 4_GiB);
  const AllocatorStats stats = b.allocator.stats();
  const AllocatorStats other = plain.allocator.stats();
  CHECK(stats.allocated == other.allocated);
  CHECK(other.reserved_peak > stats.reserved_peak);
}

}  // namespace
}  // namespace kvsim
