#include "engine/protocol/replica_record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/files.hpp"
#include "engine/base/ids.hpp"
#include "engine/process/process_stat.hpp"
#include "engine/protocol/record_words.hpp"

namespace flow {

Digest options_of(const wire::Start& start) {
  wire::Start options;
  options.set_task_name(start.task_name());
  options.set_service(start.service());
  options.set_port(start.port());
  options.set_batch_max(start.batch_max());
  options.set_batch_wait_us(start.batch_wait_us());
  options.set_request_timeout_ms(start.request_timeout_ms());
  options.set_memory_bytes(start.memory_bytes());
  return sha256(options.SerializeAsString());
}

std::string encode_replica_record(const ReplicaRecord& record) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {}\n", record.boot, record.start_ticks, record.pid,
                     record.slot, record.run, record.unit, record.key.hex(), record.options.hex(),
                     record.gpus.empty() ? "-" : fmt::format("{}", fmt::join(record.gpus, ",")),
                     record.front);
}

std::optional<ReplicaRecord> parse_replica_record(std::string_view text) {
  size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;  // the writer died while writing
  std::string_view line = text.substr(0, end);
  ReplicaRecord record;
  record.boot = next_word(line);
  bool has_numbers = read_number(next_word(line), record.start_ticks) &&
                     read_number(next_word(line), record.pid) && record.pid > 1;
  record.slot = next_word(line);
  record.run = next_word(line);
  has_numbers = has_numbers && read_number(next_word(line), record.unit);
  bool has_key = Digest::parse_hex(next_word(line), record.key) &&
                 Digest::parse_hex(next_word(line), record.options);
  std::string_view gpus = next_word(line);
  while (!gpus.empty() && gpus != "-") {
    size_t comma = std::min(gpus.find(','), gpus.size());
    record.gpus.emplace_back(gpus.substr(0, comma));
    gpus.remove_prefix(std::min(comma + 1, gpus.size()));
  }
  record.front = line;
  bool ok = has_numbers && has_key && is_plain(record.boot) && is_plain(record.slot) &&
            is_plain(record.run) && record.front.starts_with('/');
  if (!ok) return std::nullopt;
  return record;
}

bool is_alive(const ReplicaRecord& record) {
  auto stat = process_stat(record.pid);
  return record.boot == boot_id() && stat && stat->state != 'Z' &&
         stat->start_ticks == record.start_ticks;
}

std::string replica_record_path(const std::string& state_dir, pid_t executor) {
  return fmt::format("{}/scratch/slots/{}{}", state_dir, executor, kReplicaSuffix);
}

std::string replica_socket_path(const std::string& front, pid_t executor) {
  return fmt::format("{}/replica-{}.sock", front, executor);
}

void remove_replica_record(const std::string& state_dir, pid_t executor) {
  std::string path = replica_record_path(state_dir, executor);
  auto text = read_file(path, kRecordMax);
  if (!text.ok()) return;
  auto record = parse_replica_record(*text);
  if (record && record->pid == executor)
    ::unlink(replica_socket_path(record->front, executor).c_str());
  ::unlink(path.c_str());
}

}  // namespace flow
