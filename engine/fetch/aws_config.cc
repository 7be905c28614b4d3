#include "engine/fetch/aws_config.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/files.hpp"
#include "engine/fetch/text.hpp"

namespace flow::fetch {

namespace {

constexpr uint64_t kProfileFileMax = 1 << 20;

/// The sections of the file at `path`; none if there is no such file.
Result<ProfileSections> read_profiles(const std::string& path) {
  if (path.empty() || ::access(path.c_str(), F_OK) != 0) return ProfileSections{};
  auto text = read_file(path, kProfileFileMax);
  if (!text.ok()) return user_error(text.error().message);
  auto sections = parse_profiles(*text);
  if (!sections.ok())
    return user_error(
        fmt::format("the AWS profile file `{}` can't be read: {}", path, sections.error().message));
  return sections;
}

/// A setting of the profile: in the credentials file, else in the configuration file.
class Profile {
 public:
  Profile(const ProfileSections& credentials, const ProfileSections& config,
          const std::string& name) {
    auto section = [](const ProfileSections& sections, const std::string& key) {
      auto found = sections.find(key);
      return found == sections.end() ? nullptr : &found->second;
    };
    sections_[0] = section(credentials, name);
    sections_[1] = section(config, "profile " + name);
    if (sections_[1] == nullptr && name == "default") sections_[1] = section(config, name);
  }

  bool exists() const { return sections_[0] != nullptr || sections_[1] != nullptr; }

  std::string get(const std::string& name) const {
    for (const auto* section : sections_) {
      if (section == nullptr) continue;
      if (auto found = section->find(name); found != section->end()) return found->second;
    }
    return "";
  }

 private:
  const std::map<std::string, std::string>* sections_[2] = {};
};

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& each : values) {
    if (!each.empty()) return each;
  }
  return "";
}

}  // namespace

std::string variable(const EnvironmentVariables& environment, std::string_view name) {
  for (const auto& [key, value] : environment) {
    if (key == name) return value;
  }
  return "";
}

Result<ProfileSections> parse_profiles(std::string_view text) {
  ProfileSections sections;
  std::map<std::string, std::string>* section = nullptr;
  int number = 0;
  while (!text.empty()) {
    number++;
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    bool is_indented = line.starts_with(' ') || line.starts_with('\t');
    line = trimmed(line);
    if (line.empty() || line.starts_with('#') || line.starts_with(';')) continue;
    if (line.starts_with('[')) {
      size_t close = line.find(']');
      if (close == std::string_view::npos)
        return user_error(fmt::format("line {} begins a section and has no `]`", number));
      std::string name(trimmed(line.substr(1, close - 1)));
      // Spaces between the words do not matter.
      if (size_t space = name.find_first_of(" \t"); space != std::string::npos)
        name = name.substr(0, space) + " " +
               std::string(trimmed(std::string_view(name).substr(space)));
      section = &sections[name];
      continue;
    }
    if (is_indented) continue;  // belongs to the setting above, such as `s3 =`
    size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0 || section == nullptr)
      return user_error(
          fmt::format("line {} is neither `[section]` nor `name = value` in a section", number));
    std::string_view value = trimmed(line.substr(equals + 1));
    for (std::string_view comment : {" #", " ;"})
      value = trimmed(value.substr(0, value.find(comment)));
    (*section)[std::string(trimmed(line.substr(0, equals)))] = value;
  }
  return sections;
}

Result<S3Config> read_s3_config(const EnvironmentVariables& environment) {
  auto get = [&](std::string_view name) { return variable(environment, name); };
  std::string home = get("HOME");
  auto file_of = [&](const char* name, const char* standard) {
    std::string path = get(name);
    if (path.empty() && !home.empty()) path = home + standard;
    if (path.starts_with("~/")) path = home + path.substr(1);
    return path;
  };
  std::string credentials_path = file_of("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  std::string config_path = file_of("AWS_CONFIG_FILE", "/.aws/config");
  auto credentials = read_profiles(credentials_path);
  FLOW_TRY(credentials);
  auto config = read_profiles(config_path);
  FLOW_TRY(config);
  std::string name = first_of({get("AWS_PROFILE"), get("AWS_DEFAULT_PROFILE"), "default"});
  Profile profile(*credentials, *config, name);
  if (!profile.exists() && name != "default")
    return user_error(
        fmt::format("AWS_PROFILE names the profile `{}`, which neither `{}` nor `{}` has: name "
                    "another, or unset AWS_PROFILE",
                    name, credentials_path, config_path));

  S3Config out;
  AwsCredentials keys{get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"),
                      get("AWS_SESSION_TOKEN")};
  std::string origin = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are";
  if (keys.key_id.empty() && keys.secret.empty()) {
    keys = {profile.get("aws_access_key_id"), profile.get("aws_secret_access_key"),
            profile.get("aws_session_token")};
    origin =
        fmt::format("aws_access_key_id and aws_secret_access_key of the profile `{}` are", name);
  }
  if (keys.key_id.empty() != keys.secret.empty())
    return user_error(fmt::format("{} only useful together, and one is missing: set both", origin));
  if (!keys.key_id.empty()) {
    out.credentials = std::move(keys);
  } else {
    for (const char* setting : {"role_arn", "sso_session", "sso_start_url", "credential_process"}) {
      if (profile.get(setting).empty()) continue;
      return user_error(fmt::format(
          "the AWS profile `{}` gets its credentials by `{}`, which flow does not "
          "support: export AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
          "AWS_SESSION_TOKEN (`aws configure export-credentials --format env` prints them)",
          name, setting));
    }
  }
  std::string region =
      first_of({get("AWS_REGION"), get("AWS_DEFAULT_REGION"), profile.get("region"), out.region});
  bool is_name = std::ranges::all_of(region, [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-';
  });
  if (!is_name)
    return user_error(
        "the AWS region is not a name of letters, digits and `-`: set AWS_REGION, such as "
        "eu-west-1");
  out.region = region;
  out.ca_file = get("AWS_CA_BUNDLE");
  std::string endpoint =
      first_of({get("AWS_ENDPOINT_URL_S3"), get("AWS_ENDPOINT_URL"), profile.get("endpoint_url")});
  if (endpoint.empty()) return out;
  auto url = parse_url(endpoint);
  if (!url.ok())
    return user_error("AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or `endpoint_url`: " +
                      url.error().message);
  if (!url->user_info.empty() || !url->query.empty())
    return user_error(
        fmt::format("the endpoint `{}` of S3 may have neither user information nor a query",
                    display_url(endpoint)));
  while (url->path.ends_with('/')) url->path.pop_back();
  out.endpoint = std::move(*url);
  return out;
}

}  // namespace flow::fetch
