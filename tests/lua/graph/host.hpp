// Answers the requests of an attempt from memory.
#pragma once
#include "lua/state/script.hpp"

namespace flow::test {

class Host : public AttemptHost {
 public:
  void log(std::string_view) override {}
  void progress(double, const Value&) override {}
  void metric(const std::string&, double, std::optional<int64_t>) override {}
  Status save_step(const std::string&, const Value&) override { return {}; }
  Status save_checkpoint(Value) override { return {}; }
  Status finish_checkpoints() override { return {}; }
  Result<std::optional<Value>> newest_checkpoint() override { return std::optional<Value>(); }
  bool stopping() const override { return false; }
  void service_ready(const std::string&) override {}
  void wait_durable() override {}
  void reach_outside() override {}
  Status make_scratch() override { return {}; }
  Result<Bytes> blob(const Digest&) override { return environment_error("lost"); }
  Result<std::string> file_path(const File& file) override {
    if (file.name == "gone") return environment_error("its content is lost");
    return "/state/objects/" + file.name;
  }
  Result<File> store_file(const std::string&) override { return environment_error("no"); }
  Status store_tensor(const Tensor&) override { return {}; }
  std::string env(const std::string&, bool& found) override {
    found = false;
    return "";
  }
  std::string hidden(std::string text) const override { return text; }
};

}  // namespace flow::test
