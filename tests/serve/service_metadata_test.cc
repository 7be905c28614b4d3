// What a service says of its model.
#include "engine/serve/service_metadata.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

ServiceOptions digits() {
  ServiceOptions service;
  service.name = "digits";
  service.batch_max = 32;
  service.batch_wait_us = 500;
  service.inputs = {{"pixels", "FP32", {-1, 64}}};
  service.outputs = {{"label", "INT64", {-1}}};
  return service;
}

}  // namespace

TEST_CASE("metadata has the declared tensors") {
  CHECK(model_metadata(digits()) ==
        R"({"name":"digits","versions":["1"],"platform":"flow_lua",)"
        R"("inputs":[{"name":"pixels","datatype":"FP32","shape":[-1,64]}],)"
        R"("outputs":[{"name":"label","datatype":"INT64","shape":[-1]}]})");
}

TEST_CASE("a configuration has the rows of a batch apart from the other sizes") {
  ServiceOptions service = digits();
  CHECK(model_configuration(service) ==
        R"({"name":"digits","platform":"flow_lua","backend":"flow","max_batch_size":32,)"
        R"("input":[{"name":"pixels","data_type":"TYPE_FP32","dims":[64]}],)"
        R"("output":[{"name":"label","data_type":"TYPE_INT64","dims":[]}],)"
        R"("dynamic_batching":{"max_queue_delay_microseconds":500}})");
  service.batch_max = 1;
  CHECK_THAT(model_configuration(service), Catch::Matchers::Contains(R"("max_batch_size":0,)"));
  service.batch_max = 32;
  service.inputs.push_back({"text", "BYTES", {-1, 1}});
  CHECK_THAT(model_configuration(service),
             Catch::Matchers::Contains(R"({"name":"text","data_type":"TYPE_STRING","dims":[1]})"));
  service.outputs = {{"scale", "FP32", {1}}};
  std::string unbatched = model_configuration(service);
  CHECK_THAT(unbatched, Catch::Matchers::Contains(R"("max_batch_size":0,)"));
  CHECK_THAT(unbatched, Catch::Matchers::Contains(R"("dims":[-1,64])"));
  CHECK_THAT(model_configuration({.name = "digits"}),
             Catch::Matchers::Contains(R"("max_batch_size":0,"input":[],"output":[])"));
}

TEST_CASE("the index of the repository is the one model and its state") {
  CHECK(repository_index(digits(), true) ==
        R"([{"name":"digits","version":"1","state":"READY","reason":""}])");
  CHECK_THAT(repository_index(digits(), false), Catch::Matchers::Contains("UNAVAILABLE"));
}
