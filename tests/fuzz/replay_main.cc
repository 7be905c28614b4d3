// Runs a fuzz target without a fuzzer: every seed of a folder, then pseudo-random mutations of
// them. usage: fuzz_NAME CORPUS [MUTATIONS [SEED]]. After a crash the input is in ./crash-input.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kInputMax = 64 * 1024;
std::string current;  // the current input of the target

void run(std::string input) {
  current = std::move(input);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
}

void save_input(int signal) {
  int file = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool saved = file >= 0 && write(file, current.data(), current.size()) >= 0;
  const char text[] = "fuzz: this input fails; it is in ./crash-input\n";
  if (saved && write(2, text, sizeof text - 1) < 0) _exit(1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::vector<std::string> read_seeds(const char* folder) {
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::is_directory(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, uint64_t seed) : seeds_(seeds), random_(seed) {}

  std::string next() {
    std::string input = any_seed();
    for (size_t steps = 1 + below(4); steps > 0; steps--) mutate(input);
    if (input.size() > kInputMax) input.resize(kInputMax);
    return input;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& any_seed() { return seeds_[below(seeds_.size())]; }

  void mutate(std::string& input) {
    constexpr uint8_t kTelling[] = {0x00, 0x01, 0x17, 0x18, 0x1b, 0x7f, 0x80, 0xf7, 0xfb, 0xff};
    size_t at = below(input.size()), length = below(std::min<size_t>(input.size() - at, 16) + 1);
    switch (below(6)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ 1 << below(8));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(kTelling[below(std::size(kTelling))]);
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(at, length));
        break;
      case 4:
        input.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 5: {
        const std::string& other = any_seed();
        input = input.substr(0, at) + other.substr(below(other.size()));
        break;
      }
    }
  }

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS [SEED]]\n", argv[0]);
    return 2;
  }
  long mutations = argc > 2 ? std::atol(argv[2]) : 10'000;
  uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, save_input);

  std::vector<std::string> seeds = read_seeds(argv[1]);
  for (const std::string& input : seeds) run(input);
  run("");
  if (seeds.empty()) seeds.emplace_back();
  Mutator mutator(seeds, seed);
  for (long i = 0; i < mutations; i++) run(mutator.next());
  std::printf("%zu seeds and %ld mutations of seed %llu\n", seeds.size(), mutations,
              static_cast<unsigned long long>(seed));
  return 0;
}
