// Sessions of agents: the formats, and reuse of prefixes by the capacity of an LRU cache.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <list>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/traces/scratch.hpp"
#include "traces/requests/formats/read_requests.hpp"
#include "traces/requests/formats/write_weka.hpp"
#include "traces/requests/generate/agent_sessions.hpp"
#include "traces/requests/generate/transform_requests.hpp"
#include "traces/requests/random_stream.hpp"
#include "traces/requests/request_stats.hpp"
#include "traces/requests/reuse/block_reuse.hpp"
#include "traces/requests/reuse/cache_tiers.hpp"
#include "traces/requests/reuse/start_order.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

namespace fs = std::filesystem;

constexpr SimTime seconds(double s) { return SimTime{static_cast<std::int64_t>(s * 1e12)}; }

/// Blocks of 4 tokens. The main agent's requests start at 0, 10 and 20 s and take 2 s; a sub-agent
/// runs from 12 to 19 s; another starts at 13 s, and no request waits for it.
const std::string kSession = R"({"id": "one", "models": ["m"], "block_size": 4,
  "hash_id_scope": "local", "tool_tokens": 2, "system_tokens": 1, "requests": [
  {"t": 0.0, "type": "n", "model": "m", "in": 9, "out": 3, "hash_ids": [1, 2], "api_time": 2.0,
   "think_time": 0.0},
  {"t": 10.0, "type": "s", "model": "m", "in": 12, "out": 1, "hash_ids": [1, 2, 3],
   "api_time": 2.0, "think_time": 8.0, "ttft": 0.5},
  {"t": 12.0, "type": "subagent", "agent_id": "a", "subagent_type": "Explore", "duration_ms": 7000,
   "total_tokens": 9, "tool_use_count": 1, "status": "completed", "models": ["m"], "requests": [
     {"t": 0.0, "type": "n", "model": "m", "in": 5, "out": 1, "hash_ids": [7], "api_time": 1.0},
     {"t": 6.0, "type": "n", "model": "m", "in": 8, "out": 1, "hash_ids": [7, 8], "api_time": 1.0,
      "think_time": 5.0}]},
  {"t": 13.0, "type": "subagent", "agent_id": "b", "subagent_type": "Plan", "duration_ms": null,
   "total_tokens": null, "tool_use_count": null, "status": "async_launched", "models": ["m"],
   "requests": [{"t": 0.0, "type": "n", "model": "m", "in": 4, "out": 1, "hash_ids": [9]}]},
  {"t": 20.0, "type": "n", "model": "m", "in": 8, "out": 2, "hash_ids": [1, 5], "api_time": 2.0,
   "think_time": 8.0, "stop": "end_turn"}]})";

/// Hits of an LRU list of blocks, block by block.
std::int64_t lru_hits(const RequestTrace& trace, const std::vector<std::int32_t>& order,
                      std::size_t capacity, TouchOrder touch) {
  std::list<std::uint64_t> recent;  // most recent first
  std::int64_t hits = 0;
  for (const std::int32_t i : order) {
    const auto ids = shared_ids(trace, static_cast<std::size_t>(i));
    for (const std::uint64_t id : ids) {
      if (std::find(recent.begin(), recent.end(), id) == recent.end()) break;
      ++hits;
    }
    std::vector<std::uint64_t> touched{ids.begin(), ids.end()};
    if (touch == TouchOrder::kTailFirst) std::reverse(touched.begin(), touched.end());
    for (const std::uint64_t id : touched) {
      recent.remove(id);
      recent.push_front(id);
      if (recent.size() > capacity) recent.pop_back();
    }
  }
  return hits;
}

std::vector<std::int32_t> recorded_order(const RequestTrace& trace, double stagger = 0.0) {
  return start_order(trace, recorded_starts(trace, seconds(stagger)));
}

std::string why(const std::string& from, const std::string& to) {
  std::string text = kSession;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return complaint<InputError>([&] { (void)parse_requests(text, "f.json"); });
}

AgentSpec small_agents() {
  AgentSpec spec = published_agents();
  spec.sessions = 6;
  spec.first_prompt = {.kind = LengthKind::kUniform, .low = 20, .high = 200};
  spec.growth = {.kind = LengthKind::kUniform, .low = 1, .high = 60};
  spec.subagent_prompt = spec.first_prompt;
  spec.restart_share = 0.1;
  spec.subagent_share = 0.2;
  return spec;
}

}  // namespace

TEST_CASE("weka: waits, pauses and blocks of a session") {
  const RequestTrace t = parse_requests(kSession, "one.json");
  CHECK(t.format == "weka");
  CHECK(t.prefix_block == 4);
  REQUIRE(t.requests.size() == 6);
  REQUIRE(t.agents.size() == 6);
  REQUIRE(t.agent_sessions.size() == 1);
  CHECK(t.agent_sessions[0].subagents == 2);
  const auto after = [&](std::size_t i) { return t.requests[i].after; };
  const auto pause = [&](std::size_t i) { return to_seconds(t.requests[i].arrival).count(); };
  CHECK(after(0) == -1);
  CHECK(after(1) == 0);
  CHECK(pause(1) == 8.0);
  CHECK(after(2) == 1);  // the sub-agent, as soon as its parent's request ends at 12 s
  CHECK(pause(2) == 0.0);
  CHECK(after(3) == 2);
  CHECK(pause(3) == 5.0);
  CHECK(after(4) == 1);  // 1 s after the same request
  CHECK(pause(4) == 1.0);
  CHECK(after(5) == 1);  // and after the first sub-agent, which ended at 19 s
  CHECK(pause(5) == 1.0);
  REQUIRE(t.joins.size() == 1);
  CHECK(t.joins[0].request == 5);
  CHECK(t.joins[0].also == 3);
  CHECK(t.agents[4].service == SimTime{-1});
  CHECK(t.agents[3].start == seconds(18));
  CHECK(t.agents[5].subagent == -1);
  // 9 tokens: two blocks of the file, and a third that no other request shares.
  CHECK(t.agents[0].blocks == 2);
  CHECK(t.requests[0].prefix_count == 3);
  CHECK(t.requests[1].prefix_count == 3);
  CHECK(shared_ids(t, 0).size() == 2);
}

TEST_CASE("weka: reuse of a session, solved by hand") {
  const RequestTrace t = parse_requests(kSession, "one.json");
  // [1 2], [1 2 3], [7], [9], [7 8], [1 5]: hits 2 of 3, then 1 (7) and 1 (1).
  const ReuseCurve curve = reuse_curve(t, recorded_order(t), TouchOrder::kTailFirst);
  CHECK(curve.blocks == 11);
  CHECK(curve.distinct == 7);
  CHECK(curve.hits == 4);
  CHECK(curve.whole_prompts == 0);
  // Tails first: after [1 2 3] the order of recency is 1 2 3, so 1 is found again after 9, 7, 8 and
  // itself.
  CHECK(curve.hits_of(0) == 0);
  CHECK(curve.hits_of(1) == 1);  // 1 of [1 2 3]
  CHECK(curve.hits_of(2) == 3);  // 2 as well; 7 after 9
  CHECK(curve.hits_of(3) == 3);
  CHECK(curve.hits_of(4) == 4);  // 1 after 7, 8 and 9
  const AgentLoad load = agent_load(t, recorded_starts(t, SimTime{}));
  CHECK(load.max_requests_in_flight == 1);
  CHECK(load.max_sessions_open == 1);
  CHECK(load.max_sessions_and_subagents_open == 2);  // b has no recorded service time and takes no
                                                     // time
  CHECK(load.span == seconds(22));
}

TEST_CASE("tiers: the hits added by each level, by hand and with a cascade of lists") {
  const RequestTrace t = parse_requests(kSession, "one.json");
  const ReuseCurve curve = reuse_curve(t, recorded_order(t), TouchOrder::kTailFirst);
  // 3 hits within 2 blocks of 10 B, 4 within 4; the last level adds no hits.
  const std::vector<CacheTier> tiers{
      {.name = "hbm", .capacity = Bytes{29}},
      {.name = "host", .capacity = Bytes{20}, .bandwidth = BytesPerSecond{5.0}},
      {.name = "nvme", .capacity = Bytes{1000}, .bandwidth = BytesPerSecond{1.0}}};
  const std::vector<TierHits> hits = tier_hits(curve, Bytes{10}, tiers);
  REQUIRE(hits.size() == 3);
  CHECK(hits[0].blocks == 2);
  CHECK(hits[0].hits == 3);
  CHECK(hits[0].load == Seconds{});
  CHECK(hits[1].blocks == 4);
  CHECK(hits[1].hits == 1);
  CHECK(hits[1].load == Seconds{2.0});
  CHECK(hits[2].blocks == 104);
  CHECK(hits[2].hits == 0);
  CHECK(tier_hits(curve, Bytes{10}, {}).empty());

  // Coded blocks of 5 B: twice as many fit in the host, and a load takes half of the time, or the
  // time of decoding. There is no gain if the raw level already held all reused blocks.
  std::vector<CacheTier> coded = tiers;
  coded[1].held_block = coded[1].link_block = Bytes{5};
  CHECK(tier_hits(curve, Bytes{10}, coded)[1].blocks == 6);
  CHECK(tier_hits(curve, Bytes{10}, coded)[1].hits == 1);
  CHECK(tier_hits(curve, Bytes{10}, coded)[1].load == Seconds{1.0});
  coded[1].decode = Seconds{1.5};
  CHECK(tier_hits(curve, Bytes{10}, coded)[1].load == Seconds{1.5});
  // A gain if it thrashed: 1 more block of 10 B has no hits, 2 of 5 B find the fourth.
  std::vector<CacheTier> small{tiers[0], {.name = "host", .capacity = Bytes{10}}};
  CHECK(tier_hits(curve, Bytes{10}, small)[1].hits == 0);
  small[1].held_block = Bytes{5};
  CHECK(tier_hits(curve, Bytes{10}, small)[1].hits == 1);

  // A block's level is determined by its place in a single list over all levels.
  const RequestTrace drawn = generate_agents(small_agents(), 16, 5);
  const std::vector<std::int32_t> order = recorded_order(drawn, 30.0);
  constexpr std::int64_t kFast = 40;
  constexpr std::int64_t kSlow = 90;
  std::vector<std::uint64_t> list;
  std::int64_t fast = 0;
  std::int64_t slow = 0;
  for (const std::int32_t i : order) {
    const auto ids = shared_ids(drawn, static_cast<std::size_t>(i));
    for (const std::uint64_t id : ids) {
      const std::int64_t at = std::find(list.begin(), list.end(), id) - list.begin();
      if (at >= std::min<std::int64_t>(kFast + kSlow, std::ssize(list))) break;
      ++(at < kFast ? fast : slow);
    }
    for (std::size_t b = ids.size(); b-- > 0;) {
      std::erase(list, ids[b]);
      list.insert(list.begin(), ids[b]);
    }
  }
  const std::vector<TierHits> both =
      tier_hits(reuse_curve(drawn, order, TouchOrder::kTailFirst), Bytes{1},
                std::vector<CacheTier>{{.name = "fast", .capacity = Bytes{kFast}},
                                       {.name = "slow", .capacity = Bytes{kSlow}}});
  CHECK(fast > 0);
  CHECK(slow > 0);
  CHECK(both[0].hits == fast);
  CHECK(both[1].hits == slow);
}

TEST_CASE("reuse: one pass equals an LRU list at every capacity, and is monotone") {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const RequestTrace t = generate_agents(small_agents(), 16, seed);
    for (const double stagger : {0.0, 30.0}) {
      const std::vector<std::int32_t> order = recorded_order(t, stagger);
      for (const TouchOrder touch : {TouchOrder::kTailFirst, TouchOrder::kHeadFirst}) {
        const ReuseCurve curve = reuse_curve(t, order, touch);
        std::int64_t before = 0;
        for (const std::int64_t capacity : {1, 2, 3, 7, 20, 55, 150, 400, 1000}) {
          INFO(seed, " ", capacity);
          const std::int64_t hits = curve.hits_of(capacity);
          CHECK(hits == lru_hits(t, order, static_cast<std::size_t>(capacity), touch));
          CHECK(hits >= before);
          before = hits;
        }
        CHECK(curve.hits_of(curve.distinct) == curve.hits);
        CHECK(curve.hits <= curve.blocks - curve.distinct);
        CHECK(std::accumulate(curve.hits_at.begin(), curve.hits_at.end(), std::int64_t{0}) ==
              curve.hits);
      }
    }
  }
}

TEST_CASE("reuse: sessions with local ids share no blocks, and add up") {
  const fs::path folder = fresh("agents");
  std::ofstream{folder / "b.json"} << kSession;
  std::ofstream{folder / "a.json"} << kSession;
  const std::vector<fs::path> files{folder / "b.json", folder / "a.json"};
  const RequestTrace both = read_requests(files);
  REQUIRE(both.agent_sessions.size() == 2);
  CHECK(both.agent_sessions[0].name == "a.json");  // sorted
  const ReuseCurve curve = reuse_curve(both, recorded_order(both), TouchOrder::kTailFirst);
  CHECK(curve.hits == 8);
  CHECK(curve.distinct == 14);
  CHECK(summarise_requests(both).prefix->reusable == 8);
  // A folder represents its sessions; other files in it are ignored.
  std::ofstream{folder / "expected.json"} << R"({"block_size": 4, "requests": 12})";
  CHECK(read_requests(folder).requests.size() == 12);
  // Ids of the scope "global" are shared.
  std::string text = kSession;
  text.replace(text.find("\"local\""), 7, "\"global\"");
  std::ofstream{folder / "a.json"} << text;
  std::ofstream{folder / "b.json"} << text;
  const RequestTrace shared = read_requests(files);
  CHECK(reuse_curve(shared, recorded_order(shared), TouchOrder::kTailFirst).distinct == 7);
}

TEST_CASE("weka: times of sub-agents that count from the session's start") {
  std::string text = kSession;
  const auto put = [&](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  put(R"({"t": 0.0, "type": "n", "model": "m", "in": 5)",
      R"({"t": 12.0, "type": "n", "model": "m", "in": 5)");
  put(R"({"t": 6.0)", R"({"t": 18.0)");
  put(R"({"t": 0.0, "type": "n", "model": "m", "in": 4)",
      R"({"t": 13.0, "type": "n", "model": "m", "in": 4)");
  const RequestTrace from_session = parse_requests(text, "f");
  const RequestTrace from_entry = parse_requests(kSession, "f");
  REQUIRE(from_session.requests.size() == from_entry.requests.size());
  for (std::size_t i = 0; i < from_entry.requests.size(); ++i) {
    INFO(i);
    CHECK(from_session.agents[i].start == from_entry.agents[i].start);
    CHECK(from_session.requests[i].arrival == from_entry.requests[i].arrival);
  }
  CHECK(from_session.notes.size() == from_entry.notes.size() + 1);
}

TEST_CASE("weka: broken sessions are refused with their place") {
  CHECK(why(R"("block_size": 4)", R"("block_size": 0)") ==
        "f.json: /block_size: expected an integer in [1, 1048576], got 0");
  CHECK(why(R"("local")", R"("here")").starts_with("f.json: /hash_id_scope: "));
  CHECK(why("[1, 2, 3]", "[1, 2]") ==
        "f.json: /requests/1/hash_ids: expected 3 ids, one for each full block of 4 tokens, got 2");
  CHECK(why("[1, 2, 3]", "[1, -2, 3]").starts_with("f.json: /requests/1/hash_ids/1: expected an "));
  CHECK(why("[7, 8]", "[7, 8.5]").starts_with("f.json: /requests/2/requests/1/hash_ids/1: "));
  CHECK(why(R"("type": "s")", R"("type": "x")").starts_with("f.json: /requests/1/type: "));
  CHECK(why(R"("in": 12)", R"("in": 0)").starts_with("f.json: /requests/1/in: "));
  CHECK(why(R"("t": 10.0)", R"("t": -1)").starts_with("f.json: /requests/1/t: "));
  const std::string cut = kSession.substr(0, kSession.size() / 2);
  CHECK(complaint<InputError>([&] { (void)parse_requests(cut, "f.json"); }) != "");
  // Unknown keys are reported, not rejected.
  std::string more = kSession;
  more.insert(more.find("\"ttft\""), "\"speed\": 3, ");
  const RequestTrace t = parse_requests(more, "f.json");
  REQUIRE(t.notes.size() == 1);
  CHECK(t.notes[0].find("speed") != std::string::npos);
  // Sessions with different block sizes, and one session given twice.
  const fs::path folder = fresh("blocks");
  std::ofstream{folder / "a.json"} << kSession;
  std::string other = kSession;
  other.replace(other.find("\"block_size\": 4"), 15, "\"block_size\": 1");
  std::ofstream{folder / "b.json"} << other;
  const std::vector<fs::path> files{folder / "a.json", folder / "b.json"};
  CHECK(complaint<InputError>([&] { (void)read_requests(files); }).find("b.json") !=
        std::string::npos);
  const std::vector<fs::path> twice{folder / "a.json", folder / "a.json"};
  CHECK(complaint<InputError>([&] { (void)read_requests(twice); }).find("twice") !=
        std::string::npos);
}

TEST_CASE("agentic Mooncake: waits for several requests, turns, block sizes") {
  const RequestTrace t = parse_requests(
      R"({"request_id": "a", "session_id": "s", "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3], "timestamp": 1000}
{"request_id": "b", "session_id": "s", "input_tokens": 50, "output_tokens": 5, "hash_ids": [1, 2, 3, 4], "wait_for": ["a"], "delay": 250, "tool_wait_ms": 750}
{"request_id": "c", "input_length": 20, "output_length": 1, "hash_ids": [8, 9], "created_time": 500}
{"request_id": "d", "input_length": 33, "output_length": 1, "hash_ids": [1, 2, 5], "wait_for": ["c", "b"], "delay_ms": 10}
)",
      "f");
  CHECK(t.format == "agentic");
  CHECK(t.prefix_block == 16);  // 14 to 16 tokens agree
  REQUIRE(t.requests.size() == 4);
  CHECK(t.requests[0].prompt_tokens ==
        20);  // c is listed first, d after all requests that it waits for
  CHECK(t.requests[1].prompt_tokens == 40);
  CHECK(t.requests[2].arrival == seconds(1));
  CHECK(t.requests[3].after == 2);
  REQUIRE(t.joins.size() == 1);
  CHECK(t.joins[0].also == 0);
  const std::vector<SimTime> starts = recorded_starts(t, SimTime{});
  CHECK(starts[3] == seconds(2) + seconds(0.01));
  CHECK(complaint<InputError>([] {
          (void)parse_requests(
              R"({"request_id": "a", "input_length": 4, "output_length": 5, "wait_for": ["z"]})",
              "f");
        }) == "f:1: /wait_for/0: expected the request_id of a row before this one, got \"z\"");
  CHECK(complaint<InputError>([] {
          (void)parse_requests(
              "{\"session_id\": \"a\", \"input_length\": 40, \"output_length\": 5, \"hash_ids\": "
              "[1, 2], "
              "\"timestamp\": 0}\n{\"session_id\": \"a\", \"input_length\": 40, \"output_length\": "
              "5, "
              "\"hash_ids\": [1, 2, 3], \"timestamp\": 4}\n",
              "f");
        }).starts_with("f:2: /hash_ids: expected one id for each block of 20 to 39 tokens"));
}

TEST_CASE("agentic Mooncake: a header names the block size, and its version is checked") {
  const std::string row =
      "{\"request_id\": \"a\", \"input_length\": 9, \"output_length\": 5, \"hash_ids\": [1, 2, "
      "3]}\n";
  const std::string header =
      "{\"schema\": \"dynamo.agentic_mooncake\", \"version\": 1, \"block_size\": 3}\n";
  CHECK(parse_requests(header + row, "f").prefix_block == 3);
  CHECK(complaint<InputError>([&] {
          (void)parse_requests(
              "{\"schema\": \"dynamo.agentic_mooncake\", \"version\": 2, \"block_size\": 3, "
              "\"hash_id_scope\": \"local\"}\n" +
                  row,
              "f");
        }).starts_with("f:1: /version: expected version 1"));
  CHECK(complaint<InputError>([&] {
          ReadOptions options;
          options.prefix_block = 4;
          (void)parse_requests(header + row, "f", options);
        }) == "f:1: /block_size: expected 4 as \"prefix_block\", got 3");
}

TEST_CASE("Bailian: chats of one root are a session") {
  const RequestTrace t = parse_requests(
      R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [1, 2]}
{"chat_id": 2, "parent_chat_id": -1, "timestamp": 0.75, "input_length": 16, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [7]}
{"chat_id": 3, "parent_chat_id": 1, "timestamp": 2, "input_length": 40, "output_length": 3, "type": "text", "turn": 2, "hash_ids": [1, 2, 3]}
)",
      "f");
  CHECK(t.format == "bailian");
  CHECK(t.prefix_block == 16);
  REQUIRE(t.requests.size() == 3);
  CHECK(t.requests[2].session == t.requests[0].session);
  CHECK(t.requests[1].session != t.requests[0].session);
  CHECK(reuse_curve(t, recorded_order(t), TouchOrder::kTailFirst).hits == 2);
}

TEST_CASE("agent generator: equal seeds give equal bytes, and its output can be read") {
  const AgentSpec spec = small_agents();
  const RequestTrace t = generate_agents(spec, 16, 7);
  const auto texts = weka_texts(t);
  CHECK(texts == weka_texts(generate_agents(spec, 16, 7)));
  CHECK(texts != weka_texts(generate_agents(spec, 16, 8)));
  const fs::path folder = fresh("generated");
  for (const auto& [name, text] : texts) std::ofstream{folder / name} << text;
  const RequestTrace back = read_requests(folder);
  REQUIRE(back.requests.size() == t.requests.size());
  CHECK(back.joins.size() == t.joins.size());
  const auto stats = summarise_requests(t);
  const auto read = summarise_requests(back);
  CHECK(read.prompt.total == stats.prompt.total);
  CHECK(read.output.total == stats.output.total);
  CHECK(read.prefix->reusable == stats.prefix->reusable);
  CHECK(read.prefix->distinct == stats.prefix->distinct);
  for (std::size_t i = 0; i < t.requests.size(); ++i) {
    INFO(i);
    CHECK(back.agents[i].start == t.agents[i].start);
    CHECK(back.requests[i].after == t.requests[i].after);
  }
  const ReuseCurve one = reuse_curve(t, recorded_order(t), TouchOrder::kTailFirst);
  const ReuseCurve two = reuse_curve(back, recorded_order(back), TouchOrder::kTailFirst);
  CHECK(one.hits_at == two.hits_at);
}

TEST_CASE("agent generator: statistics of the published sessions") {
  AgentSpec spec = published_agents();
  spec.sessions = 300;
  const RequestTrace t = generate_agents(spec, 64, 1);
  const RequestStats stats = summarise_requests(t);
  // 31 sessions of 48.8 requests and 84,215 tokens in the median; answers of 247 tokens.
  CHECK(static_cast<double>(stats.requests) / 300 > 40);
  CHECK(static_cast<double>(stats.requests) / 300 < 65);
  CHECK(stats.prompt.p50 > 60'000);
  CHECK(stats.prompt.p50 < 110'000);
  CHECK(stats.output.p50 > 200);
  CHECK(stats.output.p50 < 340);
  const double hits =
      static_cast<double>(stats.prefix->reusable) / static_cast<double>(stats.prefix->blocks);
  CHECK(hits > 0.93);
  CHECK(hits < 0.98);
}

TEST_CASE("transformations keep records, joins and sessions together") {
  RequestTrace t = generate_agents(small_agents(), 16, 3);
  const std::size_t n = t.requests.size();
  const std::size_t joins = t.joins.size();
  REQUIRE(joins > 0);
  TransformSpec spec;
  spec.limit = static_cast<std::int64_t>(n / 2);
  transform_requests(t, spec, 0);  // checks the trace
  CHECK(t.agents.size() == n / 2);
  CHECK(t.joins.size() < joins);
  RequestTrace spread = generate_agents(small_agents(), 16, 3);
  TransformSpec moved;
  moved.spread = Seconds{100.0};
  moved.repeat = 2;
  transform_requests(spread, moved, 0);
  CHECK(spread.requests.size() == 2 * n);
  CHECK(spread.agents.size() == 2 * n);
  CHECK(spread.joins.size() == 2 * joins);
  CHECK(spread.agent_sessions.size() == 12);
}

TEST_CASE("published sessions: reuse equals the reference at every capacity") {
  const auto data = data_dir();
  if (!data) return;
  const fs::path folder = *data / "requests/agentic";
  std::ifstream in{folder / "expected.json"};
  REQUIRE(in.good());
  const nlohmann::json expected = nlohmann::json::parse(in);
  const RequestTrace t = read_requests(folder);
  REQUIRE(t.agent_sessions.size() == expected["sessions"]);
  const RequestStats stats = summarise_requests(t);
  CHECK(stats.requests == expected["requests"]);
  CHECK(stats.prompt.total == expected["input_tokens"]);
  CHECK(stats.output.total == expected["output_tokens"]);
  for (const auto& [name, schedule] : expected["schedules"].items()) {
    INFO(name);
    const std::vector<SimTime> starts = recorded_starts(t, seconds(schedule["stagger_s"]));
    const std::vector<std::int32_t> order = start_order(t, starts);
    const ReuseCurve curve = reuse_curve(t, order, TouchOrder::kTailFirst);
    const ReuseCurve head_first = reuse_curve(t, order, TouchOrder::kHeadFirst);
    CHECK(curve.blocks == expected["full_blocks"]);
    CHECK(curve.hits == schedule["unbounded"]["hit_blocks"]);
    CHECK(curve.distinct == schedule["unbounded"]["distinct_blocks"]);
    CHECK(curve.whole_prompts == schedule["unbounded"]["prompts_wholly_cached"]);
    for (const auto& row : schedule["lru"]) {
      CHECK(curve.hits_of(row["capacity_blocks"]) == row["hit_blocks"]);
      CHECK(head_first.hits_of(row["capacity_blocks"]) == row["hit_blocks_head_first"]);
    }
    const AgentLoad load = agent_load(t, starts);
    CHECK(load.max_requests_in_flight == schedule["max_requests_in_flight"]);
    CHECK(load.max_sessions_open == schedule["max_sessions_open"]);
    CHECK(load.max_sessions_and_subagents_open == schedule["max_sessions_and_subagents_open"]);
    CHECK(to_seconds(load.span).count() == rel(schedule["span_s"], 1e-6));
  }
  for (const auto& session : expected["per_session"]) {
    const RequestTrace one = read_requests(folder / session["file"].get<std::string>());
    INFO(session["file"]);
    CHECK(one.agent_sessions[0].subagents == session["subagents"]);
    CHECK(std::ssize(one.requests) == session["requests"]);
    const ReuseCurve alone = reuse_curve(one, recorded_order(one), TouchOrder::kTailFirst);
    CHECK(alone.blocks == session["full_blocks"]);
    CHECK(alone.hits == session["hit_blocks"]);
    CHECK(alone.distinct == session["distinct_blocks"]);
  }
}
