// Frames over a socket of this process.
#include "engine/client/connection.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <thread>

#include "engine/client/blob_frames.hpp"
#include "flow/digest.hpp"

using namespace flow;

TEST_CASE("who sends nothing in time is told from who is gone") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UnixConnection link(ends[0]);
  auto other = std::make_unique<UnixConnection>(ends[1]);
  CHECK(link.receive(10).error().message == "the other side sent no whole message in time");
  uint32_t announced = 100;
  REQUIRE(::send(ends[1], &announced, sizeof announced, 0) == sizeof announced);
  CHECK(link.receive(10).error().message == "the other side sent no whole message in time");
  other.reset();
  CHECK(link.receive(60'000).error().message == "the other side is gone");
  CHECK(link.receive().error().message == "the other side is gone");
}

TEST_CASE("a client waits for a writer that answers pings as long as it takes") {
  char folder[] = "/tmp/flow-link-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  std::string path = socket_path(folder);
  auto listening = listen_at(path);
  REQUIRE(listening.ok());
  auto link = UnixConnection::connect(path);
  REQUIRE(link.ok());
  std::thread writer([&] {
    UnixConnection client(::accept(*listening, nullptr, nullptr));
    (void)client.receive();
    UnixConnection ping(::accept(*listening, nullptr, nullptr));
    auto asked = ping.receive();
    const Value* verb = asked.ok() ? asked->find("verb") : nullptr;
    bool is_ping = verb != nullptr && *verb == Value("ping");
    ping.send(Value("here"));
    client.send(Value(is_ping ? "after a ping" : "after nonsense"));
  });
  CHECK((*link)->send(Value("a long work")));
  auto answer = (*link)->receive();
  writer.join();
  REQUIRE(answer.ok());
  CHECK(*answer == Value("after a ping"));
  CHECK_FALSE((*link)->is_stalled());
  ::close(*listening);
  ::unlink(path.c_str());
  ::rmdir(folder);
}

TEST_CASE("content that is being received stops between two of its pieces") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  UnixConnection link(ends[0]);
  auto other = std::make_unique<UnixConnection>(ends[1]);
  char folder[] = "/tmp/flow-link-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  std::string bytes(size_t{5} << 20, 'x');
  Digest digest = sha256(bytes);
  std::thread sender(
      [&] { (void)send_blob(link, digest, cluster::BlobReader::of_bytes(std::move(bytes))); });
  int pieces = 0;
  Status received = receive_blob(*other, digest, folder, [&]() -> Status {
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
