#include "models/units/temporary.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
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

/// As the kernel's getdents64 lays entries out; readdir may allocate, which a handler must not.
struct KernelEntry {
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t size;
  std::uint8_t type;
};
constexpr std::size_t kNameAt = 19;  // right behind `type`

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

/// The process that `name` ("NAME.WORD-PID" or "NAME.WORD-PID-COUNT") is of.
std::optional<pid_t> owner_of(std::string_view name, std::string_view before) {
  if (!name.starts_with(before)) return std::nullopt;
  name.remove_prefix(before.size());
  const auto number = [&name]() -> std::optional<pid_t> {
    pid_t value = 0;
    const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), value);
    if (status != std::errc{} || value <= 0) return std::nullopt;
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    return value;
  };
  const auto owner = number();
  if (owner && name.starts_with('-')) {
    name.remove_prefix(1);
    if (!number()) return std::nullopt;
  }
  return name.empty() ? owner : std::nullopt;
}

bool is_gone(pid_t process) { return ::kill(process, 0) != 0 && errno == ESRCH; }

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
  // Folders inside folders: as long as one goes, the one around it may go next.
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

void remove_abandoned(const fs::path& target) {
  const std::string name = target.filename().string();
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path{"."};
  std::vector<fs::path> partial, old;
  std::error_code status;
  for (fs::directory_iterator at{folder, status}, end; !status && at != end; at.increment(status)) {
    const std::string other = at->path().filename().string();
    if (const auto owner = owner_of(other, name + ".partial-"); owner && is_gone(*owner)) {
      partial.push_back(at->path());
    } else if (const auto aside = owner_of(other, name + ".old-"); aside && is_gone(*aside)) {
      old.push_back(at->path());
    }
  }
  for (const fs::path& path : old) {
    std::error_code unread;
    const bool vacant = fs::symlink_status(target, unread).type() == fs::file_type::not_found;
    if (vacant) {
      fs::rename(path, target, unread);
    } else {
      fs::remove_all(path, unread);
    }
  }
  for (const fs::path& path : partial) {
    std::error_code unread;
    fs::remove_all(path, unread);
  }
}

}  // namespace kvsim
