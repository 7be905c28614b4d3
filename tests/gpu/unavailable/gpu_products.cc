// Without CUDA's headers.
#include "tests/gpu/gpu_products.hpp"

namespace flow::gpu {

Result<double> raw_product_rate(void*, int64_t) {
  return environment_error("this program was built without CUDA");
}

}  // namespace flow::gpu
