// Run ids and random names, from getrandom; the boot's id, from the kernel.
#include "engine/base/ids.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <mutex>

#include "flow/result.hpp"

namespace flow {
namespace {

constexpr char kDigits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
constexpr uint32_t kSuffixes = 36 * 36 * 36 * 36 * 36;
constexpr int64_t kStepBackMax = 10'000;  // a clock set back by less keeps the order of ids

std::string base36(uint64_t number, size_t width) {
  std::string text(width, '0');
  for (size_t i = width; i > 0; i--, number /= 36) text[i - 1] = kDigits[number % 36];
  return text;
}

void fill_random(void* out, size_t size) {
  auto* bytes = static_cast<char*>(out);
  while (size > 0) {
    ssize_t got = getrandom(bytes, size, 0);
    if (got < 0 && errno == EINTR) continue;
    FLOW_CHECK(got > 0);
    bytes += got;
    size -= static_cast<size_t>(got);
  }
}

struct IdTime {
  int64_t time_ms;
  uint32_t suffix;
};

// The next moment of this process: within one millisecond the suffix counts up.
IdTime next_moment(int64_t time_ms) {
  static std::mutex mutex;
  static IdTime last{INT64_MIN, 0};
  auto random = static_cast<uint32_t>(random_u64() >> 32);
  std::lock_guard lock(mutex);
  bool repeated =
      last.time_ms != INT64_MIN && time_ms <= last.time_ms && time_ms > last.time_ms - kStepBackMax;
  if (!repeated) {
    last = {time_ms, random % (kSuffixes / 2)};  // leaves values for ids in the same millisecond
  } else {
    last.suffix += 1 + random % 1000;
    if (last.suffix >= kSuffixes) last = {last.time_ms + 1, random % 1000};
  }
  return last;
}

}  // namespace

const std::string& boot_id() {
  static const std::string id = [] {
    std::string text;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
    return text;
  }();
  return id;
}

uint64_t random_u64() {
  uint64_t number;
  fill_random(&number, sizeof number);
  return number;
}

std::string random_name(size_t length) {
  std::string name;
  while (name.size() < length) {
    uint64_t number = random_u64();
    for (int i = 0; i < 8 && name.size() < length; i++, number /= 36)
      name.push_back(kDigits[number % 36]);
  }
  return name;
}

std::string run_id_start(int64_t time_ms) {
  using namespace std::chrono;
  sys_time<milliseconds> at{milliseconds(time_ms)};
  sys_days day = floor<days>(at);
  year_month_day date{day};
  hh_mm_ss time{at - day};
  return fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}-{}", int{date.year()}, unsigned{date.month()},
                     unsigned{date.day()}, time.hours().count(), time.minutes().count(),
                     time.seconds().count(),
                     base36(static_cast<uint64_t>(time.subseconds().count()), 2));
}

int64_t run_id_ms(std::string_view id) {
  using namespace std::chrono;
  FLOW_CHECK(is_run_id(id));
  auto number = [&](size_t at, size_t size) {
    int value = 0;
    std::from_chars(id.data() + at, id.data() + at + size, value);
    return value;
  };
  auto digit = [&](size_t at) { return std::string_view(kDigits).find(id[at]); };
  sys_days day = year_month_day(year(number(0, 4)), month(static_cast<unsigned>(number(4, 2))),
                                std::chrono::day(static_cast<unsigned>(number(6, 2))));
  auto at = day + hours(number(9, 2)) + minutes(number(11, 2)) + seconds(number(13, 2)) +
            milliseconds(36 * digit(16) + digit(17));
  return duration_cast<milliseconds>(at.time_since_epoch()).count();
}

std::string make_run_id(int64_t time_ms) {
  IdTime moment = next_moment(time_ms);
  return run_id_start(moment.time_ms) + base36(moment.suffix, 5);
}

bool is_run_id(std::string_view text) {
  constexpr std::string_view kForm = "dddddddd-dddddd-ccccccc";
  if (text.size() != kForm.size()) return false;
  for (size_t i = 0; i < text.size(); i++) {
    bool is_digit = text[i] >= '0' && text[i] <= '9';
    bool is_letter = text[i] >= 'a' && text[i] <= 'z';
    bool fits = kForm[i] == '-' ? text[i] == '-' : is_digit || (kForm[i] == 'c' && is_letter);
    if (!fits) return false;
  }
  return true;
}

}  // namespace flow
