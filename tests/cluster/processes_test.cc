// A worker in another process, over UCX, that is stopped, killed, or has a different secret.
#if FLOW_TEST_UCX

#include "tests/cluster/process.hpp"

namespace flow::cluster {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("messages of all sizes are echoed by another process, and a goodbye ends it") {
  PeerHead head;
  Process worker(head.address(), head.secret_file());
  CHECK(head.user->log.last(1) == "opened worker w1 0.1.0 0 proven");
  Events expected = {"opened worker w1 0.1.0 0 proven"};
  for (size_t size : {size_t{0}, size_t{1}, size_t{5'000}, size_t{300'000}, kMessageBytesMax}) {
    std::string message(size, 'm');
    REQUIRE(head.link->send(message).ok());
    expected.push_back("message " + message);
  }
  CHECK((head.user->log.wait(6) == expected));
  head.link->end("all is done");
  CHECK(worker.exit_code() == 10 + static_cast<int>(EndKind::left));
}

TEST_CASE("a stopped process is stalled, and recovers when it continues") {
  PeerHead head(kSoonMs);
  Process worker(head.address(), head.secret_file());
  head.user->log.wait(1);
  worker.stop();
  CHECK_THAT(head.user->log.last(2),
             StartsWith("suspected: nothing was received from node `w1` at "));
  worker.signal(SIGCONT);
  CHECK(head.user->log.last(3) == "heard again");
  REQUIRE(head.link->send("there?").ok());
  CHECK(head.user->log.last(4) == "message there?");
}

TEST_CASE("a process that stays stopped is lost, idle or with messages in transit") {
  bool is_busy = GENERATE(false, true);
  PeerHead head(kSoonMs);
  Process worker(head.address(), head.secret_file());
  head.user->log.wait(1);
  worker.stop();
  for (int i = 0; is_busy && i < 1'000; i++) REQUIRE(head.link->send(std::string(2'000, 'x')).ok());
  Events events = head.user->log.wait(3);
  REQUIRE(events.size() == 3);
  CHECK_THAT(events[1], StartsWith("suspected: "));
  REQUIRE_THAT(events[2], StartsWith("lost: nothing was received from node `w1` at ") &&
                              Contains("its process is stopped, its machine is down"));
  // When it continues, its session has ended.
  worker.signal(SIGCONT);
  int code = worker.exit_code();
  CHECK((code == 10 + static_cast<int>(EndKind::cut) ||
         code == 10 + static_cast<int>(EndKind::lost)));
}

TEST_CASE("a killed process is reported as disconnected") {
  PeerHead head;
  Process worker(head.address(), head.secret_file());
  head.user->log.wait(1);
  worker.signal(SIGKILL);
  CHECK_THAT(head.user->log.last(2),
             StartsWith("cut: the link to node `w1` at ") && Contains("without a goodbye"));
}

TEST_CASE("a process with a different secret is rejected on both sides") {
  PeerHead head;
  std::string other = head.folder + "/other";
  REQUIRE(read_or_make_secret(other).ok());
  Process worker(head.address(), other);
  CHECK_THAT(head.notes.last(1), StartsWith("no session with 127.0.0.1:") &&
                                     Contains("did not prove that it knows the cluster's secret"));
  CHECK(worker.exit_code() == 10 + static_cast<int>(EndKind::rejected));
}

}  // namespace
}  // namespace flow::cluster

#endif
