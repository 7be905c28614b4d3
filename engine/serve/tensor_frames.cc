// The encoding of protobuf: a message is a list of fields, each a tag (number << 3 | kind) with a
// variable-length integer (kind 0), or with a length and as many bytes (kind 2).
// https://protobuf.dev/programming-guides/encoding/
#include "engine/serve/tensor_frames.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kCopiedMax = 16 * 1024;  // smaller data is cheaper to copy than to send apart
constexpr size_t kDimensionsMax = 64;
constexpr uint32_t kBatch = 3, kDone = 2;                  // in FromFront, ToFront
constexpr uint32_t kId = 1, kTensors = 2;                  // in Batch and BatchDone
constexpr uint32_t kMemory = 5;                            // in both
constexpr uint32_t kRequests = 3;                          // in Batch
constexpr uint32_t kRequestId = 1, kRows = 2, kTrace = 3;  // in BatchedRequest
constexpr uint32_t kParameters = 4;                        // in BatchedRequest
constexpr uint32_t kPlace = 1, kTensorName = 2, kParameterName = 3, kKind = 4, kValue = 5,
                   kText = 6;                                             // in Parameter
constexpr uint64_t kBoolean = 1, kInteger = 2, kNumber = 3, kString = 4;  // Parameter.kind
constexpr uint32_t kError = 3, kMessage = 4, kResponses = 6;              // in BatchDone
constexpr uint32_t kResponseParameters = 1;                               // in Response
constexpr uint32_t kName = 1, kType = 2, kShape = 3, kData = 4;           // in Tensor
constexpr uint32_t kOffset = 5, kSize = 6, kIsShared = 7;                 // in Tensor
constexpr uint64_t kAlignment = 64;       // of a tensor in shared memory
constexpr size_t kMessageMax = 8 * 1024;  // bytes of an error's text
constexpr uint64_t kServiceFailed = 1, kRequestWrong = 2;

// ---- Writing

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}

void put_length(std::string& out, uint32_t field, uint64_t length) {
  put_varint(out, field << 3 | 2);
  put_varint(out, length);
}

void put_text(std::string& out, uint32_t field, std::string_view text) {
  put_length(out, field, text.size());
  out += text;
}

/// Collects pieces: short texts are joined to one.
class PieceWriter {
 public:
  void add(std::string_view text) {
    text_ += text;
    size_ += text.size();
  }
  void add(const Bytes& data) {
    if (data->size() <= kCopiedMax) return add(*data);
    size_ += data->size();
    cut();
    pieces_.push_back(data);
  }
  /// The frame: its length, `head`, and what was added. The frame is the message `field` of its
  /// `oneof`.
  FramePieces take(uint32_t field, std::string_view head) {
    std::string begin(sizeof(uint32_t), 0);
    put_length(begin, field, head.size() + size_);
    begin += head;
    auto length = static_cast<uint32_t>(begin.size() - sizeof(uint32_t) + size_);
    std::memcpy(begin.data(), &length, sizeof length);
    if (pieces_.empty()) {
      text_.insert(0, begin);
      cut();
      return std::move(pieces_);
    }
    cut();
    FramePieces all{std::make_shared<const std::string>(std::move(begin))};
    all.insert(all.end(), pieces_.begin(), pieces_.end());
    return all;
  }

 private:
  void cut() {
    if (!text_.empty()) pieces_.push_back(std::make_shared<const std::string>(std::move(text_)));
    text_.clear();
  }

  FramePieces pieces_;
  std::string text_;  // after the pieces
  uint64_t size_ = 0;
};

/// Places tensors in shared memory, one after the other.
class MemoryWriter {
 public:
  explicit MemoryWriter(const TensorMemory& memory) : memory_(memory) {}
  /// Returns the offset of the next tensor, whose parts are added then.
  uint64_t begin() { return at_ = aligned(at_); }
  void add(std::string_view bytes) {
    FLOW_CHECK(bytes.size() <= memory_.size - at_);
    if (!bytes.empty()) std::memcpy(memory_.data + at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  static uint64_t aligned(uint64_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  const TensorMemory memory_;
  uint64_t at_ = 0;
};

void put_tensor(PieceWriter& writer, std::optional<MemoryWriter>& memory, const std::string& name,
                const std::vector<const Tensors*>& parts) {
  const InferTensor& first = parts.front()->at(name);
  std::vector<int64_t> shape = first.shape;
  uint64_t size = 0;
  if (parts.size() > 1) shape.front() = 0;
  for (const Tensors* part : parts) {
    const Tensor& tensor = part->at(name);
    if (parts.size() > 1) shape.front() += tensor.shape.front();
    size += tensor.data->size();
  }
  std::string dimensions, head, message;
  for (int64_t extent : shape) put_varint(dimensions, static_cast<uint64_t>(extent));
  put_text(head, kName, name);
  put_text(head, kType, element_type(first));
  put_text(head, kShape, dimensions);
  if (memory) {
    put_number(head, kOffset, memory->begin());
    put_number(head, kSize, size);
    put_number(head, kIsShared, 1);
    put_text(message, kTensors, head);
    for (const Tensors* part : parts) memory->add(*part->at(name).data);
    return writer.add(message);
  }
  put_length(head, kData, size);
  put_length(message, kTensors, head.size() + size);
  writer.add(message);
  writer.add(head);
  for (const Tensors* part : parts) writer.add(part->at(name).data);
}

void put_tensors(PieceWriter& writer, std::string& head, const std::vector<const Tensors*>& parts,
                 const std::optional<TensorMemory>& memory) {
  std::optional<MemoryWriter> place;
  if (memory) {
    place.emplace(*memory);
    put_number(head, kMemory, memory->id);
  }
  for (const auto& [name, tensor] : *parts.front()) put_tensor(writer, place, name, parts);
}

void put_parameter(std::string& out, uint32_t field, const Parameter& parameter) {
  std::string message;
  auto put_value = [&](uint64_t kind, uint64_t value) {
    put_number(message, kKind, kind);
    put_number(message, kValue, value);
  };
  put_number(message, kPlace, static_cast<uint64_t>(parameter.place));
  put_text(message, kTensorName, parameter.tensor);
  put_text(message, kParameterName, parameter.name);
  switch (parameter.value.kind()) {
    case Value::Kind::boolean:
      put_value(kBoolean, parameter.value.as_boolean() ? 1 : 0);
      break;
    case Value::Kind::integer:
      put_value(kInteger, static_cast<uint64_t>(parameter.value.as_integer()));
      break;
    case Value::Kind::number:
      put_value(kNumber, std::bit_cast<uint64_t>(parameter.value.as_number()));
      break;
    default:
      put_number(message, kKind, kString);
      put_text(message, kText, parameter.value.as_string());
  }
  put_text(out, field, message);
}

void put_request(std::string& out, const BatchedRequest& request) {
  std::string message;
  if (!request.id.empty()) put_text(message, kRequestId, request.id);
  put_number(message, kRows, static_cast<uint64_t>(request.rows));
  if (!request.traceparent.empty()) put_text(message, kTrace, request.traceparent);
  for (const Parameter& each : request.parameters) put_parameter(message, kParameters, each);
  put_text(out, kRequests, message);
}

void put_response(std::string& out, const std::vector<Parameter>& parameters) {
  std::string message;
  for (const Parameter& each : parameters) put_parameter(message, kResponseParameters, each);
  put_text(out, kResponses, message);
}

// ---- Reading

/// One field of a message.
struct WireField {
  uint32_t number = 0;
  uint64_t value = 0;           // of kind 0
  std::string_view bytes = {};  // of kind 2
  bool has_bytes = false;
};

class MessageReader {
 public:
  explicit MessageReader(std::string_view rest) : rest_(rest) {}
  bool is_at_end() const { return rest_.empty(); }
  /// False if what follows is no field of these two kinds.
  bool next(WireField& field) {
    uint64_t tag = 0;
    if (!varint(tag) || tag > std::numeric_limits<uint32_t>::max()) return false;
    field = {.number = static_cast<uint32_t>(tag >> 3), .has_bytes = (tag & 7) == 2};
    if ((tag & 7) == 0) return varint(field.value);
    uint64_t length = 0;
    if (!field.has_bytes || !varint(length) || length > rest_.size()) return false;
    field.bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }
  bool varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && byte > 1) return false;  // more than 64 bits
      value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

 private:
  std::string_view rest_;
};

Error malformed(const std::string& what) {
  return {ErrorKind::internal, "malformed message: " + what};
}

bool read_shape(const WireField& field, std::vector<int64_t>& shape) {
  if (!field.has_bytes) {  // one of a list that is not packed
    shape.push_back(static_cast<int64_t>(field.value));
    return shape.size() <= kDimensionsMax;
  }
  MessageReader reader(field.bytes);
  while (!reader.is_at_end()) {
    uint64_t extent = 0;
    if (!reader.varint(extent)) return false;
    shape.push_back(static_cast<int64_t>(extent));
    if (shape.size() > kDimensionsMax) return false;
  }
  return true;
}

/// The elements of a tensor in shared memory.
struct SharedPart {
  bool is_shared = false;
  uint64_t offset = 0, size = 0;

  void read(const WireField& field) {
    if (field.number == kOffset) offset = field.value;
    if (field.number == kSize) size = field.value;
    if (field.number == kIsShared) is_shared = field.value != 0;
  }
  bool is_within(const Bytes& memory) const {
    return !(memory == nullptr) && offset <= memory->size() && size <= memory->size() - offset;
  }
};

Status read_tensor(const Bytes& frame, const Bytes& memory, std::string_view message,
                   Tensors& tensors) {
  MessageReader reader(message);
  WireField field;
  std::string name;
  InferTensor tensor;
  bool has_type = false;
  std::string_view data;
  SharedPart shared;
  while (!reader.is_at_end()) {
    if (!reader.next(field)) return malformed("a field of a tensor");
    if (field.number == kShape) {
      if (!read_shape(field, tensor.shape)) return malformed("the shape of a tensor");
      continue;
    }
    if (!field.has_bytes) {
      shared.read(field);
      continue;
    }
    if (field.number == kName) name = field.bytes;
    if (field.number == kType) has_type = set_element_type(tensor, field.bytes);
    if (field.number == kData) data = field.bytes;
  }
  if (!has_type) return malformed("the type of a tensor");
  if (shared.is_shared && !shared.is_within(memory))
    return malformed("a tensor is not within the shared memory");
  tensor.data =
      shared.is_shared ? memory.part(shared.offset, shared.size) : Bytes(data, frame.keep());
  // The peer could change the lengths of its elements after they were checked.
  if (shared.is_shared && has_bytes(tensor))
    tensor.data = std::make_shared<const std::string>(*tensor.data);
  if (!has_its_size(tensor)) return malformed("a tensor has another size than its shape says");
  if (!tensors.emplace(std::move(name), std::move(tensor)).second)
    return malformed("two tensors have the same name");
  return {};
}

/// The bytes of the one message of a frame, if it is that field of the `oneof`.
std::optional<std::string_view> message_of(const Bytes& frame, uint32_t number) {
  MessageReader reader(*frame);
  WireField field;
  bool is_it =
      reader.next(field) && field.number == number && field.has_bytes && reader.is_at_end();
  if (!is_it) return std::nullopt;
  return field.bytes;
}

/// Nil for an unknown kind.
Value parameter_value(uint64_t kind, uint64_t value, std::string_view text) {
  if (kind == kBoolean) return Value(value != 0);
  if (kind == kInteger) return Value(static_cast<int64_t>(value));
  if (kind == kNumber) return Value(std::bit_cast<double>(value));
  return kind == kString ? Value(text) : Value();
}

Status read_parameter(std::string_view message, Parameter& parameter) {
  MessageReader reader(message);
  WireField field;
  uint64_t place = 0, kind = 0, value = 0;
  std::string_view text;
  while (!reader.is_at_end()) {
    if (!reader.next(field)) return malformed("a field of a parameter");
    if (field.number == kPlace && !field.has_bytes) place = field.value;
    if (field.number == kTensorName && field.has_bytes) parameter.tensor = field.bytes;
    if (field.number == kParameterName && field.has_bytes) parameter.name = field.bytes;
    if (field.number == kKind && !field.has_bytes) kind = field.value;
    if (field.number == kValue && !field.has_bytes) value = field.value;
    if (field.number == kText && field.has_bytes) text = field.bytes;
  }
  parameter.value = parameter_value(kind, value, text);
  bool is_known = place <= static_cast<uint64_t>(Parameter::Place::output);
  if (!is_known || parameter.value.is_nil()) return malformed("the kind of a parameter");
  parameter.place = static_cast<Parameter::Place>(place);
  return {};
}

Status read_request(std::string_view message, BatchedRequest& request) {
  MessageReader reader(message);
  WireField field;
  while (!reader.is_at_end()) {
    if (!reader.next(field)) return malformed("a field of a request");
    if (field.number == kRequestId && field.has_bytes) request.id = field.bytes;
    if (field.number == kRows && !field.has_bytes) request.rows = static_cast<int64_t>(field.value);
    if (field.number == kTrace && field.has_bytes) request.traceparent = field.bytes;
    if (field.number == kParameters && field.has_bytes)
      FLOW_TRY(read_parameter(field.bytes, request.parameters.emplace_back()));
  }
  return {};
}

Status read_response(std::string_view message, std::vector<Parameter>& parameters) {
  MessageReader reader(message);
  WireField field;
  while (!reader.is_at_end()) {
    if (!reader.next(field)) return malformed("a field of a response");
    if (field.number == kResponseParameters && field.has_bytes)
      FLOW_TRY(read_parameter(field.bytes, parameters.emplace_back()));
  }
  return {};
}

struct TensorMessage {
  uint64_t id = 0, error = 0;
  Tensors tensors;
  std::string message;
};

/// Before the first tensor in it comes the id of the memory.
Result<TensorMessage> read_message(const Bytes& frame, std::string_view bytes,
                                   const MemoryLookup& lookup) {
  TensorMessage read;
  MessageReader reader(bytes);
  WireField field;
  Bytes memory;
  while (!reader.is_at_end()) {
    if (!reader.next(field)) return malformed("a field of a batch");
    if (field.number == kId && !field.has_bytes) read.id = field.value;
    if (field.number == kMemory && !field.has_bytes) {
      if (memory == nullptr && lookup) memory = lookup(field.value);
      if (memory == nullptr) return malformed("it refers to shared memory that it may not use");
    }
    if (field.number == kTensors && field.has_bytes)
      FLOW_TRY(read_tensor(frame, memory, field.bytes, read.tensors));
    if (field.number == kError && !field.has_bytes) read.error = field.value;
    if (field.number == kMessage && field.has_bytes)
      read.message = cut_text(std::string(field.bytes.substr(0, 2 * kMessageMax)), kMessageMax);
  }
  return read;
}

}  // namespace

uint64_t memory_bytes(const std::vector<const Tensors*>& parts) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : *parts.front()) {
    uint64_t size = 0;
    for (const Tensors* part : parts) size += part->at(name).data->size();
    bytes += MemoryWriter::aligned(size);
  }
  return bytes;
}

FramePieces batch_frame(uint64_t id, const std::vector<const Tensors*>& parts,
                        const std::vector<BatchedRequest>& requests,
                        const std::optional<TensorMemory>& memory) {
  PieceWriter writer;
  std::string head;
  put_number(head, kId, id);
  put_tensors(writer, head, parts, memory);
  for (const BatchedRequest& request : requests) put_request(head, request);
  return writer.take(kBatch, head);
}

FramePieces outcome_frame(uint64_t id, const Result<Tensors>& outputs,
                          const std::optional<TensorMemory>& memory,
                          const ResponseParameters& parameters) {
  PieceWriter writer;
  std::string head;
  put_number(head, kId, id);
  if (outputs.ok()) {
    put_tensors(writer, head, {&*outputs}, memory);
    for (const std::vector<Parameter>& each : parameters) put_response(head, each);
  } else {
    bool is_clients = outputs.error().kind == ErrorKind::user;
    put_number(head, kError, is_clients ? kRequestWrong : kServiceFailed);
    put_text(head, kMessage, outputs.error().message);
  }
  return writer.take(kDone, head);
}

Result<std::optional<BatchMessage>> parse_batch(const Bytes& frame, const MemoryLookup& lookup) {
  auto bytes = message_of(frame, kBatch);
  if (!bytes) return std::optional<BatchMessage>();
  auto read = read_message(frame, *bytes, lookup);
  FLOW_TRY(read);
  BatchMessage batch{read->id, std::move(read->tensors), {}};
  MessageReader reader(*bytes);
  for (WireField field; !reader.is_at_end() && reader.next(field);)
    if (field.number == kRequests && field.has_bytes)
      FLOW_TRY(read_request(field.bytes, batch.requests.emplace_back()));
  return std::optional<BatchMessage>(std::move(batch));
}

Result<std::optional<OutcomeMessage>> parse_outcome(const Bytes& frame,
                                                    const MemoryLookup& lookup) {
  auto bytes = message_of(frame, kDone);
  if (!bytes) return std::optional<OutcomeMessage>();
  auto read = read_message(frame, *bytes, lookup);
  FLOW_TRY(read);
  if (read->error == 0) {
    OutcomeMessage outcome{read->id, std::move(read->tensors)};
    MessageReader reader(*bytes);
    for (WireField field; !reader.is_at_end() && reader.next(field);)
      if (field.number == kResponses && field.has_bytes)
        FLOW_TRY(read_response(field.bytes, outcome.parameters.emplace_back()));
    return std::optional<OutcomeMessage>(std::move(outcome));
  }
  ErrorKind kind = read->error == kRequestWrong ? ErrorKind::user : ErrorKind::task;
  return std::optional<OutcomeMessage>(
      OutcomeMessage{read->id, Error{kind, std::move(read->message)}});
}

}  // namespace flow
