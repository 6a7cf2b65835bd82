#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <signal.h>

namespace kvsim {

/// Kind of path that is removed when a signal ends the program.
enum class TemporaryKind : std::uint8_t {
  kFile,
  kTree,        // a folder with all its contents
  kEmptyFolder  // a folder created on the way; removed only if it is empty
};

/// Registers `path` as under construction for the lifetime of this object. It does not create or
/// remove anything itself. Register before creating the path. Thread-safe. At most 64 paths of up
/// to 4 KiB are registered simultaneously; others are ignored.
class Temporary {
 public:
  Temporary(const std::filesystem::path& path, TemporaryKind kind);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

 private:
  int slot_ = -1;
};

/// Removes every registered path. Makes only async-signal-safe calls, so signal handlers may call
/// it.
void remove_temporaries() noexcept;

/// Blocks SIGINT, SIGTERM and SIGHUP in this thread during its lifetime. Used around two renames
/// that belong together.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  sigset_t before_{};
};

/// The marker file in a folder that this program builds in or has moved away: one line with host,
/// boot, PID namespace, PID and start time of the process.
inline constexpr const char* kOwnerMark = ".kvsim-partial";

/// Writes this process's marker into `folder`. Returns 0 or an errno.
[[nodiscard]] int write_owner_mark(const std::filesystem::path& folder);

/// Returns a free name `NAME.WORD-PID` next to `target`, with a number appended if it is taken.
/// `word` is "partial" or "old".
[[nodiscard]] std::filesystem::path sibling_of(const std::filesystem::path& target,
                                               const char* word);

/// Removes the leftovers next to `target` of kvsim processes that have ended: only folders with the
/// marker of a process of this machine that no longer runs. A complete folder that was moved away
/// ("old") is renamed back to `target` if that name is free. Never throws; leaves anything that
/// cannot be removed.
void remove_abandoned(const std::filesystem::path& target);

/// Removes `path` and all its contents without following links. Needs one free file descriptor at
/// any folder depth. Never throws; leaves anything that cannot be removed.
void remove_all_of(const std::filesystem::path& path);

/// A marked folder `NAME.partial-PID` next to `target`, in which the target is built. An interrupt
/// removes it.
class PartialFolder {
 public:
  explicit PartialFolder(const std::filesystem::path& target);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  /// 0, or the errno of the failure to create the folder, after which nothing remains.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Path under construction, as PATH/NAME.
  [[nodiscard]] std::filesystem::path file() const { return path_ / name_; }
  /// Keeps the folder, which now has its final name.
  void release() { registered_.reset(); }

 private:
  std::filesystem::path path_, name_;
  std::optional<Temporary> registered_;
  int error_ = 0;
};

}  // namespace kvsim
