#include "traces/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/json/field.hpp"
#include "models/math/half.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"

namespace kvsim {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian, read in place");

struct TypeName {
  TensorType type;
  std::string_view name;
  std::size_t size;
};
constexpr std::array kTypes{
    TypeName{TensorType::kF64, "F64", 8}, TypeName{TensorType::kF32, "F32", 4},
    TypeName{TensorType::kF16, "F16", 2}, TypeName{TensorType::kBF16, "BF16", 2},
    TypeName{TensorType::kI64, "I64", 8}, TypeName{TensorType::kI32, "I32", 4},
    TypeName{TensorType::kI16, "I16", 2}, TypeName{TensorType::kI8, "I8", 1},
    TypeName{TensorType::kU8, "U8", 1},   TypeName{TensorType::kBool, "BOOL", 1},
};

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxDimensions = 8;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;

/// A file mapped for reading; unmapped by the destructor.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  void open(const std::filesystem::path& path) {
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) fail(path, std::strerror(errno));
    struct stat status {};
    const bool known = ::fstat(file, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
      ::close(file);
      fail(path, "expected a file, got a folder, a pipe or a device");
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ > 0) {
      void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      const int reason = errno;
      ::close(file);
      if (data == MAP_FAILED) fail(path, std::strerror(reason));
      data_ = data;
    } else {
      ::close(file);
    }
  }

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), size_};
  }

  void release(std::span<const std::byte> range) const {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = (reinterpret_cast<std::uintptr_t>(range.data()) + page - 1) / page * page;
    const auto last = reinterpret_cast<std::uintptr_t>(range.data() + range.size()) / page * page;
    if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path, std::string_view reason) {
    throw InputError{fmt::format("{}: cannot be read: {}", path.string(), reason)};
  }
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

TensorType read_type(const Field& field) {
  std::vector<std::string> words;
  for (const TypeName& each : kTypes) words.emplace_back(each.name);
  const std::string word = field.choice(words);
  for (const TypeName& each : kTypes) {
    if (each.name == word) return each.type;
  }
  field.expected("a known dtype");
}

TensorEntry read_entry(const Field& field, const std::string& place, std::uint64_t data_bytes) {
  field.allow_only({"dtype", "shape", "data_offsets"});
  TensorEntry entry;
  entry.type = read_type(field.at("dtype"));
  const auto shape = field.at("shape").items();
  if (shape.size() > kMaxDimensions) {
    throw InputError{place, fmt::format("at most {} dimensions", kMaxDimensions),
                     std::to_string(shape.size())};
  }
  std::int64_t elements = 1;
  for (const Field& dimension : shape) {
    const std::int64_t n = dimension.integer(0, kMaxElements);
    if (n != 0 && elements > kMaxElements / n) {
      throw InputError{place, "a shape whose number of elements fits 64 bits",
                       fmt::format("[{}, …]", fmt::join(entry.shape, ", "))};
    }
    elements *= n;
    entry.shape.push_back(n);
  }
  const auto offsets = field.at("data_offsets").items();
  if (offsets.size() != 2) {
    throw InputError{place, "two data_offsets", std::to_string(offsets.size())};
  }
  entry.begin = static_cast<std::uint64_t>(offsets[0].integer(0, INT64_MAX));
  entry.end = static_cast<std::uint64_t>(offsets[1].integer(0, INT64_MAX));
  if (entry.begin > entry.end || entry.end > data_bytes) {
    throw InputError{place, fmt::format("data_offsets within the file's {} data bytes", data_bytes),
                     fmt::format("[{}, {}]", entry.begin, entry.end)};
  }
  const std::uint64_t wanted = static_cast<std::uint64_t>(elements) * item_size(entry.type);
  if (entry.end - entry.begin != wanted) {
    throw InputError{place,
                     fmt::format("{} bytes for shape [{}] of {}", wanted,
                                 fmt::join(entry.shape, ", "), name_of(entry.type)),
                     std::to_string(entry.end - entry.begin)};
  }
  return entry;
}

/// Tensors must tile the data section: no overlap, no gap, nothing after the last.
void check_tiling(const std::string& path, const std::map<std::string, TensorEntry>& tensors,
                  std::uint64_t data_bytes) {
  std::vector<std::pair<std::uint64_t, const std::string*>> order;
  for (const auto& [name, entry] : tensors) order.emplace_back(entry.begin, &name);
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    const auto& x = tensors.at(*a.second);
    const auto& y = tensors.at(*b.second);
    return std::tie(x.begin, x.end, *a.second) < std::tie(y.begin, y.end, *b.second);
  });
  std::uint64_t covered = 0;
  const std::string* before = nullptr;
  for (const auto& [begin, name] : order) {
    if (begin != covered) {
      throw InputError{fmt::format("{}: {}: expected to begin at byte {}{}, got {}: tensors {}",
                                   path, *name, covered,
                                   before == nullptr ? "" : fmt::format(" where {} ends", *before),
                                   begin, begin < covered ? "overlap" : "leave a hole")};
    }
    covered = tensors.at(*name).end;
    before = name;
  }
  if (covered != data_bytes) {
    throw InputError{path, fmt::format("{} data bytes, as the tensors have", covered),
                     std::to_string(data_bytes)};
  }
}

template <class Element, class Convert>
void convert(std::span<const std::byte> bytes, std::span<float> out, Convert to_float) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Element element;
    std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
    out[i] = to_float(element);
  }
}

}  // namespace

std::size_t item_size(TensorType type) { return kTypes[static_cast<std::size_t>(type)].size; }
std::string_view name_of(TensorType type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::int64_t TensorEntry::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t dimension : shape) n *= dimension;
  return n;
}

struct Safetensors::Map {
  std::string place;
  Mapping mapping;
  std::uint64_t data_at = 0;
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorEntry> tensors;
};

Safetensors::Safetensors(std::unique_ptr<Map> map) : map_{std::move(map)} {}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

Safetensors Safetensors::open(const std::filesystem::path& path) {
  auto map = std::make_unique<Map>();
  map->place = path.string();
  map->mapping.open(path);
  const auto file = map->mapping.bytes();
  std::uint64_t header = 0;
  if (file.size() < sizeof header) {
    throw InputError{map->place, "a safetensors file of at least 8 bytes",
                     std::to_string(file.size())};
  }
  std::memcpy(&header, file.data(), sizeof header);
  if (header > kLongestHeader || header > file.size() - sizeof header) {
    throw InputError{
        map->place,
        fmt::format(
            "a safetensors file, whose first 8 bytes are the length of its header, at most {}",
            std::min<std::uint64_t>(kLongestHeader, file.size() - sizeof header)),
        std::to_string(header)};
  }
  map->data_at = sizeof header + header;
  const std::uint64_t data_bytes = file.size() - map->data_at;
  const std::string_view text{reinterpret_cast<const char*>(file.data()) + sizeof header,
                              static_cast<std::size_t>(header)};
  const Field root = Field::parse(text, fmt::format("{}: header", map->place));
  if (!root.is_object()) root.expected("an object");
  // Scenarios may have comments; no other reader of the format accepts a header with one.
  if (!nlohmann::json::accept(text)) {
    throw InputError{root.place(), "JSON without comments", "a comment"};
  }
  for (const auto& [name, field] : root.members()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : field.members()) map->metadata.emplace(key, value.string());
      continue;
    }
    const std::string place = fmt::format("{}: {}", map->place, excerpt(name));
    map->tensors.emplace(name, read_entry(field, place, data_bytes));
  }
  check_tiling(map->place, map->tensors, data_bytes);
  return Safetensors{std::move(map)};
}

const std::string& Safetensors::place() const { return map_->place; }
const std::map<std::string, std::string>& Safetensors::metadata() const { return map_->metadata; }
const std::map<std::string, TensorEntry>& Safetensors::tensors() const { return map_->tensors; }

const TensorEntry* Safetensors::find(std::string_view name) const {
  const auto found = map_->tensors.find(std::string{name});
  return found == map_->tensors.end() ? nullptr : &found->second;
}

std::span<const std::byte> Safetensors::bytes(const TensorEntry& entry) const {
  return map_->mapping.bytes().subspan(map_->data_at + entry.begin, entry.end - entry.begin);
}

void Safetensors::read_floats(std::string_view name, std::int64_t first,
                              std::span<float> out) const {
  const TensorEntry* entry = find(name);
  KVSIM_CHECK(entry != nullptr, "no tensor \"{}\"", name);
  if (entry->type != TensorType::kF32 && entry->type != TensorType::kF64 &&
      entry->type != TensorType::kF16 && entry->type != TensorType::kBF16) {
    throw InputError{fmt::format("{}: {}", map_->place, name), "a floating-point tensor",
                     name_of(entry->type)};
  }
  read_floats(*entry, first, out);
}

void Safetensors::read_floats(const TensorEntry& entry, std::int64_t first,
                              std::span<float> out) const {
  KVSIM_CHECK(first >= 0 && first + std::ssize(out) <= entry.elements(), "elements {} … of {}",
              first, entry.elements());
  const std::size_t size = item_size(entry.type);
  const auto raw = bytes(entry).subspan(static_cast<std::size_t>(first) * size, out.size() * size);
  switch (entry.type) {
    case TensorType::kF32:
      if (!out.empty()) std::memcpy(out.data(), raw.data(), raw.size());
      return;
    case TensorType::kF64:
      convert<double>(raw, out, [](double x) { return static_cast<float>(x); });
      return;
    case TensorType::kF16:
      if (reinterpret_cast<std::uintptr_t>(raw.data()) % alignof(std::uint16_t) == 0) {
        fp16_to_floats(reinterpret_cast<const std::uint16_t*>(raw.data()), out.size(), out.data());
      } else {
        convert<std::uint16_t>(raw, out, fp16_to_float);
      }
      return;
    case TensorType::kBF16:
      convert<std::uint16_t>(raw, out, bf16_to_float);
      return;
    default:
      KVSIM_CHECK(false, "a tensor of {}", name_of(entry.type));
  }
}

void Safetensors::release(const TensorEntry& entry, std::int64_t first, std::int64_t count) const {
  const std::size_t size = item_size(entry.type);
  map_->mapping.release(bytes(entry).subspan(static_cast<std::size_t>(first) * size,
                                             static_cast<std::size_t>(count) * size));
}

void Safetensors::release(const TensorEntry& entry) const { map_->mapping.release(bytes(entry)); }

}  // namespace kvsim
