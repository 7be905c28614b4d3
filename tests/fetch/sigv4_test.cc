// The examples of Amazon's documentation "Signature Calculations for the Authorization Header".
#include "engine/fetch/sigv4.hpp"

#include <catch2/catch.hpp>

#include "flow/digest.hpp"

using namespace flow;
using namespace flow::fetch;

namespace {

const AwsCredentials kKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

std::string signature_of(UnsignedRequest request, const std::string& body = "") {
  request.host = "examplebucket.s3.amazonaws.com";
  request.payload = sha256(body).hex();
  std::string header =
      sign_request(request, kKeys, "us-east-1", "20130524T000000Z").headers.back().second;
  return header.substr(header.rfind('=') + 1);
}

}  // namespace

TEST_CASE("signatures equal those of Amazon's documentation") {
  CHECK(signature_of({"GET", "", "/test.txt", {}, {{"Range", "bytes=0-9"}}, ""}) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(signature_of({"PUT",
                      "",
                      "/test%24file.text",
                      {},
                      {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                       {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                      ""},
                     "Welcome to Amazon S3.") ==
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  CHECK(signature_of({"GET", "", "/", {{"lifecycle", ""}}, {}, ""}) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(signature_of({"GET", "", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}, ""}) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("the query is sorted by encoded name, then by encoded value") {
  CHECK(canonical_query({{"b", "2"}, {"a", "~ +"}, {"b", "1"}, {"", ""}, {"é", ""}}) ==
        "=&%C3%A9=&a=~%20%2B&b=1&b=2");
}

TEST_CASE("the time of a signature is UTC to the second") {
  CHECK(signing_time(1369353600123) == "20130524T000000Z");
}
