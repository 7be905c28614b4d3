// The worst error of each operation, printed at the end of the tests: what other devices are held
// to.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <cstdio>
#include <map>

#include "tests/kernels/tensors.hpp"

namespace flow::kernels {

// Not there where this build has no CUDA.
const Kernels* cuda_kernels() __attribute__((weak));

namespace {

std::map<std::string, double>& errors() {
  static std::map<std::string, double> worst;
  return worst;
}

struct Report : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunEnded(const Catch::TestRunStats& stats) override {
    TestEventListenerBase::testRunEnded(stats);
    bool built = &cuda_kernels != nullptr && cuda_kernels() != nullptr;
    for (auto& [operation, error] : errors())
      std::printf("parity: %-28s CPU %8.3f eps, CUDA %s, no GPU here\n", operation.c_str(), error,
                  built ? "built" : "not built");
  }
};

}  // namespace

void note_error(const std::string& operation, double error) {
  double& worst = errors()[operation];
  worst = std::max(worst, error);
}

CATCH_REGISTER_LISTENER(Report)

}  // namespace flow::kernels
