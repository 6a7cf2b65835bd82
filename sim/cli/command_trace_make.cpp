// kvsim trace generate, kvsim trace convert: writing traces.

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/text/progress.hpp"
#include "traces/convert.hpp"
#include "traces/synthetic/generate.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

/// Checks only the range of the type; the generator and the converter check their ranges.
std::int32_t count_or(const Arguments& arguments, std::string_view option, std::int32_t fallback) {
  return static_cast<std::int32_t>(arguments.integer(option, 0, kMaxCount).value_or(fallback));
}

std::optional<Dtype> dtype_of(const Arguments& arguments) {
  const auto word = arguments.value("dtype");
  if (!word) return std::nullopt;
  const auto dtype = parse_dtype(*word);
  if (!dtype) throw InputError{"--dtype", "fp32, fp16 or bf16", fmt::format("\"{}\"", *word)};
  return dtype;
}

RopeStyle rope_style_of(const Arguments& arguments) {
  const std::string word = arguments.value("rope-style").value_or("half_split");
  if (word == "half_split") return RopeStyle::kHalfSplit;
  if (word == "interleaved") return RopeStyle::kInterleaved;
  throw InputError{"--rope-style", "half_split or interleaved", fmt::format("\"{}\"", word)};
}

/// Values of an option NAME=VALUE. Errors: InputError for any other form and for repeated names.
std::map<std::string, std::string> named_values(const Arguments& arguments,
                                                const std::string& option) {
  std::map<std::string, std::string> out;
  for (const std::string& text : arguments.values(option)) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError{fmt::format("--{}", option), "NAME=VALUE", fmt::format("\"{}\"", text)};
    }
    if (!out.emplace(text.substr(0, equals), text.substr(equals + 1)).second) {
      throw InputError{fmt::format("--{} {} is given twice", option, text.substr(0, equals))};
    }
  }
  return out;
}

void say_written(const Arguments& arguments, const fs::path& file) {
  if (arguments.has("quiet")) return;
  std::error_code status;
  const auto size = fs::file_size(file, status);
  write_out(status ? fmt::format("wrote {}\n", file.string())
                   : fmt::format("wrote {} ({} bytes)\n", file.string(), size));
}

int run_generate(const Arguments& arguments) {
  arguments.expect_words(1, 1, "the file to write");
  GenerateOptions options;
  options.layers = count_or(arguments, "layers", options.layers);
  options.heads = count_or(arguments, "heads", options.heads);
  options.kv_heads = count_or(arguments, "kv-heads", options.kv_heads);
  options.head_dim = count_or(arguments, "head-dim", options.head_dim);
  options.d_model = count_or(arguments, "d-model", options.d_model);
  options.tokens = count_or(arguments, "tokens", 512);
  options.with_repeat = arguments.has("with-repeat");
  // A repeat contains the whole prompt again; otherwise three quarters of the tokens are the
  // prompt.
  const std::int64_t usual_prompt = options.with_repeat
                                        ? (options.tokens - 1) / 2
                                        : std::max<std::int64_t>(1, options.tokens * 3 / 4);
  options.prompt_tokens = arguments.integer("prompt-tokens", 0, kMaxCount).value_or(usual_prompt);
  if (options.with_repeat && !arguments.has("tokens")) {
    options.tokens = 2 * options.prompt_tokens + 1;
  }
  options.dtype = dtype_of(arguments).value_or(options.dtype);
  options.seed = static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
  options.rope_style = rope_style_of(arguments);
  if (const auto theta = arguments.number("rope-theta", 1, 1e9)) options.rope_theta = *theta;
  options.with_hidden = arguments.has("with-hidden");
  options.with_output_projection = arguments.has("with-wo");
  options.with_scores = arguments.has("with-scores");
  options.with_decisions = arguments.has("with-decisions");
  const fs::path file = arguments.words().front();
  Progress progress{"generating " + file.filename().string(), static_cast<double>(options.layers),
                    "layers"};
  if (!arguments.has("quiet")) options.progress = [&](double done) { progress.update(done); };
  generate_trace(options, file);
  progress.finish();
  say_written(arguments, file);
  return kDone;
}

int run_convert(const Arguments& arguments) {
  arguments.expect_words(2, 2, "the file to read and the file to write");
  ConvertOptions options;
  options.dtype = dtype_of(arguments);
  options.tokens = arguments.integer("tokens", 1, kMaxCount);
  for (const std::string& text : arguments.list("layers")) {
    const auto layer = parse_integer(text);
    if (!layer || *layer < 0 || *layer > kMaxCount) {
      throw InputError{"--layers", "layer numbers joined by commas", fmt::format("\"{}\"", text)};
    }
    options.layers.push_back(static_cast<std::int32_t>(*layer));
  }
  options.keep_hidden = !arguments.has("drop-hidden");
  options.keep_output_projection = !arguments.has("drop-wo");
  options.keep_scores = !arguments.has("drop-scores");
  options.keep_decisions = !arguments.has("drop-decisions");
  options.names = named_values(arguments, "name");
  options.metadata = named_values(arguments, "metadata");
  const fs::path file = arguments.words()[1];
  Progress progress{"converting " + file.filename().string()};
  constexpr double kMB = 1e6;
  options.begins = [&](double bytes) { progress.expect(bytes / kMB, "MB"); };
  std::vector<std::string> notes;  // printed after the progress line
  if (!arguments.has("quiet")) {
    options.progress = [&](double done) { progress.update(done); };
    options.note = [&](const std::string& text) { notes.push_back(text); };
  }
  convert_trace(arguments.words()[0], file, options);
  progress.finish();
  for (const std::string& note : notes) write_err(fmt::format("kvsim: note: {}\n", note));
  say_written(arguments, file);
  return kDone;
}

}  // namespace

Command trace_generate_command() {
  return {.name = "trace generate",
          .summary = "write a synthetic attention trace of any size, from a seed",
          .usage = "kvsim trace generate FILE [options]",
          .examples =
              "kvsim trace generate /tmp/t.safetensors --layers 8 --heads 32 --kv-heads 8 \\\n"
              "      --head-dim 128 --tokens 4096",
          .options = {{"layers", 0, "N", false, "layers (4)"},
                      {"heads", 0, "N", false, "query heads (8)"},
                      {"kv-heads", 0, "N", false, "KV heads (2)"},
                      {"head-dim", 0, "N", false, "width of a head (64)"},
                      {"d-model", 0, "N", false, "width of hidden states (heads x head-dim)"},
                      {"tokens", 0, "N", false, "total tokens (512)"},
                      {"prompt-tokens", 0, "N", false, "prompt tokens (three quarters of all)"},
                      {"dtype", 0, "FORMAT", false, "fp32, fp16 or bf16 (fp16)"},
                      {"seed", 0, "N", false, "seed (0)"},
                      {"rope-style", 0, "STYLE", false, "half_split or interleaved (half_split)"},
                      {"rope-theta", 0, "X", false, "base of the rotary embedding (10000)"},
                      {"with-hidden", 0, "", false, "record hidden states"},
                      {"with-wo", 0, "", false, "record the output projection"},
                      {"with-repeat", 0, "", false,
                       "repeat the context after the prompt; tokens = 2 x prompt + 1"},
                      {"with-scores", 0, "", false, "record scores (kvzip, kvzip_plus, kvzap)"},
                      {"with-decisions", 0, "", false, "record decisions (alpha, omega, evict)"},
                      {"quiet", 'q', "", false, "print nothing"}},
          .run = run_generate};
}

Command trace_convert_command() {
  return {
      .name = "trace convert",
      .summary = "copy a trace with another format, fewer tokens or layers, or from a foreign file",
      .usage = "kvsim trace convert FROM TO [options]",
      .examples =
          "kvsim trace convert big.safetensors new.safetensors --tokens 512 --dtype fp16\n"
          "kvsim trace convert dump.safetensors t.safetensors \\\n"
          "      --name q=attn.{i}.query --metadata prompt_len=100",
      .options = {{"dtype", 0, "FORMAT", false, "fp32, fp16 or bf16 (each tensor's own)"},
                  {"tokens", 0, "N", false, "keep the first N"},
                  {"layers", 0, "LIST", true, "keep these, in this order: 0,2,4"},
                  {"drop-hidden", 0, "", false, "leave hidden states out"},
                  {"drop-wo", 0, "", false, "leave the output projection out"},
                  {"drop-scores", 0, "", false, "leave recorded scores out"},
                  {"drop-decisions", 0, "", false, "leave recorded decisions out"},
                  {"name", 0, "WORD=NAME", true,
                   "where a foreign file keeps q, k, v, hidden, wo, tokens, …; {i}: the layer"},
                  {"metadata", 0, "KEY=VALUE", true, "replace or add metadata"},
                  {"quiet", 'q', "", false, "print nothing"}},
      .run = run_convert};
}

}  // namespace kvsim
