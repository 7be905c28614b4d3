// Data that decides which processes are killed: lines of /proc/PID/stat, and the records of
// executors in a state's scratch/slots.
#include "engine/environments/containers.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/process/process_stat.hpp"
#include "engine/worker/leftovers.hpp"
#include "flow/result.hpp"

namespace {

constexpr const char* kState = "k3f9x2mbek2m";

void check_records(std::string_view text) {
  if (auto record = flow::parse_program_record(text)) {
    FLOW_CHECK(record->group > 1);
    FLOW_CHECK(!record->boot.empty());
    std::string again = record->boot + " " + std::to_string(record->start_ticks) + " " +
                        std::to_string(record->group) + " /x\n";
    auto same = flow::parse_program_record(again);
    FLOW_CHECK(same && same->group == record->group && same->start_ticks == record->start_ticks);
  }
  if (auto record = flow::parse_cgroup_record(text, kState)) {
    FLOW_CHECK(record->folder.front() == '/');
    FLOW_CHECK(record->folder.find("/../") == std::string::npos);
    size_t name = record->folder.rfind('/') + 1;
    std::string prefix = flow::cgroup_name(kState, "");
    FLOW_CHECK(record->folder.compare(name, prefix.size(), prefix) == 0);
    FLOW_CHECK(record->folder.size() > name + prefix.size());
  }
  if (auto record = flow::parse_container_record(text)) {
    FLOW_CHECK(record->program.front() == '/');
    FLOW_CHECK(record->name.starts_with("flow-"));
    FLOW_CHECK(flow::encode_container_record(*record) == text);
  }
}

void check_cgroups(std::string_view text) {
  size_t middle = text.find('\0');
  if (middle == std::string_view::npos) return;
  for (const auto& [controller, group] :
       flow::parse_cgroups(text.substr(0, middle), text.substr(middle + 1))) {
    FLOW_CHECK(group.mount.starts_with('/'));
    FLOW_CHECK(group.folder.starts_with(group.mount));
    FLOW_CHECK(group.folder.find("/..", group.mount.size()) == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto stat = flow::parse_process_stat(text)) FLOW_CHECK(text.rfind(')') != text.npos);
  check_records(text);
  check_cgroups(text);
  return 0;
}
