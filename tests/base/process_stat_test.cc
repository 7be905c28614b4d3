// Lines in the format of the kernel.
#include "engine/process/process_stat.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>

using namespace flow;

namespace {

const std::string kAfterName =
    " S 41 42 43 0 -1 4194304 121 0 0 0 1 20 300 4000 20 0 5 0 7654321 23592960 1234 0 1 1 0";

}  // namespace

TEST_CASE("fields of a process are counted after its name, whatever the name contains") {
  for (const char* name : {"(sh)", "(a b)", "() S 1 2)", "(a\nb)", "()"}) {
    auto stat = parse_process_stat("99 " + std::string(name) + kAfterName);
    REQUIRE(stat);
    CHECK(stat->state == 'S');
    CHECK(stat->parent == 41);
    CHECK(stat->group == 42);
    CHECK(stat->cpu_ticks == 4321);
    CHECK(stat->start_ticks == 7654321);
    CHECK(stat->resident_pages == 1234);
  }
}

TEST_CASE("a process that ends while it is read yields nothing or its last data") {
  constexpr int kProcesses = 5000;
  std::atomic<pid_t> looked_at{::getpid()};
  std::atomic<bool> is_over{false}, is_half_told{false};
  std::thread looks([&] {
    while (!is_over) {
      auto stat = process_stat(looked_at);
      if (stat && stat->parent == 0) is_half_told = true;  // true because the parent always exists
    }
  });
  for (int i = 0; i < kProcesses; i++) {
    pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    looked_at = child;
    ::waitpid(child, nullptr, 0);
  }
  is_over = true;
  looks.join();
  CHECK_FALSE(is_half_told);
}

TEST_CASE("an invalid line yields nothing") {
  for (const char* text : {"", "99 (sh", "99 (sh)", "99 (sh) S 41 42", "99 (sh) S 41  "})
    CHECK_FALSE(parse_process_stat(text));
  CHECK_FALSE(process_stat(-1));
}

TEST_CASE("this process is its parent's child and began after the boot") {
  auto stat = process_stat(::getpid());
  REQUIRE(stat);
  CHECK(stat->parent == ::getppid());
  CHECK(stat->group == ::getpgrp());
  CHECK(stat->start_ticks > 0);
  CHECK(stat->resident_pages > 0);
}
