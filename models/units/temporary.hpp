#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <signal.h>

namespace kvsim {

/// What is to go when a signal ends the program.
enum class TemporaryKind : std::uint8_t {
  kFile,
  kTree,        // a folder and all that is in it
  kEmptyFolder  // a folder made on the way: goes only if nothing is left in it
};

/// Says that `path` is under construction for as long as this object lives. It neither creates nor
/// removes anything itself. Register before creating the path. Safe from several threads; beyond 64
/// at a time, and for paths past 4 KiB, nothing is remembered.
class Temporary {
 public:
  Temporary(const std::filesystem::path& path, TemporaryKind kind);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

 private:
  int slot_ = -1;
};

/// Removes every registered path. Only async-signal-safe calls: signal handlers may call it.
void remove_temporaries() noexcept;

/// Keeps SIGINT, SIGTERM and SIGHUP waiting (for this thread) while it lives: around two renames
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

/// The mark in a folder that this program builds in or has put aside: one line with host, boot,
/// PID namespace, PID and start time of the process.
inline constexpr const char* kOwnerMark = ".kvsim-partial";

/// Writes this process's mark into `folder`. Returns 0 or an errno.
[[nodiscard]] int write_owner_mark(const std::filesystem::path& folder);

/// `NAME.WORD-PID` next to `target`, a free name; with a count behind it if that is taken. `word`
/// is "partial" or "old".
[[nodiscard]] std::filesystem::path sibling_of(const std::filesystem::path& target,
                                               const char* word);

/// Removes what kvsim processes that have ended left next to `target` under such names: only
/// folders with the mark of a process of this machine that no longer runs. A whole folder put aside
/// ("old") goes back to `target` if that name is free. Errors: none; what cannot be removed stays.
void remove_abandoned(const std::filesystem::path& target);

/// Removes `path` and all that is in it, links not followed; needs one free file descriptor,
/// however deep the folders are. Errors: none; what cannot be removed stays.
void remove_all_of(const std::filesystem::path& path);

/// A marked folder `NAME.partial-PID` next to `target`, in which the target is built; an interrupt
/// removes it.
class PartialFolder {
 public:
  explicit PartialFolder(const std::filesystem::path& target);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  /// 0, or the errno of what failed when the folder was made; nothing is left then.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Where the target is built, as PATH/NAME.
  [[nodiscard]] std::filesystem::path file() const { return path_ / name_; }
  /// The folder has its final name now and is not removed.
  void release() { registered_.reset(); }

 private:
  std::filesystem::path path_, name_;
  std::optional<Temporary> registered_;
  int error_ = 0;
};

}  // namespace kvsim
