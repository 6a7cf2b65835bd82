#include "validation/published/published_setup.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"
#include "models/units/units_parse.hpp"
#include "validation/published/published_methods.hpp"
#include "validation/published/published_metrics.hpp"
#include "validation/published/published_settings.hpp"
#include "validation/published/published_stacks.hpp"

namespace kvsim {
namespace {

/// The model used for "any model" in a statement that holds for all.
constexpr std::string_view kAnyModel = "llama-3.1-8b";

const Llm* find_or_null(std::string_view name) {
  try {
    return &find_llm(name);
  } catch (const InputError&) {
    return nullptr;
  }
}

/// `name` without endings that say how a model was tuned or stored.
std::string without_endings(std::string name) {
  constexpr std::array<std::string_view, 16> kEndings{
      "-instruct", "-chat", "-base", "-it",   "-fp8",   "-hf",    "-awq",    "-gptq",
      " w8a8",     " fp8",  "-bf16", "-fp16", "-nvfp4", " w4a16", " family", " awq-4bit"};
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view ending : kEndings) {
      if (name.size() > ending.size() && name.ends_with(ending)) {
        name.resize(name.size() - ending.size());
        found = true;
      }
    }
  }
  return name;
}

const Llm& model_named(const std::string& cell, std::string& assumed) {
  if (const Llm* exact = find_or_null(cell)) return *exact;
  const std::string bare = without_brackets(cell);
  for (const std::string& name : {bare, without_endings(bare)}) {
    if (const Llm* found = find_or_null(name)) return *found;
  }
  // A family without its version ("Mistral-7B", "Llama3"): the smallest of those that begin so.
  const auto squeezed = [](std::string_view text) {
    std::string out;
    for (const char c : plain_text(text)) {
      if (c != '-' && c != '_' && c != ' ') out += c;
    }
    return out;
  };
  const std::string key = squeezed(without_endings(bare));
  const Llm* first = nullptr;
  for (const Llm& llm : builtin_llms()) {
    if (key.size() < 3) break;
    if (squeezed(llm.name) == key) return llm;
    const bool nearer = first == nullptr || parameters(llm) < parameters(*first);
    if (nearer && squeezed(llm.name).starts_with(key)) first = &llm;
  }
  if (first != nullptr) {
    assumed = fmt::format("\"{}\" is taken as {}", cell, first->name);
    return *first;
  }
  return find_llm(bare);  // throws, with the nearest name
}

std::vector<std::string> split(std::string_view text, std::string_view marks) {
  std::vector<std::string> out;
  std::string part;
  for (const char c : text) {
    if (marks.find(c) == std::string_view::npos) {
      part += c;
      continue;
    }
    if (!plain_text(part).empty()) out.push_back(plain_text(part));
    part.clear();
  }
  if (!plain_text(part).empty()) out.push_back(plain_text(part));
  return out;
}

std::optional<Dtype> cache_format(const PublishedRow& row, const std::optional<FormatText>& weights,
                                  std::string& assumed) {
  const std::string text = without_brackets(row.kv_dtype);
  if (has_text(text, "per system") && text.find('/') != std::string::npos) {
    // "fp16/int8 per system": what quantises its activations caches in 8 bits.
    const std::vector<std::string> choices = split(text.substr(0, text.find(' ')), "/");
    const bool narrow = weights && weights->activations && bits_of(*weights->activations) < 16;
    const auto chosen = parse_format(narrow ? choices.back() : choices.front());
    if (!chosen) return std::nullopt;
    assumed = fmt::format("cache in {}, one of \"{}\"", name_of(chosen->weights), row.kv_dtype);
    return chosen->weights;
  }
  const std::vector<std::string> choices = split(text, "/");
  if (choices.empty()) {
    if (weights && weights->cache) return weights->cache;
    return std::nullopt;
  }
  const auto format = parse_format(choices.front());
  if (!format) return std::nullopt;
  return format->weights;
}

/// "total_gpu_memory 79.22 GiB".
std::optional<Bytes> stated_memory(const std::string& note) {
  if (const auto gib = number_at(note, "total_gpu_memory"); gib && *gib > 0 && *gib < 4096) {
    return rounded<Bytes>(*gib * 1024 * 1024 * 1024);
  }
  return std::nullopt;
}

std::optional<std::int64_t> positive_count(std::optional<double> value) {
  if (!value || *value < 1 || *value > 1e9) return std::nullopt;
  return std::llround(*value);
}

void read_engine_words(const PublishedRow& row, PublishedSetup& out) {
  const std::string setting{named_setting(row)};
  if (!setting.empty()) out.assumed.push_back(fmt::format("{}: {}", row.note, setting));
  for (const std::string* text : {&row.method_params, &row.note, &setting}) {
    const auto take = [&](auto& field, std::string_view words) {
      if (!field) field = positive_count(number_at(*text, words));
    };
    take(out.prefill_chunk, "prefill chunk");
    take(out.max_model_len, "max_model_len");
    take(out.max_num_seqs, "max_num_seqs");
    take(out.block_tokens, "block");
    take(out.cache_tokens, "cache_size");
    for (const std::string_view words :
         {"gpu_memory_utilization", "util", "mem-fraction-static", "kv fraction"}) {
      if (out.memory_fraction) break;
      const auto fraction = number_at(*text, words);
      if (fraction && *fraction > 0 && *fraction <= 1) out.memory_fraction = fraction;
    }
    if (has_word(*text, "enforce_eager")) out.eager_execution = true;
  }
  if (!out.cache_tokens && out.prompt && out.prompt->allocated) {
    out.cache_tokens = out.prompt->allocated;
  }
  out.linear_mask = has_text(row.method, "linear causal mask");
  out.card_memory = stated_memory(row.note);
}

/// Tensor parallelism beyond the column: "TP=4".
std::int32_t gpus_of(const PublishedRow& row) {
  const auto count = number_of(row.gpu_count);
  if (!count || *count < 1 || *count > 1024 || *count != std::floor(*count)) return 0;
  return static_cast<std::int32_t>(*count);
}

void judge_scope(const PublishedRow& row, PublishedSetup& out) {
  const auto refuse = [&](std::string why) {
    if (out.out_of_scope.empty()) out.out_of_scope = std::move(why);
  };
  if (has_text(row.method, "bwd") || has_text(row.method, "training")) {
    refuse("training, not inference");
  }
  if (row.metric == "available_kv_cache_memory") {
    refuse("cache memory, which the other figures of its start are predicted from");
  }
  const PublishedMetricInfo* metric = find_metric_rule(row.metric);
  const bool needs_gpu = metric == nullptr || metric->kind != PublishedKind::kEngineCache;
  if (out.gpu == nullptr && needs_gpu)
    refuse(fmt::format("GPU \"{}\" is not in the catalogue", row.gpu));
  if (!out.value) refuse("the value is not a number");
  if (out.gpus == 0 && needs_gpu)
    refuse(fmt::format("GPU count \"{}\" is not a number", row.gpu_count));
  const auto numbers = [&](const char* what, const std::string& cell) {
    if (!plain_text(cell).empty() && out.why_missing(what) != nullptr) {
      refuse(fmt::format("no number in {} \"{}\"", what, cell));
    }
  };
  numbers("prompt", row.prompt_len);
  numbers("output", row.output_len);
  numbers("batch", row.batch);
  out.in_scope = out.out_of_scope.empty();
}

}  // namespace

const std::string* PublishedSetup::why_missing(std::string_view what) const {
  for (const Missing& entry : missing) {
    if (entry.what == what) return &entry.why;
  }
  return nullptr;
}

std::vector<const Llm*> models_named(const std::string& cell, std::string& assumed) {
  if (plain_text(cell) == "any") {
    assumed = fmt::format("holds for any model: {} is used", kAnyModel);
    return {&find_llm(kAnyModel)};
  }
  try {
    return {&model_named(cell, assumed)};
  } catch (const InputError&) {
    std::string list = plain_text(cell);
    if (const auto of = list.find("avg of "); of != std::string::npos) list = list.substr(of + 7);
    const std::vector<std::string> names = split(list, ",/");
    if (names.size() < 2) throw;
    std::vector<const Llm*> out;
    for (const std::string& name : names) {
      std::string one;
      out.push_back(&model_named(name, one));
      if (!one.empty()) assumed = assumed.empty() ? one : fmt::format("{}; {}", assumed, one);
    }
    return out;
  }
}

std::string start_of(const PublishedRow& row) {
  return fmt::format("{}\n{}\n{}\n{}", row.source, row.model, row.kv_dtype, row.method_params);
}

PublishedSetup read_setup(const PublishedRow& row, const DocumentContext& document) {
  PublishedSetup out;
  if (const auto pool = document.pools.find(start_of(row)); pool != document.pools.end()) {
    out.pool = pool->second;
  }
  const auto lacks = [&](const char* what, std::string why) {
    out.missing.push_back({what, std::move(why)});
  };
  const auto assume = [&](std::string text) {
    if (!text.empty()) out.assumed.push_back(std::move(text));
  };
  out.value = number_of(row.value);
  // What is worked out in a text, on no framework, is not what programs print.
  out.binary_document = document.binary && !plain_text(row.framework).empty();
  out.inconsistent = row.note.find("INCONSISTENT") != std::string::npos;
  out.gpus = gpus_of(row);

  try {
    out.gpu = &find_gpu(row.gpu);
  } catch (const InputError&) {
    lacks("gpu", fmt::format("GPU \"{}\" is not in the catalogue", row.gpu));
  }
  try {
    std::string assumed;
    out.llms = models_named(row.model, assumed);
    assume(std::move(assumed));
  } catch (const InputError&) {
    lacks("model", fmt::format("model \"{}\" is not in the catalogue", row.model));
  }

  out.weights = parse_format(split(without_brackets(row.dtype), "/").empty()
                                 ? std::string{}
                                 : split(without_brackets(row.dtype), "/").front());
  if (!out.weights) lacks("weights", fmt::format("no format in dtype \"{}\"", row.dtype));
  std::string assumed_cache;
  out.kv_dtype = cache_format(row, out.weights, assumed_cache);
  assume(std::move(assumed_cache));

  out.prompt = parse_prompt(row.prompt_len, row.note);
  if (!out.prompt) {
    lacks("prompt", plain_text(row.prompt_len).empty()
                        ? std::string{"no prompt length is stated"}
                        : fmt::format("no number in prompt \"{}\"", row.prompt_len));
  } else if (out.prompt->is_short) {
    assume(fmt::format("a short prompt: {} tokens", kShortPrompt));
  }
  out.output = parse_output(row.output_len, out.prompt ? out.prompt->tokens : 0);
  if (!out.output) {
    lacks("output", plain_text(row.output_len).empty()
                        ? std::string{"no output length is stated"}
                        : fmt::format("no number in output \"{}\"", row.output_len));
  }
  out.batch = parse_batch(row.batch, row.note);
  if (!out.batch) {
    lacks("batch", plain_text(row.batch).empty()
                       ? std::string{"no batch is stated"}
                       : fmt::format("no number in batch \"{}\"", row.batch));
  }
  read_engine_words(row, out);

  MethodMatch method =
      match_method(row.method, row.method_params, row.note, out.prompt ? out.prompt->tokens : 0);
  if (method.spec) {
    out.method = std::move(method.spec);
    out.recomputes_window = method.recomputes_window;
    for (std::string& text : method.assumed) assume(std::move(text));
  } else {
    lacks("method", std::move(method.reason));
  }

  AttentionPatch patch = AttentionPatch::kNone;
  if (out.method && out.prompt) {
    try {
      const MethodNeeds needs =
          make_method(*out.method, out.prompt->tokens, {.n_layers = 32, .d_model = 4096})->needs();
      patch = attention_patch(out.method->name, needs, out.batch ? out.batch->sequences : 1);
    } catch (const InputError& error) {
      out.method.reset();
      lacks("method", error.what());
    }
  }
  const StackMatch stack = match_stack(
      row, patch, document.version,
      out.llms.empty() ? std::string_view{} : std::string_view{out.llms.front()->model_type});
  out.stack = stack.stack;
  if (out.stack == nullptr) {
    lacks("stack", stack.reason);
  } else {
    assume(stack.assumed);
    // Kernels that read codes are the quantising methods' own; operators of PyTorch expand them.
    constexpr std::array<std::string_view, 2> kWithoutKernels{"int8", "rtn"};
    if (out.method && runs_by_operators(*out.stack) &&
        std::find(kWithoutKernels.begin(), kWithoutKernels.end(), out.method->name) !=
            kWithoutKernels.end()) {
      out.method->params.try_emplace("dequant", std::string{"copy"});
      assume("a cache of codes in plain PyTorch: expanded into a copy at every step");
    }
    if (stack.eager) {
      out.eager_execution = true;
      assume("a vLLM without CUDA graphs");
    }
    if (stack.all_logits && out.stack->logits == LogitPositions::kLast) {
      out.all_logits = true;
      assume("transformers before 4.45: logits of all positions, in fp32");
    }
    const PublishedMetricInfo* metric = find_metric_rule(row.metric);
    out.fitted =
        fitted_on(*out.stack, row, metric != nullptr && metric->kind == PublishedKind::kTime);
  }
  const auto states = [&](bool stated, const char* what) {
    if (!stated) out.unstated.emplace_back(what);
  };
  states(names_version(row.framework) || names_version(row.note) || !document.version.empty(),
         "version");
  states(out.memory_fraction.has_value(), "gpu_memory_utilization");
  states(out.max_model_len.has_value(), "max_model_len");
  states(out.card_memory.has_value(), "total_gpu_memory");
  judge_scope(row, out);
  return out;
}

}  // namespace kvsim
