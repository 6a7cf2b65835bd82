#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/cost/residuals/residuals.hpp"

namespace kvsim {

/// One measured value next to its prediction.
struct ResidualRow {
  std::string metric;                 // ResidualClass::metric
  std::vector<std::string> features;  // in words, none of which is of two features
  std::string document;
  std::string service{};  // rows of one service at several loads have the same
  std::string apart{};    // the feature whose rows have a separate class; empty: none
  double log_ratio = 0;   // log(measured / predicted)
  Response response = Response::linear(1);
};

/// A row's interval from all other documents.
struct LeftOutEnds {
  double low = 0, high = 0;  // of log(measured / predicted), of 90 % of cases
  [[nodiscard]] bool covers(double log_ratio) const {
    return low <= log_ratio && log_ratio <= high;
  }
  /// Winkler's score of a 90 % interval: its width, and 20 times the distance of a value outside.
  [[nodiscard]] double score(double log_ratio) const;
};

struct FittedResiduals {
  std::vector<ResidualClass> classes;
  std::vector<LeftOutEnds> left_out;  // of each row
};

/// Classes by features.
///
/// Rows of a document err together, but those of its services not fully: with kFullDocument rows in
/// a class it counts as one document, with fewer in proportion, with more as the root of their
/// ratio. The distribution of a class is a mixture of its documents' errors and of the class above,
/// which has the weight of some documents: a class of one document stays close to the one above,
/// one of ten is mostly its own. That weight, the floor of responses and a factor that moves
/// quantiles away from the median (few documents show too little of the tails) are chosen per
/// metric: with each document left out in turn, those with the narrowest intervals of errors that
/// cover 90 %, means over documents. So are classes: starting from that of all runs, the class with
/// one word more that narrows most is added, while it narrows by kMinGain and has kMinDocuments
/// with kFullDocument rows. `within` is a quantile of the distances of errors from the middle of
/// their service's, with the same weights.
///
/// Rows that are `apart` take no part in that. Each of their features with kMinDocuments has one
/// more class below that of all runs, in which the class of all runs has the largest weight that is
/// tried. It comes first, so that its runs have no other class.
///
/// Errors: ContractError if all of `rows` are apart.
[[nodiscard]] FittedResiduals fit_residuals(const std::vector<ResidualRow>& rows);

}  // namespace kvsim
