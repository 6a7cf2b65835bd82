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

/// Throws the InputError of a file that could not be written, called as it will be once it is
/// whole: "out/a.csv: cannot be written: REASON".
[[noreturn]] void cannot_write(const std::filesystem::path& path, const std::string& reason);

/// Writes `text` to a temporary name next to `path`, then renames it into place: readers see the
/// old file or the whole new one. Errors: InputError "PATH: cannot be written: REASON", also if
/// `path` is a symbolic link; the old file is then unchanged and the temporary one removed.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Folders made on the way to a place. Unless kept they go again, upwards while they are empty.
class MadeFolders {
 public:
  MadeFolders() = default;
  ~MadeFolders() { remove(); }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

  /// Makes `folder`, absolute, and those around it that are not there. Once.
  [[nodiscard]] std::error_code make(const std::filesystem::path& folder);
  void remove();
  void keep();

 private:
  std::vector<std::filesystem::path> made_;  // innermost first
  std::list<Temporary> registered_;
};

/// A folder that appears whole or not at all. Files are built in `NAME.partial-PID` next to it;
/// commit() renames that into place. An existing folder is replaced if it is empty or if kvsim made
/// all its files (the list `.kvsim-folder` in it names what kvsim wrote).
class AtomicFolder {
 public:
  /// Creates the partial folder, and missing parents. Errors: InputError if it cannot be created or
  /// `path` is something that commit() would not replace: the working directory, one around it, or
  /// a folder with files of others.
  explicit AtomicFolder(const std::filesystem::path& path);
  /// Removes the partial folder, and the parents made for it, unless commit() has run.
  ~AtomicFolder() = default;
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where files are to be written until commit().
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_->path(); }
  /// Writes partial()/NAME (NAME may name a sub-folder, created on the way).
  void write(const std::filesystem::path& name, std::string_view text) const;
  /// Creates the sub-folder partial()/NAME and returns it, for what others write there.
  [[nodiscard]] std::filesystem::path make_folder(const std::filesystem::path& name) const;
  /// Errors: InputError; the previous contents of the path are unchanged then.
  void commit();

 private:
  std::filesystem::path shown_;  // as the user gave it, for messages
  std::filesystem::path target_;
  MadeFolders parents_;  // removed after what is in them
  std::optional<PartialFolder> partial_;
};

/// Files of one folder that change together while others stay as they are: built in a folder
/// `.kvsim-files.partial-PID` in it, moved into place by commit().
class AtomicFiles {
 public:
  /// Makes the folder where there is none. Errors: InputError where it is no folder, cannot be made
  /// or cannot be written into.
  explicit AtomicFiles(const std::filesystem::path& folder);
  /// Removes what was built, and the folders made for it, unless commit() has run.
  ~AtomicFiles() = default;
  AtomicFiles(const AtomicFiles&) = delete;
  AtomicFiles& operator=(const AtomicFiles&) = delete;

  /// Builds FOLDER/NAME; a name comes once. Errors: InputError.
  void write(const std::string& name, std::string_view text);
  /// Where the files are built, for what others write there.
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_->path(); }
  /// Takes all files that are in partial() as built.
  void adopt();
  /// Replaces each file by the one built. Errors: InputError, before any file moved unless the file
  /// system fails between two renames.
  void commit();

 private:
  std::filesystem::path shown_;  // as the user gave it, for messages
  std::filesystem::path target_;
  MadeFolders made_;
  std::optional<PartialFolder> partial_;
  std::vector<std::string> names_;
};

}  // namespace kvsim
