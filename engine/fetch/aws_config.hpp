// Credentials, region and endpoint of S3, from environment variables and profile files. Instance
// metadata is never asked.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/environment_variables.hpp"
#include "engine/base/remote_url.hpp"
#include "engine/fetch/sigv4.hpp"

namespace flow::fetch {

struct S3Config {
  std::optional<AwsCredentials> credentials;  // none: requests are not signed
  std::string region = "us-east-1";
  std::string ca_file;          // AWS_CA_BUNDLE: certificates of authorities; "": the system's
  std::optional<Url> endpoint;  // of another server than Amazon's; buckets are part of the path
};

/// Sections of a profile file with their settings. Comments and settings that belong to another
/// (indented) are left out. Error with the number of the line that is neither.
using ProfileSections = std::map<std::string, std::map<std::string, std::string>>;
Result<ProfileSections> parse_profiles(std::string_view text);

/// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION,
/// AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_CA_BUNDLE,
/// AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE and HOME of `environment`, and the files that they
/// name. Variables take precedence over files, and the credentials file over the configuration
/// file.
Result<S3Config> read_s3_config(const EnvironmentVariables& environment);

/// The value of a variable; "" if it is not set.
std::string variable(const EnvironmentVariables& environment, std::string_view name);

}  // namespace flow::fetch
