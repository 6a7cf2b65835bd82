// Kernels of recurrent states, sparse indexes and attention over chosen entries: laws of their
// forms, calls of operators, hand-solved times, and iterations that scan decoding states.

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/kernels/library.hpp"
#include "models/cost/kernels/work.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

const Gpu& h200() { return find_gpu("h200"); }

double typical_us(const KernelCall& call, std::string_view format) {
  const KernelForm& form = form_of(op_of(call));
  std::vector<double> start;
  for (const Coefficient& c : form.coefficients) start.push_back(c.start);
  return form.microseconds(call, parse_kernel_format(format), kernel_gpu(h200()), start.data());
}

double fitted_us(const KernelCall& call, std::string_view stack, std::string_view format) {
  return KernelLibrary::builtin()
      .choose(op_of(call), h200(), stack, parse_kernel_format(format))
      .microseconds(call);
}

const std::vector<std::string> kEngines{"vllm", "sglang", "trtllm"};

TEST_CASE("kernels of mixers take longer for more sequences, tokens, heads and keys") {
  const auto grows = [](auto call, double decltype(call)::*dimension, std::string_view format) {
    for (const std::string& engine : kEngines) {
      double before = 0;
      for (const double n : {1.0, 2.0, 8.0, 64.0, 512.0, 4096.0}) {
        call.*dimension = n;
        const double us = fitted_us(call, engine, format);
        INFO(engine, " ", name_of(op_of(KernelCall{call})), " ", n);
        CHECK(us >= before);
        CHECK(us > 0);
        before = us;
      }
    }
  };
  for (const bool decode : {true, false}) {
    const RecurrenceCall scan{.decode = decode, .batch = 4, .tokens = 512, .heads = 16};
    grows(scan, &RecurrenceCall::batch, "gated_delta");
    grows(scan, &RecurrenceCall::heads, "gated_delta");
    grows(scan, &RecurrenceCall::tokens, "gated_delta");
    const IndexScoresCall scores{
        .decode = decode, .batch = 4, .queries = decode ? 1.0 : 256.0, .keys = 4096, .heads = 64};
    grows(scores, &IndexScoresCall::batch, "fp8");
    grows(scores, &IndexScoresCall::keys, "fp8");
    grows(scores, &IndexScoresCall::heads, "fp8");
    const SparseAttentionCall attention{
        .decode = decode, .batch = 4, .queries = decode ? 1.0 : 256.0, .chosen = 2048, .heads = 16};
    grows(attention, &SparseAttentionCall::batch, "bf16/fp8");
    grows(attention, &SparseAttentionCall::heads, "bf16/fp8");
    grows(attention, &SparseAttentionCall::chosen, "bf16/fp8");
  }
  grows(ConvolutionCall{.tokens = 1, .channels = 8192}, &ConvolutionCall::tokens, "bf16");
  grows(IndexChoiceCall{.rows = 1, .length = 8192}, &IndexChoiceCall::rows, "fp32");
}

TEST_CASE("published timings of mixers' kernels are used where engines have them") {
  struct Case {
    KernelCall call;
    std::string_view format;
  };
  const std::vector<Case> all{
      {RecurrenceCall{}, "gated_delta"},   {RecurrenceCall{}, "kimi_delta"},
      {RecurrenceCall{}, "mamba2"},        {ConvolutionCall{}, "bf16"},
      {IndexScoresCall{}, "fp8"},          {IndexChoiceCall{}, "fp32"},
      {SparseAttentionCall{}, "bf16/fp8"}, {SparseAttentionCall{}, "bf16/bf16"}};
  for (const std::string& engine : kEngines) {
    for (const Case& one : all) {
      const KernelChoice choice = KernelLibrary::builtin().choose(op_of(one.call), h200(), engine,
                                                                  parse_kernel_format(one.format));
      INFO(engine, " ", name_of(op_of(one.call)), ": ", choice.provenance());
      CHECK(choice.basis() != KernelBasis::kNominal);
    }
  }
}

TEST_CASE("eight query heads take as long as the 64 of a tile") {
  for (const bool decode : {true, false}) {
    const SparseAttentionCall few{
        .decode = decode, .batch = 64, .queries = 8, .chosen = 2048, .heads = 8};
    SparseAttentionCall tile = few;
    tile.heads = 64;
    CHECK(typical_us(few, "bf16/fp8") == rel(typical_us(tile, "bf16/fp8")));
    SparseAttentionCall more = few;
    more.heads = 128;
    CHECK(typical_us(more, "bf16/fp8") > 1.5 * typical_us(tile, "bf16/fp8"));
  }
}

TEST_CASE("a decode step of a delta rule reads and writes each state") {
  // 64 sequences of 32 heads of 128 x 128 in fp32: 2 * 64 * 32 * 65,536 B = 268 MB, and 64 * 32
  // rows of 512 values in 16 bits; at 0.7 of 4.8 TB/s, after 2.5 us.
  const RecurrenceCall call{.decode = true, .batch = 64, .heads = 32};
  const double bytes = 2.0 * 64 * 32 * 65'536 + 64.0 * 32 * 512 * 2;
  CHECK(work_of(call, parse_kernel_format("gated_delta")).bytes == rel(bytes));
  CHECK(typical_us(call, "gated_delta") == rel(2.5 + 1e6 * bytes / (0.7 * 4.8e12), 1e-9));
}

TEST_CASE("a scan of one sequence takes its chunks of 64 tokens one after another") {
  RecurrenceCall call{.decode = false, .batch = 1, .tokens = 6400, .heads = 8};
  const double once = typical_us(call, "gated_delta");
  call.tokens = 12'800;
  const double twice = typical_us(call, "gated_delta");
  // 20 us of launches, 100 chunks of 2.5 us, and the rows of 8 heads.
  const double rows = 1e6 * 8.0 * 6400 * 512 * 2 / (0.15 * 4.8e12);
  CHECK(twice - once == rel(250 + rows, 1e-9));
}

TEST_CASE("rows that keep all of their scores need no selection") {
  const double kept = typical_us(IndexChoiceCall{.rows = 500, .length = 2048}, "fp32");
  CHECK(kept == rel(typical_us(IndexChoiceCall{.rows = 1, .length = 1}, "fp32")));
  CHECK(typical_us(IndexChoiceCall{.rows = 500, .length = 2049}, "fp32") > kept);
}

TEST_CASE("a prompt's queries of four share a pass over their keys") {
  const auto us = [](double queries, double keys) {
    return typical_us(
        IndexScoresCall{.decode = false, .queries = queries, .keys = keys, .heads = 64}, "fp8");
  };
  // Fewer blocks than SMs: the time of one block, which reads all keys.
  CHECK(us(4, 100'000) == rel(us(400, 100'000), 1e-9));
  CHECK(us(4, 200'000) > 1.9 * us(4, 100'000));
}

const KernelUse* kernel_of(const std::vector<Op>& ops, std::string_view name) {
  for (const Op& op : ops) {
    if (op.name == name && op.kernel) return &*op.kernel;
  }
  return nullptr;
}

std::vector<Op> ops_of(const Step& step) {
  std::vector<Op> out;
  for (const Segment& segment : step.segments) {
    for (OpIndex i = 0; i < segment.graph->size(); ++i) out.push_back(segment.graph->op(i));
  }
  return out;
}

struct Model {
  const Llm& llm;
  FullMethod full{};
  [[nodiscard]] CostInput input(std::string_view stack) const {
    return {.llm = &llm,
            .method = &full,
            .stack = &find_stack(stack),
            .weight_dtype = Dtype::kBf16,
            .kv_dtype = Dtype::kBf16,
            .batch = 1};
  }
};

TEST_CASE("operators of hybrid layers name their kernels") {
  const Model qwen{find_llm("qwen3.5-9b")};
  const PrefillChunk chunk{.tokens = 1000, .before = 24, .last = false};
  const std::vector<Op> prompt =
      ops_of(mixed_step(qwen.input("vllm"), {.loads = {}, .chunks = {&chunk, 1}}));
  const KernelUse* scan = kernel_of(prompt, "delta rule");
  REQUIRE(scan != nullptr);
  const auto& call = std::get<RecurrenceCall>(scan->call);
  CHECK_FALSE(call.decode);
  CHECK(call.tokens == 1000);
  CHECK(call.heads == 32);
  CHECK(call.key_dim == 128);
  CHECK(scan->format->name == "gated_delta");
  const KernelUse* taps = kernel_of(prompt, "convolution");
  REQUIRE(taps != nullptr);
  CHECK(std::get<ConvolutionCall>(taps->call).channels == 8192);

  const Model mamba{find_llm("nemotron-nano-9b-v2")};
  const std::vector<Op> states =
      ops_of(mixed_step(mamba.input("vllm"), {.loads = {}, .chunks = {&chunk, 1}}));
  const KernelUse* space = kernel_of(states, "state space scan");
  REQUIRE(space != nullptr);
  CHECK(space->format->name == "mamba2");
  CHECK(std::get<RecurrenceCall>(space->call).heads == 128);
  CHECK(std::get<RecurrenceCall>(space->call).value_dim == 80);
  // There are no published timings of its single-token update.
  const std::vector<DecodeLoad> loads(3, {.attended = 1000, .held = 1000});
  const std::vector<Op> step =
      ops_of(mixed_step(mamba.input("vllm"), {.decodes = 1, .loads = loads, .chunks = {}}));
  CHECK(kernel_of(step, "state space scan") == nullptr);

  const Model glm{find_llm("glm-5")};
  const PrefillChunk far{.tokens = 1000, .before = 9000, .last = false};
  const std::vector<Op> later =
      ops_of(mixed_step(glm.input("vllm"), {.loads = {}, .chunks = {&far, 1}}));
  const KernelUse* scores = kernel_of(later, "index scores");
  REQUIRE(scores != nullptr);
  CHECK(std::get<IndexScoresCall>(scores->call).keys == rel(9000 + 1001 / 2.0));
  const KernelUse* choice = kernel_of(later, "index choice");
  REQUIRE(choice != nullptr);
  CHECK(std::get<IndexChoiceCall>(choice->call).rows == 1000);
  const KernelUse* attention = kernel_of(later, "attention to chosen entries");
  REQUIRE(attention != nullptr);
  CHECK(std::get<SparseAttentionCall>(attention->call).chosen == 2048);
  // A prompt of at most the chosen number of entries attends to all of itself, under SGLang in a
  // dense kernel.
  const PrefillChunk near{.tokens = 1000, .before = 0, .last = false};
  for (const std::string& engine : kEngines) {
    const std::vector<Op> start =
        ops_of(mixed_step(glm.input(engine), {.loads = {}, .chunks = {&near, 1}}));
    const KernelUse* whole = kernel_of(start, "attention to chosen entries");
    REQUIRE(whole != nullptr);
    CHECK(std::holds_alternative<MlaCall>(whole->call) == (engine == "sglang"));
  }
}

TEST_CASE("with tokens of prompts vLLM before 0.25 scans the states of decoding sequences, too") {
  const PrefillChunk chunk{.tokens = 64, .before = 0, .last = false};
  constexpr std::int64_t kSequences = 256;
  /// Time that a prompt adds to an iteration with this number of decoding sequences.
  const auto added = [&](const char* name, std::string_view stack, std::int64_t tokens) {
    const Model model{find_llm(name)};
    const CostInput in = model.input(stack);
    MixedStepCost mixed{in, Roofline{h200(), find_stack(stack), builtin_calibration()}};
    const std::vector<DecodeLoad> loads(
        static_cast<std::size_t>(mixed.layer_class_count()),
        {.attended = 1000.0 * kSequences, .held = 1000.0 * kSequences});
    MixedStep step{.decodes = kSequences, .loads = loads, .chunks = {}, .decode_tokens = tokens};
    const double alone = mixed.cost(step).time.count();
    step.chunks = {&chunk, 1};
    return mixed.cost(step).time.count() - alone;
  };
  // The copies move 2 * 2 states of 24 layers: 4 * 256 * 24 * 32 * 65,536 B over 4.8 TB/s.
  const double copies = 4.0 * kSequences * 24 * 32 * 65'536 / 4.8e12;
  CHECK(added("qwen3.5-9b", "vllm@0.24", 1) > copies);
  CHECK(added("qwen3.5-9b", "vllm@0.25", 1) < copies);
  CHECK(added("qwen3.5-9b", "vllm", 1) < copies);
  CHECK(added("qwen3.5-9b", "sglang", 1) < copies);
  // Drafts are verified by the decode kernel.
  CHECK(added("qwen3.5-9b", "vllm@0.24", 2) < copies);
  // Kimi's layers are still scanned: 20 of them.
  CHECK(added("kimi-linear-48b-a3b", "vllm", 1) > copies * 20 / 24);
}

}  // namespace
}  // namespace kvsim
