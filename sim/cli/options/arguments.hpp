#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// An option of a command, as help shows it and the parser takes it.
struct Option {
  /// What a shell may offer after it.
  enum class Values : std::uint8_t {
    kAny,  // nothing it knows
    kFiles,
    kFolders,
    kModels,  // names of the catalogues; several are joined by commas
    kGpus,
    kMethods,
    kStacks,
    kFormats,
    kCacheFormats,
    kKeys,   // pointers of scenario keys, each followed by "="
    kWords,  // those of `words`
  };

  std::string name;      // "out"
  char letter = 0;       // 'o', or 0
  std::string value{};   // what its value is called ("DIR"); empty: a switch
  bool repeats = false;  // may be given several times
  std::string help{};
  Values values = Values::kAny;
  std::vector<std::string> words{};
  /// Other spellings as they are typed ("--tensor-parallel-size", "-tp"). In every long name "_"
  /// counts as "-".
  std::vector<std::string> aliases{};
  std::string group{};  // heading of the help that the option and those after it come under
};

/// The command line of one command, checked against what the command takes.
class Arguments {
 public:
  /// `words` without the program's and the command's name. Errors: InputError "COMMAND: …" for an
  /// unknown option (with the nearest), a missing or an unwanted value, an option given twice.
  Arguments(std::string command, const std::vector<Option>& options,
            const std::vector<std::string>& words);

  /// "validate kernels".
  [[nodiscard]] const std::string& command() const { return command_; }
  [[nodiscard]] bool has(std::string_view option) const;
  /// `option` as the user typed it, for messages: "--tensor-parallel-size", "-b"; "--OPTION" where
  /// it is not given.
  [[nodiscard]] std::string typed(std::string_view option) const;
  /// `message` with every option name that is not in quotes as the user typed that option.
  [[nodiscard]] std::string in_typed_words(std::string_view message) const;
  [[nodiscard]] std::optional<std::string> value(std::string_view option) const;
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const;
  /// The values of `option`, each split at its commas, without blanks at their ends; empty parts
  /// are refused.
  [[nodiscard]] std::vector<std::string> list(std::string_view option) const;
  /// Errors: InputError "--OPTION: expected an integer in [low, high], got …".
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view option, std::int64_t low,
                                                    std::int64_t high) const;
  [[nodiscard]] std::optional<double> number(std::string_view option, double low,
                                             double high) const;

  /// Gives `option` this value unless it is given already; of one that `repeats`, in front of the
  /// given values. Whether it was free.
  bool set_default(const std::string& option, std::string value, bool repeats = false);

  /// Words that belong to no option, in order.
  [[nodiscard]] const std::vector<std::string>& words() const { return words_; }
  /// Errors: InputError unless there are `min` to `max` words; `what` names them: "SCENARIO".
  void expect_words(std::size_t min, std::size_t max, std::string_view what) const;

 private:
  /// `words` with every alias as the option's name; fills typed_.
  std::vector<std::string> with_names(const std::vector<Option>& options,
                                      std::vector<std::string> words);

  std::string command_;
  std::map<std::string, std::string, std::less<>> typed_;  // name -> spelling
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> words_;
};

/// The options as help prints them, under the headings of their groups, two blanks in front of each
/// line.
[[nodiscard]] std::string options_help(const std::vector<Option>& options);
/// The help of an option with its other spellings.
[[nodiscard]] std::string full_help(const Option& option);

/// An integer or a number that is all of `text`; nullopt otherwise.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text);
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// Refuses a file or folder that is given twice, under one name or several (links, "./"): its data
/// would count twice. `option` is written in front of the name: "--trace ", or nothing for words.
/// Errors: InputError "OPTION FILE is given twice".
void refuse_repeated_files(std::string_view option, const std::vector<std::string>& files);

}  // namespace kvsim
