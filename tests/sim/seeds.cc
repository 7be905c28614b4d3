#include "tests/sim/seeds.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>

namespace flow::sim {

namespace {

std::atomic<uint64_t> current_seed = 0;

void name_seed(int) {
  char text[] = "\nthe engine ended the process in FLOW_SIM_SEED=00000000000000000000\n";
  size_t at = sizeof text - 3;
  for (uint64_t seed = current_seed; seed > 0; seed /= 10)
    text[at--] = static_cast<char>('0' + seed % 10);
  (void)!::write(STDERR_FILENO, text, sizeof text - 1);
  std::signal(SIGABRT, SIG_DFL);
  ::raise(SIGABRT);
}

std::optional<uint64_t> number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

}  // namespace

Seeds seeds_to_play(uint64_t count, uint64_t per_seed) {
  if (auto seed = number_from("FLOW_SIM_SEED")) return {*seed, 1, true};
  count = number_from("FLOW_SIM_SEEDS").value_or(count);
  return {1, std::max<uint64_t>(1, count / per_seed), false};
}

SeedOnAbort::SeedOnAbort(uint64_t seed) {
  current_seed = seed;
  std::signal(SIGABRT, name_seed);
}

SeedOnAbort::~SeedOnAbort() { std::signal(SIGABRT, SIG_DFL); }

}  // namespace flow::sim
