// kernels/cuda/cublaslt.cc describes products to the library as they are.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "fake_cublaslt.hpp"
#include "kernels/cuda/cublaslt.hpp"
#include "tests/kernels/suite/suite.hpp"

// CUDA's runtime is not linked: there is one device.
extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

namespace flow::emulator {
extern bool reversed;  // emulator.hpp does not fit beside CUDA's headers
}

namespace flow::suite {
namespace {

// Loaded first: the loader then finds it by the name of the real one.
void* const file = dlopen(FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);

FakeCublasLt& fake() {
  REQUIRE(file);
  return *static_cast<FakeCublasLt*>(dlsym(file, "fake_cublaslt"));
}
FakeCublasLt& fresh_fake() {
  int64_t alive = fake().alive;
  fake() = {};
  fake().alive = alive;
  return fake();
}

void run_suite() {
  HostRunner runner(*cuda_kernels(), [](bool reversed) { emulator::reversed = reversed; });
  Suite suite(runner, test_seed());
  suite.by_library = true;
  check_matmuls(suite);
  for (const std::string& miss : suite.misses) FAIL_CHECK(miss);
  for (const auto& [row, line] : suite.lines) {
    INFO(row);
    CHECK(line.misses == 0);
  }
}

TEST_CASE("cuBLASLt computes products and their epilogues") {
  FakeCublasLt& lt = fresh_fake();
  run_suite();
  CHECK(std::string(lt.fault ? lt.fault : "") == "");
  for (int epilogue :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
        CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADB}) {
    INFO(epilogue);
    CHECK(lt.products[epilogue] > 0);
  }
}

TEST_CASE("a kernel computes an epilogue that cuBLASLt does not support") {
  struct Refusing {
    Refusing() { fresh_fake().refuses_epilogues = true; }
    ~Refusing() { fake().refuses_epilogues = false; }
  } refusing;
  // The descriptors of the case before are known; these have other shapes.
  struct Layer {
    int64_t m, n, k;
  };
  for (Layer size : {Layer{48, 40, 24}, Layer{17, 8, 16}}) {
    HostRunner runner(*cuda_kernels(), [](bool reversed) { emulator::reversed = reversed; });
    Suite suite(runner, test_seed());
    suite.by_library = true;
    check_products(suite, size.m, size.n, size.k);
    for (const std::string& miss : suite.misses) FAIL_CHECK(miss);
  }
  CHECK(fake().products.size() == 1);
  CHECK(fake().products[CUBLASLT_EPILOGUE_DEFAULT] > 0);
}

TEST_CASE("the precision of f32 products is the library's compute type") {
  FakeCublasLt& lt = fresh_fake();
  alignas(16) float a[4] = {1.0001F, 1, 1, 1}, b[4] = {1, 0, 0, 1}, c[4] = {};
  auto first = [&](MatmulPrecision precision) {
    Stream stream;
    stream.precision = precision;
    auto view = [](float* data) { return dense(DType::f32, {2, 2}, data); };
    REQUIRE(cuda_kernels()->matmul(stream, view(a), view(b), 1, 0, nullptr, Unary::identity,
                                   view(c)) == kDone);
    return c[0];
  };
  CHECK(first(MatmulPrecision::highest) == 1.0001F);
  CHECK(first(MatmulPrecision::high) == 1.0F);
  CHECK(first(MatmulPrecision::medium) == 1.0F);
  CHECK(first(MatmulPrecision::highest) == 1.0001F);
  CHECK(lt.compute_types[CUBLAS_COMPUTE_32F] == 2);
  CHECK(lt.compute_types[CUBLAS_COMPUTE_32F_FAST_TF32] == 1);
  CHECK(lt.compute_types[CUBLAS_COMPUTE_32F_FAST_16BF] == 1);
}

}  // namespace
}  // namespace flow::suite
