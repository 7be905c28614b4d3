// The `parameters` of requests, of their inputs and of the outputs that they ask for, apart from
// those that the protocol itself uses, such as `binary_data_size`.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/inference.hpp"
#include "flow/result.hpp"

namespace flow {

/// Of one request, those of its inputs and outputs included.
constexpr size_t kParametersMax = 256;
constexpr size_t kParameterBytesMax = 64 * 1024;  // of names and texts

/// Whether the protocol uses a parameter of this name, at one place or another. It is left out at
/// all places and over HTTP and gRPC alike, so that a script gets the same of both.
bool is_protocol_parameter(std::string_view name);

/// "parameters.temperature", "inputs[0].parameters.scale": `place` is "" or "inputs[0]".
std::string parameter_place(const std::string& place, std::string_view name);

/// The Error, of kind user, says that there are too many, or that `place`, as parameter_place()
/// names it, is there twice.
Status add_parameter(std::vector<Parameter>& parameters, Parameter parameter,
                     const std::string& place);

/// Of their names and texts.
uint64_t text_bytes_of(const std::vector<Parameter>& parameters);
/// The memory that they take in a queue.
uint64_t bytes_of(const std::vector<Parameter>& parameters);

/// The time that the parameter `timeout` of the request gives it, in microseconds as Triton has it;
/// nothing without one, or if it is 0. The Error of kind user says that it is no such number.
Result<std::optional<std::chrono::microseconds>> timeout_of(
    const std::vector<Parameter>& parameters);

/// As a script gets them. Nil without any of this kind.
struct ParameterTables {
  Value request;          // by name
  Value inputs, outputs;  // by the tensor's name, and then by name
};
ParameterTables parameter_tables(const std::vector<Parameter>& parameters);

}  // namespace flow
