// Ranks in separate processes, one of which dies, hangs or leaves: all others report one cause.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "tests/transports/collective/gang.hpp"

using namespace flow;

namespace {

/// Runs one act per rank on `nodes` ("one": all ranks share this node), and keeps what each
/// printed.
class Processes {
 public:
  Processes(const std::vector<std::string>& nodes, const std::vector<std::string>& acts,
            int deadline_ms = 60'000) {
    std::string name = (std::filesystem::temp_directory_path() / "flow-gang-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    for (size_t rank = 0; rank < acts.size(); rank++) {
      std::string command = std::string("exec ") + FLOW_TEST_RANK + " " + folder_ + " " +
                            std::to_string(rank) + " " + std::to_string(acts.size()) + " " +
                            nodes[rank] + " secret " + acts[rank] + " " +
                            std::to_string(deadline_ms) + " 2>&1";
      pipes_.push_back(::popen(command.c_str(), "r"));
    }
  }
  ~Processes() {
    for (FILE* pipe : pipes_)
      if (pipe != nullptr) ::pclose(pipe);
    std::filesystem::remove_all(folder_);
  }
  std::string output(size_t rank) {
    std::string text;
    char buffer[1024];
    while (size_t got = std::fread(buffer, 1, sizeof buffer, pipes_[rank]))
      text.append(buffer, got);
    ::pclose(std::exchange(pipes_[rank], nullptr));
    return text;
  }

 private:
  std::string folder_;
  std::vector<FILE*> pipes_;
};

const std::vector<std::string> kOne = {"one", "one", "one", "one"};

}  // namespace

TEST_CASE("Processes of one node compute the sum") {
  Processes gang(kOne, {"rounds", "rounds", "rounds", "rounds"});
  for (size_t rank = 0; rank < 4; rank++) CHECK(gang.output(rank) == "ok\n");
}

TEST_CASE("A rank whose process is killed ends the gang with one cause that names it") {
  auto act = GENERATE(as<std::string>(), "dies", "dies_amid");
  CAPTURE(act);
  Processes gang(kOne, {"goes_on", "goes_on", act, "goes_on"});
  std::string first = gang.output(0);
  CHECK_THAT(first, Catch::StartsWith("rank 2: its process ") && Catch::Contains("has ended; it "));
  if (act == "dies")
    CHECK_THAT(first, Catch::EndsWith("it was last in barrier #16\n"));
  else
    CHECK_THAT(first, Catch::Contains(" all_reduce #"));
  CHECK(gang.output(1) == first);
  CHECK(gang.output(3) == first);
}

TEST_CASE("A rank that leaves early ends the gang, and is named with its last call") {
  Processes gang(kOne, {"goes_on", "leaves", "goes_on", "goes_on"});
  for (size_t rank : {0, 2, 3})
    CHECK(gang.output(rank) ==
          "rank 1 has left and will not reach all_reduce #17; it was last in barrier #16\n");
}

#if FLOW_TEST_UCX
TEST_CASE("Processes of several nodes compute the sum over UCX") {
  auto nodes = GENERATE(as<std::vector<std::string>>(), std::vector<std::string>{"a", "b", "c"},
                        std::vector<std::string>{"a", "a", "b"});
  Processes gang(nodes, {"rounds", "rounds", "rounds"});
  for (size_t rank = 0; rank < 3; rank++) CHECK(gang.output(rank) == "ok\n");
}

TEST_CASE("A rank that is killed on another node ends the gang with a cause that names it") {
  auto act = GENERATE(as<std::string>(), "dies", "dies_amid");
  SECTION("one rank per node") {
    Processes gang({"a", "b", "c"}, {"goes_on", "goes_on", act});
    for (size_t rank : {0, 1}) CHECK_THAT(gang.output(rank), Catch::StartsWith("rank 2 is lost: "));
  }
  SECTION("two ranks on a node") {
    Processes gang({"a", "b", "b"}, {"goes_on", "goes_on", act});
    for (size_t rank : {0, 1})
      CHECK_THAT(gang.output(rank), Catch::StartsWith("rank 2: its process "));
  }
}
#endif
