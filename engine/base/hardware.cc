#include "engine/base/hardware.hpp"

#include <unistd.h>

#include "engine/base/ids.hpp"

namespace flow {

Hardware own_hardware() {
  return {boot_id(), static_cast<int32_t>(::sysconf(_SC_NPROCESSORS_CONF)),
          int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE)};
}

}  // namespace flow
