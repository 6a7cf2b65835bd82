#include "models/methods/merge/low_rank_weights.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/text_file.hpp"

namespace kvsim {

std::shared_ptr<const LowRankWeights> LowRankWeights::read(const std::filesystem::path& path) {
  const auto fail = [&path](const std::string& why) {
    throw InputError{fmt::format("{}: {}", path.string(), why)};
  };
  expect_regular_file(path);
  std::ifstream file{path, std::ios::binary};
  if (!file) fail("cannot be read");
  std::string line;
  std::getline(file, line);
  std::istringstream words{line};
  std::string magic;
  std::int32_t version = 0;
  auto weights = std::make_shared<LowRankWeights>();
  LowRankShape& shape = weights->shape_;
  words >> magic >> version >> weights->layers_ >> weights->heads_ >> shape.head_dim >>
      shape.hidden >> shape.rank;
  constexpr std::int32_t kMax = 1 << 16;
  const auto sane = [](std::int32_t x) { return x >= 1 && x <= kMax; };
  if (!words || magic != "kvsim-low-rank" || version != 1 || !sane(weights->layers_) ||
      !sane(weights->heads_) || !sane(shape.head_dim) || !sane(shape.hidden) || !sane(shape.rank)) {
    fail("expected a first line \"kvsim-low-rank 1 LAYERS HEADS HEAD_DIM HIDDEN RANK\"");
  }
  if (file.eof()) fail("expected a line end after the first line");
  const auto begin = static_cast<std::uintmax_t>(file.tellg());
  // Larger than any file; a wrapped 64-bit product could otherwise match the size of a real file.
  constexpr double kLargestFile = 1e18;
  if (const double about = 1.0 * weights->layers_ * weights->heads_ *
                           static_cast<double>(shape.parameters()) * sizeof(float);
      about > kLargestFile) {
    fail(fmt::format("its first line declares {:.3g} bytes of numbers", about));
  }
  const std::uintmax_t wanted = static_cast<std::uintmax_t>(weights->layers_) *
                                static_cast<std::uintmax_t>(weights->heads_) * shape.parameters() *
                                sizeof(float);
  // Compared before any allocation, so that an invalid first line cannot request all memory.
  std::error_code status;
  const std::uintmax_t size = std::filesystem::file_size(path, status);
  if (status) fail(fmt::format("cannot be read: {}", status.message()));
  if (size != begin + wanted) {
    fail(fmt::format("expected {} bytes of numbers after the first line, got {}", wanted,
                     size - begin));
  }
  weights->parameters_.resize(wanted / sizeof(float));
  file.read(reinterpret_cast<char*>(weights->parameters_.data()),
            static_cast<std::streamsize>(wanted));
  if (!file) fail("cannot be read to its end");
  return weights;
}

std::span<const float> LowRankWeights::of(std::int32_t layer, std::int32_t head) const {
  KVSIM_CHECK(layer >= 0 && layer < layers_ && head >= 0 && head < heads_,
              "weights of layer {}, head {}, of {} and {}", layer, head, layers_, heads_);
  const std::size_t each = shape_.parameters();
  return std::span{parameters_}.subspan(
      (static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads_) +
       static_cast<std::size_t>(head)) *
          each,
      each);
}

}  // namespace kvsim
