// The canonical bytes of a value in parts, for encodings that contain values.
//
// clang-format off
//   nil                       f7 (undefined)
//   flow.null                 f6 (null)
//   flow.missing              e0 (simple value 0)
//   boolean, integer          as CBOR; integers are 64-bit signed
//   number                    the shortest of half, single, double that keeps the value; every NaN is f97e00
//   string                    text string where it is UTF-8, else byte string
//   table without fields      array (the empty table too); nil items are f7
//   table with fields         map, the list as keys 1..n; keys sorted by their bytes; no nil among values
//   tensor                    26220([dtype name, [dimensions], digest])
//   file                      26221([flags, name, size, digest, [[path, executable, size, digest] …], origin]);
//                             flags: 1 executable, 2 folder, 4 anonymous
//   ref                       26222([node, each, key, each, key …]); 26223 if it keeps places
// clang-format on
// Digests are byte strings of 32. Within a key (encode_value_for_key) an anonymous file's name and
// every origin are f7.
#pragma once
#include <string>
#include <string_view>

#include "flow/value.hpp"

namespace flow {

constexpr int kTableDepthMax = 200;   // nesting of tables in arguments and results
constexpr int kValueDepthMax = 1000;  // nesting of stored values: values in lists, maps and results

/// Appends encode_value(value).
void append_value(const Value& value, std::string& out);
/// The header before the items of a table without fields.
void append_list_header(size_t items, std::string& out);
/// Whether the bytes of a value contain a tensor, a file or a ref. Also true for invalid bytes.
bool holds_tag(std::string_view bytes);
/// Decodes one value from the front of `bytes`, as strictly as decode_value, and removes it.
Result<Value> take_value(std::string_view& bytes);

}  // namespace flow
