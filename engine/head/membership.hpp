// The engine as the head of a cluster: connected workers, acknowledgment of their committed
// reports, and leases of disconnected ones.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/cluster/session/session_channel.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/head/worker_listener.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/worker/gpu_samples.hpp"
#include "flow/transport.hpp"

namespace flow {

/// Lease of a worker whose link broke. A killed process never rejoins, and a living one does so at
/// once.
constexpr int64_t kRejoinMs = 700;

struct ClusterOptions {
  TransportFactory make_transport;  // required
  std::string state_dir;
  std::string listen;       // "HOST:PORT"
  std::string secret_file;  // "": the state's own secret
  bool encrypt = false;     // blobs are encrypted
  int64_t lost_after_ms = 10'000;
  int64_t adopt_ms = 30'000;  // how long workers of an engine that died may take to join this one
  /// Receives notes for users; null: they are printed. On any thread; it must not block.
  std::function<void(const std::string&)> on_note;
};

/// Path of the secret that a state shares with its own workers.
std::string secret_path(const std::string& state_dir);

/// A worker that the head knows, by name.
struct ConnectedWorker {
  std::shared_ptr<WorkerConnection> connection;  // null: not connected
  std::string address, process, spool;
  uint64_t received = 0;  // newest report in the inbox,
  uint64_t durable = 0;   // newest committed report
  bool is_acked = true;   // the acknowledgment was sent, or is about to be
  uint64_t serial = 0;    // serial number of its connection
  bool is_draining = false;
  std::shared_ptr<GpuSamples> gpu_samples;  // of its connection; null: none came
};
using ConnectedWorkers = std::map<std::string, ConnectedWorker>;

/// With `max` or more entries, removes lost workers whose reports are committed: a rejoin needs
/// nothing of them that is not in the state. `disconnected`: workers that may rejoin.
void forget_lost(ConnectedWorkers& workers, const std::set<std::string>& disconnected, size_t max);

/// The addresses of a head: the one of --listen, and the one that other machines connect to.
struct FormerHead {
  std::string listened_at, reached_at;
};
/// The head that a worker of this name joined last; empty if unknown.
FormerHead head_of_worker(EngineLoop& engine_loop, const std::string& name);

/// Thread-safe.
class ClusterMembership final : private cluster::WorkerListenerUser {
 public:
  static Result<std::unique_ptr<ClusterMembership>> start(EngineLoop& engine_loop,
                                                          const ClusterOptions& options);
  /// Without threads: for a simulator, whose one thread calls tick(). `session` has its clock.
  static Result<std::unique_ptr<ClusterMembership>> open(EngineLoop& engine_loop,
                                                         const ClusterOptions& options,
                                                         const cluster::SessionOptions& session);
  ~ClusterMembership() override;

  /// Ticks the sessions and ends leases that are due. Only after open().
  void tick();
  std::string address() const { return listener_->address(); }
  /// A note for users if workers that may come back only know another address of this head;
  /// otherwise "".
  std::string note_of_moved_head() const;
  /// The remote address of the worker of this name; "" if it is not connected.
  std::string address_of(const std::string& name) const;
  /// The newest samples of the worker's GPUs; none while it is not connected.
  std::vector<GpuSamples::TimedSample> gpu_samples_of(const std::string& name) const;
  /// Whether the worker left after a drain.
  bool has_left(const std::string& name) const;
  /// `host`: the client's address without its port.
  using ClientHandler =
      std::function<void(std::shared_ptr<cluster::SessionChannel>, const std::string& host)>;
  /// Sets the handler of clients that connect to this head; it must not block. Null: clients are
  /// rejected. Waits for running calls.
  void serve_clients(ClientHandler handler);

 private:
  static constexpr size_t kKnownWorkersMax = core::kWorkersMax;
  ClusterMembership(EngineLoop& engine_loop, std::function<int64_t()> now_us)
      : engine_loop_(engine_loop), now_us_(std::move(now_us)) {}
  static Result<std::unique_ptr<ClusterMembership>> make(EngineLoop& engine_loop,
                                                         const ClusterOptions& options,
                                                         cluster::SessionOptions session,
                                                         bool has_threads);
  void await_former_workers(int64_t adopt_ms);
  void open_fronts(const cluster::SessionOptions& session);
  void record_address(const std::string& name);
  uint64_t committed_of(const std::string& name, const std::string& spool) const;
  std::string on_join(std::shared_ptr<WorkerConnection> connection,
                      cluster::JoinRequest request) override;
  void on_draining(WorkerConnection& connection, const std::string& why) override;
  void on_gpu_failed(WorkerConnection& connection, const std::string& uuid,
                     const std::string& fault, bool is_dead) override;
  void on_gpu_sample(WorkerConnection& connection, GpuSample sample) override;
  void on_report(WorkerConnection& connection, cluster::ReceivedReport received) override;
  void on_rank_address(Report report) override;
  void on_disconnected(WorkerConnection& connection, bool is_for_good,
                       const std::string& why) override;
  void on_durable(const std::string& name, uint64_t serial, uint64_t number);
  void ack_durable(const std::string& name, uint64_t serial);
  ConnectedWorkers::iterator find(const WorkerConnection& connection);
  void forget_disconnected();
  void start_lease(const std::string& name, uint64_t serial, int64_t ms, std::string why,
                   bool has_died);
  void end_due_leases();
  void loop();

  std::shared_ptr<cluster::SessionUser> on_client(
      const cluster::SessionPeer& peer, const std::shared_ptr<cluster::SessionLink>& link);

  struct Lease {
    std::string name;
    uint64_t serial = 0;
    std::string why;
    bool has_died = false;  // its link went down at once, as when a process ends
  };
  EngineLoop& engine_loop_;
  const std::function<int64_t()> now_us_;
  std::mutex clients_mutex_;
  ClientHandler client_handler_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  // By name. With kKnownWorkersMax entries, lost workers are removed when another one joins.
  ConnectedWorkers workers_;
  uint64_t last_serial_ = 0;
  std::string listens_at_;                // set once it is known
  std::vector<std::string> joined_;       // workers that joined before that
  std::multimap<int64_t, Lease> leases_;  // by due time, us; entries leave then
  std::thread thread_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<cluster::WorkerListener> listener_;  // last: its threads use the other members
};

}  // namespace flow
