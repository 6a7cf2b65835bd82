#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "sim/replay/surrogates.hpp"
#include "traces/safetensors.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim {
void write_surrogates(const SurrogateFile& file, const std::filesystem::path& path) {
  std::vector<TensorPlan> plan;
  for (std::size_t l = 0; l < file.layers.size(); ++l) {
    const Surrogate& s = file.layers[l];
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      plan.push_back({fmt::format("layers.{}.{}", l, name), TensorType::kF32, std::move(shape)});
    };
    if (s.width > 0) {
      add("w1", {s.width, s.inputs});
      add("b1", {s.width});
      add("w2", {s.outputs, s.width});
      add("b2", {s.outputs});
    } else {
      add("w", {s.outputs, s.inputs});
      add("b", {s.outputs});
    }
  }
  SafetensorsWriter writer{path, std::move(plan), file.metadata};
  for (const Surrogate& s : file.layers) {
    if (s.width > 0) {
      writer.write(s.w1);
      writer.write(s.b1);
    }
    writer.write(s.w2);
    writer.write(s.b2);
  }
  writer.finish();
}

SurrogateFile read_surrogates(const std::filesystem::path& path) {
  const Safetensors tensors = Safetensors::open(path);
  SurrogateFile file;
  file.metadata = tensors.metadata();
  if (!file.metadata.contains("format") || file.metadata["format"] != kSurrogateFormat) {
    throw InputError{fmt::format("{}: expected a file of kvsim fit-surrogate (format {})",
                                 tensors.place(), kSurrogateFormat)};
  }
  const auto need = [&](const std::string& name, std::size_t rank) -> const TensorEntry& {
    const TensorEntry* entry = tensors.find(name);
    if (entry == nullptr || entry->shape.size() != rank || entry->elements() < 1 ||
        *std::max_element(entry->shape.begin(), entry->shape.end()) > (1 << 24)) {
      throw InputError{
          fmt::format("{}: {}: expected a tensor of {} dimensions", tensors.place(), name, rank)};
    }
    return *entry;
  };
  const auto read = [&](const std::string& name, std::int64_t elements) {
    if (tensors.find(name)->elements() != elements) {
      throw InputError{fmt::format("{}: {}: expected {} elements, got {}", tensors.place(), name,
                                   elements, tensors.find(name)->elements())};
    }
    std::vector<float> all(static_cast<std::size_t>(elements));
    tensors.read_floats(name, 0, all);
    for (const float x : all) {
      if (!std::isfinite(x)) {
        throw InputError{fmt::format("{}: {}: expected finite weights", tensors.place(), name)};
      }
    }
    return all;
  };
  for (std::int32_t l = 0;; ++l) {
    const std::string at = fmt::format("layers.{}.", l);
    const bool mlp = tensors.find(at + "w1") != nullptr;
    if (!mlp && tensors.find(at + "w") == nullptr) break;
    Surrogate s;
    if (mlp) {
      const TensorEntry& w1 = need(at + "w1", 2);
      s.width = static_cast<std::int32_t>(w1.shape[0]);
      s.inputs = static_cast<std::int32_t>(w1.shape[1]);
      (void)need(at + "b1", 1);
      s.w1 = read(at + "w1", w1.elements());
      s.b1 = read(at + "b1", s.width);
    }
    const TensorEntry& w2 = need(at + (mlp ? "w2" : "w"), 2);
    s.outputs = static_cast<std::int32_t>(w2.shape[0]);
    if (!mlp) s.inputs = static_cast<std::int32_t>(w2.shape[1]);
    (void)need(at + (mlp ? "b2" : "b"), 1);
    s.w2 = read(at + (mlp ? "w2" : "w"),
                static_cast<std::int64_t>(s.outputs) * (mlp ? s.width : s.inputs));
    s.b2 = read(at + (mlp ? "b2" : "b"), s.outputs);
    file.layers.push_back(std::move(s));
  }
  if (file.layers.empty()) {
    throw InputError{fmt::format("{}: expected layers.0.w or layers.0.w1", tensors.place())};
  }
  return file;
}

}  // namespace kvsim
