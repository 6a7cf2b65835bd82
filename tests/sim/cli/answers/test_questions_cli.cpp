// The answers of docs/questions.md, recomputed by hand from a few numbers.

#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::Words;
namespace fs = std::filesystem;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// The words printed by a successful command, separated by single blanks, without commas.
std::string printed_words(const Words& arguments, const fs::path& folder) {
  const Outcome ran = run_kvsim(arguments, folder);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  std::istringstream in{ran.out};
  std::string out;
  for (std::string word; in >> word;) {
    std::erase(word, ',');
    out += word + ' ';
  }
  return out;
}

/// The number after the first occurrence of `phrase` in `text`.
double after(const std::string& text, const std::string& phrase) {
  const auto at = text.find(phrase);
  INFO(phrase);
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + phrase.size()));
}

/// Number of whole units that fit.
double whole(double value) { return std::floor(value); }

}  // namespace

TEST_CASE("questions: contexts, batches and sessions of a dense model") {
  const fs::path folder = fresh("questions-dense");
  const double token = 32 * 2 * 8 * 128 * 2;  // layers, key and value, heads, width, bytes
  const Words plan{"plan", "--model", "llama-3.1-8b", "--gpu", "H100-80GB-SXM"};
  const auto ask = [&](const Words& more) {
    Words all = plan;
    all.insert(all.end(), more.begin(), more.end());
    return printed_words(all, folder);
  };
  const std::string longest = ask({"--set", "/plan/questions=longest_context"});
  CHECK(after(longest, "full ") == 131'072);
  CHECK(has(longest, "positions"));
  const std::string batch =
      ask({"--isl", "32K", "--method", "full,fp8-e4m3", "--set", "/plan/questions=largest_batch"});
  const double pool = after(batch, "the engine's pool of ") * kGiB;
  const double sequence = (32'768 + 512) * token;
  CHECK(after(batch, "tok/s by full ") == whole(pool / sequence));
  CHECK(after(batch, "cache fp8-e4m3 ") == whole(pool / (sequence / 2)));
  const std::string fits = printed_words(
      {"show", "model", "llama-3.1-8b", "--kv-memory", std::to_string(pool / kGiB) + " GiB"},
      folder);
  CHECK(after(fits, "maximum concurrency ") ==
        doctest::Approx(pool / (131'072 * token)).epsilon(0.003));
  CHECK(after(fits, "GPU KV cache size ") == 16 * whole(pool / (16 * token)));
}

TEST_CASE("questions: groups, states and max_num_seqs of a hybrid") {
  const fs::path folder = fresh("questions-hybrid");
  const std::string shown = printed_words({"show", "model", "qwen3-next-80b-a3b"}, folder);
  CHECK(after(shown, "2 KV heads of 256; ") == 12 * 2 * 2 * 256 * 2 / 1024);
  CHECK(run_kvsim({"run", "--model", "qwen3-next-80b-a3b", "--gpu", "H100-80GB-SXM", "--tp", "4",
                   "--rate", "1", "--isl", "2000", "--osl", "100", "--requests", "10", "-q", "-o",
                   "hybrid"},
                  folder)
            .status == 0);
  const std::string why = printed_words({"explain", "hybrid", "kv_capacity_tokens"}, folder);
  const double blocks = after(why, "tokens) = ");
  const double block = after(why, "blocks of ");
  CHECK(blocks == doctest::Approx(after(why, "graphs_bytes 100 % ") * kGiB / block).epsilon(3e-4));
  const double attention = std::ceil(262'144.0 / 272);
  CHECK(after(why, "over the ") == 3 * 2 + attention);
  CHECK(after(why, "of full = ") ==
        doctest::Approx(blocks / (6 + attention) * 262'144).epsilon(1e-6));
  // Each of two GPUs has half of the heads: a block of 544 tokens of 12 layers takes half of 12.75
  // MiB.
  const std::string max =
      printed_words({"plan", "--model", "qwen3-next-80b-a3b", "--gpu", "H200-141GB-SXM", "--tp",
                     "2", "--isl", "8K", "--set", "/plan/questions=largest_batch"},
                    folder);
  const double pool = after(max, "the engine's pool of ") * kGiB;
  CHECK(after(max, "max_num_seqs of at most ") ==
        doctest::Approx(pool / (12.75 / 2 * 1024 * 1024)).epsilon(2e-4));
}

TEST_CASE("questions: context parallelism divides a latent cache that tensor parallelism repeats") {
  const fs::path folder = fresh("questions-latent");
  const Words one{"show", "model", "deepseek-v3", "--kv-memory", "20 GiB"};
  const auto tokens = [&](const Words& more) {
    Words all = one;
    all.insert(all.end(), more.begin(), more.end());
    return after(printed_words(all, folder), "GPU KV cache size ");
  };
  const double block = 61.0 * 64 * (512 + 64) * 2;  // layers, tokens, latent and rope, bytes
  CHECK(tokens({"--tp", "8"}) == 64 * whole(20 * kGiB / block));
  CHECK(tokens({"--tp", "8"}) == tokens({}));
  CHECK(tokens({"--tp", "8", "--context-parallel", "8"}) == 8 * tokens({"--tp", "8"}));
}

TEST_CASE("questions: tiers of a prefix cache, their hits and the time to load a block") {
  const fs::path folder = fresh("questions-tiers");
  REQUIRE(run_kvsim({"requests", "generate", "-o", "agents", "--agents", "sessions=8"}, folder)
              .status == 0);
  const Words info{"requests", "info", "agents", "--json", "--model", "llama-3.1-8b"};
  Words all = info;
  for (const char* word : {"--tiers", "hbm=40GiB,host=128GiB@25GB/s,nvme=512GiB@6GB/s", "--gpu",
                           "H100-80GB-SXM", "--capacity-blocks", "5120,21504,87040"}) {
    all.emplace_back(word);
  }
  const auto reuse = json::parse(run_kvsim(all, folder).out)["reuse"];
  for (const char* schedule : {"together", "staggered"}) {
    const json& lru = reuse[schedule]["lru"];
    const json& tiers = reuse[schedule]["tiers"];
    CHECK(tiers["block_bytes"] == 64 * 128 * 1024);
    std::int64_t above = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const json& level = tiers["levels"][i];
      CHECK(level["capacity_blocks_so_far"] == lru[i]["capacity_blocks"]);
      CHECK(level["hit_blocks"] == lru[i]["hit_blocks"].get<std::int64_t>() - above);
      above = lru[i]["hit_blocks"].get<std::int64_t>();
    }
    const json& host = tiers["levels"][1];
    CHECK(host["load_s_per_request"].get<double>() ==
          doctest::Approx(host["hit_blocks"].get<double>() * 64 * 128 * 1024 / 25e9 / 401));
    CHECK(tiers["computed_blocks"] == reuse[schedule]["blocks"].get<std::int64_t>() - above);
  }
  const auto refused = [&](const Words& more, const std::string& why) {
    Words wrong{"requests", "info", "agents"};
    wrong.insert(wrong.end(), more.begin(), more.end());
    const Outcome ran = run_kvsim(wrong, folder);
    INFO(ran.err);
    CHECK(ran.status == 2);
    CHECK(has(ran.err, why));
  };
  refused({"--tiers", "a=1GiB"}, "expected --model");
  refused({"--model", "llama-3.1-8b"}, "expected --tiers");
  refused({"--model", "gpt-oss-20b", "--tiers", "a=1GiB"}, "windows or states");
  for (const char* wrong :
       {"x", "=1GiB", "a=", "a=4", "a=0GiB", "a=1GiB@", "a=1GiB@5", "a=1GiB@0GB/s"}) {
    refused({"--model", "llama-3.1-8b", "--tiers", wrong}, "NAME=SIZE@BANDWIDTH");
  }
  refused({"--model", "llama-3.1-8b", "--tiers", "a=1GiB", "--kv-dtype", "x"}, "--kv-dtype");
}

TEST_CASE("questions: the cost of a million tokens, from price and rate") {
  const fs::path folder = fresh("questions-cost");
  const std::string cheapest =
      printed_words({"plan", "--model", "llama-3.1-8b", "--gpu", "A100-80GB-SXM", "--rate", "3",
                     "--isl", "2000", "--osl", "200", "--ttft", "1s", "--tpot", "50ms",
                     "--requests", "200", "--price", "A100-80GB-SXM=1.3"},
                    folder);
  const double rate = after(cheapest, " ms ");  // output tokens per second, after the TPOT
  CHECK(after(cheapest, "Cost: 1.30 USD per hour ") ==
        doctest::Approx(1.3 / (rate * 3600) * 1e6).epsilon(0.01));
}

}  // namespace kvsim
