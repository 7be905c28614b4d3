#include "engine/head/worker_listener.hpp"

#include <utility>

namespace flow::cluster {

namespace {

constexpr int kTransferThreads = 4;

class WorkerSession final : public SessionUser {
 public:
  WorkerSession(HeadUser& user, ThreadPool& thread_pool, const std::shared_ptr<BlobCache>& store,
                const std::shared_ptr<BlobDirectory>& directory, bool encrypt,
                const SessionPeer& peer, const std::shared_ptr<SessionLink>& link)
      : user_(user),
        name_(peer.name),
        link_(link),
        directory_(directory),
        worker_key_(directory->enter()) {
    auto send = [link](std::string_view message) { (void)link->send(message); };
    auto let_go = [link](const std::string& why) { link->end(why); };
    FromRemote told;
    told.on_join = [this](JoinRequest request) { return join(std::move(request)); };
    told.on_report = [this](Report report, uint64_t number) {
      intake_->add(std::move(report), number);
    };
    told.on_draining = [this](const std::string& why) { user_.on_draining(*host_, why); };
    told.on_gpu_failed = [this](const std::string& uuid, const std::string& fault, bool is_dead) {
      user_.on_gpu_failed(*host_, uuid, fault, is_dead);
    };
    told.on_meeting = [&user](Report report) { user.on_meeting(std::move(report)); };
    told.on_order = [store](const AttemptOrder& order) {
      lend(*store, order.rank_id(), referenced_blobs(order));
    };
    told.on_news = [this](const BlobInventoryDelta& delta) {
      directory_->update(worker_key_, delta);
    };
    told.on_content = [this](std::string_view message) { return transfer_->on_message(message); };
    host_ = std::make_shared<RemoteWorker>(send, std::move(told), let_go, encrypt);
    TransferOptions transfer;
    transfer.store = store;
    transfer.thread_pool = &thread_pool;
    transfer.link = link->link();
    transfer.send = [host = host_](std::string_view message) { host->send_content(message); };
    transfer.peer = "node `" + name_ + "` at " + link->link()->description();
    transfer.seal = link->bulk();
    transfer.encrypts = [encrypt] { return encrypt; };
    transfer.locate = [directory, worker = worker_key_](const Digest& digest) {
      return directory->locate(worker, digest);
    };
    transfer_ = std::make_shared<BlobTransfer>(transfer);
    auto fetch = [moving = transfer_](const BlobInfo& blob, OnFetched done) {
      moving->fetch(blob, std::move(done));
    };
    auto deliver = [&user, store, host = host_](TakenReport taken) {
      if (is_final_report(taken.report)) store->unpin(owner_of(taken.report.rank_id()));
      if (taken.is_replaced) host->stop(taken.report.id, true);
      user.on_report(*host, std::move(taken));
    };
    intake_ = std::make_shared<Intake>(store, fetch, deliver);
  }

  void on_open(const SessionPeer&) override {}
  void on_message(std::string message) override {
    if (!host_->on_message(message)) link_->end("the received bytes are not a message of a worker");
  }
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(EndKind kind, const Error& why) override {
    bool may_return = kind == EndKind::cut || kind == EndKind::damaged;
    directory_->leave(worker_key_);
    intake_->end();
    transfer_->end(why);
    if (has_joined_) user_.on_gone(*host_, !may_return, why.message);
  }

 private:
  bool join(JoinRequest request) {
    std::string blob_address = request.blob_address;
    request.host.name = name_;
    request.address = link_->link()->description();
    has_joined_ = true;  // what it is told in there may end it
    std::string refusal = user_.on_join(host_, std::move(request));
    if (refusal.empty()) {
      directory_->join(worker_key_, name_, blob_address);
      return true;
    }
    has_joined_ = false;
    link_->end(refusal);
    return true;
  }

  HeadUser& user_;
  const std::string name_;
  const std::shared_ptr<SessionLink> link_;
  const std::shared_ptr<BlobDirectory> directory_;
  const BlobDirectory::WorkerKey worker_key_;
  std::shared_ptr<RemoteWorker> host_;
  std::shared_ptr<BlobTransfer> transfer_;
  std::shared_ptr<Intake> intake_;
  bool has_joined_ = false;
};

}  // namespace

Head::Head(const HeadOptions& options)
    : thread_pool_(kTransferThreads),
      directory_(options.blob_directory),
      encrypt_(options.encrypt) {
  store_ = BlobCache::of_state(options.state_dir, options.resolve);
}

Result<std::unique_ptr<Head>> Head::start(Transport& transport, const HeadOptions& options,
                                          HeadUser& user) {
  std::unique_ptr<Head> head(new Head(options));
  head->sessions_ = std::make_unique<Sessions>(transport, options.session, options.on_note);
  auto accept = [&user, self = head.get(), accept_client = options.accept_client](
                    const SessionPeer& peer,
                    std::shared_ptr<SessionLink> link) -> std::shared_ptr<SessionUser> {
    if (peer.role == Role::client)
      return accept_client ? accept_client(peer, std::move(link)) : nullptr;
    return std::make_shared<WorkerSession>(user, self->thread_pool_, self->store_, self->directory_,
                                           self->encrypt_, peer, link);
  };
  auto listener = head->sessions_->listen(options.listen, accept);
  FLOW_TRY(listener);
  head->listener_ = std::move(*listener);
  return head;
}

Head::~Head() {
  listener_.reset();
  sessions_.reset();
}

}  // namespace flow::cluster
