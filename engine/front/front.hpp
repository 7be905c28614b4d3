// The front of a service: it listens for clients, and hands their requests to the replicas of the
// service's versions. Replicas and engines reach it through FrontSocket.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/front/access_log.hpp"
#include "engine/front/front_backend.hpp"
#include "engine/front/front_listener.hpp"
#include "engine/front/front_routes.hpp"
#include "engine/front/version_set.hpp"
#include "engine/serve/http/event_loop.hpp"
#include "engine/serve/memory/replica_memory.hpp"
#include "flow/result.hpp"

namespace flow {

struct FrontOptions {
  /// A file with the port that the system chose: the next front with this file takes the same one.
  /// "": none.
  std::string port_file{};
  /// The same for the port of gRPC.
  std::string grpc_port_file{};
  /// A file with the weights of versions, which the next front with this file restores. "": none.
  std::string traffic_file{};
  /// How long a front that finds a canary in the traffic_file waits for its engine.
  int64_t canary_wait_ms = 10'000;
  /// Where requests are logged if a version has the option. "": nowhere.
  std::string access_log{};
  /// How long the versions of the traffic_file have to join before others get all requests.
  int64_t rejoin_ms = 10'000;
  int64_t lease_ms = 60'000;  // without a replica and an engine the front ends after this time
  /// Called on the loop's thread with one line for each failure of the service.
  std::function<void(const std::string&)> log{};
  /// Called on the loop's thread, once: all replicas are released, and none may join any more.
  std::function<void()> ended{};
};

/// Only the thread of the loop uses it, but for construction, and destruction after the loop has
/// stopped.
class Front {
 public:
  using Clock = std::chrono::steady_clock;
  struct JoinRequest {
    std::string version;  // id of the run
    FrontReplica::Description replica;
    ServiceOptions options;
  };

  /// Error if its threads cannot be started.
  static Result<std::unique_ptr<Front>> start(EventLoop& loop, FrontOptions options);
  ~Front();

  // ---- replicas, which the caller owns, and removes before it destroys them

  /// For the first replica the front begins to listen. An Error of kind interrupted means that the
  /// front is about to end: the next one will take the replica. Any other says why it is rejected.
  Status join(FrontReplica& replica, JoinRequest request);
  /// A replica that has joined is run by another engine, which may have other options.
  void renew(FrontReplica& replica, JoinRequest request);
  /// The replica is asked to stop: it is released as soon as it is not needed, at the end of the
  /// `grace` at the latest. With `is_replaced` another replica will take its place: the
  /// version continues without it, even if it is the last one.
  void leave(FrontReplica& replica, Clock::duration grace, bool is_replaced = false);
  /// The replica is gone; also after it was released.
  void remove(FrontReplica& replica);
  /// The outcome of a batch. False if the replica does not run it.
  bool finish(FrontReplica& replica, uint64_t batch, Result<Tensors> outputs,
              ResponseParameters parameters);

  // ---- engines

  void add_engine();
  void remove_engine();
  /// Begins to count the requests of the version `measured` anew, unless it is "".
  Status set_traffic(TrafficWeights weights, const std::string& measured);
  /// Has the version's warm-up request answered for the requests that its step lacks.
  void complete_step(const std::string& version, uint32_t requests);
  /// The version has ended: nothing waits for its replicas any more. A front that never listened,
  /// and has no traffic of an earlier one to restore, ends.
  void forget(const std::string& version);
  /// All replicas of the version leave, as if an engine had stopped them.
  void drain(const std::string& version, Clock::duration grace);
  /// Ends the front as if all replicas left.
  void begin_drain(Clock::duration grace);

  /// Of the memory that the front shares with its replicas.
  ReplicaMemory::Budget& memory_budget() { return memory_budget_; }

  // ---- requests

  /// The version that answers a new request. The Error (user) says that there is no such model or
  /// version here.
  Result<std::shared_ptr<ServiceVersion>> route(const std::string& model,
                                                const std::string& version);
  /// After requests were given to a version.
  void wake_in_time() { timer_.wake_by(next_event()); }

  const VersionSet& versions() const { return versions_; }
  /// The file of the log of requests; "" if no version has one.
  std::string access_log() const { return requests_.is_on() ? options_.access_log : ""; }
  const std::string& url() const { return listener_.url(); }
  bool is_ready() const { return !is_draining() && versions_.is_ready(); }
  bool is_draining() const { return drain_.has_value(); }

 private:
  struct Leaving {
    Clock::duration grace;
    Clock::time_point until;
    bool is_replaced = false;  // others take the place of all that leave
  };
  struct Drain {
    Clock::duration grace;
    Clock::time_point accepts_until, until;
    bool has_begun = false;   // at the listener
    bool is_drained = false;  // no connection is left
    bool is_closed = false;   // what was not answered is rejected
  };

  Front(EventLoop& loop, FrontOptions options, std::unique_ptr<ThreadPool> decoder,
        std::unique_ptr<ThreadPool> encoder);
  std::shared_ptr<ServiceVersion> new_version(const JoinRequest& request);
  Status check_listener(const JoinRequest& request);
  void start_drain(const Leaving& leaving);
  void update_soon();
  void update();
  void speak_for_primary();
  void update_version(ServiceVersion& version, Clock::time_point now);
  void update_without_replicas(ServiceVersion& version, Clock::time_point now);
  bool is_replacing(const ServiceVersion& version) const;
  bool is_stopped(const ServiceVersion& version, Clock::time_point now) const;
  bool is_only_active(const ServiceVersion& version, Clock::time_point now) const;
  void release_leaving(ServiceVersion& version, Clock::time_point now);
  void release(ServiceVersion& version, FrontReplica& replica);
  void end_version(ServiceVersion& version, Clock::duration grace);
  void close(ServiceVersion& version, Clock::duration grace);
  void continue_drain(Clock::time_point now);
  void drain_listener(Clock::duration grace);
  void close_all(Clock::time_point now);
  void end();
  void give_up_canary();
  /// Whether it has never listened, and there is no traffic of an earlier one to restore.
  bool is_unused() const;
  Clock::duration idle_lease() const;
  Clock::time_point next_event() const;

  EventLoop& loop_;
  const FrontOptions options_;
  ReplicaMemory::Budget memory_budget_;
  VersionSet versions_;
  AccessLog requests_;
  std::map<std::string, Leaving> leaving_;  // versions of which a replica leaves, by id
  std::map<const FrontReplica*, Clock::time_point> leave_by_;  // of replicas that leave
  std::set<std::string> forgotten_;  // versions that are there and have ended, by id
  std::optional<Drain> drain_;
  size_t engines_ = 0;              // that are connected
  std::string measured_;            // the version of a canary that an engine measures; "": none
  Clock::time_point canary_until_;  // without an engine, of a canary of an earlier front
  Clock::time_point idle_since_;    // without a replica and an engine
  bool has_stopped_ = false;        // a version was asked to end, and did
  bool restores_traffic_ = false;   // of an earlier front
  bool is_update_posted_ = false, has_ended_ = false;
  FrontRoutes routes_;
  FrontBackend backend_;
  FrontListener listener_;
  // Destroyed before all above, which their jobs use.
  std::unique_ptr<ThreadPool> decoder_, encoder_;
  LoopTimer timer_;
};

}  // namespace flow
