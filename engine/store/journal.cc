// Batches of records to bytes and back. Each batch names its schema, so one journal may hold
// batches of several schemas, and an older flow refuses a journal at the first batch that it cannot
// read.
#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include "engine/store/checksum.hpp"
#include "engine/store/flat_records.hpp"
#include "engine/store/journal_schema.hpp"
#include "engine/store/record_codec.hpp"

namespace flow {

namespace {
constexpr size_t kFirstBlockBytes = 4096;  // holds the messages of a small batch, on the stack
}  // namespace

std::string encode_records(const std::vector<core::Record>& records) {
  alignas(8) char block[kFirstBlockBytes];
  google::protobuf::ArenaOptions options;
  options.initial_block = block;
  options.initial_block_size = sizeof block;
  google::protobuf::Arena arena(options);
  auto* batch = google::protobuf::Arena::CreateMessage<journal::Batch>(&arena);
  batch->set_schema(kJournalSchema);
  batch->mutable_records()->Reserve(static_cast<int>(records.size()));
  RecordWriter writer(*batch);
  for (const core::Record& record : records) writer.add(record);
  std::string bytes = batch->SerializeAsString();
  seal(bytes);
  return bytes;
}

Result<std::vector<core::Record>> decode_records(std::string_view bytes, const FindPlan& plan,
                                                 const FindFragment& fragment) {
  std::string_view content;
  if (!unseal(bytes, content))
    return environment_error("a batch of the journal has a wrong checksum");
  google::protobuf::Arena arena;
  auto* batch = google::protobuf::Arena::CreateMessage<journal::Batch>(&arena);
  if (!batch->ParseFromArray(content.data(), static_cast<int>(content.size())))
    return environment_error("a batch of the journal can't be parsed");
  FLOW_TRY(check_schema(batch->schema(), "journal"));
  if (batch->schema() < kOneofSchema) return decode_flat_records(content, plan, fragment);
  if (batch->records_size() == 0)
    return environment_error("a batch of the journal holds no record of its schema");
  std::vector<core::Record> records(static_cast<size_t>(batch->records_size()));
  RecordReader reader(*batch, plan, fragment);
  for (size_t i = 0; i < records.size(); i++)
    FLOW_TRY(reader.read(batch->records(static_cast<int>(i)), records[i]));
  return records;
}

}  // namespace flow
