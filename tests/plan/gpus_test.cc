// Which GPUs fit a task, and the error text if there are too few.
#include "engine/plan/gpu_pattern.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

Gpu gpu(uint32_t index, const std::string& name, int64_t gib) {
  Gpu made;
  made.index = index;
  made.uuid = "GPU-" + std::to_string(index);
  made.name = name;
  made.memory_bytes = gib << 30;
  return made;
}

Resources asks(int32_t milli, const std::string& model = "", int64_t gib = 0) {
  Resources asked;
  asked.gpus_milli = milli;
  asked.gpu_model = model;
  asked.gpu_memory_bytes = gib << 30;
  return asked;
}

}  // namespace

TEST_CASE("a model pattern matches whole words of the name, with alternatives and wildcards") {
  const char* h200 = "NVIDIA H200";
  const char* a100 = "NVIDIA A100-SXM4-40GB";
  const char* h100 = "NVIDIA H100 80GB HBM3";
  CHECK(matches_model("H200", h200));
  CHECK(matches_model("h100 | h200", h200));
  CHECK(matches_model("NVIDIA H200", h200));
  CHECK(matches_model("A100", a100));
  CHECK(matches_model("A100*40GB", a100));
  CHECK(matches_model("H*", h100));
  CHECK(matches_model("H100*HBM3", h100));
  CHECK_FALSE(matches_model("A10", a100));
  CHECK_FALSE(matches_model("100", a100));
  CHECK_FALSE(matches_model("H100*40GB", h100));
  CHECK_FALSE(matches_model("H100|A100", h200));
  CHECK_FALSE(matches_model("|", h200));
  CHECK_FALSE(matches_model("", h200));
}

TEST_CASE("an error about missing GPUs lists the existing ones") {
  std::vector<Gpu> none;
  std::vector<Gpu> two = {gpu(0, "NVIDIA H200", 139), gpu(1, "NVIDIA A100", 40)};
  CHECK(gpu_unsatisfiable_reason(asks(0), none, "") == "");
  CHECK(gpu_unsatisfiable_reason(asks(2000), two, "") == "");
  CHECK(gpu_unsatisfiable_reason(asks(500, "A100", 40), two, "") == "");
  CHECK(gpu_unsatisfiable_reason(asks(500), none, "it is a toaster") ==
        "asks for gpus = 0.5, and this machine has none: it is a toaster; remove `gpus` to run it "
        "on CPUs");
  CHECK(gpu_unsatisfiable_reason(asks(3000), two, "") ==
        "asks for gpus = 3, and this machine has 2: GPU 0 (NVIDIA H200, 139 GiB), GPU 1 (NVIDIA "
        "A100, 40 GiB); ask for less, or run it where there is more");
  CHECK(gpu_unsatisfiable_reason(asks(2000, "H200|H100", 80), two, "") ==
        "asks for gpus = 2 with gpu = \"H200|H100\" and gpu_memory = 80 GiB, and 1 of this "
        "machine's 2 GPUs are suitable: GPU 0 (NVIDIA H200, 139 GiB), GPU 1 (NVIDIA A100, 40 GiB); "
        "ask for less, or run it where there is more");
  CHECK_THAT(gpu_unsatisfiable_reason(asks(0, "H200"), two, ""),
             Catch::StartsWith("has the option `gpu` and asks for no GPU: add `gpus = 1`"));
  CHECK_THAT(gpu_unsatisfiable_reason(asks(0, "", 1), two, ""),
             Catch::StartsWith("has the option `gpu_memory`"));
}

TEST_CASE("the error for a task of several GPUs explains why MIG instances do not fit") {
  std::vector<Gpu> gpus = {gpu(0, "A100 MIG 1g.5gb", 5), gpu(0, "A100 MIG 1g.5gb", 5)};
  for (Gpu& each : gpus) each.is_mig = true;
  CHECK(gpu_unsatisfiable_reason(asks(1000), gpus, "") == "");
  CHECK(
      gpu_unsatisfiable_reason(asks(2000), gpus, "") ==
      "asks for gpus = 2, and 0 of this machine's 2 GPUs are suitable: GPU 0 (A100 MIG 1g.5gb, 5 "
      "GiB), "
      "GPU 0 (A100 MIG 1g.5gb, 5 GiB); 2 of them are instances of a GPU in MIG mode, and a process "
      "can use only one instance: ask for `gpus = 1`, or for `ranks = 2` with `gpus = 1` each; or "
      "run it where there are whole GPUs");
  gpus[0] = gpu(1, "A100", 40);
  CHECK_THAT(gpu_unsatisfiable_reason(asks(2000), gpus, ""),
             Catch::Contains("; 1 of them is an instance of a GPU in MIG mode, and"));
  CHECK_THAT(gpu_unsatisfiable_reason(asks(2000, "H100"), gpus, ""), !Catch::Contains("MIG mode"));
}

TEST_CASE("a MIG instance fits a task that requests one GPU or less") {
  Gpu instance = gpu(0, "NVIDIA A100 MIG 1g.5gb", 5);
  instance.is_mig = true;
  CHECK(suits({500, 0, ""}, instance));
  CHECK(suits({1000, 0, "1g.5gb"}, instance));
  CHECK_FALSE(suits({2000, 0, ""}, instance));
  CHECK(GpuRequest{500, 0, ""}.count() == 1);
  CHECK(GpuRequest{3000, 0, ""}.count() == 3);
  CHECK(GpuRequest{}.count() == 0);
}
