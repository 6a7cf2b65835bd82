#include "models/launch/engine_command.hpp"
#include "models/launch/shell_words.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using Words = std::vector<std::string>;

Words split(std::string_view text) { return split_shell_words(text, "here"); }

EngineCommand parse(std::string_view text, EngineVersion version = {0, 30, 0}) {
  return parse_engine_command(split(text), version, "here");
}

/// The message of the exception that `call` throws; empty if it does not throw.
template <class Call>
std::string message_of(Call call) {
  try {
    (void)call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}
std::string refused(std::string_view text, EngineVersion version = {0, 30, 0}) {
  return message_of([&] { return parse(text, version); });
}

TEST_CASE("words are split as a POSIX shell splits them") {
  CHECK(split("") == Words{});
  CHECK(split("  a\t b\n") == Words{"a", "b"});
  CHECK(split(R"(a 'b c' "d e" f\ g)") == Words{"a", "b c", "d e", "f g"});
  CHECK(split(R"(--config='{"a": 1}')") == Words{R"(--config={"a": 1})"});
  CHECK(split(R"("a \"b\" \\ \n")") == Words{R"(a "b" \ \n)"});  // \n stays
  CHECK(split("a \\\n  b \\\r\n c") == Words{"a", "b", "c"});
  CHECK(split("a # b\nc#d") == Words{"a", "c#d"});
  CHECK(split("'' \"\"") == Words{"", ""});
}

TEST_CASE("shell substitutions and commands are refused with their place") {
  CHECK(message_of([] { return split("a 'b"); }) ==
        "here: character 3: expected a closing ' of this quote");
  CHECK(message_of([] { return split("a \"b"); }) ==
        "here: character 3: expected a closing \" of this quote");
  CHECK(message_of([] { return split("a \\"); }) ==
        "here: character 3: expected a character after the backslash");
  CHECK(message_of([] {
          return split("vllm $M");
        }).starts_with("here: character 6: expected literal words"));
  CHECK(message_of([] {
          return split("a \"$M\"");
        }).starts_with("here: character 4: expected literal words"));
  for (const char* text : {"a | b", "a; b", "a && b", "a > f", "(a)", "`a`"}) {
    INFO(text);
    CHECK(message_of([&] { return split(text); }).find("expected one command") !=
          std::string::npos);
  }
}

TEST_CASE("quoted words are unchanged by the shell") {
  for (const char* word :
       {"plain", "", "a b", "it's", "\"", "{\"a\": [1, \"b\"]}", "$HOME", "a\nb", "-x=1", "\\"}) {
    INFO(word);
    CHECK(split(quoted_for_shell(word)) == Words{word});
  }
  const Words words{"vllm", "serve", "a/b", "--x", "1 2", "--flag", "--list", "a", "b"};
  for (const std::size_t width : {0U, 1U, 20U, 100U})
    CHECK(split(shell_command(words, width)) == words);
}

TEST_CASE("the lists of arguments have three versions of each engine and a source for each") {
  REQUIRE(builtin_engine_flags().size() == 3);
  for (const EngineFlags& engine : builtin_engine_flags()) {
    INFO(engine.engine);
    CHECK(engine.lists.size() >= 3);
    for (const FlagListVersion& list : engine.lists) CHECK(list.source.size() > 20);
    CHECK(engine.flags.size() > 40);
  }
  CHECK(find_engine_flags("vllm@0.11:llm")->engine == "vLLM");
  CHECK(find_engine_flags("vllm-v0")->engine == "vLLM");
  CHECK(find_engine_flags("sglang")->engine == "SGLang");
  CHECK(find_engine_flags("hf-sdpa") == nullptr);
}

TEST_CASE("between two lists only their common arguments are certain") {
  const EngineFlags& vllm = *find_engine_flags("vllm");
  // --swap-space is in the lists of 0.8 and 0.11 but not in that of 0.18.
  CHECK(vllm.find_certain({0, 8, 0}, "--swap-space") != nullptr);
  CHECK(vllm.find_certain({0, 9, 0}, "--swap-space") != nullptr);
  CHECK(vllm.find_certain({0, 11, 0}, "--swap-space") != nullptr);
  CHECK(vllm.find_certain({0, 12, 0}, "--swap-space") == nullptr);
  CHECK(vllm.find_possible({0, 12, 0}, "--swap-space") != nullptr);
  CHECK(vllm.find_possible({0, 18, 0}, "--swap-space") == nullptr);
  CHECK(vllm.versions_of("--swap-space") == "0.8 to before 0.18");
  CHECK(vllm.versions_of("--watermark") == "0.30 and later");
  CHECK(vllm.versions_of("--nothing").empty());
  CHECK(vllm.is_too_old({0, 7, 3}));
  CHECK_FALSE(vllm.is_too_old({0, 8, 0}));
  // A later release is parsed with the newest list.
  CHECK(vllm.find_certain({0, 40, 0}, "--watermark") != nullptr);
}

TEST_CASE("a command of vLLM is parsed as in vLLM") {
  const EngineCommand command = parse(
      "CUDA_VISIBLE_DEVICES=0,1 /opt/bin/vllm serve Qwen/Qwen3-8B -tp 2 --max_model_len=32K "
      "--no-enable-prefix-caching --served-model-name a b --gpu-mem 0.9 -O3 "
      "--speculative-config.method eagle3 --enforce-eager",
      {0, 11, 0});
  CHECK(command.engine->engine == "vLLM");
  CHECK(command.model == "Qwen/Qwen3-8B");
  CHECK(command.environment ==
        std::vector<std::pair<std::string, std::string>>{{"CUDA_VISIBLE_DEVICES", "0,1"}});
  CHECK(command.find("--tensor-parallel-size")->values == Words{"2"});
  CHECK(command.find("--max-model-len")->values == Words{"32K"});
  CHECK(command.find("--max-model-len")->typed == "--max_model_len");
  CHECK_FALSE(command.find("--enable-prefix-caching")->is_on);
  CHECK(command.find("--served-model-name")->values == Words{"a", "b"});
  CHECK(command.find("--gpu-memory-utilization")->values == Words{"0.9"});  // an abbreviation
  CHECK(command.find("--compilation-config")->values == Words{"3"});
  CHECK(command.find("--speculative-config")->key == "method");
  CHECK(command.find("--enforce-eager")->is_on);
  CHECK(command.find("--port") == nullptr);
  // The last value is used.
  CHECK(parse("vllm serve m --seed 1 --seed 2").find("--seed")->values == Words{"2"});
  CHECK(parse("python -m vllm.entrypoints.openai.api_server --model m").model == "m");
}

TEST_CASE("commands of SGLang and TensorRT-LLM are read in the spelling of each engine") {
  const EngineCommand sglang =
      parse("python3 -m sglang.launch_server --model m --tp 8 --ep-size 8", {0, 5, 21});
  CHECK(sglang.engine->engine == "SGLang");
  CHECK(sglang.model == "m");
  CHECK(sglang.find("--tp-size")->values == Words{"8"});  // argparse accepts a prefix of a flag
  CHECK(refused("python -m sglang.launch_server --model-path m --tp_size 2", {0, 5, 21})
            .starts_with("here: --tp_size: unknown flag of SGLang 0.5; did you mean"));
  const EngineCommand trt = parse("trtllm-serve serve m --tp_size 2 --config x.yaml", {1, 2, 0});
  CHECK(trt.model == "m");
  CHECK(trt.find("--extra_llm_api_options")->values == Words{"x.yaml"});
  CHECK(refused("trtllm-serve m --tp-size 2", {1, 2, 0}).find("did you mean --tp_size?") !=
        std::string::npos);
  CHECK(refused("trtllm-serve m --kv_cache_dtype fp8", {1, 2, 0}) ==
        "here: --kv_cache_dtype: unknown flag of TensorRT-LLM 1.2; TensorRT-LLM 1.3 and later has "
        "it");
}

TEST_CASE("a wrong command is refused by flag, expected and got") {
  CHECK(refused("vllm serve m --max-modl-len 1") ==
        "here: --max-modl-len: unknown flag of vLLM 0.30; did you mean --max-model-len?");
  CHECK(refused("vllm serve m -tp two") == "here: -tp: expected an integer, got \"two\"");
  CHECK(refused("vllm serve m --gpu-memory-utilization much") ==
        "here: --gpu-memory-utilization: expected a number, got \"much\"");
  CHECK(refused("vllm serve m --max-model-len 32Q") ==
        "here: --max-model-len: expected an integer such as 4096 or 32K, got \"32Q\"");
  CHECK(refused("vllm serve m --max-model-len") ==
        "here: --max-model-len: expected a value after it");
  CHECK(refused("vllm serve m --enforce-eager=1") ==
        "here: --enforce-eager: takes no value, got \"1\"");
  CHECK(refused("vllm serve m --kv-cache-dtype int3")
            .starts_with("here: --kv-cache-dtype: expected one of auto, "));
  CHECK(refused("vllm serve m --speculative-config {a") ==
        "here: --speculative-config: expected JSON, got \"{a\"");
  CHECK(refused("vllm serve m --seed.key 1") == "here: --seed.key: --seed takes no keys");
  CHECK(refused("vllm serve m --max-num 1").find("ambiguous; one of") != std::string::npos);
  CHECK(refused("vllm serve") == "here: expected a model, got none");
  CHECK(refused("vllm serve a b").starts_with("here: \"b\": unexpected word"));
  CHECK(refused("docker run x")
            .starts_with("here: expected a command that begins with one of \"vllm serve\""));
  CHECK(refused("").find("got nothing") != std::string::npos);
  CHECK(refused("A=1").find("got nothing") != std::string::npos);
  CHECK(refused("vllm serve m --no-seed 1").find("unknown flag") != std::string::npos);
  // A flag of another version.
  CHECK(refused("vllm serve m --swap-space 4").find("vLLM 0.8 to before 0.18 has it") !=
        std::string::npos);
}

TEST_CASE("counts are the integers that the engines read") {
  CHECK(count_of_flag("4096") == 4096);
  CHECK(count_of_flag("32K") == 32 * 1024);
  CHECK(count_of_flag("32k") == 32000);
  CHECK(count_of_flag("25.6k") == 25600);
  CHECK(count_of_flag("1M") == 1024 * 1024);
  CHECK(count_of_flag("-1") == -1);
  for (const char* text : {"", "K", "auto", "1.5", "1e400", "0.0001K", "1e300M", "12x"}) {
    INFO(text);
    CHECK_FALSE(count_of_flag(text).has_value());
  }
}

TEST_CASE("a broken list of arguments is reported by its place") {
  const auto read = [](const char* flags,
                       const char* lists = R"([{"version": "1.0", "source": "s"}])") {
    return message_of([&] {
      return read_engine_flags(Field::parse(
          fmt::format(R"({{"engine": "E", "stack": "e", "program": ["e"], "also_programs": [],
                           "model": {{"positional": true}}, "spelling": "exact", "abbreviations": true,
                           "lists": {}, "flags": {}}})",
                      lists, flags),
          "e.json"));
    });
  };
  CHECK(read(R"([{"flag": "--a", "type": "int", "in": [0, 0]}])").empty());
  CHECK(read(R"([{"flag": "a", "type": "int", "in": [0, 0]}])") ==
        "e.json: /flags/0/flag: expected a flag such as \"--host\", got \"a\"");
  CHECK(read(R"([{"flag": "--a", "type": "number", "in": [0, 0]}])").find("/flags/0/type") !=
        std::string::npos);
  CHECK(read(R"([{"flag": "--a", "type": "int", "in": [0, 1]}])").find("/flags/0/in/1") !=
        std::string::npos);
  CHECK(read(R"([{"flag": "--a", "type": "int", "in": [0]}])").find("/flags/0/in") !=
        std::string::npos);
  CHECK(
      read(
          R"([{"flag": "--a", "type": "int", "in": [0, 0]}, {"flag": "--a", "type": "int", "in": [0, 0]}])") ==
      "e.json: /flags/1/flag: --a is in list 0 twice");
  CHECK(read("[]", "[]").find("/lists") != std::string::npos);
  CHECK(read("[]", R"([{"version": "2.0", "source": "s"}, {"version": "1.0", "source": "s"}])")
            .find("/lists/1/version: expected a later version") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
