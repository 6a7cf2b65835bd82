#pragma once

#include <filesystem>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "models/units/temporary.hpp"

namespace kvsim {

/// Throws the InputError for a file that could not be written, under its final name: "out/a.csv:
/// cannot be written: REASON".
[[noreturn]] void cannot_write(const std::filesystem::path& path, const std::string& reason);

/// Writes `text` to a temporary name next to `path`, then renames it: readers see the old file or
/// the whole new one. Errors: InputError "PATH: cannot be written: REASON", also if `path` is a
/// symbolic link; the old file is then unchanged and the temporary file removed.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Folders that were created for a path. They are removed again, innermost first and only if empty,
/// unless they are kept.
class MadeFolders {
 public:
  MadeFolders() = default;
  ~MadeFolders() { remove(); }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

  /// Creates `folder` (absolute) and its missing parents. Call it once.
  [[nodiscard]] std::error_code make(const std::filesystem::path& folder);
  void remove();
  void keep();

 private:
  std::vector<std::filesystem::path> made_;  // innermost first
  std::list<Temporary> registered_;
};

/// A folder that appears as a whole or not at all. Files are built in `NAME.partial-PID` next to
/// it; commit() renames that folder. An existing folder is replaced if it is empty or if kvsim
/// wrote all its files (the list `.kvsim-folder` in it names them).
class AtomicFolder {
 public:
  /// Creates the partial folder and missing parents. Errors: InputError if it cannot be created or
  /// `path` is something that commit() would not replace: the working directory, one of its
  /// parents, or a folder with other files.
  explicit AtomicFolder(const std::filesystem::path& path);
  /// Removes the partial folder and the parents created for it, unless commit() has run.
  ~AtomicFolder() = default;
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// The folder to write files to until commit().
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_->path(); }
  /// Writes partial()/NAME. NAME may contain a sub-folder, which is created.
  void write(const std::filesystem::path& name, std::string_view text) const;
  /// Creates the sub-folder partial()/NAME and returns it, for other writers.
  [[nodiscard]] std::filesystem::path make_folder(const std::filesystem::path& name) const;
  /// Errors: InputError; the previous contents of the path are then unchanged.
  void commit();

 private:
  std::filesystem::path shown_;  // as the user gave it, for messages
  std::filesystem::path target_;
  MadeFolders parents_;  // removed after the partial folder
  std::optional<PartialFolder> partial_;
};

/// Files of one folder that change together while its other files remain unchanged. They are built
/// in a folder `.kvsim-files.partial-PID` in it; commit() moves them into place.
class AtomicFiles {
 public:
  /// Creates the folder if it does not exist. Errors: InputError if it is not a folder, cannot be
  /// created or cannot be written to.
  explicit AtomicFiles(const std::filesystem::path& folder);
  /// Removes the built files and the folders created for them, unless commit() has run.
  ~AtomicFiles() = default;
  AtomicFiles(const AtomicFiles&) = delete;
  AtomicFiles& operator=(const AtomicFiles&) = delete;

  /// Builds FOLDER/NAME; call it once per name. Errors: InputError.
  void write(const std::string& name, std::string_view text);
  /// The folder in which the files are built, for other writers.
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_->path(); }
  /// Adds all files in partial() to the set.
  void adopt();
  /// Replaces each file with the one built. Errors: InputError; no file is then replaced, unless
  /// the file system fails between two renames.
  void commit();

 private:
  std::filesystem::path shown_;  // as the user gave it, for messages
  std::filesystem::path target_;
  MadeFolders made_;
  std::optional<PartialFolder> partial_;
  std::vector<std::string> names_;
};

}  // namespace kvsim
