#include "models/units/temporary.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvsim {
namespace {

namespace fs = std::filesystem;

enum SlotState : int { kFree, kFilling, kLive };
struct Slot {
  std::atomic<int> state{kFree};
  TemporaryKind kind{};
  std::array<char, PATH_MAX> path{};
};
constexpr int kSlots = 64;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler reads them");
std::array<Slot, kSlots> slots;

/// The layout of the kernel's getdents64; readdir may allocate, which a signal handler must not do.
struct KernelEntry {
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t size;
  std::uint8_t type;
};
constexpr std::size_t kNameAt = 19;  // directly after `type`

constexpr int kDeepest = 8;
constexpr int kPasses = 4;  // entries may be skipped while others are removed

void remove_tree(int parent, const char* name, int depth) noexcept {
  const int folder = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return;
  bool found = true;
  for (int pass = 0; found && pass < kPasses; ++pass) {
    found = false;
    ::lseek(folder, 0, SEEK_SET);
    alignas(8) std::array<char, 2048> buffer;
    long size = 0;
    while ((size = ::syscall(SYS_getdents64, folder, buffer.data(), buffer.size())) > 0) {
      for (long at = 0; at < size;) {
        KernelEntry entry{};
        std::memcpy(&entry, buffer.data() + at, sizeof entry);
        const char* const child = buffer.data() + at + kNameAt;
        at += entry.size;
        if (std::strcmp(child, ".") == 0 || std::strcmp(child, "..") == 0) continue;
        found = true;
        if (::unlinkat(folder, child, 0) != 0 && errno != ENOENT && depth < kDeepest) {
          remove_tree(folder, child, depth + 1);
        }
      }
    }
  }
  ::close(folder);
  ::unlinkat(parent, name, AT_REMOVEDIR);
}

/// Whether `name` is "NAME.WORD-PID" or "NAME.WORD-PID-COUNT"; `before` is "NAME.WORD-".
bool is_sibling(std::string_view name, std::string_view before) {
  if (!name.starts_with(before)) return false;
  name.remove_prefix(before.size());
  const std::size_t pid = std::min(name.find_first_not_of("0123456789"), name.size());
  if (pid == 0) return false;
  name.remove_prefix(pid);
  if (name.empty()) return true;
  return name.size() > 1 && name.front() == '-' &&
         name.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

/// Returns the first line of a short file; empty if it cannot be read.
std::string first_line(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return "";
  std::array<char, 1024> buffer;
  const ssize_t size = ::read(file, buffer.data(), buffer.size());
  ::close(file);
  const std::string_view text{buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  return std::string{text.substr(0, text.find('\n'))};
}

/// Returns the ticks from boot to the start of a process; empty if there is no such process.
std::string start_time(pid_t process) {
  const std::string stat = first_line(fmt::format("/proc/{}/stat", process));
  // "PID (NAME) STATE ...": the name may contain blanks and brackets. The start time is field 22.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields{stat.substr(name_end + 1)};
  constexpr int kFieldsToStart = 20;
  std::string field;
  for (int i = 0; i < kFieldsToStart; ++i) fields >> field;
  return field;
}

struct OwnerMark {
  std::string host, boot, names, start;  // names: the PID namespace
  pid_t process = 0;
};

std::string word_of(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text.empty() ? "-" : text;
}

OwnerMark own_mark() {
  std::array<char, HOST_NAME_MAX + 1> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  std::array<char, 64> names{};
  (void)::readlink("/proc/self/ns/pid", names.data(), names.size() - 1);
  return {.host = word_of(host.data()) + "/" + word_of(first_line("/etc/machine-id")),
          .boot = word_of(first_line("/proc/sys/kernel/random/boot_id")),
          .names = word_of(names.data()),
          .start = word_of(start_time(::getpid())),
          .process = ::getpid()};
}

constexpr const char* kMarkHead = "kvsim-builds-here";

std::optional<OwnerMark> read_owner_mark(const fs::path& folder) {
  std::istringstream words{first_line(folder / kOwnerMark)};
  std::string head;
  OwnerMark mark;
  words >> head >> mark.host >> mark.boot >> mark.names >> mark.process >> mark.start;
  return words && head == kMarkHead && mark.process > 0 ? std::optional{mark} : std::nullopt;
}

/// Whether the process that wrote the mark ran on this machine and has ended.
bool has_ended(const OwnerMark& mark) {
  const OwnerMark own = own_mark();
  if (mark.host != own.host || mark.names != own.names) return false;
  if (mark.boot != own.boot) return true;
  if (::kill(mark.process, 0) != 0 && errno == ESRCH) return true;
  const std::string start = start_time(mark.process);
  return !start.empty() && start != mark.start;  // the PID belongs to another process now
}

bool is_abandoned(const fs::path& path) {
  std::error_code unread;
  if (fs::symlink_status(path, unread).type() != fs::file_type::directory) return false;
  const auto mark = read_owner_mark(path);
  return mark && has_ended(*mark);
}

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

}  // namespace

Temporary::Temporary(const fs::path& path, TemporaryKind kind) {
  const std::string& text = path.native();
  if (text.size() >= PATH_MAX) return;
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = slots[static_cast<std::size_t>(i)];
    int expected = kFree;
    if (!slot.state.compare_exchange_strong(expected, kFilling)) continue;
    slot.kind = kind;
    std::memcpy(slot.path.data(), text.c_str(), text.size() + 1);
    slot.state.store(kLive);
    slot_ = i;
    return;
  }
}

Temporary::~Temporary() {
  if (slot_ >= 0) slots[static_cast<std::size_t>(slot_)].state.store(kFree);
}

void remove_temporaries() noexcept {
  for (Slot& slot : slots) {
    if (slot.state.load() != kLive) continue;
    if (slot.kind == TemporaryKind::kFile) ::unlink(slot.path.data());
    if (slot.kind == TemporaryKind::kTree) remove_tree(AT_FDCWD, slot.path.data(), 0);
  }
  // Nested folders: repeat as long as one was removed, since its parent may be empty now.
  for (bool removed = true; removed;) {
    removed = false;
    for (Slot& slot : slots) {
      if (slot.state.load() != kLive || slot.kind != TemporaryKind::kEmptyFolder) continue;
      removed = ::rmdir(slot.path.data()) == 0 || removed;
    }
  }
}

HeldSignals::HeldSignals() {
  const sigset_t held = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &held, &before_);
}

HeldSignals::~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

fs::path sibling_of(const fs::path& target, const char* word) {
  for (int attempt = 1;; ++attempt) {
    fs::path name = target;
    name += fmt::format(".{}-{}", word, ::getpid());
    if (attempt > 1) name += fmt::format("-{}", attempt);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(name, ignored))) return name;
  }
}

int write_owner_mark(const fs::path& folder) {
  const OwnerMark mark = own_mark();
  const std::string text = fmt::format("{} {} {} {} {} {}\n", kMarkHead, mark.host, mark.boot,
                                       mark.names, mark.process, mark.start);
  const fs::path path = folder / kOwnerMark;
  const int file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  const ssize_t written = ::write(file, text.data(), text.size());
  const int error = written == static_cast<ssize_t>(text.size()) ? 0 : written < 0 ? errno : ENOSPC;
  if (::close(file) != 0 && error == 0) return errno;
  return error;
}

void remove_abandoned(const fs::path& target) {
  const std::string name = target.filename().string();
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path{"."};
  std::vector<fs::path> partial, old;
  std::error_code status;
  for (fs::directory_iterator at{folder, status}, end; !status && at != end; at.increment(status)) {
    const std::string other = at->path().filename().string();
    if (is_sibling(other, name + ".partial-")) partial.push_back(at->path());
    if (is_sibling(other, name + ".old-")) old.push_back(at->path());
  }
  for (const fs::path& path : old) {
    if (!is_abandoned(path)) continue;
    std::error_code unread;
    const bool vacant = fs::symlink_status(target, unread).type() == fs::file_type::not_found;
    if (vacant) {
      fs::rename(path, target, unread);
      ::unlink((target / kOwnerMark).c_str());
    } else {
      remove_all_of(path);
    }
  }
  for (const fs::path& path : partial) {
    if (is_abandoned(path)) remove_all_of(path);
  }
}

void remove_all_of(const fs::path& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return;
  for (int pass = 0; pass < kPasses && ::rmdir(path.c_str()) != 0; ++pass) {
    DIR* const folder = ::opendir(path.c_str());
    if (folder == nullptr) return;
    std::vector<std::string> names;
    while (const dirent* const entry = ::readdir(folder)) {
      const std::string_view name{entry->d_name};
      if (name != "." && name != "..") names.emplace_back(name);
    }
    ::closedir(folder);  // before descending, so that one descriptor is enough
    for (const std::string& name : names) remove_all_of(path / name);
  }
}

PartialFolder::PartialFolder(const fs::path& target)
    : path_{sibling_of(target, "partial")}, name_{target.filename()} {
  registered_.emplace(path_, TemporaryKind::kTree);
  error_ = ::mkdir(path_.c_str(), 0777) == 0 ? write_owner_mark(path_) : errno;
  if (error_ != 0) {
    remove_all_of(path_);
    registered_.reset();
  }
}

PartialFolder::~PartialFolder() {
  if (registered_) remove_all_of(path_);
}

}  // namespace kvsim
