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

/// The model used for "any model" in statements about all models.
constexpr std::string_view kAnyModel = "llama-3.1-8b";

const Llm* find_or_null(std::string_view name) {
  try {
    return &find_llm(name);
  } catch (const InputError&) {
    return nullptr;
  }
}

/// Returns `name` without suffixes for a model's tuning or storage format.
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
  // A family without its version ("Mistral-7B", "Llama3"): the smallest model with this prefix.
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
  return find_llm(bare);  // throws and names the most similar model
}

/// Returns the GPU by its name, which may be followed by other words: "RTX PRO 6000 class (SM120)".
const Gpu* gpu_named(const std::string& cell) {
  const std::string bare = without_brackets(cell);
  for (std::string name : {cell, bare, bare.substr(0, bare.find(" class"))}) {
    try {
      return &find_gpu(name);
    } catch (const InputError&) {
      continue;
    }
  }
  return nullptr;
}

/// Returns a size such as "27b" or "35b-a3b" in a cell; empty if there is none.
std::string size_in(std::string_view cell) {
  const std::string text = plain_text(cell);
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto digit = [&](std::size_t i) {
      return i < text.size() && text[i] >= '0' && text[i] <= '9';
    };
    if (!digit(at) || (at > 0 && (digit(at - 1) || text[at - 1] == '.' || text[at - 1] == 'a')))
      continue;
    std::size_t end = at;
    while (digit(end)) ++end;
    if (end >= text.size() || text[end] != 'b') continue;
    ++end;
    if (text.substr(end, 2) == "-a" && digit(end + 2)) {
      end += 2;
      while (digit(end)) ++end;
      if (end < text.size() && text[end] == 'b') ++end;
    }
    return text.substr(at, end - at);
  }
  return {};
}

/// Returns the catalogue's model of a class described by its size and its kind or family: "27B GDN
/// hybrid", "Qwen3.6/3.8 27B class"; null if there is no match or no size.
const Llm* sized_model(const std::string& cell) {
  const std::string size = size_in(cell);
  if (size.empty()) return nullptr;
  const bool by_kind = has_text(cell, "gdn");
  for (const Llm& llm : builtin_llms()) {
    if (!llm.name.ends_with("-" + size)) continue;
    const bool delta = std::any_of(llm.layers.begin(), llm.layers.end(), [](const LayerSpec& l) {
      return l.state.kind == StateKind::kGatedDelta;
    });
    const std::string family = llm.name.substr(0, llm.name.find_first_of(".-"));
    if (by_kind ? delta : has_text(cell, family)) return &llm;
  }
  return nullptr;
}

/// Whether the figure is printed by an engine at its start.
bool prints_start(const PublishedRow& row) {
  const PublishedMetricInfo* metric = find_metric_rule(row.metric);
  return metric != nullptr && metric->kind == PublishedKind::kEngineCache;
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

/// Returns a cell without additions to the model's name: " + DSpark K5", " with …", "/3.6 hybrid",
/// a release date.
std::string without_additions(const std::string& cell) {
  std::string out = without_endings(without_brackets(cell));
  // "GLM (5 family; …)"
  if (const std::size_t at = cell.find('('); at != std::string::npos && has_text(cell, " family")) {
    const std::string inside = cell.substr(at + 1, cell.find(" family") - at - 1);
    if (number_of(inside)) return out + "-" + inside;
  }
  for (const std::string_view mark : {" + ", " with ", " dspark", " hybrid", "-w4a16", "/"}) {
    out = out.substr(0, out.find(mark));
  }
  const std::size_t dash = out.rfind('-');
  const bool dated = dash != std::string::npos && out.size() == dash + 5 &&
                     out.find_first_not_of("0123456789", dash + 1) == std::string::npos;
  return without_endings(dated ? out.substr(0, dash) : out);
}

/// Returns the model of an engine's start, whose cell may name a class or additions.
const Llm& started_model(const std::string& cell, std::string& assumed) {
  const auto taken = [&](const Llm& llm) -> const Llm& {
    assumed = fmt::format("\"{}\" is taken as {}", cell, llm.name);
    return llm;
  };
  const std::string bare = without_endings(without_brackets(cell));
  for (const std::string& name : {plain_text(cell), bare}) {
    if (const Llm* exact = find_or_null(name)) return *exact;
  }
  if (const Llm* sized = sized_model(cell)) return taken(*sized);
  const std::string less = without_additions(cell);
  if (less.empty()) return find_llm(bare);  // throws
  return taken(model_named(less, assumed));
}

std::optional<Dtype> cache_format(const PublishedRow& row, const std::optional<FormatText>& weights,
                                  std::string& assumed) {
  const std::string text = without_brackets(row.kv_dtype);
  if (has_text(text, "per system") && text.find('/') != std::string::npos) {
    // "fp16/int8 per system": systems that quantise activations cache in 8 bits.
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

/// Returns the number of GPUs in the column, or 0 if it is not a whole number in [1, 1024].
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

bool is_block_count(std::string_view metric) {
  return metric == "num_gpu_blocks" || metric == "available_mamba_cache_blocks";
}

void StartFacts::add(const PublishedRow& row) {
  const auto value = number_of(row.value);
  if (!value || *value <= 0) return;
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (row.metric == "available_kv_cache_memory") pool = rounded<Bytes>(*value * kGiB);
  if (is_block_count(row.metric)) blocks = std::llround(*value);
  if (const auto prompt = parse_prompt(row.prompt_len, row.note)) max_model_len = prompt->tokens;
  if (row.metric == "model_loading") weights = rounded<Bytes>(*value * kGiB);
  if (row.metric == "gpu_kv_cache_size") tokens = *value;
  if (row.metric == "max_concurrency") concurrency = *value;
}

std::string start_of(const PublishedRow& row) {
  return fmt::format("{}\n{}\n{}\n{}", row.source, row.model, row.kv_dtype, row.method_params);
}

PublishedSetup read_setup(const PublishedRow& row, const DocumentContext& document) {
  PublishedSetup out;
  if (const auto start = document.starts.find(start_of(row)); start != document.starts.end()) {
    out.facts = start->second;
  }
  out.settings = row.method_params;
  if (const auto base = document.bases.find(start_of(row)); base != document.bases.end()) {
    out.settings += "; " + base->second.method_params;
    const auto start = document.starts.find(start_of(base->second));
    if (!out.facts.pool && start != document.starts.end()) out.facts.pool = start->second.pool;
  }
  const auto note_missing = [&](const char* what, std::string why) {
    out.missing.push_back({what, std::move(why)});
  };
  const auto assume = [&](std::string text) {
    if (!text.empty()) out.assumed.push_back(std::move(text));
  };
  out.value = number_of(row.value);
  // Figures derived in a text, without a framework, are not printed by programs.
  out.binary_document = document.binary && !plain_text(row.framework).empty();
  out.inconsistent = row.note.find("INCONSISTENT") != std::string::npos;
  out.gpus = gpus_of(row);

  out.gpu = gpu_named(row.gpu);
  if (out.gpu == nullptr) {
    note_missing("gpu", fmt::format("GPU \"{}\" is not in the catalogue", row.gpu));
  }
  try {
    std::string assumed;
    if (prints_start(row)) {
      out.llms = {&started_model(row.model, assumed)};
    } else {
      out.llms = models_named(row.model, assumed);
    }
    assume(std::move(assumed));
  } catch (const InputError&) {
    note_missing("model", fmt::format("model \"{}\" is not in the catalogue", row.model));
  }

  out.weights = parse_format(split(without_brackets(row.dtype), "/").empty()
                                 ? std::string{}
                                 : split(without_brackets(row.dtype), "/").front());
  if (!out.weights) note_missing("weights", fmt::format("no format in dtype \"{}\"", row.dtype));
  std::string assumed_cache;
  out.kv_dtype = cache_format(row, out.weights, assumed_cache);
  assume(std::move(assumed_cache));

  out.prompt = parse_prompt(row.prompt_len, row.note);
  if (!out.prompt) {
    note_missing("prompt", plain_text(row.prompt_len).empty()
                               ? std::string{"no prompt length is stated"}
                               : fmt::format("no number in prompt \"{}\"", row.prompt_len));
  } else if (out.prompt->is_short) {
    assume(fmt::format("a short prompt: {} tokens", kShortPrompt));
  }
  out.output = parse_output(row.output_len, out.prompt ? out.prompt->tokens : 0);
  if (!out.output) {
    note_missing("output", plain_text(row.output_len).empty()
                               ? std::string{"no output length is stated"}
                               : fmt::format("no number in output \"{}\"", row.output_len));
  }
  out.batch = parse_batch(row.batch, row.note);
  if (!out.batch) {
    note_missing("batch", plain_text(row.batch).empty()
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
    note_missing("method", std::move(method.reason));
  }

  AttentionPatch patch = AttentionPatch::kNone;
  if (out.method && out.prompt) {
    try {
      const MethodNeeds needs =
          make_method(*out.method, out.prompt->tokens, {.n_layers = 32, .d_model = 4096})->needs();
      patch = attention_patch(out.method->name, needs, out.batch ? out.batch->sequences : 1);
    } catch (const InputError& error) {
      out.method.reset();
      note_missing("method", error.what());
    }
  }
  const StackMatch stack = match_stack(
      row, patch, document.version,
      out.llms.empty() ? std::string_view{} : std::string_view{out.llms.front()->model_type});
  out.stack = stack.stack;
  out.release = vllm_release(row, document.version);
  if (prints_start(row) && out.stack != nullptr && out.stack->name.starts_with("vllm")) {
    // Engines that print such figures have groups of layers; rows without a release are from mid
    // 2026.
    out.stack = &vllm_v1_stack(out.release.value_or(EngineVersion{0, 22, 0}));
  }
  if (out.stack == nullptr) {
    note_missing("stack", stack.reason);
  } else {
    if (!prints_start(row)) assume(stack.assumed);
    // Only quantising methods have kernels that read codes; PyTorch operators dequantise them
    // first.
    constexpr std::array<std::string_view, 2> kWithoutKernels{"int8", "rtn"};
    if (out.method && runs_by_operators(*out.stack) &&
        std::find(kWithoutKernels.begin(), kWithoutKernels.end(), out.method->name) !=
            kWithoutKernels.end()) {
      out.method->params.try_emplace("dequant", std::string{"copy"});
      assume("a cache of codes in plain PyTorch: expanded into a copy at every step");
    }
    out.offloads_weights = stack.offloads_weights;
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
