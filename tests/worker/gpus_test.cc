// Discovery of a machine's GPUs, with a replacement for the driver's library.
#include "engine/worker/gpu_discovery.hpp"

#include <fstream>

#include "tests/worker/temp_folder.hpp"

using namespace flow;
using test::TempFolder;

namespace {

/// The result of `find_gpus` if the driver sees this machine.
MachineGpus told(const std::string& story, const char* mask = nullptr,
                 int64_t limit_ms = kFindGpusMsMax) {
  TempFolder temp;
  std::ofstream(temp / "story") << story;
  ::setenv("FLOW_NVML_LIB", getenv("FLOW_TEST_NVML"), 1);
  ::setenv("FLOW_FAKE_NVML", (temp / "story").c_str(), 1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  if (mask != nullptr) ::setenv("CUDA_VISIBLE_DEVICES", mask, 1);
  MachineGpus machine = find_gpus(getenv("FLOW_TEST_EXECUTOR"), limit_ms);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("FLOW_NVML_LIB");
  return machine;
}

std::vector<std::string> uuids(const MachineGpus& machine) {
  std::vector<std::string> all;
  for (const Gpu& gpu : machine.gpus) all.push_back(gpu.uuid);
  return all;
}

using Uuids = std::vector<std::string>;

const char* kThree =
    "gpu GPU-aa11 143771 NVIDIA H200\n"
    "gpu GPU-aa22 81559 NVIDIA H100 80GB HBM3\n"
    "gpu GPU-bb33 40960 NVIDIA A100-SXM4-40GB\n";

}  // namespace

TEST_CASE("each GPU is reported with its index, UUID, model, memory and location") {
  MachineGpus machine = told(kThree);
  REQUIRE(machine.gpus.size() == 3);
  CHECK(machine.problems.empty());
  CHECK(machine.why_none == "");
  CHECK(machine.gpus[1] == Gpu{1, "GPU-aa22", "NVIDIA H100 80GB HBM3", "0000:f1:00.0",
                               int64_t{81559} << 20, -1, false});
}

TEST_CASE("GPUs whose driver is too old for flow's kernels are not used unless told otherwise") {
  std::string old = std::string(kThree) + "driver 470.57 11040\n";
  bool has_cuda = std::string(getenv("FLOW_TEST_HAS_CUDA")) == "ON";
  MachineGpus machine = told(old);
  CHECK(machine.gpus.size() == (has_cuda ? 0 : 3));
  CHECK(told(std::string(kThree) + "driver 999.1 99000\n").gpus.size() == 3);
  if (!has_cuda) return;
  CHECK_THAT(machine.why_none,
             Catch::StartsWith("driver 470.57 (CUDA 11.4), flow needs ") &&
                 Catch::EndsWith("its GPUs are not used. Update the driver, or set "
                                 "FLOW_OLD_DRIVER=keep if only commands use them, with a CUDA of "
                                 "their own"));
  CHECK(machine.problems == std::vector<std::string>{machine.why_none});
  ::setenv("FLOW_OLD_DRIVER", "keep", 1);
  MachineGpus kept = told(old);
  ::unsetenv("FLOW_OLD_DRIVER");
  CHECK(kept.gpus.size() == 3);
  REQUIRE(kept.problems.size() == 1);
  CHECK_THAT(kept.problems[0], Catch::EndsWith(": tasks in Lua cannot use the GPUs"));
}

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it") {
  CHECK(uuids(told(kThree, "2,0")) == Uuids{"GPU-bb33", "GPU-aa11"});
  CHECK(uuids(told(kThree, "GPU-bb, GPU-aa2")) == Uuids{"GPU-bb33", "GPU-aa22"});
  CHECK(uuids(told(kThree, "1,-1,0")) == Uuids{"GPU-aa22"});
  for (const char* mask : {"", "-1", "NoDevFiles"}) {
    INFO(mask);
    MachineGpus machine = told(kThree, mask);
    CHECK(machine.gpus.empty());
    CHECK(machine.problems.empty());
    CHECK(machine.why_none == std::string("CUDA_VISIBLE_DEVICES=") + mask + " hides its 3 GPUs");
  }
}

TEST_CASE("an unknown, ambiguous or repeated entry of a mask is reported") {
  MachineGpus unknown = told(kThree, "1,7,0");
  CHECK(uuids(unknown) == Uuids{"GPU-aa22"});
  REQUIRE(unknown.problems.size() == 1);
  CHECK_THAT(unknown.problems[0],
             Catch::StartsWith("`7` in CUDA_VISIBLE_DEVICES does not name exactly one GPU"));
  CHECK(uuids(told(kThree, "GPU-bb,GPU-aa")) == Uuids{"GPU-bb33"});
  CHECK(told(kThree, "GPU-aa").problems.size() == 1);
  MachineGpus twice = told(kThree, "0,GPU-aa1");
  CHECK(twice.gpus.empty());
  REQUIRE(twice.problems.size() == 1);
  CHECK_THAT(twice.problems[0], Catch::Contains("names a GPU twice, `GPU-aa1`"));
}

TEST_CASE("a GPU in MIG mode is reported as its instances") {
  MachineGpus machine = told(
      "gpu GPU-a 40960 NVIDIA A100\nmig MIG-1 4864 NVIDIA A100 MIG 1g.5gb\n"
      "mig MIG-2 9856 NVIDIA A100 MIG 2g.10gb\ngpu GPU-b 40960 NVIDIA A100\n");
  CHECK(uuids(machine) == Uuids{"MIG-1", "MIG-2", "GPU-b"});
  CHECK(machine.gpus[1].is_mig);
  CHECK(machine.gpus[1].memory_bytes == int64_t{9856} << 20);
  CHECK_FALSE(machine.gpus[2].is_mig);
  MachineGpus empty = told("gpu GPU-a 40960 NVIDIA A100\nempty-mig\n");
  CHECK(empty.why_none == "its GPUs are in MIG mode and have no instance");
}

TEST_CASE("GPUs joined by NVLink, directly, indirectly or by switches, have the same number") {
  auto islands = [](const std::string& story, const char* mask = nullptr) {
    std::vector<int32_t> numbers;
    for (const Gpu& gpu : told(story, mask).gpus) numbers.push_back(gpu.nvlink);
    return numbers;
  };
  using Numbers = std::vector<int32_t>;
  std::string six;
  for (int i = 0; i < 6; i++) six += "gpu GPU-" + std::to_string(i) + " 40960 A\n";
  CHECK(islands(six) == Numbers(6, -1));
  CHECK(islands(six + "nvlink 1 4\nnvlink 4 5\nnvlink 0 2\n") == Numbers{0, 1, 0, -1, 1, 1});
  CHECK(islands(six + "nvlink 1 4\nnvlink 4 5\n", "5,1,3") == Numbers{1, 1, -1});
  CHECK(islands(six + "nvlink 1 5\nfail nvmlDeviceGetNvLinkState 3\n") == Numbers(6, -1));
  CHECK(islands("gpu GPU-a 1 A\nnvswitch\ngpu GPU-b 1 A\ngpu GPU-c 1 A\nnvswitch\n"
                "gpu GPU-d 1 A\nnvswitch\ndown\n") == Numbers{0, -1, 0, -1});
  CHECK(islands("gpu GPU-a 1 A\nnvswitch\nmig MIG-1 1 A\ngpu GPU-b 1 A\nnvswitch\n") ==
        Numbers{-1, -1});
}

TEST_CASE("a clique of NVLink between machines is named by its cluster") {
  MachineGpus machine = told(
      "gpu GPU-a 1 A\nfabric b 7\ngpu GPU-b 1 A\nfabric b 7\ngpu GPU-c 1 A\nfabric b 8\n"
      "gpu GPU-d 1 A\n");
  REQUIRE(machine.gpus.size() == 4);
  CHECK(machine.problems.empty());
  std::string cluster;
  for (int i = 0; i < 16; i++) cluster += "62";
  CHECK(machine.gpus[0].fabric == cluster + "/7");
  CHECK(machine.gpus[1].fabric == cluster + "/7");
  CHECK(machine.gpus[2].fabric == cluster + "/8");
  CHECK(machine.gpus[3].fabric == "");
  CHECK(machine.gpus[0].nvlink == 0);
  CHECK(machine.gpus[1].nvlink == 0);
  CHECK(machine.gpus[2].nvlink == -1);
}

TEST_CASE("a lost GPU is excluded and reported") {
  MachineGpus machine = told("gpu GPU-a 1 A\nlost\ngpu GPU-b 1 A\n");
  CHECK(uuids(machine) == Uuids{"GPU-b"});
  REQUIRE(machine.problems.size() == 1);
  CHECK(machine.problems[0] ==
        "GPU 0: the NVIDIA driver's library can't open it: GPU is lost (status 15)");
}

TEST_CASE("each call may fail and is named in the error") {
  CHECK(told("fail nvmlInit_v2 18\n").why_none ==
        "the NVIDIA driver's library can't be started: Driver/library version mismatch (status "
        "18)");
  CHECK(told(std::string(kThree) + "fail nvmlDeviceGetMigMode 3\n").problems.empty());
  for (const char* call :
       {"Count_v2", "HandleByIndex_v2", "UUID", "Name", "MemoryInfo", "PciInfo_v3"}) {
    INFO(call);
    MachineGpus machine = told(std::string(kThree) + "fail nvmlDeviceGet" + call + " 999\n");
    CHECK(machine.gpus.empty());
    CHECK_THAT(machine.why_none, Catch::Contains("Unknown Error (status 999)"));
    CHECK_FALSE(machine.problems.empty());
  }
}

TEST_CASE("a library that hangs, crashes or is invalid is reported as a problem") {
  MachineGpus hung = told("hang\n", nullptr, 300);
  CHECK_THAT(hung.why_none, Catch::Contains("did not answer within 0.3 s"));
  CHECK(hung.problems.size() == 1);
  CHECK_THAT(told("crash\n").why_none, Catch::Contains("ended by signal 6"));
  ::setenv("FLOW_NVML_LIB", "/nowhere/nvml.so", 1);
  CHECK_THAT(find_gpus(getenv("FLOW_TEST_EXECUTOR")).why_none,
             Catch::StartsWith("the library that FLOW_NVML_LIB names can't be loaded: /nowhere"));
  ::setenv("FLOW_NVML_LIB", "libfmt.so.9", 1);
  CHECK_THAT(find_gpus(getenv("FLOW_TEST_EXECUTOR")).why_none,
             Catch::Contains("libfmt.so.9 has no nvmlInit_v2"));
  ::unsetenv("FLOW_NVML_LIB");
  CHECK_THAT(find_gpus("/nowhere/executor").why_none, Catch::Contains("/nowhere/executor"));
  CHECK(told("").why_none == "the NVIDIA driver knows no GPU");
}
