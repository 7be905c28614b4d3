// A worker in its own process, for tests that stop and end it. Usage: session_peer ADDRESS
// SECRET_FILE [DIR]. It echoes every message, or with DIR serves the blobs in that folder. At the
// session's end it prints the reason and exits with the kind of the end; with DIR it retries failed
// connections, as every worker does.
#include <atomic>
#include <cstdio>
#include <optional>

#include "engine/cluster/session/sessions.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"
#include "transports/ucx/ucx.hpp"

using namespace flow;
using namespace flow::cluster;

namespace {

constexpr int kKindBase = 10;  // of its exit codes
constexpr int kTries = 5;

class Echo : public SessionUser {
 public:
  void on_open(const SessionPeer&) override { has_opened = true; }
  void on_message(std::string message) override { (void)opened()->send(message); }
  void on_suspect(const std::string&) override {}
  void on_recovered() override {}
  void on_end(EndKind kind, const Error& why) override {
    std::fprintf(stderr, "%s\n", why.message.c_str());
    may_try_again = !has_opened && (kind == EndKind::cut || kind == EndKind::lost);
    code = kKindBase + static_cast<int>(kind);
    code.notify_all();
  }
  SessionLink* opened() {
    session.wait(nullptr);
    return session.load();
  }
  bool has_opened = false, may_try_again = false;
  std::atomic<int> code{0};
  std::atomic<SessionLink*> session{nullptr};
};

class Server final : public Echo {
 public:
  explicit Server(const std::string& dir) : store_(BlobCache::of_state(dir, nullptr)) {}
  void on_open(const SessionPeer& peer) override {
    Echo::on_open(peer);
    TransferOptions options;
    options.store = store_;
    options.thread_pool = &thread_pool_;
    options.link = opened()->link();
    options.send = [to = opened()](std::string_view message) { (void)to->send(message); };
    options.seal = opened()->bulk();
    transfer_.emplace(options);
  }
  void on_message(std::string message) override {
    if (!transfer_->on_message(message)) opened()->end("no message of a transfer");
  }

 private:
  ThreadPool thread_pool_{transfer_threads(2)};
  std::shared_ptr<BlobCache> store_;
  std::optional<BlobTransfer> transfer_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3 && count != 4) return 2;
  auto transport = make_ucx_transport({}, true);
  if (!transport.ok()) return 4;
  auto secret = read_secret(arguments[2]);
  if (!secret.ok()) return 5;
  SessionOptions options;
  options.name = "w1";
  options.version = "0.1.0";
  options.secret = std::make_shared<const Secret>(*secret);
  Sessions sessions(**transport, options, nullptr);
  int code = 0;
  bool goes_on = true;
  for (int tries = 0; goes_on && tries < kTries; tries++) {
    auto echo = count == 3 ? std::make_shared<Echo>() : std::make_shared<Server>(arguments[3]);
    auto session = sessions.connect(arguments[1], echo);
    if (!session.ok()) return 6;
    echo->session = session->get();
    echo->session.notify_all();
    echo->code.wait(0);
    code = echo->code;
    goes_on = count == 4 && echo->may_try_again;
  }
  return code;
}
