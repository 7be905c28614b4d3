// The transport of a build without UCX's headers.
#include "transports/ucx/ucx.hpp"

namespace flow {

Result<std::unique_ptr<Transport>> make_ucx_transport(const TransportOptions&, bool, UcxPuts,
                                                      UcxFamily) {
  return environment_error(
      "this flow was built without UCX, which links between processes need. Install UCX "
      "(libucx-dev) and build it again with -DFLOW_UCX=ON");
}

}  // namespace flow
