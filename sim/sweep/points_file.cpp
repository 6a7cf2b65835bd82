#include "sim/sweep/points_file.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "models/json/field.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/fingerprint.hpp"
#include "models/units/text_file.hpp"
#include "sim/scenario/fields/document.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kBefore = "{\"sum\":\"";
constexpr std::string_view kAfter = "\",";
constexpr std::size_t kSumDigits = 16;
constexpr std::size_t kHead = kBefore.size() + kSumDigits + kAfter.size();
constexpr std::chrono::seconds kBetweenSyncs{2};
constexpr mode_t kFileMode = 0666;  // before the umask

}  // namespace

std::string summed_line(std::string_view object) {
  KVSIM_CHECK(object.size() > 2 && object.front() == '{' && object.back() == '}' &&
                  object.find('\n') == std::string_view::npos,
              "not an object on one line: {}", object);
  return fmt::format("{}{}{}{}\n", kBefore, fingerprint(object), kAfter, object.substr(1));
}

std::optional<std::string> unsummed(std::string_view line) {
  if (line.size() <= kHead || !line.starts_with(kBefore) || line.back() != '\n' ||
      line.substr(kHead - kAfter.size(), kAfter.size()) != kAfter) {
    return std::nullopt;
  }
  std::string object = fmt::format("{{{}", line.substr(kHead, line.size() - kHead - 1));
  if (fingerprint(object) != line.substr(kBefore.size(), kSumDigits)) return std::nullopt;
  return object;
}

std::optional<PointsContent> read_points_file(const std::filesystem::path& path) {
  constexpr std::size_t kLargest = std::size_t{16} << 30U;
  const std::string text = read_text_file(path, kLargest);
  PointsContent content;
  std::optional<std::string> header;
  std::size_t from = 0;
  while (from < text.size()) {
    const std::size_t end = text.find('\n', from);
    if (end == std::string::npos) break;
    auto object = unsummed(std::string_view{text}.substr(from, end + 1 - from));
    if (!object) break;
    from = end + 1;
    if (header) {
      content.objects.push_back(std::move(*object));
    } else {
      header = std::move(object);
    }
  }
  if (!header) return std::nullopt;
  content.header = Field::parse(*header, fmt::format("{}:1", path.string())).raw();
  content.good_bytes = from;
  content.torn_bytes = text.size() - from;
  return content;
}

PointsWriter::PointsWriter(const std::filesystem::path& path, std::size_t keep)
    : path_{path}, size_{keep}, synced_{std::chrono::steady_clock::now()} {
  // Without O_NONBLOCK, opening a pipe would wait for a reader.
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kFileMode);
  if (file_ < 0) {
    const int error = errno;
    std::error_code status;
    if (std::filesystem::is_symlink(path, status)) {
      throw InputError{
          fmt::format("{}: cannot be written: it is a symbolic link to {}; name that file itself",
                      path.string(), std::filesystem::read_symlink(path, status).string())};
    }
    fail(error);
  }
  // A file system without locks is not an error.
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(file_);
    throw InputError{fmt::format("{}: another kvsim is writing it", path.string())};
  }
  if (::ftruncate(file_, static_cast<off_t>(keep)) != 0 ||
      ::lseek(file_, static_cast<off_t>(keep), SEEK_SET) < 0) {
    const int error = errno;
    ::close(file_);
    fail(error);
  }
}

PointsWriter::~PointsWriter() { ::close(file_); }

void PointsWriter::fail(int error) const {
  throw InputError{fmt::format("{}: cannot be written: {}", path_.string(),
                               std::generic_category().message(error))};
}

void PointsWriter::add(std::string_view object) {
  const std::string line = summed_line(object);
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(file_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      if (::ftruncate(file_, static_cast<off_t>(size_)) != 0) {
        // The partial line stays; readers detect it by its checksum.
      }
      fail(error);
    }
    done += static_cast<std::size_t>(n);
  }
  size_ += line.size();
  if (std::chrono::steady_clock::now() - synced_ >= kBetweenSyncs) sync();
}

void PointsWriter::sync() {
  // Some file systems cannot sync; that is not a write failure.
  if (::fdatasync(file_) != 0 && errno != EINVAL && errno != EROFS) fail(errno);
  synced_ = std::chrono::steady_clock::now();
}

}  // namespace kvsim
