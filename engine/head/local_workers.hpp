// Worker processes on the head's own machine. The head starts them, restarts one that dies, and
// ends them with itself.
#pragma once
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/plan/resource_quantities.hpp"
#include "engine/process/child.hpp"
#include "flow/result.hpp"

namespace flow {

struct LocalWorkersOptions {
  std::string program;  // flow
  std::string head, secret_file;
  std::string folder;  // each worker has a subfolder with its name, which holds its log
  int32_t count = 0;
  int32_t jobs = 0;                     // of all workers together; each has at least one
  int64_t memory_bytes = 0;             // of all workers together
  std::vector<std::string> gpus;        // UUIDs, divided between the workers
  ResourceQuantities custom_resources;  // divided between the workers
};

/// `local-1`, `local-2`, …
std::string local_worker_name(int32_t number);

class LocalWorkers {
 public:
  static Result<std::unique_ptr<LocalWorkers>> start(const LocalWorkersOptions& options);
  ~LocalWorkers();  // ends the workers and waits for them
  std::string log_of(int32_t number) const;

 private:
  struct Process {
    std::unique_ptr<Child> child;
    int deaths = 0;  // consecutive, each soon after its start
    int64_t start_at_ms = 0;
  };
  explicit LocalWorkers(LocalWorkersOptions options) : options_(std::move(options)) {}
  Status spawn(int32_t number);
  std::vector<std::string> arguments_of(int32_t number) const;
  void loop();

  const LocalWorkersOptions options_;
  int stdin_read_ = -1, stdin_write_ = -1;  // the workers end when no process can write to it
  int wake_ = -1;
  std::vector<Process> processes_;  // as many as the options request
  std::thread thread_;
};

}  // namespace flow
