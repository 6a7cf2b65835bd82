#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// An option of a command, for help and for the parser.
struct Option {
  /// Kinds of values that shell completion offers.
  enum class Values : std::uint8_t {
    kAny,  // no completion
    kFiles,
    kFolders,
    kModels,  // names of the catalogues; several are joined by commas
    kGpus,
    kMethods,
    kStacks,
    kFormats,
    kCacheFormats,
    kKeys,   // pointers of scenario keys, each followed by "="
    kWords,  // the words in `words`
  };

  std::string name;      // "out"
  char letter = 0;       // 'o', or 0
  std::string value{};   // placeholder of its value ("DIR"); empty: a switch
  bool repeats = false;  // may be given several times
  std::string help{};
  Values values = Values::kAny;
  std::vector<std::string> words{};
  /// Other spellings, with dashes ("--tensor-parallel-size", "-tp"). In every long name "_" is
  /// equivalent to "-".
  std::vector<std::string> aliases{};
  std::string group{};  // help heading of this option and the options after it
};

/// The command line of one command, checked against the command's options.
class Arguments {
 public:
  /// `words` without the program's and the command's name. Errors: InputError "COMMAND: …" for an
  /// unknown option (with the nearest), a missing or an unwanted value, or an option given twice.
  Arguments(std::string command, const std::vector<Option>& options,
            const std::vector<std::string>& words);

  /// "validate kernels".
  [[nodiscard]] const std::string& command() const { return command_; }
  [[nodiscard]] bool has(std::string_view option) const;
  /// `option` as the user typed it, for messages: "--tensor-parallel-size", "-b"; "--OPTION" if it
  /// is not given.
  [[nodiscard]] std::string typed(std::string_view option) const;
  /// Replaces every option name in `message` that is not in quotes by the user's spelling.
  [[nodiscard]] std::string in_typed_words(std::string_view message) const;
  [[nodiscard]] std::optional<std::string> value(std::string_view option) const;
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const;
  /// The values of `option`, split at commas and trimmed. Errors: InputError for empty parts.
  [[nodiscard]] std::vector<std::string> list(std::string_view option) const;
  /// Errors: InputError "--OPTION: expected an integer in [low, high], got …".
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view option, std::int64_t low,
                                                    std::int64_t high) const;
  [[nodiscard]] std::optional<double> number(std::string_view option, double low,
                                             double high) const;

  /// Sets the value of `option` unless it is given already. If it `repeats`, inserts the value
  /// before the given ones. Returns whether the option was not given.
  bool set_default(const std::string& option, std::string value, bool repeats = false);

  /// Words that belong to no option, in order.
  [[nodiscard]] const std::vector<std::string>& words() const { return words_; }
  /// Errors: InputError unless there are `min` to `max` words; `what` names them: "SCENARIO".
  void expect_words(std::size_t min, std::size_t max, std::string_view what) const;

 private:
  /// Replaces every alias in `words` by the option's name; fills typed_.
  std::vector<std::string> with_names(const std::vector<Option>& options,
                                      std::vector<std::string> words);

  std::string command_;
  std::map<std::string, std::string, std::less<>> typed_;  // name -> spelling
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> words_;
};

/// The help text of the options under their group headings, indented by two blanks.
[[nodiscard]] std::string options_help(const std::vector<Option>& options);
/// The help of an option with its other spellings.
[[nodiscard]] std::string full_help(const Option& option);

/// Parses all of `text` as an integer or a number; nullopt if that fails.
[[nodiscard]] std::optional<std::int64_t> parse_integer(std::string_view text);
[[nodiscard]] std::optional<double> parse_number(std::string_view text);

/// Rejects a file or folder that is given twice, also under different names (links, "./"), because
/// its data would count twice. `option` precedes the name: "--trace ", or empty for words. Errors:
/// InputError "OPTION FILE is given twice".
void refuse_repeated_files(std::string_view option, const std::vector<std::string>& files);

}  // namespace kvsim
