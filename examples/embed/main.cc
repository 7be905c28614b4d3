// A host program: defines a native task and a library of operations, runs a pipeline that uses
// both, prints events and result.
//   embed PIPELINE.lua STATE_FOLDER LIBRARY.so
#include <flow/flow.hpp>

#include <cstdio>

namespace {

/// {width, height}, to half of both.
flow::Value half(flow::TaskContext& context, const flow::Value& arguments) {
  const flow::Value& size = arguments.as_table().list.at(0);
  context.log("halving " + flow::to_json(size));
  return flow::Value::map({{"width", size.find("width")->as_integer() / 2},
                           {"height", size.find("height")->as_integer() / 2}});
}

int run(const char* pipeline, const char* state, const char* library) {
  flow::Engine engine({.state = state, .jobs = 2});
  engine.define("half", "v1", half);
  engine.define_operations("filters", library);
  flow::Run run = engine.run(pipeline, {{"width", 640}, {"height", 480}});
  for (const flow::Event& event : run.events()) {
    std::printf("%s %s %s\n", event.type.c_str(), event.task.c_str(), event.status.c_str());
  }
  flow::Value result = run.wait();
  std::printf("result %s\n", flow::to_json(result).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: embed PIPELINE.lua STATE_FOLDER LIBRARY.so\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const flow::RunFailed& failed) {
    std::fprintf(stderr, "the run failed: %s\n", failed.what());
    return 1;
  } catch (const flow::Failed& failed) {
    std::fprintf(stderr, "error: %s\n", failed.what());
    return 2;
  }
}
