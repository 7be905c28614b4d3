// Unix sockets by path.
#include "engine/base/unix_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/temporary_folder.hpp"

using namespace flow;

TEST_CASE("a Unix socket is found by a path of any length, and tells who is at its other end") {
  auto temporary = make_temporary_folder();
  REQUIRE(temporary.ok());
  const std::string& parent = **temporary;
  for (const std::string& folder : {parent, parent + "/" + std::string(150, 'x')}) {
    std::filesystem::create_directories(folder);
    std::string path = folder + "/a.sock";
    CHECK_FALSE(connect_unix(path).ok());
    {
      auto first = listen_unix(path);
      REQUIRE(first.ok());
      ::close(*first);
    }
    CHECK_FALSE(connect_unix(path).ok());
    auto listening = listen_unix(path);  // replaces the file that is left
    REQUIRE(listening.ok());
    FileDescriptor listener(*listening);
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    auto connected = connect_unix(path);
    REQUIRE(connected.ok());
    FileDescriptor client(*connected), server(::accept(listener.number, nullptr, nullptr));
    CHECK(peer_of(client.number) == ::getpid());
    CHECK(peer_of(server.number) == ::getpid());
  }
}
