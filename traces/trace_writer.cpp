#include "traces/trace_writer.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "models/math/half.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/temporary.hpp"

namespace kvsim {

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::vector<TensorPlan> plan;
  std::optional<PartialFolder> building;
  std::FILE* file = nullptr;
  std::size_t at = 0;        // index of the current tensor
  std::int64_t written = 0;  // elements of it so far
  std::vector<std::byte> buffer;

  [[noreturn]] void fail(std::string_view reason) const {
    throw InputError{fmt::format("{}: cannot be written: {}", path.string(), reason)};
  }
  [[noreturn]] void fail(int reason) const { fail(std::string_view{std::strerror(reason)}); }
  void put(const void* data, std::size_t size) {
    if (size > 0 && std::fwrite(data, 1, size, file) != size) fail(errno);
  }
  [[nodiscard]] static std::int64_t elements(const TensorPlan& tensor) {
    std::int64_t n = 1;
    for (const std::int64_t dimension : tensor.shape) n *= dimension;
    return n;
  }
  void skip_full() {
    while (at < plan.size() && written == elements(plan[at])) {
      ++at;
      written = 0;
    }
  }
  /// Accounts for `count` more elements of the current tensor; returns it.
  const TensorPlan& take(std::size_t count) {
    KVSIM_CHECK(at < plan.size(), "all tensors are written");
    const TensorPlan& tensor = plan[at];
    KVSIM_CHECK(written + static_cast<std::int64_t>(count) <= elements(tensor),
                "{} more elements run over \"{}\"", count, tensor.name);
    written += static_cast<std::int64_t>(count);
    return tensor;
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorPlan> plan,
                                     const std::map<std::string, std::string>& metadata)
    : state_{std::make_unique<State>()} {
  state_->path = std::move(path);
  state_->plan = std::move(plan);
  const auto dumped = [](const nlohmann::ordered_json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  // Appended piece by piece: an ordered object searches all its keys for each insertion.
  std::string text = R"({"__metadata__":)" + dumped(metadata);
  std::int64_t offset = 0;
  for (const TensorPlan& tensor : state_->plan) {
    const std::int64_t size =
        State::elements(tensor) * static_cast<std::int64_t>(item_size(tensor.type));
    text += "," + dumped(tensor.name) + ":" +
            dumped({{"dtype", name_of(tensor.type)},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + size}}});
    offset += size;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');

  std::error_code absent;
  if (std::filesystem::is_symlink(state_->path, absent)) {
    state_->fail(fmt::format("it is a symbolic link to {}; name that file itself",
                             std::filesystem::read_symlink(state_->path, absent).string()));
  }
  if (std::filesystem::is_directory(state_->path, absent)) state_->fail("it is a folder");
  remove_abandoned(state_->path);
  state_->building.emplace(state_->path);
  if (state_->building->error() != 0) state_->fail(state_->building->error());
  state_->file = std::fopen(state_->building->file().c_str(), "wb");
  if (state_->file == nullptr) state_->fail(errno);
  const std::uint64_t length = text.size();
  try {
    state_->put(&length, sizeof length);
    state_->put(text.data(), text.size());
  } catch (...) {
    std::fclose(state_->file);
    throw;
  }
  state_->skip_full();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (state_->file != nullptr) std::fclose(state_->file);
}

void SafetensorsWriter::write(std::span<const float> values) {
  const TensorPlan& tensor = state_->take(values.size());
  const std::size_t size = item_size(tensor.type);
  auto& buffer = state_->buffer;
  buffer.resize(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::byte* to = buffer.data() + i * size;
    switch (tensor.type) {
      case TensorType::kF32:
        std::memcpy(to, &values[i], size);
        break;
      case TensorType::kF64: {
        const auto wide = static_cast<double>(values[i]);
        std::memcpy(to, &wide, size);
        break;
      }
      case TensorType::kF16: {
        const std::uint16_t half = float_to_fp16(values[i]);
        std::memcpy(to, &half, size);
        break;
      }
      case TensorType::kBF16: {
        const std::uint16_t half = float_to_bf16(values[i]);
        std::memcpy(to, &half, size);
        break;
      }
      default:
        KVSIM_CHECK(false, "\"{}\" holds {}, not floating-point numbers", tensor.name,
                    name_of(tensor.type));
    }
  }
  state_->put(buffer.data(), buffer.size());
  state_->skip_full();
}

void SafetensorsWriter::write(std::span<const std::int32_t> values) {
  const TensorPlan& tensor = state_->take(values.size());
  KVSIM_CHECK(tensor.type == TensorType::kI32, "\"{}\" holds {}, not I32", tensor.name,
              name_of(tensor.type));
  state_->put(values.data(), values.size_bytes());
  state_->skip_full();
}

std::string SafetensorsWriter::current() const {
  return state_->at < state_->plan.size() ? state_->plan[state_->at].name : std::string{};
}

void SafetensorsWriter::finish(const std::function<void(const std::filesystem::path&)>& check) {
  KVSIM_CHECK(state_->file != nullptr, "finished already");
  KVSIM_CHECK(state_->at == state_->plan.size(), "\"{}\" is not complete", current());
  // Data first, then the name: after a crash the file is the old or the new one, never a partial
  // one.
  int reason = 0;  // errno of the first failure
  if (std::fflush(state_->file) != 0 || ::fsync(::fileno(state_->file)) != 0) reason = errno;
  // A full disk may be reported only here.
  if (std::fclose(state_->file) != 0 && reason == 0) reason = errno;
  state_->file = nullptr;
  if (reason == 0) {
    if (check) check(state_->building->file());
    std::error_code status;
    std::filesystem::rename(state_->building->file(), state_->path, status);
    reason = status.value();
  }
  state_->building.reset();
  if (reason != 0) state_->fail(reason);
}

}  // namespace kvsim
