// A worker in another process that is killed while it sends a blob, and returns.
#if FLOW_TEST_UCX

#include "tests/cluster/process.hpp"
#include "tests/cluster/transfer_pair.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;

/// The head's end of a session that transfers only blobs.
class BlobSessionUser final : public SessionUser {
 public:
  BlobSessionUser(PeerHead& head, std::shared_ptr<BlobCache> store)
      : head_(head), store_(std::move(store)) {}
  void on_open(const SessionPeer& peer) override {
    TransferOptions options;
    options.store = store_;
    options.thread_pool = &thread_pool_;
    options.link = head_.link->link();
    options.send = [to = head_.link](std::string_view message) { (void)to->send(message); };
    options.peer = "node `" + peer.name + "`";
    options.seal = head_.link->bulk();
    options.encrypts = [] { return true; };
    transfer_.emplace(options);
    open_.set_value();
  }
  void on_message(std::string message) override {
    if (!transfer_->on_message(message)) head_.link->end("no message of a transfer");
  }
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(EndKind, const Error& why) override { transfer_->end(why); }

  BlobTransfer& transfer() {
    REQUIRE(opened_.wait_for(std::chrono::seconds(120)) == std::future_status::ready);
    return *transfer_;
  }
  Status fetch(const BlobInfo& blob, const std::function<void()>& meanwhile) {
    std::promise<Status> done;
    transfer().fetch(blob, [&](const Status& status) { done.set_value(status); });
    meanwhile();
    return done.get_future().get();
  }

 private:
  PeerHead& head_;
  ThreadPool thread_pool_{transfer_threads(2)};
  std::shared_ptr<BlobCache> store_;
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
  std::optional<BlobTransfer> transfer_;
};

TEST_CASE("a worker that is killed during a transfer delivers the blob after it has returned") {
  TestFolder worker_folder, state_folder;
  auto state = BlobCache::of_state(state_folder.path, nullptr);
  std::string bytes = random_bytes_of(size_t{100} << 20);
  BlobInfo blob = put_object(worker_folder.path, bytes);
  PeerHead head;
  auto first = std::make_shared<BlobSessionUser>(head, state),
       second = std::make_shared<BlobSessionUser>(head, state);
  head.give_to(first);
  {
    Process worker(head.address(), head.secret_file(), worker_folder.path);
    Status killed = first->fetch(blob, [&] {
      while (first->transfer().counters().bytes_in < (10u << 20)) ::usleep(1000);
      worker.signal(SIGKILL);
    });
    REQUIRE_FALSE(killed.ok());
    CHECK_THAT(killed.error().message, Contains("the link to "));
  }
  head.give_to(second);
  Process worker(head.address(), head.secret_file(), worker_folder.path);
  CHECK(second->fetch(blob, [] {}).ok());
  CHECK((*read_file(state->path_of(blob.digest)) == bytes));
  CHECK(second->transfer().counters().bytes_in == bytes.size());
}

}  // namespace
}  // namespace flow::cluster

#endif
