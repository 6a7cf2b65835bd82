#include "models/gpu/gpu.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/gpu/gpu_of_user.hpp"
#include "models/json/embedded.hpp"
#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/names.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> gpu_files();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

/// Splits a name into words in lower case: "A100-80GB (vidur)" has a100, 80gb. Text in brackets and
/// the vendor's name are ignored.
std::vector<std::string> split_name(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '(') break;
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  if (words.size() > 1 && words.front() == "nvidia") words.erase(words.begin());
  return words;
}

std::string key_of(std::string_view name) {
  std::string key;
  for (const std::string& word : split_name(name)) key += word;
  return key;
}

/// Peaks by operand format, dense only.
std::map<Dtype, FlopsPerSecond> read_peaks(const Field& peaks) {
  std::map<Dtype, FlopsPerSecond> out;
  for (const auto& [word, rate] : peaks.members()) {
    const auto dtype = parse_dtype(word);
    if (!dtype) rate.fail("not an element format");
    out.emplace(*dtype, rate.flops());
  }
  if (!out.contains(Dtype::kFp16))
    peaks.fail("fp16 is missing: every other format may fall back on it");
  return out;
}

Gpu read_gpu(const Field& file) {
  file.allow_only({"name", "aliases", "short_names", "generation", "silicon", "hbm", "hbm_usable",
                   "hbm_usable_measured", "hbm_bandwidth", "peak", "peak_fp32", "sms", "l2",
                   "nvlink", "nvlink_gpus", "pcie", "c2c", "sources"});
  Gpu gpu;
  gpu.name = file.at("name").string();
  for (const Field& alias : file.at("aliases").items()) gpu.aliases.push_back(alias.string());
  gpu.generation = file.at("generation").string();
  gpu.silicon = file.at("silicon").string();
  gpu.hbm = file.at("hbm").bytes();
  gpu.hbm_usable = file.at("hbm_usable").bytes();
  if (gpu.hbm_usable > gpu.hbm) file.at("hbm_usable").fail("more than \"hbm\"");
  gpu.hbm_usable_measured = file.at("hbm_usable_measured").boolean();
  gpu.hbm_bandwidth = file.at("hbm_bandwidth").bandwidth();
  gpu.peak = read_peaks(file.at("peak"));
  gpu.peak_fp32 = file.at("peak_fp32").flops();
  gpu.sms = static_cast<std::int32_t>(file.at("sms").integer(1, 4096));
  gpu.l2 = file.at("l2").bytes();
  if (const auto nvlink = file.find("nvlink")) gpu.nvlink = nvlink->bandwidth();
  if (const auto joined = file.find("nvlink_gpus")) {
    gpu.nvlink_gpus = static_cast<std::int32_t>(joined->integer(2, 1024));
  }
  gpu.pcie = file.at("pcie").bandwidth();
  if (const auto c2c = file.find("c2c")) gpu.c2c = c2c->bandwidth();

  const Field sources = file.at("sources");
  for (const char* figure : {"hbm", "hbm_usable", "hbm_bandwidth", "peak", "peak_fp32", "sms", "l2",
                             "nvlink", "pcie", "c2c"}) {
    if (file.has(figure)) gpu.sources.emplace(figure, sources.at(figure).string());
  }
  return gpu;
}

struct Catalogue {
  std::vector<Gpu> gpus;                           // by name
  std::map<std::string, std::string> short_names;  // key_of a short name -> the GPU's name
};

Catalogue read_catalogue() {
  Catalogue out;
  std::vector<Gpu>& gpus = out.gpus;
  std::set<std::string> taken;
  for (const embedded::EmbeddedFile& file : embedded::gpu_files()) {
    const Field entry = Field::parse(file.text, fmt::format("gpu/data/{}.json", file.name));
    gpus.push_back(read_gpu(entry));
    // An alias may repeat its own GPU's name in another spelling, but never another GPU's.
    std::set<std::string> own{key_of(gpus.back().name)};
    for (const std::string& alias : gpus.back().aliases) own.insert(key_of(alias));
    if (const auto names = entry.find("short_names")) {
      for (const Field& name : names->items()) {
        own.insert(key_of(name.string()));
        out.short_names.emplace(key_of(name.string()), gpus.back().name);
      }
    }
    for (const std::string& key : own) {
      KVSIM_CHECK(taken.insert(key).second, "two GPUs are called {}", key);
    }
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.name < b.name; });
  return out;
}

const Catalogue& catalogue() {
  static const Catalogue read = read_catalogue();
  return read;
}

/// Returns the names of the GPUs that contain every word of `words`, with the first word in first
/// position: the possible meanings of "A100" or "A100 PCIe".
std::vector<std::string> candidates(std::span<const std::string> words) {
  std::vector<std::string> out;
  if (words.empty()) return out;
  for (const Gpu& gpu : builtin_gpus()) {
    const std::vector<std::string> has = split_name(gpu.name);
    if (has.front() != words.front()) continue;
    if (std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return std::find(has.begin(), has.end(), word) != has.end();
        })) {
      out.push_back(gpu.name);
    }
  }
  return out;
}

}  // namespace

double sm_clocks(const Gpu& gpu) {
  const bool is_ga100 = gpu.silicon == "A100" || gpu.silicon == "A30";
  const double lanes = gpu.generation == "turing" || is_ga100 ? 64 : 128;
  return gpu.peak_fp32.count() / (2 * lanes);
}

FlopsPerSecond peak_flops(const Gpu& gpu, Dtype dtype) {
  if (const auto found = gpu.peak.find(dtype); found != gpu.peak.end()) return found->second;
  if (dtype == Dtype::kFp32) return gpu.peak_fp32;
  // Formats narrower than the tensor cores' operands are widened to 16 bit before the product.
  // A GPU without bf16 (Turing) computes it at the fp16 rate at best.
  return gpu.peak.at(Dtype::kFp16);
}

const std::vector<Gpu>& builtin_gpus() { return catalogue().gpus; }

const Gpu& find_gpu(std::string_view name) {
  // Indexed by the keys of names and aliases: reading calibrations makes hundreds of lookups.
  static const std::map<std::string, const Gpu*> index = [] {
    std::map<std::string, const Gpu*> out;
    for (const Gpu& gpu : builtin_gpus()) {
      out.emplace(key_of(gpu.name), &gpu);
      for (const std::string& alias : gpu.aliases) out.emplace(key_of(alias), &gpu);
    }
    return out;
  }();
  if (const auto found = index.find(key_of(name)); found != index.end()) return *found->second;
  if (const auto may_mean = candidates(split_name(name)); !may_mean.empty()) {
    throw InputError{ambiguous_name("GPU", name, may_mean)};
  }
  KnownNames known{.kind = "GPU", .list_command = "kvsim list gpus"};
  for (const Gpu& gpu : builtin_gpus()) {
    known.names.push_back(gpu.name);
    known.aliases.insert(known.aliases.end(), gpu.aliases.begin(), gpu.aliases.end());
  }
  for (const auto& [short_name, card] : catalogue().short_names)
    known.aliases.push_back(short_name);
  throw InputError{unknown_entry(known, name)};
}

NamedGpu gpu_of_user(std::string_view name) {
  const std::string key = key_of(name);
  NamedGpu out;
  const auto found = catalogue().short_names.find(key);
  out.gpu = &find_gpu(found == catalogue().short_names.end() ? name : found->second);
  if (key == key_of(out.gpu->name)) return out;
  std::vector<std::string> others = candidates(split_name(name));
  std::erase(others, out.gpu->name);
  if (!others.empty()) {
    out.note = fmt::format("\"{}\" is taken as {}; the catalogue also has {}", name, out.gpu->name,
                           fmt::join(others, ", "));
  }
  return out;
}

}  // namespace kvsim
