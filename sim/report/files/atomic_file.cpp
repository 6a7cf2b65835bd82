#include "sim/report/files/atomic_file.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "models/units/temporary.hpp"
#include "models/units/text_file.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = ".kvsim-folder";
constexpr const char* kFiles = ".kvsim-files";  // name under which a set of files is built
constexpr const char* kManifestHead = "kvsim wrote these files and may replace them:";
constexpr mode_t kFileMode = 0666;  // before the umask

/// The final name of `path` after the commit: "out/a.csv" for "out.partial-4711/a.csv".
std::string name_to_come(const fs::path& path) {
  std::string name = path.string();
  const std::size_t mark = name.find(fmt::format(".partial-{}", ::getpid()));
  if (mark == std::string::npos) return name;
  name.erase(mark, std::min(name.find('/', mark), name.size()) - mark);
  // Files of a set are built in a folder that is removed.
  const std::string set = fmt::format("/{}/", kFiles);
  const std::size_t at = name.find(set);
  if (at != std::string::npos) name.erase(at, set.size() - 1);
  return name;
}

std::string reason_of(int error) { return std::generic_category().message(error); }

/// Owns a file descriptor and closes it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_{fd} {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  /// As close(2); this is the last place where a full disk is reported.
  [[nodiscard]] int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

/// Creates `path`, which must not exist. Returns 0 or the errno.
int write_new(const fs::path& path, std::string_view text, bool sync) {
  Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode)};
  if (file.get() < 0) return errno;
  while (!text.empty()) {
    const ssize_t n = ::write(file.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  // Some file systems and pipes cannot sync; this is not a write error.
  if (sync && ::fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS) return errno;
  return file.close() == 0 ? 0 : errno;
}

std::set<std::string> read_manifest(const fs::path& folder) {
  std::set<std::string> names;
  constexpr std::size_t kMaxManifest = 1U << 28U;
  const fs::path manifest = folder / kManifest;
  std::error_code status;
  if (!fs::is_regular_file(manifest, status)) return names;
  std::istringstream in{read_text_file(manifest, kMaxManifest)};
  std::string line;
  if (!std::getline(in, line) || line != kManifestHead) return names;
  names.insert(kManifest);
  names.insert(kOwnerMark);  // left by a commit that was killed
  while (std::getline(in, line)) names.insert(line);
  return names;
}

/// All entries except folders under `folder`, as relative paths, sorted.
std::vector<std::string> files_under(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator{folder}) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    names.push_back(entry.path().lexically_relative(folder).generic_string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Whether `folder` is the working directory or one of its parents.
bool holds_working_directory(const fs::path& folder) {
  std::error_code status;
  for (fs::path at = fs::current_path(status); !status && !at.empty(); at = at.parent_path()) {
    std::error_code absent;
    if (fs::equivalent(at, folder, absent) && !absent) return true;
    if (!at.has_relative_path()) break;
  }
  return false;
}

/// Whether `path` names a file that this process has open, such as "/dev/stdout".
bool is_open_file(const fs::path& path) {
  const std::string name = path.lexically_normal().string();
  return name == "/dev/stdout" || name == "/dev/stderr" || name.starts_with("/dev/fd/") ||
         name.starts_with("/proc/self/fd/");
}

/// The absolute path, without links and dots; "out/" is "out".
fs::path resolved(const fs::path& path) {
  std::error_code status;
  fs::path target = fs::weakly_canonical(fs::absolute(path, status), status);
  if (status || target.empty()) cannot_write(path, status ? status.message() : "no such folder");
  return target.filename().empty() ? target.parent_path() : target;
}

/// Creates the folder that `target` is built in, and its parents.
std::error_code begin(const fs::path& target, MadeFolders& around,
                      std::optional<PartialFolder>& partial) {
  const std::error_code status = around.make(target.parent_path());
  if (status) return status;
  partial.emplace(target);
  return {partial->error(), std::generic_category()};
}

/// Rejects a target that commit() must not replace.
void check_replaceable(const fs::path& shown, const fs::path& target) {
  std::error_code status;
  const fs::file_status there = fs::status(target, status);
  if (there.type() == fs::file_type::not_found) return;
  if (there.type() == fs::file_type::none) cannot_write(shown, status.message());
  if (!fs::is_directory(there)) cannot_write(shown, "it exists and is not a folder");
  // Shells in this folder would be left in a deleted folder.
  if (holds_working_directory(target)) {
    cannot_write(shown,
                 "this is the working directory, which cannot be replaced; name a new folder");
  }
  try {
    const std::set<std::string> ours = read_manifest(target);
    std::vector<std::string> foreign;
    for (const std::string& name : files_under(target)) {
      if (!ours.contains(name)) foreign.push_back(name);
    }
    if (foreign.empty()) return;
    const std::size_t more = foreign.size() > 3 ? foreign.size() - 3 : 0;
    if (more > 0) foreign.resize(3);
    throw InputError{fmt::format(
        "{}: contains files not written by kvsim ({}{}); choose another folder, or remove this one",
        shown.string(), fmt::join(foreign, ", "),
        more > 0 ? fmt::format(", and {} more", more) : "")};
  } catch (const fs::filesystem_error& error) {
    cannot_write(shown, error.code().message());
  }
}

}  // namespace

void cannot_write(const fs::path& path, const std::string& reason) {
  throw InputError{fmt::format("{}: cannot be written: {}", name_to_come(path), reason)};
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  std::error_code status;
  if (fs::is_directory(path, status)) cannot_write(path, "it is a folder");
  // Devices, pipes and open files ("/dev/null", "/dev/stdout") cannot be replaced, only written to.
  const fs::file_type type = fs::status(path, status).type();
  if (type == fs::file_type::character || type == fs::file_type::fifo || is_open_file(path)) {
    std::ofstream out{path, std::ios::binary};
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (!out.flush()) cannot_write(path, reason_of(errno));
    return;
  }
  if (fs::is_symlink(path, status)) {
    cannot_write(path, fmt::format("it is a symbolic link to {}; name that file itself",
                                   fs::read_symlink(path, status).string()));
  }
  remove_abandoned(path);
  const PartialFolder building{path};
  int error = building.error();
  if (error == 0) error = write_new(building.file(), text, /*sync=*/true);
  if (error == 0 && ::rename(building.file().c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) cannot_write(path, reason_of(error));
}

std::error_code MadeFolders::make(const fs::path& folder) {
  std::error_code status;
  for (fs::path at = folder; !fs::exists(at, status) && at.has_relative_path();
       at = at.parent_path()) {
    made_.push_back(at);
    registered_.emplace_back(at, TemporaryKind::kEmptyFolder);
  }
  fs::create_directories(folder, status);
  return status;
}

void MadeFolders::remove() {
  std::error_code ignored;  // files that another program created meanwhile remain
  for (const fs::path& folder : made_) fs::remove(folder, ignored);
  keep();
}

void MadeFolders::keep() {
  made_.clear();
  registered_.clear();
}

AtomicFolder::AtomicFolder(const fs::path& path) : shown_{path} {
  target_ = resolved(path);
  if (!target_.has_filename()) cannot_write(path, "it is the root of the file system");
  remove_abandoned(target_);
  check_replaceable(path, target_);
  const std::error_code status = begin(target_, parents_, partial_);
  if (status) cannot_write(path, status.message());
}

fs::path AtomicFolder::make_folder(const fs::path& name) const {
  std::error_code status;
  fs::create_directories(partial() / name, status);
  if (status) cannot_write(shown_ / name, status.message());
  return partial() / name;
}

void AtomicFolder::write(const fs::path& name, std::string_view text) const {
  const fs::path path = partial() / name;
  std::error_code status;
  fs::create_directories(path.parent_path(), status);
  const int error = status ? status.value() : write_new(path, text, /*sync=*/false);
  if (error != 0) cannot_write(shown_ / name, reason_of(error));
}

void AtomicFolder::commit() {
  std::string manifest = fmt::format("{}\n", kManifestHead);
  try {
    for (const std::string& name : files_under(partial())) {
      if (name != kOwnerMark) manifest += name + "\n";
    }
  } catch (const fs::filesystem_error& error) {
    cannot_write(shown_, error.code().message());
  }
  write(kManifest, manifest);
  check_replaceable(shown_, target_);  // check again: the run may have taken long
  std::error_code status;
  std::optional<HeldSignals> held{std::in_place};  // between the renames the path does not exist
  fs::path old;
  if (fs::exists(target_, status)) {
    if (const int error = write_owner_mark(target_); error != 0) {
      cannot_write(shown_, reason_of(error));
    }
    old = sibling_of(target_, "old");
    fs::rename(target_, old, status);
    if (status) {
      ::unlink((target_ / kOwnerMark).c_str());
      cannot_write(shown_, status.message());
    }
  }
  fs::rename(partial(), target_, status);
  if (status) {
    std::error_code ignored;
    if (!old.empty()) fs::rename(old, target_, ignored);
    ::unlink((target_ / kOwnerMark).c_str());
    cannot_write(shown_, status.message());
  }
  ::unlink((target_ / kOwnerMark).c_str());
  partial_->release();
  parents_.keep();
  if (old.empty()) return;
  const Temporary aside{old, TemporaryKind::kTree};
  held.reset();
  remove_all_of(old);
}

AtomicFiles::AtomicFiles(const fs::path& folder) : shown_{folder} {
  target_ = resolved(folder);
  std::error_code status;
  const fs::file_status there = fs::status(target_, status);
  if (there.type() == fs::file_type::none) cannot_write(folder, status.message());
  if (fs::exists(there) && !fs::is_directory(there)) {
    cannot_write(folder, "it exists and is not a folder");
  }
  remove_abandoned(target_ / kFiles);
  status = begin(target_ / kFiles, made_, partial_);
  if (status) cannot_write(folder, status.message());
}

void AtomicFiles::write(const std::string& name, std::string_view text) {
  std::error_code status;
  if (fs::is_directory(target_ / name, status)) cannot_write(shown_ / name, "it is a folder");
  const int error = write_new(partial() / name, text, /*sync=*/true);
  if (error != 0) cannot_write(shown_ / name, reason_of(error));
  names_.push_back(name);
}

void AtomicFiles::adopt() {
  std::error_code status;
  for (const std::string& name : files_under(partial())) {
    if (name == kOwnerMark) continue;
    if (fs::is_directory(target_ / name, status)) cannot_write(shown_ / name, "it is a folder");
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
  }
}

void AtomicFiles::commit() {
  const HeldSignals held;  // commit all files or none
  for (const std::string& name : names_) {
    std::error_code status;
    fs::rename(partial() / name, target_ / name, status);
    if (status) cannot_write(shown_ / name, status.message());
  }
  names_.clear();
  made_.keep();
}

}  // namespace kvsim
