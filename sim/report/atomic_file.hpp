#pragma once

#include <filesystem>
#include <list>
#include <optional>
#include <string_view>

#include "models/units/temporary.hpp"

namespace kvsim {

/// Writes `text` to a temporary name beside `path`, then renames it into place: readers see the old
/// file or the whole new one. Errors: InputError "PATH: cannot be written: REASON"; the old file is
/// then untouched and the temporary one gone.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// A folder that appears whole or not at all. Files are built in `NAME.partial-PID` beside it;
/// commit() renames that into place. A folder already there is replaced if it is empty or if kvsim
/// made all that is in it (the list `.kvsim-folder` inside says what it wrote).
class AtomicFolder {
 public:
  /// Creates the partial folder, and missing parents. Errors: InputError if it cannot be created or
  /// `path` is something that commit() would not replace: the working directory, one around it, or
  /// a folder with files of others.
  explicit AtomicFolder(const std::filesystem::path& path);
  /// Removes the partial folder, and the parents made for it, unless commit() has run.
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where files are to be written until commit().
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_; }
  /// Writes partial()/NAME (NAME may name a sub-folder, created on the way).
  void write(const std::filesystem::path& name, std::string_view text) const;
  /// Errors: InputError; what stood at the path before then stands there still.
  void commit();

 private:
  void remove_made_parents() const;

  std::filesystem::path shown_;  // as the user gave it, for messages
  std::filesystem::path target_;
  std::filesystem::path partial_;
  std::optional<std::filesystem::path> made_parent_;  // topmost folder created for us
  std::list<Temporary> registered_;                   // what an interrupt is to take away
  bool committed_ = false;
};

}  // namespace kvsim
