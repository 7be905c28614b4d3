// `where`: selects by labels the workers on which a task may run.
//
//   disk == ssd and (rack == "a 1" or not shared)
//
// A name alone is true for a worker that has the label. `==` (or `=`) and `!=` compare its value; a
// worker without the label has no value. `not` binds tightest, then `and`, then `or`.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/result.hpp"

namespace flow {

using Labels = std::vector<std::pair<std::string, std::string>>;  // name to value

/// Null if there is no label of that name.
const std::string* label_of(const Labels& labels, std::string_view name);

class WorkerSelector {
 public:
  /// The error is a clause that says what is wrong and where in the text.
  static Result<WorkerSelector> parse(std::string_view text);
  bool matches(const Labels& labels) const;

 private:
  enum class Op : uint8_t { has, equals, differs, negate, both, either };
  struct Step {
    Op op = Op::has;
    std::string name, value;
  };
  friend class WorkerSelectorParser;
  std::vector<Step> steps_;  // in postfix order
};

/// Whether a worker with these labels matches; an empty `where` matches all. An invalid expression
/// matches none; check_plan rejects it.
bool matches_selector(const std::string& where, const Labels& labels);

}  // namespace flow
