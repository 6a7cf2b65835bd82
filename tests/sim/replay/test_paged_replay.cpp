#include <filesystem>
#include <map>
#include <string>

#include "models/units/error.hpp"
#include "sim/replay/paged.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

const Trace& sample() {
  static const Trace trace =
      Trace::open(fs::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors");
  return trace;
}

ReplayMethod replayed(const std::string& name, std::vector<std::int64_t> block_sizes) {
  MethodSpec spec{name, {}, {}};
  if (takes_budget(name)) spec.budget = Budget{.fraction = 0.2};
  ReplayOptions options;
  options.kept_positions = true;
  options.block_sizes = std::move(block_sizes);
  return replay(sample(), {spec}, options).methods.front();
}

TEST_CASE(
    "an entry is stored at its first member, and a second entry with that member at its next") {
  using Kept = std::vector<std::vector<std::int32_t>>;
  CHECK(slots_of(Kept{{0}, {2, 5}, {3}}, 6) == std::vector<std::int32_t>{0, 2, 3});
  CHECK(slots_of(Kept{{0, 1}, {0, 4}, {3}}, 6) == std::vector<std::int32_t>{0, 4, 5});
  CHECK(slots_of(Kept{{5}, {5}}, 6) == std::vector<std::int32_t>{4, 5});
  CHECK(slots_of(Kept{}, 3).empty());
}

TEST_CASE("the full cache drops nothing and wastes only the ends of last blocks") {
  const ReplayMethod full = replayed("full", {16, 7});
  const TraceInfo& info = sample().info();
  REQUIRE(full.paged.size() == 8);  // two steps, sizes and layouts
  for (const auto& [moment, r] : full.paged) {
    INFO(moment, " ", r.block_size);
    const std::int64_t tokens = moment == "prefill" ? info.prompt_tokens : info.tokens;
    const std::int64_t row = bytes_of(2 * info.head_dim, info.dtype).count();
    const std::int64_t rows = tokens * info.n_layers * info.n_kv_heads;
    CHECK(r.logical.count() == rows * row);
    CHECK(r.entries_dropped == 0);
    CHECK(r.blocks_freed == 0);
    CHECK(r.reclaimable == 0_B);
    const std::int64_t padded = (tokens + r.block_size - 1) / r.block_size * r.block_size;
    CHECK(r.allocated.count() == padded * info.n_layers * info.n_kv_heads * row);
    for (const PagedCompaction& to : r.compaction) CHECK(to.bytes_moved == 0_B);
  }
}

TEST_CASE("methods: logical bytes are the replay's for any block size") {
  for (const char* name : {"h2o", "snapkv", "streaming-llm", "zeromerge"}) {
    INFO(name);
    const ReplayMethod method = replayed(name, {1, 16, 64});
    std::map<std::string, Bytes> logical;
    for (const auto& [moment, r] : method.paged) {
      const auto [known, fresh] = logical.emplace(moment, r.logical);
      CHECK(known->second == r.logical);
      CHECK(r.logical + r.slack == r.allocated);
      CHECK(r.entries_dropped > 0);
      if (moment == "end") {
        CHECK(r.logical.count() == method.bytes_held_final - method.side_bytes_final);
      }
      if (r.block_size == 1 && r.layout == BlockLayout::kPerHead) CHECK(r.slack == 0_B);
    }
    CHECK(logical.size() == 2);
  }
}

TEST_CASE("a window frees whole blocks and scattered heavy hitters few") {
  const auto freed = [](const std::string& name) {
    const ReplayMethod method = replayed(name, {16});
    for (const auto& [moment, r] : method.paged) {
      if (moment == "end" && r.layout == BlockLayout::kAcrossHeads) {
        return static_cast<double>(r.blocks_freed) / static_cast<double>(r.blocks_total);
      }
    }
    return -1.0;
  };
  const double window = freed("streaming-llm");
  const double scattered = freed("h2o");
  CHECK(window > 0.5);
  CHECK(scattered >= 0);
  CHECK(scattered < window);
}

TEST_CASE("every method of the catalogue that runs on the sample runs with pages") {
  std::int64_t ran = 0;
  for (const MethodInfo& info : builtin_methods()) {
    INFO(info.name);
    try {
      const ReplayMethod method = replayed(info.name, {16});
      CHECK(method.paged.size() == 4);
      ++ran;
    } catch (const InputError&) {
      continue;  // an input is missing in this trace
    }
  }
  CHECK(ran > 10);
}

}  // namespace
}  // namespace kvsim
