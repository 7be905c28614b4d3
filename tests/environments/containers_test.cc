// Command lines of container runtimes, and the records by which containers are removed.
#include "engine/environments/containers.hpp"

#include <catch2/catch.hpp>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"

namespace flow {

namespace {

using Words = std::vector<std::string>;

ContainerOrder small_order() {
  ContainerOrder order;
  order.image = "0123abcd";
  order.name = "flow-run-1-2-3-0";
  order.directory = "/s/a@1";
  order.variables_file = "/s/a@1.env";
  order.user = 1000;
  order.group = 100;
  order.command = {"bash", "-c", "echo hi"};
  return order;
}

void add_program(const std::string& path, const std::string& text) {
  REQUIRE(write_file_atomic(path, "#!/bin/sh\n" + text, 0700).ok());
}

}  // namespace

TEST_CASE(
    "podman runs a command as the caller, without an entry point and with the host's network") {
  ContainerRuntime podman{RuntimeKind::podman, "/usr/bin/podman"};
  CHECK(*container_words(podman, small_order()) == Words{"/usr/bin/podman",
                                                         "run",
                                                         "--name",
                                                         "flow-run-1-2-3-0",
                                                         "--pull",
                                                         "never",
                                                         "--network",
                                                         "host",
                                                         "--entrypoint",
                                                         "",
                                                         "--workdir",
                                                         "/s/a@1",
                                                         "--user",
                                                         "1000:100",
                                                         "--userns",
                                                         "keep-id",
                                                         "--security-opt",
                                                         "label=disable",
                                                         "--env-file",
                                                         "/s/a@1.env",
                                                         "--mount",
                                                         "type=bind,source=/s/a@1,target=/s/a@1",
                                                         "0123abcd",
                                                         "bash",
                                                         "-c",
                                                         "echo hi"});
}

TEST_CASE("docker gets mounts, memory and GPUs") {
  ContainerRuntime docker{RuntimeKind::docker, "/usr/bin/docker"};
  ContainerOrder order = small_order();
  order.writable = {"/s/a@1.stage"};
  order.read_only = {"/state/objects", "/data/big:1.fq"};
  order.inherited = {"KEY"};
  order.memory_bytes = 1 << 20;
  order.gpus = {"GPU-a", "GPU-b"};
  CHECK(*container_words(docker, order) ==
        Words{"/usr/bin/docker",
              "run",
              "--name",
              "flow-run-1-2-3-0",
              "--pull",
              "never",
              "--network",
              "host",
              "--entrypoint",
              "",
              "--workdir",
              "/s/a@1",
              "--user",
              "1000:100",
              "--security-opt",
              "label=disable",
              "--env-file",
              "/s/a@1.env",
              "--env",
              "KEY",
              "--memory",
              "1048576b",
              "--gpus",
              "\"device=GPU-a,GPU-b\"",
              "--mount",
              "type=bind,source=/s/a@1,target=/s/a@1",
              "--mount",
              "type=bind,source=/s/a@1.stage,target=/s/a@1.stage",
              "--mount",
              "type=bind,source=/state/objects,target=/state/objects,readonly",
              "--mount",
              "type=bind,source=/data/big:1.fq,target=/data/big:1.fq,readonly",
              "0123abcd",
              "bash",
              "-c",
              "echo hi"});
  order.has_cdi = true;
  Words words = *container_words(docker, order);
  CHECK(std::count(words.begin(), words.end(), "nvidia.com/gpu=GPU-a") == 1);
  CHECK(std::count(words.begin(), words.end(), "--gpus") == 0);
}

TEST_CASE("a caller that is root needs no user namespace") {
  ContainerRuntime podman{RuntimeKind::podman, "/usr/bin/podman"};
  ContainerOrder order = small_order();
  order.user = order.group = 0;
  Words words = *container_words(podman, order);
  CHECK(std::count(words.begin(), words.end(), "--userns") == 0);
  CHECK(std::count(words.begin(), words.end(), "0:0") == 1);
}

TEST_CASE("apptainer executes an image file with clean variables") {
  ContainerRuntime apptainer{RuntimeKind::apptainer, "/usr/bin/apptainer"};
  ContainerOrder order = small_order();
  order.image = "/images/a.sif";
  order.read_only = {"/state/objects"};
  order.gpus = {"GPU-a"};
  CHECK(*container_words(apptainer, order) ==
        Words{"/usr/bin/apptainer", "exec", "--cleanenv", "--no-mount", "home,cwd,tmp", "--pwd",
              "/s/a@1", "--env-file", "/s/a@1.env", "--nv", "--bind", "/s/a@1:/s/a@1:rw", "--bind",
              "/state/objects:/state/objects:ro", "/images/a.sif", "bash", "-c", "echo hi"});
  CHECK_FALSE(apptainer.has_own_processes());
}

TEST_CASE("a path that the runtime's syntax cannot hold is an error") {
  ContainerOrder order = small_order();
  order.read_only = {"/data/a,b"};
  auto words = container_words({RuntimeKind::podman, "/usr/bin/podman"}, order);
  REQUIRE_FALSE(words.ok());
  CHECK_THAT(words.error().message, Catch::Contains("`/data/a,b` cannot be mounted"));
}

TEST_CASE("variables are in a file, and those with several lines are inherited") {
  std::vector<std::string> inherited;
  std::map<std::string, std::string> variables{{"A", "1 2"}, {"KEY", "-----\nabc\n"}};
  CHECK(variables_text({RuntimeKind::podman, ""}, variables, inherited) == "A=1 2\n");
  CHECK(inherited == Words{"KEY"});
  inherited.clear();
  CHECK(variables_text({RuntimeKind::apptainer, ""}, variables, inherited) ==
        "A='1 2'\nKEY='-----\nabc\n'\n");
  CHECK(inherited.empty());
}

TEST_CASE("the first runtime on PATH that runs such an image is taken") {
  auto folder = make_temporary_folder();
  EnvironmentVariables variables{{"PATH", **folder}};
  CHECK_FALSE(find_runtime("docker://debian", variables));
  add_program(**folder + "/apptainer", "");
  CHECK(find_runtime("docker://debian", variables)->kind == RuntimeKind::apptainer);
  CHECK(find_runtime("a.sif", variables)->kind == RuntimeKind::apptainer);
  add_program(**folder + "/docker", "");
  CHECK(find_runtime("docker://debian", variables)->kind == RuntimeKind::docker);
  CHECK_FALSE(find_runtime("podman://debian", variables));
  add_program(**folder + "/podman", "");
  CHECK(find_runtime("docker://debian", variables)->program == **folder + "/podman");
  CHECK(find_runtime("a.sif", variables)->kind == RuntimeKind::apptainer);
}

TEST_CASE("an image is pulled if it is not there, and its id has no prefix") {
  auto folder = make_temporary_folder();
  std::string calls = **folder + "/calls", pulled = **folder + "/pulled";
  add_program(**folder + "/docker", "echo \"$@\" >> " + calls + "\n" +
                                        "if [ $1 = pull ]; then touch " + pulled + "; exit; fi\n" +
                                        "[ -e " + pulled + " ] && echo sha256:0123\n");
  ContainerRuntime docker{RuntimeKind::docker, **folder + "/docker"};
  CHECK_FALSE(image_id(docker, "docker://debian:12", {}, false).ok());
  CHECK(*image_id(docker, "docker://debian:12", {}, true) == "0123");
  CHECK(*read_file(calls) ==
        "image inspect --format {{.Id}} debian:12\n"
        "image inspect --format {{.Id}} debian:12\n"
        "pull --quiet debian:12\n"
        "image inspect --format {{.Id}} debian:12\n");
}

TEST_CASE("a pull that fails says why") {
  auto folder = make_temporary_folder();
  add_program(**folder + "/podman", "[ $1 = pull ] && echo \"no route: $3\" >&2; exit 125\n");
  auto id = image_id({RuntimeKind::podman, **folder + "/podman"}, "docker://debian", {}, true);
  REQUIRE_FALSE(id.ok());
  CHECK(id.error().message ==
        "the image `docker://debian` cannot be pulled: no route: docker://debian");
  CHECK(id.error().kind == ErrorKind::environment);
}

TEST_CASE("apptainer takes the digest of a name, and a name without one is an error") {
  ContainerRuntime apptainer{RuntimeKind::apptainer, "/usr/bin/apptainer"};
  CHECK(*image_id(apptainer, "docker://debian@sha256:abc", {}, true) == "abc");
  CHECK_FALSE(image_id(apptainer, "docker://debian", {}, true).ok());
}

TEST_CASE("a record of a container survives, and another text is none") {
  ContainerRecord record{
      "/usr/bin/podman", "flow-20261128-1-k-0", {{"HOME", "/home/me"}, {"A", ""}}};
  std::string text = encode_container_record(record);
  auto back = parse_container_record(text);
  REQUIRE(back);
  CHECK(back->program == record.program);
  CHECK(back->name == record.name);
  CHECK(back->variables == record.variables);
  for (const char* other :
       {"", "\n", "flow-1 /usr/bin/podman", "flow-1 podman\n", "flow-1 /bin/rm\n",
        "other /usr/bin/podman\n", "flow-A /usr/bin/podman\n", "flow-1 /usr/bin/podman\nX\n",
        "flow-1 /usr/bin/podman\n=x\n"})
    CHECK_FALSE(parse_container_record(other));
}

TEST_CASE("removing a container forgets its record") {
  auto folder = make_temporary_folder();
  std::string calls = **folder + "/calls";
  add_program(**folder + "/podman", "echo \"$STORE $@\" >> " + calls + "\n");
  std::string path = **folder + "/7.container";
  REQUIRE(write_file_atomic(
              path, encode_container_record({**folder + "/podman", "flow-1", {{"STORE", "here"}}}))
              .ok());
  remove_container(path);
  CHECK(*read_file(calls) == "here rm --force --time 0 flow-1\n");
  CHECK_FALSE(read_file(path).ok());
  remove_container(path);
  CHECK(*read_file(calls) == "here rm --force --time 0 flow-1\n");
}

TEST_CASE("a container that could not be removed keeps its record for the next attempt") {
  auto folder = make_temporary_folder();
  add_program(**folder + "/docker", "exit 1\n");
  std::string path = **folder + "/7.container";
  REQUIRE(
      write_file_atomic(path, encode_container_record({**folder + "/docker", "flow-1", {}})).ok());
  CHECK_FALSE(end_container(path));
  CHECK(read_file(path).ok());
  remove_container(path);
  CHECK_FALSE(read_file(path).ok());
  CHECK(read_file(**folder + "/flow-1.container").ok());
  add_program(**folder + "/docker", "exit 0\n");
  remove_container(**folder + "/flow-1.container");
  CHECK_FALSE(read_file(**folder + "/flow-1.container").ok());
}

}  // namespace flow
