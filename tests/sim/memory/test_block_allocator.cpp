#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "models/units/check.hpp"
#include "sim/memory/block_allocator.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

const PagedCompaction& under(const PagedReport& report, CompactionPolicy policy) {
  return report.compaction[static_cast<std::size_t>(policy)];
}

TEST_CASE("a block is free when its last reference is released") {
  BlockAllocator blocks{3};
  const auto a = blocks.allocate().value();
  const auto b = blocks.allocate().value();
  CHECK(a != b);
  blocks.share(a);
  CHECK(blocks.used() == 2);
  CHECK(blocks.total_references() == 3);
  CHECK(!blocks.release(a));
  CHECK(blocks.release(a));
  CHECK(blocks.used() == 1);
  CHECK_THROWS_AS((void)blocks.release(a), ContractError);
  CHECK_THROWS_AS(blocks.share(a), ContractError);
  CHECK(blocks.allocate() == a);  // last freed, first allocated
  CHECK(blocks.allocate().has_value());
  CHECK(!blocks.allocate().has_value());
}

TEST_CASE("random sharing: references and used blocks match a model") {
  BlockAllocator blocks{20};
  std::mt19937_64 random{3};
  std::vector<BlockAllocator::Index> held;
  for (int step = 0; step < 3000; ++step) {
    const auto dice = random() % 3;
    if (dice == 0) {
      if (const auto got = blocks.allocate()) {
        CHECK(std::find(held.begin(), held.end(), *got) == held.end());
        held.push_back(*got);
      } else {
        CHECK(std::set(held.begin(), held.end()).size() == 20);
      }
    } else if (!held.empty()) {
      const std::size_t at = random() % held.size();
      if (dice == 1 && held.size() < 60) {
        blocks.share(held[at]);
        held.push_back(held[at]);
      } else {
        (void)blocks.release(held[at]);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    REQUIRE(blocks.total_references() == std::ssize(held));
    REQUIRE(blocks.used() == std::ssize(std::set(held.begin(), held.end())));
  }
}

TEST_CASE("evicting nine tenths of a layer's entries head by head may free nothing") {
  // 2 heads, 8 entries each in blocks of 4 across both; rows of 10 B. Head 0 keeps {0}, head 1 {7}:
  // 14 of 16 entries are evicted, and each block still holds one.
  const std::vector<PagedLayer> layers{{.written = 8, .kept = {{0}, {7}}, .row_bytes = 10}};
  const PagedReport across = paged_report(layers, 4, BlockLayout::kAcrossHeads);
  CHECK(across.logical == 20_B);
  CHECK(across.allocated == 160_B);
  CHECK(across.reclaimable == 0_B);
  CHECK(across.slack == 140_B);
  CHECK(across.entries_dropped == 14);
  CHECK(across.blocks_total == 2);
  CHECK(across.blocks_freed == 0);
  // One of the two blocks then holds the entries of both heads: one entry moves.
  CHECK(under(across, CompactionPolicy::kNone).allocated == 160_B);
  CHECK(under(across, CompactionPolicy::kNone).bytes_moved == 0_B);
  CHECK(under(across, CompactionPolicy::kSlack).allocated == 80_B);
  CHECK(under(across, CompactionPolicy::kSlack).bytes_moved == 10_B);
  // Blocks per head: two of four are empty without any move.
  const PagedReport per_head = paged_report(layers, 4, BlockLayout::kPerHead);
  CHECK(per_head.allocated == 80_B);
  CHECK(per_head.reclaimable == 80_B);
  CHECK(per_head.blocks_total == 4);
  CHECK(per_head.blocks_freed == 2);
  CHECK(under(per_head, CompactionPolicy::kSlack).bytes_moved == 0_B);
}

TEST_CASE("ragged heads: across heads the longest decides and the fullest blocks remain") {
  // Blocks of 2, 6 entries: head 0 keeps {0, 2, 3, 5}, head 1 {2}. Blocks hold 1, 3, 1 entries.
  const std::vector<PagedLayer> layers{
      {.written = 6, .kept = {{0, 2, 3, 5}, {2}}, .row_bytes = 1, .evicted_by_steps = 5}};
  const PagedReport across = paged_report(layers, 2, BlockLayout::kAcrossHeads);
  CHECK(across.allocated == 12_B);
  CHECK(across.slack == 7_B);
  // 4 entries of head 0 require 2 blocks: the middle one and one of the others; 1 entry moves.
  CHECK(under(across, CompactionPolicy::kSlack).allocated == 8_B);
  CHECK(under(across, CompactionPolicy::kSlack).bytes_moved == 1_B);
  // At every step, the slot of the evicted entry was refilled: 5 moves.
  CHECK(under(across, CompactionPolicy::kEveryStep).allocated == 8_B);
  CHECK(under(across, CompactionPolicy::kEveryStep).bytes_moved == 5_B);
  // Per head: 3 blocks of head 0 (1, 2, 1) become 2, and one entry moves; head 1 has one block.
  const PagedReport per_head = paged_report(layers, 2, BlockLayout::kPerHead);
  CHECK(per_head.allocated == 8_B);
  CHECK(under(per_head, CompactionPolicy::kEveryStep).allocated == 6_B);
  // 3 of 8 B are slack, more than a quarter.
  CHECK(under(per_head, CompactionPolicy::kSlack).bytes_moved == 1_B);
}

TEST_CASE("laws of paged caches: conservation, bounds, one entry per block wastes nothing") {
  std::mt19937_64 random{11};
  for (int round = 0; round < 60; ++round) {
    std::vector<PagedLayer> layers(1 + random() % 3);
    std::int64_t kept_rows = 0, all_rows = 0;
    for (PagedLayer& layer : layers) {
      layer.written = static_cast<std::int64_t>(random() % 100);
      layer.row_bytes = 64;
      const std::uint64_t share = random() % 101;
      layer.kept.resize(1 + random() % 4);
      for (auto& head : layer.kept) {
        for (std::int32_t p = 0; p < layer.written; ++p) {
          if (random() % 100 < share) head.push_back(p);
        }
        kept_rows += std::ssize(head);
        all_rows += layer.written;
      }
    }
    Bytes before;
    for (const std::int64_t size : {1, 2, 4, 8, 16, 32}) {
      const PagedReport across = paged_report(layers, size, BlockLayout::kAcrossHeads);
      const PagedReport per_head = paged_report(layers, size, BlockLayout::kPerHead);
      for (const PagedReport* r : {&across, &per_head}) {
        CHECK(r->logical == Bytes{kept_rows * 64});
        CHECK(r->logical + r->slack == r->allocated);
        CHECK(r->slack >= 0_B);
        CHECK(r->entries_dropped == all_rows - kept_rows);
        CHECK(r->blocks_freed <= r->blocks_total);
        CHECK(r->allocated + r->reclaimable >= Bytes{all_rows * 64});
        for (const CompactionPolicy policy : kCompactionPolicies) {
          CHECK(under(*r, policy).allocated <= r->allocated);
          CHECK(under(*r, policy).allocated >= r->logical);
          CHECK(under(*r, policy).bytes_moved <= r->logical);
        }
      }
      CHECK(per_head.allocated <= across.allocated);
      CHECK(across.allocated >= before);  // sizes double: slack cannot decrease
      before = across.allocated;
      if (size == 1) CHECK(per_head.slack == 0_B);
    }
  }
}

TEST_CASE("invalid positions are a contract violation") {
  const auto report = [](std::vector<std::int32_t> kept, std::int64_t size) {
    const std::vector<PagedLayer> layers{{.written = 4, .kept = {std::move(kept)}, .row_bytes = 1}};
    return paged_report(layers, size, BlockLayout::kPerHead);
  };
  CHECK_THROWS_AS((void)report({4}, 2), ContractError);
  CHECK_THROWS_AS((void)report({1, 1}, 2), ContractError);
  CHECK_THROWS_AS((void)report({2, 1}, 2), ContractError);
  CHECK_THROWS_AS((void)report({0}, 0), ContractError);
}

}  // namespace
}  // namespace kvsim
