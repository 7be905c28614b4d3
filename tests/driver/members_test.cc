// What a head remembers of workers that come and go.
#include <catch2/catch.hpp>

#include "engine/head/membership.hpp"

using namespace flow;

namespace {

class Host final : public RemoteHost {
 public:
  void stage(std::vector<AttemptOrder>, uint64_t) override {}
  void release(uint64_t) override {}
  void meet(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId&, bool) override {}
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}
  void replicate(const core::AttemptId&, const Digest&) override {}
  void forget(const core::RunId&) override {}
  void accept_join(uint64_t) override {}
  void ack_reports(uint64_t) override {}
  void disconnect(const std::string&) override {}
};

}  // namespace

TEST_CASE("of many workers those that are lost and owe no commit are forgotten") {
  WorkerMembers members;
  members["connected"].host = std::make_shared<Host>();
  members["awaited"];
  members["reporting"].taken = 7;
  members["reporting"].durable = 6;
  members["lost"].taken = members["lost"].durable = 7;
  members["never came"];
  forget_lost(members, {"awaited"}, 6);
  CHECK(members.size() == 5);  // there is room
  forget_lost(members, {"awaited"}, 5);
  std::vector<std::string> names;
  for (const auto& [name, member] : members) names.push_back(name);
  CHECK(names == std::vector<std::string>{"awaited", "connected", "reporting"});
}
