// Size of the model of a trace.

#include "tests/support/check.hpp"
#include "traces/trace_model.hpp"

namespace kvsim {
namespace {

TraceInfo of_model(std::string name) {
  TraceInfo info;
  info.model = std::move(name);
  info.tokens = 512;
  info.prompt_tokens = 384;
  return info;
}

TEST_CASE("the model's size is read from the metadata or its name") {
  CHECK(trace_parameters(of_model("own: books-2.6M-B")) == 2.6e6);
  CHECK(trace_parameters(of_model("Qwen2.5-0.5B-Instruct")) == 0.5e9);
  CHECK(trace_parameters(of_model("meta-llama/Llama-3.1-70b")) == 70e9);
  CHECK_FALSE(trace_parameters(of_model("LlamaForCausalLM")).has_value());
  CHECK_FALSE(trace_parameters(of_model("gpt2-1024BPE")).has_value());  // no word "B"
  CHECK_FALSE(trace_parameters(of_model("")).has_value());
  TraceInfo given = of_model("Qwen2.5-0.5B");
  given.metadata["parameters"] = "494032768";
  CHECK(trace_parameters(given) == 494032768.0);
}

TEST_CASE("the words next to replay errors") {
  CHECK(trace_words(of_model("own: books-2.6M-B")) == "2.6M-parameter model, 384 + 128 tokens");
  CHECK(trace_words(of_model("mine")) == "model of unknown size, 384 + 128 tokens");
  CHECK(trace_words(of_model("synthetic")) == "synthetic vectors, 384 + 128 tokens");
  CHECK(parameters_text(70.55e9) == "70.5B");
  CHECK(parameters_text(999) == "999");
}

}  // namespace
}  // namespace kvsim
