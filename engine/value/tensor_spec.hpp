// The declared form of a tensor: what a service takes or returns under a name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace flow {

struct TensorSpec {
  std::string name{};
  std::string datatype{};        // of the Open Inference Protocol, "FP32"
  std::vector<int64_t> shape{};  // -1: any size
  bool operator==(const TensorSpec&) const = default;
};

}  // namespace flow
