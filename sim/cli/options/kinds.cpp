#include "sim/cli/options/kinds.hpp"

#include <array>
#include <string>
#include <vector>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

struct KindWords {
  CatalogueKind kind;
  std::string_view singular, plural;
};
constexpr std::array kKinds{KindWords{CatalogueKind::kModel, "model", "models"},
                            KindWords{CatalogueKind::kGpu, "gpu", "gpus"},
                            KindWords{CatalogueKind::kMethod, "method", "methods"},
                            KindWords{CatalogueKind::kStack, "stack", "stacks"},
                            KindWords{CatalogueKind::kCalibration, "calibration", "calibrations"},
                            KindWords{CatalogueKind::kDevice, "device", "devices"}};

}  // namespace

CatalogueKind parse_kind(std::string_view word) {
  std::vector<std::string> known;
  for (const KindWords& words : kKinds) {
    if (word == words.singular || word == words.plural) return words.kind;
    known.emplace_back(words.plural);
  }
  throw InputError{unknown_name("catalogue", word, known)};
}

std::string_view plural_of(CatalogueKind kind) {
  return kKinds[static_cast<std::size_t>(kind)].plural;
}

}  // namespace kvsim
