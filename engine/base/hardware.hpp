// The hardware of this machine.
#pragma once
#include <cstdint>
#include <string>

namespace flow {

/// Limits of a container or of this process are ignored: all containers of a machine report the
/// same.
struct Hardware {
  std::string id;  // of this boot of the machine; "" if unknown
  int32_t cpus = 0;
  int64_t memory_bytes = 0;
  bool operator==(const Hardware&) const = default;
};
Hardware own_hardware();

}  // namespace flow
