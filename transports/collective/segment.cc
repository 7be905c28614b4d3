#include "transports/collective/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace flow::collective {
namespace {

constexpr uint64_t kMagic = 0x31676e6167776c66;  // "flwgang1"
constexpr size_t kRoundsBegin = 4096, kRoundsEnd = kRoundsBegin + 4 * kRoundBytes;
static_assert(sizeof(Control) <= kRoundsBegin);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// Untouched pages take no memory, and there is a pipe to every rank.
size_t pipe_bytes_of(int ranks) { return ranks <= 64 ? size_t{128} << 10 : size_t{16} << 10; }

size_t pipe_stride(size_t bytes) { return 2 * kLine + bytes; }

size_t size_of(int ranks) {
  return kRoundsEnd +
         static_cast<size_t>(kChannelKinds * ranks) * pipe_stride(pipe_bytes_of(ranks));
}

Error failure(const std::string& what) {
  return environment_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(pipe_bytes_, other.pipe_bytes_);
  std::swap(ranks_, other.ranks_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status Segment::map(int ranks) {
  ranks_ = ranks;
  size_ = size_of(ranks);
  pipe_bytes_ = pipe_bytes_of(ranks);
  void* mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) return failure("cannot map the shared memory of a gang");
  data_ = static_cast<char*>(mapped);
  return {};
}

Result<Segment> Segment::make(const Digest& gang, int rank, int ranks) {
  Segment segment;
  segment.descriptor_ = ::memfd_create("flow-gang", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.descriptor_ < 0) return failure("cannot create the shared memory of a gang");
  if (::ftruncate(segment.descriptor_, static_cast<off_t>(size_of(ranks))) != 0)
    return failure("cannot create the shared memory of a gang");
  // Truncating it would crash every process that has it mapped.
  ::fcntl(segment.descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  FLOW_TRY(segment.map(ranks));
  auto* control = new (segment.data_) Control;
  std::memcpy(control->gang, gang.bytes.data(), gang.bytes.size());
  control->rank = rank;
  control->ranks = ranks;
  control->magic = kMagic;
  return segment;
}

Result<Segment> Segment::open(int pid, int descriptor, const Digest& gang, int rank, int ranks) {
  Segment segment;
  std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  segment.descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (segment.descriptor_ < 0)
    return failure(fmt::format("cannot open the shared memory of rank {}, process {} on this node",
                               rank, pid));
  off_t size = ::lseek(segment.descriptor_, 0, SEEK_END);
  if (size != static_cast<off_t>(size_of(ranks)))
    return environment_error(fmt::format("{} is not the shared memory of rank {}", path, rank));
  FLOW_TRY(segment.map(ranks));
  const Control& control = segment.control();
  if (control.magic != kMagic || control.rank != rank || control.ranks != ranks ||
      std::memcmp(control.gang, gang.bytes.data(), gang.bytes.size()) != 0)
    return environment_error(
        fmt::format("{} is not the shared memory of rank {} of this gang", path, rank));
  return segment;
}

char* Segment::input_buffer(uint64_t round) const {
  return data_ + kRoundsBegin + (round % 2) * kRoundBytes;
}

char* Segment::output_buffer(uint64_t round) const {
  return data_ + kRoundsBegin + (2 + round % 2) * kRoundBytes;
}

ShmPipe& Segment::pipe(ChannelKind channel, int to_rank) const {
  size_t index = static_cast<size_t>(static_cast<int>(channel) * ranks_ + to_rank);
  return *reinterpret_cast<ShmPipe*>(data_ + kRoundsEnd + index * pipe_stride(pipe_bytes_));
}

}  // namespace flow::collective
