#include "engine/page/gpu_readings.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("readings of GPUs are numbers, and null where the driver knows none") {
  CHECK(gpu_readings_json("GPU-a, 87, 1024, 143771, 51, 402.13\nGPU-b, [N/A], 0, 81559, 30, [Not "
                          "Supported]\r\n") ==
        R"({"GPU-a":{"utilisation":87,"memory_used":1073741824,"memory":150754820096,)"
        R"("temperature":51,"power":402.13},"GPU-b":{"utilisation":null,"memory_used":0,)"
        R"("memory":85520809984,"temperature":30,"power":null}})");
}

TEST_CASE("what is no line of a GPU has no reading") {
  for (const char* table : {"", "\n\n", "NVIDIA-SMI has failed\n", "GPU-a, 1, 2\n",
                            "GPU-a, 1, 2, 3, 4, 5, 6\n", "x, 1, 2, 3, 4, 5\n", ",,,,,\n"})
    CHECK(gpu_readings_json(table) == "{}");
}
