// Collects the data of runs and writes a report.
#include "flow/report.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/clock.hpp"
#include "engine/base/files.hpp"
#include "engine/base/size_units.hpp"
#include "engine/base/throwing.hpp"
#include "engine/base/user_name.hpp"
#include "engine/page/page_json.hpp"
#include "engine/report/report_document.hpp"
#include "engine/report/run_data.hpp"

namespace flow {

namespace {

constexpr uint32_t kUserFileMode = 0666;  // less the umask

/// Ids, each once, in the order of the selectors.
std::vector<std::string> selected_runs(const EngineOptions& options,
                                       const std::vector<std::string>& selectors) {
  if (selectors.empty()) throw Failed(user_error("a report needs a run: name one or more"));
  Reader reader(options);
  std::vector<std::string> ids;
  for (const std::string& selector : selectors) {
    std::string id = reader.show(selector).id;
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(std::move(id));
  }
  return ids;
}

/// `"host":…,"system":…` of this process.
std::string machine_fields() {
  utsname machine{};
  if (::uname(&machine) != 0) return R"("host":"","system":"")";
  return fmt::format(
      R"("host":{},"system":{})", text_to_json(machine.nodename),
      text_to_json(fmt::format("{} {} {}", machine.sysname, machine.release, machine.machine)));
}

/// `"driver":…`: the version of the NVIDIA driver that this machine has loaded, or null.
std::string driver_field() {
  constexpr uint64_t kVersionMax = 4096;
  auto text = read_file("/sys/module/nvidia/version", kVersionMax);
  if (!text.ok()) return R"("driver":null)";
  return fmt::format(R"("driver":{})", text_to_json(text->substr(0, text->find('\n'))));
}

void check_free(const ReportOptions& how) {
  std::error_code failed;
  bool is_taken = std::filesystem::symlink_status(how.target, failed).type() !=
                  std::filesystem::file_type::not_found;
  if (how.target.empty()) throw Failed(user_error("the path of the report is empty"));
  if (!is_taken || failed || how.overwrites) return;
  throw Failed(user_error(fmt::format(
      "`{}` exists already: name another path with -o, or replace it with --force", how.target)));
}

}  // namespace

std::string report_html(const EngineOptions& options, const std::vector<std::string>& selectors) {
  int64_t made_ms = now_ms();
  std::string runs;
  for (const std::string& id : selected_runs(options, selectors))
    runs += (runs.empty() ? "" : ",") + report_run_data(options, id);
  std::string data =
      fmt::format(R"({{"made":"{}","version":{},"user":{},{},{},"runs":[{}]}})",
                  format_time(made_ms), text_to_json(version()), text_to_json(own_user_name()),
                  machine_fields(), driver_field(), runs);
  return report_document(data, made_ms);
}

void write_report(const EngineOptions& options, const std::vector<std::string>& selectors,
                  const ReportOptions& how) {
  check_free(how);
  ok_or_throw(write_file_atomic(how.target, report_html(options, selectors), kUserFileMode));
}

}  // namespace flow
