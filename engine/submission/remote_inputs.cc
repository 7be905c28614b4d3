#include "engine/submission/remote_inputs.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "engine/base/files.hpp"
#include "engine/base/glob.hpp"
#include "engine/base/log.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/base/size_units.hpp"
#include "engine/fetch/object_download.hpp"
#include "engine/fetch/s3_client.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

/// The newest content of a URL that the state has.
struct RemoteCopy {
  fetch::ObjectVersion version;
  Digest digest;
  uint64_t size = 0;
};

std::string encode_copy(const RemoteCopy& copy) {
  return encode_value(Value::map({{"etag", copy.version.etag},
                                  {"version", copy.version.version_id},
                                  {"modified", copy.version.last_modified},
                                  {"digest", copy.digest.hex()},
                                  {"size", static_cast<int64_t>(copy.size)}}));
}

std::optional<RemoteCopy> decode_copy(std::string_view bytes) {
  auto value = decode_value(bytes);
  if (!value.ok() || value->kind() != Value::Kind::table) return std::nullopt;
  auto text = [&](std::string_view name) {
    const Value* found = value->find(name);
    return found != nullptr && found->kind() == Value::Kind::string ? found->as_string() : "";
  };
  const Value* size = value->find("size");
  RemoteCopy copy;
  bool is_copy = size != nullptr && size->kind() == Value::Kind::integer &&
                 size->as_integer() >= 0 && Digest::parse_hex(text("digest"), copy.digest);
  if (!is_copy) return std::nullopt;
  copy.size = static_cast<uint64_t>(size->as_integer());
  copy.version = {text("etag"), text("version"), text("modified"), copy.size};
  return copy;
}

/// The copy, if the state still has its content.
std::optional<RemoteCopy> find_copy(const Store& store, const Blobs& blobs,
                                    const std::string& url) {
  auto row = store.get(Family::kv, remote_copy_key(url));
  if (!row.ok() || !row->has_value()) return std::nullopt;
  auto copy = decode_copy(**row);
  bool is_there = copy && blobs.has(copy->digest, copy->size);
  return is_there ? copy : std::nullopt;
}

std::string downloads_folder(const Blobs& blobs) { return blobs.dir() + "/downloads"; }

File with_content(File file, const Digest& digest, uint64_t size) {
  file.digest = digest;
  file.size = size;
  file.origin.clear();
  return file;
}

Status check_digest(const RemoteOrigin& origin, const Digest& digest) {
  if (!origin.sha256 || *origin.sha256 == digest) return {};
  return user_error(
      fmt::format("the state's copy of `{}` has the SHA-256 {}, and the script says sha256 = "
                  "\"{}\": correct the "
                  "script, or fetch the file again without --offline",
                  display_url(origin.url), digest.hex(), origin.sha256->hex()));
}

}  // namespace

RemoteInputs::RemoteInputs(Store& store, Blobs& blobs, const EnvironmentVariables& environment,
                           RemoteUse use, const Inputs* resumed)
    : store_(store), blobs_(blobs), environment_(environment), use_(use), resumed_(resumed) {}

Result<File> RemoteInputs::fetch(const File& file) {
  auto origin = parse_remote_origin(file.origin);
  FLOW_TRY(origin);
  std::string shown = display_url(origin->url);
  if (resumed_ != nullptr) {
    auto wanted = parse_remote_origin(origin->stored_text());
    FLOW_TRY(wanted);
    for (const File& each : resumed_->files) {
      auto stored = parse_remote_origin(each.origin);
      if (!stored.ok() || stored->url != wanted->url) continue;
      FLOW_TRY(check_digest(*origin, each.digest));
      return with_content(file, each.digest, each.size);
    }
    return user_error(
        fmt::format("the run has no copy of `{}`, and `resume` never uses the network: start a new "
                    "run with `flow run`",
                    shown));
  }
  if (use_ == RemoteUse::offline || origin->offline) {
    auto copy = find_copy(store_, blobs_, origin->url);
    if (!copy)
      return user_error(fmt::format(
          "the state has no copy of `{}`: fetch it once with a run that is not offline", shown));
    FLOW_TRY(check_digest(*origin, copy->digest));
    return with_content(file, copy->digest, copy->size);
  }
  return fetch_now(file, *origin);
}

Result<File> RemoteInputs::fetch_now(File file, const RemoteOrigin& origin) {
  auto object = fetch::open_remote(origin.url, environment_);
  FLOW_TRY(object);
  auto options = fetch::read_fetch_options(environment_);
  FLOW_TRY(options);
  // The server may have a version with the digest that the script wants now.
  auto find_wanted = [&] {
    auto copy = find_copy(store_, blobs_, origin.url);
    bool is_wanted = copy && (!origin.sha256 || *origin.sha256 == copy->digest);
    return is_wanted ? copy : std::nullopt;
  };
  if (use_ == RemoteUse::preview) {
    auto copy = find_wanted();
    if (!copy || !fetch::is_current(**object, copy->version, *options)) return file;
    return with_content(std::move(file), copy->digest, copy->size);
  }
  std::string folder = downloads_folder(blobs_);
  FLOW_TRY(make_dirs(folder));
  std::optional<RemoteCopy> copy;
  fetch::DownloadOrder order{
      **object, folder + "/" + sha256(origin.url).hex(), origin.sha256, {}, {}};
  order.known = [&]() -> std::optional<fetch::ObjectVersion> {
    copy = find_wanted();
    return copy ? std::optional(copy->version) : std::nullopt;
  };
  order.keep = [&](const fetch::DownloadedFile& fetched) -> Status {
    auto put = blobs_.put_file(fetched.path, true);
    FLOW_TRY(put);
    copy = RemoteCopy{fetched.version, *put, fetched.size};
    Batch batch;
    batch.put(Family::kv, remote_copy_key(origin.url), encode_copy(*copy));
    return store_.commit(batch);
  };
  auto outcome = fetch::download(order, *options);
  FLOW_TRY(outcome);
  bool is_new = *outcome == fetch::DownloadOutcome::kept;
  log::info(is_new ? "fetched an input" : "an input is unchanged", {.detail = (*object)->shown()});
  return with_content(std::move(file), copy->digest, copy->size);
}

uint64_t remove_unfinished_downloads(const Blobs& blobs) {
  constexpr int64_t kKeepSeconds = 3600;
  return fetch::remove_unfinished_downloads(downloads_folder(blobs), kKeepSeconds);
}

bool is_url_pattern(const std::string& url) {
  auto location = parse_s3_url(url);
  return is_s3_url(url) && location.ok() && fetch::is_s3_pattern(*location);
}

Result<std::vector<std::string>> list_remote(const std::string& pattern, bool allow_empty,
                                             const EnvironmentVariables& environment) {
  if (!is_s3_url(pattern)) return std::vector<std::string>{pattern};
  auto location = parse_s3_url(pattern);
  FLOW_TRY(location);
  if (!fetch::is_s3_pattern(*location)) return std::vector<std::string>{pattern};
  auto config = fetch::read_s3_config(environment);
  FLOW_TRY(config);
  auto options = fetch::read_fetch_options(environment);
  FLOW_TRY(options);
  auto urls = fetch::list_s3(pattern, *config, *options);
  FLOW_TRY(urls);
  if (urls->empty() && !allow_empty)
    return user_error(fmt::format(
        "no object matches `{}`: check the pattern, or list the bucket with `aws s3 ls`", pattern));
  return urls;
}

Result<std::vector<std::string>> list_fetched(const std::string& pattern, bool allow_empty,
                                              const Inputs& inputs) {
  if (!is_s3_url(pattern)) return std::vector<std::string>{pattern};
  auto wanted = parse_s3_url(pattern);
  FLOW_TRY(wanted);
  auto patterns = expand_braces(wanted->key);
  FLOW_TRY(patterns);
  std::set<std::string> urls;
  for (const File& file : inputs.files) {
    auto origin = parse_remote_origin(file.origin);
    if (!origin.ok() || !is_s3_url(origin->url)) continue;
    auto location = parse_s3_url(origin->url);
    if (!location.ok() || location->bucket != wanted->bucket) continue;
    for (const std::string& each : *patterns)
      if (fetch::matches_key(each, location->key)) urls.insert(origin->url);
  }
  if (urls.empty() && !allow_empty)
    return user_error(fmt::format(
        "the run has no copy of an object that matches `{}`, and `resume` never uses the "
        "network: start a new run with `flow run`",
        pattern));
  return std::vector<std::string>(urls.begin(), urls.end());
}

Result<File> fetch_to_folder(const File& file, const EnvironmentVariables& environment,
                             const std::string& folder, std::string& path) {
  auto origin = parse_remote_origin(file.origin);
  FLOW_TRY(origin);
  if (origin->offline)
    return user_error(fmt::format(
        "`{}` is offline, and a client of a head has no copies: run it on the head's machine",
        display_url(origin->url)));
  auto object = fetch::open_remote(origin->url, environment);
  FLOW_TRY(object);
  auto options = fetch::read_fetch_options(environment);
  FLOW_TRY(options);
  File out = file;
  fetch::DownloadOrder order{
      **object, folder + "/" + sha256(origin->url).hex(), origin->sha256, {}, {}};
  order.keep = [&](const fetch::DownloadedFile& fetched) -> Status {
    path = folder + "/" + fetched.digest.hex();
    out = with_content(file, fetched.digest, fetched.size);
    if (::rename(fetched.path.c_str(), path.c_str()) == 0) return {};
    return environment_error(fmt::format("cannot write `{}`: {}", path, std::strerror(errno)));
  };
  auto outcome = fetch::download(order, *options);
  FLOW_TRY(outcome);
  return out;
}

}  // namespace flow
