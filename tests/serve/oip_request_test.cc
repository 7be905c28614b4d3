// Requests of the Open Inference Protocol in JSON: accepted and rejected ones, and error texts.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "engine/serve/oip.hpp"
#include "tests/serve/oip_text.hpp"

using Catch::Contains;
using namespace flow;

TEST_CASE("the fields of a request may come in any order, with spaces and escapes") {
  auto request = parsed_request(
      "\n{ \"inputs\" : [ {\"d\\u0061ta\" : [ [ 1 ,\t2 ] ,\r\n[ 3 ,4 ] ] , \"datatype\":\"INT32\", "
      "\"shape\" :[ 2, 2 ],\"name\":\"\\u00e4\\ud83d\\ude00\"} ] , \"id\":\"\\n\" }  \n");
  CHECK(request.id == "\n");
  CHECK(tensor_items<int32_t>(request.inputs.at("\xc3\xa4\xf0\x9f\x98\x80")) ==
        std::vector<int32_t>{1, 2, 3, 4});
}

TEST_CASE("the id, all inputs and the wanted outputs of a request are kept") {
  auto request = parsed_request(
      R"({"id":"42","inputs":[{"name":"a","shape":[1],"datatype":"FP32","data":[1]},
                              {"name":"b","shape":[0],"datatype":"INT64","data":[]}],
          "outputs":[{"name":"y"},{"name":"z","parameters":{"binary_data":true}}],
          "parameters":{"priority":3,"binary_data_output":null},"other":[1,{"a":[]}]})");
  CHECK(request.id == "42");
  CHECK(request.inputs.size() == 2);
  CHECK(request.inputs.at("b").data->empty());
  REQUIRE(request.outputs.size() == 2);
  CHECK(request.outputs[0].name == "y");
  CHECK_FALSE(request.outputs[0].is_binary);
  CHECK(request.outputs[1].name == "z");
  CHECK(request.outputs[1].is_binary);
  CHECK_FALSE(request.are_outputs_binary);
}

TEST_CASE("a null is as good as no field") {
  auto request = parsed_request(
      R"({"id":null,"parameters":null,"outputs":null,"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":null}]})");
  CHECK(request.id.empty());
  CHECK(request.outputs.empty());
}

TEST_CASE("a request whose memory has no room behind it is read") {
  std::string body = one_input(R"("name":"x","shape":[3],"datatype":"FP32","data":[1,2,3])");
  body.shrink_to_fit();
  CHECK(tensor_items<float>(parsed_inputs(body).at("x")) == std::vector<float>{1, 2, 3});
}

TEST_CASE("large requests are read one after another") {
  for (size_t count : {3'000'000u, 10u, 2'000'000u}) {
    std::string data = "[";
    for (size_t i = 0; i < count; i++) data += i == 0 ? "1" : ",1";
    Tensor tensor = parsed_inputs(one_input(R"("name":"x","datatype":"UINT8","shape":[)" +
                                            std::to_string(count) + R"(],"data":)" + data + "]"))
                        .at("x");
    CHECK(*tensor.data == std::string(count, 1));
  }
}

TEST_CASE("a malformed request is rejected with its fault") {
  using Catch::Contains;
  CHECK_THAT(body_refusal(""), Contains("JSON"));
  CHECK_THAT(body_refusal("{"), Contains("JSON"));
  CHECK_THAT(body_refusal("[1,2]"), Contains("inputs"));
  CHECK_THAT(body_refusal("3"), Contains("inputs"));
  CHECK_THAT(body_refusal("{}"), Contains("inputs"));
  CHECK_THAT(body_refusal(R"({"inputs":[]})"), Contains("inputs"));
  CHECK_THAT(body_refusal(R"({"inputs":{"x":1}})"), Contains("inputs"));
  CHECK_THAT(body_refusal(R"({"inputs":[7]})"), Contains("inputs[0] is not an object"));
  CHECK_THAT(body_refusal(one_input(R"("name":7)")), Contains("name"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x")")), Contains("datatype"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","data":[])")),
             Contains("shape"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1])")),
             Contains("data"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"fp32","shape":[1],"data":[1])")),
             Contains("FP32"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[-1],"data":[])")),
             Contains("shape"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1.5],"data":[1])")),
             Contains("shape"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[2],"data":[1])")),
             Contains("its shape needs 2"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1],"data":["1"])")),
             Contains("data[0]"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1],"data":7)")),
             Contains("data"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"UINT8","shape":[1],"data":[256])")),
             Contains("data[0]"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"INT32","shape":[1],"data":[1.5])")),
             Contains("data[0]"));
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"BOOL","shape":[1],"data":[1])")),
             Contains("data[0]"));
  CHECK_THAT(body_refusal(one_input(
                 R"("name":"x","datatype":"FP32","shape":[4294967296,4294967296],"data":[])")),
             Contains("shape"));
  CHECK_THAT(
      body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[0,67108864,64],"data":[1])")),
      Contains("data"));
  CHECK_THAT(
      body_refusal(
          R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]},{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]})"),
      Contains("two inputs"));
  CHECK_THAT(body_refusal(std::string(100'000, '[')), Contains("JSON"));
}

TEST_CASE("an error is valid text, whatever was sent") {
  std::string umlauts = "\"a";
  for (int i = 0; i < 30; i++) umlauts += "\xc3\xa4";
  std::string message = body_refusal(
      one_input(R"("name":"x","shape":[1],"datatype":"INT32","data":[)" + umlauts + "\"]"));
  CHECK(to_json(Value(message)).starts_with('"'));
  CHECK(body_refusal(
            one_input(R"("name":{"$bytes":"/w=="},"shape":[1],"datatype":"INT32","data":[1])")) ==
        "inputs[0].name is not text");
}

TEST_CASE("the error of text that is not JSON says so once, and names a byte order mark") {
  CHECK(body_refusal("{\"a\": tru}") ==
        "the body is not JSON: line 1, column 10: syntax error while parsing value - invalid "
        "literal; last read: '\"a\": tru}'");
  CHECK(body_refusal("\xef\xbb\xbf" +
                     one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":[1])")) ==
        "the body is not JSON: it begins with a byte order mark (the bytes EF BB BF); send it "
        "without the mark");
}

TEST_CASE("text that is not JSON is rejected wherever it is") {
  auto whole = [](const std::string& data, const std::string& more = "") {
    return R"({"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":)" + data + "}]" + more +
           "}";
  };
  REQUIRE(body_refusal(whole("[1]")) == "accepted");
  for (const char* data :
       {"[01]",        "[1.]",  "[.5]",     "[+1]",      "[-]",    "[1e]",        "[1e+]",
        "[0x1]",       "[1 2]", "[1,]",     "[,1]",      "[1,,1]", "[1}",         "[[1]",
        "[1]]",        "[tru]", "[truee]",  "[NaN]",     "[nan]",  "[-Infinity]", "[1a]",
        "[1\\u0020]",  "[\"a]", "[\"\\x\"", "['1']",     "[1]1",   "[1],",        "[1/*a*/]",
        "[1\xc2\xa0]", "[1;2]", "[1:2]",    "[\"a\":1]", "[--1]",  "[1-]",        "[1e5.5]",
        "[00]",        "[-01]"})
    CHECK_THAT(body_refusal(whole(data)), Catch::StartsWith("the body is not JSON: "));
  for (const char* more : {",",
                           ",\"a\"",
                           ",\"a\":",
                           ",\"a\":01",
                           ",\"a\":nul",
                           ",\"a\":[1,]",
                           ",\"a\":{\"b\"}",
                           ",\"a\":{,}",
                           ",\"a\":\"\\x\"",
                           ",\"a\":\"\\ud800\"",
                           ",\"a\":1 2",
                           ",a:1",
                           ",\"\\q\":1",
                           ",\"a\":[}",
                           ",\"a\":\"\t\"",
                           ",\"a\":1,",
                           ",1:2",
                           ",\"a\":TRUE",
                           "}",
                           "]",
                           "{",
                           "\"",
                           ",\"a\":{\"b\":1]",
                           ",\"a\":\"\xff\"",
                           ",\"parameters\":{\"a\":tru}",
                           ",\"id\":\"\\u12\""})
    CHECK_THAT(body_refusal(whole("[1]", more)), Catch::StartsWith("the body is not JSON: "));
  for (const char* body : {"", " ", "not json", "nul", "tru", "01", "\"", "{", "[", "[1,2", "{} {}",
                           "{},", "]", "}", "{}}", "\xef\xbb\xbf{}", "\xff\xfe", "{\"a\":1]"}) {
    INFO(body);
    CHECK_THAT(body_refusal(body), Catch::StartsWith("the body is not JSON: "));
  }
  CHECK_THAT(body_refusal(whole("[1]") + std::string("\0more", 5)),
             Catch::StartsWith("the body is not JSON: "));
  CHECK_THAT(body_refusal(whole("[1]") + std::string(1, '\0')),
             Catch::StartsWith("the body is not JSON: "));
}

TEST_CASE("a fault of a long text is named with its line and column") {
  std::string many = "[";
  for (int i = 0; i < 50'000; i++) many += "1,";
  CHECK(body_refusal(
            "{\n\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\",\n\"data\":" +
            many + "nan]}]}") ==
        "the body is not JSON: line 3, column 100009: this is not a value, a comma or the end of "
        "the array");
}

TEST_CASE("each field has the kind that the protocol says") {
  std::string input = R"({"name":"x","shape":[1],"datatype":"FP32","data":[1]})";
  auto with = [&](const std::string& more) {
    return body_refusal(R"({"inputs":[)" + input + "]," + more + "}");
  };
  CHECK(with(R"("id":7)") == "id is not text");
  CHECK(with(R"("id":")" + std::string(1025, 'a') + '"') == "id has more than 1024 bytes");
  CHECK(with(R"("outputs":{})") == "outputs is not an array");
  CHECK(with(R"("outputs":["y"])") == "outputs[0] is not an object");
  CHECK(with(R"("outputs":[{}])") == "outputs[0].name is missing");
  CHECK(with(R"("outputs":[{"name":1}])") == "outputs[0].name is not text");
  CHECK(with(R"("outputs":[{"name":"y","parameters":{"binary_data":1}}])") ==
        "outputs[0].parameters.binary_data is not true or false");
  CHECK_THAT(with(R"("outputs":[{"name":"y","parameters":{"classification":3}}])"),
             Catch::StartsWith("outputs[0].parameters.classification is not supported: "));
  CHECK(with(R"("outputs":[{"name":"y"},{"name":"y"}])") == "two outputs are named `y`");
  CHECK(with(R"("parameters":[])") == "parameters is not an object");
  CHECK(with(R"("parameters":{"binary_data_output":"yes"})") ==
        "parameters.binary_data_output is not true or false");
  CHECK_THAT(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[2,-1],"data":[])")),
             Catch::Equals("inputs[0].shape[1] is not a whole number from 0 to 67108864"));
  CHECK(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[2.0],"data":[1,2])")) ==
        "inputs[0].shape[0] is not a whole number from 0 to 67108864");
  CHECK(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":2,"data":[1,2])")) ==
        "inputs[0].shape is not an array");
  CHECK(body_refusal(one_input(R"("name":"x","datatype":"FP32","shape":[1],"data":{"a":1})")) ==
        "inputs[0].data is not an array");
}

TEST_CASE("a field that comes twice is an error, because servers would differ in their choice") {
  CHECK(body_refusal(R"({"inputs":[],"inputs":[]})") == "the body has two fields `inputs`");
  CHECK(body_refusal(
            one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":[1],"d\u0061ta":[2])")) ==
        "inputs[0] has two fields `data`");
  CHECK(body_refusal(
            one_input(R"("name":"x","name":null,"shape":[1],"datatype":"FP32","data":[1])")) ==
        "inputs[0] has two fields `name`");
}

TEST_CASE("the counts of inputs, dimensions and levels are bounded") {
  std::string inputs;
  for (int i = 0; i < 65; i++)
    inputs += fmt::format(R"({}{{"name":"{}","shape":[1],"datatype":"FP32","data":[1]}})",
                          i > 0 ? "," : "", i);
  CHECK(body_refusal("{\"inputs\":[" + inputs + "]}") == "inputs has more than 64 items");
  CHECK(body_refusal(
            one_input(R"("name":"x","shape":[1,1,1,1,1,1,1,1,1],"datatype":"FP32","data":[1])")) ==
        "inputs[0].shape has more than 8 items");
  auto nested = [](size_t depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  CHECK(body_refusal(one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":)" +
                               nested(64))) == "accepted");
  CHECK(body_refusal(one_input(R"("name":"x","shape":[1],"datatype":"FP32","data":)" +
                               nested(65))) == "inputs[0].data of `x` is nested deeper than 64");
  CHECK(body_refusal("{\"a\":" + nested(65) + "}") == "the JSON is nested deeper than 64");
}

TEST_CASE("a shape that its data cannot fill takes no memory") {
  for (int i = 0; i < 1000; i++)
    CHECK(body_refusal(
              one_input(R"("name":"x","shape":[67108864],"datatype":"FP64","data":[1,2])")) ==
          "inputs[0].data has 2 values, its shape needs 67108864");
}
