// Converts Results to the exceptions of the public interface.
#pragma once
#include <utility>

#include "flow/flow.hpp"

namespace flow {

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw Failed(result.error());
  return std::move(result).value();
}
inline void ok_or_throw(const Status& status) {
  if (!status.ok()) throw Failed(status.error());
}

}  // namespace flow
