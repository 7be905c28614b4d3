// Frames over a socket within this process.
#include "engine/client/connection.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <thread>

#include "engine/client/blob_frames.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/preface.hpp"
#include "flow/digest.hpp"
#include "tests/client/raw_frames.hpp"

using namespace flow;

TEST_CASE("a client of the socket is believed, and one of a session has its address") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UnixConnection here(ends[0]), other(ends[1]);
  CHECK(here.requester("ann@node1\n") == "ann@node1");
  CHECK(here.requester("team@10.0.0.7 (page)") == "team@10.0.0.7 (page)");
  CHECK(here.requester("") == own_requester());
  SessionConnection away(std::make_shared<cluster::SessionChannel>(), "10.0.0.9");
  CHECK(away.requester("ann@node1") == "ann@node1 from 10.0.0.9");
  CHECK(away.requester("x from 1.2.3.4") == "\"x from 1.2.3.4\" from 10.0.0.9");
  CHECK(away.requester("") == "unknown from 10.0.0.9");
}

TEST_CASE("a silent peer is distinguished from a disconnected one") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UnixConnection link(ends[0]);
  auto other = std::make_unique<UnixConnection>(ends[1]);
  CHECK(link.receive<ServerReply>(10).error().message ==
        "the other side sent no whole message in time");
  uint32_t announced = 100;
  REQUIRE(::send(ends[1], &announced, sizeof announced, 0) == sizeof announced);
  CHECK(link.receive<ServerReply>(10).error().message ==
        "the other side sent no whole message in time");
  other.reset();
  CHECK(link.receive<ServerReply>(60'000).error().message == "the other side is gone");
  CHECK(link.receive<ServerReply>().error().message == "the other side is gone");
}

TEST_CASE("a client waits for a writer as long as it answers pings") {
  char folder[] = "/tmp/flow-link-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  std::string path = socket_path(folder);
  auto listening = listen_at(path);
  REQUIRE(listening.ok());
  auto link = UnixConnection::connect(path);
  REQUIRE(link.ok());
  std::thread writer([&] {
    UnixConnection client(::accept(*listening, nullptr, nullptr));
    (void)client.receive<ClientRequest>();
    UnixConnection ping(::accept(*listening, nullptr, nullptr));
    auto asked = ping.receive<ClientRequest>();
    ping.send(done_reply());
    bool is_ping = asked.ok() && asked->has_ping();
    client.send(error_reply(user_error(is_ping ? "after a ping" : "after nonsense")));
  });
  ClientRequest request;
  request.mutable_collect_garbage();
  CHECK((*link)->send(request));
  auto answer = (*link)->receive<ServerReply>();
  writer.join();
  REQUIRE(answer.ok());
  CHECK(answer->error().message() == "after a ping");
  CHECK_FALSE((*link)->is_stalled());
  ::close(*listening);
  ::unlink(path.c_str());
  ::rmdir(folder);
}

TEST_CASE("receiving a blob can be stopped between two chunks") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UnixConnection link(ends[0]);
  auto other = std::make_unique<UnixConnection>(ends[1]);
  char folder[] = "/tmp/flow-link-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  std::string bytes(size_t{5} << 20, 'x');
  Digest digest = sha256(bytes);
  std::thread sender([&] {
    (void)send_blob<ServerReply>(link, digest, cluster::BlobReader::of_bytes(std::move(bytes)));
  });
  int pieces = 0;
  Status received = receive_blob<ServerReply>(*other, digest, folder, [&]() -> Status {
    if (++pieces <= 2) return {};
    return Error{ErrorKind::interrupted, "stopped"};
  });
  other->shut_down();
  sender.join();
  CHECK((!received.ok() && received.error().message == "stopped"));
  CHECK(pieces == 3);
  size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    files += entry.is_regular_file();
  CHECK(files == 0);
  std::filesystem::remove_all(folder);
}

namespace {

struct Pair {
  Pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); }
  int ends[2];
};

using Catch::Matchers::Contains;

const std::string kThisVersion = std::string("version 2 (flow ") + version() + ")";

}  // namespace

TEST_CASE("a message over the limit is not sent, and the connection stays usable") {
  Pair pair;
  UnixConnection client(pair.ends[0]), server(pair.ends[1]);
  ClientRequest request;
  request.mutable_send_signal()->set_json(std::string(kClientFrameMax, 'x'));
  CHECK_FALSE(client.send(request));
  request.mutable_ping();
  CHECK(client.send(request));
  auto received = server.receive<ClientRequest>();
  REQUIRE(received.ok());
  CHECK(received->has_ping());
}

TEST_CASE("a client of version 1 gets an error reply in its own format that names both versions") {
  Pair pair;
  UnixConnection server(pair.ends[1]);
  test::send_raw(pair.ends[0],
                 encode_value(Value::map({{"version", int64_t{1}}, {"verb", "nodes"}})));
  auto request = server.receive<ClientRequest>();
  REQUIRE_FALSE(request.ok());
  CHECK(request.error().message ==
        "the process at the other end uses version 1 of the client protocol, and this one uses " +
            kThisVersion + ": use the same build of flow for both");
  CHECK(server.is_other_version());
  auto reply = decode_value(test::receive_raw(pair.ends[0]));
  REQUIRE(reply.ok());
  CHECK(*reply->find("frame") == Value("error"));
  CHECK(*reply->find("kind") == Value(int64_t{static_cast<uint8_t>(ErrorKind::environment)}));
  CHECK(reply->find("message")->as_string() ==
        "the process at the other end uses " + kThisVersion +
            " of the client protocol, and this one uses version 1: use the same build of flow for "
            "both");
  ::close(pair.ends[0]);
}

TEST_CASE("a server of another or no version causes an error that names both versions") {
  auto [first, other] = GENERATE(
      std::pair(encode_value(Value::map({{"frame", "error"}, {"message", "another version"}})),
                std::string("version 1")),
      std::pair(encode_value(Value::map({{"version", int64_t{3}}, {"flow", "9.9"}})),
                std::string("version 3 (flow 9.9)")),
      std::pair(std::string("SSH-2.0"), std::string("another version")));
  Pair pair;
  UnixConnection client(pair.ends[0]);
  ClientRequest request;
  request.mutable_ping();
  REQUIRE(client.send(request));
  CHECK(check_preface(test::receive_raw(pair.ends[1])).ok());
  test::send_raw(pair.ends[1], first);
  auto reply = client.receive<ServerReply>();
  REQUIRE(reply.ok());
  CHECK(get_error(reply->error()).kind == ErrorKind::environment);
  CHECK(reply->error().message() == "the process at the other end uses " + other +
                                        " of the client protocol, and this one uses " +
                                        kThisVersion + ": use the same build of flow for both");
  CHECK(client.is_other_version());
  ::close(pair.ends[1]);
}

TEST_CASE("version 1 reads the preface of this version as an error") {
  auto preface = decode_value(encode_preface());
  REQUIRE(preface.ok());
  CHECK(*preface->find("frame") == Value("error"));
  CHECK_THAT(preface->find("message")->as_string(), Contains("use the same build of flow"));
  CHECK(check_preface(encode_preface()).ok());
}
