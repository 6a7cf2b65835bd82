// The operator graph of prefill and decode steps, compared with closed forms and hand-solved cases.

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "models/cost/graph.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/graphs.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

Op timed(std::int32_t stream) { return {.name = "op", .stream = stream}; }

/// Like Mixtral: 8 experts, 2 active; the first layer is dense, every second layer has a window.
Llm mixed_llm() {
  Llm llm = small_llm();
  for (std::size_t l = 1; l < llm.layers.size(); ++l) {
    llm.layers[l].mlp.n_experts = 8;
    llm.layers[l].mlp.top_k = 2;
    llm.layers[l].mlp.shared_d_ff = 128;
  }
  llm.layers[3].attention.window = 64;
  return llm;
}
/// Like DeepSeek: latent attention, low-rank queries.
Llm latent_llm() {
  Llm llm = small_llm();
  for (LayerSpec& layer : llm.layers) {
    layer.attention = {.n_heads = 8,
                       .n_kv_heads = 8,
                       .head_dim = 48,
                       .v_head_dim = 32,
                       .kv_lora_rank = 64,
                       .q_lora_rank = 96,
                       .rope_head_dim = 16};
  }
  return llm;
}

struct Setup {
  Llm llm;
  FullMethod full;
  [[nodiscard]] CostInput input(const char* stack, const Method& method, std::int64_t batch = 1,
                                Dtype dtype = Dtype::kFp16) const {
    return {.llm = &llm,
            .method = &method,
            .stack = &find_stack(stack),
            .weight_dtype = dtype,
            .kv_dtype = dtype,
            .batch = batch};
  }
};

double flops_of(const Step& step) {
  double sum = 0;
  for (const Segment& s : step.segments) {
    for (OpIndex i = 0; i < s.graph->size(); ++i) sum += s.graph->op(i).flops.count() * s.repeat;
  }
  return sum;
}

double bytes_of_family(const Step& step, OpFamily family) {
  double sum = 0;
  for (const Segment& s : step.segments) {
    for (OpIndex i = 0; i < s.graph->size(); ++i) {
      const Op& op = s.graph->op(i);
      if (op.family == family) sum += (op.bytes_read + op.bytes_written) * s.repeat;
    }
  }
  return sum;
}

TEST_CASE("a graph accepts only dependencies on earlier operators so it has no cycle") {
  OpGraph graph;
  const OpIndex a = graph.add(timed(0));
  const OpIndex b = graph.add(timed(0), {a});
  REQUIRE(graph.edges().size() == 1);
  CHECK(graph.edges()[0] == std::pair{a, b});
  CHECK_THROWS_AS(graph.add(timed(0), {5}), ContractError);
  CHECK(graph.is_acyclic());
}

TEST_CASE("critical path: operators of a stream in order, streams in parallel") {
  // Stream 0: a takes 1 s, then c 2 s after b. Stream 1: b takes 5 s after a, then d 1 s in order.
  // a ends at 1, b at 6, c at 8, d at 7.
  OpGraph graph;
  const OpIndex a = graph.add(timed(0));
  const OpIndex b = graph.add(timed(1), {a});
  graph.add(timed(0), {b});
  graph.add(timed(1));
  const std::vector<Seconds> t{Seconds{1.0}, Seconds{5.0}, Seconds{2.0}, Seconds{1.0}};
  CHECK(graph.critical_path(t).count() == rel(8));
  // One stream: the sum, regardless of edges.
  OpGraph serial;
  for (int i = 0; i < 4; ++i) serial.add(timed(0));
  CHECK(serial.critical_path(t).count() == rel(9));
}

TEST_CASE("alive peak: 3 + 4 together, not 3 + 4 + 5") {
  OpGraph graph;
  const OpIndex a = graph.add(timed(0));
  const OpIndex b = graph.add(timed(0), {a});
  const OpIndex c = graph.add(timed(0), {b});
  graph.release(graph.hold("x", Owner::kActivations, {}, Bytes{3}, a), b);
  graph.release(graph.hold("y", Owner::kScores, {}, Bytes{4}, b), b);
  graph.hold("z", Owner::kKvCache, {}, Bytes{5}, c);
  const AlivePeak peak = graph.alive_peak();
  CHECK(peak.bytes == Bytes{7});
  CHECK(peak.at == b);
  CHECK(peak.by_owner[static_cast<std::size_t>(Owner::kScores)] == Bytes{4});
  CHECK(peak.by_owner[static_cast<std::size_t>(Owner::kKvCache)] == Bytes{});
}

TEST_CASE("roofline by hand") {
  Gpu gpu = a800();
  gpu.hbm_bandwidth = BytesPerSecond{2e12};
  gpu.peak[Dtype::kFp16] = FlopsPerSecond{100e12};
  Stack stack = find_stack("ideal");
  Op op{.name = "x", .flops = FlopCount{1e9}, .bytes_read = 1.5e9, .bytes_written = 0.5e9};
  // 2e9 B at 2 TB/s take 1 ms, 1e9 flops at 100 TFLOP/s 10 us.
  CHECK(Roofline{gpu, stack, {}}.time(op).count() == rel(1e-3));
  op.flops = FlopCount{1e12};  // 10 ms
  CHECK(Roofline{gpu, stack, {}}.time(op).count() == rel(10e-3));
  stack.launch_overhead = Seconds{3e-6};
  op.launches = 2;
  CHECK(Roofline{gpu, stack, {}}.time(op).count() == rel(10e-3 + 6e-6));
  Calibration half;
  half.families[static_cast<std::size_t>(op.family)] = {.flops = 0.5, .bandwidth = 0.25};
  CHECK(Roofline{gpu, stack, half}.time(op).count() == rel(20e-3 + 6e-6));
  op.flops = FlopCount{};
  CHECK(Roofline{gpu, stack, half}.time(op).count() == rel(4e-3 + 6e-6));
  op.blocks = 27;  // a quarter of 108 processors
  CHECK(Roofline{gpu, stack, half}.time(op).count() == rel(16e-3 + 6e-6));
  op.blocks = 500;
  CHECK(Roofline{gpu, stack, half}.time(op).count() == rel(4e-3 + 6e-6));
}

TEST_CASE("nominal rates are reported as uncalibrated") {
  CHECK(Calibration{}.provenance.find("uncalibrated") != std::string::npos);
}

TEST_CASE("prefill flops: 2 P_active S and causal attention") {
  const std::int64_t s = 300;
  for (const std::int64_t batch : {1, 3}) {
    for (const Llm& llm : {small_llm(), mixed_llm(), latent_llm(), llama31_8b()}) {
      const Setup setup{llm, {}};
      const CostInput in = setup.input("ideal", setup.full, batch);
      double expected = 0;
      for (const LayerSpec& layer : llm.layers) {
        const AttentionSpec& a = layer.attention;
        const double t = static_cast<double>(s);
        // 2 b Hq s^2 d if head_dim = v_head_dim; a window w limits this to w s - w^2 / 2 pairs.
        const double pairs =
            a.window == 0 ? t * t / 2 : a.window * t - static_cast<double>(a.window) * a.window / 2;
        expected +=
            static_cast<double>(batch) * 2 * a.n_heads * pairs * (a.head_dim + a.v_head_dim);
      }
      const double head = static_cast<double>(llm.d_model) * llm.vocab_size;
      const double layers = static_cast<double>(active_parameters(llm)) - head;
      expected += 2 * static_cast<double>(batch) * (layers * static_cast<double>(s) + head);
      CHECK(flops_of(prefill_step(in, s, {s})) == rel(expected));
    }
  }
}

TEST_CASE("decode flops: 2 P_active b and 4 Hq d E") {
  const std::int64_t batch = 5;
  for (const Llm& llm : {small_llm(), mixed_llm(), llama31_8b()}) {
    const Setup setup{llm, {}};
    const CostInput in = setup.input("ideal", setup.full, batch);
    double expected = 2.0 * static_cast<double>(active_parameters(llm)) * batch;
    for (const LayerSpec& layer : llm.layers) {
      const AttentionSpec& a = layer.attention;
      const double attended = a.window == 0 ? 501 : std::min(501, a.window);
      expected += 4.0 * batch * a.n_heads * a.head_dim * attended;
    }
    CHECK(flops_of(decode_step(in, 500, 501)) == rel(expected));
  }
}

TEST_CASE("absorbed latent attention reads latents and computes in their width") {
  const Setup setup{latent_llm(), {}};
  const CostInput in = setup.input("ideal", setup.full, 2);
  const Step step = decode_step(in, 99, 100);
  // Per layer: 2 sequences x 100 rows of (64 + 16) x 2 B read, and the query and output rows.
  const double rows = 2.0 * 100 * 80 * 2;
  const double q_and_out = 2.0 * 8 * (48 + 32) * 2;
  CHECK(bytes_of_family(step, OpFamily::kDecodeAttention) == rel(4 * (rows + q_and_out)));
  const double attention = 2.0 * 2 * 8 * 100 * (80 + 64);
  CHECK(flops_of(step) ==
        rel(2.0 * 2 * static_cast<double>(active_parameters(setup.llm)) + 4 * attention));
}

TEST_CASE("decode reads every weight and every cached entry once on the ideal stack") {
  const Setup setup{llama2_7b(), {}};
  const CostInput in = setup.input("ideal", setup.full);
  const Step step = decode_step(in, 4095, 4096);
  // Weights: 32 x 202,375,168 + 131,072,000 elements of 2 B; cache 4096 x 512 KiB.
  double gemm = 0;
  for (const OpFamily family : {OpFamily::kGemm, OpFamily::kLogits}) {
    gemm += bytes_of_family(step, family);
  }
  const double weights = 2.0 * (32 * 202375168.0 + 131072000.0);
  CHECK(gemm > weights);
  CHECK(gemm < weights * 1.001);  // plus activations of one token
  const double cache = 4096.0 * 512 * 1024;
  const double attention = bytes_of_family(step, OpFamily::kDecodeAttention);
  CHECK(attention == rel(cache + 32 * 2 * 4096 * 2.0));
}

TEST_CASE("experts: a single token reads top_k and many tokens read all") {
  const Setup setup{mixed_llm(), {}};
  const auto gate_weights = [&](std::int64_t batch) {
    const CostInput in = setup.input("ideal", setup.full, batch);
    const DecodeState moment{.attended = 11, .before = 10, .after = 11};
    const OpGraph graph = decode_layer(in, 1, moment);
    double routed = 0;
    for (OpIndex i = 0; i < graph.size(); ++i) {
      const Op& op = graph.op(i);
      if (op.name != "gate projection") continue;
      routed = op.bytes_read - 2.0 * static_cast<double>(2 * batch * 256);  // minus its input rows
    }
    return routed / (256.0 * 704 * 2);
  };
  CHECK(gate_weights(1) == rel(2));
  // 8 (1 - (3/4)^2) = 3.5 distinct experts for two tokens.
  CHECK(gate_weights(2) == rel(3.5));
  CHECK(gate_weights(1000) == rel(8, 1e-9));
}

/// Bytes of weights that the products of a decode step read: the part that does not double with the
/// batch, since activations are proportional to it. A large batch visits every expert.
double weights_read(const CostInput& in) {
  const auto read = [&](std::int64_t batch) {
    CostInput of = in;
    of.batch = batch;
    double sum = 0;
    for (const Segment& segment : decode_step(of, 10, 11).segments) {
      for (OpIndex i = 0; i < segment.graph->size(); ++i) {
        const Op& op = segment.graph->op(i);
        const bool product = op.family == OpFamily::kGemm || op.family == OpFamily::kLogits;
        if (product) sum += op.bytes_read * segment.repeat;
      }
    }
    return sum;
  };
  return 2 * read(in.batch) - read(2 * in.batch);
}

/// Parameters of matrices that are not products: convolutions, and gates of shared experts. Their
/// traffic is not counted.
std::int64_t elsewhere(const Llm& llm) {
  std::int64_t sum = 0;
  for (const LayerSpec& layer : llm.layers) {
    for (const LayerMatrix& m : mixer_matrices(layer, llm.d_model)) {
      if (m.role == MatrixRole::kConvolution) sum += m.in * m.out;
    }
    for (const LayerMatrix& m : feed_forward_matrices(layer.mlp, llm.d_model)) {
      if (m.module == "mlp.shared_expert_gate") sum += m.in * m.out;
    }
  }
  return sum;
}

TEST_CASE("a decode step reads the resident weights except tables and vectors") {
  const FullMethod full;
  for (const Llm& llm : builtin_llms()) {
    const bool sparse = routed_expert_parameters(llm) > 0;
    for (const Dtype weights : {llm.published_dtype, Dtype::kFp32, Dtype::kInt8}) {
      INFO(llm.name, " in ", std::string{name_of(weights)});
      const CostInput in{.llm = &llm,
                         .method = &full,
                         .stack = &find_stack("ideal"),
                         .weight_dtype = weights,
                         .kv_dtype = Dtype::kFp16,
                         .batch = sparse ? 8192 : 1};
      // Products do not read the embedding table (unless it is also the output head), learned
      // positions, and extra_parameters (norms, biases, sinks). Their traffic is not counted.
      const std::int64_t rows = (llm.tied_embeddings ? 0 : llm.vocab_size) + llm.learned_positions;
      const Bytes unread = bytes_of(rows * llm.d_model + llm.extra_parameters + elsewhere(llm),
                                    dense_weight_dtype(llm, weights));
      const Bytes resident = loaded_weight_bytes(llm, weights);
      CHECK(weights_read(in) == rel(static_cast<double>((resident - unread).count()), 1e-9));
      // One row of the table per sequence.
      const OpGraph embedding = embed_tokens(in, 1);
      CHECK(embedding.op(0).bytes_read ==
            static_cast<double>(
                bytes_of(in.batch * llm.d_model, dense_weight_dtype(llm, weights)).count()));
    }
  }
}

TEST_CASE("gpt-oss: a single token reads attention in bf16 and 4 experts in MXFP4") {
  const Llm& llm = find_llm("gpt-oss-20b");
  const FullMethod full;
  const CostInput in{.llm = &llm,
                     .method = &full,
                     .stack = &find_stack("ideal"),
                     .weight_dtype = Dtype::kFp4,
                     .kv_dtype = Dtype::kBf16};
  const OpGraph graph = decode_layer(in, 0, {.attended = 11, .before = 10, .after = 11});
  const auto op = [&](std::string_view name) {
    OpIndex i = 0;
    while (graph.op(i).name != name) ++i;
    return graph.op(i);
  };
  // 2880 -> 64 heads of 64: 2 B each, and one input row of 2880.
  CHECK(op("query projection").bytes_read == 2.0 * 2880 * 4096 + 2 * 2880);
  CHECK(op("query projection").dtype == Dtype::kBf16);
  CHECK(op("router").bytes_read == 2.0 * 2880 * 32 + 2 * 2880);
  // Four of 32 experts of 2880 x 2880: half a byte per weight and 1/32 byte of scales; 4 input
  // rows.
  CHECK(op("gate projection").bytes_read ==
        rel(4 * (2880.0 * 2880 / 2 + 2880.0 * 2880 / 32) + 4 * 2 * 2880));
  CHECK(op("gate projection").dtype == Dtype::kFp4);
}

TEST_CASE("all graphs of all stacks are acyclic") {
  for (const Llm& llm : {small_llm(), mixed_llm(), latent_llm()}) {
    for (const Stack& stack : builtin_stacks()) {
      const Setup setup{llm, {}};
      const BoundedMethod bounded{{.budget = 50,
                                   .compaction = Compaction::kGather,
                                   .needs = eager_sums_with_retry(),
                                   .side_per_entry = 8,
                                   .extra_launches = 3}};
      for (const Method* method :
           {static_cast<const Method*>(&setup.full), static_cast<const Method*>(&bounded)}) {
        const CostInput in = setup.input(stack.name.c_str(), *method, 2);
        for (const Step& step : {prefill_step(in, 100, {100}), decode_step(in, 100, 101)}) {
          for (const Segment& s : step.segments) CHECK(s.graph->is_acyclic());
        }
      }
    }
  }
}

TEST_CASE("the prefill of one layer holds 3 d_ff + 4 d of which one d belongs to the caller") {
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kFp32}) {
    const Setup setup{llama2_7b(), {}};
    const CostInput in = setup.input("hf-sdpa", setup.full, 2, dtype);
    const std::int64_t s = 1000;
    const OpGraph graph = prefill_layer(in, 1, {.prompt = s, .kept = s, .score_rows = s});
    const AlivePeak peak = graph.alive_peak();
    CHECK(graph.op(peak.at).name == "gate times up");
    const std::int64_t beta = bits_of(dtype) / 8;
    const Bytes callers = resident_tensors(in, s).at(0).bytes;
    CHECK(peak.by_owner[static_cast<std::size_t>(Owner::kActivations)] + callers ==
          Bytes{2 * s * beta * (3 * 11008 + 4 * 4096)});
    CHECK(peak.by_owner[static_cast<std::size_t>(Owner::kKvCache)] ==
          Bytes{2 * s * 2 * 4096 * beta});
  }
}

TEST_CASE("concatenation: one layer's longer keys next to the old ones, then its values") {
  const Setup setup{llama31_8b(), {}};
  const CostInput in = setup.input("hf-flash", setup.full);
  const DecodeState moment{.attended = 5001, .before = 5000, .after = 5001};
  const OpGraph graph = decode_layer(in, 0, moment);
  const Bytes row{8 * 128 * 2};
  CHECK(peak_of_owner(graph, Owner::kConcatCopy) == row * 5001);
  CHECK(peak_of_owner(graph, Owner::kKvCache) == row * (5001 + 5001));
  const AlivePeak peak = graph.alive_peak();
  // Old values, new values, new keys.
  CHECK(peak.by_owner[static_cast<std::size_t>(Owner::kKvCache)] == row * (5000 + 5001));
  CHECK(peak.by_owner[static_cast<std::size_t>(Owner::kConcatCopy)] == row * 5001);
}

TEST_CASE("a full ring does not grow, concatenates if the stack does, and a gather rewrites it") {
  const Setup setup{llama31_8b(), {}};
  const Bytes row{8 * 128 * 2};
  for (const char* stack : {"ideal", "hf-flash"}) {
    const BoundedMethod ring{{.budget = 1000, .compaction = Compaction::kRing}};
    const CostInput in = setup.input(stack, ring);
    const DecodeState full = decode_moment(in, 0, 2000, 2001, 1000);
    CHECK(full.change == CacheChange::kOverwrite);
    CHECK(full.evicts);
    CHECK(full.after == 1000);
    const OpGraph graph = decode_layer(in, 0, full);
    // One layer's keys are also in a longer copy, to attend to the evicted entry.
    const bool copies = std::string{stack} == "hf-flash";
    CHECK(peak_of_owner(graph, Owner::kConcatCopy) == row * (copies ? 1001 : 0));
    CHECK(peak_of_owner(graph, Owner::kKvCache) == row * (copies ? 2002 : 2000));

    const BoundedMethod gather{{.budget = 1000, .compaction = Compaction::kGather}};
    const CostInput other = setup.input(stack, gather);
    const DecodeState moment = decode_moment(other, 0, 2000, 2001, 1000);
    CHECK(moment.change == CacheChange::kRewrite);
    const OpGraph rewritten = decode_layer(other, 0, moment);
    CHECK(peak_of_owner(rewritten, Owner::kCompaction) == row * 1000);
    CHECK(peak_of_owner(rewritten, Owner::kKvCache) == row * 2002);
    CHECK((peak_of_owner(rewritten, Owner::kConcatCopy) > Bytes{}) == copies);
  }
}

TEST_CASE("a sliding window limits what a layer holds and attends") {
  const Setup setup{mixed_llm(), {}};
  const CostInput in = setup.input("hf-sdpa", setup.full);
  CHECK(held_entries(in, 3, 100, 100) == 64);
  CHECK(held_entries(in, 2, 100, 100) == 100);
  const DecodeState moment = decode_moment(in, 3, 100, 101, 64);
  CHECK(moment.attended == 64);
  CHECK(moment.change == CacheChange::kOverwrite);
  CHECK_FALSE(moment.evicts);  // the window belongs to the layer, not to the method
  CHECK(decode_moment(in, 3, 10, 11, 10).change == CacheChange::kGrow);
}

TEST_CASE("cache bytes follow the formulas of the model and the method") {
  for (const Llm& llm : {small_llm(), mixed_llm(), latent_llm(), llama31_8b()}) {
    const Setup setup{llm, {}};
    const CostInput in = setup.input("ideal", setup.full, 3);
    Bytes sum;
    for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
      sum += layer_cache(in, l, held_entries(in, l, 777, 777)).total();
    }
    CHECK(sum == full_cache_bytes(llm, 777, Dtype::kFp16) * 3);
  }
  const Setup setup{llama31_8b(), {}};
  for (const char* name : {"zeromerge", "h2o", "streaming-llm", "full"}) {
    MethodSpec spec{.name = name, .params = {}, .budget = std::nullopt};
    if (takes_budget(name)) spec.budget = Budget{.fraction = 0.25, .entries = 0};
    const LayerShape shape{.n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
    const auto method = make_method(spec, 1000, {.recorded = Dtype::kFp16, .shape = shape});
    const CostInput in = setup.input("ideal", *method);
    INFO(name);
    for (const std::int64_t tokens : {1000, 1500}) {
      CHECK(layer_cache(in, 0, held_entries(in, 0, 1000, tokens)).total() ==
            *layer_cache_bytes(*method, 0, shape, Dtype::kFp16, 1000, tokens));
    }
  }
}

TEST_CASE("the score cost of a method by execution in 16 bit") {
  const Setup setup{llama31_8b(), {}};
  const std::int64_t s = 2000;
  const double square = 32.0 * 2000 * 2000;
  const auto layer = [&](const MethodNeeds& needs, std::int64_t rows) {
    const BoundedMethod method{{.budget = 500, .needs = needs}};
    return prefill_layer(setup.input("hf-flash", method), 0,
                         {.prompt = s, .kept = 500, .score_rows = rows});
  };
  const auto flops = [](const OpGraph& g) {
    double sum = 0;
    for (OpIndex i = 0; i < g.size(); ++i) {
      if (g.op(i).family == OpFamily::kScorePass) sum += g.op(i).flops.count();
    }
    return sum;
  };
  MethodNeeds needs{.prompt_scores = PromptScoreClass::kColumnSums};
  // Eager: one matrix of 2 B and one of 4 B per element are alive, with any mask.
  OpGraph graph = layer(needs, s);
  CHECK(peak_of_owner(graph, Owner::kScores) == Bytes{static_cast<std::int64_t>(square * 6)});
  CHECK(flops(graph) == rel(2 * square * 128));
  // A quarter of the rows at once: a quarter of the memory, the same work.
  graph = layer(needs, s / 4);
  CHECK(peak_of_owner(graph, Owner::kScores) == Bytes{static_cast<std::int64_t>(square * 6 / 4)});
  CHECK(flops(graph) == rel(2 * square * 128));
  // H2O: logits, their fp32 softmax, and its cast; an fp32 model has only the first two.
  for (const auto& [dtype, bytes] : {std::pair{Dtype::kFp16, 8}, std::pair{Dtype::kFp32, 8}}) {
    const MethodNeeds h2o{.prompt_scores = PromptScoreClass::kColumnSums, .score_copies = 2};
    const BoundedMethod method{{.budget = 500, .needs = h2o}};
    CostInput in = setup.input("hf-sdpa", method);
    in.weight_dtype = in.kv_dtype = dtype;
    graph = prefill_layer(in, 0, {.prompt = s, .kept = 500, .score_rows = s});
    CHECK(peak_of_owner(graph, Owner::kScores) == Bytes{static_cast<std::int64_t>(square * bytes)});
  }
  // Fused in two passes: another half of the square, and one number per row.
  needs.score_exec = ScoreExec::kFusedTwoPass;
  graph = layer(needs, s);
  CHECK(peak_of_owner(graph, Owner::kScores) == Bytes{32 * 2000 * 4});
  CHECK(flops(graph) == rel(square * 128));
  // A window of 32 rows: b Hq w s x 4 B.
  graph = layer({.prompt_scores = PromptScoreClass::kLastWindow, .prompt_window = 32}, s);
  CHECK(peak_of_owner(graph, Owner::kScores) == Bytes{32 * 32 * 2000 * 4});
  CHECK(flops(graph) == rel(2.0 * 32 * 32 * 2000 * 128));
  CHECK(flops(layer({}, s)) == 0);
}

TEST_CASE("eager attention holds logits, their fp32 softmax and its cast") {
  const Setup setup{llama2_7b(), {}};
  const std::int64_t s = 1000;
  const double square = 32.0 * 1000 * 1000;
  const auto scores = [&](Dtype dtype) {
    const CostInput in = setup.input("hf-eager", setup.full, 1, dtype);
    return peak_of_owner(prefill_layer(in, 0, {.prompt = s, .kept = s, .score_rows = s}),
                         Owner::kScores);
  };
  CHECK(scores(Dtype::kFp16) == Bytes{static_cast<std::int64_t>(square * (2 + 4 + 2))});
  CHECK(scores(Dtype::kFp32) == Bytes{static_cast<std::int64_t>(square * (4 + 4))});
  const CostInput in = setup.input("hf-eager", setup.full);
  CHECK(peak_of_owner(output_logits(in, s), Owner::kLogits) == Bytes{1000 * 32000 * (2 + 4)});
  const CostInput last = setup.input("hf-sdpa", setup.full);
  CHECK(peak_of_owner(output_logits(last, s), Owner::kLogits) == Bytes{32000 * 2});
}

TEST_CASE("expansion of grouped heads: write and read n_rep times the cache, in memory too") {
  const Setup setup{llama31_8b(), {}};
  const std::int64_t e = 3000;
  const double cache = 2.0 * 8 * 128 * 2 * static_cast<double>(e);  // one layer's keys and values
  const DecodeState moment{.attended = e, .before = e - 1, .after = e};
  const OpGraph graph = decode_layer(setup.input("hf-sdpa", setup.full), 0, moment);
  double copied = 0, attended = 0;
  for (OpIndex i = 0; i < graph.size(); ++i) {
    const Op& op = graph.op(i);
    if (op.family == OpFamily::kExpandCopy) copied += op.bytes_read + op.bytes_written;
    if (op.family == OpFamily::kDecodeAttention) attended += op.bytes_read;
  }
  CHECK(copied == rel(cache + 4 * cache));
  CHECK(attended == rel(4 * cache + 4096 * 2));
  CHECK(peak_of_owner(graph, Owner::kKvExpansion) == Bytes{static_cast<std::int64_t>(4 * cache)});
  const OpGraph aware = decode_layer(setup.input("hf-flash", setup.full), 0, moment);
  CHECK(peak_of_owner(aware, Owner::kKvExpansion) == Bytes{});
}

TEST_CASE("more batch or more tokens never take less time, memory or traffic") {
  const Gpu gpu = a800();
  for (const Stack& stack : builtin_stacks()) {
    const Roofline roofline{gpu, stack, {}};
    for (const Llm& llm : {small_llm(), mixed_llm(), latent_llm()}) {
      const Setup setup{llm, {}};
      StepCost last_prefill, last_decode;
      std::int64_t batch = 1, tokens = 1;
      for (int i = 0; i < 12; ++i) {
        (i % 2 == 0 ? batch : tokens) *= 3;
        const CostInput in = setup.input(stack.name.c_str(), setup.full, batch);
        const StepCost prefill = evaluate(prefill_step(in, tokens, {tokens}), roofline);
        const StepCost decode = evaluate(decode_step(in, tokens, tokens + 1), roofline);
        CHECK(prefill.time >= last_prefill.time);
        CHECK(prefill.flops >= last_prefill.flops);
        CHECK(prefill.bytes >= last_prefill.bytes);
        CHECK(decode.time >= last_decode.time);
        CHECK(decode.bytes >= last_decode.bytes);
        last_prefill = prefill;
        last_decode = decode;
      }
    }
  }
}

TEST_CASE("an explanation adds up and the host may be slower than the device") {
  const Gpu gpu = a800();
  const Setup setup{llama2_7b(), {}};
  const CostInput in = setup.input("hf-sdpa", setup.full);
  const Roofline roofline{gpu, *in.stack, {}};
  const Step step = decode_step(in, 100, 101);
  const StepCost cost = evaluate(step, roofline);
  double sum = 0, flops = 0;
  for (const OpCost& line : explain(step, roofline)) {
    sum += line.time.count();
    flops += line.op.flops.count() * static_cast<double>(line.times());
  }
  CHECK(sum == rel(cost.device.count()));
  CHECK(flops == rel(cost.flops));
  CHECK(cost.host.count() == rel(32 * 0.9e-3));
  CHECK(cost.time == cost.host);
  CHECK(cost.device < cost.host);
  const BoundedMethod busy{{.budget = 50, .extra_launches = 10}};
  // 10 operators of 20 us in each of 32 layers.
  CHECK(host_time(setup.input("hf-sdpa", busy), true).count() == rel(32 * (0.9e-3 + 10 * 20e-6)));
  CHECK(host_time(setup.input("hf-sdpa", busy), false).count() == rel(32 * 0.9e-3));
}

TEST_CASE("an interval needs residuals of every family that has time") {
  const Gpu gpu = a800();
  const Setup setup{small_llm(), {}};
  const CostInput in = setup.input("ideal", setup.full);
  const Step step = decode_step(in, 100, 101);
  CHECK_FALSE(time_interval(step, Roofline{gpu, *in.stack, {}}));
  Calibration calibration;
  for (Efficiency& e : calibration.families) e.relative_residual = 0.1;
  const Roofline roofline{gpu, *in.stack, calibration};
  const auto interval = time_interval(step, roofline);
  REQUIRE(interval);
  const Seconds time = evaluate(step, roofline).time;
  CHECK(interval->low < time);
  CHECK(interval->high > time);
  CHECK(interval->high.count() <= time.count() * 1.2 * (1 + 1e-12));  // all families together
}

TEST_CASE("a method without a size law is refused with a message") {
  const Setup setup{small_llm(), {}};
  const UnknownSizeMethod unknown;
  CHECK_THROWS_AS((void)held_entries(setup.input("ideal", unknown), 0, 10, 10), InputError);
}

}  // namespace
}  // namespace kvsim
