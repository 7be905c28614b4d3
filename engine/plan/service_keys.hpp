// The keys of a service's callers: their text, and the file that holds them.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/service_spec.hpp"
#include "flow/result.hpp"

namespace flow {

constexpr size_t kServiceKeysMax = 256;
constexpr size_t kServiceKeyBytesMax = 512;

/// The keys in the text of a variable, between commas. Blanks around a key, and empty places, do
/// not count. Errors (user) are clauses about the text, and show no part of it: it has no key, too
/// many, or one that is not 1 to kServiceKeyBytesMax visible ASCII characters without commas.
Result<std::vector<std::string>> parse_key_list(std::string_view text);

/// The keys in a file, one on each line. Errors name the file, and show no part of it.
Result<std::vector<std::string>> read_key_file(const std::string& path);

/// What to redact where a variable holds keys: its whole text, and each key.
std::vector<std::string> secrets_of_key_list(const std::string& text);

/// The keys of a file as the text of a variable, for a machine that lacks the file.
Result<std::string> key_list_of_file(const std::string& path);

/// The keys of a service; none if it asks for none. `variable_text` is the value of its variable,
/// or key_list_of_file(); a file is read if it is empty.
/// Errors name the variable or the file.
Result<std::vector<std::string>> service_keys(const ServiceKeySource& source,
                                              std::string_view variable_text);

}  // namespace flow
