#include "engine/executor/adoption.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>

#include "engine/base/clock.hpp"
#include "engine/base/descriptor_message.hpp"
#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/process/process_stat.hpp"

namespace flow {

namespace {

constexpr int64_t kDescriptorMs = 5'000;  // for the first byte of a worker that has connected

/// Waits until the descriptor can be read.
bool is_readable_by(int descriptor, int64_t until_us) {
  while (true) {
    int64_t left_us = until_us - monotonic_us();
    if (left_us <= 0) return false;
    pollfd waited{descriptor, POLLIN, 0};
    constexpr int64_t kStepMs = 3'600'000;
    int ready =
        ::poll(&waited, 1, static_cast<int>(std::min<int64_t>(left_us / 1000 + 1, kStepMs)));
    if (ready > 0) return true;
  }
}

/// The descriptor that comes with the first byte; -1 if there is none.
int receive_descriptor(int connection) {
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  DescriptorMessage control;
  control.prepare(message);
  if (::recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  std::deque<int> descriptors;
  DescriptorMessage::take(message, descriptors);
  if (descriptors.empty()) return -1;
  for (size_t i = 1; i < descriptors.size(); i++) ::close(descriptors[i]);
  return descriptors.front();
}

void show_streams_at(int descriptor) {
  ::dup2(descriptor, STDOUT_FILENO);
  ::dup2(descriptor, STDERR_FILENO);
  ::close(descriptor);
}

}  // namespace

ReplicaRecord own_replica_record(const std::string& slot_mark) {
  ReplicaRecord record;
  record.boot = boot_id();
  record.pid = ::getpid();
  auto stat = process_stat(record.pid);
  if (stat) record.start_ticks = stat->start_ticks;
  record.slot = slot_mark.substr(slot_mark.find(':') + 1);
  return record;
}

Result<std::unique_ptr<Adoption>> Adoption::open(const std::string& state_dir,
                                                 const ReplicaRecord& record) {
  auto listener = listen_unix(replica_socket_path(record.front, record.pid));
  FLOW_TRY(listener);
  std::unique_ptr<Adoption> adoption(new Adoption(state_dir, record.pid, *listener));
  FLOW_TRY(
      write_file_atomic(replica_record_path(state_dir, record.pid), encode_replica_record(record)));
  return adoption;
}

void Adoption::update(const ReplicaRecord& record) const {
  (void)write_file_atomic(replica_record_path(state_dir_, pid_), encode_replica_record(record));
}

Adoption::~Adoption() {
  remove_replica_record(state_dir_, pid_);
  if (listener_ >= 0) ::close(listener_);
}

int Adoption::await(int64_t lease_ms) {
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null >= 0) show_streams_at(null);  // nobody reads the pipe of the worker that is gone
  int64_t until_us = monotonic_us() + lease_ms * 1000;
  while (is_readable_by(listener_, until_us)) {
    int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    bool has_byte = peer_of(connection) != 0 &&
                    is_readable_by(connection, monotonic_us() + kDescriptorMs * 1000);
    int streams = has_byte ? receive_descriptor(connection) : -1;
    if (streams >= 0) {
      show_streams_at(streams);
      return connection;
    }
    ::close(connection);
  }
  ::close(listener_);
  listener_ = -1;
  return -1;
}

}  // namespace flow
