#include "engine/plan/remote_origin.hpp"

#include <fmt/format.h>

#include "engine/base/remote_url.hpp"

namespace flow {

namespace {

// "fetch:sha256=…,offline URL"; a path is absolute, so it begins with `/`.
constexpr std::string_view kPrefix = "fetch:", kDigest = "sha256=", kOffline = "offline";

}  // namespace

std::string RemoteOrigin::text() const {
  std::string options;
  if (sha256) options = std::string(kDigest) + sha256->hex();
  if (offline) options.append(options.empty() ? "" : ",").append(kOffline);
  return fmt::format("{}{} {}", kPrefix, options, url);
}

std::string RemoteOrigin::stored_text() const {
  RemoteOrigin stored = *this;
  stored.url = display_url(url);
  std::string secrets = url_secrets(url);
  if (!secrets.empty()) stored.url += " (" + flow::sha256(secrets).hex() + ")";
  return stored.text();
}

bool is_remote_origin(std::string_view origin) { return origin.starts_with(kPrefix); }

Result<RemoteOrigin> parse_remote_origin(std::string_view origin) {
  size_t space = origin.find(' ');
  if (!is_remote_origin(origin) || space == std::string_view::npos)
    return internal_error("a file has an origin that is not a URL");
  RemoteOrigin out;
  out.url = origin.substr(space + 1);
  std::string_view options = origin.substr(kPrefix.size(), space - kPrefix.size());
  while (!options.empty()) {
    size_t comma = std::min(options.find(','), options.size());
    std::string_view option = options.substr(0, comma);
    options.remove_prefix(std::min(comma + 1, options.size()));
    Digest digest;
    if (option == kOffline)
      out.offline = true;
    else if (option.starts_with(kDigest) &&
             Digest::parse_hex(option.substr(kDigest.size()), digest))
      out.sha256 = digest;
    else
      return internal_error("a file has an origin with an unknown option");
  }
  return out;
}

Result<File> remote_file(const RemoteOrigin& origin) {
  if (is_s3_url(origin.url)) {
    auto location = parse_s3_url(origin.url);
    FLOW_TRY(location);
    if (location->key.empty() || location->key.ends_with('/'))
      return user_error(
          fmt::format("`{}` does not name an object: write s3://BUCKET/KEY", origin.url));
  } else {
    FLOW_TRY(parse_url(origin.url));
  }
  File file;
  file.name = file_name_of(origin.url);
  file.origin = origin.text();
  return file;
}

const File* find_unfetched(const Value& value) {
  if (value.kind() == Value::Kind::file) {
    const File& file = value.as_file();
    return file.digest.is_zero() && is_remote_origin(file.origin) ? &file : nullptr;
  }
  if (value.kind() != Value::Kind::table) return nullptr;
  for (const Value& item : value.as_table().list)
    if (const File* found = find_unfetched(item)) return found;
  for (const auto& [key, field] : value.as_table().fields)
    if (const File* found = find_unfetched(field)) return found;
  return nullptr;
}

Value without_url_secrets(const Value& value) {
  if (find_unfetched(value) == nullptr) return value;
  if (value.kind() == Value::Kind::file) {
    File file = value.as_file();
    auto origin = parse_remote_origin(file.origin);
    if (origin.ok()) file.origin = origin->stored_text();
    return Value(std::move(file));
  }
  Value::Table table = value.as_table();
  for (Value& item : table.list) item = without_url_secrets(item);
  for (auto& [key, field] : table.fields) field = without_url_secrets(field);
  return Value(std::move(table));
}

}  // namespace flow
