// Requests of the Open Inference Protocol. simdjson finds the fields; oip_data.cc reads the
// numbers. Of fields that the protocol does not define only the syntax is checked. simdjson gets
// large requests without their long lists of numbers. If such a request is refused, or has a list
// that is not the data of an input, it is read again with them: only then errors and their places
// are those of the whole text.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "engine/serve/json/json_outline.hpp"
#include "engine/serve/json_fault.hpp"
#include "engine/serve/json_fields.hpp"
#include "engine/serve/oip.hpp"
#include "engine/serve/oip_data.hpp"
#include "engine/serve/request_parameters.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

namespace ondemand = simdjson::ondemand;

static_assert(kBodyPadding >= simdjson::SIMDJSON_PADDING);

struct InputFields {
  std::optional<std::string> name, datatype;
  std::optional<std::vector<int64_t>> shape;
  std::string_view data;  // from its bracket on; empty: not given
  std::optional<uint64_t> binary_size;
  std::vector<Parameter> parameters;
};

struct OutputFields {
  std::optional<std::string> name;
  std::optional<bool> is_binary;
  std::vector<Parameter> parameters;
};

template <typename T>
Status set(std::optional<T>& field, Result<T> value) {
  FLOW_TRY(value);
  field = std::move(*value);
  return {};
}

/// Whether a parameter was taken: always, unless it is an error.
Result<bool> taken(const Status& status) {
  FLOW_TRY(status);
  return true;
}

Error missing(const std::string& field) { return user_error(field + " is missing"); }

std::string_view json_of(std::string_view body, std::optional<uint64_t> json_bytes) {
  return body.substr(0, json_bytes.value_or(body.size()));
}

class RequestReader {
 public:
  /// `lists` are those that `json` lacks; all must be the data of inputs.
  RequestReader(std::shared_ptr<const std::string> body, std::optional<uint64_t> json_bytes,
                std::string_view json, const std::vector<JsonOutline::List>& lists)
      : body_(std::move(body)),
        whole_(json_of(*body_, json_bytes)),
        json_(json),
        lists_(lists),
        fields_(json_),
        binary_at_(whole_.size()),
        has_json_bytes_(json_bytes.has_value()) {}

  Result<InferRequest> read(ondemand::document& document);

 private:
  Status read_body(ondemand::value value);
  Status read_input(const std::string& place, ondemand::value value);
  Status read_output(const std::string& place, ondemand::value value);
  Status add_input(const std::string& place, const InputFields& fields);
  /// Calls `take(name, value)` for each parameter of the tensor or request at `place`. The others
  /// than those for which it returns true are kept in `kept`.
  template <typename Take>
  Status read_parameters(const std::string& place, ondemand::value value, Parameter::Place kind,
                         std::vector<Parameter>& kept, const Take& take);
  /// Adds those of a tensor, whose name is known now, to the request's.
  Status add_parameters(const std::string& place, const std::string& tensor,
                        const std::vector<Parameter>& parameters);
  /// `data` begins with the bracket.
  Result<Bytes> read_data(const InputHead& input, std::string_view data);
  Result<Bytes> take_binary(const InputHead& input, uint64_t size);

  std::shared_ptr<const std::string> body_;
  std::string_view whole_;  // the JSON of the body
  std::string_view json_;   // the same without `lists_`
  const std::vector<JsonOutline::List>& lists_;
  size_t lists_read_ = 0;
  JsonFields fields_;
  size_t binary_at_;  // in the body
  bool has_json_bytes_;
  std::optional<std::string> id_;
  std::optional<bool> are_outputs_binary_;
  std::vector<OutputFields> outputs_;
  InferRequest request_;
};

template <typename Take>
Status RequestReader::read_parameters(const std::string& place, ondemand::value value,
                                      Parameter::Place kind, std::vector<Parameter>& kept,
                                      const Take& take) {
  std::string whole = place + (place.empty() ? "" : ".") + "parameters";
  auto read_one = [&](const std::string& name, ondemand::value item) -> Status {
    std::string item_place = parameter_place(place, name);
    auto is_taken = take(name, item);
    FLOW_TRY(is_taken);
    if (*is_taken) return {};
    auto read = fields_.scalar(item, item_place);
    FLOW_TRY(read);
    if (is_protocol_parameter(name)) return {};
    return add_parameter(kept, {.place = kind, .name = name, .value = std::move(*read)},
                         item_place);
  };
  return fields_.read_all(value, whole, kParametersMax, read_one);
}

Status RequestReader::add_parameters(const std::string& place, const std::string& tensor,
                                     const std::vector<Parameter>& parameters) {
  for (Parameter each : parameters) {
    each.tensor = tensor;
    FLOW_TRY(add_parameter(request_.parameters, each, parameter_place(place, each.name)));
  }
  return {};
}

Status RequestReader::read_input(const std::string& place, ondemand::value value) {
  constexpr std::array<std::string_view, 5> kKnown = {"name", "datatype", "shape", "data",
                                                      "parameters"};
  InputFields fields;
  FLOW_TRY(fields_.read(value, place, kKnown, [&](size_t index, ondemand::value field) -> Status {
    std::string name = fmt::format("{}.{}", place, kKnown[index]);
    switch (index) {
      case 0:
        return set(fields.name, fields_.text(field, name));
      case 1:
        return set(fields.datatype, fields_.text(field, name));
      case 2:
        fields.shape.emplace();
        return fields_.read_items(
            field, name, kDimensionsMax,
            [&](const std::string& item_place, ondemand::value item) -> Status {
              auto extent = fields_.count(item, item_place, kElementsMax);
              FLOW_TRY(extent);
              fields.shape->push_back(static_cast<int64_t>(*extent));
              return {};
            });
      case 3:
        if (field.type() == JsonFields::Type::array) {
          ondemand::array array = field.get_array();
          fields.data = array.raw_json();
          return {};
        }
        FLOW_TRY(fields_.check(field));
        return user_error(name + " is not an array");
      default:
        return read_parameters(
            place, field, Parameter::Place::input, fields.parameters,
            [&](std::string_view parameter, ondemand::value item) -> Result<bool> {
              if (parameter != "binary_data_size") return false;
              return taken(set(fields.binary_size,
                               fields_.count(item, name + ".binary_data_size", body_->size())));
            });
    }
  }));
  return add_input(place, fields);
}

Status RequestReader::add_input(const std::string& place, const InputFields& fields) {
  if (!fields.name) return missing(place + ".name");
  if (!fields.datatype) return missing(place + ".datatype");
  if (!fields.shape) return missing(place + ".shape");
  bool is_json = !fields.data.empty();
  if (!is_json && !fields.binary_size) return missing(place + ".data");
  if (is_json && fields.binary_size)
    return user_error(place + " has both `data` and `parameters.binary_data_size`");
  auto checked = input_head(place, *fields.name, *fields.datatype, *fields.shape);
  FLOW_TRY(checked);
  const InputHead& head = *checked;
  if (request_.inputs.contains(head.name))
    return user_error(fmt::format("two inputs are named `{}`", head.name));
  auto data = is_json ? read_data(head, fields.data) : take_binary(head, *fields.binary_size);
  FLOW_TRY(data);
  InferTensor tensor;
  tensor.datatype = head.datatype;
  tensor.dtype = head.datatype->dtype;
  tensor.shape = *fields.shape;
  tensor.data = std::move(*data);
  request_.inputs.emplace(head.name, std::move(tensor));
  return add_parameters(place, head.name, fields.parameters);
}

Result<Bytes> RequestReader::read_data(const InputHead& input, std::string_view data) {
  auto at = static_cast<size_t>(data.data() - json_.data());
  auto list = std::ranges::find(lists_, at, &JsonOutline::List::at);
  if (list == lists_.end()) return read_json_data(input, json_, data);
  lists_read_++;
  return read_json_data(input, whole_, list->list);
}

Result<Bytes> RequestReader::take_binary(const InputHead& input, uint64_t size) {
  std::string field = input.place + ".parameters.binary_data_size";
  if (!has_json_bytes_)
    return user_error(field + " needs the header field `Inference-Header-Content-Length`");
  size_t left = body_->size() - binary_at_;
  if (size > left)
    return user_error(
        fmt::format("{} is {}, but only {} bytes of the body are left for it", field, size, left));
  auto data = read_binary_data(input, Bytes(body_).part(binary_at_, size));
  binary_at_ += size;
  return data;
}

Status RequestReader::read_output(const std::string& place, ondemand::value value) {
  constexpr std::array<std::string_view, 2> kKnown = {"name", "parameters"};
  OutputFields fields;
  FLOW_TRY(fields_.read(value, place, kKnown, [&](size_t index, ondemand::value field) -> Status {
    std::string name = fmt::format("{}.{}", place, kKnown[index]);
    if (index == 0) return set(fields.name, fields_.text(field, name));
    return read_parameters(
        place, field, Parameter::Place::output, fields.parameters,
        [&](std::string_view parameter, ondemand::value item) -> Result<bool> {
          std::string item_name = fmt::format("{}.{}", name, parameter);
          if (parameter == "binary_data")
            return taken(set(fields.is_binary, fields_.boolean(item, item_name)));
          if (parameter != "classification") return false;
          FLOW_TRY(fields_.check(item));
          return user_error(item_name +
                            " is not supported: ask for the output itself, and "
                            "choose the largest of its values");
        });
  }));
  if (!fields.name) return missing(place + ".name");
  for (const OutputFields& other : outputs_)
    if (other.name == fields.name)
      return user_error(fmt::format("two outputs are named `{}`", *fields.name));
  FLOW_TRY(add_parameters(place, *fields.name, fields.parameters));
  outputs_.push_back(std::move(fields));
  return {};
}

Status RequestReader::read_body(ondemand::value value) {
  constexpr std::array<std::string_view, 4> kKnown = {"id", "inputs", "outputs", "parameters"};
  return fields_.read(
      value, "the body", kKnown, [&](size_t index, ondemand::value field) -> Status {
        switch (index) {
          case 0:
            return set(id_, fields_.text(field, "id"));
          case 1:
            return fields_.read_items(
                field, "inputs", kInputsMax,
                [&](const auto& place, auto item) { return read_input(place, item); });
          case 2:
            return fields_.read_items(
                field, "outputs", kOutputsMax,
                [&](const auto& place, auto item) { return read_output(place, item); });
          default:
            return read_parameters(
                "", field, Parameter::Place::request, request_.parameters,
                [&](std::string_view parameter, ondemand::value item) -> Result<bool> {
                  if (parameter != "binary_data_output") return false;
                  return taken(set(are_outputs_binary_,
                                   fields_.boolean(item, "parameters.binary_data_output")));
                });
        }
      });
}

Result<InferRequest> RequestReader::read(ondemand::document& document) {
  size_t last = json_.find_last_not_of(" \n\r\t");
  char first = json_[json_.find_first_not_of(" \n\r\t")];
  bool is_closed = (first != '{' || json_[last] == '}') && (first != '[' || json_[last] == ']');
  if (!is_closed) return json_fault(json_, json_.data() + last + 1, "its end is missing");
  Status status;
  if (document.is_scalar()) {
    constexpr size_t kCheckedMax = 1024;
    auto scalar = from_json(json_.substr(0, kCheckedMax));
    if (json_.size() <= kCheckedMax && !scalar.ok()) return json_fault(json_, nullptr, "");
    return user_error("the body is not an object with `inputs`");
  } else if (document.type() == JsonFields::Type::array) {
    status = fields_.check(document.get_value());
  } else {
    status = read_body(document.get_value());
  }
  FLOW_TRY(status);
  const char* rest = nullptr;
  if (document.current_location().get(rest) == simdjson::SUCCESS)
    return json_fault(json_, rest, "the JSON is followed by other text");
  if (lists_read_ != lists_.size()) return user_error("a list is not the data of an input");
  if (request_.inputs.empty()) return user_error("the body has no `inputs`");
  if (binary_at_ != body_->size())
    return user_error(
        fmt::format("{} bytes follow the data of the last input", body_->size() - binary_at_));
  if (id_ && id_->size() > kIdBytesMax)
    return user_error(fmt::format("id has more than {} bytes", kIdBytesMax));
  request_.id = id_.value_or("");
  request_.are_outputs_binary = are_outputs_binary_.value_or(false);
  for (OutputFields& output : outputs_)
    request_.outputs.push_back(
        {std::move(*output.name), output.is_binary.value_or(request_.are_outputs_binary)});
  return std::move(request_);
}

Result<InferRequest> parse(ondemand::parser& parser, const std::shared_ptr<const std::string>& body,
                           std::optional<uint64_t> json_bytes, std::string_view json,
                           const std::vector<JsonOutline::List>& lists) {
  ondemand::document document;
  bool is_begun = false;
  try {
    document = parser.iterate(
        simdjson::padded_string_view(json, json.size() + simdjson::SIMDJSON_PADDING));
    is_begun = true;
    return RequestReader(body, json_bytes, json, lists).read(document);
  } catch (const simdjson::simdjson_error& error) {
    const char* at = nullptr;
    bool is_there = is_begun && document.current_location().get(at) == simdjson::SUCCESS;
    if (!is_there) at = nullptr;
    return json_fault(json, at, simdjson::error_message(error.error()));
  }
}

Result<InferRequest> parse(ondemand::parser& parser, const std::shared_ptr<const std::string>& body,
                           std::optional<uint64_t> json_bytes) {
  constexpr size_t kOutlineMin = 1024;  // bytes; below, the whole is parsed in less time
  std::string_view json = json_of(*body, json_bytes);
  if (json.starts_with("\xef\xbb\xbf"))
    return user_error(
        "the body is not JSON: it begins with a byte order mark (the bytes EF BB BF); send it "
        "without the mark");
  JsonOutline outline;
  if (json.size() >= kOutlineMin) outline = outline_json(json);
  if (!outline.lists.empty()) {
    outline.text.reserve(outline.text.size() + kBodyPadding);
    auto request = parse(parser, body, json_bytes, outline.text, outline.lists);
    if (request.ok()) return request;
  }
  return parse(parser, body, json_bytes, json, {});
}

}  // namespace

Result<InferRequest> parse_infer_request(std::string body, std::optional<uint64_t> json_bytes) {
  size_t size = json_bytes.value_or(body.size());
  if (size > body.size())
    return user_error(
        fmt::format("the header field `Inference-Header-Content-Length` is {}, but the body has {} "
                    "bytes",
                    size, body.size()));
  auto shared = std::make_shared<std::string>(std::move(body));
  shared->reserve(size + kBodyPadding);
  thread_local ondemand::parser parser;
  auto request = parse(parser, shared, json_bytes);
  constexpr size_t kParserBytesMax = 4u << 20;  // its memory is some times this
  if (parser.capacity() > kParserBytesMax) parser = ondemand::parser();
  return request;
}

}  // namespace flow
