// A driver that is too old is told apart from none, and named.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/base/temporary_folder.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/driver_version.hpp"

namespace flow::cuda {
namespace {

TEST_CASE("the text about an old driver has both versions") {
  CHECK(old_driver_text("550.54", 12040, 13000) ==
        "driver 550.54 (CUDA 12.4), flow needs 580 (CUDA 13.0)");
  CHECK(old_driver_text("", 11080, 12000) == "driver (CUDA 11.8), flow needs 525 (CUDA 12.0)");
  CHECK(old_driver_text("600.1", 13020, 14000) == "driver 600.1 (CUDA 13.2), flow needs CUDA 14.0");
  CHECK(old_driver_text("580.65", 13000, 13000) == "");
  CHECK(old_driver_text("610.1", 13020, 13000) == "");
  CHECK(old_driver_text("", 0, 13000) == "");        // no driver
  CHECK(old_driver_text("470.57", 11040, 0) == "");  // a build without CUDA
}

TEST_CASE("the release is that of the kernel's module") {
  std::shared_ptr<const std::string> folder = *make_temporary_folder();
  std::filesystem::create_directories(*folder + "/module/nvidia");
  ::setenv("FLOW_SYSFS", folder->c_str(), 1);
  CHECK(driver_release() == "");
  std::ofstream(*folder + "/module/nvidia/version") << "550.54.15\n";
  CHECK(driver_release() == "550.54.15");
  ::unsetenv("FLOW_SYSFS");
}

#ifdef FLOW_FAKE_CUDA

// The libcuda.so.1 of this process is the fake.
TEST_CASE("the runtime's error about an old driver names it", "[.old]") {
  ::setenv("FLOW_SYSFS", "/nowhere", 1);
  auto count = device_count();
  REQUIRE_FALSE(count.ok());
  CHECK(count.error().message == old_driver_text("", 11040, needed_driver()));
}

#endif

}  // namespace
}  // namespace flow::cuda
