// What this process uses, measured as that of attempts. Times are simulated, work is real.
#include "engine/executor/usage_meter.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

using namespace flow;

namespace {

constexpr int64_t kLong = UsageMeter::kLongUs, kMark = UsageMeter::kMarkUs;
constexpr int64_t kMib = 1 << 20;

int64_t cpu_us() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1'000'000 + used.ru_utime.tv_usec +
         used.ru_stime.tv_usec;
}

void burn(int64_t us) {
  for (int64_t until = cpu_us() + us; cpu_us() < until;) {
  }
}

void touch(size_t bytes) {
  std::vector<char> memory(bytes);
  for (size_t at = 0; at < bytes; at += 4096) {
    *static_cast<volatile char*>(&memory[at]) = 1;
  }
}

void write_bytes(size_t bytes) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  std::vector<char> data(bytes, 'x');
  REQUIRE(::write(::fileno(file.get()), data.data(), bytes) == static_cast<ssize_t>(bytes));
}

/// In a child process that is waited for.
template <typename Work>
void in_child(const Work& work) {
  pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}

}  // namespace

TEST_CASE("a long attempt has the CPU time, memory and bytes of the process and its children") {
  UsageMeter meter;
  meter.begin(kMark);
  burn(30'000);
  in_child([] { burn(40'000); });
  write_bytes(3 * kMib);
  touch(static_cast<size_t>(64 * kMib));
  core::AttemptUsage used = meter.end(kMark + kLong);
  CHECK(used.cpu_us >= 70'000);
  CHECK(used.written_bytes >= 3 * kMib);
  CHECK(used.written_bytes < 4 * kMib);
  CHECK(used.read_bytes >= 0);
  CHECK(used.read_bytes < kMib);
  CHECK(used.peak_memory >= 64 * kMib);
  CHECK(used.stage_us == -1);
  CHECK(used.commit_us == -1);
}

TEST_CASE("an attempt has nothing of those before it") {
  UsageMeter meter;
  meter.begin(kMark);
  burn(50'000);
  write_bytes(3 * kMib);
  touch(static_cast<size_t>(256 * kMib));
  int64_t first = meter.end(kMark + kLong).peak_memory;
  meter.begin(3 * kLong);
  core::AttemptUsage second = meter.end(4 * kLong);
  CHECK(second.cpu_us < 50'000);
  CHECK(second.written_bytes < kMib);
  CHECK(second.peak_memory <= first - 128 * kMib);
}

TEST_CASE("a child that is larger than all before gives the peak") {
  UsageMeter meter;
  meter.begin(kMark);
  in_child([] { touch(static_cast<size_t>(512 * kMib)); });
  CHECK(meter.end(kMark + kLong).peak_memory >= 512 * kMib);
  meter.begin(3 * kLong);  // children of earlier attempts do not count
  int64_t alone = meter.end(4 * kLong).peak_memory;
  CHECK(alone > 0);
  CHECK(alone < 512 * kMib);
}

TEST_CASE("the peak is unknown if the attempt had a child smaller than an earlier one") {
  UsageMeter meter;
  meter.begin(kMark);
  in_child([] { touch(static_cast<size_t>(600 * kMib)); });
  CHECK(meter.end(kMark + kLong).peak_memory >= 600 * kMib);
  meter.begin(3 * kLong);
  in_child([] { touch(static_cast<size_t>(300 * kMib)); });
  CHECK(meter.end(4 * kLong).peak_memory == -1);
  meter.begin(6 * kLong);  // the process itself is larger than all children
  in_child([] { touch(static_cast<size_t>(kMib)); });
  touch(static_cast<size_t>(700 * kMib));
  CHECK(meter.end(7 * kLong).peak_memory >= 700 * kMib);
}

TEST_CASE("a short attempt has its CPU time, one that follows at once has nothing") {
  UsageMeter meter;
  meter.begin(kMark);
  core::AttemptUsage first = meter.end(kMark + 10);
  CHECK(first.cpu_us >= 0);
  CHECK(first.peak_memory == -1);
  CHECK(first.read_bytes == -1);
  CHECK(first.written_bytes == -1);
  meter.begin(kMark + 20);
  CHECK(meter.end(kMark + 30) == core::AttemptUsage{});
  meter.begin(2 * kMark);  // the counters are old enough to be read again
  CHECK(meter.end(2 * kMark + 10).cpu_us >= 0);
}

TEST_CASE("the time of short attempts before a longer one is not the longer one's") {
  constexpr int64_t kShortUs = kMark - 100;
  UsageMeter meter;
  meter.begin(kMark);
  int64_t before = cpu_us();
  meter.end(kMark + kShortUs);
  meter.begin(kMark + kShortUs);
  burn(20'000);
  int64_t in_process = cpu_us() - before;
  core::AttemptUsage used = meter.end(kMark + kShortUs + 20'000);
  CHECK(used.cpu_us >= 20'000 - kShortUs);
  CHECK(used.cpu_us <= in_process);
}

TEST_CASE("lines of /proc are found by their whole name, and damaged ones are unknown") {
  const char* status = "Name:\tVmHWM: 9\nVmPeak:\t  50 kB\nVmHWM:\t    12 kB\nx: y\n";
  CHECK(memory_line(status, "VmHWM:") == 12 * 1024);
  CHECK(memory_line(status, "VmRSS:") == -1);
  CHECK(memory_line("VmHWM: 99999999999999999 kB\n", "VmHWM:") == -1);
  CHECK(number_line("rchar: 5\nwchar: 70\n", "wchar:") == 70);
  CHECK(number_line("rchar: 5\nwchar:", "wchar:") == -1);
  CHECK(number_line("rchar: 99999999999999999999\n", "rchar:") == -1);
  CHECK(number_line("", "rchar:") == -1);
}
