#include "models/llm/catalogue.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/json/embedded.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> llm_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

struct Catalogue {
  std::vector<Llm> llms;                                    // by name
  std::map<std::string, std::size_t> index;                 // squeezed_name of a name or alias
  std::map<std::string, std::vector<std::string>> aliases;  // as spelled in the files
};

/// Adds the model of `config` with the name, aliases and source of `entry`.
void add_model(const Field& entry, const Field& config, Catalogue& out) {
  Llm llm = read_hf_config(config, entry.at("name").string());
  llm.source = entry.at("source").string();
  for (const Field& alias : entry.at("aliases").items())
    out.aliases[llm.name].push_back(alias.string());
  out.llms.push_back(std::move(llm));
}

Catalogue read_catalogue() {
  Catalogue out;
  for (const embedded::EmbeddedFile& file : embedded::llm_files()) {
    const Field entry = Field::parse(file.text, fmt::format("llm/data/{}.json", file.name));
    entry.allow_only({"name", "aliases", "source", "config", "checkpoints"});
    add_model(entry, entry.at("config"), out);
    const auto checkpoints = entry.find("checkpoints");
    if (!checkpoints) continue;
    for (const Field& checkpoint : checkpoints->items()) {
      checkpoint.allow_only({"name", "aliases", "source", "quantization_config"});
      nlohmann::json config = entry.at("config").raw();
      config["quantization_config"] = checkpoint.at("quantization_config").raw();
      add_model(checkpoint, Field::wrap(std::move(config), checkpoint.place()), out);
    }
  }
  std::sort(out.llms.begin(), out.llms.end(),
            [](const Llm& a, const Llm& b) { return a.name < b.name; });
  for (std::size_t i = 0; i < out.llms.size(); ++i) {
    const auto insert = [&](const std::string& word) {
      const auto [at, fresh] = out.index.emplace(squeezed_name(word), i);
      KVSIM_CHECK(fresh || at->second == i, "two models are called {}", word);
    };
    insert(out.llms[i].name);
    for (const std::string& alias : out.aliases[out.llms[i].name]) insert(alias);
  }
  return out;
}

/// A name of a quantized checkpoint, "Qwen3-8B-AWQ".
struct QuantizedName {
  std::string base;         // without the format, "qwen3-8b"
  std::string_view format;  // format of the weights
};
std::optional<QuantizedName> quantized_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kFormats{
      {{"fp8", "fp8-block or fp8-channel"},
       {"w8a8", "w8a8-int8"},
       {"int8", "w8a8-int8"},
       {"awq", "awq-int4"},
       {"gptq", "gptq-int4"},
       {"int4", "gptq-int4"},
       {"nvfp4", "nvfp4"},
       {"mxfp4", "mxfp4"}}};
  const std::string word = folded_name(name);
  for (std::size_t from = 0; from <= word.size();) {
    const std::size_t end = std::min(word.find_first_of("-./", from), word.size());
    for (const auto& [part, format] : kFormats) {
      if (word.substr(from, end - from) != part) continue;
      return QuantizedName{.base = word.substr(0, from > 0 ? from - 1 : 0), .format = format};
    }
    from = end + 1;
  }
  return std::nullopt;
}

const Catalogue& catalogue() {
  static const Catalogue read = read_catalogue();
  return read;
}

}  // namespace

const std::vector<Llm>& builtin_llms() { return catalogue().llms; }

const Llm& find_llm(std::string_view name) {
  if (const auto found = catalogue().index.find(squeezed_name(name));
      found != catalogue().index.end()) {
    return catalogue().llms[found->second];
  }
  const std::string key = folded_name(name);
  KnownNames known{.kind = "model", .list_command = "kvsim list models"};
  std::vector<std::string> longer;  // possible meanings of "mistral-7b" or "llama-3"
  for (const Llm& llm : builtin_llms()) {
    known.names.push_back(llm.name);
    if (!key.empty() && llm.name.starts_with(key + "-")) longer.push_back(llm.name);
  }
  if (!longer.empty()) throw InputError{ambiguous_name("model", name, longer)};
  for (const auto& [llm, aliases] : catalogue().aliases) {
    known.aliases.insert(known.aliases.end(), aliases.begin(), aliases.end());
  }
  const std::optional<QuantizedName> quantized = quantized_name(name);
  if (!quantized) throw InputError{unknown_entry(known, name)};
  const auto base = catalogue().index.find(squeezed_name(quantized->base));
  const std::string message = base == catalogue().index.end()
                                  ? unknown_entry(known, name)
                                  : fmt::format("unknown model \"{}\": a quantized {}", name,
                                                catalogue().llms[base->second].name);
  throw InputError{fmt::format("{}; give its config.json, or the base model with --dtype {}",
                               message, quantized->format)};
}

std::vector<std::string> llm_aliases(std::string_view name) {
  const auto found = catalogue().aliases.find(find_llm(name).name);
  return found == catalogue().aliases.end() ? std::vector<std::string>{} : found->second;
}

}  // namespace kvsim
