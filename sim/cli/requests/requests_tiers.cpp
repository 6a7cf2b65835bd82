#include "sim/cli/requests/requests_tiers.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/gpu/gpu_of_user.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/llm.hpp"
#include "models/methods/composed.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "models/units/units_parse.hpp"
#include "sim/cli/options/model_argument.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kManyTokens = std::int64_t{1} << 16;

/// A level, and the codec of its blocks; empty: the same format as on the GPU.
struct WrittenTier {
  CacheTier tier;
  std::string codec;
};

WrittenTier read_tier(const std::string& word) {
  const auto wrong = [&] {
    return InputError{"--tiers",
                      "NAME=SIZE, NAME=SIZE@BANDWIDTH or NAME=SIZE@BANDWIDTH:CODEC, such as "
                      "host=256GiB@25GB/s or host=256GiB@25GB/s:nvfp4",
                      fmt::format("\"{}\"", word)};
  };
  const auto equals = word.find('=');
  if (equals == std::string::npos || equals == 0) throw wrong();
  const auto at = word.find('@', equals);
  const auto size = parse_bytes(
      word.substr(equals + 1, at == std::string::npos ? std::string::npos : at - equals - 1));
  if (!size || *size <= Bytes{}) throw wrong();
  CacheTier out{.name = word.substr(0, equals), .capacity = *size};
  std::string codec;
  if (at != std::string::npos) {
    const auto colon = word.find(':', at);
    out.bandwidth = parse_bandwidth(
        word.substr(at + 1, colon == std::string::npos ? std::string::npos : colon - at - 1));
    if (!out.bandwidth || *out.bandwidth <= BytesPerSecond{}) throw wrong();
    if (colon != std::string::npos) codec = word.substr(colon + 1);
    if (colon != std::string::npos && codec.empty()) throw wrong();
  }
  return {std::move(out), std::move(codec)};
}

/// Sets the size of a block of `tokens` tokens in `tier` with `codec`. Rows are encoded; index keys
/// and similar data are stored unchanged. `gpu`: null if no GPU is known.
void code_blocks(CacheTier& tier, const std::string& codec, const Llm& llm, Dtype dtype,
                 std::int64_t tokens, const Gpu* gpu) {
  const AttentionSpec& first = llm.layers.front().attention;
  const MethodSpec spec{"full+tier=" + codec, {}, {}};
  const auto method = make_method(spec, tokens,
                                  {.recorded = dtype,
                                   .shape = {.n_heads = first.n_heads,
                                             .n_kv_heads = first.n_kv_heads,
                                             .head_dim = first.head_dim},
                                   .n_layers = llm.n_layers()});
  const std::shared_ptr<const TierRule> rule = as_composed(*method).parts().tier;
  if (rule == nullptr) return;
  double rows = 0, held = 0, link = 0;
  Seconds decode;
  for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
    const std::int64_t elements =
        kv_elements_per_token(llm.layers[static_cast<std::size_t>(l)].attention);
    const TierPage page{.layer = l,
                        .tokens = tokens,
                        .keys = elements - elements / 2,
                        .values = elements / 2,
                        .stored = dtype};
    rows += page.bytes();
    held += std::ceil(rule->held_bytes(page));
    link += std::ceil(rule->link_bytes(page));
    if (gpu == nullptr) continue;
    const TierWork work = rule->decode(page);
    decode += std::max(FlopCount{work.flops} / peak_flops(*gpu, Dtype::kFp32),
                       Bytes{std::llround(work.read + work.written)} / gpu->hbm_bandwidth);
  }
  const double other = static_cast<double>(full_cache_bytes(llm, tokens, dtype).count()) - rows;
  tier.held_block = Bytes{std::llround(held + other)};
  tier.link_block = Bytes{std::llround(link + other)};
  tier.decode = decode;
}

Llm tier_model(const std::string& name) {
  const auto path = model_file(name, "--model");
  return path ? read_hf_config_file(*path, path->stem().string()) : find_llm(name);
}

Bytes block_bytes(const TierQuestion& question, const RequestTrace& trace) {
  return question.token_bytes * std::int64_t{trace.prefix_block};
}

double share_of(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Mean over all requests.
double per_request(Seconds sum, const RequestTrace& trace) {
  return trace.requests.empty() ? 0 : sum.count() / static_cast<double>(trace.requests.size());
}

}  // namespace

std::vector<Option> tier_options() {
  return {{"model", 'm', "NAME", false, "model whose cache --tiers holds", Option::Values::kModels},
          {"kv-dtype", 0, "FORMAT", false, "format of that cache (the model's)"},
          {"gpu", 'g', "NAME", false,
           "GPU that computes blocks in no tier: prints the minimum time for that",
           Option::Values::kGpus},
          {"tiers", 0, "NAME=SIZE@BANDWIDTH:CODEC,…", false,
           "levels of an LRU prefix cache, fastest first: prints the hits that each adds and their "
           "load time"}};
}

std::optional<TierQuestion> read_tiers(const Arguments& arguments, const RequestTrace& trace) {
  if (!arguments.has("tiers")) {
    for (const std::string_view option : {"model", "kv-dtype", "gpu"}) {
      if (arguments.has(option)) {
        throw InputError{fmt::format("{}: expected --tiers next to it", arguments.typed(option))};
      }
    }
    return std::nullopt;
  }
  if (trace.prefix_block == 0) {
    throw InputError{"--tiers", "a trace with prefix ids",
                     fmt::format("the format {}", trace.format)};
  }
  const auto name = arguments.value("model");
  if (!name) throw InputError{"--tiers: expected --model next to it"};
  const Llm llm = tier_model(*name);
  Dtype dtype = default_kv_dtype(llm, llm.published_dtype);
  if (const auto word = arguments.value("kv-dtype"); word && *word != "auto") {
    const auto format = parse_dtype(*word);
    if (!format) {
      throw InputError{"--kv-dtype", "a format such as \"fp8\"", fmt::format("\"{}\"", *word)};
    }
    dtype = *format;
  }
  TierQuestion out{.model = llm.name,
                   .token_bytes = full_cache_bytes(llm, 1, dtype),
                   .format = std::string{name_of(dtype)}};
  // States and windows are stored only at some positions, and have different sizes.
  if (full_cache_bytes(llm, kManyTokens, dtype) != out.token_bytes * kManyTokens) {
    throw InputError{"--model", "a model whose layers all keep every token, for --tiers",
                     fmt::format("{}, which has windows or states", llm.name)};
  }
  const auto gpu = arguments.value("gpu");
  const NamedGpu named = gpu ? gpu_of_user(*gpu) : NamedGpu{};
  for (const std::string& word : arguments.list("tiers")) {
    WrittenTier written = read_tier(word);
    if (!written.codec.empty()) {
      try {
        code_blocks(written.tier, written.codec, llm, dtype, trace.prefix_block, named.gpu);
      } catch (const InputError& error) {
        throw InputError{fmt::format("--tiers: {}: {}", word, error.what())};
      }
    }
    out.tiers.push_back(std::move(written.tier));
  }
  if (gpu) {
    out.gpu = named.gpu->name;
    out.token_time = FlopCount{2.0 * static_cast<double>(active_parameters(llm))} /
                     peak_flops(*named.gpu, Dtype::kBf16);
  }
  return out;
}

ordered_json tiers_json(const TierQuestion& question, const RequestTrace& trace,
                        const ReuseCurve& curve) {
  const Bytes block = block_bytes(question, trace);
  ordered_json levels = ordered_json::array();
  std::int64_t found = 0;
  const std::vector<TierHits> hits = tier_hits(curve, block, question.tiers);
  for (std::size_t i = 0; i < hits.size(); ++i) {
    const CacheTier& tier = question.tiers[i];
    found += hits[i].hits;
    levels.push_back({{"name", tier.name},
                      {"capacity_bytes", tier.capacity.count()},
                      {"bandwidth_bytes_s", tier.bandwidth ? ordered_json(tier.bandwidth->count())
                                                           : ordered_json(nullptr)},
                      {"capacity_blocks_so_far", hits[i].blocks},
                      {"block_bytes", tier.held_block.value_or(block).count()},
                      {"hit_blocks", hits[i].hits},
                      {"block_hit_rate", share_of(hits[i].hits, curve.blocks)},
                      {"load_s_per_request", per_request(hits[i].load, trace)}});
  }
  ordered_json out{{"model", question.model},
                   {"kv_dtype", question.format},
                   {"token_bytes", question.token_bytes.count()},
                   {"block_bytes", block.count()},
                   {"levels", std::move(levels)},
                   {"computed_blocks", curve.blocks - found},
                   {"gpu", nullptr},
                   {"computed_s_per_request_at_least", nullptr}};
  if (question.token_time) {
    const auto tokens = static_cast<double>((curve.blocks - found) * trace.prefix_block);
    out["gpu"] = question.gpu;
    out["computed_s_per_request_at_least"] =
        per_request(Seconds{question.token_time->count() * tokens}, trace);
  }
  return out;
}

std::string tiers_text(const TierQuestion& question, const RequestTrace& trace,
                       const ReuseCurve& curve, const std::string& schedule, std::size_t width) {
  const Bytes block = block_bytes(question, trace);
  Table table{{{"tier", Table::Align::kLeft},
               {"size"},
               {"blocks so far"},
               {"adds"},
               {"found so far"},
               {"s per request"}}};
  std::int64_t found = 0;
  const std::vector<TierHits> hits = tier_hits(curve, block, question.tiers);
  const auto percent = [&](std::int64_t blocks) {
    return fmt::format("{:.2f} %", 100 * share_of(blocks, curve.blocks));
  };
  std::string notes;
  for (std::size_t i = 0; i < hits.size(); ++i) {
    const CacheTier& tier = question.tiers[i];
    found += hits[i].hits;
    table.add_row({tier.name, to_text(tier.capacity), with_commas(hits[i].blocks),
                   percent(hits[i].hits), percent(found),
                   tier.bandwidth ? fmt::format("{:.3g}", per_request(hits[i].load, trace)) : "-"});
    if (tier.bandwidth && question.token_time) {
      const Seconds load = std::max(tier.link_block.value_or(block) / *tier.bandwidth, tier.decode);
      const Seconds compute{question.token_time->count() * trace.prefix_block};
      const std::string note =
          fmt::format("- {}: a block takes {} to load and at least {} to compute on one {}: {}",
                      tier.name, load, compute, question.gpu,
                      load < compute ? "loading pays off" : "loading is slower than that bound");
      for (const std::string& line : wrapped(note, width - 2)) {
        notes += (line.starts_with("- ") ? "" : "  ") + line + "\n";
      }
    }
  }
  std::string computed = "-";
  if (question.token_time) {
    const auto tokens = static_cast<double>((curve.blocks - found) * trace.prefix_block);
    computed =
        fmt::format("{:.3g}", per_request(Seconds{question.token_time->count() * tokens}, trace));
  }
  table.add_row({"computed", "", "", percent(curve.blocks - found), "", computed});
  return fmt::format("\nLRU tiers of {}'s cache, {} per token in {}, {}\n{}{}", question.model,
                     question.token_bytes, question.format, schedule, table.str(width), notes);
}

}  // namespace kvsim
