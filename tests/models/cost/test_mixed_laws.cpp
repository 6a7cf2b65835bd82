// Laws of an engine's iteration: its time increases with every part and is between the maximum and
// the sum of decodes and chunk; chunks conserve a prompt's arithmetic.

#include <algorithm>
#include <string>
#include <vector>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "tests/support/mixed.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

/// One layer class and one length: `decodes` sequences of `held` entries next to chunks.
struct Plain {
  CostInput in;
  MixedStepCost cost;
  Plain(const Llm& llm, const Method& method, const Stack& stack, const Roofline& roofline)
      : in{.llm = &llm,
           .method = &method,
           .stack = &stack,
           .weight_dtype = Dtype::kBf16,
           .kv_dtype = Dtype::kBf16},
        cost{in, roofline} {}

  MixedCost at(std::int64_t decodes, double attended, std::vector<PrefillChunk> chunks,
               std::int64_t tokens = 1) {
    const double all = static_cast<double>(decodes) * attended;
    const std::vector<DecodeLoad> loads(static_cast<std::size_t>(cost.layer_class_count()),
                                        DecodeLoad{.attended = all, .held = all});
    return cost.cost(
        {.decodes = decodes, .loads = loads, .chunks = chunks, .decode_tokens = tokens});
  }
};

/// Models of each kind, on two GPUs.
struct Case {
  Llm llm;
  const char* gpu;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* gpu : {"H100-80GB-SXM", "A100-80GB-SXM"}) {
    for (const char* llm : {"llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"}) {
      all.push_back({find_llm(llm), gpu});
    }
  }
  return all;
}

TEST_CASE("time rises with decodes, entries attended, chunk tokens and prefix") {
  const FullMethod full;
  for (const auto& [llm, gpu_name] : cases()) {
    const Gpu& gpu = find_gpu(gpu_name);
    const std::vector<std::int64_t> sizes{1, 7, 64, 300, 1000, 4000, 16000};
    for (const bool fitted : {false, true}) {
      const Stack& stack = find_stack("vllm");
      const Roofline roofline{gpu, stack, fitted ? builtin_calibration() : Calibration{}};
      Plain plain{llm, full, stack, roofline};
      // Fitted GEMMs choose between tile shapes, so a larger one can be slightly cheaper: by at
      // most 0.4 % of an A100's iteration.
      const double slack = fitted ? 0.005 : 1e-12;
      for (const std::int64_t decodes : {0, 1, 30, 200}) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          for (std::size_t j = 0; j < sizes.size(); ++j) {
            const auto at = [&](std::int64_t n, std::int64_t entries, std::int64_t tokens,
                                std::int64_t before) {
              return plain
                  .at(n, static_cast<double>(entries),
                      {{.tokens = tokens, .before = before, .last = false}})
                  .time.count();
            };
            const double here = at(decodes, sizes[i], sizes[j], sizes[i]);
            INFO(llm.name, fitted ? " fitted, " : " nominal, ", decodes, " decodes of ", sizes[i],
                 ", chunk of ", sizes[j]);
            CHECK(at(decodes + 16, sizes[i], sizes[j], sizes[i]) >= here * (1 - slack));
            if (i + 1 < sizes.size()) {
              CHECK(at(decodes, sizes[i + 1], sizes[j], sizes[i]) >= here * (1 - slack));
              CHECK(at(decodes, sizes[i], sizes[j], sizes[i + 1]) >= here * (1 - slack));
            }
            if (j + 1 < sizes.size()) {
              CHECK(at(decodes, sizes[i], sizes[j + 1], sizes[i]) >= here * (1 - slack));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("at most the sum of decodes and chunk and at least the larger of both") {
  const FullMethod full;
  const Stack& stack = find_stack("vllm");
  for (const auto& [llm, gpu_name] : cases()) {
    const Gpu& gpu = find_gpu(gpu_name);
    for (const bool fitted : {false, true}) {
      const Roofline roofline{gpu, stack, fitted ? builtin_calibration() : Calibration{}};
      Plain plain{llm, full, stack, roofline};
      // One row beyond whole waves of tiles over the SMs adds a wave: at most 2.9 % of an A100's
      // iteration.
      const double slack = fitted ? 0.03 : 1e-12;
      for (const std::int64_t decodes : {1, 16, 200}) {
        for (const std::int64_t tokens : {1, 100, 512, 3000}) {
          for (const std::int64_t before : {0, 5000}) {
            const PrefillChunk chunk{.tokens = tokens, .before = before, .last = true};
            const MixedCost a = plain.at(decodes, 2000, {});
            const MixedCost b = plain.at(0, 0, {chunk});
            const MixedCost both = plain.at(decodes, 2000, {chunk});
            INFO(llm.name, fitted ? " fitted, " : " nominal, ", decodes, " decodes, ", tokens,
                 " tokens after ", before);
            CHECK(both.time.count() <= (a.time + b.time).count() * (1 + slack));
            CHECK(both.time.count() >= std::max(a.time, b.time).count() * (1 - slack));
            CHECK(both.flops == rel(a.flops + b.flops));
            CHECK(both.bytes < a.bytes + b.bytes);
            CHECK(both.bytes > std::max(a.bytes, b.bytes));
          }
        }
      }
    }
  }
}

TEST_CASE("chunks of a prompt have its arithmetic and read weights and prefix again") {
  const Gpu& gpu = find_gpu("A800-80GB-SXM");
  const FullMethod full;
  Llm windowed = small_llm();
  for (LayerSpec& layer : windowed.layers) layer.attention.window = 300;
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, {}};
  for (const Llm& llm : {small_llm(), windowed, llama31_8b()}) {
    Plain plain{llm, full, stack, roofline};
    const AttentionSpec& a = llm.layers[0].attention;
    const std::int64_t prompt = 2000;
    const MixedCost whole = plain.at(0, 0, {{.tokens = prompt, .before = 0, .last = true}});
    for (const std::int64_t size : {1999, 1000, 700, 128}) {
      MixedCost sum;
      double passes = 0, prefixes = 0;
      for (std::int64_t before = 0; before < prompt; before += size) {
        const std::int64_t tokens = std::min(size, prompt - before);
        const MixedCost part = plain.at(
            0, 0, {{.tokens = tokens, .before = before, .last = before + tokens == prompt}});
        sum.time += part.time;
        sum.flops += part.flops;
        sum.bytes += part.bytes;
        sum.at_peak += part.at_peak;
        ++passes;
        prefixes +=
            static_cast<double>(a.window > 0 ? std::min<std::int64_t>(before, a.window) : before);
      }
      // Q, K, V, O and the three matrices of the gated block; keys and values of the prefix.
      const double d = llm.d_model;
      const double heads = static_cast<double>(a.n_heads) * a.head_dim;
      const double kv = 2.0 * a.n_kv_heads * a.head_dim;
      const double weights =
          2 * (d * (2 * heads + kv) + 3 * d * static_cast<double>(llm.layers[0].mlp.d_ff));
      const double again = llm.n_layers() * ((passes - 1) * weights + 2 * kv * prefixes);
      INFO("d_model ", llm.d_model, " window ", a.window, ", chunks of ", size);
      CHECK(sum.flops == rel(whole.flops));
      CHECK(sum.bytes == rel(whole.bytes + again));
      CHECK(sum.time >= whole.time);
    }
  }
}

TEST_CASE("a prompt in chunks takes no less time than at once, by fitted kernels too") {
  const FullMethod full;
  const Stack& stack = find_stack("vllm");
  for (const auto& [llm, gpu_name] : cases()) {
    const Roofline roofline{find_gpu(gpu_name), stack, builtin_calibration()};
    Plain plain{llm, full, stack, roofline};
    for (const std::int64_t prompt : {600, 4000, 30000}) {
      const Seconds whole = plain.at(0, 0, {{.tokens = prompt, .before = 0, .last = true}}).time;
      for (const std::int64_t size : {512, 2048, 8192}) {
        Seconds sum;
        for (std::int64_t before = 0; before < prompt; before += size) {
          const std::int64_t tokens = std::min(size, prompt - before);
          sum += plain
                     .at(0, 0,
                         {{.tokens = tokens, .before = before, .last = before + tokens == prompt}})
                     .time;
        }
        // The form reduces the clock of one long kernel more than of several shorter kernels: by at
        // most 1.5 % of the time.
        INFO(llm.name, " on ", std::string{gpu_name}, ": ", prompt, " tokens in chunks of ", size);
        CHECK(sum.count() >= whole.count() * 0.98);
      }
    }
  }
}

TEST_CASE("several chunks are one pass over the weights") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  const Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  const Roofline roofline{gpu, stack, builtin_calibration()};
  Plain plain{llm, full, stack, roofline};
  const PrefillChunk one{.tokens = 200, .before = 300, .last = true};
  const MixedCost single = plain.at(0, 0, {one});
  const MixedCost both = plain.at(0, 0, {one, one});
  CHECK(both.flops == rel(2 * single.flops));
  CHECK(both.time < single.time * 2.0);
  CHECK(both.time > single.time);
  // Chunks of different lengths: slower than the longest chunk, faster than all of them in
  // sequence.
  const PrefillChunk other{.tokens = 900, .before = 0, .last = true};
  const MixedCost alone = plain.at(0, 0, {other});
  const MixedCost ragged = plain.at(0, 0, {one, other});
  CHECK(ragged.flops == rel(single.flops + alone.flops));
  CHECK(ragged.time < single.time + alone.time);
  CHECK(ragged.time > std::max(single.time, alone.time));
  CHECK(ragged.time == plain.at(0, 0, {other, one}).time);
}

TEST_CASE("a hole moves nothing and closing holes moves the held entries once") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const Stack& stack = find_stack("vllm");
  const Methods methods;
  const Roofline roofline{gpu, stack, {}};
  const CostInput in{.llm = &llm,
                     .method = &methods.gather,
                     .stack = &stack,
                     .weight_dtype = Dtype::kBf16,
                     .kv_dtype = Dtype::kBf16};
  MixedStepCost cost{in, roofline};
  const auto at = [&](DecodeLoad load) {
    load.attended = load.held = 4 * 300;
    const std::vector<DecodeLoad> loads(static_cast<std::size_t>(cost.layer_class_count()), load);
    return cost.cost({.decodes = 4, .loads = loads, .chunks = {}});
  };
  const MixedCost gathered = at({.evicting = 4, .rewriting = 4});
  const MixedCost holes = at({.evicting = 4, .holes = 4});
  const MixedCost closed = at({.evicting = 4, .holes = 4, .compacted = 4 * 300});
  CHECK(holes.bytes < gathered.bytes);
  CHECK(holes.time < gathered.time);
  CHECK(closed.time > holes.time);
  // Eight heads of 128 channels, keys and values of 2 B, read and written in 32 layers.
  CHECK(closed.bytes - holes.bytes ==
        doctest::Approx(2.0 * 4 * 300 * 8 * 128 * 4 * 32).epsilon(1e-6));
}

TEST_CASE("verifying a draft costs more than one step and less than a step per token") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  const FullMethod full;
  const Llm llm = llama31_8b();
  const Stack& stack = find_stack("vllm");
  for (const bool fitted : {false, true}) {
    const Roofline roofline{gpu, stack, fitted ? builtin_calibration() : Calibration{}};
    Plain plain{llm, full, stack, roofline};
    for (const std::int64_t decodes : {1, 8, 32}) {
      const MixedCost one = plain.at(decodes, 3000, {});
      check_equal(plain.at(decodes, 3000, {}, 1), one, 1e-15);
      MixedCost before = one;
      for (std::int64_t q = 2; q <= 8; ++q) {
        const MixedCost many = plain.at(decodes, 3000, {}, q);
        INFO((fitted ? "fitted, " : "nominal, "), decodes, " sequences, ", q, " tokens each");
        CHECK(many.time >= before.time);
        CHECK(many.time.count() < one.time.count() * static_cast<double>(q));
        CHECK(many.bytes < one.bytes * static_cast<double>(q));
        // Each new token attends to one entry fewer than the next token.
        const double pairs = static_cast<double>(decodes * q * (q - 1)) / 2;
        const AttentionSpec& a = llm.layers[0].attention;
        CHECK(many.flops == rel(one.flops * static_cast<double>(q) -
                                4.0 * llm.n_layers() * a.n_heads * a.head_dim * pairs));
        before = many;
      }
    }
  }
}

TEST_CASE("top-k and top-p take a step's time and bytes for each logit") {
  const FullMethod full;
  const Llm& llm = find_llm("llama-3.1-8b");
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  Stack greedy = find_stack("vllm");
  greedy.inter_step_overhead = greedy.inter_step_per_sequence = Seconds{};  // hides none
  greedy.cutoff = {.step = Seconds{200e-6}, .bytes_per_logit = 300};
  Stack cut = greedy;
  cut.samples_cutoff = true;
  const Roofline of_greedy{gpu, greedy, {}}, of_cut{gpu, cut, {}};
  Plain without{llm, full, greedy, of_greedy}, with{llm, full, cut, of_cut};
  for (const std::int64_t rows : {1, 64, 512}) {
    // 200 us, and 300 B for each of rows x 128,256 logits at 3.35 TB/s.
    const double expected = 200e-6 + 300.0 * static_cast<double>(rows) * 128256 / 3.35e12;
    CHECK((with.at(rows, 100, {}).time - without.at(rows, 100, {}).time).count() ==
          doctest::Approx(expected).epsilon(1e-6));
  }
  // An unfinished prompt samples no token.
  const std::vector<PrefillChunk> open{{.tokens = 512, .before = 0, .last = false}};
  CHECK(with.at(0, 0, open).time == without.at(0, 0, open).time);
}

TEST_CASE("attention by its instructions: clocks of all SMs for every cache format") {
  const FullMethod full;
  const Llm& llm = find_llm("llama-3-8b");
  const Gpu& gpu = find_gpu("H100-80GB-SXM");
  Stack stack = find_stack("trtllm");
  stack.attention_per_clock = 25;
  const Roofline roofline{gpu, stack, {}};
  Plain cost{llm, full, stack, roofline};
  const auto slope = [&](std::int64_t batch) {
    return (cost.at(batch, 3000, {}).time - cost.at(batch, 2000, {}).time).count() /
           (1000.0 * static_cast<double>(batch));
  };
  // 32 layers x 32 heads x 4 x 128 flops over 132 SMs x 1.98 GHz x 25.
  const double expected = 32.0 * 32 * 4 * 128 / (sm_clocks(gpu) * 25);
  CHECK(slope(64) == doctest::Approx(expected).epsilon(1e-3));
  // One sequence's 32 heads leave 100 of 132 SMs idle.
  CHECK(slope(1) == doctest::Approx(expected * 132 / 32).epsilon(1e-3));
}

}  // namespace
}  // namespace kvsim
