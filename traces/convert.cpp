#include "traces/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // elements held at a time
constexpr float kFp16Overflows = 65520;                 // the smallest value that rounds to
                                                        // infinity

const std::vector<std::string> kWords{"q",       "k",        "v",       "hidden",
                                      "wo",      "tokens",   "index.q", "index.k",
                                      "index.w", "reused.k", "reused.v"};
// Keys that the tensors define.
const std::vector<std::string> kOwned{"format",       "version",  "num_layers", "num_q_heads",
                                      "num_kv_heads", "head_dim", "num_tokens", "dtype"};

/// Part of a recorded indexer.
bool is_of_index(std::string_view word) { return word.starts_with("index."); }

bool is_per_head(std::string_view word) {
  return (word.starts_with("score.") && word.size() > 6) ||
         (word.starts_with("decision.") && word.size() > 9);
}

void check_options(const ConvertOptions& options) {
  if (options.dtype && *options.dtype != Dtype::kFp32 && *options.dtype != Dtype::kFp16 &&
      *options.dtype != Dtype::kBf16) {
    throw InputError{"dtype", "fp32, fp16 or bf16", name_of(*options.dtype)};
  }
  for (const auto& [word, pattern] : options.names) {
    if (!is_per_head(word) && std::find(kWords.begin(), kWords.end(), word) == kWords.end()) {
      std::vector<std::string> known = kWords;
      known.insert(known.end(), {"score.NAME", "decision.NAME"});
      throw InputError{fmt::format("names: {}", unknown_name("tensor", word, known))};
    }
    if (word != "tokens" && pattern.find("{i}") == std::string::npos) {
      throw InputError{fmt::format("names.{}", word), "a tensor name with {i} for the layer",
                       fmt::format("\"{}\"", pattern)};
    }
  }
  for (const std::string& key : kOwned) {
    if (options.metadata.contains(key)) {
      throw InputError{fmt::format("metadata.{}: follows from the tensors, cannot be set", key)};
    }
  }
}

TensorType type_of(Dtype dtype) {
  if (dtype == Dtype::kFp32) return TensorType::kF32;
  return dtype == Dtype::kFp16 ? TensorType::kF16 : TensorType::kBF16;
}

std::string_view word_of(TensorType type) {
  switch (type) {
    case TensorType::kF16:
      return "float16";
    case TensorType::kBF16:
      return "bfloat16";
    case TensorType::kF64:
      return "float64";
    default:
      return "float32";
  }
}

bool is_float(TensorType type) {
  return type == TensorType::kF64 || type == TensorType::kF32 || type == TensorType::kF16 ||
         type == TensorType::kBF16;
}

/// One tensor to be written and its source.
struct Step {
  std::string from;
  TensorPlan to;
};

/// The tensors to be written, checked against the input before anything is written.
class Plan {
 public:
  Plan(const Safetensors& in, const ConvertOptions& options) : in_{in}, options_{options} {
    read_shape();
    for (std::size_t n = 0; n < layers_.size(); ++n) add_layer(n);
    if (const TensorEntry* ids = in_.find(name_in("tokens", 0)); ids != nullptr) {
      if ((ids->type != TensorType::kI32 && ids->type != TensorType::kI64) ||
          ids->shape != std::vector{all_tokens_}) {
        refuse(name_in("tokens", 0), fmt::format("shape [{}] of I32 or I64", all_tokens_), *ids);
      }
      steps_.push_back({name_in("tokens", 0), {"tokens", TensorType::kI32, {tokens_}}});
    } else if (options_.names.contains("tokens")) {
      missing(name_in("tokens", 0));
    }
  }
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }

  [[nodiscard]] std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> m = in_.metadata();
    const auto set = [&m](const std::string& key, std::int64_t value) {
      m[key] = fmt::format("{}", value);
    };
    m["format"] = "kv-attention-trace";
    m["version"] = "1";
    set("num_layers", std::ssize(layers_));
    set("num_q_heads", heads_);
    set("num_kv_heads", kv_heads_);
    set("head_dim", head_dim_);
    set("num_tokens", tokens_);
    m["dtype"] = word_of(kv_type_);
    m.try_emplace("model", "imported");
    for (const auto& [key, value] : options_.metadata) m[key] = value;
    if (tokens_ < all_tokens_) cut(m);
    const std::string change = changes();
    if (!change.empty()) {
      std::string& log = m["converted"];
      log += (log.empty() ? "" : "; then ") + change;
    }
    return m;
  }

 private:
  /// Returns a positive integer from the metadata; -1 if it is not one (Trace::open reports it).
  static std::int64_t number(const std::map<std::string, std::string>& m, const std::string& key) {
    const auto found = m.find(key);
    if (found == m.end() || found->second.empty() || found->second.size() > 12) return -1;
    std::int64_t value = 0;
    for (const char c : found->second) {
      if (c < '0' || c > '9') return -1;
      value = 10 * value + (c - '0');
    }
    return value;
  }

  void cut(std::map<std::string, std::string>& m) const {
    const auto note = [&](const std::string& text) {
      if (options_.note) options_.note(text);
    };
    const std::int64_t prompt = number(m, "prompt_len");
    if (!options_.metadata.contains("prompt_len") && prompt >= tokens_) {
      const std::int64_t left = std::max<std::int64_t>(1, tokens_ - 1);
      m["prompt_len"] = fmt::format("{}", left);
      note(
          fmt::format("the prompt of {} tokens is cut to {}, with {} left to decode; --metadata "
                      "prompt_len=N sets another length",
                      prompt, left, tokens_ == left ? "no token" : "1 token"));
    }
    const std::int64_t repeat = number(m, "repeat_start"), length = number(m, "repeat_len");
    if (repeat >= 0 && length >= 0 && repeat + length > tokens_) {
      for (const auto* key : {"repeat_start", "repeat_len", "repeat_of"}) m.erase(key);
      note(
          fmt::format("the repeat of the context ends at token {} and is not whole in {} tokens: "
                      "repeat_start and repeat_len are left out",
                      repeat + length, tokens_));
    }
    for (const auto* key : {"question_start", "answer_start"}) {
      const std::int64_t mark = number(m, key);
      if (mark < tokens_) continue;
      m.erase(key);
      note(fmt::format("{} {} is beyond the {} tokens and is left out", key, mark, tokens_));
    }
    if (const auto segments = m.find("segments"); segments != m.end()) {
      const Field all =
          Field::parse(segments->second, fmt::format("{}: __metadata__.segments", in_.place()));
      nlohmann::json kept = nlohmann::json::array();
      for (const Field& each : all.items()) {
        const std::int64_t start = each.at("start").integer(0, all_tokens_ - 1);
        const std::int64_t end = each.at("end").integer(start + 1, all_tokens_);
        if (start >= tokens_) continue;
        kept.push_back(each.raw());
        kept.back()["end"] = std::min(end, tokens_);
      }
      segments->second = kept.dump();
    }
  }

  [[nodiscard]] std::string changes() const {
    std::vector<std::string> said;
    if (tokens_ < all_tokens_) said.push_back(fmt::format("first {} tokens", tokens_));
    if (!options_.layers.empty()) said.push_back(fmt::format("layers {}", fmt::join(layers_, " ")));
    if (options_.dtype) said.push_back(fmt::format("as {}", word_of(kv_type_)));
    if (!options_.names.empty()) said.push_back("tensors renamed");
    return fmt::format("{}", fmt::join(said, ", "));
  }

  [[nodiscard]] std::string name_in(const std::string& word, std::int64_t layer) const {
    const auto mapped = options_.names.find(word);
    if (word == "tokens") return mapped == options_.names.end() ? word : mapped->second;
    std::string name =
        mapped == options_.names.end() ? fmt::format("layers.{{i}}.{}", word) : mapped->second;
    const std::string index = fmt::format("{}", layer);
    for (auto at = name.find("{i}"); at != std::string::npos; at = name.find("{i}", at)) {
      name.replace(at, 3, index);
    }
    return name;
  }

  [[noreturn]] void missing(const std::string& name) const {
    throw InputError{fmt::format("{}: {}: missing", in_.place(), name)};
  }
  [[noreturn]] void refuse(const std::string& name, std::string_view expected,
                           const TensorEntry& got) const {
    throw InputError{
        fmt::format("{}: {}", in_.place(), name), expected,
        fmt::format("[{}] of {}", fmt::join(got.shape, ", "), kvsim::name_of(got.type))};
  }

  /// Returns the layers of which the file has q, k or v, ascending.
  [[nodiscard]] std::vector<std::int32_t> layers_in_file() const {
    constexpr std::size_t kMaxDigits = 6;
    std::set<std::int32_t> found;
    for (const char* word : {"q", "k", "v"}) {
      const auto mapped = options_.names.find(word);
      const std::string pattern =
          mapped == options_.names.end() ? fmt::format("layers.{{i}}.{}", word) : mapped->second;
      const std::string prefix = pattern.substr(0, pattern.find("{i}"));
      for (const auto& [name, entry] : in_.tensors()) {
        if (!name.starts_with(prefix)) continue;
        const std::size_t end = name.find_first_not_of("0123456789", prefix.size());
        const std::string digits = name.substr(prefix.size(), end - prefix.size());
        if (digits.empty() || digits.size() > kMaxDigits) continue;
        const std::int32_t layer = std::stoi(digits);
        if (name == name_in(word, layer)) found.insert(layer);
      }
    }
    return {found.begin(), found.end()};
  }

  /// Returns the layers to write. Without `layers`: all layers of the file, which must be numbered
  /// from 0.
  [[nodiscard]] std::vector<std::int32_t> chosen_layers() const {
    const std::vector<std::int32_t> there = layers_in_file();
    if (there.empty()) missing(name_in("q", 0));
    for (const std::int32_t layer : options_.layers) {
      if (std::binary_search(there.begin(), there.end(), layer)) continue;
      throw InputError{"layers", fmt::format("of the file's layers ({})", fmt::join(there, ",")),
                       fmt::format("{}", layer)};
    }
    if (!options_.layers.empty()) return options_.layers;
    for (std::size_t i = 0; i < there.size(); ++i) {
      const auto expected = static_cast<std::int32_t>(i);
      if (there[i] == expected) continue;
      throw InputError{fmt::format(
          "{}: {}: missing, though the file has layer {}; layers={} converts the existing layers",
          in_.place(), name_in("q", expected), there[i], fmt::join(there, ","))};
    }
    return there;
  }

  void read_shape() {
    layers_ = chosen_layers();
    if (std::ssize(layers_) > kMaxTraceLayers) {
      throw InputError{in_.place(), fmt::format("at most {} layers", kMaxTraceLayers),
                       fmt::format("{}", layers_.size())};
    }
    const std::int32_t first = layers_.front();
    const TensorEntry* q = in_.find(name_in("q", first));
    const TensorEntry* k = in_.find(name_in("k", first));
    if (q == nullptr) missing(name_in("q", first));
    if (k == nullptr) missing(name_in("k", first));
    if (q->shape.size() != 3) refuse(name_in("q", first), "shape [tokens, heads, head_dim]", *q);
    if (k->shape.size() != 3) refuse(name_in("k", first), "shape [tokens, kv_heads, head_dim]", *k);
    all_tokens_ = q->shape[0];
    heads_ = q->shape[1];
    head_dim_ = q->shape[2];
    kv_heads_ = k->shape[1];
    tokens_ = options_.tokens.value_or(all_tokens_);
    if (tokens_ < 1 || tokens_ > all_tokens_) {
      throw InputError{"tokens", fmt::format("an integer in [1, {}]", all_tokens_),
                       fmt::format("{}", tokens_)};
    }
    kv_type_ = options_.dtype ? type_of(*options_.dtype) : k->type;
  }

  /// An empty `shape` accepts any two dimensions (wo: [d_model, heads * head_dim]).
  void add(std::size_t n, const std::string& word, const std::vector<std::int64_t>& shape,
           bool by_token, bool required) {
    const std::string from = name_in(word, layers_[n]);
    const TensorEntry* entry = in_.find(from);
    if (entry == nullptr) {
      if (required || options_.names.contains(word)) missing(from);
      return;
    }
    const bool fits = shape.empty() ? entry->shape.size() == 2 : entry->shape == shape;
    if (!fits || !is_float(entry->type)) {
      refuse(from,
             shape.empty()
                 ? "two dimensions of floating-point numbers"
                 : fmt::format("shape [{}] of floating-point numbers", fmt::join(shape, ", ")),
             *entry);
    }
    std::vector<std::int64_t> out = entry->shape;
    if (by_token) out[0] = tokens_;
    const bool keeps_type = is_per_head(word) || is_of_index(word) || !options_.dtype;
    steps_.push_back({from,
                      {fmt::format("layers.{}.{}", n, word),
                       keeps_type ? entry->type : type_of(*options_.dtype), std::move(out)}});
  }

  void add_layer(std::size_t n) {
    add(n, "q", {all_tokens_, heads_, head_dim_}, true, true);
    add(n, "k", {all_tokens_, kv_heads_, head_dim_}, true, true);
    add(n, "v", {all_tokens_, kv_heads_, head_dim_}, true, true);
    if (options_.keep_hidden) {
      const TensorEntry* hidden = in_.find(name_in("hidden", layers_[n]));
      const std::int64_t width =
          hidden != nullptr && hidden->shape.size() == 2 ? hidden->shape[1] : 0;
      add(n, "hidden", {all_tokens_, width}, true, false);
    }
    if (options_.keep_output_projection) add(n, "wo", {}, false, false);
    add_index(n);
    const std::vector<std::string> reused{"reused.k", "reused.v"};
    const bool has_reused = has_any(n, reused);
    for (const std::string& word : reused) {
      add(n, word, {all_tokens_, kv_heads_, head_dim_}, true, has_reused);
    }
    std::set<std::string> words;
    const std::string prefix = fmt::format("layers.{}.", layers_[n]);
    const auto& tensors = in_.tensors();  // sorted by name
    for (auto at = tensors.lower_bound(prefix);
         at != tensors.end() && at->first.starts_with(prefix); ++at) {
      const std::string word = at->first.substr(prefix.size());
      if (is_per_head(word)) words.insert(word);
    }
    for (const auto& [word, pattern] : options_.names) {
      if (is_per_head(word)) words.insert(word);
    }
    for (const std::string& word : words) {
      const bool keep = word.starts_with("score.") ? options_.keep_scores : options_.keep_decisions;
      if (keep) add(n, word, {all_tokens_, kv_heads_}, true, false);
    }
  }

  /// Whether one of `words` is named, or in the file.
  [[nodiscard]] bool has_any(std::size_t n, const std::vector<std::string>& words) const {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return options_.names.contains(word) || in_.find(name_in(word, layers_[n])) != nullptr;
    });
  }
  /// Adds all parts of an indexer, or none.
  void add_index(std::size_t n) {
    if (!has_any(n, {"index.q", "index.k", "index.w"})) return;
    const TensorEntry* q = in_.find(name_in("index.q", layers_[n]));
    if (q == nullptr) missing(name_in("index.q", layers_[n]));
    if (q->shape.size() != 3) {
      refuse(name_in("index.q", layers_[n]), "shape [tokens, index heads, channels]", *q);
    }
    add(n, "index.q", {all_tokens_, q->shape[1], q->shape[2]}, true, true);
    add(n, "index.k", {all_tokens_, q->shape[2]}, true, true);
    add(n, "index.w", {all_tokens_, q->shape[1]}, true, true);
  }

  const Safetensors& in_;
  const ConvertOptions& options_;
  std::int64_t all_tokens_ = 0, tokens_ = 0, heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  TensorType kv_type_ = TensorType::kF32;
  std::vector<std::int32_t> layers_;
  std::vector<Step> steps_;
};

std::int64_t elements(const TensorPlan& plan) {
  std::int64_t n = 1;
  for (const std::int64_t size : plan.shape) n *= size;
  return n;
}

double bytes(const TensorPlan& plan) {
  return static_cast<double>(elements(plan)) * static_cast<double>(item_size(plan.type));
}

/// The first elements of a tensor are the first rows, so a cut is a shorter read.
void copy_floats(const Safetensors& in, const Step& step, SafetensorsWriter& writer) {
  const std::int64_t all = elements(step.to);
  std::vector<float> piece;
  for (std::int64_t at = 0; at < all; at += kPiece) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, all - at)));
    in.read_floats(step.from, at, piece);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      const auto where = [&] {
        return fmt::format("{}: {}: element {}", in.place(), step.from,
                           at + static_cast<std::int64_t>(i));
      };
      if (!std::isfinite(piece[i])) {
        throw InputError{where(), "a finite number", fmt::format("{}", piece[i])};
      }
      if (step.to.type == TensorType::kF16 && std::abs(piece[i]) >= kFp16Overflows) {
        throw InputError{where(), "a number within fp16's range", fmt::format("{}", piece[i])};
      }
    }
    writer.write(std::span<const float>{piece});
  }
}

void copy_ids(const Safetensors& in, const Step& step, SafetensorsWriter& writer) {
  const TensorEntry& entry = *in.find(step.from);
  const auto bytes = in.bytes(entry);
  const std::size_t size = item_size(entry.type);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(elements(step.to)));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (entry.type == TensorType::kI32) {
      std::memcpy(&ids[i], bytes.data() + i * size, size);
      continue;
    }
    std::int64_t wide = 0;
    std::memcpy(&wide, bytes.data() + i * size, size);
    if (wide < 0 || wide > std::numeric_limits<std::int32_t>::max()) {
      throw InputError{fmt::format("{}: {}: element {}", in.place(), step.from, i),
                       "a token id that fits int32", fmt::format("{}", wide)};
    }
    ids[i] = static_cast<std::int32_t>(wide);
  }
  writer.write(std::span<const std::int32_t>{ids});
}

}  // namespace

void convert_trace(const std::filesystem::path& in, const std::filesystem::path& out,
                   const ConvertOptions& options) {
  check_options(options);
  const Safetensors file = Safetensors::open(in);
  const Plan plan{file, options};
  std::vector<TensorPlan> tensors;
  double total = 0, done = 0;
  for (const Step& step : plan.steps()) {
    tensors.push_back(step.to);
    total += bytes(step.to);
  }
  if (options.begins) options.begins(total);
  SafetensorsWriter writer{out, std::move(tensors), plan.metadata()};
  for (const Step& step : plan.steps()) {
    if (options.progress) options.progress(done / total);
    if (step.to.type == TensorType::kI32) {
      copy_ids(file, step, writer);
    } else {
      copy_floats(file, step, writer);
    }
    file.release(*file.find(step.from));
    done += bytes(step.to);
  }
  writer.finish([&out](const std::filesystem::path& written) {
    try {
      (void)Trace::open(written);
    } catch (const InputError& error) {
      // The error names the user's file, not its temporary name.
      std::string message = error.what();
      const std::string working = written.string();
      if (message.starts_with(working)) message.replace(0, working.size(), out.string());
      throw InputError{message};
    }
  });
  if (options.progress) options.progress(1);
}

}  // namespace kvsim
