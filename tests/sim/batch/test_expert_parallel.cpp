// Experts distributed over GPUs: memory, computation and exchanges of each GPU.

#include <algorithm>
#include <string>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/network/expert_network.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

/// One GPU of a group, and the input of its cost.
struct Expert {
  Expert(const char* model, std::int32_t tensor, std::int32_t experts, double imbalance = 1)
      : whole{find_llm(model)},
        shard{tensor_shard(whole, tensor)},
        stack{with_options(find_stack("vllm"),
                           {.expert_parallel = experts, .expert_imbalance = imbalance},
                           {&find_gpu("H100-80GB-SXM"), &whole, tensor})},
        method{make_method({"full", {}, {}}, 1024, method_site(whole, Dtype::kBf16))},
        in{.llm = &shard,
           .method = method.get(),
           .stack = &stack,
           .weight_dtype = Dtype::kBf16,
           .kv_dtype = Dtype::kBf16,
           .prompt = 1024,
           .tensor_parallel = tensor,
           .vocab_size = whole.vocab_size} {}
  Expert(const Expert&) = delete;

  [[nodiscard]] std::int32_t moe_layer() const {
    for (std::int32_t l = 0; l < whole.n_layers(); ++l) {
      if (whole.layers[static_cast<std::size_t>(l)].mlp.n_experts > 0) return l;
    }
    return -1;
  }
  [[nodiscard]] const MlpSpec& mlp() const {
    return shard.layers[static_cast<std::size_t>(moe_layer())].mlp;
  }
  /// Operators named `name` in one decode step of `batch` sequences in a layer of experts.
  [[nodiscard]] std::vector<Op> ops(std::string_view name, std::int64_t batch) const {
    CostInput of = in;
    of.batch = batch;
    const OpGraph graph =
        decode_layer(of, moe_layer(), {.attended = 1025, .before = 1024, .after = 1025});
    std::vector<Op> found;
    for (OpIndex i = 0; i < graph.size(); ++i) {
      if (graph.op(i).name == name) found.push_back(graph.op(i));
    }
    return found;
  }

  const Llm& whole;
  Llm shard;
  Stack stack;
  std::shared_ptr<const Method> method;
  CostInput in;
};

TEST_CASE("every expert is on one GPU and no GPU has more than its share rounded up") {
  for (const std::int64_t experts : {8, 60, 128, 256}) {
    for (std::int64_t ranks = 1; ranks <= experts; ++ranks) {
      std::int64_t sum = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t held = experts_on(experts, ranks, rank);
        CHECK(held <= experts_on(experts, ranks, 0));
        CHECK(held >= experts_on(experts, ranks, 0) - 1);
        sum += held;
      }
      CHECK(sum == experts);
    }
  }
}

TEST_CASE("expert weights are distributed, other weights are not, more GPUs never hold more each") {
  for (const char* model : {"mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3"}) {
    INFO(model);
    const Bytes alone = weights_held(Expert{model, 1, 1}.in);
    const Bytes experts = bytes_of(routed_expert_parameters(find_llm(model)), Dtype::kBf16);
    Bytes before = alone;
    for (const std::int32_t ranks : {2, 3, 4, 5, 8}) {
      INFO(ranks, " GPUs");
      const Bytes held = weights_held(Expert{model, 1, ranks}.in);
      CHECK(held <= before);
      before = held;
      const Expert expert{model, 1, ranks};
      const std::int64_t n = expert.mlp().n_experts;
      // Bytes of the GPU with the most experts.
      CHECK((alone - held).count() ==
            experts.count() - experts.count() / n * experts_on(n, ranks, 0));
    }
    // Whole experts on some GPUs or a part of every expert: the same bytes.
    CHECK(weights_held(Expert{model, 8, 8}.in) == weights_held(Expert{model, 8, 1}.in));
    CHECK(weights_held(Expert{model, 8, 2}.in) == weights_held(Expert{model, 8, 1}.in));
  }
}

TEST_CASE("two exchanges per layer carry the vectors that leave a GPU, by hand") {
  // Mixtral: 8 experts, 2 per token, vectors of 4096 x 2 B. Each of four GPUs has eight separate
  // tokens: a quarter of its 16 vectors stays.
  for (const char* name : {"expert dispatch", "expert combine"}) {
    const std::vector<Op> apart = Expert{"mixtral-8x7b", 1, 4}.ops(name, 8);
    REQUIRE(apart.size() == 1);
    CHECK(apart[0].family == OpFamily::kCollective);
    CHECK(apart[0].bytes_read == test::rel(16 * 0.75 * 8192));
    // The same eight tokens on four tensor-parallel GPUs: each sends a quarter of them.
    const std::vector<Op> group = Expert{"mixtral-8x7b", 4, 4}.ops(name, 8);
    REQUIRE(group.size() == 1);
    CHECK(group[0].bytes_read == test::rel(4 * 0.75 * 8192));
    CHECK(Expert{"mixtral-8x7b", 4, 1}.ops(name, 8).empty());
    // The busiest GPU receives 1.5 times the mean.
    CHECK(Expert{"mixtral-8x7b", 1, 4, 1.5}.ops(name, 8)[0].bytes_read ==
          test::rel(1.5 * 16 * 0.75 * 8192));
  }
}

TEST_CASE("the arithmetic of all GPUs together does not change") {
  for (const std::int32_t tensor : {1, 2, 4, 8}) {
    for (const std::int32_t ranks : {1, 2, 4, 8}) {
      INFO(tensor, " GPUs under tensor parallelism, experts over ", ranks);
      const auto flops = [&](std::int32_t experts) {
        double sum = 0;
        const Expert e{"mixtral-8x7b", tensor, experts};
        for (const Op& op : e.ops("down projection", 16)) sum += op.flops.count();
        return sum;
      };
      CHECK(flops(ranks) == test::rel(flops(1)));
      // The additional work of an imbalance is on the slowest GPU.
      const Expert skewed{"mixtral-8x7b", tensor, ranks, ranks > 1 ? 2.0 : 1.0};
      double max = 0;
      for (const Op& op : skewed.ops("down projection", 16)) max += op.flops.count();
      CHECK(max == test::rel((ranks > 1 ? 2 : 1) * flops(1)));
    }
  }
}

StaticSpec static_spec(const char* model, const char* gpu, std::int32_t tensor,
                       std::int32_t experts) {
  const Llm& llm = find_llm(model);
  return {.llm = &llm,
          .gpu = &find_gpu(gpu),
          .stack = &find_stack("vllm"),
          .method = make_method({"full", {}, {}}, 512, method_site(llm, Dtype::kBf16)),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .batch = 4,
          .prompt_tokens = 512,
          .output_tokens = 4,
          .tensor_parallel = tensor,
          .options = {.expert_parallel = experts}};
}

TEST_CASE("a model that does not fit on one GPU runs with its experts distributed") {
  CHECK(run_static(static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 1)).oom);
  const StaticResult shared = run_static(static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 4));
  CHECK_FALSE(shared.oom);
  CHECK(shared.decode_time);
  // An imbalance costs time but no memory.
  StaticSpec skewed = static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 4);
  skewed.options.expert_imbalance = 3;
  const StaticResult slower = run_static(skewed);
  CHECK(slower.prefill_time->count() > shared.prefill_time->count());
}

TEST_CASE("an exchange between nodes by hand, and more bytes or nodes never take less") {
  const Gpu& gpu = find_gpu("H100-80GB-SXM");  // 900 GB/s of NVLink, the sum of both directions
  const BytesPerSecond link{50e9};
  // 16 GPUs on two nodes: 8/15 of the sent bytes go over the GPU's network link, 7/15 over NVLink.
  const Exchange two = all_to_all(expert_network(gpu, 16, link, Seconds{5e-6}));
  CHECK(two.rate.count() == test::rel(50e9 * 15 / 8));
  CHECK(two.latency.count() == test::rel(5e-6));
  CHECK(two.slowest.find("network") != std::string::npos);
  // A single GPU on the last node sends all its vectors over the network.
  CHECK(all_to_all(expert_network(gpu, 9, link, Seconds{})).rate.count() == test::rel(50e9));
  // With a fast network, NVLink is the bottleneck, for the bytes that stay in the node.
  const Exchange wide = all_to_all(expert_network(gpu, 16, BytesPerSecond{1e15}, Seconds{}));
  CHECK(wide.rate.count() == test::rel(450e9 * 15 / 7));
  CHECK(wide.slowest.find("NVLink") != std::string::npos);
  // Within a node the network is not used, regardless of its speed.
  const Exchange one = all_to_all(expert_network(gpu, 8, BytesPerSecond{1e15}, Seconds{1.0}));
  CHECK(one.rate.count() == test::rel(450e9));
  CHECK(one.latency == Seconds{});
  CHECK(expert_network(gpu, 8, {}, {}).nodes == 1);
  double before = 0;
  for (const std::int32_t n : {8, 16, 24, 32, 64, 256}) {
    const Exchange e = all_to_all(expert_network(gpu, n, link, Seconds{5e-6}));
    const double seconds = 1e6 / e.rate.count() + e.latency.count();
    CHECK(seconds > before);
    before = seconds;
  }
  CHECK_THROWS_AS((void)all_to_all(expert_network(gpu, 1, link, {})), ContractError);
}

TEST_CASE("dispatch and combine use the network if experts are in several nodes") {
  const auto run = [](std::int32_t experts, double link, double latency) {
    StaticSpec spec = static_spec("deepseek-v3", "H200-141GB-SXM", 1, experts);
    if (link > 0) {
      spec.options.expert_link = BytesPerSecond{link};
      spec.options.expert_link_latency = Seconds{latency};
    }
    return run_static(spec, {.time_terms = true});
  };
  const StaticResult near = run(16, 50e9, 0), slower = run(16, 5e9, 0), later = run(16, 50e9, 1e-4);
  REQUIRE_FALSE(near.oom);
  CHECK(slower.prefill_time->count() > near.prefill_time->count());
  CHECK(later.decode_time->count() > near.decode_time->count());
  // Dispatch and combine, in each of the 58 layers that have experts.
  const double more = later.decode_time->count() - near.decode_time->count();
  CHECK(more == doctest::Approx(4 * 2 * 58 * 1e-4).epsilon(1e-6));
  const auto said = [](const StaticResult& r) {
    return std::any_of(r.notes.begin(), r.notes.end(), [](const std::string& note) {
      return note.find("of 2 nodes") != std::string::npos &&
             note.find("nominal") != std::string::npos;
    });
  };
  CHECK(said(near));
  // Within one node, the link to other nodes has no effect.
  CHECK(run(8, 50e9, 1e-3).prefill_time == run(8, 0, 0).prefill_time);
  CHECK_FALSE(said(run(8, 50e9, 0)));
}

TEST_CASE("invalid expert parallelism is refused with the reason") {
  const auto why = [](const StaticSpec& spec) -> std::string {
    try {
      (void)run_static(spec);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const auto says = [&](const StaticSpec& spec, const char* words) {
    CHECK_MESSAGE(why(spec).find(words) != std::string::npos, why(spec));
  };
  says(static_spec("llama-3.1-8b", "H100-80GB-SXM", 1, 2), "is dense");
  says(static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 9), "at most the 8 experts");
  says(static_spec("mixtral-8x7b", "H100-80GB-SXM", 2, 3), "multiple or a divisor");
  says(static_spec("deepseek-v3", "H100-80GB-SXM", 1, 16), "do not fit into one node of 8");
  StaticSpec alone = static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 1);
  alone.options.expert_imbalance = 2;
  says(alone, "expert_imbalance");
  StaticSpec all_on_one = static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 4);
  all_on_one.options.expert_imbalance = 4.1;
  says(all_on_one, "at most expert_parallel, 4");
  StaticSpec eager = static_spec("mixtral-8x7b", "H100-80GB-SXM", 1, 2);
  eager.stack = &find_stack("hf-sdpa");
  says(eager, "holds all experts");

  auto trace = std::make_shared<RequestTrace>();
  trace->requests = {test::request(0, 100, 10)};
  ServeSpec service{.llm = &find_llm("mixtral-8x7b"),
                    .gpu = &find_gpu("H100-80GB-SXM"),
                    .stack = &find_stack("vllm"),
                    .weight_dtype = Dtype::kBf16,
                    .kv_dtype = Dtype::kBf16,
                    .options = {.expert_parallel = 4},
                    .requests = trace};
  CHECK_THROWS_WITH_AS((void)run_serve(service), doctest::Contains("shared by 4 replicas"),
                       InputError);
  service.cluster.replicas = 4;
  const ServeResult r = run_serve(service);
  CHECK(r.completed == 1);
  CHECK(r.mfu > 0);
  CHECK(r.mfu <= 1);
}

}  // namespace
}  // namespace kvsim
