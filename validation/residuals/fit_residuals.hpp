#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/cost/residuals/residuals.hpp"

namespace kvsim {

/// One measured value next to its prediction.
struct ResidualRow {
  std::string metric;                 // ResidualClass::metric
  std::vector<std::string> features;  // words, each of which belongs to one feature only
  std::string document;
  std::string service{};  // the same for rows of one service at several loads
  std::string apart{};    // the feature whose rows have a separate class; empty: none
  double log_ratio = 0;   // log(measured / predicted)
  Response response = Response::linear(1);
};

/// A row's interval from all other documents.
struct LeftOutEnds {
  double low = 0, high = 0;  // of log(measured / predicted), in 90 % of cases
  [[nodiscard]] bool covers(double log_ratio) const {
    return low <= log_ratio && log_ratio <= high;
  }
  /// Winkler's score of a 90 % interval: its width, and 20 times the distance of a value outside.
  [[nodiscard]] double score(double log_ratio) const;
};

struct FittedResiduals {
  std::vector<ResidualClass> classes;
  std::vector<LeftOutEnds> left_out;  // for each row
};

/// Classes by features.
///
/// Errors of the rows of a document are correlated, but not fully across its services. A document
/// with kFullDocument rows in a class counts as one document; with fewer rows it counts in
/// proportion, with more by the square root of the ratio. The distribution of a class is a mixture
/// of its documents' errors and of its parent class, which has the weight of a number of documents:
/// a class of one document stays close to its parent, a class of ten mostly follows its own
/// documents. This weight, the floor of responses and a factor that moves quantiles away from the
/// median (few documents show too little of the tails) are chosen per metric: the values with the
/// narrowest error intervals that cover 90 % when each document is left out in turn, as means over
/// documents. Classes are chosen likewise: starting from the class of all runs, the class with one
/// more word that narrows intervals most is added, as long as it narrows by kMinGain and has
/// kMinDocuments with kFullDocument rows. `within` is a quantile of the distances of errors from
/// the middle of their service's errors, with the same weights.
///
/// Rows that are `apart` are excluded from this. Each of their features with kMinDocuments gets one
/// more class below the class of all runs, in which the latter has the largest weight tried. It
/// comes first, so that its runs match no other class.
///
/// Errors: ContractError if all of `rows` are apart.
[[nodiscard]] FittedResiduals fit_residuals(const std::vector<ResidualRow>& rows);

}  // namespace kvsim
