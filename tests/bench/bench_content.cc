// Blob transfer between two processes over UCX, from folder to folder. Baselines in the same run:
// the lesser of UCX's own rate on the same transport (ucx_perftest, if installed) and SHA-256 of
// the same bytes; both of them running concurrently, because received data is digested while more
// is sent, which on few cores is slower than either alone; two threads of one process that copy and
// digest the same file, which is the limit of these cores without a network; and for encrypted
// transfers (--encrypt) the same transfer unencrypted. The folders are workers' folders in
// $FLOW_BENCH_DIR and are not synced, so an idle disk is not measured. CPU time is that of both
// processes. Usage: bench_content [MiB]   (default 256)
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <semaphore>
#include <thread>

#include "engine/base/files.hpp"
#include "engine/cluster/transfer/blob_transfer.hpp"
#include "tests/bench/floors.hpp"
#include "transports/ucx/ucx.hpp"

using namespace flow;
using namespace flow::bench;
using namespace flow::cluster;

extern "C" char** environ;

namespace {

// A virtual machine gets memory that was unused for a while from its host again, at the cost of a
// copy; repeated use avoids that. So each measurement runs this many times in a row.
constexpr int kInARow = 8;
constexpr int kRepeats = 3, kSmall = 1'000, kPerftestPuts = 500;
constexpr size_t kSmallBytes = 100'000;

/// One side: the messages of its transfer are frames of the link.
class Side final : public LinkHandler {
 public:
  void start(std::shared_ptr<Link> link, const std::string& dir) {
    TransferOptions options;
    options.store = *BlobCache::open(dir, 0);  // workers do not sync
    options.thread_pool = &thread_pool_;
    options.link = link;
    options.send = [link](std::string_view message) { link->send(std::string(message)); };
    options.peer = "the other process";
    options.seal.emplace(Key{}, Key{});  // sends encrypted what was requested encrypted
    options.encrypts = [this] { return is_sealed.load(); };
    transfer = std::make_unique<BlobTransfer>(options);
    started_.set_value();
  }
  void on_up() override { up.set_value(); }
  void on_frame(std::string_view frame) override {
    is_started_.wait();
    if (!transfer->on_message(frame)) fmt::print(stderr, "a message was refused\n");
  }
  void on_down(const Error& why) override {
    transfer->end(why);
    down.set_value();
  }
  std::unique_ptr<BlobTransfer> transfer;
  std::promise<void> up, down;
  std::atomic<bool> is_sealed{false};

 private:
  ThreadPool thread_pool_{transfer_threads(4)};
  std::promise<void> started_;
  std::shared_future<void> is_started_ = started_.get_future().share();
};

int be_far(const std::string& address, const std::string& dir) {
  auto transport = make_ucx_transport({}, true);
  if (!transport.ok()) return 4;
  auto side = std::make_shared<Side>();
  auto link = (*transport)->connect(address, side);
  if (!link.ok()) return 4;
  side->start(*link, dir);
  side->down.get_future().wait();
  return 0;
}

BlobInfo make_object(const std::string& dir, size_t size, uint64_t seed) {
  std::string bytes(size, '\0');
  for (size_t at = 0; at + 8 <= size; at += 8) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + at, &seed, sizeof seed);
  }
  BlobInfo blob{sha256(bytes), size};
  std::string path = blob_path(dir, blob.digest);
  (void)make_dirs(std::filesystem::path(path).parent_path().string());
  write_text(path, bytes);
  return blob;
}

/// Of this process and the far one.
double cpu_seconds(pid_t far) {
  double sum = 0;
  clockid_t clocks[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID};
  ::clock_getcpuclockid(far, &clocks[1]);
  for (clockid_t clock : clocks) {
    timespec now{};
    ::clock_gettime(clock, &now);
    sum += static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  }
  return sum;
}

struct Beside {
  double puts = 0, digest = 0;  // MB/s
};

/// The rates of ucx_perftest and of a digest that run concurrently; empty without ucx_perftest.
Beside beside() {
  Beside both;
  std::atomic<bool> is_over{false};
  std::thread digests([&] {
    std::string bytes(kChunkBytes, 'x');
    double began = seconds(), count = 0;
    for (; !is_over; count++) bytes[0] = sha256(bytes).hex()[0];
    both.digest = count * kChunkBytes / (seconds() - began) / 1e6;
  });
  auto figures = perftest("ucp_am_bw", kChunkBytes, 4 * kPerftestPuts);
  is_over = true;
  digests.join();
  if (figures.size() > kOverallMib) both.puts = figures[kOverallMib] * kMib;
  return both;
}

/// Seconds until all blobs have arrived; existing ones are removed first.
double fetch_seconds(Side& side, const std::string& dir, const std::vector<BlobInfo>& all) {
  for (const BlobInfo& each : all) ::unlink(blob_path(dir, each.digest).c_str());
  std::atomic<size_t> left{all.size()};
  std::promise<void> finished;
  double began = seconds();
  for (const BlobInfo& each : all) {
    side.transfer->fetch(each, [&](const Status& status) {
      if (!status.ok()) fmt::print(stderr, "{}\n", status.error().message);
      if (--left == 0) finished.set_value();
    });
  }
  finished.get_future().wait();
  return seconds() - began;
}

/// Bytes per second of one thread that reads and writes while another digests the same data.
double local_rate(const std::string& from, const std::string& to, size_t mib) {
  constexpr size_t kBuffers = 6;  // few enough to stay in a processor's cache
  std::vector<std::string> buffers(kBuffers, std::string(size_t{1} << 20, '\0'));
  std::counting_semaphore<> empty{kBuffers}, full{0};
  int in = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  int out = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool ok = in >= 0 && out >= 0;
  double began = seconds();
  std::thread digests([&] {
    Sha256 hash;
    for (size_t i = 0; i < mib; i++) {
      full.acquire();
      hash.update(buffers[i % kBuffers]);
      empty.release();
    }
    (void)hash.finish();
  });
  for (size_t i = 0; i < mib; i++) {
    empty.acquire();
    std::string& buffer = buffers[i % kBuffers];
    ok = ok && ::read(in, buffer.data(), buffer.size()) == static_cast<ssize_t>(buffer.size()) &&
         write_all(out, buffer);
    full.release();
  }
  digests.join();
  double took = seconds() - began;
  for (int file : {in, out}) ::close(file);
  ::unlink(to.c_str());
  return ok ? static_cast<double>(mib << 20) / took : 0;
}

/// The best of several rounds in turns, because other work on the machine slows all of them.
class Best {
 public:
  explicit Best(std::function<double()> measure) : measure_(std::move(measure)) {}
  void in_a_row(int count) {
    for (int i = 0; i < count; i++) best_ = std::max(best_, measure_());
  }
  double operator*() const { return best_; }

 private:
  std::function<double()> measure_;
  double best_ = 0;
};

double puts_rate() {
  auto figures = perftest("ucp_am_bw", kChunkBytes, kPerftestPuts);
  return figures.size() > kOverallMib ? figures[kOverallMib] * kMib : 0;
}

/// New ones each time: ext4 creates files slowly for a while after many were removed.
std::vector<BlobInfo> make_small(const std::string& dir, uint64_t& seed) {
  std::vector<BlobInfo> small;
  for (int i = 0; i < kSmall; i++) small.push_back(make_object(dir, kSmallBytes, ++seed));
  return small;
}

/// Prints MB/s for all measurements, and chunks per second for small blobs.
void measure(Side& near, pid_t far, const std::string& from, const std::string& to, size_t mib) {
  std::vector<BlobInfo> large{make_object(from, mib << 20, 1)};
  std::string large_path = blob_path(from, large[0].digest);
  auto bytes = static_cast<double>(mib << 20);
  double cpu_s_gb = 1e9;
  uint64_t seed = 1;
  Best rate([&] {
    double cpu = cpu_seconds(far), took = fetch_seconds(near, to, large);
    cpu_s_gb = std::min(cpu_s_gb, (cpu_seconds(far) - cpu) / bytes * 1e9);
    return bytes / took / 1e6;
  });
  Best sealed_rate([&] {
    near.is_sealed = true;
    double took = fetch_seconds(near, to, large);
    near.is_sealed = false;
    return bytes / took / 1e6;
  });
  Best small_rate([&] {
    std::vector<BlobInfo> small = make_small(from, seed);
    ::sync();  // so that no pending writes run during the measurement
    double rate = kSmall / fetch_seconds(near, to, small);
    for (const BlobInfo& each : small)
      for (const std::string& dir : {from, to}) ::unlink(blob_path(dir, each.digest).c_str());
    return rate;
  });
  Best local([&] { return local_rate(large_path, to + "/copy", mib) / 1e6; });
  Best digest([] { return digest_rate(kChunkBytes) / 1e6; });
  Best puts(puts_rate);
  Best lesser([] {
    Beside both = beside();
    return std::min(both.puts, both.digest);
  });
  for (int repeat = 0; repeat < kRepeats; repeat++) {
    for (Best* each : {&rate, &digest, &puts, &lesser, &local, &sealed_rate})
      each->in_a_row(kInARow);
    small_rate.in_a_row(1);
  }
  bool is_digest = *puts == 0 || *digest < *puts;
  figure("content_mb_s", *rate, is_digest ? "sha256" : "ucx_perftest", is_digest ? *digest : *puts);
  if (*puts > 0)
    figure("content_mb_s", *rate, is_digest ? "ucx_perftest" : "sha256",
           is_digest ? *puts : *digest);
  if (*lesser > 0) figure("content_mb_s", *rate, "the_lesser_at_once", *lesser);
  figure("content_mb_s", *rate, "copy_and_digest", *local);
  figure("content_cpu_s_gb", cpu_s_gb, "sha256", 1e3 / *digest);
  figure("sealed_content_mb_s", *sealed_rate, "content", *rate);
  figure("small_pieces_s", *small_rate, "sha256", *digest * 1e6 / kSmallBytes);
  if (*puts == 0) fmt::print("# ucx_perftest is not installed (ucx-utils)\n");
}

int run(const std::string& program, size_t mib) {
  auto transport = make_ucx_transport({}, true);
  if (!transport.ok()) {
    fmt::print(stderr, "skipped: {}\n", transport.error().message);
    return 0;
  }
  Folder from, to;
  auto near = std::make_shared<Side>();
  auto listener = (*transport)->listen("127.0.0.1:0", [&](std::shared_ptr<Link> link) {
    near->start(std::move(link), to.path());
    return near;
  });
  if (!listener.ok()) return 1;
  std::string self = program, mark = "--far", place = (*listener)->address(), dir = from.path();
  char* argv[] = {self.data(), mark.data(), place.data(), dir.data(), nullptr};
  pid_t pid = 0;
  if (::posix_spawn(&pid, self.c_str(), nullptr, nullptr, argv, environ) != 0) return 1;
  near->up.get_future().wait();
  measure(*near, pid, from.path(), to.path(), mib);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  near->down.get_future().wait();
  near->transfer.reset();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 4 && std::string(arguments[1]) == "--far") return be_far(arguments[2], arguments[3]);
  size_t mib = count > 1 ? static_cast<size_t>(std::max(1, std::atoi(arguments[1]))) : 256;
  return run(arguments[0], mib);
}
