#include "engine/worker/gpu_discovery.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "engine/base/wait.hpp"
#include "engine/protocol/executor.pb.h"
#include "engine/protocol/frames.hpp"
#include "engine/worker/spawn.hpp"

namespace flow {

namespace {

MachineGpus none(std::string why) {
  MachineGpus machine;
  machine.problems = {why};
  machine.why_none = std::move(why);
  return machine;
}

MachineGpus machine_of(const wire::Gpus& message) {
  MachineGpus machine;
  machine.why_none = message.why_none();
  machine.problems.assign(message.problems().begin(), message.problems().end());
  for (const wire::Gpu& gpu : message.found()) machine.gpus.push_back(get_gpu(gpu));
  return machine;
}

/// Reads the child's single message. Returns false at the deadline.
bool read_reply(const ExecutorProcess& child, int64_t limit_ms, wire::FromExecutor& reply) {
  Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  FrameCutter cutter;
  char chunk[16 * 1024];
  while (wait_ready(child.wire, POLLIN, deadline)) {
    ssize_t got = ::read(child.wire, chunk, sizeof chunk);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return true;
    cutter.add({chunk, static_cast<size_t>(got)});
    std::string_view frame;
    bool broken = false;
    if (!cutter.next(frame, broken) && !broken) continue;
    if (broken || !reply.ParseFromArray(frame.data(), static_cast<int>(frame.size())))
      reply.Clear();
    return true;
  }
  return false;
}

std::vector<std::string> entries_of(std::string_view mask) {
  std::vector<std::string> entries;
  while (!mask.empty()) {
    size_t end = std::min(mask.find(','), mask.size());
    std::string_view entry = mask.substr(0, end);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    entries.emplace_back(entry);
    mask.remove_prefix(std::min(end + 1, mask.size()));
  }
  return entries;
}

bool is_number(const std::string& entry) {
  constexpr size_t kDigitsMax = 6;
  return !entry.empty() && entry.size() <= kDigitsMax &&
         entry.find_first_not_of("0123456789") == std::string::npos;
}

/// The devices that an entry names: a number may be a GPU with several instances.
std::vector<const Gpu*> named_by(const std::string& entry, const std::vector<Gpu>& all) {
  std::vector<const Gpu*> named;
  bool has_index = is_number(entry);
  bool is_uuid = entry.starts_with("GPU-") || entry.starts_with("MIG-");
  for (const Gpu& gpu : all) {
    if (has_index && gpu.index == std::stoul(entry)) named.push_back(&gpu);
    if (is_uuid && gpu.uuid.starts_with(entry)) named.push_back(&gpu);
  }
  if (is_uuid && named.size() > 1) named.clear();  // not unique
  return named;
}

}  // namespace

MachineGpus visible_gpus(MachineGpus machine, const char* mask) {
  if (mask == nullptr || machine.gpus.empty()) return machine;
  std::vector<Gpu> all = std::move(machine.gpus);
  machine.gpus.clear();
  auto is_taken = [&](const Gpu* gpu) {
    return std::find(machine.gpus.begin(), machine.gpus.end(), *gpu) != machine.gpus.end();
  };
  machine.why_none = fmt::format("{}={} hides its {}", kVisibleVariable, mask,
                                 all.size() == 1 ? "GPU" : fmt::format("{} GPUs", all.size()));
  for (const std::string& entry : entries_of(mask)) {
    std::vector<const Gpu*> named = named_by(entry, all);
    if (named.empty()) {
      bool hides = entry == "-1" || entry == "NoDevFiles";
      if (!hides)
        machine.problems.push_back(fmt::format(
            "`{}` in {} does not name exactly one GPU of this machine: it and all later entries "
            "are ignored, as CUDA does",
            entry, kVisibleVariable));
      break;
    }
    if (std::any_of(named.begin(), named.end(), is_taken)) {
      machine.problems.push_back(
          fmt::format("{} names a GPU twice, `{}`: CUDA then finds none", kVisibleVariable, entry));
      machine.gpus.clear();
      break;
    }
    for (const Gpu* gpu : named) machine.gpus.push_back(*gpu);
  }
  if (!machine.gpus.empty()) machine.why_none.clear();
  return machine;
}

MachineGpus find_gpus(const std::string& executor, int64_t limit_ms) {
  auto child = spawn_executor(executor, {"--gpus"}, {});
  if (!child.ok()) return none(child.error().message);
  wire::FromExecutor reply;
  bool is_in_time = read_reply(*child, limit_ms, reply);
  int status = end_executor(*child);
  if (!is_in_time) {
    return none(
        fmt::format("the NVIDIA driver's library did not answer within {} s: `nvidia-smi` may hang "
                    "too, and `dmesg` may show why",
                    static_cast<double>(limit_ms) / 1000));
  }
  if (reply.has_gpus())
    return visible_gpus(machine_of(reply.gpus()), std::getenv(kVisibleVariable));
  std::string how = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                        : fmt::format("exit code {}", WEXITSTATUS(status));
  return none(fmt::format("the process that asked the NVIDIA driver's library ended by {}", how));
}

}  // namespace flow
