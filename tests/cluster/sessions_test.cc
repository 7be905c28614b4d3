// Sessions over links within this process, with all real threads.
#include "engine/cluster/session/sessions.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cluster/log.hpp"
#include "transports/inproc/inproc.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

/// Uses a link without a session.
class RawLinkHandler : public LinkHandler {
 public:
  void on_up() override { log.add("up"); }
  void on_frame(std::string_view frame) override {
    log.add("frame of " + std::to_string(frame.size()));
  }
  void on_down(const Error& why) override { log.add("down: " + why.message); }
  Log log;
};

/// A listening head and its recorded events.
struct Head {
  explicit Head(const SessionOptions& options = options_of(Role::head))
      : sessions(*transport, options, [this](std::string note) { notes.add(note); }) {
    auto opened = sessions.listen("127.0.0.1:0", [this](const SessionPeer&, auto session) {
      link = session;
      log.add("accepted");
      return user;
    });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
  }
  ~Head() { listener.reset(); }
  std::string address() const { return listener->address(); }

  Log log, notes;
  std::shared_ptr<RecordingSessionUser> user = std::make_shared<RecordingSessionUser>();
  std::shared_ptr<SessionLink> link;
  std::unique_ptr<Transport> transport = make_inproc_transport();
  Sessions sessions;
  std::unique_ptr<Listener> listener;
};

struct Worker {
  explicit Worker(const Head& head, const SessionOptions& options = options_of(Role::worker))
      : sessions(*transport, options, [](std::string) {}) {
    auto opened = sessions.connect(head.address(), user);
    REQUIRE(opened.ok());
    link = *opened;
  }
  std::shared_ptr<RecordingSessionUser> user = std::make_shared<RecordingSessionUser>();
  std::unique_ptr<Transport> transport = make_inproc_transport();
  Sessions sessions;
  std::shared_ptr<SessionLink> link;
};

SessionOptions quick(Role role) {
  SessionOptions options = options_of(role);
  options.handshake_ms = 200;
  options.heartbeat_ms = 10;
  options.suspect_after_ms = 60;
  options.lost_after_ms = 200;
  return options;
}

TEST_CASE("messages of several threads arrive complete, in order per thread, in both directions") {
  constexpr int kMessages = 500;
  Head head;
  Worker worker(head);
  head.user->log.wait(1);
  worker.user->log.wait(1);
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (SessionLink* link : {head.link.get(), worker.link.get()})
    for (int thread : {0, 1})
      threads.emplace_back([=, &refused] {
        for (int i = 0; i < kMessages; i++)
          if (!link->send(std::to_string(thread) + " " + std::to_string(i)).ok()) refused++;
      });
  for (auto& thread : threads) thread.join();
  CHECK(refused == 0);
  for (RecordingSessionUser* user : {head.user.get(), worker.user.get()}) {
    Events all = user->log.wait(1 + 2 * kMessages);
    int next[2] = {0, 0};
    for (size_t i = 1; i < all.size(); i++) {
      int thread = all[i][8] - '0';
      CHECK(all[i] == "message " + std::to_string(thread) + " " + std::to_string(next[thread]++));
    }
    CHECK(next[0] == kMessages);
    CHECK(next[1] == kMessages);
  }
}

TEST_CASE("a goodbye arrives after all earlier messages") {
  Head head;
  Worker worker(head);
  worker.user->log.wait(1);
  for (int i = 0; i < 100; i++) REQUIRE(worker.link->send(std::to_string(i)).ok());
  worker.link->end("its work is done");
  Events events = head.user->log.wait(102);
  CHECK(events[100] == "message 99");
  CHECK_THAT(events[101],
             Contains("left: node `w1` at client:") && Contains("has left: its work is done"));
  CHECK_THAT(worker.user->log.wait(2)[1], StartsWith("ended: "));
  CHECK_FALSE(worker.link->send("x").ok());
}

TEST_CASE("a user may send and end the session from within its callbacks") {
  struct Echo : RecordingSessionUser {
    void on_message(std::string message) override {
      (void)link->send("echo " + message);
      link->end("answered");
      RecordingSessionUser::on_message(message);
    }
    std::shared_ptr<SessionLink> link;
  };
  Head head;
  auto echo = std::make_shared<Echo>();
  head.user = echo;
  Worker worker(head);
  worker.user->log.wait(1);
  head.user->log.wait(1);
  echo->link = head.link;
  REQUIRE(worker.link->send("hi").ok());
  Events events = worker.user->log.wait(3);
  CHECK(events[1] == "message echo hi");
  CHECK_THAT(events[2], Contains("has left: answered"));
  CHECK(head.user->log.wait(3)[1] == "message hi");
  echo->link.reset();
}

TEST_CASE("a wrong secret is reported once with the address and does not affect other sessions") {
  Head head;
  Worker right(head);
  right.user->log.wait(1);
  for (int i = 0; i < 10; i++) {
    Worker wrong(head, options_of(Role::worker, secret_of(9)));
    CHECK_THAT(wrong.user->log.last(1),
               StartsWith("refused: no session with 127.0.0.1:") &&
                   Contains("did not prove that it knows the cluster's secret"));
  }
  REQUIRE(right.link->send("still here").ok());
  head.user->log.wait(2);
  Events notes = head.notes.wait(1);
  CHECK(notes.size() == 1);
  CHECK_THAT(notes[0],
             StartsWith("no session with client:") && Contains("did not prove that it knows"));
  CHECK(head.log.wait(1).size() == 1);
}

TEST_CASE("garbage ends the connection and is reported") {
  Head head;
  auto stranger = std::make_shared<RawLinkHandler>();
  auto transport = make_inproc_transport();
  auto link = transport->connect(head.address(), stranger);
  REQUIRE(link.ok());
  (*link)->send("GET / HTTP/1.1\r\n\r\n");
  CHECK_THAT(head.notes.last(1), Contains("is not a greeting of flow"));
  Events events = stranger->log.wait(3);
  CHECK(events[0] == "up");
  CHECK_THAT(events[1], StartsWith("frame of "));
  CHECK_THAT(events[2], StartsWith("down: "));
}

TEST_CASE("a peer that disconnects before authentication is reported too") {
  Head head;
  auto transport = make_inproc_transport();
  auto link = transport->connect(head.address(), std::make_shared<RawLinkHandler>());
  REQUIRE(link.ok());
  (*link)->send(End(options_of(Role::worker), "x").sent.front());
  (*link)->close(1'000);
  CHECK_THAT(head.notes.last(1),
             StartsWith("no session with client:") && Contains("closed the link"));
}

TEST_CASE("a silent peer is closed when its handshake timeout expires") {
  Head head(quick(Role::head));
  auto stranger = std::make_shared<RawLinkHandler>();
  auto transport = make_inproc_transport();
  auto link = transport->connect(head.address(), stranger);
  REQUIRE(link.ok());
  CHECK_THAT(head.notes.last(1),
             Contains("it did not prove that it holds the secret within 0.2 s"));
  CHECK_THAT(stranger->log.wait(3)[2], StartsWith("down: "));
}

/// Completes the handshake and then stalls, because its timers never run.
class StallingLinkHandler : public LinkHandler {
 public:
  void on_up() override {
    step([&](SessionOutput& out) { session_.emplace(quick(Role::worker), "x", 0, out); });
  }
  void on_frame(std::string_view frame) override {
    if (!stopped_) step([&](SessionOutput& out) { session_->on_frame(frame, 0, out); });
    stopped_ = session_->is_open();
  }
  void on_down(const Error& why) override { log.add("down: " + why.message); }
  Log log;
  std::shared_ptr<Link> link;

 private:
  void step(const std::function<void(SessionOutput&)>& act) {
    SessionOutput out;
    act(out);
    for (auto& frame : out.frames) link->send(std::move(frame));
  }
  std::optional<Session> session_;
  bool stopped_ = false;
};

TEST_CASE(
    "a peer that stalls behind a working link is stalled, then lost, and its link is closed") {
  Head head(quick(Role::head));
  auto hanging = std::make_shared<StallingLinkHandler>();
  auto there = make_inproc_transport();
  // It listens, so its link is known before anything arrives.
  auto listener = there->listen("127.0.0.1:0", [&](std::shared_ptr<Link> link) {
    hanging->link = std::move(link);
    return hanging;
  });
  REQUIRE(listener.ok());
  auto user = std::make_shared<RecordingSessionUser>();
  auto session = head.sessions.connect((*listener)->address(), user);
  REQUIRE(session.ok());
  Events events = user->log.wait(3);
  CHECK(events[0] == "opened worker w1 0.1.0 42 proven");
  CHECK_THAT(events[1], StartsWith("suspected: nothing was received from node `w1` at 127.0.0.1:"));
  CHECK_THAT(events[2], StartsWith("lost: nothing was received from node `w1` at 127.0.0.1:") &&
                            Contains(" for 0."));
  CHECK_THAT(hanging->log.last(1), StartsWith("down: "));
  hanging->link.reset();
}

TEST_CASE("idle sessions stay open and know their round-trip time") {
  SessionOptions head_options = quick(Role::head), worker_options = quick(Role::worker);
  head_options.lost_after_ms = worker_options.lost_after_ms = 60'000;  // also on a busy machine
  head_options.suspect_after_ms = worker_options.suspect_after_ms = 60'000;
  Head head(head_options);
  Worker worker(head, worker_options);
  worker.user->log.wait(1);
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!worker.link->counters().rtt_us && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  SessionCounters counters = worker.link->counters();
  REQUIRE(counters.rtt_us.has_value());
  CHECK(*counters.rtt_us >= 0);
  CHECK(counters.frames_in >= 4);
  CHECK(counters.frames_out >= 3);
  CHECK(worker.user->log.wait(1).size() == 1);
}

/// Breaks at the second frame, and reports it within the call.
class BreakingLink : public Link {
 public:
  explicit BreakingLink(LinkHandler& handler) : handler_(handler) {}
  void send(std::string) override {
    if (++frames_ == 2) handler_.on_down(environment_error("it broke"));
  }
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)>) override {}
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)>) override {}
  void close(int64_t) override {}
  std::string description() const override { return "x:1 (brittle)"; }

 private:
  LinkHandler& handler_;
  int frames_ = 0;
};

TEST_CASE("a link may report that it is down while a frame is passed to it") {
  auto user = std::make_shared<RecordingSessionUser>();
  auto session = std::make_shared<SessionLink>(options_of(Role::worker), "x:1", user);
  session->attach(std::make_shared<BreakingLink>(*session));
  session->on_up();
  session->on_frame(End(options_of(Role::head), "y").sent.front());  // the answer is a proof
  CHECK(user->log.wait(1) == Events{"cut: no session with x:1: it broke"});
  CHECK(session->is_down());
}

/// While it is closed, it sends, as another thread may at that moment.
class SendingOnCloseLink : public Link {
 public:
  explicit SendingOnCloseLink(std::function<void()> on_close) : on_close_(std::move(on_close)) {}
  void send(std::string frame) override { frames.push_back(std::move(frame)); }
  size_t unsent_bytes() const override { return 0; }
  void post_receive(uint64_t, Region, std::function<void(Result<size_t>)>) override {}
  void cancel_receive(uint64_t) override {}
  void put(uint64_t, Region, std::function<void(Status)>) override {}
  void close(int64_t) override { on_close_(); }
  std::string description() const override { return "x:1 (busy)"; }
  std::vector<std::string> frames;

 private:
  const std::function<void()> on_close_;
};

/// Passes the frames of the handshake.
void open_session(SessionLink& session, SendingOnCloseLink& link, End& head) {
  while (!head.sent.empty() || !link.frames.empty()) {
    for (const std::string& frame : std::exchange(head.sent, {})) session.on_frame(frame);
    for (const std::string& frame : std::exchange(link.frames, {})) head.frame(frame, 0);
  }
}

TEST_CASE("a sender gets no callback within the send that meets the end of the session") {
  struct Listening : RecordingSessionUser {
    void on_end(EndKind kind, const Error& why) override {
      was_sending = is_sending;
      RecordingSessionUser::on_end(kind, why);
    }
    bool is_sending = false, was_sending = false;
  };
  auto user = std::make_shared<Listening>();
  auto session = std::make_shared<SessionLink>(options_of(Role::worker), "x:1", user);
  auto link = std::make_shared<SendingOnCloseLink>([user, to = session.get()] {
    user->is_sending = true;
    CHECK_FALSE(to->send("x").ok());
    user->is_sending = false;
  });
  session->attach(link);
  End head(options_of(Role::head), "y");
  session->on_up();
  open_session(*session, *link, head);
  REQUIRE(user->log.wait(1).size() == 1);
  session->on_frame("nothing that the head has sealed");
  CHECK_THAT(user->log.wait(2)[1], StartsWith("damaged: "));
  CHECK_FALSE(user->was_sending);
}

struct Crash {};

TEST_CASE("a session whose user has thrown still reports its end, and is freed then") {
  struct Crashing : RecordingSessionUser {
    void on_open(const SessionPeer&) override { throw Crash(); }
    std::shared_ptr<SessionLink> session;
  };
  auto user = std::make_shared<Crashing>();
  auto session = std::make_shared<SessionLink>(options_of(Role::worker), "x:1", user);
  user->session = session;  // each owns the other until the end
  auto link = std::make_shared<SendingOnCloseLink>([] {});
  session->attach(link);
  End head(options_of(Role::head), "y");
  session->on_up();
  CHECK_THROWS_AS(open_session(*session, *link, head), Crash);
  session->on_down(environment_error("its process has ended"));
  CHECK_THAT(user->log.last(1), Contains("its process has ended"));
  std::weak_ptr<Crashing> left = user;
  std::weak_ptr<SessionLink> left_session = session;
  user.reset();
  session.reset();
  CHECK(left.expired());
  CHECK(left_session.expired());
}

TEST_CASE("a session whose link has thrown while it sent sends its later frames") {
  struct CrashingLink : SendingOnCloseLink {
    CrashingLink() : SendingOnCloseLink([] {}) {}
    void send(std::string frame) override {
      if (std::exchange(crashes, false)) throw Crash();
      SendingOnCloseLink::send(std::move(frame));
    }
    bool crashes = false;
  };
  auto user = std::make_shared<RecordingSessionUser>();
  auto session = std::make_shared<SessionLink>(options_of(Role::worker), "x:1", user);
  auto link = std::make_shared<CrashingLink>();
  session->attach(link);
  End head(options_of(Role::head), "y");
  session->on_up();
  open_session(*session, *link, head);
  link->crashes = true;
  CHECK_THROWS_AS(session->send("lost"), Crash);
  CHECK(session->send("later").ok());
  CHECK(link->frames.size() == 1);
}

TEST_CASE("if no process listens, there is no session and its user gets the reason") {
  auto transport = make_inproc_transport();
  Sessions sessions(*transport, options_of(Role::worker), nullptr);
  auto user = std::make_shared<RecordingSessionUser>();
  auto session = sessions.connect("127.0.0.1:9", user);
  REQUIRE(session.ok());
  CHECK_THAT(user->log.last(1),
             StartsWith("cut: no session with 127.0.0.1:9 (inproc): nothing listens"));
}

TEST_CASE("a session that the acceptor rejects ends with a goodbye") {
  Head head;
  head.user = nullptr;
  Worker worker(head);
  Events events = worker.user->log.wait(2);
  CHECK_THAT(events[1], Contains("has left: this session was rejected"));
}

TEST_CASE("without a secret no connection leaves this machine") {
  auto transport = make_inproc_transport();
  Sessions open(*transport, options_of(Role::head, nullptr), nullptr);
  auto accept = [](const SessionPeer&, auto) { return std::make_shared<RecordingSessionUser>(); };
  for (const char* address :
       {"0.0.0.0:0", "10.0.0.1:0", "node7:0", "[::]:0", "127.example.org:0"}) {
    auto listener = open.listen(address, accept);
    REQUIRE_FALSE(listener.ok());
    CHECK_THAT(listener.error().message, StartsWith(address) && Contains("--secret-file"));
    CHECK_FALSE(open.connect(address, std::make_shared<RecordingSessionUser>()).ok());
  }
  for (const char* address : {"127.0.0.1:0", "[::1]:0", "localhost:0", "127.1.2.3:0"})
    CHECK(open.listen(address, accept).ok());
  Sessions closed(*transport, options_of(Role::head), nullptr);
  CHECK(closed.listen("0.0.0.0:0", accept).ok());
  CHECK_FALSE(closed.listen("nonsense", accept).ok());
}

TEST_CASE("destroying the sessions ends them and notifies the peers") {
  Head head;
  auto worker = std::make_unique<Worker>(head);
  worker->user->log.wait(1);
  auto user = worker->user;
  worker.reset();
  CHECK_THAT(user->log.wait(2)[1], StartsWith("ended: "));
  CHECK_THAT(head.user->log.wait(2)[1], Contains("its process ends all sessions"));
}

TEST_CASE("a put is sealed over the link of the session") {
  Head head;
  Worker worker(head);
  head.user->log.wait(1);
  worker.user->log.wait(1);
  std::string text = "weights", sent = text + std::string(kBulkSealBytes, '\0'),
              got(sent.size(), '\0');
  Log log;
  head.link->link()->post_receive(5, {got.data(), got.size()}, [&](Result<size_t> size) {
    log.add(size.ok() && head.link->bulk().open(5, got.data(), *size) ? got.substr(0, text.size())
                                                                      : "?");
  });
  worker.link->bulk().seal(5, sent.data(), text.size());
  worker.link->link()->put(5, {sent.data(), sent.size()},
                           [&](Status status) { log.add(status.ok() ? "put" : "?"); });
  Events events = log.wait(2);
  std::sort(events.begin(), events.end());
  CHECK(events == Events{"put", "weights"});
}

TEST_CASE("the number of peers in the handshake is bounded, and places become free again") {
  SessionOptions options = quick(Role::head);
  options.handshake_ms = 3'000;
  Head head(options);
  auto transport = make_inproc_transport();
  std::vector<std::shared_ptr<RawLinkHandler>> strangers;
  std::vector<std::shared_ptr<Link>> links;
  for (int i = 0; i <= kHandshakesMax; i++) {
    strangers.push_back(std::make_shared<RawLinkHandler>());
    auto link = transport->connect(head.address(), strangers.back());
    REQUIRE(link.ok());
    links.push_back(*link);
  }
  CHECK_THAT(
      head.notes.last(1),
      Contains(
          "was rejected: 256 other connections have not proven yet that they hold the secret"));
  CHECK_THAT(strangers.back()->log.last(1), StartsWith("down: "));
  links.clear();
  Worker worker(head);
  CHECK(worker.user->log.wait(1)[0] == "opened head h1 0.1.0 41 proven");
}

}  // namespace
}  // namespace flow::cluster
