// The segments of a trajectory match the size law, step by step.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/methods/resolve/masked.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/decode_segments.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

TEST_CASE("a law that grows to its budget has two segments, and every step is in one") {
  const Llm llm = small_llm();
  const Stack& stack = find_stack("ideal");
  const BoundedMethod ring{BoundedOptions{.budget = 110, .needs = {}, .has_equal_layers = true}};
  CostInput in{.llm = &llm, .method = &ring, .stack = &stack, .prompt = 100};
  const auto columns = layer_columns(layer_groups(llm, ring), true);
  REQUIRE(columns.size() == 1);
  CHECK(columns[0].count == 4);
  DecodeSegments path{in, columns, 100, DecodeSegments::Lines::kOfEntries};
  path.extend(in, 7);
  path.extend(in, 50);
  // Held: 101 … 110 after steps 1 to 10, then 110; the eleventh step attends to 111 and evicts.
  REQUIRE(path.segments().size() == 2);
  CHECK(path.segments()[0].last == 10);
  CHECK(path.segments()[1].first == 11);
  CHECK(path.segments()[1].last == 50);
  std::int64_t held = path.prompt_entries(columns[0]);
  CHECK(held == 100);
  for (std::int64_t n = 1; n <= 50; ++n) {
    const DecodeState want = decode_moment(in, 0, 100, 100 + n, held);
    CHECK(path.moment(path.segment_of(n), columns[0], n) == want);
    held = want.after;
  }
}

TEST_CASE("methods that only append in decode grow by one entry per step up to a window's limit") {
  constexpr std::int64_t kPrompt = 200, kSteps = 900;
  struct Windows {
    const char* name;
    std::vector<std::int32_t> tokens;  // per layer; 0: none
  };
  for (const Windows& windows : std::vector<Windows>{{"none", {0, 0, 0, 0}},
                                                     {"shorter than the prompt", {64, 0, 64, 0}},
                                                     {"as long", {200, 0, 200, 0}},
                                                     {"reached by decode", {512, 0, 300, 0}},
                                                     {"all layers", {400, 400, 400, 400}},
                                                     {"not reached", {4096, 0, 4096, 0}}}) {
    Llm llm = small_llm();
    for (std::size_t l = 0; l < llm.layers.size(); ++l)
      llm.layers[l].attention.window = windows.tokens[l];
    const MethodContext site = method_site(llm, Dtype::kFp16);
    int appending = 0;
    for (const MethodInfo& info : builtin_methods()) {
      std::shared_ptr<const Method> method;
      for (const Budget& budget : {Budget{0, 60}, Budget{}}) {
        try {
          method = make_method({info.name, {}, budget}, kPrompt, site);
          break;
        } catch (const InputError&) {
          continue;
        }
      }
      if (!method || !method->appends_in_decode()) continue;
      ++appending;
      INFO(windows.name << ", " << info.name);
      const CostInput in{
          .llm = &llm, .method = method.get(), .stack = &find_stack("vllm"), .prompt = kPrompt};
      const auto columns = layer_columns(layer_groups(llm, *method), method->has_equal_layers());
      DecodeSegments path{in, columns, kPrompt, DecodeSegments::Lines::kOfEntries};
      CHECK(path.appends() == (windows.name == std::string_view{"none"}));
      // Extended in pieces, including a step far beyond the known ones.
      for (const std::int64_t step : {1, 2, 3, 40, 41}) path.extend(in, step);
      path.extend(in, kSteps);
      for (const LayerClass& column : columns) {
        const std::int64_t limit = windows.tokens[static_cast<std::size_t>(column.first)];
        std::int64_t held = path.prompt_entries(column);
        for (std::int64_t n = 1; n <= kSteps; ++n) {
          const DecodeState want = decode_moment(in, column.first, kPrompt, kPrompt + n, held);
          REQUIRE(want.after == (limit > 0 ? std::min(held + 1, limit) : held + 1));
          REQUIRE(path.moment(path.segment_of(n), column, n) == want);
          held = want.after;
        }
      }
    }
    CHECK(appending >= 4);
  }
  // Not if entries are evicted.
  const MethodContext site = method_site(small_llm(), Dtype::kFp16);
  CHECK(make_method({"full", {}, {}}, kPrompt, site)->appends_in_decode());
  for (const char* name : {"h2o", "streaming-llm"})
    CHECK_FALSE(make_method({name, {}, Budget{0, 60}}, kPrompt, site)->appends_in_decode());
}

TEST_CASE("a format's bytes are linear between the steps at which it packs") {
  const Llm llm = small_llm();
  const MethodContext site = method_site(llm, Dtype::kFp16);
  const auto segments = [&](const char* name, const char* stack) {
    const auto method = make_method({name, {}, {}}, 1000, site);
    const CostInput in{
        .llm = &llm, .method = method.get(), .stack = &find_stack(stack), .prompt = 1000};
    const auto columns = layer_columns(layer_groups(llm, *method), method->has_equal_layers());
    DecodeSegments path{in, columns, 1000, DecodeSegments::Lines::kOfFormat};
    path.extend(in, 400);
    std::vector<std::int64_t> firsts;
    for (const DecodeSegments::Segment& s : path.segments()) firsts.push_back(s.first);
    return firsts;
  };
  // Constant bytes per element: one line.
  CHECK(segments("int8", "hf-sdpa") == std::vector<std::int64_t>{1});
  // KIVI packs keys when 128 wait: after tokens 1024, 1152, 1280, in steps 24, 152, 280. Such a
  // step ends with fewer bytes than it started with, and the next step starts with fewer.
  CHECK(segments("kivi-4", "hf-sdpa") == std::vector<std::int64_t>{1, 24, 25, 152, 153, 280, 281});
  // Quest's pages of 16 form lines that are too short, so stairs are used after the first of them.
  CHECK(segments("quest", "hf-sdpa").size() <= 3);
}

}  // namespace
}  // namespace kvsim
