// Files of a few bytes that claim terabytes: readers allocate no memory for missing data.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "models/cost/kernels/calibration.hpp"
#include "models/json/field.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/budget/head_table.hpp"
#include "models/methods/merge/low_rank_weights.hpp"
#include "models/units/error.hpp"
#include "sim/memory/vllm_log.hpp"
#include "sim/replay/surrogates.hpp"
#include "sim/scenario/read/read_scenario.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/sweep/resumed_points.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/heap.hpp"
#include "traces/convert.hpp"
#include "traces/requests/formats/read_requests.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace.hpp"
#include "validation/allocator/allocator_replay.hpp"
#include "validation/allocator/allocator_trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::write;

/// Memory of readers beyond that justified by a file of a few hundred bytes: line buffers,
/// messages.
constexpr std::int64_t kEnough = 8 << 20;

/// If a reader trusted a claim, this test should fail, not the machine. The sanitizers' shadow
/// memory exceeds any limit; they refuse such sizes themselves.
void bound_memory() {
#if !defined(__SANITIZE_ADDRESS__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  return;
#endif
#endif
  const rlimit limit{.rlim_cur = rlim_t{8} << 30, .rlim_max = RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &limit);
#endif
}

struct Read {
  std::string complaint;   // empty: no error
  std::int64_t bytes = 0;  // requested from the heap
};

Read read(const std::function<void()>& reader) {
  bound_memory();
  Read out;
  for (int i = 0; i < 2; ++i) {  // the first call also reads the embedded data
    const std::int64_t before = test::heap_bytes();
    try {
      reader();
      out.complaint.clear();
    } catch (const InputError& error) {
      out.complaint = error.what();
    }
    out.bytes = test::heap_bytes() - before;
  }
  return out;
}

/// The claim is refused with `why`, without an allocation.
void refused(const std::string& what, std::string_view why, const std::function<void()>& reader) {
  INFO(what);
  const Read done = read(reader);
  INFO(done.complaint);
  CHECK(done.complaint.find(why) != std::string::npos);
  CHECK(done.bytes < kEnough);
}

std::string number(std::uint64_t n) {  // the header length of safetensors
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(n >> (8 * i));
  return out;
}
std::string with_header(const json& header) {
  const std::string text = header.dump();
  return number(text.size()) + text;
}
json tensor(const json& shape, std::int64_t bytes) {
  return {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {0, bytes}}};
}

TEST_CASE("the count of heap requests detects a trusted claim") {
  const Read done = read([] { const std::vector<char> believed(std::size_t{2} << 24); });
  CHECK(done.bytes > kEnough);
}

TEST_CASE("a header of 1 TB, and tensors that do not exist") {
  const fs::path file = fresh("claims") / "t.safetensors";
  const auto holds = [&](const std::string& bytes, std::string_view why) {
    write(file, bytes);
    const auto all = [&](const char* reader, const std::function<void()>& work) {
      refused(fmt::format("{}: {}", reader, why), why, work);
    };
    all("file", [&] { (void)Safetensors::open(file); });
    all("trace", [&] { (void)Trace::open(file); });
    all("surrogates", [&] { (void)read_surrogates(file); });
    all("convert", [&] { convert_trace(file, file.parent_path() / "out", {}); });
    CHECK_FALSE(fs::exists(file.parent_path() / "out"));
  };
  constexpr std::int64_t kTera = std::int64_t{1} << 40;
  holds(number(static_cast<std::uint64_t>(kTera)) + "{}", "header");
  holds(number(~std::uint64_t{0}) + "{}", "header");
  holds(with_header({{"layers.0.w", tensor({kTera / 4}, kTera)}}), "layers.0.w");
  holds(with_header({{"layers.0.w", tensor({1 << 20, 1 << 18}, kTera)}}), "layers.0.w");
  // Zero bytes, but with a length near the 64-bit limit.
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  const Read empty = read([&] {
    write(file, with_header({{"a", tensor({max, 0, max}, 0)}}));
    (void)Safetensors::open(file);
  });
  CHECK(empty.bytes < kEnough);
}

TEST_CASE("metadata of a trace that claims a billion layers, tokens or heads") {
  const fs::path file = fresh("trace_claims") / "t.safetensors";
  for (const char* key : {"num_layers", "num_tokens", "num_q_heads", "num_kv_heads", "head_dim"}) {
    json metadata{{"format", "kv-attention-trace"},
                  {"version", "1"},
                  {"model", "tiny"},
                  {"num_layers", "1"},
                  {"num_q_heads", "1"},
                  {"num_kv_heads", "1"},
                  {"head_dim", "1"},
                  {"num_tokens", "2"},
                  {"prompt_len", "1"},
                  {"softmax_scale", "1"},
                  {"rope_style", "none"},
                  {"rope_theta", "1"}};
    for (const char* claim : {"1000000000", "2147483647", "1000000000000000"}) {
      metadata[key] = claim;
      write(file, with_header({{"__metadata__", metadata}}));
      refused(fmt::format("{} {}", key, claim), "", [&] { (void)Trace::open(file); });
    }
  }
}

TEST_CASE("weights of methods that claim more than they hold") {
  const fs::path file = fresh("weight_claims") / "w";
  const json metadata{{"format", "kvsim-surrogate"}, {"version", "1"}};
  write(file, with_header({{"__metadata__", metadata},
                           {"layers.0.w", tensor({1 << 24, 1 << 24}, std::int64_t{1} << 50)}}));
  refused("surrogates", "layers.0.w", [&] { (void)read_surrogates(file); });
  for (const char* sizes : {"65536 65536 65536 65536 65536", "65536 65536 8191 65536 65536",
                            "1 1 65536 65536 1", "2147483647 1 1 1 1"}) {
    write(file, fmt::format("kvsim-low-rank 1 {}\n", sizes));
    refused(sizes, "w: ", [&] { (void)LowRankWeights::read(file); });
  }
  // The product of these wraps to zero in 64 bits, which must not be read as a file without
  // weights.
  write(file, "kvsim-low-rank 1 65536 65536 8191 65536 65536\n");
  refused("wraps", "declares", [&] { (void)LowRankWeights::read(file); });
}

TEST_CASE("recorded allocations of very large sizes") {
  const std::string header = R"({"format": "kvsim.allocator-trace/1")";
  const auto holds = [](const std::string& text) {
    const Read done = read([&] {
      const AllocatorTrace trace = parse_allocator_trace(text, "t.jsonl");
      const AllocatorDevice device{.total = trace.device_bytes.value_or(Bytes{1LL << 50}),
                                   .outside = {}};
      (void)replay_allocations(trace, device, parse_alloc_conf(trace.alloc_conf, "t.jsonl"));
    });
    INFO(text, done.complaint);
    CHECK(done.bytes < kEnough);
  };
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max() >> 4;
  holds(header + fmt::format(R"(, "initial_blocks": {}}})", kMax));
  for (const char* conf : {"", "expandable_segments:True", "max_split_size_mb:1"}) {
    holds(header + fmt::format(R"(, "alloc_conf": "{}", "device_bytes": {}}})", conf, kMax) +
          fmt::format("\n{{\"op\": \"alloc\", \"id\": {0}, \"size\": {1}}}\n"
                      "{{\"op\": \"free\", \"id\": {0}}}\n{{\"op\": \"empty_cache\"}}\n",
                      kMax, kMax / 4));
  }
}

TEST_CASE("a model of a billion layers") {
  for (const char* key : {"num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                          "hidden_size", "intermediate_size", "vocab_size"}) {
    json config{{"model_type", "llama"},  {"hidden_size", 4096},       {"intermediate_size", 1024},
                {"num_hidden_layers", 2}, {"num_attention_heads", 32}, {"vocab_size", 1000}};
    config["architectures"] = {"LlamaForCausalLM"};
    for (const double claim : {1e9, 1e15, 1e300}) {
      config[key] = claim;
      const std::string text = config.dump();
      INFO(text);
      const Read done = read([&] { (void)read_hf_config(Field::parse(text, "c"), "c"); });
      CHECK(done.bytes < kEnough);
      if (claim > 1e12) CHECK_FALSE(done.complaint.empty());
    }
  }
}

TEST_CASE("scenarios of 10^12 sequences, 10^15 requests, or an unlimited number of points") {
  const fs::path file = fresh("scenario_claims") / "s.json";
  const json batch{{"model", "llama-2-7b"},
                   {"gpu", "A100-80GB-SXM"},
                   {"prompt_tokens", 8},
                   {"output_tokens", 1},
                   {"batch", 1}};
  const json service = json::parse(R"({"kind": "serve", "model": "llama-2-7b",
    "gpu": "A100-80GB-SXM", "stack": "vllm",
    "requests": {"arrivals": {"kind": "poisson", "rate": 1}, "count": 10, "prompt_tokens": 100,
                 "output_tokens": 20}})");
  const auto refuses = [&](json scenario, const std::string& pointer, const json& claim) {
    scenario[json::json_pointer{pointer}] = claim;
    write(file, scenario.dump());
    refused(fmt::format("{} {}", pointer, claim.dump()), pointer.substr(pointer.rfind('/') + 1),
            [&] { (void)read_scenario(file, {}); });
  };
  for (const char* key : {"/batch", "/prompt_tokens", "/output_tokens"}) {
    for (const double claim : {1e12, 1e15, 1e300}) refuses(batch, key, claim);
  }
  for (const char* key :
       {"/requests/count", "/requests/prompt_tokens", "/requests/output_tokens"}) {
    for (const double claim : {1e12, 1e15, 1e300}) refuses(service, key, claim);
  }
  refuses(service, "/requests/arrivals", json{{"kind", "closed"}, {"users", 1e15}});
  refuses(service, "/requests/arrivals", json{{"kind", "poisson"}, {"rate", 1e300}});

  json swept = batch;
  const auto plan = [&](const json& axis) {
    swept["sweep"] = {{"axes", {axis}}};
    refused(axis.dump(), "", [&] { (void)SweepPlan{swept, file, {}}; });
  };
  plan({{"key", "/batch"}, {"low", 1}, {"high", 1e15}, {"steps", 1e9}, {"integer", true}});
  plan({{"key", "/batch"}, {"low", 1}, {"high", 1e300}, {"steps", 1e300}});
  swept = batch;
  swept["sweep"] = {{"samples", 1e15}};
  refused("samples", "samples", [&] { (void)SweepPlan{swept, file, {}}; });
}

TEST_CASE("a sweep that claims 10^15 points") {
  const fs::path folder = fresh("points_claims");
  const SweepPlan plan{{{"model", "llama-2-7b"},
                        {"gpu", "A100-80GB-SXM"},
                        {"prompt_tokens", 8},
                        {"output_tokens", 1},
                        {"batch", {1, 2}}},
                       folder / "s.json",
                       {}};
  const json header{{"schema", "kvsim.sweep-points/1"},
                    {"kvsim", "1"},
                    {"hash", plan.hash()},
                    {"points", std::int64_t{1} << 50},
                    {"sweep", {}}};
  const fs::path file = folder / "points.jsonl";
  write(file, summed_line(header.dump()) +
                  summed_line(R"({"point":1000000000000000,"hash":"a","results":{}})"));
  refused("point", "points.jsonl:2: /point",
          [&] { (void)resumed_points(*read_points_file(file), plan, "1", file); });
}

TEST_CASE("request traces of 10^15 tokens, and ServeGen's rates without an end") {
  refused("tokens", "1000000000000000", [] {
    (void)parse_requests("arrival_s,prompt_tokens,output_tokens\n0,1000000000000000,1\n", "t.csv");
  });
  const fs::path folder = fresh("servegen_claims");
  write(folder / "a-dataset.json",
        R"({"0": {"input_tokens": "{5: 1}", "output_tokens": "{1: 1}"}})");
  // 6e8 requests of one window that lasts 600 s; 9e12 of two windows; and 1.8e8 of two clients.
  for (const char* windows : {"0,1e6,,,,\n", "0,1e6,,,,\n8999999,0,,,,\n"}) {
    write(folder / "a-trace.csv", windows);
    refused(windows, "at most 1e+08 requests", [&] { (void)read_requests(folder); });
  }
}

}  // namespace
}  // namespace kvsim
