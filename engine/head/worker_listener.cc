#include "engine/head/worker_listener.hpp"

#include <utility>

#include "engine/base/log.hpp"

namespace flow::cluster {

namespace {

constexpr size_t kTransferThreads = 4;

class WorkerSession final : public SessionUser {
 public:
  WorkerSession(WorkerListenerUser& user, ThreadPool& thread_pool,
                const std::shared_ptr<BlobCache>& store,
                const std::shared_ptr<BlobDirectory>& directory, const RemoteWorkerOptions& options,
                const SessionPeer& peer, const std::shared_ptr<SessionLink>& link)
      : user_(user),
        name_(peer.name),
        link_(link),
        directory_(directory),
        worker_key_(directory->enter()) {
    auto send = [link](std::string_view message) { (void)link->send(message); };
    auto disconnect = [link](const std::string& why) { link->end(why); };
    RemoteWorkerCallbacks callbacks;
    callbacks.on_join = [this](JoinRequest request) { return join(std::move(request)); };
    callbacks.on_report = [this](Report report, uint64_t number) {
      report_receiver_->add(std::move(report), number);
    };
    callbacks.on_draining = [this](const std::string& why) {
      user_.on_draining(*remote_worker_, why);
    };
    callbacks.on_gpu_failed = [this](const std::string& uuid, const std::string& fault,
                                     bool is_dead) {
      user_.on_gpu_failed(*remote_worker_, uuid, fault, is_dead);
    };
    callbacks.on_gpu_sample = [this](GpuSample sample) {
      user_.on_gpu_sample(*remote_worker_, std::move(sample));
    };
    callbacks.on_rank_address = [&user](Report report) { user.on_rank_address(std::move(report)); };
    callbacks.on_order = [store](const AttemptOrder& order) {
      lend(*store, order.rank_id(), referenced_blobs(order));
    };
    callbacks.on_inventory_delta = [this](const BlobInventoryDelta& delta) {
      directory_->update(worker_key_, delta);
    };
    callbacks.on_blob_message = [this](std::string_view message) {
      return transfer_->on_message(message);
    };
    remote_worker_ =
        std::make_shared<RemoteWorker>(send, std::move(callbacks), disconnect, options);
    TransferOptions transfer;
    transfer.store = store;
    transfer.thread_pool = &thread_pool;
    transfer.link = link->link();
    transfer.send = [remote_worker = remote_worker_](std::string_view message) {
      remote_worker->send_blob_message(message);
    };
    transfer.peer = "node `" + name_ + "` at " + link->link()->description();
    transfer.seal = link->bulk();
    transfer.encrypts = [encrypt = options.encrypt] { return encrypt; };
    transfer.locate = [directory, worker = worker_key_](const Digest& digest) {
      return directory->locate(worker, digest);
    };
    auto arrived = std::make_shared<ArrivedBlobs>();
    transfer.on_transferred = [arrived](bool is_out, const BlobInfo& blob) {
      if (!is_out) arrived->add(blob.digest, *blob.size);
    };
    transfer_ = std::make_shared<BlobTransfer>(transfer);
    auto fetch = [transfer = transfer_](const BlobInfo& blob, OnFetched done) {
      transfer->fetch(blob, std::move(done));
    };
    auto deliver = [&user, store, remote_worker = remote_worker_](ReceivedReport received) {
      if (is_final_report(received.report)) store->unpin(owner_of(received.report.rank_id()));
      if (received.is_replaced) remote_worker->stop(received.report.id, true);
      user.on_report(*remote_worker, std::move(received));
    };
    report_receiver_ = std::make_shared<ReportReceiver>(store, fetch, arrived, deliver);
  }

  void on_open(const SessionPeer&) override {}
  void on_message(std::string message) override {
    if (remote_worker_->on_message(message)) return;
    constexpr const char* kWhy = "the received bytes are not a message of a worker";
    if (!has_joined_) log::warning("worker rejected", {.worker = name_, .detail = kWhy});
    link_->end(kWhy);
  }
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(EndKind kind, const Error& why) override {
    bool may_return = kind == EndKind::cut || kind == EndKind::damaged;
    directory_->leave(worker_key_);
    report_receiver_->end();
    transfer_->end(why);
    if (has_joined_) user_.on_disconnected(*remote_worker_, !may_return, why.message);
  }

 private:
  bool join(JoinRequest request) {
    std::string blob_address = request.blob_address;
    request.worker.name = name_;
    request.address = link_->link()->description();
    has_joined_ = true;  // the callback may end it
    std::string rejection = user_.on_join(remote_worker_, std::move(request));
    if (rejection.empty()) {
      directory_->join(worker_key_, name_, blob_address);
      return true;
    }
    has_joined_ = false;
    log::warning("worker rejected", {.worker = name_, .detail = rejection});
    link_->end(rejection);
    return true;
  }

  WorkerListenerUser& user_;
  const std::string name_;
  const std::shared_ptr<SessionLink> link_;
  const std::shared_ptr<BlobDirectory> directory_;
  const BlobDirectory::WorkerKey worker_key_;
  std::shared_ptr<RemoteWorker> remote_worker_;
  std::shared_ptr<BlobTransfer> transfer_;
  std::shared_ptr<ReportReceiver> report_receiver_;
  bool has_joined_ = false;
};

}  // namespace

WorkerListener::WorkerListener(const WorkerListenerOptions& options)
    : thread_pool_(transfer_threads(kTransferThreads)),
      directory_(options.blob_directory),
      worker_options_{options.encrypt, options.clock, options.session.lost_after_ms} {
  store_ = BlobCache::of_state(options.state_dir, options.resolve);
}

Result<std::unique_ptr<WorkerListener>> WorkerListener::start(Transport& transport,
                                                              const WorkerListenerOptions& options,
                                                              WorkerListenerUser& user) {
  std::unique_ptr<WorkerListener> head(new WorkerListener(options));
  head->sessions_ =
      std::make_unique<Sessions>(transport, options.session, options.on_note, options.has_thread);
  auto accept = [&user, self = head.get(), accept_client = options.accept_client](
                    const SessionPeer& peer,
                    std::shared_ptr<SessionLink> link) -> std::shared_ptr<SessionUser> {
    if (peer.role == Role::client)
      return accept_client ? accept_client(peer, std::move(link)) : nullptr;
    return std::make_shared<WorkerSession>(user, self->thread_pool_, self->store_, self->directory_,
                                           self->worker_options_, peer, link);
  };
  auto listener = head->sessions_->listen(options.listen, accept);
  FLOW_TRY(listener);
  head->listener_ = std::move(*listener);
  return head;
}

WorkerListener::~WorkerListener() {
  listener_.reset();
  sessions_.reset();
}

}  // namespace flow::cluster
