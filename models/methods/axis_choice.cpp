#include "models/methods/axis_choice.hpp"

#include <utility>

namespace kvsim {

ParamInfo number_param(std::string name, std::string symbol, double value, double low, double high,
                       std::string range, std::string help, std::string source,
                       std::vector<std::string> aliases) {
  return {
      std::move(name),   std::move(symbol), value, low, high, {}, std::move(range), std::move(help),
      std::move(source), std::move(aliases)};
}

ParamInfo integer_param(std::string name, std::string symbol, std::int64_t value, double low,
                        double high, std::string range, std::string help, std::string source,
                        std::vector<std::string> aliases) {
  return {
      std::move(name),   std::move(symbol), value, low, high, {}, std::move(range), std::move(help),
      std::move(source), std::move(aliases)};
}

ParamInfo word_param(std::string name, std::vector<std::string> words, std::string help,
                     std::string source) {
  std::string range = "one of";
  for (std::size_t i = 0; i < words.size(); ++i) {
    range += i == 0 ? " " : ", ";
    range += words[i];
  }
  const std::string first = words.front();
  return {std::move(name),   "", first, 0, 0, std::move(words), std::move(range), std::move(help),
          std::move(source), {}};
}

ParamInfo flag_param(std::string name, bool value, std::string help, std::string source) {
  return {std::move(name),   "", value, 0, 0, {}, "true or false", std::move(help),
          std::move(source), {}};
}

ParamInfo text_param(std::string name, std::string range, std::string help, std::string source) {
  return {std::move(name),   "", std::string{}, 0, 0, {}, std::move(range), std::move(help),
          std::move(source), {}};
}

ParamInfo path_param(std::string name, std::string help, std::string source) {
  return text_param(std::move(name), "a file's path", std::move(help), std::move(source));
}

}  // namespace kvsim
