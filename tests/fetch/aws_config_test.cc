#include "engine/fetch/aws_config.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "engine/base/ids.hpp"

using namespace flow;
using namespace flow::fetch;

namespace {

struct Home {
  Home() { std::filesystem::create_directories(path + "/.aws"); }
  ~Home() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(path + "/.aws/" + name) << text;
  }
  EnvironmentVariables with(EnvironmentVariables more) const {
    more.emplace_back("HOME", path);
    return more;
  }
  std::string path =
      (std::filesystem::temp_directory_path() / ("flow-aws-" + random_name())).string();
};

}  // namespace

TEST_CASE("credentials and region are those of the variables, else of the profile's files") {
  Home home;
  home.write("credentials",
             "# keys\n[default]\naws_access_key_id = FILE\naws_secret_access_key=s3cret # mine\n"
             "[ lab ]\naws_access_key_id=LAB\naws_secret_access_key=l\naws_session_token=t\n");
  home.write("config",
             "[default]\nregion = eu-west-1\ns3 =\n  max_concurrent_requests = 20\n"
             "[profile  lab]\nregion=eu-north-1\nendpoint_url = http://127.0.0.1:9000/base/\n");
  auto standard = read_s3_config(home.with({}));
  REQUIRE(standard.ok());
  CHECK(*standard->credentials == AwsCredentials{"FILE", "s3cret", ""});
  CHECK(standard->region == "eu-west-1");
  CHECK_FALSE(standard->endpoint);
  auto lab = read_s3_config(home.with({{"AWS_PROFILE", "lab"}}));
  REQUIRE(lab.ok());
  CHECK(*lab->credentials == AwsCredentials{"LAB", "l", "t"});
  CHECK(lab->region == "eu-north-1");
  CHECK(request_text(*lab->endpoint) == "http://127.0.0.1:9000/base");
  auto variables = read_s3_config(home.with({{"AWS_PROFILE", "lab"},
                                             {"AWS_ACCESS_KEY_ID", "ENV"},
                                             {"AWS_SECRET_ACCESS_KEY", "e"},
                                             {"AWS_REGION", "us-west-2"},
                                             {"AWS_DEFAULT_REGION", "us-west-1"},
                                             {"AWS_ENDPOINT_URL", "http://one"},
                                             {"AWS_ENDPOINT_URL_S3", "http://two:81"}}));
  REQUIRE(variables.ok());
  CHECK(*variables->credentials == AwsCredentials{"ENV", "e", ""});
  CHECK(variables->region == "us-west-2");
  CHECK(host_header(*variables->endpoint) == "two:81");
}

TEST_CASE("without credentials requests are not signed") {
  Home home;
  auto config = read_s3_config(home.with({}));
  REQUIRE(config.ok());
  CHECK_FALSE(config->credentials);
  CHECK(config->region == "us-east-1");
}

TEST_CASE("what cannot be used is an error that names it and no secret") {
  Home home;
  home.write("credentials", "[half]\naws_secret_access_key=s3cret\n");
  home.write("config", "[profile role]\nrole_arn=arn:aws:iam::1:role/x\n");
  auto message = [&](EnvironmentVariables environment) {
    auto config = read_s3_config(home.with(std::move(environment)));
    REQUIRE_FALSE(config.ok());
    CHECK(config.error().message.find("s3cret") == std::string::npos);
    return config.error().message;
  };
  CHECK(message({{"AWS_PROFILE", "none"}}).find("the profile `none`") != std::string::npos);
  CHECK(message({{"AWS_PROFILE", "half"}}).find("one is missing") != std::string::npos);
  CHECK(message({{"AWS_PROFILE", "role"}}).find("`role_arn`") != std::string::npos);
  CHECK(message({{"AWS_ENDPOINT_URL", "http://u:s3cret@h"}}).find("user information") !=
        std::string::npos);
  CHECK(message({{"AWS_REGION", "a/b"}}).find("AWS_REGION") != std::string::npos);
  home.write("credentials", "aws_secret_access_key=s3cret\n");
  CHECK(message({}).find("line 1 is neither") != std::string::npos);
}
