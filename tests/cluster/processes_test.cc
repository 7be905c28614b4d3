// A worker in a process of its own, over UCX, that is stopped, killed, or has another secret.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "engine/base/files.hpp"
#include "engine/cluster/sessions.hpp"
#include "tests/cluster/log.hpp"
#include "transports/ucx/ucx.hpp"

#if FLOW_TEST_UCX

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

/// The program `session_peer`, killed at the end.
class Process {
 public:
  Process(const std::string& address, const std::string& secret_file) {
    std::string program = FLOW_TEST_PEER, place = address, file = secret_file;
    char* argv[] = {program.data(), place.data(), file.data(), nullptr};
    REQUIRE(::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, argv, environ) == 0);
  }
  ~Process() {
    if (pid_ != 0) signal(SIGKILL), exit_code();
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// Returns once all its threads stand still.
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  /// Once it has ended; what ended it below 0.
  int exit_code() {
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

/// On a busy machine a process that is not stopped may say nothing for some time.
constexpr int64_t kNeverMs = 60'000, kSoonMs = 1'500;

struct Head {
  explicit Head(int64_t suspect_after_ms = kNeverMs) {
    std::string name = std::filesystem::temp_directory_path() / "flow-session-XXXXXX";
    folder = ::mkdtemp(name.data());
    auto made = make_ucx_transport({}, true);
    REQUIRE(made.ok());
    transport = std::move(*made);
    auto secret = read_or_make_secret(secret_file());
    REQUIRE(secret.ok());
    SessionOptions options = options_of(Role::head, std::make_shared<const Secret>(*secret));
    options.schema = 0;
    options.heartbeat_ms = 100;
    options.suspect_after_ms = suspect_after_ms;
    options.lost_after_ms = 2 * suspect_after_ms;
    sessions.emplace(*transport, options, [this](std::string note) { notes.add(note); });
    auto opened = sessions->listen("127.0.0.1:0", [this](const Peer&, auto session) {
      link = session;
      return user;
    });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
  }
  ~Head() {
    listener.reset();
    sessions.reset();
    link.reset();
    transport.reset();
    std::filesystem::remove_all(folder);
  }
  std::string secret_file() const { return folder + "/secret"; }
  std::string address() const { return listener->address(); }

  std::string folder;
  Log notes;
  std::shared_ptr<User> user = std::make_shared<User>();
  std::shared_ptr<SessionLink> link;
  std::unique_ptr<Transport> transport;
  std::optional<Sessions> sessions;
  std::unique_ptr<Listener> listener;
};

TEST_CASE("messages of all sizes go to another process and back, and a goodbye ends it") {
  Head head;
  Process worker(head.address(), head.secret_file());
  CHECK(head.user->log.last(1) == "opened worker w1 0.1.0 0 proven");
  News expected = {"opened worker w1 0.1.0 0 proven"};
  for (size_t size : {size_t{0}, size_t{1}, size_t{5'000}, size_t{300'000}, kMessageBytesMax}) {
    std::string message(size, 'm');
    REQUIRE(head.link->send(message).ok());
    expected.push_back("message " + message);
  }
  CHECK((head.user->log.wait(6) == expected));
  head.link->end("all is done");
  CHECK(worker.exit_code() == 10 + static_cast<int>(EndKind::left));
}

TEST_CASE("a process that is stopped is suspect, and well when it goes on") {
  Head head(kSoonMs);
  Process worker(head.address(), head.secret_file());
  head.user->log.wait(1);
  worker.stop();
  CHECK_THAT(head.user->log.last(2), StartsWith("suspected: nothing was heard from node `w1` at "));
  worker.signal(SIGCONT);
  CHECK(head.user->log.last(3) == "heard again");
  REQUIRE(head.link->send("there?").ok());
  CHECK(head.user->log.last(4) == "message there?");
}

TEST_CASE("a process that stays stopped is lost, idle or with messages on the way") {
  bool is_busy = GENERATE(false, true);
  Head head(kSoonMs);
  Process worker(head.address(), head.secret_file());
  head.user->log.wait(1);
  worker.stop();
  for (int i = 0; is_busy && i < 1'000; i++) REQUIRE(head.link->send(std::string(2'000, 'x')).ok());
  News news = head.user->log.wait(3);
  REQUIRE(news.size() == 3);
  CHECK_THAT(news[1], StartsWith("suspected: "));
  REQUIRE_THAT(news[2], StartsWith("lost: nothing was heard from node `w1` at ") &&
                            Contains("it is stopped, its machine is gone"));
  // What it finds when it goes on: a session that is over.
  worker.signal(SIGCONT);
  int code = worker.exit_code();
  CHECK((code == 10 + static_cast<int>(EndKind::cut) ||
         code == 10 + static_cast<int>(EndKind::lost)));
}

TEST_CASE("a process that is killed is told as cut") {
  Head head;
  Process worker(head.address(), head.secret_file());
  head.user->log.wait(1);
  worker.signal(SIGKILL);
  CHECK_THAT(head.user->log.last(2),
             StartsWith("cut: the link to node `w1` at ") && Contains("without a goodbye"));
}

TEST_CASE("a process with another secret is refused on both sides") {
  Head head;
  std::string other = head.folder + "/other";
  REQUIRE(read_or_make_secret(other).ok());
  Process worker(head.address(), other);
  CHECK_THAT(head.notes.last(1), StartsWith("no session with 127.0.0.1:") &&
                                     Contains("did not prove that it knows the cluster's secret"));
  CHECK(worker.exit_code() == 10 + static_cast<int>(EndKind::refused));
}

}  // namespace
}  // namespace flow::cluster

#endif
