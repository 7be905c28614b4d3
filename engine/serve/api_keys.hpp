// The keys that permit requests to a service.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace flow {

class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}
  /// Whether the value of an Authorization field is `Bearer KEY` with one of the keys (RFC 6750).
  /// The time does not depend on how much of a key is right.
  bool permit(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace flow
