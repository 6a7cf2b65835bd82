// Names, compositions, parameters and budgets: accepted and refused values, and their messages.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/methods/composed.hpp"
#include "models/methods/method.hpp"
#include "models/methods/params.hpp"
#include "models/methods/resolve/choices.hpp"
#include "models/methods/resolve/named.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

std::string complaint(const std::string& name, std::optional<Budget> budget, Params params = {},
                      std::int64_t prompt = 100) {
  try {
    (void)make_method({name, std::move(params), budget}, prompt);
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

const Budget kTen{0, 10};

/// Settings of a method that differ in one word or flag, with and without a budget.
std::vector<MethodSpec> settings_of(const std::string& name, const std::vector<ParamInfo>& params) {
  std::vector<Params> given{{}};
  for (const ParamInfo& info : params) {
    for (const std::string& word : info.words) given.push_back({{info.name, word}});
    if (const bool* flag = std::get_if<bool>(&info.default_value)) {
      given.push_back({{info.name, !*flag}});
    }
  }
  std::vector<MethodSpec> specs;
  for (const std::optional<Budget>& budget :
       {std::optional<Budget>{}, std::optional<Budget>{{0.3, 0}}}) {
    for (const Params& each : given) specs.push_back({name, each, budget});
  }
  return specs;
}

/// Parameters of `name` that no rule reads under any of settings_of.
std::set<std::string> never_read(const std::string& name) {
  const std::vector<ParamInfo> params = describe_method(name).params;
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 4, .head_dim = 64},
                           .windows = {},
                           .n_layers = 8,
                           .d_model = 512};
  std::set<std::string> left;
  for (const ParamInfo& info : params) {
    // A choice with only one word.
    if (info.words.size() != 1) left.insert(info.name);
  }
  bool made = false;
  for (const MethodSpec& spec : settings_of(name, params)) {
    std::vector<std::string> unread;
    try {
      unread = as_composed(*make_method(spec, 4096, site)).parts().unread;
    } catch (const InputError&) {
      continue;  // a refused combination
    }
    made = true;
    const std::set<std::string> dead{unread.begin(), unread.end()};
    std::erase_if(left, [&](const std::string& each) { return !dead.contains(each); });
  }
  CHECK_MESSAGE(made, name, " can be made under none of its settings");
  return left;
}

TEST_CASE("every parameter that a method declares is read by one of its choices") {
  for (const MethodInfo& method : builtin_methods()) {
    for (const std::string& param : never_read(method.name)) {
      FAIL_CHECK(method.name << ": nothing reads " << param);
    }
  }
}

TEST_CASE("every parameter of a choice that no preset uses is read") {
  for (const char* name : {"snapkv+budget=cosine", "snapkv+budget=first_full"}) {
    for (const std::string& param : never_read(name)) {
      FAIL_CHECK(name << ": nothing reads " << param);
    }
  }
}

TEST_CASE("choices of different axes that share a parameter's name share its meaning") {
  for (const AxisChoice& a : axis_choices()) {
    for (const AxisChoice& b : axis_choices()) {
      if (a.axis >= b.axis) continue;
      for (const ParamInfo& mine : a.params) {
        const ParamInfo* theirs = find_param(b.params, mine.name);
        if (theirs == nullptr || means_the_same(mine, *theirs)) continue;
        INFO(a.axis, "=", a.name, " and ", b.axis, "=", b.name, ": ", mine.name);
        // They are mutually exclusive: a value would be ambiguous.
        const std::string name = fmt::format("{}={}+{}={}", a.axis, a.name, b.axis, b.name);
        CHECK(complaint(name, std::nullopt) != "none");
        CHECK(complaint(name, kTen) != "none");
      }
    }
  }
}

TEST_CASE("a preset with any other choice is accepted or refused and never crashes") {
  const MethodContext site{.recorded = Dtype::kFp16,
                           .shape = {.n_heads = 8, .n_kv_heads = 4, .head_dim = 64},
                           .windows = {},
                           .n_layers = 8,
                           .d_model = 512};
  for (const MethodInfo& method : builtin_methods()) {
    for (const AxisChoice& choice : axis_choices()) {
      const std::string name = fmt::format("{}+{}={}", method.name, choice.axis, choice.name);
      for (const std::optional<Budget>& budget :
           {std::optional<Budget>{}, std::optional<Budget>{{0.3, 0}},
            std::optional<Budget>{{0, 200}}}) {
        try {
          (void)make_method({name, {}, budget}, 1024, site);
        } catch (const InputError&) {
        } catch (const std::exception& error) {
          FAIL_CHECK(name << ": " << error.what());
        }
      }
    }
  }
}

TEST_CASE("errors for unknown names suggest the nearest one") {
  CHECK(complaint("zeromrge", kTen) == "unknown method \"zeromrge\"; did you mean \"zeromerge\"?");
  CHECK(complaint("h2o+merge=residul", kTen).find("did you mean \"residual\"?") !=
        std::string::npos);
  CHECK(complaint("h2o+stor=fp16", kTen).find("unknown axis \"stor\"; did you mean \"store\"?") !=
        std::string::npos);
  CHECK(complaint("h2o", kTen, {{"recnt", 0.5}}).find("did you mean \"recent\"?") !=
        std::string::npos);
  CHECK(complaint("", kTen).starts_with("unknown method \"\""));
  CHECK(complaint("h2o+", kTen).starts_with("unknown method \"\""));
}

TEST_CASE("methods are found in any case and with any separators") {
  CHECK(canonical_method("SnapKV") == "snapkv");
  CHECK(canonical_method("Streaming_LLM") == "streaming-llm");
  CHECK(canonical_method("streaming llm") == "streaming-llm");
  CHECK(canonical_method("H2O+Store=FP16") == "h2o+store=fp16");
  CHECK(canonical_method("pyramidkv+store=int8") == "pyramidkv+store=int8");
  for (const char* name : {"", "+", "h2o+", "+h2o", "nothing", "h2o+Nothing"}) {
    CHECK(canonical_method(name) == name);
  }
  for (const MethodInfo& method : builtin_methods()) {
    CHECK(canonical_method(method.name) == method.name);
  }
}

TEST_CASE("two choices on one axis are refused") {
  CHECK(complaint("h2o+zeromerge", kTen).find("two choices on the axis") != std::string::npos);
  CHECK(complaint("h2o+store=fp16+store=fp32", kTen).find("axis store") != std::string::npos);
  CHECK(complaint("zeromerge+merge=drop", kTen).find("axis merge") != std::string::npos);
}

TEST_CASE("meaningless combinations are refused with the reason") {
  CHECK(complaint("full", kTen) == "method \"full\": it keeps every token and takes no budget");
  CHECK(complaint("merge=residual", kTen).find("nothing to merge") != std::string::npos);
  CHECK(complaint("streaming-llm+merge=residual", kTen).find("need scores") != std::string::npos);
  CHECK(complaint("select=recent+budget=none", kTen).find("needs a budget") != std::string::npos);
}

TEST_CASE("a preset equals its axes written out") {
  const auto preset = make_method({"h2o", {}, kTen}, 100);
  const auto written = make_method({"select=accumulated+budget=uniform", {}, kTen}, 100);
  CHECK(preset->params() == written->params());
  CHECK(complaint("h2o+merge=residual", kTen) == "none");
  CHECK(make_method({"h2o+store=fp32", {}, kTen}, 100)->store_dtype(Dtype::kFp16) == Dtype::kFp32);
}

TEST_CASE("a parameter outside its range is refused with the range and its source") {
  CHECK(complaint("zeromerge", kTen, {{"alpha", 1.5}}) ==
        "method \"zeromerge\": parameter alpha: expected a number in (0, 1] (ZeroMerge eq. (8), "
        "theorem 3.1), "
        "got 1.5");
  CHECK(complaint("zeromerge", kTen, {{"metric", std::string{"cosine"}}})
            .find("one of dot_product, l2") != std::string::npos);
  CHECK(complaint("streaming-llm", kTen, {{"n_sink", 1.5}}).find("an integer >= 0") !=
        std::string::npos);
  CHECK(complaint("h2o", kTen, {{"decay", std::string{"x"}}}).find("a number in (0, 1]") !=
        std::string::npos);
  CHECK(complaint("h2o", kTen, {{"recent", 4.0}, {"tail", 3.0}}).find("given twice") !=
        std::string::npos);
  CHECK(complaint("zeromerge", kTen, {{"lambda", 0.9}}) == "none");  // the symbol is an alias
}

TEST_CASE("invalid values of any parameter are refused with the range and its source") {
  int refused = 0;
  for (const MethodInfo& method : builtin_methods()) {
    for (const ParamInfo& param : method.params) {
      std::vector<ParamValue> nonsense;
      if (std::holds_alternative<std::int64_t>(param.default_value)) {
        nonsense = {std::string{"many"}, 0.5, static_cast<std::int64_t>(param.low) - 1,
                    static_cast<std::int64_t>(param.high) + 1};
      } else if (std::holds_alternative<double>(param.default_value)) {
        nonsense = {std::string{"some"}, true, std::numeric_limits<double>::quiet_NaN()};
        if (std::isfinite(param.low)) nonsense.emplace_back(param.low - 1);
        if (std::isfinite(param.high)) nonsense.emplace_back(param.high * 2 + 1);
      } else if (std::holds_alternative<bool>(param.default_value)) {
        nonsense = {std::string{"perhaps"}, 0.5};
      } else {
        nonsense = {0.5, true};
        if (!param.words.empty()) nonsense.emplace_back(std::string{"no-such-word"});
      }
      for (const ParamValue& value : nonsense) {
        INFO(method.name, " ", param.name, "=", to_text(value));
        const std::string said = complaint(method.name, std::nullopt, {{param.name, value}});
        CHECK(said.find("\"" + method.name + "\"") != std::string::npos);
        CHECK(said.find("parameter " + param.name + ": expected " + param.range) !=
              std::string::npos);
        CHECK(said.find(param.source) != std::string::npos);
        CHECK(said.find("got " + to_text(value)) != std::string::npos);
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("impossible budgets are refused with the numbers") {
  CHECK(complaint("h2o", Budget{0, 0}).find("number of entries >= 1, got 0") != std::string::npos);
  CHECK(complaint("h2o", Budget{1.5, 0}).find("fraction in (0, 1], got 1.5") != std::string::npos);
  CHECK(complaint("h2o", Budget{0.001, 0}).find("less than one entry") != std::string::npos);
  CHECK(complaint("streaming-llm", Budget{0, 4}).find("leaves no window after 4 sinks") !=
        std::string::npos);
  CHECK(complaint("zeromerge", Budget{0, 3}).find("expected B > B_p + B_r") != std::string::npos);
  CHECK(complaint("h2o", kTen, {}, 0).find("prompt is empty") != std::string::npos);
  CHECK(complaint("streaming-llm", kTen, {{"window", std::int64_t{8}}}).find("both given") !=
        std::string::npos);
}

TEST_CASE("a fraction is truncated in doubles as in the released code") {
  const auto entries = [](double f, std::int64_t prompt) {
    return param_integer(make_method({"h2o", {}, Budget{f, 0}}, prompt)->params(), "budget");
  };
  CHECK(entries(0.2, 384) == 76);
  CHECK(entries(0.05, 4096) == 204);
  CHECK(entries(1.0, 384) == 384);
}

TEST_CASE("one byte budget buys fewer entries if more is stored per entry") {
  const LayerShape gqa{.n_heads = 8, .n_kv_heads = 2, .head_dim = 64};
  const auto entries = [&](const std::string& name, Params params, Dtype recorded) {
    return param_integer(
        make_method({name, std::move(params), Budget{0.5, 0}}, 400, {recorded, gqa})->params(),
        "budget");
  };
  CHECK(entries("h2o", {}, Dtype::kFp32) == 200);
  CHECK(entries("h2o", {{"granularity", std::string{"query_head"}}}, Dtype::kFp32) ==
        50);  // 4 heads each
  CHECK(entries("h2o+store=fp16", {}, Dtype::kFp32) == 400);
}

TEST_CASE("a budget is a share of the full cache including windows") {
  const auto entries = [](double f, std::int64_t prompt, std::vector<std::int64_t> windows) {
    const MethodContext site{.recorded = Dtype::kFp16, .shape = {}, .windows = std::move(windows)};
    return param_integer(make_method({"h2o", {}, Budget{f, 0}}, prompt, site)->params(), "budget");
  };
  // Two layers attend to 4096 of 16,384 tokens: half of their entries are 2048 each.
  CHECK(entries(0.5, 16384, {4096, 4096}) == 2048);
  // One of 1000, one whole, prompt 5000: 0.5 * 6000 = 3000 = min(B, 1000) + B, so B = 2000.
  CHECK(entries(0.5, 5000, {1000, 0}) == 2000);
  // Windows longer than the prompt have no effect.
  CHECK(entries(0.29, 100, {4096, 0}) == 28);  // int(0.29 * 100) in doubles
}

TEST_CASE("defaults are those of the catalogue") {
  const auto zero = make_method({"zeromerge", {}, Budget{0, 100}}, 1000);
  CHECK(param_number(zero->params(), "alpha") == 0.6);
  CHECK(param_number(zero->params(), "decay") == 0.98);
  CHECK(param_integer(zero->params(), "recent") == 10);
  CHECK(param_integer(zero->params(), "residual_slots") == 1);
  const auto h2o = make_method({"h2o", {}, Budget{0, 41}}, 1000);
  CHECK(param_integer(h2o->params(), "heavy") == 20);  // floor(B/2), the rest recent
  CHECK(param_integer(h2o->params(), "recent") == 21);
  const auto window = make_method({"streaming-llm", {}, std::nullopt}, 1000);
  CHECK(param_integer(window->params(), "window") == 512);
  const auto sized = make_method({"h2o", {{"hh", 4.0}, {"recent", 512.0}}, std::nullopt}, 1000);
  CHECK(param_integer(sized->params(), "budget") == 516);
}

TEST_CASE("methods named by scenario files and papers exist under exactly these names") {
  for (const std::string name : {"full",
                                 "streaming-llm",
                                 "scissorhands",
                                 "h2o",
                                 "snapkv",
                                 "keyformer",
                                 "pyramidkv",
                                 "pyramidinfer",
                                 "less",
                                 "cam",
                                 "d2o",
                                 "kvmerger",
                                 "kivi-2",
                                 "kivi-4",
                                 "rtn",
                                 "smoothquant-kv",
                                 "gear",
                                 "tova",
                                 "knorm",
                                 "keydiff",
                                 "cur",
                                 "triattention",
                                 "compactor",
                                 "leverage",
                                 "non-causal",
                                 "qfilter",
                                 "capkv",
                                 "finch",
                                 "key-rerotation",
                                 "prefill-decoding",
                                 "observed-attention",
                                 "expected-attention",
                                 "lagkv",
                                 "adakv",
                                 "criticalkv",
                                 "duo-attention",
                                 "simlayerkv",
                                 "think",
                                 "chunkkv",
                                 "merging",
                                 "decoding",
                                 "dmc",
                                 "dms",
                                 "zeromerge",
                                 "zeromerge-paper",
                                 "minicache",
                                 "kvzip",
                                 "kvzip-plus",
                                 "kvzap",
                                 "keepkv",
                                 "morphkv",
                                 "r-kv",
                                 "quest",
                                 "shadowkv",
                                 "rocketkv",
                                 "arkvale",
                                 "infllm",
                                 "rotatekv",
                                 "dsa",
                                 "dsa-oracle",
                                 "msa",
                                 "moba",
                                 "blocks-oracle",
                                 "nvfp4-cold-pages",
                                 "cachegen",
                                 "kvtc",
                                 "ans-pages",
                                 "xattention",
                                 "minference",
                                 "flexprefill",
                                 "skip-softmax",
                                 "cacheblend",
                                 "oracle-step",
                                 "oracle-future"}) {
    INFO(name);
    CHECK(std::count_if(builtin_methods().begin(), builtin_methods().end(),
                        [&name](const MethodInfo& info) { return info.name == name; }) == 1);
  }
}

TEST_CASE("every catalogue row lists its parameters once, each with range, help and source") {
  for (const MethodInfo& info : builtin_methods()) {
    INFO(info.name);
    for (const ParamInfo& param : info.params) {
      CHECK_FALSE(param.range.empty());
      CHECK_FALSE(param.help.empty());
      CHECK_FALSE(param.source.empty());
      CHECK(find_param(info.params, param.name) == &param);
    }
  }
}

}  // namespace
}  // namespace kvsim
