// One version of a service in its front: its options, replicas, counts and log.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/http/http_proxy.hpp"
#include "engine/serve/inference.hpp"
#include "engine/serve/latency_histogram.hpp"
#include "engine/serve/line_limiter.hpp"
#include "engine/serve/request_scheduler.hpp"
#include "engine/serve/service_metrics.hpp"
#include "engine/serve/service_options.hpp"

namespace flow {

/// A replica as its front sees it.
class FrontReplica : public Replica {
 public:
  struct Description {
    std::string name{};  // of its unit
    int32_t pid = 0;
    std::string gpus{};          // UUIDs, separated by commas
    std::string worker{};        // that it runs on; "": the front's machine
    uint16_t server = 0;         // the port of the HTTP server to which its requests are forwarded
    uint64_t server_socket = 0;  // the cookie of the socket that listens there; 0: not known
    HttpProxy::Connect connect{};  // to that port at its worker; null: the port is one here
  };
  /// It has joined, and gets requests from now on. `url` is that of the service.
  virtual void joined(const std::string& url) = 0;
  /// It gets no further request and may end.
  virtual void release() = 0;
  /// For the log of its attempt.
  virtual void log(const std::string& line) = 0;
};

/// Only the loop's thread uses it.
class ServiceVersion : public std::enable_shared_from_this<ServiceVersion> {
 public:
  using Clock = PendingRequest::Clock;
  using ReplicaState = RequestScheduler::ReplicaState;
  struct ReplicaEntry {
    FrontReplica* replica;
    FrontReplica::Description description;
    ReplicaState state;
  };

  /// `log` gets a line for each failure. `changed` is called after what may change next_event() or
  /// the state. Both outlive the version.
  ServiceVersion(std::string id, ServiceOptions options,
                 std::function<void(const std::string&)> log, std::function<void()> changed);
  virtual ~ServiceVersion() = default;

  const std::string& id() const { return id_; }
  const ServiceOptions& options() const { return options_; }
  /// The run was resumed with other options. All take effect but `name`, and where it listens.
  virtual void set_options(ServiceOptions options);
  const ServiceMetrics& metrics() const { return metrics_; }
  RequestCounters& counters() { return counters_; }
  const RequestCounters& counters() const { return counters_; }

  // ---- requests

  /// Requests that wait for a replica.
  virtual size_t queued() const = 0;
  /// Requests at replicas for which a client waits.
  virtual size_t running() const = 0;
  /// Counts an accepted request that got this status.
  void count(int status, Clock::duration duration);
  /// Counts a request that got this status before it was accepted, by this version or by the front
  /// for it.
  void count_refused(int status, Clock::duration duration);
  /// Mean time from the arrival of a request to its batch, or until a server gets it: of those that
  /// began in the last 10 s, or since the newest replica joined, and of those that wait now, as far
  /// as they have waited. It looks at all of these.
  std::chrono::microseconds queue_time(Clock::time_point now) const;
  bool is_idle() const { return queued() == 0 && running() == 0; }
  /// Why a further request would get status 429; "" if there is room for it.
  virtual std::string full_text() const = 0;
  /// Gives the requests that wait to the versions that `next` returns, which are of the same kind,
  /// or null. `next` stays valid: those that are to run again after close() go there too.
  virtual void hand_over(const std::function<std::shared_ptr<ServiceVersion>()>& next) = 0;
  /// Takes the service's warm-up request, if it has one, so often that the present step of a canary
  /// has this many requests in the end, as far as the queue has room.
  virtual void complete_step(uint32_t) {}
  /// Rejects all requests that have no answer yet, and those that come. Returns how many there
  /// were.
  virtual size_t close() = 0;

  // ---- replicas

  void add(FrontReplica& replica, FrontReplica::Description description);
  void remove(FrontReplica& replica);
  /// From now on it gets requests only if all replicas are leaving; with `is_replaced` it gets
  /// none.
  virtual void set_leaving(FrontReplica& replica, bool is_replaced) = 0;
  /// The replica that leaves has had all the time of its stop, and still runs requests. They run
  /// again, or get status 503. False if they are left to the end of the replica's process.
  virtual bool stop_running(FrontReplica&) { return false; }
  std::vector<ReplicaEntry> replicas() const;
  bool has(const FrontReplica& replica) const;
  bool has_replicas() const { return !replicas_.empty(); }
  /// Whether a replica is neither gone nor leaving.
  virtual bool has_staying() const = 0;
  /// Whether a request that is sent to it can be answered in time.
  bool is_ready() const { return has_replicas() && !is_overdue(); }
  /// Replicas that have died while they stayed, and were not replaced since; and when the last one
  /// died.
  size_t lost() const { return lost_; }
  Clock::time_point lost_at() const { return lost_at_; }
  /// When the last replica was gone; nothing while there is one.
  std::optional<Clock::time_point> alone_since() const;

  /// To the log, and to a replica's.
  void log(const std::string& line);
  Clock::time_point next_event() const;
  void run_due(Clock::time_point now);

 protected:
  /// Of the requests that wait for their first batch, or for their first server.
  virtual RequestWaits waits(Clock::time_point now) const = 0;
  virtual ReplicaState state(const FrontReplica& replica) const = 0;
  virtual void begin(FrontReplica& replica, const FrontReplica::Description& description) = 0;
  virtual void end(FrontReplica& replica) = 0;
  /// Whether no replica answers at present, although there are some.
  virtual bool is_overdue() const = 0;
  virtual Clock::time_point next_request_event() const = 0;
  virtual void run_requests_due(Clock::time_point now) = 0;
  ServiceMetrics& own_metrics() { return metrics_; }
  /// Notes in the record, which may be null, that this version has the request.
  void note_version(RequestRecord* record) const;
  /// Notes that the replica gets the request, unless one has got it before.
  void note_start(RequestRecord* record, const Replica& replica, int64_t rows) const;
  void changed() const { changed_(); }

 private:
  struct Member {
    FrontReplica* replica;
    FrontReplica::Description description;
  };

  static constexpr size_t kUnreadMax = 16;

  void write_line(const std::string& line);

  const std::string id_;
  ServiceOptions options_;
  const std::function<void(const std::string&)> log_;
  const std::function<void()> changed_;
  ServiceMetrics metrics_;
  RequestCounters counters_;
  LineLimiter limiter_;
  std::vector<Member> replicas_;  // the front bounds its connections
  Clock::time_point alone_since_;
  std::vector<std::string> unread_;  // lines for the next replica, up to kUnreadMax
  size_t lost_ = 0;
  Clock::time_point lost_at_;
};

}  // namespace flow
