#include "engine/base/errors.hpp"

namespace flow {

Error joined_errors(const std::vector<Error>& errors) {
  FLOW_CHECK(!errors.empty());
  Error all = errors.front();
  for (size_t i = 1; i < errors.size(); i++) all.message += "\n\nerror: " + errors[i].message;
  return all;
}

}  // namespace flow
