#include "engine/worker/gpu_watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/protocol/executor.pb.h"
#include "engine/protocol/frames.hpp"

namespace flow {

namespace {

constexpr int64_t kAgainMs = 10'000;  // delay before a child that ended is restarted

std::string end_words(int status) {
  return WIFSIGNALED(status) ? fmt::format("by signal {}", WTERMSIG(status))
                             : fmt::format("with exit code {}", WEXITSTATUS(status));
}

/// Discards the child's output, so that its pipe does not fill up. Returns false at end of file.
bool drain(int descriptor) {
  char chunk[4096];
  ssize_t got = ::read(descriptor, chunk, sizeof chunk);
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

GpuSample get_sample(const wire::GpuSample& from) {
  GpuSample sample;
  sample.index = from.index();
  sample.uuid = from.uuid();
  if (from.has_utilization_percent()) sample.utilization_percent = from.utilization_percent();
  if (from.has_memory_used()) sample.memory_used_bytes = from.memory_used();
  if (from.has_memory()) sample.memory_bytes = from.memory();
  if (from.has_temperature_celsius()) sample.temperature_celsius = from.temperature_celsius();
  if (from.has_power_milliwatts()) sample.power_milliwatts = from.power_milliwatts();
  if (from.has_energy_millijoules()) sample.energy_millijoules = from.energy_millijoules();
  return sample;
}

GpuWatch::GpuWatch(std::string executor, const std::vector<Gpu>& gpus, OnError on_error,
                   OnNote on_note, std::shared_ptr<GpuSamples> samples)
    : executor_(std::move(executor)),
      on_error_(std::move(on_error)),
      on_note_(std::move(on_note)),
      samples_(std::move(samples)),
      quit_(::eventfd(0, EFD_CLOEXEC)) {
  for (const Gpu& gpu : gpus) uuids_.insert(gpu.uuid);
  thread_ = engine_thread([this] { loop(); });
}

GpuWatch::~GpuWatch() {
  uint64_t one = 1;
  (void)!::write(quit_, &one, sizeof one);
  thread_.join();
  ::close(quit_);
}

bool GpuWatch::wait_quit(int64_t ms) const {
  pollfd quit{quit_, POLLIN, 0};
  return ::poll(&quit, 1, static_cast<int>(ms)) > 0;
}

void GpuWatch::note(const std::string& text) {
  if (std::exchange(last_note_, text) != text) on_note_("GPU errors are not reported: " + text);
}

void GpuWatch::loop() {
  std::vector<std::string> arguments{"--watch-gpus"};
  if (samples_) arguments.push_back("--samples");
  arguments.insert(arguments.end(), uuids_.begin(), uuids_.end());
  do {
    auto child = spawn_executor(executor_, arguments, {});
    if (!child.ok()) {
      note(child.error().message);
      continue;
    }
    bool may_report_more = listen(*child);
    int status = end_executor(*child);
    if (samples_) samples_->clear();
    if (!may_report_more || wait_quit(0)) return;
    note("the process that waits for them ended " + end_words(status) + " and is restarted");
  } while (!wait_quit(kAgainMs));
}

bool GpuWatch::listen(const ExecutorProcess& child) {
  FrameCutter cutter;
  char chunk[4096];
  pollfd watched[] = {{quit_, POLLIN, 0}, {child.wire, POLLIN, 0}, {child.errors, POLLIN, 0}};
  while (true) {
    if (::poll(watched, 3, -1) < 0 && errno != EINTR) return true;
    if (watched[0].revents != 0) return false;
    if (watched[2].revents != 0 && !drain(child.errors)) watched[2].fd = -1;
    if (watched[1].revents == 0) continue;
    ssize_t got = ::read(child.wire, chunk, sizeof chunk);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return true;
    cutter.add({chunk, static_cast<size_t>(got)});
    std::string_view frame;
    bool broken = false;
    while (cutter.next(frame, broken))
      if (!on_frame(frame)) return false;
    if (broken) return true;
  }
}

bool GpuWatch::on_frame(std::string_view frame) {
  wire::FromExecutor message;
  if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) return true;
  if (message.has_unwatched()) note(message.unwatched());
  if (message.has_gpu_sample() && samples_)
    samples_->put(get_sample(message.gpu_sample()), monotonic_us());
  if (!message.has_xid() || !uuids_.contains(message.xid().uuid())) return !message.has_unwatched();
  if (auto error = gpu_error_of(message.xid().number())) on_error_(message.xid().uuid(), *error);
  return true;
}

}  // namespace flow
