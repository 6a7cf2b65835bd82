// Methods as Python classes: they keep the same entries as built-in methods with the same scores,
// and each way to break the interface is reported.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "models/methods/resolve/own_methods.hpp"
#include "models/units/error.hpp"
#include "sim/own/own_method.hpp"
#include "sim/replay/replay.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "traces/trace.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using test::has;

const fs::path kRoot{KVSIM_SOURCE_DIR};
const fs::path kFolder = kRoot / "tests/sim/own";
const Budget kFifth{.fraction = 0.2};

/// The name in results of the method of class `kind`.
std::string own(const std::string& kind) {
  ::setenv("KVSIM_PYTHON", KVSIM_PYTHON, 1);
  return method_of_user("scorers.py:" + kind, kFolder);
}

ReplayResult replay_of(const std::vector<MethodSpec>& specs, int threads = 2,
                       std::int64_t memory = 0) {
  static const Trace trace = Trace::open(kRoot / "traces/samples/books-treasure-512.safetensors");
  return replay(trace, specs,
                {.threads = threads, .memory = memory, .kept_positions = true, .seed = 3});
}

void check_equal(const ReplayMethod& a, const ReplayMethod& b) {
  INFO(a.name, " and ", b.name);
  CHECK(a.kept == b.kept);
  CHECK(a.rel_error_mean == b.rel_error_mean);
  CHECK(a.rel_error_p99 == b.rel_error_p99);
  CHECK(a.retained_mass_mean == b.retained_mass_mean);
  CHECK(a.bytes_held_final == b.bytes_held_final);
  CHECK(a.bytes_read_total == b.bytes_read_total);
  CHECK(a.closed_form_bytes_final == b.closed_form_bytes_final);
}

/// The error message of loading or replaying class `kind`.
std::string complaint(const std::string& kind, const Params& params = {}) {
  try {
    (void)replay_of({{own(kind), params, kFifth}});
  } catch (const InputError& error) {
    return error.what();
  }
  return "no complaint";
}

TEST_CASE("own python: the scores of knorm and keydiff keep the entries of the built-in methods") {
  const ReplayResult result = replay_of({{"knorm", {}, kFifth},
                                         {own("Knorm"), {}, kFifth},
                                         {"keydiff", {}, kFifth},
                                         {own("KeyDiff"), {}, kFifth}});
  check_equal(result.methods[0], result.methods[1]);
  check_equal(result.methods[2], result.methods[3]);
  CHECK(result.methods[0].kept != result.methods[2].kept);
  CHECK(result.methods[1].name == "scorers.py:Knorm");
}

TEST_CASE("own python: a name composes with other axes, granularities and budgets") {
  const Params query_head{{"granularity", std::string{"query_head"}}};
  const ReplayResult result = replay_of({{"knorm+int8", {}, kFifth},
                                         {own("Knorm") + "+int8", {}, kFifth},
                                         {"keydiff", query_head, Budget{.entries = 40}},
                                         {own("KeyDiff"), query_head, Budget{.entries = 40}},
                                         {"keydiff", {{"ratio", 0.7}}, {}},
                                         {own("KeyDiff"), {{"compression_ratio", 0.7}}, {}},
                                         {"keydiff+budget=pyramid", {}, kFifth},
                                         {own("KeyDiff") + "+budget=pyramid", {}, kFifth}});
  for (std::size_t i = 0; i < result.methods.size(); i += 2) {
    check_equal(result.methods[i], result.methods[i + 1]);
  }
}

TEST_CASE("own python: queries, scale and heads are the trace's") {
  const std::string built_in = "select=last-window+budget=uniform";
  Params params{{"window", std::int64_t{8}}, {"kernel", std::int64_t{1}}};
  const ReplayResult kv_head =
      replay_of({{built_in, params, kFifth}, {own("Attention"), {}, kFifth}});
  check_equal(kv_head.methods[0], kv_head.methods[1]);
  const Params split{{"granularity", std::string{"query_head"}}};
  params.insert(split.begin(), split.end());
  const ReplayResult query_head =
      replay_of({{built_in, params, kFifth}, {own("Attention"), split, kFifth}});
  check_equal(query_head.methods[0], query_head.methods[1]);
  CHECK(query_head.methods[1].kept.front().size() == 6);
}

TEST_CASE("own python: hidden states are the layer's input, for all tokens of the prompt") {
  const Trace trace = Trace::open(kRoot / "traces/samples/books-treasure-512.safetensors");
  const std::vector<float> hidden = trace.read_hidden(2);
  std::int32_t best = 0;
  for (std::int32_t t = 1; t < 384; ++t) {
    const auto first = [&](std::int32_t at) { return hidden[static_cast<std::size_t>(at) * 192]; };
    if (first(t) > first(best)) best = t;
  }
  const ReplayResult result = replay_of({{own("Hidden"), {}, Budget{.entries = 1}}});
  CHECK(result.methods[0].kept[2][0].front().front() == best);
}

TEST_CASE(
    "own python: the constructor gets parameters, and the ratio that corresponds to a budget") {
  const std::string name = own("Recent");
  const ReplayResult result =
      replay_of({{name, {}, Budget{.entries = 20}},
                 {name, {{"window", std::int64_t{20}}}, Budget{.entries = 20}},
                 {name, {{"reverse", true}, {"weight", std::int64_t{2}}}, Budget{.entries = 20}}});
  const auto kept = [&](std::size_t m) {
    std::vector<std::int32_t> prompt;
    for (const auto& entry : result.methods[m].kept[0][0]) {
      if (entry.front() < 384) prompt.push_back(entry.front());
    }
    return prompt;
  };
  // The 8 newest of 384 tokens and the first 12; the 20 newest; the opposite: 375, ... without
  // those 8.
  std::vector<std::int32_t> first, second, third;
  for (std::int32_t t = 0; t < 12; ++t) first.push_back(t);
  for (std::int32_t t = 376; t < 384; ++t) first.push_back(t);
  for (std::int32_t t = 364; t < 384; ++t) second.push_back(t);
  for (std::int32_t t = 356; t < 376; ++t) third.push_back(t);
  CHECK(kept(0) == first);
  CHECK(kept(1) == second);
  CHECK(kept(2) == third);
  CHECK(std::get<std::int64_t>(result.methods[1].params.at("window")) == 20);
  CHECK(std::get<double>(result.methods[1].params.at("ratio")) == test::rel(1 - 20.0 / 384));
  CHECK(has(complaint("Recent", {{"windw", std::int64_t{3}}}),
            "unknown parameter \"windw\"; did you mean \"window\"?"));
  CHECK(has(complaint("Recent", {{"window", 1.5}}),
            "parameter window: expected an integer (scorers.py), got 1.5"));
  CHECK(has(complaint("Recent", {{"reverse", std::int64_t{1}}}),
            "parameter reverse: expected true or false"));
}

TEST_CASE("own python: results do not depend on threads or on memory, and seeds are used") {
  const std::vector<MethodSpec> specs{
      {own("Random"), {}, kFifth}, {own("Knorm"), {}, kFifth}, {own("Counts"), {}, kFifth}};
  const ReplayResult one = replay_of(specs, 1);
  const ReplayResult four = replay_of(specs, 4);
  const ReplayResult tight = replay_of(specs, 3, 2 << 20);
  for (std::size_t m = 0; m < specs.size(); ++m) {
    check_equal(one.methods[m], four.methods[m]);
    check_equal(one.methods[m], tight.methods[m]);
  }
  CHECK(one.methods[0].kept != one.methods[1].kept);
  CHECK(one.methods[0].kept[0][0] != one.methods[0].kept[1][0]);
}

TEST_CASE("own python: printed text is not part of the result, and passes determine the cost") {
  const std::string prints = own("Prints");
  CHECK(find_own_preset(prints)->info.cost_class ==
        "time and memory of its scores are not counted (its kernels are not known)");
  CHECK(replay_of({{prints, {}, kFifth}}).methods.size() == 1);
  const std::string note = *own_method_note(own("Knorm") + "+int8");
  CHECK(has(note, "scored by the user's Python file scorers.py (FNV-1a "));
  CHECK(has(note, "only reads of its scores are counted: 1 x keys, 0 x values, 0 x queries"));
  CHECK_FALSE(own_method_note("knorm+int8"));
  // 100 tokens of 2 KV heads with 64 fp16 elements: 25,600 bytes of keys in each layer.
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64},
                           .n_layers = 2};
  const LayerShape& shape = site.shape;
  const auto reads = [&](const std::string& name) {
    return make_method({name, {}, kFifth}, 100, site)
        ->prefill_extra(0, shape, Dtype::kFp16, 100)
        .read;
  };
  CHECK(reads(own("Knorm")) == 25600);
  CHECK(reads(prints) == 0);
}

TEST_CASE("own python: failures of a class are reported with their place") {
  const std::string at = "method \"scorers.py:";
  CHECK(has(complaint("Raises"), at + "Raises\": scorers.py:"));
  CHECK(has(complaint("Raises"), ": IndexError: index 99 is out of bounds"));
  CHECK(has(complaint("Exits"), ": SystemExit: enough"));
  CHECK(has(complaint("WrongShape"), "expected the shape (n_kv_heads, tokens) = ("));
  CHECK(has(complaint("WrongShape"), "got (384,)"));
  CHECK(has(complaint("Words"), "expected an array of numbers, got str"));
  CHECK(has(complaint("NotFinite"),
            "NotFinite.score() at layer 1: expected finite scores, got nan for head 1, token 5"));
  CHECK(has(complaint("Refuses", {{"window", std::int64_t{0}}}),
            ": ValueError: window: expected at least 1, got 0"));
  CHECK(has(complaint("Dies"),
            at + "Dies\": its Python process ended without a reply (exit status 7)"));
}

TEST_CASE("own python: a class that violates the interface is refused before any run") {
  CHECK(has(complaint("Missing"), "expected a class Missing, got Knorm, KeyDiff, Recent"));
  CHECK(has(complaint("NotAClass"), "NotAClass: expected a class, got a int"));
  CHECK(has(complaint("NoScore"), "NoScore: expected a method score(), got none"));
  CHECK(has(complaint("Unknown"),
            "Unknown.score(): expected keyword arguments out of layer, n_layers, keys"));
  CHECK(has(complaint("NoDefault"), "NoDefault(): parameter window: expected a default"));
  CHECK(has(complaint("TakenName"), "parameter granularity: expected another name"));
  CHECK(has(complaint("BadPasses"), "BadPasses.passes: expected a dict of keys, values"));
  CHECK(has(complaint("Projection"), "does not have: the output projection"));
}

TEST_CASE("own python: files and interpreters that are missing are reported") {
  const auto refused = [](const std::string& name, const fs::path& folder) -> std::string {
    try {
      return method_of_user(name, folder);
    } catch (const InputError& error) {
      return error.what();
    }
  };
  ::setenv("KVSIM_PYTHON", KVSIM_PYTHON, 1);
  const fs::path folder = test::fresh("own");
  CHECK(has(refused("none.py:A", folder), "no such file: "));
  CHECK(has(refused("none.py", folder), "expected FILE.py:CLASS, got \"none.py\""));
  test::write(folder / "broken.py", "import nothing_like_it\n");
  CHECK(has(refused("broken.py:A", folder),
            "method \"broken.py:A\": broken.py:1: ModuleNotFoundError: No module named"));
  test::write(folder / "syntax.py", "a = 1\ndef score(:\n");
  CHECK(has(refused("syntax.py:A", folder), "method \"syntax.py:A\": syntax.py:2: SyntaxError"));
  // Two files with one name; one file that changes.
  const std::string text = "class A:\n    def score(self, keys):\n        return keys[:, :, 0]\n";
  fs::create_directories(folder / "other");
  test::write(folder / "same.py", text);
  test::write(folder / "other/same.py", text);
  CHECK(refused("same.py:A", folder) == "same.py:A");
  CHECK(refused("same.py:A", folder) == "same.py:A");
  CHECK(has(refused("same.py:A", folder / "other"),
            "another file already has a method with this name"));
  test::write(folder / "same.py", text + "\n");
  CHECK(has(refused("same.py:A", folder), "has changed since it was loaded"));
  test::write(folder / "third.py", text);
  ::setenv("KVSIM_PYTHON", (folder / "no-python").c_str(), 1);
  CHECK(has(refused("third.py:A", folder), "expected a Python with NumPy ($KVSIM_PYTHON"));
  CHECK(has(refused("third.py:A", folder), "no-python cannot be started: No such file"));
  ::setenv("KVSIM_PYTHON", KVSIM_PYTHON, 1);
  ::setenv("KVSIM_SCORE_TIMEOUT", "soon", 1);
  CHECK(has(refused("third.py:A", folder), "KVSIM_SCORE_TIMEOUT: expected seconds"));
  ::setenv("KVSIM_SCORE_TIMEOUT", "2", 1);
  CHECK(has(complaint("Sleeps"), "no reply within 2 s; KVSIM_SCORE_TIMEOUT sets another limit"));
  ::unsetenv("KVSIM_SCORE_TIMEOUT");
}

}  // namespace
}  // namespace kvsim
