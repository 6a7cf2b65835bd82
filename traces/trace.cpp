#include "traces/trace.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <random>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "traces/draw.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace_metadata.hpp"

namespace kvsim {
namespace {

// Generous bounds, far above real models; their products cannot overflow.
constexpr std::int64_t kMaxHeads = 100'000;
constexpr std::int64_t kWidest = 1'000'000;
constexpr std::int64_t kMaxTokens = 100'000'000;
constexpr double kLargestScale = 1000;
// Recorded values of models reach hundreds. Below this bound no dot product or logit exceeds the
// range of fp32.
constexpr float kLargestElement = 1e6F;

std::string tensor_name(std::int32_t layer, std::string_view part) {
  return fmt::format("layers.{}.{}", layer, part);
}

/// Returns the tensor of that name and shape. Errors: InputError if it is missing or differs.
const TensorEntry& need(const Safetensors& file, const std::string& name,
                        const std::vector<std::int64_t>& shape) {
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) {
    throw InputError{fmt::format("{}: {}: missing (expected shape [{}])", file.place(), name,
                                 fmt::join(shape, ", "))};
  }
  if (entry->shape != shape) {
    throw InputError{fmt::format("{}: {}", file.place(), name),
                     fmt::format("shape [{}]", fmt::join(shape, ", ")),
                     fmt::format("[{}]", fmt::join(entry->shape, ", "))};
  }
  if (entry->type != TensorType::kF16 && entry->type != TensorType::kBF16 &&
      entry->type != TensorType::kF32 && entry->type != TensorType::kF64) {
    throw InputError{fmt::format("{}: {}", file.place(), name), "F16, BF16, F32 or F64",
                     name_of(entry->type)};
  }
  return *entry;
}

Dtype dtype_of(TensorType type) {
  switch (type) {
    case TensorType::kF16:
      return Dtype::kFp16;
    case TensorType::kBF16:
      return Dtype::kBf16;
    default:
      return Dtype::kFp32;
  }
}

/// Returns each NAME of layers.{i}.KIND.NAME that every layer has with shape [tokens, n_kv_heads].
std::vector<std::string> per_head_names(const Safetensors& file, const TraceInfo& info,
                                        std::string_view kind) {
  std::vector<std::string> names;
  const std::string prefix = tensor_name(0, kind) + ".";
  for (const auto& [name, entry] : file.tensors()) {
    if (!name.starts_with(prefix)) continue;
    const std::string word = name.substr(prefix.size());
    for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
      (void)need(file, fmt::format("layers.{}.{}.{}", layer, kind, word),
                 {info.tokens, info.n_kv_heads});
    }
    names.push_back(word);
  }
  return names;
}

TraceInfo read_info(const Safetensors& file, const std::filesystem::path& path) {
  const TraceMetadata meta{file};
  if (const std::string format = meta.word("format"); format != "kv-attention-trace") {
    throw InputError{meta.place("format"), "\"kv-attention-trace\"", TraceMetadata::quoted(format)};
  }
  if (const std::string version = meta.word("version"); version != "1") {
    throw InputError{meta.place("version"), "\"1\"", TraceMetadata::quoted(version)};
  }
  TraceInfo info;
  info.name = path.stem().string();
  info.metadata = file.metadata();
  if (const std::string* model = meta.find("model")) info.model = *model;
  info.n_layers = static_cast<std::int32_t>(meta.integer("num_layers", 1, kMaxTraceLayers));
  info.n_heads = static_cast<std::int32_t>(meta.integer("num_q_heads", 1, kMaxHeads));
  info.n_kv_heads = static_cast<std::int32_t>(meta.integer("num_kv_heads", 1, info.n_heads));
  if (info.n_heads % info.n_kv_heads != 0) {
    throw InputError{meta.place("num_kv_heads"),
                     fmt::format("a divisor of num_q_heads, {}", info.n_heads),
                     std::to_string(info.n_kv_heads)};
  }
  info.head_dim = static_cast<std::int32_t>(meta.integer("head_dim", 1, kWidest));
  info.tokens = meta.integer("num_tokens", 1, kMaxTokens);
  info.prompt_tokens = meta.integer("prompt_len", 1, info.tokens);
  if (const std::string* mask = meta.find("mask"); mask != nullptr && *mask != "causal") {
    throw InputError{meta.place("mask"), "\"causal\": a replay supports only causal attention",
                     TraceMetadata::quoted(*mask)};
  }
  info.softmax_scale = meta.find("softmax_scale") != nullptr
                           ? meta.positive("softmax_scale", kLargestScale)
                           : 1.0 / std::sqrt(info.head_dim);
  if (const std::string* style = meta.find("rope_style")) {
    if (*style != "interleaved" && *style != "half_split") {
      throw InputError{meta.place("rope_style"), "\"interleaved\" or \"half_split\"",
                       TraceMetadata::quoted(*style)};
    }
    info.rope_style = *style == "interleaved" ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit;
  }
  constexpr double kMaxParameters = 1e18;
  if (meta.find("parameters") != nullptr) (void)meta.positive("parameters", kMaxParameters);
  if (meta.find("rope_theta") != nullptr) info.rope_theta = meta.positive("rope_theta", 1e15);
  if (meta.find("repeat_start") != nullptr || meta.find("repeat_len") != nullptr) {
    info.repeat_start = meta.integer("repeat_start", 0, info.tokens - 1);
    info.repeat_tokens = meta.integer("repeat_len", 1, info.tokens - *info.repeat_start);
  }
  read_marks(meta, info);
  read_separators(meta, info);
  return info;
}

/// An indexer is recorded in every layer, or in none.
void read_index_shape(const Safetensors& file, TraceInfo& info) {
  const TensorEntry* first = file.find("layers.0.index.q");
  if (first == nullptr) return;
  const auto& shape = first->shape;
  if (shape.size() != 3 || shape[1] < 1 || shape[1] > kMaxHeads || shape[2] < 1 ||
      shape[2] > kWidest) {
    throw InputError{fmt::format("{}: layers.0.index.q", file.place()),
                     "shape [tokens, index heads, channels]",
                     fmt::format("[{}]", fmt::join(shape, ", "))};
  }
  info.index_heads = static_cast<std::int32_t>(shape[1]);
  info.index_dim = static_cast<std::int32_t>(shape[2]);
  for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
    (void)need(file, tensor_name(layer, "index.q"),
               {info.tokens, info.index_heads, info.index_dim});
    (void)need(file, tensor_name(layer, "index.k"), {info.tokens, info.index_dim});
    (void)need(file, tensor_name(layer, "index.w"), {info.tokens, info.index_heads});
  }
}

/// Rows of separately computed chunks are recorded in every layer, or in none.
bool has_reused_rows(const Safetensors& file, const TraceInfo& info) {
  if (file.find("layers.0.reused.k") == nullptr) return false;
  for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
    for (const char* part : {"reused.k", "reused.v"}) {
      (void)need(file, tensor_name(layer, part), {info.tokens, info.n_kv_heads, info.head_dim});
    }
  }
  return true;
}

/// Rejects queries, keys or values of a layer beyond num_layers.
void check_no_more_layers(const Safetensors& file, const TraceInfo& info) {
  constexpr std::string_view kPrefix = "layers.";
  const auto& tensors = file.tensors();
  for (auto at = tensors.lower_bound(std::string{kPrefix});
       at != tensors.end() && at->first.starts_with(kPrefix); ++at) {
    const std::string_view rest = std::string_view{at->first}.substr(kPrefix.size());
    std::int64_t layer = 0;
    const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    if (status != std::errc{} || layer < info.n_layers) continue;
    const std::string_view part = rest.substr(static_cast<std::size_t>(end - rest.data()));
    if (part != ".q" && part != ".k" && part != ".v") continue;
    throw InputError{fmt::format("{}: {}", file.place(), excerpt(at->first)),
                     fmt::format("a layer below __metadata__.num_layers, {}", info.n_layers),
                     fmt::format("layer {}", layer)};
  }
}

void check_tensors(const Safetensors& file, TraceInfo& info) {
  info.has_hidden = file.find("layers.0.hidden") != nullptr;
  info.has_output_projection = file.find("layers.0.wo") != nullptr;
  if (info.has_hidden) {
    const auto& shape = file.find("layers.0.hidden")->shape;
    if (shape.size() != 2 || shape[1] < 1 || shape[1] > kWidest) {
      throw InputError{fmt::format("{}: layers.0.hidden", file.place()), "shape [tokens, d_model]",
                       fmt::format("[{}]", fmt::join(shape, ", "))};
    }
    info.d_model = static_cast<std::int32_t>(shape[1]);
  } else if (info.has_output_projection && !file.find("layers.0.wo")->shape.empty()) {
    info.d_model = static_cast<std::int32_t>(std::min(file.find("layers.0.wo")->shape[0], kWidest));
  }
  TensorType kv_type = TensorType::kF32;
  for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
    (void)need(file, tensor_name(layer, "q"), {info.tokens, info.n_heads, info.head_dim});
    const auto& k =
        need(file, tensor_name(layer, "k"), {info.tokens, info.n_kv_heads, info.head_dim});
    const auto& v =
        need(file, tensor_name(layer, "v"), {info.tokens, info.n_kv_heads, info.head_dim});
    if (layer == 0) kv_type = k.type;
    for (const auto& [part, entry] : {std::pair{"k", &k}, std::pair{"v", &v}}) {
      if (entry->type != kv_type) {
        throw InputError{fmt::format("{}: {}", file.place(), tensor_name(layer, part)),
                         fmt::format("{}, as layers.0.k", name_of(kv_type)), name_of(entry->type)};
      }
    }
    if (info.has_hidden)
      (void)need(file, tensor_name(layer, "hidden"), {info.tokens, info.d_model});
    if (info.has_output_projection) {
      (void)need(file, tensor_name(layer, "wo"),
                 {info.d_model, static_cast<std::int64_t>(info.n_heads) * info.head_dim});
    }
  }
  check_no_more_layers(file, info);
  read_index_shape(file, info);
  info.has_reused = has_reused_rows(file, info);
  info.dtype = dtype_of(kv_type);
  info.scores = per_head_names(file, info, "score");
  info.decisions = per_head_names(file, info, "decision");
  if (const TensorEntry* tokens = file.find("tokens")) {
    if (tokens->shape != std::vector{info.tokens} || tokens->type != TensorType::kI32) {
      throw InputError{
          fmt::format("{}: tokens", file.place()), fmt::format("shape [{}] of I32", info.tokens),
          fmt::format("[{}] of {}", fmt::join(tokens->shape, ", "), name_of(tokens->type))};
    }
    info.has_token_ids = true;
  }
}

}  // namespace

std::optional<TraceSplit> split_of(std::string_view word) {
  const auto found = std::find(kTraceSplits.begin(), kTraceSplits.end(), word);
  if (found == kTraceSplits.end()) return std::nullopt;
  return static_cast<TraceSplit>(found - kTraceSplits.begin());
}

struct Trace::Impl {
  Safetensors file;
  TraceInfo info;

  /// Reads heads first … first + count - 1 of `layer` of a tensor with `group` heads for each KV
  /// head, [tokens, heads, d], as [count * group, tokens, d].
  [[nodiscard]] std::vector<float> read_kv_heads(std::int32_t layer, std::string_view name,
                                                 std::int64_t group, std::int32_t first,
                                                 std::int32_t count) const {
    const std::string tensor = tensor_name(info.number_of(layer), name);
    const std::int64_t all = group * info.all_kv_heads;
    if (!info.samples_heads()) return read_by_head(tensor, all, first * group, count * group);
    std::vector<float> out;
    for (std::int32_t h = first; h < first + count; ++h) {
      const std::int32_t head = info.head_number_of(layer, h);
      const std::vector<float> one = read_by_head(tensor, all, head * group, group);
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }
  /// Selects the sample's columns of a tensor [rows, columns] with `width` columns for each KV
  /// head.
  [[nodiscard]] std::vector<float> columns_of_heads(std::int32_t layer, std::vector<float> all,
                                                    std::int64_t rows, std::int64_t width) const {
    if (!info.samples_heads()) return all;
    std::vector<float> out;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (const std::int32_t head : info.head_numbers[static_cast<std::size_t>(layer)]) {
        const auto from = all.begin() + (row * info.all_kv_heads + head) * width;
        out.insert(out.end(), from, from + width);
      }
    }
    return out;
  }

  /// Reads heads first … first + count - 1 of a finite [tokens, heads, d] tensor: [count, tokens,
  /// d].
  std::vector<float> read_by_head(const std::string& name, std::int64_t heads, std::int64_t first,
                                  std::int64_t count) const {
    constexpr std::int64_t kRun = 1024;  // tokens whose pages are mapped at a time
    const TensorEntry& entry = *file.find(name);
    const std::int64_t d = info.head_dim;
    std::vector<float> out(static_cast<std::size_t>(count * info.tokens * d));
    for (std::int64_t t = 0; t < info.tokens; ++t) {
      for (std::int64_t h = 0; h < count; ++h) {
        const auto row = std::span{out}.subspan(static_cast<std::size_t>((h * info.tokens + t) * d),
                                                static_cast<std::size_t>(d));
        file.read_floats(entry, (t * heads + first + h) * d, row);
        bool fits = true;
        // false for NaN
        for (const float x : row) fits = fits & (std::abs(x) <= kLargestElement);
        if (!fits) refuse_element(name, {t, first + h}, row);
      }
      if ((t + 1) % kRun == 0) file.release(entry, (t + 1 - kRun) * heads * d, kRun * heads * d);
    }
    file.release(entry);
    return out;
  }

  /// Reads [rows, columns] in fp32. Rejects NaN, and infinity unless `may_be_infinite`.
  std::vector<float> read_rows(const std::string& name, std::int64_t rows, std::int64_t columns,
                               bool may_be_infinite = false) const {
    std::vector<float> out(static_cast<std::size_t>(rows * columns));
    file.read_floats(name, 0, out);
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto line = std::span{out}.subspan(static_cast<std::size_t>(row * columns),
                                               static_cast<std::size_t>(columns));
      const auto fits = [may_be_infinite](float x) {
        return may_be_infinite ? !std::isnan(x) : std::isfinite(x);
      };
      if (!std::all_of(line.begin(), line.end(), fits)) refuse(name, {row}, line);
    }
    file.release(*file.find(name));
    return out;
  }

  /// Reports a query, key or value that is not a number, or is larger than in any model.
  [[noreturn]] void refuse_element(const std::string& name, std::vector<std::int64_t> index,
                                   std::span<const float> line) const {
    const auto bad = std::find_if(line.begin(), line.end(),
                                  [](float x) { return !(std::abs(x) <= kLargestElement); });
    if (!std::isfinite(*bad)) refuse(name, std::move(index), line);
    index.push_back(bad - line.begin());
    throw InputError{fmt::format("{}: {}[{}]", file.place(), name, fmt::join(index, ", ")),
                     fmt::format("a magnitude of at most {:g}", kLargestElement),
                     fmt::format("{:g}", *bad)};
  }

  [[noreturn]] void refuse(const std::string& name, std::vector<std::int64_t> index,
                           std::span<const float> line) const {
    auto bad = std::find_if(line.begin(), line.end(), [](float x) { return std::isnan(x); });
    if (bad == line.end()) {
      bad = std::find_if(line.begin(), line.end(), [](float x) { return !std::isfinite(x); });
    }
    index.push_back(bad - line.begin());
    throw InputError{fmt::format("{}: {}[{}]", file.place(), name, fmt::join(index, ", ")),
                     "a finite number", std::isnan(*bad) ? "NaN" : "infinity"};
  }

  void need_layer(std::int32_t layer) const {
    KVSIM_CHECK(layer >= 0 && layer < info.n_layers, "layer {} of {}", layer, info.n_layers);
  }
};

Trace::Trace(std::unique_ptr<Impl> impl) : impl_{std::move(impl)} {}
Trace::Trace(Trace&&) noexcept = default;
Trace& Trace::operator=(Trace&&) noexcept = default;
Trace::~Trace() = default;

Trace Trace::open(const std::filesystem::path& path) {
  Safetensors file = Safetensors::open(path);
  TraceInfo info = read_info(file, path);
  check_tensors(file, info);
  info.all_layers = info.n_layers;
  info.all_kv_heads = info.n_kv_heads;
  return Trace{std::make_unique<Impl>(Impl{std::move(file), std::move(info)})};
}

const TraceInfo& Trace::info() const { return impl_->info; }

void Trace::split(TraceSplit at) {
  if (at == TraceSplit::kRecorded) return;
  TraceInfo& info = impl_->info;
  const bool aware = at == TraceSplit::kQuestionAware;
  const std::optional<std::int64_t> mark = aware ? info.answer_start : info.question_start;
  const std::string place = impl_->file.place();
  if (!mark) {
    throw InputError{fmt::format("{}: __metadata__.{}: missing; a {} replay ends the prompt there",
                                 place, aware ? "answer_start" : "question_start",
                                 kTraceSplits[static_cast<std::size_t>(at)])};
  }
  if (info.repeat_start && *mark > *info.repeat_start) {
    throw InputError{fmt::format("{}: __metadata__.repeat_start", place),
                     fmt::format("{} or later, where the prompt ends", *mark),
                     std::to_string(*info.repeat_start)};
  }
  info.prompt_tokens = *mark;
}

void Trace::sample(std::int32_t layers, std::int32_t heads, std::uint64_t seed) {
  TraceInfo& info = impl_->info;
  const auto check = [&](std::string_view what, std::int32_t wanted, std::int32_t all) {
    if (wanted >= 0 && wanted <= all) return;
    throw InputError{fmt::format("{}: a sample of {}", impl_->file.place(), what),
                     fmt::format("at most {}", all), std::to_string(wanted)};
  };
  check("layers", layers, info.all_layers);
  check("KV heads", heads, info.all_kv_heads);
  const std::int32_t group = info.n_heads / info.n_kv_heads;
  std::mt19937_64 random{seed};
  const std::int32_t n = layers > 0 ? layers : info.all_layers;
  info.layers_by_stratum = strata_of(n);
  info.layer_numbers = draw_by_stratum(info.layers_by_stratum, info.all_layers, random);
  info.n_layers = static_cast<std::int32_t>(info.layer_numbers.size());
  info.n_kv_heads = heads > 0 ? heads : info.all_kv_heads;
  info.n_heads = info.n_kv_heads * group;
  info.head_numbers.clear();
  for (std::int32_t layer = 0; layer < info.n_layers; ++layer) {
    info.head_numbers.push_back(draw(info.n_kv_heads, info.all_kv_heads, random));
  }
}

TraceLayer Trace::read_layer(std::int32_t layer) const {
  return read_heads(layer, 0, info().n_kv_heads);
}

TraceLayer Trace::read_heads(std::int32_t layer, std::int32_t first, std::int32_t count) const {
  impl_->need_layer(layer);
  const TraceInfo& info = impl_->info;
  KVSIM_CHECK(first >= 0 && count >= 0 && first + count <= info.n_kv_heads,
              "KV heads {} … {} of {}", first, first + count, info.n_kv_heads);
  const std::int64_t group = info.n_heads / info.n_kv_heads;
  return {.q = impl_->read_kv_heads(layer, "q", group, first, count),
          .k = impl_->read_kv_heads(layer, "k", 1, first, count),
          .v = impl_->read_kv_heads(layer, "v", 1, first, count)};
}

std::vector<float> Trace::read_hidden(std::int32_t layer) const {
  impl_->need_layer(layer);
  const TraceInfo& info = impl_->info;
  if (!info.has_hidden)
    throw InputError{fmt::format("{}: hidden states are not recorded", impl_->file.place())};
  return impl_->read_rows(tensor_name(impl_->info.number_of(layer), "hidden"), info.tokens,
                          info.d_model);
}

std::vector<float> Trace::read_output_projection(std::int32_t layer) const {
  impl_->need_layer(layer);
  const TraceInfo& info = impl_->info;
  if (!info.has_output_projection) {
    throw InputError{
        fmt::format("{}: output projections (wo) are not recorded", impl_->file.place())};
  }
  const std::int64_t width = std::int64_t{info.n_heads / info.n_kv_heads} * info.head_dim;
  return impl_->columns_of_heads(layer,
                                 impl_->read_rows(tensor_name(impl_->info.number_of(layer), "wo"),
                                                  info.d_model, width * info.all_kv_heads),
                                 info.d_model, width);
}

std::vector<float> Trace::read_per_head(std::int32_t layer, std::string_view name) const {
  impl_->need_layer(layer);
  const std::string tensor = tensor_name(impl_->info.number_of(layer), name);
  if (impl_->file.find(tensor) == nullptr) {
    throw InputError{fmt::format("{}: {} is not recorded", impl_->file.place(), tensor)};
  }
  const TraceInfo& info = impl_->info;
  (void)need(impl_->file, tensor, {info.tokens, info.all_kv_heads});
  return impl_->columns_of_heads(
      layer, impl_->read_rows(tensor, info.tokens, info.all_kv_heads, /*may_be_infinite=*/true),
      info.tokens, 1);
}

std::vector<float> Trace::read_index(std::int32_t layer, std::string_view part) const {
  impl_->need_layer(layer);
  const TraceInfo& info = impl_->info;
  if (info.index_heads == 0) {
    throw InputError{fmt::format("{}: an indexer (index.q, index.k, index.w) is not recorded",
                                 impl_->file.place())};
  }
  const std::int64_t columns = part == "q"   ? std::int64_t{info.index_heads} * info.index_dim
                               : part == "k" ? info.index_dim
                                             : info.index_heads;
  return impl_->read_rows(tensor_name(impl_->info.number_of(layer), fmt::format("index.{}", part)),
                          info.tokens, columns);
}

TraceRows Trace::read_reused(std::int32_t layer, std::int32_t first, std::int32_t count) const {
  impl_->need_layer(layer);
  const TraceInfo& info = impl_->info;
  if (!info.has_reused) {
    throw InputError{
        fmt::format("{}: rows of chunks computed apart (reused.k, reused.v) are not "
                    "recorded",
                    impl_->file.place())};
  }
  return {.k = impl_->read_kv_heads(layer, "reused.k", 1, first, count),
          .v = impl_->read_kv_heads(layer, "reused.v", 1, first, count)};
}

std::vector<std::int32_t> Trace::read_tokens() const {
  const TensorEntry* entry = impl_->file.find("tokens");
  if (entry == nullptr)
    throw InputError{fmt::format("{}: token ids are not recorded", impl_->file.place())};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(impl_->info.tokens));
  const auto raw = impl_->file.bytes(*entry);
  std::memcpy(tokens.data(), raw.data(), raw.size());
  return tokens;
}

}  // namespace kvsim
