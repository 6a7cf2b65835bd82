#pragma once

#include <cstdint>
#include <filesystem>

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

/// `NAME.WORD-PID` beside `target`, the name under which this process builds or puts aside;
/// with a count behind it where that is taken. `word` is "partial" or "old".
[[nodiscard]] std::filesystem::path sibling_of(const std::filesystem::path& target,
                                               const char* word);

/// Removes what processes that are no longer alive left beside `target` under such names. A whole
/// folder put aside ("old") goes back to `target` where nothing stands there. Errors: none; what
/// cannot be removed stays.
void remove_abandoned(const std::filesystem::path& target);

}  // namespace kvsim
