// Scripts in memory, built and run; shared by the tests of the VM.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lua/state/script.hpp"

namespace flow::test {

using Files = std::vector<std::pair<std::string, std::string>>;

inline Bundle bundle_of(const Files& files) {
  Bundle bundle;
  bundle.main = files.front().first;
  bundle.files = files;
  return bundle;
}

inline Result<BuildResult> build(const Files& files) {
  Bundle bundle = bundle_of(files);
  BuildRequest request;
  request.main = bundle.main;
  request.params = Value(Value::Table{});
  request.pinned = &bundle;
  return make_script_vm()->build(request);
}

/// Records the requests of an attempt.
class FakeHost : public AttemptHost {
 public:
  std::vector<std::string> lines, calls;
  bool waited_durable = false;
  std::map<std::string, Value> steps;
  std::optional<Value> checkpoint;
  bool stops = false;
  std::string secret;
  Status refusal;  // returned for every save
  std::map<std::string, std::string> environment;

  void log(std::string_view text) override { lines.emplace_back(text); }
  void progress(double fraction, const Value& metrics) override {
    calls.push_back("progress " + to_json(Value(fraction)) + " " + to_json(metrics));
  }
  void metric(const std::string& name, double value, std::optional<int64_t> step) override {
    calls.push_back("metric " + name + " " + to_json(Value(value)) + " " +
                    (step ? std::to_string(*step) : "-"));
  }
  Status save_step(const std::string& name, const Value& value) override {
    FLOW_TRY(refusal);
    steps[name] = value;
    return {};
  }
  Status save_checkpoint(Value value) override {
    FLOW_TRY(refusal);
    checkpoint = std::move(value);
    return {};
  }
  Status finish_checkpoints() override { return refusal; }
  Result<std::optional<Value>> newest_checkpoint() override { return checkpoint; }
  bool stopping() const override { return stops; }
  void service_ready(const std::string& url) override { calls.push_back("ready " + url); }
  void wait_durable() override { waited_durable = true; }
  void reach_outside() override { calls.push_back("outside"); }
  Status make_scratch() override { return {}; }
  Result<Bytes> blob(const Digest& digest) override {
    auto found = blobs.find(digest);
    if (found == blobs.end()) return environment_error("no such blob");
    return Bytes(found->second);
  }
  Result<std::string> file_path(const File& file) override { return "/inputs/" + file.name; }
  Result<File> store_file(const std::string& path) override {
    File file;
    file.name = path.substr(path.rfind('/') + 1);
    file.digest = sha256(path);
    return file;
  }
  Status store_tensor(const Tensor& tensor) override {
    blobs[tensor.digest] = std::make_shared<const std::string>(*tensor.data);
    return {};
  }
  std::string env(const std::string& name, bool& found) override {
    found = environment.count(name) > 0;
    return found ? environment[name] : "";
  }
  std::string hidden(std::string text) const override {
    for (size_t at; !secret.empty() && (at = text.find(secret)) != std::string::npos;)
      text.replace(at, secret.size(), "***");
    return text;
  }

  std::map<Digest, std::shared_ptr<const std::string>> blobs;
};

inline AttemptRequest attempt_of(const TaskDef& def, std::vector<Value> args = {}) {
  AttemptRequest request;
  request.ordinal = def.ordinal;
  request.run = "run";
  request.task = def.name;
  request.dir = "/tmp";
  request.state_dir = "/nowhere/.flow";
  request.seed = 7;
  request.args = Value(Value::Table{std::move(args), {}});
  return request;
}

}  // namespace flow::test
