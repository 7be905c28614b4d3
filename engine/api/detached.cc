// Each report is a line of JSON on a socket, which the program finds as descriptor 3.
#include "flow/detached.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "engine/api/rotated_output.hpp"
#include "engine/base/file_descriptor.hpp"
#include "flow/process.hpp"

extern char** environ;

namespace flow {

namespace {

constexpr const char* kMark = "FLOW_DETACHED=1";
constexpr const char* kMarkName = "FLOW_DETACHED";
constexpr int kReportDescriptor = 3;
constexpr size_t kReportMax = 1 << 20;  // bytes

std::string line_of(const DetachedReport& report) {
  std::vector<Value> services;
  for (const ServiceInfo& service : report.services)
    services.push_back(Value::map(
        {{Value("service"), Value(service.service)}, {Value("url"), Value(service.url)}}));
  return to_json(Value::map({{Value("type"), Value(report.type)},
                             {Value("run"), Value(report.run)},
                             {Value("name"), Value(report.name)},
                             {Value("pipeline"), Value(report.pipeline)},
                             {Value("pid"), Value(int64_t{report.pid})},
                             {Value("log"), Value(report.log)},
                             {Value("services"), Value::list(std::move(services))},
                             {Value("text"), Value(report.text)},
                             {Value("exit_code"), Value(int64_t{report.exit_code})}})) +
         "\n";
}

std::string text_in(const Value& from, const char* name) {
  const Value* found = from.find(std::string_view(name));
  bool is_text = found != nullptr && found->kind() == Value::Kind::string;
  return is_text ? found->as_string() : "";
}

int32_t number_in(const Value& from, const char* name) {
  const Value* found = from.find(std::string_view(name));
  bool is_number = found != nullptr && found->kind() == Value::Kind::integer;
  return is_number ? static_cast<int32_t>(found->as_integer()) : 0;
}

std::optional<DetachedReport> report_of(const std::string& line) {
  auto value = from_json(line);
  if (!value.ok()) return std::nullopt;
  DetachedReport report;
  report.type = text_in(*value, "type");
  report.run = text_in(*value, "run");
  report.name = text_in(*value, "name");
  report.pipeline = text_in(*value, "pipeline");
  report.pid = number_in(*value, "pid");
  report.log = text_in(*value, "log");
  report.text = text_in(*value, "text");
  report.exit_code = number_in(*value, "exit_code");
  const Value* services = value->find("services");
  if (services == nullptr || services->kind() != Value::Kind::table) return report;
  for (const Value& each : services->as_table().list) {
    ServiceInfo& service = report.services.emplace_back();
    service.service = text_in(each, "service");
    service.url = text_in(each, "url");
  }
  return report;
}

/// In a forked process: only calls that are safe after a fork of a process with threads.
[[noreturn]] void exec_detached(int report, char* const* words, char* const* variables) {
  constexpr int kFailed = 127;
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int nowhere = ::open("/dev/null", O_WRONLY);
  if (nowhere >= 0) ::dup2(nowhere, STDOUT_FILENO);
  if (report == kReportDescriptor)
    ::fcntl(report, F_SETFD, 0);
  else
    ::dup2(report, kReportDescriptor);
  ::close_range(kReportDescriptor + 1, ~0U, 0);
  restore_open_files();
  ::execve(words[0], words, variables);
  ::_exit(kFailed);
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

// The process in between ends at once, so no process has to wait for the program. The program does
// not lead its session, so it never gets a terminal.
DetachedProgram::DetachedProgram(const std::string& program,
                                 const std::vector<std::string>& arguments) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Failed(environment_error(
        fmt::format("cannot make a socket for a background process: {}", std::strerror(errno))));
  FileDescriptor theirs(ends[1]);
  descriptor_ = ends[0];
  std::vector<std::string> words = {program}, variables;
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (char** entry = environ; *entry != nullptr; entry++) variables.emplace_back(*entry);
  variables.emplace_back(kMark);
  std::vector<char*> word_pointers = pointers_to(words);
  std::vector<char*> variable_pointers = pointers_to(variables);
  pid_t between = ::fork();
  if (between == 0) {
    ::setsid();
    pid_t child = ::fork();
    if (child == 0) exec_detached(theirs.number, word_pointers.data(), variable_pointers.data());
    ::_exit(child < 0 ? 1 : 0);
  }
  int status = 0;
  int failed = between < 0 ? errno : 0;
  while (between > 0 && ::waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  if (failed == 0 && status == 0) return;
  ::close(std::exchange(descriptor_, -1));
  throw Failed(environment_error(fmt::format("cannot start `{}` in the background: {}", program,
                                             std::strerror(failed != 0 ? failed : EAGAIN))));
}

DetachedProgram::~DetachedProgram() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<DetachedReport> DetachedProgram::next() {
  char bytes[4096];
  while (true) {
    size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return report_of(line);
    }
    ssize_t got = received_.size() < kReportMax ? ::recv(descriptor_, bytes, sizeof bytes, 0) : 0;
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    received_.append(bytes, static_cast<size_t>(got));
  }
}

std::unique_ptr<DetachedReporter> DetachedReporter::take() {
  const char* mark = std::getenv(kMarkName);
  if (mark == nullptr) return nullptr;
  ::unsetenv(kMarkName);  // tasks and the processes that they start are not detached programs
  if (::fcntl(kReportDescriptor, F_SETFD, FD_CLOEXEC) != 0) return nullptr;
  return std::unique_ptr<DetachedReporter>(new DetachedReporter(kReportDescriptor));
}

DetachedReporter::DetachedReporter(int descriptor) : descriptor_(descriptor) {}

DetachedReporter::~DetachedReporter() { ::close(descriptor_); }

void DetachedReporter::send(const DetachedReport& report) const {
  std::string line = line_of(report);
  std::string_view left = line;
  std::lock_guard lock(mutex_);
  while (!left.empty()) {
    ssize_t sent = ::send(descriptor_, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    left.remove_prefix(static_cast<size_t>(sent));
  }
}

void DetachedReporter::redirect(const std::string& log) {
  RotatedOutputOptions options{.path = log, .descriptors = {STDOUT_FILENO, STDERR_FILENO}};
  FileDescriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (input.number >= 0) ::dup2(input.number, STDIN_FILENO);
  if (Status done = RotatedOutput::redirect(options); !done.ok()) throw Failed(done.error());
  output_ = std::make_unique<RotatedOutput>(std::move(options));
}

}  // namespace flow
