// Makes the number of a service's replicas follow its load, as its front measures it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/protocol/front_client.hpp"
#include "engine/worker/replica_controller.hpp"

namespace flow {

/// A service whose replicas scale, of a run that serves.
struct ScaledService {
  core::UnitId unit = 0;  // its own
  std::string folder;     // of its front
  ReplicaLimits limits;
  uint32_t replicas = 1;   // that it shall have now
  bool may_shrink = true;  // no version of its name is about to replace its run
};

/// Thread-safe. A thread, which begins with the first service, asks each front once per interval.
/// It posts a core::ReplicasScaled where the number of replicas shall change, and nothing else.
class ReplicaScaler {
 public:
  using Post = std::function<void(core::Event)>;
  explicit ReplicaScaler(Post post,
                         std::chrono::milliseconds interval = std::chrono::milliseconds(1000))
      : post_(std::move(post)), interval_(interval) {}
  ~ReplicaScaler() { quit(); }

  /// These are the run's services from now on, instead of those before.
  void watch(const core::RunId& run, std::vector<ScaledService> services);
  /// Nothing is posted after it. A front that does not answer may delay it by kFrontAnswerMs.
  void quit();

 private:
  struct Watched {
    core::RunId run;
    ScaledService service;
    ReplicaController controller;
  };

  void ask_fronts();
  std::vector<core::Event> decide(const std::string& folder, const front::Status& status);
  std::optional<front::Status> status_of(const std::string& folder);

  const Post post_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Watched> watched_;
  bool has_quit_ = false;
  std::thread thread_;
  std::map<std::string, FrontClient> fronts_;  // by folder, for the thread alone
};

/// What the front says about the version; nothing if it has no replica of it.
std::optional<LoadSample> load_of(const front::Status& status, const core::RunId& version,
                                  int64_t at_ms);

}  // namespace flow
